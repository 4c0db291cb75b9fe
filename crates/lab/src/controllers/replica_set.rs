//! Keeps as many pods as a ReplicaSet asks for.
//!
//! Terminating pods do not count, so a deleted pod is replaced at once. Pods are created in batches
//! of 1, 2, 4, … (`slowStartBatch` in pkg/controller/replicaset), so that a mistake in the template
//! is refused once and not a hundred times. Which pods go first when there are too many is in
//! [`rank`].

mod rank;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::claim::{adopters, claim};
use super::client_rate::ClientRate;
use super::worker::{self, BACK_OFF, Outcome};
use super::{
    Key, condition, controller_key, controller_of, controller_reference, follow, is_active, is_being_deleted,
    is_controlled_by, is_ready, is_terminal, key,
};
use crate::Shared;
use crate::conditions::unix_seconds;
use crate::registry::{DeleteOptions, EventType, Part, WatchEventType};
use crate::resource::Resource;
use crate::selector::{LabelSelector, Selection};
use crate::status::Status;

const COMPONENT: &str = "replicaset-controller";

/// The most pods that one look at a ReplicaSet creates or deletes (`BurstReplicas`).
const BURST_REPLICAS: usize = 500;

pub(super) async fn run(shared: Shared) {
    let rate = ClientRate::of(&shared.config);
    let events = follow(&shared.registry, &[Resource::ReplicaSets, Resource::Pods]);
    let named = |(resource, event): super::Observed| {
        let gone = event.event_type == WatchEventType::Deleted;
        match resource {
            Resource::ReplicaSets if gone => Vec::new(),
            Resource::ReplicaSets => vec![key(&event.object)],
            _ if controller_of(&event.object).is_some() || gone => {
                controller_key(&event.object, Resource::ReplicaSets).into_iter().collect()
            }
            _ => adopters(&shared.registry, Resource::ReplicaSets, &event.object),
        }
    };
    worker::run(events, BACK_OFF, named, |replica_set| {
        let (shared, rate) = (shared.clone(), rate.clone());
        async move { reconcile(&shared, &rate, &replica_set).await }
    })
    .await;
}

/// Does what there is to do, and answers after which time to look again.
async fn reconcile(shared: &Shared, rate: &ClientRate, (namespace, name): &Key) -> Outcome {
    let registry = &shared.registry;
    let Ok(replica_set) = registry.get(Resource::ReplicaSets, namespace, name) else { return Ok(None) };
    let selector = LabelSelector::from_object(&replica_set["spec"]["selector"]);
    let managed = if is_being_deleted(&replica_set) {
        Ok(())
    } else {
        let pods = claim(registry, &replica_set, Resource::Pods, &selector, is_active)?;
        manage(shared, rate, &replica_set, pods).await
    };
    let Ok(replica_set) = registry.get(Resource::ReplicaSets, namespace, name) else { return Ok(None) };
    let pods = registry.list(Resource::Pods, Some(namespace), &Selection::labels(selector)).items;
    let pods: Vec<_> = pods.into_iter().filter(|pod| is_controlled_by(pod, &replica_set)).collect();
    let now = registry.now();
    let (status, again) = status_of(&replica_set, &pods, managed.as_ref().err(), &now);
    if status != replica_set["status"] {
        registry.modify(Resource::ReplicaSets, namespace, name, Part::Status, |object| {
            object["status"] = status;
        })?;
    }
    managed.map(|()| again)
}

/// Creates or deletes pods, as far as their number is not right.
async fn manage(
    shared: &Shared,
    rate: &ClientRate,
    replica_set: &Value,
    pods: Vec<Arc<Value>>,
) -> Result<(), Status> {
    let wanted = usize::try_from(replica_set["spec"]["replicas"].as_i64().unwrap_or(0)).unwrap_or(0);
    if pods.len() < wanted {
        let mut missing = (wanted - pods.len()).min(BURST_REPLICAS);
        let mut batch = 1;
        while missing > 0 {
            let size = missing.min(batch);
            let calls = (0..size).map(|_| create(shared, rate, replica_set));
            let results = futures::future::join_all(calls).await;
            results.into_iter().collect::<Result<(), _>>()?;
            missing -= size;
            batch *= 2;
        }
        return Ok(());
    }
    let excess = (pods.len() - wanted).min(BURST_REPLICAS);
    if excess == 0 {
        return Ok(());
    }
    let now = unix_seconds(&json!(shared.registry.now())).unwrap_or(0);
    let related = related_pods(shared, replica_set);
    let going = rank::least_worth(pods, &related, now, excess);
    let calls = going.iter().map(|pod| delete(shared, rate, replica_set, pod));
    futures::future::join_all(calls).await.into_iter().collect()
}

