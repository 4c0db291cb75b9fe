//! Watches over the nodes, and draws the consequences of their state for nodes and pods.
//!
//! After pkg/controller/nodelifecycle, without its zones and its eviction rates. Taints `NoSchedule`
//! follow a node's conditions at once ([`taint`]). Everything else is decided when the nodes are looked
//! at, every `nodeMonitorPeriod` ([`Monitor`]): a node that has shown no life for too long ([`health`])
//! becomes `Unknown`, its pods count as not ready, and it gets the taint `NoExecute`, by which
//! [`super::taint_eviction`] evicts its pods. A node that reports itself as not ready gets the same
//! taints, but its pods stay as its agent shows them.

mod health;
mod taint;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::taints::{self, NO_EXECUTE};
use super::{condition, conditions, is_ready, key};
use crate::Shared;
use crate::registry::{EventType, NODE_LEASES, Part, Registry};
use crate::resource::Resource;
use crate::selector::Selection;
use crate::status::Status;
use health::Health;
use taint::{NOT_READY, UNREACHABLE};

const COMPONENT: &str = "node-controller";

/// The conditions that nobody can say anything about any more when a node is lost.
const OF_THE_KUBELET: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub(super) async fn run(shared: Shared) {
    tokio::join!(taint::follow_conditions(&shared), Monitor::new(shared.clone()).run());
}

/// What is known of the nodes from one look to the next.
struct Monitor {
    shared: Shared,
    nodes: BTreeMap<String, Known>,
}

/// What is known of one node.
struct Known {
    uid: Value,
    health: Health,
    /// Its pods could not all be marked as not ready.
    pods_to_mark: bool,
}

impl Monitor {
    fn new(shared: Shared) -> Self {
        Self { shared, nodes: BTreeMap::new() }
    }

    /// Looks at the nodes, for ever.
    async fn run(mut self) {
        let mut looks = interval(self.shared.config.controllers.node_monitor_period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look();
        }
    }

    fn look(&mut self) {
        let nodes = self.shared.registry.list(Resource::Nodes, None, &Selection::all()).items;
        self.meet_and_forget(&nodes);
        let mut judged = Vec::new();
        for node in &nodes {
            match self.look_at(node) {
                Ok(node) => judged.push(node),
                Err(status) => tracing::debug!(%status, node = key(node).1, "to be looked at again"),
            }
        }
        // When all nodes fail, it is rather this side that cannot reach them: nobody is evicted.
        let all_failed = judged.iter().all(|node| readiness(node) != Some("True"));
        for node in &judged {
            let name = key(node).1;
            let tainted = match readiness(node) {
                Some("True") => swap_no_execute(&self.shared.registry, node, &name, None),
                Some(_) if all_failed => swap_no_execute(&self.shared.registry, node, &name, None),
                Some("False") => swap_no_execute(&self.shared.registry, node, &name, Some(NOT_READY)),
                Some(_) => swap_no_execute(&self.shared.registry, node, &name, Some(UNREACHABLE)),
                None => Ok(()),
            };
            if let Err(status) = tainted {
                tracing::debug!(%status, node = name, "not tainted");
            }
        }
    }

