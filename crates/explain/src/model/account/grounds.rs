//! Grounds for a recommendation.

use crate::model::WindowBasis;

use super::Probe;

/// Grounds for a recommendation, and reasons against one.
#[derive(Clone, Debug, PartialEq)]
pub struct Grounds {
    /// Basis of the recommendation.
    pub basis: RecommendationBasis,
    /// Reasons for not recommending anything; empty if there is a recommendation.
    pub refusals: Vec<NoRecommendation>,
    /// Measurement that would narrow the suggested range.
    pub narrowing: Option<Narrowing>,
}

/// Basis of a recommendation.
#[derive(Clone, Debug, PartialEq)]
pub struct RecommendationBasis {
    /// Largest upper bound, in seconds; `None` if no window has one.
    pub longest_s: Option<f64>,
    /// Number of windows.
    pub windows: usize,
    /// Number of windows without an upper bound.
    pub unbounded: usize,
    /// Consumers with their own clock.
    pub clocks: Vec<ConsumerClock>,
    /// Margin of the policy, in seconds.
    pub margin_s: u64,
    /// Longest time from SIGTERM to a pod's exit, in seconds; `None` if it was not seen for every pod.
    pub stopping_s: Option<f64>,
}

/// Consumer that looks at endpoints only once per period.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerClock {
    /// The consumer.
    pub consumer: String,
    /// Time for which the consumer caches endpoints, in seconds.
    pub period_s: f64,
    /// Longest time from t0 until the endpoint was seen to be removed, in seconds.
    pub news_s: f64,
}

/// Reason for not recommending anything.
#[derive(Clone, Debug, PartialEq)]
pub enum NoRecommendation {
    /// The record is incomplete.
    NotWhole,
    /// The measurement is invalid.
    NotValid,
    /// The workload, named here, terminates all its pods before the first new one starts.
    Recreated(String),
    /// All pods ended without being deleted, so no sleep helps.
    NotDeleted,
    /// Starting pods lost so many requests that the windows are unknown.
    ProbeFirst { probe: Probe, requests: u64 },
    /// There are too few windows for the requested coverage.
    TooFew { windows: usize, units: usize, needed: usize, covered: f64, asked: f64, confidence: f64 },
    /// Some windows have no upper bound.
    Unbounded { unbounded: usize, windows: usize },
    /// A pod gets too few connections per second to show its window.
    TooCoarse { rate: f64 },
    /// All terminations hit this clock at the same phase.
    InPhase(ConsumerClock),
}

/// Measurement that would narrow a suggested range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// Further rollouts or terminations needed.
    pub more: More,
    /// Basis of the largest upper bound.
    pub basis: Option<WindowBasis>,
}

/// Number of further measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Rollouts.
    Rollouts(usize),
    /// Terminations whose windows end separately.
    Terminations(usize),
}
