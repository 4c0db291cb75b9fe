//! Accessors for JSON values that may be missing or of another type.

use serde_json::Value;

/// Returns the string, or an empty one if the value is not a string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the number, or 0 if the value is not an integer.
pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// Returns the elements of the list, or none if the value is not a list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns true for null and for the zero value of a type.
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
