//! Tracks the requests in flight on one connection, from reading their heads to recording their rows.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::ProxyState;
use super::super::origin::RowOrigin;
use super::super::relay::Ledger;
use super::head::{RequestHead, ResponseHead};
use rolldrop_record::{self as record, RequestId, ServedEnd, ServedRow, Stamp};
use rolldrop_wire::http1::Body;

/// Capacity, in requests, that a connection keeps when none is in flight.
const KEPT_PLACES: usize = 16;

/// State shared by both directions of a connection. Both run in one task, so the lock is never contended.
pub(in super::super) struct RequestsInFlight {
    origin: Arc<RowOrigin>,
    state: Mutex<InFlightState>,
    /// Notified whenever a response is complete.
    settled: Notify,
}

#[derive(Default)]
struct InFlightState {
    /// Requests without a complete response, oldest first.
    waiting: VecDeque<UnansweredRequest>,
    /// Requests begun so far.
    begun: u64,
    protocol: SpokenProtocol,
}

#[derive(Clone)]
struct UnansweredRequest {
    id: Option<RequestId>,
    head: Stamp,
    is_head: bool,
    is_first: bool,
    status: Option<u16>,
}

/// Protocol that the connection speaks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SpokenProtocol {
    /// HTTP/1.
    #[default]
    Http,
    /// HTTP/1 with a response whose end cannot be determined. From that response on, the app's bytes are passed on
    /// unread.
    Unread,
    /// Something else, after a 101.
    Switched,
}

impl RequestsInFlight {
    /// Returns the state of a new connection.
    pub(in super::super) fn new(origin: Arc<RowOrigin>) -> Self {
        Self { origin, state: Mutex::default(), settled: Notify::new() }
    }

    /// Returns the fields shared by the connection's rows.
    pub(super) fn origin(&self) -> &RowOrigin {
        &self.origin
    }

    /// Notes that a request head was read.
    pub(super) fn begin(&self, head: &mut RequestHead) {
        self.origin.begin();
        let now = self.origin.shared.clock.now();
        let mut state = self.state();
        if state.protocol == SpokenProtocol::Unread {
            // The proxy could not determine where a response ended, although the client has, so it cannot match later
            // responses with requests.
            drop(state);
            self.forget_all();
            return self.origin.forget();
        }
        let is_first = state.begun == 0;
        state.begun += 1;
        state.waiting.push_back(UnansweredRequest {
            id: head.id.take(),
            head: now,
            is_head: head.is_head,
            is_first,
            status: None,
        });
    }

    /// Waits until one more request may be in flight on this connection. One request is always allowed.
    pub(super) async fn has_room(&self) {
        self.end_unanswerable();
        while !self.takes_one_more() {
            self.settled.notified().await;
            if self.protocol() == SpokenProtocol::Unread {
                self.forget_all();
            }
        }
    }

    pub(super) fn protocol(&self) -> SpokenProtocol {
        self.state().protocol
    }

    /// Notes that the end of the current response cannot be determined, unless the app closes after it.
    pub(super) fn mark_unread(&self) {
        let mut state = self.state();
        if state.protocol == SpokenProtocol::Http {
            state.protocol = SpokenProtocol::Unread;
            self.settled.notify_one();
        }
    }

    /// Drops all waiting requests, because their ends will not be seen.
    fn forget_all(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.iter().for_each(|_| self.origin.forget());
    }

    /// Ends the waiting requests if the app has closed its side, because the app can no longer respond to them.
    fn end_unanswerable(&self) {
        if self.origin.sides.is_app_closed() {
            self.end_all(ServedEnd::UpstreamEof);
        }
    }

    fn takes_one_more(&self) -> bool {
        let ProxyState { budget, in_flight, .. } = &*self.origin.shared;
        let state = self.state();
        let waiting = state.waiting.len();
        let is_tunnel = state.protocol == SpokenProtocol::Switched;
        is_tunnel
            || waiting == 0
            || waiting < budget.requests_per_connection && in_flight.count() < budget.requests
    }

