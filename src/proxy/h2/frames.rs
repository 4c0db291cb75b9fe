//! Reads one direction of a connection as it passes by.

use std::ops::Range;

use bytes::BytesMut;

use super::super::relay::Watch;
use super::streams::{Http2, StreamEnd};
use crate::http2::hpack::{Decoder, Unreadable};
use crate::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHeader, GOAWAY, HEADERS, MAX_FRAME_BYTES, PADDED,
    PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, number,
};
use crate::record::id::ID_HEADER;

/// The longest frame, and the longest block of several, that is read.
const MAX_READ_BYTES: usize = 1024 * 1024;

/// The longest value that is read of a field.
const MAX_VALUE_BYTES: usize = 1024;

/// One direction of a connection.
pub(super) struct Frames<'a> {
    streams: &'a Http2,
    sender: Sender,
    /// Bytes of a frame that are passed on unread.
    unread: usize,
    /// The stream that ends with the frame at hand.
    ending: Option<(u32, StreamEnd)>,
    /// The block of fields that has begun.
    block: Block,
    /// Gone when a block could not be read: then those after it cannot be, either.
    decoder: Option<Decoder>,
    /// Streams that end with bytes that have been looked at, and how many are still to pass until
    /// each does.
    ended: Vec<(usize, u32, StreamEnd)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Client,
    App,
}

/// A block of fields, which can be in several frames.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    stream: u32,
    ends_stream: bool,
    is_promise: bool,
}

impl<'a> Frames<'a> {
    /// What the client sends, from the preface on.
    pub(super) fn of_client(streams: &'a Http2) -> Self {
        Self { unread: PREFACE.len(), ..Self::of(Sender::Client, streams) }
    }

    /// What the app sends.
    pub(super) fn of_app(streams: &'a Http2) -> Self {
        Self::of(Sender::App, streams)
    }

    fn of(sender: Sender, streams: &'a Http2) -> Self {
        let (block, decoder) = (Block::default(), Some(Decoder::new()));
        Self { streams, sender, unread: 0, ending: None, block, decoder, ended: Vec::new() }
    }

    /// Whether a frame is to be read.
    fn reads(&mut self, header: FrameHeader) -> bool {
        let has_fields = matches!(header.kind, HEADERS | PUSH_PROMISE | CONTINUATION);
        let is_short = header.length <= MAX_READ_BYTES;
        if has_fields && !is_short {
            self.decoder = None;
        }
        is_short && (has_fields || matches!(header.kind, RST_STREAM | GOAWAY))
    }

    /// Reads the frame whose payload is at `payload`, right behind its header; answers how
    /// many bytes were put into the buffer.
    fn read(&mut self, header: FrameHeader, payload: Range<usize>, buf: &mut BytesMut) -> usize {
        match header.kind {
            RST_STREAM => {
                let code = number(&buf[payload]);
                let end = match self.sender {
                    Sender::Client => StreamEnd::ResetByClient(code),
                    Sender::App => StreamEnd::ResetByApp(code),
                };
                self.ending = Some((header.stream, end));
                0
            }
            GOAWAY => {
                if let (Sender::App, [last, code @ ..]) = (self.sender, buf[payload].as_chunks::<4>().0) {
                    let last = u32::from_be_bytes(*last) & 0x7fff_ffff;
                    self.streams.goaway(last, code.first().map_or(0, |code| u32::from_be_bytes(*code)));
                }
                0
            }
            _ => self.read_fields(header, payload, buf),
        }
    }

    fn read_fields(&mut self, header: FrameHeader, payload: Range<usize>, buf: &mut BytesMut) -> usize {
        if header.kind != CONTINUATION {
            self.block = Block {
                bytes: std::mem::take(&mut self.block.bytes),
                stream: header.stream,
                ends_stream: header.kind == HEADERS && header.has(END_STREAM),
                is_promise: header.kind == PUSH_PROMISE,
            };
            self.block.bytes.clear();
        }
        let frame = payload.start - FrameHeader::BYTES..payload.end;
        let fields = fields(header, payload, buf);
        match fields.clone() {
            Some(fields) if self.block.bytes.len() + fields.len() <= MAX_READ_BYTES => {
                self.block.bytes.extend_from_slice(&buf[fields]);
            }
            _ => self.decoder = None,
        }
        if !header.has(END_HEADERS) {
            return 0;
        }
        let is_response = self.complete();
        match (fields, &self.streams.origin().shared.pod_header) {
            (Some(fields), Some(pod)) if is_response => insert(buf, header, frame, fields.end, &pod.field),
            _ => 0,
        }
    }

