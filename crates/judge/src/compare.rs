//! Compares two sides: better, worse, the same, or inconclusive.
//!
//! The unit is a group of requests that can be lost together: the termination if pods ended, else a block of time as
//! long as neighbouring requests are correlated (`blocks`). All rows share one chance of a false alarm (Holm). Runs
//! that differ in more than their results are refused.

mod blocks;
mod ends;
pub(crate) mod episodes;
pub mod history;
mod latency;
mod losses;
pub mod sample;
pub(crate) mod worse;

use std::collections::{BTreeMap, BTreeSet};

use crate::model::comparison::{Comparison, Difference, Judgement, Row, Side, SideChart};
use blocks::Blocks;
use latency::{FEWEST_BEYOND, ONE_RUN, QUANTILES, beyond};
pub use sample::Sample;

use crate::gate;
use crate::math::exact;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::figures::count;
use rolldrop_explain::model::{Check, CheckVerdict, Verdict};
use rolldrop_record::Outcome;
use rolldrop_record::expect::Worse;
use worse::Limited;

/// Required confidence, and limits below which differences do not matter.
#[derive(Clone, Debug)]
pub struct Options {
    /// Confidence of each interval, and of all verdicts together.
    pub confidence: f64,
    /// A latency or a rate within this share of the baseline's counts as the same.
    pub tolerance: f64,
    /// Number of times that the blocks of time are resampled.
    pub replicates: u32,
    /// True to compare sides even if they are not comparable.
    pub anyway: bool,
    /// Margins by which single figures may be worse. Such a figure has no other verdict.
    pub worse: Vec<Worse>,
}

impl Default for Options {
    fn default() -> Self {
        Self { confidence: 0.95, tolerance: 0.05, replicates: 2_000, anyway: false, worse: Vec::new() }
    }
}

/// Reason why two sides are not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// One side has no run.
    #[error("there is no run to compare")]
    Nothing,
    /// They differ in more than their results, or are invalid.
    #[error("the runs are not comparable: {}", in_words(.0))]
    Differs(Vec<Difference>),
}

fn in_words(differences: &[Difference]) -> String {
    let words =
        |d: &Difference| format!("{} is {} here and {} in the baseline", d.what, d.candidate, d.baseline);
    differences.iter().map(words).collect::<Vec<_>>().join("; ")
}

/// With fewer requests, a share of 1 % that fails would not show in one of twenty runs (Wilks 1941).
pub(crate) const FEWEST_REQUESTS: u64 = 299;
/// Quantiles of the latency that the chart marks.
const MARKED: [&str; 2] = ["p50", "p99"];

/// Compares a side with a baseline.
///
/// # Errors
/// If a side has no run, or if they differ in more than their results and the options do not ask to compare such sides.
pub fn compare(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &Options,
) -> Result<Comparison, Incomparable> {
    if baseline.is_empty() || candidate.is_empty() {
        return Err(Incomparable::Nothing);
    }
    let differences = differences(baseline, candidate);
    if !differences.is_empty() && !options.anyway {
        return Err(Incomparable::Differs(differences));
    }
    let mut rows = losses::rows(baseline, candidate, options);
    rows.extend(ends::terminations(baseline, candidate, options));
    rows.extend(ends::windows(baseline, candidate, options));
    rows.extend(latency::rows(baseline, candidate, options));
    rows.retain(|row| !options.worse.iter().any(|limit| worse::replaces(limit, &row.metric)));
    let mut limits = worse::by_few(baseline, candidate, options);
    judge(&mut rows, &mut limits, options);
    let any = |judgement| rows.iter().any(|row| row.verdict == Some(judgement));
    let verdict = [Judgement::Worse, Judgement::Better, Judgement::CannotTell].into_iter().find(|v| any(*v));
    Ok(Comparison {
        schema_version: 1,
        verdict: verdict.unwrap_or(Judgement::Same),
        confidence: options.confidence,
        tolerance: options.tolerance,
        baseline: side(baseline),
        candidate: side(candidate),
        differences,
        caveats: caveats(baseline, candidate),
        rows,
        limits: limits.into_iter().map(|limit| limit.check).collect(),
    })
}

