//! Account of a run: findings and reasons as facts, with their figures. `report` puts them into words.

#![expect(missing_docs, reason = "a figure's name, beside the doc of its variant, describes it")]

mod grounds;
mod invalid_reasons;
mod loss;

use std::collections::BTreeMap;
use std::sync::Arc;

use rolldrop_record::event::ActionName;
use rolldrop_record::run_info::BalancesBecause;
use rolldrop_record::{Cause, Outcome};

use super::{FindingKind, Severity, Unbounded, UnevenStreams};

pub use grounds::{ConsumerClock, Grounds, More, Narrowing, NoRecommendation, RecommendationBasis};
pub use invalid_reasons::{Incomplete, Invalid, MeasuredQuantity, Missing, RecordContradiction};
pub use loss::{
    CloseNotice, DnsTtl, Doubt, EndpointAdvice, FinishAdvice, HookRepair, KeptAnswer, Loss, NotAccepting,
    OnEachNode, PreStopHooks, Probe, ShortDrain, SigtermCut, SleepAdvice, TrafficPolicyKind,
};

/// Findings and reasons of an analysis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Reasons why the measurement is invalid.
    pub invalid: Vec<Invalid>,
    /// Reasons why the record is incomplete.
    pub incomplete: Vec<Incomplete>,
    /// Reason why a window has no upper bound, by termination and window, in the order of
    /// [`super::RunResult::terminations`].
    pub unbounded: Vec<Vec<Option<Unbounded>>>,
    /// Grounds for each recommendation, in the order of [`super::RunResult::recommendation`].
    pub grounds: Vec<Grounds>,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
}

/// Finding. Times are in seconds; points in the run are measured from the start of the counted part of the load.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Too few requests succeeded outside terminations for the target to count as working.
    NotWorking { ok: u64, all: u64, most_frequent: Option<(Outcome, u64)> },
    /// The measurement is invalid.
    Invalid(Invalid),
    /// The record is incomplete.
    Incomplete(Incomplete),
    /// Requests were lost to one cause.
    Lost { requests: u64, by: Loss },
    /// Requests were lost because a container exited in a pod that was not terminating.
    LostToRestart { requests: u64, cause: Cause },
    /// Losses fit several terminations.
    Ambiguous { requests: u64 },
    /// Terminating pods responded with 5xx.
    EndingErrors { answers: u64, requests: u64, are_all_named: bool },
    /// Pods were terminated in a way that loses requests or hides something.
    Ending(EndingFinding),
    /// Pods were never routed to.
    NeverRouted { consumer: String, pods: Vec<String> },
    /// Windows have no upper bound: pods with their reasons, all of the same kind. `denied` lists missing permissions
    /// that kept the run from learning the kind of Service proxy.
    Unbounded { consumer: String, pods: Vec<(String, Unbounded)>, denied: Vec<String> },
    /// A missing permission hides the mode of kube-proxy.
    RightMissing { denied: Vec<String>, unbounded: usize, windows: u64 },
    /// Terminations always hit a consumer's own clock at about the same phase.
    InPhase(ConsumerClock),
    /// The load did not send some requests, too few to make the run invalid.
    NotSent(BTreeMap<String, u64>),
    /// The times of deletions by others are imprecise.
    ImpreciseDeletions { deletions: u64, widest_s: f64, beats: BeatsState },
    /// Streams were unevenly distributed over the pods when the load ended.
    UnevenStreams(UnevenStreams),
    /// Something other than a termination happened.
    Incident(Incident),
    /// Waits after terminations timed out while requests were still being lost.
    Unsettled { waits: u64 },
    /// Responses from a URL showed that it balances requests.
    TakenForGateway { consumer: String, because: BalancesBecause },
    /// The measurement has a limitation or a side effect.
    Measurement(Measurement),
    /// The gate is judged at one of several looks.
    LookedAt { look: usize, most: usize, confidence: f64, is_last: bool },
    /// No pod was terminated under load.
    NoTermination { are_others_disrupted: bool },
    /// No request was dropped.
    NothingLost { terminations: u64, independent: u64, confidence: f64, at_most: f64 },
}

