//! Rows for latencies and for the rate of a closed loop, from the bootstrap's ratio.
//!
//! One run per side cannot show how much runs vary, so the rows are either the same or inconclusive. The exception is a
//! pair of sides whose latencies do not overlap at all.

use super::blocks::{self, Blocks, Effort, FEW, FEWEST, Ratio, TooCorrelated};
use super::{CompareOptions, Sample};
use crate::judgements::comparison::{
    ChangeKind, ComparisonRow, DisjointLatencies, FEWEST_BEYOND, FigureChange, Judgement, LatencyKind,
    Method, Metric, MetricUnit, Quantile,
};
use rolldrop_explain::math::stats;

/// Minimum factor between latencies that count as not overlapping; larger than any difference seen so far between runs
/// of the same software on one machine.
const APART: f64 = 2.0;
/// Minimum number of responses that show where a side's distribution begins and ends.
const FEWEST_APART: u64 = 20;

/// Returns a comparison's rows for latencies and the rate.
pub(super) fn rows(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Vec<ComparisonRow> {
    let is_closed_loop = baseline.iter().chain(candidate).any(|sample| sample.is_closed_loop);
    let sides = [Blocks::new(baseline), Blocks::new(candidate)];
    let effort = Effort {
        confidence: options.confidence,
        tolerance: options.tolerance,
        replicates: options.replicates,
    };
    let apart = Disjoint::of(baseline, candidate);
    let kind = if is_closed_loop { LatencyKind::Service } else { LatencyKind::Response };
    let row = |quantile: Quantile| match sides.iter().all(|side| side.values() > 0) {
        true => Some(latency(&sides, kind, quantile, effort, apart)),
        false => without_blocks([baseline, candidate], kind, quantile, apart),
    };
    let mut rows: Vec<ComparisonRow> = Quantile::ALL.iter().copied().filter_map(row).collect();
    rows.push(rate([baseline, candidate], &sides, is_closed_loop, effort));
    if super::is_one_run(baseline, candidate) {
        rows.iter_mut().for_each(|row| withhold(row, options));
    }
    rows
}

/// Estimates the number of values beyond a quantile, on the side that has fewer.
pub(super) fn beyond([a, b]: &[Blocks; 2], q: f64) -> f64 {
    a.values().min(b.values()) as f64 * (1.0 - q)
}

fn unjudged(kind: LatencyKind, quantile: Quantile, method: Method) -> ComparisonRow {
    ComparisonRow::unknown(Metric::Latency(kind, quantile), MetricUnit::Milliseconds, method)
}

fn latency(
    sides: &[Blocks; 2],
    kind: LatencyKind,
    quantile: Quantile,
    effort: Effort,
    apart: Option<Disjoint>,
) -> ComparisonRow {
    let (q, row) = (quantile.share(), |method| unjudged(kind, quantile, method));
    let beyond = beyond(sides, q);
    if beyond < FEWEST_BEYOND {
        return row(Method::FewBeyond(beyond));
    }
    let [a, b] = sides;
    match apart {
        Some(apart) => apart.fill(row(Method::Apart(apart.bounds)), a.whole_quantile(q), b.whole_quantile(q)),
        None => filled(blocks::quantiles(a, b, q, effort), true, effort, row),
    }
}

/// Returns the row for a quantile if a side has no latencies over time, as in a saved baseline.
fn without_blocks(
    sides: [&[Sample]; 2],
    kind: LatencyKind,
    quantile: Quantile,
    apart: Option<Disjoint>,
) -> Option<ComparisonRow> {
    let answered = |side: &[Sample]| side.iter().map(|sample| sample.latency.n).sum::<u64>();
    let fewest = sides.map(answered).into_iter().min().filter(|n| *n > 0)?;
    let (beyond, row) = (fewest as f64 * (1.0 - quantile.share()), |method| unjudged(kind, quantile, method));
    if beyond < FEWEST_BEYOND {
        return Some(row(Method::FewBeyond(beyond)));
    }
    // Each side's value is the median of its runs.
    let [baseline, candidate] = sides.map(|side| {
        let mut all: Vec<f64> =
            side.iter().filter_map(|sample| sample.latency.quantile_ms(quantile)).collect();
        all.sort_by(f64::total_cmp);
        stats::nearest_rank(&all, 0.5)
    });
    Some(match (apart, baseline, candidate) {
        (Some(apart), Some(baseline), Some(candidate)) => {
            apart.fill(row(Method::Apart(apart.bounds)), baseline, candidate)
        }
        _ => ComparisonRow { baseline, candidate, ..row(Method::OneRun) },
    })
}

/// Two sides whose latencies do not overlap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disjoint {
    /// True if the candidate is the slower side.
    pub(super) is_worse: bool,
    pub(super) bounds: DisjointLatencies,
}

