//! Streams as real servers send them, based on the servers' documentation, with every possible ending.

use TransportEnd::{
    Cancelled, Close, ContentLength, EventTooLong, LastChunk, Malformed, Reset, Stalled, Truncated,
};
use rolldrop_record::{Outcome, StreamEnd};
use rolldrop_wire::answer_events::MAX_EVENT_BYTES;

use super::*;

/// A chat completion. Its comment and its empty delta do not count as tokens.
const CHAT: &[&str] = &[
    ": queued",
    r#"data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
    r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"An \"error\""},"finish_reason":null}]}"#,
    r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":": 7"},"logprobs":null,"finish_reason":null}]}"#,
    r#"data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"type":"function"}]},"finish_reason":null}]}"#,
    r#"data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
];
const USAGE: &str = r#"data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"completion_tokens_details":{"reasoning_tokens":9}}}"#;
const DONE: &str = "data: [DONE]";

const RESPONSE: &[&str] = &[
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null,\"usage\":null}}",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}",
    "data: {\"type\":\"response.output_text.delta\",\"delta\":\" there\"}",
];

const MESSAGE: &[&str] = &[
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"stop_reason\":null,\"usage\":{\"output_tokens\":1}}}",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0}",
    "event: ping\ndata: {\"type\": \"ping\"}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"!\"}}",
];
const STOP: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}";
const MESSAGE_STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}";

fn body(events: &[&str], last: &[&str]) -> Vec<u8> {
    events.iter().chain(last).flat_map(|event| [event.as_bytes(), b"\n\n"]).flatten().copied().collect()
}

fn read_with(settings: StreamSettings, body: &[u8]) -> StreamReader {
    let mut reader = StreamReader::new(Arc::new(settings));
    reader.push(Stamp::from_unix_ns(0), body).unwrap();
    reader
}

fn read(kind: StreamKind, body: &[u8]) -> StreamReader {
    read_with(StreamSettings::new(kind), body)
}

fn open_ai(events: &[&str], last: &[&str]) -> StreamReader {
    read(StreamKind::OpenAi, &body(events, last))
}

fn goodbye(reader: &StreamReader) -> Option<String> {
    reader.record(LastChunk).goodbye.map(|goodbye| goodbye.to_string())
}

impl StreamReader {
    fn record(&self, end: TransportEnd) -> StreamRow {
        self.row("load-0".into(), 0, end)
    }
}

#[test]
fn chat_completion_needs_done() {
    let whole = open_ai(CHAT, &[USAGE, DONE]);
    let record = whole.record(LastChunk);
    assert_eq!(
        (record.terminal, record.goodbye, record.events, record.tokens),
        (StreamEnd::Done, None, 7, Some(12))
    );
    for (end, outcome) in [
        (LastChunk, Outcome::Ok),
        (Close, Outcome::Ok),
        (Truncated, Outcome::Ok),
        (Reset, Outcome::StreamCut),
        (Stalled, Outcome::StreamStalled),
        (Cancelled, Outcome::Cancelled),
    ] {
        assert_eq!(whole.outcome(end), Some(outcome), "{end:?}");
    }
    let partial = open_ai(CHAT, &[]);
    assert_eq!(partial.record(Truncated).tokens, Some(3), "parts with content or tool calls");
    assert_eq!(partial.record(Truncated).terminal, StreamEnd::Truncated);
    for (end, outcome) in [
        (LastChunk, Outcome::StreamUnfinished),
        (Close, Outcome::StreamUnfinished),
        (Truncated, Outcome::StreamCut),
        (Reset, Outcome::StreamCut),
        (EventTooLong, Outcome::ProtocolError),
        (Malformed, Outcome::ProtocolError),
    ] {
        assert_eq!(partial.outcome(end), Some(outcome), "{end:?}");
    }
}

