//! The receiving side of a session: heads, content, trailers and ends of responses.

use super::{
    CONNECTION_WINDOW, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR,
    FieldList, FrameHeader, Http2Fault, Http2Session, Incoming, MAX_HEADER_LIST, OpenBlock, PADDED, PRIORITY,
    PROTOCOL_ERROR, ResponseHead, STREAM_WINDOW, StreamEnd, StreamKey, WINDOW_UPDATE, content_length,
};
use rolldrop_record::Stamp;

/// Maximum number of CONTINUATION frames in a header block that do not complete it.
const MAX_CONTINUATIONS: usize = 5;
const SHORT_HEADERS: Http2Fault = FRAME_SIZE_ERROR.because("HEADERS with an invalid length");

impl Http2Session {
    /// Deducts a DATA frame's length from the windows, and refills them, because content is processed as it arrives.
    pub(super) fn begin_data(&mut self, frame: Incoming, now: Stamp) -> Result<(), Http2Fault> {
        let FrameHeader { length, stream, .. } = frame.header;
        if length == 0 && frame.padding.is_none() {
            return Err(FRAME_SIZE_ERROR.because("a padded frame without its padding length"));
        }
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(used) = take_from_window(&mut self.receive_window, CONNECTION_WINDOW, bytes)? {
            self.output.add_control(WINDOW_UPDATE, 0, 0, &used.to_be_bytes());
        }
        let Some(slot) = self.live(frame.key) else { return Ok(()) };
        if slot.head.is_none() {
            self.fail_stream(frame.key, PROTOCOL_ERROR.because("DATA before the response head"), now);
            return Ok(());
        }
        match take_from_window(&mut slot.receive_window, STREAM_WINDOW, bytes) {
            Ok(None) => {}
            Ok(Some(_)) if frame.header.has(END_STREAM) => {}
            Ok(Some(used)) => self.output.add_control(WINDOW_UPDATE, 0, stream, &used.to_be_bytes()),
            Err(fault) => self.fail_stream(frame.key, fault, now),
        }
        Ok(())
    }

    pub(super) fn add_content(&mut self, key: Option<StreamKey>, content: &[u8], now: Stamp) {
        if let Some(slot) = self.live(key)
            && let Err(fault) = slot.add(content)
        {
            self.fail_stream(key, fault, now);
        }
    }

    /// Processes END_STREAM.
    pub(super) fn end_response(&mut self, key: Option<StreamKey>, now: Stamp) {
        let Some(slot) = self.live(key) else { return };
        if slot.missing.is_some_and(|missing| missing > 0) {
            let fault = PROTOCOL_ERROR.because("the body is shorter than content-length");
            self.reset_stream(key, StreamEnd::Short, fault, now);
            return;
        }
        slot.finish(StreamEnd::Complete, now);
        // If the request has not been sent in full, the exchange cancels the rest.
        if !slot.is_sending
            && let Some(key) = key
        {
            self.end_open(key.slot);
        }
    }

    pub(super) fn receive_headers(
        &mut self,
        frame: Incoming,
        payload: &[u8],
        now: Stamp,
    ) -> Result<(), Http2Fault> {
        let (header, mut block) = (frame.header, payload);
        let mut padding = 0;
        if header.has(PADDED) {
            let (first, rest) = block.split_first().ok_or(SHORT_HEADERS)?;
            (padding, block) = (usize::from(*first), rest);
        }
        if header.has(PRIORITY) {
            block = block.get(5..).ok_or(SHORT_HEADERS)?;
        }
        let length = block.len().checked_sub(padding);
        let length = length.ok_or(PROTOCOL_ERROR.because("more padding than payload"))?;
        let (stream, ends_stream) = (header.stream, header.has(END_STREAM));
        if header.has(END_HEADERS) {
            return self.read_block(frame.key, ends_stream, &block[..length], now);
        }
        self.open_block = Some(OpenBlock { stream, ends_stream, continuations: 0 });
        self.block.extend_from_slice(&block[..length]);
        Ok(())
    }