impl Finding {
    /// Returns the severity of the finding.
    pub fn severity(&self) -> Severity {
        match self {
            Self::NotWorking { .. }
            | Self::Invalid(_)
            | Self::LostToRestart { .. }
            | Self::EndingErrors { .. } => Severity::Error,
            Self::Incomplete(Incomplete::Corrupt(_)) => Severity::Error,
            // The generator's own fault is not an error of the measured system.
            Self::Lost { by: Loss::StaleFlow, .. } => Severity::Warning,
            Self::Lost { .. } => Severity::Error,
            Self::Ending(ending) => ending.severity(),
            Self::Incident(incident) => incident.severity(),
            Self::Measurement(measurement) => measurement.severity(),
            Self::Incomplete(_)
            | Self::Ambiguous { .. }
            | Self::Unbounded { .. }
            | Self::InPhase(_)
            | Self::NotSent(_)
            | Self::UnevenStreams(_)
            | Self::Unsettled { .. } => Severity::Warning,
            Self::RightMissing { unbounded, .. } if *unbounded > 0 => Severity::Warning,
            Self::NeverRouted { .. }
            | Self::RightMissing { .. }
            | Self::ImpreciseDeletions { .. }
            | Self::TakenForGateway { .. }
            | Self::LookedAt { .. }
            | Self::NoTermination { .. }
            | Self::NothingLost { .. } => Severity::Info,
        }
    }

    /// Returns the kind of finding, if programs may want to recognise it.
    pub fn kind(&self) -> Option<FindingKind> {
        match self {
            Self::NotWorking { .. } => Some(FindingKind::NotWorking),
            Self::Invalid(reason) => Some(reason.kind()),
            Self::Incomplete(reason) => Some(reason.kind()),
            Self::InPhase(_) => Some(FindingKind::InPhase),
            Self::Incident(incident) => incident.kind(),
            _ => None,
        }
    }

    /// Returns the cause of the dropped requests that the finding describes, if any.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Lost { by, .. } => Some(by.cause()),
            Self::LostToRestart { cause, .. } => Some(*cause),
            _ => None,
        }
    }
}

/// Pod terminations that lose requests or hide something.
#[derive(Clone, Debug, PartialEq)]
pub enum EndingFinding {
    /// The preStop hook of a container failed.
    HookFailed(HookFailure),
    /// Pods exited before their hook's sleep could have finished, and no Event gives the reason.
    Early { ended: usize, pods: u64, sleep_s: i64 },
    /// Hooks were still running when the grace period expired.
    HookCutOff { cut_off: usize, pods: u64, grace_s: i64 },
    /// Pods accepted new connections until SIGKILL.
    AcceptedUntilKilled { pods: u64, grace_s: i64 },
    /// Pods kept serving on kept connections until SIGKILL.
    ServedUntilKilled { pods: u64, grace_s: i64, answered: u64, closing: CloseNotice },
    /// SIGKILL terminated pods before their grace period expired.
    KilledEarly { pods: u64, is_out_of_memory: bool },
    /// SIGKILL terminated other pods when their grace period expired; `sleep_s` is `None` if a hook of another kind
    /// hides it.
    Killed { pods: Vec<String>, grace_s: f64, sleep_s: Option<f64>, longest_answer_s: f64 },
    /// Events could not be watched, so hook failures are unknown.
    EventsUnseen { why: String },
}

impl EndingFinding {
    const fn severity(&self) -> Severity {
        match self {
            Self::HookFailed(_)
            | Self::Early { .. }
            | Self::AcceptedUntilKilled { .. }
            | Self::ServedUntilKilled { .. } => Severity::Error,
            Self::HookCutOff { .. } | Self::KilledEarly { .. } | Self::Killed { .. } => Severity::Warning,
            Self::EventsUnseen { .. } => Severity::Info,
        }
    }
}

/// Failures of a container's preStop hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFailure {
    /// The container, if Events name it.
    pub container: Option<String>,
    /// Workload of the pods; `None` if the run terminated pods of only one workload.
    pub workload: Option<String>,
    /// Number of failures.
    pub failed: usize,
    /// Number of pods with a hook.
    pub pods: u64,
    /// Message of the first Event.
    pub message: String,
    /// Program that the hook runs.
    pub program: Option<String>,
}

