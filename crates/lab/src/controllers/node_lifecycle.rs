//! Keeps new pods off nodes that are cordoned or not ready, and evicts pods from nodes with `NoExecute` taints that
//! the pods do not tolerate.
//!
//! Based on pkg/controller/nodelifecycle and pkg/controller/tainteviction. Only the status reported by the node counts;
//! nothing checks that its agent is alive. `tolerationSeconds` is ignored, so tolerations never expire. Taint-based
//! evictions are ordinary deletions, to which no PodDisruptionBudget applies.

use serde_json::{Value, json};

use super::reconciler::{self, BACK_OFF, ReconcileResult};
use super::taints::{self, NO_EXECUTE, NO_SCHEDULE};
use crate::conditions;
use crate::conditions::of as condition;
use crate::object_fields::{ObjectKey, is_being_deleted, key, uid};
use crate::registry::{DeleteOptions, EventType, ObjectPart, ObservedEvent, Registry, follow};
use crate::resource::Resource;
use crate::selector::ObjectSelection;
use crate::shared::ClusterContext;

/// Taint for nodes that report that they are not ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Taint for cordoned nodes.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) async fn run(shared: ClusterContext) {
    let registry = &shared.registry;
    let of_nodes = |(_, event): ObservedEvent| vec![key(&event.object).1];
    let of_pods = |(resource, event): ObservedEvent| match resource {
        Resource::Nodes => {
            let on_node = ObjectSelection::field("spec.nodeName", &key(&event.object).1);
            registry.list(Resource::Pods, None, &on_node).items.iter().map(|pod| key(pod)).collect()
        }
        _ => vec![key(&event.object)],
    };
    let (nodes, pods) =
        (follow(registry, &[Resource::Nodes]), follow(registry, &[Resource::Nodes, Resource::Pods]));
    tokio::join!(
        reconciler::run(nodes, BACK_OFF, of_nodes, |name| async move { taint(registry, &name) }),
        reconciler::run(pods, BACK_OFF, of_pods, |pod| async move { evict(registry, &pod) }),
    );
}

/// Updates a node's `NoSchedule` taints to match its state. Writes nothing if they already match.
fn taint(registry: &Registry, name: &str) -> ReconcileResult {
    let now = registry.now();
    let tainted = registry.modify(Resource::Nodes, "", name, ObjectPart::Main, |node| {
        let is_not_ready = condition(node, "Ready")["status"] == "False";
        let is_cordoned = node["spec"]["unschedulable"] == true;
        let before = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let mut after = before.clone();
        for (key, wanted) in [(NOT_READY, is_not_ready), (UNSCHEDULABLE, is_cordoned)] {
            let is = |taint: &Value| taint["key"] == key && taint["effect"] == NO_SCHEDULE;
            if !wanted {
                after.retain(|taint| !is(taint));
            } else if !after.iter().any(is) {
                after.push(json!({"key": key, "effect": NO_SCHEDULE, "timeAdded": now}));
            }
        }
        if after.is_empty() {
            node["spec"].as_object_mut().map(|spec| spec.remove("taints"));
        } else if after != before {
            node["spec"]["taints"] = json!(after);
        }
    });
    match tainted {
        Err(status) if status.code() != 404 => Err(status),
        _ => Ok(None),
    }
}

/// Evicts a pod if its node has a `NoExecute` taint that the pod does not tolerate.
fn evict(registry: &Registry, (namespace, name): &ObjectKey) -> ReconcileResult {
    let Ok(pod) = registry.get(Resource::Pods, namespace, name) else { return Ok(None) };
    let node = pod["spec"]["nodeName"].as_str().and_then(|node| registry.get(Resource::Nodes, "", node).ok());
    let Some(node) = node.filter(|_| !is_being_deleted(&pod)) else { return Ok(None) };
    if taints::of(&node, &[NO_EXECUTE]).all(|taint| taints::is_tolerated(&pod, taint)) {
        return Ok(None);
    }
    let message = format!("Marking for deletion Pod {namespace}/{name}");
    let (reason, component) = ("TaintManagerEviction", "taint-eviction-controller");
    registry.record_event(&pod, EventType::Normal, reason, &message, component);
    let now = registry.now();
    registry.change(Resource::Pods, &pod, ObjectPart::Status, |pod| {
        let message = "Taint manager: deleting due to NoExecute taint";
        let generation = pod["metadata"]["generation"].as_i64();
        conditions::disruption_target(pod, "DeletionByTaintManager", message, generation, &now);
    })?;
    let options = DeleteOptions::of(uid(&pod));
    registry.delete(Resource::Pods, namespace, name, &options)?;
    Ok(None)
}

#[cfg(test)]
mod tests;
