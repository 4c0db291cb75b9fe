//! Manifest text with several objects, edited in place.
//!
//! Each edit is made both in the parsed object and in the text, and the results are compared. A document whose text
//! cannot be edited is rewritten from its object.

use std::ops::Range;

use serde_json::Value;

use super::edit::ParsedText;
use super::flow::FlowCollection;
use super::form::ManifestFormat;
use super::object::{EditKind, ManifestEdit, ManifestObject};
use super::problem::{ManifestError, Problem, line};
use super::splice::{Splice, spliced};
use super::tree::{self, Node, YamlDocument};

/// Byte order mark, which Windows editors put at the start of a file.
const MARK: char = '\u{feff}';

/// Manifest text and its documents.
#[derive(Debug)]
pub struct Manifests {
    file: String,
    form: ManifestFormat,
    has_mark: bool,
    text: String,
    documents: Vec<DocumentEntry>,
}

/// Edited text.
#[derive(Debug)]
pub struct Edited {
    /// Text after the edits.
    pub text: String,
    /// Notes, one for each document that was rewritten.
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct DocumentEntry {
    /// Range of the document, from the end of the previous one.
    range: Range<usize>,
    /// `None` if only the values are known, not their positions.
    root: Option<Node>,
    value: Value,
}

impl Manifests {
    /// Parses text; `file` is its name in messages.
    ///
    /// # Errors
    ///
    /// Fails if kubectl could not read the text either, or if a key is given twice.
    pub fn parse(file: &str, text: &str) -> Result<Self, ManifestError> {
        let (text, has_mark) = text.strip_prefix(MARK).map_or((text, false), |text| (text, true));
        let whole = |form, documents| Self {
            file: file.to_owned(),
            form,
            has_mark,
            text: text.to_owned(),
            documents,
        };
        let is_braced = text.trim_start().starts_with('{');
        let json = if is_braced { json_documents(text).map(Some) } else { Ok(None) };
        if let Ok(Some(documents)) = json {
            return Ok(whole(ManifestFormat::Json, documents));
        }
        match (tree::documents(text), json) {
            (Ok(documents), _) => {
                Ok(whole(ManifestFormat::Yaml, documents.into_iter().map(DocumentEntry::from).collect()))
            }
            // An opening brace or bracket alone does not make the text JSON, but a quote after it does.
            (Err(_), Err(problem)) if text.trim_start()[1..].trim_start().starts_with('"') => {
                Err(problem.of(file, text))
            }
            (Err(problem), _) => Err(problem.of(file, text)),
        }
    }

    /// Returns the objects in all documents, with each item of a List as a separate object.
    pub fn objects(&self) -> Vec<ManifestObject> {
        let mut objects = Vec::new();
        for (document, entry) in self.documents.iter().enumerate() {
            let is_list = entry.value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
            match entry.value["items"].as_array().filter(|_| is_list) {
                Some(items) => objects.extend(items.iter().enumerate().map(|(number, value)| {
                    ManifestObject { document, at: format!("/items/{number}"), value: value.clone() }
                })),
                None if entry.value.is_null() => {}
                None => objects.push(ManifestObject::whole(document, entry.value.clone())),
            }
        }
        objects
    }

    /// Returns the file and line of the part of an object that a JSON pointer names, or of the nearest enclosing part.
    pub fn place(&self, object: &ManifestObject, pointer: &str) -> String {
        let root = self.documents.get(object.document).and_then(|entry| entry.root.as_ref());
        match root.map(|root| root.place(&format!("{}{pointer}", object.at))) {
            Some(place) => format!("{}:{}", self.file, line(&self.text, place)),
            None => self.file.clone(),
        }
    }

