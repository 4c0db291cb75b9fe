//! Pods and the templates of pods.

use std::collections::BTreeMap;

use serde_json::Value;

use super::container::{self, Place};
use super::metadata::check_label;
use super::{Errors, elements};
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
    if spec["activeDeadlineSeconds"]
        .as_i64()
        .is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds))
    {
        let field = format!("{path}.activeDeadlineSeconds");
        errors.invalid(&field, &spec["activeDeadlineSeconds"], "must be between 1 and 2147483647, inclusive");
    }
    let policies = ["Always", "Never", "OnFailure"];
    errors.check_one_of(&spec["restartPolicy"], &format!("{path}.restartPolicy"), &policies);
    let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    errors.check_one_of(&spec["dnsPolicy"], &format!("{path}.dnsPolicy"), &policies);
}

/// Checks the volumes, and answers their names.
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
        let sources = volume.as_object().into_iter().flatten().filter(|(key, _)| *key != "name");
        for (source, _) in sources.skip(1) {
            errors.forbidden(&format!("{path}.{source}"), "may not specify more than 1 volume type");
        }
        for (source, field) in [("secret", "secretName"), ("configMap", "name")] {
            if volume[source].is_object() && super::is_blank(&volume[source][field]) {
                errors.required(&format!("{path}.{source}.{field}"), "");
            }
        }
    }
    volumes
}

/// A pod's specification is fixed, except for the images and a few marks.
pub(super) fn validate_update(old: &Value, new: &Value, errors: &mut Errors) {
    for list in ["containers", "initContainers"] {
        for (n, one) in elements(new, list) {
            if super::is_blank(&one["image"]) {
                errors.required(&format!("spec.{list}[{n}].image"), "");
            }
        }
    }
    let lists = ["containers", "initContainers"];
    if lists.iter().any(|list| elements(old, list).count() != elements(new, list).count()) {
        errors.forbidden("spec.containers", "pod updates may not add or remove containers");
        return;
    }
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
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            remove(container, "image");
        }
    }
    spec
}
