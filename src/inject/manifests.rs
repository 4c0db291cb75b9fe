//! A text of several objects, edited in place.
//!
//! Each edit is made twice, on the object that the text says and on the text itself, and the two are
//! compared afterwards. A document whose text cannot follow is written anew from its object.

use std::str::FromStr;

use serde_json::Value;
use yaml_edit::{Document, YamlFile, YamlNode};

use super::{InjectError, Object};

/// What is to change in a document.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) document: usize,
    /// Of a field, an item, or for [`Change::Push`] a list: a JSON pointer (RFC 6901).
    pub(super) pointer: String,
    pub(super) change: Change,
}

/// How.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The field, which is none of a list, has this value, whether it was there or not.
    Set(Value),
    /// The list has another item, at its end.
    Push(Value),
    /// The field or item is gone.
    Remove,
}

/// The documents of a text.
#[derive(Debug)]
pub(super) struct Manifests {
    form: Form,
    documents: Vec<Entry>,
}

/// What a text is written in. JSON is YAML as well, and edited as such, in JSON's own terms.
#[derive(Clone, Copy, Debug)]
enum Form {
    Yaml,
    Json,
}

#[derive(Debug)]
struct Entry {
    /// What stands between the document before and this one.
    before: String,
    text: String,
    value: Value,
}

impl Manifests {
    pub(super) fn parse(text: &str) -> Result<Self, InjectError> {
        if text.trim_start().starts_with('{') {
            let value =
                serde_json::from_str(text).map_err(|error| InjectError::Unreadable(error.to_string()))?;
            let only = Entry { before: String::new(), text: text.to_owned(), value };
            return Ok(Self { form: Form::Json, documents: vec![only] });
        }
        let unreadable = |error: &dyn std::fmt::Display| InjectError::Unreadable(error.to_string());
        let file = YamlFile::from_str(text).map_err(|error| unreadable(&error))?;
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
        Ok(Self { form: Form::Yaml, documents })
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

    /// Makes the edits, in their order. Answers what the text could not keep.
    pub(super) fn apply(&mut self, edits: &[Edit]) -> Result<Vec<String>, InjectError> {
        let mut notes = Vec::new();
        let form = self.form;
        for (number, entry) in self.documents.iter_mut().enumerate() {
            let edits: Vec<_> = edits.iter().filter(|edit| edit.document == number).collect();
            if edits.is_empty() {
                continue;
            }
            edits.iter().for_each(|edit| edit.apply(&mut entry.value));
            entry.text = match (form, edited(form, &entry.text, &edits, &entry.value)) {
                (_, Some(text)) => text,
                (Form::Json, None) => {
                    notes.push("written anew, in a layout of its own".to_owned());
                    format!("{:#}\n", entry.value)
                }
                (Form::Yaml, None) => {
                    notes.push(format!("document {}: written anew, without its comments", number + 1));
                    let text = serde_saphyr::to_string(&entry.value)
                        .map_err(|error| InjectError::Unreadable(error.to_string()))?;
                    format!("---\n{text}")
                }
            };
        }
        Ok(notes)
    }

    pub(super) fn text(&self) -> String {
        self.documents.iter().flat_map(|entry| [entry.before.as_str(), &entry.text]).collect()
    }
}

/// The text with the edits made in it, if that says what it should.
fn edited(form: Form, text: &str, edits: &[&Edit], wanted: &Value) -> Option<String> {
    let file = YamlFile::from_str(text).ok()?;
    let document = file.document()?;
    for edit in edits {
        edit.apply_to_text(form, &document)?;
    }
    let text = file.to_string();
    let said: Value = match form {
        Form::Json => serde_json::from_str(&text).ok()?,
        Form::Yaml => serde_saphyr::from_str(&text).ok()?,
    };
    (said == *wanted).then_some(text)
}

impl Edit {
    fn split(&self) -> Option<(&str, String)> {
        let (parent, last) = self.pointer.rsplit_once('/')?;
        Some((parent, unescaped(last)))
    }

    /// Makes the edit in an object. What it names is there, for it was found there.
    pub(super) fn apply(&self, object: &mut Value) {
        if let Change::Push(item) = &self.change {
            if let Some(list) = object.pointer_mut(&self.pointer).and_then(Value::as_array_mut) {
                list.push(item.clone());
            }
            return;
        }
        let Some((parent, last)) = self.split() else { return };
        match (object.pointer_mut(parent), &self.change) {
            (Some(Value::Object(map)), Change::Set(value)) => {
                map.insert(last, value.clone());
            }
            (Some(Value::Object(map)), _) => {
                map.remove(&last);
            }
            (Some(Value::Array(list)), Change::Remove) => {
                if let Some(index) = last.parse().ok().filter(|index| *index < list.len()) {
                    list.remove(index);
                }
            }
            _ => {}
        }
    }

    /// Makes the edit in a text; none where that has no place for it, as behind an alias.
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
                Form::Yaml => map.set(last.as_str(), form.node(value)?),
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

impl Form {
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

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}
