//! Feeds arbitrary bytes from a server to a session with requests in each state.

use bytes::Bytes;

use super::header_block::MAX_HEADER_LIST;
use super::http2_session::Http2Session;
use super::stream_slot::BodySink;
use crate::grpc::Messages;
use rolldrop_record::Stamp;
use rolldrop_wire::http2::{FrameHeader, SETTINGS};

/// Length of the body of every second request.
const BODY: usize = 100_000;

/// Feeds these pieces to a session, and returns a description of everything that followed.
pub(crate) fn fuzz_session<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let (mut session, now) = (Http2Session::new(usize::MAX), Stamp::from_unix_ns(0));
    let settings = FrameHeader { length: 0, kind: SETTINGS, flags: 0, stream: 0 };
    session.receive(&settings.bytes(), now);
    let slots = [0, 1, 2, 3, 4].map(|number: usize| open(&mut session, number));
    let written = session.output().len();
    session.wrote(written);
    // A stream that this side has cancelled.
    session.close(slots[4]);
    for piece in pieces {
        session.receive(piece, now);
    }
    let mut told = String::new();
    for slot in &slots[..4] {
        let stream = session.stream(*slot);
        told += &format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {} {}\n",
            stream.id,
            stream.head,
            stream.headers,
            stream.trailers,
            stream.sink,
            stream.end,
            stream.received,
            stream.send_window
        );
        let size: usize = stream.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(size <= MAX_HEADER_LIST);
    }
    let output = session.output().to_vec();
    told += &format!(
        "{:?} {:?} {:?}
{output:?}",
        session.end, session.goaway, session.max_streams
    );
    // Whatever happened before, another request either waits, or is sent, or has ended.
    let last = open(&mut session, 0);
    assert!(session.stream(last).end.is_some() || !session.is_finished());
    for slot in slots[..4].iter().chain([&last]) {
        session.close(*slot);
    }
    session.assert_bounds();
    told
}

fn open(session: &mut Http2Session, number: usize) -> usize {
    let body = if number % 2 == 1 { Bytes::from_static(&[0; BODY]) } else { Bytes::new() };
    let sink = BodySink { messages: Some(Messages::default()), beginning: Some(Box::default()) };
    let opened = session.open(Stamp::default(), number == 2, sink, |block| {
        block.extend_from_slice(&[0x20, 0x82, 0x84, 0x86]);
        Ok::<_, std::convert::Infallible>(body)
    });
    opened.unwrap_or_else(|never| match never {})
}
