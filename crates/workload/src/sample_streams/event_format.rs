//! Encodes a stream's events.

use bytes::Bytes;
use hyper::header::HeaderValue;

use super::StreamFault;

/// Data that ends a stream, and the name of its event.
const DONE_DATA: &str = "data: [DONE]\n\n";
const DONE_EVENT: &str = "event: done\n";
const ABORT_EVENT: &str = "event: abort\ndata: {\"finish_reason\":\"abort\"}\n\n";

/// Kind of stream, selected by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleStreamKind {
    /// Chunks of a chat completion, in OpenAI's format.
    Chat,
    /// Server-sent events with numbers.
    Events,
    /// Bytes.
    Download,
}

impl SampleStreamKind {
    const ALL: [Self; 3] = [Self::Chat, Self::Events, Self::Download];

    /// Returns the kind for a path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.path() == path)
    }

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Events => "/events",
            Self::Download => "/download",
        }
    }

    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Chat | Self::Events => "text/event-stream",
            Self::Download => "application/octet-stream",
        })
    }

    /// Returns true if a stream of this kind can have the fault. A download has no events that could report one.
    pub(super) fn can_have(self, fault: StreamFault) -> bool {
        match fault {
            StreamFault::CutFin | StreamFault::CutRst | StreamFault::Stall => true,
            StreamFault::Unfinished | StreamFault::Abort | StreamFault::ErrorEvent => self != Self::Download,
        }
    }
}

/// Bytes that are sent together, with their meaning.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: Bytes,
    /// Number of events in the piece.
    pub(super) events: u64,
    /// Number of the piece's event, if it is numbered.
    pub(super) number: Option<u64>,
}

impl Piece {
    fn unnumbered(events: u64, text: String) -> Self {
        Self { bytes: text.into(), events, number: None }
    }
}

/// Error that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToldError {
    Failed,
    ShuttingDown,
}

/// Writer of one stream's events.
#[derive(Clone, Debug)]
pub(super) struct EventFormat {
    pub(super) kind: SampleStreamKind,
    /// Number of the stream.
    pub(super) stream: u64,
    /// Unix time at which the stream began, in seconds.
    pub(super) created_s: i64,
    pub(super) event_bytes: usize,
}

