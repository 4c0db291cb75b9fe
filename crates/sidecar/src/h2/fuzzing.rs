//! Entry point of a fuzz target (`crate::fuzzing`): connections as the relay reads them.

use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::super::origin::RowOrigin;
use super::super::relay::ByteWatch;
use super::frames::FrameScanner;
use super::http2_streams::Http2;
use rolldrop_record::ServedEnd;
use rolldrop_testing::pieces;
use rolldrop_wire::http2::PREFACE;

/// Checks that the relay passes on the received bytes unchanged, except for the pod header; that the result does not
/// depend on how the bytes are split; and that every stream that has begun has ended. `origin` creates a connection
/// with or without the pod header.
pub(in super::super) fn connection(input: &[u8], origin: impl Fn(bool) -> Arc<RowOrigin>) {
    // The first byte determines the split points, the second one the client's share of the input.
    let (share, input) = match input {
        [cuts, share, rest @ ..] => (usize::from(*share), [&[*cuts], rest].concat()),
        _ => (0, input.to_vec()),
    };
    let (bytes, _) = pieces(&input);
    let cuts = input.first().copied().unwrap_or(0);
    let (from_client, from_app) = bytes.split_at(bytes.len() * share / 256);
    let from_client = [PREFACE, from_client].concat();
    for has_pod_header in [false, true] {
        let whole = relay(&origin(has_pod_header), 0, &from_client, from_app, false);
        assert_eq!(relay(&origin(has_pod_header), cuts, &from_client, from_app, false), whole);
        relay(&origin(has_pod_header), cuts, &from_client, from_app, true);
        if !has_pod_header {
            assert_eq!(whole, (from_client.clone(), from_app.to_vec()));
        }
    }
}

/// Returns the bytes that arrive at the app and at the client, including those flushed at the end.
fn relay(
    origin: &Arc<RowOrigin>,
    cuts: u8,
    from_client: &[u8],
    from_app: &[u8],
    alternates: bool,
) -> (Vec<u8>, Vec<u8>) {
    let http2 = Http2::new(origin.clone());
    let (from_client, from_app) = ([&[cuts], from_client].concat(), [&[cuts], from_app].concat());
    let (mut requests, mut responses) = (
        FuzzedDirection::new(FrameScanner::of_client(&http2)),
        FuzzedDirection::new(FrameScanner::of_app(&http2)),
    );
    let (mut from_client, mut from_app) = (pieces(&from_client).1, pieces(&from_app).1);
    loop {
        let request = from_client.next();
        request.inspect(|piece| requests.feed(piece));
        let response = if alternates || request.is_none() { from_app.next() } else { None };
        response.inspect(|piece| responses.feed(piece));
        if request.is_none() && response.is_none() {
            break;
        }
    }
    let passed = (requests.flushed(), responses.flushed());
    http2.end_all(ServedEnd::Cancelled);
    assert_eq!(origin.shared.in_flight.count(), 0);
    passed
}

/// One direction.
struct FuzzedDirection<'a> {
    frames: FrameScanner<'a>,
    buf: BytesMut,
    passed: Vec<u8>,
}

impl<'a> FuzzedDirection<'a> {
    fn new(frames: FrameScanner<'a>) -> Self {
        Self { frames, buf: BytesMut::new(), passed: Vec::new() }
    }

    fn feed(&mut self, piece: &[u8]) {
        self.buf.extend_from_slice(piece);
        let ready = self.frames.look(&mut self.buf);
        self.passed.extend_from_slice(&self.buf[..ready]);
        self.buf.advance(ready);
        self.frames.passed(ready);
    }

    fn flushed(self) -> Vec<u8> {
        [self.passed, self.buf.to_vec()].concat()
    }
}
