//! Roles and their bindings (Kubernetes pkg/apis/rbac/validation/validation.go).

use serde_json::{Value, json};

use super::errors::{Errors, elements};
use super::metadata::check_subdomain;
use crate::resource::Resource;
use crate::value::{list, text};

pub(super) fn validate_role(resource: Resource, role: &Value, errors: &mut Errors) {
    for (n, rule) in elements(role, "rules") {
        validate_rule(resource, rule, &format!("rules[{n}]"), errors);
    }
    let aggregation = &role["aggregationRule"];
    if aggregation.is_object() && list(&aggregation["clusterRoleSelectors"]).is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required("aggregationRule.clusterRoleSelectors", why);
    }
}

fn validate_rule(resource: Resource, rule: &Value, path: &str, errors: &mut Errors) {
    let is_given = |field: &str| !list(&rule[field]).is_empty();
    if !is_given("verbs") {
        errors.required(&format!("{path}.verbs"), "verbs must contain at least one value");
    }
    if is_given("nonResourceURLs") {
        let (field, urls) = (format!("{path}.nonResourceURLs"), &rule["nonResourceURLs"]);
        if resource.namespaced() {
            errors.invalid(&field, urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].into_iter().any(is_given) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&field, urls, why);
        }
        return;
    }
    for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
        if !is_given(field) {
            let why = format!("resource rules must supply at least one {what}");
            errors.required(&format!("{path}.{field}"), &why);
        }
    }
}

pub(super) fn validate_binding(
    resource: Resource,
    binding: &Value,
    current: Option<&Value>,
    errors: &mut Errors,
) {
    let role = &binding["roleRef"];
    let kinds: &[&str] = if resource.namespaced() { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    errors.check_one_of(&given(role, "apiGroup"), "roleRef.apiGroup", &[Resource::Roles.group()]);
    errors.check_one_of(&given(role, "kind"), "roleRef.kind", kinds);
    if text(&role["name"]).is_empty() {
        errors.required("roleRef.name", "");
    }
    for (n, subject) in elements(binding, "subjects") {
        validate_subject(resource, subject, &format!("subjects[{n}]"), errors);
    }
    if current.is_some_and(|current| current["roleRef"] != *role) {
        errors.invalid("roleRef", role, "cannot change roleRef");
    }
}

fn validate_subject(resource: Resource, subject: &Value, path: &str, errors: &mut Errors) {
    let name = text(&subject["name"]);
    if name.is_empty() {
        errors.required(&format!("{path}.name"), "");
    }
    let group = match text(&subject["kind"]) {
        "ServiceAccount" => {
            if !name.is_empty() {
                check_subdomain(name, &format!("{path}.name"), errors);
            }
            if !resource.namespaced() && text(&subject["namespace"]).is_empty() {
                errors.required(&format!("{path}.namespace"), "");
            }
            ""
        }
        "User" | "Group" => Resource::Roles.group(),
        _ => {
            let kinds = ["ServiceAccount", "User", "Group"];
            return errors.check_one_of(&given(subject, "kind"), &format!("{path}.kind"), &kinds);
        }
    };
    errors.check_one_of(&given(subject, "apiGroup"), &format!("{path}.apiGroup"), &[group]);
}

/// Returns a text; a missing one counts as empty.
fn given(holder: &Value, field: &str) -> Value {
    json!(text(&holder[field]))
}
