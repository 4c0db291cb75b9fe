//! Rejects objects that Kubernetes would reject, field by field.
//!
//! `field_rules` lists the checks for each field. [`field_checks`] contains checks that need only a single field, while
//! [`pod_checks`] and [`workload_checks`] cover whole pods, workloads and Services. Fields that this cluster does not
//! honour are kept unchanged.

mod field_checks;
mod pod_checks;
mod workload_checks;

use serde_json::Value;

use super::Resource;
use super::field_rules::{self, WHOLE};
use crate::schema::{self, FieldType, Structure};
use crate::status::{FieldError, Status};
use field_checks::{CheckedField, is_missing};

/// Rejects an object that does not match the resource, because it is of a different kind or has fields of the wrong
/// type.
pub(super) fn check_shape(resource: Resource, object: &Value) -> Result<(), Status> {
    check_shape_of(schema::of(resource), resource.api_version(), object)
}

/// Rejects an object of a kind other than `top`, or with fields of the wrong type.
///
/// # Errors
///
/// 400, with type errors worded as a real server words them.
pub(crate) fn check_shape_of(top: &Structure, api_version: &str, object: &Value) -> Result<(), Status> {
    let kind = top.name;
    if !object.is_object() {
        return Err(Status::bad_request(format!("the object provided must be of type {kind}")));
    }
    for (field, expected) in [("kind", kind), ("apiVersion", api_version)] {
        if let Some(found) = object[field].as_str().filter(|found| *found != expected) {
            let message =
                format!("the {field} of the object ({found}) does not match the request ({expected})");
            return Err(Status::bad_request(message));
        }
    }
    schema::check(top, object).map_err(|error| {
        Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {error}"))
    })
}

/// Rejects an invalid object. `current` is the object being replaced.
pub(super) fn validate(
    resource: Resource,
    name: &str,
    current: Option<&Value>,
    object: &Value,
) -> Result<(), Status> {
    let mut errors = Vec::new();
    if current.is_none() {
        field_checks::check_object_name(resource, &object["metadata"]["name"], &mut errors);
    }
    match (resource, current) {
        (Resource::Pods, Some(current)) => {
            pod_checks::check_update(&current["spec"], &object["spec"], &mut errors)
        }
        _ => check(schema::of(resource), "", object, current, &mut errors),
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(resource, name, &errors)) }
}

/// Checks a structure's fields against the rules. `old` is the structure being replaced.
fn check(of: &Structure, path: &str, holder: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    for rule in field_rules::of(of).iter().filter(|rule| rule.holds(holder)) {
        let (path, value, old) = match rule.field {
            WHOLE => (path.to_owned(), holder, old),
            name if path.is_empty() => (name.to_owned(), &holder[name], old.map(|old| &old[name])),
            name => (format!("{path}.{name}"), &holder[name], old.map(|old| &old[name])),
        };
        for (check, arguments) in &rule.checks {
            let field = CheckedField { path: &path, value, old, arguments };
            if *check == "required" && is_missing(value) {
                errors.push(FieldError::required(path.as_str(), arguments));
                break;
            }
            if let Some((_, check)) = CHECKS.iter().find(|(name, _)| name == check) {
                check(&field, errors);
            }
        }
        if let Some(field) = of.fields.get(rule.field) {
            // Nothing identifies which elements of two lists correspond.
            let old = old.filter(|_| matches!(field.kind, FieldType::Structure(_)));
            schema::each_structure(&field.kind, value, &path, &mut |of, value, path| {
                check(of, path, value, old, errors);
            });
        }
    }
}

type FieldCheck = fn(&CheckedField<'_>, &mut Vec<FieldError>);

/// Checks that rules can name, besides `required`.
const CHECKS: [(&str, FieldCheck); 26] = [
    ("amount", field_checks::amount),
    ("from-to", field_checks::from_to),
    ("immutable", field_checks::immutable),
    ("label", field_checks::label),
    ("not-negative", field_checks::not_negative),
    ("not-zero", field_checks::not_zero),
    ("one-of", field_checks::one_of),
    ("port", field_checks::port),
    ("port-name", field_checks::port_name),
    ("port-number", field_checks::port_number),
    ("unique", field_checks::unique),
    ("containers", pod_checks::containers),
    ("handler", pod_checks::handler),
    ("value-or-source", pod_checks::value_or_source),
    ("always-restarts", workload_checks::always_restarts),
    ("completions", workload_checks::completions),
    ("deadline", workload_checks::deadline),
    ("job-restarts", workload_checks::job_restarts),
    ("keeps-all-but", workload_checks::keeps_all_but),
    ("no-rolling-update", workload_checks::no_rolling_update),
    ("not-both-zero", workload_checks::not_both_zero),
    ("one-limit", workload_checks::one_limit),
    ("selects-template", workload_checks::selects_template),
    ("service", workload_checks::service),
    ("storage", workload_checks::storage),
    ("surge-or-unavailable", workload_checks::surge_or_unavailable),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_refer_only_to_known_checks() {
        let named = |line: &'static str| line.split(" | ").skip(1);
        let text = include_str!("field_rules.txt");
        for check in text.lines().filter(|line| line.starts_with(' ')).flat_map(named) {
            let name = check.split(' ').next().unwrap();
            let is_known = name == "required" || CHECKS.iter().any(|(known, _)| *known == name);
            assert!(is_known, "{check}");
        }
    }
}
