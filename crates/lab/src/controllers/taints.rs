//! Node taints and pod tolerations.

use serde_json::Value;

use crate::value::{list, text};

/// Taint effect: pods that do not tolerate the taint are not scheduled to the node.
pub(super) const NO_SCHEDULE: &str = "NoSchedule";
/// Taint effect: like [`NO_SCHEDULE`], and running pods that do not tolerate the taint are also evicted.
pub(super) const NO_EXECUTE: &str = "NoExecute";

/// Returns a node's taints that have one of these effects.
pub(super) fn of<'a>(node: &'a Value, effects: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    list(&node["spec"]["taints"])
        .iter()
        .filter(|taint| effects.iter().any(|effect| taint["effect"] == *effect))
}

/// Returns true if a pod tolerates a taint, even if only temporarily (`ToleratesTaint` in core/v1/toleration.go).
pub(super) fn is_tolerated(pod: &Value, taint: &Value) -> bool {
    list(&pod["spec"]["tolerations"]).iter().any(|toleration| fits(toleration, taint))
}

fn fits(toleration: &Value, taint: &Value) -> bool {
    let unset_or_same =
        |field: &str| text(&toleration[field]).is_empty() || toleration[field] == taint[field];
    if !unset_or_same("effect") || !unset_or_same("key") {
        return false;
    }
    match text(&toleration["operator"]) {
        "Exists" => true,
        "" | "Equal" => text(&toleration["value"]) == text(&taint["value"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn toleration_matches_key_value_and_effect() {
        let taint = json!({"key": "dedicated", "value": "batch", "effect": NO_EXECUTE});
        let tolerates =
            |toleration: Value| is_tolerated(&json!({"spec": {"tolerations": [toleration]}}), &taint);
        assert!(tolerates(json!({"operator": "Exists"})));
        assert!(tolerates(json!({"key": "dedicated", "operator": "Exists", "effect": NO_EXECUTE})));
        assert!(tolerates(json!({"key": "dedicated", "value": "batch"})));
        assert!(!tolerates(json!({"key": "dedicated", "value": "web"})));
        assert!(!tolerates(json!({"key": "dedicated", "operator": "Exists", "effect": NO_SCHEDULE})));
        assert!(!tolerates(json!({"key": "other", "operator": "Exists"})));
        let node = json!({"spec": {"taints": [taint]}});
        assert_eq!(of(&node, &[NO_SCHEDULE, NO_EXECUTE]).count(), 1);
        assert_eq!(of(&node, &[NO_SCHEDULE]).count(), 0);
    }
}
