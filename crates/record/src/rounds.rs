//! The rounds of a run that repeats its disruptions until it reaches the requested coverage.

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// Event that ended the rounds.
    pub enum RoundsEnd {
        /// The number of units required by the policy was reached.
        Covered = "covered",
        /// A window lasted at least as long as the run can observe windows, so its end is unknown.
        Outlasted = "outlasted",
        /// Requests were lost that a longer sleep would have saved, so the sleep under test is too short.
        Refuted = "refuted",
        /// The measurement is invalid, and further rounds cannot change that.
        Invalid = "invalid",
        /// No pod terminated under load, or none of the pods had a window with bounds.
        NoneCounted = "none_counted",
        /// The run reached its maximum number of rounds.
        MostRounds = "most_rounds",
        /// The record could not be read.
        NotSeen = "not_seen",
        /// The run was interrupted or abandoned.
        Halted = "halted",
    }
}

/// Rounds completed by a run, and the reason for stopping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// Number of completed rounds.
    pub done: usize,
    /// Maximum number of rounds.
    pub most: usize,
    /// Number of pods terminated as of the last look.
    pub terminations: usize,
    /// Number of units as of the last look: separate pod terminations, rollouts, or deletions.
    pub counted: usize,
    /// Number of units needed.
    pub needed: usize,
    /// Event that ended the rounds.
    pub ended: RoundsEnd,
    /// The reason as text.
    pub why: String,
}
