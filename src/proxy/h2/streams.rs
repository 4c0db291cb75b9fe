//! The streams that are under way on one connection, from head to row.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::connection::Origin;
use super::super::relay::Ledger;
use crate::http2::error_name;
use crate::record::{Protocol, RequestId, ServedEnd, ServedRow, Stamp};

/// What both directions of a connection know. Both run in one task, so the lock is never waited for.
pub(in super::super) struct Http2 {
    origin: Arc<Origin>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u32, Stream>,
    /// The latest stream that the client opened.
    last: u32,
    /// What the app's GOAWAY said, if one came.
    goaway: Option<Arc<str>>,
}

struct Stream {
    number: u32,
    id: Option<RequestId>,
    head: Stamp,
    is_first: bool,
    status: Option<u16>,
    grpc_status: Option<i32>,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The response was passed on to its end.
    Complete,
    /// The client sent RST_STREAM with this code.
    ResetByClient(u32),
    /// The app sent RST_STREAM with this code.
    ResetByApp(u32),
}

impl Http2 {
    /// A connection without any stream yet.
    pub(in super::super) fn new(origin: Arc<Origin>) -> Self {
        Self { origin, state: Mutex::default() }
    }

    /// The connection.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether there was a request.
    pub(super) fn has_begun(&self) -> bool {
        self.state().last > 0
    }

    /// The client sent a block of fields: a request head, unless the stream has had one.
    pub(super) fn begin(&self, stream: u32, id: Option<RequestId>) {
        let mut state = self.state();
        if stream <= state.last {
            return;
        }
        self.origin.shared.in_flight.begin();
        let is_first = state.last == 0;
        state.last = stream;
        let head = self.origin.shared.clock.now();
        state
            .open
            .insert(stream, Stream { number: stream, id, head, is_first, status: None, grpc_status: None });
    }

    /// The app sent a block of fields; answers whether it is the head of the final response.
    pub(super) fn answered(&self, stream: u32, status: Option<u16>, grpc_status: Option<i32>) -> bool {
        let mut state = self.state();
        let Some(stream) = state.open.get_mut(&stream) else { return false };
        stream.grpc_status = grpc_status.or(stream.grpc_status);
        let is_final = stream.status.is_none() && status.is_some_and(|status| status >= 200);
        if is_final {
            stream.status = status;
        }
        is_final
    }

    /// A stream ended.
    pub(super) fn end(&self, stream: u32, end: StreamEnd) {
        let Some(stream) = self.state().open.remove(&stream) else { return };
        let code = |code| Some(error_name(code).into());
        let (ended, detail) = match end {
            // Whoever closes while an answer is due has gone.
            StreamEnd::Complete if self.origin.sides.is_client_closed() => (ServedEnd::ClientGone, None),
            StreamEnd::Complete => (ServedEnd::Complete, None),
            StreamEnd::ResetByClient(reason) => (ServedEnd::ClientGone, code(reason)),
            StreamEnd::ResetByApp(reason) => (ServedEnd::UpstreamReset, code(reason)),
        };
        self.record(stream, ended, detail);
    }

    /// The app sent GOAWAY: streams above the last one will not be answered.
    pub(super) fn goaway(&self, last: u32, code: u32) {
        let detail: Arc<str> = format!("GOAWAY {}", error_name(code)).into();
        let left_out = {
            let mut state = self.state();
            state.goaway = Some(detail.clone());
            state.open.split_off(&last.saturating_add(1))
        };
        for stream in left_out.into_values() {
            self.record(stream, ServedEnd::UpstreamEof, Some(detail.clone()));
        }
    }

    /// Ends every stream under way; answers whether there was one.
    pub(in super::super) fn end_all(&self, end: ServedEnd) -> bool {
        let (open, goaway) = {
            let mut state = self.state();
            (std::mem::take(&mut state.open), state.goaway.clone())
        };
        let any = !open.is_empty();
        for stream in open.into_values() {
            self.record(stream, end, goaway.clone());
        }
        any
    }

    fn record(&self, stream: Stream, ended: ServedEnd, detail: Option<Arc<str>>) {
        self.origin.record(ServedRow {
            request: stream.id,
            head: Some(stream.head),
            status: stream.status,
            grpc_status: stream.grpc_status,
            detail,
            conn_first_request: stream.is_first,
            stream: Some(stream.number),
            ..self.origin.row(Protocol::Http2, ended)
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger for Http2 {
    fn app_closed(&self, end: ServedEnd) {
        self.end_all(end);
    }
}
