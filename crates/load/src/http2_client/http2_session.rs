//! The client side of an HTTP/2 connection as a state machine without I/O (RFC 9113): bytes in, the ends of streams
//! and outgoing bytes out.
//!
//! Frames are processed in the buffer that they were read into. If a frame arrives in several reads, its parts are kept
//! until it is complete, except body content, which is processed as it arrives. Everything known about a stream is in
//! its slot ([`StreamSlot`]) until its exchange closes it. A violation that concerns one stream ends that stream; any
//! other ends the connection.
//!
//! Frames for streams that have ended are ignored, because the peer may have sent them before it knew of the end, and
//! because a measuring client must not close what it measures. Their bytes still count against the connection's window,
//! and their header blocks still change its table.

mod request_sending;
mod response_receiving;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;

use bytes::Bytes;

use super::header_block::{BlockReader, MAX_HEADER_LIST, content_length};
use super::http2_fault::{
    ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, Http2Fault, PROTOCOL_ERROR,
};
use super::http2_output::{Http2Output, StreamKey};
use super::stream_slot::{BodySink, ResponseHead, StreamEnd, StreamSlot};
use crate::field_list::FieldList;
use rolldrop_record::Stamp;
use rolldrop_wire::http2::{
    ACK, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, FrameHeader, GOAWAY, HEADERS,
    INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, MAX_FRAME_BYTES, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE,
    PADDED, PING, PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, number,
};

/// Flow-control window of one stream, in bytes: the amount that a peer may send ahead on it.
const STREAM_WINDOW: u32 = 1 << 20;
/// Flow-control window for all streams of a connection together, in bytes.
const CONNECTION_WINDOW: u32 = 1 << 24;
/// Initial window of a connection, and of its streams unless settings say otherwise (RFC 9113, 6.9.2).
const FIRST_WINDOW: u32 = 65_535;
/// Id from which a connection accepts no more requests. Requests assigned to it before then still get an id.
const LAST_IDS: u32 = 0x7fff_0000;
/// Error code CANCEL.
const CANCEL: u32 = 8;

/// Contents of a GOAWAY frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoAway {
    /// Highest stream that may have been processed; streams above it were not processed and never will be.
    pub(super) last_stream: u32,
    pub(super) code: u32,
}

/// Ways in which a connection ends.
#[derive(Debug)]
pub(super) enum ConnectionEnd {
    /// The peer closed it.
    Closed,
    /// It was reset or lost.
    Lost(io::Error),
    /// The peer violated the protocol.
    Fault(Http2Fault),
}

/// A frame that is arriving.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    header: FrameHeader,
    /// Slot of the frame's stream when the frame began, if the stream was known.
    key: Option<StreamKey>,
    /// Payload bytes still to come.
    left: usize,
    /// Length of the padding at the end of a DATA frame; `None` until it is known.
    padding: Option<usize>,
}

/// Header block that has begun and continues in the next frame.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    stream: u32,
    ends_stream: bool,
    continuations: usize,
}

/// Hasher for stream ids, which this side chooses.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// State of a connection.
#[derive(Debug)]
pub(super) struct Http2Session {
    /// Beginning of an incomplete frame header, and its length.
    begun: ([u8; FrameHeader::BYTES], usize),
    frame: Option<Incoming>,
    /// Payload of the current frame, if it arrives in several pieces.
    payload: Vec<u8>,
    open_block: Option<OpenBlock>,
    /// Fragments of the open block.
    block: Vec<u8>,
    reader: BlockReader,
    slots: Vec<StreamSlot>,
    /// Unused slots.
    free: Vec<usize>,
    /// Slots of the streams with an id whose exchange has not ended.
    by_id: HashMap<u32, usize, BuildHasherDefault<IdHasher>>,
    next_id: u32,
    /// Number of streams that count against the limits.
    open: usize,
    /// Maximum number of concurrent streams that this side wants.
    wanted_streams: usize,
    /// Slots whose requests wait until the limits allow another stream.
    waiting: VecDeque<usize>,
    /// Streams with body content to send.
    sending: VecDeque<StreamKey>,
    /// Number of body bytes that the peer may still send on the connection.
    receive_window: u32,
    /// Number of body bytes that the peer accepts on the connection.
    send_window: i64,
    /// Window that the peer gives each new stream.
    peer_window: i64,
    /// Maximum number of concurrent streams that the peer allows; `None` until its settings have arrived.
    pub(super) max_streams: Option<u32>,
    /// Last GOAWAY received.
    pub(super) goaway: Option<GoAway>,
    /// End of the connection.
    pub(super) end: Option<ConnectionEnd>,
    /// Error from a failed write, after which nothing more is written.
    pub(super) write_error: Option<io::Error>,
    output: Http2Output,
}

