//! One row per request: as the client saw it, and as a proxy saw it.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Outcome, RequestId, Stamp};

/// The name of the response header by which a proxy names its pod.
pub const POD_HEADER: &str = "rolldrop-pod";

/// Whether a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Sent to warm the path up; recorded, never counted.
    Warmup,
    /// Counted.
    Main,
}

impl Phase {
    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Warmup => "warmup",
            Phase::Main => "main",
        }
    }
}

/// A name that is no [`Phase`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown phase {0:?}")]
pub struct UnknownPhase(String);

impl FromStr for Phase {
    type Err = UnknownPhase;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "warmup" => Ok(Phase::Warmup),
            "main" => Ok(Phase::Main),
            other => Err(UnknownPhase(other.to_owned())),
        }
    }
}

/// How a TLS session came about: its version, and whether it resumed an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TlsSession {
    /// TLS 1.2, a full handshake.
    #[serde(rename = "1.2")]
    Full12,
    /// TLS 1.2, resumed.
    #[serde(rename = "1.2 resumed")]
    Resumed12,
    /// TLS 1.3, a full handshake.
    #[serde(rename = "1.3")]
    Full13,
    /// TLS 1.3, resumed.
    #[serde(rename = "1.3 resumed")]
    Resumed13,
}

impl TlsSession {
    const ALL: [TlsSession; 4] =
        [TlsSession::Full12, TlsSession::Resumed12, TlsSession::Full13, TlsSession::Resumed13];

    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            TlsSession::Full12 => "1.2",
            TlsSession::Resumed12 => "1.2 resumed",
            TlsSession::Full13 => "1.3",
            TlsSession::Resumed13 => "1.3 resumed",
        }
    }
}

/// A name that is no [`TlsSession`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown TLS session {0:?}")]
pub struct UnknownTlsSession(String);

impl FromStr for TlsSession {
    type Err = UnknownTlsSession;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let found = TlsSession::ALL.into_iter().find(|session| session.as_str() == s);
        found.ok_or_else(|| UnknownTlsSession(s.to_owned()))
    }
}

/// A scheduled request as its load worker saw it: the columns of `requests/*.parquet`.
///
/// This is the flat form that goes to disk, so a stage that was not reached is
/// `None`. All stamps are on the clock of `source`. As JSON it is an object with the table's columns,
/// without those that are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    /// The load worker.
    pub source: Arc<str>,
    /// The request's number within its source, from 0.
    pub seq: u64,
    /// The name of the target it went to.
    pub target: Arc<str>,
    /// Warm-up or counted.
    pub phase: Phase,
    /// The intended send time.
    #[serde(rename = "scheduled_ns")]
    pub scheduled: Stamp,
    /// When connecting began; `None` on a reused connection.
    #[serde(rename = "connect_start_ns", default, skip_serializing_if = "Option::is_none")]
    pub connect_start: Option<Stamp>,
    /// When the connection stood; `None` on a reused connection.
    #[serde(rename = "connected_ns", default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<Stamp>,
    /// When the TLS handshake was done; `None` on a reused connection and without TLS.
    #[serde(rename = "tls_ns", default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Stamp>,
    /// How that handshake went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_session: Option<TlsSession>,
    /// When the request was written.
    #[serde(rename = "sent_ns", default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Stamp>,
    /// When the complete response head was there.
    #[serde(rename = "head_ns", default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Stamp>,
    /// When the request ended, however it ended.
    #[serde(rename = "end_ns")]
    pub end: Stamp,
    /// What happened to the first attempt.
    pub outcome: Outcome,
    /// The operating system's error number behind the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// What a protocol said for itself behind the outcome, where no error number does: a TLS
    /// alert, a certificate's fault, an answer of the DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Arc<str>>,
    /// HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// gRPC status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<i32>,
    /// Why it was not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_sent_reason: Option<Arc<str>>,
    /// The connection's number within its source; `None` when none was opened or taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conn: Option<u64>,
    /// Whether the connection had carried a request before.
    pub conn_reused: bool,
    /// The stream's number on its connection; `None` in HTTP/1.1, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// The client's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_port: Option<u16>,
    /// The address that was connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_addr: Option<Arc<str>>,
    /// The address that the kernel sent the connection to, after it translated `remote_addr`; `None`
    /// where the kernel was not asked or has no entry for the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_to: Option<SocketAddr>,
    /// Bytes written for this request.
    pub bytes_sent: u64,
    /// Bytes read for this request, head and body.
    pub bytes_received: u64,
    /// What names the pod that answered: the value of the chosen response header, `rolldrop-pod` as a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// Chosen headers of the response, as a JSON object; only of a request that is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<Arc<str>>,
    /// Attempts made; 1 unless retries are modelled.
    pub attempts: u32,
    /// What a retrying client saw in the end; equals `outcome` without retries.
    pub final_outcome: Outcome,
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

