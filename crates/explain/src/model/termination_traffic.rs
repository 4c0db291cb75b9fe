//! Real traffic around a termination, as the access logs of gateways show it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Bounded, Cause, Window};
use rolldrop_record::Stamp;

/// Reason of the gap after the end of a pod's sidecar. A pod whose requests only its sidecar shows always has it.
pub const SIDECAR_ENDED: &str = "sidecar ended";

/// Logs that show the requests to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficWitness {
    /// Logs of gateways.
    #[default]
    Gateways,
    /// The journal of the pod's own sidecar, because no gateway's log names the pod. It has the requests that reached the
    /// pod as long as the sidecar ran, so all counts are lower bounds, and windows have no upper bound.
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
    /// Requests to Services of the pod that may have reached it, by namespace and name of the Service: those from t0 until
    /// it was gone, and later ones that were lost. Their lines name no pod. Those lost are joined by time: they count as
    /// certainly lost at the pod only if nothing else explains them, and yield no windows.
    #[serde(default)]
    pub by_services: BTreeMap<String, u64>,
    /// Requests lost for their clients.
    pub lost: Bounded,
    /// Streams cut: the part of the lost requests whose responses had begun, such as downloads. `None` if none was seen
    /// to be cut, but some responses in `not_observable` may have been, and in records of earlier versions.
    pub streams_cut: Option<Bounded>,
    /// Lost requests by cause.
    pub by_cause: BTreeMap<Cause, Bounded>,
    /// Requests that failed at the pod and were saved because the gateway tried again. `None` if none was seen to be
    /// saved, but a log that names the pod does not show retries.
    pub saved_by_retries: Option<Bounded>,
    /// Requests to the pod whose outcome the logs do not show, such as responses with status 200 that may have been cut.
    /// Among them are those that may have been at a different pod, as their lines name none.
    pub not_observable: u64,
    /// Number of the lost requests that would be expected without the termination: losses of the same kinds at pods
    /// that were well, in periods as long as the termination. Not among them are connections that nobody accepted,
    /// which only a dead pod explains. `None` if no pod was well for that long.
    pub background: Option<Bounded>,
    /// Window for each gateway pod and route, in seconds since t0.
    pub windows: Vec<Window>,
    /// Width of the bounds on the clock of the gateway's log in seconds; of several logs, the largest.
    #[serde(default)]
    pub clock_width_s: f64,
    /// Periods in which lines may be missing, so that losses may be too.
    pub gaps: Vec<LogGap>,
    /// Sources of the logs, and those that the workload declares.
    #[serde(default)]
    pub consumers: SeenConsumers,
}

/// Consumers of a pod, as the sources of their logs name them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenConsumers {
    /// Sources of the logs that name the pod's address.
    pub seen: BTreeSet<String>,
    /// Those of which any log may lack lines around the termination, even a log that does not name the pod.
    pub with_gaps: BTreeSet<String>,
    /// Sources that the workload declares to be all; `None` if it declares none.
    pub declared: Option<BTreeSet<String>>,
}

/// Period in which lines of a log may be missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogGap {
    /// The log.
    pub source: String,
    /// Start of the period.
    pub from_ns: Stamp,
    /// End of the period; `None` for a log that is not read any more.
    pub to_ns: Option<Stamp>,
    /// Reason; `None` if the watch ended before slow requests could be in the log.
    pub why: Option<String>,
}
