//! Everything that happens in a run and is not a request: `events.jsonl`.
//!
//! One JSON object a line. An event is stamped by the source that saw it, on
//! its own clock; a reader skips kinds that it does not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use super::action::ActionName;
use super::names::named;
use super::run_info::Rows;
use super::service_proxy::ServiceProxy;
use super::{ClockOffset, Mode, Outcome, Stamp, mode};

/// The name by which clock samples call the clock of the API server.
pub const API_SERVER: &str = "apiserver";

/// The version of the event format.
pub const EVENT_VERSION: u32 = 1;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The format's version, [`EVENT_VERSION`].
    pub v: u32,
    /// When it happened or was seen, on the clock of `source`.
    #[serde(rename = "t_ns")]
    pub at: Stamp,
    /// Whose clock `at` is on: `coordinator`, a load source, or a proxy (its pod's name).
    pub source: String,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// An event of the current version.
    pub fn new(at: Stamp, source: impl Into<String>, kind: EventKind) -> Self {
        Self { v: EVENT_VERSION, at, source: source.into(), kind }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The load began; the event's stamp is the schedule's zero.
    LoadStarted {
        /// Requests per second.
        rate: f64,
        /// Planned duration of the counted part, in seconds.
        duration_s: f64,
        /// Duration of the warm-up before it, in seconds.
        warmup_s: f64,
    },
    /// A stage of the load began; the event's stamp is when its first request could be due.
    LoadStage {
        /// Requests per second at its beginning.
        from: f64,
        /// Requests per second at its end.
        to: f64,
        /// Its length, in seconds.
        duration_s: f64,
    },
    /// The load ended: every scheduled request has its row.
    LoadEnded {
        /// Requests that were scheduled, warm-up included.
        scheduled: u64,
    },
    /// A load source ended: how many requests it had scheduled, each of which has its row.
    LoadScheduled {
        /// The source of the load.
        of: String,
        /// Requests of the warm-up.
        warmup: u64,
        /// Requests of the counted part.
        main: u64,
    },
    /// How many requests of a load source had ended, if not all of its rows arrived; the source of the event is the
    /// coordinator.
    LoadCounted {
        /// The source of the load.
        of: String,
        /// Requests of the counted part by outcome, as it said last. Those that have a row are among them.
        outcomes: BTreeMap<Outcome, u64>,
    },
    /// The coordinator asked for something that ends pods; the event's stamp is when it asked.
    Action(Action),
    /// The user's command, which ends pods, was started.
    CommandStarted {
        /// Its words.
        command: Vec<String>,
        /// The disruption of the scenario that it is, counted from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disruption: Option<u32>,
    },
    /// The user's command ended.
    CommandEnded {
        /// Its exit code; `None` when a signal ended it.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// The disruption of the scenario that it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disruption: Option<u32>,
    },
    /// The wait after a termination reached its limit while requests were still lost.
    Unsettled {
        /// The limit, in seconds.
        limit_s: f64,
    },
    /// The effects of the user's command have settled, or the wait for that is over.
    CommandSettled {
        /// How pods ended by it.
        mode: Mode,
        /// The disruption of the scenario that it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disruption: Option<u32>,
        /// What had not settled when the wait was over, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unsettled: Option<String>,
    },
    /// A pod as a watch showed it.
    Pod(PodEvent),
    /// An EndpointSlice as a watch showed it.
    EndpointSlice(EndpointSliceEvent),
    /// A Kubernetes Event object about a pod.
    ClusterEvent {
        /// The pod it is about.
        pod: String,
        /// Its reason, such as `Killing`.
        reason: String,
        /// Its message.
        message: String,
        /// The container that it is about, if it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<String>,
    },
    /// Objects that the run may not watch: what they would have explained is not known.
    NotWatched {
        /// The resource, such as `events`.
        resource: String,
        /// The API server's reason.
        why: String,
    },
    /// A proxy passed a phase of its pod's termination; the source is the proxy.
    ProxyPhase {
        /// The pod's name.
        pod: String,
        /// The phase.
        phase: ProxyPhase,
    },
    /// A pod as its own proxy's watch showed it; the source is the proxy.
    OwnPod(PodEvent),
    /// A proxy's rows ended.
    ProxyEnded {
        /// The pod's name.
        pod: String,
        /// The pod's UID, by which pods of the same name are told apart; `None` in older records.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<String>,
        /// The proxy, as a source.
        #[serde(default)]
        of: String,
        /// How many there were, and how many arrived.
        #[serde(flatten)]
        rows: Rows,
    },
    /// The offset of another source's clock was sampled; the source is the coordinator.
    ClockSample {
        /// Whose clock was compared.
        of: String,
        /// That clock minus the coordinator's, in nanoseconds.
        offset_ns: i64,
        /// Half the round trip, in nanoseconds: the true offset is within offset ± uncertainty.
        uncertainty_ns: i64,
    },
    /// A watch was interrupted and restarted with a list: what happened in between is unknown.
    WatchGap {
        /// The resource watched, such as `pods`.
        resource: String,
        /// When the last good line of the watch arrived.
        from: Stamp,
    },
    /// A watch was interrupted and resumed: nothing is missing, but what it showed of the period that ends at the
    /// event's stamp came late.
    WatchLate {
        /// The resource watched, such as `pods`.
        resource: String,
        /// When it was interrupted.
        from: Stamp,
    },
    /// The API server of the embedded cluster did not answer from `from` until the event's stamp.
    ApiSilence {
        /// When it was asked.
        from: Stamp,
    },
    /// A write of the coordinator to its own object, which dates the writes of others; the event's stamp is when it was
    /// sent.
    Beat {
        /// When the whole answer had been received.
        answered: Stamp,
        /// The version that the write made, `metadata.resourceVersion`.
        version: String,
    },
    /// The version of a list of pods that was made between two beats; the event's stamp is when it was
    /// asked for. It checks the beats.
    BeatCheck {
        /// When the whole answer had been received.
        answered: Stamp,
        /// The list's version, `metadata.resourceVersion`.
        version: String,
    },
    /// The desired state of a workload, as a watch showed it: at the start, and at each change.
    Workload(WorkloadEvent),
    /// A node as a watch showed it: at the start, and at each change.
    Node(NodeEvent),
    /// The load on the source and its machine over the interval that ends at the event's stamp.
    Machine(MachineSample),
    /// What the headers of a target's answers said about who gave them, over a whole load.
    AnswerHeaders(AnswerHeaders),
    /// The addresses of a target's name: at the start, and at each change.
    NameAnswer(NameAnswer),
    /// The kernel sent more messages about connections than the load source could read: some connections that were opened
    /// in the interval that ends at the event's stamp have no `routed_to`.
    ConntrackGap {
        /// From.
        from: Stamp,
    },
    /// What the kernel said of the connections of the process of a load source, at its end.
    ConntrackEnded {
        /// Connections that requests with a row opened.
        connections: u64,
        /// Those of them that the kernel had an entry for.
        routed: u64,
        /// What the kube-proxy of its node says that its mode is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        service_proxy: Option<ServiceProxy>,
    },
    /// Something that a reader of the report should know.
    Warning {
        /// What, and what it means for the result.
        message: String,
    },
    /// A kind that a later version added. Readers ignore it; it is never written.
    #[serde(other)]
    Other,
}

