//! Causes of lost requests, each with the facts on which its reason and remedy depend.

use rolldrop_record::{Cause, Mode};

/// Losses with one cause.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// [`Cause::RoutedToDeadPod`].
    RoutedToDeadPod { not_accepting: NotAccepting, sleep: SleepAdvice },
    /// [`Cause::AcceptQueueReset`].
    AcceptQueueReset { sleep: SleepAdvice },
    /// [`Cause::KilledInFlight`].
    KilledInFlight(FinishAdvice),
    /// [`Cause::DrainedTooShort`].
    DrainedTooShort(ShortDrain),
    /// [`Cause::CutAtSigterm`].
    CutAtSigterm(SigtermCut),
    /// [`Cause::GatewayCut`].
    GatewayCut,
    /// [`Cause::IdleCloseRace`]; `None` if no pod was terminating during any such loss.
    IdleCloseRace(Option<CloseNotice>),
    /// [`Cause::H2Unprocessed`].
    H2Unprocessed,
    /// [`Cause::StaleFlow`].
    StaleFlow,
    /// [`Cause::NoReadyEndpoint`].
    NoReadyEndpoint { is_of_node: bool, endpoints: EndpointAdvice },
    /// [`Cause::NotReadyYet`].
    NotReadyYet(Probe),
    /// [`Cause::GatewayError`].
    GatewayError,
    /// [`Cause::GatewayToDeadPod`].
    GatewayToDeadPod { sleep: SleepAdvice },
    /// [`Cause::GatewayNoServer`].
    GatewayNoServer { sleep: SleepAdvice },
    /// [`Cause::RefusedWhileEnding`].
    RefusedWhileEnding(CloseNotice),
    /// [`Cause::RuleSwap`].
    RuleSwap,
    /// [`Cause::Overload`].
    Overload,
    /// [`Cause::Unattributed`], with the number of requests per reason.
    Unattributed(Vec<(Doubt, u64)>),
}

impl Loss {
    /// Returns the cause of the losses.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::RoutedToDeadPod { .. } => Cause::RoutedToDeadPod,
            Self::AcceptQueueReset { .. } => Cause::AcceptQueueReset,
            Self::KilledInFlight(_) => Cause::KilledInFlight,
            Self::DrainedTooShort(_) => Cause::DrainedTooShort,
            Self::CutAtSigterm(_) => Cause::CutAtSigterm,
            Self::GatewayCut => Cause::GatewayCut,
            Self::IdleCloseRace(_) => Cause::IdleCloseRace,
            Self::H2Unprocessed => Cause::H2Unprocessed,
            Self::StaleFlow => Cause::StaleFlow,
            Self::NoReadyEndpoint { .. } => Cause::NoReadyEndpoint,
            Self::NotReadyYet(_) => Cause::NotReadyYet,
            Self::GatewayError => Cause::GatewayError,
            Self::GatewayToDeadPod { .. } => Cause::GatewayToDeadPod,
            Self::GatewayNoServer { .. } => Cause::GatewayNoServer,
            Self::RefusedWhileEnding(_) => Cause::RefusedWhileEnding,
            Self::RuleSwap => Cause::RuleSwap,
            Self::Overload => Cause::Overload,
            Self::Unattributed(_) => Cause::Unattributed,
        }
    }
}

/// Reason why a terminating pod no longer accepted connections, as far as its hooks show.
#[derive(Clone, Debug, PartialEq)]
pub enum NotAccepting {
    /// The workload, named here, has strategy Recreate.
    Recreated(String),
    /// The pod ended without being deleted, so its endpoint stayed ready.
    NotDeleted,
    /// SIGKILL terminated the pod while it was still accepting connections.
    Killed,
    /// The pod exited before its preStop sleep could have finished.
    EndedEarly,
    /// The pod stopped on SIGTERM.
    Stopped { kept: KeptAnswer, hook: PreStopHooks },
}

/// Behaviour of an app on its kept connections after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAnswer {
    /// The app still answers on kept connections.
    Answered,
    /// The app is not known to answer on kept connections.
    Unknown,
}

