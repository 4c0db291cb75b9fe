//! Chooses a grace period, or a sleep, for a workload's streams, and judges a proof by the streams that it cut.
//!
//! The choice is a prediction from a run without disruptions ([`VirtualTerminations`]): the fewest seconds with which a
//! termination cuts at most `max_cut` streams on average. The prediction is refuted if more streams are cut during a
//! proof than that mean allows. Streams then last longer in terminating pods than in serving ones, and the next choice
//! allows half as many cuts.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::RolloutShape;
use crate::prediction::{
    CONFIDENCE, Estimate, Forecast, MeanCut, NoPrediction, OnSigterm, PodShutdown, VirtualTerminations,
};
use rolldrop_explain::math::counts::count_quantile;
use rolldrop_explain::model::{RunResult, SteadyStreams};

/// Streams of the pods that ended in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedStreams {
    /// Streams that were open when their pod's deletion took effect, or began later.
    pub alive: u64,
    /// Streams that were cut at SIGTERM or when the grace period ran out.
    pub cut: u64,
}

impl AddAssign for EndedStreams {
    fn add_assign(&mut self, others: Self) {
        self.alive += others.alive;
        self.cut += others.cut;
    }
}

impl EndedStreams {
    /// Counts the streams of a run; `None` if its load sent none.
    pub fn of(result: &RunResult) -> Option<Self> {
        result.streams.as_ref()?;
        let of_pods = result.terminations.iter().filter_map(|t| t.streams.as_ref());
        let by_cause = result.requests.by_cause.iter();
        Some(Self {
            alive: of_pods.map(|streams| streams.alive_at_t0 + streams.began_later).sum(),
            cut: by_cause.filter(|(cause, _)| cause.is_cut_stream()).map(|(_, n)| n).sum(),
        })
    }
}

/// Settings that streams need, with their predicted effect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenStreams {
    /// Maximum mean number of streams cut per termination.
    pub max_cut: f64,
    /// The app's observed reaction to SIGTERM.
    pub on_sigterm: OnSigterm,
    /// Shortest grace period within `max_cut`, in seconds; if the app cuts its streams at SIGTERM, the shortest sleep.
    pub least_seconds: u64,
    /// Predicted mean number of streams cut per termination.
    pub cut: MeanCut,
    /// Streams per pod per second. All figures apply to this rate.
    pub rate_per_pod: f64,
    /// Number of streams on which the prediction is based.
    pub recorded: usize,
    /// Total time that the pods of one rollout spend terminating, in seconds; `None` if the record is too short.
    pub pod_seconds_each_rollout: Option<f64>,
}

/// Reason why no settings follow from a record of streams.
#[derive(Clone, Debug, PartialEq)]
pub enum NoChoice {
    /// Nothing can be predicted from the record.
    NoPrediction(NoPrediction),
    /// The record contains too few streams.
    FewStreams {
        /// Number of recorded streams.
        recorded: usize,
        /// Approximate number of further streams needed; `None` if no number would suffice.
        more: Option<u64>,
    },
}

impl NoChoice {
    /// Returns the factor by which the record must be longer; `None` if a longer record would not help.
    pub fn factor(&self) -> Option<f64> {
        match self {
            Self::NoPrediction(NoPrediction::NoPods { .. }) => None,
            Self::NoPrediction(NoPrediction::StillGrowing { .. }) => Some(3.0),
            Self::FewStreams { recorded, more } => Some(1.0 + (*more)? as f64 / (*recorded).max(1) as f64),
        }
    }
}

/// Chooses settings for the streams of a record.
#[derive(Debug)]
pub struct GraceChoice<'a> {
    /// Streams of a run without disruptions.
    pub steady: &'a SteadyStreams,
    /// The app's reaction to SIGTERM.
    pub on_sigterm: OnSigterm,
    /// Time in seconds for which a pod still receives new streams after its deletion.
    pub window_s: u64,
    /// Maximum mean number of streams cut per termination.
    pub max_cut: f64,
}

impl GraceChoice<'_> {
    /// Returns the settings that the streams need if pods sleep for `sleep_s`. For an app that cuts its streams at
    /// SIGTERM, the sleep itself is chosen.
    ///
    /// # Errors
    /// Fails if no settings follow from the record.
    pub fn choose(&self, sleep_s: u64, rollout: RolloutShape) -> Result<ChosenStreams, NoChoice> {
        let window_s = self.window_s as f64;
        let virtually = VirtualTerminations::of_steady(self.steady, &[(window_s, window_s)]);
        let virtually = virtually.map_err(NoChoice::NoPrediction)?;
        let (least, sleep_s) = match self.on_sigterm {
            OnSigterm::Drains => {
                (virtually.least_grace(sleep_s as f64, self.max_cut, CONFIDENCE), Some(sleep_s))
            }
            OnSigterm::Cuts => (virtually.least_sleep(self.max_cut, CONFIDENCE), None),
        };
        let recorded = virtually.streams;
        let few = |more| NoChoice::FewStreams { recorded, more };
        let least_seconds = match least {
            Estimate::Known(seconds) => seconds,
            Estimate::Unknown { more_streams } => return Err(few(more_streams)),
        };
        let end = PodShutdown {
            sleep_s: sleep_s.unwrap_or(least_seconds) as f64,
            grace_s: least_seconds as f64,
            on_sigterm: self.on_sigterm,
        };
        let Forecast { cut, terminating_s, .. } = virtually.forecast(end, rollout.pods, CONFIDENCE);
        Ok(ChosenStreams {
            max_cut: self.max_cut,
            on_sigterm: self.on_sigterm,
            least_seconds,
            cut: cut.known().ok_or(few(None))?,
            rate_per_pod: virtually.rate_per_pod(),
            recorded,
            pod_seconds_each_rollout: terminating_s.map(|each_s| each_s * rollout.pods as f64),
        })
    }
}

