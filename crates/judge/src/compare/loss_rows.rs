//! Compares the two sides' totals of requests that were dropped or answered with an error.
//!
//! If pods ended, a run loses its requests together, and one run per side does not show how losses vary. The test then
//! assumes that the losses of equal runs vary by as much as their mean (a geometric distribution, which is a Poisson
//! distribution whose rate is exponentially distributed). If no pod ended, blocks of time are compared.

use super::blocks::{FEWEST, block_length};
use super::{CompareOptions, Sample, less_is_better};
use crate::judgements::comparison::{ComparisonRow, Judgement, Method, Metric, MetricUnit};
use crate::statistics::exact::{self, Proportion, Weighed};
use rolldrop_explain::math::stats;

/// Returns the rows for dropped requests and app errors.
pub(super) fn rows(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Vec<ComparisonRow> {
    let mut rows = vec![drops(baseline, candidate, options)];
    let errors = |sample: &Sample| sample.app_errors;
    let (a, b) = (share(baseline, errors), share(candidate, errors));
    if a.hits + b.hits > 0 {
        let mut row = figures(Metric::AppErrors, a, b);
        judge_totals(&mut row, baseline, candidate, [a, b], options);
        rows.push(row);
    }
    rows
}

/// Counts a side's requests selected by `of`, out of all its requests.
fn share(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> Proportion {
    Proportion { hits: samples.iter().map(of).sum(), n: samples.iter().map(|sample| sample.total).sum() }
}

fn figures(metric: Metric, a: Proportion, b: Proportion) -> ComparisonRow {
    ComparisonRow {
        baseline: Some(a.share()),
        candidate: Some(b.share()),
        ..ComparisonRow::unknown(metric, MetricUnit::Share, Method::Totals([a, b]))
    }
}

fn drops(baseline: &[Sample], candidate: &[Sample], options: &CompareOptions) -> ComparisonRow {
    let lost = |sample: &Sample| sample.dropped;
    let (a, b) = (share(baseline, lost), share(candidate, lost));
    let mut row = figures(Metric::Dropped, a, b);
    let all = || baseline.iter().chain(candidate);
    let ended = all().any(|sample| !sample.terminations.is_empty());
    if (ended || all().any(|sample| sample.blocks.is_empty())) && a.hits + b.hits > 0 {
        judge_totals(&mut row, baseline, candidate, [a, b], options);
    } else if ended {
        (row.verdict, row.method) = (None, Method::ByTermination([a, b]));
    } else {
        judge_over_time(&mut row, baseline, candidate, [a, b], options);
    }
    row
}

/// Returns each side's exposure to loss: the number of terminations, or of requests if a side has no termination.
fn exposures(baseline: &[Sample], candidate: &[Sample]) -> [f64; 2] {
    let ended = |samples: &[Sample]| samples.iter().map(|s| s.terminations.len()).sum::<usize>() as f64;
    let requests = |samples: &[Sample]| samples.iter().map(|s| s.total).sum::<u64>() as f64;
    let sides = [baseline, candidate];
    match sides.map(ended) {
        [a, b] if a > 0.0 && b > 0.0 => [a, b],
        _ => sides.map(requests),
    }
}

fn judge_totals(
    row: &mut ComparisonRow,
    baseline: &[Sample],
    candidate: &[Sample],
    [a, b]: [Proportion; 2],
    options: &CompareOptions,
) {
    let [exposed_a, exposed_b] = exposures(baseline, candidate);
    let runs_a = baseline.len() as f64;
    let runs_b = if exposed_a > 0.0 { runs_a * exposed_b / exposed_a } else { candidate.len() as f64 };
    row.verdict = Some(Judgement::CannotTell);
    if let Some(p) = exact::totals([a.hits, b.hits], [runs_a, runs_b], 1.0 - options.confidence) {
        row.p = Some(p);
        row.verdict = Some(less_is_better(a.share(), b.share()));
    }
}

/// Judges by blocks of time, for sides in which no pod ended.
fn judge_over_time(
    row: &mut ComparisonRow,
    baseline: &[Sample],
    candidate: &[Sample],
    [a, b]: [Proportion; 2],
    options: &CompareOptions,
) {
    let lost =
        |s: &Sample| s.blocks.iter().map(|b| b.lost() as f64 / b.total.max(1) as f64).collect::<Vec<_>>();
    let all = || baseline.iter().chain(candidate);
    let segment_s = all().map(|s| block_length(&lost(s)).ceil() * s.block_s).fold(0.0, f64::max);
    let (units_a, units_b) = (segments(baseline, segment_s), segments(candidate, segment_s));
    let blocks = [units_a.len(), units_b.len()];
    let fewest = units_a.len().min(units_b.len());
    row.method = if a.hits + b.hits == 0 {
        let missed = stats::share_upper(0, fewest as u64, options.confidence);
        Method::NoneLost { blocks, block_s: segment_s, missed }
    } else if (fewest as f64) < FEWEST {
        Method::LostTogether { block_s: segment_s, needed_s: FEWEST * segment_s }
    } else {
        row.p = Some(exact::permutation(&units_a, &units_b));
        row.verdict = Some(less_is_better(a.share(), b.share()));
        Method::BlockPermutation { blocks, block_s: segment_s }
    };
}

/// Returns the share of dropped requests in each block of time.
fn segments(samples: &[Sample], segment_s: f64) -> Vec<Weighed> {
    let mut units = Vec::new();
    for sample in samples {
        let blocks = stats::index((segment_s / sample.block_s).round()).max(1);
        for segment in sample.blocks.chunks(blocks) {
            let weight = segment.iter().map(|b| b.total).sum::<u64>() as f64;
            units.push(Weighed { value: segment.iter().map(|b| b.lost()).sum::<u64>() as f64, weight });
        }
    }
    units
}
