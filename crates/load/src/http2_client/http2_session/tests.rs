use std::convert::Infallible;

use proptest::prelude::*;

use super::response_receiving::take_from_window;
use super::*;
use crate::grpc::Messages;
use rolldrop_wire::http2::hpack::literal;

/// A session, and the frames that it has written.
struct Peer {
    session: Http2Session,
}

const OK: &[u8] = &[0x88];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { length: payload.len(), kind, flags, stream };
    [&header.bytes()[..], payload].concat()
}

fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let entry = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &entries.iter().flat_map(entry).collect::<Vec<_>>())
}

fn goaway(last_stream: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last_stream.to_be_bytes(), code.to_be_bytes()].concat())
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

fn now() -> Stamp {
    Stamp::from_unix_ns(7)
}

impl Peer {
    /// Returns a session whose peer has sent these settings, and whose own opening frames have been written.
    fn new(entries: &[(u16, u32)]) -> Self {
        let mut peer = Self { session: Http2Session::new(usize::MAX) };
        peer.send(&settings(entries));
        let written = peer.written();
        let kinds: Vec<_> = frames(&written[PREFACE.len()..]).iter().map(|frame| frame.0.kind).collect();
        assert_eq!(
            (&written[..PREFACE.len()], &kinds[..]),
            (PREFACE, &[SETTINGS, WINDOW_UPDATE, SETTINGS][..])
        );
        peer
    }

    fn send(&mut self, bytes: &[u8]) {
        self.session.receive(bytes, now());
        self.session.send_waiting(now());
    }

    fn open(&mut self, body: &'static [u8]) -> usize {
        let sink = BodySink { messages: Some(Messages::default()), beginning: None };
        let opened = self.session.open(now(), false, sink, |block| {
            block.extend_from_slice(&[0x20, 0x82, 0x84, 0x86]);
            Ok::<_, Infallible>(Bytes::from_static(body))
        });
        opened.unwrap()
    }

    /// Returns all bytes to write, and records them as written.
    fn written(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let output = self.session.output().to_vec();
            if output.is_empty() {
                return all;
            }
            self.session.wrote(output.len());
            all.extend(output);
        }
    }

    /// Returns the kind, stream and length of each frame to write.
    fn frames(&mut self) -> Vec<(u8, u32, usize)> {
        let written = self.written();
        frames(&written).into_iter().map(|(header, _)| (header.kind, header.stream, header.length)).collect()
    }

    fn end(&self, slot: usize) -> Option<StreamEnd> {
        self.session.stream(slot).end.map(|(end, _)| end)
    }

    /// Returns the connection's fault, which must have been reported to the peer.
    fn fault(&mut self) -> Option<String> {
        let fault = match &self.session.end {
            Some(ConnectionEnd::Fault(fault)) => *fault,
            _ => return None,
        };
        let written = self.written();
        let (header, payload) = frames(&written).pop().unwrap();
        assert_eq!((header.kind, number(&payload[4..])), (GOAWAY, fault.code));
        Some(fault.to_string())
    }
}

fn frames(mut bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(header) = FrameHeader::read(bytes) {
        let (frame, rest) = bytes.split_at(FrameHeader::BYTES + header.length);
        frames.push((header, frame[FrameHeader::BYTES..].to_vec()));
        bytes = rest;
    }
    frames
}

