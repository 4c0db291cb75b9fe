//! Rate limit of a controller's calls to the API server.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::Config;

/// A token bucket, as client-go has one per client (`rest.Config` with `QPS` and `Burst`). Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ClientRate {
    /// Time from one call to the next, once the burst is used up.
    interval: Duration,
    /// Time by which a call may go out before it is due.
    credit: Duration,
    /// Time at which the bucket is full again.
    full_at: Arc<Mutex<Instant>>,
}

impl ClientRate {
    /// Returns the rate limit of one controller's client.
    pub(super) fn of(config: &Config) -> Self {
        Self::new(config.controllers.kube_api_qps, config.controllers.kube_api_burst)
    }

    /// Allows `qps` calls per second in the long run, `burst` of them at once.
    fn new(qps: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / qps.max(1);
        let credit = interval * burst.saturating_sub(1);
        Self { interval, credit, full_at: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Waits until one more call may go out.
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
