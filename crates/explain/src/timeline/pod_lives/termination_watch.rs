//! Pod terminations outside a run, one after another, derived only from what watches show.
//!
//! The code for runs finds t0, mode and cause ([`super::t0`], [`super::pod_termination`]); without actions and proxies,
//! it has less evidence. Nothing that the API does not show is assumed; such facts are `None`.

use std::collections::{BTreeMap, BTreeSet};

use super::super::beat_bounds::{BeatCollector, Beats, BeatsState};
use super::super::clocks::{API_SERVER, Clocks};
use super::super::endpoint_history::EndpointHistory;
use super::super::phases::{LifeOf, PhaseCollector};
use super::super::termination_cause::{BY_KUBELET, Histories, NodeHistories, WATCH_LAG_NS, workload_of};
use super::super::watches::{SHOWN_WITHIN_NS, UnwatchedPeriod, WatchCollector};
use super::pod_termination::{TerminationEvidence, TerminationSearch};
use super::watched_pod::{STATUS_UNKNOWN, WatchedPod, has_finished};
use super::{PodEnd, SECOND_NS};
use crate::model::{ContainerEnd, GraceUse, WatchedMode, WatchedTermination};
use rolldrop_record::event::{Change, ContainerState, PodEvent};
use rolldrop_record::{ClockOffset, EventKind, Mode, Stamp};

/// Time for which beats are kept; those around the deletions of pods that still exist are kept longer.
const BEATS_KEPT_NS: i64 = 600 * SECOND_NS;
/// Time after which sizes of workloads, deleted workloads and nodes, and gaps are forgotten.
const STATES_KEPT_NS: i64 = 3600 * SECOND_NS;
/// Number of samples of the API server's clock to keep.
const SAMPLES: usize = 6;
/// Reason of the Event about a failed preStop hook.
const FAILED_HOOK: &str = "FailedPreStopHook";
/// Name of the Events watch.
const EVENTS: &str = "events";

/// Collects what watches show about pods, workloads, nodes and Events, and returns each termination once.
#[derive(Debug, Default)]
pub struct TerminationWatch {
    pods: BTreeMap<String, FollowedPod>,
    /// Workloads by namespace.
    workloads: BTreeMap<String, Histories>,
    nodes: NodeHistories,
    watches: WatchCollector,
    beats: BeatCollector,
    /// Usability of the beats when terminations last settled.
    beats_state: BeatsState,
    /// Offsets of the API server's clock, each with the time of its sample.
    samples: Vec<(Stamp, ClockOffset)>,
    /// True if watching Events is not permitted.
    lacks_events: bool,
}

/// Pod that has not been deleted yet, or only just has.
#[derive(Debug)]
struct FollowedPod {
    pod: WatchedPod,
    /// True if any of its containers was ever shown as started.
    has_run: bool,
    /// Time at which the pod was first shown as not ready after it was shown as being deleted.
    unready: Option<Stamp>,
    /// Failed preStop hooks: time of the Event, and container.
    failed_hooks: Vec<(Stamp, String)>,
    /// True if the pod's termination was explained, or the watch began after the end of the pod's containers.
    is_reported: bool,
}

impl FollowedPod {
    fn new(at: Stamp, event: &PodEvent) -> Self {
        Self {
            pod: WatchedPod::new(at, event),
            has_run: false,
            unready: None,
            failed_hooks: Vec::new(),
            is_reported: event.change == Change::Listed && has_finished(event),
        }
    }

    fn observe(&mut self, at: Stamp, event: &PodEvent) {
        self.pod.observe(at, event);
        let is = |container: &ContainerState, state: &str| container.state.as_deref() == Some(state);
        self.has_run |= event.containers.iter().any(|c| is(c, "running") || is(c, "terminated"));
        if event.deletion_timestamp.is_some() && !event.ready {
            self.unready.get_or_insert(at);
        }
    }

    /// Returns true if the pod finished without being deleted, and nothing shows that the cluster terminated it.
    fn ended_by_itself(&self) -> bool {
        let deletion = self.pod.deletion.as_ref().map(|deletion| deletion.seen);
        let is_first = self.pod.terminal.is_some_and(|at| deletion.is_none_or(|seen| at < seen));
        is_first && self.pod.last.disruption_target.is_none()
    }

