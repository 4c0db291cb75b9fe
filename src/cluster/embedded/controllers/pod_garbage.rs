//! Removes pods that nobody else will: those of a node that no longer exists.
//!
//! After `gcOrphaned` (pkg/controller/podgc/gc_controller.go): a node has to be gone for a while,
//! then its pods are marked as failed and deleted without grace, for there is no agent left to end them.

use futures::StreamExt;
use serde_json::{Value, json};

use super::queue::Queue;
use super::{conditions, follow, is_terminal, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{DeleteOptions, Part, WatchEventType};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::Selection;

pub(super) async fn run(shared: Shared) {
    let mut events = follow(&shared.registry, &[Resource::Nodes]);
    let mut queue = Queue::new();
    let quarantine = shared.config.controllers.pod_gc_quarantine_time;
    loop {
        tokio::select! {
            Some((_, event)) = events.next() => {
                if event.event_type == WatchEventType::Deleted {
                    queue.add(key(&event.object).1, quarantine);
                }
            }
            node = queue.next() => {
                if shared.registry.get(Resource::Nodes, "", &node).is_err() {
                    remove_pods_of(&shared, &node);
                }
            }
        }
    }
}

fn remove_pods_of(shared: &Shared, node: &str) {
    let registry = &shared.registry;
    let now = registry.now();
    for pod in registry.list(Resource::Pods, None, &Selection::field("spec.nodeName", node)).items {
        let (namespace, name) = key(&pod);
        let mut removed = Ok(());
        if !is_terminal(&pod) {
            let failed = |pod: &mut Value| {
                pod["status"]["phase"] = json!("Failed");
                let (reason, message) = ("DeletionByPodGC", "PodGC: node no longer exists");
                let generation = pod["metadata"]["generation"].as_i64();
                conditions::disruption_target(pod, reason, message, generation, &now);
            };
            removed = registry.modify(Resource::Pods, &namespace, &name, Part::Status, failed).map(|_| ());
        }
        let options = DeleteOptions::new(0, pod["metadata"]["uid"].as_str().unwrap_or_default());
        let removed = removed.and_then(|()| registry.delete(Resource::Pods, &namespace, &name, &options));
        if let Err(status) = removed {
            tracing::debug!(%status, "pod of a gone node not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::super::bench::Bench;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pods_of_a_gone_node_go_after_a_while() {
        let bench = Bench::start(&[|shared| run(shared).boxed()]);
        bench.create(Resource::Nodes, json!({"metadata": {"name": "node-1"}}));
        bench.create(
            Resource::Pods,
            json!({
                "metadata": {"name": "a"},
                "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "host", "command": ["true"]}]},
            }),
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.registry().delete(Resource::Nodes, "", "node-1", &DeleteOptions::default()).unwrap();
        tokio::time::sleep(Duration::from_secs(39)).await;
        assert_eq!(bench.list(Resource::Pods).len(), 1);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(bench.list(Resource::Pods).is_empty());
    }
}
