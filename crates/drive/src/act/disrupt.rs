//! Terminates pods as the scenario specifies, and timestamps the run's own calls.
//!
//! This module decides when to act; [`recovery`] decides when the next action may follow. Actions on pods are in
//! [`pod_actions`], those on workloads and other objects in [`object_actions`], and those on nodes in
//! [`node_actions`]. [`external_actions`] covers what others do.

mod acting;
mod external_actions;
mod node_actions;
mod object_actions;
mod pod_actions;
mod programs;
mod recovery;
mod silence;

use std::ops::Range;

use futures::future::join_all;
use tokio::sync::Mutex;
use tokio::time::{sleep, sleep_until};

use super::apply::Changer;
use crate::error::Result;
use crate::observe::Observer;
use crate::observe::rollout_wait::workloads;
use crate::plan::{Claims, GitOps};
use crate::viewer::DisruptionStage;
pub(crate) use acting::UnderLoad;
use acting::{Acting, Refusal};
pub(crate) use programs::NoPrograms;
pub(crate) use programs::{Programs, codes};
use recovery::Whole;
use rolldrop_scenario::{Disruption, DisruptionAction, Repeat, Until};
pub(crate) use silence::{Settle, Silence, until_silent};

/// Carries out disruptions.
pub(crate) struct Disruptor {
    /// Pods that actions have chosen. Locked while an action chooses; otherwise concurrent actions would choose the
    /// same pods.
    claims: Mutex<Claims>,
    gitops: GitOps,
}

impl Disruptor {
    /// Creates a disruptor with this policy for objects that a GitOps controller manages.
    pub(crate) fn new(gitops: GitOps) -> Self {
        Self { claims: Mutex::default(), gitops }
    }

    /// Checks, before anything is disrupted, that an action's objects exist, and that the action stays within its
    /// limits.
    pub(crate) async fn check(
        &self,
        changer: Changer<'_>,
        observer: &Observer,
        disruption: &Disruption,
    ) -> Result<()> {
        let now = observer.recorder().clock().now();
        let load = UnderLoad::of(now, now, 0.0);
        let programs = &NoPrograms;
        let acting = Acting { disruptor: self, changer, observer, index: 0, disruption, load, programs };
        match &disruption.action {
            DisruptionAction::DeletePod(pods) | DisruptionAction::Evict(pods) => {
                acting.check_pods(pods).await
            }
            DisruptionAction::Crash { pods, container } => {
                acting.check_crash(pods, container.as_deref()).await
            }
            DisruptionAction::Relabel { pods, label, .. } => {
                acting.check_relabel(pods, label.as_deref()).await
            }
            DisruptionAction::RollingRestart(workload) => acting.check_restart(workload).await,
            DisruptionAction::SetImage { workload, container, .. } => {
                acting.check_container(workload, container).await
            }
            DisruptionAction::Patch { object, patch, .. } => acting.check_patch(object, patch).await,
            DisruptionAction::Scale { workload, replicas, .. } => {
                acting.check_scale(workload, *replicas).await
            }
            DisruptionAction::Drain { node, .. } | DisruptionAction::NodeShutdown { node, .. } => {
                acting.check_node(node).await
            }
            DisruptionAction::RestartNodeAgent { node } => acting.node(node).await.map(drop),
            DisruptionAction::Exec { .. } | DisruptionAction::Observe { .. } => Ok(()),
        }
    }

    /// Carries out the disruptions during a load. Returns the number of actions that the API server accepted; the others
    /// are recorded as refused or skipped.
    pub(crate) async fn disrupt(
        &self,
        changer: Changer<'_>,
        observer: &Observer,
        disruptions: &[Disruption],
        load: UnderLoad<'_>,
        programs: &dyn Programs,
    ) -> usize {
        let all = disruptions.iter().enumerate().map(|(index, disruption)| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            Acting { disruptor: self, changer, observer, index, disruption, load, programs }.repeat()
        });
        join_all(all).await.into_iter().sum()
    }
}