    /// Returns the time at which the pod was gone: deleted, lost in one of the gaps, or terminated by its kubelet,
    /// which does not delete pods.
    fn over(&self, gaps: &[(Stamp, Stamp)]) -> Option<Stamp> {
        let lost = gaps.iter().find(|(_, to)| *to > self.pod.last_at).map(|(_, to)| *to);
        let is_by_kubelet = self.pod.last.disruption_target.as_deref() == Some(BY_KUBELET);
        let stopped = self.pod.terminal.filter(|_| is_by_kubelet && !self.is_reported);
        self.pod.deleted.or(lost).or(stopped)
    }

    /// Returns the time, in seconds, for which watches showed the pod as ready after its deletion; `None` if they did
    /// not show the deletion itself.
    fn ready_s(&self) -> Option<f64> {
        let seen = self.pod.deletion.as_ref().filter(|deletion| deletion.is_exact)?.seen;
        Some(self.unready.or(self.pod.deleted)?.seconds_since(seen))
    }
}

impl TerminationWatch {
    /// Processes an event; events must be passed in the order in which the watches delivered them. `namespace` is the
    /// namespace of the object that the event is about.
    pub fn observe(&mut self, at: Stamp, namespace: Option<&str>, kind: &EventKind) {
        self.watches.observe(at, kind);
        self.beats.observe(at, kind);
        let namespace = namespace.unwrap_or_default();
        match kind {
            EventKind::Pod(pod) => {
                let followed = self.pods.entry(pod.uid.clone());
                followed.or_insert_with(|| FollowedPod::new(at, pod)).observe(at, pod);
            }
            EventKind::Workload(event) => {
                let histories = self.workloads.entry(namespace.to_owned()).or_default();
                histories.observe(at, kind);
                let is_own = |of: &&FollowedPod| {
                    let owner = of.pod.last.owner.as_deref().and_then(workload_of);
                    of.pod.last.namespace == namespace && owner.as_ref() == Some(&event.workload)
                };
                let oldest_pod = || self.pods.values().filter(is_own).map(|of| of.pod.life.created).min();
                histories.forget_old_sizes(&event.workload, at.shifted_ns(-STATES_KEPT_NS), oldest_pod);
            }
            EventKind::Node(_) => self.nodes.observe(at, kind),
            EventKind::ClusterEvent { pod, reason, container, .. } if reason == FAILED_HOOK => {
                let is_meant = |of: &&mut FollowedPod| {
                    of.pod.life.name == *pod && of.pod.last.namespace == namespace && of.pod.deleted.is_none()
                };
                let container = container.clone().unwrap_or_default();
                let of = self.pods.values_mut().filter(is_meant).max_by_key(|of| of.pod.life.created);
                if let Some(of) = of {
                    of.failed_hooks.push((at, container));
                }
            }
            EventKind::ClockSample { of, offset_ns, uncertainty_ns } if of == API_SERVER => {
                if self.samples.len() >= SAMPLES {
                    self.samples.remove(0);
                }
                let offset = ClockOffset { offset_ns: *offset_ns, uncertainty_ns: *uncertainty_ns };
                self.samples.push((at, offset));
            }
            EventKind::NotWatched { resource, .. } => self.lacks_events |= resource == EVENTS,
            _ => {}
        }
    }

    /// Returns the number of pods that are being deleted now, by namespace and workload.
    pub fn terminating(&self) -> BTreeMap<(String, Option<String>), u64> {
        let is_leaving = |of: &&FollowedPod| {
            of.has_run && of.pod.deletion.is_some() && !of.is_reported && !of.ended_by_itself()
        };
        let (mut pods, none) = (BTreeMap::new(), Histories::default());
        for of in self.pods.values().filter(is_leaving) {
            let pod = &of.pod.last;
            let workload = self.workloads.get(&pod.namespace).unwrap_or(&none).top_owner(pod);
            *pods.entry((pod.namespace.clone(), workload)).or_default() += 1;
        }
        pods
    }

    /// Returns the time up to which [`Self::settled`] has returned all terminations, provided that it was called after
    /// `alive`, the time of the pod watch's last sign of life. Returns `None` until the API server's clock is known.
    pub fn complete_until(&self, alive: Stamp) -> Option<Stamp> {
        (!self.samples.is_empty()).then(|| alive.shifted_ns(-WATCH_LAG_NS))
    }

