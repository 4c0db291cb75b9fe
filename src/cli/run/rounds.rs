//! Runs that continue while their gate is inconclusive, or while their windows cover less than required: rounds of the
//! same disruptions under one load, and a look at the record after each.
//!
//! A look reads the run directory as far as it is written, while the load continues; rows that workers in the cluster
//! hold are fetched for it. It decides only whether there is another round: the run is judged by its whole record, as
//! every run is, with the confidence of its last look.

use std::time::Duration;

use anyhow::{Context, bail};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::under_load::Measuring;
use super::{Covering, interruption};
use crate::cli::report;
use rolldrop_drive::coordinator::Workloads;
use rolldrop_explain::model::ALPHA;
use rolldrop_explain::model::figures::{counted, len, percent};
use rolldrop_explain::model::{CheckVerdict, RunResult, Verdict};
use rolldrop_judge::gate;
use rolldrop_load as load;
use rolldrop_load::remote::collect::early::{Arrived, EarlyRows};
use rolldrop_record::parts::PART_AGE;
use rolldrop_record::{Expect, Looks, Rounds, RoundsEnd, RunDir, RunInfo, Stamp};
use rolldrop_scenario::Until;

/// Maximum time from the end of a request until its row is in a closed part.
const WRITTEN_AFTER: Duration = PART_AGE.saturating_add(Duration::from_secs(1));
/// Time that a worker in the cluster may take to report how many requests had ended.
const REPORTED_AFTER: Duration = Duration::from_secs(3);
/// Interval between attempts to find all rows.
const RETRY: Duration = Duration::from_secs(1);
/// Time, beyond that of a request, after which a look uses the rows that have arrived.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Result of a look.
enum Seen {
    /// The gate is inconclusive, by these checks.
    Open(Vec<String>),
    /// Another round would not change it, as text.
    Settled(String),
}