/// Event other than a termination.
#[derive(Clone, Debug, PartialEq)]
pub enum Incident {
    /// An action was refused; `pod` is set if it was refused only once, for a pod.
    Refused { action: ActionName, status: Option<u16>, why: String, pod: Option<String>, times: u64 },
    /// Changes started by a program had not settled when the run stopped waiting.
    Unfinished { command: String, missing: String },
    /// A container exited in a pod that was not terminating.
    Restarted {
        pod: String,
        container: String,
        exit_code: Option<i32>,
        is_crash: bool,
        ready_after_s: Option<f64>,
    },
    /// Others changed a workload of measured pods.
    Changed { workload: String, at_s: f64, what: Vec<WorkloadChange>, later: u64 },
    /// Others deleted a workload.
    Deleted { workload: String, at_s: f64 },
    /// The run restarted node agents.
    AgentsRestarted(usize),
    /// A pod left its Services and kept running.
    LivedOn { pod: String, endpoint_removed_after_s: Option<f64>, last_connection_after_s: Option<f64> },
}

impl Incident {
    const fn severity(&self) -> Severity {
        match self {
            Self::Deleted { .. } => Severity::Error,
            Self::Refused { .. }
            | Self::Unfinished { .. }
            | Self::Restarted { .. }
            | Self::Changed { .. } => Severity::Warning,
            Self::AgentsRestarted(_) | Self::LivedOn { .. } => Severity::Info,
        }
    }

    const fn kind(&self) -> Option<FindingKind> {
        match self {
            Self::Refused { .. } | Self::Unfinished { .. } => Some(FindingKind::NotDone),
            Self::Restarted { is_crash: false, .. } => Some(FindingKind::Restarted),
            _ => None,
        }
    }
}

/// Limitation or side effect of the measurement itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Measurement {
    /// A source's clock was never compared with the coordinator's clock.
    ClockUncompared(String),
    /// Connections reused a source port shortly after its previous use.
    PortsReused(u64),
    /// Proxies recorded requests from another run.
    OtherRuns(u64),
    /// Proxies recorded requests that the run did not record.
    UnknownRequests(u64),
    /// Proxies read requests before they were sent.
    EarlyRows(u64),
    /// Proxies read requests after the client had seen them end.
    LateRows(u64),
    /// A gateway's retries hid failures; pods with the most failures come first.
    Retried(Vec<(Arc<str>, u64)>),
    /// Responses name pods that the run did not watch, in a header, or in a body matching this pattern.
    UnmatchedNames {
        answers: u64,
        header: String,
        body: Option<String>,
        examples: Vec<Arc<str>>,
        are_all: bool,
    },
    /// The kernel has no entries for the connections.
    NoEntries { connections: u64 },
    /// The kernel routed no connection to a pod's address.
    NoPodAddresses,
    /// Connection tracking has gaps.
    TrackingGaps { gaps: u64, first_s: f64 },
    /// Too few responses confirm the kernel's entries.
    EntriesUnconfirmed { agreed: u64 },
    /// Responses contradict the kernel's entries.
    EntriesContradicted { disagreed: u64 },
    /// The kernel's entries show where connections were routed.
    Tracked { routed: u64, connections: u64 },
    /// A warning was recorded during the run.
    Recorded { message: String, times: u64 },
    /// The embedded cluster does not model a container's behaviour.
    NotModelled { container: String, message: String, pods: u64 },
    /// The proxy reset connections that the app would have refused.
    ResetForRefused(u64),
}

impl Measurement {
    const fn severity(&self) -> Severity {
        match self {
            Self::OtherRuns(_)
            | Self::LateRows(_)
            | Self::Retried(_)
            | Self::UnmatchedNames { are_all: false, .. }
            | Self::Tracked { .. }
            | Self::ResetForRefused(_) => Severity::Info,
            _ => Severity::Warning,
        }
    }
}

/// Usability of a run's beats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BeatsState {
    /// The run wrote no beats.
    #[default]
    Absent,
    /// The beats can be used.
    Usable,
    /// The beats cannot be used.
    Dropped(Objection),
}

/// Objection to using a run's beats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// This version is not a number.
    NotANumber(String),
    /// The beats' versions do not increase.
    NotRising,
    /// The beats were compared with pod versions too few times.
    TooFewChecks { made: usize, needed: usize },
    /// Pod versions are not between those of the surrounding beats.
    NotBetween,
    /// Pod versions are not in the order of the beats.
    Disordered,
}

/// Change to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadChange {
    /// The pod template changed.
    Template,
    /// The number of replicas changed.
    Replicas { from: i32, to: i32 },
}
