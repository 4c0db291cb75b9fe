//! Objects among manifests, and what is to change in them.

use std::fmt;

use serde_json::Value;

/// A change of a document.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Number of the document, from 0.
    pub document: usize,
    /// JSON pointer (RFC 6901) to a field, an item, or for [`Change::Push`] a list.
    pub pointer: String,
    /// Change of what the pointer names.
    pub change: Change,
}

/// Kind of change.
#[derive(Clone, Debug)]
pub enum Change {
    /// The field of a mapping has this value, whether it existed or not.
    Set(Value),
    /// The list has another item, at its end.
    Push(Value),
    /// The field or item is gone.
    Remove,
    /// It is gone, and so is its parent, unless that holds more or existed before.
    Withdraw,
}

impl Edit {
    pub(super) fn split(&self) -> Option<(&str, String)> {
        let (parent, last) = self.pointer.rsplit_once('/')?;
        Some((parent, unescaped(last)))
    }

    /// Makes the edit in an object, in which the pointer was found.
    pub fn apply(&self, object: &mut Value) {
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
            (Some(Value::Array(list)), _) => {
                if let Some(index) = last.parse().ok().filter(|index| *index < list.len()) {
                    list.remove(index);
                }
            }
            _ => {}
        }
    }
}

/// A Kubernetes object among manifests.
#[derive(Clone, Debug)]
pub struct Object {
    /// The number of the document that it is in.
    pub document: usize,
    /// JSON pointer to the object in the document; empty unless the object is an item of a List.
    pub at: String,
    /// The object itself.
    pub value: Value,
}

impl Object {
    /// Makes the object that is all of a document.
    pub fn whole(document: usize, value: Value) -> Self {
        Self { document, at: String::new(), value }
    }

    /// Returns a title such as `deployment/web`.
    pub fn title(&self) -> String {
        let kind = self.value["kind"].as_str().unwrap_or("object").to_lowercase();
        let meta = &self.value["metadata"];
        let name = meta["name"].as_str().or(meta["generateName"].as_str()).unwrap_or("without a name");
        format!("{kind}/{name}")
    }

    /// Returns the namespace that the object names.
    pub fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    /// Returns the value that a JSON pointer names in the object, or null.
    pub fn get(&self, pointer: &str) -> &Value {
        self.value.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Makes an edit of what a JSON pointer names in the object.
    pub fn edit(&self, pointer: impl fmt::Display, change: Change) -> Edit {
        Edit { document: self.document, pointer: format!("{}{pointer}", self.at), change }
    }

    /// Makes the edit that sets a field.
    pub fn set(&self, pointer: impl fmt::Display, value: impl Into<Value>) -> Edit {
        self.edit(pointer, Change::Set(value.into()))
    }

    /// Makes the edit that removes a field or an item.
    pub fn remove(&self, pointer: impl fmt::Display) -> Edit {
        self.edit(pointer, Change::Remove)
    }
}

/// Escapes a key as a part of a JSON pointer (RFC 6901, section 3).
pub fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(super) fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}