impl Measuring<'_> {
    /// Repeats the disruptions in rounds until the gate has passed or failed, or no look is left. The load continues
    /// meanwhile, and ends then. Returns the looks, at the one that judges the run.
    pub(super) async fn in_rounds(
        self,
        (mut zero, rate): (Stamp, f64),
        sent: Sent<'_>,
        mut looks: Looks,
    ) -> anyhow::Result<Looks> {
        let (Self { run, session, halt, .. }, Sent { control, info, .. }) = (self, sent);
        // Workloads that are not known to have been whole are waited for, too.
        let workloads = session.workloads().await.unwrap_or_default();
        loop {
            self.round((zero, rate), control, Some(Round::of(&looks))).await?;
            if halt.is_cancelled() || looks.is_last() {
                break;
            }
            let so_far = RunInfo { looks: Some(looks.clone()), ..info.clone() };
            let look = self.look(Sent { info: &so_far, ..sent }, &workloads);
            let Some(seen) = halt.run_until_cancelled(look).await else { break };
            let look = format!(
                "look {} of {}, at {} confidence",
                looks.at,
                looks.most(),
                percent(1.0 - looks.alpha())
            );
            match seen.map(|result| seen_of_gate(&result)) {
                // That does not lose the record so far.
                Err(error) => {
                    run.warn(session, &format!("{look}: {error:#}"));
                    break;
                }
                Ok(Seen::Settled(what)) => {
                    run.progress.say(&format!("{look}: {what}"));
                    break;
                }
                Ok(Seen::Open(checks)) => {
                    let checks = checks.join(", ");
                    run.progress.say(&format!("{look}: the gate is inconclusive ({checks}): another round"));
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
        Covering { most_rounds: most, goal }: Covering<'_>,
    ) -> anyhow::Result<Rounds> {
        let (Self { run, session, halt, .. }, control) = (self, sent.control);
        let workloads = session.workloads().await.unwrap_or_default();
        let alpha = ALPHA / most as f64;
        let (mut until, mut done, mut terminations, mut counted, mut needed) = (None, 0, 0, 0, 0);
        let (ended, why) = loop {
            self.round((zero, rate), control, Some(Round { index: done, alpha, until })).await?;
            done += 1;
            let interrupted = || (RoundsEnd::Halted, "the run was interrupted or given up".to_owned());
            if halt.is_cancelled() {
                break interrupted();
            }
            let Some(seen) = halt.run_until_cancelled(self.look(sent, &workloads)).await else {
                break interrupted();
            };
            let result = match seen {
                Ok(result) => result,
                Err(error) => break (RoundsEnd::NotSeen, format!("a look at the record: {error:#}")),
            };
            if let Verdict::Invalid { why } = &result.verdict {
                break (RoundsEnd::Invalid, format!("the measurement is invalid: {}", why.join("; ")));
            }
            let look = goal(&result);
            (terminations, counted, needed) = (result.terminations.len(), look.counted, look.needed);
            let next = match look.next {
                Ok(next) => next,
                Err(end) => break end,
            };
            if done == most {
                break (RoundsEnd::MostRounds, format!("no round is left after {most}: {}", look.said));
            }
            run.progress.say(&format!("{}: another round", look.said));
            until = Some(Until::Terminations(next));
            zero = run.clock.now();
        };
        control.stop();
        match ended {
            RoundsEnd::Covered | RoundsEnd::Halted => {}
            RoundsEnd::Outlasted | RoundsEnd::Refuted | RoundsEnd::Invalid => {
                run.progress.say(&format!("no further round: {why}"))
            }
            RoundsEnd::NoneCounted | RoundsEnd::MostRounds | RoundsEnd::NotSeen => {
                run.warn(session, &format!("no further round: {why}"));
            }
        }
        Ok(Rounds { done, most, terminations, counted, needed, ended, why })
    }

    /// Analyses what is recorded up to now, once it is written and here.
    async fn look(self, sent: Sent<'_>, workloads: &Workloads) -> anyhow::Result<RunResult> {
        let (Self { run, session, .. }, Sent { info, early, .. }) = (self, sent);
        session.await_recovery(workloads).await.map_err(interruption)?;
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
                bail!("load worker {worker} is lost, so the record stays partial");
            }
            let is_late = began.elapsed() >= patience;
            if arrived == Arrived::All || is_late {
                let (run_dir, info) = (run.run_dir.clone(), info.clone());
                let (result, is_whole) = spawn_blocking(move || judge(&run_dir, info, until)).await??;
                if is_whole || is_late {
                    return Ok(result);
                }
            }
            sleep(RETRY).await;
        }
    }
}

/// Judges the record so far, and returns true beside the result if the record has all requests up to `until`.
fn judge(run_dir: &RunDir, info: RunInfo, until: Stamp) -> anyhow::Result<(RunResult, bool)> {
    let (mut log, tables) = run_dir.recorded().context("failed to read what is recorded so far")?;
    // Only the end of the run shows whether its record is complete.
    let expect = Expect { validity: None, ..info.expect.clone() };
    (log.info, log.torn) = (RunInfo { complete: true, ..info }, Vec::new());
    let analysed = report::analyse_recorded(log, tables, &expect)?.analysed;
    let timeline = &analysed.timeline;
    let is_whole = timeline.load_ended >= until && timeline.hole_in(timeline.origin, until).is_none();
    Ok((analysed.analysis.result, is_whole))
}

fn seen_of_gate(result: &RunResult) -> Seen {
    let after = counted(len(result.terminations.len()), "termination");
    if let Verdict::Invalid { why } = &result.verdict {
        return Seen::Settled(format!("the measurement is invalid after {after}: {}", why.join("; ")));
    }
    match gate::verdict(result.checks.iter().map(|check| check.verdict)) {
        CheckVerdict::Pass => Seen::Settled(format!("the gate passed after {after}")),
        CheckVerdict::Fail => Seen::Settled(format!("the gate failed after {after}")),
        CheckVerdict::Inconclusive => {
            let open = result.checks.iter().filter(|check| check.verdict == CheckVerdict::Inconclusive);
            Seen::Open(open.map(|check| check.name.clone()).collect())
        }
    }
}