#[test]
fn session_reads_response_however_split() {
    let head = [OK, &literal("content-length", "5"), &literal("via", "1.1 a")].concat();
    let response = [
        frame(HEADERS, END_HEADERS, 1, &literal(":status", "103")),
        frame(HEADERS, PADDED | PRIORITY, 1, &[&[2, 0, 0, 0, 0, 16][..], &head[..7], &[0, 0]].concat()),
        frame(CONTINUATION, 0, 1, &head[7..12]),
        frame(CONTINUATION, END_HEADERS, 1, &head[12..]),
        frame(DATA, PADDED, 1, b"\x02hel\0\0"),
        frame(DATA, 0, 1, b""),
        frame(0x2a, 0xff, 9, b"unknown"),
        frame(DATA, 0, 1, b"lo"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal("grpc-status", "0")),
    ];
    let of_message = |bytes: &[u8]| matches!(bytes[3], DATA | HEADERS | CONTINUATION);
    let received: usize = response.iter().filter(|frame| of_message(frame)).map(Vec::len).sum();
    let response = response.concat();
    for size in 1..=response.len() {
        let mut peer = Peer::new(&[]);
        let slot = peer.open(b"");
        let sent = peer.written().len();
        response.chunks(size).for_each(|piece| peer.send(piece));
        let stream = peer.session.stream(slot);
        assert_eq!(stream.head, Some(ResponseHead { status: 200, at: now() }), "{size}");
        assert_eq!(stream.headers.get("via"), Some(&b"1.1 a"[..]));
        assert_eq!(stream.trailers.as_ref().and_then(|fields| fields.get("grpc-status")), Some(&b"0"[..]));
        assert_eq!(stream.end, Some((StreamEnd::Complete, now())), "{size}");
        assert_eq!((stream.sent, stream.received), (sent as u64, received as u64), "{size}");
        let mut messages = Messages::default();
        messages.pass(b"hello");
        assert_eq!(stream.sink.messages, Some(messages));
        assert!(!peer.session.close(slot), "there is nothing to cancel");
    }
}

#[test]
fn stream_violation_leaves_other_streams_alone() {
    let ok = |stream, length: &str| {
        frame(HEADERS, END_HEADERS, stream, &[OK, &literal("content-length", length)].concat())
    };
    let many = literal("x", &"v".repeat(16_000));
    for (bytes, code) in [
        (frame(DATA, END_STREAM, 1, b"no head"), 1),
        ([ok(1, "2"), frame(DATA, 0, 1, b"longer")].concat(), 1),
        (ok(1, "x"), 1),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, &[OK, &literal("content-length", "5")].concat()), 1),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal("via", "x")), 1),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(":status", "103")), 1),
        ([ok(1, "0"), frame(HEADERS, END_HEADERS, 1, &literal("a", "b"))].concat(), 1),
        ([ok(1, "0"), ok(1, "0")].concat(), 1),
        ([ok(1, "5"), frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(":status", "200"))].concat(), 1),
        (window_update(1, 0), 1),
        (window_update(1, 0x7fff_ffff), 3),
        (
            [
                frame(HEADERS, 0, 1, &[OK, &many].concat()),
                frame(CONTINUATION, 0, 1, &many),
                frame(CONTINUATION, 0, 1, &many),
                frame(CONTINUATION, 0, 1, &many),
                frame(CONTINUATION, END_HEADERS, 1, &literal("y", &"v".repeat(1450))),
            ]
            .concat(),
            1,
        ),
    ] {
        let mut peer = Peer::new(&[]);
        let (first, second) = (peer.open(b""), peer.open(b""));
        peer.written();
        peer.send(&bytes);
        assert!(
            matches!(peer.end(first), Some(StreamEnd::Fault(fault)) if fault.code == code),
            "{:?}",
            &bytes[..9]
        );
        let written = peer.written();
        let resets: Vec<_> =
            frames(&written).into_iter().filter(|frame| frame.0.kind == RST_STREAM).collect();
        assert_eq!((resets.len(), resets[0].0.stream, number(&resets[0].1)), (1, 1, code));
        peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, OK));
        assert_eq!(peer.end(second), Some(StreamEnd::Complete));
    }
    let mut peer = Peer::new(&[]);
    let slot = peer.open(b"");
    peer.send(&[ok(1, "9"), frame(DATA, END_STREAM, 1, b"short")].concat());
    assert_eq!(peer.end(slot), Some(StreamEnd::Short));
}

