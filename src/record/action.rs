//! The names of what disruptions do.

use super::names::named;

named! {
    /// What a disruption does.
    pub enum ActionName else UnknownAction "unknown action {0:?}" {
        /// Deletes pods.
        DeletePod = "deletePod",
        /// Evicts pods.
        Evict = "evict",
        /// Kills a container of a pod.
        Crash = "crash",
        /// Changes a label, so that pods leave their Services.
        Relabel = "relabel",
        /// Restarts a workload's pods.
        RollingRestart = "rollingRestart",
        /// Gives a workload's container another image.
        SetImage = "setImage",
        /// Patches an object.
        Patch = "patch",
        /// Changes a workload's number of replicas.
        Scale = "scale",
        /// Cordons a node and evicts its pods.
        Drain = "drain",
        /// Shuts a node down.
        NodeShutdown = "nodeShutdown",
        /// Restarts a node's agent.
        RestartNodeAgent = "restartNodeAgent",
        /// Runs a program.
        Exec = "exec",
        /// Waits for what others do.
        Observe = "observe",
    }
}
