//! Compares two sides, and judges the candidate as better, worse, the same, or inconclusive.
//!
//! The unit is a group of requests that can be lost together: a termination if pods ended, otherwise a block of time
//! that lasts as long as the correlation between neighbouring requests (`blocks`). All rows share one false-alarm rate
//! (Holm). Runs that differ in more than their results are rejected.

mod blocks;
pub(crate) mod episodes;
mod exposure;
mod latency_rows;
mod loss_rows;
pub mod run_history;
pub mod sample;
mod termination_rows;
pub(crate) mod worse_limits;

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use blocks::Blocks;
use latency_rows::beyond;
pub use sample::Sample;

use crate::gate;
use crate::judgements::comparison::{
    Caveat, Comparison, ComparisonRow, ComparisonSide, Difference, FEWEST_BEYOND, FEWEST_REQUESTS, Judgement,
    Method, Metric, Quantile, SideChart,
};
use crate::judgements::gate_check::{Check, CheckEvidence, CheckName};
use crate::statistics::exact;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{CheckVerdict, Verdict};
use rolldrop_record::Outcome;
use rolldrop_record::expect::Worse;
use worse_limits::Limited;

/// Required confidence, and thresholds below which differences do not matter.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Confidence of each interval, and joint confidence of all verdicts.
    pub confidence: f64,
    /// Maximum relative difference from the baseline at which a latency or a rate counts as the same.
    pub tolerance: f64,
    /// Number of bootstrap resamples of the blocks of time.
    pub replicates: u32,
    /// True if sides are compared even when they are not comparable.
    pub anyway: bool,
    /// Margins by which individual figures may be worse. These figures get no other verdict.
    pub worse: Vec<Worse>,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self { confidence: 0.95, tolerance: 0.05, replicates: 2_000, anyway: false, worse: Vec::new() }
    }
}

/// Reason why two sides cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incomparable {
    /// One side has no runs.
    Nothing,
    /// The sides differ in more than their results, or are invalid.
    Differs(Vec<Difference>),
}

/// Latency quantiles that the chart marks.
const MARKED: [Quantile; 2] = [Quantile::P50, Quantile::P99];

