//! A worker's reports, kept until they are read, so that a reader that lost its connection can request the rest.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, stream};
use tokio::sync::Notify;

use super::Numbered;
use crate::load_process::worker_protocol::WorkerReport;

/// Maximum number of reports to keep: a few minutes' worth.
const CAPACITY: usize = 2048;

/// Reports that may still be unread.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    lines: Mutex<BacklogLines>,
    news: Notify,
}

#[derive(Debug, Default)]
struct BacklogLines {
    next: u64,
    kept: VecDeque<BacklogLine>,
    is_over: bool,
}

#[derive(Debug)]
struct BacklogLine {
    n: u64,
    /// True if a later report supersedes this one.
    is_passing: bool,
    text: Bytes,
}

impl Backlog {
    /// Adds a report. If there are too many, removes the first one that a later report supersedes.
    ///
    /// # Errors
    /// Returns an error if the report cannot be serialised.
    pub(super) fn push(&self, report: &WorkerReport) -> io::Result<()> {
        let is_passing = matches!(report, WorkerReport::Progress(_) | WorkerReport::Machine { .. });
        {
            let mut lines = self.lock();
            let n = lines.next;
            let mut text = serde_json::to_vec(&Numbered { n, report: report.clone() })?;
            text.push(b'\n');
            lines.next += 1;
            if lines.kept.len() >= CAPACITY {
                let passing = lines.kept.iter().position(|line| line.is_passing).unwrap_or(0);
                lines.kept.remove(passing);
            }
            lines.kept.push_back(BacklogLine { n, is_passing, text: text.into() });
        }
        self.news.notify_waiters();
        Ok(())
    }

    /// Ends the backlog; there will be no more reports.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.news.notify_waiters();
    }

    /// Streams the reports from number `from` to the last, as they arrive. Drops earlier reports.
    pub(super) fn read(self: &Arc<Self>, from: u64) -> impl Stream<Item = Bytes> + Send + use<> {
        self.lock().kept.retain(|line| line.n >= from);
        stream::unfold((Arc::clone(self), from), |(backlog, from)| async move {
            loop {
                let news = backlog.news.notified();
                match backlog.after(from) {
                    (Some((text, next)), _) => return Some((text, (backlog.clone(), next))),
                    (None, true) => return None,
                    (None, false) => news.await,
                }
            }
        })
    }

    /// Returns the available reports from number `from` on, the number after the last one, and true if there will be no
    /// more reports.
    fn after(&self, from: u64) -> (Option<(Bytes, u64)>, bool) {
        let lines = self.lock();
        let mut text = BytesMut::new();
        for line in lines.kept.iter().filter(|line| line.n >= from) {
            text.put(line.text.clone());
        }
        ((!text.is_empty()).then(|| (text.freeze(), lines.next)), lines.is_over)
    }

    fn lock(&self) -> MutexGuard<'_, BacklogLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt, pin_mut};

    use super::*;
    use crate::Progress;

    fn numbers(text: &Bytes) -> Vec<u64> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice::<Numbered>(line).unwrap().n).collect()
    }

    fn failed() -> WorkerReport {
        WorkerReport::Failed { why: "x".into() }
    }

    #[tokio::test]
    async fn backlog_reader_resumes_at_given_number() {
        let backlog = Arc::new(Backlog::default());
        for _ in 0..3 {
            backlog.push(&failed()).unwrap();
        }
        let first = backlog.read(0);
        pin_mut!(first);
        assert_eq!(numbers(&first.next().await.unwrap()), [0, 1, 2]);
        let second = backlog.read(2);
        pin_mut!(second);
        assert_eq!(numbers(&second.next().await.unwrap()), [2]);
        assert!(second.next().now_or_never().is_none());
        backlog.push(&failed()).unwrap();
        assert_eq!(numbers(&second.next().await.unwrap()), [3]);
        backlog.end();
        assert!(second.next().await.is_none());
    }

    #[tokio::test]
    async fn full_backlog_drops_progress_first() {
        let backlog = Arc::new(Backlog::default());
        backlog.push(&failed()).unwrap();
        for _ in 0..CAPACITY + 10 {
            backlog.push(&WorkerReport::Progress(Progress::default())).unwrap();
        }
        backlog.end();
        let kept: Vec<Bytes> = backlog.read(0).collect().await;
        let kept: Vec<u64> = kept.iter().flat_map(numbers).collect();
        assert_eq!((kept.len(), kept[0], kept[1]), (CAPACITY, 0, 12));
    }
}