/// Returns the chart data of each side of a comparison.
pub fn charts(baseline: &[Sample], candidate: &[Sample]) -> [SideChart; 2] {
    let blocks = [Blocks::new(baseline), Blocks::new(candidate)];
    let is_marked = |(name, q): &(&str, f64)| MARKED.contains(name) && beyond(&blocks, *q) >= FEWEST_BEYOND;
    let marked: Vec<(&str, f64)> = QUANTILES.into_iter().filter(is_marked).collect();
    let marks_ms = |of: &Blocks| marked.iter().map(|(name, q)| (*name, of.whole_quantile(*q))).collect();
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

/// Returns a side's dropped requests by steps of time, one run after the other, and the length of a step in seconds.
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

fn side(samples: &[Sample]) -> Side {
    Side {
        runs: samples.iter().map(|s| s.name.clone()).collect(),
        duration_s: samples.iter().map(|s| s.duration_s).sum(),
        total: samples.iter().map(|s| s.total).sum(),
        dropped: samples.iter().map(|s| s.dropped).sum(),
        terminations: samples.iter().map(|s| s.terminations.len()).sum(),
    }
}

/// Returns the values that a side's runs have for a key of their fingerprints.
fn values<'a>(side: &'a [Sample], key: &str) -> BTreeSet<&'a str> {
    side.iter().map(|s| s.fingerprint.get(key).map_or("not given", String::as_str)).collect()
}

fn differences(baseline: &[Sample], candidate: &[Sample]) -> Vec<Difference> {
    let mut found = Vec::new();
    let keys: BTreeSet<&String> =
        baseline.iter().chain(candidate).flat_map(|s| s.fingerprint.keys()).collect();
    for key in keys {
        let (baseline, candidate) = (values(baseline, key), values(candidate, key));
        if baseline != candidate || baseline.len() > 1 {
            let [baseline, candidate] =
                [baseline, candidate].map(|all| all.into_iter().collect::<Vec<_>>().join(" and "));
            found.push(Difference { what: key.clone(), baseline, candidate });
        }
    }
    let is_invalid = |s: &Sample| matches!(s.verdict, Verdict::Invalid { .. });
    let validity = |side: &[Sample]| match side.iter().find(|s| is_invalid(s)) {
        Some(Sample { verdict: Verdict::Invalid { why }, .. }) => format!("invalid ({})", why.join("; ")),
        _ => "valid".to_owned(),
    };
    if baseline.iter().chain(candidate).any(is_invalid) {
        let (baseline, candidate) = (validity(baseline), validity(candidate));
        found.push(Difference { what: "the measurement".into(), baseline, candidate });
    }
    found
}

fn caveats(baseline: &[Sample], candidate: &[Sample]) -> Vec<String> {
    let mut caveats = Vec::new();
    for sample in baseline.iter().chain(candidate) {
        if let Verdict::Partial { why } = &sample.verdict {
            caveats.push(format!("{} is partial: {}", sample.name, why.join("; ")));
        }
    }
    for (what, [then, now]) in scales(baseline, candidate) {
        caveats.push(format!("{what}: {then} in the baseline, {now} here"));
    }
    if is_one_run(baseline, candidate) {
        caveats.push(ONE_RUN.to_owned());
    }
    caveats
}

/// Returns the counts that scale by themselves and differ between the sides.
fn scales(baseline: &[Sample], candidate: &[Sample]) -> Vec<(String, [String; 2])> {
    let keys: BTreeSet<&String> = baseline.iter().chain(candidate).flat_map(|s| s.scale.keys()).collect();
    let values = |side: &[Sample], key: &String| {
        let values: BTreeSet<u64> = side.iter().filter_map(|s| s.scale.get(key).copied()).collect();
        values.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ")
    };
    let both = keys.into_iter().map(|key| (key.clone(), [baseline, candidate].map(|side| values(side, key))));
    both.filter(|(_, [then, now])| then != now).collect()
}

