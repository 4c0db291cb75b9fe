//! All events of a run other than requests: `events.jsonl`.
//!
//! One JSON object per line. The source that saw an event stamps it with its own clock. Readers skip unknown kinds.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use super::action::ActionName;
use super::names::{named, sparse};
use super::run_info::Rows;
use super::service_proxy::ServiceProxy;
use super::{ClockOffset, Mode, Outcome, Stamp, mode};

/// Name of the API server's clock in clock samples.
pub const API_SERVER: &str = "apiserver";

/// Version of the event format.
pub const EVENT_VERSION: u32 = 1;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Version of the format, [`EVENT_VERSION`].
    pub v: u32,
    /// Time at which the event happened or was seen, on the clock of `source`.
    #[serde(rename = "t_ns")]
    pub at: Stamp,
    /// Owner of the clock behind `at`: `coordinator`, a load source, or a proxy (by its pod's name).
    pub source: String,
    /// The event itself.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Creates an event in the current format version.
    pub fn new(at: Stamp, source: impl Into<String>, kind: EventKind) -> Self {
        Self { v: EVENT_VERSION, at, source: source.into(), kind }
    }
}

/// Event kinds, each with its data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each kind describes its fields")]
pub enum EventKind {
    /// The load began. Holds the rate in requests per second, and the planned lengths, in seconds, of the counted part
    /// and the preceding warm-up. The event's stamp is time zero of the schedule.
    LoadStarted { rate: f64, duration_s: f64, warmup_s: f64 },
    /// A stage of the load began. Holds its initial and final requests per second, and its length. The event's stamp is
    /// the earliest time at which the first request could be due.
    LoadStage { from: f64, to: f64, duration_s: f64 },
    /// The load finished, and every scheduled request, including warm-up requests, has a row.
    LoadEnded { scheduled: u64 },
    /// The load source `of` finished. Holds the numbers of requests scheduled for the warm-up and the counted part;
    /// each of these requests has a row.
    LoadScheduled { of: String, warmup: u64, main: u64 },
    /// Completed requests in the counted part of load source `of`, by outcome, from the source's last report. Written
    /// if some of the rows did not arrive; requests that have a row are included. The event's source is the
    /// coordinator.
    LoadCounted { of: String, outcomes: BTreeMap<Outcome, u64> },
    /// The coordinator sent a disrupting request; the event's stamp is the send time.
    Action(Action),
    /// The user's command, which terminates pods, started.
    CommandStarted {
        /// The command and its arguments.
        command: Vec<String>,
        /// Index of the scenario's disruption that ran the command, counted from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disruption: Option<u32>,
    },
    /// The user's command exited.
    CommandEnded {
        /// Exit code of the command; `None` if a signal killed it.
        code: Option<i32>,
        /// Signal that killed the command, if any.
        signal: Option<i32>,
        /// Index of the scenario's disruption that ran the command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disruption: Option<u32>,
    },
    /// The wait after a termination timed out while requests were still being lost.
    Unsettled { limit_s: f64 },
    /// The effects of the user's command have settled, or the wait for them timed out.
    CommandSettled {
        /// Mode of the terminations that the command caused.
        mode: Mode,
        /// Index of the scenario's disruption that ran the command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disruption: Option<u32>,
        /// Description of the effects that had not settled when the wait timed out; `None` if all had.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unsettled: Option<String>,
    },
    /// Pod state from a watch.
    Pod(PodEvent),
    /// EndpointSlice contents from a watch.
    EndpointSlice(EndpointSliceEvent),
    /// A Kubernetes Event object about a pod.
    ClusterEvent {
        /// Name of the pod.
        pod: String,
        /// Reason given by the event, such as `Killing`.
        reason: String,
        /// Message given by the event.
        message: String,
        /// Container that the event is about, if it names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<String>,
    },
    /// The API server denied permission to watch this resource, such as `events`, for the given reason, so the evidence
    /// from that watch is missing.
    NotWatched { resource: String, why: String },
    /// This pod's proxy observed a phase of the pod's termination; the event's source is the proxy.
    ProxyPhase { pod: String, phase: ProxyPhase },
    /// Pod state from the watch of the pod's own proxy; the event's source is the proxy.
    OwnPod(PodEvent),
    /// The row stream of a proxy finished.
    ProxyEnded {
        /// Name of the pod.
        pod: String,
        /// UID of the pod, which distinguishes pods of the same name.
        uid: String,
        /// Source name of the proxy.
        of: String,
        /// Numbers of recorded and received rows.
        #[serde(flatten)]
        rows: Rows,
    },
    /// The coordinator sampled the clock of source `of`. The offset is that clock minus the coordinator's; the
    /// uncertainty is half the round trip, so the true offset is within offset ± uncertainty. The event's source is the
    /// coordinator.
    ClockSample { of: String, offset_ns: i64, uncertainty_ns: i64 },
    /// A watch on this resource, such as `pods`, was interrupted and restarted with a list, so changes after `from`,
    /// the time of the last valid line, are unknown.
    WatchGap { resource: String, from: Stamp },
    /// A watch on this resource was interrupted and resumed. Nothing is missing, but changes between `from`, the time
    /// of the interruption, and the event's stamp were seen late.
    WatchLate { resource: String, from: Stamp },
    /// The embedded cluster's API server did not respond between `from`, when a request was sent, and the event's
    /// stamp.
    ApiSilence { from: Stamp },
    /// The coordinator wrote to its own object, which helps to date writes by others. The event's stamp is the time the
    /// write was sent; the complete response, with the resulting `metadata.resourceVersion`, had arrived at `answered`.
    Beat { answered: Stamp, version: String },
    /// Version of a pod list requested between two beats, as a check on the beats. The event's stamp is the time of the
    /// request; the list had arrived at `answered`.
    BeatCheck { answered: Stamp, version: String },
    /// Desired state of a workload, from a watch: at the start and on each change.
    Workload(WorkloadEvent),
    /// State of a node, from a watch: at the start and on each change.
    Node(NodeEvent),
    /// Addresses of a Service, from a watch outside a run: at the start and on each change.
    Service(ServiceEvent),
    /// Load on the source and its machine over the interval that ends at the event's stamp.
    Machine(MachineSample),
    /// Counts, over a whole load, of response headers that show who sent a target's responses.
    AnswerHeaders(AnswerHeaders),
    /// Addresses that a target's name resolves to: at the start and on each change.
    NameAnswer(NameAnswer),
    /// The kernel sent more connection-tracking messages than the load source could read. Some connections opened
    /// between `from` and the event's stamp therefore have no `routed_to`.
    ConntrackGap { from: Stamp },
    /// Summary of the kernel's data about a load source's connections, written when the source finishes.
    ConntrackEnded {
        /// Connections opened by requests that have a row.
        connections: u64,
        /// Number of these connections with a kernel entry.
        routed: u64,
        /// Mode reported by kube-proxy on the source's node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        service_proxy: Option<ServiceProxy>,
    },
    /// A warning for readers of the report: the problem and its effect on the result.
    Warning { message: String },
    /// A kind added by a later version. Readers ignore it; it is never written.
    #[serde(other)]
    Other,
}

