//! Request rows, as seen by the client and by a proxy. The row fields are defined together with the table columns
//! (`parts::tables`).

use std::sync::Arc;

use super::names::named;
pub use super::parts::{GapRow, RequestRow, ServedRow, StreamRow};
use super::{Outcome, Stamp};

/// Name of the response header that contains the name of the proxy's pod.
pub const POD_HEADER: &str = "rolldrop-pod";

named! {
    /// Phase of the run in which a request was scheduled.
    pub enum Phase else UnknownPhase "unknown phase {0:?}" {
        /// Sent to warm up the path; recorded, but never counted.
        Warmup = "warmup",
        /// Counted.
        Main = "main",
    }
}

named! {
    /// Kind of TLS session: the version, and full handshake or resumption.
    pub enum TlsSession else UnknownTlsSession "unknown TLS session {0:?}" {
        /// TLS 1.2, a full handshake.
        Full12 = "1.2",
        /// TLS 1.2, resumed.
        Resumed12 = "1.2 resumed",
        /// TLS 1.3, a full handshake.
        Full13 = "1.3",
        /// TLS 1.3, resumed.
        Resumed13 = "1.3 resumed",
    }
}

impl RequestRow {
    /// Creates the row of an unsent request. The caller fills in the rest if the request is sent.
    pub fn not_sent(
        source: Arc<str>,
        seq: u64,
        target: Arc<str>,
        phase: Phase,
        scheduled: Stamp,
        end: Stamp,
    ) -> Self {
        Self {
            source,
            seq,
            target,
            phase,
            scheduled,
            connect_start: None,
            connected: None,
            tls: None,
            tls_session: None,
            sent: None,
            head: None,
            end,
            outcome: Outcome::NotSent,
            errno: None,
            detail: None,
            status: None,
            grpc_status: None,
            not_sent_reason: None,
            conn: None,
            conn_reused: false,
            stream: None,
            local_port: None,
            remote_addr: None,
            routed_to: None,
            bytes_sent: 0,
            bytes_received: 0,
            pod: None,
            headers: None,
            attempts: 1,
            final_outcome: Outcome::NotSent,
        }
    }
}

/// Identifies a request among the rows of proxies: source, connection, stream, and time of the request head.
pub type ServedKey = (Arc<str>, u64, Option<u32>, Option<Stamp>);

impl ServedRow {
    /// Returns the key that all rows of one request share.
    pub fn key(&self) -> ServedKey {
        (Arc::clone(&self.source), self.conn, self.stream, self.head)
    }
}

named! {
    /// End of a proxied request, as seen by the proxy.
    pub enum ServedEnd else UnknownServedEnd "unknown served-request end {0:?}" {
        /// The whole response was passed on.
        Complete = "complete",
        /// The client closed or reset the connection first.
        ClientGone = "client_gone",
        /// The app's listener refused the connection.
        UpstreamRefused = "upstream_refused",
        /// The app reset the connection.
        UpstreamReset = "upstream_reset",
        /// The app closed the connection before the response was complete.
        UpstreamEof = "upstream_eof",
        /// The proxy shut down first.
        Cancelled = "cancelled",
        /// The proxy had no descriptor, port or memory left to connect to the app.
        ProxyExhausted = "proxy_exhausted",
        /// The response was still being passed on at the row's end time, and nothing later is known: the proxy was
        /// killed, or the run ended first.
        Open = "open",
    }
}

named! {
    /// Protocol that a proxy's client connection carries.
    pub enum Protocol else UnknownProtocol "unknown served-request protocol {0:?}" {
        /// HTTP/1.0 or HTTP/1.1.
        Http1 = "http1",
        /// HTTP/2 without TLS, with prior knowledge.
        Http2 = "http2",
        /// TLS, which the app terminates, so the row describes a connection.
        Tls = "tls",
        /// Bytes that were not parsed, so the row describes a connection.
        Tcp = "tcp",
    }
}
