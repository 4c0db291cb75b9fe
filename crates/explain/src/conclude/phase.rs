//! Tests whether terminations hit a consumer's clock at random phases.
//!
//! Some consumers look at endpoints only periodically, such as a client that caches a DNS response, or a load
//! balancer's health check. A window for such a consumer is the remainder of the current period, from zero to all of
//! it, plus a delay. Terminations that always hit the same phase provide only one sample, regardless of their number.

use std::f64::consts::TAU;

use crate::model::account::ConsumerClock;
use crate::timeline::{PodEnd, Timeline};
use rolldrop_record::Stamp;
use rolldrop_record::run_info::Target;

/// Probability that chance alone makes phases this close, below which they do not count as random.
const ALPHA: f64 = 0.01;

/// Consumer with its own clock, and whether terminations hit that clock at random.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerPhase {
    pub(crate) clock: ConsumerClock,
    /// True if the terminations are consistent with uniformly random phases of the period.
    pub(crate) is_at_random: bool,
}

impl ConsumerClock {
    /// Returns the longest window that the consumer can have, in seconds.
    pub(crate) fn longest_s(&self) -> f64 {
        self.period_s + self.news_s
    }
}

/// Returns the consumers with their own clock, and whether these terminations hit that clock at random.
pub(crate) fn clocks<'a>(
    timeline: &'a Timeline,
    ends: impl Iterator<Item = &'a PodEnd> + Clone,
) -> Vec<ConsumerPhase> {
    let withdrawn =
        |end: &PodEnd| end.stages.endpoint_terminating.or(end.stages.endpoint_removed).or(end.gone());
    let news_s = |end: &PodEnd| withdrawn(end).map(|at| at.seconds_since(end.t0.earliest));
    let news_s = ends.clone().filter_map(news_s).fold(0.0, f64::max);
    let clock = |target: &Target| {
        // A DNS response that is not cached has no phase.
        let period_s = timeline.period_s(target).filter(|period_s| *period_s > 0.0)?;
        let is_at_random = are_random(period_s, ends.clone().map(|end| end.t0.latest));
        Some(ConsumerPhase {
            clock: ConsumerClock { consumer: target.consumer.clone(), period_s, news_s },
            is_at_random,
        })
    };
    timeline.info.targets.iter().filter_map(clock).collect()
}

/// Returns true if these times are consistent with uniformly random phases of a period. Rayleigh's test: for random
/// phases, the chance that the mean of n unit vectors has a length of R or more is about exp(-n R²) (Mardia and Jupp,
/// Directional Statistics, 2000, section 6.3).
fn are_random(period_s: f64, times: impl IntoIterator<Item = Stamp>) -> bool {
    let (mut n, mut x, mut y) = (0.0, 0.0, 0.0);
    for at in times {
        // As `f64`, nanoseconds since 1970 are exact to less than a microsecond.
        let period_ns = period_s * 1e9;
        let angle = (at.unix_ns() as f64).rem_euclid(period_ns) / period_ns * TAU;
        n += 1.0;
        x += angle.cos();
        y += angle.sin();
    }
    let p = if n > 0.0 { (-(x * x + y * y) / n).exp() } else { 1.0 };
    p >= ALPHA
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::{RngExt, SeedableRng};

    use super::*;

    fn at(seconds: f64) -> Stamp {
        Stamp::from_unix_ns(1_800_000_000_000_000_000) + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn periodic_deletions_lock_to_clock_phase() {
        assert!(!are_random(5.0, (0..30).map(|n| at(f64::from(n) * 5.0 + 0.02 * f64::from(n % 3)))));
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        let jittered: Vec<Stamp> =
            (0..30).map(|n| at(f64::from(n) * 5.0 + rng.random_range(0.0..5.0))).collect();
        assert!(are_random(5.0, jittered));
        assert!(are_random(5.0, []));
    }
}
