//! Creating and deleting the pods of a Job.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::client_rate::ClientRate;
use super::super::{controller_reference, key};
use super::COMPONENT;
use super::indexes::COMPLETION_INDEX;
use crate::Shared;
use crate::registry::{DeleteOptions, EventType};
use crate::resource::Resource;
use crate::status::Status;

/// Creates a pod of a Job, and says so.
pub(super) async fn create(
    shared: &Shared,
    rate: &ClientRate,
    job: &Value,
    index: Option<i64>,
) -> Result<Arc<Value>, Status> {
    rate.permit().await;
    tokio::time::sleep(shared.sampler.sample(&shared.config.latencies.pod_create)).await;
    let (namespace, _) = key(job);
    let created = shared.registry.create(Resource::Pods, &namespace, new_pod(job, index));
    let (event_type, reason, message) = match &created {
        Ok(pod) => (EventType::Normal, "SuccessfulCreate", format!("Created pod: {}", key(pod).1)),
        Err(status) => (EventType::Warning, "FailedCreate", format!("Error creating: {status}")),
    };
    shared.registry.record_event(job, event_type, reason, &message, COMPONENT);
    created
}

/// A pod of a Job; one with an index knows it by annotation, label, environment and host name.
fn new_pod(job: &Value, index: Option<i64>) -> Value {
    let (_, name) = key(job);
    let template = &job["spec"]["template"];
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["ownerReferences"] = json!([controller_reference(job)]);
    let Some(index) = index else {
        pod["metadata"]["generateName"] = json!(format!("{name}-"));
        return pod;
    };
    pod["metadata"]["generateName"] = json!(format!("{name}-{index}-"));
    pod["metadata"]["annotations"][COMPLETION_INDEX] = json!(index.to_string());
    pod["metadata"]["labels"][COMPLETION_INDEX] = json!(index.to_string());
    pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
    let variable = json!({
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{COMPLETION_INDEX}']")}},
    });
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let env = &mut container["env"];
            if !env.is_array() {
                *env = json!([]);
            }
            let Some(env) = env.as_array_mut() else { continue };
            if !env.iter().any(|other| other["name"] == variable["name"]) {
                env.push(variable.clone());
            }
        }
    }
    if pod["spec"]["initContainers"].is_null() {
        pod["spec"].as_object_mut().map(|spec| spec.remove("initContainers"));
    }
    pod
}

/// Deletes a pod of a Job, and says so.
pub(super) async fn delete(
    shared: &Shared,
    rate: &ClientRate,
    job: &Value,
    pod: &Value,
) -> Result<(), Status> {
    rate.permit().await;
    let (namespace, name) = key(pod);
    let options = DeleteOptions::of(pod["metadata"]["uid"].as_str().unwrap_or_default());
    match shared.delete_pod(&namespace, &name, &options).await {
        Ok(_) => {
            let message = format!("Deleted pod: {name}");
            shared.registry.record_event(job, EventType::Normal, "SuccessfulDelete", &message, COMPONENT);
            Ok(())
        }
        Err(status) if status.code() == 404 => Ok(()),
        Err(status) => Err(status),
    }
}
