//! The rounds of a run that repeats its disruptions until it has shown what was asked for.

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// Event that ended the rounds.
    pub enum RoundsEnd {
        /// The number of units that the policy asks for was seen.
        Covered = "covered",
        /// A window lasted as long as windows can be observed.
        Outlasted = "outlasted",
        /// Requests were lost that a longer sleep saves, so the sleep that was to be proven is too short.
        Refuted = "refuted",
        /// The measurement is invalid and will stay so.
        Invalid = "invalid",
        /// No pod ended under load, or none whose window has bounds.
        NoneCounted = "none_counted",
        /// The run reached its maximum number of rounds.
        MostRounds = "most_rounds",
        /// The record could not be read.
        NotSeen = "not_seen",
        /// The run was interrupted or abandoned.
        Halted = "halted",
    }
}

/// The rounds that a run made, and the reason why there were no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// Number of rounds made.
    pub done: usize,
    /// Maximum number of rounds.
    pub most: usize,
    /// Number of pods that had ended at the last look.
    pub terminations: usize,
    /// Number of units at the last look: ends of pods apart from each other, rollouts, or deletions.
    pub counted: usize,
    /// Number of units needed.
    pub needed: usize,
    /// Event that ended the rounds.
    pub ended: RoundsEnd,
    /// The reason as text.
    pub why: String,
}
