//! Whether the run did what its plan says: a gate is not passed by terminations that did not happen.

use crate::RunResult;
use crate::model::{Check, CheckVerdict, FindingKind};
use rolldrop_record::expect::Expect;

/// A failed check if an action of the run was not done; `None` otherwise, and if terminations need not happen
/// (`terminations: {min: 0}`).
pub(super) fn check(result: &RunResult, expect: &Expect) -> Option<Check> {
    let is_asked = expect.terminations.and_then(|bounds| bounds.min) != Some(0);
    let not_done: Vec<&str> = (result.findings.iter())
        .filter(|finding| finding.kind == Some(FindingKind::NotDone))
        .map(|finding| finding.what.as_str())
        .collect();
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
