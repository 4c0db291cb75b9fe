//! Batches of a load that have not been fetched yet.
//!
//! The journal is bounded: if no one reads it, it drops the oldest rows (which the parts also contain), and then the
//! oldest batches. The number of requests remains known, because [`SourceProgress`] counts from the beginning.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{LiveBatch, LiveLine, SourceProgress};

/// Maximum number of rows to keep: a few megabytes.
const KEPT_ROWS: usize = 20_000;
/// Maximum number of batches to keep: one hour's worth.
const KEPT_BATCHES: usize = 3_600;

/// Reports of a running load. The recorder writes them, and one reader at a time follows them.
#[derive(Debug, Default)]
pub struct LiveJournal {
    state: Mutex<LiveJournalState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct LiveJournalState {
    kept: VecDeque<LiveBatch>,
    /// Number of rows in the kept batches.
    rows: usize,
    over: Option<Over>,
}

#[derive(Debug)]
enum Over {
    Ended(Vec<SourceProgress>),
    /// The record is incomplete.
    Failed,
}

impl LiveJournal {
    /// Returns the next line for a reader that has all batches before `from`, with at most `rows` rows; `None` if the
    /// load failed and there will be no more lines.
    pub async fn next(&self, from: u64, rows: usize) -> Option<LiveLine> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                state.forget_before(from);
                if let Some(batch) = state.kept.front() {
                    return Some(LiveLine::Batch(Box::new(batch.clone().with_rows(rows))));
                }
                match &state.over {
                    Some(Over::Ended(sources)) => return Some(LiveLine::End { sources: sources.clone() }),
                    Some(Over::Failed) => return None,
                    None => {}
                }
            }
            changed.await;
        }
    }

    /// Returns true if every scheduled request has a row in a closed part.
    pub fn has_ended(&self) -> bool {
        matches!(self.lock().over, Some(Over::Ended(_)))
    }

    /// Returns the writer. Call this only once.
    pub(crate) fn writer(self: Arc<Self>) -> LiveJournalWriter {
        LiveJournalWriter(self)
    }

    fn lock(&self) -> MutexGuard<'_, LiveJournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveJournalState {
    fn push(&mut self, batch: LiveBatch) {
        self.rows += batch.rows.len();
        self.kept.push_back(batch);
        for old in &mut self.kept {
            if self.rows <= KEPT_ROWS {
                break;
            }
            let rows = take(&mut old.rows);
            self.rows -= rows.len();
            old.left += rows.len() as u64;
        }
        if self.kept.len() > KEPT_BATCHES {
            self.forget_first();
        }
    }

    fn forget_before(&mut self, from: u64) {
        while self.kept.front().is_some_and(|batch| batch.n < from) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        self.rows -= self.kept.pop_front().map_or(0, |batch| batch.rows.len());
    }
}

/// Writer of a journal. Dropping it before its end marks the load as failed.
#[derive(Debug)]
pub(crate) struct LiveJournalWriter(Arc<LiveJournal>);

impl LiveJournalWriter {
    /// Adds the batch of a completed second.
    pub(crate) fn push(&mut self, batch: LiveBatch) {
        self.0.lock().push(batch);
        self.0.changed.notify_waiters();
    }

    /// Ends the journal once every scheduled request has a row in a closed part.
    pub(crate) fn end(self, sources: Vec<SourceProgress>) {
        self.0.lock().over = Some(Over::Ended(sources));
    }
}

impl Drop for LiveJournalWriter {
    fn drop(&mut self) {
        self.0.lock().over.get_or_insert(Over::Failed);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::{Phase, RequestRow, Stamp};

    fn batch(n: u64, rows: usize) -> LiveBatch {
        let at = Stamp::from_unix_ns(0);
        let row = RequestRow::not_sent("load-0".into(), n, "web".into(), Phase::Main, at, at);
        LiveBatch { n, rows: vec![row; rows], ..LiveBatch::default() }
    }

    fn told(n: u64, rows: usize) -> LiveLine {
        LiveLine::Batch(Box::new(batch(n, rows)))
    }

    #[tokio::test]
    async fn journal_reader_resumes_after_lost_answer() {
        let journal = Arc::new(LiveJournal::default());
        let mut writer = Arc::clone(&journal).writer();
        (0..4).for_each(|n| writer.push(batch(n, 2)));
        assert_eq!(journal.next(0, 9).await, Some(told(0, 2)));
        assert_eq!(journal.next(0, 9).await, Some(told(0, 2)), "the answer was lost");
        assert_eq!(journal.next(2, 9).await, Some(told(2, 2)));
        let (waited, ()) = tokio::join!(journal.next(4, 9), async { writer.push(batch(4, 0)) });
        assert_eq!(waited, Some(told(4, 0)));
        let sources = vec![SourceProgress { source: "load-0".into(), ..SourceProgress::default() }];
        assert!(!journal.has_ended());
        writer.end(sources.clone());
        assert_eq!(journal.next(5, 9).await, Some(LiveLine::End { sources }));
        assert!(journal.has_ended());
    }

    #[tokio::test]
    async fn failed_load_writes_no_end_line() {
        let journal = Arc::new(LiveJournal::default());
        let mut writer = Arc::clone(&journal).writer();
        writer.push(batch(0, 1));
        drop(writer);
        assert_eq!(journal.next(0, 9).await, Some(told(0, 1)));
        assert_eq!(journal.next(1, 9).await, None);
    }

    #[tokio::test]
    async fn journal_bounds_and_counts_unfetched_rows() {
        let journal = Arc::new(LiveJournal::default());
        let mut writer = Arc::clone(&journal).writer();
        for n in 0..5_000 {
            writer.push(batch(n, 100));
        }
        let (mut from, mut rows, mut left, mut batches) = (0, 0, 0, 0);
        while from < 5_000 {
            let Some(LiveLine::Batch(batch)) = journal.next(from, 9_999).await else { panic!("{from}") };
            (from, rows, left) = (batch.n + 1, rows + batch.rows.len(), left + batch.left);
            batches += 1;
        }
        // Of the newest 3,600 batches, the last 200 still had their rows.
        assert_eq!((rows, left, batches), (KEPT_ROWS, 340_000, KEPT_BATCHES));
        writer.end(Vec::new());
        assert_eq!(journal.next(from, 1).await, Some(LiveLine::End { sources: Vec::new() }));
        assert_eq!(journal.lock().rows, 0, "everything has been fetched");
    }
}
