//! Time from each virtual termination until the pod's last stream ends.
//!
//! Bounds use only independent terminations: two instants of a pod share no stream if they are at least the longest
//! need apart. The spacing varies so that the instants do not fall into step with streams that arrive at fixed
//! intervals. Estimates use all instants.

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};

use super::virtual_terminations::{OpenSpan, VirtualTerminations};
use super::{Estimate, StreamBudget, whole};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::SpanEnd;

/// Time from t0 until a pod's last stream ends, for many pods and instants.
#[derive(Clone, Debug)]
pub struct PodNeeds<'a> {
    record: &'a VirtualTerminations,
    /// Needs at all instants, by pod.
    by_pod: Vec<Vec<PodNeed>>,
    /// Needs at instants that share no stream.
    units: Vec<PodNeed>,
    /// Number of streams in the record per unit.
    streams_per_unit: f64,
}

/// Need of one pod at one instant.
#[derive(Clone, Copy, Debug)]
struct PodNeed {
    seconds: f64,
    /// True if the need may be larger: a stream was cut, or open when the record ended.
    is_censored: bool,
}

/// Share of terminations that cut no stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UncutShare {
    /// Best estimate, counting undecided terminations as cutting a stream. `None` if the record is shorter than the
    /// budget.
    pub estimate: Option<f64>,
    /// Lower bound, counting undecided terminations as cutting a stream.
    pub lower: f64,
    /// Upper bound, counting undecided terminations as cutting none.
    pub upper: f64,
}

impl<'a> PodNeeds<'a> {
    /// Derives the needs of pods that accept streams for `accepts_s` seconds after t0, and no longer than the longest
    /// propagation window.
    pub(super) fn of(record: &'a VirtualTerminations, accepts_s: f64) -> Self {
        let window_s = record.windows_s.iter().map(|(_, upper)| *upper).fold(0.0, f64::max).min(accepts_s);
        let by_pod: Vec<_> = record.pods.iter().map(|streams| needs(record, streams, window_s)).collect();
        let longest = |open: &OpenSpan| open.end_s - (open.start_s - window_s).max(0.0);
        let apart_s = record.pods.iter().flatten().map(longest).fold(0.0, f64::max);
        let apart = stats::index((apart_s / record.step_s).ceil()).max(1);
        let followed = record.followed(apart_s);
        // A fixed seed makes the same input yield the same numbers.
        let mut rng = SmallRng::seed_from_u64(apart as u64);
        let mut units = Vec::new();
        for needs in &by_pod {
            let mut at = rng.random_range(0..apart);
            while let Some(need) = needs[..followed].get(at) {
                units.push(*need);
                at += apart + rng.random_range(0..=apart / 2);
            }
        }
        let streams_per_unit = record.rate_per_pod() * 1.25 * apart as f64 * record.step_s;
        Self { record, by_pod, units, streams_per_unit }
    }

    /// Returns the number of independent virtual terminations.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Returns the smallest budget in seconds that saves all streams in a share of terminations, at `confidence`. Both
    /// arguments are in (0, 1). Source: Wilks 1941.
    pub fn covering(&self, share: f64, confidence: f64) -> Estimate<f64> {
        let n = self.units.len();
        let mut seconds: Vec<f64> =
            self.units.iter().filter(|need| !need.is_censored).map(|need| need.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        // A need that may be larger counts as larger than all others.
        let rank = |n: usize| stats::quantile_ranks(n, share, confidence).1;
        if let Some(seconds) = rank(n).and_then(|rank| seconds.get(rank - 1)) {
            return Estimate::Known(*seconds);
        }
        let censored = (n - seconds.len()) as f64 / n.max(1) as f64;
        let settles = |n: u64| {
            rank(stats::index(n as f64)).is_some_and(|rank| rank as f64 <= (1.0 - censored) * n as f64)
        };
        let more_units = stats::needed(n as u64, settles).map(|needed| needed as f64 - n as f64);
        Estimate::Unknown { more_streams: more_units.map(|units| whole(units * self.streams_per_unit)) }
    }

    /// Returns the share of terminations that cut no stream if streams have `budget_s` seconds. Each bound is valid at
    /// `confidence` (Clopper–Pearson).
    pub fn uncut(&self, budget_s: f64, confidence: f64) -> UncutShare {
        let n = self.units.len() as u64;
        let count =
            |saved: &dyn Fn(&PodNeed) -> bool| self.units.iter().filter(|need| saved(need)).count() as u64;
        let is_saved = |need: &PodNeed| need.seconds <= budget_s && !need.is_censored;
        let (mut saved, mut all) = (0_usize, 0_usize);
        for needs in &self.by_pod {
            let followed = &needs[..self.record.followed(budget_s)];
            all += followed.len();
            saved += followed.iter().filter(|need| is_saved(need)).count();
        }
        UncutShare {
            estimate: (all > 0).then(|| saved as f64 / all as f64),
            lower: stats::share_lower(count(&is_saved), n, confidence),
            upper: stats::share_upper(count(&|need| need.seconds <= budget_s), n, confidence),
        }
    }

    /// Returns the mean duration of a termination, in seconds: at least the sleep, then until the pod's last stream
    /// ends or is cut. `None` if the record is shorter than the budget.
    pub fn terminating_s(&self, sleep_s: f64, budget: StreamBudget) -> Option<f64> {
        let followed = self.record.followed(budget.seconds);
        let of_pod = |needs: &Vec<PodNeed>| -> f64 {
            needs[..followed].iter().map(|need| need.seconds.min(budget.seconds).max(sleep_s)).sum()
        };
        let n = (followed * self.by_pod.len()) as f64;
        (n > 0.0).then(|| self.by_pod.iter().map(of_pod).sum::<f64>() / n)
    }
}

/// Returns a pod's needs at all instants.
fn needs(record: &VirtualTerminations, streams: &[OpenSpan], window_s: f64) -> Vec<PodNeed> {
    let mut coming = streams.iter().peekable();
    // A stream that has ended adds nothing, so the latest end of all streams that have begun is enough.
    let (mut last_s, mut last_censored_s) = (0.0_f64, 0.0_f64);
    let instants = (0..record.per_pod).map(|i| record.at(i));
    instants
        .map(|at_s| {
            while let Some(open) = coming.next_if(|open| open.start_s <= at_s + window_s) {
                last_s = last_s.max(open.end_s);
                if open.ended == SpanEnd::Censored {
                    last_censored_s = last_censored_s.max(open.end_s);
                }
            }
            PodNeed { seconds: (last_s - at_s).max(0.0), is_censored: last_censored_s > at_s }
        })
        .collect()
}
