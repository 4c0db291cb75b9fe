//! Figures that a gate judges, each with the observations behind its bounds.

use rolldrop_explain::model::{Figure, FindingText, Stage, StartStage};
use rolldrop_record::expect::LatencyFigure;

/// A figure with its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Value and bounds of the figure.
    pub figure: Figure,
    /// Observation behind the bounds.
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
    /// The run should have terminated pods, but none ended.
    NoneEnded,
    /// No pod ended while the run was watching.
    NoneEndedInWatch,
    /// No termination is recorded in the judged period.
    NoneEndedInHistory,
    /// Missing facts leave the figure undecided.
    Open(Vec<FigureDoubt>),
    /// Dropped requests, excluding those that the server reported as unprocessed. Holds the number of excluded
    /// requests.
    WithoutUnprocessed(u64),
    /// Nothing was lost: the smallest fault that this many terminations would have revealed.
    Power {
        /// Share of the terminations that lose requests because of the fault.
        share: f64,
        /// Share of the runs that would reveal the fault.
        confidence: f64,
        /// Terminations; those that share losses count once.
        units: LossUnits,
    },
    /// Number of errors while pods were terminating, which were no more frequent than in the steady part.
    AsInSteadyPart(u64),
    /// Losses per termination.
    Losses {
        /// Confidence of the bounds.
        confidence: f64,
        /// Terminations; those that share losses count once.
        units: LossUnits,
        /// Number of units that lost requests.
        losing: u64,
        /// Number of further units like these that would settle the check, if known.
        more: Option<u64>,
    },
    /// Requests outside terminations, and how many of them succeeded.
    Outside {
        /// Number of successful requests.
        ok: u64,
        /// Number of all requests.
        all: u64,
    },
    /// No request was sent outside terminations.
    NoneOutside,
    /// A group of terminations lost more than the limit allows for all its pods together.
    GroupBeyondLimit,
    /// The load sent no streams.
    NoStream,
    /// No termination was measured.
    NoTermination,
    /// Length of the longest window.
    LongestWindow(LongestWindow),
    /// No window was measured.
    NoWindow,
    /// A percentile of windows, by order statistics.
    Percentile {
        /// Share of the windows that the percentile covers.
        share: f64,
        /// Confidence of the bounds.
        confidence: f64,
        /// Number of windows that ended separately.
        windows: u64,
        /// Number of windows required for an upper bound, if there is none.
        needed: Option<u64>,
    },
    /// The preStop sleep, compared with the windows.
    Sleep {
        /// Number of windows that ended separately.
        windows: u64,
        /// Number of windows that the sleep outlasts.
        outlasted: u64,
        /// Number of windows that certainly last longer than the sleep.
        longer: u64,
        /// Number of further windows that the sleep must outlast to pass, if nothing else is missing.
        more: Option<u64>,
    },
    /// No pod ended.
    NoEnd,
    /// No pod started.
    NoStart,
    /// Requests still failed when the load ended.
    StillFailing,
    /// The exit codes of these pods were not seen.
    UnseenExitCodes(Vec<String>),
    /// No rollout was measured.
    NoRollout,
    /// A fact about one pod.
    Pod(String, PodFact),
    /// A latency statistic.
    Latency(LatencyFigure, LatencyBasis),
    /// Containers that exited on their own, not because of the run.
    Restarted(Vec<FindingText>),
}

/// Fact about a pod that leaves a figure undecided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodFact {
    /// The pod shares lost requests with other terminations.
    SharesLosses,
    /// Neither the pod's rate of new connections nor its losses are known.
    NoRate,
    /// The pod's preStop hook is not a sleep.
    HookIsNoSleep,
    /// This stage of the pod's termination was not seen.
    NoStage(Stage),
    /// This stage of the pod's start was not seen.
    NoStartStage(StartStage),
    /// The pod is not known to have answered any request.
    NoFirstRequest,
    /// The pod's removal was not seen.
    NotGone,
    /// The pod was not ready when the run ended.
    NotReady,
}

/// Reason why a figure is undecided.
#[derive(Clone, Debug, PartialEq)]
pub enum FigureDoubt {
    /// Time, in seconds, for which it is unknown which pods ended.
    NotWatched(f64),
    /// Number of terminations whose pods appear in no log.
    InNoLog(u64),
    /// Number of terminations for which log lines may be missing.
    LinesMissing(u64),
    /// Number of requests whose outcome the logs do not show.
    NotObservable(u64),
    /// Number of terminations for which the logs do not show which streams were cut.
    StreamsCutUnknown(u64),
    /// Number of lost requests that might have failed even without a termination.
    Background(u64),
    /// Number of lost requests that may belong to other terminations.
    MayBeOthers(u64),
    /// No request reached the pods.
    NoRequests,
    /// Number of pods for which it is unknown whether they were killed when their grace period expired.
    KilledUnknown(u64),
    /// Number of pods for which it is unknown whether their preStop hooks failed.
    HooksUnknown(u64),
    /// Number of pods whose exit codes were not seen.
    ExitCodesUnseen(u64),
}

/// Basis of a latency statistic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatencyBasis {
    /// This many answered requests.
    Answers(u64),
    /// Latency near terminations, divided by latency elsewhere.
    Ratio {
        /// Latency near terminations, in milliseconds.
        disrupted_ms: f64,
        /// Latency elsewhere, in milliseconds.
        steady_ms: f64,
    },
    /// Too few answered requests.
    Few {
        /// Number of answered requests.
        answers: u64,
        /// Number of answered requests that the statistic requires.
        needed: u64,
    },
}

/// Number of terminations, counting those that share losses, or that left the rules in one step, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossUnits {
    /// Number of units.
    pub number: u64,
    /// True if a unit can contain several terminations.
    pub are_groups: bool,
}

/// The longest of several windows.
#[derive(Clone, Debug, PartialEq)]
pub struct LongestWindow {
    /// Number of windows.
    pub windows: u64,
    /// Number of windows without an upper bound.
    pub unbounded: u64,
    /// Largest lower bound, in seconds, and the pods to which that window may belong.
    pub lasted: Option<(f64, WindowOwner)>,
}

/// Owner of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowOwner {
    /// The named pod.
    Pod(String),
    /// One of this many pods.
    OneOf(usize),
}
