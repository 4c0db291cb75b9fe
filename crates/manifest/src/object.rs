//! Objects in manifests, and edits to them.

use std::fmt;

use serde_json::Value;

/// A change to a document.
#[derive(Clone, Debug)]
pub struct ManifestEdit {
    /// Number of the document, from 0.
    pub document: usize,
    /// JSON pointer (RFC 6901) to a field, an item, or for [`EditKind::Push`] a list.
    pub pointer: String,
    /// Change to the part that the pointer names.
    pub change: EditKind,
}

/// Kind of change.
#[derive(Clone, Debug)]
pub enum EditKind {
    /// Sets a field of a mapping, whether or not it exists.
    Set(Value),
    /// Appends an item to a list.
    Push(Value),
    /// Removes the field or item.
    Remove,
    /// Removes the field or item, and also its parent unless the parent has other content or existed before.
    Withdraw,
}

impl ManifestEdit {
    pub(super) fn split(&self) -> Option<(&str, String)> {
        let (parent, last) = self.pointer.rsplit_once('/')?;
        Some((parent, unescaped(last)))
    }

    /// Makes the edit in an object in which the pointer exists.
    pub fn apply(&self, object: &mut Value) {
        if let EditKind::Push(item) = &self.change {
            if let Some(list) = object.pointer_mut(&self.pointer).and_then(Value::as_array_mut) {
                list.push(item.clone());
            }
            return;
        }
        let Some((parent, last)) = self.split() else { return };
        match (object.pointer_mut(parent), &self.change) {
            (Some(Value::Object(map)), EditKind::Set(value)) => {
                map.insert(last, value.clone());
            }
            (Some(Value::Object(map)), _) => {
                map.remove(&last);
            }
            (Some(Value::Array(list)), _) => {
                if let Some(index) = last.parse().ok().filter(|index| *index < list.len()) {
                    list.remove(index);
                }
            }
            _ => {}
        }
    }
}

/// A Kubernetes object in manifests.
#[derive(Clone, Debug)]
pub struct ManifestObject {
    /// Number of the document that contains the object.
    pub document: usize,
    /// JSON pointer to the object within the document; empty unless the object is an item of a List.
    pub at: String,
    /// The object itself.
    pub value: Value,
}

impl ManifestObject {
    /// Creates an object from a whole document.
    pub fn whole(document: usize, value: Value) -> Self {
        Self { document, at: String::new(), value }
    }

    /// Returns a title such as `deployment/web`.
    pub fn title(&self) -> String {
        let kind = self.value["kind"].as_str().unwrap_or("object").to_lowercase();
        let meta = &self.value["metadata"];
        let name = meta["name"].as_str().or(meta["generateName"].as_str()).unwrap_or("(unnamed)");
        format!("{kind}/{name}")
    }

    /// Returns the namespace that the object names.
    pub fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    /// Returns the object's value at a JSON pointer, or null.
    pub fn get(&self, pointer: &str) -> &Value {
        self.value.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Creates an edit to the part of the object that a JSON pointer names.
    pub fn edit(&self, pointer: impl fmt::Display, change: EditKind) -> ManifestEdit {
        ManifestEdit { document: self.document, pointer: format!("{}{pointer}", self.at), change }
    }

    /// Creates the edit that sets a field.
    pub fn set(&self, pointer: impl fmt::Display, value: impl Into<Value>) -> ManifestEdit {
        self.edit(pointer, EditKind::Set(value.into()))
    }

    /// Creates the edit that removes a field or an item.
    pub fn remove(&self, pointer: impl fmt::Display) -> ManifestEdit {
        self.edit(pointer, EditKind::Remove)
    }
}

/// Escapes a key for use in a JSON pointer (RFC 6901, section 3).
pub fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(super) fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}
