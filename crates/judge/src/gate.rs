//! Expectations against a result: checks, and their verdict.
//!
//! Pure. A number is compared with what was observed; a share, a quantile or a window with its bounds: it passes if the
//! whole interval lies within the limit and fails if it lies beyond it. An unknown figure is inconclusive, never 0. An
//! invalid run passes no check.

mod defaults;
mod figure;
mod known;
mod part;
mod planned;
mod requests;
mod stages;
mod times;
mod windows;

use std::collections::BTreeMap;

use figure::Measured;
pub use known::{Figures, Known, OfTarget};
use part::Part;
pub(crate) use part::{figures, meant};
use rolldrop_explain::model::RunResult;
use rolldrop_explain::model::figures::counted;
use rolldrop_explain::model::{Check, CheckVerdict, CommandResult, RequestCounts, Verdict};
use rolldrop_record::Cause;
use rolldrop_record::expect::{Accounting, Expect, Validity};

/// Checks every expectation except those that need a baseline. Unless an expectation replaces these, also checks that
/// something was sent, that the target works while no pod ends, and that pods ended.
pub fn with_defaults(result: &RunResult, expect: &Expect) -> Vec<Check> {
    let expect = &expect.clone().with_default_limits();
    let all = Part::all(result);
    let mut checks = all.checks(expect);
    if let Some(bounds) = expect.terminations {
        let n = Measured::count(result.terminations.len() as u64);
        checks.extend(n.within("terminations", bounds.map(|n| n as f64)));
    }
    checks.extend(stages::exits(&result.terminations, &expect.exits));
    checks.extend(stages::of_ends(&result.terminations, &expect.stages));
    checks.extend(expect.restarts.iter().flat_map(|bounds| planned::restarts(result, *bounds)));
    if let Some(limits) = &expect.starts {
        checks.extend(times::first_request(&result.starts, limits));
        checks.extend(stages::of_starts(&result.starts, &limits.stages));
        let dropped = limits.dropped.iter();
        checks.extend(dropped.flat_map(|b| all.requests.cause("starts.dropped", Cause::NotReadyYet, *b)));
    }
    checks.extend(expect.rollout.iter().flat_map(|bounds| times::rollout(result, *bounds)));
    checks.extend(part::of_parts(result, expect));
    checks.extend(expect.accounting.map(|expected| accounting(&result.requests, expected)));
    checks.extend(planned::check(result, expect));
    checks.extend(defaults::checks(result, expect, &all.requests));
    checks.extend(of_command(result));
    if let Verdict::Invalid { why } = &result.verdict {
        for check in &mut checks {
            check.verdict = CheckVerdict::Inconclusive;
            check.why = format!("the measurement is invalid: {}", why.join("; "));
            check.settle = String::new();
        }
    }
    checks.extend(expect.validity.map(|expected| validity(&result.verdict, expected)));
    checks
}

/// Counts the requests that were sent.
pub fn sent(counts: &RequestCounts) -> u64 {
    counts.total - counts.not_sent
}

/// Checks the user's command, if one ended the pods.
pub(crate) fn of_command(result: &RunResult) -> Vec<Check> {
    result.command.as_ref().and_then(command_check).into_iter().collect()
}

/// Checks that every scheduled request is in exactly one count, and that all rows arrived.
fn accounting(counts: &RequestCounts, expected: Accounting) -> Check {
    let missing: u64 = counts.without_rows.values().flat_map(BTreeMap::values).sum();
    let closes = counts.closes();
    let (verdict, why) = match (closes, missing) {
        (true, 0) => (CheckVerdict::Pass, String::new()),
        (true, n) => (CheckVerdict::Fail, format!("the rows of {} did not arrive", counted(n, "request"))),
        (false, _) => (CheckVerdict::Fail, "the classes do not add up to all requests".to_owned()),
    };
    let observed = if verdict == CheckVerdict::Pass { "closes" } else { "does not close" };
    Check::plain("accounting", verdict, expected.as_str(), observed, why)
}

/// Checks that the measurement can be believed as far as is expected.
fn validity(verdict: &Verdict, expected: Validity) -> Check {
    let (observed, why, passes) = match verdict {
        Verdict::Valid => ("valid", String::new(), true),
        Verdict::Partial { why } => ("partial", why.join("; "), expected == Validity::Partial),
        Verdict::Invalid { why } => ("invalid", why.join("; "), false),
    };
    let verdict = if passes { CheckVerdict::Pass } else { CheckVerdict::Fail };
    Check::plain("validity", verdict, expected.as_str(), observed, why)
}

/// Combines all checks into a verdict: a failure outweighs an inconclusive check. Without checks the gate passes.
pub fn verdict(checks: &[Check]) -> CheckVerdict {
    let any = |v: CheckVerdict| checks.iter().any(|c| c.verdict == v);
    if any(CheckVerdict::Fail) {
        CheckVerdict::Fail
    } else if any(CheckVerdict::Inconclusive) {
        CheckVerdict::Inconclusive
    } else {
        CheckVerdict::Pass
    }
}

/// Checks the user's command: one that failed fails the gate, one that the run cut off is not judged.
fn command_check(command: &CommandResult) -> Option<Check> {
    command.duration_s?;
    let observed = match (command.code, command.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    };
    let verdict = if command.code == Some(0) { CheckVerdict::Pass } else { CheckVerdict::Fail };
    let why = format!("{}: {observed}", command.words.join(" "));
    Some(Check::plain("command", verdict, "exit code 0", &observed, why))
}
