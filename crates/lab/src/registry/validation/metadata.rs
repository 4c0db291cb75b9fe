//! Names, owners and selectors.

use serde_json::{Value, json};

use super::errors::{Errors, elements};
use crate::resource::Resource;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
    validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

pub(super) fn validate(resource: Resource, current: Option<&Value>, object: &Value, errors: &mut Errors) {
    let metadata = &object["metadata"];
    if current.is_none() {
        let name = metadata["name"].as_str().unwrap_or_default();
        match resource {
            Resource::Services => check_label_1035(name, "metadata.name", errors),
            Resource::Namespaces => check_label(name, "metadata.name", errors),
            Resource::Events
            | Resource::Roles
            | Resource::RoleBindings
            | Resource::ClusterRoles
            | Resource::ClusterRoleBindings => {}
            _ => check_subdomain(name, "metadata.name", errors),
        }
        // Regardless of the rules, a name is one segment of a path.
        if name.contains(['/', '%']) || name == "." || name == ".." {
            errors.invalid(
                "metadata.name",
                &metadata["name"],
                "may not contain '/' or '%', or be '.' or '..'",
            );
        }
    }
}

pub(super) fn check_subdomain(name: &str, field: &str, errors: &mut Errors) {
    check_name(name, field, 253, SUBDOMAIN, name.split('.').all(is_label), errors);
}

pub(super) fn check_label(name: &str, field: &str, errors: &mut Errors) {
    check_name(name, field, 63, LABEL, is_label(name), errors);
}

fn check_label_1035(name: &str, field: &str, errors: &mut Errors) {
    let is_valid = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
    check_name(name, field, 63, LABEL_1035, is_valid, errors);
}

fn check_name(name: &str, field: &str, most: usize, rule: &str, is_valid: bool, errors: &mut Errors) {
    if name.len() > most {
        errors.invalid(field, &json!(name), &format!("must be no more than {most} characters"));
    }
    if !is_valid {
        errors.invalid(field, &json!(name), rule);
    }
}

fn is_label(label: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    label.chars().all(|c| edge(c) || c == '-') && label.starts_with(edge) && label.ends_with(edge)
}

/// Checks the `matchExpressions` of a selector.
pub(super) fn check_selector(selector: &Value, field: &str, errors: &mut Errors) {
    for (n, expression) in elements(selector, "matchExpressions") {
        let path = format!("{field}.matchExpressions[{n}]");
        if !["In", "NotIn", "Exists", "DoesNotExist"].iter().any(|known| expression["operator"] == *known) {
            let field = format!("{path}.operator");
            errors.invalid(&field, &expression["operator"], "not a valid selector operator");
        }
    }
}
