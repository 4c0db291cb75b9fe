//! Figures of `rolldrop predict`: the effect of terminations on the streams of a run.

use serde::Serialize;

use super::{Estimate, Forecast, MeanCut, OnSigterm, PodShutdown, SteadyRecord, VirtualTerminations};
use rolldrop_explain::model::{MissingShare, RunResult, SteadyStreams, Window};

/// Default confidence of every bound.
pub const CONFIDENCE: f64 = 0.95;
/// Default for the mean number of streams per termination that may be cut.
pub const MAX_CUT: f64 = 0.1;
/// Grace periods that are always shown, in seconds.
const GRACES_S: [u32; 6] = [10, 30, 60, 120, 300, 600];
/// Percentile that the common rule uses.
const RULE: f64 = 0.99;

/// Reason why nothing can be predicted from a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoPrediction {
    /// Nothing identifies the pods of these streams.
    NoPods {
        /// Number of streams.
        unnamed: u64,
    },
    /// The number of open streams was still growing when the first pod was terminated or the load ended.
    StillGrowing {
        /// Length of the run up to then, in seconds.
        after_s: f64,
        /// Share of the stationary population that was missing; `None` if too few streams had ended to tell.
        missing: Option<MissingShare>,
    },
}

/// Input of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictionRequest<'a> {
    /// Measured propagation windows, each as a lower and an upper bound in seconds; the upper one may be infinite.
    pub windows_s: &'a [(f64, f64)],
    /// Time in seconds that a window of one of several pods is known to have lasted; 0 if there is none.
    pub lasted_at_least_s: f64,
    /// The preStop sleep in seconds; `None` selects the longest time that a window lasted, as far as is known.
    pub sleep_s: Option<f64>,
    /// Grace periods (for apps that cut their streams, sleeps) that are always shown, in seconds.
    pub graces_s: &'a [f64],
    /// Number of further terminations; `None` selects one for each pod.
    pub terminations: Option<u64>,
    /// Mean number of streams per termination that may be cut.
    pub max_cut: f64,
    /// Confidence of every bound, in (0, 1).
    pub confidence: f64,
}

/// Streams that terminations would cut, for pairs of sleep and grace period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamPrediction {
    /// Length of the steady part, in seconds.
    pub steady_s: f64,
    /// Number of pods.
    pub pods: usize,
    /// Number of streams that were open in the steady part.
    pub streams: usize,
    /// Streams that began per pod per second. All figures apply to this rate.
    pub rate_per_pod: f64,
    /// Mean number of streams open on a pod.
    pub open_per_pod: f64,
    /// Share of the stationary population that is missing.
    pub missing: Option<MissingShare>,
    /// Longest measured propagation window, in seconds; `None` if none was measured, or one has no upper bound.
    pub window_s: Option<f64>,
    /// Time that the longest window lasted at least, in seconds, if a window has no upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_at_least_s: Option<f64>,
    /// The preStop sleep that the table assumes, in seconds.
    pub sleep_s: f64,
    /// Effect of grace periods, if the app keeps serving its streams after SIGTERM.
    pub draining: Vec<Forecast>,
    /// Effect of sleeps, if the app cuts its streams at SIGTERM. In that case, no grace period helps.
    pub cutting: Vec<Forecast>,
    /// Confidence of every bound.
    pub confidence: f64,
    /// Number of further terminations that the forecasts cover.
    pub terminations: u64,
    /// Maximum mean number of streams cut per termination.
    pub max_cut: f64,
    /// Shortest grace period within `max_cut`, in seconds, if the app drains.
    pub least_grace: Estimate<u64>,
    /// Shortest sleep within `max_cut`, in seconds, if the app cuts its streams at SIGTERM.
    pub least_sleep: Estimate<u64>,
    /// Grace period by the rule "99th percentile of the duration", in seconds.
    pub rule_grace_s: Option<f64>,
    /// Streams per termination that one would expect to be cut under the rule.
    pub rule_expects: Option<f64>,
    /// Streams per termination that would actually be cut under the rule.
    pub rule_cuts: Option<Estimate<MeanCut>>,
}