/// The active pods of all ReplicaSets that have the same controller.
fn related_pods(shared: &Shared, replica_set: &Value) -> Vec<Arc<Value>> {
    let namespace = key(replica_set).0;
    let mut family = shared.registry.list(Resource::ReplicaSets, Some(&namespace), &Selection::all()).items;
    let uid = |object: &Value| controller_of(object).map(|owner| owner["uid"].clone());
    let own = uid(replica_set);
    family.retain(|other| {
        other["metadata"]["uid"] == replica_set["metadata"]["uid"] || (own.is_some() && uid(other) == own)
    });
    let mut pods = shared.registry.list(Resource::Pods, Some(&namespace), &Selection::all()).items;
    pods.retain(|pod| is_active(pod) && family.iter().any(|member| is_controlled_by(pod, member)));
    pods
}

async fn create(shared: &Shared, rate: &ClientRate, replica_set: &Value) -> Result<(), Status> {
    rate.permit().await;
    tokio::time::sleep(shared.sampler.sample(&shared.config.latencies.pod_create)).await;
    let registry = &shared.registry;
    let (namespace, name) = key(replica_set);
    let template = &replica_set["spec"]["template"];
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["generateName"] = json!(format!("{name}-"));
    pod["metadata"]["ownerReferences"] = json!([controller_reference(replica_set)]);
    let (event_type, reason, message, result) = match registry.create(Resource::Pods, &namespace, pod) {
        Ok(pod) => (EventType::Normal, "SuccessfulCreate", format!("Created pod: {}", key(&pod).1), Ok(())),
        // The namespace is on its way out: there is nothing to be done, and nothing to be said.
        Err(status) if status.is_about_a_terminating_namespace() => return Ok(()),
        Err(status) => (EventType::Warning, "FailedCreate", format!("Error creating: {status}"), Err(status)),
    };
    registry.record_event(replica_set, event_type, reason, &message, COMPONENT);
    result
}

async fn delete(shared: &Shared, rate: &ClientRate, replica_set: &Value, pod: &Value) -> Result<(), Status> {
    rate.permit().await;
    let (namespace, name) = key(pod);
    let options = DeleteOptions::of(pod["metadata"]["uid"].as_str().unwrap_or_default());
    let (event_type, reason, message, result) = match shared.delete_pod(&namespace, &name, &options).await {
        Ok(_) => (EventType::Normal, "SuccessfulDelete", format!("Deleted pod: {name}"), Ok(())),
        Err(status) if status.code() == 404 => return Ok(()),
        Err(status) => (EventType::Warning, "FailedDelete", format!("Error deleting: {status}"), Err(status)),
    };
    shared.registry.record_event(replica_set, event_type, reason, &message, COMPONENT);
    result
}

/// The status that a ReplicaSet with these pods has (`calculateStatus`), and after which time one
/// more pod will count as available.
fn status_of(
    replica_set: &Value,
    pods: &[Arc<Value>],
    failure: Option<&Status>,
    now: &str,
) -> (Value, Option<Duration>) {
    let min_ready = replica_set["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
    let now_seconds = unix_seconds(&json!(now)).unwrap_or(0);
    let template_labels = LabelSelector::from_map(&replica_set["spec"]["template"]["metadata"]["labels"]);
    let (mut replicas, mut labeled, mut ready, mut available, mut terminating) = (0, 0, 0, 0, 0);
    let mut available_in: Option<i64> = None;
    for pod in pods {
        if !is_active(pod) {
            terminating += i64::from(is_being_deleted(pod) && !is_terminal(pod));
            continue;
        }
        replicas += 1;
        let is_labeled =
            template_labels.as_ref().is_some_and(|labels| labels.matches(&pod["metadata"]["labels"]));
        labeled += i64::from(is_labeled);
        if is_ready(pod) {
            ready += 1;
            let since = unix_seconds(&condition(pod, "Ready")["lastTransitionTime"]).unwrap_or(now_seconds);
            let left = since + min_ready - now_seconds;
            if min_ready > 0 && left > 0 {
                available_in = Some(available_in.map_or(left, |other| other.min(left)));
            } else {
                available += 1;
            }
        }
    }
    let mut status = json!({
        "replicas": replicas,
        "terminatingReplicas": terminating,
        "observedGeneration": replica_set["metadata"]["generation"],
    });
    let counts =
        [("fullyLabeledReplicas", labeled), ("readyReplicas", ready), ("availableReplicas", available)];
    for (field, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
        status[field] = json!(count);
    }
    if let Some(failure) = failure {
        let before = condition(replica_set, "ReplicaFailure");
        let wanted = replica_set["spec"]["replicas"].as_i64().unwrap_or(0);
        let failed = if replicas < wanted { "FailedCreate" } else { "FailedDelete" };
        let condition = json!({
            "type": "ReplicaFailure", "status": "True", "lastTransitionTime": now,
            "reason": failed, "message": failure.to_string(),
        });
        status["conditions"] = json!([if before.is_null() { &condition } else { before }]);
    }
    let again = available_in.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    (status, again)
}

#[cfg(test)]
mod tests;
