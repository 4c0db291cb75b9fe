//! Collections in braces or brackets, as all of JSON's are: changed by their positions in the text.
//!
//! A new member comes last, in the layout of the others, and can be removed without a trace. In a collection
//! that was empty before, the new member has one space before it. This distinguishes it from a collection that
//! was added together with its member.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};
use yaml_edit::YamlNode;

/// A change of a text.
#[derive(Debug)]
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) text: String,
}

/// A mapping or list in brackets.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    text: &'a str,
    /// Where its opening bracket is.
    open: usize,
    /// Where its closing bracket is.
    close: usize,
    /// Of a mapping keys and values.
    members: Vec<Range<usize>>,
}

impl<'a> Flow<'a> {
    /// The collection that a node is; none if it is no collection, or is written without brackets.
    pub(super) fn of(text: &'a str, node: &YamlNode) -> Option<Self> {
        let (open, end) = place(node);
        let own = text.get(open..end)?;
        let open = open + (own.len() - own.trim_start().len());
        let close = open + own.trim().len().checked_sub(1)?;
        if !matches!((text.get(open..=open)?, text.get(close..=close)?), ("{", "}") | ("[", "]")) {
            return None;
        }
        let trimmed = |(start, end): (usize, usize)| {
            let own = text.get(start..end)?;
            Some(start..start + own.trim_end().len())
        };
        let members = match (node.as_mapping(), node.as_sequence()) {
            (Some(map), _) => map
                .entries()
                .map(|entry| {
                    let key = place(&entry.key_node()?);
                    let end = entry.value_node().map_or(key.1, |value| place(&value).1.max(key.1));
                    trimmed((key.0, end))
                })
                .collect::<Option<_>>()?,
            (_, Some(list)) => list.values().map(|item| trimmed(place(&item))).collect::<Option<_>>()?,
            _ => return None,
        };
        Some(Self { text, open, close, members })
    }

    /// Whether it was empty before its only member was added.
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

    /// The text between two members, after the comma.
    fn gap(&self) -> &'a str {
        let is_gap = |gap: &&str| gap.trim_start().is_empty();
        let between = match self.members.as_slice() {
            [first, second, ..] => self.text[first.end..second.start].strip_prefix(','),
            [only] => self.text.get(self.open + 1..only.start).filter(|lead| lead.contains('\n')),
            [] => None,
        };
        between.filter(is_gap).unwrap_or(" ")
    }

    /// The indentation of one level, if members have `indent`.
    fn unit(&self, indent: &str) -> usize {
        let closing = self.text[..self.close].rsplit_once('\n').map_or("", |(_, closing)| closing);
        let closing = if closing.trim().is_empty() { closing.len() } else { indent.len() };
        match indent.len().saturating_sub(closing) {
            0 => 2,
            unit => unit,
        }
    }
}

fn place(node: &YamlNode) -> (usize, usize) {
    let range = node.byte_range();
    (range.start as usize, range.end as usize)
}

/// Makes splices that do not overlap; none if they do.
pub(super) fn spliced(text: &str, mut splices: Vec<Splice>) -> Option<String> {
    splices.sort_by_key(|splice| splice.range.start);
    let (mut out, mut end) = (String::new(), 0);
    for splice in splices {
        out.push_str(text.get(end..splice.range.start)?);
        out.push_str(&splice.text);
        end = splice.range.end;
    }
    out.push_str(text.get(end..)?);
    Some(out)
}

/// JSON in one line, with spaces as people put them.
fn in_line(value: &Value) -> String {
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

/// JSON in lines, each level indented by so many spaces.
fn lines(value: &Value, unit: usize) -> Option<String> {
    let (mut text, indent) = (Vec::new(), " ".repeat(unit));
    let layout = PrettyFormatter::with_indent(indent.as_bytes());
    value.serialize(&mut Serializer::with_formatter(&mut text, layout)).ok()?;
    String::from_utf8(text).ok()
}
