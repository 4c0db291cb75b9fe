//! Ingresses and their classes.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::metadata::{check_label_1035, check_subdomain, check_wildcard};
use super::{Errors, elements, is_blank};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

pub(super) fn validate(ingress: &Value, current: Option<&Value>, errors: &mut Errors) {
    let spec = &ingress["spec"];
    let has_rules = elements(spec, "rules").next().is_some();
    if !has_rules && spec["defaultBackend"].is_null() {
        errors.invalid("spec", &spec["rules"], "either `defaultBackend` or `rules` must be specified");
    }
    if !spec["defaultBackend"].is_null() {
        validate_backend(&spec["defaultBackend"], "spec.defaultBackend", errors);
    }
    for (n, rule) in elements(spec, "rules") {
        validate_rule(rule, &format!("spec.rules[{n}]"), errors);
    }
    for (n, tls) in elements(spec, "tls") {
        for (m, host) in elements(tls, "hosts") {
            check_host(host, &format!("spec.tls[{n}].hosts[{m}]"), errors);
        }
        if !is_blank(&tls["secretName"]) {
            let name = tls["secretName"].as_str().unwrap_or_default();
            check_subdomain(name, &format!("spec.tls[{n}].secretName"), errors);
        }
    }
    let Some(class) = spec["ingressClassName"].as_str() else { return };
    check_subdomain(class, "spec.ingressClassName", errors);
    let annotation = &ingress["metadata"]["annotations"][CLASS_ANNOTATION];
    if current.is_none() && annotation.as_str().is_some_and(|annotation| annotation != class) {
        let why = "must match `ingressClassName` when both are specified";
        errors.invalid(&format!("annotations.{CLASS_ANNOTATION}"), annotation, why);
    }
}

pub(super) fn validate_class(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    let controller = &spec["controller"];
    let path = controller.as_str().and_then(|text| Some(text.split_once('/')?.1)).unwrap_or_default();
    if is_blank(controller) {
        errors.required("spec.controller", "");
    } else if path.is_empty() {
        errors.invalid(
            "spec.controller",
            controller,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        );
    }
    if old.is_some_and(|old| old["controller"] != spec["controller"]) {
        errors.invalid("spec.controller", &spec["controller"], "field is immutable");
    }
}

fn validate_rule(rule: &Value, path: &str, errors: &mut Errors) {
    if !is_blank(&rule["host"]) {
        let (host, field) = (&rule["host"], format!("{path}.host"));
        if host.as_str().is_some_and(|host| host.parse::<IpAddr>().is_ok()) {
            errors.invalid(&field, host, "must be a DNS name, not an IP address");
        }
        check_host(host, &field, errors);
    }
    if rule["http"].is_null() {
        return;
    }
    let path = format!("{path}.http.paths");
    if elements(&rule["http"], "paths").next().is_none() {
        errors.required(&path, "");
    }
    for (n, entry) in elements(&rule["http"], "paths") {
        validate_path(entry, &format!("{path}[{n}]"), errors);
    }
}

fn validate_path(entry: &Value, path: &str, errors: &mut Errors) {
    let (text, field) = (entry["path"].as_str().unwrap_or_default(), format!("{path}.path"));
    let Some(kind) = entry["pathType"].as_str() else {
        return errors.required(&format!("{path}.pathType"), "pathType must be specified");
    };
    let is_specific = kind == "ImplementationSpecific";
    let may_be_absent = is_specific && text.is_empty();
    if !text.starts_with('/') && !may_be_absent {
        errors.invalid(&field, &json!(text), "must be an absolute path");
    }
    if !is_specific {
        for sequence in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|bad| text.contains(bad)) {
            errors.invalid(&field, &json!(text), &format!("must not contain '{sequence}'"));
        }
        for end in ["/..", "/."].into_iter().filter(|bad| text.ends_with(bad)) {
            errors.invalid(&field, &json!(text), &format!("cannot end with '{end}'"));
        }
    }
    let kinds = ["Exact", "ImplementationSpecific", "Prefix"];
    errors.check_one_of(&entry["pathType"], &format!("{path}.pathType"), &kinds);
    validate_backend(&entry["backend"], &format!("{path}.backend"), errors);
}

fn validate_backend(backend: &Value, path: &str, errors: &mut Errors) {
    let service = &backend["service"];
    match (service.is_null(), backend["resource"].is_null()) {
        (false, false) => {
            return errors.invalid(path, &json!(""), "cannot set both resource and service backends");
        }
        (true, true) => return errors.invalid(path, &json!(""), "resource or service backend is required"),
        (true, false) => return,
        (false, true) => {}
    }
    match service["name"].as_str().unwrap_or_default() {
        "" => errors.required(&format!("{path}.service.name"), ""),
        name => check_label_1035(name, &format!("{path}.service.name"), errors),
    }
    let (name, number) = (&service["port"]["name"], &service["port"]["number"]);
    match (name.as_str().filter(|name| !name.is_empty()), number.as_i64().filter(|number| *number != 0)) {
        (Some(_), Some(_)) => errors.invalid(path, &json!(""), "cannot set both port name & port number"),
        (Some(name), None) => errors.check_port_name(name, &format!("{path}.service.port.name")),
        (None, Some(_)) => errors.check_port_number(number, &format!("{path}.service.port.number")),
        (None, None) => errors.required(path, "port name or number is required"),
    }
}

/// A name, of whose first part a `*` may stand for anything.
fn check_host(host: &Value, field: &str, errors: &mut Errors) {
    let host = host.as_str().unwrap_or_default();
    let check = if host.contains('*') { check_wildcard } else { check_subdomain };
    check(host, field, errors);
}
