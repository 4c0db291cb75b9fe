//! What is filled in where an object says nothing.
//!
//! The values are those of Kubernetes. [`fill_defaults`] does what pkg/apis/*/v1/defaults.go do:
//! these fields belong to whoever writes the object. [`prepare`] does what the strategies in
//! pkg/registry do, and for pods the admission plugins that look at nothing else
//! (DefaultTolerationSeconds, Priority): those fields are nobody's.

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Resource, remove};
use crate::config::ApiServer;

/// How long pods stay on a node that is not ready, unless they say otherwise
/// (kube-apiserver: `--default-not-ready-toleration-seconds`).
const NOT_READY_TOLERATION_SECONDS: u32 = 300;

/// Fills in what every reader of the object fills in.
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
            default_to(object, "spec", json!({}));
            default_to(object, "status", json!({}));
            let capacity = object["status"].get("capacity").cloned();
            if let Some(capacity) = capacity {
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
            let spec = &mut object["spec"];
            default_to(spec, "replicas", 1);
            default_to(spec, "revisionHistoryLimit", 10);
            default_to(spec, "progressDeadlineSeconds", 600);
            default_to(spec, "strategy", json!({}));
            default_to(&mut spec["strategy"], "type", "RollingUpdate");
            if spec["strategy"]["type"] == "RollingUpdate" {
                default_to(&mut spec["strategy"], "rollingUpdate", json!({}));
                default_to(&mut spec["strategy"]["rollingUpdate"], "maxSurge", "25%");
                default_to(&mut spec["strategy"]["rollingUpdate"], "maxUnavailable", "25%");
            }
            default_pod_spec(&mut spec["template"]["spec"]);
            default_to(object, "status", json!({}));
        }
        Resource::ReplicaSets => {
            labels_of_template(object);
            default_to(&mut object["spec"], "replicas", 1);
            default_pod_spec(&mut object["spec"]["template"]["spec"]);
            default_to(object, "status", json!({"replicas": 0}));
        }
        Resource::Jobs => default_job(object),
        Resource::PodDisruptionBudgets => {
            let status =
                json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
            default_to(object, "status", status);
        }
        Resource::EndpointSlices => {
            for port in elements(object, "ports") {
                default_to(port, "name", "");
                default_to(port, "protocol", "TCP");
            }
        }
        Resource::Ingresses => default_to(object, "status", json!({"loadBalancer": {}})),
        Resource::IngressClasses => {
            if let Some(parameters) = object["spec"].get_mut("parameters").filter(|given| given.is_object()) {
                default_to(parameters, "scope", "Cluster");
            }
        }
        Resource::Secrets => default_secret(object),
        Resource::Events | Resource::ConfigMaps | Resource::ServiceAccounts | Resource::Leases => {}
    }
}

/// Sets `object[field]` where there is nothing (or null).
fn default_to(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null) {
        object[field] = value.into();
    }
}

fn elements<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// A workload without labels of its own takes those of its template.
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

fn default_job(job: &mut Value) {
    labels_of_template(job);
    let spec = &mut job["spec"];
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        spec["completions"] = json!(1);
    }
    default_to(spec, "parallelism", 1);
    default_to(spec, "backoffLimit", 6);
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    default_to(spec, "podReplacementPolicy", "TerminatingOrFailed");
    default_to(spec, "manualSelector", false);
    default_pod_spec(&mut spec["template"]["spec"]);
    default_to(job, "status", json!({}));
}

/// Has the Job select its own pods by its uid, and marks its template accordingly.
fn generate_job_selector(job: &mut Value) {
    let (name, uid) = (job["metadata"]["name"].clone(), job["metadata"]["uid"].clone());
    let labels = &mut job["spec"]["template"]["metadata"]["labels"];
    default_to(labels, "job-name", name.clone());
    default_to(labels, "batch.kubernetes.io/job-name", name);
    default_to(labels, "controller-uid", uid.clone());
    default_to(labels, "batch.kubernetes.io/controller-uid", uid.clone());
    default_to(&mut job["spec"]["selector"]["matchLabels"], "batch.kubernetes.io/controller-uid", uid);
}

/// A container that limits a resource asks for as much of it.
fn default_requests(spec: &mut Value) {
    for list in ["initContainers", "containers"] {
        for container in elements(spec, list) {
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (resource, limit) in limits {
                default_to(&mut container["resources"]["requests"], &resource, limit);
            }
        }
    }
}

/// Sets what the cluster itself decides of an object that is created or updated. Its name and uid
/// are known.
pub(super) fn prepare(resource: Resource, object: &mut Value, settings: &ApiServer) {
    match resource {
        Resource::Namespaces => default_to(object, "spec", json!({"finalizers": ["kubernetes"]})),
        Resource::Pods => prepare_pod(object, settings),
        Resource::Services => {
            let spec = &mut object["spec"];
            if spec["type"] != "ExternalName" {
                default_to(spec, "ipFamilies", json!(["IPv4"]));
                default_to(spec, "ipFamilyPolicy", "SingleStack");
            }
        }
        Resource::Jobs if object["spec"]["manualSelector"] == false => generate_job_selector(object),
        _ => {}
    }
}