    /// Returns the usability of the beats when terminations last settled.
    pub fn beats_state(&self) -> &BeatsState {
        &self.beats_state
    }

    /// Returns the terminations that were complete some time before `now`; until then, other watches may still show
    /// what explains them. Returns each termination once, and none before the API server's clock is known.
    pub fn settled(&mut self, now: Stamp) -> Vec<WatchedTermination> {
        let Some(clocks) = Clocks::of_api_server(&self.samples) else { return Vec::new() };
        let gaps = self.watches.pods_missed();
        let is_settled = |of: &FollowedPod| of.over(&gaps).is_some_and(|at| now.ns_since(at) >= WATCH_LAG_NS);
        let over: Vec<String> =
            self.pods.iter().filter(|(_, of)| is_settled(of)).map(|(uid, _)| uid.clone()).collect();
        let mut found = Vec::new();
        // Judging the beats takes some time.
        let beats = if over.is_empty() { Beats::default() } else { self.beats.judged() };
        if !over.is_empty() {
            self.beats_state = beats.state.clone();
        }
        for uid in over {
            let Some(mut of) = self.pods.remove(&uid) else { continue };
            if !of.is_reported {
                found.extend(self.explain(&of, &clocks, &beats, &gaps));
            }
            of.is_reported = true;
            // A pod that its kubelet terminated is deleted later.
            if of.over(&gaps).is_none() {
                self.pods.insert(uid, of);
            }
        }
        self.forget(now);
        found.sort_by(|a, b| (a.t0_earliest_ns, &a.pod).cmp(&(b.t0_earliest_ns, &b.pod)));
        found
    }

    /// Forgets what can no longer explain a termination, so that a watch of any length needs little memory.
    fn forget(&mut self, now: Stamp) {
        let deletions = || self.pods.values().filter_map(|of| of.pod.deletion.as_ref());
        let versions = deletions().map(|deletion| deletion.version.as_str());
        self.beats.forget_before(now.shifted_ns(-BEATS_KEPT_NS), versions);
        // A pod with a long grace period is explained long after its deletion.
        let oldest = deletions().map(|deletion| deletion.seen).min().map_or(now, |seen| seen.min(now));
        self.watches.forget_before(oldest.shifted_ns(-STATES_KEPT_NS));
        let before = now.shifted_ns(-STATES_KEPT_NS);
        self.nodes.forget_deleted(before);
        self.workloads.retain(|_, histories| {
            histories.forget_deleted(before);
            !histories.is_empty()
        });
    }

    /// Explains a pod's termination; `None` if the pod never ran, or finished on its own.
    fn explain(
        &self,
        of: &FollowedPod,
        clocks: &Clocks,
        beats: &Beats,
        gaps: &[(Stamp, Stamp)],
    ) -> Option<WatchedTermination> {
        if !of.has_run || of.ended_by_itself() {
            return None;
        }
        let pod = &of.pod;
        let none = Histories::default();
        let histories = self.workloads.get(&pod.last.namespace).unwrap_or(&none);
        let evidence = TerminationEvidence {
            clocks,
            beats,
            endpoints: &EndpointHistory::default(),
            actions: Vec::new(),
            commands: &[],
            histories,
            nodes: &self.nodes,
            phases: &PhaseCollector::default(),
            gaps: gaps.to_vec(),
        };
        let life = LifeOf { name: &pod.life.name, uid: &pod.life.uid, from: pod.life.created, until: None };
        let end = TerminationSearch { evidence: &evidence, pod, life }.find()?;
        let grace_use = self.grace_use(of, &end);
        let is_eviction = match pod.last.disruption_target.as_deref() {
            Some("EvictionByEvictionAPI") => true,
            Some(BY_KUBELET) => pod.last.reason.as_deref() == Some("Evicted"),
            _ => false,
        };
        Some(WatchedTermination {
            namespace: pod.last.namespace.clone(),
            workload: histories.top_owner(&pod.last),
            mode: match end.mode {
                Mode::Other if is_eviction => WatchedMode::Eviction,
                mode => mode.into(),
            },
            t0_earliest_ns: end.t0.earliest,
            t0_latest_ns: end.t0.latest,
            t0_basis: end.t0.basis,
            has_beats: beats.state != BeatsState::Absent,
            grace_s: end.grace_s,
            pre_stop_sleep_s: end.hook_sleep_s,
            ended_ns: pod.all_ended,
            killed_at_grace_end: end.killed_at_grace_end(|at| self.delayed_by(at)),
            grace_use,
            failed_hooks: self.failed_hooks(of, &end),
            ready_while_terminating_s: of.ready_s(),
            traffic: None,
            restarts: pod.last.containers.iter().map(|c| c.restarts).sum(),
            containers: pod.last.containers.iter().map(container_end).collect(),
            cause: end.cause.map(|cause| cause.to_string()),
            pod: end.pod,
            uid: end.uid,
            node: end.node,
        })
    }

