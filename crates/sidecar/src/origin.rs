//! One client connection, as its rows show it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ProxyState;
use super::budget::Unrecorded;
use super::sides::ConnectionSides;
use rolldrop_record::{Protocol, ServedEnd, ServedRow, Stamp};

/// Fields shared by the rows of one connection.
pub(super) struct RowOrigin {
    pub(super) shared: Arc<ProxyState>,
    pub(super) sides: ConnectionSides,
    peer: Arc<str>,
    pub(super) accepted: Stamp,
    pub(super) conn: u64,
}

impl RowOrigin {
    /// Returns the fields of an accepted connection.
    pub(super) fn new(shared: Arc<ProxyState>, peer: SocketAddr, accepted: Stamp, conn: u64) -> Self {
        let sides = ConnectionSides::beginning_at(shared.ticks.load(Ordering::Relaxed));
        Self { shared, sides, peer: peer.to_string().into(), accepted, conn }
    }

    /// Returns a row for a request or connection that ends now, with the shared fields of this connection.
    pub(super) fn row(&self, protocol: Protocol, ended: ServedEnd) -> ServedRow {
        ServedRow {
            source: self.shared.pod.clone(),
            request: None,
            pod: self.shared.pod.clone(),
            peer_addr: self.peer.clone(),
            protocol,
            accepted: self.accepted,
            head: None,
            end: self.shared.clock.now(),
            status: None,
            grpc_status: None,
            ended,
            detail: None,
            conn: self.conn,
            conn_first_request: false,
            stream: None,
            bytes_from_client: None,
            bytes_from_app: None,
        }
    }

    /// Counts the start of a request, or of a connection that counts as one.
    pub(super) fn begin(&self) {
        self.shared.in_flight.begin();
        self.sides.begin();
    }

    /// Drops a request in flight whose end could not be determined.
    pub(super) fn forget(&self) {
        self.sides.end();
        self.shared.journal.unrecorded(Unrecorded::Answers);
        self.shared.in_flight.end();
    }

    /// Records a request or connection that has ended.
    pub(super) fn record(&self, row: ServedRow) {
        self.sides.end();
        self.shared.journal.row(row);
        self.shared.in_flight.end();
    }
}