    /// Returns true if the next response is for a HEAD request.
    pub(super) fn is_next_to_head(&self) -> bool {
        self.state().waiting.front().is_some_and(|request| request.is_head)
    }

    /// Notes a response head that is not an interim one.
    pub(super) fn answered(&self, head: &ResponseHead) {
        let mut state = self.state();
        if let Some(request) = state.waiting.front_mut() {
            request.status = head.status;
        }
        if head.is_switch() {
            state.protocol = SpokenProtocol::Switched;
            self.settled.notify_one();
        } else if head.body == Body::UntilClose && !head.has_clear_end {
            drop(state);
            self.mark_unread();
        }
    }

    /// Notes that the complete response has been passed on.
    pub(super) fn complete(&self) {
        let (request, end) = {
            let mut state = self.state();
            // A client that closes while a response is due has disconnected. In a tunnel, either side may close first.
            let gone = self.origin.sides.is_client_closed() && state.protocol != SpokenProtocol::Switched;
            let end = if gone { ServedEnd::ClientGone } else { ServedEnd::Complete };
            let request = state.waiting.pop_front();
            if state.waiting.is_empty() && state.waiting.capacity() > KEPT_PLACES {
                state.waiting = VecDeque::new();
            }
            (request, end)
        };
        // A response without a request is a server's final message, such as a 408.
        if let Some(request) = request {
            self.record(request, end);
            self.settled.notify_one();
        }
    }

    /// Waits until every request has been answered, or the connection has left HTTP.
    pub(super) async fn settled(&self) {
        self.until(|protocol| protocol == SpokenProtocol::Switched).await;
    }

    /// Waits until it is clear whether the client's next bytes are a request: every request has been answered, or the
    /// connection has left HTTP, or it can no longer become clear.
    pub(super) async fn decided(&self) {
        self.until(|protocol| protocol != SpokenProtocol::Http).await;
    }

    /// Waits until nothing is in flight, or the connection's protocol satisfies `is_it`.
    async fn until(&self, is_it: impl Fn(SpokenProtocol) -> bool) {
        self.end_unanswerable();
        loop {
            {
                let state = self.state();
                if state.waiting.is_empty() || is_it(state.protocol) {
                    return;
                }
            }
            self.settled.notified().await;
        }
    }

    /// Counts a request that the proxy refuses, and ends the requests in flight; returns true if the proxy can respond,
    /// which is impossible in the middle of another response.
    pub(in super::super) fn refused(&self) -> bool {
        self.origin.shared.journal.rejected();
        let answering = {
            let state = self.state();
            state.protocol != SpokenProtocol::Http
                || state.waiting.iter().any(|request| request.status.is_some())
        };
        self.end_all(ServedEnd::Cancelled);
        !answering
    }

    /// Ends every request in flight; returns true if there was one.
    pub(in super::super) fn end_all(&self, end: ServedEnd) -> bool {
        let waiting = std::mem::take(&mut self.state().waiting);
        let any = !waiting.is_empty();
        for request in waiting {
            self.record(request, end);
        }
        // Otherwise a task that waits for the responses would wait forever.
        self.settled.notify_one();
        any
    }

    /// Adds the row of the response that is being passed on, if there is one.
    pub(in super::super) fn list_open(&self, rows: &mut Vec<ServedRow>) {
        let first = self.state().waiting.front().cloned();
        let answered = first.filter(|request| request.status.is_some());
        rows.extend(answered.map(|request| self.row(request, ServedEnd::Open)));
    }

    fn record(&self, request: UnansweredRequest, ended: ServedEnd) {
        self.origin.record(self.row(request, ended));
    }

    fn row(&self, request: UnansweredRequest, ended: ServedEnd) -> ServedRow {
        ServedRow {
            request: request.id,
            head: Some(request.head),
            status: request.status,
            conn_first_request: request.is_first,
            ..self.origin.row(record::Protocol::Http1, ended)
        }
    }

    fn state(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger for RequestsInFlight {
    fn app_closed(&self, end: ServedEnd) {
        self.end_all(end);
    }

    fn goes_one_way(&self) -> bool {
        self.protocol() == SpokenProtocol::Switched
    }
}
