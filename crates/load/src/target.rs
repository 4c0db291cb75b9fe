//! A target that requests can be sent to, as a plan has checked it.

use std::sync::Arc;

use http::{HeaderName, Method};
use tokio_rustls::rustls::pki_types::ServerName;

use super::grpc;
use super::template::Piece;
use rolldrop_record::load::Http;

/// A target whose URL has been taken apart.
#[derive(Clone, Debug)]
pub(super) struct PlannedTarget {
    /// The name in the rows.
    pub(super) name: Arc<str>,
    /// The host to resolve: a name or an address, without brackets.
    pub(super) host: String,
    /// The port to connect to.
    pub(super) port: u16,
    /// The name to ask for and to expect in TLS; `None` without TLS.
    pub(super) tls_name: Option<ServerName<'static>>,
    /// The value of the Host header.
    pub(super) authority: String,
    /// Which HTTP its requests speak.
    pub(super) http: Http,
    /// What is special to gRPC.
    pub(super) grpc: Option<grpc::Call>,
    /// The whole URL, for records.
    pub(super) url: String,
    /// Path and query, as they are sent.
    pub(super) path: Vec<Piece>,
    /// The method.
    pub(super) method: Method,
    /// Headers, but for those that the generator writes itself.
    pub(super) headers: Vec<(HeaderName, Vec<Piece>)>,
    /// The body.
    pub(super) body: Text,
    /// Whether the body is a WebSocket message, which must come back.
    pub(super) is_websocket: bool,
}

/// A body.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// The same in every request.
    Fixed(Vec<u8>),
    /// Made anew for each.
    Made(Vec<Piece>),
}

impl PlannedTarget {
    /// Whether its requests say that they may be sent twice, whatever their method.
    pub(super) fn has_idempotency_key(&self) -> bool {
        let names = ["idempotency-key", "x-idempotency-key"];
        self.headers.iter().any(|(name, _)| names.contains(&name.as_str()))
    }
}
