//! Compares a run with several earlier ones: each figure is tested against the spread between runs.
//!
//! The limits are prediction limits for one more value given n values, mean + t(n - 1) s sqrt(1 + 1/n) (Hahn and Meeker
//! 1991, section 4.7), one-sided, and joint over all figures (Bonferroni). The spread between runs is part of s, so the
//! limits include the machine's noise from run to run. Latencies are judged on the logarithmic scale; counts and shares
//! are judged on scales on which chance alone gives them a known spread (Anscombe 1948), and s is never taken to be
//! smaller than that. If no earlier run had any losses, the limit comes from the test of totals (`loss_rows`).

pub(super) mod history_figures;

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::blocks::{self, Beyond};
use super::exposure::Exposure;
use super::{CompareOptions, Sample, differing, worse_limits};
use crate::judgements::comparison::{FEWEST_REQUESTS, FEWEST_RUNS, Quantile};
use crate::judgements::gate_check::{
    BaselineGrounds, Check, CheckEvidence, CheckName, LatencyDoubt, Prediction, Trend, UnfitRun,
};
use crate::statistics::exact::{at_least, z};
use crate::statistics::trend::grows;
use history_figures::{HistoryFigure, Scale};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{CheckVerdict, Verdict};

/// Default share by which a latency, a window or a rate may always differ from its usual value. Runs made on one day
/// are more alike than runs made on several days. For example, on a machine with other work, p99 of unchanged software
/// moved by 18 %, although the five previous runs had differed by only 3 % (docs/proofs.md).
pub const TOLERANCE: f64 = 0.2;
/// Time by which a window may always exceed the usual one, in seconds. A preStop sleep is a whole number of seconds,
/// and window bounds are wider on a busy machine.
const WINDOW_TOLERANCE_S: f64 = 0.25;
/// Number of events beyond which a limit is not sought, because no run has so many.
const MOST_EVENTS: u64 = 1 << 40;
/// Default maximum number of earlier runs to use.
pub const LAST: usize = 20;

/// Earlier runs that count, and the number of those that do not.
#[derive(Clone, Debug, Default)]
pub struct RunHistory {
    /// Runs that count, ordered by start time.
    pub used: Vec<Sample>,
    /// Number of runs that do not count, by reason.
    pub left_out: BTreeMap<UnfitRun, usize>,
}

impl RunHistory {
    /// Selects the last `last` runs that count: valid runs that passed and have the candidate's fingerprint, or any
    /// fingerprint if the options allow runs that are not comparable.
    pub fn of(mut runs: Vec<Sample>, candidate: &Sample, last: usize, options: &CompareOptions) -> Self {
        let mut history = Self::default();
        runs.sort_by_key(|run| run.started);
        for run in runs.into_iter().rev() {
            if history.used.len() == last || run.started == candidate.started {
                continue;
            }
            match unfit(&run, candidate, options.anyway) {
                Some(why) => *history.left_out.entry(why).or_default() += 1,
                None => history.used.push(run),
            }
        }
        history.used.reverse();
        history
    }

    /// Checks that there are enough runs.
    fn enough(&self) -> Check {
        let used = self.used.len();
        let verdict = if used >= FEWEST_RUNS { CheckVerdict::Pass } else { CheckVerdict::Inconclusive };
        let evidence = CheckEvidence::History { used, left_out: self.left_out.clone() };
        Check::new(CheckName::History, verdict, evidence)
    }

