//! The load of a scenario: its settings, and what only a run has.

use std::collections::BTreeMap;
use std::time::Duration;

use rolldrop_record::Secret;
use rolldrop_record::load::{Load, LoadFrom, Pace, Stage};

/// The load, and what else is under `spec.load`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// Settings, without targets: those follow when the cluster has said where they are.
    pub settings: Load,
    /// Requests that are sent to each target; at least one.
    pub requests: Vec<Request>,
    /// Origin of the load; `None` lets targets and cluster decide.
    pub from: Option<LoadFrom>,
    /// The pods that send it, if it comes from the cluster.
    pub job: LoadJob,
    /// The limit that ends the run.
    pub abort: Option<Abort>,
}

impl LoadSpec {
    /// Returns the length of the counted part: the sum of all stages.
    pub fn duration(&self) -> Duration {
        self.settings.pace.duration().unwrap_or_default()
    }

    /// Computes the time from which the load is steady, since its counted part began: at the first constant stage that
    /// no higher one follows.
    pub fn steady_from(&self) -> Duration {
        let Pace::Open(stages) = &self.settings.pace else { return Duration::ZERO };
        let is_up = |index: usize| {
            let stage = stages[index];
            let is_higher = |next: &Stage| next.from.max(next.to) > stage.to;
            stage.from == stage.to && stage.to > 0.0 && !stages.get(index + 1).is_some_and(is_higher)
        };
        let brought_up = (0..stages.len()).find(|index| is_up(*index)).unwrap_or(stages.len());
        stages[..brought_up].iter().map(|stage| stage.duration).sum()
    }
}

/// Limit on dropped requests at which the run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Abort {
    /// Share that may be dropped, as a fraction of 1.
    pub share: f64,
    /// Period in which the requests of the share ended.
    pub over: Duration,
    /// Minimum number of requests in the period.
    pub requests: u64,
}

/// Pods that send a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadJob {
    /// Number of pods; `None` for one on each node, within the limits of the rate.
    pub workers: Option<usize>,
    /// Time that they may take to become ready.
    pub start_limit: Duration,
    /// The resource requests of each, by the name of the resource.
    pub resources: BTreeMap<String, String>,
}

/// A kind of request, sent in proportion to its weight. What it does not set comes from the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Path and query, in place of the target's.
    pub path: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// Headers, which override those of the load.
    pub headers: Vec<(String, Secret)>,
    /// The body.
    pub body: Option<Vec<u8>>,
    /// Its share of the requests, relative to the sum of all requests' weights.
    pub weight: u32,
}
