//! Pods and the templates of pods.

use std::collections::BTreeMap;

use serde_json::Value;

use super::container::{self, Place};
use super::errors::{Errors, elements};
use super::metadata::check_label;
use crate::object::containers_mut;
use crate::registry::remove;

pub(super) fn validate_spec(spec: &Value, path: &str, errors: &mut Errors) {
    let volumes = validate_volumes(spec, path, errors);
    let mut names: Vec<&str> = Vec::new();
    if elements(spec, "containers").next().is_none() {
        errors.required(&format!("{path}.containers"), "");
    }
    for list in ["containers", "initContainers"] {
        for (n, one) in elements(spec, list) {
            let path = format!("{path}.{list}[{n}]");
            let place = Place { pod: spec, volumes: &volumes, is_init: list == "initContainers" };
            container::validate(one, &path, &place, errors);
            let name = one["name"].as_str().unwrap_or_default();
            if !name.is_empty() && names.contains(&name) {
                errors.duplicate(&format!("{path}.name"), &one["name"]);
            }
            names.push(name);
        }
    }
    errors.check_not_negative(spec, path, "terminationGracePeriodSeconds");
    let policies = ["Always", "Never", "OnFailure"];
    errors.check_one_of(&spec["restartPolicy"], &format!("{path}.restartPolicy"), &policies);
    let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    errors.check_one_of(&spec["dnsPolicy"], &format!("{path}.dnsPolicy"), &policies);
}

/// Checks the volumes, and returns them by name.
fn validate_volumes(spec: &Value, path: &str, errors: &mut Errors) -> BTreeMap<String, Value> {
    let mut volumes = BTreeMap::new();
    for (n, volume) in elements(spec, "volumes") {
        let path = format!("{path}.volumes[{n}]");
        let name = volume["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.required(&format!("{path}.name"), "");
        } else {
            check_label(name, &format!("{path}.name"), errors);
        }
        if volumes.insert(name.to_owned(), volume.clone()).is_some() {
            errors.duplicate(&format!("{path}.name"), &volume["name"]);
        }
    }
    volumes
}

/// Checks that an update changes nothing in a pod's specification, except for the images and a few marks.
pub(super) fn validate_update(old: &Value, new: &Value, errors: &mut Errors) {
    if fixed_part(old) != fixed_part(new) {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)";
        errors.forbidden("spec", why);
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
