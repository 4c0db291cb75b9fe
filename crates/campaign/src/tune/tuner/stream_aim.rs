//! Finds the settings that streams need: measures the streams without disruptions, predicts the settings, and judges
//! them by a proof.

use std::time::Duration;

use super::{Halt, Tuner, trusted};
use crate::analysis::{Given, analyse};
use rolldrop_drive::run::RunError;
use rolldrop_explain::RunResult;
use rolldrop_explain::model::SteadyStreams;
use rolldrop_judge::prediction::OnSigterm;
use rolldrop_judge::tuning::{
    ChosenStreams, EndedStreams, GraceChoice, NoChoice, PodSettings, Proof, RolloutShape, parts,
};
use rolldrop_record::{Cause, RunDir};
use rolldrop_report::decision_words;

/// Duration of the first run that shows how long streams last.
pub(in crate::tune) const FIRST_LENGTHS: Duration = Duration::from_secs(60);
/// Maximum duration of such a run.
const LONGEST_LENGTHS: Duration = Duration::from_secs(3 * 3600);
/// Maximum number of such runs.
const MOST_LENGTHS: usize = 5;
/// Safety factor for the duration of a run that replaces one that was too short.
const SPARE: f64 = 1.2;

/// Search for the settings that streams need.
pub(super) struct StreamAim {
    /// Mean number of streams that a termination may cut. Each proof that cuts too many halves it.
    max_cut: f64,
    /// Time in seconds for which a pod gets new streams after its deletion.
    window_s: u64,
    /// Number of streams that were cut at SIGTERM in all runs.
    cut_at_sigterm: u64,
    /// Number of streams that were cut when the grace period ran out.
    cut_at_grace_end: u64,
    steady: Option<SteadyStreams>,
}

impl StreamAim {
    pub(super) fn new(max_cut: f64) -> Self {
        Self { max_cut, window_s: 0, cut_at_sigterm: 0, cut_at_grace_end: 0, steady: None }
    }

    /// Learns from a run how the app reacts to SIGTERM.
    pub(super) fn learn(&mut self, result: &RunResult) {
        let cut_by = |cause| result.requests.by_cause.get(&cause).copied().unwrap_or(0);
        self.cut_at_sigterm += cut_by(Cause::CutAtSigterm);
        self.cut_at_grace_end += cut_by(Cause::DrainedTooShort);
    }

    /// Returns the settings that the streams need with this sleep; `None` before their lengths are known.
    fn choose(&self, sleep_s: u64, rollout: RolloutShape) -> Option<Result<ChosenStreams, NoChoice>> {
        let steady = self.steady.as_ref()?;
        let cuts = self.cut_at_sigterm > self.cut_at_grace_end;
        let on_sigterm = if cuts { OnSigterm::Cuts } else { OnSigterm::Drains };
        let choice = GraceChoice { steady, on_sigterm, window_s: self.window_s, max_cut: self.max_cut };
        Some(choice.choose(sleep_s, rollout))
    }
}

impl Tuner<'_> {
    /// Performs runs without disruptions until they show which settings the streams need. Returns the shortest sleep,
    /// in seconds: `window_s`, or more if the app cuts its streams at SIGTERM.
    pub(super) async fn measure_lengths(&mut self, window_s: u64) -> Result<u64, Halt> {
        let mut lasts = FIRST_LENGTHS;
        let mut runs = 1;
        loop {
            let result = self.step(self.steps.lengths(lasts)).await?;
            trusted(&result)?;
            let steady = self.steady_of_last_run()?;
            let Some(aim) = &mut self.streams else { return Ok(window_s) };
            (aim.window_s, aim.steady) = (window_s, steady);
            let why = match aim.choose(window_s, self.steps.subject.rollout) {
                None => return Err(not_shown("the load sent no streams".to_owned())),
                Some(Err(why)) => why,
                Some(Ok(ChosenStreams { on_sigterm: OnSigterm::Drains, .. })) => return Ok(window_s),
                Some(Ok(chosen)) => return self.sleep_for(chosen, window_s),
            };
            let longer = why.factor().map(|factor| lasts.as_secs_f64() * factor * SPARE);
            let longer = longer.map(|seconds| Duration::from_secs_f64(seconds.ceil().min(1e6)));
            let why = decision_words::no_choice(&why);
            match longer.filter(|longer| *longer <= LONGEST_LENGTHS && runs < MOST_LENGTHS) {
                Some(longer) => {
                    let minutes = longer.as_secs().div_ceil(60);
                    self.steps.operator.viewer.say(&format!("{why}; recording for {minutes} min instead"));
                    lasts = longer;
                    runs += 1;
                }
                None => return Err(not_shown(why)),
            }
        }
    }

    /// Returns the sleep for an app that cuts its streams at SIGTERM.
    fn sleep_for(&self, chosen: ChosenStreams, window_s: u64) -> Result<u64, Halt> {
        let (sleep_s, most_s) = (chosen.least_seconds.max(window_s), self.steps.request.max_sleep.as_secs());
        if sleep_s > most_s {
            return Err(not_shown(format!(
                "the app cuts its streams at SIGTERM, so they need a sleep of {sleep_s} s: raise --max-sleep above \
                 {most_s} s, raise --max-cut, or let the app finish its streams"
            )));
        }
        Ok(sleep_s)
    }

    /// Returns the settings that the streams need with this sleep; `None` if the tuning does not choose for streams.
    pub(super) fn streams_with(&self, sleep_s: u64) -> Result<Option<ChosenStreams>, Halt> {
        let chosen = self.streams.as_ref().and_then(|aim| aim.choose(sleep_s, self.steps.subject.rollout));
        chosen.transpose().map_err(|why| not_shown(decision_words::no_choice(&why)))
    }

    /// Returns evidence that the last proof, with these settings, cut more streams than predicted.
    pub(super) fn cut_too_many(&self, settings: PodSettings) -> Option<Proof> {
        let chosen = self.choice.as_ref()?.streams?;
        let mut seen = EndedStreams::default();
        let mut terminations = 0;
        for step in parts(&self.done, settings).chain(self.done.last()) {
            seen += step.streams.unwrap_or_default();
            terminations += step.terminations;
        }
        let most = chosen.most_cut(terminations);
        (seen.cut > most).then_some(Proof::CutsStreams { seen, most })
    }

    /// Allows half as many cuts, after a proof that cut too many. If that needs a longer sleep, the result is a proof
    /// that this one is too short.
    pub(super) fn with_fewer_cuts(
        &mut self,
        sleep_s: u64,
        seen: EndedStreams,
        most: u64,
    ) -> Result<Proof, Halt> {
        if let Some(aim) = &mut self.streams {
            aim.max_cut /= 2.0;
        }
        match self.streams_with(sleep_s)? {
            Some(chosen) if chosen.on_sigterm == OnSigterm::Cuts => {
                let at_least = Some(self.sleep_for(chosen, sleep_s + 1)?);
                Ok(Proof::TooShort { lost: seen.cut, at_least })
            }
            _ => Ok(Proof::CutsStreams { seen, most }),
        }
    }

    /// Reads the steady part of the last run.
    fn steady_of_last_run(&self) -> Result<Option<SteadyStreams>, RunError> {
        let Some(last) = self.done.last() else { return Ok(None) };
        let run_dir = RunDir::open(&self.steps.out.join(&last.run))?;
        Ok(analyse(&run_dir, &Given::default())?.analysed.analysis.steady)
    }
}

fn not_shown(why: String) -> Halt {
    Halt::NotShown(vec![why])
}
