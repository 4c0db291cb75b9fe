//! Decides the next steps for a DaemonSet. Pure: objects in, steps out.
//!
//! Based on `podsShouldBeOnNode` (pkg/controller/daemon/daemon_controller.go) and `rollingUpdate`
//! (pkg/controller/daemon/update.go). A pod that is being deleted occupies its node until the pod is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::availability::Judge;
use super::super::deployment::sizes::{PercentRounding, amount};
use super::place::{DaemonPlacements, wanted};
use crate::object_fields::{is_being_deleted, is_terminal, key};
use crate::value::text;

/// Pods to create and delete.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DaemonSetSteps {
    /// Pods to delete.
    pub(super) delete: Vec<Arc<Value>>,
    /// Nodes on which to create a pod.
    pub(super) create: Vec<String>,
    /// Pods that have terminated on their own, a subset of `delete`.
    pub(super) ended: Vec<Arc<Value>>,
}

impl DaemonSetSteps {
    fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.create.is_empty()
    }
}

/// A DaemonSet, the cluster's nodes, and the set's pods by node.
pub(super) struct DaemonSetView<'a> {
    pub(super) set: &'a Value,
    /// Decision about the set's pod on each node.
    pub(super) places: &'a DaemonPlacements,
    pub(super) pods: BTreeMap<String, Vec<Arc<Value>>>,
    /// Predicate that is true for pods created from the latest template.
    pub(super) is_new: &'a dyn Fn(&Value) -> bool,
    pub(super) judge: Judge,
}

/// The pods on one node that may stay.
struct OnNode<'a> {
    new: Option<&'a Arc<Value>>,
    old: Option<&'a Arc<Value>>,
}

