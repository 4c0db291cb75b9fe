//! Resamples whole blocks of time, each as long as the correlation between neighbouring requests lasts; an interval
//! that treated these requests as independent would be too narrow. (In this file, a *block* is a time bin of fixed
//! length, and a *segment* is a series of such bins that is resampled as a whole.)
//!
//! Sources: Künsch 1989 and Politis and Romano 1992 (the circular block bootstrap); Politis and White 2004 with Patton
//! 2009 (segment length). With few segments a bootstrap is overconfident. Its deviations are therefore widened as
//! Student's t widens those of a mean, and widened again to compensate for the correlation lost where segments are cut
//! (Künsch 1989, bias of the variance; Kendall 1954).

use std::ops::Range;

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::sample::{Sample, edge_ms, latency_ms};
use crate::statistics::exact::z;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::LatencyBucket;

/// Minimum number of segments; with fewer, the result is inconclusive.
pub(super) const FEWEST: f64 = 8.0;
/// Number of segments below which the correlation length is poorly known, which makes the interval rough.
pub(super) const FEW: f64 = 12.0;
/// Factor by which segments exceed the best length. Segments that are too long make the interval slightly wider, but
/// segments that are too short make it wrong.
const CAUTION: f64 = 1.5;
/// Smallest share of the variance that a bootstrap is assumed to capture.
const LEAST_SHOWN: f64 = 0.3;

/// Blocks of one side, stored so that four sums suffice to count the values up to a bin in any series of blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Blocks of each run. A segment never extends from one run into another.
    runs: Vec<RunBlocks>,
    /// Latency bins that contain values.
    bins: Vec<u32>,
    /// `sums[i * (bins + 1) + j]`: number of values in the first `i` blocks and the first `j` bins.
    sums: Vec<u64>,
    /// Number of requests due in the first `i` blocks.
    totals: Vec<u64>,
}

/// Blocks of one run. The runs of a side may differ in length, and so in the length of their blocks.
#[derive(Debug)]
struct RunBlocks {
    blocks: Range<usize>,
    block_s: f64,
}

impl RunBlocks {
    fn seconds(&self) -> f64 {
        self.blocks.len() as f64 * self.block_s
    }

    /// Returns the number of blocks in a segment of this length.
    fn blocks_in(&self, segment_s: f64) -> usize {
        whole(segment_s / self.block_s - 1e-9)
    }
}

/// A figure of each block of one run.
struct BlockSeries {
    figures: Vec<f64>,
    block_s: f64,
}

/// A resample: a list of segments.
type Resample = Vec<Range<usize>>;

impl Blocks {
    pub(super) fn new(samples: &[Sample]) -> Self {
        let mut bins: Vec<u32> =
            samples.iter().flat_map(|s| &s.blocks).flat_map(|b| b.latency.keys().copied()).collect();
        bins.sort_unstable();
        bins.dedup();
        let width = bins.len() + 1;
        let (mut runs, mut sums, mut totals) = (Vec::new(), vec![0; width], vec![0]);
        for sample in samples {
            let first = totals.len() - 1;
            for block in &sample.blocks {
                let above = sums.len() - width;
                let mut in_block = 0;
                sums.push(0);
                for (j, bin) in bins.iter().enumerate() {
                    in_block += block.latency.get(bin).copied().unwrap_or(0);
                    sums.push(sums[above + j + 1] + in_block);
                }
                totals.push(totals[totals.len() - 1] + block.total);
            }
            runs.push(RunBlocks { blocks: first..totals.len() - 1, block_s: sample.block_s });
        }
        Self { runs, bins, sums, totals }
    }

    /// Returns the number of latency values.
    pub(super) fn values(&self) -> u64 {
        self.below(&(0..self.len()), self.bins.len())
    }

    /// Returns the histogram of all latencies.
    pub(super) fn latency(&self) -> Vec<LatencyBucket> {
        let all = 0..self.len();
        let bucket = |(j, bin): (usize, &u32)| LatencyBucket {
            from_ms: edge_ms(*bin),
            to_ms: edge_ms(bin + 1),
            count: self.below(&all, j + 1) - self.below(&all, j),
        };
        self.bins.iter().enumerate().map(bucket).collect()
    }

