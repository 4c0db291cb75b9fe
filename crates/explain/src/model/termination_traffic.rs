//! Real traffic around a termination, as shown by gateway access logs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Bounded, Cause, Window};
use rolldrop_record::Stamp;

/// Reason for the gap after the end of a pod's sidecar. A pod whose requests only its sidecar shows always has this
/// gap.
pub const SIDECAR_ENDED: &str = "sidecar ended";

/// Logs that show the requests to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficWitness {
    /// Gateway logs.
    #[default]
    Gateways,
    /// The journal of the pod's own sidecar, because no gateway's log names the pod. It has the requests that reached
    /// the pod while the sidecar ran, so all counts are lower bounds, and windows have no upper bound.
    Sidecar,
}

/// Requests that were sent to a terminating pod. Only requests whose log line names the pod's address, or none, are
/// counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TerminationTraffic {
    /// Logs that show the requests.
    #[serde(default)]
    pub seen_by: TrafficWitness,
    /// Attempts that reached the pod from t0 on, or were lost there.
    pub requests: u64,
    /// Requests to the pod's Services that may have reached the pod, by the Service's namespace and name: requests from
    /// t0 until the pod was gone, and later ones that were lost. Their lines name no pod. Lost ones are matched by
    /// time: they count as certainly lost at the pod only if nothing else explains them, and yield no windows.
    #[serde(default)]
    pub by_services: BTreeMap<String, u64>,
    /// Requests lost for their clients.
    pub lost: Bounded,
    /// Streams that were cut: the lost requests whose responses had begun, such as downloads. `None` if no stream was
    /// seen to be cut but some responses in `not_observable` may have been. Also `None` in records of earlier versions.
    pub streams_cut: Option<Bounded>,
    /// Lost requests by cause.
    pub by_cause: BTreeMap<Cause, Bounded>,
    /// Requests that failed at the pod and were saved because the gateway tried again. `None` if no request was seen to
    /// be saved but a log that names the pod does not show retries.
    pub saved_by_retries: Option<Bounded>,
    /// Requests to the pod whose outcome the logs do not show, such as responses with status 200 that may have been
    /// cut. They include requests that may have reached a different pod, because their lines name none.
    pub not_observable: u64,
    /// Number of lost requests that would be expected without the termination: losses of the same kinds at healthy
    /// pods, in periods as long as the termination. Connections that were never accepted are excluded, because only a
    /// dead pod explains them. `None` if no pod was healthy for that long.
    pub background: Option<Bounded>,
    /// Spread of this number. `None` if `background` is, and in records of earlier versions.
    #[serde(default)]
    pub background_spread: Option<BackgroundSpread>,
    /// Window for each gateway pod and route, in seconds since t0.
    pub windows: Vec<Window>,
    /// Width of the bounds on the clock of the gateway's log, in seconds; the largest if there are several logs.
    #[serde(default)]
    pub clock_width_s: f64,
    /// Periods in which lines may be missing, so losses may be missing too.
    pub gaps: Vec<LogGap>,
    /// Sources of the logs, and those that the workload declares.
    #[serde(default)]
    pub consumers: SeenConsumers,
}

impl TerminationTraffic {
    /// Returns the maximum number of the certainly lost requests that may have been lost without the termination: all
    /// of them if the background is unknown.
    pub fn background_at_most(&self) -> u64 {
        self.background.map_or(self.lost.at_least, |background| background.at_most)
    }
}

/// Variance of the number of losses in periods without a termination, from which the limits of sums over terminations
/// follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackgroundSpread {
    /// Variance that is independent of other terminations.
    pub own: f64,
    /// Variance that terminations at about the same time have in common: losses of healthy pods at the same moments,
    /// such as in an outage of a database, and the error of the mean.
    pub shared: f64,
}

impl BackgroundSpread {
    /// Returns the spread of the sum of two numbers, which may vary together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |one: f64, other: f64| (one.sqrt() + other.sqrt()).powi(2);
        Self { own: sum(self.own, other.own), shared: sum(self.shared, other.shared) }
    }
}

/// Consumers of a pod, identified by the sources of their logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenConsumers {
    /// Sources of the logs that name the pod's address.
    pub seen: BTreeSet<String>,
    /// Those of these sources with a log that may lack lines around the termination, even if that log does not name the
    /// pod.
    pub with_gaps: BTreeSet<String>,
    /// Sources that the workload declares to be all of its consumers; `None` if it declares none.
    pub declared: Option<BTreeSet<String>>,
}

/// Period in which lines of a log may be missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogGap {
    /// The log.
    pub source: String,
    /// Start of the period.
    pub from_ns: Stamp,
    /// End of the period; `None` for a log that is no longer read.
    pub to_ns: Option<Stamp>,
    /// Reason; `None` if the watch ended before slow requests could appear in the log.
    pub why: Option<String>,
}
