//! Evicts pods from nodes with a taint `NoExecute` that they do not tolerate, or not any longer.
//!
//! After pkg/controller/tainteviction: of the tolerations that fit, the shortest
//! `tolerationSeconds` counts, from the moment at which the taint is seen. The deletion is an
//! ordinary one, with the pod's own grace period; a PodDisruptionBudget is not asked.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tokio::time::Instant;

use super::queue::Queue;
use super::taints::{self, NO_EXECUTE};
use super::{Key, conditions, follow, is_being_deleted, key};
use crate::Shared;
use crate::registry::{DeleteOptions, EventType, Part, WatchEventType};
use crate::resource::Resource;
use crate::selector::Selection;

const COMPONENT: &str = "taint-eviction-controller";

pub(super) async fn run(shared: Shared) {
    let mut events = follow(&shared.registry, &[Resource::Nodes, Resource::Pods]);
    let mut evictions = Evictions::default();
    let mut queue = Queue::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => {
                if resource == Resource::Nodes {
                    let node = key(&event.object).1;
                    let on_node = Selection::field("spec.nodeName", &node);
                    for pod in shared.registry.list(Resource::Pods, None, &on_node).items {
                        evictions.judge(&shared, &pod, &mut queue);
                    }
                } else if event.event_type == WatchEventType::Deleted {
                    evictions.due.remove(&key(&event.object));
                } else {
                    evictions.judge(&shared, &event.object, &mut queue);
                }
            }
            pod = queue.next() => evictions.carry_out(&shared, &pod),
        }
    }
}

/// The pods that are to go, each with its time.
#[derive(Debug, Default)]
struct Evictions {
    due: BTreeMap<Key, Instant>,
}

impl Evictions {
    /// Decides when a pod has to go, if at all.
    fn judge(&mut self, shared: &Shared, pod: &Value, queue: &mut Queue<Key>) {
        let pod_key = key(pod);
        match tolerated_for(shared, pod) {
            Tolerated::For(time) => {
                // What was decided first stays, as long as the taint does.
                let due = *self.due.entry(pod_key.clone()).or_insert_with(|| Instant::now() + time);
                queue.add(pod_key, due.saturating_duration_since(Instant::now()));
            }
            Tolerated::Forever => {
                if self.due.remove(&pod_key).is_some() && !is_being_deleted(pod) {
                    record(shared, pod, "Cancelling deletion of Pod");
                }
            }
        }
    }

    fn carry_out(&mut self, shared: &Shared, pod_key: &Key) {
        let registry = &shared.registry;
        let (namespace, name) = pod_key;
        let is_due = self.due.get(pod_key).is_some_and(|due| *due <= Instant::now());
        let Ok(pod) = registry.get(Resource::Pods, namespace, name) else { return };
        if !is_due || is_being_deleted(&pod) {
            return;
        }
        self.due.remove(pod_key);
        record(shared, &pod, "Marking for deletion Pod");
        let now = registry.now();
        let marked = registry.modify(Resource::Pods, namespace, name, Part::Status, |pod| {
            let message = "Taint manager: deleting due to NoExecute taint";
            let generation = pod["metadata"]["generation"].as_i64();
            conditions::disruption_target(pod, "DeletionByTaintManager", message, generation, &now);
        });
        let options = DeleteOptions::of(pod["metadata"]["uid"].as_str().unwrap_or_default());
        let deleted = marked.and_then(|_| registry.delete(Resource::Pods, namespace, name, &options));
        if let Err(status) = deleted {
            tracing::debug!(%status, "not evicted");
        }
    }
}

fn record(shared: &Shared, pod: &Value, what: &str) {
    let (namespace, name) = key(pod);
    let message = format!("{what} {namespace}/{name}");
    shared.registry.record_event(pod, EventType::Normal, "TaintManagerEviction", &message, COMPONENT);
}

/// How long a pod may stay where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tolerated {
    For(Duration),
    Forever,
}

fn tolerated_for(shared: &Shared, pod: &Value) -> Tolerated {
    let Some(node) = pod["spec"]["nodeName"].as_str() else { return Tolerated::Forever };
    let Ok(node) = shared.registry.get(Resource::Nodes, "", node) else { return Tolerated::Forever };
    let mut shortest = Tolerated::Forever;
    for taint in taints::of(&node, &[NO_EXECUTE]) {
        let mut tolerations = taints::tolerations(pod, taint).peekable();
        if tolerations.peek().is_none() {
            return Tolerated::For(Duration::ZERO);
        }
        for seconds in tolerations.filter_map(|toleration| toleration["tolerationSeconds"].as_i64()) {
            let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            shortest = match shortest {
                Tolerated::For(other) => Tolerated::For(other.min(time)),
                Tolerated::Forever => Tolerated::For(time),
            };
        }
    }
    shortest
}
