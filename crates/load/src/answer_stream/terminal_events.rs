//! Events that end a stream: the table of events, finish reasons, and errors.

use std::sync::Arc;

use rolldrop_record::StreamEnd;
use rolldrop_record::load::{StreamKind, StreamSettings};
use rolldrop_wire::answer_events::sse;
use serde_json::Value;

use super::json::{self, Key};

/// Maximum length of a goodbye, in bytes.
const MAX_GOODBYE: usize = 200;

/// An event whose type comes from its name or its data.
#[derive(Clone, Copy)]
pub(super) struct StreamEvent<'a> {
    /// Type of the event; empty if it has none.
    pub(super) of_type: &'a [u8],
    pub(super) data: &'a [u8],
}

/// Effect of an event that ends a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The stream is complete.
    Complete(StreamEnd),
    /// The app gave up.
    Aborted { by: StreamEnd, goodbye: Arc<str> },
}

/// Sign by which an event is recognised.
enum Sign {
    Data(&'static [u8]),
    Type(&'static [u8]),
}

#[derive(PartialEq)]
enum Meaning {
    Completes,
    Aborts,
}

use Meaning::{Aborts, Completes};
use StreamKind::{Anthropic, Bytes, Ndjson, OpenAi, Sse};

/// Events that end a stream. An unsuccessful finish reason also aborts the stream, and so does an object with an error,
/// except in plain events. A pattern in the settings replaces all events that complete the stream.
const ENDS: &[(&[StreamKind], Sign, Meaning, StreamEnd)] = &[
    (&[OpenAi], Sign::Data(b"[DONE]"), Completes, StreamEnd::Done),
    (&[OpenAi], Sign::Type(b"response.completed"), Completes, StreamEnd::ResponseCompleted),
    (&[OpenAi], Sign::Type(b"response.incomplete"), Completes, StreamEnd::ResponseIncomplete),
    (&[OpenAi], Sign::Type(b"response.failed"), Aborts, StreamEnd::ResponseFailed),
    (&[Anthropic], Sign::Type(b"message_stop"), Completes, StreamEnd::MessageStop),
    (&[OpenAi, Anthropic, Sse], Sign::Type(b"error"), Aborts, StreamEnd::ErrorEvent),
];

impl<'a> StreamEvent<'a> {
    /// Reads the type and the data of an event. Some LLM servers name the type only in the data.
    pub(super) fn of_sse(kind: StreamKind, event: &sse::SseEvent<'a>) -> Self {
        let of_type = match kind {
            OpenAi | Anthropic if event.name == sse::MESSAGE => json::text(event.data, &json::TYPE),
            _ => event.name,
        };
        Self { of_type, data: event.data }
    }
}

impl Sign {
    fn fits(&self, event: StreamEvent<'_>) -> bool {
        match self {
            Sign::Data(data) => event.data == *data,
            Sign::Type(of_type) => event.of_type == *of_type,
        }
    }
}

/// Returns the decision if this event ends its stream.
pub(super) fn decision(settings: &StreamSettings, event: StreamEvent<'_>) -> Option<Decision> {
    let found = ENDS.iter().find(|(kinds, sign, ..)| kinds.contains(&settings.kind) && sign.fits(event));
    if let Some((.., Aborts, by)) = found {
        return Some(Decision::Aborted { by: *by, goodbye: reason_in(event.data) });
    }
    if let Some(aborted) = abort_in(settings, event.data) {
        return Some(aborted);
    }
    match &settings.end {
        Some(pattern) => pattern.matches(event.data).then_some(Decision::Complete(StreamEnd::Pattern)),
        None => found.map(|(.., by)| Decision::Complete(*by)),
    }
}

/// Returns the abort reported in the data of an ordinary event. Nearly all events report none, so data is parsed only
/// if it contains one of the relevant keys.
fn abort_in(settings: &StreamSettings, data: &[u8]) -> Option<Decision> {
    let finish = match settings.kind {
        OpenAi => Some(&json::FINISH_REASON),
        Anthropic => Some(&json::STOP_REASON),
        Sse | Ndjson | Bytes => None,
    };
    // A plain event names its type, and its data may be anything; a JSON-RPC error response, for example, does not end
    // the stream.
    let reports_errors = settings.kind != Sse;
    // Some servers send an empty finish reason until there is a real one.
    let is_set = |key: &'static Key| {
        json::values(data, key).any(|value| !value.starts_with(b"null") && !value.starts_with(b"\"\""))
    };
    if !(reports_errors && is_set(&json::ERROR) || finish.is_some_and(is_set)) {
        return None;
    }
    let object: Value = serde_json::from_slice(data).ok()?;
    if is_error(&object["error"]) {
        return Some(Decision::Aborted { by: StreamEnd::ErrorEvent, goodbye: reason_in(data) });
    }
    let reasons: Vec<&Value> = match settings.kind {
        OpenAi => object["choices"].as_array().into_iter().flatten().map(|c| &c["finish_reason"]).collect(),
        _ => vec![&object["delta"]["stop_reason"]],
    };
    let mut given = reasons.into_iter().filter_map(Value::as_str).filter(|reason| !reason.is_empty());
    let reason = given.find(|reason| !settings.is_success(reason))?;
    Some(Decision::Aborted { by: StreamEnd::FinishReason, goodbye: shortened(reason) })
}

fn is_error(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && value != ""
}

/// Returns the message in the data of an error, or all of the data if there is no message.
fn reason_in(data: &[u8]) -> Arc<str> {
    let object: Value = serde_json::from_slice(data).unwrap_or_default();
    let error = &object["error"];
    let places = [&error["message"], &object["response"]["error"]["message"], &object["message"], error];
    match places.into_iter().find_map(Value::as_str) {
        Some(message) => shortened(message),
        None => shortened(&String::from_utf8_lossy(data)),
    }
}

fn shortened(text: &str) -> Arc<str> {
    text[..text.floor_char_boundary(MAX_GOODBYE)].into()
}
