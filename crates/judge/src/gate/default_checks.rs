//! Checks that every gate makes by default. They are listed only if they do not pass.

use super::request_checks::CheckedRequests;
use crate::judgements::basis::{Basis, Measured};
use crate::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_explain::model::{Aim, CheckVerdict, OutsideCounts, RunResult, Unit};
use rolldrop_record::expect::Expect;

/// Returns those default checks that do not pass.
pub(super) fn checks(result: &RunResult, expect: &Expect, requests: &CheckedRequests<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    if super::sent(&result.requests) == 0 {
        return vec![Measured::count(0).because(Basis::NothingSent).at_least("requests.sent", 1.0)];
    }
    let says_ok = expect.requests.and_then(|limits| limits.ok).is_some_and(|ok| ok.min.is_some());
    if !says_ok {
        checks.push(requests.ok_outside().at_least("requests.ok", OutsideCounts::WORKING_SHARE));
    }
    let says_terminations =
        expect.terminations.is_some_and(|bounds| bounds.min.is_some() || bounds.max == Some(0));
    if !says_terminations && result.terminations.is_empty() {
        let none = match result.aim {
            Aim::Disrupt => Some(Measured::count(0).because(Basis::NoneEnded)),
            Aim::Observe => Some(Measured::unknown(Unit::Count, Basis::NoneEndedInWatch)),
            Aim::Other => None,
        };
        checks.extend(none.map(|none| none.at_least("terminations", 1.0)));
    }
    for check in &mut checks {
        if let CheckEvidence::Limit { by_default, .. } = &mut check.evidence {
            *by_default = true;
        }
    }
    checks.retain(|check| check.verdict != CheckVerdict::Pass);
    checks
}
