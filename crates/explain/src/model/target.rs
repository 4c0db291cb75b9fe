//! The targets of a run, and the results for each of several.

use serde::{Deserialize, Serialize};

use super::{Latencies, LossGroup, RequestCounts, TerminationRequests};

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetName {
    /// Name of the target.
    pub name: String,
    /// Consumer that routes its requests to pods, as in `run.json`.
    pub consumer: String,
}

/// Results of the requests to one of several targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetResult {
    /// Name of the target.
    pub name: String,
    /// Consumer that routes its requests to pods, as in `run.json`.
    pub consumer: String,
    /// Its requests. Those of the warm-up, and those that are known only as counts, are with the whole run.
    pub requests: RequestCounts,
    /// Their latencies.
    pub latency_ms: Latencies,
    /// Longest time in which each of them failed, as for the whole run.
    pub longest_outage_s: f64,
    /// Its requests that each termination took, in the order of [`super::RunResult::terminations`].
    pub terminations: Vec<TerminationRequests>,
    /// Terminations that share some of their losses.
    pub groups: Vec<LossGroup>,
}
