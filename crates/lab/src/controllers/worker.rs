//! The loop that most controllers share: events name objects, and workers bring these objects closer to their
//! specifications.
//!
//! It is client-go's work queue (util/workqueue): an object is never worked on twice at a time, events that come
//! meanwhile cause another pass afterwards, and failures are retried with a growing delay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, FuturesUnordered};

use super::queue::Queue;
use crate::status::Status;

/// Number of objects of one controller that are worked on at a time. Kubernetes' default (`ConcurrentDeploymentSyncs`
/// and its like in pkg/controller/*/config/v1alpha1/defaults.go).
const WORKERS: usize = 5;

/// The first and the longest delay after a failure (`DefaultTypedControllerRateLimiter` in
/// client-go's util/workqueue).
pub(super) const BACK_OFF: BackOff =
    BackOff { first: Duration::from_millis(5), longest: Duration::from_secs(1000) };

/// A delay that doubles with every failure in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackOff {
    /// Delay after the first failure.
    pub(super) first: Duration,
    /// Maximum delay.
    pub(super) longest: Duration,
}

impl BackOff {
    /// Returns the delay after this many failures in a row.
    pub(super) fn after(self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// Result of one look at an object: the time until the next look, if no event comes sooner, or the reason for a
/// failure.
pub(super) type Outcome = Result<Option<Duration>, Status>;

/// Works on the objects that events name, forever.
pub(super) async fn run<E, K, W>(
    mut events: BoxStream<'static, E>,
    back_off: BackOff,
    mut named: impl FnMut(E) -> Vec<K>,
    work: impl Fn(K) -> W,
) where
    K: Ord + Clone + std::fmt::Debug,
    W: Future<Output = Outcome>,
{
    let mut queue = Queue::new();
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
                        tracing::debug!(%status, ?key, failures = *count, "to be tried again");
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