#[test]
fn failed_finish_reason_outranks_done() {
    let aborted = |finish: &str| {
        let last = format!(r#"data: {{"choices":[{{"delta":{{}},"finish_reason":{finish}}}]}}"#);
        open_ai(&CHAT[..4], &[&last, DONE])
    };
    let by_server = aborted("\"abort\"");
    assert_eq!(by_server.outcome(LastChunk), Some(Outcome::StreamAborted));
    assert_eq!(by_server.record(LastChunk).terminal, StreamEnd::FinishReason);
    assert_eq!(goodbye(&by_server).as_deref(), Some("abort"));
    for finish in ["\"length\"", "\"content_filter\"", "null", "\"\""] {
        assert_eq!(aborted(finish).outcome(LastChunk), Some(Outcome::Ok), "{finish}");
    }
    let second =
        r#"data: {"choices":[{"finish_reason":""},{"finish_reason":"stop"},{"finish_reason": "abort"}]}"#;
    assert_eq!(open_ai(&[second, DONE], &[]).outcome(LastChunk), Some(Outcome::StreamAborted));
    let allowed = StreamSettings {
        finish_reasons: Some(["stop".to_owned(), "abort".to_owned()].into()),
        ..StreamSettings::new(StreamKind::OpenAi)
    };
    assert_eq!(read_with(allowed, &body(&[second, DONE], &[])).outcome(LastChunk), Some(Outcome::Ok));
}

#[test]
fn final_response_event_ends_stream() {
    let last = |end: &str| {
        format!(
            "data: {{\"type\":\"{end}\",\"response\":{{\"error\":null,\"usage\":{{\"output_tokens\":8}}}}}}"
        )
    };
    for (end, terminal) in [
        ("response.completed", StreamEnd::ResponseCompleted),
        ("response.incomplete", StreamEnd::ResponseIncomplete),
    ] {
        let unnamed = open_ai(RESPONSE, &[&last(end)]);
        let named = open_ai(RESPONSE, &[&format!("event: {end}\n{}", last(end))]);
        for reader in [unnamed, named] {
            assert_eq!(reader.outcome(LastChunk), Some(Outcome::Ok));
            let record = reader.record(LastChunk);
            assert_eq!((record.terminal, record.tokens), (terminal, Some(8)));
        }
    }
    let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"shutting down\"}}}";
    let failed = open_ai(RESPONSE, &[failed]);
    assert_eq!(failed.outcome(LastChunk), Some(Outcome::StreamAborted));
    assert_eq!(failed.record(LastChunk).terminal, StreamEnd::ResponseFailed);
    assert_eq!(goodbye(&failed).as_deref(), Some("shutting down"));
    let partial = open_ai(RESPONSE, &[]);
    assert_eq!(partial.outcome(LastChunk), Some(Outcome::StreamUnfinished));
    assert_eq!(partial.record(LastChunk).tokens, Some(2));
}

#[test]
fn messages_stream_needs_message_stop() {
    let anthropic = |last: &[&str]| read(StreamKind::Anthropic, &body(MESSAGE, last));
    let whole = anthropic(&[STOP, MESSAGE_STOP]);
    assert_eq!(whole.outcome(Close), Some(Outcome::Ok));
    assert_eq!(
        (whole.record(Close).terminal, whole.record(Close).tokens),
        (StreamEnd::MessageStop, Some(15))
    );
    let partial = anthropic(&[]);
    assert_eq!(partial.outcome(LastChunk), Some(Outcome::StreamUnfinished));
    assert_eq!(partial.record(LastChunk).tokens, Some(2));
    let odd = STOP.replace("end_turn", "abort");
    assert_eq!(anthropic(&[&odd, MESSAGE_STOP]).outcome(LastChunk), Some(Outcome::StreamAborted));
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}";
    let told = anthropic(&[error]);
    assert_eq!(told.outcome(Truncated), Some(Outcome::StreamAborted));
    assert_eq!(goodbye(&told).as_deref(), Some("Overloaded"));
}

#[test]
fn plain_events_need_announced_end() {
    let sse = read(StreamKind::Sse, b"data: 1\n\nevent: tick\ndata: 2\n\n: bye\n");
    assert_eq!(sse.record(Close).tokens, None);
    for (end, outcome) in [
        (LastChunk, Outcome::Ok),
        (ContentLength, Outcome::Ok),
        (Close, Outcome::StreamUnfinished),
        (Truncated, Outcome::StreamCut),
    ] {
        assert_eq!(sse.outcome(end), Some(outcome), "{end:?}");
    }
    let half = read(StreamKind::Sse, b"data: 1\n\ndata: 2\n");
    assert_eq!(half.outcome(LastChunk), Some(Outcome::StreamUnfinished));
    let ending =
        || StreamSettings { end: Some("^bye$".parse().unwrap()), ..StreamSettings::new(StreamKind::Sse) };
    assert_eq!(read_with(ending(), b"data: 1\n\ndata: bye\n\n").outcome(Close), Some(Outcome::Ok));
    assert_eq!(read_with(ending(), b"data: 1\n\n").outcome(LastChunk), Some(Outcome::StreamUnfinished));
    let error = read_with(ending(), b"data: 1\n\nevent: error\ndata: bye\n\n");
    assert_eq!(error.outcome(LastChunk), Some(Outcome::StreamAborted));
    assert_eq!(goodbye(&error).as_deref(), Some("bye"));
}

