//! Estimates another clock's offset and uncertainty at any time, from all exchanges with that clock.
//!
//! One exchange bounds the offset at its own time. Between exchanges, clocks drift apart, but not faster than
//! `SLEW_PPM`, the maximum rate at which Linux corrects a clock (adjtimex(2)). The bounds from one exchange, widened by
//! that drift, are therefore valid at other times too, and the offset is within all of these bounds. If samples
//! contradict each other at this rate, a clock is drifting faster. The estimate then uses twice the lowest rate without
//! a contradiction, because samples hide drift up to their own uncertainty.

use super::Stamp;

/// Offset of another source's clock at a point in time, with its uncertainty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// The other clock minus ours, in nanoseconds.
    pub offset_ns: i64,
    /// Uncertainty in nanoseconds: the true offset is within offset ± uncertainty.
    pub uncertainty_ns: i64,
}

impl ClockOffset {
    /// Computes the offset from the send and response times of a request on our clock, and the reading of the other
    /// clock in between (as NTP does, but with a single reading on the other side).
    pub fn of_exchange(sent: Stamp, reading: Stamp, answered: Stamp) -> Self {
        let half = answered.ns_since(sent) / 2;
        Self { offset_ns: reading.ns_since(sent.shifted_ns(half)), uncertainty_ns: half + 1 }
    }
}

/// Drift assumed without evidence, in parts per million.
const SLEW_PPM: i64 = 500;
/// Number of rates to try, each twice the previous one; the highest covers even a clock that jumps.
const RATES: usize = 24;

/// Fastest plausible drift, in parts per million. Samples that require a faster drift contradict each other. This is
/// twenty times the fastest rate at which Linux corrects a clock, and a hundred times the drift of a bad crystal.
const PLAUSIBLE_PPM: i64 = 10_000;

/// Offset of another clock, estimated from at least one sample.
#[derive(Clone, Debug)]
pub struct Offsets {
    /// Bounds from the samples, in time order.
    bounds: Vec<OffsetBounds>,
    drift_ppm: i64,
    /// True if no steadily running clock could have produced all samples.
    contradict: bool,
}

/// Bounds on the other clock minus ours, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct OffsetBounds {
    /// Time on the other clock at which the bounds apply.
    at: Stamp,
    least_ns: i64,
    most_ns: i64,
}

impl OffsetBounds {
    /// Moves the bounds to another time, widening them by the possible drift.
    fn moved(self, at: Stamp, drift_ppm: i64) -> Self {
        Self { at, ..self.widened(at.ns_since(self.at), drift_ppm) }
    }

    /// Widens the bounds because the clock may have been read at any time during the exchange.
    fn blurred(self, drift_ppm: i64) -> Self {
        self.widened(self.most_ns.saturating_sub(self.least_ns) / 2, drift_ppm)
    }

    /// Widens the bounds by the possible drift over `distance_ns`.
    fn widened(self, distance_ns: i64, drift_ppm: i64) -> Self {
        let drift_ns = (i128::from(distance_ns).abs() * i128::from(drift_ppm) + 999_999) / 1_000_000;
        let drift_ns = i64::try_from(drift_ns).unwrap_or(i64::MAX);
        let (least_ns, most_ns) =
            (self.least_ns.saturating_sub(drift_ns), self.most_ns.saturating_add(drift_ns));
        Self { least_ns, most_ns, ..self }
    }

