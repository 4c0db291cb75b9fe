//! The streams of one worker that have not ended.
//!
//! They are kept apart from the exchanges that read them, so that the worker can list them while they are open. A
//! recorder that is killed then leaves a row for each of them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::answer_stream::{StreamReader, TransportEnd};
use super::gap_counts::GapCounts;
use super::polled_stream::PolledStream;
use rolldrop_record::load::StreamSettings;
use rolldrop_record::{GapRow, Outcome, Phase, RequestRow, Stamp, StreamRow};
use rolldrop_wire::answer_events::TooLong;

/// Minimum time between two lists of the open streams.
const LIST_EVERY: Duration = Duration::from_secs(5);
/// Detail of a row whose recorder was lost before the stream ended.
const RECORDER_LOST: &str = "recorder_lost";

/// Open streams, each in a slot.
#[derive(Debug)]
pub(super) struct OpenStreams {
    settings: Option<Arc<StreamSettings>>,
    slots: RefCell<Vec<Option<Box<OpenStream>>>>,
    /// Slots without a stream.
    free: RefCell<Vec<usize>>,
    /// Rows of streams that have ended.
    ended: RefCell<Vec<StreamRow>>,
    gaps: RefCell<GapCounts>,
    listed: Cell<Option<Stamp>>,
}

/// A stream that has not ended.
#[derive(Debug)]
pub(super) struct OpenStream {
    /// Row of the request as of its response head.
    pub(super) row: RequestRow,
    pub(super) reader: StreamReader,
    /// Number of bytes that the poller has received.
    pub(super) received: u64,
    /// The stream's body, while the poller reads it.
    pub(super) polled: Option<PolledStream>,
}

/// Handle of an open stream. Dropping it ends the stream as cancelled.
pub(super) struct StreamHandle<'a> {
    streams: &'a OpenStreams,
    pub(super) slot: usize,
}

/// Guard that, when dropped, adds the bytes received by the poller to those of the request, so they count even if the
/// request is cancelled first.
pub(super) struct ReceivedBytes<'a> {
    pub(super) stream: &'a StreamHandle<'a>,
    pub(super) bytes: &'a mut u64,
}

/// Snapshot of the open streams, as the rows that remain if the recorder is killed.
#[derive(Debug, Default)]
pub(super) struct OpenRows {
    pub(super) requests: Vec<RequestRow>,
    pub(super) streams: Vec<StreamRow>,
}

impl OpenStreams {
    /// Creates the list for a source, given the stream settings of its requests, if they ask for streams.
    pub(super) fn new(source: Arc<str>, settings: Option<&StreamSettings>) -> Self {
        Self {
            settings: settings.cloned().map(Arc::new),
            slots: RefCell::default(),
            free: RefCell::default(),
            ended: RefCell::default(),
            gaps: RefCell::new(GapCounts::new(source)),
            listed: Cell::new(None),
        }
    }

    /// Returns the settings if requests ask for streams.
    pub(super) fn settings(&self) -> Option<&Arc<StreamSettings>> {
        self.settings.as_ref()
    }

