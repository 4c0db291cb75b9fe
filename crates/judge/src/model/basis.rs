//! Figures that a gate judges, each with the observation that its bounds rest on.

use rolldrop_explain::model::{Figure, FindingText, Stage, StartStage};
use rolldrop_record::expect::LatencyFigure;

/// A figure between its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The figure.
    pub figure: Figure,
    /// Basis of the bounds.
    pub basis: Basis,
}

/// Basis of a figure's bounds, or the reason why they are unknown.
#[derive(Clone, Debug, PartialEq)]
pub enum Basis {
    /// A plain observation.
    Observed,
    /// No request was sent.
    NothingSent,
    /// No request was scheduled.
    NothingScheduled,
    /// The run was to end pods, and none ended.
    NoneEnded,
    /// No pod ended while the run watched.
    NoneEndedInWatch,
    /// Dropped requests without those that the server reported as not processed: the number of the latter.
    WithoutUnprocessed(u64),
    /// Nothing was lost: the fault that this many terminations would show.
    Power {
        /// Share of the terminations in which the fault loses requests.
        share: f64,
        /// Share of the runs in which it shows.
        confidence: f64,
        /// Terminations, those that share losses counted once.
        units: LossUnits,
    },
    /// Errors while pods were ending, no more of them than in the steady part: their number.
    AsInSteadyPart(u64),
    /// Losses by termination.
    Losses {
        /// Confidence of the bounds.
        confidence: f64,
        /// Terminations, those that share losses counted once.
        units: LossUnits,
        /// Number of these that lost requests.
        losing: u64,
        /// Number of further ones like these that would settle the check, if known.
        more: Option<u64>,
    },
    /// Requests outside terminations, and those of them that succeeded.
    Outside {
        /// Requests that succeeded.
        ok: u64,
        /// All requests.
        all: u64,
    },
    /// No request was sent outside terminations.
    NoneOutside,
    /// A group of terminations lost more than the limit allows all its pods.
    GroupBeyondLimit,
    /// No termination was measured.
    NoTermination,
    /// The longest window.
    LongestWindow(LongestWindow),
    /// No window was measured.
    NoWindow,
    /// A percentile of windows, by order statistics.
    Percentile {
        /// Share of the windows.
        share: f64,
        /// Confidence of the bounds.
        confidence: f64,
        /// Windows that ended separately.
        windows: u64,
        /// Number of windows that an upper bound needs, if it has none.
        needed: Option<u64>,
    },
    /// The preStop sleep against the windows.
    Sleep {
        /// Windows that ended separately.
        windows: u64,
        /// Number of these that the sleep outlasts.
        outlasted: u64,
        /// Number of these that surely last longer.
        longer: u64,
        /// Number of further ones that it must outlast to pass, if that is all that is missing.
        more: Option<u64>,
    },
    /// No pod ended.
    NoEnd,
    /// No pod started.
    NoStart,
    /// The exit codes of these pods were not seen.
    UnseenExitCodes(Vec<String>),
    /// No rollout was measured.
    NoRollout,
    /// A fact about one pod.
    Pod(String, PodFact),
    /// A latency statistic.
    Latency(LatencyFigure, LatencyBasis),
    /// Containers that ended without the run having asked for it.
    Restarted(Vec<FindingText>),
}

/// Fact about a pod that leaves a figure open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodFact {
    /// It shares lost requests with other terminations.
    SharesLosses,
    /// Neither the rate at which it got new connections nor its losses are known.
    NoRate,
    /// Its preStop hook is no sleep.
    HookIsNoSleep,
    /// This stage of its termination was not seen.
    NoStage(Stage),
    /// This stage of its start was not seen.
    NoStartStage(StartStage),
    /// It is not known to have answered a request.
    NoFirstRequest,
    /// It was not seen to be gone.
    NotGone,
    /// It was not ready when the run ended.
    NotReady,
}

/// Basis of a latency statistic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatencyBasis {
    /// So many answered requests.
    Answers(u64),
    /// The latency near terminations, divided by that elsewhere.
    Ratio {
        /// Latency near terminations, in milliseconds.
        disrupted_ms: f64,
        /// Latency elsewhere, in milliseconds.
        steady_ms: f64,
    },
    /// Too few answered requests.
    Few {
        /// Answered requests.
        answers: u64,
        /// Number that it needs.
        needed: u64,
    },
}

/// Terminations, with those that share losses counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossUnits {
    /// Number of units.
    pub number: u64,
    /// True if a unit has several terminations.
    pub are_groups: bool,
}

/// The longest of several windows.
#[derive(Clone, Debug, PartialEq)]
pub struct LongestWindow {
    /// Number of windows.
    pub windows: u64,
    /// Number of these without an upper bound.
    pub unbounded: u64,
    /// Largest upper bound, in seconds.
    pub upper_s: Option<f64>,
    /// Largest lower bound, in seconds, and the pods of which one had such a window.
    pub lasted: Option<(f64, Whose)>,
}

/// Owner of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This pod.
    Pod(String),
    /// One of so many pods.
    OneOf(usize),
}