/// How a proxied request ended, seen from the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServedEnd {
    /// The whole response was passed on.
    Complete,
    /// The client closed or reset first.
    ClientGone,
    /// The app's listener refused the connection.
    UpstreamRefused,
    /// The app reset the connection.
    UpstreamReset,
    /// The app closed the connection before the response was complete.
    UpstreamEof,
    /// The proxy ended first.
    Cancelled,
    /// The proxy had no descriptor, port or memory left to connect to the app with.
    ProxyExhausted,
}

impl ServedEnd {
    /// Every end.
    pub const ALL: &'static [ServedEnd] = &[
        ServedEnd::Complete,
        ServedEnd::ClientGone,
        ServedEnd::UpstreamRefused,
        ServedEnd::UpstreamReset,
        ServedEnd::UpstreamEof,
        ServedEnd::Cancelled,
        ServedEnd::ProxyExhausted,
    ];

    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            ServedEnd::Complete => "complete",
            ServedEnd::ClientGone => "client_gone",
            ServedEnd::UpstreamRefused => "upstream_refused",
            ServedEnd::UpstreamReset => "upstream_reset",
            ServedEnd::UpstreamEof => "upstream_eof",
            ServedEnd::Cancelled => "cancelled",
            ServedEnd::ProxyExhausted => "proxy_exhausted",
        }
    }
}

/// A name that is no [`ServedEnd`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown end {0:?} of a served request")]
pub struct UnknownServedEnd(String);

impl FromStr for ServedEnd {
    type Err = UnknownServedEnd;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        ServedEnd::ALL
            .iter()
            .copied()
            .find(|end| end.as_str() == s)
            .ok_or_else(|| UnknownServedEnd(s.to_owned()))
    }
}

/// What a client connection of a proxy carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    Http2,
    /// TLS, which the app ends: the row is a connection's.
    Tls,
    /// Bytes that were not parsed: the row is a connection's.
    Tcp,
}

impl Protocol {
    const ALL: [Protocol; 4] = [Protocol::Http1, Protocol::Http2, Protocol::Tls, Protocol::Tcp];

    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Http1 => "http1",
            Protocol::Http2 => "http2",
            Protocol::Tls => "tls",
            Protocol::Tcp => "tcp",
        }
    }
}

/// A name that is no [`Protocol`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown protocol {0:?} of a served request")]
pub struct UnknownProtocol(String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let found = Protocol::ALL.into_iter().find(|protocol| protocol.as_str() == s);
        found.ok_or_else(|| UnknownProtocol(s.to_owned()))
    }
}

/// A request as a proxy saw it, or a connection whose requests it cannot see: the
/// columns of `served/*.parquet`.
///
/// All stamps are on the clock of `source`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedRow {
    /// The proxy, named like its pod.
    pub source: Arc<str>,
    /// The request's id, where the client sent one.
    pub request: Option<RequestId>,
    /// The proxy's pod.
    pub pod: Arc<str>,
    /// The client's address and port; empty where the proxy did not say it, as its admin port had no token.
    pub peer_addr: Arc<str>,
    /// What the connection carries.
    pub protocol: Protocol,
    /// When the client's connection was accepted.
    pub accepted: Stamp,
    /// When the request head had been read; `None` if the row is a connection's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Stamp>,
    /// When the request or connection ended, however it ended.
    pub end: Stamp,
    /// The app's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The app's gRPC status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<i32>,
    /// How it ended.
    pub ended: ServedEnd,
    /// What HTTP/2 said behind the end: the code of a RST_STREAM or GOAWAY.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Arc<str>>,
    /// The client connection's number within this proxy.
    pub conn: u64,
    /// Whether this was the connection's first request.
    pub conn_first_request: bool,
    /// The stream's number on its connection; `None` where the protocol has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// Bytes that came from the client, if the row is a connection's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_from_client: Option<u64>,
    /// Bytes that came from the app, if the row is a connection's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_from_app: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tls_session_reads_back() {
        for session in TlsSession::ALL {
            assert_eq!(session.as_str().parse(), Ok(session));
            assert_eq!(serde_json::to_string(&session).unwrap(), format!("\"{}\"", session.as_str()));
        }
    }

    #[test]
    fn every_protocol_reads_back() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.as_str().parse(), Ok(protocol));
        }
    }

    #[test]
    fn every_end_reads_back() {
        for &end in ServedEnd::ALL {
            assert_eq!(end.as_str().parse(), Ok(end));
        }
    }
}
