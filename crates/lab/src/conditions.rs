//! Conditions in object statuses, and their transition times.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::value::list;

/// Returns the condition of this type from an object's `status.conditions`, or null.
pub(super) fn of<'a>(object: &'a Value, condition_type: &str) -> &'a Value {
    find(list(&object["status"]["conditions"]), condition_type).unwrap_or(&Value::Null)
}

/// Finds the condition with this type.
pub(super) fn find<'a>(conditions: &'a [Value], condition_type: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| condition["type"] == condition_type)
}

/// Removes the condition with this type.
pub(super) fn remove(conditions: &mut Vec<Value>, condition_type: &str) {
    conditions.retain(|condition| condition["type"] != condition_type);
}

/// Replaces the object's condition of the same type with `condition`, which must have a `status`. The transition time
/// is `now`, or the old condition's time if the status has not changed.
pub(super) fn put(object: &mut Value, condition: Value, now: &str) {
    let mut conditions = list(&object["status"]["conditions"]).to_vec();
    put_in(&mut conditions, condition, now);
    object["status"]["conditions"] = Value::Array(conditions);
}

/// Does the same as [`put`], in a list of conditions.
pub(super) fn put_in(conditions: &mut Vec<Value>, mut condition: Value, now: &str) {
    let before = conditions.iter_mut().find(|before| before["type"] == condition["type"]);
    let same_status = before.as_ref().filter(|before| before["status"] == condition["status"]);
    condition["lastTransitionTime"] =
        same_status.map_or_else(|| Value::from(now), |before| before["lastTransitionTime"].clone());
    match before {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
}

/// Marks a pod as about to be disrupted. The generation is omitted where Kubernetes omits it.
pub(super) fn disruption_target(
    pod: &mut Value,
    reason: &str,
    message: &str,
    observed_generation: Option<i64>,
    now: &str,
) {
    let mut condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastProbeTime": null,
    });
    if let Some(generation) = observed_generation {
        condition["observedGeneration"] = json!(generation);
    }
    put(pod, condition, now);
}

/// Converts a time from text to Unix seconds.
pub(super) fn unix_seconds(time: &Value) -> Option<i64> {
    time.as_str()?.parse::<Timestamp>().ok().map(Timestamp::as_second)
}
