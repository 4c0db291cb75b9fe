//! Decides the next steps for a StatefulSet. Pure: objects in, steps out.
//!
//! The steps follow `updateStatefulSet` (pkg/controller/statefulset/stateful_set_control.go) with the
//! `MaxUnavailableStatefulSet` feature gate, which is on by default in v1.36: the desired pods come first, then surplus
//! pods, then the update. With the `OrderedReady` policy, the first pod that is not in its desired state blocks all
//! later steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::availability::Judge;
use super::super::deployment::sizes::{PercentRounding, amount};
use super::super::pod_template::revision_of;
use super::stateful_set_pods::{first_ordinal, ordinal};
use crate::object_fields::{is_being_deleted, is_ready, is_terminal};
use crate::value::number;

/// Step to take.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StatefulSetStep {
    /// Create the pod with this ordinal.
    Create(i64),
    /// Delete this pod.
    Delete(Arc<Value>),
}

/// Returns the next steps for a set with these pods. `update` is the revision of the template in the spec.
pub(super) fn next(set: &Value, update: &str, pods: &[Arc<Value>], judge: Judge) -> Vec<StatefulSetStep> {
    let look = StatefulSetView::of(set, update, pods, judge);
    match set["spec"]["podManagementPolicy"] == "Parallel" {
        true => look.in_parallel(),
        false => look.in_order(),
    }
}

/// A StatefulSet and its pods.
struct StatefulSetView<'a> {
    set: &'a Value,
    update: &'a str,
    judge: Judge,
    /// Desired ordinals, each with its pod if it exists.
    wanted: Vec<(i64, Option<&'a Arc<Value>>)>,
    /// Pods with other ordinals, highest first.
    condemned: Vec<&'a Arc<Value>>,
}

impl<'a> StatefulSetView<'a> {
    fn of(set: &'a Value, update: &'a str, pods: &'a [Arc<Value>], judge: Judge) -> Self {
        let mut by_ordinal: BTreeMap<_, _> =
            pods.iter().filter_map(|pod| Some((ordinal(set, pod)?, pod))).collect();
        let first = first_ordinal(set);
        let numbers = first..first + number(&set["spec"]["replicas"]);
        let wanted = numbers.map(|number| (number, by_ordinal.remove(&number))).collect();
        Self { set, update, judge, wanted, condemned: by_ordinal.into_values().rev().collect() }
    }

    fn is_available(&self, pod: &Value) -> bool {
        is_running(pod) && self.judge.is_available(pod)
    }

    /// Creates and deletes pods one at a time, waiting until all earlier pods are available. Updates come last.
    fn in_order(&self) -> Vec<StatefulSetStep> {
        for (ordinal, pod) in &self.wanted {
            let Some(pod) = pod else {
                return vec![StatefulSetStep::Create(*ordinal)];
            };
            if is_terminal(pod) && !is_being_deleted(pod) {
                return vec![StatefulSetStep::Delete(Arc::clone(pod))];
            }
            if is_being_deleted(pod) || !self.is_available(pod) {
                return Vec::new();
            }
        }
        // All desired pods are available, so the first unavailable pod is the lowest unavailable condemned one.
        if let Some((pod, lower)) = self.condemned.split_first() {
            let is_first = || !lower.iter().any(|pod| self.is_missing(pod));
            let may_go = !is_being_deleted(pod) && (self.is_available(pod) || is_first());
            return if may_go { vec![StatefulSetStep::Delete(Arc::clone(pod))] } else { Vec::new() };
        }
        self.updates()
    }

    fn in_parallel(&self) -> Vec<StatefulSetStep> {
        let mut steps = Vec::new();
        for (ordinal, pod) in &self.wanted {
            match pod {
                None => steps.push(StatefulSetStep::Create(*ordinal)),
                Some(pod) if is_terminal(pod) && !is_being_deleted(pod) => {
                    steps.push(StatefulSetStep::Delete(Arc::clone(pod)));
                }
                Some(_) => {}
            }
        }
        let condemned = self.condemned.iter().filter(|pod| !is_being_deleted(pod));
        steps.extend(condemned.map(|pod| StatefulSetStep::Delete(Arc::clone(pod))));
        steps.extend(self.updates());
        steps
    }

