//! Lists of conditions, as statuses hold them, and the times in them.

use jiff::Timestamp;
use serde_json::Value;

/// The condition of a type.
pub(super) fn find<'a>(conditions: &'a [Value], condition_type: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| condition["type"] == condition_type)
}

/// Takes the condition of a type away.
pub(super) fn remove(conditions: &mut Vec<Value>, condition_type: &str) {
    conditions.retain(|condition| condition["type"] != condition_type);
}

/// Puts a condition, with its own `status`, in the place of the one of its type: since `now`, or
/// since that one if its status was the same. Answers whether anything but a time has changed.
pub(super) fn put(conditions: &mut Vec<Value>, mut condition: Value, now: &str) -> bool {
    let before = conditions.iter_mut().find(|before| before["type"] == condition["type"]);
    let same_status = before.as_ref().is_some_and(|before| before["status"] == condition["status"]);
    let since = before.as_ref().filter(|_| same_status).map(|before| before["lastTransitionTime"].clone());
    condition["lastTransitionTime"] = since.unwrap_or_else(|| Value::from(now));
    match before {
        Some(before) if *before == condition => false,
        Some(before) => {
            *before = condition;
            true
        }
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// A written time in Unix seconds.
pub(super) fn unix_seconds(time: &Value) -> Option<i64> {
    time.as_str()?.parse::<Timestamp>().ok().map(Timestamp::as_second)
}
