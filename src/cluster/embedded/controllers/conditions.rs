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

/// A written time in Unix seconds.
pub(super) fn unix_seconds(time: &Value) -> Option<i64> {
    time.as_str()?.parse::<Timestamp>().ok().map(Timestamp::as_second)
}
