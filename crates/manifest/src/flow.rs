//! Collections in braces or brackets (flow style), like all collections in JSON. They are edited by position in the
//! text.
//!
//! A new member is added last, in the layout of the others, and can be removed without a trace. In a collection that
//! was empty before, one space precedes the new member. The space shows that the collection was not added together with
//! its member.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::splice::Splice;
use super::tree::{MappingEntry, Node, NodeShape, Style};

/// A mapping or list in brackets.
#[derive(Debug)]
pub(super) struct FlowCollection<'a> {
    text: &'a str,
    /// Position of the opening bracket.
    open: usize,
    /// Position of the closing bracket.
    close: usize,
    /// Ranges of the members: items of a list, or keys of a mapping with their values.
    members: Vec<Range<usize>>,
}

impl<'a> FlowCollection<'a> {
    /// Returns the node as a collection; `None` if it is not one, or is written without brackets.
    pub(super) fn of(text: &'a str, node: &Node) -> Option<Self> {
        let members = match &node.shape {
            NodeShape::Mapping(Style::Flow, members) => {
                let place = |member: &MappingEntry| member.key.range.start..member.value.range.end;
                members.iter().map(place).collect()
            }
            NodeShape::List(Style::Flow, items) => items.iter().map(|item| item.range.clone()).collect(),
            _ => return None,
        };
        let (open, close) = (node.range.start, node.range.end.checked_sub(1)?);
        let brackets = (text.get(open..=open)?, text.get(close..=close)?);
        matches!(brackets, ("{", "}") | ("[", "]")).then_some(Self { text, open, close, members })
    }

    /// Returns true if the collection was empty before its only member was added.
    pub(super) fn was_empty(&self) -> bool {
        matches!(self.members.as_slice(), [only] if self.text[self.open + 1..only.start] == *" ")
    }

    /// Adds a member at the end. `key` is the text of its key in a mapping.
    pub(super) fn with(&self, key: Option<&str>, value: &Value) -> Option<Splice> {
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        let Some(last) = self.members.last() else {
            let at = self.open + 1;
            return Some(Splice { range: at..at, text: format!(" {key}{}", in_line(value)) });
        };
        let gap = self.gap();
        let value = match gap.rsplit_once('\n') {
            Some((_, indent)) => lines(value, self.unit(indent))?.replace('\n', gap),
            None => in_line(value),
        };
        Some(Splice { range: last.end..last.end, text: format!(",{gap}{key}{value}") })
    }

    /// Removes a member.
    pub(super) fn without(&self, number: usize) -> Option<Splice> {
        let member = self.members.get(number)?;
        let range = match (number.checked_sub(1), self.members.get(number + 1)) {
            (Some(before), _) => self.members[before].end..member.end,
            (None, Some(next)) => member.start..next.start,
            (None, None) => self.open + 1..member.end,
        };
        Some(Splice { range, text: String::new() })
    }

    /// Returns the text between two members, after the comma.
    fn gap(&self) -> &'a str {
        let is_gap = |gap: &&str| gap.trim_start().is_empty();
        let between = match self.members.as_slice() {
            [first, second, ..] => self.text[first.end..second.start].strip_prefix(','),
            [only] => self.text.get(self.open + 1..only.start).filter(|lead| lead.contains('\n')),
            [] => None,
        };
        between.filter(is_gap).unwrap_or(" ")
    }

    /// Returns the indentation per level, given the `indent` of the members.
    fn unit(&self, indent: &str) -> usize {
        let closing = self.text[..self.close].rsplit_once('\n').map_or("", |(_, closing)| closing);
        let closing = if closing.trim().is_empty() { closing.len() } else { indent.len() };
        match indent.len().saturating_sub(closing) {
            0 => 2,
            unit => unit,
        }
    }
}

/// Formats JSON in one line, spaced as people write it.
pub(super) fn in_line(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", joined(items.iter().map(in_line).collect())),
        Value::Object(fields) => {
            let field = |(name, value)| format!("{}: {}", Value::from(String::as_str(name)), in_line(value));
            format!("{{{}}}", joined(fields.iter().map(field).collect()))
        }
        scalar => scalar.to_string(),
    }
}

/// Formats JSON on several lines, indented by `unit` spaces per level.
fn lines(value: &Value, unit: usize) -> Option<String> {
    let (mut text, indent) = (Vec::new(), " ".repeat(unit));
    let layout = PrettyFormatter::with_indent(indent.as_bytes());
    value.serialize(&mut Serializer::with_formatter(&mut text, layout)).ok()?;
    String::from_utf8(text).ok()
}
