//! Finds the time a pod's deletion took effect (t0), and who caused it: the run, others, the pod itself, or an unseen
//! event in a watch gap.

use super::super::clocks::{API_SERVER, Clocks};
use super::super::termination_cause::BY_KUBELET;
use super::super::watches::SHOWN_WITHIN_NS;
use super::SECOND_NS;
use super::pod_termination::{TerminationEvidence, TerminationSearch};
use super::watched_pod::Deletion;
use crate::model::T0Basis;
use rolldrop_record::event::{Action, ProxyPhase};
use rolldrop_record::{Mode, Stamp};

/// Time a deletion took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct T0 {
    /// Earliest possible time.
    pub earliest: Stamp,
    /// Latest possible time.
    pub latest: Stamp,
    /// Evidence for these bounds.
    pub basis: T0Basis,
}

/// Kind of a pod's termination.
pub(super) enum TerminationKind<'a> {
    /// The run deleted the pod: time and action of the first call that may have caused it.
    Own(Stamp, &'a Action),
    /// The pod exited before it was deleted, or without being deleted.
    ByItself,
    /// Someone else deleted the pod.
    ByOthers,
    /// The pod was deleted and gone in one step.
    RemovedAtOnce,
    /// The pod existed before a watch gap and not after it.
    Lost,
}

impl<'a> TerminationSearch<'a> {
    /// Returns the kind and time of the pod's termination; `None` while the pod is running.
    pub(super) fn t0(&self) -> Option<(TerminationKind<'a>, T0)> {
        self.deleted_by_this_run()
            .or_else(|| self.ended_by_itself())
            .or_else(|| self.deleted_by_others())
            .or_else(|| self.removed_at_once())
            .or_else(|| self.lost_in_a_gap())
    }

    /// Returns the times at which the pod's proxy saw signs of the termination.
    fn signs(&self) -> impl Iterator<Item = Stamp> {
        [ProxyPhase::ListenerClosed, ProxyPhase::Sigterm].into_iter().filter_map(|sign| self.phase(sign))
    }

    /// Returns the time the pod's preStop hook was called. A mark from before the termination, allowing for clock
    /// uncertainty, or from after the containers exited, was not made by the kubelet, but by a process in the sidecar's
    /// container.
    pub(super) fn pre_stop(&self, earliest: Stamp) -> Option<Stamp> {
        let TerminationEvidence { phases, clocks, .. } = self.evidence;
        let slack_ns = |source: &str, at| clocks.uncertainty_ns(source, at).unwrap_or(SECOND_NS);
        let ends = [self.phase(ProxyPhase::Sigterm), self.pod.containers_terminated, self.pod.deleted];
        let over = ends.into_iter().flatten().min();
        let may_be = |(at, source): &(Stamp, &str)| {
            at.shifted_ns(slack_ns(source, *at)) >= earliest
                && over.is_none_or(|over| *at <= over.shifted_ns(slack_ns(source, *at)))
        };
        phases.all(self.life, ProxyPhase::PreStop).find(may_be).map(|(at, _)| at)
    }

    /// Returns bounds for the time a deletion took effect, if others made it or this run's call got no response.
    fn bounds(&self, deletion: &Deletion) -> T0 {
        let second = by_timestamp(deletion, self.evidence.clocks);
        let mut bracket = self.evidence.beats.bracket(&deletion.version);
        if !deletion.is_exact {
            bracket.earliest = None;
        }
        let earliest = bracket.earliest.map_or(second.earliest, |at| at.max(second.earliest));
        let latest = bracket.latest.map_or(second.latest, |at| at.min(second.latest));
        let is_narrower = (earliest, latest) != (second.earliest, second.latest);
        // Two beats at most a second apart are as precise as the timestamp, even if the timestamp happens to be
        // slightly narrower.
        let is_between = bracket.width_ns().is_some_and(|ns| ns <= SECOND_NS);
        let basis = if is_narrower || is_between { T0Basis::Beats } else { T0Basis::Timestamp };
        match bracket.earliest {
            _ if earliest <= latest => T0 { earliest, latest, basis },
            // Clocks may disagree; versions do not.
            Some(earliest) => {
                let latest = bracket.latest.map_or(deletion.seen, |at| at.min(deletion.seen));
                T0 { earliest, latest: latest.max(earliest), basis: T0Basis::Beats }
            }
            None => second,
        }
    }

