//! Decides which nodes a pod fits on, which of those is best, and why the others do not fit. Pure.
//!
//! Rules and messages follow the scheduler's filter plugins (pkg/scheduler/framework/plugins). They run in the order of
//! its default profile, and the first filter that rejects a node supplies the reason. The only limited resource is the
//! number of pods. The lab ignores inter-pod affinity and topology spread constraints, but prefers nodes with fewer
//! pods of the same owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::taints::{self, NO_EXECUTE, NO_SCHEDULE};
use crate::object_fields::{controller_of, is_being_deleted, is_terminal, key};
use crate::selector::LabelSelector;

/// Reason why a pod does not fit on a node, as counted in the message, and the corresponding preemption reason.
type UnschedulableReason = (&'static str, &'static str);

/// Preemption reasons: for nodes where evicting pods would not help, and for nodes where it would, if there were pods
/// to evict.
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// Cluster state on which a placement is based.
pub(super) struct SchedulerSnapshot<'a> {
    nodes: &'a [Arc<Value>],
    /// Pods that are bound to a node and not terminal.
    pods: Vec<&'a Value>,
}

impl<'a> SchedulerSnapshot<'a> {
    pub(super) fn new(nodes: &'a [Arc<Value>], pods: &'a [Arc<Value>]) -> Self {
        let placed = |pod: &&Value| pod["spec"]["nodeName"].is_string() && !is_terminal(pod);
        Self { nodes, pods: pods.iter().map(Arc::as_ref).filter(placed).collect() }
    }

    /// Returns the best nodes for `pod`, which are all equally good, or a message that explains why there are none.
    pub(super) fn place(&self, pod: &Value) -> Result<Vec<String>, String> {
        if self.nodes.is_empty() {
            return Err("no nodes available to schedule pods".to_owned());
        }
        let mut refusals = Vec::new();
        let mut suitable: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for node in self.nodes {
            match self.refusal(pod, node) {
                Some(refusal) => refusals.push(refusal),
                None => suitable.entry(self.cost(pod, node)).or_default().push(key(node).1),
            }
        }
        suitable.pop_first().map(|(_, best)| best).ok_or_else(|| message(&refusals))
    }

    fn refusal(&self, pod: &Value, node: &Value) -> Option<UnschedulableReason> {
        let unschedulable = taint("node.kubernetes.io/unschedulable");
        if node["spec"]["unschedulable"] == true && !taints::is_tolerated(pod, &unschedulable) {
            return Some(("node(s) were unschedulable", NOT_HELPFUL));
        }
        let mut hard = taints::of(node, &[NO_SCHEDULE, NO_EXECUTE]);
        if hard.any(|taint| !taints::is_tolerated(pod, taint)) {
            return Some(("node(s) had untolerated taint(s)", NOT_HELPFUL));
        }
        if !matches_affinity(pod, node) {
            return Some(("node(s) didn't match Pod's node affinity/selector", NOT_HELPFUL));
        }
        let on_node = self.pods.iter().filter(|other| other["spec"]["nodeName"] == node["metadata"]["name"]);
        let room = node["status"]["allocatable"]["pods"].as_str().and_then(|pods| pods.parse::<usize>().ok());
        if room.is_some_and(|room| on_node.count() >= room) {
            return Some(("Too many pods", NO_VICTIMS));
        }
        None
    }

    /// Returns the cost of placing a pod on a node where it fits: first the number of pods there with the same owner,
    /// then the total number of pods there.
    fn cost(&self, pod: &Value, node: &Value) -> (usize, usize) {
        let owner = controller_of(pod).map(|owner| &owner["uid"]);
        let on_node: Vec<_> =
            self.pods.iter().filter(|other| other["spec"]["nodeName"] == node["metadata"]["name"]).collect();
        let of_owner = |other: &&&&Value| {
            owner.is_some()
                && controller_of(other).map(|owner| &owner["uid"]) == owner
                && !is_being_deleted(other)
        };
        let siblings = on_node.iter().filter(of_owner).count();
        (siblings, on_node.len())
    }
}

fn taint(taint_key: &str) -> Value {
    serde_json::json!({"key": taint_key, "effect": NO_SCHEDULE})
}

/// Returns true if a node satisfies `nodeSelector` and the required node affinity.
pub(in super::super) fn matches_affinity(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    if !LabelSelector::from_map(&pod["spec"]["nodeSelector"]).is_none_or(|selector| selector.matches(labels))
    {
        return false;
    }
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else { return true };
    // An empty term matches no node.
    let fields = serde_json::json!({"metadata.name": node["metadata"]["name"]});
    terms.iter().any(|term| {
        let by_label = LabelSelector::from_object(term);
        let by_field =
            LabelSelector::from_object(&serde_json::json!({"matchExpressions": term["matchFields"]}));
        !(by_label.is_empty() && by_field.is_empty()) && by_label.matches(labels) && by_field.matches(&fields)
    })
}

