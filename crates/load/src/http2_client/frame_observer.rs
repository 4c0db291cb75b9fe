//! Parses HTTP/2 frames from observed bytes: the streams they belong to, and the frames that end a stream or a
//! connection.
//!
//! Bytes in, facts out (RFC 9113, 4.1). This module decodes no header block and validates nothing; the `h2` crate does
//! both, but does not report which bytes belong to which stream.

use rolldrop_wire::http2::{
    CONTINUATION, DATA, END_STREAM, FrameHeader, GOAWAY, HEADERS, RST_STREAM, SETTINGS, number,
};

/// Maximum number of payload bytes to keep: enough for any SETTINGS frame in use.
const MAX_KEPT: usize = 512;

/// The setting MAX_CONCURRENT_STREAMS.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// A fact learned from the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObservedFact {
    /// Bytes of a message's frames, including their headers; `body` counts the bytes that belong to the body, including
    /// padding.
    Message { stream: u32, bytes: u64, body: u64 },
    /// The sender has finished sending on this stream.
    EndStream(u32),
    /// An RST_STREAM frame, with its error code.
    Reset { stream: u32, code: u32 },
    /// A SETTINGS frame, with MAX_CONCURRENT_STREAMS if the frame sets it.
    Settings { max_streams: Option<u32> },
    /// A GOAWAY frame with its error code and the highest stream that may have been processed; streams above it were
    /// not.
    GoAway { last_stream: u32, code: u32 },
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct FrameObserver {
    /// Bytes of the preface that are still to come.
    skip: usize,
    /// Beginning of an incomplete frame header.
    begun: Vec<u8>,
    /// Frame whose payload is passing.
    frame: Option<FrameHeader>,
    payload: Vec<u8>,
    /// Payload bytes that are still to come.
    left: usize,
}

impl FrameObserver {
    /// Creates the state for a direction that begins with a preface of `preface` bytes.
    pub(super) fn after(preface: usize) -> Self {
        let begun = Vec::with_capacity(FrameHeader::BYTES);
        Self { skip: preface, begun, frame: None, payload: Vec::new(), left: 0 }
    }

    /// Returns true if the bytes so far end at a frame boundary, or at the end of the preface.
    pub(super) const fn is_between(&self) -> bool {
        self.skip == 0 && self.begun.is_empty() && self.frame.is_none()
    }

    /// Processes observed bytes, and calls `seen` with each fact.
    pub(super) fn pass(&mut self, mut bytes: &[u8], mut seen: impl FnMut(ObservedFact)) {
        while !bytes.is_empty() {
            let part;
            if self.skip > 0 {
                (part, bytes) = bytes.split_at(self.skip.min(bytes.len()));
                self.skip -= part.len();
            } else if let Some(frame) = self.frame {
                (part, bytes) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= part.len();
                if matches!(frame.kind, RST_STREAM | SETTINGS | GOAWAY) {
                    self.payload.extend(part.iter().take(MAX_KEPT - self.payload.len().min(MAX_KEPT)));
                }
                let body = if frame.kind == DATA { part.len() } else { 0 };
                count(frame, part.len(), body, &mut seen);
            } else {
                let missing = FrameHeader::BYTES - self.begun.len();
                (part, bytes) = bytes.split_at(missing.min(bytes.len()));
                self.begun.extend_from_slice(part);
                if let Some(frame) = FrameHeader::read(&self.begun) {
                    (self.frame, self.left) = (Some(frame), frame.length);
                    self.begun.clear();
                    count(frame, FrameHeader::BYTES, 0, &mut seen);
                }
            }
            if self.left == 0
                && let Some(frame) = self.frame.take()
            {
                complete(frame, &self.payload, &mut seen);
                self.payload.clear();
            }
        }
    }
}

fn count(frame: FrameHeader, bytes: usize, body: usize, seen: &mut impl FnMut(ObservedFact)) {
    if matches!(frame.kind, DATA | HEADERS | CONTINUATION) {
        seen(ObservedFact::Message { stream: frame.stream, bytes: bytes as u64, body: body as u64 });
    }
}

fn complete(frame: FrameHeader, payload: &[u8], seen: &mut impl FnMut(ObservedFact)) {
    let stream = frame.stream;
    match (frame.kind, payload.len()) {
        (DATA | HEADERS, _) if frame.has(END_STREAM) => seen(ObservedFact::EndStream(stream)),
        (RST_STREAM, 4..) => seen(ObservedFact::Reset { stream, code: number(payload) }),
        // In SETTINGS, this flag means ACK.
        (SETTINGS, _) if !frame.has(END_STREAM) => {
            let setting = |entry: &[u8]| (u16::from_be_bytes([entry[0], entry[1]]), number(&entry[2..]));
            let mut settings = payload.chunks_exact(6).map(setting);
            let max_streams = settings.rfind(|(name, _)| *name == MAX_CONCURRENT_STREAMS);
            seen(ObservedFact::Settings { max_streams: max_streams.map(|(_, value)| value) });
        }
        (GOAWAY, 8..) => {
            let last_stream = number(payload) & 0x7fff_ffff;
            seen(ObservedFact::GoAway { last_stream, code: number(&payload[4..]) });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn all() -> Vec<u8> {
        let settings = [0, 4, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7];
        let goaway = [&5u32.to_be_bytes()[..], &11u32.to_be_bytes(), b"too many"].concat();
        [
            b"preface".to_vec(),
            frame(SETTINGS, 0, 0, &settings),
            frame(SETTINGS, 1, 0, &[]),
            frame(HEADERS, 4, 1, b"abc"),
            frame(8, 0, 1, &[0, 0, 1, 0]),
            frame(DATA, 1, 1, b"hello"),
            frame(RST_STREAM, 0, 3, &7u32.to_be_bytes()),
            frame(GOAWAY, 0, 0, &goaway),
        ]
        .concat()
    }

    /// Returns the facts seen, and the total bytes of stream 1.
    fn seen(pieces: &[&[u8]]) -> (u64, Vec<ObservedFact>) {
        let (mut frames, mut bytes, mut others) = (FrameObserver::after(7), 0, Vec::new());
        for piece in pieces {
            frames.pass(piece, |seen| match seen {
                ObservedFact::Message { stream: 1, bytes: more, .. } => bytes += more,
                other => others.push(other),
            });
        }
        (bytes, others)
    }

    #[test]
    fn frame_reader_reports_stream_ends() {
        let expected = vec![
            ObservedFact::Settings { max_streams: Some(7) },
            ObservedFact::EndStream(1),
            ObservedFact::Reset { stream: 3, code: 7 },
            ObservedFact::GoAway { last_stream: 5, code: 11 },
        ];
        assert_eq!(seen(&[&all()]), (9 + 3 + 9 + 5, expected));
    }

    proptest! {
        #[test]
        fn frame_reader_ignores_chunk_boundaries(cuts in proptest::collection::vec(1..9_usize, 0..40)) {
            let bytes = all();
            let (mut rest, mut pieces) = (bytes.as_slice(), Vec::new());
            for cut in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            pieces.push(rest);
            prop_assert_eq!(seen(&pieces), seen(&[&bytes]));
        }

        #[test]
        fn frame_reader_survives_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            FrameObserver::after(0).pass(&bytes, |_| {});
        }
    }
}
