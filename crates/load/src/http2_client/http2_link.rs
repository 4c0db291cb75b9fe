//! One HTTP/2 connection, and the requests that share it.
//!
//! The request that opens the connection connects, and the others wait for the result. A task reads and writes for all
//! of them, until neither a request nor the pool holds the link. If TLS negotiated HTTP/1.1, requests use the
//! connection exclusively, one after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::observed_wire::{ObservedTransport, SharedWire};
use crate::carry::connect;
use crate::connection::Connection;
use crate::exchange_context::{ExchangeContext, TargetEndpoint};
use crate::failure::{ExchangeFailure, Result};
use rolldrop_record::load::Http;
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// Flow-control window of one stream, in bytes: the amount that a peer may send ahead on it.
const STREAM_WINDOW: u32 = 1 << 20;
/// Flow-control window for all streams of a connection together, in bytes.
const CONNECTION_WINDOW: u32 = 1 << 24;
/// Maximum size of a response's header list in bytes; the same as for HTTP/1.1.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// A connection, from the moment a request needs it.
pub(super) struct Http2Link {
    /// Number of the connection within its source.
    pub(super) id: u64,
    /// Facts observed on the connection's wire.
    pub(super) wire: SharedWire,
    /// Pod named by the last response on this connection.
    pod: Mutex<Option<Arc<str>>>,
    /// Result of connecting; unset while connecting.
    ending: SetOnce<ConnectResult>,
    /// Token by which the pool counts the connections that carry only one request each.
    _counted: Option<Arc<()>>,
}

/// Result of connecting, with the facts for the rows of the requests that waited for it.
struct ConnectResult {
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
    not_sent_reason: Option<Arc<str>>,
    /// Time the connection was established, and its protocol.
    up: Result<(Stamp, LinkProtocol)>,
}

enum LinkProtocol {
    Http2 {
        /// Handle that accepts requests.
        requests: SendRequest<Bytes>,
        /// Task that reads and writes for all streams.
        _driver: AbortOnDropHandle<()>,
    },
    /// The connection; `None` while a request uses it and once it cannot carry another.
    Http1(Mutex<Option<Connection>>),
}

/// A request's place on a connection that may speak HTTP/2.
pub(super) enum LinkPlace {
    /// The request opens the connection.
    Opener,
    /// The request shares the connection.
    Stream,
    /// The request has the connection to itself, because the connection speaks HTTP/1.1.
    Idle(Connection),
}