    fn len(&self) -> usize {
        self.totals.len() - 1
    }

    fn whole(&self) -> Resample {
        self.runs.iter().map(|run| run.blocks.clone()).collect()
    }

    fn seconds(&self) -> f64 {
        self.runs.iter().map(RunBlocks::seconds).sum()
    }

    /// Returns the duration of a resample, in seconds.
    fn seconds_of(&self, draw: &Resample) -> f64 {
        let of_run = |run: &RunBlocks| {
            let is_own = |segment: &&Range<usize>| run.blocks.contains(&segment.start);
            draw.iter().filter(is_own).map(Range::len).sum::<usize>() as f64 * run.block_s
        };
        self.runs.iter().map(of_run).sum()
    }

    /// Returns the number of segments of this length.
    fn segments(&self, segment_s: f64) -> f64 {
        self.runs.iter().map(|run| run.blocks.len() as f64 / run.blocks_in(segment_s) as f64).sum()
    }

    /// Counts the values in the first `j` bins of a series of blocks.
    fn below(&self, blocks: &Range<usize>, j: usize) -> u64 {
        let at = |i: usize| self.sums[i * (self.bins.len() + 1) + j];
        at(blocks.end) - at(blocks.start)
    }

    /// Returns the index of the bin that contains a quantile of the resample.
    fn quantile_bin(&self, draw: &Resample, q: f64) -> usize {
        let upto = |j: usize| draw.iter().map(|blocks| self.below(blocks, j)).sum::<u64>();
        let rank = q * upto(self.bins.len()) as f64;
        let (mut low, mut high) = (1, self.bins.len().max(1));
        while low < high {
            let middle = usize::midpoint(low, high);
            if (upto(middle) as f64) < rank { low = middle + 1 } else { high = middle }
        }
        low - 1
    }

    /// Returns a quantile of the resample, in milliseconds.
    fn quantile(&self, draw: &Resample, q: f64) -> f64 {
        self.bins.get(self.quantile_bin(draw, q)).map_or(0.0, |bin| latency_ms(*bin))
    }

    /// Returns a quantile of all values, in milliseconds.
    pub(super) fn whole_quantile(&self, q: f64) -> f64 {
        self.quantile(&self.whole(), q)
    }

    /// Returns the requests per second of the resample.
    fn rate(&self, draw: &Resample) -> f64 {
        let requests: u64 = draw.iter().map(|b| self.totals[b.end] - self.totals[b.start]).sum();
        let seconds = self.seconds_of(draw);
        if seconds > 0.0 { requests as f64 / seconds } else { 0.0 }
    }

    /// Returns the requests per second of all blocks.
    pub(super) fn whole_rate(&self) -> f64 {
        self.rate(&self.whole())
    }

    /// Draws segments that last as long as the side, each beginning anywhere in time. A segment that reaches the end of
    /// its run continues at the run's beginning.
    fn draw(&self, segment_s: f64, rng: &mut SmallRng) -> Resample {
        let mut draw = Vec::new();
        let (seconds, mut drawn_s) = (self.seconds(), 0.0);
        while drawn_s < seconds - 1e-6 {
            let mut at_s = rng.random_range(0.0..seconds);
            let is_here = |run: &&RunBlocks| {
                let is_here = at_s < run.seconds();
                at_s -= if is_here { 0.0 } else { run.seconds() };
                is_here
            };
            let Some(run) = self.runs.iter().find(is_here) else { break };
            let RunBlocks { blocks, block_s } = run;
            let start = blocks.start + stats::index(at_s / block_s).min(blocks.len() - 1);
            let length = run.blocks_in(segment_s).min(blocks.len());
            let end = start + length;
            draw.push(start..end.min(blocks.end));
            if end > blocks.end {
                draw.push(blocks.start..blocks.start + (end - blocks.end));
            }
            drawn_s += length as f64 * block_s;
        }
        draw
    }