/// Formats the refusals like `FitError` (pkg/scheduler/framework/types.go), with the preemption message appended.
fn message(refusals: &[UnschedulableReason]) -> String {
    let nodes = refusals.len();
    let count = |reasons: &mut dyn Iterator<Item = &'static str>| {
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        reasons.for_each(|reason| *counts.entry(reason).or_default() += 1);
        let mut counts: Vec<_> =
            counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        counts.sort();
        counts.join(", ")
    };
    let reasons = count(&mut refusals.iter().map(|(reason, _)| *reason));
    let preemption = count(&mut refusals.iter().map(|(_, preemption)| *preemption));
    format!(
        "0/{nodes} nodes are available: {reasons}. no new claims to deallocate, \
         preemption: 0/{nodes} nodes are available: {preemption}."
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Value)) -> Arc<Value> {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {},
            "status": {"allocatable": {"pods": "110"}},
        });
        change(&mut node);
        Arc::new(node)
    }

    fn pod(name: &str, node: Option<&str>, change: impl FnOnce(&mut Value)) -> Arc<Value> {
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "labels": {"app": "web"},
                "ownerReferences": [{"uid": "rs", "controller": true}],
            },
            "spec": {"nodeName": node},
        });
        change(&mut pod);
        Arc::new(pod)
    }

    fn three() -> [Arc<Value>; 3] {
        ["node-1", "node-2", "node-3"].map(|name| node(name, |_| {}))
    }

    #[test]
    fn pods_with_same_owner_spread_across_nodes() {
        let nodes = three();
        let other = |pod: &mut Value| pod["metadata"]["ownerReferences"][0]["uid"] = json!("other");
        let pods = [
            pod("a", Some("node-1"), |_| {}),
            pod("b", Some("node-2"), other),
            pod("c", Some("node-2"), other),
        ];
        let place =
            |pods: &[Arc<Value>]| SchedulerSnapshot::new(&nodes, pods).place(&pod("new", None, |_| {}));
        assert_eq!(place(&pods).unwrap(), ["node-3"]);
        assert_eq!(place(&[]).unwrap(), ["node-1", "node-2", "node-3"]);
        let crowded = [pods.as_slice(), &[pod("d", Some("node-3"), |_| {})]].concat();
        assert_eq!(place(&crowded).unwrap(), ["node-2"]);
    }

    #[test]
    fn failure_message_counts_nodes_by_reason() {
        let nodes = [
            node("node-1", |node| node["spec"]["unschedulable"] = json!(true)),
            node("node-2", |node| node["spec"]["taints"] = json!([{"key": "k", "effect": "NoExecute"}])),
            node("node-3", |_| {}),
            node("node-4", |_| {}),
        ];
        let wants = pod("new", None, |pod| pod["spec"]["nodeSelector"] = json!({"disk": "ssd"}));
        let message = SchedulerSnapshot::new(&nodes, &[]).place(&wants).unwrap_err();
        assert_eq!(
            message,
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, \
             2 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, \
             preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
        );
        assert_eq!(
            SchedulerSnapshot::new(&[], &[]).place(&wants).unwrap_err(),
            "no nodes available to schedule pods"
        );
    }

    #[test]
    fn node_affinity_applies_selector_operators() {
        let node = node("node-1", |node| node["metadata"]["labels"] = json!({"zone": "a", "cpus": "8"}));
        let matches = |key: &str, operator: &str, values: Value| {
            let term = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
            let pod = pod("new", None, |pod| {
                pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                    json!({"nodeSelectorTerms": [term]});
            });
            matches_affinity(&pod, &node)
        };
        assert!(matches("zone", "In", json!(["a", "b"])));
        assert!(!matches("zone", "NotIn", json!(["a"])));
        assert!(matches("gone", "NotIn", json!(["a"])));
        assert!(matches("zone", "Exists", json!([])));
        assert!(matches("gone", "DoesNotExist", json!([])));
        let named = |name: &str| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
            let pod = pod("new", None, |pod| {
                pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                    json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
            });
            matches_affinity(&pod, &node)
        };
        assert!(named("node-1") && !named("node-2"));
        // With an unknown operator, the pod fits on no node rather than every node.
        assert!(!matches("cpus", "Gt", json!(["4"])) && !matches("cpus", "Lt", json!(["10"])));
    }
}
