//! One HTTP/2 connection, and the requests that share it.
//!
//! The request that opens the connection connects, and the others learn the result. A task reads and writes for all of
//! them as long as a request or the pool holds the link. If TLS chose HTTP/1.1, one request after the other has the
//! connection for itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::wire::{Shared, Watched};
use crate::carry::connect;
use crate::connection::Connection;
use crate::context::{Context, Endpoint};
use crate::failure::{Failure, Result};
use rolldrop_record::load::Http;
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// Flow-control window of one stream, in bytes: the amount that a peer may send ahead on it,
const STREAM_WINDOW: u32 = 1 << 20;
/// and window of all streams of a connection together.
const CONNECTION_WINDOW: u32 = 1 << 24;
/// Maximum size of an answer's header list in bytes; the same as for HTTP/1.1.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// A connection, from the moment that a request needs it.
pub(super) struct Link {
    /// Number within its source.
    pub(super) id: u64,
    /// Facts about the bytes that pass over it.
    pub(super) wire: Shared,
    /// Pod that the last answer on it named.
    pod: Mutex<Option<Arc<str>>>,
    /// Result of connecting, once there is one.
    ending: SetOnce<Result<Up, Fault>>,
    /// Token by which the pool counts the connections that carry one request each.
    _counted: Option<Arc<()>>,
}

/// An established connection.
struct Up {
    /// Time when it was established.
    since: Stamp,
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
    protocol: Protocol,
}

enum Protocol {
    Http2 {
        /// Takes requests.
        requests: SendRequest<Bytes>,
        /// Reads and writes for all streams.
        _driver: AbortOnDropHandle<()>,
    },
    /// The connection, while no request uses it and it can carry another.
    Http1(Mutex<Option<Connection>>),
}

/// A request's place on a connection that may speak HTTP/2.
pub(super) enum Place {
    /// The request opens it.
    Opener,
    /// The request shares it.
    Stream,
    /// The request has it for itself: it speaks HTTP/1.1.
    Idle(Connection),
}

/// Stream or connection that a request is sent over.
pub(super) enum Spoken<'a> {
    /// A stream of its own.
    Http2(&'a SendRequest<Bytes>),
    /// The connection itself, which speaks HTTP/1.1.
    Http1(Connection),
}

/// Failure to connect, for the requests that waited for the connection.
struct Fault {
    failure: Failure,
    not_sent_reason: Option<Arc<str>>,
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It takes streams: at most this many at a time; `None` if the peer has given no limit.
    Up(Option<u32>),
    /// It is being opened.
    Connecting,
    /// It takes no new stream.
    Over,
}

impl Link {
    /// Creates a connection that is not being opened yet.
    pub(super) fn new(id: u64, counted: Option<Arc<()>>) -> Arc<Self> {
        let (wire, pod, ending) = (Shared::new(), Mutex::default(), SetOnce::new());
        Arc::new(Self { id, wire, pod, ending, _counted: counted })
    }

    /// Returns the pod that the last answer on it named, to be replaced by the next.
    pub(super) fn last_pod(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.pod.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its current state.
    pub(super) fn standing(&self) -> Standing {
        match self.ending.get() {
            None => Standing::Connecting,
            Some(Err(_)) => Standing::Over,
            Some(Ok(Up { protocol: Protocol::Http1(_), .. })) => Standing::Up(Some(1)),
            Some(Ok(Up { protocol: Protocol::Http2 { .. }, .. })) => {
                let wire = self.wire.get();
                let is_over = wire.is_over || wire.goaway.is_some() || wire.read_end.is_some();
                if is_over { Standing::Over } else { Standing::Up(wire.max_streams) }
            }
        }
    }

    /// Returns the time when it was established; `None` before that, or if connecting failed.
    pub(super) fn since(&self) -> Option<Stamp> {
        self.ending.get()?.as_ref().ok().map(|up| up.since)
    }

    fn idle(&self) -> Option<MutexGuard<'_, Option<Connection>>> {
        match &self.ending.get()?.as_ref().ok()?.protocol {
            Protocol::Http1(idle) => Some(idle.lock().unwrap_or_else(PoisonError::into_inner)),
            Protocol::Http2 { .. } => None,
        }
    }

