//! Whether terminations met a consumer's clock at random phases.
//!
//! A consumer that looks at endpoints only periodically (a client that keeps a DNS answer, a load balancer's health
//! check) has windows that are a sample of its phase, from nothing to the whole period, plus a delay. Terminations
//! that always meet it at one phase show one such sample, however many they are.

use std::f64::consts::TAU;

use rolldrop_record::Stamp;

/// Below this chance that random phases lie so close together, they count as not random.
const ALPHA: f64 = 0.01;

/// How the terminations of a mode met a clock with this period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phases {
    /// The period, in seconds: an upper bound of windows is at least this, plus the time until the change arrives.
    pub(super) period_s: f64,
    /// Whether the data are consistent with uniformly random phases.
    pub(super) are_random: bool,
}

impl Phases {
    /// Of terminations that began at these times. Rayleigh's test: for phases at random, the chance that
    /// the mean of n unit vectors is R or longer is about exp(-n R²) (Mardia and Jupp, Directional
    /// Statistics, 2000, section 6.3).
    pub(super) fn of(period_s: f64, begun: impl IntoIterator<Item = Stamp>) -> Self {
        let (mut n, mut x, mut y) = (0.0, 0.0, 0.0);
        for at in begun {
            // Nanoseconds since 1970 are exact to less than a microsecond.
            let period_ns = period_s * 1e9;
            let angle = (at.unix_ns() as f64).rem_euclid(period_ns) / period_ns * TAU;
            n += 1.0;
            x += angle.cos();
            y += angle.sin();
        }
        let p = if n > 0.0 { (-(x * x + y * y) / n).exp() } else { 1.0 };
        Self { period_s, are_random: p >= ALPHA }
    }

    /// The finding's text if they are not random, for the clock of a DNS client.
    pub(super) fn in_step(&self, consumer: &str) -> Option<String> {
        let period_s = self.period_s;
        (!self.are_random).then(|| {
            format!("the pods ended at about one phase of the {period_s:.0} s for which {consumer} keeps an answer of the DNS")
        })
    }
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
    fn deletions_every_five_seconds_meet_a_clock_of_five_seconds_at_one_phase() {
        let in_step = Phases::of(5.0, (0..30).map(|n| at(f64::from(n) * 5.0 + 0.02 * f64::from(n % 3))));
        assert!(!in_step.are_random);
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        let jittered: Vec<Stamp> =
            (0..30).map(|n| at(f64::from(n) * 5.0 + rng.random_range(0.0..5.0))).collect();
        assert!(Phases::of(5.0, jittered).are_random);
        assert!(Phases::of(5.0, []).are_random);
    }
}
