//! Ranks surplus pods for deletion (`ActivePodsWithRanks` in pkg/controller/controller_utils.go).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::conditions::of as condition;
use crate::conditions::unix_seconds;
use crate::object_fields::is_ready;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Returns the first `count` pods to delete at `now` (Unix seconds). `related` contains the active pods of all
/// ReplicaSets with the same controller.
pub(super) fn least_worth(
    mut pods: Vec<Arc<Value>>,
    related: &[Arc<Value>],
    now: i64,
    count: usize,
) -> Vec<Arc<Value>> {
    let mut on_node: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in related {
        *on_node.entry(node(pod)).or_default() += 1;
    }
    if count < pods.len() {
        pods.sort_by_cached_key(|pod| worth(pod, on_node.get(node(pod)).copied().unwrap_or(0), now));
    }
    pods.truncate(count);
    pods
}

fn node(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

/// Returns a key that sorts pods in deletion order: pods without a node first, then pending pods, pods that are not
/// ready, pods with a lower deletion cost, pods with more related pods on the same node, pods that became ready more
/// recently, pods with more restarts, and finally younger pods. Ages are compared only by order of magnitude
/// (`LogarithmicScaleDown`), so the uid decides between pods of similar age.
fn worth(pod: &Value, on_its_node: usize, now: i64) -> impl Ord + use<> {
    let phase = match pod["status"]["phase"].as_str() {
        Some("Pending") => 0,
        Some("Unknown") => 1,
        _ => 2,
    };
    let ready = is_ready(pod);
    let cost = pod["metadata"]["annotations"][DELETION_COST].as_str();
    let cost: i32 = cost.and_then(|cost| cost.parse().ok()).unwrap_or(0);
    let ready_age = ready.then(|| magnitude(&condition(pod, "Ready")["lastTransitionTime"], now));
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let restarts = statuses.map(|status| status["restartCount"].as_i64().unwrap_or(0)).max().unwrap_or(0);
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let age = magnitude(&pod["metadata"]["creationTimestamp"], now);
    // Ready pods are compared only by when they became ready, then by uid.
    let later = if ready { (Reverse(0), None) } else { (Reverse(restarts), Some(age)) };
    (!node(pod).is_empty(), phase, ready, cost, Reverse(on_its_node), ready_age, later, uid)
}

/// Returns the binary order of magnitude of an age in nanoseconds, or −1 if there is none.
fn magnitude(since: &Value, now: i64) -> i32 {
    let seconds = unix_seconds(since).map_or(0, |since| now - since);
    match u128::try_from(seconds) {
        Ok(seconds @ 1..) => i32::try_from((seconds * 1_000_000_000).ilog2()).unwrap_or(i32::MAX),
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Arc<Value> {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "node-1"},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"restartCount": 0}],
            },
        });
        change(&mut pod);
        Arc::new(pod)
    }

    #[test]
    fn deletion_rank_matches_kubernetes() {
        let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
        let pods = [
            pod("a-unassigned", |pod| pod["spec"]["nodeName"] = Value::Null),
            pod("b-pending", |pod| pod["status"]["phase"] = json!("Pending")),
            pod("c-unready-restarted", |pod| {
                unready(pod);
                pod["status"]["containerStatuses"][0]["restartCount"] = json!(3);
            }),
            pod("d-unready-young", |pod| {
                unready(pod);
                pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:59:00Z");
            }),
            pod("e-unready", unready),
            pod("f-cheap", |pod| pod["metadata"]["annotations"] = json!({DELETION_COST: "-1"})),
            pod("g-crowded", |pod| pod["spec"]["nodeName"] = json!("node-2")),
            pod("h-ready-lately", |pod| {
                pod["status"]["conditions"][0]["lastTransitionTime"] = json!("2026-01-01T00:59:00Z");
            }),
            pod("i-good", |_| {}),
            pod("j-same-age-by-uid", |pod| {
                pod["status"]["conditions"][0]["lastTransitionTime"] = json!("2026-01-01T00:00:01Z");
            }),
            pod("k-dear", |pod| pod["metadata"]["annotations"] = json!({DELETION_COST: "5"})),
        ];
        let crowd = |n: usize| pod(&format!("x{n}"), |pod| pod["spec"]["nodeName"] = json!("node-2"));
        let related: Vec<_> = (0..20).map(crowd).collect();
        let now = unix_seconds(&json!("2026-01-01T01:00:00Z")).unwrap();
        let mut shuffled = pods.to_vec();
        shuffled.reverse();
        shuffled.push(pod("z-last", |pod| pod["metadata"]["annotations"] = json!({DELETION_COST: "6"})));
        let names = |pods: &[Arc<Value>]| -> Vec<String> {
            pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&least_worth(shuffled, &related, now, pods.len())), names(&pods));
    }
}
