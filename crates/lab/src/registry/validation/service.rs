//! Services.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::errors::{Errors, elements, is_blank};
use super::metadata::check_label;

pub(super) fn validate(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    let is_headless = spec["clusterIP"] == "None";
    let kind = spec["type"].as_str().unwrap_or_default();
    if elements(spec, "ports").next().is_none() && !is_headless && kind != "ExternalName" {
        errors.required("spec.ports", "");
    }
    if kind == "ExternalName" && is_blank(&spec["externalName"]) {
        errors.required("spec.externalName", "");
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    errors.check_one_of(&spec["type"], "spec.type", &kinds);
    validate_ports(spec, errors);
    for field in ["internalTrafficPolicy", "externalTrafficPolicy"] {
        if !spec[field].is_null() {
            errors.check_one_of(&spec[field], &format!("spec.{field}"), &["Cluster", "Local"]);
        }
    }
    validate_affinity(spec, errors);
    let Some(old) = old else { return };
    let keeps_address = kind != "ExternalName" && old["type"] != "ExternalName";
    if keeps_address && !is_blank(&old["clusterIP"]) && old["clusterIP"] != spec["clusterIP"] {
        errors.invalid("spec.clusterIPs[0]", &json!([spec["clusterIP"]]), "may not change once set");
    }
}

fn validate_affinity(spec: &Value, errors: &mut Errors) {
    const MAX_SECONDS: i64 = 86_400;
    errors.check_one_of(&spec["sessionAffinity"], "spec.sessionAffinity", &["ClientIP", "None"]);
    let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    if spec["sessionAffinity"] == "ClientIP"
        && !seconds.as_i64().is_some_and(|seconds| (1..=MAX_SECONDS).contains(&seconds))
    {
        let why = format!("must be greater than 0 and less than {MAX_SECONDS}");
        errors.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, &why);
    }
}

fn validate_ports(spec: &Value, errors: &mut Errors) {
    let many = elements(spec, "ports").count() > 1;
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (n, port) in elements(spec, "ports") {
        let path = format!("spec.ports[{n}]");
        let name = port["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            if many {
                errors.required(&format!("{path}.name"), "");
            }
        } else {
            check_label(name, &format!("{path}.name"), errors);
            if !names.insert(name) {
                errors.duplicate(&format!("{path}.name"), &port["name"]);
            }
        }
        errors.check_port_number(&port["port"], &format!("{path}.port"));
        errors.check_one_of(&port["protocol"], &format!("{path}.protocol"), &["SCTP", "TCP", "UDP"]);
        errors.check_port(&port["targetPort"], &format!("{path}.targetPort"));
        if !numbers.insert((port["protocol"].as_str(), port["port"].as_i64())) {
            errors.duplicate(&path, port);
        }
    }
}
