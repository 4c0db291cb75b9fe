//! Whether the run did what its plan says: a gate is not passed by terminations that did not happen.

use crate::RunResult;
use crate::model::{Check, CheckVerdict, FindingKind};
use rolldrop_record::Expect;

/// A failed check if the run was to end pods and did not end all of them; `None` otherwise, if nothing is expected, and
/// if terminations are not (`terminations: {min: 0}`).
pub(super) fn check(result: &RunResult, expect: &Expect) -> Option<Check> {
    let is_asked = !expect.is_empty() && expect.terminations.and_then(|bounds| bounds.min) != Some(0);
    let not_done: Vec<&str> = (result.findings.iter())
        .filter(|finding| finding.kind == Some(FindingKind::NotDone))
        .map(|finding| finding.what.as_str())
        .collect();
    (is_asked && !not_done.is_empty()).then(|| Check {
        name: "terminations.planned".to_owned(),
        verdict: CheckVerdict::Fail,
        limit: "every action of the scenario is done".to_owned(),
        observed: "not all of them".to_owned(),
        why: not_done.join("; "),
    })
}
