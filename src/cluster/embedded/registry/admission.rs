//! What an object must look like.
//!
//! The checks are those of Kubernetes (pkg/apis/*/validation) for the fields that this cluster honours. Fields that it does not
//! honour are kept as they are.

use serde_json::{Value, json};

use super::{FieldError, Resource, Status, remove};
use crate::cluster::embedded::schema;
use crate::cluster::embedded::selector::LabelSelector;

/// Refuses what is not an object of this resource: another kind, or fields of a wrong type.
pub(super) fn check_shape(resource: Resource, object: &Value) -> Result<(), Status> {
    if !object.is_object() {
        return Err(Status::bad_request(format!("the object provided must be of type {}", resource.kind())));
    }
    let expected = [("kind", resource.kind()), ("apiVersion", resource.api_version())];
    for (field, expected) in expected {
        if let Some(found) = object[field].as_str().filter(|found| *found != expected) {
            let message =
                format!("the {field} of the object ({found}) does not match the request ({expected})");
            return Err(Status::bad_request(message));
        }
    }
    schema::check(resource, object).map_err(|error| {
        let kind = resource.kind();
        Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {error}"))
    })
}

fn elements<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Refuses an object that Kubernetes would refuse, or that asks for what this cluster cannot do.
pub(super) fn validate(
    resource: Resource,
    name: &str,
    current: Option<&Value>,
    object: &Value,
) -> Result<(), Status> {
    let mut errors = Vec::new();
    if current.is_none() && !is_dns_subdomain(name) {
        let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                   and must start and end with an alphanumeric character";
        errors.push(FieldError::invalid("metadata.name", &json!(name), why));
    }
    match resource {
        Resource::Pods => match current {
            None => validate_pod_spec(&object["spec"], "spec", &mut errors),
            Some(current) => validate_pod_update(&current["spec"], &object["spec"], &mut errors),
        },
        Resource::Services => validate_service(&object["spec"], &mut errors),
        Resource::Deployments | Resource::ReplicaSets => {
            let old_selector = current.map(|current| &current["spec"]["selector"]);
            validate_workload(&object["spec"], old_selector, &mut errors);
            if resource == Resource::Deployments {
                validate_strategy(&object["spec"]["strategy"], &mut errors);
            }
        }
        _ => {}
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(resource, name, &errors)) }
}

fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        edge(bytes.first()) && edge(bytes.last())
    };
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    name.len() <= 253 && name.chars().all(allowed) && name.split('.').all(label)
}

fn validate_workload(spec: &Value, old_selector: Option<&Value>, errors: &mut Vec<FieldError>) {
    if spec["replicas"].as_i64().is_none_or(|replicas| replicas < 0) {
        errors.push(FieldError::invalid(
            "spec.replicas",
            &spec["replicas"],
            "must be greater than or equal to 0",
        ));
    }
    let selector = LabelSelector::from_object(&spec["selector"]);
    if selector.is_empty() {
        errors.push(FieldError::required("spec.selector"));
    } else if !selector.matches(&spec["template"]["metadata"]["labels"]) {
        let labels = &spec["template"]["metadata"]["labels"];
        errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            labels,
            "`selector` does not match template `labels`",
        ));
    }
    if old_selector.is_some_and(|old| *old != spec["selector"]) {
        errors.push(FieldError::invalid("spec.selector", &spec["selector"], "field is immutable"));
    }
    let pod = &spec["template"]["spec"];
    if pod["restartPolicy"] != "Always" {
        let field = "spec.template.spec.restartPolicy";
        errors.push(FieldError::invalid(field, &pod["restartPolicy"], "supported values: \"Always\""));
    }
    validate_pod_spec(pod, "spec.template.spec", errors);
}

fn validate_strategy(strategy: &Value, errors: &mut Vec<FieldError>) {
    match strategy["type"].as_str() {
        Some("Recreate") => {
            if strategy["rollingUpdate"].is_object() {
                let why = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", why));
            }
        }
        Some("RollingUpdate") => {
            for field in ["maxSurge", "maxUnavailable"] {
                let value = &strategy["rollingUpdate"][field];
                if !is_amount(value) {
                    let path = format!("spec.strategy.rollingUpdate.{field}");
                    errors.push(FieldError::invalid(
                        path,
                        value,
                        "must be a number or a percentage, and not negative",
                    ));
                }
            }
            let zero = |field: &str| {
                let value = &strategy["rollingUpdate"][field];
                *value == json!(0) || value == "0%"
            };
            if zero("maxSurge") && zero("maxUnavailable") {
                let field = "spec.strategy.rollingUpdate.maxUnavailable";
                errors.push(FieldError::invalid(field, &json!(0), "may not be 0 when `maxSurge` is 0"));
            }
        }
        _ => {
            let why = "supported values: \"Recreate\", \"RollingUpdate\"";
            errors.push(FieldError::invalid("spec.strategy.type", &strategy["type"], why));
        }
    }
}

