//! The rounds of a run that repeats its disruptions until its windows cover what is asked for.

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
    /// Event that ended the rounds.
    pub enum RoundsEnd {
        /// The windows cover what the policy asks for.
        Covered = "covered",
        /// A window lasted as long as windows can be seen.
        Outlasted = "outlasted",
        /// The measurement is invalid, and stays so.
        Invalid = "invalid",
        /// The last round added no end that counts.
        NoneCounted = "none_counted",
        /// The run may make no further one.
        MostRounds = "most_rounds",
        /// The record could not be looked at.
        NotSeen = "not_seen",
        /// The run was interrupted, or given up.
        Halted = "halted",
    }
}

/// The rounds that a run made, and the reason why there were no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// Rounds that were made.
    pub done: usize,
    /// Rounds that may be made.
    pub most: usize,
    /// Pods that had ended at the last look.
    pub terminations: usize,
    /// Ends that count, at the last look: windows that ended apart from each other.
    pub counted: usize,
    /// Number of these that it takes.
    pub needed: usize,
    /// Event that ended them.
    pub ended: RoundsEnd,
    /// The reason, as text.
    pub why: String,
}
