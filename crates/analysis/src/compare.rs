//! Compares two sides: better, worse, the same, or inconclusive.
//!
//! The unit is what can be lost together: the termination if pods ended, else a block of time as long as neighbouring
//! requests are correlated (`blocks`). All rows share one chance of a false alarm (Holm). Runs that differ in more
//! than their results are refused.

mod blocks;
pub(super) mod episodes;
mod exact;
pub mod model;
pub mod sample;

use std::collections::{BTreeMap, BTreeSet};

use blocks::{Blocks, Effort, FEW, FEWEST, Ratio, TooCorrelated, block_length};
use exact::{Of, Weighed};
use model::{Change, ChangeKind, Comparison, Difference, Judgement, Row, Side, SideChart, Unit};
pub use sample::Sample;

use super::figures::count;
use super::model::{Mode, Verdict};
use super::stats;
use rolldrop_record::Outcome;

/// The required confidence, and which differences are too small to matter.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Confidence of each interval, and of all verdicts together.
    pub confidence: f64,
    /// A latency or a rate within this share of the baseline's is the same.
    pub tolerance: f64,
    /// How often the blocks of time are resampled.
    pub replicates: u32,
    /// Whether to compare what is not comparable.
    pub anyway: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { confidence: 0.95, tolerance: 0.05, replicates: 2_000, anyway: false }
    }
}

/// Why two sides are not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// There is nothing on one side.
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

/// The power at which a number of terminations counts as enough.
const POWER: f64 = 0.8;
/// A quantile needs this many values beyond it.
const FEWEST_BEYOND: f64 = 10.0;
/// Why a latency is inconclusive if a side is one run.
const ONE_RUN: &str = "one run a side does not show how much runs differ from each other: give each side several \
                       runs, made in turn";
/// The quantiles of the latency.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Those that the chart marks.
const MARKED: [&str; 2] = ["p50", "p99"];

/// Compares a side with a baseline.
///
/// # Errors
/// When they differ in more than their results, and the policy does not compare such sides.
pub fn compare(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &Options,
) -> Result<Comparison, Incomparable> {
    let (Some(first), false) = (baseline.first(), candidate.is_empty()) else {
        return Err(Incomparable::Nothing);
    };
    let differences = differences(baseline, candidate);
    if !differences.is_empty() && !options.anyway {
        return Err(Incomparable::Differs(differences));
    }
    let is_closed_loop = first.is_closed_loop;
    let mut rows = drops(baseline, candidate, options);
    rows.extend(terminations(baseline, candidate, options));
    rows.extend(windows(baseline, candidate));
    let over_time = rows.len();
    let sides = [Blocks::new(baseline), Blocks::new(candidate)];
    let effort = Effort {
        confidence: options.confidence,
        tolerance: options.tolerance,
        replicates: options.replicates,
    };
    for (name, q) in QUANTILES {
        rows.extend(latency(&sides, name, q, is_closed_loop, effort));
    }
    rows.push(rate(&sides, is_closed_loop, effort));
    if is_one_run(baseline, candidate) {
        rows[over_time..].iter_mut().for_each(|row| withhold(row, options));
    }
    judge(&mut rows, options);
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
    })
}

/// What the chart of a comparison draws of each side.
pub fn charts(baseline: &[Sample], candidate: &[Sample]) -> [SideChart; 2] {
    let blocks = [Blocks::new(baseline), Blocks::new(candidate)];
    let is_marked = |(name, q): &(&str, f64)| MARKED.contains(name) && beyond(&blocks, *q) >= FEWEST_BEYOND;
    let marked: Vec<(&str, f64)> = QUANTILES.into_iter().filter(is_marked).collect();
    let marks_ms = |of: &Blocks| marked.iter().map(|(name, q)| (*name, of.whole_quantile(*q))).collect();
    let [first, second] = &blocks;
    [(baseline, first), (candidate, second)].map(|(side, of)| {
        let (step_s, dropped) = dropped_over_time(side);
        SideChart { latency: of.latency(), marks_ms: marks_ms(of), dropped, step_s }
    })
}

/// The dropped requests of a side, by steps of so many seconds, one run after the other.
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

