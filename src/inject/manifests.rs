//! A text of several objects, edited in place.
//!
//! Each edit is made twice, in the parsed object and in the text, and the two are compared afterwards.
//! A document whose text cannot be edited is rewritten from its object.

use std::str::FromStr;

use serde_json::Value;
use yaml_edit::{Document, Mapping, YamlFile, YamlNode};

use super::flow::{self, Flow, Splice};
use super::object::{Change, Edit, Object, unescaped};
use super::options::InjectError;

/// What editors on Windows put before a text (byte order mark).
const MARK: char = '\u{feff}';

/// The documents of a text.
#[derive(Debug)]
pub(super) struct Manifests {
    form: Form,
    has_mark: bool,
    documents: Vec<Entry>,
}

/// The format of a text. JSON is edited as YAML, but new parts are written as JSON.
#[derive(Clone, Copy, Debug)]
enum Form {
    Yaml,
    Json,
}

#[derive(Debug)]
struct Entry {
    /// The text between the previous document and this one.
    before: String,
    text: String,
    value: Value,
}

impl Manifests {
    pub(super) fn parse(text: &str) -> Result<Self, InjectError> {
        let (text, has_mark) = text.strip_prefix(MARK).map_or((text, false), |text| (text, true));
        let is_braced = text.trim_start().starts_with('{');
        let json = if is_braced { json_documents(text).map(Some) } else { Ok(None) };
        if let Ok(Some(documents)) = json {
            return Ok(Self { form: Form::Json, has_mark, documents });
        }
        let unreadable = |error: &dyn std::fmt::Display| InjectError::Unreadable(error.to_string());
        let file = YamlFile::from_str(text).map_err(|error| match &json {
            Err(no_json) => unreadable(no_json),
            Ok(_) => unreadable(&error),
        })?;
        let mut end = 0;
        let mut documents = Vec::new();
        for document in file.documents() {
            let range = document.byte_range();
            let range = range.start as usize..range.end as usize;
            let own = text.get(range.clone()).ok_or_else(|| unreadable(&"documents overlap"))?;
            let before = text.get(end..range.start).unwrap_or_default().to_owned();
            let value = serde_saphyr::from_str(own).map_err(|error| unreadable(&error.without_snippet()))?;
            documents.push(Entry { before, text: own.to_owned(), value });
            end = range.end;
        }
        if let Some(rest) = text.get(end..).filter(|rest| !rest.is_empty()) {
            documents.push(Entry { before: rest.to_owned(), text: String::new(), value: Value::Null });
        }
        Ok(Self { form: Form::Yaml, has_mark, documents })
    }

    /// The objects of all documents, those of a List one by one.
    pub(super) fn objects(&self) -> Vec<Object> {
        let mut objects = Vec::new();
        for (document, entry) in self.documents.iter().enumerate() {
            let is_list = entry.value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
            match entry.value["items"].as_array().filter(|_| is_list) {
                Some(items) => objects.extend(items.iter().enumerate().map(|(number, value)| Object {
                    document,
                    at: format!("/items/{number}"),
                    value: value.clone(),
                })),
                None if entry.value.is_object() => objects.push(Object::whole(document, entry.value.clone())),
                None => {}
            }
        }
        objects
    }

    /// Makes the edits in order. Returns a note for each document that was rewritten.
    pub(super) fn apply(&mut self, edits: &[Edit]) -> Result<Vec<String>, InjectError> {
        let mut notes = Vec::new();
        let form = self.form;
        for (number, entry) in self.documents.iter_mut().enumerate() {
            let edits: Vec<_> = edits.iter().filter(|edit| edit.document == number).collect();
            if edits.is_empty() {
                continue;
            }
            let resolved = resolved(&entry.text, &entry.value, &edits);
            let edits: Vec<&Edit> = resolved.iter().collect();
            edits.iter().for_each(|edit| edit.apply(&mut entry.value));
            entry.text = match (form, edited(form, &entry.text, &edits, &entry.value)) {
                (_, Some(text)) => text,
                (Form::Json, None) => {
                    notes.push("rewritten, in a new layout".to_owned());
                    format!("{:#}\n", entry.value)
                }
                (Form::Yaml, None) => {
                    notes.push(format!("document {}: rewritten, without its comments", number + 1));
                    let text = serde_saphyr::to_string(&entry.value)
                        .map_err(|error| InjectError::Unreadable(error.to_string()))?;
                    format!("---\n{text}")
                }
            };
        }
        Ok(notes)
    }

    pub(super) fn text(&self) -> String {
        let mark = self.has_mark.then_some(MARK);
        let documents = self.documents.iter().flat_map(|entry| [entry.before.as_str(), &entry.text]);
        mark.into_iter().map(String::from).chain(documents.map(str::to_owned)).collect()
    }
}

/// The documents of a text that is JSON, one after the other.
fn json_documents(text: &str) -> serde_json::Result<Vec<Entry>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut documents, mut end) = (Vec::new(), 0);
    while let Some(value) = values.next() {
        let value = value?;
        let own = &text[end..values.byte_offset()];
        let before = &own[..own.len() - own.trim_start().len()];
        documents.push(Entry { before: before.to_owned(), text: own.trim_start().to_owned(), value });
        end = values.byte_offset();
    }
    documents.push(Entry { before: text[end..].to_owned(), text: String::new(), value: Value::Null });
    Ok(documents)
}

