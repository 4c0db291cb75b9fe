//! Creates and deletes a workload's pods, and records events about these actions.
//!
//! Based on `RealPodControl` (pkg/controller/controller_utils.go) and `slowStartBatch` (pkg/controller/replicaset):
//! pods are created in batches of 1, 2, 4, … so that a faulty template is rejected once rather than a hundred times.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Value, json};

use super::client_rate::ClientRate;
use crate::object_fields::{controller_reference, key, uid};
use crate::registry::{DeleteOptions, EventType};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::status::Status;

/// Maximum number of pods that one pass over an object creates or deletes (`BurstReplicas`,
/// `MaxPodCreateDeletePerSync`).
pub(super) const BURST: usize = 500;

/// Handle that a controller uses to create and delete pods.
#[derive(Clone)]
pub(super) struct PodControl {
    pub(super) shared: ClusterContext,
    pub(super) rate: ClientRate,
    /// Controller name, used as the source of its events.
    pub(super) component: &'static str,
}

impl PodControl {
    pub(super) fn new(shared: &ClusterContext, component: &'static str) -> Self {
        Self { shared: shared.clone(), rate: ClientRate::of(&shared.config), component }
    }

    /// Records an event about the success or failure of an action on a pod.
    fn say(&self, owner: &Value, act: PodAction, pod: &str, failure: Option<&Status>) {
        let (event_type, result) = if failure.is_some() {
            (EventType::Warning, "Failed")
        } else {
            (EventType::Normal, "Successful")
        };
        let (verb, past, present) = match act {
            PodAction::Create => ("Create", "Created", "creating"),
            PodAction::Delete => ("Delete", "Deleted", "deleting"),
        };
        let message = match failure {
            None => format!("{past} pod: {pod}"),
            Some(status) => format!("Error {present}: {status}"),
        };
        self.record(owner, event_type, &format!("{result}{verb}"), &message);
    }

    /// Records an event about an object that this controller manages.
    pub(super) fn record(&self, owner: &Value, event_type: EventType, reason: &str, message: &str) {
        self.shared.registry.record_event(owner, event_type, reason, message, self.component);
    }

    /// Creates pods for `owner`, and adds them to `created`. Stops after the first batch with a failure.
    pub(super) async fn create(
        &self,
        owner: &Value,
        mut pods: Vec<Value>,
        created: &mut Vec<Arc<Value>>,
    ) -> Result<(), Status> {
        let mut batch = 1;
        while !pods.is_empty() {
            let now = pods.drain(..batch.min(pods.len())).collect::<Vec<_>>();
            for pod in join_all(now.into_iter().map(|pod| self.create_one(owner, pod))).await {
                created.extend(pod?);
            }
            batch *= 2;
        }
        Ok(())
    }

    async fn create_one(&self, owner: &Value, pod: Value) -> Result<Option<Arc<Value>>, Status> {
        self.rate.permit().await;
        self.shared.delay(|latencies| latencies.pod_create).await;
        let name = key(&pod).1;
        match self.shared.registry.create(Resource::Pods, &key(owner).0, pod) {
            Ok(pod) => {
                self.say(owner, PodAction::Create, &key(&pod).1, None);
                Ok(Some(pod))
            }
            // The namespace is being deleted, along with the owner.
            Err(status) if status.is_about_a_terminating_namespace() => Ok(None),
            Err(status) => {
                self.say(owner, PodAction::Create, &name, Some(&status));
                Err(status)
            }
        }
    }

    /// Deletes pods that belong to `owner`.
    pub(super) async fn delete(&self, owner: &Value, pods: &[Arc<Value>]) -> Result<(), Status> {
        join_all(pods.iter().map(|pod| self.delete_one(owner, pod))).await.into_iter().collect()
    }

    async fn delete_one(&self, owner: &Value, pod: &Value) -> Result<(), Status> {
        self.rate.permit().await;
        let (namespace, name) = key(pod);
        match self.shared.delete_pod(&namespace, &name, &DeleteOptions::of(uid(pod))).await {
            Ok(_) => {
                self.say(owner, PodAction::Delete, &name, None);
                Ok(())
            }
            Err(status) if status.code() == 404 => Ok(()),
            Err(status) => {
                self.say(owner, PodAction::Delete, &name, Some(&status));
                Err(status)
            }
        }
    }
}

/// Action on a pod.
#[derive(Clone, Copy)]
enum PodAction {
    Create,
    Delete,
}

/// Builds a pod from the owner's template, with a name that begins with `prefix`.
pub(super) fn of_template(owner: &Value, prefix: &str) -> Value {
    let template = &owner["spec"]["template"];
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["generateName"] = json!(prefix);
    pod["metadata"]["ownerReferences"] = json!([controller_reference(owner)]);
    pod
}
