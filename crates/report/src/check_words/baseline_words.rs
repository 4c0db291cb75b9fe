//! Puts checks against a baseline into words.

use std::collections::BTreeMap;

use super::{EvidenceInWords, limit_words};
use crate::format::{count, counted, len};
use crate::methods;
use rolldrop_explain::model::figure_text::percent;
use rolldrop_explain::model::{Figure, Unit};
use rolldrop_judge::judgements::comparison::{self, ComparisonRow, FEWEST_REQUESTS, FEWEST_RUNS};
use rolldrop_judge::judgements::gate_check::{
    BaselineGrounds, LatencyDoubt, NoFigure, Prediction, Trend, UnfitRun, Worsening,
};

pub(super) const NOT_VALID: &str = "an invalid or partial run is not compared";
const MORE_RUNS: &str = "use a baseline of at least 5 runs";

pub(super) fn row(row: &ComparisonRow) -> EvidenceInWords {
    let write = |value| methods::write(row.unit, value);
    let baseline = row.baseline.map_or_else(|| "the baseline".to_owned(), write);
    let observed = row.candidate.map_or_else(|| "unknown".to_owned(), write);
    EvidenceInWords::new(format!("not worse than {baseline}"), observed, methods::how(row))
}

pub(super) fn few_requests(n: u64, of: &str) -> EvidenceInWords {
    let limit = format!("at least {FEWEST_REQUESTS}{of}");
    EvidenceInWords::new(limit, count(n), "too few to detect a failure rate of 1 %")
}

pub(super) fn history(used: usize, left_out: &BTreeMap<UnfitRun, usize>) -> EvidenceInWords {
    let (mut why, settle) = match FEWEST_RUNS.checked_sub(used) {
        None | Some(0) => {
            ("the limits are joint prediction limits for one more run".to_owned(), String::new())
        }
        Some(more) => ("too few to show how much runs differ".to_owned(), counted(len(more), "more run")),
    };
    let reason = |unfit: &UnfitRun| match unfit {
        UnfitRun::NotPassed => "did not pass".to_owned(),
        UnfitRun::Invalid => "invalid".to_owned(),
        UnfitRun::Partial => "partial".to_owned(),
        UnfitRun::Unreadable => "unreadable".to_owned(),
        UnfitRun::Differs(settings) => format!("with a different {}", settings.join(", ")),
    };
    if !left_out.is_empty() {
        let left_out: Vec<String> =
            left_out.iter().map(|(unfit, n)| format!("{n} {}", reason(unfit))).collect();
        why.push_str(&format!("; not counted: {}", left_out.join(", ")));
    }
    EvidenceInWords::new(format!("at least {FEWEST_RUNS} valid runs that passed"), count(len(used)), why)
        .settled_by(settle)
}

pub(super) fn prediction(prediction: &Prediction) -> EvidenceInWords {
    let Prediction { unit, limit, value, earlier, trend, doubt } = prediction;
    let write = |value: f64| match unit {
        comparison::MetricUnit::Count => limit_words::write(Unit::Count, value.round().max(0.0)),
        _ => methods::write(*unit, value),
    };
    let mut why = range(earlier, write);
    if let Some(Trend { runs, p }) = trend {
        why.push_str(&format!(
            "; it got steadily worse over the last {runs} runs (Mann-Kendall test, p = {p:.1e})"
        ));
    }
    why.extend(doubt.map(doubtful));
    let side = if *unit == comparison::MetricUnit::PerSecond { "least" } else { "most" };
    EvidenceInWords::new(format!("at {side} {}", write(*limit)), write(*value), why)
        .settled_by(doubt.map_or("", settle))
}

/// Describes the values of several runs: their number, minimum and maximum.
fn range(values: &[f64], write: impl Fn(f64) -> String) -> String {
    let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(*x), b.max(*x)));
    format!("{}: {} to {}", counted(len(values.len()), "run"), write(least), write(most))
}

fn doubtful(doubt: LatencyDoubt) -> String {
    match doubt {
        LatencyDoubt::Lateness { now_ms, usual_ms } => format!(
            "; the load generator's machine may be the reason: 99 % of the requests were sent at most {now_ms:.1} ms \
             late, but usually at most {usual_ms:.1} ms"
        ),
        LatencyDoubt::FewMoments { share, least, allowed } => format!(
            "; a few moments decide this: {} of the answers took longer than the limit, but that varies so much over \
             time that the usual share may be {}; up to {} is allowed",
            percent(share),
            percent(least),
            percent(allowed)
        ),
    }
}

