//! `load.abort`: stops a load that loses too many requests, for targets that people depend on.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, interval};

use crate::cli::classes::ByClass;
use crate::coordinator::Losses;
use rolldrop_load::{Control, Progress};
use rolldrop_scenario::{Abort, Scenario};

/// Interval between looks at the counters.
const PERIOD: Duration = Duration::from_millis(200);

/// Watches a load until it loses too much, and returns how much that is. Never returns otherwise.
pub(super) async fn too_much_dropped(limit: &Abort, control: &Control) -> String {
    let mut drops = Drops { limit: *limit, seen: VecDeque::new() };
    let mut ticks = interval(PERIOD);
    loop {
        let now = ticks.tick().await;
        if let Some(why) = drops.look(now, &control.progress()) {
            return why;
        }
    }
}

/// Returns the warning for a scenario that disrupts while its load still rises.
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

/// The drops of the last period.
struct Drops {
    limit: Abort,
    /// Times of looks, each with the number of requests that had ended and been dropped by then.
    seen: VecDeque<(Instant, u64, u64)>,
}

impl Drops {
    /// Returns the reason why the load must stop, if it must.
    fn look(&mut self, now: Instant, progress: &Progress) -> Option<String> {
        let counted = by_class(progress);
        let (ended, dropped) = (counted.ended(), counted.dropped);
        // The period begins at the last look before it.
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

/// Requests that a running load has lost.
#[derive(Debug)]
pub(super) struct Lost<'a> {
    control: &'a Control,
}

impl<'a> Lost<'a> {
    pub(super) fn of(control: &'a Control) -> Self {
        Self { control }
    }
}

impl Losses for Lost<'_> {
    fn lost(&self) -> u64 {
        by_class(&self.control.progress()).dropped
    }
}

fn by_class(progress: &Progress) -> ByClass {
    ByClass::of(&progress.outcomes, &progress.error_statuses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::Outcome;

    #[tokio::test(start_paused = true)]
    async fn recent_drop_share_aborts_load() {
        let limit = Abort { share: 0.05, over: Duration::from_secs(10), requests: 50 };
        let mut drops = Drops { limit, seen: VecDeque::new() };
        let begun = Instant::now();
        let mut look = |s: u64, ok: u64, refused: u64, errors: &[(u16, u64)]| {
            let mut progress = Progress::default();
            progress.outcomes.add(Outcome::Ok, ok);
            progress.outcomes.add(Outcome::ConnectRefused, refused);
            progress.outcomes.add(Outcome::HttpError, errors.iter().map(|(_, count)| count).sum());
            progress.outcomes.add(Outcome::NotSent, 1000);
            progress.error_statuses.http = errors.iter().copied().collect();
            drops.look(begun + Duration::from_secs(s), &progress)
        };
        assert_eq!(look(0, 0, 10, &[]), None, "too few to say");
        assert_eq!(look(1, 1000, 40, &[]), None);
        assert_eq!(look(5, 1500, 60, &[(500, 400)]), None, "the app's own errors are no drops");
        // Drops before the period do not count.
        assert_eq!(look(16, 1600, 64, &[(500, 400)]), None);
        let why = look(17, 1600, 64, &[(500, 400), (503, 20)]).unwrap();
        assert_eq!(why, "24 of the last 124 requests were dropped (19.4 %, limit 5.0 % over 10 s)");
    }
}
