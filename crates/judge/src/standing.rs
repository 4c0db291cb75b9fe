//! Gate result of a run in one word, from which the exit status and every CI report follow.

use crate::gate;
use rolldrop_explain::model::{CheckVerdict, RunResult, Verdict};

/// Gate result of a run, determined after its checks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The scenario has no expectations.
    Measured,
    /// Every check passed.
    Passed,
    /// A check failed.
    Failed,
    /// No check failed, but at least one is undecided.
    Inconclusive,
    /// No check failed, but the target did not work even while no pod ended.
    NotWorking,
    /// The record is incomplete.
    Partial,
    /// The measurement cannot be trusted.
    Invalid,
    /// No request was sent, so nothing was measured.
    NothingSent,
}

impl Standing {
    /// All standings, in order.
    pub const ALL: [Self; 8] = [
        Self::Measured,
        Self::Passed,
        Self::Failed,
        Self::Inconclusive,
        Self::NotWorking,
        Self::Partial,
        Self::Invalid,
        Self::NothingSent,
    ];

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

    /// Returns the machine-readable name, such as `not_working`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
            Self::NotWorking => "not_working",
            Self::Partial => "partial",
            Self::Invalid => "invalid",
            Self::NothingSent => "nothing_sent",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn standings_have_unique_names() {
        let names: BTreeSet<&str> = Standing::ALL.iter().map(|standing| standing.as_str()).collect();
        assert_eq!(names.len(), Standing::ALL.len());
    }
}
