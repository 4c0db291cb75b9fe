//! The sending side of a session: which requests may be sent now, and how much of their bodies.

use super::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR, HEADERS, Http2Fault, Http2Session,
    MAX_FRAME_BYTES, PROTOCOL_ERROR, STREAM_WINDOW, StreamKey, exact, number,
};
use rolldrop_record::Stamp;

/// Largest window.
const MAX_WINDOW: i64 = (1 << 31) - 1;
/// Number of outgoing bytes above which no more body content is put into frames before the next write.
const MAX_AHEAD: usize = 64 * 1024;

impl Http2Session {
    /// Changes the windows of all streams by as much as the initial window has changed (RFC 9113, 6.9.2).
    pub(super) fn change_windows(&mut self, initial: u32) -> Result<(), Http2Fault> {
        let too_large = FLOW_CONTROL_ERROR.because("a window of more than 2^31-1");
        let initial = i64::from(initial);
        if initial > MAX_WINDOW {
            return Err(too_large);
        }
        let change = initial - std::mem::replace(&mut self.peer_window, initial);
        for slot in 0..self.slots.len() {
            if let Some(id) = self.slots[slot].id {
                self.slots[slot].send_window += change;
                if self.slots[slot].send_window > MAX_WINDOW {
                    return Err(too_large);
                }
                self.queue_body(StreamKey { slot, id });
            }
        }
        Ok(())
    }

    pub(super) fn update_window(
        &mut self,
        stream: u32,
        payload: &[u8],
        now: Stamp,
    ) -> Result<(), Http2Fault> {
        let increment = i64::from(number(&exact::<4>(payload)?) & 0x7fff_ffff);
        let fault = |window: i64| match (increment, window) {
            (0, _) => Some(PROTOCOL_ERROR.because("WINDOW_UPDATE of 0")),
            (_, window) if window > MAX_WINDOW => {
                Some(FLOW_CONTROL_ERROR.because("a window of more than 2^31-1"))
            }
            _ => None,
        };
        if stream == 0 {
            self.send_window += increment;
            return fault(self.send_window).map_or(Ok(()), Err);
        }
        if !self.was_opened(stream) {
            return Err(PROTOCOL_ERROR.because("a frame for a stream that was not opened"));
        }
        let Some(&slot) = self.by_id.get(&stream) else { return Ok(()) };
        let key = StreamKey { slot, id: stream };
        self.slots[slot].send_window += increment;
        match fault(self.slots[slot].send_window) {
            Some(fault) => self.fail_stream(Some(key), fault, now),
            None => self.queue_body(key),
        }
        Ok(())
    }

    /// Returns true if the limits allow another stream. Only one stream is opened before the peer's limit is known.
    pub(super) fn has_room(&self) -> bool {
        let limit = self.max_streams.map_or(1, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        self.open < limit.min(self.wanted_streams) && i64::from(self.next_id) <= MAX_WINDOW
    }

    /// Returns true if a request that waited may be sent now.
    pub(in super::super) fn is_request_due(&self) -> bool {
        !self.waiting.is_empty() && self.has_room()
    }

    /// Sends the waiting requests, as far as the limits allow. Call it directly before a write: a request that
    /// only waits for the next write could still be excluded by what the peer sent before.
    pub(in super::super) fn send_waiting(&mut self, now: Stamp) {
        while self.has_room()
            && let Some(slot) = self.waiting.pop_front()
        {
            let block = std::mem::take(&mut self.slots[slot].waiting);
            let (begin, ()) = self.output.begin(|output| output.extend_from_slice(&block));
            self.send_request(slot, begin, now);
            self.slots[slot].wake();
        }
    }

    /// Opens the stream of a request whose header block is at `begin` in the output.
    pub(super) fn send_request(&mut self, index: usize, begin: usize, now: Stamp) {
        let id = self.next_id;
        self.next_id += 2;
        let key = StreamKey { slot: index, id };
        let slot = &mut self.slots[index];
        (slot.id, slot.sent_at) = (Some(id), Some(now));
        (slot.is_open, slot.is_sending) = (true, !slot.unsent.is_empty());
        (slot.send_window, slot.receive_window) = (self.peer_window, STREAM_WINDOW);
        self.open += 1;
        self.by_id.insert(id, index);
        let end = if slot.is_sending { 0 } else { END_STREAM };
        if self.output.begun(begin).len() <= MAX_FRAME_BYTES {
            self.output.seal(begin, key, HEADERS, END_HEADERS | end);
        } else {
            let block = self.output.take_begun(begin);
            let last = block.len().div_ceil(MAX_FRAME_BYTES) - 1;
            for (number, fragment) in block.chunks(MAX_FRAME_BYTES).enumerate() {
                let (kind, flags) = if number == 0 { (HEADERS, end) } else { (CONTINUATION, 0) };
                let flags = if number == last { flags | END_HEADERS } else { flags };
                self.output.add_message(key, kind, flags, fragment);
            }
        }
        self.queue_body(key);
    }

    /// Queues a stream that may send more of its body.
    pub(super) fn queue_body(&mut self, key: StreamKey) {
        let slot = &mut self.slots[key.slot];
        if slot.end.is_none() && slot.is_sending && !slot.is_queued && slot.send_window > 0 {
            slot.is_queued = true;
            self.sending.push_back(key);
        }
    }

    /// Puts body content into frames, one frame for each stream in turn, as far as the windows allow.
    pub(super) fn frame_bodies(&mut self) {
        while self.send_window > 0
            && self.output.waiting().len() < MAX_AHEAD
            && let Some(key) = self.sending.pop_front()
        {
            let slot = &mut self.slots[key.slot];
            if slot.id != Some(key.id) {
                continue;
            }
            slot.is_queued = false;
            let allowed = usize::try_from(slot.send_window.min(self.send_window)).unwrap_or_default();
            let count = slot.unsent.len().min(MAX_FRAME_BYTES).min(allowed);
            if slot.end.is_some() || count == 0 {
                continue;
            }
            let content = slot.unsent.split_to(count);
            slot.is_sending = !slot.unsent.is_empty();
            let flags = if slot.is_sending { 0 } else { END_STREAM };
            slot.send_window -= count as i64;
            self.send_window -= count as i64;
            self.output.add_message(key, DATA, flags, &content);
            self.queue_body(key);
        }
    }
}
