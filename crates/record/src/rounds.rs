//! The rounds of a run that repeats its disruptions until it shows what is asked for.

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// What ended the rounds.
    pub enum RoundsEnd {
        /// As many units were seen as the policy asks for.
        Covered = "covered",
        /// A window lasted as long as windows can be seen.
        Outlasted = "outlasted",
        /// Requests were lost that a longer sleep saves, so the sleep that was to be proven is too short.
        Refuted = "refuted",
        /// The measurement is invalid, and stays so.
        Invalid = "invalid",
        /// No pod ended under load, or none whose window has bounds.
        NoneCounted = "none_counted",
        /// The run may make no further one.
        MostRounds = "most_rounds",
        /// The record could not be looked at.
        NotSeen = "not_seen",
        /// The run was interrupted, or given up.
        Halted = "halted",
    }
}

/// How far the rounds came, and why there were no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// How many there were.
    pub done: usize,
    /// How many there may be.
    pub most: usize,
    /// Pods that had ended at the last look.
    pub terminations: usize,
    /// Units at the last look: ends of pods apart from each other, rollouts, or deletions.
    pub counted: usize,
    /// How many of these it takes.
    pub needed: usize,
    /// What ended them.
    pub ended: RoundsEnd,
    /// The reason, as text.
    pub why: String,
}