    /// Returns each block's share of values in bin `j` or beyond, as one series per run.
    fn shares_from(&self, j: usize) -> Vec<BlockSeries> {
        self.series(|i| {
            let (block, bins) = (i..i + 1, self.bins.len());
            let all = self.below(&block, bins);
            (all - self.below(&block, j)) as f64 / all.max(1) as f64
        })
    }

    /// Returns a figure for each block, as one series per run.
    fn series(&self, figure: impl Fn(usize) -> f64) -> Vec<BlockSeries> {
        let of = |run: &RunBlocks| BlockSeries {
            figures: run.blocks.clone().map(&figure).collect(),
            block_s: run.block_s,
        };
        self.runs.iter().map(of).collect()
    }
}

/// Rounds a length up to whole blocks, at least one.
fn whole(length: f64) -> usize {
    stats::index(length.ceil().max(1.0))
}

/// Bootstrap result for a ratio, candidate to baseline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) baseline: f64,
    pub(super) candidate: f64,
    /// Number of segments on the side that has fewer.
    pub(super) segments: f64,
    /// Lower and upper bound of the ratio.
    pub(super) lower: f64,
    pub(super) upper: f64,
    /// Probability of a ratio this high if the true ratio were 1 + tolerance.
    pub(super) p_above: f64,
    /// Probability of a ratio this low if the true ratio were 1 / (1 + tolerance).
    pub(super) p_below: f64,
}

/// Settings of the resampling, and the required confidence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) confidence: f64,
    pub(super) tolerance: f64,
    pub(super) replicates: u32,
}

/// Compares a latency quantile of both sides.
///
/// All latencies share one correlation, but a segment has too few values beyond a high quantile to show it. The
/// correlation is therefore also measured at lower quantiles.
pub(super) fn quantiles(a: &Blocks, b: &Blocks, q: f64, effort: Effort) -> Result<Ratio, TooCorrelated> {
    let beyond = |side: &Blocks, q: f64| side.shares_from(side.quantile_bin(&side.whole(), q) + 1);
    let series = [a, b].into_iter().flat_map(|side| [0.5, 0.9, q].into_iter().flat_map(|q| beyond(side, q)));
    ratio([a, b], &series.collect::<Vec<_>>(), |side, draw| side.quantile(draw, q), effort)
}

/// Share of a run's latencies beyond a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beyond {
    /// Observed share.
    pub(super) share: f64,
    /// One-sided lower bound of the share.
    pub(super) least: f64,
}

/// Computes the share of a run's latencies beyond a limit; `None` if the run has no latencies over time. The lower
/// bound comes from batch means over segments that are each as long as the correlation lasts.
pub(super) fn share_beyond(run: &Sample, limit_ms: f64, confidence: f64) -> Option<Beyond> {
    let side = Blocks::new(std::slice::from_ref(run));
    let upto = side.bins.partition_point(|bin| latency_ms(*bin) <= limit_ms);
    let values = |blocks: &Range<usize>| side.below(blocks, side.bins.len()) as f64;
    let beyond = |blocks: &Range<usize>| values(blocks) - side.below(blocks, upto) as f64;
    let whole_run = 0..side.len();
    let all = values(&whole_run);
    if all == 0.0 {
        return None;
    }
    let share = beyond(&whole_run) / all;
    let middle = side.quantile_bin(&side.whole(), 0.5) + 1;
    let series = [upto, middle].into_iter().flat_map(|j| side.shares_from(j));
    let length = whole(series.map(|series| block_length(&series.figures)).fold(1.0, f64::max));
    let segments: Vec<Range<usize>> =
        whole_run.clone().step_by(length).map(|first| first..(first + length).min(whole_run.end)).collect();
    let n = segments.len() as f64;
    let squares: f64 =
        segments.iter().map(|segment| (beyond(segment) - share * values(segment)).powi(2)).sum();
    let error = (squares * n / (n - 1.0)).sqrt() / all;
    let t = StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(confidence));
    let least = if error == 0.0 { share } else { (share - t * error).max(0.0) };
    Some(Beyond { share, least })
}

