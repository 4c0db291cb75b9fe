//! Fills in fields that an object leaves out.
//!
//! The values are those of Kubernetes. [`fill_defaults`] does what pkg/apis/*/v1/defaults.go do: whoever writes the
//! object owns these fields. [`prepare`] does what the strategies in pkg/registry do, and for pods the admission
//! plugins that look at nothing else (DefaultTolerationSeconds, Priority): nobody owns those fields.

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Resource, remove};
use crate::object::{containers, containers_mut};

/// Time for which pods stay on a node that is not ready or cannot be reached, unless they set another
/// (kube-apiserver: `--default-not-ready-toleration-seconds`). It is stored, and nobody acts on it.
const TOLERATION_SECONDS: u32 = 300;

/// Fills in the defaults that every reader of the object fills in.
pub(super) fn fill_defaults(resource: Resource, object: &mut Value) {
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind());
    match resource {
        Resource::Namespaces => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            default_to(object, "status", json!({"phase": "Active"}));
        }
        Resource::Nodes => {
            fill(object, json!({"spec": {}, "status": {}}));
            if let Some(capacity) = object["status"].get("capacity").cloned() {
                default_to(&mut object["status"], "allocatable", capacity);
            }
        }
        Resource::Pods => {
            default_pod_spec(&mut object["spec"]);
            default_to(&mut object["spec"], "enableServiceLinks", true);
            default_requests(&mut object["spec"]);
        }
        Resource::Services => default_service(object),
        Resource::Endpoints => {
            for subset in elements(object, "subsets") {
                elements(subset, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
            }
        }
        Resource::Deployments => {
            let spec = json!({
                "replicas": 1,
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate"},
            });
            fill(object, json!({"spec": spec, "status": {}}));
            let strategy = &mut object["spec"]["strategy"];
            if strategy["type"] == "RollingUpdate" {
                fill(strategy, json!({"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}));
            }
            default_pod_spec(&mut object["spec"]["template"]["spec"]);
        }
        Resource::ReplicaSets => {
            labels_of_template(object);
            fill(object, json!({"spec": {"replicas": 1}}));
            default_to(object, "status", json!({"replicas": 0}));
            default_pod_spec(&mut object["spec"]["template"]["spec"]);
        }
        Resource::StatefulSets => default_stateful_set(object),
        Resource::DaemonSets => default_daemon_set(object),
        Resource::PersistentVolumeClaims => default_claim(object),
        Resource::Jobs => default_job(object),
        Resource::PodDisruptionBudgets => {
            let status =
                json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
            default_to(object, "status", status);
        }
        Resource::EndpointSlices => {
            elements(object, "ports").for_each(|port| fill(port, json!({"name": "", "protocol": "TCP"})));
        }
        Resource::Ingresses => default_to(object, "status", json!({"loadBalancer": {}})),
        Resource::IngressClasses => fill_part(&mut object["spec"], "parameters", json!({"scope": "Cluster"})),
        Resource::Secrets => default_secret(object),
        Resource::RoleBindings | Resource::ClusterRoleBindings => default_binding(object),
        Resource::Events
        | Resource::ConfigMaps
        | Resource::ControllerRevisions
        | Resource::ServiceAccounts
        | Resource::Leases
        | Resource::Roles
        | Resource::ClusterRoles => {}
    }
}

/// Sets `object[field]` if it is missing or null.
fn default_to(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null) {
        object[field] = value.into();
    }
}

/// Sets fields that an object lacks, or has as null, at any depth.
fn fill(object: &mut Value, defaults: Value) {
    if object.is_null() {
        *object = defaults;
    } else if let (Value::Object(map), Value::Object(defaults)) = (object, defaults) {
        for (field, default) in defaults {
            fill(map.entry(field).or_insert(Value::Null), default);
        }
    }
}

/// Fills in a part of an object, if the object has it.
fn fill_part(object: &mut Value, part: &str, defaults: Value) {
    if let Some(part) = object.get_mut(part).filter(|part| part.is_object()) {
        fill(part, defaults);
    }
}

fn elements<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Copies the labels of its template to a workload without labels of its own.
fn labels_of_template(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    if labels.is_object() {
        default_to(&mut object["metadata"], "labels", labels);
    }
}

/// Moves `stringData` into `data`, as the API server does.
fn default_secret(secret: &mut Value) {
    default_to(secret, "type", "Opaque");
    let plain = secret["stringData"].as_object().cloned().unwrap_or_default();
    for (key, value) in plain {
        let text = value.as_str().unwrap_or_default();
        secret["data"][&key] = json!(base64::engine::general_purpose::STANDARD.encode(text));
    }
    remove(secret, "stringData");
}

/// Completes a binding's subjects: users and groups are of the API group of roles, service accounts of none.
fn default_binding(binding: &mut Value) {
    let group = Resource::Roles.group();
    fill_part(binding, "roleRef", json!({"apiGroup": group}));
    for subject in elements(binding, "subjects") {
        if matches!(subject["kind"].as_str(), Some("User" | "Group")) {
            default_to(subject, "apiGroup", group);
        }
    }
}

fn default_stateful_set(set: &mut Value) {
    let spec = json!({
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "updateStrategy": {"type": "RollingUpdate"},
    });
    fill(set, json!({"spec": spec}));
    default_to(set, "status", json!({"replicas": 0, "availableReplicas": 0}));
    let strategy = &mut set["spec"]["updateStrategy"];
    if strategy["type"] == "RollingUpdate" {
        fill(strategy, json!({"rollingUpdate": {"partition": 0, "maxUnavailable": 1}}));
    }
    for claim in elements(&mut set["spec"], "volumeClaimTemplates") {
        claim["apiVersion"] = json!(Resource::PersistentVolumeClaims.api_version());
        claim["kind"] = json!(Resource::PersistentVolumeClaims.kind());
        default_claim(claim);
    }
    default_pod_spec(&mut set["spec"]["template"]["spec"]);
}

fn default_daemon_set(set: &mut Value) {
    fill(set, json!({"spec": {"revisionHistoryLimit": 10, "updateStrategy": {"type": "RollingUpdate"}}}));
    let strategy = &mut set["spec"]["updateStrategy"];
    if strategy["type"] == "RollingUpdate" {
        fill(strategy, json!({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}));
    }
    let counts = json!({
        "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
    });
    default_to(set, "status", counts);
    default_pod_spec(&mut set["spec"]["template"]["spec"]);
}

fn default_claim(claim: &mut Value) {
    default_to(&mut claim["spec"], "volumeMode", "Filesystem");
    default_to(claim, "status", json!({"phase": "Pending"}));
}

/// Binds a claim to a volume of its own, as a storage provisioner would.
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

fn default_job(job: &mut Value) {
    labels_of_template(job);
    let spec = &mut job["spec"];
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        spec["completions"] = json!(1);
    }
    let defaults = json!({
        "parallelism": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": false,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": false,
    });
    fill(spec, defaults);
    default_pod_spec(&mut spec["template"]["spec"]);
    default_to(job, "status", json!({}));
}

