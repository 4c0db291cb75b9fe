//! Exit statuses, which are part of the tool's interface.

use std::process::ExitCode;

use rolldrop_explain::model::{CheckVerdict, RunResult};
use rolldrop_judge::standing::Standing;

/// Outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Completed; the gate passed, or no gate was requested.
    Ok,
    /// The gate failed.
    GateFailed,
    /// Usage, scenario or environment error: nothing was measured.
    Error,
    /// Measured, but the measurement is invalid or incomplete, or the target does not work.
    Invalid,
    /// Measured, but the gate is inconclusive.
    Inconclusive,
    /// Interrupted; the recorded data is kept.
    Interrupted,
}

/// Meaning of an inconclusive gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Inconclusive {
    /// Treat it as a failure: exit status 1.
    Fail,
    /// Treat it as a success: exit status 0.
    Pass,
    /// Repeat the disruptions and look again: exit status 3 if the gate stays inconclusive.
    Extend,
}

impl Exit {
    /// Returns the exit status for a finished run, in this order of precedence: 130, 2 (nothing sent), 3 (invalid), 1,
    /// 3 (does not work, inconclusive), 0.
    pub(super) fn of(result: &RunResult, interrupted: bool) -> Self {
        if interrupted {
            return Exit::Interrupted;
        }
        match Standing::of(result) {
            Standing::Measured | Standing::Passed => Exit::Ok,
            Standing::NothingSent => Exit::Error,
            Standing::Failed => Exit::GateFailed,
            Standing::Inconclusive => Exit::Inconclusive,
            Standing::NotWorking | Standing::Partial | Standing::Invalid => Exit::Invalid,
        }
    }

    /// Returns the exit status for the verdict of a gate.
    pub(super) const fn of_verdict(verdict: CheckVerdict) -> Self {
        match verdict {
            CheckVerdict::Pass => Exit::Ok,
            CheckVerdict::Fail => Exit::GateFailed,
            CheckVerdict::Inconclusive => Exit::Inconclusive,
        }
    }

    /// Replaces the status of an inconclusive gate as the user chose. An invalid run stays invalid.
    pub(super) fn settled(self, inconclusive: Option<Inconclusive>) -> Self {
        match (self, inconclusive) {
            (Exit::Inconclusive, Some(Inconclusive::Fail)) => Exit::GateFailed,
            (Exit::Inconclusive, Some(Inconclusive::Pass)) => Exit::Ok,
            (exit, _) => exit,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Ok => 0,
            Exit::GateFailed => 1,
            Exit::Error => 2,
            Exit::Invalid | Exit::Inconclusive => 3,
            Exit::Interrupted => 130,
        })
    }
}
