//! Stores recorded rows for readers of the row stream.
//!
//! A single lock is taken once per request, and held for a push. Rows are numbered in order of arrival. Each reader
//! keeps its own position ([`Cursor`]). A disconnected reader comes back with its row number, so recent rows are kept
//! even after they have been sent.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::budget::{Budget, Unrecorded};
use super::metrics::ProxyCounts;
use rolldrop_record::event::{PodEvent, ProxyPhase};
use rolldrop_record::wire::ProxyLine;
use rolldrop_record::{ServedRow, Stamp};

/// Maximum number of rows in a batch, which limits the batch's memory and the time for which it delays requests.
/// Writing a batch takes about as long as relaying a few requests.
pub(super) const BATCH_ROWS: usize = 50;
/// Number of rows kept after they were sent: more than fit into the buffers between proxy and reader, whose contents
/// are lost when the reader disconnects.
const SENT_ROWS: u64 = 20_000;

/// Maximum capacity for rows, as a multiple of the rows in use.
const MOST_ROOM: usize = 3;

/// Rows and notes, with the counts over all rows so far.
#[derive(Debug)]
pub(super) struct RowJournal {
    entries: Mutex<Entries>,
    max_rows: usize,
    max_unanswered: usize,
    closed: CancellationToken,
    handed_over: CancellationToken,
}

#[derive(Debug, Default)]
struct Entries {
    /// Lines that every stream begins with.
    notes: Vec<ProxyLine>,
    rows: VecDeque<ServedRow>,
    /// Number of unsent rows whose requests got no response.
    unanswered: usize,
    /// The number of the first row in `rows`.
    first: u64,
    /// All rows below this number were sent to a collector, or dropped.
    sent_to: u64,
    last_request: Option<Stamp>,
    had_collector: bool,
    counts: ProxyCounts,
}

/// Position of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The number of the next row.
    pub(super) row: u64,
    note: usize,
}

impl Cursor {
    /// Returns the position at the row with this number, before all notes.
    pub(super) fn at(row: u64) -> Self {
        Self { row, note: 0 }
    }
}

/// A copy of part of the journal, to be sent.
#[derive(Debug)]
pub(super) struct JournalBatch {
    notes: Vec<ProxyLine>,
    /// Number of the first row.
    pub(super) first: u64,
    rows: Vec<ServedRow>,
    /// Number of rows recorded when the copy was made.
    pub(super) recorded: u64,
    /// Total number of rows that were, or should have been, recorded; set only in the last batch of a closed journal.
    pub(super) end: Option<u64>,
    /// Start position of the next batch.
    pub(super) next: Cursor,
}

impl RowJournal {
    /// Returns a journal that keeps as many rows as the budget allows.
    pub(super) fn new(budget: &Budget) -> Self {
        Self {
            entries: Mutex::default(),
            max_rows: budget.rows,
            max_unanswered: budget.unanswered_rows,
            closed: CancellationToken::new(),
            handed_over: CancellationToken::new(),
        }
    }

    /// Records a finished request. The row of an unanswered request never displaces rows of answered requests.
    pub(super) fn row(&self, row: ServedRow) {
        let mut entries = self.entries();
        entries.counts.ended(row.ended, row.head.map(|head| row.end.ns_since(head)));
        entries.last_request = entries.last_request.max(row.head);
        let is_full = entries.rows.len() >= self.max_rows;
        if is_unanswered(&row) {
            if entries.unanswered >= self.max_unanswered || is_full && !entries.first_is_sent() {
                return entries.counts.unrecorded(Unrecorded::Rows);
            }
            entries.unanswered += 1;
        }
        if is_full {
            entries.drop_first();
        }
        entries.counts.recorded += 1;
        entries.rows.push_back(row);
    }

    /// Counts a connection that was closed so that another could be accepted. Even if no request was in flight, the
    /// client may have just sent one.
    pub(super) fn made_room(&self, had_request: bool) {
        let mut entries = self.entries();
        entries.counts.made_room += 1;
        if !had_request {
            entries.counts.unrecorded(Unrecorded::Connections);
        }
    }

