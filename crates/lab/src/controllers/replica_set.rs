//! Maintains the number of pods that a ReplicaSet asks for.
//!
//! Terminating pods do not count, so a deleted pod is replaced immediately. [`rank`] decides which surplus pods are
//! deleted first.

mod rank;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::availability::Judge;
use super::claim::{claim, owners_concerned};
use super::pod_control::{BURST, PodControl, of_template};
use super::reconciler::{self, BACK_OFF, ReconcileResult};
use crate::conditions::of as condition;
use crate::object_fields::{
    ObjectKey, controller_of, is_active, is_being_deleted, is_controlled_by, is_ready, is_terminal, key,
    write_counts,
};
use crate::registry::follow;
use crate::resource::Resource;
use crate::selector::{LabelSelector, ObjectSelection};
use crate::shared::ClusterContext;
use crate::status::Status;
use crate::value::number;

const COMPONENT: &str = "replicaset-controller";

pub(super) async fn run(shared: ClusterContext) {
    let control = PodControl::new(&shared, COMPONENT);
    let events = follow(&shared.registry, &[Resource::ReplicaSets, Resource::Pods]);
    let named = |observed| owners_concerned(&shared.registry, Resource::ReplicaSets, &observed);
    let control = &control;
    reconciler::run(events, BACK_OFF, named, |set| async move { reconcile(control, &set).await }).await;
}

/// Takes the next steps, and returns the delay before the next pass.
async fn reconcile(control: &PodControl, (namespace, name): &ObjectKey) -> ReconcileResult {
    let registry = &control.shared.registry;
    let Ok(replica_set) = registry.get(Resource::ReplicaSets, namespace, name) else { return Ok(None) };
    let selector = LabelSelector::from_object(&replica_set["spec"]["selector"]);
    let managed = if is_being_deleted(&replica_set) {
        Ok(())
    } else {
        let pods = claim(registry, &replica_set, Resource::Pods, &selector, is_active)?;
        manage(control, &replica_set, pods).await
    };
    let Ok(replica_set) = registry.get(Resource::ReplicaSets, namespace, name) else { return Ok(None) };
    let pods = registry.list(Resource::Pods, Some(namespace), &ObjectSelection::labels(selector)).items;
    let pods: Vec<_> = pods.into_iter().filter(|pod| is_controlled_by(pod, &replica_set)).collect();
    let now = registry.now();
    let (status, again) = status_of(&replica_set, &pods, managed.as_ref().err(), &now);
    registry.set_status(Resource::ReplicaSets, &replica_set, status)?;
    managed.map(|()| again)
}

/// Creates missing pods or deletes surplus ones.
async fn manage(control: &PodControl, replica_set: &Value, pods: Vec<Arc<Value>>) -> Result<(), Status> {
    let wanted = usize::try_from(number(&replica_set["spec"]["replicas"])).unwrap_or(0);
    let missing = wanted.saturating_sub(pods.len()).min(BURST);
    let excess = pods.len().saturating_sub(wanted).min(BURST);
    if missing > 0 {
        let new = of_template(replica_set, &format!("{}-", key(replica_set).1));
        return control.create(replica_set, vec![new; missing], &mut Vec::new()).await;
    }
    if excess == 0 {
        return Ok(());
    }
    let now = control.shared.registry.now_seconds();
    let related = related_pods(&control.shared, replica_set);
    control.delete(replica_set, &rank::least_worth(pods, &related, now, excess)).await
}

/// Returns the active pods of all ReplicaSets that share this one's controller.
fn related_pods(shared: &ClusterContext, replica_set: &Value) -> Vec<Arc<Value>> {
    let namespace = key(replica_set).0;
    let mut family = shared.registry.all(Resource::ReplicaSets, Some(&namespace));
    let uid = |object: &Value| controller_of(object).map(|owner| owner["uid"].clone());
    let own = uid(replica_set);
    family.retain(|other| {
        other["metadata"]["uid"] == replica_set["metadata"]["uid"] || (own.is_some() && uid(other) == own)
    });
    let mut pods = shared.registry.all(Resource::Pods, Some(&namespace));
    pods.retain(|pod| is_active(pod) && family.iter().any(|member| is_controlled_by(pod, member)));
    pods
}

/// Computes a ReplicaSet's status from its pods (`calculateStatus`), and the time until another pod will count as
/// available.
fn status_of(
    replica_set: &Value,
    pods: &[Arc<Value>],
    failure: Option<&Status>,
    now: &str,
) -> (Value, Option<Duration>) {
    let judge = Judge::new(replica_set, now);
    let template_labels = LabelSelector::from_map(&replica_set["spec"]["template"]["metadata"]["labels"]);
    let (mut replicas, mut labeled, mut ready, mut available, mut terminating) = (0, 0, 0, 0, 0);
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
            available += i64::from(judge.is_available(pod));
        }
    }
    let mut status = json!({
        "replicas": replicas,
        "terminatingReplicas": terminating,
        "observedGeneration": replica_set["metadata"]["generation"],
    });
    let counts =
        [("fullyLabeledReplicas", labeled), ("readyReplicas", ready), ("availableReplicas", available)];
    write_counts(&mut status, counts);
    if let Some(failure) = failure {
        let before = condition(replica_set, "ReplicaFailure");
        let wanted = number(&replica_set["spec"]["replicas"]);
        let failed = if replicas < wanted { "FailedCreate" } else { "FailedDelete" };
        let condition = json!({
            "type": "ReplicaFailure", "status": "True", "lastTransitionTime": now,
            "reason": failed, "message": failure.to_string(),
        });
        status["conditions"] = json!([if before.is_null() { &condition } else { before }]);
    }
    (status, judge.next(pods.iter().map(Arc::as_ref).filter(|pod| is_active(pod))))
}

#[cfg(test)]
mod tests;