impl VirtualTerminations {
    /// Builds virtual terminations from the steady part of a run.
    ///
    /// # Errors
    /// Returns the reason why nothing can be predicted from the run.
    pub(crate) fn of_steady(steady: &SteadyStreams, windows_s: &[(f64, f64)]) -> Result<Self, NoPrediction> {
        if steady.pods.is_empty() {
            return Err(NoPrediction::NoPods { unnamed: steady.unnamed });
        }
        let (spans, from, to, pods) = (&steady.spans[..], steady.from, steady.to, steady.pods.len());
        let growing = NoPrediction::StillGrowing { after_s: to.seconds_since(from), missing: steady.missing };
        if !steady.is_stationary() {
            return Err(growing);
        }
        Self::of(&SteadyRecord { spans, from, to, pods, windows_s }).ok_or(growing)
    }
}

/// Returns the propagation windows measured in a run, each as a lower and an upper bound in seconds. A window without an
/// upper bound may be the longest, so it has an infinite one.
pub fn measured_windows(result: &RunResult) -> Vec<(f64, f64)> {
    let windows = result.terminations.iter().filter(|t| t.was_deleted()).flat_map(|t| &t.windows);
    let bounds = |w: &Window| (w.lower_s.unwrap_or(0.0), w.upper_s.unwrap_or(f64::INFINITY));
    windows.filter(|w| w.is_one()).map(bounds).collect()
}

impl StreamPrediction {
    /// Predicts from the steady part of a run.
    ///
    /// # Errors
    /// Returns the reason why nothing can be predicted from the run.
    pub fn of(
        steady: &SteadyStreams,
        &PredictionRequest {
            windows_s,
            lasted_at_least_s,
            sleep_s,
            graces_s,
            terminations,
            max_cut,
            confidence,
        }: &PredictionRequest<'_>,
    ) -> Result<Self, NoPrediction> {
        let virtually = VirtualTerminations::of_steady(steady, windows_s)?;
        let (steady_s, pods) = (steady.to.seconds_since(steady.from), steady.pods.len());
        let longest_s = windows_s.iter().map(|(_, upper)| *upper).reduce(f64::max);
        let window_s = longest_s.filter(|s| s.is_finite());
        let bounds = windows_s.iter().flat_map(|(lower, upper)| [*lower, *upper]);
        let known_s = bounds.filter(|s| s.is_finite()).fold(lasted_at_least_s, f64::max);
        let sleep_s = sleep_s.unwrap_or_else(|| known_s.ceil());
        let lowest_s = windows_s.iter().map(|(lower, _)| *lower).fold(lasted_at_least_s, f64::max);
        let terminations = terminations.unwrap_or(pods as u64);
        let least_grace = virtually.least_grace(sleep_s, max_cut, confidence);
        let least_sleep = virtually.least_sleep(max_cut, confidence);
        let forecasts = |least: Estimate<u64>, from_s: f64, end: &dyn Fn(f64) -> PodShutdown| {
            let mut seconds: Vec<f64> = GRACES_S.map(f64::from).to_vec();
            seconds.extend(graces_s);
            seconds.extend(least.known().map(|seconds| seconds as f64));
            seconds.retain(|seconds| *seconds <= steady_s);
            seconds.iter_mut().for_each(|seconds| *seconds = seconds.max(from_s));
            seconds.sort_by(f64::total_cmp);
            seconds.dedup();
            seconds
                .into_iter()
                .map(|seconds| virtually.forecast(end(seconds), terminations, confidence))
                .collect()
        };
        let rule = virtually.percentile_rule(RULE, sleep_s);
        Ok(Self {
            steady_s,
            pods,
            streams: virtually.streams,
            rate_per_pod: virtually.rate_per_pod(),
            open_per_pod: virtually.open_per_pod(),
            missing: steady.missing,
            window_s,
            window_at_least_s: longest_s.filter(|s| s.is_infinite()).map(|_| lowest_s),
            sleep_s,
            draining: forecasts(least_grace, sleep_s, &|grace_s| PodShutdown {
                sleep_s,
                grace_s,
                on_sigterm: OnSigterm::Drains,
            }),
            cutting: forecasts(least_sleep, 0.0, &|sleep_s| PodShutdown {
                sleep_s,
                grace_s: sleep_s,
                on_sigterm: OnSigterm::Cuts,
            }),
            confidence,
            terminations,
            max_cut,
            least_grace,
            least_sleep,
            rule_grace_s: rule.map(|rule| rule.grace_s),
            rule_expects: rule.map(|rule| rule.expected),
            rule_cuts: rule.map(|rule| rule.cuts.map(|cuts| cuts.mean(confidence))),
        })
    }
}
