//! Runs that continue while their gate is inconclusive, or while their windows cover less than required: rounds of the
//! same disruptions under one load, and a look at the record after each.
//!
//! A look reads the run directory as far as it is written, while the load continues; rows that workers in the cluster
//! hold are fetched for it. It decides only whether there is another round, and whoever judges runs looks: the run is
//! judged by its whole record, as every run is, with the confidence of its last look.

use std::time::Duration;

use futures::future::LocalBoxFuture;
use tokio::time::{Instant, sleep, sleep_until};

use super::error::RunError;
use super::under_load::Measuring;
use crate::coordinator::{ALPHA, Workloads};
use rolldrop_load as load;
use rolldrop_load::remote::collect::early::{Arrived, EarlyRows};
use rolldrop_record::parts::PART_AGE;
use rolldrop_record::{Looks, Rounds, RoundsEnd, RunDir, RunInfo, Stamp};
use rolldrop_scenario::Until;

/// Maximum time from the end of a request until its row is in a closed part.
const WRITTEN_AFTER: Duration = PART_AGE.saturating_add(Duration::from_secs(1));
/// Time that a worker in the cluster may take to report how many requests had ended.
const REPORTED_AFTER: Duration = Duration::from_secs(3);
/// Interval between attempts to find all rows.
const RETRY: Duration = Duration::from_secs(1);
/// Time, beyond that of a request, after which a look uses the rows that have arrived.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks at the gate of a run that continues while it is inconclusive.
#[derive(Clone)]
pub struct PlannedLooks<'a> {
    /// The looks, whose errors are fixed before the start.
    pub looks: Looks,
    /// Description of them.
    pub in_words: String,
    /// Names the look that judges the run.
    pub title: fn(&Looks) -> String,
    /// Looks at the gate.
    pub look: &'a dyn Look<Gate>,
}

/// Result of a look at a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is inconclusive, by these checks.
    Inconclusive(Vec<String>),
    /// Another round would not change it, as text.
    Settled(String),
}

/// Settings of a run that continues until its windows cover enough.
#[derive(Clone, Copy)]
pub struct Covering<'a> {
    /// The most rounds that the run makes.
    pub most_rounds: usize,
    /// Looks at the windows.
    pub look: &'a dyn Look<Coverage>,
}

/// Result of a look at the windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// The measurement is invalid and will stay so, for this reason.
    Invalid(String),
    /// Another round may follow.
    Counted {
        /// Pods that have ended.
        terminations: usize,
        /// Units that count so far.
        counted: usize,
        /// Number of these that it takes.
        needed: usize,
        /// Progress, in words.
        said: String,
        /// Number of pods that the next round ends, or the reason why there is none.
        next: Result<usize, (RoundsEnd, String)>,
    },
}

/// Looks at the record of a run that lasts.
pub trait Look<T> {
    /// Judges what is recorded so far; `None` if rows are missing that may still come.
    ///
    /// # Errors
    /// Fails if the record cannot be read.
    fn look(&self, so_far: SoFar) -> LocalBoxFuture<'_, Result<Option<T>, RunError>>;
}

/// The record of a run that lasts.
#[derive(Debug)]
pub struct SoFar {
    /// The run directory, to which the run still writes.
    pub run_dir: RunDir,
    /// run.json as a result needs it at this look.
    pub info: RunInfo,
    /// Time up to which the look needs all requests.
    pub until: Stamp,
    /// True if it must do with those that are here.
    pub is_last: bool,
}

/// A load that is sent while a run makes its rounds.
#[derive(Clone, Copy)]
pub(super) struct Sent<'a> {
    pub(super) control: &'a load::Control,
    /// run.json as it is at the beginning of the run.
    pub(super) info: &'a RunInfo,
    /// The rows that workers in the cluster have; `None` where the load comes from here.
    pub(super) early: Option<&'a EarlyRows>,
}

/// One of several rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Number of the round, counted from 0.
    pub(super) index: usize,
    /// The chance of an error that the waits of this round share.
    pub(super) alpha: f64,
    /// Condition that ends this round, if not the one that ends the first.
    pub(super) until: Option<Until>,
}

impl Round {
    /// Makes the round before a look. It has the error of the strictest look, shared between the terminations of all
    /// rounds.
    fn of(looks: &Looks) -> Self {
        let strictest = looks.alphas.iter().copied().fold(ALPHA, f64::min);
        Self { index: looks.at - 1, alpha: strictest / looks.most() as f64, until: None }
    }
}

