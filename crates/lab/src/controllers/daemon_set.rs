//! Runs DaemonSets: one pod on each suitable node, with updates node by node.
//!
//! Based on pkg/controller/daemon. [`daemon_set_steps`] decides the next steps, and [`place`] which nodes are suitable.
//! When a pod fails repeatedly, only the work queue's delays slow down its replacement.

mod daemon_set_steps;
mod place;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::availability::Judge;
use super::claim::{claim, owners_concerned};
use super::pod_control::{BURST, PodControl};
use super::pod_template::{self, revision_of};
use super::reconciler::{self, BACK_OFF, ReconcileResult};
use crate::object_fields::{ObjectKey, is_being_deleted, is_ready, is_terminal, key, write_counts};
use crate::registry::{EventType, ObservedEvent, follow};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::shared::ClusterContext;
use crate::status::Status;
use daemon_set_steps::{DaemonSetSteps, DaemonSetView, created};
use place::{DaemonPlacements, new_pod, node_of, places};

const COMPONENT: &str = "daemonset-controller";

pub(super) async fn run(shared: ClusterContext) {
    let control = PodControl::new(&shared, COMPONENT);
    let events = follow(&shared.registry, &[Resource::DaemonSets, Resource::Pods, Resource::Nodes]);
    let named = |observed: ObservedEvent| match observed.0 {
        Resource::Nodes => {
            let sets = shared.registry.all(Resource::DaemonSets, None);
            sets.iter().map(|set| key(set)).collect()
        }
        _ => owners_concerned(&shared.registry, Resource::DaemonSets, &observed),
    };
    let control = &control;
    reconciler::run(events, BACK_OFF, named, |set| async move { reconcile(control, &set).await }).await;
}

/// Takes the next steps, and returns the delay before the next pass.
async fn reconcile(control: &PodControl, (namespace, name): &ObjectKey) -> ReconcileResult {
    let registry = &control.shared.registry;
    let Ok(set) = registry.get(Resource::DaemonSets, namespace, name) else { return Ok(None) };
    let hash = pod_template::hash(&set["spec"]["template"]);
    let is_new = |pod: &Value| revision_of(pod) == hash;
    let nodes = registry.all(Resource::Nodes, None);
    let places = places(&set, &nodes);
    let done = if is_being_deleted(&set) {
        Ok(())
    } else {
        let pods = by_node(own_pods(&control.shared, &set)?);
        let judge = Judge::new(&set, &registry.now());
        let steps = DaemonSetView { set: &set, places: &places, pods, is_new: &is_new, judge }.steps();
        take(control, &set, &hash, steps).await
    };
    // The template may have changed while the steps ran, so the status describes the template that they used.
    let generation = &set["metadata"]["generation"];
    let Ok(now) = registry.get(Resource::DaemonSets, namespace, name) else { return Ok(None) };
    let pods = own_pods(&control.shared, &now)?;
    let judge = Judge::new(&now, &registry.now());
    let again = judge.next(pods.iter().map(Arc::as_ref));
    let status = status_of(generation, &places, &by_node(pods), &is_new, judge);
    registry.set_status(Resource::DaemonSets, &now, status)?;
    done.map(|()| again)
}

fn own_pods(shared: &ClusterContext, set: &Value) -> Result<Vec<Arc<Value>>, Status> {
    let selector = LabelSelector::from_object(&set["spec"]["selector"]);
    claim(&shared.registry, set, Resource::Pods, &selector, |_| true)
}

/// Groups pods by the node that they run on or are intended for. Omits terminal pods that are being deleted.
fn by_node(pods: Vec<Arc<Value>>) -> BTreeMap<String, Vec<Arc<Value>>> {
    let mut nodes: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for pod in pods.into_iter().filter(|pod| !(is_being_deleted(pod) && is_terminal(pod))) {
        nodes.entry(node_of(&pod).to_owned()).or_default().push(pod);
    }
    nodes
}

async fn take(
    control: &PodControl,
    set: &Value,
    hash: &str,
    mut steps: DaemonSetSteps,
) -> Result<(), Status> {
    for pod in &steps.ended {
        let (namespace, name) = key(pod);
        let node = node_of(pod);
        let (event_type, reason, how) = match pod["status"]["phase"] == "Failed" {
            true => (EventType::Warning, "FailedDaemonPod", "failed"),
            false => (EventType::Normal, "SucceededDaemonPod", "succeeded"),
        };
        let message =
            format!("Found {how} daemon pod {namespace}/{name} on node {node}, will try to delete it");
        control.record(set, event_type, reason, &message);
    }
    steps.create.truncate(BURST);
    steps.delete.truncate(BURST);
    let new = steps.create.iter().map(|node| new_pod(set, hash, node)).collect();
    control.create(set, new, &mut Vec::new()).await?;
    control.delete(set, &steps.delete).await
}

/// Computes the set's status from its pods (`updateDaemonSetStatus`). `is_new` compares with the template of
/// `generation`.
fn status_of(
    generation: &Value,
    places: &DaemonPlacements,
    pods: &BTreeMap<String, Vec<Arc<Value>>>,
    is_new: &dyn Fn(&Value) -> bool,
    judge: Judge,
) -> Value {
    let (mut desired, mut current, mut misplaced) = (0_usize, 0_usize, 0_usize);
    let (mut ready, mut available, mut updated) = (0_usize, 0_usize, 0_usize);
    for (node, place) in places {
        let on_node = pods.get(node).map_or(&[][..], Vec::as_slice);
        if !place.starts {
            misplaced += usize::from(!on_node.is_empty());
            continue;
        }
        desired += 1;
        current += usize::from(!on_node.is_empty());
        // Only the oldest pod on each node counts.
        let oldest = on_node.iter().min_by_key(|pod| created(pod));
        ready += usize::from(oldest.is_some_and(|pod| is_ready(pod)));
        available += usize::from(oldest.is_some_and(|pod| judge.is_available(pod)));
        updated += usize::from(oldest.is_some_and(|pod| is_new(pod)));
    }
    let mut status = json!({
        "observedGeneration": generation,
        "desiredNumberScheduled": desired,
        "currentNumberScheduled": current,
        "numberMisscheduled": misplaced,
        "numberReady": ready,
    });
    let counts = [
        ("updatedNumberScheduled", updated),
        ("numberAvailable", available),
        ("numberUnavailable", desired - available),
    ];
    write_counts(&mut status, counts);
    status
}

#[cfg(test)]
mod tests;
