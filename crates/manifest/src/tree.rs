//! Parses YAML into values, as kubectl reads it, and into nodes with their positions in the text.

use std::collections::{HashMap, hash_map::Entry};
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, options};
use serde_json::{Map, Value};

use super::object::unescaped;
use super::problem::{Problem, line};
use super::repaired::{Repaired, Unrepaired};
use super::scalar;

/// Maximum nesting of collections; Kubernetes' own schemas have fewer than 40 levels.
const DEPTH: usize = 120;
/// Maximum number of values that aliases in one document may expand to. Without it, a few lines could expand without bound.
const ALIASED_VALUES: usize = 1_000_000;
/// Maximum key length. libyaml allows 1,024 characters, but a JSON key may be longer.
const KEY_LENGTH: usize = 1 << 20;

/// A document of a manifest.
#[derive(Debug)]
pub(super) struct YamlDocument {
    /// Range from the end of the previous document to the end of this one, including comments and separators.
    pub(super) range: Range<usize>,
    pub(super) root: Node,
    pub(super) value: Value,
}

/// A value in the text.
#[derive(Debug)]
pub(super) struct Node {
    /// Byte range, without trailing comments. For a missing value, the place to insert one.
    pub(super) range: Range<usize>,
    pub(super) shape: NodeShape,
}

#[derive(Debug)]
pub(super) enum NodeShape {
    /// No value is written.
    Missing,
    Scalar,
    Alias,
    Mapping(Style, Vec<MappingEntry>),
    List(Style, Vec<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Block,
    /// In brackets.
    Flow,
}

/// A key of a mapping and its value.
#[derive(Debug)]
pub(super) struct MappingEntry {
    pub(super) name: String,
    pub(super) key: Node,
    pub(super) value: Node,
}

impl Node {
    /// Returns the node at a JSON pointer, if the path crosses no alias.
    pub(super) fn at(&self, pointer: &str) -> Option<&Node> {
        pointer.split('/').skip(1).try_fold(self, |node, part| node.child(&unescaped(part)))
    }

