//! Checks that every gate makes by default. Such a check is listed only if it does not pass.

use super::figure::Measured;
use super::requests::Requests;
use rolldrop_explain::model::{Aim, Check, CheckVerdict, OutsideCounts, RunResult, Unit};
use rolldrop_record::expect::Expect;

/// Returns the default checks that do not pass.
pub(super) fn checks(result: &RunResult, expect: &Expect, requests: &Requests<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    let sent = super::sent(&result.requests);
    if sent == 0 {
        let nothing = Measured::count(0).because("nothing was sent, so nothing was measured");
        return vec![nothing.at_least("requests.sent", 1.0)];
    }
    let says_ok = expect.requests.and_then(|limits| limits.ok).is_some_and(|ok| ok.min.is_some());
    if !says_ok {
        let check = requests.ok_outside().at_least("requests.ok", OutsideCounts::WORKING_SHARE);
        checks.push(with_way_out(check, "requests: {ok: {min: SHARE}} sets another limit"));
    }
    let says_terminations =
        expect.terminations.is_some_and(|bounds| bounds.min.is_some() || bounds.max == Some(0));
    if !says_terminations && result.terminations.is_empty() {
        let none = match result.aim {
            Aim::Disrupt => Some(Measured::count(0).because("the run was to end pods, and none ended")),
            Aim::Observe => {
                let why = "no pod ended while the run watched";
                Some(Measured::unknown(Unit::Count, why, "watch while pods end").observed("0"))
            }
            Aim::Other => None,
        };
        let check = none.map(|none| none.at_least("terminations", 1.0));
        checks.extend(check.map(|check| with_way_out(check, "terminations: {min: 0} allows it")));
    }
    checks.retain(|check| check.verdict != CheckVerdict::Pass);
    checks
}

fn with_way_out(check: Check, way: &str) -> Check {
    Check { why: format!("{}; {way}", check.why), ..check }
}
