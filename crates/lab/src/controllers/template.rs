//! Pod templates: which are the same, and a short name for each.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use crate::registry::in_name_characters;

/// Returns true if two templates make the same pods.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    significant(one) == significant(other)
}

/// A short name for a pod template: equal templates have equal ones, whatever order their fields
/// were written in (`serde_json` sorts them).
pub(super) fn hash(template: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    significant(template).to_string().hash(&mut hasher);
    in_name_characters(hasher.finish(), 10)
}

/// A template without what says nothing: nulls, empty lists, and a creation time, which clients
/// write as null or as the template of an older object had it.
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
