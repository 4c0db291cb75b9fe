//! Puts a run's gate result into words.

use super::warning;
use crate::format::{counted, len, list};
use rolldrop_explain::model::{CheckText, CheckVerdict, FindingKind, RunResult};
use rolldrop_judge::standing::Standing;

/// Returns the names of the checks with this verdict.
pub(in super::super) fn checks_with(checks: &[CheckText], verdict: CheckVerdict) -> Vec<&str> {
    let checks = checks.iter().filter(|check| check.verdict == verdict);
    checks.map(|check| check.name.as_str()).collect()
}

/// Returns the result as a sentence with the run as its subject: `failed: dropped.max`.
pub(in super::super) fn standing(result: &RunResult) -> String {
    let named = |verdict| list(&checks_with(&result.checks, verdict));
    match Standing::of(result) {
        Standing::Measured => "measured; nothing was expected".to_owned(),
        Standing::Passed => format!("passed {}", counted(len(result.checks.len()), "check")),
        Standing::Failed => format!("failed: {}", named(CheckVerdict::Fail)),
        Standing::Inconclusive => format!("is inconclusive: {}", named(CheckVerdict::Inconclusive)),
        Standing::NotWorking => "found a target that does not work".to_owned(),
        Standing::Partial => "is partial".to_owned(),
        Standing::Invalid => "is invalid".to_owned(),
        Standing::NothingSent => "sent no request".to_owned(),
    }
}

/// Explains, in one or more sentences, why the checks decide nothing: the run is invalid or partial, or the target does
/// not work.
pub(in super::super) fn undecided(result: &RunResult) -> Option<String> {
    if let Some(warning) = warning(result) {
        return Some(warning);
    }
    let found = result.findings.iter().find(|found| found.kind == Some(FindingKind::NotWorking))?;
    Some(
        [&found.what, &found.why, &found.remedy]
            .map(|text| super::sentence(text))
            .join(" ")
            .trim_end()
            .to_owned(),
    )
}

/// Returns the share of dropped requests, from 0 to 1; 0 if there were no requests.
pub(in super::super) fn dropped_share(result: &RunResult) -> f64 {
    match result.requests.total {
        0 => 0.0,
        total => result.requests.lost() as f64 / total as f64,
    }
}

/// Returns the checks in order of interest to a reader: failed first, passed last.
pub(in super::super) fn by_verdict(checks: &[CheckText]) -> Vec<&CheckText> {
    let rank = |verdict| match verdict {
        CheckVerdict::Fail => 0,
        CheckVerdict::Inconclusive => 1,
        CheckVerdict::Pass => 2,
    };
    let mut checks: Vec<_> = checks.iter().collect();
    checks.sort_by_key(|check| rank(check.verdict));
    checks
}