    /// Checks a run against the earlier runs.
    pub fn checks(&self, candidate: &Sample, options: &CompareOptions) -> Vec<Check> {
        let mut checks = vec![self.enough()];
        let inconclusive = |name, evidence| Check::new(name, CheckVerdict::Inconclusive, evidence);
        if candidate.verdict != Verdict::Valid {
            checks.extend(worse_limits::unjudged(&options.worse, candidate, &BaselineGrounds::NotValid));
            checks.push(inconclusive(CheckName::Run, CheckEvidence::NotValid));
            return checks;
        }
        if candidate.total < FEWEST_REQUESTS {
            checks.push(inconclusive(CheckName::Requests, CheckEvidence::FewRequests(candidate.total)));
        }
        if self.used.len() < FEWEST_RUNS {
            checks.extend(worse_limits::unjudged(&options.worse, candidate, &BaselineGrounds::FewRuns));
            return checks;
        }
        let losses = Exposure::of_losses(self.used.iter().chain([candidate]));
        let now = history_figures::of(candidate, losses);
        // Sorted by name, the order in which the checks are listed.
        let mut then: BTreeMap<String, Vec<HistoryFigure>> = BTreeMap::new();
        for figure in self.used.iter().flat_map(|run| history_figures::of(run, losses)) {
            then.entry(figure.metric.to_string()).or_default().push(figure);
        }
        then.retain(|_, known| {
            let is_replaced = |figure: &HistoryFigure| {
                options.worse.iter().any(|limit| worse_limits::replaces(limit, &figure.metric))
            };
            known.len() >= FEWEST_RUNS && !known.iter().any(is_replaced)
        });
        let limits = worse_limits::asked(&options.worse, candidate);
        let alpha = (1.0 - options.confidence) / (then.len() + limits.len()).max(1) as f64;
        let doubts = Doubts::new(candidate, &self.used, options.confidence);
        for known in then.values() {
            let Some(HistoryFigure { metric, .. }) = known.first() else { continue };
            checks.push(match now.iter().find(|figure| figure.metric == *metric) {
                Some(figure) => judge(figure, known, alpha, options.tolerance, doubts),
                None => {
                    inconclusive(CheckName::Baseline(metric.clone()), CheckEvidence::Missing(known.len()))
                }
            });
        }
        checks.extend(limits.iter().map(|limit| limit.by_history(&self.used, candidate, alpha, doubts)));
        checks
    }
}

/// Returns the reason why a run is not part of the history, if there is one.
fn unfit(run: &Sample, candidate: &Sample, anyway: bool) -> Option<UnfitRun> {
    match (&run.verdict, run.gate) {
        (Verdict::Invalid { .. }, _) => return Some(UnfitRun::Invalid),
        (Verdict::Partial { .. }, _) => return Some(UnfitRun::Partial),
        (Verdict::Valid, CheckVerdict::Fail | CheckVerdict::Inconclusive) => {
            return Some(UnfitRun::NotPassed);
        }
        (Verdict::Valid, CheckVerdict::Pass) => {}
    }
    if anyway {
        return None;
    }
    let names = differing(run, candidate);
    (!names.is_empty()).then_some(UnfitRun::Differs(names))
}

/// Facts that can cast doubt on a run's latencies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubts<'a> {
    run: &'a Sample,
    lateness: Option<Lateness>,
    confidence: f64,
}

impl<'a> Doubts<'a> {
    fn new(run: &'a Sample, earlier: &[Sample], confidence: f64) -> Self {
        Self { run, lateness: Lateness::of(run, earlier), confidence }
    }

    /// Returns a doubt about a latency beyond its limit. `quantile` is set if the latency is that quantile of all
    /// responses.
    pub(super) fn about(
        &self,
        latency_ms: f64,
        limit_ms: f64,
        quantile: Option<Quantile>,
    ) -> Option<LatencyDoubt> {
        let late = || self.lateness.and_then(|late| late.explains(latency_ms, limit_ms));
        late().or_else(|| self.by_chance(limit_ms, quantile?))
    }

    /// Returns a doubt if chance may explain a latency beyond its limit. Quantile q is beyond the limit if a share of
    /// more than 1 - q of the responses is. A few moments of a run can tip the balance, for example if a rollout makes
    /// one response in a hundred wait for a second.
    fn by_chance(&self, limit_ms: f64, quantile: Quantile) -> Option<LatencyDoubt> {
        let Beyond { share, least } = blocks::share_beyond(self.run, limit_ms, self.confidence)?;
        let allowed = 1.0 - quantile.share();
        (least <= allowed).then_some(LatencyDoubt::FewMoments { share, least, allowed })
    }
}

/// 99th percentile of the load generator's send lag, in milliseconds. Response times include this lag, although the
/// generator's machine causes it, not the app.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    now_ms: f64,
    /// Median of the earlier runs.
    usual_ms: f64,
}

impl Lateness {
    fn of(candidate: &Sample, earlier: &[Sample]) -> Option<Self> {
        let mut known: Vec<f64> = earlier.iter().filter_map(|run| run.lag_p99_ms).collect();
        known.sort_by(f64::total_cmp);
        Some(Self { now_ms: candidate.lag_p99_ms?, usual_ms: stats::nearest_rank(&known, 0.5)? })
    }

