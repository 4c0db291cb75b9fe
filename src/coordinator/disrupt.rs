//! Ends pods as the scenario says, and stamps its own calls.
//!
//! This module decides when, and [`recovery`] when it may go on. Actions on pods are in [`pods`], on workloads and
//! other objects in [`changes`], on nodes in [`nodes`], and what others do is in [`others`].

mod changes;
mod nodes;
mod others;
mod pods;
mod recovery;
mod silence;

use std::ops::{Add, AddAssign};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::caller::{Pauses, is_passing, may_have_been_done, retry_after};
use super::{CoordinatorError, Session};
use crate::scenario::{Action, Disruption, Repeat, Restore, Until};
pub(crate) use others::{NoPrograms, Programs, codes};
use recovery::Whole;
use rolldrop_record::{EventKind, Mode, Stamp, event};
use silence::NoLosses;
pub(crate) use silence::{Losses, Settle, Silence, until_silent};

/// The results of the disruptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disrupted {
    /// Actions that the API server accepted.
    pub accepted: usize,
    /// Actions that were refused, or for which no pod was ready.
    pub failed: usize,
    /// Repetitions that were skipped because pods had not recovered before the load ended.
    pub skipped: usize,
}

impl AddAssign for Disrupted {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Add for Disrupted {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

/// The load during the disruptions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderLoad<'a> {
    /// When its counted part begins.
    pub zero: Stamp,
    /// When it ends at the latest.
    pub end: Stamp,
    /// Requests per second; 0 if that is not known.
    pub rate: f64,
    /// How long to wait after a termination.
    pub settle: Settle,
    /// A loss is known this long after its request was sent, at the latest.
    pub known_after: Duration,
    /// What it loses.
    pub losses: &'a dyn Losses,
}

impl UnderLoad<'static> {
    /// A load about which only this is known.
    pub(crate) fn of(zero: Stamp, end: Stamp, rate: f64) -> Self {
        let (settle, known_after) = (Settle::default(), Duration::ZERO);
        Self { zero, end, rate, settle, known_after, losses: &NoLosses }
    }
}

/// The objects of an action must exist before anything is disrupted, and be within its limits.
pub(super) async fn check(session: &Session, disruption: &Disruption) -> Result<(), CoordinatorError> {
    let now = session.clock.now();
    let load = UnderLoad::of(now, now, 0.0);
    let acting = Acting { session, index: 0, disruption, load, programs: &NoPrograms };
    match &disruption.action {
        Action::DeletePod(pods) | Action::Evict(pods) => acting.check_pods(pods).await,
        Action::Crash { pods, container } => acting.check_crash(pods, container.as_deref()).await,
        Action::Relabel { pods, label, .. } => acting.check_relabel(pods, label.as_deref()).await,
        Action::RollingRestart(workload) => acting.workload(workload).await.map(drop),
        Action::SetImage { workload, container, .. } => acting.check_container(workload, container).await,
        Action::Patch { object, patch, .. } => acting.check_patch(object, patch).await,
        Action::Scale { workload, replicas, .. } => acting.check_scale(workload, *replicas).await,
        Action::Drain { node, .. } | Action::NodeShutdown { node, .. } => acting.check_node(node).await,
        Action::RestartNodeAgent { node } => acting.node(node).await.map(drop),
        Action::Exec { .. } | Action::Observe { .. } => Ok(()),
    }
}

pub(super) async fn run(
    session: &Session,
    disruptions: &[Disruption],
    load: UnderLoad<'_>,
    programs: &dyn Programs,
) -> Disrupted {
    let all = disruptions.iter().enumerate().map(|(index, disruption)| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Acting { session, index, disruption, load, programs }.repeat()
    });
    let mut sum = Disrupted::default();
    join_all(all).await.into_iter().for_each(|part| sum += part);
    sum
}

/// One of the scenario's disruptions while it runs.
struct Acting<'a> {
    session: &'a Session,
    index: u32,
    disruption: &'a Disruption,
    load: UnderLoad<'a>,
    programs: &'a dyn Programs,
}

/// How a call is repeated until it is accepted.
#[derive(Clone, Copy)]
struct Insisting {
    /// The status of a good answer.
    success: u16,
    /// From a temporary refusal to the next attempt, if the API server does not say.
    pause: Duration,
    twice: Twice,
}

/// The effect of repeating a call that may have been done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twice {
    /// The same as doing it once.
    Harmless,
    /// More than was asked for.
    Harmful,
}

/// The result of a call that was repeated until it was accepted.
struct Insisted {
    /// Whether it was.
    is_accepted: bool,
    /// Whether it may have taken effect, accepted or not.
    may_be_done: bool,
}

/// The API server's answer to a call, and when it was asked.
struct Answered {
    sent: Stamp,
    answered: Stamp,
    status: Option<u16>,
    error: Option<String>,
    /// Whether it is known, although there was no answer, that it had no effect.
    is_undone: bool,
}