#[test]
fn ndjson_stream_needs_announced_end_or_pattern() {
    let lines = "{\"model\":\"m\",\"response\":\"Hi\",\"done\":false}\n{\"response\":\"\",\"done\":true,\"eval_count\":2}\n";
    let ndjson = read(StreamKind::Ndjson, lines.as_bytes());
    assert_eq!(ndjson.record(LastChunk).events, 2);
    assert_eq!(ndjson.outcome(LastChunk), Some(Outcome::Ok));
    assert_eq!(ndjson.outcome(Close), Some(Outcome::StreamUnfinished));
    let ollama = || StreamSettings {
        end: Some("\"done\": *true".parse().unwrap()),
        ..StreamSettings::new(StreamKind::Ndjson)
    };
    let whole = read_with(ollama(), lines.as_bytes());
    assert_eq!((whole.outcome(Close), whole.record(Close).terminal), (Some(Outcome::Ok), StreamEnd::Pattern));
    let first = &lines.as_bytes()[..=lines.find('\n').unwrap()];
    assert_eq!(read_with(ollama(), first).outcome(LastChunk), Some(Outcome::StreamUnfinished));
    let error = read_with(ollama(), b"{\"done\":false}\n{\"error\":\"model runner has stopped\"}\n");
    assert_eq!(error.outcome(LastChunk), Some(Outcome::StreamAborted));
    assert_eq!(goodbye(&error).as_deref(), Some("model runner has stopped"));
}

/// JSON Lines, unlike NDJSON, need no line ending after the last value.
#[test]
fn last_json_value_needs_no_line_ending() {
    let ending = StreamSettings {
        end: Some("\"done\": *true".parse().unwrap()),
        ..StreamSettings::new(StreamKind::Ndjson)
    };
    let read_to = |settings: &StreamSettings, body: &str, end| {
        let mut reader = read_with(settings.clone(), body.as_bytes());
        reader.finish(Stamp::from_unix_ns(7), end);
        (reader.outcome(end), reader.record(end).events)
    };
    let (plain, whole) = (StreamSettings::new(StreamKind::Ndjson), "{\"a\":1}\n{\"done\":true}");
    assert_eq!(read_to(&plain, whole, LastChunk), (Some(Outcome::Ok), 2));
    assert_eq!(read_to(&ending, whole, ContentLength), (Some(Outcome::Ok), 2));
    assert_eq!(read_to(&ending, whole, Close), (Some(Outcome::Ok), 2));
    assert_eq!(read_to(&ending, whole, Truncated), (Some(Outcome::StreamCut), 1));
    assert_eq!(read_to(&plain, "{\"a\":1}\n{\"done\":tr", LastChunk), (Some(Outcome::StreamUnfinished), 1));
    assert_eq!(read_to(&plain, "{\"a\":1}\n \r\n", LastChunk), (Some(Outcome::Ok), 1));
    assert_eq!(read_to(&StreamSettings::new(StreamKind::Sse), "data: 1", LastChunk).1, 0);
}

#[test]
fn byte_stream_needs_announced_end() {
    let bytes = read(StreamKind::Bytes, b"data: [DONE]\n\n{\"error\":1}");
    assert_eq!(bytes.outcome(ContentLength), Some(Outcome::Ok));
    assert_eq!(bytes.outcome(Close), Some(Outcome::StreamUnfinished));
    assert_eq!(bytes.outcome(Truncated), Some(Outcome::StreamCut));
    let record = bytes.record(Truncated);
    assert_eq!((record.events, record.bytes, record.tokens), (1, 25, None));
}

#[test]
fn failure_before_first_event_has_no_stream_outcome() {
    for kind in StreamKind::ALL {
        let body: &[u8] = if *kind == StreamKind::Bytes { b"" } else { b": keep-alive" };
        let reader = read(*kind, body);
        assert_eq!(reader.record(Reset).first_event, None, "{kind}");
        for end in [Truncated, Reset, Stalled] {
            assert_eq!(reader.outcome(end), None, "{kind} {end:?}");
        }
        assert_eq!(reader.outcome(Close), Some(Outcome::StreamUnfinished), "{kind}");
    }
    let empty = |kind| read(kind, b"").outcome(LastChunk);
    assert_eq!(
        empty(StreamKind::OpenAi),
        Some(Outcome::StreamUnfinished),
        "a clean end is not a transport failure"
    );
    assert_eq!(empty(StreamKind::Sse), Some(Outcome::Ok));
    let error = read(StreamKind::OpenAi, b"data: {\"error\": {\"code\": 503}}\n\n");
    assert_eq!(error.outcome(Truncated), Some(Outcome::StreamAborted));
}