    /// Returns true if a pod counts as unavailable for `maxUnavailable`.
    fn is_missing(&self, pod: &Value) -> bool {
        is_being_deleted(pod) || !self.is_available(pod)
    }

    /// Returns steps that delete pods, highest ordinal first. The pods are then recreated from the new template.
    fn updates(&self) -> Vec<StatefulSetStep> {
        let strategy = &self.set["spec"]["updateStrategy"];
        if strategy["type"] != "RollingUpdate" {
            return Vec::new();
        }
        let rolling = &strategy["rollingUpdate"];
        let limit = match &rolling["maxUnavailable"] {
            Value::Null => 1,
            given => amount(given, number(&self.set["spec"]["replicas"]), PercentRounding::Down).max(1),
        };
        let is_missing = |pod: &Option<&Arc<Value>>| pod.is_none_or(|pod| self.is_missing(pod));
        let missing = self.wanted.iter().filter(|(_, pod)| is_missing(pod)).count();
        let may_go = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(missing);
        let partition = usize::try_from(number(&rolling["partition"])).unwrap_or(usize::MAX);
        let above = self.wanted.iter().skip(partition).rev().filter_map(|(_, pod)| *pod);
        let old = above.filter(|pod| revision_of(pod) != self.update && !is_being_deleted(pod));
        old.take(may_go).map(|pod| StatefulSetStep::Delete(Arc::clone(pod))).collect()
    }
}

