//! Combines all exchanges with another clock: its offset at any time, with its uncertainty.
//!
//! One exchange bounds the offset at its own moment. Between exchanges clocks drift apart, but not
//! faster than `SLEW_PPM`, the maximum by which Linux corrects a clock (adjtimex(2)). So the bounds of
//! an exchange hold at other times too, wider by that much, and the offset is within all of them.
//! Samples that contradict each other at this rate show a clock that drifts faster. Then twice the lowest
//! rate without contradiction is used, because samples hide drift up to their own uncertainty.

use super::{ClockOffset, Stamp};

/// The fastest drift that needs no evidence, in parts per million.
const SLEW_PPM: i64 = 500;
/// How many rates are tried, each twice the one before, up to that of a clock that jumps.
const RATES: usize = 24;

/// Samples that need a faster drift than this contradict each other: it is twenty times the fastest at which
/// Linux corrects a clock, and a hundred times what a bad crystal does.
const PLAUSIBLE_PPM: i64 = 10_000;

/// The offset of a clock, from at least one sample.
#[derive(Clone, Debug)]
pub struct Offsets {
    /// In order of time.
    bounds: Vec<Bounds>,
    drift_ppm: i64,
    /// Whether no steadily running clock could have shown all of them.
    contradict: bool,
}

/// What that clock minus ours lies between, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// When, on that clock.
    at: Stamp,
    least_ns: i64,
    most_ns: i64,
}

impl Bounds {
    /// Wider, as they hold at another time.
    fn moved(self, at: Stamp, drift_ppm: i64) -> Self {
        Self { at, ..self.widened(at.ns_since(self.at), drift_ppm) }
    }

    /// Wider, as the clock was read at any time of the exchange.
    fn blurred(self, drift_ppm: i64) -> Self {
        self.widened(self.most_ns.saturating_sub(self.least_ns) / 2, drift_ppm)
    }

    /// Wider by what the clocks drift in `distance_ns`.
    fn widened(self, distance_ns: i64, drift_ppm: i64) -> Self {
        let drift_ns = (i128::from(distance_ns).abs() * i128::from(drift_ppm) + 999_999) / 1_000_000;
        let drift_ns = i64::try_from(drift_ns).unwrap_or(i64::MAX);
        let (least_ns, most_ns) =
            (self.least_ns.saturating_sub(drift_ns), self.most_ns.saturating_add(drift_ns));
        Self { least_ns, most_ns, ..self }
    }

    /// The intersection, at its own time.
    fn narrowed(self, other: Bounds) -> Self {
        Self {
            at: self.at,
            least_ns: self.least_ns.max(other.least_ns),
            most_ns: self.most_ns.min(other.most_ns),
        }
    }

    fn offset(self) -> ClockOffset {
        let width_ns = self.most_ns.saturating_sub(self.least_ns);
        ClockOffset {
            offset_ns: self.least_ns.saturating_add(width_ns / 2),
            uncertainty_ns: width_ns - width_ns / 2,
        }
    }
}

impl Offsets {
    /// From samples, each with the moment at which its question was sent, on our clock. `None` without any.
    pub fn of(samples: impl IntoIterator<Item = (Stamp, ClockOffset)>) -> Option<Self> {
        let bounds = |(sent, sample): (Stamp, ClockOffset)| {
            let ClockOffset { offset_ns, uncertainty_ns } = sample;
            // Read half-way between question and answer.
            let at = sent.shifted_ns(uncertainty_ns).shifted_ns(offset_ns);
            let (least_ns, most_ns) = (offset_ns - uncertainty_ns, offset_ns + uncertainty_ns);
            Bounds { at, least_ns, most_ns }
        };
        let mut samples: Vec<Bounds> = samples.into_iter().map(bounds).collect();
        if samples.is_empty() {
            return None;
        }
        samples.sort_by_key(|bounds| bounds.at);
        let mut rates = std::iter::successors(Some(SLEW_PPM), |ppm| ppm.checked_mul(2)).take(RATES);
        let Some(drift_ppm) = rates.find(|ppm| are_consistent(&narrowed(&samples, *ppm))) else {
            // A clock that was set: anything between may be.
            return Some(Self { bounds: vec![hull(&samples)], drift_ppm: SLEW_PPM, contradict: true });
        };
        let contradict = drift_ppm > PLAUSIBLE_PPM;
        let drift_ppm = if drift_ppm > SLEW_PPM { 2 * drift_ppm } else { drift_ppm };
        Some(Self { bounds: narrowed(&samples, drift_ppm), drift_ppm, contradict })
    }

    /// Whether the samples contradict each other, so that no offset is right.
    pub fn contradict(&self) -> bool {
        self.contradict
    }

    /// The offset at a moment of that clock.
    pub fn at(&self, at: Stamp) -> ClockOffset {
        let after = self.bounds.partition_point(|bounds| bounds.at < at);
        let [before, after] = [after.saturating_sub(1), after.min(self.bounds.len() - 1)]
            .map(|neighbour| self.bounds[neighbour].moved(at, self.drift_ppm));
        before.narrowed(after).offset()
    }

    /// One offset that is right at every sample.
    pub fn overall(&self) -> ClockOffset {
        hull(&self.bounds).offset()
    }
}

