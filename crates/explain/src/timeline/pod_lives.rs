//! Pod lives and terminations, as the watches showed them.

mod pod_termination;
mod t0;
mod termination_watch;
mod watched_pod;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::beat_bounds::Beats;
use super::clocks::Clocks;
use super::endpoint_history::{EndpointChange, EndpointHistory, EndpointOf};
use super::phases::{self, LifeOf};
use super::termination_cause::{Histories, NodeHistories};
use super::{RunCommand, UnwatchedPeriod, watches};
use crate::model::{StreamPhase, T0Basis};
use pod_termination::{TerminationEvidence, TerminationSearch};
use rolldrop_record::event::{Action, Replacement};
use rolldrop_record::{EndCause, EventKind, Mode, Stamp};
pub use t0::T0;
pub use termination_watch::TerminationWatch;
use watched_pod::WatchedPod;
pub(super) use watched_pod::has_finished;

const SECOND_NS: i64 = 1_000_000_000;
/// Exit code of a container killed by SIGKILL.
pub const SIGKILLED: i32 = 137;
/// Amount in seconds by which a watch may seem to show container termination early. Watches show it late, never early,
/// but clocks and whole seconds can make it appear earlier.
pub const EARLY_S: f64 = EARLY_NS as f64 / SECOND_NS as f64;
const EARLY_NS: i64 = SECOND_NS / 2;
/// Longest delay of a probe beyond its period, in seconds.
const PROBE_MARGIN_S: f64 = 1.0;
/// Time by which a client's clock may show SIGTERM early.
const SIGNALLED_EARLY_NS: i64 = SECOND_NS / 5;
/// Sum of the two margins above, in whole seconds.
const UNSEEN_S: i64 = 2;

/// Start of one pod.
#[derive(Clone, Debug)]
pub struct PodLife {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Time a watch first showed the pod.
    pub created: Stamp,
    /// True if the pod already existed when the watch began, or was ready when the span began.
    pub listed: bool,
    /// Address of the pod, once reported.
    pub ip: Option<String>,
    /// True if readiness probes connect to the pod's main containers; `None` if the record does not show it.
    pub is_probed: Option<bool>,
    /// Time the pod's address was first seen.
    pub ip_reported: Option<Stamp>,
    /// Time the pod was first seen ready.
    pub ready: Option<Stamp>,
    /// Time the pod's endpoint was first seen ready.
    pub endpoint_ready: Option<Stamp>,
}

/// Observed stages of a pod's termination.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    /// The coordinator's own delete call was sent.
    pub delete_sent: Option<Stamp>,
    /// A watch showed the deletionTimestamp.
    pub deletion_seen: Option<Stamp>,
    /// A watch showed the endpoint as terminating.
    pub endpoint_terminating: Option<Stamp>,
    /// The proxy's preStop hook was called.
    pub kill_began: Option<Stamp>,
    /// The proxy last saw the app's listener open.
    pub last_listening: Option<Stamp>,
    /// The proxy found the app's listener closed.
    pub listener_closed: Option<Stamp>,
    /// The proxy received SIGTERM.
    pub app_exited: Option<Stamp>,
    /// The proxy exited.
    pub proxy_exited: Option<Stamp>,
    /// A watch showed all main containers as terminated.
    pub containers_terminated: Option<Stamp>,
    /// A watch showed the endpoint as removed.
    pub endpoint_removed: Option<Stamp>,
    /// A watch showed the pod as deleted.
    pub pod_deleted: Option<Stamp>,
}

/// Workload, as of the termination of one of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwningWorkload {
    /// Kind and name, such as `Deployment web`.
    pub name: String,
    /// Desired number of pods; `None` if it depends on the nodes.
    pub replicas: Option<i32>,
    /// Replacement strategy for the pods, if recorded.
    pub strategy: Option<Replacement>,
    /// `maxUnavailable` of the rolling update, if recorded.
    pub max_unavailable: Option<String>,
}

