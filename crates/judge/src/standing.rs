//! Gate result of a run in one word, which determines the exit status and every CI report.

use crate::gate;
use rolldrop_explain::model::{CheckVerdict, RunResult, Verdict};
use rolldrop_record::named;

named! {
    /// Gate result of a run, determined after its checks are made.
    pub enum Standing {
        /// The scenario has no expectations.
        Measured = "measured",
        /// Every check passed.
        Passed = "passed",
        /// A check failed.
        Failed = "failed",
        /// No check failed, but at least one is undecided.
        Inconclusive = "inconclusive",
        /// No check failed, but the target did not work even when no pod was ending.
        NotWorking = "not_working",
        /// The record is incomplete.
        Partial = "partial",
        /// The measurement cannot be trusted.
        Invalid = "invalid",
        /// No request was sent, so nothing was measured.
        NothingSent = "nothing_sent",
    }
}

impl Standing {
    /// Determines the standing. An invalid run outweighs its checks, and a failure outweighs an inconclusive check.
    pub fn of(result: &RunResult) -> Self {
        let is_working = result.requests.outside_terminations.is_working();
        match (&result.verdict, gate::verdict(result.checks.iter().map(|check| check.verdict))) {
            _ if gate::sent(&result.requests) == 0 => Self::NothingSent,
            (Verdict::Invalid { .. }, _) => Self::Invalid,
            (Verdict::Partial { .. }, _) => Self::Partial,
            (Verdict::Valid, CheckVerdict::Fail) => Self::Failed,
            (Verdict::Valid, _) if !is_working => Self::NotWorking,
            (Verdict::Valid, CheckVerdict::Inconclusive) => Self::Inconclusive,
            (Verdict::Valid, CheckVerdict::Pass) if result.checks.is_empty() => Self::Measured,
            (Verdict::Valid, CheckVerdict::Pass) => Self::Passed,
        }
    }
}
