//! Streams that one further termination would cut, with the settings of a run's pods and with better ones.

use std::collections::BTreeSet;

use super::prediction_table::{CONFIDENCE, MAX_CUT, NoPrediction, measured_windows};
use super::{Estimate, MeanCut, StreamBudget, VirtualTerminations};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::account::{Finding, Loss};
use rolldrop_explain::model::{
    Analysis, PredictedMean, Recommendation, RunResult, SettingsOrigin, Termination, TerminationStreams,
    Verdict, lasted_at_least_s,
};

/// Prediction for one pair of settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FurtherCut {
    /// Origin of the settings.
    pub settings: SettingsOrigin,
    /// Seconds of preStop sleep; `None` if unknown.
    pub pre_stop_s: Option<u64>,
    /// Grace period in seconds; `None` if unknown.
    pub grace_s: Option<u64>,
    /// Mean number of streams cut.
    pub cut: Result<PredictedMean, CutUnknown>,
}

/// Reason why the number of cut streams is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CutUnknown {
    /// The run is invalid or partial.
    RunNotValid,
    /// Nothing can be predicted from the steady part of the run.
    NoPrediction(NoPrediction),
    /// No pod had a stream at SIGTERM, so the app's reaction is unknown.
    ReactionNotSeen,
    /// A preStop hook other than a sleep hides the time of SIGTERM.
    SleepHidden,
    /// Too few streams of the steady part lasted long enough. Holds the number of further streams that would suffice.
    TooFew(Option<u64>),
}

/// Predicts the cuts of one further termination: for each pair of settings that pods with streams had, and for the
/// smallest settings that cut at most [`MAX_CUT`] streams on average, if these are longer.
pub fn further_cuts(analysis: &Analysis) -> Vec<FurtherCut> {
    let result = &analysis.result;
    let with_streams = streams_of(result).filter(|(_, of)| of.alive_at_t0 + of.began_later > 0);
    let had: BTreeSet<(Option<u64>, u64)> =
        with_streams.map(|(of, _)| (of.pre_stop_seconds, of.grace_period_seconds)).collect();
    let further = FurtherTermination::of(analysis);
    let current = |&(pre_stop_s, grace_s): &(Option<u64>, u64)| FurtherCut {
        settings: SettingsOrigin::Current,
        pre_stop_s,
        grace_s: Some(grace_s),
        cut: further
            .as_ref()
            .map_err(|why| *why)
            .and_then(|further| further.cut(pre_stop_s.ok_or(CutUnknown::SleepHidden)?, grace_s)),
    };
    let mut cuts: Vec<FurtherCut> = had.iter().map(current).collect();
    if let (Ok(further), Some(&(Some(pre_stop_s), grace_s))) = (&further, had.last()) {
        let advised = further.advised(advised_sleep_s(result), (pre_stop_s, grace_s));
        cuts.extend(
            Some(advised).filter(|it| (it.pre_stop_s, it.grace_s) != (Some(pre_stop_s), Some(grace_s))),
        );
    }
    cuts
}

fn streams_of(result: &RunResult) -> impl Iterator<Item = (&Termination, &TerminationStreams)> {
    result.terminations.iter().filter_map(|of| Some((of, of.streams.as_ref()?)))
}

/// Returns the preStop sleep that the propagation windows call for; 0 if they call for none. If requests were lost to
/// them and no sleep is advised, it is at least as long as a window is known to have lasted.
fn advised_sleep_s(result: &RunResult) -> u64 {
    let longest = Recommendation::longest(&result.recommendation, &result.terminations, &result.groups);
    longest.and_then(Recommendation::advised_seconds).unwrap_or_else(|| {
        let is_needed = result.requests.by_cause.keys().any(|cause| cause.is_helped_by_sleep());
        let lasted_s = lasted_at_least_s(&result.terminations, &result.groups, |_| is_needed);
        stats::ceil_seconds(lasted_s.unwrap_or(0.0))
    })
}