/// Termination of one pod.
#[derive(Clone, Debug)]
pub struct PodEnd {
    /// The pod's name.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Node that the pod ran on.
    pub node: Option<String>,
    /// Mode of the termination, according to the action behind it; [`Mode::Other`] if none is known.
    pub mode: Mode,
    /// Index of the disruption behind the termination.
    pub disruption: Option<u32>,
    /// Index of that disruption's repetition, counted from 0; `None` if the disruption affects single pods.
    pub repetition: Option<u32>,
    /// Cause of the termination; `None` if nothing shows it.
    pub cause: Option<EndCause>,
    /// True if the coordinator itself deleted the pod.
    pub own: bool,
    /// Time the deletion took effect.
    pub t0: T0,
    /// The grace period of the deletion, in seconds.
    pub grace_s: i64,
    /// The pod's own grace period, in seconds, which a deletion may override.
    pub own_grace_s: i64,
    /// Shortest grace period among the pod's deletions, in seconds; a later deletion may shorten it.
    pub shortest_grace_s: i64,
    /// The app's preStop sleep in seconds; `None` if a hook of another kind hides it.
    pub pre_stop_sleep_s: Option<i64>,
    /// Sleep of the main containers' hooks in seconds, from a sleep action or a program that only sleeps; `None` if a
    /// hook of another kind hides it.
    pub hook_sleep_s: Option<i64>,
    /// Program run by a main container's hook, if any.
    pub hook_program: Option<String>,
    /// Workload that owned the pod, if a watch showed one.
    pub workload: Option<OwningWorkload>,
    /// Observed stages.
    pub stages: Stages,
    /// Exit code of the main containers: 137 if one was killed, otherwise the first that is not 0.
    pub exit_code: Option<i32>,
    /// Reason that the kubelet reports with the exit code.
    pub exit_reason: Option<String>,
    /// True if SIGKILL terminated a container, other than one that ran out of memory; `None` if a container's end is
    /// not known.
    pub sigkilled: Option<bool>,
    /// Time from which all containers, sidecars included, were shown as terminated.
    pub all_ended: Option<Stamp>,
    /// Time in seconds within which readiness probes would have noticed that nothing was listening; set only
    /// if the probes succeeded until the containers terminated.
    pub accepted_for_all_but_s: Option<u32>,
}

impl PodEnd {
    /// Returns the earliest time at which the app could have received its signal; until then its preStop hook was still
    /// sleeping.
    pub fn may_stop_from(&self) -> Stamp {
        self.t0
            .earliest
            .shifted_ns(self.pre_stop_sleep_s.unwrap_or(0).clamp(0, self.grace_s.max(0)) * SECOND_NS)
    }

    /// Returns the time from the earliest SIGTERM until the app and the proxy exited, in seconds; `None` if not seen, or
    /// cut short by SIGKILL.
    pub fn stopping_s(&self) -> Option<f64> {
        let Stages { proxy_exited, app_exited, containers_terminated, .. } = self.stages;
        let ended = proxy_exited.max(app_exited).or(containers_terminated)?;
        let is_whole = self.exit_code != Some(SIGKILLED);
        is_whole.then(|| ended.seconds_since(self.may_stop_from()).max(0.0))
    }

    /// Returns the earliest time at which the grace period may have run out.
    pub fn grace_is_over_from(&self) -> Stamp {
        let began = self.stages.kill_began.unwrap_or(self.t0.earliest);
        began.shifted_ns(self.shortest_grace_s * SECOND_NS - EARLY_NS)
    }

    /// Returns the phase of the termination at the end of one of the pod's streams.
    pub fn stream_phase(&self, at: Stamp) -> StreamPhase {
        let may_be_killed = matches!(self.exit_code, None | Some(SIGKILLED));
        match at {
            _ if at < self.may_stop_from().shifted_ns(-SIGNALLED_EARLY_NS) => StreamPhase::BeforeSigterm,
            _ if at >= self.grace_is_over_from() && may_be_killed => StreamPhase::AtGraceEnd,
            _ => StreamPhase::AfterSigterm,
        }
    }