impl EventKind {
    /// A sample of the clock of the source `of`.
    pub fn clock_sample(of: &str, sample: ClockOffset) -> Self {
        let ClockOffset { offset_ns, uncertainty_ns } = sample;
        EventKind::ClockSample { of: of.to_owned(), offset_ns, uncertainty_ns }
    }
}

/// A request of the coordinator that disrupts, stamped before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The disruption of the scenario that it belongs to, counted from 0.
    pub disruption: u32,
    /// The action.
    pub action: ActionName,
    /// How the pods end by it; `None`, in files `none`, where none does.
    #[serde(with = "mode::or_none")]
    pub mode: Option<Mode>,
    /// The pod, where the action names one.
    pub pod: Option<String>,
    /// Its UID.
    pub uid: Option<String>,
    /// When the whole answer had been received.
    pub answered: Stamp,
    /// The API server's status code, or `None` if there was no answer.
    pub status: Option<u16>,
    /// What went wrong, if anything.
    pub error: Option<String>,
    /// Whether nothing was done for certain, although there was no answer: the call could not be
    /// delivered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_undone: bool,
}

/// What a watch said about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Part of a list, at the beginning or after a gap.
    Listed,
    /// Added or modified.
    Applied,
    /// Gone.
    Deleted,
}

/// A pod as a watch showed it, reduced to what a termination needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodEvent {
    /// What the watch said.
    pub change: Change,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// The node, once scheduled.
    pub node: Option<String>,
    /// The pod's address, once reported.
    pub ip: Option<String>,
    /// `status.phase`.
    pub phase: String,
    /// Whether the Ready condition is True.
    pub ready: bool,
    /// `metadata.deletionTimestamp`, whole seconds in the API server's time, as a stamp.
    pub deletion_timestamp: Option<Stamp>,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion_grace_s: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_s: i64,
    /// Reason of the DisruptionTarget condition, if it is True.
    pub disruption_target: Option<String>,
    /// Message of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_message: Option<String>,
    /// `status.reason`, such as `Evicted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Kind and name of its controller, such as `ReplicaSet/web-7d4b9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The containers, native sidecars included.
    pub containers: Vec<ContainerState>,
}

