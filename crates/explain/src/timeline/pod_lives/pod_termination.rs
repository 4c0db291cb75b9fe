//! Termination of one pod: its stages and its cause. [`super::t0`] finds the time it took effect.

use super::super::RunCommand;
use super::super::beat_bounds::Beats;
use super::super::clocks::Clocks;
use super::super::endpoint_history::{EndpointChange, EndpointHistory, EndpointOf};
use super::super::phases::{self, LifeOf};
use super::super::termination_cause::{Histories, NodeHistories};
use super::t0::{T0, TerminationKind};
use super::watched_pod::WatchedPod;
use super::{PodEnd, Stages};
use rolldrop_record::event::{Action, ProxyPhase};
use rolldrop_record::{EndCause, Mode, Stamp};

/// All records that may show pod terminations.
pub(super) struct TerminationEvidence<'a> {
    pub(super) clocks: &'a Clocks,
    pub(super) beats: &'a Beats,
    pub(super) endpoints: &'a EndpointHistory,
    /// The run's own calls that terminate pods.
    pub(super) actions: Vec<(Stamp, &'a Action)>,
    pub(super) commands: &'a [RunCommand],
    pub(super) histories: &'a Histories,
    pub(super) nodes: &'a NodeHistories,
    pub(super) phases: &'a phases::PhaseCollector<'a>,
    /// Gaps in the pod watch that were closed by a list, with the start and the end of each.
    pub(super) gaps: Vec<(Stamp, Stamp)>,
}

/// Pod to find a termination for.
pub(super) struct TerminationSearch<'a> {
    pub(super) evidence: &'a TerminationEvidence<'a>,
    pub(super) pod: &'a WatchedPod,
    pub(super) life: LifeOf<'a>,
}

impl<'a> TerminationSearch<'a> {
    /// Returns the pod's termination; `None` while the pod is running.
    pub(super) fn find(&self) -> Option<PodEnd> {
        let (kind, t0) = self.t0()?;
        let pod = self.pod;
        let by = self.by(&kind, t0);
        let grace_s = pod.deletion.as_ref().map_or(pod.last.grace_s, |deletion| deletion.grace_s);
        Some(PodEnd {
            pod: pod.life.name.clone(),
            uid: pod.life.uid.clone(),
            node: pod.last.node.clone(),
            mode: by.mode.unwrap_or(Mode::Other),
            disruption: by.disruption,
            repetition: by.repetition,
            cause: by.cause,
            own: matches!(kind, TerminationKind::Own(..)),
            t0,
            grace_s,
            own_grace_s: pod.last.grace_s,
            shortest_grace_s: grace_s.min(pod.running_grace_s.unwrap_or(grace_s)),
            pre_stop_sleep_s: pod.pre_stop_sleep_s(),
            hook_sleep_s: pod.hook_sleep_s(),
            hook_program: pod.hook_program(),
            workload: self.evidence.histories.workload(&pod.last, t0.latest),
            stages: self.stages(&kind, t0),
            exit_code: pod.exit_code,
            exit_reason: pod.exit_reason.clone(),
            sigkilled: pod.sigkilled(),
            all_ended: pod.all_ended,
            accepted_for_all_but_s: pod.accepted_for_all_but_s(),
        })
    }

    pub(super) fn phase(&self, phase: ProxyPhase) -> Option<Stamp> {
        self.evidence.phases.first(self.life, phase)
    }

    fn stages(&self, kind: &TerminationKind<'_>, t0: T0) -> Stages {
        let pod = self.pod;
        let of = EndpointOf::life(self.life, pod.life.ip.as_deref());
        Stages {
            delete_sent: match kind {
                TerminationKind::Own(sent, _) => Some(*sent),
                _ => None,
            },
            deletion_seen: pod.deletion.as_ref().map(|deletion| deletion.seen),
            endpoint_terminating: self.evidence.endpoints.first(of, EndpointChange::Terminating, t0.earliest),
            kill_began: self.pre_stop(t0.earliest),
            last_listening: self.phase(ProxyPhase::LastListening),
            listener_closed: self.phase(ProxyPhase::ListenerClosed),
            app_exited: self.phase(ProxyPhase::Sigterm),
            proxy_exited: self.phase(ProxyPhase::Exit),
            containers_terminated: pod.containers_terminated.filter(|at| *at >= t0.earliest),
            endpoint_removed: self.evidence.endpoints.first(of, EndpointChange::Removed, t0.earliest),
            pod_deleted: pod.deleted,
        }
    }

    /// Finds the cause of the termination.
    fn by(&self, kind: &TerminationKind<'a>, t0: T0) -> By {
        if let TerminationKind::Own(_, action) = kind {
            let cause = Some(EndCause::ThisRun(action.action));
            return By { mode: action.mode, disruption: Some(action.disruption), repetition: None, cause };
        }
        let TerminationEvidence { actions, commands, histories, nodes, .. } = self.evidence;
        let pod = self.pod;
        let by_itself = matches!(kind, TerminationKind::ByItself);
        let explained = histories.ended_by(nodes, &pod.last, pod.life.created, t0, by_itself);
        let known = explained.as_ref().map(|explained| explained.mode);
        let may_be = |action: &Action| match action.mode {
            // A node that shuts down terminates its pods without deleting them.
            Some(Mode::NodeShutdown) => known == Some(Mode::NodeShutdown),
            // A termination with another known cause was not caused by the action.
            mode => pod.deletion.is_some() && (known.is_none() || known == mode),
        };
        let commanded = commands.iter().rfind(|command| command.started <= t0.latest);
        let begun = |at: Stamp| at <= t0.latest && commanded.is_none_or(|command| command.started <= at);
        let is_done = |action: &Action| action.pod.is_none() && action.error.is_none();
        let number = actions.iter().rposition(|(at, a)| is_done(a) && begun(*at) && may_be(a));
        let action = number.map(|number| actions[number].1);
        let earlier = number.zip(action).map(|(number, action)| {
            let is_same =
                |(_, other): &&(Stamp, &Action)| is_done(other) && other.disruption == action.disruption;
            actions[..number].iter().filter(is_same).count()
        });
        By {
            mode: action.and_then(|action| action.mode).or(known).or_else(|| commanded?.mode),
            disruption: action.map(|action| action.disruption).or_else(|| commanded?.disruption),
            repetition: earlier.and_then(|earlier| u32::try_from(earlier).ok()),
            cause: explained.map(|explained| EndCause::Other(explained.cause)),
        }
    }
}

/// Cause of a pod's termination.
struct By {
    mode: Option<Mode>,
    disruption: Option<u32>,
    repetition: Option<u32>,
    cause: Option<EndCause>,
}