/// Returns true if a side is one run.
const fn is_one_run(baseline: &[Sample], candidate: &[Sample]) -> bool {
    baseline.len() == 1 || candidate.len() == 1
}

/// Judges figures of which less is better.
fn less_is_better(baseline: f64, candidate: f64) -> Judgement {
    if candidate < baseline { Judgement::Better } else { Judgement::Worse }
}

/// Keeps the verdicts that hold for all rows and limits together; the others become inconclusive.
fn judge(rows: &mut [Row], limits: &mut [Limited], options: &Options) {
    let of_rows = rows.iter().filter_map(|row| Some((row.p?, row.metric == "dropped")));
    let of_limits = limits.iter().filter_map(|limit| Some((limit.p?, limit.check.name == "dropped.worse")));
    let tested: Vec<(f64, bool)> = of_rows.chain(of_limits).collect();
    // The dropped requests, the most important figure, get half of the chance of a false alarm.
    let weight = |is_dropped| if is_dropped { (tested.len() - 1).max(1) as f64 } else { 1.0 };
    let p: Vec<(f64, f64)> = tested.iter().map(|(p, is_dropped)| (*p, weight(*is_dropped))).collect();
    let alpha = 1.0 - options.confidence;
    let mut adjusted = exact::holm(&p).into_iter();
    let by_chance = |own: f64| match own <= alpha {
        true => format!("; with {} figures tested, one such difference is expected by chance", p.len()),
        false => String::new(),
    };
    let mut is_open = |own: Option<f64>| {
        let own = own?;
        (adjusted.next()? > alpha + 1e-12).then(|| by_chance(own))
    };
    for row in rows {
        if let Some(why) = is_open(row.p) {
            row.verdict = Some(Judgement::CannotTell);
            row.why.push_str(&why);
        }
    }
    for limit in limits {
        if let Some(why) = is_open(limit.p) {
            limit.is_open_because(&why);
        }
    }
}

/// Checks that a run is not worse than its baseline, figure by figure. An inconclusive figure passes if it does not
/// even look worse.
pub fn checks(comparison: &Comparison) -> Vec<Check> {
    let check = |row: &Row| {
        // A figure that neither side has does not apply to these runs.
        row.baseline.or(row.candidate)?;
        let verdict = match row.verdict? {
            Judgement::Worse => CheckVerdict::Fail,
            Judgement::Better | Judgement::Same => CheckVerdict::Pass,
            Judgement::CannotTell if row.looks_worse_beyond(comparison.tolerance) => {
                CheckVerdict::Inconclusive
            }
            Judgement::CannotTell => CheckVerdict::Pass,
        };
        let value = |value: Option<f64>| value.map_or_else(|| "nothing".to_owned(), |v| row.unit.write(v));
        let (name, limit) =
            (format!("baseline.{}", row.metric), format!("not worse than {}", value(row.baseline)));
        Some(Check::plain(name, verdict, limit, value(row.candidate), row.why.clone()))
    };
    let sides = [&comparison.baseline, &comparison.candidate];
    let fewest = sides.map(|side| side.total).into_iter().min().unwrap_or(0);
    let too_few = (fewest < FEWEST_REQUESTS).then(|| {
        let (limit, why) =
            (format!("at least {FEWEST_REQUESTS} a side"), "so few would not show that 1 % fail");
        Check::plain("baseline.requests", CheckVerdict::Inconclusive, limit, count(fewest), why)
    });
    let rows = comparison.rows.iter().filter_map(check);
    too_few.into_iter().chain(rows).chain(comparison.limits.iter().cloned()).collect()
}

/// Combines the checks that need no baseline. A run can serve as a baseline regardless of its own comparison.
pub(crate) fn verdict_alone(checks: &[Check]) -> CheckVerdict {
    let alone = checks.iter().filter(|check| !worse::is_name(&check.name));
    gate::verdict(&alone.cloned().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