impl EventKind {
    /// Creates a clock-sample event for source `of`.
    pub fn clock_sample(of: &str, sample: ClockOffset) -> Self {
        let ClockOffset { offset_ns, uncertainty_ns } = sample;
        EventKind::ClockSample { of: of.to_owned(), offset_ns, uncertainty_ns }
    }
}

/// A disrupting request sent by the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Index of the scenario's disruption that the action belongs to, counted from 0.
    pub disruption: u32,
    /// Kind of action.
    pub action: ActionName,
    /// Mode of the terminations that the action causes; `None`, written as `none`, if the action terminates no pod.
    #[serde(with = "mode::or_none")]
    pub mode: Option<Mode>,
    /// Name of the pod, if the action has one.
    pub pod: Option<String>,
    /// UID of that pod.
    pub uid: Option<String>,
    /// Time at which the complete response had been received.
    pub answered: Stamp,
    /// Status code from the API server; `None` if there was no response.
    pub status: Option<u16>,
    /// Error message, if the action failed.
    pub error: Option<String>,
    /// True if there was no response but the action certainly had no effect, because the request could not be
    /// delivered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_undone: bool,
}

/// Kind of change that a watch reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Included in a list, at the beginning or after a gap.
    Listed,
    /// Added or modified.
    Applied,
    /// Deleted.
    Deleted,
}