/// The preStop hooks of the terminated pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreStopHooks {
    /// No hook.
    Unset,
    /// All hooks sleep for this time, in seconds.
    Sleep(i64),
    /// Some pods have a hook of another kind, or their hooks differ.
    Other,
    /// Some hooks failed.
    Failed,
}

/// Sleep that helps: the recommended one, or if there is none, the time that the sleep must exceed.
#[derive(Clone, Debug, PartialEq)]
pub enum SleepAdvice {
    /// No sleep helps, because the workload, named here, has strategy Recreate.
    Recreated(String),
    /// No sleep helps, because the pods ended without being deleted.
    NotDeleted,
    /// The recommended sleep for this mode.
    Advised { hook: HookRepair, mode: Mode },
    /// Starting pods lost so many requests that the windows are unknown.
    ProbeFirst { probe: Probe, requests: u64 },
    /// A sleep longer than this, in seconds, if known; with at least this grace period, if the pods' own is too short.
    AtLeast { hook: HookRepair, at_least_s: Option<f64>, dns: Option<DnsTtl>, grace_s: Option<u64> },
}

/// Change that the hook needs before the length of its sleep matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookRepair {
    /// No change.
    Unneeded,
    /// A hook that runs for its whole sleep.
    Last,
    /// A replacement for the failed hook.
    Replace,
}

/// Time for which clients of a headless Service cache a DNS response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DnsTtl {
    /// Time in seconds.
    Known(f64),
    /// Not known.
    Unknown,
}

/// Way to let a pod finish the requests it has accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FinishAdvice {
    /// Finish on SIGTERM.
    OnSignal,
    /// Finish on SIGTERM, within a grace period long enough for the longest request.
    WithinGrace { longest_s: f64 },
    /// Finish on SIGTERM, and announce the close on kept connections.
    Announced(CloseNotice),
}

/// Grace period that was too short for streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortDrain {
    /// Longest grace period that was too short, in seconds.
    pub grace_s: i64,
    /// Longest stream in seconds; `None` if the ends of the longest ones were not seen.
    pub longest_s: Option<f64>,
    /// Notice that the app should have given, if streams kept arriving on kept connections until SIGKILL. In that case,
    /// no grace period is long enough.
    pub missing_notice: Option<CloseNotice>,
}

/// Streams that the app cut after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SigtermCut {
    /// Shortest and longest time after SIGTERM, in seconds; `None` if no such stream can be assigned to a single
    /// termination.
    pub after_s: Option<(f64, f64)>,
    /// Number of these streams that the app ended with a message.
    pub told: u64,
}

/// Way in which a server announces that it is closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseNotice {
    /// `Connection: close`.
    Header,
    /// HTTP/2 GOAWAY.
    Goaway,
    /// Either, depending on the connection.
    Either,
}

/// Way to keep an endpoint ready while pods are terminated.
#[derive(Clone, Debug, PartialEq)]
pub enum EndpointAdvice {
    /// The workload, named here, was deleted under load.
    Deleted(String),
    /// The workload, named here, has strategy Recreate.
    Recreated(String),
    /// The traffic policy is Local, so each node needs a ready pod.
    OnEachNode { policy: TrafficPolicyKind, workload: OnEachNode },
    /// The workload is not known.
    Unknown,
    /// A different strategy, or more replicas.
    Rolling { workload: String, replicas: Option<i32>, max_unavailable: Option<String> },
}

/// Traffic policy of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicyKind {
    /// Policy for node ports.
    External,
    /// Policy for cluster IPs.
    Internal,
}

/// Workload that needs a pod on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnEachNode {
    /// DaemonSet, by kind and name.
    DaemonSet(String),
    /// Another workload, by kind and name.
    Other(String),
    /// Not known.
    Unknown,
}

/// State of the readiness probe that should keep traffic away from pods that are not serving yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Not all pods have a probe.
    Missing,
    /// All pods have a probe, but it succeeds too early.
    TooEarly,
}

/// Reason why no cause is given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// These causes compete, and none outweighs the others.
    Competing(Vec<Cause>),
    /// The pod that the request reached was not terminating.
    PodWasWell,
    /// The terminations of the pods that may have lost the request do not explain its outcome.
    NoFit,
    /// No pod that the request could have reached was terminating or starting.
    NothingNear,
}