    /// Counts an item that was passed on unrecorded.
    pub(super) fn unrecorded(&self, why: Unrecorded) {
        self.entries().counts.unrecorded(why);
    }

    /// Records that a phase of the pod's termination was reached.
    pub(super) fn phase(&self, phase: ProxyPhase, at: Stamp) {
        let mut entries = self.entries();
        entries.notes.push(ProxyLine::Phase { phase, t_ns: at });
        // A repeated preStop hook call does not set the phase back.
        if phase != ProxyPhase::PreStop || entries.counts.phase.is_none_or(|passed| passed < phase) {
            entries.counts.phase = Some(phase);
        }
        tracing::debug!(phase = phase.as_str(), "termination phase");
    }

    /// Records a phase that is defined by the last of many events, if any occurred.
    pub(super) fn phase_at(&self, phase: ProxyPhase, at: Option<Stamp>) {
        if let Some(at) = at {
            self.phase(phase, at);
        }
    }

    /// Records a change to the proxy's own pod.
    pub(super) fn own_pod(&self, seen: PodEvent, at: Stamp) {
        self.entries().notes.push(ProxyLine::Pod { t_ns: at, seen });
    }

    /// Counts a request that the proxy itself responded to.
    pub(super) fn rejected(&self) {
        self.entries().counts.rejected += 1;
    }

    /// Returns the time at which the most recent of the recorded requests was read.
    pub(super) fn last_request(&self) -> Option<Stamp> {
        self.entries().last_request
    }

    /// Returns the counts so far.
    pub(super) fn counts(&self) -> ProxyCounts {
        self.entries().counts.clone()
    }

    /// Closes the journal: nothing more will be recorded, and readers may receive the end line.
    pub(super) fn close(&self) {
        self.closed.cancel();
        if !self.entries().had_collector {
            self.handed_over.cancel();
        }
    }

    /// Waits until the journal is closed.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Waits until the journal is closed and there is no collector left to wait for: one has received the end line, or
    /// none ever connected.
    pub(super) async fn handed_over(&self) {
        self.handed_over.cancelled().await;
    }

    /// Notes that a collector has connected. The proxy will wait for collectors, even if they disconnect.
    pub(super) fn collector_came(&self) {
        self.entries().had_collector = true;
    }

    /// Notes that a collector has everything, including the end line.
    pub(super) fn collector_has_all(&self) {
        self.handed_over.cancel();
    }

    /// Copies the oldest available lines, starting at the cursor.
    pub(super) fn read(&self, cursor: Cursor) -> JournalBatch {
        // Checked before the rows are read so that no rows can follow the last batch.
        let closed = self.closed.is_cancelled();
        let entries = self.entries();
        // A number that no row has yet must come from another proxy.
        let wanted = if cursor.row > entries.counts.recorded { 0 } else { cursor.row };
        let first = wanted.max(entries.first);
        let skipped = usize::try_from(first - entries.first).unwrap_or(usize::MAX);
        let rows: Vec<_> = entries.rows.iter().skip(skipped).take(BATCH_ROWS).cloned().collect();
        let notes = entries.notes[cursor.note..].to_vec();
        let next = Cursor { row: first + rows.len() as u64, note: entries.notes.len() };
        let recorded = entries.counts.recorded;
        let end = (closed && next.row == recorded).then(|| entries.counts.with_unrecorded());
        JournalBatch { notes, first, rows, recorded, end, next }
    }

