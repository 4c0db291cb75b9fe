//! One row per request: as the client saw it, and as a proxy saw it. What a row has stands with the columns of its table
//! (`parts::tables`).

use std::sync::Arc;

use super::names::named;
pub use super::parts::{RequestRow, ServedRow};
use super::{Outcome, Stamp};

/// The name of the response header by which a proxy names its pod.
pub const POD_HEADER: &str = "rolldrop-pod";

named! {
    /// Whether a request counts.
    pub enum Phase else UnknownPhase "unknown phase {0:?}" {
        /// Sent to warm the path up; recorded, never counted.
        Warmup = "warmup",
        /// Counted.
        Main = "main",
    }
}

named! {
    /// How a TLS session came about: its version, and whether it resumed an earlier one.
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
    /// The row of a request that was not sent, which one that is sent fills in.
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

named! {
    /// How a proxied request ended, seen from the proxy.
    pub enum ServedEnd else UnknownServedEnd "unknown end {0:?} of a served request" {
        /// The whole response was passed on.
        Complete = "complete",
        /// The client closed or reset first.
        ClientGone = "client_gone",
        /// The app's listener refused the connection.
        UpstreamRefused = "upstream_refused",
        /// The app reset the connection.
        UpstreamReset = "upstream_reset",
        /// The app closed the connection before the response was complete.
        UpstreamEof = "upstream_eof",
        /// The proxy ended first.
        Cancelled = "cancelled",
        /// The proxy had no descriptor, port or memory left to connect to the app with.
        ProxyExhausted = "proxy_exhausted",
    }
}

named! {
    /// What a client connection of a proxy carries.
    pub enum Protocol else UnknownProtocol "unknown protocol {0:?} of a served request" {
        /// HTTP/1.0 or HTTP/1.1.
        Http1 = "http1",
        /// HTTP/2 without TLS, with prior knowledge.
        Http2 = "http2",
        /// TLS, which the app ends: the row is a connection's.
        Tls = "tls",
        /// Bytes that were not parsed: the row is a connection's.
        Tcp = "tcp",
    }
}