/// Stream or connection on which a request is sent.
pub(super) enum Spoken<'a> {
    /// A stream of an HTTP/2 connection.
    Http2(&'a SendRequest<Bytes>),
    /// An HTTP/1.1 connection, used exclusively.
    Http1(Connection),
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkState {
    /// The connection accepts streams, up to this many at a time; `None` if the peer has sent no limit.
    Up(Option<u32>),
    /// The connection is being opened.
    Connecting,
    /// The connection accepts no more streams.
    Over,
}

impl Http2Link {
    /// Creates a link that is not being opened yet.
    pub(super) fn new(id: u64, counted: Option<Arc<()>>) -> Arc<Self> {
        let (wire, pod, ending) = (SharedWire::new(), Mutex::default(), SetOnce::new());
        Arc::new(Self { id, wire, pod, ending, _counted: counted })
    }

    /// Returns the pod that the last response on this connection named; the caller replaces it with the next one.
    pub(super) fn last_pod(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.pod.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn standing(&self) -> LinkState {
        match self.ending.get().map(|ending| &ending.up) {
            None => LinkState::Connecting,
            Some(Err(_)) => LinkState::Over,
            Some(Ok((_, LinkProtocol::Http1(_)))) => LinkState::Up(Some(1)),
            Some(Ok((_, LinkProtocol::Http2 { .. }))) => {
                let wire = self.wire.get();
                let is_over = wire.is_over || wire.goaway.is_some() || wire.read_end.is_some();
                if is_over { LinkState::Over } else { LinkState::Up(wire.max_streams) }
            }
        }
    }

    /// Returns the time the connection was established; `None` before that, or if connecting failed.
    pub(super) fn since(&self) -> Option<Stamp> {
        self.ending.get()?.up.as_ref().ok().map(|(since, _)| *since)
    }

    fn idle(&self) -> Option<MutexGuard<'_, Option<Connection>>> {
        match &self.ending.get()?.up.as_ref().ok()?.1 {
            LinkProtocol::Http1(idle) => Some(idle.lock().unwrap_or_else(PoisonError::into_inner)),
            LinkProtocol::Http2 { .. } => None,
        }
    }

    /// Returns true if the connection speaks HTTP/1.1 and is not idle; if no request uses it either, it will never be
    /// idle again.
    pub(super) fn is_spent(&self) -> bool {
        self.idle().is_some_and(|idle| idle.is_none())
    }

    /// Returns a place for one more request, which the link's state must allow; `None` if the connection has ended in
    /// the meantime.
    pub(super) fn place(&self) -> Option<LinkPlace> {
        let Some(mut idle) = self.idle() else { return Some(LinkPlace::Stream) };
        let mut connection = idle.take()?;
        connection.is_idle().then_some(LinkPlace::Idle(connection))
    }

    /// Puts back a connection that a request used exclusively, for the next request.
    pub(super) fn keep(&self, connection: Connection) {
        if let Some(mut idle) = self.idle() {
            *idle = Some(connection);
        }
    }

    /// Opens the connection. Must be called exactly once, by the request that first needs the connection.
    ///
    /// # Errors
    /// Returns an error if the connection cannot be opened.
    pub(super) async fn open(
        &self,
        context: &ExchangeContext,
        endpoint: &TargetEndpoint,
        row: &mut RequestRow,
    ) -> Result<Spoken<'_>> {
        let mut own = None;
        let up = match connect(context, endpoint, self.id, row).await {
            Ok(connection) => {
                let is_http2 = connection.speaks_http2(endpoint.http);
                let since = connection.since;
                let protocol = match endpoint.http {
                    _ if is_http2 => self.begin(connection).await,
                    Http::Http2 => {
                        Err(ExchangeFailure::with_detail(Outcome::TlsError, "h2 was not agreed on (ALPN)"))
                    }
                    Http::Auto | Http::Http1 => {
                        own = Some(connection);
                        Ok(LinkProtocol::Http1(Mutex::default()))
                    }
                };
                protocol.map(|protocol| (since, protocol))
            }
            Err(failure) => Err(failure),
        };
        let (local_port, remote) = (row.local_port, row.remote_addr.clone());
        let not_sent_reason = row.not_sent_reason.clone();
        // Only the opening request sets this.
        let _ = self.ending.set(ConnectResult { local_port, remote, not_sent_reason, up });
        match own {
            Some(connection) => Ok(Spoken::Http1(connection)),
            None => self.requests().await.map(Spoken::Http2),
        }
    }

    /// Waits for the request that is opening the connection.
    ///
    /// # Errors
    /// Returns an error if the connection could not be opened.
    pub(super) async fn join(&self, row: &mut RequestRow) -> Result<&SendRequest<Bytes>> {
        let connected = self.ending.wait().await;
        row.local_port = connected.local_port;
        row.remote_addr = connected.remote.clone();
        row.not_sent_reason = connected.not_sent_reason.clone();
        self.requests().await
    }

    async fn requests(&self) -> Result<&SendRequest<Bytes>> {
        match &self.ending.wait().await.up {
            Ok((_, LinkProtocol::Http2 { requests, .. })) => Ok(requests),
            Ok((_, LinkProtocol::Http1(_))) => unreachable!("no request waits to share it"),
            Err(failure) => Err(failure.clone()),
        }
    }

    async fn begin(&self, connection: Connection) -> Result<LinkProtocol> {
        let transport = ObservedTransport::new(connection.into_transport(), self.wire.clone());
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            // Only one stream is opened until the peer has sent its limit.
            .initial_max_send_streams(1)
            // A server that violates the protocol on one stream after another must be measured, not disconnected.
            .max_local_error_reset_streams(None)
            // Likewise for a server that sends its bodies in small frames.
            .data_frame_budget(usize::MAX)
            .enable_push(false)
            .handshake(transport)
            .await;
        let (requests, connection) =
            handshake.map_err(|_| ExchangeFailure::new(Outcome::ResetBeforeResponse, None))?;
        let wire = self.wire.clone();
        let driver = tokio::spawn(async move {
            // The wire has recorded why the connection ended, and each stream gets the error.
            let _ = connection.await;
            wire.get().is_over = true;
        });
        Ok(LinkProtocol::Http2 { requests, _driver: AbortOnDropHandle::new(driver) })
    }
}
