//! Objects among manifests, and what is to change in them.

use std::fmt;

use serde_json::{Value, json};

/// What the app's port is called while the sidecar has its name.
pub(crate) const APP_PORT_NAME: &str = "rolldrop-app";
/// The annotation of pods that have the sidecar: the image that it was added with.
pub(crate) const SIDECAR: &str = "rolldrop.dev/sidecar";
/// The annotation of a Service with the target ports that it had, as JSON, by the number of its port.
pub(crate) const TARGET_PORTS: &str = "rolldrop.dev/target-ports";

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
            (Some(Value::Array(list)), _) => {
                if let Some(index) = last.parse().ok().filter(|index| *index < list.len()) {
                    list.remove(index);
                }
            }
            _ => {}
        }
    }
}

/// Where an object has the metadata and the spec of its pods; `None` if they get no sidecar.
fn pod(object: &Value) -> Option<&'static str> {
    match (object["apiVersion"].as_str()?, object["kind"].as_str()?) {
        ("v1", "Pod") => Some(""),
        ("apps/v1", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => Some("/spec/template"),
        _ => None,
    }
}

/// The labels of these pods.
pub(crate) fn pod_labels(object: &Value) -> Option<&Value> {
    Some(&object.pointer(pod(object)?)?["metadata"]["labels"])
}

/// A Kubernetes object among manifests.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// The number of the document that it is in.
    pub(super) document: usize,
    /// Where it is in there: a JSON pointer, empty but for an item of a List.
    pub(super) at: String,
    pub(super) value: Value,
}

impl Object {
    pub(super) fn whole(document: usize, value: Value) -> Self {
        Self { document, at: String::new(), value }
    }

    /// Such as `deployment/web`.
    pub(super) fn title(&self) -> String {
        let kind = self.value["kind"].as_str().unwrap_or("object").to_lowercase();
        let meta = &self.value["metadata"];
        let name = meta["name"].as_str().or(meta["generateName"].as_str()).unwrap_or("without a name");
        format!("{kind}/{name}")
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    /// Where its pods' metadata and spec are.
    pub(super) fn pod(&self) -> Option<&'static str> {
        pod(&self.value)
    }

    pub(super) fn get(&self, pointer: &str) -> &Value {
        self.value.pointer(pointer).unwrap_or(&Value::Null)
    }

    pub(super) fn edit(&self, pointer: impl fmt::Display, change: Change) -> Edit {
        Edit { document: self.document, pointer: format!("{}{pointer}", self.at), change }
    }

    pub(super) fn set(&self, pointer: impl fmt::Display, value: impl Into<Value>) -> Edit {
        self.edit(pointer, Change::Set(value.into()))
    }

    pub(super) fn remove(&self, pointer: impl fmt::Display) -> Edit {
        self.edit(pointer, Change::Remove)
    }
}

/// Adds an annotation to an object, or to its pods.
pub(super) fn annotate(object: &Object, of: &str, key: &str, text: &str) -> Edit {
    let at = format!("{of}/metadata/annotations");
    match (object.get(&at), object.get(&format!("{of}/metadata"))) {
        (Value::Object(_), _) => object.set(format!("{at}/{}", escaped(key)), text),
        (_, Value::Object(_)) => object.set(at, json!({key: text})),
        _ => object.set(format!("{of}/metadata"), json!({"annotations": {key: text}})),
    }
}

/// Removes an annotation, and the mappings that were added only for it.
pub(super) fn withdraw(object: &Object, of: &str, key: &str) -> Edit {
    let at = format!("{of}/metadata/annotations");
    let is_alone = |pointer: &str| object.get(pointer).as_object().is_some_and(|map| map.len() == 1);
    let is_all = is_alone(&at) && is_alone(&format!("{of}/metadata"));
    object.edit(if is_all { at } else { format!("{at}/{}", escaped(key)) }, Change::Withdraw)
}

/// A key as a part of a JSON pointer (RFC 6901, section 3).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(super) fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}
