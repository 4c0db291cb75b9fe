//! Builds the pods for a Job.

use serde_json::{Value, json};

use super::super::pod_control::of_template;
use super::indexes::COMPLETION_INDEX;
use crate::object_fields::{containers_mut, key};
use crate::value::list;

/// Builds a pod for a Job. An index appears in an annotation, a label, the environment and the host name.
pub(super) fn new(job: &Value, index: Option<i64>) -> Value {
    let (_, name) = key(job);
    let Some(index) = index else { return of_template(job, &format!("{name}-")) };
    let mut pod = of_template(job, &format!("{name}-{index}-"));
    pod["metadata"]["annotations"][COMPLETION_INDEX] = json!(index.to_string());
    pod["metadata"]["labels"][COMPLETION_INDEX] = json!(index.to_string());
    pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
    let variable = json!({
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{COMPLETION_INDEX}']")}},
    });
    for container in containers_mut(&mut pod["spec"]) {
        let mut env = list(&container["env"]).to_vec();
        if !env.iter().any(|other| other["name"] == variable["name"]) {
            env.push(variable.clone());
            container["env"] = json!(env);
        }
    }
    pod
}
