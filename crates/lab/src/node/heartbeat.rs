//! How a node shows that it is alive: its Lease, and the conditions in its status.
//!
//! The Lease is renewed every quarter of its duration. The status is written when it changes, and
//! otherwise seldom. Both stop with the agent.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kubelet_node_status.go` (`tryUpdateNodeStatus`),
//! `pkg/kubelet/nodestatus/setters.go`, and
//! `staging/src/k8s.io/component-helpers/apimachinery/lease/controller.go`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::mode::{Mode, until_up};
use crate::registry::{EventType, NODE_LEASES, Part, Registry};
use crate::resource::Resource;
use crate::status::Status;
use crate::{Shared, conditions};

/// Which part of a Lease's duration passes until it is renewed (`nodeLeaseRenewIntervalFraction`).
const RENEW_INTERVAL_FRACTION: f64 = 0.25;
/// By how much more, at most (`JitterUntilWithContext` of the Lease's controller).
const JITTER: f64 = 0.04;

/// How often a status is written that has not changed (`nodeStatusReportFrequency`).
const NODE_STATUS_REPORT_FREQUENCY: Duration = Duration::from_secs(300);

/// What a node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Readiness {
    /// It runs pods.
    Ready,
    /// It takes no more pods.
    ShuttingDown,
}

impl Readiness {
    fn of(mode: Mode) -> Self {
        if mode.shutdown_grace.is_some() { Self::ShuttingDown } else { Self::Ready }
    }

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

    /// Whether the node's status says this already.
    fn is_shown_by(self, node: &Value) -> bool {
        self.conditions().iter().all(|wanted| {
            let shown = conditions::of(node, wanted["type"].as_str().unwrap_or_default());
            ["status", "reason", "message"].iter().all(|field| shown[field] == wanted[field])
        })
    }
}

/// Shows that the node is alive as long as its agent is up. Never returns.
pub(super) async fn run(shared: Shared, node: String, mode: watch::Receiver<Mode>) {
    tokio::join!(keep_lease(&shared, &node, mode.clone()), keep_status(&shared, &node, mode));
}

async fn keep_lease(shared: &Shared, node: &str, mut mode: watch::Receiver<Mode>) {
    let duration = Duration::from_secs(shared.config.kubelet.node_lease_duration_seconds.into());
    loop {
        until_up(&mode).await;
        mode.mark_unchanged();
        if let Err(status) = renew_lease(&shared.registry, node, duration) {
            tracing::debug!(%status, node, "node lease");
        }
        let pause = duration.mul_f64(RENEW_INTERVAL_FRACTION * rand::random_range(1.0..=1.0 + JITTER));
        tokio::select! {
            () = sleep(pause) => {}
            _ = mode.changed() => {}
        }
    }
}

/// Renews a node's Lease, or makes it: the node's own, which goes with it.
fn renew_lease(registry: &Registry, node: &str, duration: Duration) -> Result<(), Status> {
    let now = registry.now_in_micros();
    let renewed = registry.modify(Resource::Leases, NODE_LEASES, node, Part::Main, |lease| {
        lease["spec"]["leaseDurationSeconds"] = json!(duration.as_secs());
        lease["spec"]["renewTime"] = json!(now);
    });
    match renewed {
        Err(status) if status.code() == 404 => {}
        renewed => return renewed.map(drop),
    }
    let owner = registry.get(Resource::Nodes, "", node)?;
    let owner = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "name": node,
        "uid": owner["metadata"]["uid"],
    });
    let lease = json!({
        "metadata": {"name": node, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": duration.as_secs(),
            "renewTime": now,
        },
    });
    registry.create(Resource::Leases, NODE_LEASES, lease).map(drop)
}

async fn keep_status(shared: &Shared, node: &str, mut mode: watch::Receiver<Mode>) {
    let kubelet = &shared.config.kubelet;
    let mut due = Instant::now();
    loop {
        until_up(&mode).await;
        let readiness = Readiness::of(*mode.borrow_and_update());
        let shown = shared.registry.get(Resource::Nodes, "", node);
        if due <= Instant::now() || shown.is_ok_and(|node| !readiness.is_shown_by(&node)) {
            if let Err(status) = post(&shared.registry, node, readiness) {
                tracing::debug!(%status, node, "node status");
            }
            due = Instant::now() + NODE_STATUS_REPORT_FREQUENCY;
        }
        tokio::select! {
            () = sleep(kubelet.node_status_update_frequency) => {}
            // An agent that starts reports at once.
            _ = mode.changed() => due = Instant::now(),
        }
    }
}

/// Writes a node's status, and says so if its readiness has changed.
pub(in super::super) fn post(registry: &Registry, node: &str, readiness: Readiness) -> Result<(), Status> {
    let now = registry.now();
    let mut before = Value::Null;
    let written = registry.modify(Resource::Nodes, "", node, Part::Status, |node| {
        before = conditions::of(node, "Ready")["status"].clone();
        for mut condition in readiness.conditions() {
            condition["lastHeartbeatTime"] = json!(now);
            conditions::put(node, condition, &now);
        }
    })?;
    if !before.is_null() && before != conditions::of(&written, "Ready")["status"] {
        let reason = match readiness {
            Readiness::Ready => "NodeReady",
            Readiness::ShuttingDown => "NodeNotReady",
        };
        let message = format!("Node {node} status is now: {reason}");
        registry.record_event(&written, EventType::Normal, reason, &message, super::COMPONENT);
    }
    Ok(())
}
