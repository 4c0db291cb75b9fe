//! Finds the ReplicaSet for a template, and manages revision numbers in the Deployment's history.

use serde_json::{Value, json};

use super::super::pod_template;
use crate::object_fields::{controller_reference, key};

const HASH_LABEL: &str = "pod-template-hash";
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";

/// Deployment annotations that are not copied to its ReplicaSets (`annotationsToSkip`).
const NOT_COPIED: [&str; 3] =
    ["kubectl.kubernetes.io/last-applied-configuration", REVISION, "deprecated.deployment.rollback.to"];

/// Returns an object's revision, or 0 if it has none.
pub(super) fn revision(object: &Value) -> i64 {
    let number = object["metadata"]["annotations"][REVISION].as_str();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns true if a ReplicaSet has this template, ignoring the hash label (`EqualIgnoreHash`).
pub(super) fn runs_template(replica_set: &Value, template: &Value) -> bool {
    let mut own = replica_set["spec"]["template"].clone();
    if let Some(labels) = own.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    pod_template::is_same(&own, template)
}

/// Builds the ReplicaSet for a Deployment's current template, with `size` replicas.
pub(super) fn new_replica_set(deployment: &Value, number: i64, size: i64) -> Value {
    let hash = pod_template::hash(&deployment["spec"]["template"]);
    let mut template = deployment["spec"]["template"].clone();
    template["metadata"]["labels"][HASH_LABEL] = json!(hash);
    let mut selector = deployment["spec"]["selector"].clone();
    selector["matchLabels"][HASH_LABEL] = json!(hash);
    let mut replica_set = json!({
        "metadata": {
            "name": format!("{}-{hash}", key(deployment).1),
            "labels": template["metadata"]["labels"],
            "annotations": {},
            "ownerReferences": [controller_reference(deployment)],
        },
        "spec": {
            "replicas": size,
            "minReadySeconds": deployment["spec"]["minReadySeconds"].as_i64().unwrap_or(0),
            "selector": selector,
            "template": template,
        },
    });
    annotate(&mut replica_set, deployment, number);
    replica_set
}

/// Copies the Deployment's annotations and the newest revision number to a ReplicaSet.
pub(super) fn annotate(replica_set: &mut Value, deployment: &Value, newest: i64) {
    let before = revision(replica_set);
    let annotations = &mut replica_set["metadata"]["annotations"];
    for (name, value) in deployment["metadata"]["annotations"].as_object().into_iter().flatten() {
        if !NOT_COPIED.contains(&name.as_str()) {
            annotations[name] = value.clone();
        }
    }
    if before < newest {
        annotations[REVISION] = json!(newest.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "web", "uid": "u",
                "annotations": {"kubernetes.io/change-cause": "v2", REVISION: "7"},
            },
            "spec": {
                "replicas": 4,
                "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
                "template": {
                    "metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
                    "spec": {"containers": [{"name": "a", "env": []}]},
                },
            },
        })
    }

    #[test]
    fn template_hash_ignores_omitted_defaults() {
        let deployment = deployment();
        let replica_set = new_replica_set(&deployment, 1, 0);
        let shorter =
            json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a"}]}});
        let other = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "b"}]}});
        assert!(runs_template(&replica_set, &deployment["spec"]["template"]));
        assert!(runs_template(&replica_set, &shorter));
        assert!(!runs_template(&replica_set, &other));
        assert_eq!(pod_template::hash(&shorter), pod_template::hash(&deployment["spec"]["template"]));
        assert_ne!(pod_template::hash(&shorter), pod_template::hash(&other));
    }

    #[test]
    fn reused_revision_gets_new_number() {
        let deployment = deployment();
        let mut replica_set = new_replica_set(&deployment, 1, 0);
        let annotation =
            |replica_set: &Value, name: &str| replica_set["metadata"]["annotations"][name].clone();
        assert_eq!(annotation(&replica_set, "kubernetes.io/change-cause"), "v2");
        for newest in [1, 3, 5, 4] {
            annotate(&mut replica_set, &deployment, newest);
        }
        assert_eq!(revision(&replica_set), 5);
    }
}
