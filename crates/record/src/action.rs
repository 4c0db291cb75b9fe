//! The names of what disruptions do.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// What a disruption does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ActionName {
    /// Deletes pods.
    DeletePod,
    /// Evicts pods.
    Evict,
    /// Kills a container of a pod.
    Crash,
    /// Changes a label, so that pods leave their Services.
    Relabel,
    /// Restarts a workload's pods.
    RollingRestart,
    /// Gives a workload's container another image.
    SetImage,
    /// Patches an object.
    Patch,
    /// Changes a workload's number of replicas.
    Scale,
    /// Cordons a node and evicts its pods.
    Drain,
    /// Shuts a node down.
    NodeShutdown,
    /// Restarts a node's agent.
    RestartNodeAgent,
    /// Runs a program.
    Exec,
    /// Waits for what others do.
    Observe,
}

impl ActionName {
    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            ActionName::DeletePod => "deletePod",
            ActionName::Evict => "evict",
            ActionName::Crash => "crash",
            ActionName::Relabel => "relabel",
            ActionName::RollingRestart => "rollingRestart",
            ActionName::SetImage => "setImage",
            ActionName::Patch => "patch",
            ActionName::Scale => "scale",
            ActionName::Drain => "drain",
            ActionName::NodeShutdown => "nodeShutdown",
            ActionName::RestartNodeAgent => "restartNodeAgent",
            ActionName::Exec => "exec",
            ActionName::Observe => "observe",
        }
    }
}

impl Display for ActionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
