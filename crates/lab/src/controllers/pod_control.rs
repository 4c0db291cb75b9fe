//! Creates and deletes the pods of a workload, and records events about it.
//!
//! After `RealPodControl` (pkg/controller/controller_utils.go) and `slowStartBatch` (pkg/controller/replicaset): pods
//! are created in batches of 1, 2, 4, …, so that a mistake in the template is refused once and not a hundred times.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Value, json};

use super::client_rate::ClientRate;
use crate::object::{controller_reference, key, uid};
use crate::registry::{DeleteOptions, EventType};
use crate::resource::Resource;
use crate::shared::Shared;
use crate::status::Status;
use crate::value::text;

/// Maximum number of pods that one look at an object creates or deletes (`BurstReplicas`,
/// `MaxPodCreateDeletePerSync`).
pub(super) const BURST: usize = 500;

/// Wording of events about a created or deleted pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wording {
    /// As `RealPodControl` does.
    Common,
    /// As pkg/controller/statefulset/stateful_pod_control.go does.
    StatefulSets,
}

/// Access of one controller to the pods that it creates and deletes.
#[derive(Clone)]
pub(super) struct PodControl {
    pub(super) shared: Shared,
    pub(super) rate: ClientRate,
    /// Name of the controller, the source of its events.
    pub(super) component: &'static str,
    wording: Wording,
}

impl PodControl {
    pub(super) fn new(shared: &Shared, component: &'static str) -> Self {
        Self {
            shared: shared.clone(),
            rate: ClientRate::of(&shared.config),
            component,
            wording: Wording::Common,
        }
    }

    pub(super) fn wording(self, wording: Wording) -> Self {
        Self { wording, ..self }
    }

    /// Records an event that an act on a pod succeeded or failed.
    fn say(&self, owner: &Value, act: Act, pod: &str, failure: Option<&Status>) {
        let (event_type, result) = if failure.is_some() {
            (EventType::Warning, "Failed")
        } else {
            (EventType::Normal, "Successful")
        };
        let (verb, past, present) = match act {
            Act::Create => ("Create", "Created", "creating"),
            Act::Delete => ("Delete", "Deleted", "deleting"),
        };
        let message = match (self.wording, failure) {
            (Wording::Common, None) => format!("{past} pod: {pod}"),
            (Wording::Common, Some(status)) => format!("Error {present}: {status}"),
            (Wording::StatefulSets, failure) => {
                let what = format!(
                    "{} Pod {pod} in StatefulSet {}",
                    verb.to_lowercase(),
                    text(&owner["metadata"]["name"])
                );
                match failure {
                    None => format!("{what} successful"),
                    Some(status) => format!("{what} failed error: {status}"),
                }
            }
        };
        self.record(owner, event_type, &format!("{result}{verb}"), &message);
    }

    /// Records an event about an object of this controller.
    pub(super) fn record(&self, owner: &Value, event_type: EventType, reason: &str, message: &str) {
        self.shared.registry.record_event(owner, event_type, reason, message, self.component);
    }

    /// Creates pods of `owner`, and adds them to `created`. Stops at the first batch that fails.
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
                self.say(owner, Act::Create, &key(&pod).1, None);
                Ok(Some(pod))
            }
            // The namespace is being deleted, and the owner with it.
            Err(status) if status.is_about_a_terminating_namespace() => Ok(None),
            Err(status) => {
                self.say(owner, Act::Create, &name, Some(&status));
                Err(status)
            }
        }
    }

    /// Deletes pods of `owner`.
    pub(super) async fn delete(&self, owner: &Value, pods: &[Arc<Value>]) -> Result<(), Status> {
        join_all(pods.iter().map(|pod| self.delete_one(owner, pod))).await.into_iter().collect()
    }

    async fn delete_one(&self, owner: &Value, pod: &Value) -> Result<(), Status> {
        self.rate.permit().await;
        let (namespace, name) = key(pod);
        match self.shared.delete_pod(&namespace, &name, &DeleteOptions::of(uid(pod))).await {
            Ok(_) => {
                self.say(owner, Act::Delete, &name, None);
                Ok(())
            }
            Err(status) if status.code() == 404 => Ok(()),
            Err(status) => {
                self.say(owner, Act::Delete, &name, Some(&status));
                Err(status)
            }
        }
    }
}

/// An act on a pod.
#[derive(Clone, Copy)]
enum Act {
    Create,
    Delete,
}

/// Makes a pod of the owner's template, whose name begins with `prefix`.
pub(super) fn of_template(owner: &Value, prefix: &str) -> Value {
    let template = &owner["spec"]["template"];
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["generateName"] = json!(prefix);
    pod["metadata"]["ownerReferences"] = json!([controller_reference(owner)]);
    pod
}
