//! Runs that continue while their gate is inconclusive, or while their windows cover less than required. They repeat
//! the same disruptions in rounds, under one load, and look at the record after each round.
//!
//! A look reads what the run directory contains so far, while the load continues; rows still held by workers in the
//! cluster are fetched first. A look decides only whether there is another round. The code that judges runs implements
//! [`Look`]. The finished run is judged by its whole record, as every run is, with the confidence of its last look.

use std::time::Duration;

use futures::future::LocalBoxFuture;
use tokio::time::{Instant, sleep, sleep_until};

use super::error::RunError;
use super::under_load::Measuring;
use crate::observe::Workloads;
use crate::observe::rollout_wait::workloads;
use rolldrop_load as load;
use rolldrop_load::remote::row_collector::early::{Arrived, EarlyRows};
use rolldrop_record::parts::PART_AGE;
use rolldrop_record::{ALPHA, Looks, Rounds, RoundsEnd, RunDir, RunInfo, Stamp};
use rolldrop_scenario::Until;

/// Maximum time from a request's end until its row is in a closed part.
const WRITTEN_AFTER: Duration = PART_AGE.saturating_add(Duration::from_secs(1));
/// Time that a worker in the cluster may take to report its number of finished requests.
const REPORTED_AFTER: Duration = Duration::from_secs(3);
/// Interval between attempts to find all rows.
const RETRY: Duration = Duration::from_secs(1);
/// Time, in addition to the request timeouts, after which a look makes do with the rows that have arrived.
const PATIENCE: Duration = Duration::from_secs(60);

/// Planned looks at the gate of a run that continues while the gate is inconclusive.
#[derive(Clone)]
pub struct PlannedLooks<'a> {
    /// The looks; their error probabilities are fixed before the run starts.
    pub looks: Looks,
    /// Description of the looks.
    pub in_words: String,
    /// Names the look that the run has reached.
    pub title: fn(&Looks) -> String,
    /// The look at the gate.
    pub look: &'a dyn Look<Gate>,
}

/// Result of a look at a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The gate is inconclusive because of these checks.
    Inconclusive(Vec<String>),
    /// Another round would not change the gate's result, which the text describes.
    Settled(String),
}

/// Settings of a run that continues until its windows cover enough.
#[derive(Clone, Copy)]
pub struct Covering<'a> {
    /// Maximum number of rounds.
    pub most_rounds: usize,
    /// The look at the windows.
    pub look: &'a dyn Look<Coverage>,
}

/// Result of a look at the windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// The measurement is invalid and will stay so, for this reason.
    Invalid(String),
    /// Another round may follow.
    Counted {
        /// Number of terminations so far.
        terminations: usize,
        /// Number of units counted so far.
        counted: usize,
        /// Number of units needed.
        needed: usize,
        /// Progress, in words.
        said: String,
        /// Number of pods that the next round terminates, or the reason that there is no next round.
        next: Result<usize, (RoundsEnd, String)>,
    },
}

/// Looks at the record of a run in progress.
pub trait Look<T> {
    /// Judges the record so far. Returns `None` if rows that may still arrive are missing.
    ///
    /// # Errors
    /// Fails if the record cannot be read.
    fn look(&self, so_far: SoFar) -> LocalBoxFuture<'_, Result<Option<T>, RunError>>;
}

/// Record of a run in progress.
#[derive(Debug)]
pub struct SoFar {
    /// Run directory, to which the run is still writing.
    pub run_dir: RunDir,
    /// Contents of run.json that a result needs at this look.
    pub info: RunInfo,
    /// Time up to which the look needs all requests.
    pub until: Stamp,
    /// True if the look must make do with the requests that have arrived.
    pub is_last: bool,
}

/// The load during a run's rounds.
#[derive(Clone, Copy)]
pub(super) struct Sent<'a> {
    pub(super) control: &'a load::Control,
    /// Contents of run.json at the beginning of the run.
    pub(super) info: &'a RunInfo,
    /// Rows that workers in the cluster still hold; `None` if this machine sends the load.
    pub(super) early: Option<&'a EarlyRows>,
}

/// One of several rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Number of the round, counted from 0.
    pub(super) index: usize,
    /// Error probability for all waits of this round together.
    pub(super) alpha: f64,
    /// Condition that ends this round; `None` for the scenario's own.
    pub(super) until: Option<Until>,
}

impl Round {
    /// Creates the round before a look. Its error probability is that of the strictest look, divided by the maximum
    /// number of looks.
    fn of(looks: &Looks) -> Self {
        let strictest = looks.alphas.iter().copied().fold(ALPHA, f64::min);
        Self { index: looks.at - 1, alpha: strictest / looks.most() as f64, until: None }
    }
}

impl Measuring<'_> {
    /// Repeats the disruptions in rounds until the gate has passed or failed, or no look is left. The load continues
    /// throughout and is then stopped. Returns the looks, positioned at the one that judges the run.
    pub(super) async fn in_rounds(
        self,
        (mut zero, rate): (Stamp, f64),
        sent: Sent<'_>,
        planned: &PlannedLooks<'_>,
    ) -> Result<Looks, RunError> {
        let (Self { run, session, halt, .. }, Sent { control, info, .. }) = (self, sent);
        let mut looks = planned.looks.clone();
        // If the workloads' state cannot be read, each look waits until all of them are complete.
        let workloads = workloads(session.caller()).await.unwrap_or_default();
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
                // The record so far is still valid.
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
                    run.viewer
                        .say(&format!("{look}: the gate is inconclusive ({checks}); starting another round"));
                }
            }
            looks.at += 1;
            run.run_dir.write_info(&RunInfo { looks: Some(looks.clone()), ..info.clone() })?;
            zero = run.clock.now();
        }
        control.stop();
        Ok(looks)
    }

    /// Repeats the disruptions in rounds until a look requires no more terminations. The load continues throughout and
    /// is then stopped. Returns the progress of the rounds and the reason that they ended.
    pub(super) async fn until_covered(
        self,
        (mut zero, rate): (Stamp, f64),
        sent: Sent<'_>,
        Covering { most_rounds: most, look }: Covering<'_>,
    ) -> Result<Rounds, RunError> {
        let (Self { run, session, halt, .. }, control) = (self, sent.control);
        let workloads = workloads(session.caller()).await.unwrap_or_default();
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
                    break (
                        RoundsEnd::NotSeen,
                        format!("failed to examine the record: {}", error.in_words()),
                    );
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
                break (RoundsEnd::MostRounds, format!("the limit of {most} rounds is reached: {said}"));
            }
            run.viewer.say(&format!("{said}; starting another round"));
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

    /// Looks at the record up to now, once it has been written and has arrived.
    async fn look<T>(self, look: &dyn Look<T>, sent: Sent<'_>, workloads: &Workloads) -> Result<T, RunError> {
        let (Self { run, session, .. }, Sent { info, early, .. }) = (self, sent);
        session.await_recovery(workloads).await?;
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
