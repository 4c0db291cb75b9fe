//! Names of disruption actions.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use super::names::{as_text, named};

named! {
    /// Action of a disruption.
    pub enum ActionName else UnknownAction "unknown action {0:?}" {
        /// Deletes pods.
        DeletePod = "deletePod",
        /// Evicts pods.
        Evict = "evict",
        /// Kills a container of a pod.
        Crash = "crash",
        /// Changes a label to take pods out of their Services.
        Relabel = "relabel",
        /// Restarts a workload's pods.
        RollingRestart = "rollingRestart",
        /// Changes a container image in a workload.
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
        /// Waits for others to act.
        Observe = "observe",
    }
}

/// Cause of a pod's termination, as far as known. Stored as text in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// An action of the run.
    ThisRun(ActionName),
    /// Anything else, as described by the cluster.
    Other(String),
}

const BY_THIS_RUN: &str = " by this run";

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndCause::ThisRun(action) => write!(f, "{action}{BY_THIS_RUN}"),
            EndCause::Other(what) => f.write_str(what),
        }
    }
}

impl FromStr for EndCause {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let own = text.strip_suffix(BY_THIS_RUN).and_then(|action| action.parse().ok());
        Ok(own.map_or_else(|| EndCause::Other(text.to_owned()), EndCause::ThisRun))
    }
}

as_text!(EndCause);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_cause_round_trips_through_text() {
        for (cause, text) in [
            (EndCause::ThisRun(ActionName::DeletePod), "deletePod by this run"),
            (EndCause::Other("stopped by this run".to_owned()), "stopped by this run"),
            (EndCause::Other("rollout of Deployment web".to_owned()), "rollout of Deployment web"),
        ] {
            assert_eq!(cause.to_string(), text);
            assert_eq!(text.parse(), Ok(cause));
        }
    }
}