impl DaemonSetView<'_> {
    /// Returns the next steps. Creating missing pods and deleting surplus ones come first. Once there is nothing left
    /// to create or delete, the update continues.
    pub(super) fn steps(&self) -> DaemonSetSteps {
        let steps = self.manage();
        if !steps.is_empty() || self.set["spec"]["updateStrategy"]["type"] != "RollingUpdate" {
            return steps;
        }
        let (max_surge, max_unavailable) = self.limits();
        match max_surge {
            0 => self.replace(max_unavailable),
            _ => self.surge(max_surge),
        }
    }

    /// Returns `maxSurge` and `maxUnavailable` as numbers of pods, which are never both 0.
    fn limits(&self) -> (usize, usize) {
        let wanted = wanted(self.places).count();
        let rolling = &self.set["spec"]["updateStrategy"]["rollingUpdate"];
        let in_pods = |value: &Value| {
            let whole = i64::try_from(wanted).unwrap_or(i64::MAX);
            usize::try_from(amount(value, whole, PercentRounding::Up)).unwrap_or(0)
        };
        let (surge, unavailable) = (in_pods(&rolling["maxSurge"]), in_pods(&rolling["maxUnavailable"]));
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }

    fn is_available(&self, pod: &Value) -> bool {
        self.judge.is_available(pod)
    }

    fn on(&self, node: &str) -> &[Arc<Value>] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }

    /// Creates pods on nodes that lack one, and deletes surplus pods.
    fn manage(&self) -> DaemonSetSteps {
        let mut steps = DaemonSetSteps::default();
        for (node, place) in self.places {
            let pods = self.on(node);
            let stay = || pods.iter().filter(|pod| !is_being_deleted(pod));
            if place.starts && pods.is_empty() {
                steps.create.push(node.clone());
            } else if !place.keeps {
                steps.delete.extend(stay().cloned());
            } else {
                let (ended, mut running): (Vec<_>, Vec<_>) = stay().partition(|pod| is_terminal(pod));
                steps.ended.extend(ended.iter().map(|pod| Arc::clone(pod)));
                steps.delete.extend(ended.into_iter().cloned());
                running.sort_by_key(|pod| created(pod));
                steps.delete.extend(self.too_many(&running).into_iter().cloned());
            }
        }
        // Pods on nodes that are gone.
        let gone =
            self.pods.iter().filter(|(node, _)| !self.places.contains_key(*node)).flat_map(|(_, pods)| pods);
        steps.delete.extend(gone.filter(|pod| !is_being_deleted(pod)).cloned());
        steps
    }

    /// Returns the surplus pods on a node, oldest first. With a surge, a node may have both an old and a new pod until
    /// the new one is available.
    fn too_many<'b>(&self, running: &[&'b Arc<Value>]) -> Vec<&'b Arc<Value>> {
        if running.len() <= 1 {
            return Vec::new();
        }
        let (max_surge, _) = self.limits();
        let oldest = |new: bool| running.iter().copied().find(|pod| (self.is_new)(pod) == new);
        let kept = match (oldest(true), oldest(false)) {
            _ if max_surge == 0 => vec![running[0]],
            (Some(new), Some(old)) if !self.is_available(new) && self.is_available(old) => vec![new, old],
            (Some(new), _) => vec![new],
            (None, old) => old.into_iter().collect(),
        };
        let is_kept = |pod: &Arc<Value>| kept.iter().any(|kept| Arc::ptr_eq(kept, pod));
        running.iter().copied().filter(|pod| !is_kept(pod)).collect()
    }

    /// Returns the pods on each node that has or should have any, or `None` for a node with several pods from the same
    /// template.
    fn nodes(&self) -> impl Iterator<Item = (&str, Option<OnNode<'_>>)> {
        let wanted = wanted(self.places).filter(|node| !self.pods.contains_key(*node));
        let all = self.pods.keys().map(String::as_str).chain(wanted);
        all.map(|node| {
            let stay = self.on(node).iter().filter(|pod| !is_being_deleted(pod));
            let (new, old): (Vec<_>, Vec<_>) = stay.partition(|pod| (self.is_new)(pod));
            let of_node = (new.len() <= 1 && old.len() <= 1)
                .then(|| OnNode { new: new.first().copied(), old: old.first().copied() });
            (node, of_node)
        })
    }

    /// Deletes all unavailable old pods, and as many available ones as `max_unavailable` allows. Each pod is replaced
    /// once it is gone.
    fn replace(&self, max_unavailable: usize) -> DaemonSetSteps {
        let (mut missing, mut delete, mut candidates) = (0, Vec::new(), Vec::new());
        for (_, of_node) in self.nodes() {
            match of_node {
                Some(OnNode { new: Some(new), old: None }) => missing += usize::from(!self.is_available(new)),
                Some(OnNode { new: None, old: Some(old) }) if self.is_available(old) => candidates.push(old),
                // The old pod is unavailable anyway.
                Some(OnNode { new: None, old: Some(old) }) => delete.push(Arc::clone(old)),
                _ => missing += 1,
            }
        }
        let room = max_unavailable.saturating_sub(missing);
        delete.extend(candidates.into_iter().take(room).cloned());
        DaemonSetSteps { delete, ..DaemonSetSteps::default() }
    }

    /// Creates up to `max_surge` new pods alongside old ones, and deletes the old ones once the new ones are available.
    fn surge(&self, max_surge: usize) -> DaemonSetSteps {
        let (mut surging, mut delete, mut create, mut candidates) = (0, Vec::new(), Vec::new(), Vec::new());
        for (node, of_node) in self.nodes() {
            match of_node {
                Some(OnNode { old: None, .. }) => {}
                Some(OnNode { new: None, old: Some(old) }) => {
                    if self.places.get(node).is_some_and(|place| place.starts) {
                        let list = if self.is_available(old) { &mut candidates } else { &mut create };
                        list.push(node.to_owned());
                    }
                }
                Some(OnNode { new: Some(new), old: Some(old) }) => {
                    if !self.is_available(old) || self.is_available(new) {
                        delete.push(Arc::clone(old));
                    } else {
                        surging += 1;
                    }
                }
                None => surging += 1,
            }
        }
        create.extend(candidates.into_iter().take(max_surge.saturating_sub(surging)));
        DaemonSetSteps { delete, create, ..DaemonSetSteps::default() }
    }
}

