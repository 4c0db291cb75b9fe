//! Checks that the run did what was planned, and that nothing else ended. A gate must not pass on terminations that
//! never happened, or despite containers that exited on their own.

use crate::judgements::basis::{Basis, Measured};
use crate::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_explain::model::{CheckVerdict, FindingKind, FindingText, RunResult};
use rolldrop_record::expect::{Bounds, Expect};

/// Returns a failed check if the run skipped one of its actions. Returns `None` otherwise, or if terminations are
/// optional (`terminations: {min: 0}`).
pub(super) fn check(result: &RunResult, expect: &Expect) -> Option<Check> {
    let is_asked = expect.terminations.and_then(|bounds| bounds.min) != Some(0);
    let not_done = found(result, FindingKind::NotDone);
    (is_asked && !not_done.is_empty())
        .then(|| Check::limit("terminations.planned", CheckVerdict::Fail, CheckEvidence::NotDone(not_done)))
}

/// Counts the containers that exited on their own in pods that were not terminating.
pub(super) fn restarted(result: &RunResult) -> Measured {
    let restarted = found(result, FindingKind::Restarted);
    let n = Measured::count(restarted.len() as u64);
    if restarted.is_empty() { n } else { n.because(Basis::Restarted(restarted)) }
}

/// Checks the number of containers that exited on their own.
pub(super) fn restarts(result: &RunResult, bounds: Bounds<u64>) -> Vec<Check> {
    restarted(result).within("restarts", bounds.map(|n| n as f64))
}

/// Returns the findings of one kind.
fn found(result: &RunResult, kind: FindingKind) -> Vec<FindingText> {
    result.findings.iter().filter(|finding| finding.kind == Some(kind)).cloned().collect()
}
