//! One HTTP/2 connection, and the requests that share it.
//!
//! The request that opens it connects and tells the others how that went. A task reads and writes
//! for all of them, for as long as anybody holds the link.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::ALPN;
use super::wire::{Shared, Watched};
use crate::load::connection::Connection;
use crate::load::exchange::{Context, Endpoint, Failure, connect};
use crate::record::{Outcome, RequestRow, Stamp};

/// What a peer may send ahead on one stream,
const STREAM_WINDOW: u32 = 1 << 20;
/// and on all streams of a connection.
const CONNECTION_WINDOW: u32 = 1 << 24;
/// The most bytes of an answer's header list; as for HTTP/1.1.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// A connection, from the moment that somebody wants it.
pub(super) struct Link {
    /// Its number within its source.
    pub(super) id: u64,
    /// What passes over it.
    pub(super) wire: Shared,
    /// How connecting ended, once it has.
    ending: SetOnce<Result<Up, Fault>>,
    /// What counts the connections that carry one request each.
    _counted: Option<Arc<()>>,
}

/// A connection that stands.
pub(super) struct Up {
    /// Since when.
    pub(super) since: Stamp,
    /// Where requests are put in.
    pub(super) requests: SendRequest<Bytes>,
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
    /// Reads and writes for all streams.
    _driver: AbortOnDropHandle<()>,
}

/// Why there is no connection, for those who waited for it.
struct Fault {
    failure: Failure,
    not_sent_reason: Option<Arc<str>>,
    local_port: Option<u16>,
    remote: Option<Arc<str>>,
}

/// How a link is, for whoever looks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It takes so many streams at a time, as far as the peer has said.
    Up(Option<u32>),
    /// It is being opened.
    Connecting,
    /// It takes no new stream.
    Over,
}

impl Link {
    /// A connection that nobody has begun to open.
    pub(super) fn new(id: u64, counted: Option<Arc<()>>) -> Arc<Self> {
        Arc::new(Self { id, wire: Shared::new(), ending: SetOnce::new(), _counted: counted })
    }

    /// How it is now.
    pub(super) fn standing(&self) -> Standing {
        match self.ending.get() {
            None => Standing::Connecting,
            Some(Err(_)) => Standing::Over,
            Some(Ok(_)) => {
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

    /// Opens it. To be called once, by the request that wanted it first.
    ///
    /// # Errors
    /// When there is no connection.
    pub(super) async fn open(
        &self,
        context: &Context,
        endpoint: &Endpoint,
        row: &mut RequestRow,
    ) -> Result<&Up, Failure> {
        let ending = match connect(context, endpoint, self.id, row).await {
            Ok(connection) if endpoint.tls.is_some() && connection.alpn() != Some(ALPN) => {
                Err(Failure::with_detail(Outcome::TlsError, "h2 was not agreed on (ALPN)"))
            }
            Ok(connection) => self.begin(connection, row).await,
            Err(failure) => Err(failure),
        };
        // A second ending cannot come: nobody else opens it.
        let _ = self.ending.set(ending.map_err(|failure| Fault {
            failure,
            not_sent_reason: row.not_sent_reason.clone(),
            local_port: row.local_port,
            remote: row.remote_addr.clone(),
        }));
        self.ended().await
    }

    /// Waits until another request has opened it.
    ///
    /// # Errors
    /// When there is no connection.
    pub(super) async fn join(&self, row: &mut RequestRow) -> Result<&Up, Failure> {
        let (local_port, remote) = match self.ending.wait().await {
            Ok(up) => (up.local_port, &up.remote),
            Err(fault) => {
                row.not_sent_reason = fault.not_sent_reason.clone();
                (fault.local_port, &fault.remote)
            }
        };
        row.local_port = local_port;
        row.remote_addr = remote.clone();
        self.ended().await
    }

    async fn ended(&self) -> Result<&Up, Failure> {
        self.ending.wait().await.as_ref().map_err(|fault| fault.failure.clone())
    }

    async fn begin(&self, connection: Connection, row: &RequestRow) -> Result<Up, Failure> {
        let since = connection.since;
        let transport = Watched::new(connection.into_stream(), self.wire.clone());
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            // Until the peer has said how many it takes, the first stream alone goes out.
            .initial_max_send_streams(1)
            // A server that breaks the protocol on one stream after another is to be measured.
            .max_local_error_reset_streams(None)
            .enable_push(false)
            .handshake(transport)
            .await;
        let (requests, connection) =
            handshake.map_err(|_| Failure::new(Outcome::ResetBeforeResponse, None))?;
        let wire = self.wire.clone();
        let driver = tokio::spawn(async move {
            // What ended it is on the wire, and told to each of its streams.
            let _ = connection.await;
            wire.get().is_over = true;
        });
        Ok(Up {
            since,
            requests,
            local_port: row.local_port,
            remote: row.remote_addr.clone(),
            _driver: AbortOnDropHandle::new(driver),
        })
    }
}
