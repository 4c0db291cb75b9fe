//! Code that all actions share. It repeats their calls until they are accepted, and timestamps and records them.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use tokio::time::{Instant, sleep, timeout};

use super::Disruptor;
use super::programs::Programs;
use super::silence::Settle;
use crate::act::apply::Changer;
use crate::api::{Pauses, may_have_been_done, retry_after};
use crate::error::{CoordinatorError, Result, is_passing};
use crate::observe::Observer;
use crate::viewer::{DisruptionStage, Wait};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::{ALPHA, EventKind, Mode, Stamp, event};
use rolldrop_scenario::{Disruption, DisruptionAction, Restore};

/// Load during the disruptions.
#[derive(Clone, Copy)]
pub(crate) struct UnderLoad<'a> {
    /// Time at which the counted part of the load begins.
    pub zero: Stamp,
    /// Latest time at which the load ends.
    pub end: Stamp,
    /// Requests per second; 0 if the rate is not known.
    pub rate: f64,
    /// Settings for the wait after a termination.
    pub settle: Settle,
    /// Probability, over all terminations together, that silence is mistaken for the end of a window. The bounds of
    /// the windows have the same error probability.
    pub alpha: f64,
    /// Longest time from sending a request until its loss is known.
    pub known_after: Duration,
    /// Returns the number of requests that the load has lost so far, which may lag by a fraction of a second.
    pub losses: &'a dyn Fn() -> u64,
}

impl UnderLoad<'static> {
    /// Creates a load with only these values known.
    pub(crate) fn of(zero: Stamp, end: Stamp, rate: f64) -> Self {
        let (settle, known_after) = (Settle::default(), Duration::ZERO);
        Self { zero, end, rate, settle, alpha: ALPHA, known_after, losses: &|| 0 }
    }
}

/// One of the scenario's disruptions in progress.
pub(super) struct Acting<'a> {
    pub(super) disruptor: &'a Disruptor,
    pub(super) changer: Changer<'a>,
    pub(super) observer: &'a Observer,
    pub(super) index: u32,
    pub(super) disruption: &'a Disruption,
    pub(super) load: UnderLoad<'a>,
    pub(super) programs: &'a dyn Programs,
}

/// Reason that an action is not carried out.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl From<CoordinatorError> for Refusal {
    fn from(error: CoordinatorError) -> Self {
        Self(error.to_string())
    }
}

/// Rules for repeating a call until it is accepted.
#[derive(Clone, Copy)]
pub(super) struct Insisting {
    /// HTTP status to record for an accepted call.
    pub(super) success: u16,
    /// Pause between a temporary refusal and the next attempt, if the API server names none.
    pub(super) pause: Duration,
    pub(super) twice: Twice,
}

/// Effect of repeating a call that may already have taken effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Twice {
    /// Repeating has the same effect as one call.
    Harmless,
    /// Repeating does more than the scenario asks for.
    Harmful,
}

/// Result of a call that was repeated until it was accepted.
pub(super) struct Insisted {
    /// True if the call was accepted.
    pub(super) is_accepted: bool,
    /// True if the call may have taken effect, accepted or not.
    pub(super) may_be_done: bool,
}

/// The API server's response to a call, with the times before and after the call.
pub(super) struct Answered {
    sent: Stamp,
    answered: Stamp,
    status: Option<u16>,
    error: Option<String>,
    /// True if there was no response, but the call certainly had no effect.
    is_undone: bool,
}