/// A 204 or 304 has no content, whatever length it announces (RFC 9113, 8.1.1), and may end in a frame of its own.
#[test]
fn bodiless_status_may_announce_length() {
    for status in ["204", "304"] {
        let head = [literal(":status", status), literal("content-length", "5")].concat();
        let mut peer = Peer::new(&[]);
        let slots = [peer.open(b""), peer.open(b"")];
        peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head));
        peer.send(&[frame(HEADERS, END_HEADERS, 3, &head), frame(DATA, END_STREAM, 3, b"")].concat());
        assert_eq!(slots.map(|slot| peer.end(slot)), [Some(StreamEnd::Complete); 2], "{status}");
    }
}

#[test]
fn connection_violation_ends_all_streams() {
    let faults: &[(&str, Vec<u8>)] = &[
        ("FRAME_SIZE_ERROR: a frame of more than 16 KiB", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("PROTOCOL_ERROR: a frame for a stream that was not opened", frame(DATA, 0, 0, b"x")),
        ("PROTOCOL_ERROR: a frame for a stream that was not opened", frame(HEADERS, END_HEADERS, 5, OK)),
        ("PROTOCOL_ERROR: a frame for a stream that was not opened", frame(HEADERS, END_HEADERS, 2, OK)),
        ("PROTOCOL_ERROR: a frame for a stream that was not opened", frame(RST_STREAM, 0, 5, &[0; 4])),
        ("PROTOCOL_ERROR: a frame for a stream that was not opened", window_update(5, 1)),
        ("PROTOCOL_ERROR: a connection frame on a stream", frame(PING, 0, 1, &[0; 8])),
        (
            "PROTOCOL_ERROR: PUSH_PROMISE although push is disabled",
            frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82]),
        ),
        ("PROTOCOL_ERROR: CONTINUATION without a header block", frame(CONTINUATION, 4, 1, OK)),
        (
            "PROTOCOL_ERROR: another frame within a header block",
            [frame(HEADERS, 0, 1, OK), frame(PING, 0, 0, &[0; 8])].concat(),
        ),
        (
            "PROTOCOL_ERROR: another frame within a header block",
            [frame(HEADERS, 0, 1, OK), frame(CONTINUATION, END_HEADERS, 3, b"")].concat(),
        ),
        ("PROTOCOL_ERROR: more padding than payload", frame(DATA, PADDED, 1, b"\x03ab")),
        ("PROTOCOL_ERROR: more padding than payload", frame(HEADERS, PADDED | END_HEADERS, 1, b"\x03\x88")),
        ("FRAME_SIZE_ERROR: a padded frame without its padding length", frame(DATA, PADDED, 1, b"")),
        ("FRAME_SIZE_ERROR: HEADERS with an invalid length", frame(HEADERS, PRIORITY | END_HEADERS, 1, OK)),
        ("FRAME_SIZE_ERROR: a frame with an invalid length", frame(RST_STREAM, 0, 1, &[0; 5])),
        ("FRAME_SIZE_ERROR: a frame with an invalid length", frame(PING, 0, 0, &[0; 7])),
        ("FRAME_SIZE_ERROR: a frame with an invalid length", frame(WINDOW_UPDATE, 0, 0, &[1])),
        ("FRAME_SIZE_ERROR: SETTINGS with an invalid length", frame(SETTINGS, 0, 0, &[0; 5])),
        ("FRAME_SIZE_ERROR: SETTINGS with an invalid length", frame(SETTINGS, ACK, 0, &[0; 6])),
        ("FRAME_SIZE_ERROR: GOAWAY with an invalid length", frame(GOAWAY, 0, 0, &[0; 7])),
        ("PROTOCOL_ERROR: an invalid setting", settings(&[(ENABLE_PUSH, 2)])),
        ("PROTOCOL_ERROR: an invalid setting", settings(&[(MAX_FRAME_SIZE, 1000)])),
        ("FLOW_CONTROL_ERROR: a window of more than 2^31-1", settings(&[(INITIAL_WINDOW_SIZE, 1 << 31)])),
        ("FLOW_CONTROL_ERROR: a window of more than 2^31-1", window_update(0, 0x7fff_ffff)),
        (
            "FLOW_CONTROL_ERROR: a window of more than 2^31-1",
            [window_update(1, 1 << 20), settings(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)])].concat(),
        ),
        ("PROTOCOL_ERROR: WINDOW_UPDATE of 0", window_update(0, 0)),
        (
            "PROTOCOL_ERROR: GOAWAY with a higher last stream than before",
            [goaway(1, 0), goaway(3, 0)].concat(),
        ),
        ("COMPRESSION_ERROR: a header block that cannot be decoded", frame(HEADERS, END_HEADERS, 1, &[0x80])),
        (
            "ENHANCE_YOUR_CALM: too many CONTINUATION frames",
            [frame(HEADERS, 0, 1, OK), frame(CONTINUATION, 0, 1, b"").repeat(6)].concat(),
        ),
        (
            "ENHANCE_YOUR_CALM: a header block of more than 64 KiB",
            [frame(HEADERS, 0, 1, &[0; 16_384]), frame(CONTINUATION, 0, 1, &[0; 16_384]).repeat(4)].concat(),
        ),
    ];
    for (expected, bytes) in faults {
        let mut peer = Peer::new(&[]);
        let slots = [peer.open(b""), peer.open(b"")];
        peer.send(bytes);
        assert_eq!(peer.fault().as_deref(), Some(*expected));
        assert!(slots.iter().any(|slot| peer.end(*slot) == Some(StreamEnd::Connection)), "{expected}");
        assert!(peer.session.is_over() && peer.session.is_finished());
        let late = peer.open(b"");
        assert_eq!(peer.end(late), Some(StreamEnd::Connection), "{expected}");
        assert!(peer.session.stream(late).id.is_none(), "{expected}");
    }
}