    pub(super) fn continue_block(
        &mut self,
        frame: Incoming,
        payload: &[u8],
        now: Stamp,
    ) -> Result<(), Http2Fault> {
        let Some(open) = &mut self.open_block else { return Ok(()) };
        open.continuations += 1;
        if self.block.len() + payload.len() > MAX_HEADER_LIST {
            return Err(ENHANCE_YOUR_CALM.because("a header block of more than 64 KiB"));
        }
        self.block.extend_from_slice(payload);
        if !frame.header.has(END_HEADERS) {
            return match open.continuations > MAX_CONTINUATIONS {
                true => Err(ENHANCE_YOUR_CALM.because("too many CONTINUATION frames")),
                false => Ok(()),
            };
        }
        let ends_stream = open.ends_stream;
        self.open_block = None;
        let mut block = std::mem::take(&mut self.block);
        let read = self.read_block(frame.key, ends_stream, &block, now);
        block.clear();
        self.block = block;
        read
    }

    /// Processes a complete header block.
    fn read_block(
        &mut self,
        key: Option<StreamKey>,
        ends_stream: bool,
        block: &[u8],
        now: Stamp,
    ) -> Result<(), Http2Fault> {
        let read = self.reader.read(block)?;
        let slot = key.map(|key| &mut self.slots[key.slot]);
        let slot = slot.filter(|slot| slot.id == key.map(|key| key.id) && slot.end.is_none());
        let Some(slot) = slot else { return Ok(()) };
        let fields = &mut self.reader.fields;
        let received = match (read.fault, slot.head, read.status) {
            (Some(fault), ..) => Err(fault),
            // Trailers.
            (None, Some(_), Some(_)) => Err(PROTOCOL_ERROR.because("a second response head")),
            (None, Some(_), None) if !ends_stream => {
                Err(PROTOCOL_ERROR.because("trailers that do not end the stream"))
            }
            (None, Some(_), None) => {
                std::mem::swap(slot.trailers.insert(FieldList::default()), fields);
                Ok(())
            }
            (None, None, None) => Err(PROTOCOL_ERROR.because("a response without :status")),
            // Interim responses (RFC 9110, 15.2) precede a final one.
            (None, None, Some(100..=199)) if ends_stream => {
                Err(PROTOCOL_ERROR.because("an interim response that ends the stream"))
            }
            (None, None, Some(100..=199)) => return Ok(()),
            (None, None, Some(status)) => content_length(fields).and_then(|announced| {
                // These have no content, whatever they announce (RFC 9113, 8.1.1).
                slot.missing = announced.filter(|_| !slot.is_bodiless && !matches!(status, 204 | 304));
                if ends_stream && slot.missing.is_some_and(|missing| missing > 0) {
                    return Err(PROTOCOL_ERROR.because("END_STREAM instead of the announced body"));
                }
                std::mem::swap(&mut slot.headers, fields);
                slot.head = Some(ResponseHead { status, at: now });
                slot.wake();
                Ok(())
            }),
        };
        match received {
            Err(fault) => self.fail_stream(key, fault, now),
            Ok(()) if ends_stream => self.end_response(key, now),
            Ok(()) => {}
        }
        Ok(())
    }
}

/// Deducts bytes from a window of this size. Once at least half of the window has been used, refills it and returns the
/// number of bytes to grant to the peer again.
pub(super) fn take_from_window(left: &mut u32, size: u32, bytes: u32) -> Result<Option<u32>, Http2Fault> {
    *left =
        left.checked_sub(bytes).ok_or(FLOW_CONTROL_ERROR.because("more content than the window allows"))?;
    let used = size - *left;
    if used < size / 2 {
        return Ok(None);
    }
    *left = size;
    Ok(Some(used))
}
