//! The account of a run: its findings and reasons as facts, with their figures. `report` puts them into words.

#![expect(missing_docs, reason = "a figure's name, beside the doc of its variant, describes it")]

mod grounds;
mod loss;
mod reasons;

use std::collections::BTreeMap;
use std::sync::Arc;

use rolldrop_record::event::ActionName;
use rolldrop_record::run_info::BalancesBecause;
use rolldrop_record::{Cause, Outcome};

use super::{FindingKind, Severity, Unbounded};

pub use grounds::{Basis, Clock, Grounds, More, Narrowing, Refusal};
pub use loss::{
    CloseNotice, DnsTtl, Doubt, Endpoints, Finish, Hook, HookRepair, KeptAnswer, Loss, NotAccepting,
    OnEachNode, Probe, SleepAdvice, TrafficPolicy,
};
pub use reasons::{Contradiction, Incomplete, Invalid, Measured, Missing};

/// The findings and reasons of an analysis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Reasons why the measurement is invalid.
    pub invalid: Vec<Invalid>,
    /// Reasons why the record is incomplete.
    pub incomplete: Vec<Incomplete>,
    /// By termination and window, in the order of [`super::RunResult::terminations`]: the reason why the window has no
    /// upper bound.
    pub unbounded: Vec<Vec<Option<Unbounded>>>,
    /// Grounds of each recommendation, in the order of [`super::RunResult::recommendation`].
    pub grounds: Vec<Grounds>,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
}

/// A finding. Times are in seconds; those of the run since the counted part of the load began.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Outside terminations, fewer requests succeeded than a working target answers.
    NotWorking { ok: u64, all: u64, most_frequent: Option<(Outcome, u64)> },
    /// The measurement is invalid.
    Invalid(Invalid),
    /// The record is incomplete.
    Incomplete(Incomplete),
    /// Requests were lost by one cause.
    Lost { requests: u64, by: Loss },
    /// Requests were lost by a container that ended in a pod that stays.
    LostToRestart { requests: u64, cause: Cause },
    /// Losses fit several terminations.
    Ambiguous { requests: u64 },
    /// Pods that were ending answered with 5xx.
    EndingErrors { answers: u64, requests: u64, are_all_named: bool },
    /// Pods ended in a way that loses requests, or that hides something.
    Ending(Ending),
    /// Pods were never routed to.
    NeverRouted { consumer: String, pods: Vec<String> },
    /// Windows have no upper bound: each pod with its reason, all of the same kind. `denied` has the rights that the
    /// run lacked to learn the kind of Service proxy.
    Unbounded { consumer: String, pods: Vec<(String, Unbounded)>, denied: Vec<String> },
    /// A missing right hides the mode of kube-proxy.
    RightMissing { denied: Vec<String>, unbounded: usize, windows: u64 },
    /// Terminations always met a consumer's own clock at about the same phase.
    InPhase(Clock),
    /// The load did not send some requests, too few to make the run invalid.
    NotSent(BTreeMap<String, u64>),
    /// Times of deletions by others are imprecise.
    ImpreciseDeletions { deletions: u64, widest_s: f64, beats: BeatsState },
    /// Something happened beside the terminations.
    Incident(Incident),
    /// Waits after terminations ended while requests were still lost.
    Unsettled { waits: u64 },
    /// A URL's answers showed that requests are balanced there.
    TakenForGateway { consumer: String, because: BalancesBecause },
    /// The measurement has a limit, or an effect of its own.
    Measurement(Measurement),
    /// The gate is judged at one of several looks.
    LookedAt { look: usize, most: usize, confidence: f64, is_last: bool },
    /// No pod ended under load.
    NoTermination { are_others_disrupted: bool },
    /// No request was dropped.
    NothingLost { terminations: u64, at_most: f64 },
}

impl Finding {
    /// Returns the severity.
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

    /// Returns the kind, if programs may want to recognise it.
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

    /// Returns the cause of dropped requests that it is about, if any.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Lost { by, .. } => Some(by.cause()),
            Self::LostToRestart { cause, .. } => Some(*cause),
            _ => None,
        }
    }
}

