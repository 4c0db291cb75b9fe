//! Loop shared by most controllers: events name objects, and workers move these objects closer to their specs.
//!
//! The loop behaves like client-go's work queue (util/workqueue): no object is handled by two workers at the same time,
//! events that arrive in the meantime cause another pass afterwards, and failures are retried with increasing delays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, FuturesUnordered};

use super::queue::WorkQueue;
use crate::status::Status;

/// Number of objects that a controller handles concurrently. This is Kubernetes' default (`ConcurrentDeploymentSyncs`
/// and similar settings in pkg/controller/*/config/v1alpha1/defaults.go).
const WORKERS: usize = 5;

/// Minimum and maximum delay after a failure (`DefaultTypedControllerRateLimiter` in
/// client-go's util/workqueue).
pub(super) const BACK_OFF: BackOff =
    BackOff { first: Duration::from_millis(5), longest: Duration::from_secs(1000) };

/// Delay that doubles with each consecutive failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackOff {
    /// Delay after the first failure.
    pub(super) first: Duration,
    /// Maximum delay.
    pub(super) longest: Duration,
}

impl BackOff {
    /// Returns the delay after this many consecutive failures.
    pub(super) fn after(self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// Result of one pass over an object: the delay before the next pass, if no event triggers one sooner, or the reason
/// for a failure.
pub(super) type ReconcileResult = Result<Option<Duration>, Status>;

/// Handles the objects named by events, forever.
pub(super) async fn run<E, K, W>(
    mut events: BoxStream<'static, E>,
    back_off: BackOff,
    mut named: impl FnMut(E) -> Vec<K>,
    work: impl Fn(K) -> W,
) where
    K: Ord + Clone + std::fmt::Debug,
    W: Future<Output = ReconcileResult>,
{
    let mut queue = WorkQueue::new();
    let mut failures: BTreeMap<K, u32> = BTreeMap::new();
    let mut busy = BTreeSet::new();
    let mut again = BTreeSet::new();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(event) = events.next() => {
                for key in named(event) {
                    queue.add(key, Duration::ZERO);
                }
            }
            key = queue.next(), if running.len() < WORKERS => {
                if busy.insert(key.clone()) {
                    let work = work(key.clone());
                    running.push(async move { (key, work.await) });
                } else {
                    again.insert(key);
                }
            }
            Some((key, outcome)) = running.next() => {
                busy.remove(&key);
                if again.remove(&key) {
                    queue.add(key.clone(), Duration::ZERO);
                }
                match outcome {
                    Ok(next) => {
                        failures.remove(&key);
                        if let Some(delay) = next {
                            queue.add(key, delay);
                        }
                    }
                    Err(status) => {
                        let count = failures.entry(key.clone()).or_default();
                        *count += 1;
                        tracing::debug!(%status, ?key, failures = *count, "pass failed; retrying later");
                        queue.add(key, back_off.after(*count));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_doubles_to_limit() {
        let delays: Vec<_> = [1, 2, 3, 18, 19, 40].map(|n| BACK_OFF.after(n).as_millis()).into();
        assert_eq!(delays, [5, 10, 20, 655_360, 1_000_000, 1_000_000]);
    }
}