impl Http2Session {
    /// Creates the state of a new connection, which is to carry at most this many streams at a time.
    pub(super) fn new(wanted_streams: usize) -> Self {
        let mut output = Http2Output::default();
        output.add_bytes(PREFACE);
        let list = u32::try_from(MAX_HEADER_LIST).unwrap_or(u32::MAX);
        let settings = [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, STREAM_WINDOW), (MAX_HEADER_LIST_SIZE, list)];
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(u32::to_be_bytes(value));
        }
        output.add_control(SETTINGS, 0, 0, &payload);
        output.add_control(WINDOW_UPDATE, 0, 0, &(CONNECTION_WINDOW - FIRST_WINDOW).to_be_bytes());
        payload.clear();
        Self {
            begun: ([0; FrameHeader::BYTES], 0),
            frame: None,
            payload,
            open_block: None,
            block: Vec::new(),
            reader: BlockReader::default(),
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::default(),
            next_id: 1,
            open: 0,
            wanted_streams,
            waiting: VecDeque::new(),
            sending: VecDeque::new(),
            receive_window: CONNECTION_WINDOW,
            send_window: FIRST_WINDOW.into(),
            peer_window: FIRST_WINDOW.into(),
            max_streams: None,
            goaway: None,
            end: None,
            write_error: None,
            output,
        }
    }

    /// Returns true if the connection accepts no more requests.
    pub(super) fn is_over(&self) -> bool {
        self.sends_no_more() || self.next_id >= LAST_IDS
    }

    /// Returns true if no other request will be sent, not even one assigned to the connection before.
    fn sends_no_more(&self) -> bool {
        self.end.is_some() || self.goaway.is_some() || self.write_error.is_some()
    }

    /// Returns true if nothing more can happen on the connection.
    pub(super) fn is_finished(&self) -> bool {
        self.end.is_some() || (self.goaway.is_some() && self.open == 0)
    }

    /// Begins a request at `now` and returns its slot, which [`close`](Self::close) must free. `write` appends the
    /// header block and returns the body. `is_bodiless` means that the response has no body, whatever its head
    /// announces. A request that may not be sent yet waits; one that will not be sent at all has ended.
    ///
    /// # Errors
    /// Returns the error of `write`.
    pub(super) fn open<E>(
        &mut self,
        now: Stamp,
        is_bodiless: bool,
        sink: BodySink,
        write: impl FnOnce(&mut Vec<u8>) -> Result<Bytes, E>,
    ) -> Result<usize, E> {
        let (begin, body) = self.output.begin(write);
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                self.output.take_begun(begin);
                return Err(error);
            }
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(StreamSlot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.reset(is_bodiless, sink);
        slot.unsent = body;
        if self.sends_no_more() {
            self.output.take_begun(begin);
            self.slots[index].finish(StreamEnd::Connection, now);
        } else if !self.waiting.is_empty() || !self.has_room() {
            self.slots[index].waiting = self.output.take_begun(begin);
            self.waiting.push_back(index);
        } else {
            self.send_request(index, begin, now);
        }
        Ok(index)
    }

    /// Returns the stream in a slot.
    pub(super) fn stream(&self, slot: usize) -> &StreamSlot {
        &self.slots[slot]
    }

    /// Returns the stream in a slot.
    pub(super) fn stream_mut(&mut self, slot: usize) -> &mut StreamSlot {
        &mut self.slots[slot]
    }

    /// Frees a slot. If its stream has not ended on both sides, the peer is told that it is cancelled. Returns true if
    /// there is something to write.
    pub(super) fn close(&mut self, slot: usize) -> bool {
        let StreamSlot { id, is_open, is_queued, .. } = self.slots[slot];
        match id {
            Some(id) => drop(self.by_id.remove(&id)),
            None => self.waiting.retain(|waiting| *waiting != slot),
        }
        if let Some(id) = id
            && is_open
        {
            self.end_open(slot);
            if self.end.is_none() {
                self.output.add_control(RST_STREAM, 0, id, &CANCEL.to_be_bytes());
            }
        }
        if is_queued {
            self.sending.retain(|key| key.slot != slot);
        }
        self.slots[slot].id = None;
        self.slots[slot].waker = None;
        self.slots[slot].unsent = Bytes::new();
        self.free.push(slot);
        !self.output.waiting().is_empty() || self.is_request_due()
    }

    /// Returns the bytes to write next.
    pub(super) fn output(&mut self) -> &[u8] {
        if self.write_error.is_some() {
            self.output.clear();
        }
        self.frame_bodies();
        self.output.waiting()
    }

    /// Returns true if nothing more should be read until something has been written.
    pub(super) const fn is_clogged(&self) -> bool {
        self.output.is_clogged()
    }

    /// Records that this many bytes of the output have been written.
    pub(super) fn wrote(&mut self, count: usize) {
        let slots = &mut self.slots;
        self.output.wrote(count, |key, bytes| {
            if slots[key.slot].id == Some(key.id) {
                slots[key.slot].sent += bytes;
            }
        });
    }

    /// Processes bytes that arrived at `now`.
    pub(super) fn receive(&mut self, mut bytes: &[u8], now: Stamp) {
        while !bytes.is_empty() && self.end.is_none() {
            let passed = match self.frame {
                None => self.begin_frame(&mut bytes, now),
                Some(frame) => self.pass_frame(frame, &mut bytes, now),
            };
            if let Err(fault) = passed {
                let last_stream = 0_u32.to_be_bytes();
                self.output.add_control(GOAWAY, 0, 0, &[last_stream, fault.code.to_be_bytes()].concat());
                self.finish(ConnectionEnd::Fault(fault), now);
            }
        }
    }

    /// Writes nothing more, because a write failed.
    pub(super) fn stop_writing(&mut self, error: io::Error, now: Stamp) {
        self.write_error = Some(error);
        self.finish_waiting(now);
    }

    /// Ends the connection, and all streams that have not ended.
    pub(super) fn finish(&mut self, end: ConnectionEnd, now: Stamp) {
        if self.end.is_none() {
            self.end = Some(end);
            self.finish_waiting(now);
            self.finish_streams(StreamEnd::Connection, now, |_| true);
        }
    }

    /// Ends the requests that wait. The peer knows nothing of them, so no frame of its own can be about them.
    fn finish_waiting(&mut self, now: Stamp) {
        for slot in std::mem::take(&mut self.waiting) {
            self.slots[slot].finish(StreamEnd::Connection, now);
        }
    }

    /// Ends the streams for which `is_meant` returns true.
    fn finish_streams(&mut self, end: StreamEnd, now: Stamp, is_meant: impl Fn(u32) -> bool) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].id.is_some_and(&is_meant) {
                self.end_open(slot);
                self.slots[slot].finish(end, now);
            }
        }
    }

    /// Reads the header of the next frame.
    fn begin_frame(&mut self, bytes: &mut &[u8], now: Stamp) -> Result<(), Http2Fault> {
        let (begun, length) = &mut self.begun;
        let count = (FrameHeader::BYTES - *length).min(bytes.len());
        let (part, rest) = bytes.split_at(count);
        begun[*length..*length + count].copy_from_slice(part);
        *length += count;
        *bytes = rest;
        if *length < FrameHeader::BYTES {
            return Ok(());
        }
        *length = 0;
        let Some(header) = FrameHeader::read(begun) else { return Ok(()) };
        let FrameHeader { kind, stream, length, .. } = header;
        if length > MAX_FRAME_BYTES {
            return Err(FRAME_SIZE_ERROR.because("a frame of more than 16 KiB"));
        }
        match self.open_block {
            Some(block) if kind != CONTINUATION || stream != block.stream => {
                return Err(PROTOCOL_ERROR.because("another frame within a header block"));
            }
            None if kind == CONTINUATION => {
                return Err(PROTOCOL_ERROR.because("CONTINUATION without a header block"));
            }
            _ => {}
        }
        let is_of_stream = matches!(kind, DATA | HEADERS | CONTINUATION | RST_STREAM | PUSH_PROMISE);
        if is_of_stream && !self.was_opened(stream) {
            return Err(PROTOCOL_ERROR.because("a frame for a stream that was not opened"));
        }
        if matches!(kind, SETTINGS | PING | GOAWAY) && stream != 0 {
            return Err(PROTOCOL_ERROR.because("a connection frame on a stream"));
        }
        let key = match is_of_stream {
            true => self.by_id.get(&stream).map(|slot| StreamKey { slot: *slot, id: stream }),
            false => None,
        };
        if matches!(kind, DATA | HEADERS | CONTINUATION)
            && let Some(key) = key
        {
            self.slots[key.slot].received += FrameHeader::BYTES as u64;
        }
        let padding = if header.has(PADDED) { None } else { Some(0) };
        let frame = Incoming { header, key, left: length, padding };
        if kind == DATA {
            self.begin_data(frame, now)?;
        }
        if length == 0 {
            return self.complete(frame, &[], now);
        }
        self.frame = Some(frame);
        Ok(())
    }

    /// Returns true if this side has opened the stream, which may have ended since.
    fn was_opened(&self, stream: u32) -> bool {
        stream % 2 == 1 && stream < self.next_id
    }

    /// Returns the stream of a frame, unless its exchange has ended since the frame began.
    fn known(&mut self, key: Option<StreamKey>) -> Option<&mut StreamSlot> {
        key.map(|key| &mut self.slots[key.slot]).filter(|slot| slot.id == key.map(|key| key.id))
    }

    /// Returns the stream of a frame, if the stream has not ended.
    fn live(&mut self, key: Option<StreamKey>) -> Option<&mut StreamSlot> {
        self.known(key).filter(|slot| slot.end.is_none())
    }

    /// Processes the next piece of the current frame's payload.
    fn pass_frame(&mut self, mut frame: Incoming, bytes: &mut &[u8], now: Stamp) -> Result<(), Http2Fault> {
        let is_prefix = frame.header.kind == DATA && frame.padding.is_none();
        let count = if is_prefix { 1 } else { frame.left.min(bytes.len()) };
        let (part, rest) = bytes.split_at(count);
        *bytes = rest;
        let is_whole = count == frame.header.length;
        frame.left -= count;
        if matches!(frame.header.kind, DATA | HEADERS | CONTINUATION)
            && let Some(slot) = self.known(frame.key)
        {
            slot.received += count as u64;
        }
        match frame.header.kind {
            DATA if is_prefix => {
                let padding = usize::from(part[0]);
                if padding > frame.left {
                    return Err(PROTOCOL_ERROR.because("more padding than payload"));
                }
                frame.padding = Some(padding);
            }
            DATA => {
                let padding_left = frame.padding.unwrap_or_default();
                let content = (frame.left + count).saturating_sub(padding_left).min(count);
                self.add_content(frame.key, &part[..content], now);
            }
            HEADERS | RST_STREAM | SETTINGS | PUSH_PROMISE | PING | GOAWAY | WINDOW_UPDATE | CONTINUATION
                if !is_whole =>
            {
                self.payload.extend_from_slice(part);
            }
            _ => {}
        }
        if frame.left > 0 {
            self.frame = Some(frame);
            return Ok(());
        }
        self.frame = None;
        if is_whole {
            return self.complete(frame, part, now);
        }
        let mut payload = std::mem::take(&mut self.payload);
        let completed = self.complete(frame, &payload, now);
        payload.clear();
        self.payload = payload;
        completed
    }

    /// Processes a frame whose payload has arrived in full; for DATA, the payload has already been processed.
    fn complete(&mut self, frame: Incoming, payload: &[u8], now: Stamp) -> Result<(), Http2Fault> {
        let header = frame.header;
        match header.kind {
            DATA if header.has(END_STREAM) => self.end_response(frame.key, now),
            HEADERS => self.receive_headers(frame, payload, now)?,
            CONTINUATION => self.continue_block(frame, payload, now)?,
            RST_STREAM => {
                let code = exact::<4>(payload)?;
                self.end_stream(frame.key, StreamEnd::Reset(number(&code)), now);
            }
            SETTINGS => self.apply_settings(header, payload)?,
            PUSH_PROMISE => return Err(PROTOCOL_ERROR.because("PUSH_PROMISE although push is disabled")),
            PING => {
                let payload = exact::<8>(payload)?;
                if !header.has(ACK) {
                    self.output.add_control(PING, ACK, 0, &payload);
                }
            }
            GOAWAY => self.receive_goaway(payload, now)?,
            WINDOW_UPDATE => self.update_window(header.stream, payload, now)?,
            _ => {}
        }
        Ok(())
    }

    /// Ends a stream because the peer violated the protocol, and reports the error to the peer.
    fn fail_stream(&mut self, key: Option<StreamKey>, fault: Http2Fault, now: Stamp) {
        self.reset_stream(key, StreamEnd::Fault(fault), fault, now);
    }

    fn reset_stream(&mut self, key: Option<StreamKey>, end: StreamEnd, fault: Http2Fault, now: Stamp) {
        if let (Some(_), Some(StreamKey { id, .. })) = (self.live(key), key) {
            self.output.add_control(RST_STREAM, 0, id, &fault.code.to_be_bytes());
            self.end_stream(key, end, now);
        }
    }

    /// Ends a stream on both sides.
    fn end_stream(&mut self, key: Option<StreamKey>, end: StreamEnd, now: Stamp) {
        let Some(slot) = self.known(key) else { return };
        slot.finish(end, now);
        if let Some(key) = key {
            self.end_open(key.slot);
        }
    }

    /// Stops counting a stream against the limits.
    fn end_open(&mut self, slot: usize) {
        if std::mem::take(&mut self.slots[slot].is_open) {
            self.open -= 1;
        }
    }

    fn apply_settings(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Http2Fault> {
        if !payload.len().is_multiple_of(6) || (header.has(ACK) && !payload.is_empty()) {
            return Err(FRAME_SIZE_ERROR.because("SETTINGS with an invalid length"));
        }
        if header.has(ACK) {
            return Ok(());
        }
        // Settings without the limit mean that there is no limit; later settings replace earlier ones.
        self.max_streams = self.max_streams.or(Some(u32::MAX));
        for setting in payload.chunks_exact(6) {
            let (name, value) = (u16::from_be_bytes([setting[0], setting[1]]), number(&setting[2..]));
            match name {
                ENABLE_PUSH if value > 1 => return Err(PROTOCOL_ERROR.because("an invalid setting")),
                MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                    return Err(PROTOCOL_ERROR.because("an invalid setting"));
                }
                MAX_CONCURRENT_STREAMS => self.max_streams = Some(value),
                INITIAL_WINDOW_SIZE => self.change_windows(value)?,
                // Our encoder has no table, and our frames never exceed the size that every peer must accept.
                _ => {}
            }
        }
        self.output.add_control(SETTINGS, ACK, 0, &[]);
        Ok(())
    }

    fn receive_goaway(&mut self, payload: &[u8], now: Stamp) -> Result<(), Http2Fault> {
        if payload.len() < 8 {
            return Err(FRAME_SIZE_ERROR.because("GOAWAY with an invalid length"));
        }
        let (last_stream, code) = (number(payload) & 0x7fff_ffff, number(&payload[4..]));
        if self.goaway.is_some_and(|earlier| last_stream > earlier.last_stream) {
            return Err(PROTOCOL_ERROR.because("GOAWAY with a higher last stream than before"));
        }
        self.goaway = Some(GoAway { last_stream, code });
        self.finish_waiting(now);
        self.finish_streams(StreamEnd::GoAway(code), now, |id| id > last_stream);
        Ok(())
    }
}

/// Returns a payload that must have this length.
fn exact<const LENGTH: usize>(payload: &[u8]) -> Result<[u8; LENGTH], Http2Fault> {
    payload.try_into().map_err(|_| FRAME_SIZE_ERROR.because("a frame with an invalid length"))
}

#[cfg(any(test, fuzzing))]
impl Http2Session {
    /// Checks that a session without streams keeps nothing from earlier ones, and little of what has arrived.
    ///
    /// # Panics
    /// If it keeps more.
    pub(super) fn assert_bounds(&self) {
        assert!(
            self.by_id.is_empty() && self.waiting.is_empty() && self.sending.is_empty() && self.open == 0
        );
        assert_eq!(self.free.len(), self.slots.len());
        assert!(self.block.len() <= MAX_HEADER_LIST && self.payload.len() <= MAX_FRAME_BYTES);
    }
}