/// The smallest bounds that contain all of them; there is at least one.
fn hull(bounds: &[Bounds]) -> Bounds {
    bounds.iter().fold(bounds[0], |all, bounds| Bounds {
        at: all.at,
        least_ns: all.least_ns.min(bounds.least_ns),
        most_ns: all.most_ns.max(bounds.most_ns),
    })
}

/// Each bound within what all others allow at its time.
fn narrowed(samples: &[Bounds], drift_ppm: i64) -> Vec<Bounds> {
    let mut narrowed: Vec<Bounds> = samples.iter().map(|bounds| bounds.blurred(drift_ppm)).collect();
    for at in 1..narrowed.len() {
        narrowed[at] = narrowed[at].narrowed(narrowed[at - 1].moved(narrowed[at].at, drift_ppm));
    }
    for at in (1..narrowed.len()).rev() {
        narrowed[at - 1] = narrowed[at - 1].narrowed(narrowed[at].moved(narrowed[at - 1].at, drift_ppm));
    }
    narrowed
}

fn are_consistent(bounds: &[Bounds]) -> bool {
    bounds.iter().all(|bounds| bounds.least_ns <= bounds.most_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Samples of a clock that is `offset_ns` ahead at 0 and drifts; each with its half round trip, and where
    /// in it the clock was read, in percent.
    fn sampled(offset_ns: i64, drift_ppm: i64, exchanges: &[(i64, i64, i64)]) -> Option<Offsets> {
        let reading = |at: i64| at + offset_ns + at * drift_ppm / 1_000_000;
        Offsets::of(exchanges.iter().map(|&(sent, half, percent)| {
            let read = reading(sent + 2 * half * percent / 100);
            let [sent, read, answered] = [sent, read, sent + 2 * half].map(Stamp::from_unix_ns);
            (sent, ClockOffset::of_exchange(sent, read, answered))
        }))
    }

    const S: i64 = 1_000_000_000;
    const MS: i64 = 1_000_000;
    const US: i64 = 1000;

    #[test]
    fn what_is_known_grows_vague_with_the_distance_to_the_samples() {
        assert!(Offsets::of([]).is_none());
        let offsets = sampled(3 * S, 0, &[(10 * S, MS, 50), (12 * S, MS, 50)]).unwrap();
        let known = |at: i64| offsets.at(Stamp::from_unix_ns(at + 3 * S));
        for (known, uncertainty_ns) in [
            (known(10 * S + MS), MS),
            (known(11 * S + MS), MS + MS / 2),
            (known(14 * S + MS), 2 * MS),
            (offsets.overall(), MS),
        ] {
            assert_eq!(known.offset_ns, 3 * S);
            // And what a clock drifts in half a round trip.
            assert!((0..US).contains(&(known.uncertainty_ns - uncertainty_ns)), "{known:?}");
        }
    }

    #[test]
    fn a_good_sample_makes_those_near_it_better() {
        let offsets = sampled(0, 0, &[(0, MS / 10, 0), (S / 10, 20 * MS, 100)]).unwrap();
        let known = offsets.at(Stamp::from_unix_ns(S / 10));
        assert!(known.uncertainty_ns < MS / 5 && known.offset_ns.abs() <= known.uncertainty_ns, "{known:?}");
    }

    #[test]
    fn a_clock_that_was_set_is_anywhere_between() {
        let at =
            |offset_ns| (Stamp::from_unix_ns(5 - offset_ns), ClockOffset { offset_ns, uncertainty_ns: 0 });
        let known = Offsets::of([at(0), at(S)]).unwrap().overall();
        assert_eq!(known, ClockOffset { offset_ns: S / 2, uncertainty_ns: S / 2 });
    }

    proptest! {
        #[test]
        fn the_true_offset_is_always_within_what_is_stated(
            offset_ns in -3 * S..3 * S,
            drift_ppm in prop_oneof![-SLEW_PPM..SLEW_PPM, 1000..5000_i64, -5000..-1000_i64],
            exchanges in prop::collection::vec((0..30 * S, 1000..3 * MS, 0..=100_i64), 1..40),
            at in 0..30 * S,
        ) {
            // A fast drift shows only where samples lie far apart: each bound may lie two half round trips away
            // from the truth, and what that hides of the drift has to be less than half of it.
            let sent = || exchanges.iter().map(|exchange| exchange.0);
            let span_ns = sent().max().unwrap_or(0) - sent().min().unwrap_or(0);
            let shown_ns = span_ns * drift_ppm.abs() / 1_000_000;
            prop_assume!(drift_ppm.abs() <= SLEW_PPM || shown_ns > 26 * MS);
            let offsets = sampled(offset_ns, drift_ppm, &exchanges).unwrap();
            let truth = offset_ns + at * drift_ppm / 1_000_000;
            let known = offsets.at(Stamp::from_unix_ns(at + truth));
            // Distances are taken on that clock, which may show them shorter by what it drifts.
            let rounded_ns = 2 + 30 * S * SLEW_PPM / 1_000_000 * SLEW_PPM / 1_000_000;
            let most_ns = known.uncertainty_ns + rounded_ns;
            prop_assert!((known.offset_ns - truth).abs() <= most_ns, "{known:?}, truth {truth}");
        }
    }
}
