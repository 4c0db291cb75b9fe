//! The requests that are under way on one connection, from head to row.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::Shared;
use super::head::{RequestHead, ResponseHead};
use crate::record::{RequestId, ServedEnd, ServedRow, Stamp};

/// What both directions of a connection know. Both run in one task, so the lock is never waited for.
pub(super) struct Exchange {
    shared: Arc<Shared>,
    peer: SocketAddr,
    accepted: Stamp,
    conn: u64,
    state: Mutex<State>,
    /// Told whenever a request is answered.
    settled: Notify,
}

#[derive(Default)]
struct State {
    /// Requests without a complete response, oldest first.
    waiting: VecDeque<Waiting>,
    /// Requests begun so far.
    begun: u64,
    client_closed: bool,
    app_closed: bool,
    app_unwritable: bool,
    protocol: Protocol,
}

struct Waiting {
    id: Option<RequestId>,
    head: Stamp,
    is_head: bool,
    is_first: bool,
    status: Option<u16>,
}

/// What the connection speaks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.
    #[default]
    Http,
    /// Something else, after a 101.
    Switched,
}

impl Protocol {
    /// Whether the connection has left HTTP.
    pub(super) fn is_switched(self) -> bool {
        self == Protocol::Switched
    }
}

impl Exchange {
    /// A connection without any request yet.
    pub(super) fn new(shared: Arc<Shared>, peer: SocketAddr, accepted: Stamp, conn: u64) -> Self {
        Self { shared, peer, accepted, conn, state: Mutex::default(), settled: Notify::new() }
    }

    /// What all connections share.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A request head was read.
    pub(super) fn begin(&self, head: &mut RequestHead) {
        self.shared.in_flight.begin();
        let now = self.shared.clock.now();
        let mut state = self.state();
        let is_first = state.begun == 0;
        state.begun += 1;
        state.waiting.push_back(Waiting {
            id: head.id.take(),
            head: now,
            is_head: head.is_head,
            is_first,
            status: None,
        });
    }

    /// Whether the next response answers a HEAD request.
    pub(super) fn is_next_to_head(&self) -> bool {
        self.state().waiting.front().is_some_and(|request| request.is_head)
    }

    /// A response head came that is not an interim one.
    pub(super) fn answered(&self, head: &ResponseHead) {
        let mut state = self.state();
        if let Some(request) = state.waiting.front_mut() {
            request.status = head.status;
        }
        if head.is_switch() {
            state.protocol = Protocol::Switched;
            self.settled.notify_one();
        }
    }

    /// The whole response has been passed on.
    pub(super) fn complete(&self) {
        let (request, end) = {
            let mut state = self.state();
            // Whoever closes while an answer is due has gone; in a tunnel either side may close first.
            let gone = state.client_closed && !state.protocol.is_switched();
            let end = if gone { ServedEnd::ClientGone } else { ServedEnd::Complete };
            (state.waiting.pop_front(), end)
        };
        // Without a request it was a server's parting word, such as a 408.
        if let Some(request) = request {
            self.record(request, end);
            self.settled.notify_one();
        }
    }

    /// Waits until every request is answered, or the connection has left HTTP.
    pub(super) async fn settled(&self) -> Protocol {
        loop {
            {
                let state = self.state();
                if state.waiting.is_empty() || state.protocol.is_switched() {
                    return state.protocol;
                }
            }
            self.settled.notified().await;
        }
    }

    /// The client closed its side; answers whether both sides have now.
    pub(super) fn client_closed(&self) -> bool {
        let app_closed = {
            let mut state = self.state();
            state.client_closed = true;
            state.app_closed
        };
        if app_closed {
            self.end_all(ServedEnd::UpstreamEof);
        }
        app_closed
    }

    /// Whether the client has closed its side.
    pub(super) fn is_client_closed(&self) -> bool {
        self.state().client_closed
    }

    /// The app closed its side: what is under way ends, and the answer says how.
    pub(super) fn app_closed(&self) -> ServedEnd {
        let end = {
            let mut state = self.state();
            state.app_closed = true;
            if state.client_closed { ServedEnd::ClientGone } else { ServedEnd::UpstreamEof }
        };
        self.end_all(end);
        end
    }

    /// The app takes no more bytes; answers whether it had closed its side before.
    pub(super) fn app_stopped_reading(&self) -> bool {
        let mut state = self.state();
        state.app_unwritable = true;
        state.app_closed
    }

    /// Whether the app takes no more bytes.
    pub(super) fn is_app_unwritable(&self) -> bool {
        self.state().app_unwritable
    }

    /// The proxy refuses what the client sent last; answers whether it can say so,
    /// which it cannot in the middle of a response.
    pub(super) fn refused(&self) -> bool {
        self.shared.journal.rejected();
        let answering = self.state().waiting.iter().any(|request| request.status.is_some());
        self.end_all(ServedEnd::Cancelled);
        !answering
    }

    /// Ends every request under way; answers whether there was one.
    pub(super) fn end_all(&self, end: ServedEnd) -> bool {
        let waiting = std::mem::take(&mut self.state().waiting);
        let any = !waiting.is_empty();
        for request in waiting {
            self.record(request, end);
        }
        any
    }

    fn record(&self, request: Waiting, ended: ServedEnd) {
        self.shared.journal.row(ServedRow {
            source: self.shared.pod.clone(),
            request: request.id,
            pod: self.shared.pod.clone(),
            peer_addr: self.peer.to_string(),
            accepted: self.accepted,
            head: Some(request.head),
            end: self.shared.clock.now(),
            status: request.status,
            ended,
            conn: self.conn,
            conn_first_request: request.is_first,
        });
        self.shared.in_flight.end();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
