//! Ends pods as the scenario says, and stamps its own calls.
//!
//! When is decided here; what is done to pods is in [`pods`], to workloads and nodes in [`others`].

mod others;
mod pods;

use std::ops::AddAssign;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::caller::{Pauses, is_passing, may_have_been_done, retry_after};
use super::{CoordinatorError, Session};
use crate::record::{EventKind, Stamp, event};
use crate::scenario::{Action, Disruption};

/// What became of the disruptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disrupted {
    /// Actions that the API server accepted.
    pub accepted: usize,
    /// Actions that were refused, or for which no pod was ready.
    pub failed: usize,
    /// Repetitions that were left out because pods had not recovered before the load ended.
    pub skipped: usize,
}

impl AddAssign for Disrupted {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// What an action is about must be there before anything is disrupted, and within its limits.
pub(super) async fn check(session: &Session, disruption: &Disruption) -> Result<(), CoordinatorError> {
    let acting = Acting { session, index: 0, disruption, load_end: session.clock.now() };
    match &disruption.action {
        Action::DeletePod(pods) | Action::Evict(pods) => acting.check_pods(pods).await,
        Action::RollingRestart(workload) => acting.workload(workload).await.map(drop),
        Action::Scale { workload, replicas } => acting.check_scale(workload, *replicas).await,
        Action::Drain { node } => acting.check_drain(node).await,
    }
}

pub(super) async fn run(
    session: &Session,
    disruptions: &[Disruption],
    zero: Stamp,
    load_end: Stamp,
) -> Disrupted {
    let all = disruptions.iter().enumerate().map(|(index, disruption)| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Acting { session, index, disruption, load_end }.repeat(zero)
    });
    let mut sum = Disrupted::default();
    join_all(all).await.into_iter().for_each(|part| sum += part);
    sum
}

/// One of the scenario's disruptions, being carried out.
struct Acting<'a> {
    session: &'a Session,
    index: u32,
    disruption: &'a Disruption,
    load_end: Stamp,
}

/// How the API server answered a call, and when it was asked.
struct Answered {
    sent: Stamp,
    answered: Stamp,
    status: Option<u16>,
    error: Option<String>,
    /// Whether it is known, though there was no answer, that it was not carried out.
    is_undone: bool,
}

