//! Compares the two sides' totals of requests that were dropped or answered with an error.
//!
//! If pods ended, a run loses its requests together, and one run per side does not show how losses vary. The test then
//! assumes that the losses of equal runs vary by as much as their mean (a geometric distribution, which is a Poisson
//! distribution whose rate is exponentially distributed). If no pod ended, blocks of time are compared.

use super::blocks::{FEWEST, block_length};
use super::exposure::Exposure;
use super::{CompareOptions, Sample, less_is_better};
use crate::judgements::comparison::{ComparisonRow, Method, Metric, MetricUnit};
use crate::statistics::exact::{self, Proportion, Weighed};
use rolldrop_explain::math::stats;

/// Returns the rows for dropped requests and app errors.
pub(super) fn rows(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Vec<ComparisonRow> {
    let mut rows = vec![drops(baseline, candidate, options)];
    let sides = [baseline, candidate];
    let hits = sides.map(|side| share(side, |sample| sample.app_errors));
    if hits.iter().any(|side| side.hits > 0) {
        let mut row = figures(Metric::AppErrors, sides, hits, Exposure::Requests);
        judge_totals(&mut row, sides, hits, Exposure::Requests, options);
        rows.push(row);
    }
    rows
}

/// Counts a side's requests selected by `of`, out of all its requests.
fn share(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> Proportion {
    Proportion { hits: samples.iter().map(of).sum(), n: samples.iter().map(|sample| sample.total).sum() }
}

/// Returns a row with each side's rate per unit, the rate that its test compares.
fn figures(
    metric: Metric,
    sides: [&[Sample]; 2],
    hits: [Proportion; 2],
    exposure: Exposure,
) -> ComparisonRow {
    let rate = |i: usize| Some(hits[i].hits as f64 / exposure.units_of_all(sides[i]));
    let (unit, terminations) = match exposure {
        Exposure::Terminations => {
            let ended = |side: &[Sample]| side.iter().map(|run| run.terminations.len() as u64).sum();
            (MetricUnit::PerTermination, Some(sides.map(ended)))
        }
        Exposure::Requests | Exposure::Runs => (MetricUnit::Share, None),
    };
    ComparisonRow {
        baseline: rate(0),
        candidate: rate(1),
        ..ComparisonRow::unknown(metric, unit, Method::Totals { hits, terminations })
    }
}

fn drops(baseline: &[Sample], candidate: &[Sample], options: &CompareOptions) -> ComparisonRow {
    let sides = [baseline, candidate];
    let hits = sides.map(|side| share(side, |sample| sample.dropped));
    let is_lossy = hits.iter().any(|side| side.hits > 0);
    let all = || baseline.iter().chain(candidate);
    let exposure = Exposure::of_losses(all());
    let mut row = figures(Metric::Dropped, sides, hits, exposure);
    let ended = all().any(|sample| !sample.terminations.is_empty());
    if (ended || all().any(|sample| sample.blocks.is_empty())) && is_lossy {
        judge_totals(&mut row, sides, hits, exposure, options);
    } else if ended {
        (row.verdict, row.method) = (None, Method::ByTermination(hits));
    } else {
        judge_over_time(&mut row, baseline, candidate, hits, options);
    }
    row
}

/// Judges by the test of totals. The verdict points where the rates of the row do, because they have the exposure of
/// the test.
fn judge_totals(
    row: &mut ComparisonRow,
    sides: [&[Sample]; 2],
    hits: [Proportion; 2],
    exposure: Exposure,
    options: &CompareOptions,
) {
    let [exposed_a, exposed_b] = sides.map(|side| exposure.units_of_all(side));
    let runs_a = sides[0].len() as f64;
    row.p = exact::totals(
        hits.map(|side| side.hits),
        [runs_a, runs_a * exposed_b / exposed_a],
        1.0 - options.confidence,
    );
    if let (Some(_), Some(a), Some(b)) = (row.p, row.baseline, row.candidate) {
        row.verdict = Some(less_is_better(a, b));
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