sparse! {
    /// Pod state from a watch, reduced to the fields that matter for termination.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct PodEvent {
        /// Kind of change that the watch reported.
        pub change: Change,
        /// Namespace.
        pub namespace: String,
        /// Name.
        pub name: String,
        /// UID.
        pub uid: String,
        /// `metadata.resourceVersion`.
        pub resource_version: String,
        /// Node that the pod runs on, once scheduled.
        pub node: Option<String>,
        /// IP address of the pod, once reported.
        pub ip: Option<String>,
        /// `status.phase`.
        pub phase: String,
        /// True if the Ready condition is True.
        pub ready: bool,
        /// `metadata.deletionTimestamp` as a stamp: whole seconds of the API server's time.
        pub deletion_timestamp: Option<Stamp>,
        /// `metadata.deletionGracePeriodSeconds`.
        pub deletion_grace_s: Option<i64>,
        /// `spec.terminationGracePeriodSeconds`.
        pub grace_s: i64,
        /// Reason of the DisruptionTarget condition, if it is True.
        pub disruption_target: Option<String>,
        /// Message of that condition.
        pub disruption_message: Option<String> = default,
        /// `status.reason`, such as `Evicted`.
        pub reason: Option<String> = default,
        /// Kind and name of the pod's controller, such as `ReplicaSet/web-7d4b9`.
        pub owner: Option<String> = default,
        /// Containers of the pod, including native sidecars.
        pub containers: Vec<ContainerState>,
    }
}

sparse! {
    /// Desired state of a workload.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct WorkloadEvent {
        /// Kind of change that the watch reported.
        pub change: Change,
        /// Kind and name, such as `Deployment/web` or `ReplicaSet/web-7d4b9`.
        pub workload: String,
        /// Desired number of pods; `None` if it depends on the nodes.
        pub replicas: Option<i32>,
        /// Digest of the pod template. A different digest means a rollout.
        pub template: String,
        /// Kind and name of the workload's controller, such as `Rollout/web`.
        pub owner: Option<String> = default,
        /// Strategy for replacing pods; absent for ReplicaSets.
        pub strategy: Option<Replacement> = default,
        /// `maxUnavailable` of the rolling update as written: a number or a percentage.
        pub max_unavailable: Option<String> = default,
        /// Value of the annotation `rolldrop.dev/consumers`; absent for ReplicaSets.
        pub consumers: Option<String> = default,
    }
}

named! {
    /// Strategy for replacing a workload's pods when the template changes.
    pub enum Replacement {
        /// A few pods at a time.
        RollingUpdate = "RollingUpdate",
        /// All old pods terminate before the first new one starts.
        Recreate = "Recreate",
        /// A pod is replaced only after someone deletes it.
        OnDelete = "OnDelete",
        /// A strategy introduced in a later Kubernetes version.
        Other = "other",
    }
}

/// State of a node, reduced to the fields that affect pod termination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Kind of change that the watch reported.
    pub change: Change,
    /// Name of the node.
    pub node: String,
    /// True if the node is ready.
    pub ready: bool,
    /// True if the node is cordoned.
    pub unschedulable: bool,
}

/// Addresses under which the Service proxies of all nodes route to a Service's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEvent {
    /// Kind of change that the watch reported.
    pub change: Change,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Cluster IPs; none for a headless Service.
    pub cluster_ips: Vec<IpAddr>,
    /// Node ports, which every node routes to the Service's pods.
    pub node_ports: Vec<u16>,
}