impl EventFormat {
    /// Returns the event with this number, counting from 1.
    pub(super) fn event(&self, number: u64) -> Piece {
        let number_text = number.to_string();
        let filler = "x".repeat(self.event_bytes.saturating_sub(number_text.len()));
        let content = number_text + &filler;
        let text = match self.kind {
            SampleStreamKind::Chat => {
                let role = if number == 1 { r#""role":"assistant","# } else { "" };
                self.chunk(&format!(r#"{{{role}"content":"{content}"}}"#), "null")
            }
            SampleStreamKind::Events => format!("id: {number}\nevent: message\ndata: {content}\n\n"),
            SampleStreamKind::Download => content,
        };
        Piece { bytes: text.into(), events: 1, number: Some(number) }
    }

    /// Returns the last piece of a complete stream. `number` is the number of its event, if it has one.
    pub(super) fn terminal(&self, number: u64) -> Piece {
        match self.kind {
            SampleStreamKind::Chat => Piece::unnumbered(2, self.chunk("{}", r#""stop""#) + DONE_DATA),
            SampleStreamKind::Events => Piece::unnumbered(1, DONE_EVENT.to_owned() + DONE_DATA),
            SampleStreamKind::Download => self.event(number),
        }
    }

    /// Returns the last piece of a stream that the server aborted.
    pub(super) fn abort(&self) -> Piece {
        let text = match self.kind {
            SampleStreamKind::Chat => self.chunk("{}", r#""abort""#) + DONE_DATA,
            _ => ABORT_EVENT.to_owned() + DONE_EVENT + DONE_DATA,
        };
        Piece::unnumbered(2, text)
    }

    /// Returns the last piece of a stream that ends with an error.
    pub(super) fn error(&self, error: ToldError) -> Piece {
        let (code, message) = match error {
            ToldError::Failed => ("internal_error", "failure configured in the sample server"),
            ToldError::ShuttingDown => ("shutting_down", "the server is shutting down"),
        };
        let name = if self.kind == SampleStreamKind::Chat { "" } else { "event: error\n" };
        let data = format!(r#"{{"error":{{"message":"{message}","type":"server_error","code":"{code}"}}}}"#);
        Piece::unnumbered(1, format!("{name}data: {data}\n\n"))
    }

    /// Returns the total size of all events up to this number.
    pub(super) fn bytes_until(&self, number: u64) -> u64 {
        (1..=number).map(|number| self.event(number).bytes.len() as u64).sum()
    }

    fn chunk(&self, delta: &str, finish_reason: &str) -> String {
        let Self { stream, created_s, .. } = self;
        format!(
            r#"data: {{"id":"chatcmpl-{stream}","object":"chat.completion.chunk","created":{created_s},"model":"sample","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish_reason}}}]}}"#
        ) + "\n\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn format(kind: SampleStreamKind) -> EventFormat {
        EventFormat { kind, stream: 7, created_s: 1_700_000_000, event_bytes: 4 }
    }

    fn text(piece: &Piece) -> &str {
        std::str::from_utf8(&piece.bytes).unwrap()
    }

    /// Returns the chunk in the first event of a piece.
    fn chunk(piece: &Piece) -> Value {
        let data = text(piece).split("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
        serde_json::from_str(data).unwrap()
    }

    #[test]
    fn chat_stream_uses_openai_format() {
        let chat = format(SampleStreamKind::Chat);
        let first = chunk(&chat.event(1));
        assert_eq!(
            first,
            json!({
                "id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "sample",
                "choices": [{
                    "index": 0, "delta": {"role": "assistant", "content": "1xxx"}, "finish_reason": null,
                }],
            })
        );
        assert_eq!(chunk(&chat.event(12_345))["choices"][0]["delta"], json!({"content": "12345"}));
        for (piece, reason) in [(chat.terminal(9), "stop"), (chat.abort(), "abort")] {
            let choice = &chunk(&piece)["choices"][0];
            assert_eq!((&choice["delta"], &choice["finish_reason"]), (&json!({}), &json!(reason)));
            assert!(text(&piece).ends_with("}\n\ndata: [DONE]\n\n"));
        }
        assert_eq!(chunk(&chat.error(ToldError::ShuttingDown))["error"]["code"], "shutting_down");
    }

    #[test]
    fn events_have_ids_and_names() {
        let events = format(SampleStreamKind::Events);
        assert_eq!(text(&events.event(17)), "id: 17\nevent: message\ndata: 17xx\n\n");
        assert_eq!(text(&events.terminal(18)), "event: done\ndata: [DONE]\n\n");
        assert!(text(&events.error(ToldError::Failed)).starts_with("event: error\ndata: {\"error\":"));
        assert_eq!(events.event(17).number, Some(17));
        assert_eq!(events.terminal(18).number, None);
    }

    #[test]
    fn piece_counts_its_events() {
        for kind in SampleStreamKind::ALL {
            let format = format(kind);
            let pieces = [format.event(1), format.terminal(2), format.error(ToldError::Failed)];
            for piece in
                pieces.into_iter().chain((kind != SampleStreamKind::Download).then(|| format.abort()))
            {
                let ends = text(&piece).matches("\n\n").count() as u64;
                assert_eq!(piece.events, if kind == SampleStreamKind::Download { 1 } else { ends });
            }
        }
    }

    #[test]
    fn download_size_is_known_in_advance() {
        let download = format(SampleStreamKind::Download);
        let pieces: Vec<_> = (1..=12_000).map(|number| download.event(number).bytes).collect();
        assert_eq!(download.bytes_until(12_000), pieces.concat().len() as u64);
        assert_eq!(pieces[16], "17xx");
        assert_eq!(download.terminal(17).bytes, "17xx");
    }
}
