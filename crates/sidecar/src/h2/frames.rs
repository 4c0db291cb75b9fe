//! Reads one direction of an HTTP/2 connection as its bytes are passed on.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::BytesMut;

use super::super::budget::{Budget, OWN_BYTES, PoolShare, Unrecorded};
use super::super::relay::ByteWatch;
use super::http2_streams::{Http2, Http2StreamEnd, Terms};
use rolldrop_record::id::ID_HEADER;
use rolldrop_wire::http2::hpack::{BadHeaderBlock, Decoder};
use rolldrop_wire::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHeader, GOAWAY, HEADER_TABLE_SIZE, HEADERS,
    MAX_CONCURRENT_STREAMS, MAX_FRAME_BYTES, MAX_FRAME_SIZE, PADDED, PREFACE, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, number,
};

/// Maximum length of a frame, or of a block spanning several frames, that is read.
const MAX_READ_BYTES: usize = Budget::DEFAULT.head_bytes;
/// Capacity that a connection keeps for the next block (in bytes) and for pending stream ends (in number).
const KEPT_BYTES: usize = 1024;
const KEPT_ENDS: usize = 16;

/// Maximum length of a field value that is read.
const MAX_VALUE_BYTES: usize = 1024;

/// One direction of a connection.
pub(super) struct FrameScanner<'a> {
    streams: &'a Http2,
    sender: FrameSender,
    /// Remaining bytes of a frame that is passed on unread.
    unread: usize,
    /// Stream or streams that the current frame ends.
    ending: Option<PendingEnd>,
    /// The field block that has begun.
    block: FieldBlock,
    /// Stream of an unfinished block, which continues in the next frame.
    goes_on: Option<u32>,
    /// `None` once a block could not be read, because no later block can be read then.
    decoder: Option<Decoder>,
    /// Stream ends in examined frames, each with the number of bytes that must still be passed on before it takes
    /// effect.
    ended: Vec<(usize, PendingEnd)>,
    /// Share of the pool for the block and the decoder's table, beyond the direction's own bytes for them.
    share: PoolShare<'a>,
    /// True if the held frame must be passed on unread.
    gives_up: bool,
}

/// Streams that end once the other side has received a frame.
#[derive(Clone, Copy)]
enum PendingEnd {
    Stream(u32, Http2StreamEnd),
    /// Streams above this one, ended by a GOAWAY with this code.
    StreamsAbove(u32, u32),
}