impl Acting<'_> {
    async fn repeat(self, zero: Stamp) -> Disrupted {
        let mut done = Disrupted::default();
        // Ready pods before the first: so many there have to be again before the next.
        let mut whole = 0;
        for repetition in 0..self.disruption.repeat {
            let due = zero + self.disruption.due(repetition);
            let due = self.session.clock.instant(due).unwrap_or_else(std::time::Instant::now);
            if self.session.caller.stoppable(sleep_until(due.into())).await.is_err() {
                break;
            }
            if repetition > 0 && !self.recovered(whole).await {
                done.skipped += 1;
                let message = format!(
                    "{} number {} was left out: the pods of the one before had not recovered when the load ended",
                    self.disruption.action.name(),
                    repetition + 1
                );
                self.session.record(EventKind::Warning { message });
                continue;
            }
            done += match &self.disruption.action {
                Action::DeletePod(pods) | Action::Evict(pods) => self.end_pods(pods, &mut whole).await,
                Action::RollingRestart(workload) => self.restart(workload).await,
                Action::Scale { workload, replicas } => self.scale(workload, *replicas).await,
                Action::Drain { node } => self.drain(node).await,
            };
        }
        done
    }

    /// Waits, while the load lasts, until what the repetition before did is over.
    async fn recovered(&self, whole: usize) -> bool {
        let recovered = async {
            match &self.disruption.action {
                Action::DeletePod(pods) | Action::Evict(pods) => self.pods_recovered(pods, whole).await,
                Action::RollingRestart(_) | Action::Scale { .. } => {
                    let nothing = super::Workloads::default();
                    matches!(self.session.until_settled(&nothing).await, Ok((_, None)))
                }
                Action::Drain { .. } => true,
            }
        };
        self.while_loaded(recovered).await.unwrap_or(false)
    }

    /// The future's result, if it comes before the load ends.
    async fn while_loaded<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let limit = self.load_end.ns_since(self.session.clock.now());
        let limit = Duration::from_nanos(limit.max(0).unsigned_abs());
        self.session.caller.stoppable(timeout(limit, future)).await.ok()?.ok()
    }

    /// Makes a call until it is accepted, or refused for good, and records each attempt. While the load
    /// lasts it waits out a refusal for now (429): as long as it is told to, else for `pause`. Over a
    /// fault of the API server it goes on as long as the limit for an outage allows.
    async fn insist<T, F>(
        &self,
        mode: &str,
        pod: Option<(String, Option<String>)>,
        (success, pause): (u16, Duration),
        mut call: impl FnMut() -> F,
    ) -> bool
    where
        F: Future<Output = kube::Result<T>>,
    {
        let give_up = Instant::now() + self.session.caller.limits.outage;
        let mut pauses = Pauses::default();
        loop {
            let (mut wait, mut is_over) = (pauses.next(), Instant::now() >= give_up);
            let attempt = async {
                let answer = call().await;
                match &answer {
                    Ok(_) => is_over = true,
                    Err(kube::Error::Api(status)) if status.code == 429 => {
                        (wait, is_over) =
                            (answer.as_ref().err().and_then(retry_after).unwrap_or(pause), false);
                    }
                    Err(error) => is_over |= !is_passing(error),
                }
                answer
            };
            let call = self.stamped(success, attempt).await;
            let is_accepted = self.note(mode, pod.clone(), call);
            if is_over || self.while_loaded(sleep(wait)).await.is_none() {
                return is_accepted;
            }
        }
    }

    /// Makes a call and stamps it before and after; `success` is the status of a good answer.
    async fn stamped<T>(&self, success: u16, call: impl Future<Output = kube::Result<T>>) -> Answered {
        let limit = self.session.caller.limits.api_call;
        let sent = self.session.clock.now();
        let answer = timeout(limit, call).await;
        let answered = self.session.clock.now();
        let mut is_undone = false;
        let (status, error) = match answer {
            Ok(Ok(_)) => (Some(success), None),
            Ok(Err(kube::Error::Api(status))) => (Some(status.code), Some(status.message.clone())),
            Ok(Err(error)) => {
                is_undone = !may_have_been_done(&error);
                let what = format!("{} as the scenario says", self.disruption.action.name());
                (None, Some(CoordinatorError::api(&what, &error).to_string()))
            }
            Err(_) => (None, Some(format!("no answer within {limit:?}"))),
        };
        Answered { sent, answered, status, error, is_undone }
    }

    /// Records a call, and how the pods end by it. Answers whether it was accepted.
    fn note(&self, mode: &str, pod: Option<(String, Option<String>)>, call: Answered) -> bool {
        let Answered { sent, answered, status, error, is_undone } = call;
        let is_accepted = error.is_none();
        let (pod, uid) = pod.map_or((None, None), |(name, uid)| (Some(name), uid));
        let (disruption, action) = (self.index, self.disruption.action.name().into());
        let mode = mode.to_owned();
        let action = event::Action { disruption, action, mode, pod, uid, answered, status, error, is_undone };
        self.session.record_at(sent, EventKind::Action(action));
        is_accepted
    }

    /// Records an action for which there was nothing to act on, or that is beyond its limits.
    fn refused(&self, mode: &str, why: String) -> Disrupted {
        let now = self.session.clock.now();
        self.note(
            mode,
            None,
            Answered { sent: now, answered: now, status: None, error: Some(why), is_undone: true },
        );
        Disrupted { failed: 1, ..Disrupted::default() }
    }
}

/// One call as a count.
fn counted(is_accepted: bool) -> Disrupted {
    Disrupted { accepted: is_accepted.into(), failed: (!is_accepted).into(), skipped: 0 }
}
