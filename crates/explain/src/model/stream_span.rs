//! Streams of the steady part of a run, and their survival.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use rolldrop_record::Stamp;

/// Share of the stationary population that may be missing at the beginning of the steady part.
pub const MOST_MISSING: f64 = 0.01;

/// One stream on one pod. All stamps are on the clock of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpan {
    /// Index of the pod, from 0.
    pub pod: usize,
    /// Time at which the stream began.
    pub start: Stamp,
    /// Time at which it ended, or was last known to be open.
    pub end: Stamp,
    /// Meaning of `end`.
    pub ended: SpanEnd,
    /// Time at which a watch found the stream open. Similar streams that had already ended are not in the record (left
    /// truncation). `None` if the stream was recorded from its beginning.
    pub entered: Option<Stamp>,
}

/// Meaning of a stream's last stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanEnd {
    /// The stream ended on its own.
    Complete,
    /// The stream was cut, or the record ended first, so it would have lasted longer (right-censored).
    Censored,
}

/// Streams of the steady part of a run.
#[derive(Clone, Debug)]
pub struct SteadyStreams {
    /// All streams on pods that served throughout the period, by pod.
    pub spans: Vec<StreamSpan>,
    /// Names of these pods, in the order of their numbers.
    pub pods: Vec<Arc<str>>,
    /// Beginning of the period.
    pub from: Stamp,
    /// End of the period: the first t0, or the time the last stream began.
    pub to: Stamp,
    /// Share of the stationary population that is missing when the period begins; `None` if it is unknown.
    pub missing: Option<MissingShare>,
    /// Number of streams without a named pod.
    pub unnamed: u64,
    /// Share of streams that are still open at each age, while their pods are not terminating; empty if there are too
    /// few.
    pub survival: Vec<SurvivalStep>,
}

impl SteadyStreams {
    /// Returns true if the population has reached its full size, as far as the record shows.
    pub fn is_stationary(&self) -> bool {
        self.missing.is_some_and(|missing| missing.at_least() <= MOST_MISSING)
    }
}

/// A step of a survival curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurvivalStep {
    /// Age in seconds from which the shares apply, until the next step.
    pub age_s: f64,
    /// Share of streams that are still open after this age, among those that reach the first step's age.
    pub share: f64,
    /// Lower bound of the share.
    pub lower: f64,
    /// Upper bound of the share.
    pub upper: f64,
}

/// Share of a stationary population that is missing some time after streams began to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingShare {
    /// The end of the longest stream was seen.
    Exactly(f64),
    /// The ends of the longest streams were not seen, so the share may be larger.
    AtLeast(f64),
}

impl MissingShare {
    /// Returns the lower limit of the missing share.
    pub const fn at_least(self) -> f64 {
        match self {
            Self::Exactly(share) | Self::AtLeast(share) => share,
        }
    }
}
