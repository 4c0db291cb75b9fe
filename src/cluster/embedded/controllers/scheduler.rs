//! Binds pods to nodes: the node with the fewest pods among those that are ready, open for
//! scheduling, and carry the labels that the pod asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use super::queue::Queue;
use super::{Key, condition, follow, is_being_deleted, is_terminal, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{EventType, Part, WatchEventType};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::{LabelSelector, Selection};

const COMPONENT: &str = "default-scheduler";

pub(super) async fn run(shared: Shared) {
    let mut events = follow(&shared.registry, &[Resource::Pods, Resource::Nodes]);
    let mut queue = Queue::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => {
                if event.event_type == WatchEventType::Deleted {
                    continue;
                }
                if resource == Resource::Nodes {
                    // A pod that found no node may find this one.
                    for pod in shared.registry.list(Resource::Pods, None, &Selection::all()).items {
                        if is_unschedulable(&pod) {
                            queue.add(key(&pod), Duration::ZERO);
                        }
                    }
                } else if event.event_type == WatchEventType::Added && is_waiting(&event.object) {
                    queue.add(key(&event.object), shared.sampler.sample(&shared.config.latencies.created_to_scheduled));
                }
            }
            pod = queue.next() => schedule(&shared, &pod),
        }
    }
}

fn is_waiting(pod: &Value) -> bool {
    !pod["spec"]["nodeName"].is_string() && !is_being_deleted(pod)
}

fn is_unschedulable(pod: &Value) -> bool {
    is_waiting(pod) && condition(pod, "PodScheduled")["status"] == "False"
}

fn schedule(shared: &Shared, (namespace, name): &Key) {
    let registry = &shared.registry;
    let Ok(pod) = registry.get(Resource::Pods, namespace, name) else { return };
    if !is_waiting(&pod) {
        return;
    }
    let wanted = LabelSelector::from_map(&pod["spec"]["nodeSelector"]).unwrap_or_default();
    let mut load: BTreeMap<String, usize> = BTreeMap::new();
    for node in registry.list(Resource::Nodes, None, &Selection::labels(wanted)).items {
        let ready = condition(&node, "Ready")["status"] == "True";
        if ready && node["spec"]["unschedulable"] != true {
            load.insert(key(&node).1, 0);
        }
    }
    for other in registry.list(Resource::Pods, None, &Selection::all()).items {
        if let Some(count) = other["spec"]["nodeName"].as_str().and_then(|node| load.get_mut(node))
            && !is_terminal(&other)
        {
            *count += 1;
        }
    }
    let Some(node) = load.into_iter().min_by_key(|(_, pods)| *pods).map(|(node, _)| node) else {
        return mark_unschedulable(shared, &pod);
    };
    match registry.bind(namespace, name, &node) {
        Ok(pod) => {
            let message = format!("Successfully assigned {namespace}/{name} to {node}");
            registry.record_event(&pod, EventType::Normal, "Scheduled", &message, COMPONENT);
        }
        Err(status) => tracing::debug!(%status, "not bound"),
    }
}

fn mark_unschedulable(shared: &Shared, pod: &Value) {
    const MESSAGE: &str = "no node is ready, schedulable and has the labels that the pod asks for";
    if is_unschedulable(pod) {
        return;
    }
    let (namespace, name) = key(pod);
    let now = shared.registry.now();
    let marked = shared.registry.modify(Resource::Pods, &namespace, &name, Part::Status, |pod| {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": MESSAGE,
            "lastProbeTime": null,
            "lastTransitionTime": now,
        }]);
    });
    if let Ok(pod) = marked {
        shared.registry.record_event(&pod, EventType::Warning, "FailedScheduling", MESSAGE, COMPONENT);
    }
}
