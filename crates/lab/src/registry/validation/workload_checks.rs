//! Checks for workloads, Services, claims and budgets that involve more than a single field. Each check covers a whole
//! `spec` or strategy.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::field_checks::{CheckedField, is_missing, is_zero};
use crate::selector::LabelSelector;
use crate::status::FieldError;
use crate::value::{list, number, text};

/// Checks that the selector matches the template's labels and, if the argument names the workload's kind, is not empty.
pub(super) fn selects_template(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let selector = &field.value["selector"];
    if !selector.is_object() {
        return;
    }
    let (what, parsed) = (field.arguments, LabelSelector::from_object(selector));
    if !what.is_empty() && parsed.is_empty() {
        let why = format!("empty selector is invalid for {what}");
        errors.push(FieldError::invalid("spec.selector", selector, &why));
    }
    let labels = &field.value["template"]["metadata"]["labels"];
    if !parsed.matches(labels) {
        let labels = if labels.is_null() { &json!({}) } else { labels };
        let why = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels, why));
    }
}

/// Checks the restart policy of workloads whose pods never complete.
pub(super) fn always_restarts(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let policy = &field.value["template"]["spec"]["restartPolicy"];
    if policy != "Always" {
        errors.push(FieldError::unsupported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
}

pub(super) fn job_restarts(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if field.value["template"]["spec"]["restartPolicy"] == "Always" {
        let why = "valid values: \"OnFailure\", \"Never\"";
        errors.push(FieldError::required("spec.template.spec.restartPolicy", why));
    }
}

pub(super) fn completions(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let (spec, completions) = (field.value, &field.value["completions"]);
    let is_indexed = spec["completionMode"] == "Indexed";
    if is_indexed && completions.is_null() {
        errors.push(FieldError::required("spec.completions", "when completion mode is Indexed"));
    }
    // An Indexed Job may change its completions together with its parallelism.
    let is_elastic = is_indexed && *completions == spec["parallelism"];
    if field.old.is_some_and(|old| old["completions"] != *completions) && !is_elastic {
        errors.push(FieldError::invalid("spec.completions", completions, "field is immutable"));
    }
}

pub(super) fn deadline(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let deadline = &field.value["progressDeadlineSeconds"];
    if deadline.as_i64().is_some_and(|deadline| deadline <= number(&field.value["minReadySeconds"])) {
        let why = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid("spec.progressDeadlineSeconds", deadline, why));
    }
}

/// Checks that only the rolling-update strategy has rolling-update settings.
pub(super) fn no_rolling_update(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let (path, rolling) = (format!("{}.rollingUpdate", field.path), &field.value["rollingUpdate"]);
    match text(&field.value["type"]) {
        "Recreate" if rolling.is_object() => {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(path, why));
        }
        "OnDelete" if rolling.is_object() => {
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid(path, rolling, why));
        }
        _ => {}
    }
}

pub(super) fn not_both_zero(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let unavailable = &field.value["maxUnavailable"];
    if is_zero(unavailable) && is_zero(&field.value["maxSurge"]) {
        let why = "may not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid(format!("{}.maxUnavailable", field.path), unavailable, why));
    }
}

pub(super) fn surge_or_unavailable(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let (path, surge) = (|name: &str| format!("{}.{name}", field.path), &field.value["maxSurge"]);
    match (is_zero(&field.value["maxUnavailable"]), is_zero(surge)) {
        (false, false) => {
            let why = "may not be set when maxUnavailable is non-zero";
            errors.push(FieldError::invalid(path("maxSurge"), surge, why));
        }
        (true, true) => {
            errors.push(FieldError::required(path("maxUnavailable"), "cannot be 0 when maxSurge is 0"));
        }
        _ => {}
    }
}

/// Checks that an update to a StatefulSet changes no fields other than those listed in the arguments.
pub(super) fn keeps_all_but(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let changeable: Vec<_> = field.arguments.split(' ').collect();
    let fixed = |spec: &Value| {
        let mut spec = spec.as_object().cloned().unwrap_or_default();
        spec.retain(|name, _| !changeable.contains(&name.as_str()));
        spec
    };
    if field.old.is_some_and(|old| fixed(old) != fixed(field.value)) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                   'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                   'minReadySeconds' are forbidden";
        errors.push(FieldError::forbidden(field.path, why));
    }
}

pub(super) fn storage(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if field.value["resources"]["requests"]["storage"].is_null() {
        errors.push(FieldError::required(format!("{}.resources[storage]", field.path), ""));
    }
}

pub(super) fn one_limit(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if ["minAvailable", "maxUnavailable"].iter().all(|limit| !field.value[limit].is_null()) {
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid(field.path, field.value, why));
    }
}

pub(super) fn service(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let (spec, ports) = (field.value, list(&field.value["ports"]));
    let is_external = spec["type"] == "ExternalName";
    if ports.is_empty() && !is_external && spec["clusterIP"] != "None" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    if is_external && is_missing(&spec["externalName"]) {
        errors.push(FieldError::required("spec.externalName", ""));
    }
    let mut numbers = BTreeSet::new();
    for (n, port) in ports.iter().enumerate() {
        if ports.len() > 1 && is_missing(&port["name"]) {
            errors.push(FieldError::required(format!("spec.ports[{n}].name"), ""));
        }
        if !numbers.insert((text(&port["protocol"]), port["port"].as_i64())) {
            errors.push(FieldError::duplicate(format!("spec.ports[{n}]"), port));
        }
    }
    let address = &spec["clusterIP"];
    let has_another = |old: &Value| {
        old["type"] != "ExternalName" && !is_missing(&old["clusterIP"]) && old["clusterIP"] != *address
    };
    if !is_external && field.old.is_some_and(has_another) {
        errors.push(FieldError::invalid("spec.clusterIPs[0]", &json!([address]), "may not change once set"));
    }
}
