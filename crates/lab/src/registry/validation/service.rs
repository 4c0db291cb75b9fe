//! Services.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::metadata::{check_label, check_subdomain};
use super::{Errors, elements, is_blank};

pub(super) fn validate(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    let is_headless = spec["clusterIP"] == "None";
    let kind = spec["type"].as_str().unwrap_or_default();
    if elements(spec, "ports").next().is_none() && !is_headless && kind != "ExternalName" {
        errors.required("spec.ports", "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless => {
            let why = format!("may not be set to 'None' for {kind} services");
            errors.invalid("spec.clusterIPs[0]", &json!("None"), &why);
        }
        "ExternalName" => match spec["externalName"].as_str().map(|name| name.trim_end_matches('.')) {
            None | Some("") => errors.required("spec.externalName", ""),
            Some(name) => check_subdomain(name, "spec.externalName", errors),
        },
        _ => {}
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    errors.check_one_of(&spec["type"], "spec.type", &kinds);
    validate_ports(spec, is_headless, errors);
    errors.check_one_of(&spec["sessionAffinity"], "spec.sessionAffinity", &["ClientIP", "None"]);
    for field in ["internalTrafficPolicy", "externalTrafficPolicy"] {
        if !spec[field].is_null() {
            errors.check_one_of(&spec[field], &format!("spec.{field}"), &["Cluster", "Local"]);
        }
    }
    if !spec["externalTrafficPolicy"].is_null() && !matches!(kind, "NodePort" | "LoadBalancer") {
        let why = "may only be set for externally-accessible services";
        errors.invalid("spec.externalTrafficPolicy", &spec["externalTrafficPolicy"], why);
    }
    for (n, family) in elements(spec, "ipFamilies") {
        if family != "IPv4" {
            let why = "not configured on this cluster";
            errors.invalid(&format!("spec.ipFamilies[{n}]"), family, why);
        }
    }
    let Some(old) = old else { return };
    let keeps_address = kind != "ExternalName" && old["type"] != "ExternalName";
    if keeps_address && !is_blank(&old["clusterIP"]) && old["clusterIP"] != spec["clusterIP"] {
        errors.invalid("spec.clusterIPs[0]", &json!([spec["clusterIP"]]), "may not change once set");
    }
}

fn validate_ports(spec: &Value, is_headless: bool, errors: &mut Errors) {
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
        let target = &port["targetPort"];
        errors.check_port(target, &format!("{path}.targetPort"));
        if is_headless && target.is_number() && *target != port["port"] {
            let why = "must be equal to the value of 'port' when clusterIP = None";
            errors.invalid(&format!("{path}.targetPort"), target, why);
        }
        if !numbers.insert((port["protocol"].as_str(), port["port"].as_i64())) {
            errors.duplicate(&path, port);
        }
    }
}
