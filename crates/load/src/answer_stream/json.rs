//! Finds values in JSON without parsing it, which would cost too much for every event of every stream.
//!
//! A key is found at any depth, but never inside a string, where its quotes would be escaped.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// Finder for a key.
pub(super) type Key = LazyLock<Finder<'static>>;

pub(super) static COMPLETION_TOKENS: Key = LazyLock::new(|| Finder::new("\"completion_tokens\""));
pub(super) static CONTENT: Key = LazyLock::new(|| Finder::new("\"content\""));
pub(super) static ERROR: Key = LazyLock::new(|| Finder::new("\"error\""));
pub(super) static FINISH_REASON: Key = LazyLock::new(|| Finder::new("\"finish_reason\""));
pub(super) static OUTPUT_TOKENS: Key = LazyLock::new(|| Finder::new("\"output_tokens\""));
pub(super) static STOP_REASON: Key = LazyLock::new(|| Finder::new("\"stop_reason\""));
pub(super) static TOOL_CALLS: Key = LazyLock::new(|| Finder::new("\"tool_calls\""));
pub(super) static TYPE: Key = LazyLock::new(|| Finder::new("\"type\""));

/// Returns the text that begins at each value of a key.
pub(super) fn values<'a>(json: &'a [u8], key: &'static Key) -> impl Iterator<Item = &'a [u8]> {
    key.find_iter(json).filter_map(|at| {
        let after = json[at + key.needle().len()..].trim_ascii_start();
        Some(after.strip_prefix(b":")?.trim_ascii_start())
    })
}

/// Returns the first value of a key if it is a string, up to its first quote; otherwise an empty string.
pub(super) fn text<'a>(json: &'a [u8], key: &'static Key) -> &'a [u8] {
    let text = values(json, key).next().and_then(|value| value.strip_prefix(b"\""));
    text.and_then(|text| Some(&text[..memchr::memchr(b'"', text)?])).unwrap_or_default()
}

/// Returns the first value of a key if it is a natural number.
pub(super) fn number(json: &[u8], key: &'static Key) -> Option<u64> {
    let value = values(json, key).next()?;
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}
