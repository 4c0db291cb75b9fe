//! What the proxy recorded and has not handed over yet.
//!
//! One lock, taken once per request, held for a push. Rows wait here for the
//! reader of the row stream; a reader that breaks off gives back what it could
//! not send, so the next one goes on from there.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::record::event::ProxyPhase;
use crate::record::wire::ProxyLine;
use crate::record::{ServedEnd, ServedRow, Stamp};

/// The most rows in one batch: bounds what a batch costs in memory while it is sent.
const BATCH_ROWS: usize = 10_000;

/// Rows and phases on their way out, and the counts of all that passed.
#[derive(Debug)]
pub(super) struct Journal {
    entries: Mutex<Entries>,
    max_rows: usize,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Entries {
    phases: VecDeque<(ProxyPhase, Stamp)>,
    rows: VecDeque<ServedRow>,
    last_request: Option<Stamp>,
    has_reader: bool,
    counts: Counts,
}

/// Counts over the proxy's whole life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests recorded.
    pub recorded: u64,
    /// Rows sent to a reader.
    pub handed_over: u64,
    /// Rows that were dropped, oldest first, because no reader took them in time.
    pub dropped: u64,
    /// Requests that the proxy answered itself, because their end was ambiguous; they have no row.
    pub rejected: u64,
    /// Recorded requests by how they ended, in the order of [`ServedEnd::ALL`].
    pub by_end: [u64; ServedEnd::ALL.len()],
    /// The latest phase passed.
    pub phase: Option<ProxyPhase>,
}

/// A part of the journal that was taken out to be sent.
#[derive(Debug)]
pub(super) struct Batch {
    phases: VecDeque<(ProxyPhase, Stamp)>,
    rows: VecDeque<ServedRow>,
    /// Set on the last batch of a closed journal: the number of rows ever recorded.
    pub(super) end: Option<u64>,
}

impl Journal {
    /// A journal that keeps at most `max_rows` rows for a reader.
    pub(super) fn new(max_rows: usize) -> Self {
        Self { entries: Mutex::default(), max_rows, closed: CancellationToken::new() }
    }

    /// Records a request that ended.
    pub(super) fn row(&self, row: ServedRow) {
        let mut entries = self.entries();
        entries.counts.recorded += 1;
        entries.counts.by_end[row.ended as usize] += 1;
        entries.last_request = entries.last_request.max(row.head);
        if entries.rows.len() >= self.max_rows {
            entries.rows.pop_front();
            entries.counts.dropped += 1;
        }
        entries.rows.push_back(row);
    }

    /// Records a phase.
    pub(super) fn phase(&self, phase: ProxyPhase, at: Stamp) {
        let mut entries = self.entries();
        entries.phases.push_back((phase, at));
        entries.counts.phase = Some(phase);
        tracing::debug!(phase = phase.as_str(), "termination phase");
    }

    /// Records a phase that is only known by the last of many events, if there was any.
    pub(super) fn phase_at(&self, phase: ProxyPhase, at: Option<Stamp>) {
        if let Some(at) = at {
            self.phase(phase, at);
        }
    }

    /// Counts a request that the proxy answered itself.
    pub(super) fn rejected(&self) {
        self.entries().counts.rejected += 1;
    }

    /// When the latest recorded request was read.
    pub(super) fn last_request(&self) -> Option<Stamp> {
        self.entries().last_request
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> Counts {
        self.entries().counts.clone()
    }

    /// Says that nothing more will be recorded: the reader may send the end.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    /// Becomes ready when the journal is closed.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Makes the caller the one reader, or answers `None` if there is one already.
    pub(super) fn reader(&self) -> Option<Reader<'_>> {
        let had_reader = std::mem::replace(&mut self.entries().has_reader, true);
        // Lazily: a reader that is made and dropped would give the place away.
        (!had_reader).then(|| Reader { journal: self })
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Every update is complete before the guard goes, so a panic elsewhere does not spoil it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one reader of a journal.
pub(super) struct Reader<'a> {
    journal: &'a Journal,
}

impl Reader<'_> {
    /// Takes the oldest lines out. After this, they are [`sent`](Self::sent) or [given back](Self::give_back).
    pub(super) fn take(&self) -> Batch {
        let closed = self.journal.closed.is_cancelled();
        let mut entries = self.journal.entries();
        let taken = entries.rows.len().min(BATCH_ROWS);
        let rest = entries.rows.split_off(taken);
        let end = (closed && rest.is_empty()).then_some(entries.counts.recorded);
        let rows = std::mem::replace(&mut entries.rows, rest);
        Batch { phases: std::mem::take(&mut entries.phases), rows, end }
    }

