//! The streams of one worker that have not ended.
//!
//! They are kept apart from the exchanges that read them, so that the worker can list them while they are open: a
//! recorder that is killed then leaves a row for each of them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::answer_stream::{StreamReader, TransportEnd};
use super::gap_counts::GapCounts;
use rolldrop_record::load::StreamSettings;
use rolldrop_record::{GapRow, Outcome, Phase, RequestRow, Stamp, StreamRow};
use rolldrop_wire::answer_events::TooLong;

/// Minimum time between two lists of the open streams.
const LIST_EVERY: Duration = Duration::from_secs(5);
/// Detail of a row whose recorder was lost before the stream ended.
const RECORDER_LOST: &str = "recorder_lost";

/// Open streams, by the sequence number of their request.
#[derive(Debug)]
pub(super) struct OpenStreams {
    settings: Option<Arc<StreamSettings>>,
    open: RefCell<HashMap<u64, OpenStream>>,
    /// Rows of streams that have ended.
    ended: RefCell<Vec<StreamRow>>,
    gaps: RefCell<GapCounts>,
    listed: Cell<Option<Stamp>>,
}

#[derive(Debug)]
struct OpenStream {
    /// Row of the request as of its response head.
    row: RequestRow,
    reader: StreamReader,
}

/// A list of streams that were open at one time, as rows for the case that the recorder is killed.
#[derive(Debug, Default)]
pub(super) struct OpenRows {
    pub(super) requests: Vec<RequestRow>,
    pub(super) streams: Vec<StreamRow>,
}

impl OpenStreams {
    /// Creates the list of a source for requests with these settings; `None` for requests that ask for no streams.
    pub(super) fn new(source: Arc<str>, settings: Option<&StreamSettings>) -> Self {
        Self {
            settings: settings.cloned().map(Arc::new),
            open: RefCell::default(),
            ended: RefCell::default(),
            gaps: RefCell::new(GapCounts::new(source)),
            listed: Cell::new(None),
        }
    }

    /// Returns the settings if requests ask for streams.
    pub(super) fn settings(&self) -> Option<&StreamSettings> {
        self.settings.as_deref()
    }

    /// Begins the stream of a request whose response head has arrived.
    pub(super) fn begin(&self, row: &RequestRow) {
        let Some(settings) = &self.settings else { return };
        let opened = OpenStream { row: row.clone(), reader: StreamReader::new(Arc::clone(settings)) };
        self.open.borrow_mut().insert(row.seq, opened);
    }

    /// Adds body bytes of a stream that arrived at `now`.
    ///
    /// # Errors
    /// Fails if an event is too long.
    pub(super) fn push(&self, seq: u64, now: Stamp, bytes: &[u8]) -> Result<(), TooLong> {
        let mut open = self.open.borrow_mut();
        let Some(OpenStream { row, reader }) = open.get_mut(&seq) else { return Ok(()) };
        let (before, last) = reader.events();
        let pushed = reader.push(now, bytes);
        let new = reader.events().0 - before;
        if new > 0 && row.phase == Phase::Main {
            let mut gaps = self.gaps.borrow_mut();
            // Events that arrive together have no time between them.
            gaps.add(now, 0, new - 1);
            if let Some(last) = last {
                gaps.add(now, now.ns_since(last), 1);
            }
        }
        pushed
    }

    /// Ends a request's stream, if it has one that is open. Returns its outcome as described for
    /// [`StreamReader::outcome`].
    pub(super) fn end(&self, seq: u64, end: TransportEnd) -> Option<Outcome> {
        let stream = self.open.borrow_mut().remove(&seq)?;
        self.ended.borrow_mut().push(stream.row(end));
        stream.reader.outcome(end)
    }

    /// Takes the rows of streams that have ended since the last call.
    pub(super) fn take_ended(&self) -> Vec<StreamRow> {
        self.ended.take()
    }

    /// Takes the counted gaps between events; those of the present second only if no stream is open.
    pub(super) fn take_gaps(&self, now: Stamp) -> Vec<GapRow> {
        let is_idle = self.open.borrow().is_empty();
        self.gaps.borrow_mut().take((!is_idle).then_some(now))
    }

    /// Returns the open streams if the last list is old enough.
    pub(super) fn list(&self, now: Stamp) -> Option<OpenRows> {
        self.settings.as_ref()?;
        if self.listed.get().is_some_and(|listed| now < listed + LIST_EVERY) {
            return None;
        }
        self.listed.set(Some(now));
        let open = self.open.borrow();
        let mut rows = OpenRows::default();
        for OpenStream { row, .. } in open.values() {
            rows.requests.push(RequestRow {
                end: now,
                outcome: Outcome::Cancelled,
                final_outcome: Outcome::Cancelled,
                detail: Some(RECORDER_LOST.into()),
                ..row.clone()
            });
        }
        rows.streams = open.values().map(|stream| stream.row(TransportEnd::Cancelled)).collect();
        Some(rows)
    }
}

impl OpenStream {
    fn row(&self, end: TransportEnd) -> StreamRow {
        self.reader.row(Arc::clone(&self.row.source), self.row.seq, end)
    }
}
