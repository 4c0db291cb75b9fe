//! A connection whose bytes the proxy does not parse: TLS, which the app terminates, and any non-HTTP protocol. It has
//! one row, with the byte counts of both directions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::BytesMut;

use super::origin::RowOrigin;
use super::relay::{self, ByteWatch, ConnectionFinish, Ledger, RelayStreams};
use rolldrop_record::{Protocol, ServedEnd, ServedRow};

/// Recorded facts about the connection.
pub(super) struct Tunnel {
    origin: Arc<RowOrigin>,
    protocol: Protocol,
    from_client: AtomicU64,
    from_app: AtomicU64,
    ended: AtomicBool,
}

impl Tunnel {
    /// Returns the record of a new connection.
    pub(super) fn begin(origin: Arc<RowOrigin>, protocol: Protocol) -> Self {
        origin.begin();
        let (from_client, from_app) = Default::default();
        Self { origin, protocol, from_client, from_app, ended: AtomicBool::new(false) }
    }

    /// Records the end of the connection, unless already recorded; returns true if it was not.
    pub(super) fn end(&self, ended: ServedEnd) -> bool {
        let is_news = !self.ended.swap(true, Ordering::Relaxed);
        if is_news {
            self.origin.record(ServedRow {
                conn_first_request: true,
                bytes_from_client: Some(self.from_client.load(Ordering::Relaxed)),
                bytes_from_app: Some(self.from_app.load(Ordering::Relaxed)),
                ..self.origin.row(self.protocol, ended)
            });
        }
        is_news
    }

    /// Passes bytes both ways until the connection is finished.
    pub(super) async fn relay(&self, streams: RelayStreams<'_>) -> ConnectionFinish {
        let (requests, responses) = (ByteCounter(&self.from_client), ByteCounter(&self.from_app));
        relay::both_ways(streams, &self.origin.sides, self, requests, responses).await
    }
}

impl Ledger for Tunnel {
    /// The client may send more: the proxy cannot recognise a response.
    fn app_closed(&self, _: ServedEnd) {}

    fn goes_one_way(&self) -> bool {
        true
    }
}

/// Watch that counts bytes.
struct ByteCounter<'a>(&'a AtomicU64);

impl ByteWatch for ByteCounter<'_> {
    fn look(&mut self, buf: &mut BytesMut) -> usize {
        buf.len()
    }

    fn passed(&mut self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn give_up(&mut self) {}
}
