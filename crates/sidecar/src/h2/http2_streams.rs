//! The streams in flight on one connection, from head to row.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::ProxyState;
use super::super::budget::Unrecorded;
use super::super::origin::RowOrigin;
use super::super::relay::Ledger;
use rolldrop_record::{Protocol, RequestId, ServedEnd, ServedRow, Stamp};
use rolldrop_wire::http2::hpack::FIRST_SIZE;
use rolldrop_wire::http2::{MAX_FRAME_BYTES, error_name};

/// State shared by both directions of a connection. Both run in one task, so the lock is never contended.
pub(in super::super) struct Http2 {
    origin: Arc<RowOrigin>,
    state: Mutex<StreamsState>,
    /// The app's settings, which limit the client.
    pub(super) by_app: Terms,
    /// The client's settings, which limit the app.
    pub(super) by_client: Terms,
}

/// Limits that the receiver in one direction has announced in SETTINGS (RFC 9113, 6.5.2). These are the highest values
/// ever allowed, because a lower one may not have reached the sender yet.
pub(super) struct Terms {
    /// Maximum payload size of a frame.
    pub(super) frame_bytes: AtomicUsize,
    /// Maximum size of the field table.
    pub(super) table_bytes: AtomicUsize,
}

impl Default for Terms {
    fn default() -> Self {
        Self { frame_bytes: MAX_FRAME_BYTES.into(), table_bytes: FIRST_SIZE.into() }
    }
}

#[derive(Default)]
struct StreamsState {
    open: BTreeMap<u32, Http2Stream>,
    /// The last stream that the client opened.
    last: u32,
    /// The last stream that the app will process, if it has sent GOAWAY.
    last_answered: Option<u32>,
    /// Text of the GOAWAY, if the client has received one.
    goaway: Option<Arc<str>>,
    limit: StreamLimit,
}

/// Maximum number of concurrent streams that the app allows the client.
#[derive(Default)]
struct StreamLimit {
    /// Maximum last announced by the app.
    announced: Option<u32>,
    /// Number of SETTINGS frames from the app that the client has not acknowledged.
    unacknowledged: u32,
    /// Maximum known to the client.
    known: Option<u32>,
}

impl StreamLimit {
    fn allows(&self, open: usize) -> bool {
        self.known.is_none_or(|known| open < known as usize)
    }
}

#[derive(Clone)]
struct Http2Stream {
    number: u32,
    id: Option<RequestId>,
    head: Stamp,
    is_first: bool,
    status: Option<u16>,
    grpc_status: Option<i32>,
}

/// Way in which a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http2StreamEnd {
    /// The response was passed on completely.
    Complete,
    /// The client sent RST_STREAM with this code.
    ResetByClient(u32),
    /// The app sent RST_STREAM with this code.
    ResetByApp(u32),
}

impl Http2 {
    /// Returns the state of a new connection.
    pub(in super::super) fn new(origin: Arc<RowOrigin>) -> Self {
        Self { origin, state: Mutex::default(), by_app: Terms::default(), by_client: Terms::default() }
    }

    /// Returns the fields shared by the connection's rows.
    pub(super) fn origin(&self) -> &RowOrigin {
        &self.origin
    }

    /// Returns true if there was a request.
    pub(super) fn has_begun(&self) -> bool {
        self.state().last > 0
    }

    /// Records a field block from the client: a request head, unless the stream already had one. `ending` streams end
    /// before it. Heads that the app does not treat as requests are not recorded: those on streams that the client must
    /// not open, those beyond the app's GOAWAY, and those beyond the stream limit known to the client.
    pub(super) fn begin(&self, stream: u32, id: Option<RequestId>, ending: usize) {
        let mut state = self.state();
        if stream <= state.last || stream.is_multiple_of(2) {
            return;
        }
        let is_first = state.last == 0;
        state.last = stream;
        let open = state.open.len().saturating_sub(ending);
        if state.last_answered.is_some_and(|last| stream > last) || !state.limit.allows(open) {
            return;
        }
        let ProxyState { budget, in_flight, clock, journal, .. } = &*self.origin.shared;
        let fits = open == 0 || open < budget.requests_per_connection && in_flight.count() < budget.requests;
        if !fits {
            return journal.unrecorded(Unrecorded::Requests);
        }
        self.origin.begin();
        let head = clock.now();
        state.open.insert(
            stream,
            Http2Stream { number: stream, id, head, is_first, status: None, grpc_status: None },
        );
    }

