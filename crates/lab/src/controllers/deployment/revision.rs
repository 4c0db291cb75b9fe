//! Which ReplicaSet belongs to a template, and its number in the Deployment's history.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::super::{controller_reference, key};
use super::sizes::Limits;
use super::{HASH_LABEL, replicas};
use crate::registry::in_name_characters;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations of a Deployment that its ReplicaSets do not take over (`annotationsToSkip`).
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

/// How much of the history a ReplicaSet remembers (`maxRevHistoryLengthInChars`).
const MAX_HISTORY_CHARACTERS: usize = 2000;

/// An object's revision; 0 when it has none.
pub(super) fn revision(object: &Value) -> i64 {
    number(object, REVISION).unwrap_or(0)
}

/// How many pods were wanted when this ReplicaSet was last scaled.
pub(super) fn desired_replicas(replica_set: &Value) -> Option<i64> {
    number(replica_set, DESIRED_REPLICAS)
}

/// How many pods were allowed when this ReplicaSet was last scaled.
pub(super) fn max_replicas(replica_set: &Value) -> Option<i64> {
    number(replica_set, MAX_REPLICAS)
}

fn number(object: &Value, annotation: &str) -> Option<i64> {
    object["metadata"]["annotations"][annotation].as_str()?.parse().ok()
}

/// Whether a ReplicaSet runs this template, its own label aside (`EqualIgnoreHash`).
pub(super) fn runs_template(replica_set: &Value, template: &Value) -> bool {
    let mut own = replica_set["spec"]["template"].clone();
    if let Some(labels) = own.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    significant(&own) == significant(template)
}

/// A template without what says nothing: nulls, empty lists, and a creation time, which clients
/// write as null or as the template of an older object had it.
fn significant(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, value)| {
                let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                !empty && *key != "creationTimestamp"
            });
            Value::Object(kept.map(|(key, value)| (key.clone(), significant(value))).collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(significant).collect()),
        other => other.clone(),
    }
}

/// A short name for a pod template: equal templates have equal ones, whatever order their fields
/// were written in (`serde_json` sorts them). `collisions` makes another one, should the name have
/// been taken.
pub(super) fn template_hash(template: &Value, collisions: i64) -> String {
    let mut hasher = DefaultHasher::new();
    significant(template).to_string().hash(&mut hasher);
    if collisions > 0 {
        collisions.hash(&mut hasher);
    }
    in_name_characters(hasher.finish(), 10)
}

/// The ReplicaSet for a Deployment's present template, of this size.
pub(super) fn new_replica_set(deployment: &Value, number: i64, size: i64) -> Value {
    let collisions = deployment["status"]["collisionCount"].as_i64().unwrap_or(0);
    let hash = template_hash(&deployment["spec"]["template"], collisions);
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
    note_sizes(&mut replica_set, deployment);
    replica_set
}

/// Takes over the Deployment's annotations and the newest revision number; an older number goes to
/// the history (`SetNewReplicaSetAnnotations`).
pub(super) fn annotate(replica_set: &mut Value, deployment: &Value, newest: i64) {
    let before = number(replica_set, REVISION);
    let annotations = &mut replica_set["metadata"]["annotations"];
    for (name, value) in deployment["metadata"]["annotations"].as_object().into_iter().flatten() {
        if !NOT_COPIED.contains(&name.as_str()) {
            annotations[name] = value.clone();
        }
    }
    if before.unwrap_or(0) >= newest {
        return;
    }
    annotations[REVISION] = json!(newest.to_string());
    if let Some(before) = before {
        let mut history: Vec<_> =
            annotations[REVISION_HISTORY].as_str().unwrap_or_default().split(',').collect();
        history.retain(|entry| !entry.is_empty());
        let before = before.to_string();
        history.push(&before);
        let length = |history: &[&str]| history.iter().map(|entry| entry.len() + 1).sum::<usize>();
        let forget =
            (0..history.len()).find(|&start| length(&history[start..]) <= MAX_HISTORY_CHARACTERS + 1);
        annotations[REVISION_HISTORY] = json!(history[forget.unwrap_or(0)..].join(","));
    }
}

/// Notes on a ReplicaSet how many pods are wanted and allowed, by which a later scaling is
/// recognised (`SetReplicasAnnotations`).
pub(super) fn note_sizes(replica_set: &mut Value, deployment: &Value) {
    let wanted = replicas(deployment);
    let most = wanted + Limits::of(deployment).max_surge;
    let annotations = &mut replica_set["metadata"]["annotations"];
    annotations[DESIRED_REPLICAS] = json!(wanted.to_string());
    annotations[MAX_REPLICAS] = json!(most.to_string());
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
    fn equal_templates_have_equal_names_however_they_are_written() {
        let deployment = deployment();
        let replica_set = new_replica_set(&deployment, 1, 0);
        let shorter =
            json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a"}]}});
        let other = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "b"}]}});
        assert!(runs_template(&replica_set, &deployment["spec"]["template"]));
        assert!(runs_template(&replica_set, &shorter));
        assert!(!runs_template(&replica_set, &other));
        assert_eq!(template_hash(&shorter, 0), template_hash(&deployment["spec"]["template"], 0));
        assert_ne!(template_hash(&shorter, 0), template_hash(&shorter, 1));
        assert_ne!(template_hash(&shorter, 0), template_hash(&other, 0));
    }

    #[test]
    fn a_revision_that_returns_is_numbered_anew_and_remembers() {
        let deployment = deployment();
        let mut replica_set = new_replica_set(&deployment, 1, 0);
        let annotation =
            |replica_set: &Value, name: &str| replica_set["metadata"]["annotations"][name].clone();
        assert_eq!(annotation(&replica_set, "kubernetes.io/change-cause"), "v2");
        assert_eq!(annotation(&replica_set, DESIRED_REPLICAS), "4");
        assert_eq!(annotation(&replica_set, MAX_REPLICAS), "5");
        for newest in [1, 3, 5, 4] {
            annotate(&mut replica_set, &deployment, newest);
        }
        assert_eq!(revision(&replica_set), 5);
        assert_eq!(annotation(&replica_set, REVISION_HISTORY), "1,3");
        for newest in 1000..2000 {
            annotate(&mut replica_set, &deployment, newest);
        }
        let history = annotation(&replica_set, REVISION_HISTORY);
        let history = history.as_str().unwrap();
        assert!(history.len() <= MAX_HISTORY_CHARACTERS && history.ends_with(",1997,1998"), "{history}");
    }
}
