//! Node readiness, as reported by the node's agent. There are no Leases and no heartbeats; a node that has reported
//! itself ready stays ready until it reports otherwise.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/nodestatus/setters.go`.

use serde_json::{Value, json};

use crate::conditions;
use crate::registry::{EventType, ObjectPart, Registry};
use crate::resource::Resource;
use crate::status::Status;

/// A node's report about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeReadiness {
    /// The node runs pods.
    Ready,
    /// The node accepts no new pods.
    ShuttingDown,
}

impl NodeReadiness {
    fn conditions(self) -> [Value; 4] {
        let (status, reason, message) = match self {
            Self::Ready => ("True", "KubeletReady", "kubelet is posting ready status"),
            Self::ShuttingDown => ("False", "KubeletNotReady", "node is shutting down"),
        };
        [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("Ready", status, reason, message),
        ]
        .map(|(kind, status, reason, message)| {
            json!({"type": kind, "status": status, "reason": reason, "message": message})
        })
    }

    /// Writes the conditions to the node's status, and records an event if `Ready` has changed.
    pub(crate) fn post(self, registry: &Registry, node: &str) -> Result<(), Status> {
        let now = registry.now();
        let mut before = Value::Null;
        let written = registry.modify(Resource::Nodes, "", node, ObjectPart::Status, |node| {
            before = conditions::of(node, "Ready")["status"].clone();
            for mut condition in self.conditions() {
                condition["lastHeartbeatTime"] = json!(now);
                conditions::put(node, condition, &now);
            }
        })?;
        if !before.is_null() && before != conditions::of(&written, "Ready")["status"] {
            let reason = match self {
                Self::Ready => "NodeReady",
                Self::ShuttingDown => "NodeNotReady",
            };
            let message = format!("Node {node} status is now: {reason}");
            registry.record_event(&written, EventType::Normal, reason, &message, "kubelet");
        }
        Ok(())
    }
}
