//! Tests the sentences about synthetic and recorded runs.

mod advice;
mod remedies;
mod sentences;
mod told;

use super::tell;
use rolldrop_explain::Analysed;
use rolldrop_explain::model::{CheckText, CheckVerdict, FindingText, Mode, RunResult, Termination, Verdict};
use rolldrop_record::event::{Action, ActionName, Change};
use rolldrop_record::{Cause, Event, EventKind, Expect, Outcome, Records, RequestRow};
use rolldrop_simulation::*;

/// Analyses a run, and puts the result into words.
fn told(records: Records) -> RunResult {
    let records = ended(records);
    let mut analysis = Analysed::of(records.log(), records).unwrap().analysis;
    tell(&mut analysis);
    analysis.result
}

/// Returns the checks of a run, in words.
fn checks(result: &RunResult, expect: &Expect) -> Vec<CheckText> {
    let checks = crate::written(&rolldrop_judge::check(result, expect));
    for check in &checks {
        assert!(check.verdict != CheckVerdict::Inconclusive || !check.why.is_empty(), "{check:?}");
    }
    checks
}

/// Returns the remedy for losses with this cause.
fn remedy(result: &RunResult, cause: Cause) -> &str {
    &result.findings.iter().find(|finding| finding.cause == Some(cause)).expect("a finding").remedy
}

/// Returns the findings that contain these words.
fn saying<'a>(result: &'a RunResult, words: &str) -> Vec<&'a FindingText> {
    let says = |f: &&FindingText| [&f.what, &f.why, &f.remedy].iter().any(|text| text.contains(words));
    result.findings.iter().filter(says).collect()
}