    /// Takes note of nodes that came and went.
    fn meet_and_forget(&mut self, nodes: &[Arc<Value>]) {
        let registry = &self.shared.registry;
        for node in nodes {
            let name = key(node).1;
            let uid = &node["metadata"]["uid"];
            if self.nodes.get(&name).is_some_and(|known| known.uid == *uid) {
                continue;
            }
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            registry.record_event(node, EventType::Normal, "RegisteredNode", &message, COMPONENT);
            let known = Known { uid: uid.clone(), health: Health::new(Instant::now()), pods_to_mark: false };
            self.nodes.insert(name, known);
        }
        let present: BTreeSet<_> = nodes.iter().map(|node| key(node).1).collect();
        self.nodes.retain(|name, known| {
            let stays = present.contains(name);
            if !stays {
                let gone = json!({
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "uid": known.uid},
                });
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                registry.record_event(&gone, EventType::Normal, "RemovingNode", &message, COMPONENT);
            }
            stays
        });
    }

    /// Judges a node and marks its pods; returns the node as it is afterwards.
    fn look_at(&mut self, node: &Arc<Value>) -> Result<Arc<Value>, Status> {
        let registry = &self.shared.registry;
        let name = key(node).1;
        let Some(known) = self.nodes.get_mut(&name) else { return Ok(Arc::clone(node)) };
        let lease = registry.get(Resource::Leases, NODE_LEASES, &name).ok();
        known.health.observe(node, lease.as_deref(), Instant::now());

        let observed = condition(node, "Ready")["status"].clone();
        let grace = self.shared.config.controllers.node_monitor_grace_period;
        let mut node = Arc::clone(node);
        if known.health.is_silent_for(grace, Instant::now()) && observed != "Unknown" {
            let now = registry.now();
            node = registry
                .modify(Resource::Nodes, "", &name, Part::Status, |node| mark_as_unknown(node, &now))?;
        }
        let current = &condition(&node, "Ready")["status"];
        let is_lost = current != "True" && observed == "True";
        if is_lost {
            let message = format!("Node {name} status is now: NodeNotReady");
            registry.record_event(&node, EventType::Normal, "NodeNotReady", &message, COMPONENT);
        }
        if is_lost || (known.pods_to_mark && observed != "True") {
            known.pods_to_mark = true;
            mark_pods_not_ready(&self.shared, &name)?;
        }
        known.pods_to_mark = false;
        Ok(node)
    }
}

/// The status of a node's condition `Ready`.
fn readiness(node: &Value) -> Option<&str> {
    condition(node, "Ready")["status"].as_str()
}

/// Gives a node the taint `NoExecute` that it is to have, and takes the others away.
fn swap_no_execute(
    registry: &Registry,
    node: &Value,
    name: &str,
    wanted: Option<&str>,
) -> Result<(), Status> {
    let (wanted, unwanted): (Vec<_>, Vec<_>) =
        [NOT_READY, UNREACHABLE].into_iter().partition(|taint| Some(*taint) == wanted);
    let has = |taint: &&str| taints::of(node, &[NO_EXECUTE]).any(|other| other["key"] == **taint);
    if wanted.iter().all(has) && !unwanted.iter().any(has) {
        return Ok(());
    }
    taint::swap(registry, name, NO_EXECUTE, &wanted, &unwanted)
}

/// Says of a node whose agent shows no life that nothing is known of it.
fn mark_as_unknown(node: &mut Value, now: &str) {
    for kind in OF_THE_KUBELET {
        let mut known = condition(node, kind).clone();
        if known.is_null() {
            known = json!({
                "type": kind,
                "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": node["metadata"]["creationTimestamp"],
            });
        } else if known["status"] != "Unknown" {
            known["reason"] = json!("NodeStatusUnknown");
            known["message"] = json!("Kubelet stopped posting node status.");
        }
        known["status"] = json!("Unknown");
        conditions::put(node, known, now);
    }
}

/// Nobody can say any more whether the pods of a lost node are ready (`MarkPodsNotReady`).
fn mark_pods_not_ready(shared: &Shared, node: &str) -> Result<(), Status> {
    let registry = &shared.registry;
    let now = registry.now();
    for pod in registry.list(Resource::Pods, None, &Selection::field("spec.nodeName", node)).items {
        if !is_ready(&pod) {
            continue;
        }
        let (namespace, name) = key(&pod);
        let marked = registry.modify(Resource::Pods, &namespace, &name, Part::Status, |pod| {
            let mut ready = condition(pod, "Ready").clone();
            ready["status"] = json!("False");
            conditions::put(pod, ready, &now);
        });
        match marked {
            Ok(pod) => {
                let (reason, message) = ("NodeNotReady", "Node is not ready");
                registry.record_event(&pod, EventType::Warning, reason, message, COMPONENT);
            }
            Err(status) if status.code() == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
