//! A run that goes on while its gate is inconclusive, or while its windows cover less than is asked: rounds of the same
//! disruptions under one load, and a look at the record after each.
//!
//! A look reads the run directory as far as it is written, while the load goes on; rows that workers in the cluster have
//! are fetched for it. It decides only whether there is another round: the run is judged by its whole record, as every
//! run is, with the confidence of its last look.

use std::time::Duration;

use anyhow::{Context, bail};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::under_load::Measuring;
use super::{Covering, interruption};
use crate::cli::report;
use crate::coordinator::Workloads;
use crate::scenario::Until;
use rolldrop_analysis::figures::{counted, len, percent};
use rolldrop_analysis::gate;
use rolldrop_analysis::model::{CheckVerdict, Recommendation, RunResult, Verdict};
use rolldrop_analysis::spending::ALPHA;
use rolldrop_analysis::tune;
use rolldrop_load as load;
use rolldrop_load::remote::collect::early::{Arrived, EarlyRows};
use rolldrop_record::parts::PART_AGE;
use rolldrop_record::{Expect, Looks, Rounds, RoundsEnd, RunDir, RunInfo, Stamp};

/// How long a row may take from the end of its request until it is in a closed part.
const WRITTEN_AFTER: Duration = PART_AGE.saturating_add(Duration::from_secs(1));
/// Time that a worker in the cluster may take to report how many requests had ended.
const REPORTED_AFTER: Duration = Duration::from_secs(3);
/// From one attempt to find all rows to the next.
const RETRY: Duration = Duration::from_secs(1);
/// After this time a look takes the rows that there are, beyond the time that a request may take.
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
        sent: Sent<'_>,
        mut looks: Looks,
    ) -> anyhow::Result<Looks> {
        let (Self { run, session, halt, .. }, Sent { control, info, .. }) = (self, sent);
        // What is not known to have been whole is waited for as well.
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

    /// Does the disruptions in rounds until the windows cover what the run's policy asks for, or that cannot be had. The
    /// load goes on meanwhile, and ends then. Returns how far they came, and says why there are no more.
    pub(super) async fn until_covered(
        self,
        (mut zero, rate): (Stamp, f64),
        sent: Sent<'_>,
        Covering { most_rounds: most, seen_s }: Covering,
    ) -> anyhow::Result<Rounds> {
        let (Self { run, session, halt, .. }, control) = (self, sent.control);
        let workloads = session.workloads().await.unwrap_or_default();
        let alpha = ALPHA / most as f64;
        let (mut until, mut ends, mut done) = (None, Ends::default(), 0);
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
            let before = (done > 1).then_some(ends.counted);
            ends = Ends::of(&result);
            let left = most - done;
            if let Some(settled) = ends.settle(&result, seen_s, before, left) {
                break settled;
            }
            let next = ends.next_round();
            until = Some(Until::Terminations(next));
            run.progress.say(&format!(
                "{}: another round, of {}",
                ends.to_go(),
                counted(len(next), "termination")
            ));
            zero = run.clock.now();
        };
        control.stop();
        match ended {
            RoundsEnd::Covered | RoundsEnd::Halted => {}
            RoundsEnd::Outlasted | RoundsEnd::Invalid => {
                run.progress.say(&format!("no further round: {why}"))
            }
            RoundsEnd::NoneCounted | RoundsEnd::MostRounds | RoundsEnd::NotSeen => {
                run.warn(session, &format!("no further round: {why}"));
            }
        }
        let Ends { terminations, counted, needed } = ends;
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

/// The result of what is recorded so far, and whether it has all requests up to this time.
fn judge(run_dir: &RunDir, info: RunInfo, until: Stamp) -> anyhow::Result<(RunResult, bool)> {
    let (mut log, tables) = run_dir.recorded().context("failed to read what is recorded so far")?;
    // Whether the record is complete is known at its end.
    let expect = Expect { validity: None, ..info.expect.clone() };
    (log.info, log.torn) = (RunInfo { complete: true, ..info }, Vec::new());
    let analysed = report::analyse_recorded(log, tables, &expect)?;
    let timeline = &analysed.timeline;
    let is_whole = timeline.load_ended >= until && timeline.hole_in(timeline.origin, until).is_none();
    Ok((analysed.analysis.result, is_whole))
}

/// The ends of pods that a run has seen, of the mode that takes the most further ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends {
    /// Pods that ended.
    terminations: usize,
    /// Windows of these that ended apart from each other: only they count.
    counted: usize,
    /// Number of windows that have to.
    needed: usize,
}

impl Ends {
    fn of(result: &RunResult) -> Self {
        let of_mode = |rec: &Recommendation| Self {
            terminations: rec.terminations,
            counted: rec.units,
            needed: rec.units + rec.terminations_needed,
        };
        result.recommendation.iter().map(of_mode).max_by_key(|ends| ends.next_round()).unwrap_or_default()
    }

    fn missing(self) -> usize {
        self.needed.saturating_sub(self.counted)
    }

