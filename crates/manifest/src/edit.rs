//! Converts edits to replacements of byte ranges in the text.
//!
//! New fields and items are added last, with the indentation of the others, and can be removed without a trace.

use std::ops::Range;

use serde_json::{Value, json};

use super::flow::{FlowCollection, in_line};
use super::form::ManifestFormat;
use super::object::{EditKind, ManifestEdit};
use super::splice::Splice;
use super::tree::{MappingEntry, Node, NodeShape, Style};

/// Indentation of a list below its key.
const INDENT: usize = 2;

/// Text and its parsed structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParsedText<'a> {
    pub(super) text: &'a str,
    pub(super) form: ManifestFormat,
    pub(super) root: &'a Node,
    /// Line break used in the text.
    pub(super) line_break: &'static str,
}

impl ParsedText<'_> {
    /// Returns the replacement that makes an edit in the text; `None` if the text cannot be edited, for example behind
    /// an alias.
    pub(super) fn splice(&self, edit: &ManifestEdit) -> Option<Splice> {
        if let EditKind::Push(item) = &edit.change {
            let list = self.root.at(&edit.pointer)?;
            return match &list.shape {
                NodeShape::List(Style::Block, items) => self.push(items, item),
                _ => FlowCollection::of(self.text, list)?.with(None, item),
            };
        }
        let (parent, last) = edit.split()?;
        let parent = self.root.at(parent)?;
        let number = match &parent.shape {
            NodeShape::Mapping(_, members) => members.iter().position(|member| member.name == last),
            NodeShape::List(..) => Some(last.parse().ok()?),
            _ => None,
        };
        match (&edit.change, number, &parent.shape) {
            (EditKind::Set(value), Some(number), NodeShape::Mapping(style, members)) => {
                self.replace(*style, &members[number], value)
            }
            (EditKind::Set(value), None, NodeShape::Mapping(Style::Block, members)) => {
                self.append(members, &last, value)
            }
            (EditKind::Set(value), None, _) => {
                FlowCollection::of(self.text, parent)?.with(Some(&self.form.key(&last)), value)
            }
            (EditKind::Remove, Some(number), NodeShape::Mapping(Style::Block, members)) => {
                let place = |member: &MappingEntry| member.key.range.start..member.range_end();
                let next = members.get(number + 1).map(|next| next.key.range.start);
                self.without_lines(place(members.get(number)?), number == 0, next)
            }
            (EditKind::Remove, Some(number), NodeShape::List(Style::Block, items)) => {
                let item = items.get(number)?;
                let next = items.get(number + 1).and_then(|next| self.dash(next));
                self.without_lines(self.dash(item)?..item.range.end, number == 0, next)
            }
            (EditKind::Remove, Some(number), _) => FlowCollection::of(self.text, parent)?.without(number),
            _ => None,
        }
    }

    /// Adds an item to a list in block style.
    fn push(&self, items: &[Node], item: &Value) -> Option<Splice> {
        let last = items.last()?;
        let indent = self.column(self.dash(items.first()?)?);
        self.add(last.range.end, indent, &json!([item]))
    }

    /// Adds a field to a mapping in block style.
    fn append(&self, members: &[MappingEntry], key: &str, value: &Value) -> Option<Splice> {
        let (first, last) = (members.first()?, members.last()?);
        self.add(last.range_end(), self.column(first.key.range.start), &json!({ key: value }))
    }

    /// Adds lines after the line that contains this position. A list below a key is indented by [`INDENT`].
    fn add(&self, behind: usize, indent: usize, value: &Value) -> Option<Splice> {
        let at = self.line_end(behind);
        let lines = serde_saphyr::to_string(value).ok()?;
        let is_list_below =
            lines.lines().nth(1).is_some_and(|line| line.starts_with("- ")) && !value.is_array();
        let mut text = String::new();
        for (number, line) in lines.lines().enumerate() {
            let deeper = if is_list_below && number > 0 { INDENT } else { 0 };
            let indent = if line.is_empty() { 0 } else { indent + deeper };
            text.push_str(self.line_break);
            text.push_str(&" ".repeat(indent));
            text.push_str(line);
        }
        Some(Splice { range: at..at, text })
    }

    /// Replaces the value of an existing field.
    fn replace(&self, style: Style, member: &MappingEntry, value: &Value) -> Option<Splice> {
        let old = &member.value;
        let is_collection = matches!(value, Value::Object(_) | Value::Array(_));
        if style == Style::Flow {
            let text = if is_collection { in_line(value) } else { self.scalar(member, value)? };
            return (!old.range.is_empty()).then(|| Splice { range: old.range.clone(), text });
        }
        let is_in_lines =
            matches!(old.shape, NodeShape::Mapping(Style::Block, _) | NodeShape::List(Style::Block, _))
                || self.text[old.range.clone()].contains('\n');
        let behind_colon = member.key.range.end + self.text[member.key.range.end..].find(':')? + 1;
        if !is_collection {
            let range = if is_in_lines { behind_colon..old.range.end } else { old.range.clone() };
            let space = if is_in_lines || old.range.is_empty() { " " } else { "" };
            return Some(Splice { range, text: format!("{space}{}", self.scalar(member, value)?) });
        }
        // The lines of the new value, without the key, which is already there.
        let key = &member.name;
        let indent = self.column(member.key.range.start);
        let Splice { text, .. } = self.add(old.range.end, indent, &json!({ key: value }))?;
        let lines = text.split_inclusive('\n').skip(2).collect::<String>();
        let new = match lines.is_empty() {
            true => format!(" {}", in_line(value)),
            false => format!("{}{lines}", self.line_break),
        };
        let range = match old.shape {
            NodeShape::Missing if !lines.is_empty() => {
                let end = self.line_end(behind_colon);
                end..end
            }
            _ => behind_colon..old.range.end,
        };
        Some(Splice { range, text: new })
    }

    /// Formats a value in the same quotes as the field's former value, or else as the field's name.
    fn scalar(&self, member: &MappingEntry, value: &Value) -> Option<String> {
        let is_in = |node: &Node, quote| self.text[node.range.clone()].starts_with(quote);
        match (self.form, value) {
            (ManifestFormat::Yaml, Value::String(text))
                if is_in(&member.value, '\'') && !text.contains('\n') =>
            {
                Some(format!("'{}'", text.replace('\'', "''")))
            }
            (ManifestFormat::Yaml, Value::String(_))
                if !is_in(&member.value, '"') && !is_in(&member.key, '"') =>
            {
                // Formatted as the value of a key so that it is quoted where necessary.
                let text = serde_saphyr::to_string(&json!({ "key": value })).ok()?;
                let text = text.strip_prefix("key: ")?.trim_end();
                Some(if text.contains('\n') { value.to_string() } else { text.to_owned() })
            }
            _ => Some(value.to_string()),
        }
    }

    /// Removes the lines of a field or item.
    fn without_lines(&self, own: Range<usize>, is_first: bool, next: Option<usize>) -> Option<Splice> {
        let (line, end) = (self.line_start(own.start), self.line_end(own.end));
        let is_alone = self.text[line..own.start].trim().is_empty();
        let behind = self.text[end..].find('\n').map(|length| end + length + 1);
        let range = match (is_alone, is_first, behind, next) {
            (true, true, Some(behind), _) => line..behind,
            (true, _, _, _) => self.break_before(line)?..end,
            (false, true, _, Some(next)) => own.start..next,
            _ => return None,
        };
        Some(Splice { range, text: String::new() })
    }

    /// Returns the position of the `-` before an item.
    fn dash(&self, item: &Node) -> Option<usize> {
        let before = self.text[..item.range.start].trim_end();
        before.ends_with('-').then(|| before.len() - 1)
    }

    fn line_start(&self, place: usize) -> usize {
        self.text[..place].rfind('\n').map_or(0, |end| end + 1)
    }

    /// Returns the end of a line, before its line break.
    fn line_end(&self, place: usize) -> usize {
        let end = self.text[place..].find('\n').map_or(self.text.len(), |length| place + length);
        end - usize::from(end > place && self.text[..end].ends_with('\r'))
    }

    /// Returns the position of the line break before a line.
    fn break_before(&self, line: usize) -> Option<usize> {
        let before = self.text[..line].strip_suffix('\n')?;
        Some(before.strip_suffix('\r').unwrap_or(before).len())
    }

    fn column(&self, place: usize) -> usize {
        self.text[self.line_start(place)..place].chars().count()
    }
}

impl MappingEntry {
    fn range_end(&self) -> usize {
        self.value.range.end.max(self.key.range.end)
    }
}