impl Acting<'_> {
    async fn repeat(self) -> usize {
        // True if each of the action's calls concerns a single pod.
        let is_about_pods =
            matches!(self.disruption.action, DisruptionAction::DeletePod(_) | DisruptionAction::Evict(_));
        let mut done = 0;
        let mut whole = Whole::default();
        // Number of terminations before the first repetition, and of isolated terminations since.
        let (first, mut alone) = (self.observer.pods_ended(), 0);
        for repetition in 0.. {
            if self.until_due(repetition).await.is_err() {
                break;
            }
            if repetition > 0 && self.now_is_late() {
                self.not_reached("the load ended first");
                break;
            }
            if repetition == 0 && self.disruption.action.is_rollout() {
                // The wait after the rollout ignores workloads that had not settled before it and have not changed since.
                whole.workloads = workloads(self.changer.caller).await.unwrap_or_default();
            }
            self.stands(DisruptionStage::Acts);
            let (ended_before, accepted_before) = (self.observer.pods_ended(), done);
            done += self.act(repetition, &mut whole).await;
            let until = match self.disruption.repeat {
                Repeat::Times(times) if repetition + 1 >= times => break,
                Repeat::Times(_) => None,
                Repeat::Until(until) => Some(until),
            };
            if until.is_some() && self.now_is_late() {
                self.not_reached("the load ended first");
                break;
            }
            if let Err(why) = self.recovered(&whole).await {
                if self.changer.caller.stop.is_cancelled() {
                    break;
                }
                match (until, self.disruption.repeat) {
                    (None, Repeat::Times(times)) => self.left_out(repetition + 1..times, &why),
                    _ => self.not_reached(&why),
                }
                break;
            }
            let ended_by_this = done - accepted_before;
            if self.observer.pods_ended() - ended_before == ended_by_this {
                alone += ended_by_this;
            }
            let enough = |number| match until {
                Some(Until::Windows { .. }) => alone >= number,
                _ if is_about_pods => done >= number,
                _ => self.observer.pods_ended() - first >= number,
            };
            if until.is_some_and(|until| until.terminations().is_none_or(enough)) {
                break;
            }
        }
        self.stands(DisruptionStage::Done);
        done
    }

    /// Carries out the action once. Returns the number of accepted calls.
    async fn act(&self, repetition: u32, whole: &mut Whole) -> usize {
        let acted = match &self.disruption.action {
            DisruptionAction::DeletePod(pods)
            | DisruptionAction::Evict(pods)
            | DisruptionAction::Crash { pods, .. } => Ok(self.end_pods(pods, repetition, whole).await),
            DisruptionAction::Relabel { pods, label, restore } => {
                self.relabel(pods, label.as_deref(), *restore, repetition, whole).await
            }
            DisruptionAction::RollingRestart(workload) => self.restart(workload).await,
            DisruptionAction::SetImage { workload, container, image, restore } => {
                self.set_image(workload, container, image, *restore).await
            }
            DisruptionAction::Patch { object, patch, restore } => self.patch(object, patch, *restore).await,
            DisruptionAction::Scale { workload, replicas, restore } => {
                self.scale(workload, *replicas, *restore).await
            }
            DisruptionAction::Drain { node, restore } => self.drain(node, *restore).await,
            DisruptionAction::NodeShutdown { node, grace_seconds, restore } => {
                self.shut_node_down(node, *grace_seconds, *restore).await
            }
            DisruptionAction::RestartNodeAgent { node } => Ok(self.restart_agent(node).await),
            DisruptionAction::Exec { command } => self.exec(command).await,
            DisruptionAction::Observe { lasts } => {
                self.observe(*lasts).await;
                Ok(0)
            }
        };
        acted.unwrap_or_else(|why: Refusal| {
            self.refused(self.mode(), why);
            0
        })
    }

    async fn until_due(&self, repetition: u32) -> Result<()> {
        let is_again = repetition > 0 && self.disruption.every.is_zero();
        let period = self.observer.period();
        if is_again {
            let pause = self.disruption.phase(repetition, period);
            self.stands(DisruptionStage::Due { repetition, at: self.now() + pause });
            return self.changer.caller.stoppable(sleep(pause)).await;
        }
        let due = self.load.zero + self.disruption.due(repetition, period);
        let due = if repetition > 0 { due.min(self.load.end) } else { due };
        self.stands(DisruptionStage::Due { repetition, at: due });
        let due = self.observer.recorder().clock().instant(due).unwrap_or_else(std::time::Instant::now);
        self.changer.caller.stoppable(sleep_until(due.into())).await
    }

    fn now_is_late(&self) -> bool {
        self.load_left_ns() <= 0
    }

    fn left_out(&self, repetitions: Range<u32>, why: &str) {
        let which = match repetitions.len() {
            0 => return,
            1 => format!("repetition {} was", repetitions.end),
            _ => format!("repetitions {} to {} were", repetitions.start + 1, repetitions.end),
        };
        self.skipped(format!("{which} skipped: {why}"));
    }

    /// Records that a goal was not reached. If the disruption only observes, this is a warning, because others were
    /// meant to terminate the pods.
    fn not_reached(&self, why: &str) {
        let Repeat::Until(until) = self.disruption.repeat else { return };
        let why = format!("should have continued until {until}, but {why}");
        match self.disruption.action {
            DisruptionAction::Observe { .. } => {
                self.observer.recorder().warn(format!("{} {why}", self.disruption.action.name()))
            }
            _ => self.skipped(why),
        }
    }
}