const fn settle(doubt: LatencyDoubt) -> &'static str {
    match doubt {
        LatencyDoubt::Lateness { .. } => "run on a less busy machine",
        LatencyDoubt::FewMoments { .. } => "run longer",
    }
}

pub(super) fn worsening(worsening: &Worsening) -> EvidenceInWords {
    let Worsening { unit, now, by, limit, grounds } = worsening;
    let write = |value| limit_words::write(*unit, value);
    let limit = match limit {
        Some(limit) => format!("{}: {by} worse than {}", write(limit.allowed), write(limit.usual)),
        None => format!("at most {by} worse than the baseline"),
    };
    let observed = now.map_or_else(|| "unknown".to_owned(), write);
    let figure = Some(Figure { unit: *unit, low: *now, value: *now, high: *now });
    EvidenceInWords {
        figure,
        ..EvidenceInWords::new(limit, observed, reason(worsening)).settled_by(way(grounds))
    }
}

fn reason(Worsening { unit, now, by, grounds, .. }: &Worsening) -> String {
    let write = |value| limit_words::write(*unit, value);
    let runs = |n: usize| counted(len(n), "run");
    match grounds {
        BaselineGrounds::NoBaseline => "there is no baseline to compare with".to_owned(),
        BaselineGrounds::NotValid => NOT_VALID.to_owned(),
        BaselineGrounds::FewRuns => format!("the baseline has fewer than {FEWEST_RUNS} runs that count"),
        BaselineGrounds::Unknown(NoFigure::Absent) => "the run has no such figure".to_owned(),
        BaselineGrounds::Unknown(NoFigure::Unbounded(basis)) => limit_words::reason(basis),
        BaselineGrounds::FewFigures { known, runs: all, without, .. } => {
            let known = format!("{known} of the baseline's {} have this figure", runs(*all));
            match without {
                None => known,
                Some((run, NoFigure::Absent)) => format!("{known} ({run}: it has no such figure)"),
                Some((run, NoFigure::Unbounded(basis))) => {
                    format!("{known} ({run}: {})", limit_words::reason(basis))
                }
            }
        }
        BaselineGrounds::Within(runs) => range(runs, write),
        BaselineGrounds::ShareOfNothing(runs) => format!("{by} of 0 is not a limit; {}", range(runs, write)),
        BaselineGrounds::AfterNone { runs: n, most } => format!(
            "{by} of 0 is not a limit: after {} without any, the test of totals allows {}",
            runs(*n),
            write(*most)
        ),
        BaselineGrounds::Spread { last, runs, doubt } => {
            let side = if *unit == Unit::Share { "at least" } else { "at most" };
            format!(
                "runs vary, so even a run that is worse by exactly the allowed amount would have {side} {}; {}{}",
                write(*last),
                range(runs, write),
                doubt.map(doubtful).unwrap_or_default()
            )
        }
        BaselineGrounds::Apart(apart) => methods::apart(*apart),
        BaselineGrounds::FewToDiffer(n) => {
            format!("a baseline of {} cannot show how much runs vary", runs(*n))
        }
        BaselineGrounds::Totals { before, runs: n, is_share_of_nothing, by_chance } => {
            let nothing =
                if *is_share_of_nothing { format!("{by} of 0 is not a limit; ") } else { String::new() };
            let now = now.map(write).unwrap_or_default();
            let by_chance = by_chance.map(methods::by_chance).unwrap_or_default();
            format!("{nothing}{before} in {}, then {now}; test of totals{by_chance}", runs(*n))
        }
    }
}

/// Explains how to settle an inconclusive check.
fn way(grounds: &BaselineGrounds) -> String {
    let way = match grounds {
        BaselineGrounds::NoBaseline => "rolldrop gate RUN --baseline RUN|FILE|FOLDER",
        BaselineGrounds::Unknown(NoFigure::Unbounded(basis)) => return limit_words::settle(basis),
        BaselineGrounds::FewFigures { needed, .. } => return format!("at least {needed} such runs"),
        BaselineGrounds::ShareOfNothing(_) => "set an absolute limit, such as worse: 200ms or worse: 5",
        BaselineGrounds::Spread { doubt: None, .. } => "use more runs in the baseline, or a wider limit",
        BaselineGrounds::Spread { doubt: Some(doubt), .. } => settle(*doubt),
        BaselineGrounds::FewToDiffer(_) | BaselineGrounds::Totals { .. } => MORE_RUNS,
        BaselineGrounds::NotValid
        | BaselineGrounds::FewRuns
        | BaselineGrounds::Unknown(NoFigure::Absent)
        | BaselineGrounds::Within(_)
        | BaselineGrounds::AfterNone { .. }
        | BaselineGrounds::Apart(_) => "",
    };
    way.to_owned()
}