    /// Returns the gap in the pod watch that may have delayed an event shown at `at`.
    fn delayed_by(&self, at: Stamp) -> Option<&UnwatchedPeriod> {
        self.watches.gaps.iter().find(|gap| gap.is_of_pods() && gap.may_delay(at))
    }

    /// Returns the earliest time at which the containers may have terminated.
    fn may_have_ended_from(&self, shown: Stamp) -> Stamp {
        let on_time = shown.shifted_ns(-SHOWN_WITHIN_NS);
        self.delayed_by(shown).map_or(on_time, |gap| gap.may_have_ended_from(shown))
    }

    /// Returns the part of the grace period that the containers used; `None` if the end of the containers or the start
    /// of the period is unknown.
    fn grace_use(&self, of: &FollowedPod, end: &PodEnd) -> Option<GraceUse> {
        let shown = of.pod.all_ended.filter(|_| end.t0.basis.is_deletion())?;
        let since = |at: Stamp, t0: Stamp| at.seconds_since(t0).max(0.0);
        Some(GraceUse {
            least_s: since(self.may_have_ended_from(shown), end.t0.latest),
            likely_s: since(shown, end.t0.latest),
            most_s: since(shown, end.t0.earliest),
        })
    }

    /// Returns the containers whose preStop hooks failed; `None` if Events were not watched throughout.
    fn failed_hooks(&self, of: &FollowedPod, end: &PodEnd) -> Option<BTreeSet<String>> {
        let from = end.t0.earliest.shifted_ns(-WATCH_LAG_NS);
        let until = of.pod.last_at.shifted_ns(WATCH_LAG_NS);
        let is_missed = |gap: &UnwatchedPeriod| {
            gap.is_lost && gap.resource == EVENTS && gap.from <= until && from <= gap.to
        };
        let began_unseen = of.pod.deletion.as_ref().is_some_and(|deletion| !deletion.is_exact);
        if self.lacks_events || began_unseen || self.watches.gaps.iter().any(is_missed) {
            return None;
        }
        let failed = of.failed_hooks.iter().filter(|(at, _)| *at >= from);
        Some(failed.map(|(_, container)| container.clone()).collect())
    }
}