/// The same edits, with each [`Change::Withdraw`] as a [`Change::Remove`] of the right field.
fn resolved(text: &str, value: &Value, edits: &[&Edit]) -> Vec<Edit> {
    let is_needed = edits.iter().any(|edit| matches!(edit.change, Change::Withdraw));
    let file = is_needed.then(|| YamlFile::from_str(text).ok()).flatten();
    let document = file.as_ref().and_then(YamlFile::document);
    let resolve = |edit: &Edit| {
        let Change::Withdraw = edit.change else { return edit.clone() };
        let holder = edit.pointer.rsplit_once('/').map_or("", |(holder, _)| holder);
        let held = match value.pointer(holder) {
            Some(Value::Array(list)) => list.len(),
            Some(Value::Object(map)) => map.len(),
            _ => 0,
        };
        let flow = document.as_ref().and_then(|document| Flow::of(text, &node(document, holder)?));
        let is_to_stay = held > 1 || flow.is_some_and(|flow| flow.was_empty());
        let pointer = if is_to_stay { &edit.pointer } else { holder };
        Edit { document: edit.document, pointer: pointer.to_owned(), change: Change::Remove }
    };
    edits.iter().map(|edit| resolve(edit)).collect()
}

/// The text with the edits made in it, if it then parses to the wanted object.
fn edited(form: Form, text: &str, edits: &[&Edit], wanted: &Value) -> Option<String> {
    let file = YamlFile::from_str(text).ok()?;
    let document = file.document()?;
    let is_in_brackets = |edit: &&Edit| edit.splice(form, text, &document).is_some();
    let (in_brackets, others): (Vec<&Edit>, Vec<&Edit>) = edits.iter().copied().partition(is_in_brackets);
    for edit in others {
        edit.apply_to_text(form, &document)?;
    }
    let mut text = file.to_string();
    if !in_brackets.is_empty() {
        let file = YamlFile::from_str(&text).ok()?;
        let document = file.document()?;
        let splices = in_brackets.iter().map(|edit| edit.splice(form, &text, &document));
        text = flow::spliced(&text, splices.collect::<Option<_>>()?)?;
    }
    let said: Value = match form {
        Form::Json => serde_json::from_str(&text).ok()?,
        Form::Yaml => serde_saphyr::from_str(&text).ok()?,
    };
    (said == *wanted).then_some(text)
}

impl Edit {
    /// The change of the text, if the edit adds or removes a member of a collection in brackets.
    fn splice(&self, form: Form, text: &str, document: &Document) -> Option<Splice> {
        if let Change::Push(item) = &self.change {
            return Flow::of(text, &node(document, &self.pointer)?)?.with(None, item);
        }
        let (parent, last) = self.split()?;
        let parent = node(document, parent)?;
        let flow = Flow::of(text, &parent)?;
        let number = match (parent.as_mapping(), parent.as_sequence()) {
            (Some(map), _) => map.entries().position(|entry| entry.key_matches(last.as_str())),
            (_, Some(_)) => Some(last.parse().ok()?),
            _ => None,
        };
        match (&self.change, number) {
            (Change::Set(value), None) => flow.with(Some(&form.key(&last)), value),
            (Change::Remove, Some(number)) => flow.without(number),
            _ => None,
        }
    }

    /// Makes the edit in a text; `None` if that is not possible, for example behind an alias.
    fn apply_to_text(&self, form: Form, document: &Document) -> Option<()> {
        if let Change::Push(item) = &self.change {
            let list = node(document, &self.pointer)?;
            list.as_sequence()?.push(form.node(item)?);
            return Some(());
        }
        let (parent, last) = self.split()?;
        let parent = node(document, parent)?;
        match (&self.change, parent.as_mapping(), parent.as_sequence()) {
            (Change::Set(value), Some(map), _) => match form {
                Form::Json => map.set(form.node(&last.as_str().into())?, form.node(value)?),
                Form::Yaml => {
                    map.set(last.as_str(), quoted_as(map, &last, value).or_else(|| form.node(value))?)
                }
            },
            (_, Some(map), _) => {
                map.remove(last.as_str())?;
            }
            (Change::Remove, _, Some(list)) => {
                list.remove(last.parse().ok()?)?;
            }
            _ => return None,
        }
        Some(())
    }
}

fn node(document: &Document, pointer: &str) -> Option<YamlNode> {
    let mut parts = pointer.split('/').skip(1).map(unescaped);
    let first = parts.next()?;
    let mut at = document.get(first.as_str())?;
    for part in parts {
        at = match at.as_sequence() {
            Some(list) => list.get(part.parse().ok()?)?,
            None => at.get(part.as_str())?,
        };
    }
    Some(at)
}

/// A string as YAML, in the same quotes as the field's former value, or else as the field's name.
fn quoted_as(map: &Mapping, field: &str, value: &Value) -> Option<YamlNode> {
    let entry = map.find_entry_by_key(field)?;
    let is_in = |node: Option<YamlNode>, quote| node.is_some_and(|node| node.to_string().starts_with(quote));
    let text = value.as_str()?;
    let quoted = if is_in(entry.value_node(), '\'') {
        format!("'{}'", text.replace('\'', "''"))
    } else if is_in(entry.value_node(), '"') || is_in(entry.key_node(), '"') {
        value.to_string()
    } else {
        return None;
    };
    Document::from_str(&format!("value: {quoted}")).ok()?.get("value")
}

impl Form {
    fn key(self, key: &str) -> String {
        let is_plain =
            key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'/' | b'_'));
        match self {
            Self::Yaml if is_plain => key.to_owned(),
            _ => Value::from(key).to_string(),
        }
    }

    /// A value as a part of a text of this form.
    fn node(self, value: &Value) -> Option<YamlNode> {
        // As the value of a key, so that a plain string is quoted where it must be.
        let whole = serde_json::json!({ "value": value });
        let text = match self {
            Self::Json => whole.to_string(),
            Self::Yaml => serde_saphyr::to_string(&whole).ok()?,
        };
        Document::from_str(&text).ok()?.get("value")
    }
}