/// Compares the send rates of both sides.
pub(super) fn rates(a: &Blocks, b: &Blocks, effort: Effort) -> Result<Ratio, TooCorrelated> {
    let of = |side: &Blocks| side.series(|i| (side.totals[i + 1] - side.totals[i]) as f64);
    let series: Vec<BlockSeries> = [a, b].into_iter().flat_map(of).collect();
    ratio([a, b], &series, |side, draw| side.rate(draw), effort)
}

/// Error for requests whose correlation lasts so long that a run amounts to too few observations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TooCorrelated {
    /// Correlation length, in seconds.
    pub(super) segment_s: f64,
    pub(super) baseline: f64,
    pub(super) candidate: f64,
}

/// Computes a ratio. `series` shows the correlation length on either side; both sides use segments of the same length,
/// because one side alone often does not show the correlation.
fn ratio(
    sides: [&Blocks; 2],
    series: &[BlockSeries],
    figure: impl Fn(&Blocks, &Resample) -> f64,
    effort: Effort,
) -> Result<Ratio, TooCorrelated> {
    let [baseline, candidate] = sides.map(|side| figure(side, &side.whole()));
    let lasts_s = series.iter().map(|one| block_length(&one.figures).ceil() * one.block_s);
    let segment_s = lasts_s.fold(0.0, f64::max);
    let [first, second] = sides.map(|side| side.segments(segment_s));
    let fewest = first.min(second);
    if fewest < FEWEST {
        return Err(TooCorrelated { segment_s, baseline, candidate });
    }
    let observed = (candidate / baseline).ln();
    let shown = series.iter().map(|one| shown(&one.figures, segment_s / one.block_s)).fold(1.0, f64::min);
    let widening = widening(fewest, effort.confidence) / shown.max(LEAST_SHOWN).sqrt();
    // A fixed seed makes the same input yield the same numbers.
    let mut rng = SmallRng::seed_from_u64(u64::from(effort.replicates));
    let mut drawn: Vec<f64> = (0..effort.replicates)
        .map(|_| {
            let [a, b] = sides.map(|side| figure(side, &side.draw(segment_s, &mut rng)));
            observed + widening * ((b / a).ln() - observed)
        })
        .filter(|ratio| ratio.is_finite())
        .collect();
    drawn.sort_by(f64::total_cmp);
    let tail = (1.0 - effort.confidence) / 2.0;
    let at = |p: f64| drawn.get(whole(p * drawn.len() as f64) - 1).copied().unwrap_or(observed);
    let chance = |n: usize| (n + 1) as f64 / (drawn.len() + 1) as f64;
    let limit = effort.tolerance.ln_1p();
    Ok(Ratio {
        baseline,
        candidate,
        segments: fewest,
        lower: at(tail).exp(),
        upper: at(1.0 - tail).exp(),
        p_above: chance(drawn.iter().filter(|r| **r <= limit).count()),
        p_below: chance(drawn.iter().filter(|r| **r >= -limit).count()),
    })
}

/// Returns the factor by which a bootstrap's deviations over `n` segments are widened.
fn widening(n: f64, confidence: f64) -> f64 {
    let p = f64::midpoint(1.0, confidence);
    let t = StudentsT::new(0.0, 1.0, n - 1.0).map_or(1.0, |t| t.inverse_cdf(p) / z(p));
    t * (n / (n - 1.0)).sqrt()
}

/// Returns the autocovariance of a series, by lag.
fn covariance(series: &[f64]) -> impl Fn(usize) -> f64 {
    let n = series.len().max(1) as f64;
    let mean = series.iter().sum::<f64>() / n;
    move |lag| {
        let pairs = series.iter().zip(series.iter().skip(lag));
        pairs.map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>() / n
    }
}

