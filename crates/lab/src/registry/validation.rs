//! Refuses objects that Kubernetes would refuse, field by field.
//!
//! Checks, paths and messages are those of pkg/apis/*/validation for the fields that this cluster honours and people
//! get wrong. Fields that it does not honour are kept unchanged.

mod container;
mod errors;
mod metadata;
mod pod;
mod rbac;
mod service;
mod workload;

use serde_json::{Value, json};

use super::Resource;
use crate::schema::{self, Structure};
use crate::status::Status;
use errors::Errors;

/// Refuses an object that is not of this resource: another kind, or fields of a wrong type.
pub(super) fn check_shape(resource: Resource, object: &Value) -> Result<(), Status> {
    check_shape_of(schema::of(resource), resource.api_version(), object)
}

/// Refuses an object of another kind than `top`, or with fields of the wrong type.
///
/// # Errors
///
/// 400, in the words of a real server if it is about a type.
pub(crate) fn check_shape_of(top: &Structure, api_version: &str, object: &Value) -> Result<(), Status> {
    let kind = top.name;
    if !object.is_object() {
        return Err(Status::bad_request(format!("the object provided must be of type {kind}")));
    }
    for (field, expected) in [("kind", kind), ("apiVersion", api_version)] {
        if let Some(found) = object[field].as_str().filter(|found| *found != expected) {
            let message =
                format!("the {field} of the object ({found}) does not match the request ({expected})");
            return Err(Status::bad_request(message));
        }
    }
    schema::check(top, object).map_err(|error| {
        Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {error}"))
    })
}

/// Refuses an object whose fields are wrong, or a change that is not allowed.
pub(super) fn validate(
    resource: Resource,
    name: &str,
    current: Option<&Value>,
    object: &Value,
) -> Result<(), Status> {
    let mut errors = Errors::default();
    metadata::validate(resource, current, object, &mut errors);
    let (spec, old) = (&object["spec"], current.map(|current| &current["spec"]));
    match resource {
        Resource::Pods => match old {
            None => pod::validate_spec(spec, "spec", &mut errors),
            Some(old) => pod::validate_update(old, spec, &mut errors),
        },
        Resource::Services => service::validate(spec, old, &mut errors),
        Resource::Deployments => workload::validate_deployment(spec, old, &mut errors),
        Resource::ReplicaSets => workload::validate_replica_set(spec, old, &mut errors),
        Resource::StatefulSets => workload::validate_stateful_set(spec, old, &mut errors),
        Resource::DaemonSets => workload::validate_daemon_set(spec, old, &mut errors),
        Resource::PersistentVolumeClaims => workload::validate_claim(spec, &mut errors),
        Resource::Jobs => workload::validate_job(spec, old, &mut errors),
        Resource::PodDisruptionBudgets => workload::validate_budget(spec, &mut errors),
        Resource::ConfigMaps | Resource::Secrets => validate_data(object, &mut errors),
        Resource::RoleBindings | Resource::ClusterRoleBindings => {
            rbac::validate_binding(resource, object, current, &mut errors);
        }
        _ => {}
    }
    if errors.list.is_empty() { Ok(()) } else { Err(Status::invalid(resource, name, &errors.list)) }
}

fn validate_data(object: &Value, errors: &mut Errors) {
    const MAX_BYTES: usize = 1024 * 1024;
    let mut total = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            total += value.as_str().map_or(0, str::len);
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if key.is_empty() || key.len() > 253 || !key.chars().all(allowed) || key == "." || key == ".." {
                let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
                           'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                errors.invalid(&format!("{field}[{key}]"), &json!(key), why);
            }
        }
    }
    if total > MAX_BYTES {
        errors.too_long("data", &format!("may not be more than {MAX_BYTES} bytes"));
    }
}
