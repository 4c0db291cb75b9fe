//! The load of a scenario: settings of the load generator, and options that only a run has.

use std::collections::BTreeMap;
use std::time::Duration;

use rolldrop_record::Secret;
use rolldrop_record::load::{Load, LoadFrom, Pace, RateStage};

/// Everything under `spec.load`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// Settings without targets, whose addresses are known only once the cluster has been queried.
    pub settings: Load,
    /// Requests sent to each target; at least one.
    pub requests: Vec<RequestKind>,
    /// Origin of the load; `None` if it depends on the targets and the cluster.
    pub from: Option<LoadFrom>,
    /// Pods that send the load, if it is sent from inside the cluster.
    pub job: LoadJobSpec,
    /// Limit at which the run is aborted.
    pub abort: Option<Abort>,
}

impl LoadSpec {
    /// Returns the length of the counted part: the sum of all stages.
    pub fn duration(&self) -> Duration {
        self.settings.pace.duration().unwrap_or_default()
    }

    /// Returns the time from the start of the counted part until the load becomes steady, which it does at the first
    /// constant stage that no higher stage follows.
    pub fn steady_from(&self) -> Duration {
        let Pace::Open(stages) = &self.settings.pace else { return Duration::ZERO };
        let is_up = |index: usize| {
            let stage = stages[index];
            let is_higher = |next: &RateStage| next.from.max(next.to) > stage.to;
            stage.from == stage.to && stage.to > 0.0 && !stages.get(index + 1).is_some_and(is_higher)
        };
        let brought_up = (0..stages.len()).find(|index| is_up(*index)).unwrap_or(stages.len());
        stages[..brought_up].iter().map(|stage| stage.duration).sum()
    }
}

/// Limit on dropped requests at which the run is aborted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Abort {
    /// Share of requests that may be dropped, as a fraction of 1.
    pub share: f64,
    /// Period over which the share is computed; the requests that ended in it count.
    pub over: Duration,
    /// Minimum number of requests in the period for the limit to apply.
    pub requests: u64,
}

/// Pods that send a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadJobSpec {
    /// Number of pods; `None` for one per node, within the limits of the rate.
    pub workers: Option<usize>,
    /// Time that the pods may take to become ready.
    pub start_limit: Duration,
    /// Resource requests of each pod, by resource name.
    pub resources: BTreeMap<String, String>,
}

/// A kind of request, sent in proportion to its weight. Unset fields are taken from the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKind {
    /// Path and query, instead of the target's.
    pub path: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// Headers, which override the load's.
    pub headers: Vec<(String, Secret)>,
    /// The body.
    pub body: Option<Vec<u8>>,
    /// Weight, relative to the sum of all requests' weights.
    pub weight: u32,
}
