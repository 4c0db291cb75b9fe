//! Explains a pod termination that this run did not cause, from the pod's conditions, changes to its workload, and the
//! state of its node.

use std::collections::BTreeMap;

use super::pod_lives::{OwningWorkload, T0};
use rolldrop_record::event::{Change, NodeEvent, PodEvent, WorkloadEvent};
use rolldrop_record::{EventKind, Mode, Stamp};

/// Longest delay between one watch showing a consequence and another watch showing its cause.
pub(super) const WATCH_LAG_NS: i64 = 2_000_000_000;
/// Longest time after a scale-down in which a controller removes pods.
const SCALED_NS: i64 = 10_000_000_000;

/// Reason in the condition DisruptionTarget if a kubelet terminated the pod.
pub(super) const BY_KUBELET: &str = "TerminationByKubelet";

/// Cause of a pod's termination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndedBy {
    /// Mode of the termination, as far as is known.
    pub(super) mode: Mode,
    /// Cause in words.
    pub(super) cause: String,
}

/// Nodes over time, each with the changes of its schedulability.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeHistories(BTreeMap<String, Vec<(Stamp, NodeEvent)>>);

impl NodeHistories {
    /// Processes an event that a watch showed at `at`; events must be passed in order.
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        if let EventKind::Node(event) = kind {
            let history = self.0.entry(event.node.clone()).or_default();
            let is_as_before = |(_, last): &(Stamp, NodeEvent)| {
                last.unschedulable == event.unschedulable
                    && (last.change == Change::Deleted) == (event.change == Change::Deleted)
            };
            if !history.last().is_some_and(is_as_before) {
                history.push((at, event.clone()));
            }
        }
    }

    /// Forgets nodes that were deleted before this time.
    pub(super) fn forget_deleted(&mut self, before: Stamp) {
        let is_over = |(at, last): &(Stamp, NodeEvent)| last.change == Change::Deleted && *at < before;
        self.0.retain(|_, history| !history.last().is_some_and(is_over));
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.0.len()
    }

    fn is_cordoned(&self, node: &str, at: Stamp) -> bool {
        let history = self.0.get(node).into_iter().flatten();
        let known = history.take_while(|(seen, _)| seen.ns_since(at) <= WATCH_LAG_NS);
        known.last().is_some_and(|(_, node)| node.unschedulable)
    }
}

/// Desired state of a namespace's workloads over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Histories {
    workloads: BTreeMap<String, Vec<(Stamp, WorkloadEvent)>>,
}

