//! Counts the tokens of a stream.

use rolldrop_record::load::StreamKind;

use super::json;
use super::terminal_events::StreamEvent;

/// Tokens of a stream so far.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// Number of events that carry part of the answer, about one token each.
    counted: u64,
    /// Last total that the server reported.
    reported: Option<u64>,
}

impl Tokens {
    pub(super) fn add(&mut self, kind: StreamKind, event: StreamEvent<'_>) {
        let (is_part, sum) = match kind {
            StreamKind::OpenAi if event.of_type.starts_with(b"response.") => {
                (event.of_type.ends_with(b".delta"), json::number(event.data, &json::OUTPUT_TOKENS))
            }
            StreamKind::OpenAi => (has_delta(event.data), json::number(event.data, &json::COMPLETION_TOKENS)),
            StreamKind::Anthropic => match event.of_type {
                b"content_block_delta" => (true, None),
                // `message_start` also has a total, but it covers only the tokens at the beginning.
                b"message_delta" => (false, json::number(event.data, &json::OUTPUT_TOKENS)),
                _ => (false, None),
            },
            StreamKind::Sse | StreamKind::Ndjson | StreamKind::Bytes => return,
        };
        self.counted += u64::from(is_part);
        self.reported = sum.or(self.reported);
    }

    pub(super) fn total(&self, kind: StreamKind) -> Option<u64> {
        let has_tokens = matches!(kind, StreamKind::OpenAi | StreamKind::Anthropic);
        has_tokens.then(|| self.reported.unwrap_or(self.counted))
    }
}

/// Returns true for a chunk of a chat completion with non-empty content or tool calls.
fn has_delta(chunk: &[u8]) -> bool {
    let begins = |key: &'static json::Key, empty: &[u8]| {
        json::values(chunk, key).any(|value| value.starts_with(&empty[..1]) && !value.starts_with(empty))
    };
    begins(&json::CONTENT, b"\"\"") || begins(&json::TOOL_CALLS, b"[]")
}
