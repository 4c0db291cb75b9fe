//! A validated target that requests can be sent to.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Method};
use tokio_rustls::rustls::pki_types::ServerName;

use super::grpc;
use super::placeholders::TemplatePiece;
use rolldrop_record::load::Http;
use rolldrop_record::retry::is_idempotency_key;

/// A target with a parsed URL.
#[derive(Clone, Debug)]
pub(super) struct PlannedTarget {
    /// Name used in the rows.
    pub(super) name: Arc<str>,
    /// Host to resolve: a name or an address, without brackets.
    pub(super) host: String,
    /// Port to connect to.
    pub(super) port: u16,
    /// Server name to request and to verify in TLS; `None` without TLS.
    pub(super) tls_name: Option<ServerName<'static>>,
    /// Value of the Host header.
    pub(super) authority: String,
    /// HTTP version of the target's requests.
    pub(super) http: Http,
    /// Settings for gRPC; `None` for plain HTTP.
    pub(super) grpc: Option<grpc::GrpcCall>,
    /// Complete URL, for records.
    pub(super) url: String,
    /// Path and query to send.
    pub(super) path: Vec<TemplatePiece>,
    /// Method of the target's requests.
    pub(super) method: Method,
    /// Headers, except those that the generator itself writes.
    pub(super) headers: Vec<(HeaderName, Vec<TemplatePiece>)>,
    /// Body of the target's requests.
    pub(super) body: RequestBody,
    /// True if the body is a WebSocket message, which the server must echo.
    pub(super) is_websocket: bool,
}

/// Body of a request.
#[derive(Clone, Debug)]
pub(super) enum RequestBody {
    /// Body that is the same in every request.
    Fixed(Bytes),
    /// Body that is built anew for each request.
    Made(Vec<TemplatePiece>),
}

impl PlannedTarget {
    /// Returns true if the target's requests declare that they may be sent twice, regardless of their method.
    pub(super) fn has_idempotency_key(&self) -> bool {
        self.headers.iter().any(|(name, _)| is_idempotency_key(name.as_str()))
    }
}