impl Histories {
    /// Processes an event that a watch showed at `at`; events must be passed in order.
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        if let EventKind::Workload(event) = kind {
            self.workloads.entry(event.workload.clone()).or_default().push((at, event.clone()));
        }
    }

    /// Forgets workloads that were deleted before this time.
    pub(super) fn forget_deleted(&mut self, before: Stamp) {
        let is_over = |(at, last): &(Stamp, WorkloadEvent)| last.change == Change::Deleted && *at < before;
        self.workloads.retain(|_, history| !history.last().is_some_and(is_over));
    }

    /// Returns true if nothing is known about any workload.
    pub(super) fn is_empty(&self) -> bool {
        self.workloads.is_empty()
    }

    /// Forgets sizes that a workload had before this time and that no longer explain a termination. Templates are kept
    /// from when the oldest of the workload's pods was first shown: a rollout may end a pod long after it began.
    pub(super) fn forget_old_sizes(
        &mut self,
        workload: &str,
        before: Stamp,
        oldest_pod: impl FnOnce() -> Option<Stamp>,
    ) {
        let Some(history) = self.workloads.get_mut(workload) else { return };
        // The last old state is in force until the first new one.
        let in_force_at = |time: Stamp| history.partition_point(|(at, _)| *at < time).saturating_sub(1);
        let in_force = in_force_at(before);
        if in_force == 0 {
            return;
        }
        let of_pods = in_force_at(oldest_pod().map_or(before, |pod| pod.min(before)));
        let (mut place, mut template) = (0, None);
        history.retain(|(_, event)| {
            let is_new = template.as_ref() != Some(&event.template);
            let is_kept = place == 0 || place >= in_force || (place >= of_pods && is_new);
            place += 1;
            template = Some(event.template.clone());
            is_kept
        });
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.workloads.len()
    }

    #[cfg(test)]
    pub(super) fn sizes_known(&self, workload: &str) -> usize {
        self.workloads[workload].len()
    }

    /// Explains the termination of a pod; `seen` is the time it was first seen. Returns `None` if nothing shows the
    /// reason, because someone deleted the pod or the watches were not permitted.
    pub(super) fn ended_by(
        &self,
        nodes: &NodeHistories,
        pod: &PodEvent,
        seen: Stamp,
        t0: T0,
        ended_by_itself: bool,
    ) -> Option<EndedBy> {
        let told = |mode, cause: String| Some(EndedBy { mode, cause });
        let message = pod.disruption_message.as_deref().filter(|message| !message.is_empty());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        let node = pod.node.as_deref().unwrap_or("its node");
        match pod.disruption_target.as_deref() {
            Some("EvictionByEvictionAPI") if nodes.is_cordoned(node, t0.latest) => {
                return told(Mode::Drain, format!("evicted from node {node}, which is cordoned"));
            }
            Some("EvictionByEvictionAPI") => return told(Mode::Other, "evicted through the API".to_owned()),
            Some("PreemptionByScheduler") => return told(Mode::Other, format!("preempted{message}")),
            Some("DeletionByTaintManager") => {
                return told(Mode::Other, format!("taint on node {node}{message}"));
            }
            Some("DeletionByPodGC") => return told(Mode::Other, format!("node {node} is gone{message}")),
            Some(BY_KUBELET) if pod.reason.as_deref() == Some("Evicted") => {
                return told(Mode::Other, format!("evicted by the kubelet on node {node}{message}"));
            }
            Some(BY_KUBELET) => {
                return told(Mode::NodeShutdown, format!("node {node} is shutting down{message}"));
            }
            Some(reason) => return told(Mode::Other, format!("{reason}{message}")),
            None => {}
        }
        if ended_by_itself {
            return told(Mode::Other, format!("ended on its own: {}", pod.phase));
        }
        let owner = pod.owner.as_deref()?;
        let (mode, cause) = match self.custom_owner(owner) {
            Some(custom) => self.by_replica_sets(owner, custom, t0)?,
            None => self.by_workload(&workload_of(owner)?, seen, t0)?,
        };
        told(mode, cause)
    }

    /// Returns the state of a pod's workload at `at`; `None` if no watch showed it.
    pub(super) fn workload(&self, pod: &PodEvent, at: Stamp) -> Option<OwningWorkload> {
        let owner = pod.owner.as_deref().filter(|owner| self.custom_owner(owner).is_none())?;
        let history = self.workloads.get(&workload_of(owner)?)?;
        let known = history.iter().take_while(|(seen, _)| seen.ns_since(at) <= WATCH_LAG_NS);
        let (_, event) = known.last()?;
        Some(OwningWorkload {
            name: event.workload.replace('/', " "),
            replicas: event.replicas,
            strategy: event.strategy,
            max_unavailable: event.max_unavailable.clone(),
        })
    }

    /// Returns the workload at the top of a pod's owners, such as `Deployment web`; `None` for a pod without a
    /// controller.
    pub(super) fn top_owner(&self, pod: &PodEvent) -> Option<String> {
        let owner = pod.owner.as_deref()?;
        let set = self.workloads.get(owner).filter(|_| owner.starts_with("ReplicaSet/"));
        let top = match set.and_then(|history| history.last()) {
            Some((_, set)) => set.owner.clone(),
            // If ReplicaSets are not watched, their names show the Deployment.
            None => workload_of(owner),
        };
        Some(top.unwrap_or_else(|| owner.to_owned()).replace('/', " "))
    }

    /// Returns the changes to workloads other than ReplicaSets, in order: the time a watch showed each change, and the
    /// state before and after.
    pub(super) fn changes_of_workloads(&self) -> Vec<(Stamp, &WorkloadEvent, &WorkloadEvent)> {
        let histories = self.workloads.iter().filter(|(name, _)| !name.starts_with("ReplicaSet/"));
        let steps = histories.flat_map(|(_, history)| history.iter().zip(history.iter().skip(1)));
        let mut changes: Vec<_> = steps.map(|((_, before), (at, after))| (*at, before, after)).collect();
        changes.retain(|(_, _, after)| after.change != Change::Deleted);
        changes.sort_by_key(|(at, ..)| *at);
        changes
    }

    /// Explains the termination by changes to a workload.
    fn by_workload(&self, workload: &str, seen: Stamp, t0: T0) -> Option<(Mode, String)> {
        let history = self.workloads.get(workload)?;
        let shown = history.partition_point(|(at, _)| at.ns_since(t0.latest) <= WATCH_LAG_NS);
        let history = &history[..shown];
        let in_force = |at: Stamp| history.partition_point(|(shown, _)| *shown <= at).saturating_sub(1);
        let own = &history.get(in_force(seen))?.1.template;
        // A pod with the template in force may have survived a rollout that was rolled back.
        let since = in_force(t0.earliest.shifted_ns(-WATCH_LAG_NS).max(seen));
        let is_outdated = history[since..].iter().any(|(_, state)| state.template != *own);
        let steps = || history.iter().zip(history.iter().skip(1));
        let changed = steps().rfind(|((_, before), (_, after))| before.template != after.template);
        let shrunk = steps().rev().find_map(|((_, before), (at, after))| {
            let (from, to) = before.replicas.zip(after.replicas)?;
            (from > to && t0.earliest.ns_since(*at) <= SCALED_NS).then_some((*at, from, to))
        });
        let name = workload.replace('/', " ");
        // A StatefulSet may keep pods with an old template for good: by a partition, or by the strategy OnDelete.
        let may_keep = |at: Stamp| {
            workload.starts_with("StatefulSet/") && changed.is_none_or(|(_, (changed, _))| *changed < at)
        };
        match shrunk {
            Some((at, from, to)) if !is_outdated || may_keep(at) => {
                Some((Mode::ScaleDown, format!("{name} was scaled from {from} to {to}")))
            }
            _ => is_outdated.then(|| (Mode::Rollout, format!("rollout of {name}"))),
        }
    }

    /// Returns a ReplicaSet's controller if it is not a Deployment but some custom kind, such as an Argo Rollout.
    fn custom_owner(&self, owner: &str) -> Option<&str> {
        let (_, set) = self.workloads.get(owner).filter(|_| owner.starts_with("ReplicaSet/"))?.last()?;
        set.owner.as_deref().filter(|owner| !owner.starts_with("Deployment/"))
    }

    /// Explains the termination by a controller's changes to its ReplicaSets. In a rollout, another ReplicaSet grows.
    fn by_replica_sets(&self, own: &str, controller: &str, t0: T0) -> Option<(Mode, String)> {
        // Last resize in the given direction before the pod's termination.
        let resized = |set: &str, is_meant: fn(i32, i32) -> bool| {
            let history = self.workloads.get(set)?;
            let sizes = history.iter().map(|(at, event)| (*at, event.replicas.unwrap_or(0)));
            // A ReplicaSet created during the run has grown from zero.
            let made = history.first().filter(|(_, event)| event.change == Change::Applied);
            let sizes: Vec<(Stamp, i32)> = made.map(|(at, _)| (*at, 0)).into_iter().chain(sizes).collect();
            let steps = sizes.windows(2).map(|two| (two[1].0, two[0].1, two[1].1));
            let mut known = steps.filter(|(at, ..)| at.ns_since(t0.latest) <= WATCH_LAG_NS);
            known.rfind(|(_, from, to)| is_meant(*from, *to))
        };
        let (shrunk_at, from, to) = resized(own, |from, to| to < from)?;
        if t0.earliest.ns_since(shrunk_at) > SCALED_NS {
            return None;
        }
        let name = controller.replace('/', " ");
        let of_controller = |history: &[(Stamp, WorkloadEvent)]| {
            history.last().is_some_and(|(_, set)| set.owner.as_deref() == Some(controller))
        };
        let mut others = self.workloads.iter().filter(|(set, history)| *set != own && of_controller(history));
        Some(match others.any(|(set, _)| resized(set, |from, to| to > from).is_some()) {
            true => (Mode::Rollout, format!("rollout of {name}")),
            false => (Mode::ScaleDown, format!("{name} was scaled from {from} to {to}")),
        })
    }
}

