//! The two text formats: YAML and JSON.

use serde_json::Value;

use super::tree;

/// The format of the text. JSON is edited as YAML, but new parts are written as JSON.
#[derive(Clone, Copy, Debug)]
pub(super) enum ManifestFormat {
    Yaml,
    Json,
}

impl ManifestFormat {
    /// Formats a key.
    pub(super) fn key(self, key: &str) -> String {
        let is_plain =
            key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'/' | b'_'));
        match self {
            Self::Yaml if is_plain => key.to_owned(),
            _ => Value::from(key).to_string(),
        }
    }

    /// Returns true if the text is a single document with this value.
    pub(super) fn has(self, text: &str, value: &Value) -> bool {
        match self {
            Self::Json => serde_json::from_str::<Value>(text).is_ok_and(|said| said == *value),
            Self::Yaml => tree::documents(text)
                .is_ok_and(|said| matches!(said.as_slice(), [one] if one.value == *value)),
        }
    }
}
