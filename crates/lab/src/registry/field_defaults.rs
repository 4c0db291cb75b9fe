//! Fills in fields that an object omits.
//!
//! The values are Kubernetes' own. `field_rules` has the defaults that depend on no other field. [`fill_defaults`]
//! corresponds to pkg/apis/*/v1/defaults.go. [`prepare`] corresponds to the strategies in pkg/registry and, for pods,
//! to the admission plugins that examine only the pod itself (DefaultTolerationSeconds, Priority).

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Resource, field_rules, remove};
use crate::object_fields::{containers, containers_mut};
use crate::schema;

/// Default time that pods remain on a node that is not ready or unreachable (kube-apiserver:
/// `--default-not-ready-toleration-seconds`). The value is stored but has no effect.
const TOLERATION_SECONDS: u32 = 300;

/// Fills in the defaults that Kubernetes applies whenever it decodes an object.
pub(super) fn fill_defaults(resource: Resource, object: &mut Value) {
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind());
    match resource {
        Resource::Namespaces => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
        }
        Resource::ReplicaSets => labels_of_template(object),
        Resource::Jobs => {
            labels_of_template(object);
            let spec = &mut object["spec"];
            if spec["completions"].is_null() && spec["parallelism"].is_null() {
                spec["completions"] = json!(1);
            }
        }
        Resource::StatefulSets => {
            for claim in elements(&mut object["spec"], "volumeClaimTemplates") {
                claim["apiVersion"] = json!(Resource::PersistentVolumeClaims.api_version());
                claim["kind"] = json!(Resource::PersistentVolumeClaims.kind());
            }
        }
        Resource::EndpointSlices => {
            elements(object, "ports").for_each(|port| default_to(port, "name", ""));
        }
        Resource::Secrets => encode_plain_data(object),
        Resource::RoleBindings | Resource::ClusterRoleBindings => default_subjects(object),
        _ => {}
    }
    field_rules::fill(schema::of(resource), object);
    match resource {
        Resource::Nodes => {
            if let Some(capacity) = object["status"].get("capacity").cloned() {
                default_to(&mut object["status"], "allocatable", capacity);
            }
        }
        Resource::Pods => {
            default_to(&mut object["spec"], "enableServiceLinks", true);
            default_requests(&mut object["spec"]);
        }
        Resource::Services => default_service(&mut object["spec"]),
        _ => {}
    }
    let pod_spec = if resource == Resource::Pods { "/spec" } else { "/spec/template/spec" };
    object.pointer_mut(pod_spec).into_iter().for_each(default_pod_spec);
}

/// Sets `object[field]` if it is missing or null.
fn default_to(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null) {
        object[field] = value.into();
    }
}

/// Sets fields that are missing or null, at any depth.
fn fill(object: &mut Value, defaults: Value) {
    if object.is_null() {
        *object = defaults;
    } else if let (Value::Object(map), Value::Object(defaults)) = (object, defaults) {
        for (field, default) in defaults {
            fill(map.entry(field).or_insert(Value::Null), default);
        }
    }
}

fn elements<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Copies the template's labels to a workload that has no labels of its own.
fn labels_of_template(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    if labels.is_object() {
        default_to(&mut object["metadata"], "labels", labels);
    }
}

/// Encodes `stringData` and moves it into `data`, as the API server does.
fn encode_plain_data(secret: &mut Value) {
    let plain = secret["stringData"].as_object().cloned().unwrap_or_default();
    for (key, value) in plain {
        let text = value.as_str().unwrap_or_default();
        secret["data"][&key] = json!(base64::engine::general_purpose::STANDARD.encode(text));
    }
    remove(secret, "stringData");
}

/// Fills in the API groups of a binding's subjects: the RBAC group for users and groups, and none for service accounts.
fn default_subjects(binding: &mut Value) {
    for subject in elements(binding, "subjects") {
        if matches!(subject["kind"].as_str(), Some("User" | "Group")) {
            default_to(subject, "apiGroup", Resource::Roles.group());
        }
    }
}

