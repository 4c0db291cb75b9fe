//! Checks for single fields.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::resource::Resource;
use crate::status::FieldError;
use crate::value::{list, text};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
    validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const PERCENTAGE: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or \
    '93%', regex used for validation is '[0-9]+%')";

/// A field or a whole structure to check.
pub(super) struct CheckedField<'a> {
    pub(super) path: &'a str,
    pub(super) value: &'a Value,
    /// In an update, the value being replaced.
    pub(super) old: Option<&'a Value>,
    /// Text that follows the check's name in the rules.
    pub(super) arguments: &'a str,
}

impl CheckedField<'_> {
    fn invalid(&self, why: &str) -> FieldError {
        FieldError::invalid(self.path, self.value, why)
    }
}

/// Returns true if a field with this value counts as missing.
pub(super) fn is_missing(value: &Value) -> bool {
    value.is_null()
        || *value == 0
        || value.as_str() == Some("")
        || value.as_array().is_some_and(Vec::is_empty)
}

/// Checks the name of a new object.
pub(super) fn check_object_name(resource: Resource, value: &Value, errors: &mut Vec<FieldError>) {
    let (path, name) = ("metadata.name", text(value));
    match resource {
        Resource::Services => {
            let is_valid = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
            check_name(path, value, 63, LABEL_1035, is_valid, errors);
        }
        Resource::Namespaces => check_name(path, value, 63, LABEL, is_label(name), errors),
        Resource::Events
        | Resource::Roles
        | Resource::RoleBindings
        | Resource::ClusterRoles
        | Resource::ClusterRoleBindings => {}
        _ => check_name(path, value, 253, SUBDOMAIN, name.split('.').all(is_label), errors),
    }
    // Regardless of the rules, every name must be a valid path segment.
    if name.contains(['/', '%']) || name == "." || name == ".." {
        errors.push(FieldError::invalid(path, value, "may not contain '/' or '%', or be '.' or '..'"));
    }
}

fn check_name(
    path: &str,
    name: &Value,
    most: usize,
    rule: &str,
    is_valid: bool,
    errors: &mut Vec<FieldError>,
) {
    if text(name).len() > most {
        errors.push(FieldError::invalid(path, name, &format!("must be no more than {most} characters")));
    }
    if !is_valid {
        errors.push(FieldError::invalid(path, name, rule));
    }
}

fn is_label(label: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    label.chars().all(|c| edge(c) || c == '-') && label.starts_with(edge) && label.ends_with(edge)
}

pub(super) fn label(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if !is_missing(field.value) {
        check_name(field.path, field.value, 63, LABEL, is_label(text(field.value)), errors);
    }
}

/// Checks a number or percentage of pods. A percentage may have a limit.
pub(super) fn amount(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let share = percentage(field.value);
    not_negative(field, errors);
    if field.value.is_string() && share.is_none() {
        errors.push(field.invalid(PERCENTAGE));
    }
    if let Ok(most) = field.arguments.parse()
        && share.is_some_and(|share: u32| share > most)
    {
        errors.push(field.invalid(&format!("must not be greater than {most}%")));
    }
}

pub(super) fn not_zero(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if is_zero(field.value) {
        errors.push(field.invalid("cannot be 0"));
    }
}

pub(super) fn is_zero(amount: &Value) -> bool {
    *amount == 0 || percentage(amount) == Some(0)
}

fn percentage(value: &Value) -> Option<u32> {
    let digits = value.as_str()?.strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(super) fn not_negative(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if field.value.as_i64().is_some_and(|number| number < 0) {
        errors.push(field.invalid("must be greater than or equal to 0"));
    }
}

pub(super) fn from_to(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let mut limits = field.arguments.split(' ').map(|limit| limit.parse().unwrap_or(0));
    let (least, most) = (limits.next().unwrap_or(0), limits.next().unwrap_or(0));
    if !field.value.as_i64().is_some_and(|number| (least..=most).contains(&number)) {
        let below: i64 = least - 1;
        errors.push(field.invalid(&format!("must be greater than {below} and less than {most}")));
    }
}

pub(super) fn one_of(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let supported: Vec<_> = field.arguments.split(' ').collect();
    if !field.value.is_null() && !supported.contains(&text(field.value)) {
        errors.push(FieldError::unsupported(field.path, field.value, &supported));
    }
}

pub(super) fn immutable(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if field.old.is_some_and(|old| old != field.value) {
        let why = if field.arguments.is_empty() { "field is immutable" } else { field.arguments };
        errors.push(field.invalid(why));
    }
}

/// Checks that no two elements of a list have the same value in the field named by the argument.
pub(super) fn unique(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let mut known = BTreeSet::new();
    for (n, element) in list(field.value).iter().enumerate() {
        let value = &element[field.arguments];
        if !is_missing(value) && !known.insert(text(value)) {
            errors.push(FieldError::duplicate(format!("{}[{n}].{}", field.path, field.arguments), value));
        }
    }
}

/// Checks a port given as a name or a number.
pub(super) fn port(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let is_name = field.value.is_string() && !is_missing(field.value);
    if is_name { port_name(field, errors) } else { port_number(field, errors) }
}

pub(super) fn port_number(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    if !field.value.as_i64().is_some_and(|port| (1..=65_535).contains(&port)) {
        errors.push(field.invalid("must be between 1 and 65535, inclusive"));
    }
}

pub(super) fn port_name(field: &CheckedField<'_>, errors: &mut Vec<FieldError>) {
    let name = text(field.value);
    if is_missing(field.value) {
        return;
    }
    if name.len() > 15 {
        errors.push(field.invalid("must be no more than 15 characters"));
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(allowed) || !name.chars().any(|c| c.is_ascii_lowercase()) {
        let why =
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-), and at least one letter";
        errors.push(field.invalid(why));
    }
}
