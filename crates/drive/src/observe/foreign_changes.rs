//! Changes that others make to a workload while a run measures it: an autoscaler, a pipeline, a colleague.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::api::edits::{self, Edit, RESTARTED_AT};
use crate::api::{Caller, resource_of};
use rolldrop_scenario::Workload;

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(2);

/// Returns the first field in which two specs of a workload differ, ignoring restarts; `None` if they are equal.
pub fn changed(before: &Value, now: &Value) -> Option<String> {
    edits_between(before, now).first().map(ToString::to_string)
}

/// Returns the fields in which two specs of a workload differ, each with its value then and now.
pub(crate) fn differences(before: &Value, now: &Value) -> Vec<String> {
    edits_between(before, now).iter().map(Edit::in_words).collect()
}

fn edits_between(before: &Value, now: &Value) -> Vec<Edit> {
    edits::between(&apart_from_restarts(before), &apart_from_restarts(now))
}

fn apart_from_restarts(workload: &Value) -> Value {
    let mut spec = workload["spec"].clone();
    let metadata = &mut spec["template"]["metadata"];
    if let Some(annotations) = metadata["annotations"].as_object_mut() {
        annotations.remove(RESTARTED_AT);
        if annotations.is_empty() {
            metadata["annotations"] = Value::Null;
        }
    }
    if metadata["annotations"].is_null()
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.remove("annotations");
    }
    serde_json::json!({"spec": spec})
}

/// Waits until others have changed this workload, and returns a description, such as `changed spec.replicas of
/// Deployment web`.
pub(crate) async fn until_others_change(caller: &Caller, workload: &Workload) -> String {
    let api = caller.dynamic_api(&resource_of(workload.kind));
    let what = format!("read {workload}");
    let mut first = None;
    loop {
        // An API server that does not respond shows no change.
        match caller.find(&api, &what, &workload.name).await {
            Ok(Some(found)) => {
                let now = serde_json::to_value(found).unwrap_or_default();
                let first = first.get_or_insert_with(|| now.clone());
                if first["metadata"]["uid"] != now["metadata"]["uid"] {
                    return format!("replaced {workload}");
                }
                if let Some(field) = changed(first, &now) {
                    return format!("changed {field} of {workload}");
                }
            }
            Ok(None) => return format!("deleted {workload}"),
            Err(_) => {}
        }
        sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn change_detection_ignores_restart_annotation() {
        let object = |replicas: u64, annotations: Value| json!({"spec": {"replicas": replicas, "template": {"metadata": {"annotations": annotations}}}});
        let before = json!({"spec": {"replicas": 3, "template": {"metadata": {}}}});
        assert_eq!(changed(&before, &object(3, json!({RESTARTED_AT: "2026-11-24T00:00:00Z"}))), None);
        let scaled = object(4, json!({RESTARTED_AT: "2026-11-24T00:00:00Z"}));
        assert_eq!(changed(&before, &scaled).as_deref(), Some("spec.replicas"));
        let patched = object(3, json!({"team": "shop"}));
        assert_eq!(changed(&before, &patched).as_deref(), Some("spec.template.metadata.annotations.team"));
    }
}