impl Measuring<'_> {
    /// Repeats the disruptions in rounds until the gate has passed or failed, or no look is left. The load continues
    /// meanwhile, and ends then. Returns the looks, at the one that judges the run.
    pub(super) async fn in_rounds(
        self,
        (mut zero, rate): (Stamp, f64),
        sent: Sent<'_>,
        planned: &PlannedLooks<'_>,
    ) -> Result<Looks, RunError> {
        let (Self { run, session, halt, .. }, Sent { control, info, .. }) = (self, sent);
        let mut looks = planned.looks.clone();
        // Workloads that are not known to have been whole are waited for, too.
        let workloads = session.workloads().await.unwrap_or_default();
        loop {
            self.round((zero, rate), control, Some(Round::of(&looks))).await?;
            if halt.is_cancelled() || looks.is_last() {
                break;
            }
            let so_far = RunInfo { looks: Some(looks.clone()), ..info.clone() };
            let look = self.look(planned.look, Sent { info: &so_far, ..sent }, &workloads);
            let Some(seen) = halt.run_until_cancelled(look).await else { break };
            let look = (planned.title)(&looks);
            match seen {
                // That does not lose the record so far.
                Err(error) => {
                    run.warn(session, &format!("{look}: {}", error.in_words()));
                    break;
                }
                Ok(Gate::Settled(what)) => {
                    run.viewer.say(&format!("{look}: {what}"));
                    break;
                }
                Ok(Gate::Inconclusive(checks)) => {
                    let checks = checks.join(", ");
                    run.viewer.say(&format!("{look}: the gate is inconclusive ({checks}): another round"));
                }
            }
            looks.at += 1;
            run.run_dir.write_info(&RunInfo { looks: Some(looks.clone()), ..info.clone() })?;
            zero = run.clock.now();
        }
        control.stop();
        Ok(looks)
    }

    /// Repeats the disruptions in rounds until a look requires no more terminations. The load continues meanwhile, and
    /// ends then. Returns how far the rounds came, and the reason why there are no more.
    pub(super) async fn until_covered(
        self,
        (mut zero, rate): (Stamp, f64),
        sent: Sent<'_>,
        Covering { most_rounds: most, look }: Covering<'_>,
    ) -> Result<Rounds, RunError> {
        let (Self { run, session, halt, .. }, control) = (self, sent.control);
        let workloads = session.workloads().await.unwrap_or_default();
        let alpha = ALPHA / most as f64;
        let (mut until, mut done, mut terminations, mut counted, mut needed) = (None, 0, 0, 0, 0);
        let (ended, why) = loop {
            self.round((zero, rate), control, Some(Round { index: done, alpha, until })).await?;
            done += 1;
            let interrupted = || (RoundsEnd::Halted, "the run was interrupted or aborted".to_owned());
            if halt.is_cancelled() {
                break interrupted();
            }
            let Some(seen) = halt.run_until_cancelled(self.look(look, sent, &workloads)).await else {
                break interrupted();
            };
            let (said, next) = match seen {
                Err(error) => {
                    break (RoundsEnd::NotSeen, format!("a look at the record: {}", error.in_words()));
                }
                Ok(Coverage::Invalid(why)) => break (RoundsEnd::Invalid, why),
                Ok(Coverage::Counted { terminations: ended, counted: units, needed: of, said, next }) => {
                    (terminations, counted, needed) = (ended, units, of);
                    (said, next)
                }
            };
            let next = match next {
                Ok(next) => next,
                Err(end) => break end,
            };
            if done == most {
                break (RoundsEnd::MostRounds, format!("no round is left after {most}: {said}"));
            }
            run.viewer.say(&format!("{said}: another round"));
            until = Some(Until::Terminations(next));
            zero = run.clock.now();
        };
        control.stop();
        match ended {
            RoundsEnd::Covered | RoundsEnd::Halted => {}
            RoundsEnd::Outlasted | RoundsEnd::Refuted | RoundsEnd::Invalid => {
                run.viewer.say(&format!("no further round: {why}"))
            }
            RoundsEnd::NoneCounted | RoundsEnd::MostRounds | RoundsEnd::NotSeen => {
                run.warn(session, &format!("no further round: {why}"));
            }
        }
        Ok(Rounds { done, most, terminations, counted, needed, ended, why })
    }

    /// Looks at what is recorded up to now, once it is written and here.
    async fn look<T>(self, look: &dyn Look<T>, sent: Sent<'_>, workloads: &Workloads) -> Result<T, RunError> {
        let (Self { run, session, .. }, Sent { info, early, .. }) = (self, sent);
        session.await_recovery(workloads).await.map_err(RunError::interruption)?;
        session.await_ends().await;
        let (until, began) = (run.clock.now(), Instant::now());
        let request_s = info.load.connect_timeout_s + info.load.response_timeout_s;
        let patience = Duration::try_from_secs_f64(request_s).unwrap_or_default() + PATIENCE;
        sleep_until(began + REPORTED_AFTER).await;
        let early = early.map(|early| (early, early.mark()));
        sleep_until(began + WRITTEN_AFTER).await;
        loop {
            let arrived = match &early {
                Some((early, mark)) => early.fetch(mark).await,
                None => Arrived::All,
            };
            if let Arrived::Lost(worker) = arrived {
                let why = format!("load worker {worker} is lost, so the record stays partial");
                return Err(RunError::Refused(why));
            }
            let is_last = began.elapsed() >= patience;
            if arrived == Arrived::All || is_last {
                let so_far = SoFar { run_dir: run.run_dir.clone(), info: info.clone(), until, is_last };
                if let Some(seen) = look.look(so_far).await? {
                    return Ok(seen);
                }
            }
            sleep(RETRY).await;
        }
    }
}
