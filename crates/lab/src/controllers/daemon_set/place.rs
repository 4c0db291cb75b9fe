//! Decides which nodes should run a DaemonSet's pods, and builds the pods (`NodeShouldRunDaemonPod`,
//! `AddOrUpdateDaemonPodTolerations`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::pod_control::of_template;
use super::super::pod_template::REVISION_LABEL;
use super::super::scheduler::matches_affinity;
use super::super::taints::{self, NO_EXECUTE, NO_SCHEDULE};
use crate::object_fields::key;
use crate::value::{list, text};

/// Node field in a pod's affinity that identifies the pod's intended node.
const NODE_NAME: &str = "metadata.name";

/// Decision about a DaemonSet's pod on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DaemonPlacement {
    /// True if a pod should be created on the node.
    pub(super) starts: bool,
    /// True if an existing pod may stay.
    pub(super) keeps: bool,
}

/// Decisions by node name.
pub(super) type DaemonPlacements = BTreeMap<String, DaemonPlacement>;

/// Decides for each node whether it should run one of the set's pods.
pub(super) fn places(set: &Value, nodes: &[Arc<Value>]) -> DaemonPlacements {
    let named = |node: &Arc<Value>| {
        let name = key(node).1;
        let place = place(&new_pod(set, "", &name), node);
        (name, place)
    };
    nodes.iter().map(named).collect()
}

/// Returns the nodes that should run a pod.
pub(super) fn wanted(places: &DaemonPlacements) -> impl Iterator<Item = &str> {
    places.iter().filter(|(_, place)| place.starts).map(|(node, _)| node.as_str())
}

fn place(pod: &Value, node: &Value) -> DaemonPlacement {
    let named = text(&pod["spec"]["nodeName"]);
    if !(named.is_empty() || node["metadata"]["name"] == named) || !matches_affinity(pod, node) {
        return DaemonPlacement { starts: false, keeps: false };
    }
    let tolerates =
        |effects: &[&str]| taints::of(node, effects).all(|taint| taints::is_tolerated(pod, taint));
    DaemonPlacement { starts: tolerates(&[NO_SCHEDULE, NO_EXECUTE]), keeps: tolerates(&[NO_EXECUTE]) }
}

/// Builds a set's pod for one node. The pod can run only on that node, and tolerates conditions that would evict other
/// pods.
pub(super) fn new_pod(set: &Value, hash: &str, node: &str) -> Value {
    let mut pod = of_template(set, &format!("{}-", key(set).1));
    pod["metadata"]["labels"][REVISION_LABEL] = json!(hash);
    let spec = &mut pod["spec"];
    let here = json!([{"key": NODE_NAME, "operator": "In", "values": [node]}]);
    let required = &mut spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    match required.as_array_mut().filter(|terms| !terms.is_empty()) {
        Some(terms) => terms.iter_mut().for_each(|term| term["matchFields"] = here.clone()),
        None => *required = json!([{"matchFields": here}]),
    }
    let mut tolerations = list(&spec["tolerations"]).to_vec();
    let mut taints = vec![
        ("not-ready", NO_EXECUTE),
        ("unreachable", NO_EXECUTE),
        ("disk-pressure", NO_SCHEDULE),
        ("memory-pressure", NO_SCHEDULE),
        ("pid-pressure", NO_SCHEDULE),
        ("unschedulable", NO_SCHEDULE),
    ];
    if spec["hostNetwork"] == true {
        taints.push(("network-unavailable", NO_SCHEDULE));
    }
    for (taint, effect) in taints {
        let toleration = json!({
            "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": effect,
        });
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    spec["tolerations"] = json!(tolerations);
    pod
}

/// Returns the node that a pod runs on or is intended for.
pub(super) fn node_of(pod: &Value) -> &str {
    let spec = &pod["spec"];
    let bound = text(&spec["nodeName"]);
    if !bound.is_empty() {
        return bound;
    }
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let fields = list(&required["nodeSelectorTerms"]).iter().flat_map(|term| list(&term["matchFields"]));
    let names = fields.filter(|field| field["key"] == NODE_NAME);
    names.map(|field| text(&field["values"][0])).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spec: &Value) -> Value {
        json!({
            "metadata": {"name": "agent", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"app": "agent"}}, "spec": spec}},
        })
    }

    #[test]
    fn node_selector_and_taints_restrict_placement() {
        let node = |name: &str, taints: Value| {
            Arc::new(
                json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": {"taints": taints}}),
            )
        };
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let nodes = [
            node("free", Value::Null),
            node("cordoned", taint("node.kubernetes.io/unschedulable", NO_SCHEDULE)),
            node("dedicated", taint("dedicated", NO_SCHEDULE)),
            node("leaving", taint("leaving", NO_EXECUTE)),
        ];
        let all = |spec: Value| {
            let places = places(&set(&spec), &nodes);
            let of = |name: &str| places[name];
            ["free", "cordoned", "dedicated", "leaving"].map(|name| (of(name).starts, of(name).keeps))
        };
        assert_eq!(all(json!({})), [(true, true), (true, true), (false, true), (false, false)]);
        let selector = json!({"nodeSelector": {"disk": "free"}});
        assert_eq!(all(selector), [(true, true), (false, false), (false, false), (false, false)]);
        let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
        assert_eq!(all(tolerant), [(true, true); 4]);
    }

    #[test]
    fn unbound_pod_belongs_to_intended_node() {
        let terms = json!([{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]);
        let affinity = json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        });
        for spec in [json!({}), json!({"affinity": affinity})] {
            let mut pod = new_pod(&set(&spec), "1", "node-2");
            assert_eq!(node_of(&pod), "node-2");
            pod["spec"]["nodeName"] = json!("node-1");
            assert_eq!(node_of(&pod), "node-1");
        }
    }
}
