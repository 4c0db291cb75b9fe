//! Compares and hashes pod templates, and reads the revision of a template from the pods that were made from it.
//!
//! There are no ControllerRevisions: StatefulSets and DaemonSets have revisions for their templates, but no copies of
//! earlier templates.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use crate::registry::in_name_characters;
use crate::value::text;

/// Pod label that contains the revision (`ControllerRevisionHashLabelKey`).
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";

/// Returns the revision of the template that a pod was made from.
pub(super) fn revision_of(pod: &Value) -> &str {
    text(&pod["metadata"]["labels"][REVISION_LABEL])
}

/// Returns true if two templates produce the same pods.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    significant(one) == significant(other)
}

/// Returns a short name for a pod template. Equal templates have equal names, regardless of field order (`serde_json`
/// sorts fields).
pub(super) fn hash(template: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    significant(template).to_string().hash(&mut hasher);
    in_name_characters(hasher.finish(), 10)
}

/// Returns a template without its insignificant parts: nulls, empty lists, and the creation time, which clients write
/// as null or copy from an older object's template.
fn significant(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, value)| {
                let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                !empty && *key != "creationTimestamp"
            });
            Value::Object(kept.map(|(key, value)| (key.clone(), significant(value))).collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(significant).collect()),
        other => other.clone(),
    }
}