    /// Returns true if SIGKILL terminated a container when the grace period expired; `None` if this is unknown.
    /// `delayed_by` returns the gap in the pod watch, if any, that may have delayed an event shown at a time.
    pub fn killed_at_grace_end<'g>(
        &self,
        delayed_by: impl Fn(Stamp) -> Option<&'g UnwatchedPeriod>,
    ) -> Option<bool> {
        let (shown, is_killed) = (self.all_ended?, self.sigkilled?);
        if !is_killed {
            return Some(false);
        }
        if matches!(self.t0.basis, T0Basis::Gap | T0Basis::EndOfContainers) {
            return None;
        }
        let over_from = self.grace_is_over_from();
        let may_have_ended_from = delayed_by(shown).map_or(shown, |gap| gap.may_have_ended_from(shown));
        let is_over = shown >= over_from;
        (!is_over || may_have_ended_from >= over_from).then_some(is_over)
    }

    /// Returns true if the two terminations overlap in time.
    pub fn overlaps(&self, other: &Self) -> bool {
        let begins_before_end = |a: &Self, b: &Self| b.gone().is_none_or(|gone| a.t0.earliest <= gone);
        begins_before_end(self, other) && begins_before_end(other, self)
    }

    /// Returns true if SIGKILL terminated the pod when its grace period expired. Without a deletion this is unknown: a
    /// kubelet that evicts a pod, or whose node shuts down, may grant less than the pod's own grace period.
    pub fn was_killed_at_its_grace(&self) -> bool {
        self.exit_code == Some(SIGKILLED)
            && self.t0.basis != T0Basis::EndOfContainers
            && self.may_have_used_grace()
    }

    /// Returns true if SIGKILL terminated the pod before its grace period can have expired.
    pub fn was_killed_early(&self) -> bool {
        self.exit_code == Some(SIGKILLED) && !self.may_have_used_grace()
    }

    fn may_have_used_grace(&self) -> bool {
        let ended = self.stages.containers_terminated.or(self.stages.pod_deleted);
        let is_over =
            |at: Stamp| at.seconds_since(self.t0.earliest) >= self.shortest_grace_s as f64 - EARLY_S;
        ended.is_none_or(is_over)
    }

    /// Returns true if SIGKILL terminated the pod while it was still accepting new connections.
    pub fn accepted_until_killed(&self) -> bool {
        let slept_s = self.hook_sleep_s.map(|s| s as f64);
        let noticed = |(slept_s, notices_s)| {
            slept_s + f64::from(notices_s) + PROBE_MARGIN_S < self.shortest_grace_s as f64
        };
        self.was_killed_at_its_grace() && slept_s.zip(self.accepted_for_all_but_s).is_some_and(noticed)
    }

    /// Returns the time until which the pod certainly accepted new connections. Its readiness probes show this: they
    /// succeeded until its containers terminated, and would have failed otherwise.
    pub fn accepted_until(&self) -> Option<Stamp> {
        let (ended, notices_s) = self.stages.containers_terminated.zip(self.accepted_for_all_but_s)?;
        Some(ended.shifted_ns(-(i64::from(notices_s) + UNSEEN_S) * SECOND_NS))
    }

    /// Returns the time the pod was gone, if that was seen.
    pub fn gone(&self) -> Option<Stamp> {
        self.stages.pod_deleted.or(self.stages.containers_terminated)
    }
}

/// Collects the pod watch's events.
#[derive(Debug, Default)]
pub(super) struct PodCollector(BTreeMap<String, WatchedPod>);