/// Returns true if a pod is running and ready (`isRunningAndReady`).
pub(super) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && is_ready(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Builds a pod from an ordinal and a mark: `v1` or `v2`, followed by `!` if the pod is not ready, `-` if it is
    /// being deleted, or `x` if it has failed.
    fn pod(ordinal: i64, mark: &str) -> Arc<Value> {
        let ready = if mark.contains('!') { "False" } else { "True" };
        Arc::new(json!({
            "metadata": {
                "name": format!("web-{ordinal}"),
                "labels": {"controller-revision-hash": &mark[..2]},
                "deletionTimestamp": if mark.contains('-') { json!("x") } else { Value::Null },
            },
            "status": {
                "phase": if mark.contains('x') { "Failed" } else { "Running" },
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }))
    }

    fn set(spec: Value) -> Value {
        let mut set = json!({"metadata": {"name": "web"}, "spec": {
            "replicas": 3,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}},
        }});
        json_patch::merge(&mut set["spec"], &spec);
        set
    }

    /// Returns the steps as text: `+1` creates a pod, `-1` deletes one.
    fn steps(spec: Value, marks: &[(i64, &str)]) -> Vec<String> {
        let set = set(spec);
        let pods: Vec<_> = marks.iter().map(|(number, mark)| pod(*number, mark)).collect();
        let judge = Judge::new(&set, "2026-01-01T00:00:00Z");
        let shown = |step: StatefulSetStep| match step {
            StatefulSetStep::Create(number) => format!("+{number}"),
            StatefulSetStep::Delete(pod) => format!("-{}", ordinal(&set, &pod).unwrap()),
        };
        next(&set, "v2", &pods, judge).into_iter().map(shown).collect()
    }

    #[test]
    fn ordered_pods_start_in_sequence() {
        assert_eq!(steps(json!({}), &[]), ["+0"]);
        assert_eq!(steps(json!({}), &[(0, "v2!")]), [""; 0]);
        assert_eq!(steps(json!({}), &[(0, "v2")]), ["+1"]);
        assert_eq!(steps(json!({}), &[(0, "v2"), (2, "v2")]), ["+1"]);
        assert_eq!(steps(json!({"ordinals": {"start": 5}}), &[(5, "v2")]), ["+6"]);
        // A name can be reused only once its previous pod is gone.
        assert_eq!(steps(json!({}), &[(0, "v2"), (1, "v2-"), (2, "v2")]), [""; 0]);
        assert_eq!(steps(json!({}), &[(0, "v2"), (1, "v2x"), (2, "v2")]), ["-1"]);
        assert_eq!(steps(json!({}), &[(0, "v2"), (1, "v2x-"), (2, "v2")]), [""; 0]);
    }

    #[test]
    fn scale_down_starts_at_highest_ordinal() {
        let one = json!({"replicas": 1});
        assert_eq!(steps(one.clone(), &[(0, "v2"), (1, "v2"), (2, "v2")]), ["-2"]);
        assert_eq!(steps(one.clone(), &[(0, "v2"), (1, "v2"), (2, "v2-")]), [""; 0]);
        assert_eq!(steps(one.clone(), &[(0, "v2!"), (1, "v2"), (2, "v2")]), [""; 0]);
        // An unready pod is deleted only if no lower pod is unready.
        assert_eq!(steps(one.clone(), &[(0, "v2"), (1, "v2"), (2, "v2!")]), ["-2"]);
        assert_eq!(steps(one, &[(0, "v2"), (1, "v2!"), (2, "v2!")]), [""; 0]);
    }

    #[test]
    fn update_proceeds_from_highest_ordinal_to_partition() {
        let all = [(0, "v1"), (1, "v1"), (2, "v1")];
        let rolling = |rolling: Value| json!({"updateStrategy": {"rollingUpdate": rolling}});
        assert_eq!(steps(json!({}), &all), ["-2"]);
        assert_eq!(steps(json!({}), &[(0, "v1"), (1, "v1"), (2, "v2!")]), [""; 0]);
        assert_eq!(steps(json!({}), &[(0, "v1"), (1, "v1"), (2, "v2")]), ["-1"]);
        assert_eq!(steps(rolling(json!({"partition": 2})), &all), ["-2"]);
        assert_eq!(steps(rolling(json!({"partition": 2})), &[(0, "v1"), (1, "v1"), (2, "v2")]), [""; 0]);
        assert_eq!(steps(rolling(json!({"partition": 1})), &[(1, "v1"), (2, "v2")]), ["+0"]);
        assert_eq!(steps(rolling(json!({"partition": 9})), &all), [""; 0]);
        assert_eq!(steps(rolling(json!({"maxUnavailable": 2})), &all), ["-2", "-1"]);
        // A percentage is rounded down, but to no less than one.
        assert_eq!(steps(rolling(json!({"maxUnavailable": "70%"})), &all), ["-2", "-1"]);
        assert_eq!(steps(rolling(json!({"maxUnavailable": "10%"})), &all), ["-2"]);
        assert_eq!(steps(json!({"updateStrategy": {"type": "OnDelete"}}), &all), [""; 0]);
        assert_eq!(steps(json!({"updateStrategy": {"type": "OnDelete"}}), &all[..2]), ["+2"]);
    }

    #[test]
    fn parallel_policy_leaves_updates_ordered() {
        let parallel = |spec: Value| {
            let mut all = json!({"podManagementPolicy": "Parallel"});
            json_patch::merge(&mut all, &spec);
            all
        };
        assert_eq!(steps(parallel(json!({})), &[]), ["+0", "+1", "+2"]);
        assert_eq!(steps(parallel(json!({})), &[(0, "v2!"), (2, "v2-")]), ["+1"]);
        let one = parallel(json!({"replicas": 1}));
        assert_eq!(steps(one, &[(0, "v2!"), (1, "v2"), (2, "v2")]), ["-2", "-1"]);
        assert_eq!(steps(parallel(json!({})), &[(0, "v1"), (1, "v1!"), (2, "v1")]), [""; 0]);
        let two = parallel(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}));
        assert_eq!(steps(two.clone(), &[(0, "v1"), (1, "v1!"), (2, "v1")]), ["-2"]);
        assert_eq!(steps(two, &[(0, "v1"), (1, "v1"), (2, "v1-")]), ["-1"]);
    }

    #[test]
    fn min_ready_seconds_blocks_next_pod() {
        let set = json!({"minReadySeconds": 10});
        assert_eq!(steps(set, &[(0, "v2")]), [""; 0]);
    }
}