    /// Notes that a batch has been sent to a collector.
    pub(super) fn sent(&self, batch: &JournalBatch) {
        let mut entries = self.entries();
        // Rows that were dropped while being sent remain counted as dropped.
        while entries.sent_to < batch.next.row {
            entries.pass_first_unsent();
            entries.counts.handed_over += 1;
        }
        while entries.first + SENT_ROWS < entries.sent_to {
            entries.drop_first();
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Every update completes before the guard is dropped, so a panic elsewhere leaves the entries consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the app sent nothing for this request or connection.
fn is_unanswered(row: &ServedRow) -> bool {
    row.status.is_none() && row.bytes_from_app.is_none_or(|bytes| bytes == 0)
}

impl Entries {
    /// Returns true if the oldest row was sent.
    fn first_is_sent(&self) -> bool {
        self.first < self.sent_to
    }

    /// Removes the oldest row.
    fn drop_first(&mut self) {
        if !self.first_is_sent() {
            self.pass_first_unsent();
            self.counts.dropped += 1;
        }
        self.rows.pop_front();
        self.first += 1;
        // Rows cycle through the whole capacity, so memory needed for a burst would otherwise stay allocated forever.
        if self.rows.capacity() / MOST_ROOM > self.rows.len().max(BATCH_ROWS) {
            self.rows.shrink_to(self.rows.len() / 2 * 3);
        }
    }

    /// Stops reserving the first unsent row for a reader.
    fn pass_first_unsent(&mut self) {
        let at = usize::try_from(self.sent_to - self.first).unwrap_or(usize::MAX);
        self.unanswered -= usize::from(self.rows.get(at).is_some_and(is_unanswered));
        self.sent_to += 1;
    }
}

impl JournalBatch {
    /// Returns true if there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.rows.is_empty() && self.end.is_none()
    }

    /// Returns true if the batch has the maximum size, so more rows may be waiting.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS
    }

    /// Returns the lines of the row stream: notes, rows, the proxy's state and, in the last batch, the end line.
    pub(super) fn lines(&self, state: Option<ProxyLine>) -> impl Iterator<Item = ProxyLine> {
        let notes = self.notes.iter().cloned();
        let rows = self.rows.iter().cloned().map(ProxyLine::Row);
        let end = self.end.map(|recorded| ProxyLine::End { recorded });
        notes.chain(rows).chain(state).chain(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::{Protocol, ServedEnd};

    fn journal(rows: usize) -> RowJournal {
        RowJournal::new(&Budget { rows, unanswered_rows: rows / 2, ..Budget::DEFAULT })
    }

    fn row(conn: u64) -> ServedRow {
        ServedRow {
            source: "web-1".into(),
            request: None,
            pod: "web-1".into(),
            peer_addr: "127.0.0.1:1".into(),
            protocol: Protocol::Http1,
            accepted: Stamp::from_unix_ns(1),
            head: Some(Stamp::from_unix_ns(2)),
            end: Stamp::from_unix_ns(3),
            status: Some(200),
            grpc_status: None,
            ended: ServedEnd::Complete,
            detail: None,
            conn,
            conn_first_request: true,
            stream: None,
            bytes_from_client: None,
            bytes_from_app: None,
        }
    }

    fn conns(batch: &JournalBatch) -> Vec<u64> {
        batch.rows.iter().map(|row| row.conn).collect()
    }

    #[test]
    fn journal_shrinks_after_row_burst() {
        let journal = journal(250_000);
        let mut cursor = Cursor::at(0);
        let mut read = || {
            let batch = journal.read(cursor);
            journal.sent(&batch);
            cursor = batch.next;
            batch.is_full()
        };
        for burst in [200_000, 1] {
            (0..burst).for_each(|conn| journal.row(row(conn)));
            while read() {}
            let entries = journal.entries();
            let (rows, room) = (entries.rows.len(), entries.rows.capacity());
            assert_eq!(rows as u64, SENT_ROWS);
            assert!(room <= (rows + 1) * MOST_ROOM, "capacity {room} for {rows} rows");
        }
    }

    #[test]
    fn journal_readers_resume_where_they_stopped() {
        let journal = journal(100);
        for conn in 0..3 {
            journal.row(row(conn));
        }
        let batch = journal.read(Cursor::at(0));
        assert_eq!((conns(&batch), batch.next.row), (vec![0, 1, 2], 3));
        journal.sent(&batch);
        // The reader got only the first row, and comes back for the others.
        let again = journal.read(Cursor::at(1));
        assert_eq!((again.first, conns(&again)), (1, vec![1, 2]));
        journal.sent(&again);
        assert!(journal.read(again.next).is_empty());
        let counts = journal.counts();
        assert_eq!((counts.recorded, counts.handed_over, counts.dropped), (3, 3, 0));
        // With a number from before a restart, the reader starts over.
        assert_eq!(conns(&journal.read(Cursor::at(9))), [0, 1, 2]);
    }

    #[test]
    fn journal_readers_see_phases_once() {
        let journal = journal(100);
        journal.phase(ProxyPhase::PreStop, Stamp::from_unix_ns(1));
        let batch = journal.read(Cursor::at(0));
        assert_eq!(batch.notes.len(), 1);
        journal.phase(ProxyPhase::Sigterm, Stamp::from_unix_ns(2));
        let sigterm = ProxyLine::Phase { phase: ProxyPhase::Sigterm, t_ns: Stamp::from_unix_ns(2) };
        assert_eq!(journal.read(batch.next).notes, [sigterm]);
        assert_eq!(journal.read(Cursor::at(0)).notes.len(), 2);
    }

    #[test]
    fn unread_journal_drops_oldest_rows() {
        let journal = journal(2);
        for conn in 0..5 {
            journal.row(row(conn));
        }
        let batch = journal.read(Cursor::at(1));
        assert_eq!((batch.first, conns(&batch)), (3, vec![3, 4]));
        journal.row(row(5));
        journal.sent(&batch);
        let counts = journal.counts();
        assert_eq!((counts.recorded, counts.handed_over, counts.dropped), (6, 1, 4));
    }

    #[test]
    fn unanswered_rows_never_displace_served_rows() {
        let journal = journal(10);
        let unanswered = |conn| ServedRow { status: None, ended: ServedEnd::UpstreamReset, ..row(conn) };
        for conn in 0..4 {
            journal.row(row(conn));
        }
        for conn in 100..200 {
            journal.row(unanswered(conn));
        }
        let kept = conns(&journal.read(Cursor::at(0)));
        assert_eq!(kept, [0, 1, 2, 3, 100, 101, 102, 103, 104]);
        let counts = journal.counts();
        assert_eq!((counts.recorded, counts.dropped, counts.with_unrecorded()), (9, 0, 104));
        // Rows of served requests may use all the capacity.
        for conn in 4..14 {
            journal.row(row(conn));
            journal.row(unanswered(200));
        }
        assert_eq!(conns(&journal.read(Cursor::at(0))), (4..14).collect::<Vec<_>>());
        // Once a reader has the rows, new ones may replace them.
        journal.sent(&journal.read(Cursor::at(0)));
        let dropped = journal.counts().dropped;
        for conn in 300..310 {
            journal.row(unanswered(conn));
        }
        let kept = conns(&journal.read(Cursor::at(0)));
        assert_eq!(kept, (9..14).chain(300..305).collect::<Vec<_>>());
        assert_eq!(journal.counts().dropped, dropped);
        journal.sent(&journal.read(Cursor::at(0)));
        for conn in 305..310 {
            journal.row(unanswered(conn));
        }
        assert_eq!(conns(&journal.read(Cursor::at(0))), (300..310).collect::<Vec<_>>());
    }

    #[test]
    fn journal_keeps_recently_sent_rows() {
        let journal = journal(usize::MAX);
        let recorded = SENT_ROWS + 2 * BATCH_ROWS as u64;
        for conn in 0..recorded {
            journal.row(row(conn));
        }
        let mut cursor = Cursor::at(0);
        while cursor.row < recorded {
            let batch = journal.read(cursor);
            assert!(batch.is_full());
            journal.sent(&batch);
            cursor = batch.next;
        }
        assert_eq!(journal.read(Cursor::at(0)).first, recorded - SENT_ROWS);
        assert_eq!(journal.counts().dropped, 0);
    }

    #[test]
    fn journal_end_follows_last_row() {
        let journal = journal(BATCH_ROWS * 2);
        for conn in 0..=BATCH_ROWS as u64 {
            journal.row(row(conn));
        }
        journal.close();
        let batch = journal.read(Cursor::at(0));
        assert_eq!(batch.end, None);
        let last = journal.read(batch.next);
        assert_eq!((last.rows.len(), last.end), (1, Some(BATCH_ROWS as u64 + 1)));
    }
}
