//! Reads JSON values that may be of another type, or missing.

use serde_json::Value;

/// Returns a string; empty if there is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a number; 0 if there is none.
pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// Returns the elements of a list; none if there is no list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns true for nothing, and for the zero of a type.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}
