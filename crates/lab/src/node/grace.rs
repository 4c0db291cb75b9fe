//! The kubelet's grace period arithmetic. Pure.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kuberuntime/kuberuntime_container.go` (`killContainer`) and
//! `kuberuntime_termination_order.go`. The grace period is a number of whole seconds, and each wait is deducted from
//! it, truncated to whole seconds. The kill can therefore come up to one second late for every wait.

use std::time::Duration;

/// Minimum time between the stop signal and SIGKILL (`minimumGracePeriodInSeconds` in pkg/kubelet/kuberuntime).
const MINIMUM_GRACE_PERIOD_SECONDS: u64 = 2;

/// Grace period that a container has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grace {
    seconds: u64,
}

impl Grace {
    /// Starts with the grace period from a deletion. A forced deletion (0) gets 1 second.
    pub(super) fn new(seconds: i64) -> Self {
        Self { seconds: u64::try_from(seconds).unwrap_or(0).max(1) }
    }

    /// Returns the maximum time that a preStop hook, or the wait for other containers, may take. `None` if no time is
    /// left, which means that there is no wait at all.
    pub(super) fn longest_wait(self) -> Option<Duration> {
        (self.seconds > 0).then(|| Duration::from_secs(self.seconds))
    }

    /// Returns the grace period remaining after a wait.
    #[must_use]
    pub(super) fn after(self, waited: Duration) -> Self {
        Self { seconds: self.seconds.saturating_sub(waited.as_secs()) }
    }

    /// Returns the time between the stop signal and SIGKILL, which has a minimum.
    pub(super) fn stop_to_kill(self) -> Duration {
        Duration::from_secs(self.seconds.max(MINIMUM_GRACE_PERIOD_SECONDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of the stop signal and of SIGKILL, in ms from the start of the kill, for a grace period, a
    /// hook that takes `hook_ms`, and a wait of `turn_ms` for other containers.
    fn times(grace: i64, hook_ms: u64, turn_ms: u64) -> (u128, u128) {
        let mut grace = Grace::new(grace);
        let mut at = Duration::ZERO;
        for wait_ms in [hook_ms, turn_ms] {
            if let Some(longest) = grace.longest_wait() {
                let waited = longest.min(Duration::from_millis(wait_ms));
                at += waited;
                grace = grace.after(waited);
            }
        }
        (at.as_millis(), (at + grace.stop_to_kill()).as_millis())
    }

    #[test]
    fn kill_without_hook_waits_full_grace_period() {
        assert_eq!(times(5, 0, 0), (0, 5_000));
        assert_eq!(times(30, 0, 0), (0, 30_000));
        assert_eq!(times(40, 0, 0), (0, 40_000));
    }

    #[test]
    fn grace_period_is_at_least_two_seconds() {
        assert_eq!(times(1, 0, 0), (0, 2_000));
    }

    #[test]
    fn grace_period_cuts_off_overlong_hook() {
        assert_eq!(times(10, 15_000, 0), (10_000, 12_000));
    }

    #[test]
    fn hook_time_is_deducted_in_whole_seconds() {
        assert_eq!(times(10, 3_000, 0), (3_000, 10_000));
        assert_eq!(times(10, 3_900, 0), (3_900, 10_900));
    }

    #[test]
    fn forced_deletion_gives_hook_one_second() {
        assert_eq!(times(0, 0, 0), (0, 2_000));
        assert_eq!(times(0, 3_000, 0), (1_000, 3_000));
        assert_eq!(Grace::new(-5), Grace::new(1));
    }

    #[test]
    fn sidecar_wait_consumes_grace_period() {
        // The main container uses up the grace period; the signal follows immediately, and the kill 2 s later.
        assert_eq!(times(6, 0, 6_000), (6_000, 8_000));
        // The main container exits after 2.15 s.
        assert_eq!(times(10, 0, 2_150), (2_150, 10_150));
        // The hook runs first; then the container waits for its turn.
        assert_eq!(times(10, 2_000, 1_000), (3_000, 10_000));
    }
}
