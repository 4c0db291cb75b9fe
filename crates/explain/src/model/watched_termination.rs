//! A termination as `rolldrop watch` reports it: from the API alone, without a run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Mode, T0Basis, TerminationTraffic};
use rolldrop_record::Stamp;

rolldrop_record::named! {
    /// Mode of a termination outside a run.
    pub enum WatchedMode {
        /// A rolling update.
        Rollout = "rollout",
        /// A workload scale-down.
        ScaleDown = "scale_down",
        /// An eviction that no drain explains: by the eviction API, or by a kubelet that ran out of a resource.
        Eviction = "eviction",
        /// A node drain.
        Drain = "drain",
        /// A node shutdown.
        NodeShutdown = "node_shutdown",
        /// Anything else, including a cause that the API does not show.
        Other = "other",
    }
}

impl From<Mode> for WatchedMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Rollout => Self::Rollout,
            Mode::ScaleDown => Self::ScaleDown,
            Mode::Drain => Self::Drain,
            Mode::NodeShutdown => Self::NodeShutdown,
            // Only a run's own actions are isolated.
            Mode::Isolated | Mode::Other => Self::Other,
        }
    }
}

/// Termination of a pod outside a run. `None` always means that the API did not show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchedTermination {
    /// Namespace of the pod.
    pub namespace: String,
    /// Kind and name of the workload, such as `Deployment web`; `None` for a pod without a controller.
    pub workload: Option<String>,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Node that the pod ran on.
    pub node: Option<String>,
    /// Mode of the termination.
    pub mode: WatchedMode,
    /// Cause in words; `None` if the API does not show who deleted the pod.
    pub cause: Option<String>,
    /// Earliest time at which the deletion may have taken effect.
    pub t0_earliest_ns: Stamp,
    /// Latest time at which the deletion may have taken effect.
    pub t0_latest_ns: Stamp,
    /// Evidence for these bounds.
    pub t0_basis: T0Basis,
    /// True if the watch had written beats.
    #[serde(default)]
    pub has_beats: bool,
    /// Grace period of the deletion, in seconds.
    pub grace_s: i64,
    /// Shortest sleep of the main containers' preStop hooks, in seconds; `None` if a hook of another kind hides it.
    pub pre_stop_sleep_s: Option<i64>,
    /// Time at which the watch showed all containers as terminated.
    pub ended_ns: Option<Stamp>,
    /// Part of the grace period that the containers used.
    pub grace_use: Option<GraceUse>,
    /// True if SIGKILL terminated a container when the grace period expired.
    pub killed_at_grace_end: Option<bool>,
    /// Containers, sidecars included.
    pub containers: Vec<ContainerEnd>,
    /// Number of restarts of all containers during the pod's life.
    pub restarts: i32,
    /// Containers whose preStop hooks failed, according to Events.
    pub failed_hooks: Option<BTreeSet<String>>,
    /// Time, in seconds, for which the watch showed the pod as Ready after it had shown the deletion.
    pub ready_while_terminating_s: Option<f64>,
    /// Requests from gateways whose logs the watch follows; `None` if no log names the pod's address.
    pub traffic: Option<TerminationTraffic>,
}

impl WatchedTermination {
    /// Returns the width of the bounds on t0, in seconds.
    pub fn t0_width_s(&self) -> f64 {
        self.t0_latest_ns.seconds_since(self.t0_earliest_ns)
    }

    /// Returns the share of the grace period that the containers used; above 1 if they outlived it.
    pub fn share_of_grace(&self) -> Option<f64> {
        let grace_s = Some(self.grace_s).filter(|grace_s| *grace_s > 0)?;
        Some(self.grace_use?.likely_s / grace_s as f64)
    }
}

/// Time from t0 until all containers had terminated, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraceUse {
    /// Shortest possible time.
    pub least_s: f64,
    /// Time from the moment the watch showed the deletion, or from the end of the deletion's second if that is earlier,
    /// to the moment it showed that the containers had terminated.
    pub likely_s: f64,
    /// Longest possible time.
    pub most_s: f64,
}

/// Last state of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerEnd {
    /// Name of the container.
    pub name: String,
    /// True if it is a native sidecar.
    pub sidecar: bool,
    /// Exit code; above 128, the number of the signal that ended the container plus 128.
    pub exit_code: Option<i32>,
    /// Reason that the kubelet gives, such as `Completed`, `Error` or `OOMKilled`.
    pub reason: Option<String>,
}
