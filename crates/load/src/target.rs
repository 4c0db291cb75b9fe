//! A target that requests can be sent to, as a plan has checked it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Method};
use tokio_rustls::rustls::pki_types::ServerName;

use super::grpc;
use super::template::Piece;
use rolldrop_record::load::Http;
use rolldrop_record::retry::is_idempotency_key;

/// A target whose URL has been parsed.
#[derive(Clone, Debug)]
pub(super) struct PlannedTarget {
    /// Name in the rows.
    pub(super) name: Arc<str>,
    /// Host to resolve: a name or an address, without brackets.
    pub(super) host: String,
    /// Port to connect to.
    pub(super) port: u16,
    /// Name to ask for and to expect in TLS; `None` without TLS.
    pub(super) tls_name: Option<ServerName<'static>>,
    /// Value of the Host header.
    pub(super) authority: String,
    /// HTTP version of its requests.
    pub(super) http: Http,
    /// Settings for gRPC; `None` for plain HTTP.
    pub(super) grpc: Option<grpc::Call>,
    /// Whole URL, for records.
    pub(super) url: String,
    /// Path and query, as they are sent.
    pub(super) path: Vec<Piece>,
    /// Method of its requests.
    pub(super) method: Method,
    /// Headers, except those that the generator writes itself.
    pub(super) headers: Vec<(HeaderName, Vec<Piece>)>,
    /// Body of its requests.
    pub(super) body: Text,
    /// True if the body is a WebSocket message, which must come back.
    pub(super) is_websocket: bool,
}

/// A body.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// The same in every request.
    Fixed(Bytes),
    /// Made anew for each.
    Made(Vec<Piece>),
}

impl PlannedTarget {
    /// Returns true if its requests declare that they may be sent twice, whatever their method.
    pub(super) fn has_idempotency_key(&self) -> bool {
        self.headers.iter().any(|(name, _)| is_idempotency_key(name.as_str()))
    }
}
