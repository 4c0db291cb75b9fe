//! HTTP/2 without TLS between a client and its app, with prior knowledge.
//!
//! Frames are passed on byte for byte: settings, flow control, priorities, padding, pings, and the error codes of
//! RST_STREAM and GOAWAY remain between app and client. A proxy with its own HTTP/2 client and server would add its own
//! windows, limits and ordering. This relay only observes: it decodes field blocks to record them, and appends the pod
//! header to a response's block as a field that enters no table, so the rest of the block does not change.
//!
//! Parsed frames are passed on once complete, DATA as it arrives. A block that cannot be decoded is passed on
//! nevertheless; later rows for this connection have no request id, or no status.

mod frames;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod http2_streams;

use bytes::BytesMut;

use self::frames::FrameScanner;
pub(super) use self::http2_streams::Http2;

use super::relay::{self, ByteWatch, ConnectionFinish, RelayStreams};

impl Http2 {
    /// Relays until the connection is finished.
    pub(super) async fn relay(&self, streams: RelayStreams<'_>) -> ConnectionFinish {
        let (requests, responses) = (FrameScanner::of_client(self), FrameScanner::of_app(self));
        relay::both_ways(streams, &self.origin().sides, self, requests, responses).await
    }

    /// Records the requests of a client that will get no response from the app; returns true if there was one.
    pub(super) fn ask(&self, bytes: &[u8]) -> bool {
        FrameScanner::of_client(self).look(&mut BytesMut::from(bytes));
        self.has_begun()
    }
}