    /// A block has ended; answers whether it is the head of a final response.
    fn complete(&mut self) -> bool {
        let Block { bytes, stream, ends_stream, is_promise } = &self.block;
        let (mut id, mut status, mut grpc_status) = (None, None, None);
        let read = self.decoder.as_mut().map(|decoder| {
            decoder.decode(bytes, |name, value| {
                let value = || if value.len() <= MAX_VALUE_BYTES { str::from_utf8(value).ok() } else { None };
                match name {
                    name if name == ID_HEADER.as_bytes() => id = value().and_then(|id| id.parse().ok()),
                    b":status" => status = value().and_then(|status| status.parse().ok()),
                    b"grpc-status" => grpc_status = value().and_then(|status| status.parse().ok()),
                    _ => {}
                }
            })
        });
        if let Some(Err(Unreadable)) = read {
            self.decoder = None;
        }
        if *is_promise {
            return false;
        }
        match self.sender {
            Sender::Client => {
                self.streams.begin(*stream, id);
                false
            }
            Sender::App => {
                // What has ended has no answer any more, though its end has not been passed on.
                if self.ended.iter().any(|(_, ended, _)| ended == stream) {
                    return false;
                }
                if *ends_stream {
                    self.ending = Some((*stream, StreamEnd::Complete));
                }
                self.streams.answered(*stream, status, grpc_status)
            }
        }
    }
}

impl Watch for Frames<'_> {
    fn look(&mut self, buf: &mut BytesMut) -> usize {
        let mut at = 0;
        loop {
            let unread = self.unread.min(buf.len() - at);
            at += unread;
            self.unread -= unread;
            if self.unread > 0 {
                return at;
            }
            if let Some((stream, end)) = self.ending.take() {
                self.ended.push((at, stream, end));
            }
            let Some(header) = FrameHeader::read(&buf[at..]) else { return at };
            let payload = at + FrameHeader::BYTES..at + FrameHeader::BYTES + header.length;
            if !self.reads(header) {
                self.unread = payload.end - at;
                let ends = header.kind == DATA && header.has(END_STREAM) && self.sender == Sender::App;
                self.ending = ends.then_some((header.stream, StreamEnd::Complete));
            } else if payload.end <= buf.len() {
                at = payload.end;
                at += self.read(header, payload, buf);
            } else {
                return at;
            }
        }
    }

    fn passed(&mut self, bytes: usize) {
        let over = self.ended.partition_point(|(at, ..)| *at <= bytes);
        for (_, stream, end) in self.ended.drain(..over) {
            self.streams.end(stream, end);
        }
        for (at, ..) in &mut self.ended {
            *at -= bytes;
        }
    }
}

/// Where the fields are in a payload; `None` if it breaks the grammar.
fn fields(header: FrameHeader, mut payload: Range<usize>, buf: &[u8]) -> Option<Range<usize>> {
    if header.kind == CONTINUATION {
        return Some(payload);
    }
    if header.has(PADDED) {
        let padding = *buf[payload.clone()].first()?;
        payload.start += 1;
        payload.end = payload.end.checked_sub(padding.into())?;
    }
    payload.start += match header.kind {
        PUSH_PROMISE => 4,
        HEADERS if header.has(PRIORITY) => 5,
        _ => 0,
    };
    (payload.start <= payload.end).then_some(payload)
}

/// Puts a field into a frame that ends a block, at the place where its fields end; answers
/// how many bytes that took.
fn insert(buf: &mut BytesMut, header: FrameHeader, frame: Range<usize>, at: usize, field: &[u8]) -> usize {
    let mut put = |header: FrameHeader, at: usize, bytes: &[u8]| {
        buf[frame.start..][..FrameHeader::BYTES].copy_from_slice(&header.bytes());
        buf.extend_from_slice(bytes);
        buf[at..].rotate_right(bytes.len());
        bytes.len()
    };
    let length = header.length + field.len();
    if length <= MAX_FRAME_BYTES {
        return put(FrameHeader { length, ..header }, at, field);
    }
    // Not every receiver takes a longer frame, so another one ends the block.
    let stream = header.stream;
    let last = FrameHeader { length: field.len(), kind: CONTINUATION, flags: END_HEADERS, stream };
    let not_last = FrameHeader { flags: header.flags & !END_HEADERS, ..header };
    put(not_last, frame.end, &[&last.bytes(), field].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::fuzzing::origin;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&FrameHeader { length: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
    }

    #[test]
    fn a_stream_ends_with_its_own_last_byte_whatever_comes_with_it() {
        let http2 = Http2::new(origin(true));
        let under_way = || http2.origin().shared.in_flight.count();
        let mut requests = Frames::of_client(&http2);
        let mut bytes = BytesMut::from(PREFACE);
        for stream in [1, 3, 5] {
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x82, 0x86, 0x84]));
        }
        let ready = requests.look(&mut bytes);
        requests.passed(ready);
        assert_eq!(under_way(), 3);

        let mut responses = Frames::of_app(&http2);
        let mut bytes = BytesMut::new();
        let ends = [
            [frame(HEADERS, END_HEADERS, 1, &[0x88]), frame(DATA, END_STREAM, 1, b"hi")].concat(),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x88]),
            frame(RST_STREAM, 0, 5, &[0; 4]),
        ]
        .map(|answer| {
            bytes.extend(&answer);
            bytes.len()
        });
        let field = http2.origin().shared.pod_header.as_ref().expect("a pod header").field.len();
        let ready = responses.look(&mut bytes);
        let left: Vec<_> = std::iter::repeat_with(|| {
            responses.passed(1);
            under_way()
        })
        .take(ready)
        .collect();
        let seen = [2, 1, 0].map(|count| left.iter().position(|left| *left == count).map(|at| at + 1));
        assert_eq!(seen, [ends[0] + field, ends[1] + 2 * field, ends[2] + 2 * field].map(Some));
    }
}
