//! A run that goes on while its gate is inconclusive, or while its windows cover less than is asked: rounds of the same
//! disruptions under one load, and a look at the record after each.
//!
//! A look reads the run directory as far as it is written, while the load goes on. It decides only whether there is
//! another round: the run is judged by its whole record, as every run is, with the confidence of its last look.

use std::time::Duration;

use anyhow::Context;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::under_load::Measuring;
use super::{Covering, interruption};
use crate::cli::report;
use crate::coordinator::Workloads;
use crate::scenario::Until;
use rolldrop_analysis::figures::{counted, len, percent};
use rolldrop_analysis::gate;
use rolldrop_analysis::model::{CheckVerdict, RunResult, Verdict};
use rolldrop_analysis::spending::ALPHA;
use rolldrop_load as load;
use rolldrop_record::parts::PART_AGE;
use rolldrop_record::{Expect, Looks, RunDir, RunInfo, Stamp};

/// How long a row may take from the end of its request until it is in a closed part.
const WRITTEN_AFTER: Duration = PART_AGE.saturating_add(Duration::from_secs(1));
/// From one attempt to find all rows to the next.
const RETRY: Duration = Duration::from_secs(1);
/// After this time a look takes the rows that there are, beyond the time that a request may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of several rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Counted from 0.
    pub(super) index: usize,
    /// The chance of an error that the waits of this round share.
    pub(super) alpha: f64,
    /// What ends it, if not what ends the first.
    pub(super) until: Option<Until>,
}

impl Round {
    /// As the strictest look has it, which shares its error between the terminations of all rounds.
    fn of(looks: &Looks) -> Self {
        let strictest = looks.alphas.iter().copied().fold(ALPHA, f64::min);
        Self { index: looks.at - 1, alpha: strictest / looks.most() as f64, until: None }
    }
}

/// What a look shows.
enum Seen {
    /// The gate is inconclusive, by these checks.
    Open(Vec<String>),
    /// Another round would not change it, as text.
    Settled(String),
}

impl Measuring<'_> {
    /// Does the disruptions in rounds until the gate has passed or failed, or there is no look left. The load goes on
    /// meanwhile, and ends then. Returns the looks, at the one that judges the run.
    pub(super) async fn in_rounds(
        self,
        (mut zero, rate): (Stamp, f64),
        control: &load::Control,
        info: &RunInfo,
        mut looks: Looks,
    ) -> anyhow::Result<Looks> {
        let Self { run, session, halt, .. } = self;
        // What is not known to have been whole is waited for as well.
        let workloads = session.workloads().await.unwrap_or_default();
        loop {
            self.round((zero, rate), control, Some(Round::of(&looks))).await?;
            if halt.is_cancelled() || looks.is_last() {
                break;
            }
            let so_far = RunInfo { looks: Some(looks.clone()), ..info.clone() };
            let Some(seen) = halt.run_until_cancelled(self.look(&so_far, &workloads)).await else { break };
            let look = format!(
                "look {} of {}, at {} confidence",
                looks.at,
                looks.most(),
                percent(1.0 - looks.alpha())
            );
            match seen.map(|result| seen_of_gate(&result)) {
                // What is recorded is not lost by that.
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

    /// Does the disruptions in rounds until its looks want no more pods to end. The load goes on meanwhile, and ends then.
    pub(super) async fn until_covered(
        self,
        (mut zero, rate): (Stamp, f64),
        control: &load::Control,
        info: &RunInfo,
        Covering { most_rounds: most, to_go }: Covering<'_>,
    ) -> anyhow::Result<()> {
        let Self { run, session, halt, .. } = self;
        let workloads = session.workloads().await.unwrap_or_default();
        let alpha = ALPHA / most as f64;
        let mut until = None;
        for index in 0..most {
            self.round((zero, rate), control, Some(Round { index, alpha, until })).await?;
            if halt.is_cancelled() || index + 1 == most {
                break;
            }
            let Some(seen) = halt.run_until_cancelled(self.look(info, &workloads)).await else { break };
            match seen {
                Err(error) => {
                    run.warn(session, &format!("a look at the record: {error:#}"));
                    break;
                }
                Ok(result) => match to_go(&result) {
                    0 => break,
                    more => until = Some(Until::Terminations(more)),
                },
            }
            zero = run.clock.now();
        }
        control.stop();
        Ok(())
    }

    /// Analyses what is recorded up to now, once it is written.
    async fn look(self, info: &RunInfo, workloads: &Workloads) -> anyhow::Result<RunResult> {
        let Self { run, session, .. } = self;
        session.await_recovery(workloads).await.map_err(interruption)?;
        session.await_ends().await;
        let (until, began) = (run.clock.now(), Instant::now());
        let request_s = info.load.connect_timeout_s + info.load.response_timeout_s;
        let patience = Duration::try_from_secs_f64(request_s).unwrap_or_default() + PATIENCE;
        sleep_until(began + WRITTEN_AFTER).await;
        loop {
            let (run_dir, info) = (run.run_dir.clone(), info.clone());
            let (result, is_whole) = spawn_blocking(move || judge(&run_dir, info, until)).await??;
            if is_whole || began.elapsed() >= patience {
                return Ok(result);
            }
            sleep(RETRY).await;
        }
    }
}

/// The result of what is recorded so far, and whether it has all requests up to this time.
fn judge(run_dir: &RunDir, info: RunInfo, until: Stamp) -> anyhow::Result<(RunResult, bool)> {
    let (mut log, tables) = run_dir.recorded().context("failed to read what is recorded so far")?;
    // Whether the record is complete is known at its end.
    let expect = Expect { validity: None, ..info.expect.clone() };
    (log.info, log.torn) = (info, Vec::new());
    let analysed = report::analyse_recorded(log, tables, &expect)?;
    let timeline = &analysed.timeline;
    let is_whole = timeline.load_ended >= until && timeline.hole_in(timeline.origin, until).is_none();
    Ok((analysed.analysis.result, is_whole))
}

fn seen_of_gate(result: &RunResult) -> Seen {
    let after = counted(len(result.terminations.len()), "termination");
    if let Verdict::Invalid { why } = &result.verdict {
        return Seen::Settled(format!("the measurement is invalid after {after}: {}", why.join("; ")));
    }
    match gate::verdict(&result.checks) {
        CheckVerdict::Pass => Seen::Settled(format!("the gate passed after {after}")),
        CheckVerdict::Fail => Seen::Settled(format!("the gate failed after {after}")),
        CheckVerdict::Inconclusive => {
            let open = result.checks.iter().filter(|check| check.verdict == CheckVerdict::Inconclusive);
            Seen::Open(open.map(|check| check.name.clone()).collect())
        }
    }
}