    /// Begins the stream of a request whose response head has arrived.
    pub(super) fn begin(&self, settings: &Arc<StreamSettings>, row: &RequestRow) -> StreamHandle<'_> {
        let reader = StreamReader::new(Arc::clone(settings));
        let opened = Some(Box::new(OpenStream { row: row.clone(), reader, received: 0, polled: None }));
        let mut slots = self.slots.borrow_mut();
        let slot = match self.free.borrow_mut().pop() {
            Some(slot) => {
                slots[slot] = opened;
                slot
            }
            None => {
                slots.push(opened);
                slots.len() - 1
            }
        };
        StreamHandle { streams: self, slot }
    }

    /// Calls `f` with the stream in a slot, if there is one.
    pub(super) fn with<T>(&self, slot: usize, f: impl FnOnce(&mut OpenStream) -> T) -> Option<T> {
        self.slots.borrow_mut().get_mut(slot)?.as_deref_mut().map(f)
    }

    /// Calls `read` with the stream in a slot, if there is one, and counts the times between the events that it reads
    /// at `now`.
    pub(super) fn read<T>(
        &self,
        slot: usize,
        now: Stamp,
        read: impl FnOnce(&mut OpenStream) -> T,
    ) -> Option<T> {
        self.with(slot, |stream| {
            let (before, last) = stream.reader.events();
            let result = read(stream);
            let new = stream.reader.events().0 - before;
            if new > 0 && stream.row.phase == Phase::Main {
                let mut gaps = self.gaps.borrow_mut();
                // Events that arrive together have no time between them.
                gaps.add(now, 0, new - 1);
                if let Some(last) = last {
                    gaps.add(now, now.ns_since(last), 1);
                }
            }
            result
        })
    }

    fn end(&self, slot: usize, end: TransportEnd) -> Option<Outcome> {
        let stream = self.slots.borrow_mut()[slot].take()?;
        self.free.borrow_mut().push(slot);
        self.ended.borrow_mut().push(stream.row(end));
        stream.reader.outcome(end)
    }

    /// Takes the rows of streams that have ended since the last call.
    pub(super) fn take_ended(&self) -> Vec<StreamRow> {
        self.ended.take()
    }

    /// Takes the counts of gaps between events; includes the current second only if no stream is open.
    pub(super) fn take_gaps(&self, now: Stamp) -> Vec<GapRow> {
        let is_idle = self.slots.borrow().len() == self.free.borrow().len();
        self.gaps.borrow_mut().take((!is_idle).then_some(now))
    }

    /// Returns the open streams if the last list is old enough.
    pub(super) fn list(&self, now: Stamp) -> Option<OpenRows> {
        self.settings.as_ref()?;
        if self.listed.get().is_some_and(|listed| now < listed + LIST_EVERY) {
            return None;
        }
        self.listed.set(Some(now));
        let slots = self.slots.borrow();
        let open = || slots.iter().flatten();
        let mut rows = OpenRows::default();
        for OpenStream { row, .. } in open().map(|stream| &**stream) {
            rows.requests.push(RequestRow {
                end: now,
                outcome: Outcome::Cancelled,
                final_outcome: Outcome::Cancelled,
                detail: Some(RECORDER_LOST.into()),
                ..row.clone()
            });
        }
        rows.streams = open().map(|stream| stream.row(TransportEnd::Cancelled)).collect();
        Some(rows)
    }
}

impl StreamHandle<'_> {
    /// Calls `f` with the stream.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut OpenStream) -> T) -> T {
        let Some(result) = self.streams.with(self.slot, f) else {
            unreachable!("the slot holds the stream until the handle is dropped")
        };
        result
    }

    /// Adds body bytes that arrived at `now`.
    ///
    /// # Errors
    /// Returns an error if an event is too long.
    pub(super) fn push(&self, now: Stamp, bytes: &[u8]) -> Result<(), TooLong> {
        let pushed = self.streams.read(self.slot, now, |stream| stream.reader.push(now, bytes));
        pushed.unwrap_or(Ok(()))
    }

    /// Ends the stream, whose body ended at `now`. Returns its outcome as described for [`StreamReader::outcome`].
    pub(super) fn end(self, now: Stamp, end: TransportEnd) -> Option<Outcome> {
        self.streams.read(self.slot, now, |stream| stream.reader.finish(now, end));
        self.streams.end(self.slot, end)
    }
}

impl Drop for ReceivedBytes<'_> {
    fn drop(&mut self) {
        *self.bytes += self.stream.with(|open| open.received);
    }
}

impl Drop for StreamHandle<'_> {
    fn drop(&mut self) {
        self.streams.end(self.slot, TransportEnd::Cancelled);
    }
}

impl OpenStream {
    fn row(&self, end: TransportEnd) -> StreamRow {
        self.reader.row(Arc::clone(&self.row.source), self.row.seq, end)
    }
}