impl ChosenStreams {
    /// Returns the seconds after the sleep that an app needs to finish its streams; `None` if it cuts them at SIGTERM.
    pub fn drains_s(&self, sleep_s: u64) -> Option<f64> {
        let drains = self.on_sigterm == OnSigterm::Drains;
        drains.then(|| self.least_seconds.saturating_sub(sleep_s) as f64)
    }

    /// Returns the largest number of streams, at 97.5 %, that this many terminations would cut if the prediction were
    /// right.
    pub fn most_cut(&self, terminations: usize) -> u64 {
        let mean = terminations as f64 * self.cut.upper;
        count_quantile(mean, mean, 0.975)
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::SmallRng};
    use rolldrop_explain::model::MissingShare;

    use super::*;
    use crate::prediction::tests::laws::{Arrivals, Law, Workload, second};
    use crate::tuning::Strategy;

    const ROLLOUT: RolloutShape = RolloutShape { pods: 2, strategy: Strategy::Rolling { at_once: 1 } };

    /// Returns a record of two pods with two streams per second each. Their lengths are exponential with a mean of 2 s.
    fn steady(lasts_s: f64) -> SteadyStreams {
        let law = Law::Exponential { mean: 2.0 };
        let workload = Workload { law, arrivals: Arrivals { rate: 2.0, burst: 1 }, window_s: 0.0 };
        SteadyStreams {
            spans: workload.record(2, lasts_s, &mut SmallRng::seed_from_u64(7)),
            pods: vec!["a".into(), "b".into()],
            from: second(0.0),
            to: second(lasts_s),
            missing: Some(MissingShare::Exactly(0.0)),
            unnamed: 0,
            survival: Vec::new(),
        }
    }

    #[test]
    fn sigterm_reaction_selects_grace_or_sleep() {
        let steady = steady(1000.0);
        let choice = |on_sigterm, max_cut| {
            let choice = GraceChoice { steady: &steady, on_sigterm, window_s: 2, max_cut };
            choice.choose(3, ROLLOUT).unwrap()
        };
        // A pod receives new streams for 2 s, and later cuts 4 exp(-(g - 2) / 2) of them: 0.2 after 8 s.
        let drains = choice(OnSigterm::Drains, 0.2);
        assert!((8..=10).contains(&drains.least_seconds), "{drains:?}");
        assert!(drains.cut.upper <= 0.2 && drains.cut.lower > 0.0, "{drains:?}");
        assert_eq!(drains.drains_s(3), Some(drains.least_seconds as f64 - 3.0));
        assert!(choice(OnSigterm::Drains, 0.1).least_seconds > drains.least_seconds);
        let cuts = choice(OnSigterm::Cuts, 0.2);
        assert!((8..=10).contains(&cuts.least_seconds), "{cuts:?}");
        assert_eq!(cuts.drains_s(3), None, "the grace period follows from the sleep");
        assert!((drains.rate_per_pod - 2.0).abs() < 0.1, "{drains:?}");
    }

    #[test]
    fn short_record_reports_needed_factor() {
        let factor = |steady: SteadyStreams| {
            let steady = &steady;
            let choice = GraceChoice { steady, on_sigterm: OnSigterm::Drains, window_s: 2, max_cut: 0.01 };
            choice.choose(3, ROLLOUT).unwrap_err().factor()
        };
        assert!(factor(steady(60.0)).is_some_and(|factor| factor > 2.0));
        let missing = Some(MissingShare::AtLeast(0.3));
        assert_eq!(factor(SteadyStreams { missing, ..steady(60.0) }), Some(3.0));
        let unnamed = SteadyStreams { pods: Vec::new(), ..steady(60.0) };
        assert_eq!(factor(unnamed), None, "a longer record names no pods either");
    }

    #[test]
    fn prediction_allows_poisson_counts() {
        let steady = steady(1000.0);
        let choice =
            GraceChoice { steady: &steady, on_sigterm: OnSigterm::Drains, window_s: 2, max_cut: 0.2 };
        let mut chosen = choice.choose(3, ROLLOUT).unwrap();
        chosen.cut.upper = 0.1;
        // Poisson with mean 4: P(X <= 8) = 0.979, P(X <= 7) = 0.949.
        assert_eq!((chosen.most_cut(40), chosen.most_cut(0)), (8, 0));
    }
}