/// The values that a side's runs have for a key of their fingerprints.
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
    if is_one_run(baseline, candidate) {
        caveats.push(ONE_RUN.to_owned());
    }
    caveats
}

/// Whether a side is one run.
const fn is_one_run(baseline: &[Sample], candidate: &[Sample]) -> bool {
    baseline.len() == 1 || candidate.len() == 1
}

/// Better and worse for figures where less is better.
fn less_is_better(baseline: f64, candidate: f64) -> Judgement {
    if candidate < baseline { Judgement::Better } else { Judgement::Worse }
}

/// The dropped requests: judged over blocks of time, if no pod ended.
fn drops(baseline: &[Sample], candidate: &[Sample], options: &Options) -> Vec<Row> {
    let share = |samples: &[Sample]| {
        let side = side(samples);
        Of { hits: side.dropped, n: side.total }
    };
    let (a, b) = (share(baseline), share(candidate));
    let mut row = Row {
        baseline: Some(a.share()),
        candidate: Some(b.share()),
        verdict: None,
        why: format!("{} of {}, then {} of {}", count(a.hits), count(a.n), count(b.hits), count(b.n)),
        ..Row::unknown("dropped", "dropped requests", Unit::Share)
    };
    if baseline.iter().chain(candidate).any(|s| !s.terminations.is_empty()) {
        row.why.push_str("; judged by termination");
        return vec![row];
    }
    row.verdict = Some(Judgement::CannotTell);
    let lost =
        |s: &Sample| s.blocks.iter().map(|b| b.lost() as f64 / b.total.max(1) as f64).collect::<Vec<_>>();
    let all = || baseline.iter().chain(candidate);
    let segment_s = all().map(|s| block_length(&lost(s)).ceil() * s.block_s).fold(0.0, f64::max);
    let (units_a, units_b) = (segments(baseline, segment_s), segments(candidate, segment_s));
    let fewest = units_a.len().min(units_b.len());
    let over = format!("{} and {} blocks of {segment_s:.1} s", units_a.len(), units_b.len());
    row.why = if a.hits + b.hits == 0 {
        let unseen = 100.0 * stats::share_upper(0, fewest as u64, options.confidence);
        format!("neither lost any; over {over}, losses in up to {unseen:.1} % of them may have been missed")
    } else if (fewest as f64) < FEWEST {
        let needed = FEWEST * segment_s;
        format!(
            "requests were lost together for about {segment_s:.1} s: at least {needed:.0} s a side are needed"
        )
    } else {
        row.p = Some(exact::permutation(&units_a, &units_b));
        row.verdict = Some(less_is_better(a.share(), b.share()));
        format!("permutation test over {over}")
    };
    vec![row]
}

/// The shares of dropped requests in blocks of time.
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

/// The ways in which pods ended on either side.
fn modes(baseline: &[Sample], candidate: &[Sample]) -> BTreeSet<Mode> {
    baseline.iter().chain(candidate).flat_map(|s| &s.terminations).map(|t| t.mode).collect()
}

/// The unit that is lost together when pods end in this mode.
const fn unit(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "termination",
        _ => "episode of terminations that overlap",
    }
}

/// The plural of [`unit()`].
const fn units(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "terminations",
        _ => "episodes of terminations that overlap",
    }
}