    /// Returns a doubt if the latency is within its limit after subtracting the generator's additional lag.
    fn explains(self, latency_ms: f64, limit_ms: f64) -> Option<LatencyDoubt> {
        let Self { now_ms, usual_ms } = self;
        let is_explained = latency_ms - (now_ms - usual_ms).max(0.0) <= limit_ms;
        is_explained.then_some(LatencyDoubt::Lateness { now_ms, usual_ms })
    }
}

fn judge(
    figure: &HistoryFigure,
    known: &[HistoryFigure],
    alpha: f64,
    tolerance: f64,
    doubts: Doubts<'_>,
) -> Check {
    let limit = limit(figure, known, alpha, tolerance);
    let is_more_better = figure.scale.is_more_better();
    let met = if is_more_better { figure.value >= limit } else { figure.value <= limit };
    let earlier: Vec<f64> = known.iter().map(|one| one.value_at(figure)).collect();
    let worse = |value: f64| if is_more_better { -value } else { value };
    let in_order: Vec<f64> = earlier.iter().copied().chain([figure.value]).map(worse).collect();
    let p = grows(&in_order);
    let is_slow = !met && figure.scale == Scale::Log;
    let doubt = is_slow.then(|| doubts.about(figure.value, limit, figure.quantile)).flatten();
    let verdict = match (met, &doubt) {
        (true, _) => CheckVerdict::Pass,
        (false, Some(_)) => CheckVerdict::Inconclusive,
        (false, None) => CheckVerdict::Fail,
    };
    let evidence = CheckEvidence::Predicted(Prediction {
        unit: figure.unit,
        limit,
        value: figure.value,
        earlier,
        trend: (p <= alpha).then_some(Trend { runs: in_order.len(), p }),
        doubt,
    });
    Check::new(CheckName::Baseline(figure.metric.clone()), verdict, evidence)
}

/// Returns the limit for a figure of a new run.
fn limit(figure: &HistoryFigure, known: &[HistoryFigure], alpha: f64, tolerance: f64) -> f64 {
    let scale = figure.scale;
    if scale == Scale::Count && known.iter().all(|one| one.value == 0.0) {
        return after_none(known.iter().map(|one| one.exposure / figure.exposure).sum(), alpha);
    }
    let values: Vec<f64> = known.iter().map(|one| one.value_at(figure)).collect();
    let (mean, beyond) = spread(scale, figure.exposure, &values, alpha);
    // A value that also occurred in a run that passed is never beyond the limit, however rare it is.
    let worse = if scale.is_more_better() { f64::min } else { f64::max };
    let limit = values.iter().copied().fold(scale.back(mean + beyond, figure.exposure), worse);
    let usual = scale.back(mean, figure.exposure);
    match scale {
        Scale::Count | Scale::Share => limit,
        Scale::Time => limit.max(usual * (1.0 + tolerance)).max(usual + WINDOW_TOLERANCE_S),
        Scale::Log => limit.max(usual * (1.0 + tolerance)),
        Scale::Rate => limit.min(usual / (1.0 + tolerance)),
    }
}

/// Returns the mean of earlier values on the scale, and how far beyond it a new run may lie.
pub(super) fn spread(scale: Scale, exposure: f64, values: &[f64], alpha: f64) -> (f64, f64) {
    let n = values.len() as f64;
    let values: Vec<f64> = values.iter().map(|value| scale.of(*value, exposure)).collect();
    let mean = values.iter().sum::<f64>() / n;
    let s = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let t = StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - alpha));
    let by_chance = z(1.0 - alpha) * scale.least_spread(exposure);
    (mean, (t * s).max(by_chance) * (1.0 + 1.0 / n).sqrt())
}

/// Returns the maximum number of events that a new run may have after `runs` runs without any, by the test of totals.
/// Runs that are much shorter than the new one allow any number, here [`MOST_EVENTS`] or more.
pub(super) fn after_none(runs: f64, alpha: f64) -> f64 {
    let is_beyond = |lost: u64| at_least(lost, lost, runs, 1.0) <= alpha;
    let (mut within, mut beyond) = (0, 1);
    while !is_beyond(beyond) && beyond < MOST_EVENTS {
        (within, beyond) = (beyond, 2 * beyond);
    }
    while beyond - within > 1 {
        let middle = u64::midpoint(within, beyond);
        if is_beyond(middle) { beyond = middle } else { within = middle }
    }
    within as f64
}

#[cfg(test)]
mod tests;