/// Returns the workload behind a pod's controller. A Deployment's pods belong to its ReplicaSets, whose names consist
/// of the Deployment's name and a hash.
pub(super) fn workload_of(owner: &str) -> Option<String> {
    let (kind, name) = owner.split_once('/')?;
    match kind {
        "ReplicaSet" => Some(format!("Deployment/{}", name.rsplit_once('-')?.0)),
        _ => Some(owner.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::T0Basis;
    use rolldrop_record::event::Replacement;

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns(s * 1_000_000_000)
    }

    fn pod(more: serde_json::Value) -> PodEvent {
        let mut pod = json!({
            "change": "applied", "namespace": "shop", "name": "web-7d9f-x", "uid": "u",
            "resource_version": "1", "node": "n1", "ip": null, "phase": "Running", "ready": true,
            "deletion_timestamp": null, "deletion_grace_s": null, "grace_s": 30,
            "disruption_target": null, "containers": [], "owner": "ReplicaSet/web-7d9f",
        });
        for (name, value) in more.as_object().unwrap() {
            pod[name] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn workload_state_is_taken_at_pod_termination() {
        let mut histories = Histories::default();
        for (s, strategy) in [(0, "Recreate"), (20, "RollingUpdate")] {
            let event = json!({"change": "applied", "workload": "Deployment/web", "replicas": 3,
                "template": "a", "strategy": strategy});
            histories.observe(at(s), &EventKind::Workload(serde_json::from_value(event).unwrap()));
        }
        let strategy = |s| histories.workload(&pod(json!({})), at(s)).unwrap().strategy;
        assert_eq!(strategy(10), Some(Replacement::Recreate));
        assert_eq!(strategy(30), Some(Replacement::RollingUpdate));
        assert_eq!(histories.workload(&pod(json!({"owner": "ReplicaSet/other-1"})), at(10)), None);
    }

    #[test]
    fn cluster_evidence_decides_termination_cause() {
        let mut histories = Histories::default();
        let mut web = |s, replicas: i32, template: &str| {
            let event = json!({"change": "applied", "workload": "Deployment/web", "replicas": replicas,
                "template": template});
            histories.observe(at(s), &EventKind::Workload(serde_json::from_value(event).unwrap()));
        };
        web(0, 3, "a");
        web(20, 2, "a");
        web(50, 2, "b");
        let mut nodes = NodeHistories::default();
        for (node, unschedulable) in [("n1", false), ("n2", true)] {
            let event =
                json!({"change": "listed", "node": node, "ready": true, "unschedulable": unschedulable});
            nodes.observe(at(1), &EventKind::Node(serde_json::from_value(event).unwrap()));
        }
        let told = |more, seen, s, by_itself| {
            let explained = histories.ended_by(
                &nodes,
                &pod(more),
                at(seen),
                T0 { earliest: at(s), latest: at(s), basis: T0Basis::Timestamp },
                by_itself,
            );
            explained.map(|explained| (explained.mode, explained.cause))
        };
        let known = |mode: Mode, cause: &str| Some((mode, cause.to_owned()));
        let plain = || json!({});
        assert_eq!(told(plain(), 0, 10, false), None, "someone deleted it");
        assert_eq!(
            told(plain(), 0, 21, false),
            known(Mode::ScaleDown, "Deployment web was scaled from 3 to 2")
        );
        assert_eq!(told(plain(), 0, 40, false), None, "long after that");
        assert_eq!(told(plain(), 0, 55, false), known(Mode::Rollout, "rollout of Deployment web"));
        assert_eq!(told(plain(), 52, 55, false), None, "it has the new template");
        assert_eq!(told(json!({"owner": "ReplicaSet/other-1"}), 0, 55, false), None);
        let job = json!({"owner": "Job/once", "phase": "Succeeded"});
        assert_eq!(told(job, 0, 5, true), known(Mode::Other, "ended on its own: Succeeded"));
        let target = |reason: &str, node: &str| json!({"disruption_target": reason, "disruption_message": "so it is", "node": node});
        for (reason, node, mode, cause) in [
            ("EvictionByEvictionAPI", "n1", Mode::Other, "evicted through the API"),
            ("EvictionByEvictionAPI", "n2", Mode::Drain, "evicted from node n2, which is cordoned"),
            ("PreemptionByScheduler", "n1", Mode::Other, "preempted: so it is"),
            ("DeletionByTaintManager", "n1", Mode::Other, "taint on node n1: so it is"),
            ("DeletionByPodGC", "n1", Mode::Other, "node n1 is gone: so it is"),
            ("TerminationByKubelet", "n1", Mode::NodeShutdown, "node n1 is shutting down: so it is"),
        ] {
            assert_eq!(told(target(reason, node), 0, 55, false), known(mode, cause));
        }
        let mut evicted = target("TerminationByKubelet", "n1");
        evicted["reason"] = "Evicted".into();
        let cause = "evicted by the kubelet on node n1: so it is";
        assert_eq!(told(evicted, 0, 5, true), known(Mode::Other, cause));
    }

    #[test]
    fn scale_down_after_rollback_is_no_rollout() {
        let told = |workload: &str, states: &[(i64, i32, &str)], seen: i64, s: i64| {
            let mut histories = Histories::default();
            for (s, replicas, template) in states {
                let event = json!({"change": "applied", "workload": workload, "replicas": replicas,
                    "template": template});
                histories.observe(at(*s), &EventKind::Workload(serde_json::from_value(event).unwrap()));
            }
            let t0 = T0 { earliest: at(s), latest: at(s), basis: T0Basis::Timestamp };
            let owner = workload.replace("Deployment/web", "ReplicaSet/web-7d9f");
            let pod = pod(json!({"owner": owner}));
            let explained = histories.ended_by(&NodeHistories::default(), &pod, at(seen), t0, false);
            explained.map(|explained| explained.mode)
        };
        let (deployment, set) = ("Deployment/web", "StatefulSet/db");
        let rolled_back = [(0, 4, "a"), (100, 4, "b"), (200, 4, "a"), (900, 3, "a")];
        for (seen, s, mode) in [
            (0, 110, Some(Mode::Rollout)),
            (0, 201, Some(Mode::Rollout)),
            (0, 300, None),
            (0, 901, Some(Mode::ScaleDown)),
            (150, 210, Some(Mode::Rollout)),
            (201, 901, Some(Mode::ScaleDown)),
        ] {
            assert_eq!(told(deployment, &rolled_back, seen, s), mode, "{seen} {s}");
        }
        assert_eq!(told(deployment, &[(0, 4, "a"), (50, 4, "b")], 51, 52), None, "it has the new template");
        // A partition, or the strategy OnDelete, keeps pods with the old template.
        let kept = [(0, 4, "a"), (100, 4, "b"), (900, 3, "b")];
        assert_eq!(told(set, &kept, 0, 901), Some(Mode::ScaleDown));
        assert_eq!(told(set, &kept, 0, 950), Some(Mode::Rollout), "long after the scale-down");
        assert_eq!(told(set, &[(0, 4, "a"), (100, 3, "b")], 0, 101), Some(Mode::Rollout));
        assert_eq!(told(deployment, &kept, 0, 901), Some(Mode::Rollout), "its rollout lasts that long");
    }

    #[test]
    fn replica_sets_reveal_custom_rollout() {
        let histories = |sizes: &[(i64, &str, i32, &str)]| {
            let mut histories = Histories::default();
            for (s, set, replicas, change) in sizes {
                let event = json!({"change": change, "workload": format!("ReplicaSet/{set}"),
                    "replicas": replicas, "template": set, "owner": "Rollout/web"});
                histories.observe(at(*s), &EventKind::Workload(serde_json::from_value(event).unwrap()));
            }
            histories
        };
        let told = |sizes: &[(i64, &str, i32, &str)], s: i64| {
            let t0 = T0 { earliest: at(s), latest: at(s), basis: T0Basis::Timestamp };
            let explained =
                histories(sizes).ended_by(&NodeHistories::default(), &pod(json!({})), at(0), t0, false);
            explained.map(|explained| (explained.mode, explained.cause))
        };
        let listed = (0, "web-7d9f", 3, "listed");
        let rollout = [listed, (10, "web-55aa", 1, "applied"), (12, "web-7d9f", 2, "applied")];
        assert_eq!(told(&rollout, 12), Some((Mode::Rollout, "rollout of Rollout web".to_owned())));
        let scaled = [listed, (0, "web-55aa", 0, "listed"), (12, "web-7d9f", 2, "applied")];
        let cause = "Rollout web was scaled from 3 to 2".to_owned();
        assert_eq!(told(&scaled, 12), Some((Mode::ScaleDown, cause)));
        assert_eq!(told(&scaled, 60), None, "long after that");
        assert_eq!(told(&[listed], 12), None, "someone deleted it");
    }
}
