//! Mean number of streams that terminations with one budget cut, and predictions.
//!
//! A stream that outlasts the budget by some time is cut by every termination within a stretch of that length. The mean
//! is the sum of these stretches, divided by the length of the record. It counts every stream of the record, not only
//! those open at a few independent terminations, so it needs far fewer streams than the order statistics in `needs`.
//! Its variance is computed for a sum over independent streams, or over independent blocks of time if that variance is
//! larger, which happens if streams arrived in bursts or the rate changed (as a bootstrap of these blocks shows). With
//! few long streams the sum is skewed and bootstrap percentiles are too low, so the bounds come from a gamma
//! distribution with the same variance.

use serde::{Deserialize, Serialize};

use super::{Estimate, whole};
use rolldrop_explain::math::counts::{count_quantile, rate_quantile};
use rolldrop_explain::math::stats;

/// Minimum number of streams that outlast a budget. With fewer, nothing is known, because the longest stream in the
/// record is not the longest possible one.
pub(super) const LEAST_OUTLASTING: usize = 30;
/// Number of blocks that the period is divided into, by the starts of the streams.
const BLOCKS: usize = 40;

/// Streams that outlast a budget, at the instants of the virtual terminations.
#[derive(Clone, Debug)]
pub(super) struct Hits {
    /// Number of streams by pod and instant.
    by_instant: Vec<u32>,
    /// Start of each stream, and the number of instants at which it would be cut; other streams are left out.
    by_stream: Vec<(f64, usize)>,
    /// Time covered by the instants of a pod, in seconds.
    covered_s: f64,
}

impl Hits {
    pub(super) fn new(instants: usize, covered_s: f64) -> Self {
        Self { by_instant: vec![0; instants], by_stream: Vec::new(), covered_s }
    }

    /// Adds a stream and the instants at which it would be cut.
    pub(super) fn add(&mut self, start_s: f64, cut: impl Iterator<Item = usize>) {
        let mut hits = 0;
        for instant in cut {
            self.by_instant[instant] += 1;
            hits += 1;
        }
        if hits > 0 {
            self.by_stream.push((start_s, hits));
        }
    }
}

/// Streams that terminations with one budget cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cuts {
    /// Only the streams that a termination certainly cuts.
    known: Moments,
    /// Also the streams that the record leaves undecided.
    most: Moments,
}

/// Mean number of streams cut per termination.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanCut {
    /// Best estimate. It counts undecided streams as cut.
    pub estimate: f64,
    /// Lower bound.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
    /// Part of the estimate that is undecided: these streams were cut in the record before the budget ended, or arrived
    /// when the pod may no longer have received streams.
    pub undecided: f64,
}

/// Total number of streams that further terminations will cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutRange {
    /// Lower end of the interval.
    pub lower: u64,
    /// Upper end of the interval.
    pub upper: u64,
}

/// Moments of the number of streams cut per termination.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moments {
    mean: f64,
    /// Variance of the estimated mean.
    variance: f64,
    /// Variance of a termination's count, divided by the mean; at least 1.
    dispersion: f64,
    /// Largest part of the mean that a single stream contributes.
    largest: f64,
}

impl Moments {
    fn of(hits: &Hits) -> Self {
        let n = hits.by_instant.len() as f64;
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
        let sum: f64 = hits.by_stream.iter().map(|(_, hits)| *hits as f64).sum();
        let mean = sum / n;
        let apart = squares(&mut hits.by_stream.iter().map(|(_, hits)| *hits as f64));
        let mut blocks = [0.0; BLOCKS];
        for (start_s, hits_of_stream) in &hits.by_stream {
            // Streams that began before the period count in its last blocks, whose own streams are not seen in full.
            let share = (start_s / hits.covered_s).rem_euclid(1.0);
            blocks[stats::index(share * BLOCKS as f64).min(BLOCKS - 1)] += *hits_of_stream as f64;
        }
        let per_block = sum / BLOCKS as f64;
        let together =
            squares(&mut blocks.iter().map(|block| block - per_block)) * BLOCKS as f64 / (BLOCKS - 1) as f64;
        let spread = squares(&mut hits.by_instant.iter().map(|cut| f64::from(*cut) - mean)) / n;
        let largest = hits.by_stream.iter().map(|(_, hits)| *hits as f64).fold(0.0, f64::max);
        Self {
            mean,
            variance: apart.max(together) / (n * n),
            dispersion: (spread / mean).max(1.0),
            largest: largest / n,
        }
    }

    /// Returns the predicted variance of the number of streams that `n` further terminations cut.
    fn predicted(&self, n: f64) -> f64 {
        n * self.dispersion * self.mean + n * n * self.variance
    }
}

impl Cuts {
    /// Derives the cuts from the streams that are certainly cut, and from all streams that may be. `streams` is the
    /// number of streams in the record.
    pub(super) fn of(known: &Hits, most: &Hits, streams: usize) -> Estimate<Self> {
        let outlasting = known.by_stream.len();
        if outlasting < LEAST_OUTLASTING {
            let times = LEAST_OUTLASTING as f64 / outlasting.max(1) as f64;
            return Estimate::Unknown { more_streams: Some(whole(streams as f64 * (times - 1.0))) };
        }
        Estimate::Known(Self { known: Moments::of(known), most: Moments::of(most) })
    }

    /// Returns the mean number of streams cut per termination, with bounds that are each valid at `confidence`.
    pub fn mean(&self, confidence: f64) -> MeanCut {
        let Self { known, most } = self;
        // The upper bound allows for one more stream with the largest contribution (Fay and Feuer 1997).
        let (mean, variance) = (most.mean + most.largest, most.variance + most.largest * most.largest);
        MeanCut {
            estimate: most.mean,
            lower: rate_quantile(known.mean, known.variance, 1.0 - confidence),
            upper: rate_quantile(mean, variance, confidence),
            undecided: most.mean - known.mean,
        }
    }

    /// Predicts how many streams `terminations` further, independent terminations will cut in total: a two-sided
    /// interval at `confidence` that covers their own variation and the uncertainty of the mean.
    pub fn predict(&self, terminations: u64, confidence: f64) -> CutRange {
        let n = terminations as f64;
        let tail = (1.0 - confidence) / 2.0;
        let quantile = |of: &Moments, p: f64| count_quantile(n * of.mean, of.predicted(n), p);
        CutRange { lower: quantile(&self.known, tail), upper: quantile(&self.most, 1.0 - tail) }
    }
}
