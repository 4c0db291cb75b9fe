//! Queue for work that is due now or later.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Duration, Instant, sleep_until};

/// Work items with due times. If an item is added again, the earlier due time applies.
#[derive(Debug)]
pub(super) struct WorkQueue<K> {
    due: BTreeSet<(Instant, K)>,
    times: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone> WorkQueue<K> {
    pub(super) fn new() -> Self {
        Self { due: BTreeSet::new(), times: BTreeMap::new() }
    }

    /// Adds a work item that is due after `delay`.
    pub(super) fn add(&mut self, work: K, delay: Duration) {
        let at = Instant::now() + delay;
        if let Some(&earlier) = self.times.get(&work) {
            if earlier <= at {
                return;
            }
            self.due.remove(&(earlier, work.clone()));
        }
        self.times.insert(work.clone(), at);
        self.due.insert((at, work));
    }

    /// Waits until the next work item is due, and removes it from the queue. Cancel-safe.
    pub(super) async fn next(&mut self) -> K {
        let Some((at, _)) = self.due.first() else { return std::future::pending().await };
        sleep_until(*at).await;
        let Some((_, work)) = self.due.pop_first() else { return std::future::pending().await };
        self.times.remove(&work);
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queue_deduplicates_to_earliest_time() {
        let mut queue = WorkQueue::new();
        queue.add("late", Duration::from_secs(5));
        queue.add("early", Duration::from_secs(1));
        queue.add("late", Duration::from_secs(2));
        queue.add("late", Duration::from_secs(9));
        let start = Instant::now();
        assert_eq!(queue.next().await, "early");
        assert_eq!(queue.next().await, "late");
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        let nothing = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(nothing.is_err());
    }
}
