//! Reading JSON values that may be something else, or nothing.

use serde_json::Value;

/// A string; empty when there is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A number; 0 when there is none.
pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The elements of a list; none when there is no list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