fn container_end(container: &ContainerState) -> ContainerEnd {
    let is_made_up = container.reason.as_deref() == Some(STATUS_UNKNOWN);
    ContainerEnd {
        name: container.name.clone(),
        sidecar: container.sidecar,
        exit_code: container.exit_code.filter(|_| !is_made_up),
        reason: container.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::SIGKILLED;
    use super::super::watched_pod::OOM_KILLED;
    use super::*;
    use crate::model::T0Basis;
    use crate::model::account::Objection;

    const NAMESPACE: Option<&str> = Some("shop");

    fn at(s: f64) -> Stamp {
        Stamp::from_unix_ns(0) + Duration::from_secs_f64(s)
    }

    /// Returns watches of a cluster whose clock is known, with a Deployment `web` and a pod that has run since the
    /// first second.
    fn watch() -> (TerminationWatch, Value) {
        let mut watch = TerminationWatch::default();
        let clock = EventKind::clock_sample(API_SERVER, ClockOffset { offset_ns: 0, uncertainty_ns: 1_000 });
        watch.observe(at(0.0), None, &clock);
        deploy(&mut watch, 0.5, 2, "a");
        let app = json!({"name": "app", "sidecar": false, "pre_stop_sleep_s": null, "pre_stop_other": false,
            "state": "running", "reason": null, "exit_code": null, "restarts": 1});
        let pod = json!({"change": "listed", "namespace": "shop", "name": "web-7d9f-x", "uid": "u",
            "resource_version": "1", "node": "n1", "ip": null, "phase": "Running", "ready": true,
            "deletion_timestamp": null, "deletion_grace_s": null, "grace_s": 10, "disruption_target": null,
            "owner": "ReplicaSet/web-7d9f", "containers": [app]});
        show(&mut watch, 1.0, &pod);
        (watch, pod)
    }

    fn deploy(watch: &mut TerminationWatch, s: f64, replicas: i32, template: &str) {
        let event = json!({"change": "applied", "workload": "Deployment/web", "replicas": replicas,
            "template": template});
        watch.observe(at(s), NAMESPACE, &EventKind::Workload(serde_json::from_value(event).unwrap()));
    }

    fn show(watch: &mut TerminationWatch, s: f64, pod: &Value) {
        let event = serde_json::from_value(pod.clone()).unwrap();
        watch.observe(at(s), NAMESPACE, &EventKind::Pod(event));
    }

    /// Shows a deletion with a grace period of ten seconds.
    fn delete(watch: &mut TerminationWatch, s: f64, pod: &mut Value) {
        pod["change"] = "applied".into();
        pod["deletion_grace_s"] = 10.into();
        pod["deletion_timestamp"] = json!(at(s.floor() + 10.0));
        show(watch, s, pod);
    }

    /// Shows the end of the container, and then the end of the pod.
    fn end(watch: &mut TerminationWatch, s: f64, pod: &mut Value, code: i32, reason: &str) {
        pod["containers"][0]["state"] = "terminated".into();
        pod["containers"][0]["exit_code"] = code.into();
        pod["containers"][0]["reason"] = reason.into();
        pod["ready"] = false.into();
        show(watch, s, pod);
        pod["deletion_grace_s"] = 0.into();
        pod["change"] = "deleted".into();
        show(watch, s + 0.5, pod);
    }

    fn one(watch: &mut TerminationWatch, s: f64) -> WatchedTermination {
        let mut settled = watch.settled(at(s));
        assert_eq!(settled.len(), 1, "{settled:?}");
        assert!(watch.settled(at(s + 1000.0)).is_empty(), "each is returned once");
        settled.remove(0)
    }

    #[test]
    fn kill_at_grace_end_is_recognised() {
        for (ended, code, reason, killed) in [
            (30.3, SIGKILLED, "Error", Some(true)),
            (24.0, SIGKILLED, "Error", Some(false)),
            (30.3, SIGKILLED, OOM_KILLED, Some(false)),
            (30.3, SIGKILLED, STATUS_UNKNOWN, None),
            (29.8, 143, "Error", Some(false)),
        ] {
            let (mut watch, mut pod) = watch();
            deploy(&mut watch, 19.9, 2, "b");
            delete(&mut watch, 20.3, &mut pod);
            assert_eq!(watch.terminating().into_values().sum::<u64>(), 1);
            end(&mut watch, ended, &mut pod, code, reason);
            assert!(watch.settled(at(ended + 1.0)).is_empty(), "its Events may still arrive");
            let found = one(&mut watch, ended + 10.0);
            assert_eq!(found.killed_at_grace_end, killed, "{reason} {code} {ended}");
            assert_eq!((found.mode, found.grace_s, found.restarts), (WatchedMode::Rollout, 10, 1));
            assert_eq!(found.workload.as_deref(), Some("Deployment web"));
            assert_eq!((found.t0_latest_ns, found.t0_basis), (at(20.3), T0Basis::Timestamp));
            let used = found.grace_use.unwrap();
            assert!(used.least_s <= used.likely_s && used.likely_s <= used.most_s, "{used:?}");
            assert!((used.likely_s - (ended - 20.3)).abs() < 1e-6, "{used:?}");
            assert_eq!(found.failed_hooks, Some(BTreeSet::new()));
            let code = Some(code).filter(|_| reason != STATUS_UNKNOWN);
            assert_eq!(found.containers[0].exit_code, code);
            assert!((found.ready_while_terminating_s.unwrap() - (ended - 20.3)).abs() < 1e-6);
        }
    }

    #[test]
    fn kill_after_restart_is_recognised() {
        for states in [&["running"][..], &["waiting", "terminated", "running"]] {
            let (mut watch, mut pod) = watch();
            for (s, state) in [&["terminated"][..], states].concat().into_iter().enumerate() {
                pod["containers"][0]["state"] = state.into();
                pod["containers"][0]["exit_code"] = (state == "terminated").then_some(1).into();
                show(&mut watch, 5.0 + s as f64, &pod);
            }
            delete(&mut watch, 20.3, &mut pod);
            end(&mut watch, 30.3, &mut pod, SIGKILLED, "Error");
            let found = one(&mut watch, 40.0);
            assert_eq!((found.killed_at_grace_end, found.ended_ns), (Some(true), Some(at(30.3))));
            assert!((found.grace_use.unwrap().likely_s - 10.0).abs() < 1e-6, "{:?}", found.grace_use);
        }
    }

    #[test]
    fn unseen_termination_details_stay_unknown() {
        // The pod vanished between two lists, and its Deployment still exists.
        let (mut watch, mut other) = watch();
        let gap = EventKind::WatchGap { resource: "pods".to_owned(), from: at(20.0) };
        watch.observe(at(50.0), None, &gap);
        other["uid"] = "v".into();
        show(&mut watch, 50.1, &other);
        let lost = one(&mut watch, 60.0);
        assert_eq!((lost.uid.as_str(), lost.t0_basis, lost.mode), ("u", T0Basis::Gap, WatchedMode::Other));
        assert_eq!((lost.t0_earliest_ns, lost.t0_latest_ns), (at(20.0), at(50.0)));
        assert_eq!((lost.grace_use, lost.killed_at_grace_end, lost.ended_ns), (None, None, None));

        // The watch showed the end late: SIGKILL may have come before the end of the grace period.
        let (mut watch, mut pod) = self::watch();
        delete(&mut watch, 20.0, &mut pod);
        let gap = EventKind::WatchLate { resource: "pods".to_owned(), from: at(22.0) };
        watch.observe(at(50.0), None, &gap);
        end(&mut watch, 50.1, &mut pod, SIGKILLED, "Error");
        let late = one(&mut watch, 60.0);
        assert_eq!(late.killed_at_grace_end, None);
        let used = late.grace_use.unwrap();
        assert!(used.least_s < 1.0 && used.most_s > 29.0, "{used:?}");

        let (mut watch, mut pod) = self::watch();
        let why = String::new();
        watch.observe(at(1.0), None, &EventKind::NotWatched { resource: EVENTS.to_owned(), why });
        delete(&mut watch, 20.0, &mut pod);
        end(&mut watch, 21.0, &mut pod, 0, "Completed");
        assert_eq!(one(&mut watch, 60.0).failed_hooks, None, "Events were not watched");
    }

    /// Writes a number of beats every 100 ms from `from_s` on, with every tenth version from `version` on, each
    /// followed by a check whose version is `ahead` of the beat's.
    fn beat(watch: &mut TerminationWatch, ((from_s, number), version, ahead): ((f64, i32), i64, i64)) {
        for n in 0..number {
            let (sent, version) = (from_s + f64::from(n) / 10.0, version + 10 * i64::from(n));
            let beat = EventKind::Beat { answered: at(sent + 0.01), version: version.to_string() };
            watch.observe(at(sent), None, &beat);
            let version = (version + ahead).to_string();
            let check = EventKind::BeatCheck { answered: at(sent + 0.06), version };
            watch.observe(at(sent + 0.05), None, &check);
        }
    }

    #[test]
    fn beats_date_watched_deletions() {
        // The beats from 16.0 s on have versions 2000, 2010 and so on: the one at 20.2 s has 2420.
        let dated = |beats: &[((f64, i32), i64, i64)], version: &str, change: &str| {
            let (mut watch, mut pod) = watch();
            let is_before = |((from_s, _), ..): &&((f64, i32), i64, i64)| *from_s < 20.3;
            beats.iter().filter(is_before).for_each(|beats| beat(&mut watch, *beats));
            pod["resource_version"] = version.into();
            pod["deletion_grace_s"] = 10.into();
            pod["deletion_timestamp"] = json!(at(30.0));
            pod["change"] = change.into();
            show(&mut watch, 20.3, &pod);
            beats.iter().filter(|beats| !is_before(beats)).for_each(|beats| beat(&mut watch, *beats));
            pod["change"] = "applied".into();
            pod["resource_version"] = "9000".into();
            end(&mut watch, 30.3, &mut pod, SIGKILLED, "Error");
            let found = one(&mut watch, 40.0);
            assert_eq!((found.killed_at_grace_end, found.has_beats), (Some(true), !beats.is_empty()));
            assert!(found.grace_use.is_some());
            ((found.t0_earliest_ns, found.t0_latest_ns, found.t0_basis), watch.beats_state)
        };
        let dropped = BeatsState::Dropped;
        let (timestamp, absent) = dated(&[], "2425", "applied");
        assert_eq!((timestamp.1, timestamp.2, absent), (at(20.3), T0Basis::Timestamp, BeatsState::Absent));
        let steady = ((16.0, 43), 2000, 3);
        let later = ((20.3, 27), 2430, 3);
        let beats = |from, until| (at(from), at(until), T0Basis::Beats);
        assert_eq!(
            dated(&[steady, later], "2425", "applied").0,
            beats(20.2, 20.3),
            "shown before the beat's end"
        );
        assert_eq!(dated(&[steady, later], "2405", "applied").0, beats(20.0, 20.11));
        // A list may show a later version than the deletion's.
        let (listed, _) = dated(&[steady, later], "2405", "listed");
        assert_eq!(listed, (timestamp.0, at(20.11), T0Basis::Beats));
        // Beats began with the deletion, or ended long before it.
        assert_eq!(dated(&[later], "2425", "applied"), (timestamp, BeatsState::Usable));
        let (early, _) = dated(&[((1.0, 40), 100, 3), ((21.0, 20), 2430, 3)], "2425", "applied");
        assert_eq!(early, timestamp);
        let (lone, state) = dated(&[((19.5, 8), 2350, 3)], "2425", "applied");
        assert_eq!((lone, state), (timestamp, dropped(Objection::TooFewChecks { made: 8, needed: 20 })));
        let (foreign, state) = dated(&[((16.0, 43), 2000, -900)], "2425", "applied");
        assert_eq!((foreign, state), (timestamp, dropped(Objection::NotBetween)));
        let (named, state) = dated(&[steady, later], "x25", "applied");
        assert_eq!((named, state), (timestamp, dropped(Objection::NotANumber("x25".to_owned()))));
        let (disordered, state) = dated(&[steady, later], "2455", "applied");
        assert_eq!((disordered, state), (timestamp, dropped(Objection::Disordered)));
    }

    #[test]
    fn events_and_conditions_explain_termination() {
        let (mut watch, mut pod) = watch();
        pod["disruption_target"] = "EvictionByEvictionAPI".into();
        delete(&mut watch, 20.3, &mut pod);
        let hook = json!({"kind": "cluster_event", "pod": "web-7d9f-x", "reason": FAILED_HOOK, "message": "m",
            "container": "app"});
        watch.observe(at(20.4), NAMESPACE, &serde_json::from_value(hook.clone()).unwrap());
        watch.observe(at(20.4), Some("other"), &serde_json::from_value(hook).unwrap());
        end(&mut watch, 21.0, &mut pod, 143, "Error");
        let evicted = one(&mut watch, 30.0);
        assert_eq!(evicted.mode, WatchedMode::Eviction);
        assert_eq!(evicted.failed_hooks, Some(BTreeSet::from(["app".to_owned()])));

        let (mut watch, mut pod) = self::watch();
        deploy(&mut watch, 20.0, 1, "a");
        delete(&mut watch, 20.3, &mut pod);
        end(&mut watch, 21.0, &mut pod, 0, "Completed");
        let scaled = one(&mut watch, 30.0);
        assert_eq!(scaled.mode, WatchedMode::ScaleDown);
        assert_eq!(scaled.cause.as_deref(), Some("Deployment web was scaled from 2 to 1"));

        // A kubelet that shuts down terminates pods without deleting them.
        let (mut watch, mut pod) = self::watch();
        pod["disruption_target"] = BY_KUBELET.into();
        pod["phase"] = "Failed".into();
        end(&mut watch, 20.0, &mut pod, SIGKILLED, "Error");
        let shut_down = one(&mut watch, 30.0);
        assert_eq!((shut_down.mode, shut_down.grace_use), (WatchedMode::NodeShutdown, None));
        assert_eq!(shut_down.killed_at_grace_end, None, "the time of the signal is unknown");
    }

    #[test]
    fn pod_without_termination_is_not_reported() {
        let (mut watch, mut pod) = watch();
        pod["phase"] = "Succeeded".into();
        pod["owner"] = "Job/once".into();
        end(&mut watch, 20.0, &mut pod, 0, "Completed");
        assert!(watch.settled(at(60.0)).is_empty(), "it ended by itself");

        let (mut watch, mut pod) = self::watch();
        pod["uid"] = "v".into();
        pod["phase"] = "Pending".into();
        pod["containers"][0]["state"] = "waiting".into();
        delete(&mut watch, 20.0, &mut pod);
        pod["change"] = "deleted".into();
        show(&mut watch, 21.0, &pod);
        assert!(watch.settled(at(60.0)).is_empty(), "it never ran");
        assert!(watch.pods.contains_key("u") && !watch.pods.contains_key("v"));
    }

    #[test]
    fn pod_listed_as_finished_is_not_reported() {
        let (mut watch, mut pod) = watch();
        pod["uid"] = "v".into();
        pod["phase"] = "Failed".into();
        pod["disruption_target"] = BY_KUBELET.into();
        pod["containers"][0]["state"] = "terminated".into();
        pod["containers"][0]["exit_code"] = SIGKILLED.into();
        show(&mut watch, 1.0, &pod);
        assert!(watch.settled(at(60.0)).is_empty(), "it ended before the watch began");
        delete(&mut watch, 70.0, &mut pod);
        assert!(watch.terminating().is_empty());
        pod["change"] = "deleted".into();
        show(&mut watch, 71.0, &pod);
        assert!(watch.settled(at(90.0)).is_empty(), "only its object was deleted");
        assert!(!watch.pods.contains_key("v"));
    }

    #[test]
    fn old_sizes_are_forgotten_but_templates_are_kept() {
        let (mut watch, mut pod) = watch();
        for minute in 0..600 {
            deploy(
                &mut watch,
                10.0 + 60.0 * f64::from(minute),
                2 + minute % 2,
                if minute < 5 { "a" } else { "b" },
            );
        }
        let kept = watch.workloads["shop"].sizes_known("Deployment/web");
        assert!(kept < 70, "{kept} states");
        delete(&mut watch, 36_100.0, &mut pod);
        end(&mut watch, 36_101.0, &mut pod, 0, "Completed");
        assert_eq!(one(&mut watch, 36_200.0).mode, WatchedMode::Rollout, "the pod has the old template");
    }

    #[test]
    fn ended_workloads_nodes_and_gaps_are_forgotten() {
        let (mut watch, _) = watch();
        watch.pods.clear();
        for n in 0..1000 {
            let s = 10.0 + 60.0 * f64::from(n);
            // Each minute, a rollout creates a ReplicaSet and deletes that of the last rollout.
            deploy(&mut watch, s, 2, &n.to_string());
            for (change, n) in [("deleted", n - 1), ("applied", n)] {
                let set = json!({"change": change, "workload": format!("ReplicaSet/web-{n}"), "replicas": 2,
                    "template": "a", "owner": "Deployment/web"});
                let kind = EventKind::Workload(serde_json::from_value(set).unwrap());
                watch.observe(at(s), NAMESPACE, &kind);
                let node =
                    json!({"change": change, "node": format!("n{n}"), "ready": true, "unschedulable": false});
                watch.observe(at(s), None, &EventKind::Node(serde_json::from_value(node).unwrap()));
            }
            let gap = EventKind::WatchLate { resource: "nodes".to_owned(), from: at(s - 2.0) };
            watch.observe(at(s), None, &gap);
            // The pod of the last rollout ends.
            let pod = |n: i32, change: &str| {
                json!({"change": change, "namespace": "shop", "name": format!("web-{n}-x"), "uid": format!("u{n}"),
                    "resource_version": "1", "node": "n1", "ip": null, "phase": "Running", "ready": true,
                    "deletion_timestamp": null, "deletion_grace_s": null, "grace_s": 10, "disruption_target": null,
                    "owner": format!("ReplicaSet/web-{n}"), "containers": []})
            };
            show(&mut watch, s, &pod(n, "applied"));
            show(&mut watch, s, &pod(n - 1, "deleted"));
            watch.settled(at(s + 30.0));
        }
        let shop = &watch.workloads["shop"];
        let known =
            [shop.known(), shop.sizes_known("Deployment/web"), watch.nodes.known(), watch.watches.gaps.len()];
        assert!(known.iter().all(|number| *number < 70), "{known:?}");
    }
}