/// Other records about pod terminations.
pub(super) struct Others<'a> {
    pub(super) clocks: &'a Clocks,
    pub(super) beats: &'a Beats,
    pub(super) endpoints: &'a EndpointHistory,
    pub(super) actions: &'a [(Stamp, &'a Action)],
    pub(super) commands: &'a [RunCommand],
    pub(super) histories: &'a Histories,
    pub(super) nodes: &'a NodeHistories,
    pub(super) phases: &'a phases::PhaseCollector<'a>,
    pub(super) watches: &'a watches::WatchCollector,
}

impl PodCollector {
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        if let EventKind::Pod(pod) = kind {
            self.0.entry(pod.uid.clone()).or_insert_with(|| WatchedPod::new(at, pod)).observe(at, pod);
        }
    }

    /// Returns the times that pods were first seen, grouped by name.
    fn names(&self) -> HashMap<&str, BTreeSet<Stamp>> {
        let mut names: HashMap<&str, BTreeSet<Stamp>> = HashMap::new();
        for WatchedPod { life, .. } in self.0.values() {
            names.entry(&life.name).or_default().insert(life.created);
        }
        names
    }

    /// Returns true if this pod was being deleted before `begun`, for example by an earlier run, so that the
    /// termination does not belong to this run.
    pub(super) fn was_ending_before(&self, begun: Stamp, uid: &str) -> bool {
        let deletion = self.0.get(uid).and_then(|pod| pod.deletion.as_ref());
        deletion.is_some_and(|deletion| deletion.seen < begun)
    }

    /// Returns the lives and terminations of all pods. Terminations before the load are part of the run's setup, and
    /// those after it part of its cleanup; neither is measured.
    pub(super) fn finish(
        mut self,
        others: &Others<'_>,
        load: &RangeInclusive<Stamp>,
    ) -> (Vec<PodLife>, Vec<PodEnd>) {
        let Others { endpoints, watches, .. } = others;
        let ending = others.actions.iter().filter(|(_, action)| action.mode.is_some());
        let acted: BTreeSet<&str> = ending.clone().filter_map(|(_, a)| a.pod.as_deref()).collect();
        // A pod that no Service ever listed received no requests, so its termination loses none.
        self.0.retain(|_, WatchedPod { life: PodLife { name, .. }, .. }| {
            endpoints.is_empty() || endpoints.ever_named(name) || acted.contains(name.as_str())
        });
        let evidence = TerminationEvidence {
            clocks: others.clocks,
            beats: others.beats,
            endpoints,
            actions: ending.copied().collect(),
            commands: others.commands,
            histories: others.histories,
            nodes: others.nodes,
            phases: others.phases,
            gaps: watches.pods_missed(),
        };
        let names = self.names();
        let (mut lives, mut ends) = (Vec::new(), Vec::new());
        for pod in self.0.values() {
            let PodLife { name, uid, created, .. } = &pod.life;
            let until = names[name.as_str()].range(*created..).find(|at| *at > created).copied();
            let life = LifeOf { name, uid, from: *created, until };
            let of = EndpointOf::life(life, pod.life.ip.as_deref());
            let endpoint_ready = endpoints.first(of, EndpointChange::Ready, *created);
            let end = TerminationSearch { evidence: &evidence, pod, life }.find();
            ends.extend(end.filter(|end| is_under_load(end, load)));
            lives.push(PodLife { endpoint_ready, ..pod.life.clone() });
        }
        lives.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        ends.sort_by(|a, b| (a.t0.earliest, &a.pod).cmp(&(b.t0.earliest, &b.pod)));
        (lives, ends)
    }
}

/// Returns true if a pod was, or may have been, terminated while load was sent.
fn is_under_load(end: &PodEnd, load: &RangeInclusive<Stamp>) -> bool {
    match end.t0.basis {
        // The pod disappeared at some time between the two.
        T0Basis::Gap | T0Basis::EndOfContainers => {
            end.t0.latest >= *load.start() && end.t0.earliest <= *load.end()
        }
        _ => end.t0.earliest >= *load.start() && end.t0.latest <= *load.end(),
    }
}
