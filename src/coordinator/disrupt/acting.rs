//! What all actions have in common: their calls are repeated until they are accepted, stamped and recorded.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use tokio::time::{Instant, sleep, timeout};

use super::programs::Programs;
use super::silence::{Losses, NoLosses, Settle};
use crate::coordinator::caller::{Pauses, is_passing, may_have_been_done, retry_after};
use crate::coordinator::error::CoordinatorError;
use crate::coordinator::session::Session;
use crate::coordinator::viewer::{Standing, Wait};
use crate::scenario::{Action, Disruption, Restore};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::{EventKind, Mode, Stamp, event};

/// The error of the windows' own bounds, over all terminations of a run.
const ALPHA: f64 = 0.05;

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

impl From<bool> for Disrupted {
    /// One call, if it was accepted or not.
    fn from(is_accepted: bool) -> Self {
        Self { accepted: is_accepted.into(), failed: (!is_accepted).into(), skipped: 0 }
    }
}

impl Add for Disrupted {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sum for Disrupted {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        let mut sum = Self::default();
        parts.for_each(|part| sum += part);
        sum
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
    /// The chance, over all terminations together, that a silence is taken as the end of a window too early: the error
    /// of the windows' own bounds.
    pub alpha: f64,
    /// A loss is known this long after its request was sent, at the latest.
    pub known_after: Duration,
    /// What it loses.
    pub losses: &'a dyn Losses,
}

impl UnderLoad<'static> {
    /// A load about which only this is known.
    pub(crate) fn of(zero: Stamp, end: Stamp, rate: f64) -> Self {
        let (settle, known_after) = (Settle::default(), Duration::ZERO);
        Self { zero, end, rate, settle, alpha: ALPHA, known_after, losses: &NoLosses }
    }
}

/// One of the scenario's disruptions while it runs.
pub(super) struct Acting<'a> {
    pub(super) session: &'a Session,
    pub(super) index: u32,
    pub(super) disruption: &'a Disruption,
    pub(super) load: UnderLoad<'a>,
    pub(super) programs: &'a dyn Programs,
}

/// Why an action is not taken.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl From<CoordinatorError> for Refusal {
    fn from(error: CoordinatorError) -> Self {
        Self(error.to_string())
    }
}

/// How a call is repeated until it is accepted.
#[derive(Clone, Copy)]
pub(super) struct Insisting {
    /// The status of a good answer.
    pub(super) success: u16,
    /// From a temporary refusal to the next attempt, if the API server does not say.
    pub(super) pause: Duration,
    pub(super) twice: Twice,
}

/// The effect of repeating a call that may have been done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Twice {
    /// The same as doing it once.
    Harmless,
    /// More than was asked for.
    Harmful,
}

/// The result of a call that was repeated until it was accepted.
pub(super) struct Insisted {
    /// Whether it was.
    pub(super) is_accepted: bool,
    /// Whether it may have taken effect, accepted or not.
    pub(super) may_be_done: bool,
}

/// The API server's answer to a call, and when it was asked.
pub(super) struct Answered {
    sent: Stamp,
    answered: Stamp,
    status: Option<u16>,
    error: Option<String>,
    /// Whether it is known, although there was no answer, that it had no effect.
    is_undone: bool,
}