    fn child(&self, part: &str) -> Option<&Node> {
        match &self.shape {
            NodeShape::Mapping(_, members) => {
                members.iter().find(|member| member.name == part).map(|member| &member.value)
            }
            NodeShape::List(_, items) => items.get(part.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Returns the position of the part that a JSON pointer names: for a field, its key; for a missing part, the
    /// nearest enclosing part.
    pub(super) fn place(&self, pointer: &str) -> usize {
        let (mut node, mut place) = (self, self.range.start);
        for part in pointer.split('/').skip(1).map(unescaped) {
            let key = match &node.shape {
                NodeShape::Mapping(_, members) => members.iter().find(|member| member.name == part),
                _ => None,
            };
            let Some(child) = node.child(&part) else { break };
            place = key.map_or(child.range.start, |member| member.key.range.start);
            node = child;
        }
        place
    }
}

/// Reads all documents in the text. Documents without a value are left out.
///
/// # Errors
/// Fails if kubectl could not read the text either, or if a key is given twice.
pub(super) fn documents(text: &str) -> Result<Vec<YamlDocument>, Problem> {
    documents_from(text, 0)
}

/// Reads the documents that begin at or after `start`.
///
/// # Errors
/// Fails as [`documents`] does.
pub(super) fn documents_from(text: &str, start: usize) -> Result<Vec<YamlDocument>, Problem> {
    let mut documents = Vec::new();
    let mut repaired = Repaired::from(text, start);
    let mut indented = None;
    loop {
        let before = documents.len();
        let (read, place) = match read(text, &repaired, &mut documents) {
            Ok(()) => return Ok(documents),
            Err(ReadStop::Problem(problem)) => return Err(problem),
            Err(ReadStop::Indentation { read, place }) => (read, place),
        };
        match documents.last() {
            // Earlier documents need not be read again.
            Some(YamlDocument { range, .. }) if documents.len() > before => {
                repaired = Repaired::from(text, range.end);
            }
            _ => {
                let at = repaired.original(place);
                let problem = |place, kind| Err(Problem::of_kind(text, place, &kind));
                // A second repair at the same place would not help.
                if indented.replace(at).is_some_and(|last| last >= at) {
                    return problem(at, ErrorKind::InvalidQuotedScalarIndent);
                }
                match repaired.indent(read, place) {
                    Ok(()) => {}
                    Err(Unrepaired::Unclosed(open)) => {
                        return problem(repaired.original(open), ErrorKind::UnclosedQuotedScalar);
                    }
                    Err(Unrepaired::NoQuotes) => return problem(at, ErrorKind::InvalidQuotedScalarIndent),
                }
            }
        }
    }
}

/// Reason why reading stopped.
enum ReadStop {
    Problem(Problem),
    /// Quoted text continues at `place` with too little indentation. Everything before `read` has been read. Both are
    /// positions in the repaired text.
    Indentation {
        read: usize,
        place: usize,
    },
}

impl From<Problem> for ReadStop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

fn read(text: &str, repaired: &Repaired<'_>, documents: &mut Vec<YamlDocument>) -> Result<(), ReadStop> {
    let mut options = options! {
        simple_key_max_lookahead: KEY_LENGTH,
        flow_nesting_limit: DEPTH,
        block_nesting_limit: DEPTH,
    };
    // Another crate in the build may have enabled comment events.
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(repaired.text(), options);
    let mut reader =
        TreeReader { parser, text, repaired, read: 0, anchors: HashMap::new(), aliased: 0, path: Vec::new() };
    let mut start = repaired.original(0);
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(()),
            (Event::DocumentStart(..), _) => {
                reader.anchors.clear();
                reader.aliased = 0;
                let (event, span) = reader.next()?;
                let (root, value) = reader.node(event, &span)?;
                let (_, span) = reader.next()?;
                let end = reader.place(span.end.byte_offset()).max(root.range.end);
                if !matches!(root.shape, NodeShape::Missing) {
                    documents.push(YamlDocument { range: start..end, root, value });
                    start = end;
                }
            }
            _ => {}
        }
    }
}

struct TreeReader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    text: &'t str,
    repaired: &'t Repaired<'t>,
    /// Position that the events have reached, in the repaired text.
    read: usize,
    /// Anchored values and how many values each contains, by the parser's number for the anchor.
    anchors: HashMap<usize, (Value, usize)>,
    /// Number of values that aliases have expanded to.
    aliased: usize,
    /// Keys and indices that lead to the reader's position.
    path: Vec<String>,
}

impl<'t> TreeReader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), ReadStop> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.read = span.end.byte_offset().unwrap_or(self.read).max(self.read);
                Ok((event, span))
            }
            Some(Err(error)) => {
                let place = error.marker().byte_offset().unwrap_or(self.read);
                if *error.kind() == ErrorKind::InvalidQuotedScalarIndent {
                    return Err(ReadStop::Indentation { read: self.read, place });
                }
                Err(Problem::of_kind(self.text, self.place(Some(place)), error.kind()).into())
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn place(&self, offset: Option<usize>) -> usize {
        self.repaired.original(offset.unwrap_or(self.read)).min(self.text.len())
    }

    fn node(&mut self, event: Event<'t>, span: &Span) -> Result<(Node, Value), ReadStop> {
        let range = self.place(span.start.byte_offset())..self.place(span.end.byte_offset());
        let (node, value, anchor) = match event {
            Event::Alias(anchor) => {
                let value = self.aliased(anchor, range.start)?;
                return Ok((Node { range, shape: NodeShape::Alias }, value));
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar::value(&text, style, tag.as_deref());
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                (self.scalar(range, is_block && text.ends_with("\n\n")), value, anchor)
            }
            Event::SequenceStart(style, anchor, _) => {
                let (node, value) = self.list(range.start, style)?;
                (node, value, anchor)
            }
            Event::MappingStart(style, anchor, _) => {
                let (node, value) = self.mapping(range.start, style)?;
                (node, value, anchor)
            }
            _ => (Node { range, shape: NodeShape::Missing }, Value::Null, 0),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (value.clone(), count(&value)));
        }
        Ok((node, value))
    }

    /// Creates the node for a scalar. With `is_kept`, trailing empty lines belong to the scalar, except for the last
    /// line break.
    fn scalar(&self, range: Range<usize>, is_kept: bool) -> Node {
        let own = &self.text[range.clone()];
        let mut end = range.start + own.trim_end().len();
        if is_kept {
            let rest = &self.text[end..];
            let empty = &rest[..rest.len() - rest.trim_start().len()];
            let kept = empty.rfind('\n').map_or("", |last| &empty[..last]);
            end += kept.strip_suffix('\r').unwrap_or(kept).len();
        }
        let shape = if range.is_empty() { NodeShape::Missing } else { NodeShape::Scalar };
        Node { range: range.start..end, shape }
    }

    fn list(&mut self, start: usize, style: StructureStyle) -> Result<(Node, Value), ReadStop> {
        let (mut items, mut values, mut end) = (Vec::new(), Vec::new(), start);
        loop {
            match self.next()? {
                (Event::SequenceEnd, span) => {
                    let style = Style::from(style);
                    if style == Style::Flow {
                        end = self.place(span.end.byte_offset());
                    }
                    let node = Node { range: start..end, shape: NodeShape::List(style, items) };
                    return Ok((node, values.into()));
                }
                (event, span) => {
                    self.path.push(values.len().to_string());
                    let (item, value) = self.node(event, &span)?;
                    self.path.pop();
                    end = item.range.end;
                    items.push(item);
                    values.push(value);
                }
            }
        }
    }

    fn mapping(&mut self, mut start: usize, style: StructureStyle) -> Result<(Node, Value), ReadStop> {
        let (mut members, mut map, mut merged) = (Vec::new(), Map::new(), Vec::new());
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut end = start;
        let style = Style::from(style);
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                if style == Style::Flow {
                    end = self.place(span.end.byte_offset());
                }
                break;
            }
            let place = self.place(span.start.byte_offset());
            if !matches!(event, Event::Scalar(..) | Event::Alias(_)) {
                return Err(
                    Problem::new(place, "a mapping or list cannot be a key: put the key in quotes").into()
                );
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let (key, name) = self.node(event, &span)?;
            let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
            match places.entry(name.clone()) {
                Entry::Vacant(entry) => _ = entry.insert(key.range.start),
                Entry::Occupied(entry) => {
                    let (first, at) = (line(self.text, *entry.get()), self.path_to(&name));
                    let why = format!("{at} is given twice, first on line {first}: remove one");
                    return Err(Problem::new(key.range.start, why).into());
                }
            }
            self.path.push(name);
            let (event, span) = self.next()?;
            let (mut value, given) = self.node(event, &span)?;
            let name = self.path.pop().unwrap_or_default();
            if matches!(value.shape, NodeShape::Missing) {
                let place = self.behind_colon(key.range.end);
                value.range = place..place;
            }
            if style == Style::Block && members.is_empty() {
                start = key.range.start;
            }
            end = value.range.end.max(key.range.end);
            if is_merge {
                merged.push(given);
            } else {
                map.insert(name.clone(), given);
            }
            members.push(MappingEntry { name, key, value });
        }
        for merged in merged {
            let all = match merged {
                Value::Array(all) => all,
                one => vec![one],
            };
            let maps = all.into_iter().filter_map(|one| match one {
                Value::Object(map) => Some(map),
                _ => None,
            });
            for (key, value) in maps.flatten() {
                map.entry(key).or_insert(value);
            }
        }
        Ok((Node { range: start..end, shape: NodeShape::Mapping(style, members) }, map.into()))
    }

    fn path_to(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    /// Returns the position after the colon that follows a key.
    fn behind_colon(&self, key_end: usize) -> usize {
        let rest = &self.text[key_end..];
        let space = rest.len() - rest.trim_start().len();
        if rest[space..].starts_with(':') { key_end + space + 1 } else { key_end }
    }

    fn aliased(&mut self, anchor: usize, place: usize) -> Result<Value, Problem> {
        let Some((value, count)) = self.anchors.get(&anchor) else {
            return Err(Problem::new(place, "this alias is inside the value that it stands for: remove it"));
        };
        self.aliased += count;
        if self.aliased > ALIASED_VALUES {
            let why = format!("aliases expand to more than {ALIASED_VALUES} values: use fewer");
            return Err(Problem::new(place, why));
        }
        Ok(value.clone())
    }
}

impl From<StructureStyle> for Style {
    fn from(style: StructureStyle) -> Self {
        match style {
            StructureStyle::Block => Self::Block,
            StructureStyle::Flow => Self::Flow,
        }
    }
}

/// Counts the values in a value, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}
