//! Checks a result against expectations, and combines the checks into a verdict.
//!
//! Pure. A count is compared with the limit as observed. A share, a quantile or a window has bounds; it passes if the
//! whole interval is within the limit, and fails if all of it is beyond. An unknown figure is inconclusive, never
//! 0. An invalid run passes no check.

mod default_checks;
mod ending_checks;
mod figure;
mod history_sums;
mod known;
mod part;
mod planned;
mod request_checks;
mod rollout_checks;
mod stage_checks;
mod stream_checks;
mod times;
mod window_checks;

use std::collections::BTreeMap;

pub use history_sums::{HistorySums, OF_HISTORIES, needs_run};
pub use known::{ComparableFigures, FiguresOfTarget, KnownFigure};
use part::PartFigures;
pub(crate) use part::{figures, meant};

use crate::judgements::basis::Measured;
use crate::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_explain::model::{CheckVerdict, CommandResult, RequestCounts, RunResult, Termination, Verdict};
use rolldrop_record::Cause;
use rolldrop_record::expect::{Accounting, Expect, Validity};

/// Checks every expectation except those that need a baseline. Unless the expectations override them, it also makes the
/// default checks: requests were sent, the target works while no pod ends, and pods ended.
pub fn with_defaults(result: &RunResult, expect: &Expect) -> Vec<Check> {
    let expect = &expect.clone().with_default_limits();
    let all = PartFigures::all(result);
    let mut checks = all.checks(expect);
    if let Some(bounds) = expect.terminations {
        let n = Measured::count(result.terminations.len() as u64);
        checks.extend(n.within("terminations", bounds.map(|n| n as f64)));
    }
    if let Some(limits) = &expect.streams {
        checks.extend(stream_checks::checks(&all.requests, result.streams.as_ref(), limits));
    }
    checks.extend(stage_checks::exits(&result.terminations, &expect.exits));
    checks.extend(stage_checks::of_ends(&result.terminations, &expect.stages));
    checks.extend(expect.restarts.iter().flat_map(|bounds| planned::restarts(result, *bounds)));
    let endings = [
        ("killed", expect.killed, ending_checks::killed as fn(&[Termination]) -> Measured),
        ("failedHooks", expect.failed_hooks, ending_checks::failed_hooks),
    ];
    for (key, bounds, measured) in endings {
        let bounds = bounds.into_iter().map(|bounds| bounds.map(|n| n as f64));
        checks.extend(bounds.flat_map(|bounds| measured(&result.terminations).within(key, bounds)));
    }
    if let Some(limits) = &expect.starts {
        checks.extend(times::first_request(&result.starts, limits));
        checks.extend(stage_checks::of_starts(&result.starts, &limits.stages));
        let dropped = limits.dropped.iter();
        checks.extend(dropped.flat_map(|b| all.requests.cause("starts.dropped", Cause::NotReadyYet, *b)));
    }
    checks.extend(expect.rollout.iter().flat_map(|bounds| rollout_checks::rollout(result, *bounds)));
    checks.extend(part::of_parts(result, expect));
    checks.extend(expect.accounting.map(|expected| accounting(&result.requests, expected)));
    checks.extend(planned::check(result, expect));
    checks.extend(default_checks::checks(result, expect, &all.requests));
    checks.extend(of_command(result));
    if let Verdict::Invalid { why } = &result.verdict {
        for check in &mut checks {
            (check.verdict, check.invalid) = (CheckVerdict::Inconclusive, Some(why.clone()));
        }
    }
    checks.extend(expect.validity.map(|expected| validity(&result.verdict, expected)));
    checks
}

/// Returns the number of requests that were sent.
pub fn sent(counts: &RequestCounts) -> u64 {
    counts.total - counts.not_sent
}

/// Checks the user's command, if the run used one to end the pods. A failed command fails the gate; a command that the
/// run cut off is not judged.
pub(crate) fn of_command(result: &RunResult) -> Vec<Check> {
    let command = result.command.iter().filter(|command| command.duration_s.is_some());
    let check = |command: &CommandResult| {
        Check::limit("command", passes_if(command.code == Some(0)), CheckEvidence::Command(command.clone()))
    };
    command.map(check).collect()
}

/// Checks that every scheduled request is in exactly one count, and that all rows arrived.
fn accounting(counts: &RequestCounts, expected: Accounting) -> Check {
    let missing: u64 = counts.without_rows.values().flat_map(BTreeMap::values).sum();
    let adds_up = counts.closes();
    let evidence = CheckEvidence::Accounting { expected, adds_up, missing };
    Check::limit("accounting", passes_if(adds_up && missing == 0), evidence)
}

/// Checks that the measurement is as trustworthy as expected.
fn validity(found: &Verdict, expected: Validity) -> Check {
    let passes = match found {
        Verdict::Valid => true,
        Verdict::Partial { .. } => expected == Validity::Partial,
        Verdict::Invalid { .. } => false,
    };
    Check::limit("validity", passes_if(passes), CheckEvidence::Validity { expected, found: found.clone() })
}

const fn passes_if(passes: bool) -> CheckVerdict {
    if passes { CheckVerdict::Pass } else { CheckVerdict::Fail }
}

/// Combines the verdicts of all checks. A failure outweighs an inconclusive check. Without checks, the gate passes.
pub fn verdict(verdicts: impl Iterator<Item = CheckVerdict>) -> CheckVerdict {
    verdicts.fold(CheckVerdict::Pass, |all, one| match (all, one) {
        (CheckVerdict::Fail, _) | (_, CheckVerdict::Fail) => CheckVerdict::Fail,
        (CheckVerdict::Inconclusive, _) | (_, CheckVerdict::Inconclusive) => CheckVerdict::Inconclusive,
        (CheckVerdict::Pass, CheckVerdict::Pass) => CheckVerdict::Pass,
    })
}
