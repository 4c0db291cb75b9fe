//! One HTTP/2 connection, and the requests that share it.
//!
//! The request that opens the connection connects, and the others wait for the result. A task reads and writes for all
//! of them, until neither a request nor the pool holds the link. If TLS negotiated HTTP/1.1, requests use the
//! connection exclusively, one after another.

use std::cell::{Cell, RefCell, RefMut};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use tokio::sync::SetOnce;
use tokio_util::task::AbortOnDropHandle;

use super::http2_session::Http2Session;
use super::session_io::SessionIo;
use crate::carry::connect;
use crate::connection::Connection;
use crate::exchange_context::{ExchangeContext, TargetEndpoint};
use crate::failure::{ExchangeFailure, Result};
use crate::socket_transport::SocketTransport;
use rolldrop_record::load::Http;
use rolldrop_record::{Clock, Outcome, RequestRow, Stamp};

/// The state of a connection, shared by the exchanges on it and the task that reads and writes.
pub(super) struct SharedSession {
    state: RefCell<Http2Session>,
    /// Waker of the task; `None` while it is due to run, and before it has run.
    driver: Cell<Option<Waker>>,
}

impl SharedSession {
    /// Borrows the state. Do not hold it across an await.
    pub(super) fn get(&self) -> RefMut<'_, Http2Session> {
        self.state.borrow_mut()
    }

    /// Wakes the task, which writes the pending bytes once the other tasks that are ready have run.
    pub(super) fn wake_driver(&self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Reads and writes until the connection has ended.
    async fn drive(self: Rc<Self>, mut io: SessionIo<SocketTransport>) {
        poll_fn(|context| {
            let polled = io.poll(context, &mut self.get());
            self.driver.set(polled.is_pending().then(|| context.waker().clone()));
            polled
        })
        .await;
    }
}

/// A connection, from the moment a request needs it.
pub(super) struct Http2Link {
    /// Number of the connection within its source.
    pub(super) id: u64,
    /// State of the connection, if it speaks HTTP/2.
    pub(super) session: Rc<SharedSession>,
    /// Pod named by the last response on this connection.
    pod: RefCell<Option<Arc<str>>>,
    /// Result of connecting; unset while connecting.
    ending: SetOnce<ConnectResult>,
    /// Token by which the pool counts the connections that carry only one request each.
    _counted: Option<Rc<()>>,
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
        /// Task that reads and writes for all streams.
        _driver: AbortOnDropHandle<()>,
    },
    /// The connection; `None` while a request uses it and once it cannot carry another.
    Http1(RefCell<Option<Connection>>),
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
pub(super) enum Spoken {
    /// A stream of an HTTP/2 connection.
    Http2,
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
    /// Creates a link that is not being opened yet. It will carry at most this many streams at a time.
    pub(super) fn new(id: u64, wanted_streams: usize, counted: Option<Rc<()>>) -> Rc<Self> {
        let state = RefCell::new(Http2Session::new(wanted_streams));
        let session = SharedSession { state, driver: Cell::default() };
        let (pod, ending) = (RefCell::default(), SetOnce::new());
        Rc::new(Self { id, session: Rc::new(session), pod, ending, _counted: counted })
    }

    /// Returns the pod that the last response on this connection named; the caller replaces it with the next one.
    pub(super) fn last_pod(&self) -> RefMut<'_, Option<Arc<str>>> {
        self.pod.borrow_mut()
    }

    pub(super) fn standing(&self) -> LinkState {
        match self.ending.get().map(|ending| &ending.up) {
            None => LinkState::Connecting,
            Some(Err(_)) => LinkState::Over,
            Some(Ok((_, LinkProtocol::Http1(_)))) => LinkState::Up(Some(1)),
            Some(Ok((_, LinkProtocol::Http2 { .. }))) => {
                let session = self.session.get();
                if session.is_over() { LinkState::Over } else { LinkState::Up(session.max_streams) }
            }
        }
    }

    /// Returns the time the connection was established; `None` before that, or if connecting failed.
    pub(super) fn since(&self) -> Option<Stamp> {
        self.ending.get()?.up.as_ref().ok().map(|(since, _)| *since)
    }

    fn idle(&self) -> Option<RefMut<'_, Option<Connection>>> {
        match &self.ending.get()?.up.as_ref().ok()?.1 {
            LinkProtocol::Http1(idle) => Some(idle.borrow_mut()),
            LinkProtocol::Http2 { .. } => None,
        }
    }

    /// Returns true if the connection speaks HTTP/2, as far as is known.
    pub(super) fn may_speak_http2(&self) -> bool {
        self.idle().is_none()
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
    ) -> Result<Spoken> {
        let mut own = None;
        let up = match connect(context, endpoint, self.id, row).await {
            Ok(connection) => {
                let is_http2 = connection.speaks_http2(endpoint.http);
                let since = connection.since;
                let protocol = match endpoint.http {
                    _ if is_http2 => Ok(self.begin(connection, context.clock)),
                    Http::Http2 => {
                        Err(ExchangeFailure::with_detail(Outcome::TlsError, "h2 was not negotiated (ALPN)"))
                    }
                    Http::Auto | Http::Http1 => {
                        own = Some(connection);
                        Ok(LinkProtocol::Http1(RefCell::default()))
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
            None => self.stands().await.map(|()| Spoken::Http2),
        }
    }

    /// Waits for the request that is opening the connection.
    ///
    /// # Errors
    /// Returns an error if the connection could not be opened.
    pub(super) async fn join(&self, row: &mut RequestRow) -> Result<()> {
        let connected = self.ending.wait().await;
        row.local_port = connected.local_port;
        row.remote_addr = connected.remote.clone();
        row.not_sent_reason = connected.not_sent_reason.clone();
        self.stands().await
    }

    async fn stands(&self) -> Result<()> {
        match &self.ending.wait().await.up {
            Ok((_, LinkProtocol::Http2 { .. })) => Ok(()),
            Ok((_, LinkProtocol::Http1(_))) => unreachable!("no request waits to share it"),
            Err(failure) => Err(failure.clone()),
        }
    }

    fn begin(&self, connection: Connection, clock: Clock) -> LinkProtocol {
        let io = SessionIo::new(connection.into_transport(), clock);
        let driver = tokio::task::spawn_local(Rc::clone(&self.session).drive(io));
        LinkProtocol::Http2 { _driver: AbortOnDropHandle::new(driver) }
    }
}
