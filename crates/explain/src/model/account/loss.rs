//! Causes of lost requests, each with the facts on which its reason and its remedy depend.

use rolldrop_record::{Cause, Mode};

/// Losses by one cause.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// [`Cause::RoutedToDeadPod`].
    RoutedToDeadPod { not_accepting: NotAccepting, sleep: SleepAdvice },
    /// [`Cause::AcceptQueueReset`].
    AcceptQueueReset { sleep: SleepAdvice },
    /// [`Cause::KilledInFlight`].
    KilledInFlight(Finish),
    /// [`Cause::IdleCloseRace`]; `None` if no pod was ending at any such loss.
    IdleCloseRace(Option<CloseNotice>),
    /// [`Cause::H2Unprocessed`].
    H2Unprocessed,
    /// [`Cause::StaleFlow`].
    StaleFlow,
    /// [`Cause::NoReadyEndpoint`].
    NoReadyEndpoint { is_of_node: bool, endpoints: Endpoints },
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
    /// [`Cause::Unattributed`]: the reasons, each with its number of requests.
    Unattributed(Vec<(Doubt, u64)>),
}

impl Loss {
    /// Returns the cause.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::RoutedToDeadPod { .. } => Cause::RoutedToDeadPod,
            Self::AcceptQueueReset { .. } => Cause::AcceptQueueReset,
            Self::KilledInFlight(_) => Cause::KilledInFlight,
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

/// Reason why a pod that was ending no longer accepted connections, as far as its hooks show.
#[derive(Clone, Debug, PartialEq)]
pub enum NotAccepting {
    /// The workload, named here, has strategy Recreate.
    Recreated(String),
    /// SIGKILL ended it while it still accepted connections.
    Killed,
    /// It ended before its preStop sleep could be over.
    EndedEarly,
    /// It stopped on SIGTERM.
    Stopped { kept: KeptAnswer, hook: Hook },
}

/// Behaviour of an app on its kept connections after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAnswer {
    /// It answers on them.
    Answered,
    /// It is not known to answer on them.
    Unknown,
}

/// The preStop hooks of the pods that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// None.
    Unset,
    /// All sleep for this time, in seconds.
    Sleep(i64),
    /// Some have a hook of another kind, or not all have the same one.
    Other,
    /// Some failed.
    Failed,
}

/// Sleep that helps: the recommended one, or if there is none, the time that it must exceed.
#[derive(Clone, Debug, PartialEq)]
pub enum SleepAdvice {
    /// No sleep helps: the workload, named here, has strategy Recreate.
    Recreated(String),
    /// That of the recommendation for this mode.
    Advised { hook: HookRepair, mode: Mode },
    /// Starting pods lost so many requests that the windows are not known.
    ProbeFirst { probe: Probe, requests: u64 },
    /// Longer than this, in seconds, if that is known.
    AtLeast { hook: HookRepair, at_least_s: Option<f64>, dns: Option<DnsTtl> },
}

/// Change that the hook needs before its length matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookRepair {
    /// None.
    Unneeded,
    /// One that lasts.
    Last,
    /// Another one in place of the one that failed.
    Replace,
}

/// Time for which clients of a headless Service keep an answer of the DNS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DnsTtl {
    /// In seconds.
    Known(f64),
    /// Not known.
    Unknown,
}

/// Way to let a pod finish what it had accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finish {
    /// On SIGTERM.
    OnSignal,
    /// On SIGTERM, within a grace period that is long enough for the longest request.
    WithinGrace { longest_s: f64 },
    /// On SIGTERM, and with an announcement on kept connections.
    Announced(CloseNotice),
}

/// Way in which a server announces that it closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseNotice {
    /// `Connection: close`.
    Header,
    /// GOAWAY of HTTP/2.
    Goaway,
    /// Either, depending on the connection.
    Either,
}

/// Way to keep an endpoint ready while pods end.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoints {
    /// The workload, named here, was deleted under load.
    Deleted(String),
    /// The workload, named here, has strategy Recreate.
    Recreated(String),
    /// The traffic policy is Local, so each node needs a ready pod.
    OnEachNode { policy: TrafficPolicy, workload: OnEachNode },
    /// The workload is not known.
    Unknown,
    /// Another strategy, or more replicas.
    Rolling { workload: String, replicas: Option<i32>, max_unavailable: Option<String> },
}

/// Traffic policy of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// That of a node port.
    External,
    /// That of a cluster IP.
    Internal,
}

/// Workload whose pods each node needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnEachNode {
    /// A DaemonSet, with its kind and name.
    DaemonSet(String),
    /// Another workload, with its kind and name.
    Other(String),
    /// Not known.
    Unknown,
}

/// Readiness probe that keeps traffic from pods that do not serve yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Not all pods have one.
    Missing,
    /// All pods have one, and it succeeds too early.
    TooEarly,
}

/// Reason why no cause is given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// These causes compete, and none outweighs the others.
    Competing(Vec<Cause>),
    /// The pod that the request reached was not ending.
    PodWasWell,
    /// The ends of the pods that may have lost it do not explain its outcome.
    NoFit,
    /// No pod was ending or starting that it could have reached.
    NothingNear,
}
