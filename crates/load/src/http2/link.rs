//! One HTTP/2 connection, and the requests that share it.
//!
//! The request that opens it connects, and the others learn the result. A task reads and writes for all of them, for as
//! long as a request or the pool holds the link. If TLS chose HTTP/1.1, one request after the other has the connection
//! for itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::wire::{Shared, Watched};
use crate::carry::connect;
use crate::connection::Connection;
use crate::context::{Context, Endpoint};
use crate::failure::Failure;
use rolldrop_record::load::Http;
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// What a peer may send ahead on one stream,
const STREAM_WINDOW: u32 = 1 << 20;
/// and on all streams of a connection.
const CONNECTION_WINDOW: u32 = 1 << 24;
/// The most bytes of an answer's header list; as for HTTP/1.1.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// A connection, from the moment that a request needs it.
pub(super) struct Link {
    /// Its number within its source.
    pub(super) id: u64,
    /// What passes over it.
    pub(super) wire: Shared,
    /// The pod that the last answer on it named.
    pod: Mutex<Option<Arc<str>>>,
    /// How connecting ended, once it has.
    ending: SetOnce<Result<Up, Fault>>,
    /// What counts the connections that carry one request each.
    _counted: Option<Arc<()>>,
}

/// A connection that stands.
struct Up {
    /// Since when.
    since: Stamp,
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
    protocol: Protocol,
}

enum Protocol {
    Http2 {
        /// Where requests are put in.
        requests: SendRequest<Bytes>,
        /// Reads and writes for all streams.
        _driver: AbortOnDropHandle<()>,
    },
    /// The connection, while no request has it and it can carry another.
    Http1(Mutex<Option<Connection>>),
}

/// What a request has of a connection that may speak HTTP/2.
pub(super) enum Place {
    /// The request opens it.
    Opener,
    /// The request shares it.
    Stream,
    /// The request has it for itself: HTTP/1.1 is spoken.
    Idle(Connection),
}

/// What a request is sent over.
pub(super) enum Spoken<'a> {
    /// A stream of its own.
    Http2(&'a SendRequest<Bytes>),
    /// The connection.
    Http1(Connection),
}

/// Why there is no connection, for the requests that waited for it.
struct Fault {
    failure: Failure,
    not_sent_reason: Option<Arc<str>>,
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It takes streams: at most so many at a time, if the peer has said how many.
    Up(Option<u32>),
    /// It is being opened.
    Connecting,
    /// It takes no new stream.
    Over,
}

impl Link {
    /// A connection that is not being opened yet.
    pub(super) fn new(id: u64, counted: Option<Arc<()>>) -> Arc<Self> {
        let (wire, pod, ending) = (Shared::new(), Mutex::default(), SetOnce::new());
        Arc::new(Self { id, wire, pod, ending, _counted: counted })
    }

    /// The pod that the last answer on it named, to be replaced by the next.
    pub(super) fn last_pod(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.pod.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is now.
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

    /// Since when it stands.
    pub(super) fn since(&self) -> Option<Stamp> {
        self.ending.get()?.as_ref().ok().map(|up| up.since)
    }

    fn idle(&self) -> Option<MutexGuard<'_, Option<Connection>>> {
        match &self.ending.get()?.as_ref().ok()?.protocol {
            Protocol::Http1(idle) => Some(idle.lock().unwrap_or_else(PoisonError::into_inner)),
            Protocol::Http2 { .. } => None,
        }
    }

    /// Whether it speaks HTTP/1.1 and has no connection; nor will it, if no request has it.
    pub(super) fn is_spent(&self) -> bool {
        self.idle().is_some_and(|idle| idle.is_none())
    }

    /// A place on it for one more request, which its standing allows; `None` where the
    /// connection has ended since.
    pub(super) fn place(&self) -> Option<Place> {
        let Some(mut idle) = self.idle() else { return Some(Place::Stream) };
        let mut connection = idle.take()?;
        connection.is_idle().then_some(Place::Idle(connection))
    }

    /// Keeps the connection that a request had for itself: it can carry another.
    pub(super) fn keep(&self, connection: Connection) {
        if let Some(mut idle) = self.idle() {
            *idle = Some(connection);
        }
    }

    /// Opens it. To be called once, by the request that wanted it first.
    ///
    /// # Errors
    /// When there is no connection.
    pub(super) async fn open(
        &self,
        context: &Context,
        endpoint: &Endpoint,
        row: &mut RequestRow,
    ) -> Result<Spoken<'_>, Failure> {
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
        // It is set once: no other request opens it.
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

    /// Waits until another request has opened it.
    ///
    /// # Errors
    /// When there is no connection.
    pub(super) async fn join(&self, row: &mut RequestRow) -> Result<&SendRequest<Bytes>, Failure> {
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

    async fn requests(&self) -> Result<&SendRequest<Bytes>, Failure> {
        match self.ending.wait().await {
            Ok(Up { protocol: Protocol::Http2 { requests, .. }, .. }) => Ok(requests),
            Ok(Up { protocol: Protocol::Http1(_), .. }) => unreachable!("nobody waits to share it"),
            Err(fault) => Err(fault.failure.clone()),
        }
    }

    async fn begin(&self, connection: Connection) -> Result<Protocol, Failure> {
        let transport = Watched::new(connection.into_stream(), self.wire.clone());
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            // Until the peer has said how many it takes, the first stream alone goes out.
            .initial_max_send_streams(1)
            // A server that breaks the protocol on one stream after another must be measured, not cut off.
            .max_local_error_reset_streams(None)
            // So must one that sends its bodies in small frames.
            .data_frame_budget(usize::MAX)
            .enable_push(false)
            .handshake(transport)
            .await;
        let (requests, connection) =
            handshake.map_err(|_| Failure::new(Outcome::ResetBeforeResponse, None))?;
        let wire = self.wire.clone();
        let driver = tokio::spawn(async move {
            // The wire has recorded what ended it, and each of its streams gets the error.
            let _ = connection.await;
            wire.get().is_over = true;
        });
        Ok(Protocol::Http2 { requests, _driver: AbortOnDropHandle::new(driver) })
    }
}
