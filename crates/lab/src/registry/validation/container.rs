//! Containers: ports, environment, resources, probes and hooks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::errors::{Errors, elements, is_blank};
use super::metadata::check_label;

/// Context of a container.
pub(super) struct Place<'a> {
    /// Specification of its pod.
    pub(super) pod: &'a Value,
    pub(super) volumes: &'a BTreeMap<String, Value>,
    pub(super) is_init: bool,
}

pub(super) fn validate(container: &Value, path: &str, place: &Place<'_>, errors: &mut Errors) {
    match container["name"].as_str() {
        None | Some("") => errors.required(&format!("{path}.name"), ""),
        Some(name) => check_label(name, &format!("{path}.name"), errors),
    }
    if is_blank(&container["image"]) {
        errors.required(&format!("{path}.image"), "");
    }
    validate_ports(container, path, errors);
    validate_environment(container, path, errors);
    validate_mounts(container, path, place, errors);

    let restarts = &container["restartPolicy"];
    let is_sidecar = place.is_init && restarts == "Always";
    if !restarts.is_null() {
        errors.check_one_of(restarts, &format!("{path}.restartPolicy"), &["Always", "Never", "OnFailure"]);
    }
    let parts = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
    if place.is_init && !is_sidecar {
        for part in parts.iter().filter(|part| container[**part].is_object()) {
            let why = "may not be set for init containers without restartPolicy=Always";
            errors.forbidden(&format!("{path}.{part}"), why);
        }
        return;
    }
    let grace = place.pod["terminationGracePeriodSeconds"].as_i64();
    for probe in &parts[1..] {
        if container[*probe].is_object() {
            validate_probe(&container[*probe], &format!("{path}.{probe}"), errors);
        }
    }
    for hook in ["postStart", "preStop"] {
        let handler = &container["lifecycle"][hook];
        if handler.is_object() {
            validate_handler(handler, &format!("{path}.lifecycle.{hook}"), grace, errors);
        }
    }
}

fn validate_ports(container: &Value, path: &str, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (n, port) in elements(container, "ports") {
        let path = format!("{path}.ports[{n}]");
        let name = port["name"].as_str().unwrap_or_default();
        if !name.is_empty() {
            errors.check_port_name(name, &format!("{path}.name"));
            if !names.insert(name) {
                errors.duplicate(&format!("{path}.name"), &port["name"]);
            }
        }
        match port["containerPort"].as_i64() {
            None | Some(0) => errors.required(&format!("{path}.containerPort"), ""),
            Some(_) => errors.check_port_number(&port["containerPort"], &format!("{path}.containerPort")),
        }
        errors.check_one_of(&port["protocol"], &format!("{path}.protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn validate_environment(container: &Value, path: &str, errors: &mut Errors) {
    for (n, variable) in elements(container, "env") {
        let path = format!("{path}.env[{n}]");
        let name = variable["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.required(&format!("{path}.name"), "");
        } else if name.contains('=') || !name.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
            let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
            errors.invalid(&format!("{path}.name"), &variable["name"], why);
        }
        let source = &variable["valueFrom"];
        if !source.is_object() {
            continue;
        }
        let path = format!("{path}.valueFrom");
        if source.as_object().is_none_or(Map::is_empty) {
            let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            errors.invalid(&path, &json!(""), why);
        } else if !is_blank(&variable["value"]) {
            errors.invalid(&path, &json!(""), "may not be specified when `value` is not empty");
        }
    }
}

fn validate_mounts(container: &Value, path: &str, place: &Place<'_>, errors: &mut Errors) {
    for (n, mount) in elements(container, "volumeMounts") {
        let path = format!("{path}.volumeMounts[{n}]");
        let name = mount["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.required(&format!("{path}.name"), "");
        } else if !place.volumes.contains_key(name) {
            errors.not_found(&format!("{path}.name"), &mount["name"]);
        }
        if is_blank(&mount["mountPath"]) {
            errors.required(&format!("{path}.mountPath"), "");
        }
    }
}

fn validate_probe(probe: &Value, path: &str, errors: &mut Errors) {
    validate_handler(probe, path, None, errors);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        errors.check_not_negative(probe, path, field);
    }
}

/// Validates a probe's or hook's action. `grace` limits a sleep.
fn validate_handler(handler: &Value, path: &str, grace: Option<i64>, errors: &mut Errors) {
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut given = kinds.into_iter().filter(|kind| handler[*kind].is_object());
    let Some(kind) = given.next() else {
        errors.required(path, "must specify a handler type");
        return;
    };
    for other in given {
        errors.forbidden(&format!("{path}.{other}"), "may not specify more than 1 handler type");
    }
    let (action, path) = (&handler[kind], format!("{path}.{kind}"));
    match kind {
        "exec" => {
            if elements(action, "command").next().is_none() {
                errors.required(&format!("{path}.command"), "");
            }
        }
        "httpGet" => {
            errors.check_port(&action["port"], &format!("{path}.port"));
            errors.check_one_of(&action["scheme"], &format!("{path}.scheme"), &["HTTP", "HTTPS"]);
        }
        "sleep" => {
            let seconds = action["seconds"].as_i64().unwrap_or(0);
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let why =
                    format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.invalid(&path, &json!(seconds), &why);
            }
        }
        _ => errors.check_port(&action["port"], &format!("{path}.port")),
    }
}
