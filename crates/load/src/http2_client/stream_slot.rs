//! One stream of an HTTP/2 connection: its request while it is being sent, and what has arrived of its response.

use std::task::Waker;

use bytes::Bytes;

use super::http2_fault::{Http2Fault, PROTOCOL_ERROR};
use crate::field_list::FieldList;
use crate::grpc::Messages;
use crate::pod_body::Beginning;
use rolldrop_record::Stamp;

/// Parts of a body to extract as it arrives; the rest is not kept.
#[derive(Debug, Default)]
pub(crate) struct BodySink {
    /// Counter of gRPC messages, if the request is a call.
    pub(crate) messages: Option<Messages>,
    /// Beginning of the body, if it is to be searched for the pod's name.
    pub(crate) beginning: Option<Box<Beginning>>,
}

impl BodySink {
    fn add(&mut self, bytes: &[u8]) {
        if let Some(messages) = &mut self.messages {
            messages.pass(bytes);
        }
        if let Some(beginning) = &mut self.beginning {
            beginning.add(bytes);
        }
    }
}

/// Ways in which a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The response is complete.
    Complete,
    /// The peer reset the stream with this error code.
    Reset(u32),
    /// A GOAWAY with this error code excluded the stream: it was not processed.
    GoAway(u32),
    /// The response ended before the length that its head announced.
    Short,
    /// The peer violated the protocol on this stream.
    Fault(Http2Fault),
    /// The connection ended first, or accepted no more requests before this one was sent.
    Connection,
}

/// Content of a response's head that the protocol itself needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    /// Time the head arrived.
    pub(super) at: Stamp,
}

/// A stream, from the request for it until its exchange has ended.
#[derive(Debug, Default)]
pub(super) struct StreamSlot {
    /// Id of the stream; `None` until its request may be sent.
    pub(super) id: Option<u32>,
    /// Time the request was given to the output; `None` until then, and if the stream ended first.
    pub(super) sent_at: Option<Stamp>,
    /// True if the stream counts against the limits.
    pub(super) is_open: bool,
    /// Header block of a request that waits for its turn.
    pub(super) waiting: Vec<u8>,
    /// Part of the request's body that has not been put into frames.
    pub(super) unsent: Bytes,
    /// True if the request ends only after `unsent`.
    pub(super) is_sending: bool,
    /// True if the stream is queued to send more of its body.
    pub(super) is_queued: bool,
    /// Number of body bytes that the peer accepts on this stream; negative if the peer has reduced its window.
    pub(super) send_window: i64,
    /// Number of bytes that the peer may still send on this stream.
    pub(super) receive_window: u32,
    /// True if responses to the request's method have no body.
    pub(super) is_bodiless: bool,
    pub(super) head: Option<ResponseHead>,
    pub(super) headers: FieldList,
    pub(super) trailers: Option<FieldList>,
    /// Number of body bytes that must still arrive; `None` if the head announced no length.
    pub(super) missing: Option<u64>,
    pub(super) sink: BodySink,
    /// Number of bytes of the request's frames that have been written.
    pub(super) sent: u64,
    /// Number of bytes received in the response's frames.
    pub(super) received: u64,
    /// End of the stream and its time.
    pub(super) end: Option<(StreamEnd, Stamp)>,
    /// Waker of the exchange.
    pub(super) waker: Option<Waker>,
}

impl StreamSlot {
    /// Prepares the slot for another request.
    pub(super) fn reset(&mut self, is_bodiless: bool, sink: BodySink) {
        let (mut waiting, mut headers) =
            (std::mem::take(&mut self.waiting), std::mem::take(&mut self.headers));
        waiting.clear();
        headers.clear();
        *self = Self { waiting, headers, is_bodiless, sink, ..Self::default() };
    }

    /// Ends the stream, unless it has already ended.
    pub(super) fn finish(&mut self, end: StreamEnd, at: Stamp) {
        if self.end.is_none() {
            self.end = Some((end, at));
            self.unsent = Bytes::new();
            self.wake();
        }
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Processes a piece of the body's content.
    ///
    /// # Errors
    /// Returns an error if the body is longer than announced.
    pub(super) fn add(&mut self, content: &[u8]) -> Result<(), Http2Fault> {
        let Some(missing) = &mut self.missing else {
            self.sink.add(content);
            return Ok(());
        };
        let most = usize::try_from(*missing).unwrap_or(usize::MAX).min(content.len());
        *missing -= most as u64;
        self.sink.add(&content[..most]);
        if most < content.len() {
            return Err(PROTOCOL_ERROR.because("the body is longer than content-length"));
        }
        Ok(())
    }
}
