//! Keeps as many pods as a ReplicaSet asks for.
//!
//! Terminating pods do not count, so a deleted pod is replaced at once. Which pods go first
//! when there are too many follows `ActivePodsWithRanks` (pkg/controller/controller_utils.go).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::queue::Queue;
use super::{
    Key, condition, controller_key, controller_reference, follow, is_being_deleted, is_controlled_by,
    is_ready, is_terminal, key,
};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{DeleteOptions, EventType, Part, WatchEventType};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::{LabelSelector, Selection};

const COMPONENT: &str = "replicaset-controller";

/// How long to wait after the API refused something.
const RETRY: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Shared) {
    let mut events = follow(&shared.registry, &[Resource::ReplicaSets, Resource::Pods]);
    let mut queue = Queue::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => {
                let owner = match resource {
                    Resource::ReplicaSets if event.event_type == WatchEventType::Deleted => None,
                    Resource::ReplicaSets => Some(key(&event.object)),
                    _ => controller_key(&event.object, Resource::ReplicaSets),
                };
                if let Some(owner) = owner {
                    queue.add(owner, Duration::ZERO);
                }
            }
            replica_set = queue.next() => {
                if let Some(again) = reconcile(&shared, &replica_set).await {
                    queue.add(replica_set, again);
                }
            }
        }
    }
}

/// Does what there is to do, and answers after which time to look again.
async fn reconcile(shared: &Shared, (namespace, name): &Key) -> Option<Duration> {
    let registry = &shared.registry;
    let replica_set = registry.get(Resource::ReplicaSets, namespace, name).ok()?;
    if is_being_deleted(&replica_set) {
        return None;
    }
    let latencies = &shared.config.latencies;
    let latency = match missing(shared, &replica_set) {
        0 => None,
        1.. => Some(&latencies.pod_create),
        ..0 => Some(&latencies.pod_delete),
    };
    let mut again = None;
    if let Some(latency) = latency {
        // The calls of one round go out together, so one delay stands for all of them.
        tokio::time::sleep(shared.sampler.sample(latency)).await;
        let missing = missing(shared, &replica_set);
        let refused = if missing > 0 {
            create(shared, &replica_set, missing)
        } else {
            delete(shared, &replica_set, -missing)
        };
        again = refused.map(|()| RETRY);
    }
    let available_in = update_status(shared, &replica_set);
    again.into_iter().chain(available_in).min()
}

fn pods_of(shared: &Shared, replica_set: &Value) -> Vec<Arc<Value>> {
    let namespace = key(replica_set).0;
    let selection = Selection::labels(LabelSelector::from_object(&replica_set["spec"]["selector"]));
    let mut pods = shared.registry.list(Resource::Pods, Some(&namespace), &selection).items;
    pods.retain(|pod| is_controlled_by(pod, replica_set));
    pods
}

fn is_active(pod: &Value) -> bool {
    !is_being_deleted(pod) && !is_terminal(pod)
}

/// How many pods are wanting (positive) or too many (negative).
fn missing(shared: &Shared, replica_set: &Value) -> i64 {
    let active = pods_of(shared, replica_set).iter().filter(|pod| is_active(pod)).count();
    let wanted = replica_set["spec"]["replicas"].as_i64().unwrap_or(0);
    wanted - i64::try_from(active).unwrap_or(i64::MAX)
}

/// Creates pods; `Some` when the API refused.
fn create(shared: &Shared, replica_set: &Value, count: i64) -> Option<()> {
    let registry = &shared.registry;
    let (namespace, name) = key(replica_set);
    let template = &replica_set["spec"]["template"];
    for _ in 0..count {
        let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["generateName"] = json!(format!("{name}-"));
        pod["metadata"]["ownerReferences"] = json!([controller_reference(replica_set)]);
        match registry.create(Resource::Pods, &namespace, pod) {
            Ok(pod) => {
                let message = format!("Created pod: {}", key(&pod).1);
                registry.record_event(
                    replica_set,
                    EventType::Normal,
                    "SuccessfulCreate",
                    &message,
                    COMPONENT,
                );
            }
            // A generated name that is taken: the next one will not be.
            Err(status) if status.code() == 409 => return Some(()),
            Err(status) => {
                let message = format!("Error creating: {status}");
                registry.record_event(replica_set, EventType::Warning, "FailedCreate", &message, COMPONENT);
                return Some(());
            }
        }
    }
    None
}