    /// Says that a batch has been sent.
    pub(super) fn sent(&self, batch: &Batch) {
        self.journal.entries().counts.handed_over += batch.rows.len() as u64;
    }

    /// Puts a batch back that could not be sent.
    pub(super) fn give_back(&self, mut batch: Batch) {
        let mut entries = self.journal.entries();
        batch.phases.append(&mut entries.phases);
        entries.phases = batch.phases;
        batch.rows.append(&mut entries.rows);
        let excess = batch.rows.len().saturating_sub(self.journal.max_rows);
        batch.rows.drain(..excess);
        entries.counts.dropped += excess as u64;
        entries.rows = batch.rows;
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.journal.entries().has_reader = false;
    }
}

impl Batch {
    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.phases.is_empty() && self.rows.is_empty() && self.end.is_none()
    }

    /// Whether it is as large as batches get, so that more is waiting.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS
    }

    /// The lines of the row stream, the last one included if this is the end.
    pub(super) fn lines(&self) -> impl Iterator<Item = ProxyLine> {
        let phases = self.phases.iter().map(|&(phase, t_ns)| ProxyLine::Phase { phase, t_ns });
        let rows = self.rows.iter().cloned().map(ProxyLine::Row);
        phases.chain(rows).chain(self.end.map(|recorded| ProxyLine::End { recorded }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(conn: u64) -> ServedRow {
        ServedRow {
            source: "web-1".into(),
            request: None,
            pod: "web-1".into(),
            peer_addr: "127.0.0.1:1".into(),
            accepted: Stamp::from_unix_ns(1),
            head: Some(Stamp::from_unix_ns(2)),
            end: Stamp::from_unix_ns(3),
            status: Some(200),
            ended: ServedEnd::Complete,
            conn,
            conn_first_request: true,
        }
    }

    fn conns(batch: &Batch) -> Vec<u64> {
        batch.rows.iter().map(|row| row.conn).collect()
    }

    #[test]
    fn what_one_reader_could_not_send_the_next_one_gets_first() {
        let journal = Journal::new(100);
        journal.row(row(1));
        let reader = journal.reader().unwrap();
        assert!(journal.reader().is_none());
        let batch = reader.take();
        journal.row(row(2));
        reader.give_back(batch);
        drop(reader);
        journal.row(row(3));
        journal.close();
        let reader = journal.reader().unwrap();
        let batch = reader.take();
        assert_eq!(conns(&batch), [1, 2, 3]);
        assert_eq!(batch.end, Some(3));
    }

    #[test]
    fn without_a_reader_the_oldest_rows_are_dropped_and_counted() {
        let journal = Journal::new(2);
        for conn in 1..=5 {
            journal.row(row(conn));
        }
        let counts = journal.counts();
        assert_eq!((counts.recorded, counts.dropped), (5, 3));
        assert_eq!(conns(&journal.reader().unwrap().take()), [4, 5]);
    }

    #[test]
    fn the_end_comes_after_the_last_row() {
        let journal = Journal::new(BATCH_ROWS * 2);
        for conn in 0..=BATCH_ROWS as u64 {
            journal.row(row(conn));
        }
        journal.close();
        let reader = journal.reader().unwrap();
        assert_eq!(reader.take().end, None);
        let last = reader.take();
        assert_eq!((last.rows.len(), last.end), (1, Some(BATCH_ROWS as u64 + 1)));
    }
}
