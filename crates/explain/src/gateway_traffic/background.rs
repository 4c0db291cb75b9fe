//! Losses that occur in real traffic even without terminations.

use std::collections::BTreeMap;

use super::SECOND_NS;
use super::kept_attempts::{ChosenAttempts, Upstream};
use crate::model::{BackgroundSpread, Bounded};
use crate::timeline::TimeSpan;
use rolldrop_record::Outcome;

/// Share of periods with fewer losses than the lower limit, and share of periods with more than the upper limit.
const BEYOND: f64 = 0.025;
/// Minimum length of a period, so that the shortest terminations do not yield thousands of periods.
const LEAST_NS: i64 = SECOND_NS;

/// Returns true if only a dead pod explains this outcome of an attempt at its address.
const fn needs_dead_pod(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::ConnectRefused | Outcome::ConnectTimeout | Outcome::ConnectUnreachable)
}

/// Returns true if an attempt got no connection. If the log does not show the reason, the attempt may also be part of
/// the background.
pub(super) const fn is_no_connection(outcome: Outcome) -> bool {
    needs_dead_pod(outcome) || matches!(outcome, Outcome::ConnectError)
}

/// Losses to expect in a period without a termination.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HealthyLosses {
    /// Range of the middle 95 % of periods, and the mean.
    pub(super) limits: Bounded,
    pub(super) spread: BackgroundSpread,
}

impl HealthyLosses {
    /// Returns the losses to expect in the same period at both upstreams.
    pub(super) fn plus(self, other: &Self) -> Self {
        Self { limits: self.limits.plus(&other.limits), spread: self.spread.plus(&other.spread) }
    }
}

/// Returns the losses to expect in a period as long as `ending`, based on equally long periods in which upstreams were
/// healthy. Returns `None` if no upstream was healthy for that long.
pub(super) fn background(
    attempts: &ChosenAttempts,
    ending: TimeSpan,
    well: &[(Upstream, TimeSpan)],
) -> Option<HealthyLosses> {
    let length_ns = ending.until.ns_since(ending.from).max(LEAST_NS);
    let origin = well.iter().map(|(_, span)| span.from).min()?;
    let mut counts: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for (upstream, TimeSpan { from, until }) in well {
        let periods = usize::try_from(until.ns_since(*from) / length_ns).unwrap_or(0);
        let mut counted = vec![0; periods];
        for at in attempts.lost_at(*upstream, |outcome| !needs_dead_pod(outcome)) {
            let period = usize::try_from(at.ns_since(*from).div_euclid(length_ns));
            if let Some(count) = period.ok().and_then(|period| counted.get_mut(period)) {
                *count += 1;
            }
        }
        for (moment, count) in (from.ns_since(origin) / length_ns..).zip(counted) {
            counts.entry(moment).or_default().push(count);
        }
    }
    healthy_losses(&counts)
}

/// Returns the losses to expect in a period, based on the numbers lost in healthy periods, grouped by the periods'
/// moments. Returns `None` if there are none.
pub(super) fn healthy_losses(counts: &BTreeMap<i64, Vec<u64>>) -> Option<HealthyLosses> {
    let mut sorted: Vec<u64> = counts.values().flatten().copied().collect();
    sorted.sort_unstable();
    let n = sorted.len() as f64;
    let mean = sorted.iter().sum::<u64>() as f64 / n;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
    let beyond = (n * BEYOND).floor() as usize;
    let (least, most) = (sorted.get(beyond)?, sorted.get(sorted.len().checked_sub(1 + beyond)?)?);
    Some(HealthyLosses {
        limits: Bounded { at_least: *least, at_most: *most, estimate: mean },
        spread: spread(counts, mean, n),
    })
}

/// Returns the spread of `n` counts with this mean. Counts of the same moment show how far losses at different pods
/// coincide; if there is only one pod, they are assumed to.
fn spread(counts: &BTreeMap<i64, Vec<u64>>, mean: f64, n: f64) -> BackgroundSpread {
    let (mut squares, mut products, mut pairs) = (0.0, 0.0, 0.0);
    for at_once in counts.values() {
        let deviations = || at_once.iter().map(|count| *count as f64 - mean);
        let own: f64 = deviations().map(|deviation| deviation * deviation).sum();
        squares += own;
        products += deviations().sum::<f64>().powi(2) - own;
        pairs += at_once.len() as f64 * (at_once.len() as f64 - 1.0);
    }
    // Counts below a mean of their own size are no evidence that they vary less than at random.
    let variance = (squares / (n - 1.0).max(1.0)).max(mean);
    let common = if pairs > 0.0 { (products / pairs).clamp(0.0, variance) } else { variance };
    let error = (variance + (n / counts.len() as f64 - 1.0) * common) / n;
    BackgroundSpread { own: variance - common, shared: common + error }
}
