//! Checks that the run did what it planned, and that nothing else ended: a gate does not pass because of terminations
//! that did not happen, or despite containers that ended on their own.

use super::figure::Measured;
use rolldrop_explain::model::{Check, CheckVerdict, FindingKind, RunResult};
use rolldrop_record::expect::{Bounds, Expect};

/// Returns a failed check if an action of the run was not done; `None` otherwise, and if terminations need not happen
/// (`terminations: {min: 0}`).
pub(super) fn check(result: &RunResult, expect: &Expect) -> Option<Check> {
    let is_asked = expect.terminations.and_then(|bounds| bounds.min) != Some(0);
    let not_done = found(result, FindingKind::NotDone);
    (is_asked && !not_done.is_empty()).then(|| {
        let limit = "every action of the scenario is done";
        Check::plain(
            "terminations.planned",
            CheckVerdict::Fail,
            limit,
            "not all of them",
            not_done.join("; "),
        )
    })
}

/// Counts the containers that ended in pods that stay, without the run having asked for it.
pub(super) fn restarted(result: &RunResult) -> Measured {
    let restarted = found(result, FindingKind::Restarted);
    Measured::count(restarted.len() as u64).because(restarted.join("; "))
}

/// Checks their number.
pub(super) fn restarts(result: &RunResult, bounds: Bounds<u64>) -> Vec<Check> {
    restarted(result).within("restarts", bounds.map(|n| n as f64))
}

/// Returns the findings of one kind, in words.
fn found(result: &RunResult, kind: FindingKind) -> Vec<&str> {
    let of_kind = result.findings.iter().filter(|finding| finding.kind == Some(kind));
    of_kind.map(|finding| finding.what.as_str()).collect()
}