    /// As many ends as will show the missing windows, if as many of them end together as did before. A few ends tell that
    /// roughly, so a round at most doubles them.
    fn next_round(self) -> usize {
        let each = self.terminations.div_ceil(self.counted.max(1)).max(1);
        (self.missing() * each).min(self.terminations.max(self.missing()))
    }

    /// Returns the reason why there is no further round, if there is none. At the look `before` so many ends had counted, and so many rounds
    /// are left.
    fn settle(
        self,
        result: &RunResult,
        seen_s: Option<u64>,
        before: Option<usize>,
        left: usize,
    ) -> Option<(RoundsEnd, String)> {
        if let Verdict::Invalid { why } = &result.verdict {
            return Some((RoundsEnd::Invalid, format!("the measurement is invalid: {}", why.join("; "))));
        }
        if let Some(seen_s) = seen_s.filter(|seen_s| tune::is_outlasted(result, *seen_s)) {
            let why = format!("a window lasted as long as one can be seen, {seen_s} s");
            return Some((RoundsEnd::Outlasted, why));
        }
        let ended = self.stops(before, left)?;
        let to_go = self.to_go();
        let why = match ended {
            RoundsEnd::NoneCounted if self.terminations == 0 => "no pod ended under load".to_owned(),
            RoundsEnd::NoneCounted => {
                format!("the last round added no end that counts: {to_go}; {}", what_would_do(result))
            }
            RoundsEnd::MostRounds => format!("no round is left: {to_go}; {}", what_would_do(result)),
            _ => to_go,
        };
        Some((ended, why))
    }

    fn stops(self, before: Option<usize>, left: usize) -> Option<RoundsEnd> {
        // A first round may be too short to show a window.
        if self.terminations == 0 || before.is_some_and(|before| self.counted <= before && self.missing() > 0)
        {
            return Some(RoundsEnd::NoneCounted);
        }
        if self.missing() == 0 {
            return Some(RoundsEnd::Covered);
        }
        (left == 0).then_some(RoundsEnd::MostRounds)
    }

    fn to_go(self) -> String {
        let Self { terminations, counted: seen, needed } = self;
        let seen = format!("{seen} of {needed} ends that count (windows that ended apart from others)");
        let after = format!("after {}", counted(len(terminations), "termination"));
        match self.missing() {
            0 => format!("{seen} {after}"),
            missing => format!("{seen} {after}, {missing} to go"),
        }
    }
}

/// Says what would let more windows end apart.
fn what_would_do(result: &RunResult) -> String {
    let windows = || result.terminations.iter().flat_map(|t| &t.windows);
    let unbounded = windows().filter(|window| window.upper_s.is_none()).count();
    if unbounded > 0 {
        let of = windows().count();
        return format!(
            "{unbounded} of {of} windows have no upper bound, and count as one: the findings say why, and what helps"
        );
    }
    "let pods end one after the other (maxSurge 1, maxUnavailable 0, minReadySeconds), or ask for less (--coverage)"
        .to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(needed: usize, terminations: usize, counted: usize) -> Ends {
        Ends { terminations, counted, needed }
    }

    #[test]
    fn windows_that_end_together_take_more_ends() {
        let next = |missing: usize, ended, windows| ends(windows + missing, ended, windows).next_round();
        assert_eq!(next(29, 0, 0), 29, "nothing is known yet");
        assert_eq!(next(9, 20, 20), 9);
        assert_eq!(next(20, 100, 16), 100, "at most as many as there were");
        assert_eq!(next(2, 260, 34), 16);
        assert_eq!(next(0, 30, 29), 0);
    }

    #[test]
    fn few_rounds_show_what_is_needed_even_if_ten_end_together() {
        let (needed, mut ended) = (59, 10);
        let rounds = std::iter::from_fn(|| {
            let more = ends(needed, ended, (ended / 10).min(needed)).next_round();
            ended += more.next_multiple_of(10);
            (more > 0).then_some(())
        });
        assert!(rounds.count() < 9);
    }

    #[test]
    fn what_is_to_go_is_counted_in_ends_that_count() {
        let to_go = ends(29, 45, 12).to_go();
        assert_eq!(
            to_go,
            "12 of 29 ends that count (windows that ended apart from others) after 45 terminations, 17 to go"
        );
        assert!(ends(29, 60, 29).to_go().ends_with("after 60 terminations"));
    }

    #[test]
    fn rounds_end_for_a_reason() {
        assert_eq!(ends(29, 45, 12).stops(Some(10), 3), None);
        assert_eq!(ends(29, 45, 29).stops(Some(10), 0), Some(RoundsEnd::Covered));
        assert_eq!(ends(29, 45, 12).stops(Some(10), 0), Some(RoundsEnd::MostRounds));
        assert_eq!(ends(29, 10, 0).stops(None, 3), None, "a first round may show none");
        assert_eq!(ends(29, 39, 0).stops(Some(0), 3), Some(RoundsEnd::NoneCounted));
        assert_eq!(ends(29, 39, 29).stops(Some(29), 3), Some(RoundsEnd::Covered));
        assert_eq!(ends(0, 0, 0).stops(None, 3), Some(RoundsEnd::NoneCounted), "no pod ended");
    }
}