#[test]
fn receive_windows_are_refilled_in_batches() {
    let mut peer = Peer::new(&[]);
    let slot = peer.open(b"");
    peer.send(&frame(HEADERS, END_HEADERS, 1, OK));
    peer.written();
    let data = frame(DATA, 0, 1, &[0; MAX_FRAME_BYTES]);
    for round in 1..=1024 {
        peer.send(&data);
        let (stream, connection) = (round % 32 == 0, round % 512 == 0);
        let mut expected = vec![(WINDOW_UPDATE, 0, 4); usize::from(connection)];
        expected.extend(vec![(WINDOW_UPDATE, 1, 4); usize::from(stream)]);
        assert_eq!(peer.frames(), expected, "{round}");
    }
    // Content of a closed stream still counts against the connection's window.
    assert!(peer.session.close(slot));
    assert_eq!(peer.frames(), [(RST_STREAM, 1, 4)]);
    for round in 1..=512 {
        peer.send(&data);
        assert_eq!(peer.frames().len(), usize::from(round == 512));
    }
    assert!(peer.fault().is_none());
}

#[test]
fn content_beyond_window_is_an_error() {
    let mut left = 10;
    let mut take = |bytes| take_from_window(&mut left, 10, bytes);
    assert_eq!((take(4), take(0), take(1)), (Ok(None), Ok(None), Ok(Some(5))));
    assert_eq!(take(4), Ok(None));
    assert_eq!(take(7).unwrap_err().code, 3);
}