/// Deletes the pods that matter least; `Some` when the API refused.
fn delete(shared: &Shared, replica_set: &Value, count: i64) -> Option<()> {
    let registry = &shared.registry;
    let mut pods = pods_of(shared, replica_set);
    pods.retain(|pod| is_active(pod));
    pods.sort_by_key(|pod| least_worth(pod));
    for pod in pods.into_iter().take(usize::try_from(count).unwrap_or(0)) {
        let (namespace, name) = key(&pod);
        match registry.delete(Resource::Pods, &namespace, &name, &DeleteOptions::default()) {
            Ok(_) => {
                let message = format!("Deleted pod: {name}");
                registry.record_event(
                    replica_set,
                    EventType::Normal,
                    "SuccessfulDelete",
                    &message,
                    COMPONENT,
                );
            }
            Err(status) if status.code() == 404 => {}
            Err(_) => return Some(()),
        }
    }
    None
}

/// Orders pods by how soon they should go: unassigned, pending and unready ones first, then those
/// that became ready last, then the newest.
fn least_worth(pod: &Value) -> impl Ord + use<> {
    let phase_rank = match pod["status"]["phase"].as_str() {
        Some("Pending") => 0,
        Some("Unknown") => 1,
        _ => 2,
    };
    let newest_first = |time: &Value| std::cmp::Reverse(time.as_str().unwrap_or_default().to_owned());
    (
        pod["spec"]["nodeName"].is_string(),
        phase_rank,
        is_ready(pod),
        newest_first(&condition(pod, "Ready")["lastTransitionTime"]),
        newest_first(&pod["metadata"]["creationTimestamp"]),
    )
}

/// Writes the status, and answers after which time one more pod will count as available.
fn update_status(shared: &Shared, replica_set: &Value) -> Option<Duration> {
    let min_ready = replica_set["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
    let now = shared.registry.now().parse::<Timestamp>().map_or(0, Timestamp::as_second);
    let (mut replicas, mut ready, mut available, mut terminating) = (0, 0, 0, 0);
    let mut available_in = None;
    for pod in pods_of(shared, replica_set) {
        if !is_active(&pod) {
            terminating += i64::from(is_being_deleted(&pod) && !is_terminal(&pod));
            continue;
        }
        replicas += 1;
        if is_ready(&pod) {
            ready += 1;
            let since = condition(&pod, "Ready")["lastTransitionTime"].as_str().unwrap_or_default();
            let since = since.parse::<Timestamp>().map_or(now, Timestamp::as_second);
            match u64::try_from(since + min_ready - now) {
                Ok(seconds @ 1..) if min_ready > 0 => {
                    let wait = Duration::from_secs(seconds);
                    available_in = Some(available_in.map_or(wait, |other: Duration| other.min(wait)));
                }
                _ => available += 1,
            }
        }
    }
    let (namespace, name) = key(replica_set);
    let written = shared.registry.modify(Resource::ReplicaSets, &namespace, &name, Part::Status, |current| {
        current["status"] = json!({
            "replicas": replicas,
            "fullyLabeledReplicas": replicas,
            "readyReplicas": ready,
            "availableReplicas": available,
            "terminatingReplicas": terminating,
            "observedGeneration": replica_set["metadata"]["generation"],
        });
    });
    if let Err(status) = written {
        tracing::debug!(%status, "ReplicaSet status not written");
    }
    available_in
}