    fn deleted_by_this_run(&self) -> Option<(TerminationKind<'a>, T0)> {
        let pod = self.pod;
        let is_this = |a: &&&'a (Stamp, &'a Action)| match &a.1.uid {
            Some(uid) => *uid == pod.life.uid,
            None => a.1.pod.as_deref() == Some(pod.life.name.as_str()) && self.life.holds(a.0),
        };
        let attempts: Vec<&(Stamp, &Action)> = self.evidence.actions.iter().filter(|a| is_this(&a)).collect();
        let is_accepted = |a: &&&(Stamp, &Action)| a.1.status.is_some_and(|s| (200..300).contains(&s));
        let accepted = attempts.iter().find(is_accepted);
        // A call without a response, or with an ambiguous one, may have been the call that took effect.
        let may_be = |a: &&&(Stamp, &Action)| !a.1.is_undone && a.1.status.is_none_or(|s| s >= 500);
        let doubtful = attempts.iter().take_while(|a| !is_accepted(a)).find(may_be);
        let (sent, action) = *doubtful.or(accepted)?;
        let (earliest, action) = (*sent, accepted.map_or(*action, |(_, accepted)| *accepted));
        let latest = match accepted {
            Some((_, accepted)) => accepted.answered,
            // Without a response, the deletion is only known to have taken effect before the watch showed it.
            None => pod.deletion.as_ref()?.seen,
        };
        let mut t0 = T0 { earliest, latest: latest.max(earliest), basis: T0Basis::OwnCall };
        if let Some(deletion) = pod.deletion.as_ref().filter(|_| doubtful.is_some()) {
            let bounds = self.bounds(deletion);
            let (earliest, latest) = (earliest.max(bounds.earliest), t0.latest.min(bounds.latest));
            match (earliest <= latest, accepted) {
                (true, _) => t0 = T0 { earliest, latest, ..t0 },
                (false, Some(_)) => {}
                // Someone else deleted the pod.
                (false, None) => return None,
            }
        }
        Some((TerminationKind::Own(*sent, action), t0))
    }

    /// Handles a pod whose containers exited first; the pod may have been deleted later.
    fn ended_by_itself(&self) -> Option<(TerminationKind<'a>, T0)> {
        let pod = self.pod;
        let deletion = pod.deletion.as_ref().map(|deletion| deletion.seen);
        let shown = pod.terminal.filter(|at| deletion.is_none_or(|deletion| *at < deletion))?;
        let latest = self.signs().chain(pod.containers_terminated).fold(shown, Stamp::min);
        let earliest = if pod.last.disruption_target.as_deref() == Some(BY_KUBELET) {
            // The kubelet sent the signal and then waited for up to the grace period.
            let earliest = latest.shifted_ns(-(pod.last.grace_s.max(0) * SECOND_NS + SHOWN_WITHIN_NS));
            self.shutdown_begun(latest).map_or(earliest, |begun| earliest.max(begun))
        } else {
            let earliest = latest.shifted_ns(-SHOWN_WITHIN_NS);
            pod.running.map_or(earliest, |running| earliest.max(running))
        };
        let earliest = earliest.max(pod.life.created).min(latest);
        let latest = self.pre_stop(earliest).map_or(latest, |called| latest.min(called).max(earliest));
        Some((TerminationKind::ByItself, T0 { earliest, latest, basis: T0Basis::EndOfContainers }))
    }

    /// Returns the last time before `at` that the run shut a node down.
    fn shutdown_begun(&self, at: Stamp) -> Option<Stamp> {
        let is_shutdown = |action: &Action| action.mode == Some(Mode::NodeShutdown) && action.error.is_none();
        let mut begun = self.evidence.actions.iter().rev();
        begun.find(|(sent, action)| *sent <= at && is_shutdown(action)).map(|(sent, _)| *sent)
    }

    fn deleted_by_others(&self) -> Option<(TerminationKind<'a>, T0)> {
        let deletion = self.pod.deletion.as_ref()?;
        Some((TerminationKind::ByOthers, self.bounds(deletion)))
    }

    /// Handles a pod that was not scheduled yet, or whose deletion was shown only after its end.
    fn removed_at_once(&self) -> Option<(TerminationKind<'a>, T0)> {
        let signs = self.signs().chain(self.pod.containers_terminated);
        let latest = signs.fold(self.pod.deleted?, Stamp::min);
        let bracket = self.evidence.beats.bracket(&self.pod.last.resource_version);
        // The termination took no longer than the grace period.
        let from = latest.shifted_ns(-self.pod.last.grace_s.max(0) * SECOND_NS);
        let from = bracket.earliest.unwrap_or(from);
        let latest = self.pre_stop(from).map_or(latest, |called| latest.min(called).max(from));
        let (earliest, basis) = match bracket.earliest {
            Some(earliest) => (earliest, T0Basis::Beats),
            None => (latest, T0Basis::EndOfContainers),
        };
        Some((TerminationKind::RemovedAtOnce, T0 { earliest: earliest.min(latest), latest, basis }))
    }

    /// Handles a pod that disappeared between two lists, so that the later list no longer shows it.
    fn lost_in_a_gap(&self) -> Option<(TerminationKind<'a>, T0)> {
        let (earliest, latest) = *self.evidence.gaps.iter().find(|(_, to)| *to > self.pod.last_at)?;
        Some((TerminationKind::Lost, T0 { earliest, latest, basis: T0Basis::Gap }))
    }
}

/// Returns the time a deletion took effect according to the API server, to the second.
fn by_timestamp(deletion: &Deletion, clocks: &Clocks) -> T0 {
    let Deletion { seen, timestamp, grace_s, .. } = deletion;
    let offset = clocks.offset(API_SERVER, timestamp.shifted_ns(-grace_s * SECOND_NS));
    let second = clocks.place(API_SERVER, *timestamp).shifted_ns(-grace_s * SECOND_NS);
    let latest = second.shifted_ns(SECOND_NS + offset.uncertainty_ns).min(*seen);
    let earliest = second.shifted_ns(-offset.uncertainty_ns).min(latest);
    T0 { earliest, latest, basis: T0Basis::Timestamp }
}