#[test]
fn request_body_follows_peer_windows() {
    static BODY: [u8; 200_000] = [7; 200_000];
    let mut peer = Peer::new(&[(INITIAL_WINDOW_SIZE, 0)]);
    let slot = peer.open(&BODY);
    assert_eq!(peer.frames(), [(HEADERS, 1, 4)]);
    let content = |frames: Vec<(u8, u32, usize)>| {
        assert!(frames.iter().all(|(kind, stream, length)| {
            (*kind, *stream) == (DATA, 1) && (1..=MAX_FRAME_BYTES).contains(length)
        }));
        frames.iter().map(|(.., length)| length).sum::<usize>()
    };
    peer.send(&window_update(1, 10));
    assert_eq!(content(peer.frames()), 10);
    // The window becomes negative, and content is sent again only once it is positive.
    peer.send(&settings(&[(INITIAL_WINDOW_SIZE, 20)]));
    assert_eq!(peer.frames(), [(SETTINGS, 0, 0), (DATA, 1, 20)]);
    peer.send(&settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    assert_eq!(peer.frames(), [(SETTINGS, 0, 0)]);
    peer.send(&window_update(1, 25));
    assert_eq!(content(peer.frames()), 5);
    // The limit is now the connection's window, and then the length of the body.
    peer.send(&window_update(1, 0x7fff_ffff));
    assert_eq!(content(peer.frames()), FIRST_WINDOW as usize - 35);
    peer.send(&window_update(0, 0x7fff_0000));
    assert_eq!(content(peer.frames()), BODY.len() - FIRST_WINDOW as usize);
    assert!(!peer.session.stream(slot).is_sending && peer.session.stream(slot).sent > 200_000);
    // The response ends before the request does, so the rest of the request is cancelled.
    let early = peer.open(&BODY);
    peer.send(&settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, OK));
    assert_eq!(peer.end(early), Some(StreamEnd::Complete));
    peer.written();
    assert!(peer.session.close(early));
    assert_eq!(peer.frames(), [(RST_STREAM, 3, 4)]);
}

#[test]
fn requests_wait_for_peer_limit() {
    let mut peer = Peer { session: Http2Session::new(usize::MAX) };
    let slots: Vec<usize> = (0..6).map(|_| peer.open(b"")).collect();
    let ids = |peer: &Peer| slots.iter().filter_map(|slot| peer.session.stream(*slot).id).collect::<Vec<_>>();
    assert_eq!(ids(&peer), [1], "one request is sent before the limit is known");
    peer.send(&settings(&[(MAX_CONCURRENT_STREAMS, 3)]));
    assert_eq!(ids(&peer), [1, 3, 5]);
    peer.send(&settings(&[(MAX_CONCURRENT_STREAMS, 2)]));
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, OK));
    assert_eq!(ids(&peer).len(), 3, "as many are open as the new limit allows");
    peer.send(&frame(RST_STREAM, 0, 3, &[0, 0, 0, 7]));
    assert_eq!((ids(&peer).len(), peer.end(slots[1])), (4, Some(StreamEnd::Reset(7))));
    // A request that is given up while it waits is never sent.
    assert!(peer.session.close(slots[4]));
    assert!(peer.session.close(slots[2]), "cancelled");
    assert!(peer.session.is_request_due());
    peer.session.send_waiting(Stamp::from_unix_ns(8));
    let last = peer.session.stream(slots[5]);
    assert_eq!((last.id, last.sent_at), (Some(9), Some(Stamp::from_unix_ns(8))));
    let kinds: Vec<_> = peer.written()[PREFACE.len()..].to_vec();
    let heads = frames(&kinds).iter().filter(|frame| frame.0.kind == HEADERS).count();
    assert_eq!(heads, 5);
}

#[test]
fn requests_wait_for_own_limit() {
    let mut peer = Peer { session: Http2Session::new(2) };
    peer.send(&settings(&[(MAX_CONCURRENT_STREAMS, 3)]));
    let slots = [peer.open(b""), peer.open(b""), peer.open(b"")];
    assert_eq!(slots.map(|slot| peer.session.stream(slot).id), [Some(1), Some(3), None]);
}