/// Returns the best segment length for a series, in elements (Politis and White), increased by a safety factor.
pub(super) fn block_length(series: &[f64]) -> f64 {
    let n = series.len();
    let covariance = covariance(series);
    let variance = covariance(0);
    if n < 4 || variance <= 0.0 {
        return 1.0;
    }
    let size = n as f64;
    let patience = whole(size.log10().sqrt()).max(5);
    let longest = whole(size.sqrt()) + patience;
    let negligible = 2.0 * (size.log10() / size).sqrt();
    let covariances: Vec<f64> = (0..n.min(2 * longest + patience + 1)).map(covariance).collect();
    let is_quiet = |lag: usize| covariances.get(lag).is_none_or(|c| (c / variance).abs() < negligible);
    let quiet = (0..longest).find(|m| (m + 1..=m + patience).all(is_quiet)).unwrap_or(longest);
    let reach = (2 * quiet.max(1)).min(longest);
    let (mut spectrum, mut slope) = (variance, 0.0);
    for (lag, covariance) in covariances.iter().enumerate().take(reach + 1).skip(1) {
        let t = lag as f64 / reach as f64;
        let weight = if t <= 0.5 { 1.0 } else { 2.0 * (1.0 - t) };
        spectrum += 2.0 * weight * covariance;
        slope += 2.0 * weight * lag as f64 * covariance;
    }
    let best = (1.5 * (slope / spectrum).powi(2) * size).cbrt();
    let most = (3.0 * size.sqrt()).min(size / 3.0);
    // If the series oscillates so that its sum hardly varies, short segments suffice.
    let best = if spectrum > 0.0 { best } else { 1.0 };
    (CAUTION * best).clamp(1.0, most.max(1.0))
}

/// Returns the share of the variance of a series' mean that segments of this many elements capture; correlation across
/// a cut is lost. It assumes that the correlation decays geometrically from the first lag onwards, applies Kendall's
/// correction, and ignores the noise of single elements, which does not show up at any lag.
fn shown(series: &[f64], length: f64) -> f64 {
    const LAGS: usize = 6;
    let n = series.len() as f64;
    let covariance = covariance(series);
    let variance = covariance(0);
    let likeness: Vec<f64> = (1..=LAGS).map(|lag| (covariance(lag) / variance).max(0.0)).collect();
    let (first, last): (f64, f64) = (likeness[..LAGS - 1].iter().sum(), likeness[1..].iter().sum());
    // With little or no correlation, there is nothing to lose.
    if series.len() <= LAGS || variance <= 0.0 || first <= 0.1 {
        return 1.0;
    }
    let keeps = (last / first).min(1.0);
    let keeps = (keeps + (1.0 + 3.0 * keeps) / n).min(0.98);
    let whole = 1.0 + 2.0 * likeness[0] / (1.0 - keeps);
    let lost = 2.0 * likeness[0] / (1.0 - keeps).powi(2) / length;
    (1.0 - lost / whole).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_length_grows_with_autocorrelation() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut series = |keep: f64| {
            let mut x = 0.0;
            let noise = (0..600).map(|_| rng.random_range(-1.0..1.0));
            noise
                .map(|e| {
                    x = keep * x + e;
                    x
                })
                .collect::<Vec<f64>>()
        };
        assert!(block_length(&series(0.0)) <= 6.0);
        let alike = block_length(&series(0.8));
        assert!((10.0..60.0).contains(&alike), "{alike}");
        assert_eq!(block_length(&[3.0; 100]), 1.0);
    }

    #[test]
    fn short_segments_capture_less_variance() {
        let mut rng = SmallRng::seed_from_u64(2);
        let mut series = |keep: f64| {
            let mut x = 0.0;
            let next = |_| {
                x = keep * x + rng.random_range(-1.0..1.0);
                x
            };
            (0..3000).map(next).collect::<Vec<f64>>()
        };
        assert_eq!((shown(&series(0.0), 5.0), shown(&[3.0; 100], 5.0), shown(&[], 5.0)), (1.0, 1.0, 1.0));
        // The true value for AR(1) is 1 - 2 keep / (length (1 - keep^2)).
        let alike = series(0.8);
        assert!((shown(&alike, 20.0) - (1.0 - 1.6 / (20.0 * 0.36))).abs() < 0.05, "{}", shown(&alike, 20.0));
        assert!(shown(&alike, 80.0) > 0.93);
    }

    #[test]
    fn few_segments_widen_interval() {
        assert!((widening(1e6, 0.95) - 1.0).abs() < 1e-3);
        assert!((widening(10.0, 0.95) - 2.262 / 1.96 * (10.0_f64 / 9.0).sqrt()).abs() < 1e-3);
    }
}
