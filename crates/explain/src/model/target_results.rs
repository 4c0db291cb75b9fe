//! Targets of a run, and the results per target.

use serde::{Deserialize, Serialize};

use super::{Latencies, LossGroup, RequestCounts, TerminationRequests};

/// Name of a target, with its consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetName {
    /// Name of the target.
    pub name: String,
    /// Consumer that routes its requests to pods, as in `run.json`.
    pub consumer: String,
}

/// Results for one of several targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetResult {
    /// Name of the target.
    pub name: String,
    /// Consumer that routes its requests to pods, as in `run.json`.
    pub consumer: String,
    /// Requests to the target. Warm-up requests, and requests known only as counts, are listed only for the whole run.
    pub requests: RequestCounts,
    /// Latencies of these requests.
    pub latency_ms: Latencies,
    /// Longest period in which every request to the target failed, as for the whole run.
    pub longest_outage_s: f64,
    /// True if no request to the target succeeded after the last failure, as for the whole run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_failing_at_end: bool,
    /// Requests to the target by termination, in the order of [`super::RunResult::terminations`].
    pub terminations: Vec<TerminationRequests>,
    /// Terminations that share some of their losses.
    pub groups: Vec<LossGroup>,
}