fn prepare_pod(pod: &mut Value, settings: &ApiServer) {
    let spec = &mut pod["spec"];
    default_to(spec, "priority", 0);
    default_to(spec, "preemptionPolicy", "PreemptLowerPriority");
    spec["serviceAccount"] = spec["serviceAccountName"].clone();
    let not_ready = NOT_READY_TOLERATION_SECONDS;
    default_toleration(spec, "node.kubernetes.io/not-ready", not_ready);
    let unreachable = settings.default_unreachable_toleration_seconds;
    default_toleration(spec, "node.kubernetes.io/unreachable", unreachable);
    let quality = quality_of_service(spec);
    default_to(pod, "status", json!({"phase": "Pending"}));
    default_to(&mut pod["status"], "qosClass", quality);
}

fn default_toleration(spec: &mut Value, key: &str, seconds: u32) {
    default_to(spec, "tolerations", json!([]));
    let tolerated = |toleration: &Value| {
        let covers = |field: &str, value: &str| {
            toleration[field].as_str().is_none_or(|own| own.is_empty() || own == value)
        };
        covers("key", key) && covers("effect", "NoExecute")
    };
    if let Some(list) = spec["tolerations"].as_array_mut().filter(|list| !list.iter().any(tolerated)) {
        list.push(
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
        );
    }
}

/// How the pod would fare when memory runs short, by what its containers ask for.
fn quality_of_service(spec: &Value) -> &'static str {
    let containers =
        || ["initContainers", "containers"].iter().flat_map(|list| spec[*list].as_array()).flatten();
    let asks = |container: &Value, what: &str| {
        container["resources"][what].as_object().is_some_and(|map| !map.is_empty())
    };
    let is_guaranteed = |container: &Value| {
        let resources = &container["resources"];
        ["cpu", "memory"].iter().all(|name| {
            resources["limits"][name].is_string() && resources["limits"][name] == resources["requests"][name]
        })
    };
    if !containers().any(|container| asks(container, "requests") || asks(container, "limits")) {
        "BestEffort"
    } else if containers().all(is_guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// What a pod and the template of one have in common.
fn default_pod_spec(spec: &mut Value) {
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "terminationGracePeriodSeconds", 30);
    // A negative grace period means the shortest one.
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0) {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "schedulerName", "default-scheduler");
    default_to(spec, "securityContext", json!({}));
    for list in ["initContainers", "containers"] {
        elements(spec, list).for_each(default_container);
    }
    elements(spec, "volumes").for_each(default_volume);
}

fn default_volume(volume: &mut Value) {
    let Some(map) = volume.as_object_mut() else { return };
    if map.len() == 1 && map.contains_key("name") {
        map.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = map.get_mut(source).filter(|source| source.is_object()) {
            default_to(source, "defaultMode", 0o644);
        }
    }
    if let Some(path) = map.get_mut("hostPath").filter(|path| path.is_object()) {
        default_to(path, "type", "");
    }
    if let Some(files) = map.get_mut("downwardAPI") {
        elements(files, "items").for_each(default_field_ref);
    }
    let Some(projected) = map.get_mut("projected") else { return };
    for source in elements(projected, "sources") {
        if let Some(token) = source.get_mut("serviceAccountToken").filter(|token| token.is_object()) {
            default_to(token, "expirationSeconds", 3600);
        }
        if let Some(files) = source.get_mut("downwardAPI") {
            elements(files, "items").for_each(default_field_ref);
        }
    }
}

fn default_field_ref(file: &mut Value) {
    if let Some(field) = file.get_mut("fieldRef").filter(|field| field.is_object()) {
        default_to(field, "apiVersion", "v1");
    }
}

fn default_container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let tag =
        image.rsplit('/').next().unwrap_or_default().split_once([':', '@']).map_or("latest", |(_, tag)| tag);
    let pull_policy = if tag == "latest" { "Always" } else { "IfNotPresent" };
    default_to(container, "imagePullPolicy", pull_policy);
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    default_to(container, "resources", json!({}));
    elements(container, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
    for variable in elements(container, "env") {
        if let Some(source) = variable.get_mut("valueFrom") {
            default_field_ref(source);
        }
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) else { continue };
        default_to(probe, "timeoutSeconds", 1);
        default_to(probe, "periodSeconds", 10);
        default_to(probe, "successThreshold", 1);
        default_to(probe, "failureThreshold", 3);
        default_handler(probe);
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = container.pointer_mut(&format!("/lifecycle/{hook}")) {
            default_handler(hook);
        }
    }
}

fn default_handler(handler: &mut Value) {
    if let Some(get) = handler.get_mut("httpGet").filter(|get| get.is_object()) {
        default_to(get, "path", "/");
        default_to(get, "scheme", "HTTP");
    }
    if let Some(grpc) = handler.get_mut("grpc").filter(|grpc| grpc.is_object()) {
        default_to(grpc, "service", "");
    }
}

fn default_service(service: &mut Value) {
    let spec = &mut service["spec"];
    default_to(spec, "type", "ClusterIP");
    default_to(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "ClientIP" {
        default_to(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10_800}}));
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
