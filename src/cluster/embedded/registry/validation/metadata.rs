//! Names, labels, annotations and owners.

use serde_json::{Value, json};

use super::{Errors, elements, is_blank};
use crate::cluster::embedded::resource::Resource;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
    consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. \
    '*.example.com', regex used for validation is \
    '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
    validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
    with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

pub(super) fn validate(resource: Resource, current: Option<&Value>, object: &Value, errors: &mut Errors) {
    let metadata = &object["metadata"];
    if current.is_none() {
        let name = metadata["name"].as_str().unwrap_or_default();
        match resource {
            Resource::Services => check_label_1035(name, "metadata.name", errors),
            Resource::Namespaces => check_label(name, "metadata.name", errors),
            Resource::Events => {}
            _ => check_subdomain(name, "metadata.name", errors),
        }
        // Whatever the rules, a name is one segment of a path.
        if name.contains(['/', '%']) || name == "." || name == ".." {
            errors.invalid(
                "metadata.name",
                &metadata["name"],
                "may not contain '/' or '%', or be '.' or '..'",
            );
        }
    }
    check_labels(&metadata["labels"], "metadata.labels", errors);
    check_annotations(&metadata["annotations"], "metadata.annotations", errors);
    for (n, finalizer) in elements(metadata, "finalizers") {
        check_qualified_name(
            finalizer.as_str().unwrap_or_default(),
            &format!("metadata.finalizers[{n}]"),
            errors,
        );
    }
    let mut controllers = 0;
    for (n, owner) in elements(metadata, "ownerReferences") {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if is_blank(&owner[field]) {
                let path = format!("metadata.ownerReferences[{n}].{field}");
                errors.invalid(&path, &json!(""), &format!("{field} must not be empty"));
            }
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true";
        errors.invalid("metadata.ownerReferences", &metadata["ownerReferences"], why);
    }
}

pub(super) fn check_subdomain(name: &str, field: &str, errors: &mut Errors) {
    check_name(name, field, 253, SUBDOMAIN, name.split('.').all(is_label), errors);
}

pub(super) fn check_label(name: &str, field: &str, errors: &mut Errors) {
    check_name(name, field, 63, LABEL, is_label(name), errors);
}

/// A subdomain whose first part is `*`.
pub(super) fn check_wildcard(name: &str, field: &str, errors: &mut Errors) {
    let is_valid = name.strip_prefix("*.").is_some_and(|rest| rest.split('.').all(is_label));
    check_name(name, field, 253, WILDCARD, is_valid, errors);
}

pub(super) fn check_label_1035(name: &str, field: &str, errors: &mut Errors) {
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

/// Letters, digits and a few marks in between.
fn is_word(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.chars().all(|c| edge(c) || "-_.".contains(c)) && text.starts_with(edge) && text.ends_with(edge)
}

/// A name with an optional prefix, as keys of labels are.
fn check_qualified_name(key: &str, field: &str, errors: &mut Errors) {
    let value = json!(key);
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            if prefix.is_empty() {
                errors.invalid(field, &value, "prefix part must be non-empty");
            } else if prefix.len() > 253 || !prefix.split('.').all(is_label) {
                errors.invalid(field, &value, &format!("prefix part {SUBDOMAIN}"));
            }
            name
        }
        None => key,
    };
    if name.is_empty() {
        errors.invalid(field, &value, "name part must be non-empty");
    } else if name.len() > 63 {
        errors.invalid(field, &value, "name part must be no more than 63 characters");
    }
    if !is_word(name) {
        errors.invalid(field, &value, QUALIFIED_NAME);
    }
}

fn check_label_value(value: &Value, field: &str, errors: &mut Errors) {
    let text = value.as_str().unwrap_or_default();
    if text.len() > 63 {
        errors.invalid(field, value, "must be no more than 63 characters");
    }
    if !text.is_empty() && !is_word(text) {
        errors.invalid(field, value, LABEL_VALUE);
    }
}

pub(super) fn check_labels(labels: &Value, field: &str, errors: &mut Errors) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        check_qualified_name(key, field, errors);
        check_label_value(value, field, errors);
    }
}

pub(super) fn check_annotations(annotations: &Value, field: &str, errors: &mut Errors) {
    let mut bytes = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        check_qualified_name(&key.to_lowercase(), field, errors);
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.too_long(field, &format!("may not be more than {MAX_ANNOTATION_BYTES} bytes"));
    }
}

/// The `matchLabels` and `matchExpressions` of a workload.
pub(super) fn check_selector(selector: &Value, field: &str, errors: &mut Errors) {
    check_labels(&selector["matchLabels"], &format!("{field}.matchLabels"), errors);
    for (n, expression) in elements(selector, "matchExpressions") {
        let path = format!("{field}.matchExpressions[{n}]");
        check_qualified_name(expression["key"].as_str().unwrap_or_default(), &format!("{path}.key"), errors);
        let has_values = expression["values"].as_array().is_some_and(|values| !values.is_empty());
        match expression["operator"].as_str() {
            Some("In" | "NotIn") if !has_values => {
                errors.required(
                    &format!("{path}.values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                );
            }
            Some("Exists" | "DoesNotExist") if has_values => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&format!("{path}.values"), why);
            }
            Some("In" | "NotIn" | "Exists" | "DoesNotExist") => {}
            _ => errors.invalid(
                &format!("{path}.operator"),
                &expression["operator"],
                "not a valid selector operator",
            ),
        }
        for (m, value) in elements(expression, "values") {
            check_label_value(value, &format!("{path}.values[{m}]"), errors);
        }
    }
}
