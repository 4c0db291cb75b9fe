//! Binds pods to nodes.
//!
//! [`fit`] decides which nodes a pod fits on, and which of them is best. If a pod fits on no node, a condition and an
//! event explain why. The scheduler retries the pod a second after nodes change or other pods are removed.

mod fit;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

pub(super) use fit::matches_affinity;

use super::queue::WorkQueue;
use crate::conditions;
use crate::conditions::of as condition;
use crate::object_fields::{ObjectKey, is_being_deleted, is_terminal, key};
use crate::registry::{EventType, ObjectPart, WatchEventType, follow};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::status::note_failure;

const COMPONENT: &str = "default-scheduler";

/// Delay before retrying a pod that fits on no node (`DefaultPodInitialBackoffDuration` in
/// pkg/scheduler/backend/queue).
const POD_BACK_OFF: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: ClusterContext) {
    let mut events = follow(&shared.registry, &[Resource::Pods, Resource::Nodes]);
    let mut queue = WorkQueue::new();
    let mut waiting = BTreeSet::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => {
                let gone = event.event_type == WatchEventType::Deleted;
                if resource == Resource::Pods && is_waiting(&event.object) && !gone {
                    if event.event_type == WatchEventType::Added {
                        let wait = shared.sample(|latencies| latencies.created_to_scheduled);
                        queue.add(key(&event.object), wait);
                    }
                    continue;
                }
                let makes_room = resource == Resource::Nodes || gone || is_terminal(&event.object);
                if makes_room {
                    for pod in &waiting {
                        queue.add(ObjectKey::clone(pod), POD_BACK_OFF);
                    }
                }
            }
            pod = queue.next() => schedule(&shared, &pod, &mut waiting),
        }
    }
}

fn is_waiting(pod: &Value) -> bool {
    !pod["spec"]["nodeName"].is_string() && !is_being_deleted(pod)
}

fn schedule(shared: &ClusterContext, pod_key: &ObjectKey, waiting: &mut BTreeSet<ObjectKey>) {
    let registry = &shared.registry;
    let (namespace, name) = pod_key;
    let pod = registry.get(Resource::Pods, namespace, name);
    let Some(pod) = pod.ok().filter(|pod| is_waiting(pod)) else {
        waiting.remove(pod_key);
        return;
    };
    let nodes = registry.all(Resource::Nodes, None);
    let pods = registry.all(Resource::Pods, None);
    let best = match fit::SchedulerSnapshot::new(&nodes, &pods).place(&pod) {
        Ok(best) => best,
        Err(message) => {
            waiting.insert(pod_key.clone());
            return mark_unschedulable(shared, &pod, &message);
        }
    };
    waiting.remove(pod_key);
    let node = &best[shared.sampler.index(best.len())];
    match registry.bind(namespace, name, node) {
        Ok(pod) => {
            let message = format!("Successfully assigned {namespace}/{name} to {node}");
            registry.record_event(&pod, EventType::Normal, "Scheduled", &message, COMPONENT);
        }
        Err(status) => tracing::debug!(%status, "failed to bind the pod"),
    }
}

fn mark_unschedulable(shared: &ClusterContext, pod: &Value, message: &str) {
    let registry = &shared.registry;
    let scheduled = json!({
        "type": "PodScheduled",
        "observedGeneration": pod["metadata"]["generation"],
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastProbeTime": null,
    });
    if condition(pod, "PodScheduled")["message"] != message {
        let now = registry.now();
        let marked = registry.change(Resource::Pods, pod, ObjectPart::Status, |pod| {
            conditions::put(pod, scheduled, &now);
        });
        note_failure(marked, "failed to mark the pod as unschedulable");
    }
    registry.record_event(pod, EventType::Warning, "FailedScheduling", message, COMPONENT);
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::tests::bench::Bench;
    use super::*;

    fn node(name: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    }

    fn pod(name: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "app", "image": "host", "command": ["true"]}]},
        })
    }

    fn node_of(bench: &Bench, name: &str) -> Option<String> {
        bench.get(Resource::Pods, name)["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    #[tokio::test]
    async fn unschedulable_pod_is_bound_after_uncordon() {
        let bench = Bench::start(&[|shared| run(shared).boxed()]);
        bench.create(Resource::Nodes, node("node-1"));
        bench.modify(Resource::Nodes, "node-1", ObjectPart::Main, |node| {
            node["spec"]["unschedulable"] = json!(true)
        });
        bench.create(Resource::Pods, pod("a"));
        bench
            .holds("the failure is recorded as an event", |bench| {
                !bench.events("FailedScheduling").is_empty()
            })
            .await;
        let message = &bench.events("FailedScheduling")[0];
        assert!(message.starts_with("0/1 nodes are available: 1 node(s) were unschedulable."), "{message}");
        let waiting = bench.get(Resource::Pods, "a");
        assert_eq!(condition(&waiting, "PodScheduled")["reason"], "Unschedulable");
        assert_eq!(node_of(&bench, "a"), None);
        bench.modify(Resource::Nodes, "node-1", ObjectPart::Main, |node| {
            node["spec"]["unschedulable"] = json!(false)
        });
        bench.holds("the pod is bound", |bench| node_of(bench, "a").as_deref() == Some("node-1")).await;
        assert_eq!(bench.events("Scheduled"), ["Successfully assigned default/a to node-1"]);
    }

    #[tokio::test]
    async fn pods_spread_over_nodes() {
        let bench = Bench::start(&[|shared| run(shared).boxed()]);
        for name in ["node-1", "node-2", "node-3"] {
            bench.create(Resource::Nodes, node(name));
        }
        for n in 0..9 {
            bench.create(Resource::Pods, pod(&format!("a-{n}")));
        }
        let bound = |bench: &Bench, node: &str| {
            bench.list(Resource::Pods).iter().filter(|pod| pod["spec"]["nodeName"] == node).count()
        };
        bench
            .holds("each node has three pods", |bench| {
                ["node-1", "node-2", "node-3"].iter().all(|node| bound(bench, node) == 3)
            })
            .await;
    }
}
