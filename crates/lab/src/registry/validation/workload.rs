//! Deployments, ReplicaSets, Jobs and PodDisruptionBudgets.

use serde_json::{Value, json};

use super::errors::Errors;
use super::metadata::check_selector;
use super::pod;
use crate::selector::LabelSelector;

const IMMUTABLE: &str = "field is immutable";

pub(super) fn validate_deployment(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    validate_replicated(spec, old, "deployment", errors);
    validate_strategy(&spec["strategy"], errors);
    for field in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        errors.check_not_negative(spec, "spec", field);
    }
    let deadline = spec["progressDeadlineSeconds"].as_i64();
    if deadline.is_some_and(|deadline| deadline <= spec["minReadySeconds"].as_i64().unwrap_or(0)) {
        let field = "spec.progressDeadlineSeconds";
        errors.invalid(field, &spec["progressDeadlineSeconds"], "must be greater than minReadySeconds");
    }
}

pub(super) fn validate_replica_set(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    validate_replicated(spec, old, "deployment", errors);
    errors.check_not_negative(spec, "spec", "minReadySeconds");
}

fn validate_replicated(spec: &Value, old: Option<&Value>, what: &str, errors: &mut Errors) {
    errors.check_not_negative(spec, "spec", "replicas");
    let selector = &spec["selector"];
    if selector.is_object() {
        check_selector(selector, "spec.selector", errors);
        if LabelSelector::from_object(selector).is_empty() {
            errors.invalid("spec.selector", selector, &format!("empty selector is invalid for {what}"));
        }
    } else {
        errors.required("spec.selector", "");
    }
    check_template_labels(spec, errors);
    pod::validate_spec(&spec["template"]["spec"], "spec.template.spec", errors);
    let policy = &spec["template"]["spec"]["restartPolicy"];
    if policy != "Always" {
        errors.unsupported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
    if old.is_some_and(|old| old["selector"] != *selector) {
        errors.invalid("spec.selector", selector, IMMUTABLE);
    }
}

fn check_template_labels(spec: &Value, errors: &mut Errors) {
    let labels = &spec["template"]["metadata"]["labels"];
    if spec["selector"].is_object() && !LabelSelector::from_object(&spec["selector"]).matches(labels) {
        let why = "`selector` does not match template `labels`";
        let labels = if labels.is_null() { &json!({}) } else { labels };
        errors.invalid("spec.template.metadata.labels", labels, why);
    }
}

fn validate_strategy(strategy: &Value, errors: &mut Errors) {
    match strategy["type"].as_str() {
        Some("Recreate") => {
            if strategy["rollingUpdate"].is_object() {
                let why = "may not be specified when strategy `type` is 'Recreate'";
                errors.forbidden("spec.strategy.rollingUpdate", why);
            }
        }
        Some("RollingUpdate") => {
            let (unavailable, surge) =
                (&strategy["rollingUpdate"]["maxUnavailable"], &strategy["rollingUpdate"]["maxSurge"]);
            let path = |field: &str| format!("spec.strategy.rollingUpdate.{field}");
            check_amount(unavailable, &path("maxUnavailable"), errors);
            check_amount(surge, &path("maxSurge"), errors);
            let is_zero = |value: &Value| *value == 0 || percentage(value) == Some(0);
            if is_zero(unavailable) && is_zero(surge) {
                errors.invalid(&path("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0");
            }
        }
        _ => errors.unsupported("spec.strategy", strategy, &["Recreate", "RollingUpdate"]),
    }
}

/// A non-negative number, or a percentage such as `25%`.
fn check_amount(value: &Value, field: &str, errors: &mut Errors) {
    if value.as_i64().is_some_and(|number| number < 0) {
        errors.invalid(field, value, "must be greater than or equal to 0");
    }
    if value.is_string() && percentage(value).is_none() {
        let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
                   regex used for validation is '[0-9]+%')";
        errors.invalid(field, value, why);
    }
}

fn percentage(value: &Value) -> Option<u32> {
    let digits = value.as_str()?.strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(super) fn validate_budget(spec: &Value, errors: &mut Errors) {
    let given = |field: &str| !spec[field].is_null();
    if given("minAvailable") && given("maxUnavailable") {
        errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        check_amount(&spec[field], &format!("spec.{field}"), errors);
    }
    check_selector(&spec["selector"], "spec.selector", errors);
    let policy = &spec["unhealthyPodEvictionPolicy"];
    if !policy.is_null() {
        errors.check_one_of(policy, "spec.unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]);
    }
}

pub(super) fn validate_job(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    for field in
        ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"]
    {
        errors.check_not_negative(spec, "spec", field);
    }
    errors.check_one_of(&spec["completionMode"], "spec.completionMode", &["Indexed", "NonIndexed"]);
    let is_indexed = spec["completionMode"] == "Indexed";
    if is_indexed && spec["completions"].is_null() {
        errors.required("spec.completions", "when completion mode is Indexed");
    }
    if spec["selector"].is_object() {
        check_selector(&spec["selector"], "spec.selector", errors);
        check_template_labels(spec, errors);
    } else {
        errors.required("spec.selector", "");
    }
    pod::validate_spec(&spec["template"]["spec"], "spec.template.spec", errors);
    let policy = &spec["template"]["spec"]["restartPolicy"];
    let field = "spec.template.spec.restartPolicy";
    match policy.as_str() {
        Some("OnFailure" | "Never") => {}
        Some("Always") | None => errors.required(field, "valid values: \"OnFailure\", \"Never\""),
        Some(_) => errors.unsupported(field, policy, &["OnFailure", "Never"]),
    }
    let Some(old) = old else { return };
    for field in ["selector", "template", "completionMode"] {
        if old[field] != spec[field] {
            errors.invalid(&format!("spec.{field}"), &spec[field], IMMUTABLE);
        }
    }
    // An Indexed job may grow and shrink with its parallelism.
    let is_elastic = is_indexed && spec["completions"] == spec["parallelism"];
    if old["completions"] != spec["completions"] && !is_elastic {
        errors.invalid("spec.completions", &spec["completions"], IMMUTABLE);
    }
}