impl PendingEnd {
    fn is_of(self, stream: u32) -> bool {
        match self {
            PendingEnd::Stream(ended, _) => stream == ended,
            PendingEnd::StreamsAbove(last, _) => stream > last,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameSender {
    Client,
    App,
}

/// A field block, which may span several frames.
#[derive(Default)]
struct FieldBlock {
    bytes: Vec<u8>,
    stream: u32,
    ends_stream: bool,
    is_promise: bool,
}

impl<'a> FrameScanner<'a> {
    /// Returns a reader for the client's bytes, starting with the preface.
    pub(super) fn of_client(streams: &'a Http2) -> Self {
        Self { unread: PREFACE.len(), ..Self::of(FrameSender::Client, streams) }
    }

    /// Returns a reader for the app's bytes.
    pub(super) fn of_app(streams: &'a Http2) -> Self {
        Self::of(FrameSender::App, streams)
    }

    fn of(sender: FrameSender, streams: &'a Http2) -> Self {
        Self {
            streams,
            sender,
            unread: 0,
            ending: None,
            block: FieldBlock::default(),
            goes_on: None,
            decoder: Some(Decoder::default()),
            ended: Vec::new(),
            share: PoolShare::of(&streams.origin().shared.pool),
            gives_up: false,
        }
    }

    /// Returns the settings announced by the receiver in this direction.
    fn terms(&self) -> &'a Terms {
        match self.sender {
            FrameSender::Client => &self.streams.by_app,
            FrameSender::App => &self.streams.by_client,
        }
    }

    /// Returns true if the frame needs to be read. The receiver itself refuses a frame that exceeds its limit.
    fn reads(&mut self, header: FrameHeader) -> bool {
        let most = self.terms().frame_bytes.load(Ordering::Relaxed).min(MAX_READ_BYTES);
        let is_short = header.length <= most;
        if has_fields(header) && !is_short {
            self.lose_fields();
        }
        is_short && (has_fields(header) || matches!(header.kind, RST_STREAM | GOAWAY | SETTINGS))
    }

    /// Returns true if this frame may come next. Inside a block, any frame other than a continuation is a connection
    /// error (RFC 9113, 6.2 and 6.10), and the receiver accepts nothing after it.
    fn may_come(&self, header: FrameHeader) -> bool {
        match self.goes_on {
            Some(stream) => header.kind == CONTINUATION && header.stream == stream,
            None => header.kind != CONTINUATION,
        }
    }

    /// Notes that a frame, read or unread, begins, continues or ends a field block.
    fn comes(&mut self, header: FrameHeader) {
        if has_fields(header) {
            self.goes_on = (!header.has(END_HEADERS)).then_some(header.stream);
        }
        if has_fields(header) && header.kind != CONTINUATION {
            self.block = FieldBlock {
                bytes: std::mem::take(&mut self.block.bytes),
                stream: header.stream,
                ends_stream: header.kind == HEADERS && header.has(END_STREAM),
                is_promise: header.kind == PUSH_PROMISE,
            };
        }
    }

    /// Stops reading fields from here on. Streams still begin and end with their blocks.
    fn lose_fields(&mut self) {
        if self.decoder.take().is_some() {
            self.streams.origin().shared.journal.unrecorded(Unrecorded::Head);
        }
        self.block.bytes = Vec::new();
        self.share.set(0);
    }

    /// Reads the frame with the payload at `payload`, right after the frame header; returns the number of bytes
    /// inserted into the buffer.
    fn read(&mut self, header: FrameHeader, payload: Range<usize>, buf: &mut BytesMut) -> usize {
        match header.kind {
            RST_STREAM => {
                let code = number(&buf[payload]);
                let end = match self.sender {
                    FrameSender::Client => Http2StreamEnd::ResetByClient(code),
                    FrameSender::App => Http2StreamEnd::ResetByApp(code),
                };
                self.ending = Some(PendingEnd::Stream(header.stream, end));
                0
            }
            GOAWAY => {
                if let (FrameSender::App, [last, code @ ..]) = (self.sender, buf[payload].as_chunks::<4>().0)
                {
                    let last = u32::from_be_bytes(*last) & 0x7fff_ffff;
                    let code = code.first().map_or(0, |code| u32::from_be_bytes(*code));
                    self.streams.goaway_sent(last);
                    self.ending = Some(PendingEnd::StreamsAbove(last, code));
                }
                0
            }
            SETTINGS => {
                self.read_settings(header, &buf[payload]);
                0
            }
            _ => self.read_fields(header, payload, buf),
        }
    }

    fn read_settings(&self, header: FrameHeader, payload: &[u8]) {
        match self.sender {
            FrameSender::Client if header.has(ACK) => return self.streams.client_acknowledged(),
            FrameSender::App if header.has(ACK) => return,
            _ => {}
        }
        let (announces, mut streams) = match self.sender {
            FrameSender::Client => (&self.streams.by_client, None),
            FrameSender::App => (&self.streams.by_app, None),
        };
        for [a, b, value @ ..] in payload.as_chunks::<6>().0 {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                HEADER_TABLE_SIZE => _ = announces.table_bytes.fetch_max(value as usize, Ordering::Relaxed),
                MAX_FRAME_SIZE => _ = announces.frame_bytes.fetch_max(value as usize, Ordering::Relaxed),
                MAX_CONCURRENT_STREAMS => streams = Some(value),
                _ => {}
            }
        }
        if self.sender == FrameSender::App {
            self.streams.app_announced(streams);
        }
    }

    fn read_fields(&mut self, header: FrameHeader, payload: Range<usize>, buf: &mut BytesMut) -> usize {
        let frame = payload.start - FrameHeader::BYTES..payload.end;
        let fields = fields(header, payload, buf);
        match fields.clone() {
            Some(fields) if self.holds(fields.len()) => self.block.bytes.extend_from_slice(&buf[fields]),
            _ => self.lose_fields(),
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

    /// Returns true if `more` bytes of a block fit in addition to the field table.
    fn holds(&mut self, more: usize) -> bool {
        let Some(decoder) = &self.decoder else { return false };
        let block = self.block.bytes.len() + more;
        // A growing vector has at most twice the capacity that it needs.
        let room = if block <= KEPT_BYTES { 0 } else { 2 * block };
        block <= MAX_READ_BYTES && self.share.grow_to((decoder.held_bytes() + room).saturating_sub(OWN_BYTES))
    }

    /// Notes a complete block, and its fields if they can be read; returns true if it is known to be the head of a
    /// final response.
    fn complete(&mut self) -> bool {
        let table_bytes = self.terms().table_bytes.load(Ordering::Relaxed);
        let FieldBlock { bytes, stream, ends_stream, is_promise } = &mut self.block;
        let (stream, ends_stream, is_promise) = (*stream, *ends_stream, *is_promise);
        let (mut id, mut status, mut grpc_status) = (None, None, None);
        let read = self.decoder.as_mut().map(|decoder| {
            decoder.allow(table_bytes);
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
        bytes.clear();
        if bytes.capacity() > KEPT_BYTES {
            *bytes = Vec::new();
        }
        let table = self.decoder.as_ref().map_or(0, Decoder::held_bytes).saturating_sub(OWN_BYTES);
        match read {
            Some(Err(BadHeaderBlock)) => self.lose_fields(),
            Some(Ok(())) if !self.share.grow_to(table) => self.lose_fields(),
            _ => self.share.set(table),
        }
        if is_promise {
            return false;
        }
        match self.sender {
            FrameSender::Client => {
                self.streams.begin(stream, id, self.ended.len());
                false
            }
            FrameSender::App => {
                // An ended stream no longer gets a response, even if its end has not been passed on yet.
                if self.ended.iter().any(|(_, ended)| ended.is_of(stream)) {
                    return false;
                }
                if ends_stream {
                    self.ending = Some(PendingEnd::Stream(stream, Http2StreamEnd::Complete));
                }
                self.streams.answered(stream, status, grpc_status)
            }
        }
    }

    /// Schedules the end of the current frame's streams for when the bytes up to `at` have been passed on.
    fn ends_at(&mut self, at: usize) {
        match self.ending.take() {
            Some(PendingEnd::Stream(stream, _)) if !self.streams.is_open(stream) => {}
            Some(ending) => self.ended.push((at, ending)),
            None => {}
        }
    }
}

impl ByteWatch for FrameScanner<'_> {
    fn look(&mut self, buf: &mut BytesMut) -> usize {
        let mut at = 0;
        loop {
            let unread = self.unread.min(buf.len() - at);
            at += unread;
            self.unread -= unread;
            if self.unread > 0 {
                return at;
            }
            self.ends_at(at);
            let Some(header) = FrameHeader::read(&buf[at..]) else { return at };
            if !self.may_come(header) {
                self.lose_fields();
                self.unread = usize::MAX;
                continue;
            }
            let payload = at + FrameHeader::BYTES..at + FrameHeader::BYTES + header.length;
            let gives_up = payload.end > buf.len() && std::mem::take(&mut self.gives_up);
            if gives_up {
                self.lose_fields();
            }
            if gives_up || !self.reads(header) {
                self.comes(header);
                self.unread = payload.end - at;
                if has_fields(header) && header.has(END_HEADERS) {
                    self.complete();
                } else if header.kind == DATA && header.has(END_STREAM) && self.sender == FrameSender::App {
                    self.ending = Some(PendingEnd::Stream(header.stream, Http2StreamEnd::Complete));
                }
            } else if payload.end <= buf.len() {
                at = payload.end;
                self.comes(header);
                at += self.read(header, payload, buf);
            } else {
                return at;
            }
        }
    }

    fn passed(&mut self, bytes: usize) {
        let over = self.ended.partition_point(|(at, _)| *at <= bytes);
        for (_, ending) in self.ended.drain(..over) {
            match ending {
                PendingEnd::Stream(stream, end) => self.streams.end(stream, end),
                PendingEnd::StreamsAbove(last, code) => self.streams.goaway_passed(last, code),
            }
        }
        for (at, _) in &mut self.ended {
            *at -= bytes;
        }
        if self.ended.is_empty() && self.ended.capacity() > KEPT_ENDS {
            self.ended = Vec::new();
        }
    }

    fn give_up(&mut self) {
        self.gives_up = true;
    }
}

/// Returns true if the frame carries a field block, or a part of one.
fn has_fields(header: FrameHeader) -> bool {
    matches!(header.kind, HEADERS | PUSH_PROMISE | CONTINUATION)
}

/// Returns the range of the fields within a payload; `None` if the payload is malformed.
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

/// Inserts a field at the end of the fields in the last frame of a block; returns the number of inserted bytes.
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
    // Not every receiver accepts a longer frame, so the block gets another frame.
    let stream = header.stream;
    let last = FrameHeader { length: field.len(), kind: CONTINUATION, flags: END_HEADERS, stream };
    let not_last = FrameHeader { flags: header.flags & !END_HEADERS, ..header };
    put(not_last, frame.end, &[&last.bytes(), field].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::origin;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&FrameHeader { length: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
    }

    #[test]
    fn stream_ends_with_its_last_byte() {
        let http2 = Http2::new(origin(true));
        let under_way = || http2.origin().shared.in_flight.count();
        let mut requests = FrameScanner::of_client(&http2);
        let mut bytes = BytesMut::from(PREFACE);
        for stream in [1, 3, 5] {
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x82, 0x86, 0x84]));
        }
        let ready = requests.look(&mut bytes);
        requests.passed(ready);
        assert_eq!(under_way(), 3);

        let mut responses = FrameScanner::of_app(&http2);
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

    /// Passes bytes on in one direction, frame by frame.
    fn pass(frames: &mut FrameScanner<'_>, bytes: impl AsRef<[u8]>) {
        let mut bytes = BytesMut::from(bytes.as_ref());
        let ready = frames.look(&mut bytes);
        frames.passed(ready);
    }

    fn ask(stream: u32) -> Vec<u8> {
        frame(HEADERS, END_HEADERS, stream, &[0x82, 0x86, 0x84])
    }

    fn setting(name: u16, value: u32) -> Vec<u8> {
        frame(SETTINGS, 0, 0, &[&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
    }

    fn goaway(last: u32) -> Vec<u8> {
        frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
    }

    #[test]
    fn streams_rejected_by_app_are_ignored() {
        let http2 = Http2::new(origin(true));
        let (mut requests, mut responses) = (FrameScanner::of_client(&http2), FrameScanner::of_app(&http2));
        let under_way = || http2.origin().shared.in_flight.count();
        pass(&mut requests, PREFACE);
        for stream in [2, 4, 1, 3, 1, 3, 6] {
            pass(&mut requests, ask(stream));
        }
        assert_eq!(under_way(), 2, "client streams have odd, increasing numbers");

        // More concurrent streams than the app allows, once the client knows the limit.
        pass(&mut responses, setting(MAX_CONCURRENT_STREAMS, 3));
        for stream in [5, 7] {
            pass(&mut requests, ask(stream));
        }
        assert_eq!(under_way(), 4);
        pass(&mut requests, frame(SETTINGS, ACK, 0, &[]));
        pass(&mut requests, ask(9));
        assert_eq!(under_way(), 4);
        // A reset stream makes room for the next one, even within the same write.
        let resets = [5, 7].map(|stream| frame(RST_STREAM, 0, stream, &[0; 4])).concat();
        pass(&mut requests, [resets, ask(11)].concat());
        assert_eq!(under_way(), 3);

        pass(&mut responses, frame(RST_STREAM, 0, 11, &[0; 4]));
        pass(&mut responses, goaway(11));
        for stream in 12..10_000 {
            pass(&mut requests, ask(stream));
        }
        assert_eq!(under_way(), 2, "streams beyond the GOAWAY do not count");
        let counts = http2.origin().shared.journal.counts();
        assert_eq!((counts.recorded, counts.with_unrecorded()), (3, 3));
    }

    #[test]
    fn interrupted_block_stops_request_tracking() {
        let continued = |stream| frame(CONTINUATION, END_HEADERS, stream, &[0x84]);
        let whole = [frame(HEADERS, 0, 1, &[0x82, 0x86]), continued(1)].concat();
        let begun = frame(HEADERS, 0, 3, &[0x82, 0x86]);
        for interrupted in [[&begun[..], &continued(5)], [&begun, &ask(5)], [&continued(1), &ask(5)]] {
            let http2 = Http2::new(origin(true));
            let mut requests = FrameScanner::of_client(&http2);
            pass(&mut requests, [PREFACE, &whole].concat());
            pass(&mut requests, interrupted.concat());
            pass(&mut requests, [continued(3), ask(7), ask(9)].concat());
            assert_eq!(http2.origin().shared.in_flight.count(), 1, "{interrupted:?}");
        }
    }

    #[test]
    fn streams_begin_and_end_without_decoder() {
        let http2 = Http2::new(origin(true));
        let (mut requests, mut responses) = (FrameScanner::of_client(&http2), FrameScanner::of_app(&http2));
        let under_way = || http2.origin().shared.in_flight.count();
        let rest = |stream| frame(CONTINUATION, END_HEADERS, stream, &[0x84]);
        let long = [0x82; MAX_FRAME_BYTES + 1];
        pass(&mut requests, [PREFACE.to_vec(), ask(1)].concat());
        // Frames that no app accepts, whole and as the beginning of a block; then one that fits.
        pass(&mut requests, frame(HEADERS, END_HEADERS | END_STREAM, 3, &long));
        pass(&mut requests, [frame(HEADERS, END_STREAM, 5, &long), rest(5)].concat());
        pass(&mut requests, ask(7));
        assert!(requests.decoder.is_none());
        assert_eq!(under_way(), 4);

        // The client promises nothing, but a promise ends no stream.
        pass(&mut responses, frame(PUSH_PROMISE, END_HEADERS, 1, &[0xff; 8]));
        assert!(responses.decoder.is_none());
        assert_eq!(under_way(), 4);
        pass(&mut responses, frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x88]));
        assert_eq!(under_way(), 3);
        pass(&mut responses, frame(HEADERS, END_HEADERS | END_STREAM, 3, &long));
        assert_eq!(under_way(), 2);
        pass(&mut responses, frame(HEADERS, END_STREAM, 5, &long));
        assert_eq!(under_way(), 2, "the block goes on");
        pass(&mut responses, [rest(5), frame(HEADERS, END_HEADERS, 7, &[0x88])].concat());
        assert_eq!(under_way(), 1);
        pass(&mut responses, frame(DATA, END_STREAM, 7, b"x"));
        assert_eq!(under_way(), 0);
        let counts = http2.origin().shared.journal.counts();
        assert_eq!((counts.recorded, counts.with_unrecorded()), (4, 6), "each decoder is lost once");
    }

    #[test]
    fn partial_goaway_ends_no_streams() {
        let http2 = Http2::new(origin(true));
        let (mut requests, mut responses) = (FrameScanner::of_client(&http2), FrameScanner::of_app(&http2));
        let under_way = || http2.origin().shared.in_flight.count();
        pass(&mut requests, [PREFACE.to_vec(), ask(1), ask(3), ask(5)].concat());
        let mut bytes = BytesMut::from(&goaway(1)[..]);
        let ready = responses.look(&mut bytes);
        assert_eq!((ready, under_way()), (17, 3));
        responses.passed(16);
        assert_eq!(under_way(), 3, "the client has not received all of it");
        responses.passed(1);
        assert_eq!(under_way(), 1);
    }

    #[test]
    fn streams_beyond_budget_pass_unrecorded() {
        let http2 = Http2::new(origin(true));
        let most = http2.origin().shared.budget.requests_per_connection;
        let mut requests = FrameScanner::of_client(&http2);
        pass(&mut requests, PREFACE);
        for number in 0..most + 100 {
            let mut bytes = BytesMut::from(&ask(u32::try_from(2 * number + 1).expect("a stream"))[..]);
            assert_eq!(requests.look(&mut bytes), bytes.len());
        }
        assert_eq!(http2.origin().shared.in_flight.count(), most);
        assert_eq!(http2.origin().shared.journal.counts().with_unrecorded(), 100);
    }

    #[test]
    fn frames_respect_receiver_size_limits() {
        let http2 = Http2::new(origin(true));
        let (mut requests, mut responses) = (FrameScanner::of_client(&http2), FrameScanner::of_app(&http2));
        pass(&mut requests, PREFACE);
        // No app accepts a frame of this length, so none of the bytes are held.
        let long = frame(HEADERS, END_HEADERS, 1, &[0x82; MAX_FRAME_BYTES + 1]);
        let mut held = BytesMut::from(&long[..100]);
        assert_eq!(requests.look(&mut held), 100);

        let http2 = Http2::new(origin(true));
        let mut requests = FrameScanner::of_client(&http2);
        pass(&mut responses, setting(MAX_FRAME_SIZE, 20_000));
        pass(&mut requests, PREFACE);
        // A table size that no one requested, to which the app responds with an error.
        let block = [0x3f, 0xe1, 0xff, 0x3f, 0x40, 1, b'n', 1, b'v'];
        pass(&mut requests, frame(HEADERS, END_HEADERS, 1, &block));
        assert!(requests.decoder.is_none());
        assert_eq!(http2.origin().shared.pool.used(), 0);
    }

    #[test]
    fn ordinary_heads_are_read_without_pool() {
        let origin = origin(true);
        let pool = &origin.shared.pool;
        let mut greedy = PoolShare::of(pool);
        greedy.set(origin.shared.budget.held_bytes);
        let used = pool.used();
        let http2 = Http2::new(origin.clone());
        let (mut requests, mut responses) = (FrameScanner::of_client(&http2), FrameScanner::of_app(&http2));
        pass(&mut requests, PREFACE);
        // A host that enters the table, then a reference to it.
        let host = [&[0x82, 0x86, 0x84, 0x41, 100][..], &[b'a'; 100]].concat();
        pass(&mut requests, frame(HEADERS, END_HEADERS, 1, &host));
        pass(&mut requests, frame(HEADERS, END_HEADERS, 3, &[0x82, 0x86, 0x84, 0xbe]));
        let answer = [&[0x88, 0x41, 100][..], &[b'a'; 100]].concat();
        pass(&mut responses, frame(HEADERS, END_HEADERS, 1, &answer));
        assert!(requests.decoder.is_some() && responses.decoder.is_some());
        assert_eq!((pool.used(), http2.origin().shared.journal.counts().with_unrecorded()), (used, 0));
    }

    #[test]
    fn endless_blocks_stay_within_budget() {
        let origin = origin(true);
        let links: Vec<_> = (0..200).map(|_| Http2::new(origin.clone())).collect();
        let mut all: Vec<_> = links.iter().map(FrameScanner::of_client).collect();
        for requests in &mut all {
            pass(requests, [PREFACE.to_vec(), frame(HEADERS, 0, 1, &[0; 10_000])].concat());
            for _ in 0..100 {
                pass(requests, frame(CONTINUATION, 0, 1, &[0; 10_000]));
            }
        }
        let (pool, limit) = (&origin.shared.pool, origin.shared.budget.held_bytes);
        assert!((limit / 2..=limit).contains(&pool.used()), "{}", pool.used());
        let held: usize = all.iter().map(|requests| requests.block.bytes.capacity()).sum();
        let counted = pool.used() + all.len() * OWN_BYTES;
        assert!(held <= counted, "{held} held, {counted} counted");
        drop(all);
        assert_eq!(pool.used(), 0);
    }
}
