//! Settings: the smallest budget that meets a limit, the effect of a sleep and a grace period, and a common rule.

use serde::{Deserialize, Serialize};

use super::cut_statistics::{CutRange, Cuts, MeanCut};
use super::{Estimate, PodShutdown, StreamBudget, UncutShare, VirtualTerminations, whole};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::SpanEnd;

/// Expected effect of terminating pods in one way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Settings, and the app's reaction.
    pub end: PodShutdown,
    /// Mean number of streams per termination that arrive after the pod stopped accepting, while the rules still list
    /// it.
    pub refused: Option<f64>,
    /// Mean number of streams cut per termination.
    pub cut: Estimate<MeanCut>,
    /// Total number of streams that the requested number of further terminations will cut.
    pub cut_in_all: Estimate<CutRange>,
    /// Share of terminations that cut no stream.
    pub uncut: UncutShare,
    /// Mean duration of a termination, in seconds; `None` if the record is shorter than the grace period. Multiplied by
    /// the number of pods, it is the price of a rollout in pod-seconds.
    pub terminating_s: Option<f64>,
}

/// Grace period by the rule "this percentile of the request duration".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PercentileRule {
    /// The percentile in seconds.
    pub grace_s: f64,
    /// Mean number of streams per termination that one would expect to be cut under the rule: the remaining share of
    /// the open streams. In fact, long streams are open more often than short ones, and more time remains of them.
    pub expected: f64,
    /// Streams that terminations with this grace period cut.
    pub cuts: Estimate<Cuts>,
}

impl VirtualTerminations {
    /// Returns the shortest grace period in whole seconds with which pods that sleep for `sleep_s` and then drain cut
    /// at most `most_cut` streams on average, at `confidence`.
    pub fn least_grace(&self, sleep_s: f64, most_cut: f64, confidence: f64) -> Estimate<u64> {
        let least = self.least(most_cut, confidence, |seconds| StreamBudget { seconds, accepts_s: sleep_s });
        least.map(|seconds| seconds.max(stats::ceil_seconds(sleep_s)))
    }

    /// Returns the shortest sleep in whole seconds with which pods that cut their streams at SIGTERM cut at most
    /// `most_cut` streams on average, at `confidence`.
    pub fn least_sleep(&self, most_cut: f64, confidence: f64) -> Estimate<u64> {
        self.least(most_cut, confidence, |seconds| StreamBudget { seconds, accepts_s: seconds })
    }

    /// Returns the smallest number of whole seconds whose budget keeps the mean within `most_cut`. `budget` must not
    /// decrease with more seconds.
    fn least(&self, most_cut: f64, confidence: f64, budget: impl Fn(f64) -> StreamBudget) -> Estimate<u64> {
        let mean = |seconds: u64| self.cuts(budget(seconds as f64)).map(|cuts| cuts.mean(confidence).upper);
        let most = match mean(0) {
            Estimate::Known(most) => most,
            Estimate::Unknown { more_streams } => return Estimate::Unknown { more_streams },
        };
        if most <= most_cut {
            return Estimate::Known(0);
        }
        let beyond = stats::ceil_seconds(self.length_s) + 1;
        let unknown = stats::first(0, beyond, |seconds| mean(seconds).known().is_none());
        let reach = unknown - 1;
        let left = mean(reach).known().unwrap_or(most);
        if left > most_cut {
            // With exponential lengths, the cuts and the streams that outlast the budget decrease in proportion.
            let more_streams = (most_cut > 0.0).then(|| whole(self.streams as f64 * (left / most_cut - 1.0)));
            return Estimate::Unknown { more_streams };
        }
        Estimate::Known(stats::first(0, reach, |seconds| {
            mean(seconds).known().is_some_and(|mean| mean <= most_cut)
        }))
    }

    /// Predicts the effect of settings, both per termination and on this many terminations, with bounds that are each
    /// valid at `confidence`.
    pub fn forecast(&self, end: PodShutdown, terminations: u64, confidence: f64) -> Forecast {
        let budget = end.budget();
        let cuts = self.cuts(budget);
        let needs = self.needs(budget.accepts_s);
        let refused_s = self.windows_s.iter().map(|(_, upper)| (upper - budget.accepts_s).max(0.0));
        Forecast {
            end,
            refused: Some(self.rate_per_pod() * refused_s.sum::<f64>() / self.windows_s.len() as f64)
                .filter(|streams| streams.is_finite()),
            cut: cuts.map(|cuts| cuts.mean(confidence)),
            cut_in_all: cuts.map(|cuts| cuts.predict(terminations, confidence)),
            uncut: needs.uncut(budget.seconds, confidence),
            terminating_s: needs.terminating_s(end.sleep_s, budget),
        }
    }

    /// Returns the effect of the rule "grace period = this percentile of the request duration"; `percentile` is in (0,
    /// 1), and pods accept streams for `accepts_s` seconds after t0. As in an access log, the durations are those of
    /// all streams that ended in the period. `None` if no stream did.
    pub fn percentile_rule(&self, percentile: f64, accepts_s: f64) -> Option<PercentileRule> {
        let ended = self.pods.iter().flatten().filter(|open| {
            let is_open_at_end = open.ended == SpanEnd::Censored && open.end_s >= self.length_s;
            !is_open_at_end
        });
        let mut durations: Vec<f64> = ended.map(|open| open.end_s - open.start_s).collect();
        durations.sort_by(f64::total_cmp);
        let grace_s = stats::nearest_rank(&durations, percentile)?;
        Some(PercentileRule {
            grace_s,
            expected: (1.0 - percentile) * self.open_per_pod(),
            cuts: self.cuts(StreamBudget { seconds: grace_s, accepts_s }),
        })
    }
}