    /// Makes the edits, in order.
    pub fn edited(mut self, edits: &[ManifestEdit]) -> Edited {
        let mut of_document: Vec<Vec<&ManifestEdit>> = vec![Vec::new(); self.documents.len()];
        for edit in edits {
            of_document[edit.document].push(edit);
        }
        // Computed once, because it scans the whole text.
        let line_break = if self.text.contains("\r\n") { "\r\n" } else { "\n" };
        let mut notes = Vec::new();
        let mut text: String = self.has_mark.then_some(MARK).into_iter().collect();
        let mut end = 0;
        for (number, (entry, edits)) in self.documents.iter_mut().zip(of_document).enumerate() {
            text.push_str(&self.text[end..entry.range.start]);
            end = entry.range.end;
            if edits.is_empty() {
                text.push_str(&self.text[entry.range.clone()]);
                continue;
            }
            let resolved = entry.resolved(&self.text, &edits);
            resolved.iter().for_each(|edit| edit.apply(&mut entry.value));
            if let Some(own) = entry.spliced(&self.text, line_break, self.form, &resolved) {
                text.push_str(&own);
                continue;
            }
            notes.push(match self.form {
                ManifestFormat::Json => "rewritten, in a new layout".to_owned(),
                ManifestFormat::Yaml => format!("document {}: rewritten, without its comments", number + 1),
            });
            text.push_str(&entry.rewritten(&self.text, self.form));
        }
        text.push_str(&self.text[end..]);
        Edited { text, notes }
    }
}

impl From<YamlDocument> for DocumentEntry {
    fn from(document: YamlDocument) -> Self {
        let YamlDocument { range, root, value } = document;
        Self { range, root: Some(root), value }
    }
}

impl DocumentEntry {
    /// Returns the same edits, with each [`EditKind::Withdraw`] as a [`EditKind::Remove`] of the right field.
    fn resolved(&self, text: &str, edits: &[&ManifestEdit]) -> Vec<ManifestEdit> {
        let resolve = |edit: &ManifestEdit| {
            let EditKind::Withdraw = edit.change else { return edit.clone() };
            let holder = edit.pointer.rsplit_once('/').map_or("", |(holder, _)| holder);
            let held = match self.value.pointer(holder) {
                Some(Value::Array(list)) => list.len(),
                Some(Value::Object(map)) => map.len(),
                _ => 0,
            };
            let node = self.root.as_ref().and_then(|root| root.at(holder));
            let flow = node.and_then(|node| FlowCollection::of(text, node));
            let is_to_stay = held > 1 || flow.is_some_and(|flow| flow.was_empty());
            let pointer = if is_to_stay { &edit.pointer } else { holder };
            ManifestEdit { document: edit.document, pointer: pointer.to_owned(), change: EditKind::Remove }
        };
        edits.iter().map(|edit| resolve(edit)).collect()
    }

    /// Returns the document's text with the edits made, if the text then has the expected values.
    fn spliced(
        &self,
        text: &str,
        line_break: &'static str,
        form: ManifestFormat,
        edits: &[ManifestEdit],
    ) -> Option<String> {
        let source = ParsedText { text, form, root: self.root.as_ref()?, line_break };
        let splices: Option<Vec<Splice>> = edits.iter().map(|edit| source.splice(edit)).collect();
        let own = spliced(text, self.range.clone(), splices?)?;
        form.has(&own, &self.value).then_some(own)
    }

    /// Rewrites the document from its value, after the text that precedes it.
    fn rewritten(&self, text: &str, form: ManifestFormat) -> String {
        let place = self.root.as_ref().map_or(self.range.clone(), |root| root.range.clone());
        let before = &text[self.range.start..place.start];
        let after = &text[place.end..self.range.end];
        let json = || format!("{:#}", self.value);
        let own = match form {
            ManifestFormat::Json => json(),
            // JSON is also valid YAML.
            ManifestFormat::Yaml => match serde_saphyr::to_string(&self.value) {
                Ok(yaml) if form.has(&yaml, &self.value) => yaml.trim_end().to_owned(),
                _ => json(),
            },
        };
        let line_break = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        format!("{before}{line_break}{own}{after}")
    }
}

/// Parses text as a sequence of JSON documents.
fn json_documents(text: &str) -> Result<Vec<DocumentEntry>, Problem> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut documents, mut end, as_yaml) = (Vec::new(), 0, as_yaml(text));
    while let Some(value) = values.next() {
        let value = value.map_err(|error| json_problem(text, &error))?;
        let range = end..values.byte_offset();
        end = range.end;
        let document = tree::documents_from(&as_yaml[..end], range.start);
        let document = document.ok().and_then(|all| <[YamlDocument; 1]>::try_from(all).ok());
        documents.push(DocumentEntry { root: document.map(|[document]| document.root), range, value });
    }
    Ok(documents)
}

/// Converts JSON to YAML with the same byte positions. Tabs and `\u` escapes are replaced, because YAML accepts neither
/// tabs nor halves of surrogate pairs; this does not affect the structure.
fn as_yaml(text: &str) -> String {
    let mut text = text.replace('\t', " ");
    let escapes: Vec<usize> = text.match_indices("\\u").map(|(at, _)| at + 2).collect();
    for at in escapes {
        if text.get(at..at + 4).is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            text.replace_range(at..at + 4, "0058");
        }
    }
    text
}

fn json_problem(text: &str, error: &serde_json::Error) -> Problem {
    let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let why = match error.classify() {
        serde_json::error::Category::Eof => "this JSON ends too early: close its quotes and brackets",
        _ => "this is not valid JSON: check the commas, quotes and brackets up to here",
    };
    Problem::new(before, why)
}
