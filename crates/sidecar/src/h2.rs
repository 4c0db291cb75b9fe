//! HTTP/2 without TLS between a client and its app, with prior knowledge.
//!
//! Frames pass byte for byte: settings, flow control, priorities, padding, pings, codes of
//! RST_STREAM and GOAWAY are the app's and the client's own, and so is every decision about
//! them. An HTTP/2 client towards the app and a server towards the client would put windows,
//! limits and orders of their own in between. The relay only reads along: header
//! blocks are decoded to record them, and the pod header is put at the end of a response's
//! block as a field that enters no table, so that nothing else of the block changes.
//!
//! Frames that are read are passed on when they are complete, DATA as it comes. A block that
//! cannot be read is passed on all the same; from there on requests of this connection
//! have no id, or no status, in their rows.

mod frames;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod streams;

use bytes::BytesMut;

use self::frames::Frames;
pub(super) use self::streams::Http2;

use super::relay::{self, Finish, Streams, Watch};

impl Http2 {
    /// Relays until the connection is over.
    pub(super) async fn relay(&self, streams: Streams<'_>) -> Finish {
        let (requests, responses) = (Frames::of_client(self), Frames::of_app(self));
        relay::both_ways(streams, &self.origin().sides, self, requests, responses).await
    }

    /// Records the requests of a client that no app will answer; returns true if there was one.
    pub(super) fn ask(&self, bytes: &[u8]) -> bool {
        Frames::of_client(self).look(&mut BytesMut::from(bytes));
        self.has_begun()
    }
}