/// Drops per unit that is lost together: one termination alone, or all that overlap.
fn terminations(baseline: &[Sample], candidate: &[Sample], options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    let modes: BTreeSet<Mode> =
        baseline.iter().chain(candidate).flat_map(|s| &s.episodes).map(|episode| episode.mode).collect();
    for mode in modes {
        let lost = |samples: &[Sample]| -> Vec<Weighed> {
            let episodes = samples.iter().flat_map(|s| &s.episodes).filter(|episode| episode.mode == mode);
            episodes.map(|episode| Weighed::one(episode.dropped as f64)).collect()
        };
        let (lost_a, lost_b) = (lost(baseline), lost(candidate));
        let hit = |lost: &[Weighed]| Of {
            hits: lost.iter().filter(|t| t.value > 0.0).count() as u64,
            n: lost.len() as u64,
        };
        let (a, b) = (hit(&lost_a), hit(&lost_b));
        let name = mode.as_str();
        let (metric, label) =
            (format!("terminations.{name}.with_drops"), format!("{} with a drop ({name})", units(mode)));
        let mut row = Row {
            baseline: (a.n > 0).then(|| a.share()),
            candidate: (b.n > 0).then(|| b.share()),
            why: format!("{} of {}, then {} of {}", a.hits, a.n, b.hits, b.n),
            ..Row::unknown(metric, label, Unit::Share)
        };
        if a.n == 0 || b.n == 0 {
            row.why.push_str("; one side has none to compare");
            rows.push(row);
            continue;
        }
        let (lower, upper) = exact::newcombe(a, b, options.confidence);
        let estimate = b.share() - a.share();
        row.change = Some(Change { kind: ChangeKind::Difference, estimate, lower, upper });
        row.p = Some(exact::fisher(a, b));
        row.verdict = Some(less_is_better(a.share(), b.share()));
        row.why.push_str("; Fisher's exact test");
        if let Some(n) = exact::needed(a.share(), b.share(), 1.0 - options.confidence, POWER) {
            row.why.push_str(&format!(" (such a difference shows with {n} a side, in four of five cases)"));
        }
        rows.push(row);
        let (mean_a, mean_b) = (exact::mean(&lost_a), exact::mean(&lost_b));
        let (metric, label) =
            (format!("terminations.{name}.dropped"), format!("drops per {} ({name})", unit(mode)));
        rows.push(Row {
            baseline: Some(mean_a),
            candidate: Some(mean_b),
            p: Some(exact::permutation(&lost_a, &lost_b)),
            verdict: Some(less_is_better(mean_a, mean_b)),
            why: format!("permutation test over {} and {} {}", a.n, b.n, units(mode)),
            ..Row::unknown(metric, label, Unit::Count)
        });
    }
    rows
}

fn windows(baseline: &[Sample], candidate: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    for mode in modes(baseline, candidate) {
        let of = |samples: &[Sample]| -> Vec<(String, Option<f64>)> {
            let ended = samples.iter().flat_map(|s| &s.terminations).filter(|t| t.mode == mode);
            ended.flat_map(|t| t.windows_s.clone()).collect()
        };
        let (a, b) = (of(baseline), of(candidate));
        let consumers: BTreeSet<&String> = a.iter().chain(&b).map(|w| &w.0).collect();
        let one = consumers.len() == 1;
        for consumer in consumers {
            let all = |side: &[(String, Option<f64>)]| -> Vec<Option<f64>> {
                side.iter().filter(|w| w.0 == *consumer).map(|w| w.1).collect()
            };
            let (all_a, all_b) = (all(&a), all(&b));
            let bounded =
                |all: &[Option<f64>]| all.iter().flatten().map(|s| Weighed::one(*s)).collect::<Vec<_>>();
            let (bounded_a, bounded_b) = (bounded(&all_a), bounded(&all_b));
            let mean = |units: &[Weighed]| (!units.is_empty()).then(|| exact::mean(units));
            let label = match one {
                true => format!("window ({})", mode.as_str()),
                false => format!("window, {consumer} ({})", mode.as_str()),
            };
            let mut row = Row {
                baseline: mean(&bounded_a),
                candidate: mean(&bounded_b),
                ..Row::unknown(format!("windows_s.{}", mode.as_str()), label, Unit::Seconds)
            };
            let censored = all_a.len() + all_b.len() - bounded_a.len() - bounded_b.len();
            row.why = match (row.baseline, row.candidate) {
                (Some(mean_a), Some(mean_b)) if censored == 0 => {
                    row.p = Some(exact::permutation(&bounded_a, &bounded_b));
                    row.verdict = Some(less_is_better(mean_a, mean_b));
                    format!(
                        "mean upper bounds; permutation test over {} and {}",
                        bounded_a.len(),
                        bounded_b.len()
                    )
                }
                _ => format!("{censored} of {} windows have no upper bound", all_a.len() + all_b.len()),
            };
            rows.push(row);
        }
    }
    rows
}

/// About how many values lie beyond a quantile, on the side that has fewer.
fn beyond([a, b]: &[Blocks; 2], q: f64) -> f64 {
    a.values().min(b.values()) as f64 * (1.0 - q)
}

