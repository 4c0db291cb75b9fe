//! Creates and deletes the pods of a ReplicaSet or a Job, and says so in events.
//!
//! After `RealPodControl` (pkg/controller/controller_utils.go) and `slowStartBatch` (pkg/controller/replicaset): pods are
//! created in batches of 1, 2, 4, …, so that a mistake in the template is refused once and not a hundred times.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Value, json};

use super::client_rate::ClientRate;
use crate::object::{controller_reference, key, uid};
use crate::registry::{DeleteOptions, EventType};
use crate::resource::Resource;
use crate::shared::Shared;
use crate::status::Status;

/// The most pods that one look at an object creates or deletes (`BurstReplicas`, `MaxPodCreateDeletePerSync`).
pub(super) const BURST: usize = 500;

/// What one controller creates and deletes pods with.
#[derive(Clone)]
pub(super) struct PodControl {
    pub(super) shared: Shared,
    pub(super) rate: ClientRate,
    /// What events name as their source.
    pub(super) component: &'static str,
}

impl PodControl {
    pub(super) fn new(shared: &Shared, component: &'static str) -> Self {
        Self { shared: shared.clone(), rate: ClientRate::of(&shared.config), component }
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
        let Shared { registry, sampler, config, .. } = &self.shared;
        self.rate.permit().await;
        tokio::time::sleep(sampler.sample(&config.latencies.pod_create)).await;
        match registry.create(Resource::Pods, &key(owner).0, pod) {
            Ok(pod) => {
                let message = format!("Created pod: {}", key(&pod).1);
                self.record(owner, EventType::Normal, "SuccessfulCreate", &message);
                Ok(Some(pod))
            }
            // The namespace is being deleted, and the owner with it.
            Err(status) if status.is_about_a_terminating_namespace() => Ok(None),
            Err(status) => {
                self.record(owner, EventType::Warning, "FailedCreate", &format!("Error creating: {status}"));
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
                let message = format!("Deleted pod: {name}");
                self.record(owner, EventType::Normal, "SuccessfulDelete", &message);
                Ok(())
            }
            Err(status) if status.code() == 404 => Ok(()),
            Err(status) => {
                self.record(owner, EventType::Warning, "FailedDelete", &format!("Error deleting: {status}"));
                Err(status)
            }
        }
    }
}

/// A pod of the owner's template, whose name begins with `prefix`.
pub(super) fn of_template(owner: &Value, prefix: &str) -> Value {
    let template = &owner["spec"]["template"];
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["generateName"] = json!(prefix);
    pod["metadata"]["ownerReferences"] = json!([controller_reference(owner)]);
    pod
}
