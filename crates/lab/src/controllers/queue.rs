//! Work that is due now or at some later time.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Duration, Instant, sleep_until};

/// Pieces of work, each with the time when it is due. A piece that is added again is due at the earlier of both
/// times.
#[derive(Debug)]
pub(super) struct Queue<K> {
    due: BTreeSet<(Instant, K)>,
    times: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone> Queue<K> {
    pub(super) fn new() -> Self {
        Self { due: BTreeSet::new(), times: BTreeMap::new() }
    }

    /// Adds work that is due after `delay`.
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

    /// Waits for the next piece of work to become due and takes it out. Safe to cancel.
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
        let mut queue = Queue::new();
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