impl Disjoint {
    pub(super) fn of(baseline: &[Sample], candidate: &[Sample]) -> Option<Self> {
        let first = |side: &[Sample]| side.iter().map(|s| s.latency.p1_ms).fold(f64::INFINITY, f64::min);
        let last = |side: &[Sample]| side.iter().map(|s| s.latency.p99_ms).fold(0.0, f64::max);
        let is_enough = |side: &[Sample]| side.iter().all(|s| s.latency.n >= FEWEST_APART);
        if !is_enough(baseline) || !is_enough(candidate) {
            return None;
        }
        [(baseline, candidate, true), (candidate, baseline, false)].into_iter().find_map(
            |(faster, slower, is_worse)| {
                let bounds = DisjointLatencies { faster_ms: last(faster), slower_ms: first(slower) };
                (bounds.slower_ms >= APART * bounds.faster_ms).then_some(Self { is_worse, bounds })
            },
        )
    }

    fn fill(self, row: ComparisonRow, baseline: f64, candidate: f64) -> ComparisonRow {
        let verdict = if self.is_worse { Judgement::Worse } else { Judgement::Better };
        ComparisonRow { baseline: Some(baseline), candidate: Some(candidate), verdict: Some(verdict), ..row }
    }
}

/// Returns the row for the rate. The rate is a result in a closed loop, and an input in an open loop.
fn rate(samples: [&[Sample]; 2], sides: &[Blocks; 2], is_closed_loop: bool, effort: Effort) -> ComparisonRow {
    let row = |method| ComparisonRow::unknown(Metric::Rate, MetricUnit::PerSecond, method);
    let rate = |(samples, of): (&[Sample], &Blocks)| match of.whole_rate() {
        0.0 => {
            let seconds: f64 = samples.iter().map(|sample| sample.duration_s).sum();
            samples.iter().map(|sample| sample.total).sum::<u64>() as f64 / seconds.max(1e-9)
        }
        rate => rate,
    };
    let [baseline, candidate] = [0, 1].map(|i| Some(rate((samples[i], &sides[i]))));
    if !is_closed_loop {
        ComparisonRow { baseline, candidate, verdict: None, ..row(Method::Schedule) }
    } else if sides.iter().any(|side| side.whole_rate() == 0.0) {
        ComparisonRow { baseline, candidate, ..row(Method::OneRun) }
    } else {
        filled(blocks::rates(&sides[0], &sides[1], effort), false, effort, row)
    }
}

/// Returns a row with the bootstrap's result.
fn filled(
    found: Result<Ratio, TooCorrelated>,
    less_is_better: bool,
    effort: Effort,
    row: impl Fn(Method) -> ComparisonRow,
) -> ComparisonRow {
    let ratio = match found {
        Ok(ratio) => ratio,
        Err(TooCorrelated { segment_s, baseline, candidate }) => {
            let method = Method::Correlated { block_s: segment_s, needed_s: FEWEST * segment_s };
            return ComparisonRow { baseline: Some(baseline), candidate: Some(candidate), ..row(method) };
        }
    };
    let Ratio { baseline, candidate, segments, lower, upper, p_above, p_below } = ratio;
    let few = (segments < FEW).then_some(segments);
    let mut row = row(Method::Bootstrap { few, is_withheld: false });
    (row.baseline, row.candidate) = (Some(baseline), Some(candidate));
    row.change = Some(FigureChange { kind: ChangeKind::Ratio, estimate: candidate / baseline, lower, upper });
    let limit = 1.0 + effort.tolerance;
    if lower >= 1.0 / limit && upper <= limit {
        row.verdict = Some(Judgement::Same);
        return row;
    }
    row.p = Some((2.0 * p_above.min(p_below)).min(1.0));
    let is_better = (p_below < p_above) == less_is_better;
    row.verdict = Some(if is_better { Judgement::Better } else { Judgement::Worse });
    row
}

/// Withholds the verdicts "better" and "worse" for a latency or a rate if a side is a single run. The bootstrap sees
/// only the variation within a run, but runs of identical software differ too. Such a row counts as untested.
fn withhold(row: &mut ComparisonRow, options: &CompareOptions) {
    let Some(p) = row.p.take() else { return };
    row.verdict = Some(Judgement::CannotTell);
    if let Method::Bootstrap { is_withheld, .. } = &mut row.method {
        *is_withheld = p <= 1.0 - options.confidence + 1e-12;
    }
}