    /// Returns the intersection, at the time of `self`.
    fn narrowed(self, other: OffsetBounds) -> Self {
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
    /// Combines samples, each with the time on our clock at which the request was sent. Returns `None` without samples.
    pub fn of(samples: impl IntoIterator<Item = (Stamp, ClockOffset)>) -> Option<Self> {
        let bounds = |(sent, sample): (Stamp, ClockOffset)| {
            let ClockOffset { offset_ns, uncertainty_ns } = sample;
            // Assume that the clock was read halfway between request and response.
            let at = sent.shifted_ns(uncertainty_ns).shifted_ns(offset_ns);
            let (least_ns, most_ns) = (offset_ns - uncertainty_ns, offset_ns + uncertainty_ns);
            OffsetBounds { at, least_ns, most_ns }
        };
        let mut samples: Vec<OffsetBounds> = samples.into_iter().map(bounds).collect();
        if samples.is_empty() {
            return None;
        }
        samples.sort_by_key(|bounds| bounds.at);
        let mut rates = std::iter::successors(Some(SLEW_PPM), |ppm| ppm.checked_mul(2)).take(RATES);
        let Some(drift_ppm) = rates.find(|ppm| are_consistent(&narrowed(&samples, *ppm))) else {
            // The clock was set, so its offset may be anything in between.
            return Some(Self { bounds: vec![hull(&samples)], drift_ppm: SLEW_PPM, contradict: true });
        };
        let contradict = drift_ppm > PLAUSIBLE_PPM;
        let drift_ppm = if drift_ppm > SLEW_PPM { 2 * drift_ppm } else { drift_ppm };
        Some(Self { bounds: narrowed(&samples, drift_ppm), drift_ppm, contradict })
    }

    /// Returns true if the samples contradict each other, so no offset fits them all.
    pub fn contradict(&self) -> bool {
        self.contradict
    }

    /// Returns the offset at a time on the other clock.
    pub fn at(&self, at: Stamp) -> ClockOffset {
        let after = self.bounds.partition_point(|bounds| bounds.at < at);
        let [before, after] = [after.saturating_sub(1), after.min(self.bounds.len() - 1)]
            .map(|neighbour| self.bounds[neighbour].moved(at, self.drift_ppm));
        before.narrowed(after).offset()
    }

    /// Returns a single offset whose bounds include those of every sample.
    pub fn overall(&self) -> ClockOffset {
        hull(&self.bounds).offset()
    }
}

/// Returns the smallest bounds that contain all the given bounds. There must be at least one.
fn hull(bounds: &[OffsetBounds]) -> OffsetBounds {
    bounds.iter().fold(bounds[0], |all, bounds| OffsetBounds {
        at: all.at,
        least_ns: all.least_ns.min(bounds.least_ns),
        most_ns: all.most_ns.max(bounds.most_ns),
    })
}

/// Narrows each sample's bounds to what all other samples allow at that time.
fn narrowed(samples: &[OffsetBounds], drift_ppm: i64) -> Vec<OffsetBounds> {
    let mut narrowed: Vec<OffsetBounds> = samples.iter().map(|bounds| bounds.blurred(drift_ppm)).collect();
    for at in 1..narrowed.len() {
        narrowed[at] = narrowed[at].narrowed(narrowed[at - 1].moved(narrowed[at].at, drift_ppm));
    }
    for at in (1..narrowed.len()).rev() {
        narrowed[at - 1] = narrowed[at - 1].narrowed(narrowed[at].moved(narrowed[at - 1].at, drift_ppm));
    }
    narrowed
}

fn are_consistent(bounds: &[OffsetBounds]) -> bool {
    bounds.iter().all(|bounds| bounds.least_ns <= bounds.most_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Samples a drifting clock that is `offset_ns` ahead at time 0. An exchange is given as its time, half of its
    /// round trip, and the percentage of the round trip after which the clock was read.
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
    fn offset_uncertainty_is_half_round_trip() {
        let at = Stamp::from_unix_ns;
        let sample = ClockOffset::of_exchange(at(1000), at(5300), at(1200));
        assert_eq!(sample, ClockOffset { offset_ns: 4200, uncertainty_ns: 101 });
    }

    #[test]
    fn uncertainty_grows_away_from_samples() {
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
            // Allow for the drift during half a round trip.
            assert!((0..US).contains(&(known.uncertainty_ns - uncertainty_ns)), "{known:?}");
        }
    }

    #[test]
    fn good_sample_narrows_nearby_uncertainty() {
        let offsets = sampled(0, 0, &[(0, MS / 10, 0), (S / 10, 20 * MS, 100)]).unwrap();
        let known = offsets.at(Stamp::from_unix_ns(S / 10));
        assert!(known.uncertainty_ns < MS / 5 && known.offset_ns.abs() <= known.uncertainty_ns, "{known:?}");
    }

    #[test]
    fn clock_step_widens_overall_uncertainty() {
        let at =
            |offset_ns| (Stamp::from_unix_ns(5 - offset_ns), ClockOffset { offset_ns, uncertainty_ns: 0 });
        let known = Offsets::of([at(0), at(S)]).unwrap().overall();
        assert_eq!(known, ClockOffset { offset_ns: S / 2, uncertainty_ns: S / 2 });
    }

    proptest! {
        #[test]
        fn true_offset_stays_within_uncertainty(
            offset_ns in -3 * S..3 * S,
            drift_ppm in prop_oneof![-SLEW_PPM..SLEW_PPM, 1000..5000_i64, -5000..-1000_i64],
            exchanges in prop::collection::vec((0..30 * S, 1000..3 * MS, 0..=100_i64), 1..40),
            at in 0..30 * S,
        ) {
            // Fast drift is visible only if the samples are far enough apart. Each bound may be off by two half round
            // trips, and the drift that this hides must be less than half of the actual drift.
            let sent = || exchanges.iter().map(|exchange| exchange.0);
            let span_ns = sent().max().unwrap_or(0) - sent().min().unwrap_or(0);
            let shown_ns = span_ns * drift_ppm.abs() / 1_000_000;
            prop_assume!(drift_ppm.abs() <= SLEW_PPM || shown_ns > 26 * MS);
            let offsets = sampled(offset_ns, drift_ppm, &exchanges).unwrap();
            let truth = offset_ns + at * drift_ppm / 1_000_000;
            let known = offsets.at(Stamp::from_unix_ns(at + truth));
            // Intervals are measured on the other clock, whose drift may shorten them.
            let rounded_ns = 2 + 30 * S * SLEW_PPM / 1_000_000 * SLEW_PPM / 1_000_000;
            let most_ns = known.uncertainty_ns + rounded_ns;
            prop_assert!((known.offset_ns - truth).abs() <= most_ns, "{known:?}, truth {truth}");
        }
    }
}
