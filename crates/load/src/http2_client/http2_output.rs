//! Outgoing bytes of an HTTP/2 connection: frames wait here for the next write, which takes all of them.

use std::collections::VecDeque;

use rolldrop_wire::http2::FrameHeader;

/// Maximum number of waiting bytes in our answers to the peer's frames. Above it, nothing more is read, so that a peer
/// that does not read cannot fill our memory with SETTINGS and PING frames.
const MAX_ANSWERS: usize = 64 * 1024;

/// A slot and the id of its stream. The slot may have been given to another stream in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamKey {
    pub(super) slot: usize,
    pub(super) id: u32,
}

/// Consecutive bytes with the same owner.
#[derive(Debug)]
struct Span {
    /// Stream whose request the bytes belong to; `None` for the connection's own frames.
    owner: Option<StreamKey>,
    bytes: usize,
}

/// Bytes to be written.
#[derive(Debug, Default)]
pub(super) struct Http2Output {
    bytes: Vec<u8>,
    /// Number of bytes at the front of `bytes` that have been written.
    written: usize,
    /// Owners of the bytes that have not been written, in order.
    spans: VecDeque<Span>,
    /// Upper bound on the number of waiting bytes in the connection's own frames.
    answers: usize,
}

impl Http2Output {
    /// Returns the bytes to write next.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Returns true if too many answers are waiting, so that nothing more should be read from the peer.
    pub(super) const fn is_clogged(&self) -> bool {
        self.answers > MAX_ANSWERS
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        (self.written, self.answers) = (0, 0);
    }

    /// Appends one of the connection's own frames.
    pub(super) fn add_control(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let begin = self.bytes.len();
        let header = FrameHeader { length: payload.len(), kind, flags, stream };
        self.bytes.extend_from_slice(&header.bytes());
        self.bytes.extend_from_slice(payload);
        self.answers += self.bytes.len() - begin;
        self.own(None, begin);
    }

    /// Appends a frame of a request.
    pub(super) fn add_message(&mut self, owner: StreamKey, kind: u8, flags: u8, payload: &[u8]) {
        let begin = self.bytes.len();
        let header = FrameHeader { length: payload.len(), kind, flags, stream: owner.id };
        self.bytes.extend_from_slice(&header.bytes());
        self.bytes.extend_from_slice(payload);
        self.own(Some(owner), begin);
    }

    /// Appends bytes that are not a frame.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.own(None, begin);
    }

    /// Begins a frame, whose payload `write` appends; returns where the frame begins, and the result of `write`.
    /// [`seal`](Self::seal) then writes the frame header.
    pub(super) fn begin<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> (usize, T) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; FrameHeader::BYTES]);
        let written = write(&mut self.bytes);
        (begin, written)
    }

    /// Returns the payload of the frame that begins there.
    pub(super) fn begun(&self, begin: usize) -> &[u8] {
        &self.bytes[begin + FrameHeader::BYTES..]
    }

    /// Completes the frame that begins there, which must be the last one.
    pub(super) fn seal(&mut self, begin: usize, owner: StreamKey, kind: u8, flags: u8) {
        let length = self.bytes.len() - begin - FrameHeader::BYTES;
        let header = FrameHeader { length, kind, flags, stream: owner.id };
        self.bytes[begin..begin + FrameHeader::BYTES].copy_from_slice(&header.bytes());
        self.own(Some(owner), begin);
    }

    /// Removes the frame that begins there, which must be the last one, and returns its payload.
    pub(super) fn take_begun(&mut self, begin: usize) -> Vec<u8> {
        let payload = self.begun(begin).to_vec();
        self.bytes.truncate(begin);
        payload
    }

    fn own(&mut self, owner: Option<StreamKey>, begin: usize) {
        let bytes = self.bytes.len() - begin;
        match self.spans.back_mut() {
            Some(last) if last.owner == owner => last.bytes += bytes,
            _ => self.spans.push_back(Span { owner, bytes }),
        }
    }

    /// Records that this many bytes have been written, and calls `sent` for each stream whose bytes are among them.
    pub(super) fn wrote(&mut self, mut count: usize, mut sent: impl FnMut(StreamKey, u64)) {
        self.written += count;
        while count > 0
            && let Some(span) = self.spans.front_mut()
        {
            let part = span.bytes.min(count);
            count -= part;
            span.bytes -= part;
            if let Some(owner) = span.owner {
                sent(owner, part as u64);
            }
            if span.bytes == 0 {
                self.spans.pop_front();
            }
        }
        if self.written == self.bytes.len() {
            self.clear();
        }
    }
}