impl Acting<'_> {
    /// Returns the mode of the terminations that the action as a whole causes; `None` if it terminates no pods.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.disruption.action {
            DisruptionAction::RollingRestart(_)
            | DisruptionAction::SetImage { .. }
            | DisruptionAction::Patch { .. } => Some(Mode::Rollout),
            DisruptionAction::Scale { .. } => Some(Mode::ScaleDown),
            DisruptionAction::Drain { .. } => Some(Mode::Drain),
            DisruptionAction::NodeShutdown { .. } => Some(Mode::NodeShutdown),
            DisruptionAction::Relabel { .. } | DisruptionAction::RestartNodeAgent { .. } => None,
            _ => Some(Mode::Other),
        }
    }

    /// Reports the disruption's progress to the viewer.
    pub(super) fn stands(&self, standing: DisruptionStage) {
        self.observer.viewer().stands(self.index, self.disruption, standing);
    }

    /// Waits for a future, and reports the wait to the viewer.
    pub(super) async fn waits<T>(&self, wait: Wait, until: impl Future<Output = T>) -> T {
        self.stands(DisruptionStage::Waits(wait));
        let waited = until.await;
        self.stands(DisruptionStage::Acts);
        waited
    }

    pub(super) fn now(&self) -> Stamp {
        self.observer.recorder().clock().now()
    }

    pub(super) async fn listed(&self, selector: &str) -> Result<Vec<Candidate>> {
        let caller = self.changer.caller;
        let (what, params) = (format!("list pods {selector:?}"), ListParams::default().labels(selector));
        caller.list(&what, &caller.api(), &params).await
    }

    pub(super) fn load_left_ns(&self) -> i64 {
        self.load.end.ns_since(self.now())
    }

    /// Returns the future's result, or `None` if the load ends or the run is stopped first.
    pub(super) async fn while_loaded<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let limit = Duration::from_nanos(self.load_left_ns().max(0).unsigned_abs());
        self.changer.caller.stoppable(timeout(limit, future)).await.ok()?.ok()
    }

    /// Repeats a call until the API server accepts it or refuses it for good, and records each attempt. Retries after
    /// temporary refusals (429) until the load ends, and after consecutive API server faults for as long as the limit
    /// for an outage allows.
    pub(super) async fn insist<T, F>(
        &self,
        mode: Option<Mode>,
        pod: Option<&Candidate>,
        insisting: Insisting,
        mut call: impl FnMut() -> F,
    ) -> Insisted
    where
        F: Future<Output = kube::Result<T>>,
    {
        let (mut first_fault, mut pauses) = (None, Pauses::default());
        let mut may_be_done = false;
        loop {
            let (sent, next) = (Instant::now(), pauses.next());
            let (answered, answer) = self.stamped(insisting.success, call()).await;
            let is_done = !matches!(&answer, Some(Err(error)) if !may_have_been_done(error));
            may_be_done |= is_done;
            let (is_over, wait) = match &answer {
                Some(Ok(_)) => (true, next),
                Some(Err(error @ kube::Error::Api(status))) if status.code == 429 => {
                    (first_fault, pauses) = (None, Pauses::default());
                    (false, retry_after(error).unwrap_or(insisting.pause))
                }
                Some(Err(error)) if !is_passing(error) => (true, next),
                _ => {
                    let lasts = sent - *first_fault.get_or_insert(sent);
                    let is_last = lasts >= self.changer.caller.limits.outage;
                    (is_last || (is_done && insisting.twice == Twice::Harmful), next)
                }
            };
            let is_accepted = self.note(mode, pod, answered);
            if is_over || self.while_loaded(sleep(wait)).await.is_none() {
                return Insisted { is_accepted, may_be_done };
            }
        }
    }

    /// Makes a call, and takes timestamps before and after it. `success` is the status to record for an accepted call.
    /// Returns no response if the call exceeds its time limit.
    async fn stamped<T>(
        &self,
        success: u16,
        call: impl Future<Output = kube::Result<T>>,
    ) -> (Answered, Option<kube::Result<T>>) {
        let limit = self.changer.caller.limits.api_call;
        let sent = self.now();
        let answer = timeout(limit, call).await.ok();
        let answered = self.now();
        let mut is_undone = false;
        let (status, error) = match &answer {
            Some(Ok(_)) => (Some(success), None),
            Some(Err(kube::Error::Api(status))) => (Some(status.code), Some(status.message.clone())),
            Some(Err(error)) => {
                is_undone = !may_have_been_done(error);
                let what = format!("carry out {}", self.disruption.action.name());
                (None, Some(CoordinatorError::api(&what, error).to_string()))
            }
            None => (None, Some(format!("no answer within {limit:?}"))),
        };
        (Answered { sent, answered, status, error, is_undone }, answer)
    }

    /// Makes a change and records it. Returns true if the change was accepted, and its result.
    pub(super) async fn noted<T>(
        &self,
        mode: Option<Mode>,
        pod: Option<&Candidate>,
        change: impl Future<Output = Result<T>>,
    ) -> (bool, Option<T>) {
        let sent = self.now();
        let changed = change.await;
        let answered = self.now();
        let (status, error) =
            (changed.is_ok().then_some(200), changed.as_ref().err().map(ToString::to_string));
        let call = Answered { sent, answered, status, error, is_undone: false };
        (self.note(mode, pod, call), changed.ok())
    }

    /// Records a call, with the mode of the terminations that it causes. Returns true if the call was accepted.
    fn note(&self, mode: Option<Mode>, pod: Option<&Candidate>, call: Answered) -> bool {
        let Answered { sent, answered, status, error, is_undone } = call;
        let is_accepted = error.is_none();
        let (pod, uid) = (pod.map(ResourceExt::name_any), pod.and_then(ResourceExt::uid));
        let (disruption, action) = (self.index, self.disruption.action.name());
        let action = event::Action { disruption, action, mode, pod, uid, answered, status, error, is_undone };
        self.observer.recorder().event(sent, EventKind::Action(action));
        is_accepted
    }

    /// Records an action that has nothing to act on or exceeds its limits.
    pub(super) fn refused(&self, mode: Option<Mode>, why: Refusal) {
        let now = self.now();
        let error = Some(why.0);
        self.note(mode, None, Answered { sent: now, answered: now, status: None, error, is_undone: true });
    }

    /// Records that a part of the scenario was skipped; called once for each pod or repetition.
    pub(super) fn skipped(&self, why: String) {
        self.refused(self.mode(), Refusal(why));
    }

    /// Reverts changes after the time that `restore` sets, or keeps them for good. Leaves changes that are due at the
    /// end of the run to the final undo.
    pub(super) async fn restore(&self, restore: Restore, mode: Option<Mode>, changes: &[u32]) {
        match restore {
            Restore::AtTheEnd => {}
            Restore::Never => {
                for change in changes {
                    if let Err(error) = self.changer.ledger.keep(*change) {
                        self.observer.recorder().warn(error.to_string());
                    }
                }
            }
            // If the load ends first, the run reverts them at its end.
            Restore::After(after) => {
                let due = self.now() + after;
                if self.waits(Wait::Restore(due), self.while_loaded(sleep(after))).await.is_some() {
                    for change in changes {
                        self.noted(mode, None, self.changer.ledger.take_back(self.changer.caller, *change))
                            .await;
                    }
                }
            }
        }
    }
}