    /// Returns true if it speaks HTTP/1.1 and has no idle connection; if no request uses one either, it never will.
    pub(super) fn is_spent(&self) -> bool {
        self.idle().is_some_and(|idle| idle.is_none())
    }

    /// Returns a place on it for one more request, which its standing allows; `None` if the connection has ended since.
    pub(super) fn place(&self) -> Option<Place> {
        let Some(mut idle) = self.idle() else { return Some(Place::Stream) };
        let mut connection = idle.take()?;
        connection.is_idle().then_some(Place::Idle(connection))
    }

    /// Keeps the connection that a request had for itself, for another request.
    pub(super) fn keep(&self, connection: Connection) {
        if let Some(mut idle) = self.idle() {
            *idle = Some(connection);
        }
    }

    /// Opens the connection. To be called once, by the request that needed it first.
    ///
    /// # Errors
    /// Returns an error if there is no connection.
    pub(super) async fn open(
        &self,
        context: &Context,
        endpoint: &Endpoint,
        row: &mut RequestRow,
    ) -> Result<Spoken<'_>> {
        let mut own = None;
        let protocol = match connect(context, endpoint, self.id, row).await {
            Ok(connection) => {
                let is_http2 = connection.speaks_http2(endpoint.http);
                let since = connection.since;
                let protocol = match endpoint.http {
                    _ if is_http2 => self.begin(connection).await,
                    Http::Http2 => {
                        Err(Failure::with_detail(Outcome::TlsError, "h2 was not agreed on (ALPN)"))
                    }
                    Http::Auto | Http::Http1 => {
                        own = Some(connection);
                        Ok(Protocol::Http1(Mutex::default()))
                    }
                };
                protocol.map(|protocol| (since, protocol))
            }
            Err(failure) => Err(failure),
        };
        let (local_port, remote) = (row.local_port, row.remote_addr.clone());
        // Nobody else sets it: no other request opens the connection.
        let _ = self.ending.set(match protocol {
            Ok((since, protocol)) => Ok(Up { since, local_port, remote, protocol }),
            Err(failure) => {
                let not_sent_reason = row.not_sent_reason.clone();
                Err(Fault { failure, not_sent_reason, local_port, remote })
            }
        });
        match own {
            Some(connection) => Ok(Spoken::Http1(connection)),
            None => self.requests().await.map(Spoken::Http2),
        }
    }

    /// Waits until another request has opened the connection.
    ///
    /// # Errors
    /// Returns an error if there is no connection.
    pub(super) async fn join(&self, row: &mut RequestRow) -> Result<&SendRequest<Bytes>> {
        let (local_port, remote) = match self.ending.wait().await {
            Ok(up) => (up.local_port, &up.remote),
            Err(fault) => {
                row.not_sent_reason = fault.not_sent_reason.clone();
                (fault.local_port, &fault.remote)
            }
        };
        row.local_port = local_port;
        row.remote_addr = remote.clone();
        self.requests().await
    }

    async fn requests(&self) -> Result<&SendRequest<Bytes>> {
        match self.ending.wait().await {
            Ok(Up { protocol: Protocol::Http2 { requests, .. }, .. }) => Ok(requests),
            Ok(Up { protocol: Protocol::Http1(_), .. }) => unreachable!("nobody waits to share it"),
            Err(fault) => Err(fault.failure.clone()),
        }
    }

    async fn begin(&self, connection: Connection) -> Result<Protocol> {
        let transport = Watched::new(connection.into_stream(), self.wire.clone());
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            // Only the first stream is opened until the peer has sent its limit.
            .initial_max_send_streams(1)
            // A server that breaks the protocol on one stream after another must be measured, not cut off.
            .max_local_error_reset_streams(None)
            // The same holds for a server that sends its bodies in small frames.
            .data_frame_budget(usize::MAX)
            .enable_push(false)
            .handshake(transport)
            .await;
        let (requests, connection) =
            handshake.map_err(|_| Failure::new(Outcome::ResetBeforeResponse, None))?;
        let wire = self.wire.clone();
        let driver = tokio::spawn(async move {
            // The wire has recorded the cause of the end, and each stream gets the error.
            let _ = connection.await;
            wire.get().is_over = true;
        });
        Ok(Protocol::Http2 { requests, _driver: AbortOnDropHandle::new(driver) })
    }
}