#[test]
fn goaway_ends_only_excluded_streams() {
    let mut peer = Peer::new(&[(MAX_CONCURRENT_STREAMS, 3)]);
    let slots: Vec<usize> = (0..4).map(|_| peer.open(b"")).collect();
    let ends = |peer: &Peer| slots.iter().map(|slot| peer.end(*slot)).collect::<Vec<_>>();
    // The first GOAWAY excludes no stream, but no more requests may be sent.
    peer.send(&goaway(0x7fff_ffff, 0));
    assert_eq!(ends(&peer), [None, None, None, Some(StreamEnd::Connection)]);
    assert!(peer.session.is_over() && !peer.session.is_finished());
    peer.send(&goaway(3, 11));
    assert_eq!(ends(&peer), [None, None, Some(StreamEnd::GoAway(11)), Some(StreamEnd::Connection)]);
    let late = peer.open(b"");
    assert_eq!(peer.end(late), Some(StreamEnd::Connection));
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, OK));
    assert!(!peer.session.is_finished());
    peer.send(&frame(RST_STREAM, 0, 3, &[0; 4]));
    assert_eq!(
        (peer.end(slots[0]), peer.end(slots[1])),
        (Some(StreamEnd::Complete), Some(StreamEnd::Reset(0)))
    );
    assert!(peer.session.is_finished() && peer.fault().is_none());
}

/// Checks that a request is not sent if the same read allows and forbids it.
#[test]
fn goaway_overtakes_waiting_requests() {
    let mut peer = Peer { session: Http2Session::new(usize::MAX) };
    let slots = [peer.open(b""), peer.open(b"hello")];
    peer.written();
    peer.send(&[settings(&[]), goaway(1, 0)].concat());
    let streams = slots.map(|slot| peer.session.stream(slot));
    assert_eq!(streams.map(|stream| (stream.id, stream.sent_at)), [(Some(1), Some(now())), (None, None)]);
    assert_eq!(streams.map(|stream| stream.end), [None, Some((StreamEnd::Connection, now()))]);
    assert_eq!(peer.frames(), [(SETTINGS, 0, 0)]);
}

#[test]
fn frames_for_ended_streams_are_ignored() {
    let indexed = [&[0x40][..], &literal("pod", "web-1")[1..]].concat();
    let mut peer = Peer::new(&[]);
    let (first, second) = (peer.open(b""), peer.open(b""));
    peer.session.close(first);
    peer.written();
    // The other stream needs the table entry from this block.
    peer.send(&frame(HEADERS, END_HEADERS, 1, &[OK, &indexed].concat()));
    peer.send(&[frame(DATA, 0, 1, b"late"), window_update(1, 0), frame(RST_STREAM, 0, 1, &[0; 4])].concat());
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x88, 0x80 | 62]));
    assert_eq!(peer.session.stream(second).headers.get("pod"), Some(&b"web-1"[..]));
    let before = peer.session.stream(second).received;
    peer.send(&[frame(DATA, 0, 3, b"more"), frame(HEADERS, END_HEADERS, 3, &[0x80 | 62])].concat());
    assert_eq!(peer.end(second), Some(StreamEnd::Complete));
    assert!(peer.session.stream(second).received > before, "bytes are counted until the exchange has ended");
    assert!(peer.frames().is_empty() && peer.fault().is_none());
}

#[test]
fn partial_frame_does_not_reach_next_stream_in_slot() {
    let mut peer = Peer::new(&[]);
    let first = peer.open(b"");
    peer.send(&frame(HEADERS, END_HEADERS, 1, OK));
    let data = frame(DATA, END_STREAM, 1, b"for the first stream");
    peer.send(&data[..15]);
    peer.session.close(first);
    let second = peer.open(b"");
    assert_eq!(first, second, "the slot is reused");
    peer.send(&data[15..]);
    let stream = peer.session.stream(second);
    assert_eq!((stream.id, stream.received, stream.end), (Some(3), 0, None));
}

