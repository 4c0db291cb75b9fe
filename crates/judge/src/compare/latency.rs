//! Latencies, and the rate of a closed loop: the bootstrap's ratio as a row.
//!
//! One run a side does not show how runs differ, so its rows are the same or inconclusive. The exceptions are sides
//! whose answers do not overlap at all.

use super::blocks::{self, Blocks, Effort, FEW, FEWEST, Ratio, TooCorrelated};
use super::{Options, Sample};
use crate::model::comparison::{Change, ChangeKind, Judgement, Row, Unit};
use rolldrop_explain::math::stats;

/// Fewest values beyond a quantile that it needs.
pub(super) const FEWEST_BEYOND: f64 = 10.0;
/// Reason why a latency is inconclusive if a side is one run.
pub(super) const ONE_RUN: &str = "one run a side does not show how much runs differ from each other: give each side several \
     runs, made in turn";
/// The quantiles of the latency.
pub(super) const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Smallest factor between answers that count as not overlapping: more than equal software on one machine has shown
/// from run to run.
const APART: f64 = 2.0;
/// Number of answers from which a side shows where its distribution begins and ends.
const FEWEST_APART: u64 = 20;

/// Returns the rows of a comparison that rest on time.
pub(super) fn rows(baseline: &[Sample], candidate: &[Sample], options: &Options) -> Vec<Row> {
    let is_closed_loop = baseline.iter().chain(candidate).any(|sample| sample.is_closed_loop);
    let sides = [Blocks::new(baseline), Blocks::new(candidate)];
    let effort = Effort {
        confidence: options.confidence,
        tolerance: options.tolerance,
        replicates: options.replicates,
    };
    let apart = Apart::of(baseline, candidate);
    let mut rows = Vec::new();
    for (name, q) in QUANTILES {
        let row = unjudged(name, is_closed_loop);
        rows.extend(match sides.iter().all(|side| side.values() > 0) {
            true => Some(latency(&sides, row, q, effort, apart.as_ref())),
            false => without_blocks([baseline, candidate], name, row, q, apart.as_ref()),
        });
    }
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

/// Returns the row of a quantile, not judged yet.
fn unjudged(name: &str, is_closed_loop: bool) -> Row {
    let kind = if is_closed_loop { "service" } else { "response" };
    let metric = format!("latency_ms.{kind}.{}", name.replace('.', "_"));
    Row::unknown(metric, format!("{kind} time {name}"), Unit::Milliseconds)
}

fn too_few(beyond: f64) -> Option<String> {
    let why = || format!("about {beyond:.0} answers of a side lie beyond it; {FEWEST_BEYOND} are needed");
    (beyond < FEWEST_BEYOND).then(why)
}

fn latency(sides: &[Blocks; 2], mut row: Row, q: f64, effort: Effort, apart: Option<&Apart>) -> Row {
    if let Some(why) = too_few(beyond(sides, q)) {
        row.why = why;
        return row;
    }
    let [a, b] = sides;
    match apart {
        Some(apart) => apart.fill(&mut row, a.whole_quantile(q), b.whole_quantile(q)),
        None => fill(&mut row, blocks::quantiles(a, b, q, effort), true, effort),
    }
    row
}

/// Returns the row of a quantile if a side holds no latencies over time, as in a saved baseline.
fn without_blocks(
    sides: [&[Sample]; 2],
    name: &str,
    mut row: Row,
    q: f64,
    apart: Option<&Apart>,
) -> Option<Row> {
    let answered = |side: &[Sample]| side.iter().map(|sample| sample.latency.n).sum::<u64>();
    let fewest = sides.map(answered).into_iter().min().filter(|n| *n > 0)?;
    if let Some(why) = too_few(fewest as f64 * (1.0 - q)) {
        row.why = why;
        return Some(row);
    }
    // The median of the runs.
    let [baseline, candidate] = sides.map(|side| {
        let mut all: Vec<f64> = side.iter().filter_map(|sample| sample.latency.quantile_ms(name)).collect();
        all.sort_by(f64::total_cmp);
        stats::nearest_rank(&all, 0.5)
    });
    match (apart, baseline, candidate) {
        (Some(apart), Some(baseline), Some(candidate)) => apart.fill(&mut row, baseline, candidate),
        _ => {
            (row.baseline, row.candidate) = (baseline, candidate);
            row.why = ONE_RUN.to_owned();
        }
    }
    Some(row)
}

/// Sides of which all answers of one took longer than those of the other, except 1 % of each.
#[derive(Debug)]
pub(super) struct Apart {
    pub(super) is_worse: bool,
    /// 99 % of the faster side's answers took at most this.
    pub(super) faster_ms: f64,
    /// 99 % of the slower side's answers took at least this.
    pub(super) slower_ms: f64,
}

impl Apart {
    pub(super) fn of(baseline: &[Sample], candidate: &[Sample]) -> Option<Self> {
        let first = |side: &[Sample]| side.iter().map(|s| s.latency.p1_ms).fold(f64::INFINITY, f64::min);
        let last = |side: &[Sample]| side.iter().map(|s| s.latency.p99_ms).fold(0.0, f64::max);
        let is_enough = |side: &[Sample]| side.iter().all(|s| s.latency.n >= FEWEST_APART);
        if !is_enough(baseline) || !is_enough(candidate) {
            return None;
        }
        [(baseline, candidate, true), (candidate, baseline, false)].into_iter().find_map(
            |(faster, slower, is_worse)| {
                let (faster_ms, slower_ms) = (last(faster), first(slower));
                (slower_ms >= APART * faster_ms).then_some(Self { is_worse, faster_ms, slower_ms })
            },
        )
    }

    fn fill(&self, row: &mut Row, baseline: f64, candidate: f64) {
        let Self { is_worse, .. } = *self;
        (row.baseline, row.candidate) = (Some(baseline), Some(candidate));
        row.verdict = Some(if is_worse { Judgement::Worse } else { Judgement::Better });
        row.why = self.in_words();
    }

    pub(super) fn in_words(&self) -> String {
        let Self { faster_ms, slower_ms, .. } = self;
        format!(
            "the answers of the two sides do not overlap: 99 % took at most {faster_ms:.2} ms on one side and at \
             least {slower_ms:.2} ms on the other"
        )
    }
}

/// Returns the row of the rate. In a closed loop the rate is a result; in an open one it was chosen.
fn rate(samples: [&[Sample]; 2], sides: &[Blocks; 2], is_closed_loop: bool, effort: Effort) -> Row {
    let mut row = Row::unknown("rate", "requests sent", Unit::PerSecond);
    let rate = |(samples, of): (&[Sample], &Blocks)| match of.whole_rate() {
        0.0 => {
            let seconds: f64 = samples.iter().map(|sample| sample.duration_s).sum();
            samples.iter().map(|sample| sample.total).sum::<u64>() as f64 / seconds.max(1e-9)
        }
        rate => rate,
    };
    let [baseline, candidate] = [0, 1].map(|i| rate((samples[i], &sides[i])));
    (row.baseline, row.candidate) = (Some(baseline), Some(candidate));
    if !is_closed_loop {
        (row.verdict, row.why) = (None, "as the schedule says".to_owned());
    } else if sides.iter().any(|side| side.whole_rate() == 0.0) {
        row.why = ONE_RUN.to_owned();
    } else {
        fill(&mut row, blocks::rates(&sides[0], &sides[1], effort), false, effort);
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