impl Answered {
    fn may_have_been_done(&self) -> bool {
        match self.status {
            Some(status) => self.error.is_none() || status >= 500,
            None => !self.is_undone,
        }
    }
}

impl Acting<'_> {
    async fn repeat(self) -> Disrupted {
        let mut done = Disrupted::default();
        let mut whole = Whole::default();
        // Pods that have ended since, and how many of them ended alone.
        let (first, mut alone) = (self.pods_ended(), 0);
        for repetition in 0.. {
            if self.until_due(repetition).await.is_err() {
                break;
            }
            if repetition > 0 && self.now_is_late() {
                self.not_reached("the load had ended");
                break;
            }
            if repetition == 0 && self.is_rollout() {
                // What is not as asked already is not waited for.
                whole.workloads = self.session.workloads().await.unwrap_or_default();
            }
            let (ended_before, accepted_before) = (self.pods_ended(), done.accepted);
            done += self.act(repetition, &mut whole).await;
            let until = match self.disruption.repeat {
                Repeat::Times(times) if repetition + 1 >= times => break,
                Repeat::Times(_) => None,
                Repeat::Until(until) => Some(until),
            };
            if until.is_some() && self.now_is_late() {
                self.not_reached("the load had ended");
                break;
            }
            if let Err(why) = self.recovered(&whole).await {
                if self.session.caller.stop.is_cancelled() {
                    break;
                }
                match (until, self.disruption.repeat) {
                    (None, Repeat::Times(times)) => {
                        self.left_out(repetition + 1..times, &why);
                        done.skipped += usize::try_from(times - repetition - 1).unwrap_or(usize::MAX);
                    }
                    _ => self.not_reached(&why),
                }
                break;
            }
            let ended_by_this = done.accepted - accepted_before;
            if self.pods_ended() - ended_before == ended_by_this {
                alone += ended_by_this;
            }
            let enough = |number| match until {
                Some(Until::Windows { .. }) => alone >= number,
                _ if self.is_about_pods() => done.accepted >= number,
                _ => self.pods_ended() - first >= number,
            };
            if until.is_some_and(|until| until.terminations().is_none_or(enough)) {
                break;
            }
        }
        done
    }

    /// Does it once.
    async fn act(&self, repetition: u32, whole: &mut Whole) -> Disrupted {
        match &self.disruption.action {
            Action::DeletePod(pods) | Action::Evict(pods) | Action::Crash { pods, .. } => {
                self.end_pods(pods, repetition, whole).await
            }
            Action::Relabel { pods, label, restore } => {
                self.relabel(pods, label.as_deref(), *restore, repetition, whole).await
            }
            Action::RollingRestart(workload) => self.restart(workload).await,
            Action::SetImage { workload, container, image, restore } => {
                self.set_image(workload, container, image, *restore).await
            }
            Action::Patch { object, patch, restore } => self.patch(object, patch, *restore).await,
            Action::Scale { workload, replicas, restore } => self.scale(workload, *replicas, *restore).await,
            Action::Drain { node, restore } => self.drain(node, *restore).await,
            Action::NodeShutdown { node, grace_seconds, restore } => {
                self.shut_node_down(node, *grace_seconds, *restore).await
            }
            Action::RestartNodeAgent { node } => self.restart_agent(node).await,
            Action::Exec { command } => self.exec(command).await,
            Action::Observe { lasts } => self.observe(*lasts).await,
        }
    }

    /// Whether it makes workloads replace pods, or create them elsewhere.
    fn is_rollout(&self) -> bool {
        self.disruption.action.is_rollout()
    }

    /// Whether each of its calls is about one pod.
    fn is_about_pods(&self) -> bool {
        matches!(self.disruption.action, Action::DeletePod(_) | Action::Evict(_))
    }

    /// How many pods the watch has seen end.
    fn pods_ended(&self) -> usize {
        self.session.views.read(|view| view.ended.len())
    }

    async fn until_due(&self, repetition: u32) -> Result<(), CoordinatorError> {
        let is_again = repetition > 0 && self.disruption.every.is_zero();
        let period = self.session.period();
        if is_again {
            return self.session.caller.stoppable(sleep(self.disruption.phase(repetition, period))).await;
        }
        let due = self.load.zero + self.disruption.due(repetition, period);
        let due = if repetition > 0 { due.min(self.load.end) } else { due };
        let due = self.session.clock.instant(due).unwrap_or_else(std::time::Instant::now);
        self.session.caller.stoppable(sleep_until(due.into())).await
    }

    fn now_is_late(&self) -> bool {
        self.load_left_ns() <= 0
    }

    fn load_left_ns(&self) -> i64 {
        self.load.end.ns_since(self.session.clock.now())
    }

    fn left_out(&self, repetitions: std::ops::Range<u32>, why: &str) {
        for repetition in repetitions {
            let (name, number) = (self.disruption.action.name(), repetition + 1);
            let message = format!("{name} number {number} was skipped: {why}");
            self.session.record(EventKind::Warning { message });
        }
    }

    fn not_reached(&self, why: &str) {
        if let Repeat::Until(until) = self.disruption.repeat {
            let name = self.disruption.action.name();
            let message = format!("{name} should have continued until {until}, but {why}");
            self.session.record(EventKind::Warning { message });
        }
    }

    /// The future's result, if it comes before the load ends.
    async fn while_loaded<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let limit = Duration::from_nanos(self.load_left_ns().max(0).unsigned_abs());
        self.session.caller.stoppable(timeout(limit, future)).await.ok()?.ok()
    }

    /// Makes a call until it is accepted, or refused for good, and records each attempt. While the load lasts it
    /// waits after a temporary refusal (429). During consecutive faults of the API server it retries as long as the
    /// limit for an outage allows.
    async fn insist<T, F>(
        &self,
        mode: Option<Mode>,
        pod: Option<(String, Option<String>)>,
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
            let is_done = answered.may_have_been_done();
            may_be_done |= is_done;
            let (is_over, wait) = match &answer {
                Some(Ok(_)) => (true, next),
                Some(Err(kube::Error::Api(status))) if status.code == 429 => {
                    (first_fault, pauses) = (None, Pauses::default());
                    let told = answer.as_ref().and_then(|answer| retry_after(answer.as_ref().err()?));
                    (false, told.unwrap_or(insisting.pause))
                }
                Some(Err(error)) if !is_passing(error) => (true, next),
                _ => {
                    let lasts = sent - *first_fault.get_or_insert(sent);
                    let is_last = lasts >= self.session.caller.limits.outage;
                    (is_last || (is_done && insisting.twice == Twice::Harmful), next)
                }
            };
            let is_accepted = self.note(mode, pod.clone(), answered);
            if is_over || self.while_loaded(sleep(wait)).await.is_none() {
                return Insisted { is_accepted, may_be_done };
            }
        }
    }

    /// Makes a call and stamps it before and after; `success` is the status of a good answer. There is no answer if
    /// the limit for a call has passed.
    async fn stamped<T>(
        &self,
        success: u16,
        call: impl Future<Output = kube::Result<T>>,
    ) -> (Answered, Option<kube::Result<T>>) {
        let limit = self.session.caller.limits.api_call;
        let sent = self.session.clock.now();
        let answer = timeout(limit, call).await.ok();
        let answered = self.session.clock.now();
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

    /// The same for a call that returns our own error.
    async fn stamped_change<T>(
        &self,
        change: impl Future<Output = Result<T, CoordinatorError>>,
    ) -> (Answered, Option<T>) {
        let sent = self.session.clock.now();
        let changed = change.await;
        let answered = self.session.clock.now();
        match changed {
            Ok(changed) => {
                (Answered { sent, answered, status: Some(200), error: None, is_undone: false }, Some(changed))
            }
            Err(error) => {
                let error = Some(error.to_string());
                (Answered { sent, answered, status: None, error, is_undone: false }, None)
            }
        }
    }

    /// Records a call, and how the pods end by it. Returns whether it was accepted.
    fn note(&self, mode: Option<Mode>, pod: Option<(String, Option<String>)>, call: Answered) -> bool {
        let Answered { sent, answered, status, error, is_undone } = call;
        let is_accepted = error.is_none();
        let (pod, uid) = pod.map_or((None, None), |(name, uid)| (Some(name), uid));
        let (disruption, action) = (self.index, self.disruption.action.name());
        let action = event::Action { disruption, action, mode, pod, uid, answered, status, error, is_undone };
        self.session.record_at(sent, EventKind::Action(action));
        is_accepted
    }

    /// Records an action that had nothing to act on, or that exceeds its limits.
    fn refused(&self, mode: Option<Mode>, why: String) -> Disrupted {
        let now = self.session.clock.now();
        self.note(
            mode,
            None,
            Answered { sent: now, answered: now, status: None, error: Some(why), is_undone: true },
        );
        Disrupted { failed: 1, ..Disrupted::default() }
    }

    /// Changes things back when it is time, if that is before the end of the run.
    async fn restore(&self, restore: Restore, mode: Option<Mode>, changes: &[u32]) {
        match restore {
            Restore::AtTheEnd => {}
            Restore::Never => {
                for change in changes {
                    if let Err(error) = self.session.keep_change(*change) {
                        self.session.record(EventKind::Warning { message: error.to_string() });
                    }
                }
            }
            // If the load ends first, the end of the run does it.
            Restore::After(after) => {
                if self.while_loaded(tokio::time::sleep(after)).await.is_none() {
                    return;
                }
                for change in changes {
                    let call = self.stamped_change(self.session.take_back(*change)).await.0;
                    self.note(mode, None, call);
                }
            }
        }
    }
}

/// One call as a count.
fn counted(is_accepted: bool) -> Disrupted {
    Disrupted { accepted: is_accepted.into(), failed: (!is_accepted).into(), skipped: 0 }
}
