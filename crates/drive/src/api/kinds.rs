//! Kinds of objects in a cluster.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ApiResource;
use kube::core::Selector;
use serde_json::Value;

use rolldrop_scenario::WorkloadKind;

/// Returns the API resource for a kind of workload.
pub(crate) fn resource_of(kind: WorkloadKind) -> ApiResource {
    match kind {
        WorkloadKind::Deployment => ApiResource::erase::<Deployment>(&()),
        WorkloadKind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
        WorkloadKind::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
    }
}

/// Returns the selector of a workload's pods as text, with its `matchLabels` and its `matchExpressions`.
///
/// # Errors
/// Fails, with the reason, if the workload has no valid selector.
pub fn pod_selector(workload: &Value) -> Result<String, String> {
    let selector = serde_json::from_value::<LabelSelector>(workload["spec"]["selector"].clone());
    let selector = selector.map_err(|error| format!("spec.selector: {error}"))?;
    let selector = Selector::try_from(selector).map_err(|error| format!("spec.selector: {error}"))?;
    Ok(selector.to_string())
}

/// Returns the reason that a workload would not replace its pods after a template change; `None` if it would.
pub fn why_no_rollout(workload: &Value) -> Option<&'static str> {
    let spec = &workload["spec"];
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64().unwrap_or(0);
    if spec["paused"] == true {
        Some("its rollout is paused: resume it first")
    } else if spec["updateStrategy"]["type"] == "OnDelete" {
        Some("its update strategy is OnDelete: delete its pods, or use RollingUpdate")
    } else if partition > 0 && partition >= spec["replicas"].as_u64().unwrap_or(1) {
        Some("its partition holds back all its pods: set it below the number of replicas, or to 0")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_selector_keeps_match_expressions() {
        let of = |selector: Value| pod_selector(&json!({"spec": {"selector": selector}}));
        let stable = json!([{"key": "track", "operator": "NotIn", "values": ["canary"]}]);
        let both = json!({"matchLabels": {"app": "web"}, "matchExpressions": stable});
        assert_eq!(of(both).unwrap(), "app=web,track notin (canary)");
        assert_eq!(of(json!({"matchExpressions": stable})).unwrap(), "track notin (canary)");
        assert!(of(Value::Null).unwrap_err().starts_with("spec.selector: "));
    }

    #[test]
    fn held_back_workloads_have_no_rollout() {
        let why = |spec: Value| why_no_rollout(&json!({"spec": spec}));
        let partition =
            |partition: u64| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
        assert!(why(json!({"paused": true})).unwrap().contains("paused"));
        assert!(why(json!({"updateStrategy": {"type": "OnDelete"}})).unwrap().contains("OnDelete"));
        assert!(why(json!({"replicas": 3, "updateStrategy": partition(3)})).unwrap().contains("partition"));
        assert_eq!(why(json!({"replicas": 3, "updateStrategy": partition(2)})), None);
        assert_eq!(why(json!({"replicas": 0, "updateStrategy": partition(0)})), None);
    }
}
