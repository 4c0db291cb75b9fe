//! Timing of syncs: kube-proxy's `BoundedFrequencyRunner` (kubernetes/kubernetes, `pkg/proxy/runner`).
//!
//! A change on an idle proxy is synced immediately. After that, no sync starts until the minimum period has passed
//! since the last one completed, even if that one changed nothing. One sync covers all changes that arrived in the
//! meantime.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Reason for a sync to start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncReason {
    /// A change, which is synced immediately.
    AtOnce,
    /// Changes that arrived before a sync was allowed.
    HeldBack,
}

/// Throttle that decides when the next sync may start.
#[derive(Debug)]
pub(super) struct Throttle {
    min_period: Duration,
    not_before: Option<Instant>,
}

impl Throttle {
    /// Creates a throttle under which no sync starts sooner than `min_period` after the last one completed.
    pub(super) fn new(min_period: Duration) -> Self {
        Self { min_period, not_before: None }
    }

    /// Waits until a sync is due: a change was announced, and the period has passed.
    pub(super) async fn due(&mut self, changes: &Notify) -> SyncReason {
        if let Some(not_before) = self.not_before {
            sleep_until(not_before).await;
        }
        // `Notify` keeps one permit, which represents the pending run: all changes that arrive during the last sync or
        // the pause after it cause a single run.
        let mut changed = pin!(changes.notified());
        if changed.as_mut().enable() {
            return if self.not_before.is_some() { SyncReason::HeldBack } else { SyncReason::AtOnce };
        }
        changed.await;
        SyncReason::AtOnce
    }

    /// Records that a sync has completed, even if it changed nothing.
    pub(super) fn completed(&mut self) {
        self.not_before = Some(Instant::now() + self.min_period);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::{sleep, timeout};

    use super::*;

    /// Returns the milliseconds at which syncs that take `sync_ms` started, for changes at `changes_ms`.
    async fn starts(changes_ms: &[u64], sync_ms: u64) -> Vec<u128> {
        runs(changes_ms, sync_ms).await.into_iter().map(|(at, _)| at).collect()
    }

    /// Does the same as [`starts`], and adds the reason for each sync.
    async fn runs(changes_ms: &[u64], sync_ms: u64) -> Vec<(u128, SyncReason)> {
        let begin = Instant::now();
        let changes = Notify::new();
        let starts = RefCell::new(Vec::new());
        let runner = async {
            let mut throttle = Throttle::new(Duration::from_secs(1));
            loop {
                let due = throttle.due(&changes).await;
                starts.borrow_mut().push((begin.elapsed().as_millis(), due));
                sleep(Duration::from_millis(sync_ms)).await;
                throttle.completed();
            }
        };
        let feed = async {
            for at in changes_ms {
                sleep_until(begin + Duration::from_millis(*at)).await;
                changes.notify_one();
            }
            std::future::pending::<()>().await;
        };
        let _ = timeout(Duration::from_secs(60), async { tokio::join!(runner, feed) }).await;
        starts.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_proxy_syncs_immediately() {
        assert_eq!(starts(&[5, 3000, 9000], 40).await, [5, 3000, 9000]);
    }

    #[tokio::test(start_paused = true)]
    async fn sync_period_starts_after_last_sync() {
        assert_eq!(starts(&[0, 10], 40).await, [0, 1040]);
        assert_eq!(starts(&[0, 1039], 40).await, [0, 1040]);
        assert_eq!(starts(&[0, 1041], 40).await, [0, 1041]);
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_sync_is_reported_as_held_back() {
        let expected = [(10, SyncReason::AtOnce), (1050, SyncReason::HeldBack), (3000, SyncReason::AtOnce)];
        assert_eq!(runs(&[10, 500, 3000], 40).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn pending_changes_share_one_sync() {
        assert_eq!(starts(&[0, 10, 20, 500, 1000, 1041], 40).await, [0, 1040, 2080]);
    }
}
