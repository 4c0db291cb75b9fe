//! Workloads, their claims, and PodDisruptionBudgets.

use serde_json::{Value, json};

use super::errors::Errors;
use super::metadata::{check_label, check_selector};
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
    check_whole_selector(spec, what, errors);
    pod::validate_spec(&spec["template"]["spec"], "spec.template.spec", errors);
    check_always_restarts(spec, errors);
    check_selector_is_kept(spec, old, errors);
}

/// Fields of a StatefulSet that may change after its creation.
const CHANGEABLE_OF_STATEFUL_SETS: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Validates a StatefulSet. As in Kubernetes it does not check the template as a pod: mistakes show when a pod is
/// created.
pub(super) fn validate_stateful_set(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    let policies = ["OrderedReady", "Parallel"];
    errors.check_one_of(&spec["podManagementPolicy"], "spec.podManagementPolicy", &policies);
    let strategy = &spec["updateStrategy"];
    let rolling = &strategy["rollingUpdate"];
    match strategy["type"].as_str() {
        Some("OnDelete") => {
            if rolling.is_object() {
                let why = "only allowed for updateStrategy 'RollingUpdate'";
                errors.invalid("spec.updateStrategy.rollingUpdate", rolling, why);
            }
        }
        Some("RollingUpdate") => {
            let path = "spec.updateStrategy.rollingUpdate";
            errors.check_not_negative(rolling, path, "partition");
            let limit = &rolling["maxUnavailable"];
            check_share(limit, &format!("{path}.maxUnavailable"), errors);
            if is_zero(limit) {
                errors.invalid(&format!("{path}.maxUnavailable"), limit, "cannot be 0");
            }
        }
        _ => errors.invalid("spec.updateStrategy", strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        errors.check_not_negative(spec, "spec", field);
    }
    errors.check_not_negative(&spec["ordinals"], "spec.ordinals", "start");
    let service = spec["serviceName"].as_str().unwrap_or_default();
    if !service.is_empty() {
        check_label(service, "spec.serviceName", errors);
    }
    check_whole_selector(spec, "statefulset", errors);
    check_always_restarts(spec, errors);
    if old.is_some_and(|old| fixed_fields(old).ne(fixed_fields(spec))) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                   'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                   'minReadySeconds' are forbidden";
        errors.forbidden("spec", why);
    }
}

/// Returns the fields of a StatefulSet that may not change.
fn fixed_fields(spec: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = spec.as_object().into_iter().flatten();
    fields.filter(|(name, _)| !CHANGEABLE_OF_STATEFUL_SETS.contains(&name.as_str()))
}

pub(super) fn validate_daemon_set(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    for field in ["minReadySeconds", "revisionHistoryLimit"] {
        errors.check_not_negative(spec, "spec", field);
    }
    let strategy = &spec["updateStrategy"];
    let (unavailable, surge) =
        (&strategy["rollingUpdate"]["maxUnavailable"], &strategy["rollingUpdate"]["maxSurge"]);
    let path = |field: &str| format!("spec.updateStrategy.rollingUpdate.{field}");
    match strategy["type"].as_str() {
        Some("OnDelete") => {}
        Some("RollingUpdate") => {
            check_share(unavailable, &path("maxUnavailable"), errors);
            check_share(surge, &path("maxSurge"), errors);
            match (is_zero(unavailable), is_zero(surge)) {
                (false, false) => {
                    let why = "may not be set when maxUnavailable is non-zero";
                    errors.invalid(&path("maxSurge"), surge, why);
                }
                (true, true) => errors.required(&path("maxUnavailable"), "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => {
            errors.unsupported("spec.updateStrategy.type", &strategy["type"], &["OnDelete", "RollingUpdate"])
        }
    }
    check_whole_selector(spec, "daemonset", errors);
    pod::validate_spec(&spec["template"]["spec"], "spec.template.spec", errors);
    check_always_restarts(spec, errors);
    check_selector_is_kept(spec, old, errors);
}

pub(super) fn validate_claim(spec: &Value, errors: &mut Errors) {
    if spec["accessModes"].as_array().is_none_or(Vec::is_empty) {
        errors.required("spec.accessModes", "at least 1 access mode is required");
    }
    if spec["resources"]["requests"]["storage"].is_null() {
        errors.required("spec.resources[storage]", "");
    }
}

/// Checks that the selector exists, is not empty, and matches the template.
fn check_whole_selector(spec: &Value, what: &str, errors: &mut Errors) {
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
}

fn check_always_restarts(spec: &Value, errors: &mut Errors) {
    let policy = &spec["template"]["spec"]["restartPolicy"];
    if policy != "Always" {
        errors.unsupported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
}

fn check_selector_is_kept(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    if old.is_some_and(|old| old["selector"] != spec["selector"]) {
        errors.invalid("spec.selector", &spec["selector"], IMMUTABLE);
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
            if is_zero(unavailable) && is_zero(surge) {
                errors.invalid(&path("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0");
            }
        }
        _ => errors.unsupported("spec.strategy", strategy, &["Recreate", "RollingUpdate"]),
    }
}

/// Checks for a non-negative number, or a percentage such as `25%`.
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

/// As [`check_amount`], with at most 100%.
fn check_share(value: &Value, field: &str, errors: &mut Errors) {
    check_amount(value, field, errors);
    if percentage(value).is_some_and(|percentage| percentage > 100) {
        errors.invalid(field, value, "must not be greater than 100%");
    }
}

/// Returns true if a given amount is zero.
fn is_zero(amount: &Value) -> bool {
    *amount == 0 || percentage(amount) == Some(0)
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