/// Makes the Job select its own pods by its uid, and marks its template accordingly.
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

/// Makes a container request as much of a resource as it limits.
fn default_requests(spec: &mut Value) {
    for container in containers_mut(spec) {
        let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
        for (resource, limit) in limits {
            default_to(&mut container["resources"]["requests"], &resource, limit);
        }
    }
}

/// Sets the fields of a created or updated object that the cluster itself decides. Its name and uid are known.
pub(super) fn prepare(resource: Resource, object: &mut Value) {
    match resource {
        Resource::Namespaces => default_to(object, "spec", json!({"finalizers": ["kubernetes"]})),
        Resource::Pods => prepare_pod(object),
        Resource::Services => {
            let spec = &mut object["spec"];
            if spec["type"] != "ExternalName" {
                fill(spec, json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}));
            }
        }
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

/// Returns the pod's class when memory runs short, by its containers' requests and limits.
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

/// Fills in defaults that a pod and a pod template share.
fn default_pod_spec(spec: &mut Value) {
    let defaults = json!({
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
    });
    fill(spec, defaults);
    // A negative grace period means the shortest one.
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0) {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    containers_mut(spec).for_each(default_container);
    elements(spec, "volumes").for_each(default_volume);
}

fn default_volume(volume: &mut Value) {
    if volume.as_object().is_some_and(|map| map.len() == 1 && map.contains_key("name")) {
        volume["emptyDir"] = json!({});
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        fill_part(volume, source, json!({"defaultMode": 0o644}));
    }
    fill_part(volume, "hostPath", json!({"type": ""}));
    default_downward_files(volume);
    for source in volume.get_mut("projected").into_iter().flat_map(|projected| elements(projected, "sources"))
    {
        fill_part(source, "serviceAccountToken", json!({"expirationSeconds": 3600}));
        default_downward_files(source);
    }
}

fn default_downward_files(source: &mut Value) {
    for file in source.get_mut("downwardAPI").into_iter().flat_map(|files| elements(files, "items")) {
        fill_part(file, "fieldRef", json!({"apiVersion": "v1"}));
    }
}

fn default_container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let tag =
        image.rsplit('/').next().unwrap_or_default().split_once([':', '@']).map_or("latest", |(_, tag)| tag);
    let defaults = json!({
        "imagePullPolicy": if tag == "latest" { "Always" } else { "IfNotPresent" },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": {},
    });
    fill(container, defaults);
    elements(container, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
    for variable in elements(container, "env") {
        if let Some(source) = variable.get_mut("valueFrom") {
            fill_part(source, "fieldRef", json!({"apiVersion": "v1"}));
        }
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let times =
            json!({"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
        fill_part(container, probe, times);
        container.get_mut(probe).into_iter().for_each(default_handler);
    }
    for hook in ["postStart", "preStop"] {
        container.pointer_mut(&format!("/lifecycle/{hook}")).into_iter().for_each(default_handler);
    }
}

fn default_handler(handler: &mut Value) {
    fill_part(handler, "httpGet", json!({"path": "/", "scheme": "HTTP"}));
    fill_part(handler, "grpc", json!({"service": ""}));
}

fn default_service(service: &mut Value) {
    let spec = &mut service["spec"];
    fill(spec, json!({"type": "ClusterIP", "sessionAffinity": "None"}));
    if spec["sessionAffinity"] == "ClientIP" {
        fill(spec, json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10_800}}}));
    } else if spec["sessionAffinity"] == "None" {
        remove(spec, "sessionAffinityConfig");
    }
    let kind = spec["type"].as_str().unwrap_or_default().to_owned();
    if kind != "ExternalName" {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        default_to(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
    }
    for port in elements(spec, "ports") {
        default_to(port, "protocol", "TCP");
        let number = port["port"].clone();
        default_to(port, "targetPort", number);
    }
    default_to(service, "status", json!({"loadBalancer": {}}));
}