#[test]
fn session_stops_reading_during_ping_flood() {
    let mut peer = Peer::new(&[]);
    let flood = [frame(PING, 0, 0, &[1; 8]), settings(&[])].concat();
    let mut count = 0;
    while !peer.session.is_clogged() {
        peer.send(&flood);
        count += 1;
    }
    assert!((1000..3000).contains(&count), "{count}");
    assert_eq!(peer.frames().len(), 2 * count);
    assert!(!peer.session.is_clogged());
}

#[test]
fn failed_write_discards_output_but_not_input() {
    let mut peer = Peer::new(&[(MAX_CONCURRENT_STREAMS, 1)]);
    let [slot, waiting] = [peer.open(b""), peer.open(b"")];
    peer.session.stop_writing(io::ErrorKind::BrokenPipe.into(), now());
    assert!(peer.written().is_empty() && peer.session.is_over());
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, OK));
    assert_eq!((peer.end(slot), peer.session.stream(slot).sent), (Some(StreamEnd::Complete), 0));
    for unsent in [waiting, peer.open(b"")] {
        assert_eq!((peer.end(unsent), peer.session.stream(unsent).id), (Some(StreamEnd::Connection), None));
    }
}

#[test]
fn partly_written_requests_are_counted_exactly() {
    let mut peer = Peer::new(&[]);
    let slots = [peer.open(b"hello"), peer.open(b"")];
    let length = peer.session.output().len();
    assert_eq!(length, 13 + 13 + 9 + 5);
    let mut sums = Vec::new();
    for _ in 0..length {
        peer.session.wrote(1);
        sums.push(slots.map(|slot| peer.session.stream(slot).sent));
    }
    assert_eq!((sums[12], sums[13], sums[25], sums[39]), ([13, 0], [13, 1], [13, 13], [27, 13]));
}

#[test]
fn long_header_block_is_split_into_frames() {
    let mut peer = Peer::new(&[]);
    let opened = peer.session.open(now(), false, BodySink::default(), |block| {
        block.resize(40_000, 0x82);
        Ok::<_, Infallible>(Bytes::new())
    });
    opened.unwrap();
    let written = peer.written();
    let flags: Vec<_> = frames(&written).iter().map(|(header, _)| (header.kind, header.flags)).collect();
    assert_eq!(flags, [(HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]);
}

#[test]
fn session_retires_before_stream_ids_run_out() {
    let mut peer = Peer::new(&[]);
    peer.session.next_id = LAST_IDS - 1;
    assert!(!peer.session.is_over());
    let slot = peer.open(b"");
    assert_eq!(peer.session.stream(slot).id, Some(LAST_IDS - 1));
    assert!(peer.session.is_over(), "the pool opens another connection");
    let slot = peer.open(b"");
    assert_eq!(peer.session.stream(slot).id, Some(LAST_IDS + 1), "requests assigned to it are still sent");
}

proptest! {
    /// Compares each stream's share of the written bytes with a plain sum.
    #[test]
    fn output_attributes_bytes_to_their_streams(
        steps in prop::collection::vec((0_usize..4, 0_usize..30, 1_usize..40), 1..60),
    ) {
        let (mut output, mut due, mut sent) = (Http2Output::default(), Vec::new(), [0_usize; 3]);
        let mut expected = [0_usize; 3];
        for (owner, length, written) in steps {
            let key = StreamKey { slot: owner, id: 1 };
            match owner {
                3 => output.add_control(PING, 0, 0, &vec![0; length]),
                _ => output.add_message(key, DATA, 0, &vec![0; length]),
            }
            due.extend(std::iter::repeat_n(owner, FrameHeader::BYTES + length));
            prop_assert_eq!(output.waiting().len(), due.len());
            let written = written.min(due.len());
            output.wrote(written, |key, bytes| sent[key.slot] += usize::try_from(bytes).unwrap());
            due.drain(..written).filter(|owner| *owner < 3).for_each(|owner| expected[owner] += 1);
            prop_assert_eq!(sent, expected);
        }
    }
}
