//! Fields that the lab stores and does not act on: an event on the object names them, once.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::registry::{EventType, Registry};
use super::super::resource::Resource;

/// Of a pod's specification, below it or below a template.
const OF_PODS: [&str; 15] = [
    "activeDeadlineSeconds",
    "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
    "affinity.podAffinity",
    "affinity.podAntiAffinity",
    "containers.resources.limits.cpu",
    "containers.resources.limits.ephemeral-storage",
    "containers.resources.limits.memory",
    "containers.securityContext",
    "hostAliases",
    "hostNetwork",
    "priorityClassName",
    "runtimeClassName",
    "securityContext",
    "topologySpreadConstraints",
    "volumes.emptyDir.sizeLimit",
];
/// Of a Job's specification.
const OF_JOBS: [&str; 5] =
    ["backoffLimitPerIndex", "maxFailedIndexes", "podFailurePolicy", "successPolicy", "suspend"];
/// Of a Service's specification.
const OF_SERVICES: [&str; 3] = ["externalIPs", "loadBalancerSourceRanges", "trafficDistribution"];

/// Names on `object` the fields that a client has set and that nobody here acts on, unless they were there
/// `before`.
pub(super) fn record(registry: &Registry, resource: Resource, before: Option<&Value>, object: &Value) {
    let known = before.map(|before| ignored(resource, before)).unwrap_or_default();
    let given = ignored(resource, object);
    if given.is_subset(&known) {
        return;
    }
    let list = given.into_iter().collect::<Vec<_>>().join(", ");
    let message = format!("The embedded cluster stores these fields and does not act on them: {list}");
    registry.record_event(object, EventType::Normal, "FieldsIgnored", &message, "embedded-cluster");
}

/// The paths of the fields that `object` has and nobody acts on.
fn ignored(resource: Resource, object: &Value) -> BTreeSet<String> {
    let template: (&str, &[&str]) = ("spec.template.spec", &OF_PODS);
    let lists: Vec<(&str, &[&str])> = match resource {
        Resource::Pods => vec![("spec", &OF_PODS)],
        Resource::Deployments | Resource::ReplicaSets => vec![template],
        Resource::Jobs => vec![template, ("spec", &OF_JOBS)],
        Resource::Services => vec![("spec", &OF_SERVICES)],
        Resource::ClusterRoles => vec![("aggregationRule", &["clusterRoleSelectors"])],
        _ => Vec::new(),
    };
    let paths =
        lists.iter().flat_map(|(holder, fields)| fields.iter().map(move |field| format!("{holder}.{field}")));
    paths.filter(|path| is_given(object, &path.split('.').collect::<Vec<_>>())).collect()
}

/// Whether there is something at `path`, in whichever elements of the lists on the way.
fn is_given(value: &Value, path: &[&str]) -> bool {
    match (value, path) {
        (Value::Array(list), [_, ..]) => list.iter().any(|element| is_given(element, path)),
        (value, [field, rest @ ..]) => is_given(&value[*field], rest),
        (Value::Null | Value::Bool(false), []) => false,
        (Value::Array(list), []) => !list.is_empty(),
        (Value::Object(map), []) => !map.is_empty(),
        (_, []) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_ignored_is_named_by_its_path() {
        let spec = json!({
            "securityContext": {},
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1"}}},
                {"name": "b", "resources": {"limits": {"memory": "1Gi"}}},
            ],
        });
        let fields = ["containers.resources.limits.memory", "topologySpreadConstraints"];
        let below = |holder: &str| BTreeSet::from(fields.map(|field| format!("{holder}.{field}")));
        let ignored_of = |resource, spec: Value| ignored(resource, &json!({"spec": spec}));
        assert_eq!(ignored_of(Resource::Pods, spec.clone()), below("spec"));
        let template = json!({"template": {"spec": spec}});
        assert_eq!(ignored_of(Resource::Deployments, template), below("spec.template.spec"));
        let job = json!({"backoffLimitPerIndex": 1});
        assert_eq!(ignored_of(Resource::Jobs, job), BTreeSet::from(["spec.backoffLimitPerIndex".to_owned()]));
        assert_eq!(ignored_of(Resource::Services, json!({"sessionAffinity": "None"})), BTreeSet::new());
    }
}