sparse! {
    /// Container state, with the settings that affect termination.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct ContainerState {
        /// Name.
        pub name: String,
        /// True if it is a native sidecar (an init container that always restarts).
        pub sidecar: bool,
        /// Seconds of the preStop `sleep` action; `None` without such an action.
        pub pre_stop_sleep_s: Option<i64>,
        /// True if the container has a preStop hook of another kind.
        pub pre_stop_other: bool,
        /// Sleep of that other hook in seconds, if the hook runs nothing but `sleep`.
        pub pre_stop_exec_sleep_s: Option<i64> = default,
        /// Program that the other hook runs, without arguments, because they may be secret.
        pub pre_stop_program: Option<String> = default,
        /// `waiting`, `running` or `terminated`; `None` before the first status.
        pub state: Option<String>,
        /// Reason given for the state.
        pub reason: Option<String>,
        /// Message given for the state.
        pub message: Option<String> = default,
        /// Exit code, once terminated.
        pub exit_code: Option<i32>,
        /// Number of restarts.
        pub restarts: i32,
        /// True if the container has a readiness probe that connects and thus proves that the container is listening. A
        /// probe that runs a program does not count. `None` if unknown.
        pub readiness_probe: Option<bool> = default,
        /// Maximum number of seconds for such a probe to make the pod unready after the container stops listening. Also
        /// `None` if the container has ports that the probe does not check.
        pub readiness_notices_s: Option<u32> = default,
    }
}

/// EndpointSlice contents from a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointSliceEvent {
    /// Kind of change that the watch reported.
    pub change: Change,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Service that the slice belongs to.
    pub service: Option<String>,
    /// Endpoints in the slice.
    pub endpoints: Vec<EndpointState>,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointState {
    /// Pod behind the endpoint.
    pub pod: Option<String>,
    /// Address of the endpoint.
    pub address: String,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// Node of the endpoint, if listed in the slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

named! {
    /// Phase of a pod's termination, as seen by the pod's recording proxy.
    pub enum ProxyPhase else UnknownProxyPhase "unknown proxy phase {0:?}" {
        /// The proxy's watch of its own pod showed the deletionTimestamp.
        DeletionSeen = "deletion_seen",
        /// The proxy's preStop hook was called: the kubelet has begun to terminate the pod.
        PreStop = "pre_stop",
        /// The proxy last saw the app's listener open; recorded when it finds it closed.
        LastListening = "last_listening",
        /// The app's listener began to refuse connections.
        ListenerClosed = "listener_closed",
        /// The proxy received SIGTERM: all main containers have exited, or the grace period is over.
        Sigterm = "sigterm",
        /// The proxy accepted its last new connection.
        LastConnection = "last_connection",
        /// The proxy read its last request.
        LastRequest = "last_request",
        /// The last request in flight had ended.
        Drained = "drained",
        /// The proxy exited.
        Exit = "exit",
    }
}

/// Result of a name lookup, valid until the next such event for the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameAnswer {
    /// Looked-up name.
    pub name: String,
    /// Addresses of the name, with the target's port. Connections rotate through them.
    pub addresses: Vec<String>,
    /// Time to live of the DNS answer, in seconds; `None` if unlimited or if there was no answer.
    pub ttl_s: Option<f64>,
    /// Reason for the lack of addresses.
    pub error: Option<String>,
}

/// Counts of response headers that show who sent a target's responses, from one load source or process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerHeaders {
    /// Name of the target.
    pub target: String,
    /// Number of complete response heads, including warm-up and error responses.
    pub answers: u64,
    /// Number of responses by value of the `server` header. Responses without that header are not counted.
    pub server: BTreeMap<String, u64>,
    /// Number of responses by value of the `via` header, counted in the same way.
    pub via: BTreeMap<String, u64>,
    /// Number of responses that named a different pod than the previous response on the same connection. Any such
    /// response means that an intermediary balances requests, not connections.
    pub pods_within_connection_changed: u64,
}

impl AnswerHeaders {
    /// Adds the counts of another source for the same target.
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

/// Load on the measuring machine over an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineSample {
    /// Length of the interval, in seconds.
    pub interval_s: f64,
    /// Share of CPU time stolen by the hypervisor, 0 to 1.
    pub steal: f64,
    /// Share of CPU time in use, 0 to 1.
    pub busy: f64,
    /// Share of the interval that the source's threads spent waiting for a CPU, summed over all threads.
    pub run_queue_delay: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_round_trips_as_flat_line() {
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
    fn action_round_trips_unless_unknown() {
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