/// Compares a candidate with a baseline.
///
/// # Errors
/// Fails if a side has no runs, or if the sides differ in more than their results and the options do not allow that.
pub fn compare(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Result<Comparison, Incomparable> {
    with_limits(baseline, candidate, options).map(|(comparison, _)| comparison)
}

/// Checks, figure by figure, that a run is not worse than a baseline of only a few runs. An inconclusive figure passes
/// unless it looks worse.
///
/// # Errors
/// Same as [`compare`].
pub fn checks(
    baseline: &[Sample],
    candidate: &Sample,
    options: &CompareOptions,
) -> Result<Vec<Check>, Incomparable> {
    let (comparison, limits) = with_limits(baseline, slice::from_ref(candidate), options)?;
    let sides = [&comparison.baseline, &comparison.candidate];
    let fewest = sides.map(|side| side.total).into_iter().min().unwrap_or(0);
    let too_few = (fewest < FEWEST_REQUESTS).then(|| {
        let evidence = CheckEvidence::FewRequestsASide(fewest);
        Check::new(CheckName::Requests, CheckVerdict::Inconclusive, evidence)
    });
    let rows = comparison.rows.into_iter().filter_map(|row| check(row, comparison.tolerance));
    let limits = limits.into_iter().map(|limit| limit.check);
    Ok(too_few.into_iter().chain(rows).chain(limits).collect())
}

fn check(row: ComparisonRow, tolerance: f64) -> Option<Check> {
    // A figure that neither side has does not apply to these runs.
    let is_absent = match row.method {
        Method::Unbounded { unbounded, windows } => unbounded == windows,
        _ => row.baseline.or(row.candidate).is_none(),
    };
    if is_absent {
        return None;
    }
    let verdict = match row.verdict? {
        Judgement::Worse => CheckVerdict::Fail,
        Judgement::Better | Judgement::Same => CheckVerdict::Pass,
        Judgement::CannotTell if row.looks_worse_beyond(tolerance) => CheckVerdict::Inconclusive,
        Judgement::CannotTell => CheckVerdict::Pass,
    };
    Some(Check::new(CheckName::Baseline(row.metric.clone()), verdict, CheckEvidence::Row(Box::new(row))))
}

fn with_limits(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Result<(Comparison, Vec<Limited>), Incomparable> {
    if baseline.is_empty() || candidate.is_empty() {
        return Err(Incomparable::Nothing);
    }
    let differences = differences(baseline, candidate);
    if !differences.is_empty() && !options.anyway {
        return Err(Incomparable::Differs(differences));
    }
    let mut rows = loss_rows::rows(baseline, candidate, options);
    rows.extend(termination_rows::terminations(baseline, candidate, options));
    rows.extend(termination_rows::windows(baseline, candidate, options));
    rows.extend(latency_rows::rows(baseline, candidate, options));
    rows.retain(|row| !options.worse.iter().any(|limit| worse_limits::replaces(limit, &row.metric)));
    let mut limits = worse_limits::by_few(baseline, candidate, options);
    judge(&mut rows, &mut limits, options);
    let any = |judgement| rows.iter().any(|row| row.verdict == Some(judgement));
    let verdict = [Judgement::Worse, Judgement::Better, Judgement::CannotTell].into_iter().find(|v| any(*v));
    let comparison = Comparison {
        verdict: verdict.unwrap_or(Judgement::Same),
        confidence: options.confidence,
        tolerance: options.tolerance,
        baseline: side(baseline),
        candidate: side(candidate),
        differences,
        caveats: caveats(baseline, candidate),
        rows,
    };
    Ok((comparison, limits))
}

/// Returns the chart data of both sides.
pub fn charts(baseline: &[Sample], candidate: &[Sample]) -> [SideChart; 2] {
    let blocks = [Blocks::new(baseline), Blocks::new(candidate)];
    let is_known = |quantile: &Quantile| beyond(&blocks, quantile.share()) >= FEWEST_BEYOND;
    let marked: Vec<Quantile> = MARKED.into_iter().filter(is_known).collect();
    let mark_ms = |of: &Blocks, quantile: &Quantile| {
        (quantile.share(), quantile.as_str(), of.whole_quantile(quantile.share()))
    };
    let marks_ms = |of: &Blocks| marked.iter().map(|quantile| mark_ms(of, quantile)).collect();
    let [first, second] = &blocks;
    [(baseline, first), (candidate, second)].map(|(side, of)| {
        let (step_s, dropped) = dropped_over_time(side);
        let windows_s = windows_s(side);
        SideChart { latency: of.latency(), marks_ms: marks_ms(of), dropped, step_s, windows_s }
    })
}

fn windows_s(side: &[Sample]) -> BTreeMap<String, Vec<Option<f64>>> {
    let mut windows: BTreeMap<String, Vec<Option<f64>>> = BTreeMap::new();
    for (consumer, upper_s) in side.iter().flat_map(|s| &s.terminations).flat_map(|ended| &ended.windows_s) {
        windows.entry(consumer.clone()).or_default().push(*upper_s);
    }
    for all in windows.values_mut() {
        all.sort_by(|a, b| a.unwrap_or(f64::INFINITY).total_cmp(&b.unwrap_or(f64::INFINITY)));
    }
    windows
}

/// Returns a side's dropped requests per time step, one run after the other, and the length of a step in seconds.
fn dropped_over_time(side: &[Sample]) -> (f64, Vec<BTreeMap<Outcome, u64>>) {
    let step_s = side.iter().map(|sample| sample.block_s.max(1.0)).fold(1.0, f64::max);
    let mut seconds: Vec<BTreeMap<_, u64>> = Vec::new();
    for sample in side {
        let first = seconds.len();
        for (i, block) in sample.blocks.iter().enumerate() {
            let at = first + stats::index(i as f64 * sample.block_s / step_s + 1e-9);
            if seconds.len() <= at {
                seconds.resize_with(at + 1, BTreeMap::new);
            }
            for (outcome, n) in &block.dropped {
                *seconds[at].entry(*outcome).or_default() += n;
            }
        }
    }
    (step_s, seconds)
}

fn side(samples: &[Sample]) -> ComparisonSide {
    ComparisonSide {
        runs: samples.iter().map(|s| s.name.clone()).collect(),
        duration_s: samples.iter().map(|s| s.duration_s).sum(),
        total: samples.iter().map(|s| s.total).sum(),
        dropped: samples.iter().map(|s| s.dropped).sum(),
        terminations: samples.iter().map(|s| s.terminations.len()).sum(),
    }
}

/// Returns the values of a fingerprint key in a side's runs.
fn values(side: &[Sample], key: &str) -> BTreeSet<Option<String>> {
    side.iter().map(|s| s.fingerprint.get(key).cloned()).collect()
}

fn differences(baseline: &[Sample], candidate: &[Sample]) -> Vec<Difference> {
    let mut found = Vec::new();
    let keys: BTreeSet<&String> =
        baseline.iter().chain(candidate).flat_map(|s| s.fingerprint.keys()).collect();
    for name in keys {
        let (baseline, candidate) = (values(baseline, name), values(candidate, name));
        if baseline != candidate || baseline.len() > 1 {
            found.push(Difference::Setting { name: name.clone(), baseline, candidate });
        }
    }
    let invalid = |sample: &Sample| match &sample.verdict {
        Verdict::Invalid { why } => Some(why.clone()),
        Verdict::Valid | Verdict::Partial { .. } => None,
    };
    let (baseline, candidate) = (baseline.iter().find_map(invalid), candidate.iter().find_map(invalid));
    if baseline.is_some() || candidate.is_some() {
        found.push(Difference::Validity { baseline, candidate });
    }
    found
}

/// Returns the names of the settings and facts in which two runs differ, which makes them incomparable.
pub fn differing(one: &Sample, other: &Sample) -> Vec<String> {
    let setting = |difference| match difference {
        Difference::Setting { name, .. } => Some(name),
        Difference::Validity { .. } => None,
    };
    differences(slice::from_ref(one), slice::from_ref(other)).into_iter().filter_map(setting).collect()
}

fn caveats(baseline: &[Sample], candidate: &[Sample]) -> Vec<Caveat> {
    let partial = |sample: &Sample| match &sample.verdict {
        Verdict::Partial { why } => Some(Caveat::Partial { run: sample.name.clone(), why: why.clone() }),
        Verdict::Valid | Verdict::Invalid { .. } => None,
    };
    let mut caveats: Vec<Caveat> = baseline.iter().chain(candidate).filter_map(partial).collect();
    caveats.extend(scales(baseline, candidate));
    caveats.extend(is_one_run(baseline, candidate).then_some(Caveat::OneRun));
    caveats
}

/// Returns a caveat for each automatically scaled count that differs between the sides.
fn scales(baseline: &[Sample], candidate: &[Sample]) -> Vec<Caveat> {
    let keys: BTreeSet<&String> = baseline.iter().chain(candidate).flat_map(|s| s.scale.keys()).collect();
    let counts = |side: &[Sample], key: &String| -> BTreeSet<u64> {
        side.iter().filter_map(|s| s.scale.get(key).copied()).collect()
    };
    let caveat = |key: &String| {
        let (baseline, candidate) = (counts(baseline, key), counts(candidate, key));
        (baseline != candidate).then(|| Caveat::Scale { of: key.clone(), baseline, candidate })
    };
    keys.into_iter().filter_map(caveat).collect()
}

/// Returns true if either side is a single run.
const fn is_one_run(baseline: &[Sample], candidate: &[Sample]) -> bool {
    baseline.len() == 1 || candidate.len() == 1
}

/// Judges a figure for which less is better.
fn less_is_better(baseline: f64, candidate: f64) -> Judgement {
    if candidate < baseline { Judgement::Better } else { Judgement::Worse }
}

/// Keeps the verdicts that are valid for all rows and limits jointly, and makes the others inconclusive.
fn judge(rows: &mut [ComparisonRow], limits: &mut [Limited], options: &CompareOptions) {
    let of_rows = rows.iter().filter_map(|row| Some((row.p?, row.metric == Metric::Dropped)));
    let of_limits = limits.iter().filter_map(|limit| Some((limit.p?, limit.is_dropped())));
    let tested: Vec<(f64, bool)> = of_rows.chain(of_limits).collect();
    // The dropped requests, the most important figure, get half of the false-alarm rate.
    let weight = |is_dropped| if is_dropped { (tested.len() - 1).max(1) as f64 } else { 1.0 };
    let p: Vec<(f64, f64)> = tested.iter().map(|(p, is_dropped)| (*p, weight(*is_dropped))).collect();
    let alpha = 1.0 - options.confidence;
    let mut adjusted = exact::holm(&p).into_iter();
    // Returns the number of figures tested, if this figure differs only when tested alone.
    let by_chance = |own: f64| (own <= alpha).then_some(p.len());
    let mut is_open = |own: Option<f64>| {
        let own = own?;
        (adjusted.next()? > alpha + 1e-12).then(|| by_chance(own))
    };
    for row in rows {
        if let Some(by_chance) = is_open(row.p) {
            row.verdict = Some(Judgement::CannotTell);
            row.by_chance = by_chance;
        }
    }
    for limit in limits {
        if let Some(by_chance) = is_open(limit.p) {
            limit.leave_open(by_chance);
        }
    }
}

/// Combines the checks that need no baseline. A run can become a baseline regardless of its own comparison.
pub(crate) fn verdict_alone(checks: &[Check]) -> CheckVerdict {
    let alone = checks.iter().filter(|check| !matches!(check.name, CheckName::Worse(_)));
    gate::verdict(alone.map(|check| check.verdict))
}

#[cfg(test)]
mod tests;
