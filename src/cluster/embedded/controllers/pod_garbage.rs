//! Removes pods that nobody else will: those of a node that does not exist.
//!
//! After `gcOrphaned` (pkg/controller/podgc/gc_controller.go): such pods are looked for now and then,
//! and when their node has been missed for a while they are marked as failed and deleted without grace,
//! for there is no agent left to end them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{conditions, is_terminal, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{DeleteOptions, Part};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::Selection;

pub(super) async fn run(shared: Shared) {
    let settings = &shared.config.controllers;
    let exists = |node: &str| shared.registry.get(Resource::Nodes, "", node).is_ok();
    // The nodes that are missed, and when they are to be given up.
    let mut missed: BTreeMap<String, Instant> = BTreeMap::new();
    let mut looks = interval(settings.pod_gc_check_period);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = looks.tick().await;
        for pod in shared.registry.list(Resource::Pods, None, &Selection::all()).items {
            if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|node| !exists(node)) {
                missed.entry(node.to_owned()).or_insert(now + settings.pod_gc_quarantine_time);
            }
        }
        for (node, _) in missed.extract_if(.., |_, until| *until <= now) {
            if !exists(&node) {
                remove_pods_of(&shared, &node);
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
    async fn pods_of_a_gone_node_go_when_it_has_been_missed_for_a_while() {
        let bench = Bench::start(&[|shared| run(shared).boxed()]);
        let create = |pod: &str, node: &str| {
            let app = json!({"name": "app", "image": "host", "command": ["true"]});
            let spec = json!({"nodeName": node, "containers": [app]});
            bench.create(Resource::Pods, json!({"metadata": {"name": pod}, "spec": spec}));
        };
        let pods = || bench.list(Resource::Pods).iter().map(|pod| key(pod).1).collect::<Vec<_>>();
        let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        for node in ["back", "gone", "stays"] {
            bench.create(Resource::Nodes, json!({"metadata": {"name": node}}));
            create(node, node);
        }
        seconds(1).await;
        for node in ["back", "gone"] {
            bench.registry().delete(Resource::Nodes, "", node, &DeleteOptions::default()).unwrap();
        }
        create("stray", "never-was");
        // Missed at 20 s, given up 40 s later.
        seconds(30).await;
        bench.create(Resource::Nodes, json!({"metadata": {"name": "back"}}));
        seconds(28).await;
        assert_eq!(pods(), ["back", "gone", "stays", "stray"]);
        seconds(2).await;
        assert_eq!(pods(), ["back", "stays"]);
    }
}
