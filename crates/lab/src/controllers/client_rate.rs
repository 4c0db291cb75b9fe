//! Rate limit on a controller's API calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::ClusterConfig;

/// Token bucket, like the one in each client-go client (`rest.Config` with `QPS` and `Burst`). Clones share the
/// bucket.
#[derive(Clone, Debug)]
pub(super) struct ClientRate {
    /// Interval between calls once the burst is used up.
    interval: Duration,
    /// Maximum time that a call may be ahead of schedule.
    credit: Duration,
    /// Time when the bucket will be full again.
    full_at: Arc<Mutex<Instant>>,
}

impl ClientRate {
    /// Returns the rate limit of one controller's client.
    pub(super) fn of(config: &ClusterConfig) -> Self {
        Self::new(config.controllers.kube_api_qps, config.controllers.kube_api_burst)
    }

    /// Creates a limit of `qps` calls per second on average, with up to `burst` calls at once.
    fn new(qps: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / qps.max(1);
        let credit = interval * burst.saturating_sub(1);
        Self { interval, credit, full_at: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Waits until another call may be sent.
    pub(super) async fn permit(&self) {
        let at = {
            let mut full_at = self.full_at.lock().await;
            let now = Instant::now();
            let due = (*full_at).max(now);
            *full_at = due + self.interval;
            due.checked_sub(self.credit).unwrap_or(now)
        };
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn client_rate_allows_burst_then_throttles() {
        let rate = ClientRate::new(20, 30);
        let start = Instant::now();
        for _ in 0..30 {
            rate.permit().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            rate.permit().await;
        }
        assert_eq!(start.elapsed().as_millis(), 1000);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let start = Instant::now();
        for _ in 0..30 {
            rate.permit().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