/// Returns a key that sorts pods by creation time.
pub(super) fn created(pod: &Value) -> (String, String) {
    (text(&pod["metadata"]["creationTimestamp"]).to_owned(), key(pod).1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::place::DaemonPlacement;
    use super::*;

    /// Builds a pod from a mark: `old` or `new`, followed by `!` if the pod is not ready, `-` if it is being deleted,
    /// or `x` if it has failed.
    fn pod(mark: &str) -> Arc<Value> {
        let ready = if mark.contains('!') { "False" } else { "True" };
        Arc::new(json!({
            "metadata": {
                "name": mark,
                "deletionTimestamp": if mark.contains('-') { json!("x") } else { Value::Null },
            },
            "status": {
                "phase": if mark.contains('x') { "Failed" } else { "Running" },
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }))
    }

    const EVERYWHERE: DaemonPlacement = DaemonPlacement { starts: true, keeps: true };

    /// Returns the steps as text: `+a` creates a pod on node `a`, `-old a` deletes the old pod there.
    fn steps_at(strategy: &Value, nodes: &[(&str, DaemonPlacement, &[&str])]) -> Vec<String> {
        let set = json!({"spec": {"updateStrategy": strategy}});
        let places = nodes.iter().map(|(node, place, _)| ((*node).to_owned(), *place)).collect();
        let pods: BTreeMap<_, Vec<_>> = nodes
            .iter()
            .filter(|(_, _, marks)| !marks.is_empty())
            .map(|(node, _, marks)| ((*node).to_owned(), marks.iter().map(|mark| pod(mark)).collect()))
            .collect();
        let is_new = |pod: &Value| key(pod).1.starts_with("new");
        let judge = Judge::new(&set, "2026-01-01T00:00:00Z");
        let look = DaemonSetView { set: &set, places: &places, pods, is_new: &is_new, judge };
        let steps = look.steps();
        let deleted = steps.delete.iter().map(|pod| format!("-{}", key(pod).1));
        let mut all: Vec<_> = steps.create.iter().map(|node| format!("+{node}")).chain(deleted).collect();
        all.sort();
        all
    }

    fn steps(strategy: &Value, nodes: &[&[&str]]) -> Vec<String> {
        let nodes: Vec<_> =
            ["a", "b", "c"].into_iter().zip(nodes).map(|(node, marks)| (node, EVERYWHERE, *marks)).collect();
        steps_at(strategy, &nodes)
    }

    fn rolling(max_unavailable: Value, max_surge: Value) -> Value {
        json!({
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": max_unavailable, "maxSurge": max_surge},
        })
    }

    #[test]
    fn node_runs_exactly_one_pod() {
        let one = rolling(json!(1), json!(0));
        assert_eq!(steps(&one, &[&[], &["new"], &["old-"]]), ["+a"]);
        assert_eq!(steps(&one, &[&["new"], &["new x"], &["new"]]), ["-new x"]);
        assert_eq!(steps(&one, &[&["new 1", "new 2"]]), ["-new 2"]);
    }

    #[test]
    fn unfit_node_loses_daemon_pod() {
        let one = rolling(json!(1), json!(0));
        let tainted = DaemonPlacement { starts: false, keeps: true };
        let unfit = DaemonPlacement { starts: false, keeps: false };
        assert_eq!(steps_at(&one, &[("a", tainted, &["new a"]), ("b", unfit, &["new b"])]), ["-new b"]);
        assert_eq!(steps_at(&one, &[("a", tainted, &[]), ("b", unfit, &[])]), [""; 0]);
    }

    #[test]
    fn rolling_update_respects_max_unavailable() {
        let (one, two) = (rolling(json!(1), json!(0)), rolling(json!("50%"), json!(0)));
        let old: [&[&str]; 3] = [&["old a"], &["old b"], &["old c"]];
        assert_eq!(steps(&one, &old), ["-old a"]);
        assert_eq!(steps(&two, &old), ["-old a", "-old b"]);
        assert_eq!(steps(&one, &[&["old-"], &["old b"], &["old c"]]), [""; 0]);
        assert_eq!(steps(&one, &[&["new!"], &["old b"], &["old c"]]), [""; 0]);
        assert_eq!(steps(&one, &[&["new"], &["old b"], &["old c"]]), ["-old b"]);
        // Unavailable old pods are also replaced, because they are not serving anyway.
        assert_eq!(steps(&one, &[&["old a"], &["old! b"], &["old c"]]), ["-old a", "-old! b"]);
        assert_eq!(steps(&json!({"type": "OnDelete"}), &old), [""; 0]);
    }

    #[test]
    fn max_surge_adds_new_pods_before_deleting_old_ones() {
        let one = rolling(json!(0), json!(1));
        let old: [&[&str]; 3] = [&["old a"], &["old b"], &["old c"]];
        assert_eq!(steps(&one, &old), ["+a"]);
        assert_eq!(steps(&rolling(json!(0), json!("60%")), &old), ["+a", "+b"]);
        assert_eq!(steps(&one, &[&["old a", "new! a"], &["old b"], &["old c"]]), [""; 0]);
        assert_eq!(steps(&one, &[&["old a", "new a"], &["old b"], &["old c"]]), ["-old a"]);
        assert_eq!(steps(&one, &[&["old- a", "new a"], &["old b"], &["old c"]]), ["+b"]);
    }
}
