//! Fuzz targets: arbitrary server responses and streams, kernel messages about connections, and target files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use rolldrop_testing::pieces;

use super::answer_headers::WantedHeaders;
use super::answer_stream::{StreamReader, TransportEnd};
use super::field_list::FieldList;
use super::grpc::{GrpcCall, GrpcResponse, Messages};
use super::http2_client::fuzz_session;
use super::response::parse_head;
use super::targets_file;
use super::websocket_client;
use rolldrop_record::load::{Grpc, StreamKind, StreamSettings};
use rolldrop_record::{Outcome, Stamp, StreamRow};

rolldrop_testing::targets! {
    load_response: super::response,
    load_http2: super::http2,
    load_grpc: super::grpc,
    load_conntrack: crate::conntrack_listener::fuzzing::fuzz,
    load_websocket: super::websocket_header,
    load_answer_stream: super::answer_stream,
    targets: super::target_file,
}

fn target_file(bytes: &[u8]) {
    let _ = targets_file::parse(&String::from_utf8_lossy(bytes), |path| Ok(path.as_bytes().to_vec()));
}

/// Checks that a response has the same head and the same end, however its bytes are split.
fn response(input: &[u8]) {
    let method = if input.first().is_some_and(|first| first & 1 == 1) { Method::HEAD } else { Method::GET };
    let Ok(wanted) = WantedHeaders::new("x-served-by", &["*".to_owned()]) else { return };
    let (whole, pieces) = pieces(input);
    let mut bytes = Vec::new();
    let mut first_known = None;
    for piece in pieces.clone() {
        bytes.extend_from_slice(piece);
        first_known = parse_head(&bytes, &method, &wanted).transpose();
        if first_known.is_some() {
            break;
        }
    }
    assert_eq!(first_known, parse_head(whole, &method, &wanted).transpose());
    let (Some(Ok(mut head)), Some(Ok(mut in_pieces))) =
        (first_known, parse_head(whole, &method, &wanted).transpose())
    else {
        return;
    };
    let kept = wanted.kept_of_head(&whole[..head.len]);
    assert!(kept.is_none_or(|kept| serde_json::from_str::<BTreeMap<String, String>>(&kept).is_ok()));
    let is_inside = |range: &Option<Range<usize>>| range.as_ref().is_none_or(|range| range.end <= head.len);
    assert!(is_inside(&head.server) && is_inside(&head.via));
    let taken = head.body.take(&whole[head.len..]);
    let (mut at, mut sum) = (0, Ok(0));
    for piece in pieces {
        let body = &piece[in_pieces.len.saturating_sub(at).min(piece.len())..];
        at += piece.len();
        sum = sum.and_then(|sum| Ok(sum + in_pieces.body.take(body)?));
    }
    assert_eq!(sum, taken);
}

/// Checks that a server's bytes have the same effect on a connection and its streams, however they are split.
fn http2(input: &[u8]) {
    let (whole, pieces) = pieces(input);
    assert_eq!(fuzz_session(pieces), fuzz_session(std::iter::once(whole)));
}

/// Checks that messages yield the same result, however their bytes are split. The rest of the first line is the status.
fn grpc(input: &[u8]) {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (status, input) = input.split_at(line);
    let (whole, pieces) = pieces(input);
    let (mut messages, mut in_pieces) = (Messages::default(), Messages::default());
    messages.pass(whole);
    pieces.for_each(|piece| in_pieces.pass(piece));
    assert_eq!(format!("{messages:?}"), format!("{in_pieces:?}"));
    let Ok(rpc) = "a.B/C".parse() else { return };
    let call = GrpcCall::new(&Grpc::new(rpc), Duration::from_secs(1));
    let mut headers = FieldList::default();
    headers.push(b"content-type", b"application/grpc");
    headers.push(b"grpc-status", status);
    for trailers in [None, Some(&headers)] {
        let answer = GrpcResponse { http: 200, headers: &headers, trailers, messages: &messages };
        let _ = call.judge(&answer);
    }
}

/// Checks that a frame yields the same header, however its bytes are split.
fn websocket_header(input: &[u8]) {
    let (mut rest, _) = pieces(input);
    while let Ok(Some((_, head, payload))) = websocket_client::header(rest) {
        for part in 0..head {
            assert!(matches!(websocket_client::header(&rest[..part]), Ok(None)), "{part} of {head} bytes");
        }
        let Some(after) = rest.get(head + payload..) else { break };
        rest = after;
    }
}

/// Checks that a stream has the same record and outcome, however its bytes are split. The first byte chooses the kind.
fn answer_stream(input: &[u8]) {
    const KINDS: [StreamKind; 4] =
        [StreamKind::OpenAi, StreamKind::Anthropic, StreamKind::Sse, StreamKind::Ndjson];
    let (first, input) = input.split_first().map_or((0, input), |(first, rest)| (*first, rest));
    let settings = Arc::new(StreamSettings::new(KINDS[usize::from(first) % KINDS.len()]));
    let (whole, pieces) = pieces(input);
    let told = told_by_stream(&settings, std::iter::once(whole));
    assert!(told[0].0.goodbye.as_ref().is_none_or(|goodbye| goodbye.len() <= 200));
    assert_eq!(told_by_stream(&settings, pieces), told);
}

/// Reads a stream in pieces, and returns its record and outcome for each end of the transport.
fn told_by_stream<'a>(
    settings: &Arc<StreamSettings>,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> [(StreamRow, Option<Outcome>); 4] {
    let mut reader = StreamReader::new(Arc::clone(settings));
    for piece in pieces {
        assert_eq!(reader.push(Stamp::from_unix_ns(0), piece), Ok(()));
    }
    [TransportEnd::Truncated, TransportEnd::Reset, TransportEnd::Close, TransportEnd::LastChunk].map(|end| {
        reader.finish(Stamp::from_unix_ns(0), end);
        (reader.row("load-0".into(), 0, end), reader.outcome(end))
    })
}
