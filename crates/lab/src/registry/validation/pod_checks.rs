//! Checks for pods that involve more than a single field.

use serde_json::Value;

use super::field_checks::{CheckedField, is_missing};
use crate::object_fields::containers_mut;
use crate::registry::remove;
use crate::status::FieldError;
use crate::value::{list, text};

/// Checks a pod's containers against each other and against the rest of the pod.
pub(super) fn containers(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let (spec, mut names) = (field.value, Vec::new());
    for kind in ["containers", "initContainers"] {
        for (n, container) in list(&spec[kind]).iter().enumerate() {
            let path = format!("{}.{kind}[{n}]", field.path);
            let name = text(&container["name"]);
            if !name.is_empty() && names.contains(&name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), &container["name"]));
            }
            names.push(name);
            check_mounts(spec, container, &path, errors);
            check_sleep(spec, container, &path, errors);
            if kind == "initContainers" && container["restartPolicy"] != "Always" {
                forbid_parts_of_sidecars(container, &path, errors);
            }
        }
    }
}

fn check_mounts(spec: &Value, container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (n, mount) in list(&container["volumeMounts"]).iter().enumerate() {
        let is_volume = |volume: &Value| volume["name"] == mount["name"];
        if !is_missing(&mount["name"]) && !list(&spec["volumes"]).iter().any(is_volume) {
            errors.push(FieldError::not_found(format!("{path}.volumeMounts[{n}].name"), &mount["name"]));
        }
    }
}

fn check_sleep(spec: &Value, container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
    for hook in ["postStart", "preStop"] {
        let seconds = &container["lifecycle"][hook]["sleep"]["seconds"];
        if seconds.as_i64().is_some_and(|seconds| !(0..=grace).contains(&seconds)) {
            let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
            errors.push(FieldError::invalid(format!("{path}.lifecycle.{hook}.sleep"), seconds, &why));
        }
    }
}

fn forbid_parts_of_sidecars(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for part in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if container[part].is_object() {
            let why = "may not be set for init containers without restartPolicy=Always";
            errors.push(FieldError::forbidden(format!("{path}.{part}"), why));
        }
    }
}

/// Checks that a probe or hook has exactly one handler.
pub(super) fn handler(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut given = kinds.into_iter().filter(|kind| field.value[*kind].is_object());
    if given.next().is_none() {
        errors.push(FieldError::required(field.path, "must specify a handler type"));
    }
    for other in given {
        let why = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(format!("{}.{other}", field.path), why));
    }
}

/// Checks that an environment variable does not have both a value and a source.
pub(super) fn value_or_source(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if field.value["valueFrom"].is_object() && !is_missing(&field.value["value"]) {
        let why = "may not be specified when `value` is not empty";
        errors.push(FieldError::invalid(format!("{}.valueFrom", field.path), &Value::from(""), why));
    }
}

/// Checks that an update to a pod leaves immutable fields unchanged.
pub(super) fn check_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    if fixed_part(old) != fixed_part(new) {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)";
        errors.push(FieldError::forbidden("spec", why));
    }
}

fn fixed_part(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for field in ["activeDeadlineSeconds", "tolerations"] {
        remove(&mut spec, field);
    }
    containers_mut(&mut spec).for_each(|container| remove(container, "image"));
    spec
}