/// One further termination, of a pod like those of the run.
struct FurtherTermination {
    record: VirtualTerminations,
    /// Seconds from SIGTERM until the app cuts its streams; infinite if it serves them until they end.
    served_s: f64,
}

impl FurtherTermination {
    fn of(analysis: &Analysis) -> Result<Self, CutUnknown> {
        let steady = analysis.steady.as_ref().filter(|_| analysis.result.verdict == Verdict::Valid);
        let windows_s = measured_windows(&analysis.result);
        let record = VirtualTerminations::of_steady(steady.ok_or(CutUnknown::RunNotValid)?, &windows_s);
        let served_s = served_s(analysis).ok_or(CutUnknown::ReactionNotSeen)?;
        Ok(Self { record: record.map_err(CutUnknown::NoPrediction)?, served_s })
    }

    /// Predicts the cuts with a preStop sleep and a grace period.
    fn cut(&self, sleep_s: u64, grace_s: u64) -> Result<PredictedMean, CutUnknown> {
        let seconds = (sleep_s as f64 + self.served_s).min(grace_s as f64);
        let budget = StreamBudget { seconds, accepts_s: (sleep_s as f64).min(seconds) };
        match self.record.cuts(budget).map(|cuts| cuts.mean(CONFIDENCE)) {
            Estimate::Known(MeanCut { estimate, lower, upper, .. }) => {
                Ok(PredictedMean { estimate, lower, upper, rate_per_pod: self.record.rate_per_pod() })
            }
            Estimate::Unknown { more_streams } => Err(CutUnknown::TooFew(more_streams)),
        }
    }

    /// Predicts the cuts with the smallest settings that cut few streams and are no shorter than the current ones, nor
    /// than the sleep that the windows call for. The sleep fits into the grace period.
    fn advised(&self, for_windows_s: u64, (set_s, grace_s): (u64, u64)) -> FurtherCut {
        let sleep_s = set_s.max(for_windows_s);
        let least = if self.served_s.is_finite() {
            let sleep = self.record.least_sleep(MAX_CUT, CONFIDENCE).map(|least_s| least_s.max(sleep_s));
            sleep.map(|sleep_s| (sleep_s, grace_s + sleep_s - set_s))
        } else {
            let grace = self.record.least_grace(sleep_s as f64, MAX_CUT, CONFIDENCE);
            let fitting_s = if sleep_s > 0 { sleep_s + 1 } else { 0 };
            grace.map(|least_s| (sleep_s, least_s.max(grace_s).max(fitting_s)))
        };
        let settings = SettingsOrigin::Advised;
        match least {
            Estimate::Known((sleep_s, grace_s)) => FurtherCut {
                settings,
                pre_stop_s: Some(sleep_s),
                grace_s: Some(grace_s),
                cut: self.cut(sleep_s, grace_s),
            },
            Estimate::Unknown { more_streams } => {
                let cut = Err(CutUnknown::TooFew(more_streams));
                FurtherCut { settings, pre_stop_s: None, grace_s: None, cut }
            }
        }
    }
}

/// Returns the shortest time from SIGTERM until the app cut a stream, in seconds; infinite if it kept serving all of
/// them.
/// `None` if no stream was open at SIGTERM.
fn served_s(analysis: &Analysis) -> Option<f64> {
    let cut_s = analysis.account.findings.iter().find_map(|finding| match finding {
        Finding::Lost { by: Loss::CutAtSigterm(cut), .. } => {
            Some(cut.after_s.map_or(0.0, |(least_s, _)| least_s))
        }
        _ => None,
    });
    let is_served = streams_of(&analysis.result)
        .any(|(_, of)| of.after_sigterm.completed + of.at_grace_end.told + of.at_grace_end.cut > 0);
    cut_s.or(is_served.then_some(f64::INFINITY))
}