    /// Returns true if this stream is open.
    pub(super) fn is_open(&self, stream: u32) -> bool {
        self.state().open.contains_key(&stream)
    }

    /// Notes SETTINGS from the app; `streams` is the maximum number of concurrent streams that they set, if any.
    pub(super) fn app_announced(&self, streams: Option<u32>) {
        let limit = &mut self.state().limit;
        limit.announced = streams.or(limit.announced);
        limit.unacknowledged = limit.unacknowledged.saturating_add(1);
    }

    /// Notes that the client acknowledged SETTINGS from the app.
    pub(super) fn client_acknowledged(&self) {
        let limit = &mut self.state().limit;
        limit.unacknowledged = limit.unacknowledged.saturating_sub(1);
        if limit.unacknowledged == 0 {
            limit.known = limit.announced;
        }
    }

    /// Notes a field block from the app; returns true if it is the head of the final response.
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

    /// Notes that a stream ended.
    pub(super) fn end(&self, stream: u32, end: Http2StreamEnd) {
        let Some(stream) = self.state().open.remove(&stream) else { return };
        let code = |code| Some(error_name(code).into());
        let (ended, detail) = match end {
            // A client that closes while a response is due has disconnected.
            Http2StreamEnd::Complete if self.origin.sides.is_client_closed() => (ServedEnd::ClientGone, None),
            Http2StreamEnd::Complete => (ServedEnd::Complete, None),
            Http2StreamEnd::ResetByClient(reason) => (ServedEnd::ClientGone, code(reason)),
            Http2StreamEnd::ResetByApp(reason) => (ServedEnd::UpstreamReset, code(reason)),
        };
        self.record(stream, ended, detail);
    }

    /// Notes that the app sent a GOAWAY: it will not process new streams above `last`.
    pub(super) fn goaway_sent(&self, last: u32) {
        let mut state = self.state();
        let before = state.last_answered.unwrap_or(last);
        state.last_answered = Some(last.min(before));
    }

    /// Notes that the client has received the app's GOAWAY: streams above `last` will get no response.
    pub(super) fn goaway_passed(&self, last: u32, code: u32) {
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

    /// Ends every open stream; returns true if there was one.
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

    /// Adds the rows of the responses that are being passed on.
    pub(in super::super) fn list_open(&self, rows: &mut Vec<ServedRow>) {
        let state = self.state();
        let answered = state.open.values().filter(|stream| stream.status.is_some()).cloned();
        rows.extend(answered.map(|stream| self.row(stream, ServedEnd::Open, None)));
    }

    fn record(&self, stream: Http2Stream, ended: ServedEnd, detail: Option<Arc<str>>) {
        self.origin.record(self.row(stream, ended, detail));
    }

    fn row(&self, stream: Http2Stream, ended: ServedEnd, detail: Option<Arc<str>>) -> ServedRow {
        ServedRow {
            request: stream.id,
            head: Some(stream.head),
            status: stream.status,
            grpc_status: stream.grpc_status,
            detail,
            conn_first_request: stream.is_first,
            stream: Some(stream.number),
            ..self.origin.row(Protocol::Http2, ended)
        }
    }

    fn state(&self) -> MutexGuard<'_, StreamsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger for Http2 {
    fn app_closed(&self, end: ServedEnd) {
        self.end_all(end);
    }

    fn goes_one_way(&self) -> bool {
        false
    }
}
