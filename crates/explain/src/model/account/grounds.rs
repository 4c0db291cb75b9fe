//! Grounds of a recommendation.

use crate::model::WindowBasis;

use super::Probe;

/// Grounds of a recommendation, and reasons against one.
#[derive(Clone, Debug, PartialEq)]
pub struct Grounds {
    /// Basis of the recommendation.
    pub basis: Basis,
    /// Reasons for recommending nothing; empty if something is recommended.
    pub refusals: Vec<Refusal>,
    /// Measurement that would make the suggested range narrower.
    pub narrowing: Option<Narrowing>,
}

/// Basis of a recommendation.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// Largest upper bound, in seconds; `None` if no window has one.
    pub longest_s: Option<f64>,
    /// Number of windows.
    pub windows: usize,
    /// Number of these without an upper bound.
    pub unbounded: usize,
    /// Consumers with a clock of their own.
    pub clocks: Vec<Clock>,
    /// Margin of the policy, in seconds.
    pub margin_s: u64,
    /// Longest time from SIGTERM to the end of a pod, in seconds; `None` if it was not seen for every pod.
    pub stopping_s: Option<f64>,
}

/// A consumer that looks at endpoints only once in a period.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    /// The consumer.
    pub consumer: String,
    /// Time for which it keeps its knowledge, in seconds.
    pub period_s: f64,
    /// Longest time from t0 until the endpoint was seen to be removed, in seconds.
    pub news_s: f64,
}

/// Reason for recommending nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The record is not whole.
    NotWhole,
    /// The measurement is not valid.
    NotValid,
    /// The workload, named here, ends all its pods before the first new one starts.
    Recreated(String),
    /// Starting pods lost so many requests that the windows are not known.
    ProbeFirst { probe: Probe, requests: u64 },
    /// Too few windows for the coverage asked.
    TooFew { windows: usize, units: usize, needed: usize, covered: f64, asked: f64, confidence: f64 },
    /// Windows without an upper bound.
    Unbounded { unbounded: usize, windows: usize },
    /// A pod gets too few connections per second to show its window.
    TooCoarse { rate: f64 },
    /// All terminations met this clock at one phase.
    InPhase(Clock),
}

/// Measurement that makes a suggested range narrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// More of the same.
    pub more: More,
    /// Basis of the largest upper bound.
    pub basis: Option<WindowBasis>,
}

/// Number of further measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Rollouts.
    Rollouts(usize),
    /// Terminations that end apart.
    Terminations(usize),
}