#[test]
fn only_real_errors_abort_streams() {
    for data in [
        r#"{"error":null}"#,
        r#"{"error": false, "value": 1}"#,
        r#"{"error":""}"#,
        r#"{"result":{"error":"nested"}}"#,
        r#"{"text":"an \"error\": 7"}"#,
        r#"["error"]"#,
        r#"{"error":"#,
    ] {
        let reader = read(StreamKind::Ndjson, format!("{data}\n").as_bytes());
        assert_eq!(reader.outcome(LastChunk), Some(Outcome::Ok), "{data}");
    }
}

#[test]
fn json_rpc_error_leaves_plain_stream_complete() {
    let refusal = r#"data: {"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}"#;
    let answer = r#"data: {"jsonrpc":"2.0","id":2,"result":{}}"#;
    let body = body(&[refusal, answer], &[]);
    let plain = read(StreamKind::Sse, &body);
    assert_eq!((plain.outcome(LastChunk), goodbye(&plain)), (Some(Outcome::Ok), None));
    let chat = read(StreamKind::OpenAi, &body);
    assert_eq!(chat.outcome(LastChunk), Some(Outcome::StreamAborted));
    assert_eq!(goodbye(&chat).as_deref(), Some("Method not found"));
}

#[test]
fn long_goodbye_is_shortened() {
    let told =
        |data: &str| goodbye(&read(StreamKind::Sse, format!("event: error\ndata: {data}\n\n").as_bytes()));
    let long = format!("{}ä and more", "x".repeat(199));
    assert_eq!(told(&long), Some("x".repeat(199)));
    assert_eq!(told("{\"code\": 7}").as_deref(), Some("{\"code\": 7}"));
    assert_eq!(told("{\"message\": \"draining\"}").as_deref(), Some("draining"));
}

#[test]
fn longest_gap_ignores_comments() {
    let mut reader = StreamReader::new(Arc::new(StreamSettings::new(StreamKind::Sse)));
    let mut push = |ns, bytes: &[u8]| reader.push(Stamp::from_unix_ns(ns), bytes).unwrap();
    push(5, b": no event\n\n");
    push(10, b"data: 1\n");
    push(20, b"\ndata: 2\n\n");
    push(50, b": no event\n\n");
    push(90, b"data: 3\n\n");
    push(91, b"data: 4\n\n");
    let record = reader.record(Stalled);
    let at = |ns| Some(Stamp::from_unix_ns(ns));
    assert_eq!((record.first_event, record.last_event, record.events), (at(20), at(91), 4));
    assert_eq!((record.longest_gap, record.gap_start), (Some(70), at(20)));
    let one = read(StreamKind::Sse, b"data: 1\n\n").record(LastChunk);
    assert_eq!((one.longest_gap, one.gap_start), (None, None));
}

#[test]
fn stream_record_ignores_segmentation() {
    let bodies = [
        (StreamKind::OpenAi, body(CHAT, &[USAGE, DONE])),
        (StreamKind::OpenAi, body(RESPONSE, &[])),
        (StreamKind::Anthropic, body(MESSAGE, &[STOP, MESSAGE_STOP])),
        (StreamKind::Ndjson, b"{\"a\": 1}\r\n{\"error\": \"x\"}\r\n".to_vec()),
    ];
    for (kind, body) in bodies {
        let whole = read(kind, &body);
        for cut in 0..body.len() {
            let mut reader = read(kind, &body[..cut]);
            reader.push(Stamp::from_unix_ns(0), &body[cut..]).unwrap();
            assert_eq!(reader.record(LastChunk), whole.record(LastChunk), "{kind} cut at {cut}");
            assert_eq!(reader.outcome(LastChunk), whole.outcome(LastChunk), "{kind} cut at {cut}");
        }
    }
}

#[test]
fn stream_reader_is_small() {
    assert!(size_of::<StreamReader>() <= 256, "{} bytes", size_of::<StreamReader>());
}

#[test]
fn overlong_event_is_protocol_error() {
    for kind in [StreamKind::Sse, StreamKind::Ndjson] {
        let mut reader = read(kind, b"");
        let long = vec![b'x'; MAX_EVENT_BYTES + 1];
        assert_eq!(reader.push(Stamp::from_unix_ns(0), &long), Err(TooLong));
        assert_eq!(reader.outcome(EventTooLong), Some(Outcome::ProtocolError));
    }
}