/// The desired state of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadEvent {
    /// What the watch said.
    pub change: Change,
    /// Kind and name, such as `Deployment/web` or `ReplicaSet/web-7d4b9`.
    pub workload: String,
    /// Its desired number of pods; `None` if it depends on the nodes.
    pub replicas: Option<i32>,
    /// A digest of the pod template: another one is a rollout.
    pub template: String,
    /// Kind and name of its controller, such as `Rollout/web`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The way in which it replaces its pods; absent for ReplicaSets and in records of before 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Replacement>,
    /// `maxUnavailable` of its rolling update, as it is set: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<String>,
}

named! {
    /// The way in which a workload replaces its pods when its template changes.
    pub enum Replacement {
        /// Some at a time.
        RollingUpdate = "RollingUpdate",
        /// All pods end before the first new one starts.
        Recreate = "Recreate",
        /// A pod is replaced when somebody deletes it.
        OnDelete = "OnDelete",
        /// Another one, of a later version of Kubernetes.
        Other = "other",
    }
}

/// The state of a node that affects the termination of its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// What the watch said.
    pub change: Change,
    /// Its name.
    pub node: String,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it is cordoned.
    pub unschedulable: bool,
}

/// A container of a pod, with the settings that affect its termination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    /// Name.
    pub name: String,
    /// Whether it is a native sidecar (an init container that always restarts).
    pub sidecar: bool,
    /// Seconds of its preStop `sleep` action, if it has one.
    pub pre_stop_sleep_s: Option<i64>,
    /// Whether it has a preStop hook of another kind.
    pub pre_stop_other: bool,
    /// Seconds for which such a hook runs `sleep`, if that is all it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop_exec_sleep_s: Option<i64>,
    /// The program that such a hook runs, without its arguments, which may be secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop_program: Option<String>,
    /// `waiting`, `running` or `terminated`; `None` before the first status.
    pub state: Option<String>,
    /// The reason that goes with the state.
    pub reason: Option<String>,
    /// The message that goes with the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The exit code, once terminated.
    pub exit_code: Option<i32>,
    /// How often it was restarted.
    pub restarts: i32,
    /// Whether it has a readiness probe that connects to it, which shows that it listens: one that runs a program does
    /// not count. `None` in records of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<bool>,
    /// Within so many seconds such a probe makes a pod unready that does not listen any more. `None` also if the container
    /// has ports that the probe does not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_notices_s: Option<u32>,
}

