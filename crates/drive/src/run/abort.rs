//! `load.abort`: stops a load that loses too many requests, for targets that people depend on.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, interval};

use super::FinishedRequests;
use rolldrop_scenario::{Abort, Scenario};

/// Interval between readings of the counters.
const PERIOD: Duration = Duration::from_millis(200);

/// Watches a load until it loses too many requests, and returns a description of the loss. Otherwise, never returns.
pub(super) async fn too_much_dropped(limit: &Abort, finished: impl Fn() -> FinishedRequests) -> String {
    let mut drops = Drops { limit: *limit, seen: VecDeque::new() };
    let mut ticks = interval(PERIOD);
    loop {
        let now = ticks.tick().await;
        if let Some(why) = drops.look(now, finished()) {
            return why;
        }
    }
}

/// Returns the warning for a scenario that disrupts while its load is still rising.
pub(super) fn disrupts_a_ramp(scenario: &Scenario) -> Option<String> {
    let steady_from = scenario.load.steady_from();
    let at = scenario.disruptions.iter().map(|disruption| disruption.at).min()?;
    (at < steady_from).then(|| {
        format!(
            "the first disruption begins {:.1} s into a load that rises until {:.1} s: the effects of the ramp and \
             of the disruption cannot be told apart",
            at.as_secs_f64(),
            steady_from.as_secs_f64()
        )
    })
}

/// Drops during the last period.
struct Drops {
    limit: Abort,
    /// Times of readings, each with the numbers of requests that had finished and been dropped by then.
    seen: VecDeque<(Instant, u64, u64)>,
}

impl Drops {
    /// Returns the reason that the load must stop, if there is one.
    fn look(
        &mut self,
        now: Instant,
        FinishedRequests { all: ended, dropped }: FinishedRequests,
    ) -> Option<String> {
        // The last reading before the period is the one to compare with.
        while self.seen.get(1).is_some_and(|(at, ..)| now.duration_since(*at) >= self.limit.over) {
            self.seen.pop_front();
        }
        let (_, ended_before, dropped_before) = self.seen.front().copied().unwrap_or((now, 0, 0));
        self.seen.push_back((now, ended, dropped));
        let (requests, lost) = (ended.saturating_sub(ended_before), dropped.saturating_sub(dropped_before));
        let share = lost as f64 / requests.max(1) as f64;
        (requests >= self.limit.requests && share > self.limit.share).then(|| {
            format!(
                "{lost} of the last {requests} requests were dropped ({:.1} %, limit {:.1} % over {:.0} s)",
                share * 100.0,
                self.limit.share * 100.0,
                self.limit.over.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn recent_drop_share_aborts_load() {
        let limit = Abort { share: 0.05, over: Duration::from_secs(10), requests: 50 };
        let mut drops = Drops { limit, seen: VecDeque::new() };
        let begun = Instant::now();
        let mut look = |s: u64, all, dropped| {
            drops.look(begun + Duration::from_secs(s), FinishedRequests { all, dropped })
        };
        assert_eq!(look(0, 10, 10), None, "too few to tell");
        assert_eq!(look(1, 1040, 40), None);
        assert_eq!(look(5, 1960, 60), None);
        // Drops before the period do not count.
        assert_eq!(look(16, 2064, 64), None);
        let why = look(17, 2084, 84).unwrap();
        assert_eq!(why, "24 of the last 124 requests were dropped (19.4 %, limit 5.0 % over 10 s)");
    }
}
