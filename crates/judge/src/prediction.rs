//! Predicts from the steady part of a record which streams terminations would cut, and which grace period would save
//! them.
//!
//! No distribution of stream lengths is assumed. [`VirtualTerminations`] assumes a termination of every pod at many
//! instants of the record, and counts the streams that outlast a budget. [`Cuts`] holds their mean with bounds and
//! predicts further terminations; [`PodNeeds`] holds the time until a pod's last stream ends; `grace_period` chooses
//! and compares settings. [`further_cuts()`] predicts the cuts for the settings of a run's pods.
//!
//! All results apply to the rate of streams per pod in the record ([`VirtualTerminations::rate_per_pod`]): twice the
//! rate means twice the cuts. Propagation windows are used as measured: lower bounds of cuts use the lower bounds of
//! the windows, and everything else uses their upper bounds. Only the tests rely on the theory of infinite-server
//! queues (Eick, Massey and Whitt 1993): cuts per termination have the mean λ E[(D − (g − w))⁺], with lengths D, budget
//! g and window w.

mod cut_statistics;
mod further_cuts;
mod grace_period;
mod needs;
mod prediction_table;
mod virtual_terminations;

use serde::{Deserialize, Serialize};

pub use cut_statistics::{CutRange, Cuts, MeanCut};
pub use further_cuts::{CutUnknown, FurtherCut, further_cuts};
pub use grace_period::{Forecast, PercentileRule};
pub use needs::{PodNeeds, UncutShare};
pub use prediction_table::{
    CONFIDENCE, MAX_CUT, NoPrediction, PredictionRequest, StreamPrediction, measured_windows,
};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::StreamSpan;
use rolldrop_record::Stamp;
pub use virtual_terminations::VirtualTerminations;

/// Steady part of a record, in which no pod was terminated.
#[derive(Clone, Copy, Debug)]
pub struct SteadyRecord<'a> {
    /// Streams, including those that began before the period or ended after it. Every stream that was open in the
    /// period must be among them.
    pub spans: &'a [StreamSpan],
    /// Beginning of the period.
    pub from: Stamp,
    /// End of the period. A log that contains only ended streams must continue after it for at least the length of the
    /// longest stream.
    pub to: Stamp,
    /// Number of pods, each of which served throughout the period.
    pub pods: usize,
    /// Measured propagation windows, each as a lower and an upper bound on the number of seconds after t0 for which a
    /// pod still receives streams; the upper one may be infinite. All windows are equally likely.
    pub windows_s: &'a [(f64, f64)],
}

/// Time that streams have until they are cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamBudget {
    /// Seconds from t0 until the pod's streams are cut.
    pub seconds: f64,
    /// Seconds from t0 until the pod stops accepting streams.
    pub accepts_s: f64,
}

/// Way in which a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodShutdown {
    /// Seconds from t0 to SIGTERM: the preStop sleep.
    pub sleep_s: f64,
    /// Seconds from t0 to SIGKILL: the grace period, which includes the sleep.
    pub grace_s: f64,
    /// The app's reaction to SIGTERM.
    pub on_sigterm: OnSigterm,
}

/// An app's reaction to SIGTERM. Afterwards, the app accepts no streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSigterm {
    /// The app serves its streams until they end, or until SIGKILL.
    Drains,
    /// The app cuts its streams, so a longer sleep helps, but a longer grace period does not.
    Cuts,
}

impl PodShutdown {
    /// Returns the time that streams have until they are cut.
    pub fn budget(self) -> StreamBudget {
        let seconds = match self.on_sigterm {
            OnSigterm::Drains => self.grace_s,
            OnSigterm::Cuts => self.sleep_s.min(self.grace_s),
        };
        StreamBudget { seconds, accepts_s: self.sleep_s.min(seconds) }
    }
}

/// An estimate, or the number of further streams that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimate<T> {
    /// The record contains enough streams.
    Known(T),
    /// The record contains too few streams, or is too short.
    Unknown {
        /// Approximate number of further streams that would suffice, if the tail of the lengths decays as fast as that
        /// of an exponential distribution. `None` if no number would.
        more_streams: Option<u64>,
    },
}

impl<T> Estimate<T> {
    /// Returns the estimate, if it is known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(answer) => Some(answer),
            Self::Unknown { .. } => None,
        }
    }

    /// Converts a known estimate.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Estimate<U> {
        match self {
            Self::Known(answer) => Estimate::Known(convert(answer)),
            Self::Unknown { more_streams } => Estimate::Unknown { more_streams },
        }
    }
}

/// Rounds a number of streams up, to at least one.
fn whole(streams: f64) -> u64 {
    stats::index(streams.ceil().max(1.0)) as u64
}

#[cfg(test)]
pub(crate) mod tests;