/// A non-negative number, or a percentage such as `25%`.
fn is_amount(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_u64().is_some(),
        Value::String(text) => text.strip_suffix('%').is_some_and(|number| number.parse::<u32>().is_ok()),
        _ => false,
    }
}

fn validate_pod_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let containers = spec["containers"].as_array().map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        errors.push(FieldError::required(format!("{path}.containers")));
    }
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    if grace < 0 {
        let field = format!("{path}.terminationGracePeriodSeconds");
        errors.push(FieldError::invalid(field, &json!(grace), "must be greater than or equal to 0"));
    }
    if !matches!(spec["restartPolicy"].as_str(), Some("Always" | "OnFailure" | "Never")) {
        let why = "supported values: \"Always\", \"OnFailure\", \"Never\"";
        errors.push(FieldError::invalid(format!("{path}.restartPolicy"), &spec["restartPolicy"], why));
    }
    let mut names = Vec::new();
    for list in ["initContainers", "containers"] {
        for (n, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let path = format!("{path}.{list}[{n}]");
            validate_container(container, &path, grace, errors);
            let name = container["name"].as_str().unwrap_or_default();
            if names.contains(&name) {
                errors.push(FieldError::invalid(
                    format!("{path}.name"),
                    &json!(name),
                    "duplicate container name",
                ));
            }
            names.push(name);
            let restart = &container["restartPolicy"];
            if !restart.is_null() && (list == "containers" || restart != "Always") {
                let why = "only init containers may set it, and only to \"Always\"";
                errors.push(FieldError::invalid(format!("{path}.restartPolicy"), restart, why));
            }
        }
    }
}

fn validate_container(container: &Value, path: &str, grace: i64, errors: &mut Vec<FieldError>) {
    for field in ["name", "image"] {
        if container[field].as_str().is_none_or(str::is_empty) {
            errors.push(FieldError::required(format!("{path}.{field}")));
        }
    }
    for (n, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
        validate_port_number(&port["containerPort"], &format!("{path}.ports[{n}].containerPort"), errors);
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        if container[probe].is_object() {
            validate_handler(
                &container[probe],
                &format!("{path}.{probe}"),
                &["exec", "httpGet", "tcpSocket", "grpc"],
                errors,
            );
        }
    }
    for hook in ["postStart", "preStop"] {
        let handler = &container["lifecycle"][hook];
        if handler.is_object() {
            let path = format!("{path}.lifecycle.{hook}");
            validate_handler(handler, &path, &["exec", "httpGet", "sleep", "tcpSocket"], errors);
            let seconds = &handler["sleep"]["seconds"];
            if seconds.as_i64().is_some_and(|seconds| seconds < 0 || seconds > grace) {
                let why = format!(
                    "must be greater than or equal to 0 and less than or equal to terminationGracePeriodSeconds ({grace})"
                );
                errors.push(FieldError::invalid(format!("{path}.sleep.seconds"), seconds, &why));
            }
        }
    }
}

fn validate_handler(handler: &Value, path: &str, kinds: &[&str], errors: &mut Vec<FieldError>) {
    let given = kinds.iter().filter(|kind| handler[**kind].is_object()).count();
    match given {
        0 => errors.push(FieldError::required(format!("{path}.{{{}}}", kinds.join(",")))),
        1 => {}
        _ => errors.push(FieldError::forbidden(path, "may not specify more than one handler type")),
    }
}

fn validate_port_number(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !port.as_i64().is_some_and(|port| (1..=65_535).contains(&port)) {
        errors.push(FieldError::invalid(path, port, "must be between 1 and 65535, inclusive"));
    }
}

fn validate_service(spec: &Value, errors: &mut Vec<FieldError>) {
    if spec["type"] == "ExternalName" {
        return;
    }
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    if ports.is_empty() && spec["clusterIP"] != "None" {
        errors.push(FieldError::required("spec.ports"));
    }
    for (n, port) in ports.iter().enumerate() {
        validate_port_number(&port["port"], &format!("spec.ports[{n}].port"), errors);
        if ports.len() > 1 && port["name"].as_str().is_none_or(str::is_empty) {
            errors.push(FieldError::required(format!("spec.ports[{n}].name")));
        }
    }
}

/// A running pod's specification is fixed, except for the images and a few marks.
fn validate_pod_update(current: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let fixed = |spec: &Value| {
        let mut spec = spec.clone();
        for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"] {
            remove(&mut spec, field);
        }
        for list in ["initContainers", "containers"] {
            elements(&mut spec, list).for_each(|container| remove(container, "image"));
        }
        spec
    };
    if fixed(current) != fixed(new) {
        let why = "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, \
                   `spec.activeDeadlineSeconds`, `spec.tolerations` and `spec.terminationGracePeriodSeconds`";
        errors.push(FieldError::forbidden("spec", why));
    }
}