/// An EndpointSlice as a watch showed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointSliceEvent {
    /// What the watch said.
    pub change: Change,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The Service it belongs to.
    pub service: Option<String>,
    /// Its endpoints.
    pub endpoints: Vec<EndpointState>,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointState {
    /// The pod behind it.
    pub pod: Option<String>,
    /// Its address.
    pub address: String,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// Its node, if the slice names it; `None` in runs of before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

named! {
    /// A phase in the termination of a pod, as its recording proxy saw it.
    pub enum ProxyPhase else UnknownProxyPhase "unknown phase {0:?} of a proxy" {
        /// Its watch of its own pod showed the deletionTimestamp.
        DeletionSeen = "deletion_seen",
        /// Its preStop hook was called: the kubelet has begun to end the pod.
        PreStop = "pre_stop",
        /// The app's listener began to refuse connections.
        ListenerClosed = "listener_closed",
        /// It received SIGTERM: all main containers have ended, or the grace period has.
        Sigterm = "sigterm",
        /// The last new connection was accepted.
        LastConnection = "last_connection",
        /// The last request was read.
        LastRequest = "last_request",
        /// No request is in flight any more.
        Drained = "drained",
        /// It exits.
        Exit = "exit",
    }
}

/// The addresses of a name from here on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameAnswer {
    /// The name.
    pub name: String,
    /// Its addresses with the target's port, of which connections take one after the other.
    pub addresses: Vec<String>,
    /// How long the answer holds, in seconds; `None` if it has no limit or there is none.
    pub ttl_s: Option<f64>,
    /// Why there is no address.
    pub error: Option<String>,
}

/// What the headers of a target's answers said about who gave them, as one load source or process saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerHeaders {
    /// The target's name.
    pub target: String,
    /// Complete heads of answers, those of the warm-up and of errors among them.
    pub answers: u64,
    /// How often the header `server` had which value; an answer without it is in none.
    pub server: BTreeMap<String, u64>,
    /// The same of the header `via`.
    pub via: BTreeMap<String, u64>,
    /// How often an answer named another pod than the answer before it on the same connection: whatever is
    /// in between balances requests, not connections.
    pub pods_within_connection_changed: u64,
}

impl AnswerHeaders {
    /// Adds what another source saw of the same target.
    pub fn merge(&mut self, other: &AnswerHeaders) {
        self.answers += other.answers;
        self.pods_within_connection_changed += other.pods_within_connection_changed;
        for (own, other) in [(&mut self.server, &other.server), (&mut self.via, &other.via)] {
            for (value, count) in other {
                *own.entry(value.clone()).or_default() += count;
            }
        }
    }
}

/// The load on the measuring machine over an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineSample {
    /// The interval's length, in seconds.
    pub interval_s: f64,
    /// The share of CPU time that the hypervisor took away, 0 to 1.
    pub steal: f64,
    /// The share of CPU time in use, 0 to 1.
    pub busy: f64,
    /// The share of the interval in which a thread of the source waited for a CPU, summed over threads.
    pub run_queue_delay: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_line_and_reads_back() {
        let event = Event::new(
            Stamp::from_unix_ns(5),
            "web-1",
            EventKind::ProxyPhase { pod: "web-1".into(), phase: ProxyPhase::PreStop },
        );
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(
            line,
            r#"{"v":1,"t_ns":5,"source":"web-1","kind":"proxy_phase","pod":"web-1","phase":"pre_stop"}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }

    #[test]
    fn an_action_reads_back_as_it_was_written_and_an_unknown_value_is_an_error() {
        let line = |action: &str, mode: &str| {
            format!(
                r#"{{"v":1,"t_ns":5,"source":"coordinator","kind":"action","disruption":0,"action":"{action}","mode":"{mode}","pod":null,"uid":null,"answered":7,"status":200,"error":null}}"#
            )
        };
        for (action, mode) in
            [("deletePod", "isolated"), ("crash", "none"), ("nodeShutdown", "node_shutdown")]
        {
            let event: Event = serde_json::from_str(&line(action, mode)).unwrap();
            let EventKind::Action(read) = &event.kind else { panic!("{event:?}") };
            assert_eq!((read.action.as_str(), read.mode.map_or("none", Mode::as_str)), (action, mode));
            assert_eq!(serde_json::to_string(&event).unwrap(), line(action, mode));
        }
        assert!(serde_json::from_str::<Event>(&line("deletePod", "of_tomorrow")).is_err());
        assert!(serde_json::from_str::<Event>(&line("of_tomorrow", "other")).is_err());
    }
}