impl Acting<'_> {
    /// How pods end by the action as a whole.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.disruption.action {
            Action::RollingRestart(_) | Action::SetImage { .. } | Action::Patch { .. } => Some(Mode::Rollout),
            Action::Scale { .. } => Some(Mode::ScaleDown),
            Action::Drain { .. } => Some(Mode::Drain),
            Action::NodeShutdown { .. } => Some(Mode::NodeShutdown),
            Action::Relabel { .. } | Action::RestartNodeAgent { .. } => None,
            _ => Some(Mode::Other),
        }
    }

    /// Says how far it has come.
    pub(super) fn stands(&self, standing: Standing) {
        self.session.viewer.stands(self.index, self.disruption, standing);
    }

    /// Waits for this, and says so.
    pub(super) async fn waits<T>(&self, wait: Wait, until: impl Future<Output = T>) -> T {
        self.stands(Standing::Waits(wait));
        let waited = until.await;
        self.stands(Standing::Acts);
        waited
    }

    /// How many pods the watch has seen end.
    pub(super) fn pods_ended(&self) -> usize {
        self.session.pods_ended()
    }

    pub(super) async fn listed(&self, selector: &str) -> Result<Vec<Candidate>, CoordinatorError> {
        let caller = &self.session.caller;
        let (what, params) = (format!("list pods {selector:?}"), ListParams::default().labels(selector));
        caller.list(&what, &caller.api(), &params).await
    }

    pub(super) fn load_left_ns(&self) -> i64 {
        self.load.end.ns_since(self.session.clock.now())
    }

    /// The future's result, if it comes before the load ends.
    pub(super) async fn while_loaded<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let limit = Duration::from_nanos(self.load_left_ns().max(0).unsigned_abs());
        self.session.caller.stoppable(timeout(limit, future)).await.ok()?.ok()
    }

    /// Makes a call until it is accepted, or refused for good, and records each attempt. While the load lasts it
    /// waits after a temporary refusal (429). During consecutive faults of the API server it retries as long as the
    /// limit for an outage allows.
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
                    let is_last = lasts >= self.session.caller.limits.outage;
                    (is_last || (is_done && insisting.twice == Twice::Harmful), next)
                }
            };
            let is_accepted = self.note(mode, pod, answered);
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

    /// Makes a change and records it. Returns whether it was accepted, and its result.
    pub(super) async fn noted<T>(
        &self,
        mode: Option<Mode>,
        pod: Option<&Candidate>,
        change: impl Future<Output = Result<T, CoordinatorError>>,
    ) -> (bool, Option<T>) {
        let sent = self.session.clock.now();
        let changed = change.await;
        let answered = self.session.clock.now();
        let (status, error) =
            (changed.is_ok().then_some(200), changed.as_ref().err().map(ToString::to_string));
        let call = Answered { sent, answered, status, error, is_undone: false };
        (self.note(mode, pod, call), changed.ok())
    }

    /// Records a call, and how the pods end by it. Returns whether it was accepted.
    fn note(&self, mode: Option<Mode>, pod: Option<&Candidate>, call: Answered) -> bool {
        let Answered { sent, answered, status, error, is_undone } = call;
        let is_accepted = error.is_none();
        let (pod, uid) = (pod.map(ResourceExt::name_any), pod.and_then(ResourceExt::uid));
        let (disruption, action) = (self.index, self.disruption.action.name());
        let action = event::Action { disruption, action, mode, pod, uid, answered, status, error, is_undone };
        self.session.record_at(sent, EventKind::Action(action));
        is_accepted
    }

    /// Records an action that had nothing to act on, or that exceeds its limits.
    pub(super) fn refused(&self, mode: Option<Mode>, why: Refusal) -> Disrupted {
        let now = self.session.clock.now();
        let error = Some(why.0);
        self.note(mode, None, Answered { sent: now, answered: now, status: None, error, is_undone: true })
            .into()
    }

    /// Records that something the scenario asks for was not begun, once for each pod or repetition.
    pub(super) fn skipped(&self, why: String) -> Disrupted {
        self.refused(self.mode(), Refusal(why));
        Disrupted { skipped: 1, ..Disrupted::default() }
    }

    /// Changes things back when it is time, if that is before the end of the run.
    pub(super) async fn restore(&self, restore: Restore, mode: Option<Mode>, changes: &[u32]) {
        match restore {
            Restore::AtTheEnd => {}
            Restore::Never => {
                for change in changes {
                    if let Err(error) = self.session.keep_change(*change) {
                        self.session.warn(error.to_string());
                    }
                }
            }
            // If the load ends first, the end of the run does it.
            Restore::After(after) => {
                let due = self.session.clock.now() + after;
                if self.waits(Wait::Restore(due), self.while_loaded(sleep(after))).await.is_some() {
                    for change in changes {
                        self.noted(mode, None, self.session.take_back(*change)).await;
                    }
                }
            }
        }
    }
}