/// End of pods that loses requests, or that hides something.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The preStop hook of a container failed.
    HookFailed(HookFailure),
    /// Pods ended before the sleep of their hook could be over, and no Event gives the reason.
    Early { ended: usize, pods: u64, sleep_s: i64 },
    /// Hooks were still running when the grace period was over.
    HookCutOff { cut_off: usize, pods: u64, grace_s: i64 },
    /// Pods accepted new connections until SIGKILL.
    AcceptedUntilKilled { pods: u64, grace_s: i64 },
    /// Pods lived on kept connections until SIGKILL.
    ServedUntilKilled { pods: u64, grace_s: i64, answered: u64, closing: CloseNotice },
    /// SIGKILL ended pods before their grace period was over.
    KilledEarly { pods: u64, is_out_of_memory: bool },
    /// SIGKILL ended other pods at the end of their grace period; `sleep_s` is `None` if a hook of another kind hides
    /// it.
    Killed { pods: Vec<String>, grace_s: f64, sleep_s: Option<f64>, longest_answer_s: f64 },
    /// Events could not be watched, so failures of hooks are not known.
    EventsUnseen { why: String },
}

impl Ending {
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

/// Failures of the preStop hook of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFailure {
    /// The container, if Events name it.
    pub container: Option<String>,
    /// Workload of the pods; `None` if the run ended pods of one only.
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

/// Something that happened beside the terminations.
#[derive(Clone, Debug, PartialEq)]
pub enum Incident {
    /// An action was refused; `pod` if once, and for a pod.
    Refused { action: ActionName, status: Option<u16>, why: String, pod: Option<String>, times: u64 },
    /// Changes that a program began had not settled when the run stopped waiting.
    Unfinished { command: String, missing: String },
    /// A container ended in a pod that stays.
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
    /// The run restarted agents of nodes.
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

/// Limit or effect of the measurement itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Measurement {
    /// The clock of a source was never compared with the coordinator's.
    ClockUncompared(String),
    /// Connections came from a source port that had been used shortly before.
    PortsReused(u64),
    /// Proxies recorded requests of another run.
    OtherRuns(u64),
    /// Proxies recorded requests that the run did not record.
    UnknownRequests(u64),
    /// Proxies read requests before they were sent.
    EarlyRows(u64),
    /// Proxies read requests after their client had seen the end.
    LateRows(u64),
    /// A gateway's retries hid failures; pods with the most first.
    Retried(Vec<(Arc<str>, u64)>),
    /// Answers name pods that the run did not watch, in a header, or in a body by this pattern.
    UnmatchedNames {
        answers: u64,
        header: String,
        body: Option<String>,
        examples: Vec<Arc<str>>,
        are_all: bool,
    },
    /// The kernel has no entries for the connections.
    NoEntries { connections: u64 },
    /// The kernel sent no connection to a pod's address.
    NoPodAddresses,
    /// Connection tracking has gaps.
    TrackingGaps { gaps: u64, first_s: f64 },
    /// Too few answers confirm the kernel's entries.
    EntriesUnconfirmed { agreed: u64 },
    /// Answers contradict the kernel's entries.
    EntriesContradicted { disagreed: u64 },
    /// The kernel says where connections were sent.
    Tracked { routed: u64, connections: u64 },
    /// A warning was recorded during the run.
    Recorded { message: String, times: u64 },
    /// The embedded cluster does not model the behaviour of a container.
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
    /// The run made none.
    #[default]
    Absent,
    /// They can be used.
    Usable,
    /// They cannot be used.
    Dropped(Objection),
}

/// Reason why beats cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// This version is not a number.
    NotANumber(String),
    /// The versions of the beats do not rise.
    NotRising,
    /// The beats were compared with the pods' versions too few times.
    TooFewChecks { made: usize, needed: usize },
    /// The pods' versions do not lie between those of the beats around them.
    NotBetween,
    /// The pods' versions do not keep the order of the beats.
    Disordered,
}

/// A change of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadChange {
    /// Another pod template.
    Template,
    /// Another number of replicas.
    Replicas { from: i32, to: i32 },
}
