//! The load of a scenario: its settings, and what only a run has.

use std::collections::BTreeMap;
use std::time::Duration;

use rolldrop_record::load::{LoadFrom, Pace, Settings, Stage};

/// The load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    /// Its settings. Their targets are those of the scenario, once the cluster has said where they are; until then there
    /// are none.
    pub settings: Settings,
    /// What is sent to each target; one at least.
    pub requests: Vec<Request>,
    /// Where it is sent from; `None` to go by the targets and the cluster.
    pub from: Option<LoadFrom>,
    /// The pods that send it, where it comes from the cluster.
    pub job: LoadJob,
    /// When the run is given up.
    pub abort: Option<Abort>,
}

impl Load {
    /// Length of the counted part: that of all stages.
    pub(crate) fn duration(&self) -> Duration {
        self.settings.pace.duration().unwrap_or_default()
    }

    /// When the load has been brought up, since its counted part began: the first constant stage that
    /// no higher one follows.
    pub(crate) fn steady_from(&self) -> Duration {
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

/// How much may be dropped before everything is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Abort {
    /// More than this share, as a fraction of 1,
    pub share: f64,
    /// of the requests that ended within so long,
    pub over: Duration,
    /// if these are so many at least.
    pub requests: u64,
}

/// Pods that send a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadJob {
    /// How many; `None` for one on each node, as far as the rate makes sense of it.
    pub workers: Option<usize>,
    /// How long they may take to be ready.
    pub start_limit: Duration,
    /// What each asks for, by the name of the resource.
    pub resources: BTreeMap<String, String>,
}

/// A request that targets get, as often as its weight says. What it leaves out is the load's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Path and query, in place of the target's.
    pub path: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// Headers, which go before the load's of the same name.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Vec<u8>>,
    /// Its share of the requests: this, of the sum of all requests' weights.
    pub weight: u32,
}