fn latency(sides: &[Blocks; 2], name: &str, q: f64, is_closed_loop: bool, effort: Effort) -> Option<Row> {
    let [a, b] = sides;
    if a.values().min(b.values()) == 0 {
        return None;
    }
    let kind = if is_closed_loop { "service" } else { "response" };
    let metric = format!("latency_ms.{kind}.{}", name.replace('.', "_"));
    let mut row = Row::unknown(metric, format!("{kind} time {name}"), Unit::Milliseconds);
    let beyond = beyond(sides, q);
    if beyond < FEWEST_BEYOND {
        row.why = format!("about {beyond:.0} answers of a side lie beyond it; {FEWEST_BEYOND} are needed");
        return Some(row);
    }
    fill(&mut row, blocks::quantiles(a, b, q, effort), true, effort);
    Some(row)
}

/// In a closed loop the rate is a result; in an open one it was chosen.
fn rate([a, b]: &[Blocks; 2], is_closed_loop: bool, effort: Effort) -> Row {
    let mut row = Row::unknown("rate", "requests sent", Unit::PerSecond);
    if is_closed_loop {
        fill(&mut row, blocks::rates(a, b, effort), false, effort);
    } else {
        (row.baseline, row.candidate) = (Some(a.whole_rate()), Some(b.whole_rate()));
        (row.verdict, row.why) = (None, "as the schedule says".to_owned());
    }
    row
}

/// Writes the bootstrap's result into a row.
fn fill(row: &mut Row, found: Result<Ratio, TooCorrelated>, less_is_better: bool, effort: Effort) {
    let ratio = match found {
        Ok(ratio) => ratio,
        Err(TooCorrelated { segment_s, baseline, candidate }) => {
            (row.baseline, row.candidate) = (Some(baseline), Some(candidate));
            let needed = FEWEST * segment_s;
            row.why = format!(
                "requests within {segment_s:.1} s are correlated: at least {needed:.0} s a side are needed"
            );
            return;
        }
    };
    let Ratio { baseline, candidate, segments, lower, upper, p_above, p_below } = ratio;
    (row.baseline, row.candidate) = (Some(baseline), Some(candidate));
    row.change = Some(Change { kind: ChangeKind::Ratio, estimate: candidate / baseline, lower, upper });
    row.why = "block bootstrap over time".to_owned();
    if segments < FEW {
        row.why.push_str(&format!(
            ", over only {segments:.0} blocks: a rough interval; a longer run improves it"
        ));
    }
    let limit = 1.0 + effort.tolerance;
    if lower >= 1.0 / limit && upper <= limit {
        row.verdict = Some(Judgement::Same);
        return;
    }
    row.p = Some((2.0 * p_above.min(p_below)).min(1.0));
    let is_better = (p_below < p_above) == less_is_better;
    row.verdict = Some(if is_better { Judgement::Better } else { Judgement::Worse });
}

/// Withholds better and worse for a latency or a rate if a side is one run: the bootstrap sees only the variation
/// within a run, and equal software differs from run to run as well. Such a row tests nothing.
fn withhold(row: &mut Row, options: &Options) {
    let Some(p) = row.p.take() else { return };
    row.verdict = Some(Judgement::CannotTell);
    if p <= 1.0 - options.confidence + 1e-12 {
        row.why.push_str(&format!("; these runs differ, but {ONE_RUN}"));
    }
}

/// Keeps the verdicts that hold for all rows together; the others become inconclusive.
fn judge(rows: &mut [Row], options: &Options) {
    let tested: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].p.is_some()).collect();
    let p: Vec<f64> = tested.iter().filter_map(|i| rows[*i].p).collect();
    let alpha = 1.0 - options.confidence;
    for (i, (adjusted, own)) in tested.iter().zip(exact::holm(&p).into_iter().zip(&p)) {
        let row = &mut rows[*i];
        if adjusted > alpha + 1e-12 {
            row.verdict = Some(Judgement::CannotTell);
            if *own <= alpha {
                row.why.push_str(&format!(
                    "; with {} figures tested, one such difference is expected by \
                     chance",
                    p.len()
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests;