/// Binds a claim to its own volume, as a storage provisioner would.
fn bind_claim(claim: &mut Value) {
    let (spec, uid) = (&claim["spec"], claim["metadata"]["uid"].as_str().unwrap_or_default());
    let status = json!({
        "phase": "Bound",
        "accessModes": spec["accessModes"],
        "capacity": spec["resources"]["requests"],
    });
    let volume = format!("pvc-{uid}");
    default_to(&mut claim["spec"], "volumeName", volume);
    claim["status"] = status;
}

/// Makes a Job select its own pods by the Job's uid, and labels the pod template accordingly.
fn generate_job_selector(job: &mut Value) {
    let (name, uid) = (job["metadata"]["name"].clone(), job["metadata"]["uid"].clone());
    let labels = json!({
        "job-name": name,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "batch.kubernetes.io/controller-uid": uid,
    });
    let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
    fill(&mut job["spec"], json!({"selector": selector, "template": {"metadata": {"labels": labels}}}));
}

/// Sets missing resource requests to the container's limits.
fn default_requests(spec: &mut Value) {
    for container in containers_mut(spec) {
        let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
        for (resource, limit) in limits {
            default_to(&mut container["resources"]["requests"], &resource, limit);
        }
    }
}

/// Sets the fields that the cluster itself determines in a created or updated object. The object must already have a
/// name and a uid.
pub(super) fn prepare(resource: Resource, object: &mut Value) {
    match resource {
        Resource::Pods => prepare_pod(object),
        Resource::PersistentVolumeClaims => bind_claim(object),
        Resource::Jobs if object["spec"]["manualSelector"] == false => generate_job_selector(object),
        _ => {}
    }
}

fn prepare_pod(pod: &mut Value) {
    let spec = &mut pod["spec"];
    fill(spec, json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}));
    spec["serviceAccount"] = spec["serviceAccountName"].clone();
    for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        default_toleration(spec, taint);
    }
    let quality = quality_of_service(spec);
    default_to(pod, "status", json!({"phase": "Pending"}));
    default_to(&mut pod["status"], "qosClass", quality);
}

fn default_toleration(spec: &mut Value, key: &str) {
    default_to(spec, "tolerations", json!([]));
    let tolerated = |toleration: &Value| {
        let covers = |field: &str, value: &str| {
            toleration[field].as_str().is_none_or(|own| own.is_empty() || own == value)
        };
        covers("key", key) && covers("effect", "NoExecute")
    };
    if let Some(list) = spec["tolerations"].as_array_mut().filter(|list| !list.iter().any(tolerated)) {
        list.push(
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}),
        );
    }
}

/// Returns the pod's QoS class, which depends on its containers' requests and limits.
fn quality_of_service(spec: &Value) -> &'static str {
    let asks = |container: &Value, what: &str| {
        container["resources"][what].as_object().is_some_and(|map| !map.is_empty())
    };
    let is_guaranteed = |container: &Value| {
        let resources = &container["resources"];
        ["cpu", "memory"].iter().all(|name| {
            resources["limits"][name].is_string() && resources["limits"][name] == resources["requests"][name]
        })
    };
    if !containers(spec).any(|container| asks(container, "requests") || asks(container, "limits")) {
        "BestEffort"
    } else if containers(spec).all(is_guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Fills in the defaults in a pod spec that depend on other fields.
fn default_pod_spec(spec: &mut Value) {
    // A negative grace period means one second, the minimum.
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0) {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    for container in containers_mut(spec) {
        let image = container["image"].as_str().unwrap_or_default();
        let name = image.rsplit('/').next().unwrap_or_default();
        let tag = name.split_once([':', '@']).map_or("latest", |(_, tag)| tag);
        default_to(container, "imagePullPolicy", if tag == "latest" { "Always" } else { "IfNotPresent" });
    }
    for volume in elements(spec, "volumes") {
        if volume.as_object().is_some_and(|map| map.len() == 1 && map.contains_key("name")) {
            volume["emptyDir"] = json!({});
        }
    }
}

fn default_service(spec: &mut Value) {
    if spec["sessionAffinity"] == "None" {
        remove(spec, "sessionAffinityConfig");
    }
    for port in elements(spec, "ports") {
        let number = port["port"].clone();
        default_to(port, "targetPort", number);
    }
}
