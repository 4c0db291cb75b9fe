//! Losses that occur in real traffic even without terminations.

use super::SECOND_NS;
use super::kept_attempts::{ChosenAttempts, Upstream};
use crate::model::Bounded;
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

/// Returns the number of losses to expect in a period as long as `ending`, based on equally long periods in which
/// upstreams were healthy: the range of the middle 95 % of periods, and the mean. Returns `None` if no upstream was
/// healthy for that long.
pub(super) fn background(
    attempts: &ChosenAttempts,
    ending: TimeSpan,
    well: &[(Upstream, TimeSpan)],
) -> Option<Bounded> {
    let length_ns = ending.until.ns_since(ending.from).max(LEAST_NS);
    let mut counts: Vec<u64> = Vec::new();
    for (upstream, TimeSpan { from, until }) in well {
        let periods = usize::try_from(until.ns_since(*from) / length_ns).unwrap_or(0);
        let mut counted = vec![0; periods];
        for at in attempts.lost_at(*upstream, |outcome| !needs_dead_pod(outcome)) {
            let period = usize::try_from(at.ns_since(*from).div_euclid(length_ns));
            if let Some(count) = period.ok().and_then(|period| counted.get_mut(period)) {
                *count += 1;
            }
        }
        counts.extend(counted);
    }
    counts.sort_unstable();
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
    let beyond = (counts.len() as f64 * BEYOND).floor() as usize;
    let (least, most) = (counts.get(beyond)?, counts.get(counts.len().checked_sub(1 + beyond)?)?);
    Some(Bounded { at_least: *least, at_most: *most, estimate: mean })
}
