//! The series behind the charts.

use std::collections::BTreeMap;

use rolldrop_record::Outcome;

/// The series behind the charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartData {
    /// Late arrivals that were answered.
    pub late_ok: Vec<LateArrival>,
    /// Response times of answered requests, steady against disrupted.
    pub latency: LatencyHistograms,
    /// Requests by second of the run.
    pub seconds: Vec<Second>,
    /// The load's stages, where there are several: when each began, in seconds since the counted part of the load
    /// began, and its rates then and at its end, in requests per second.
    pub stages: Vec<(f64, f64, f64)>,
    /// Length of the counted part as measured, in seconds since the counted part of the load began.
    pub end_s: f64,
}

/// A new connection to a terminating pod whose request was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateArrival {
    /// Index into [`super::RunResult::terminations`].
    pub termination: usize,
    /// When it was begun, in seconds since the counted part of the load began.
    pub begun_s: f64,
}

/// Response times of answered requests in logarithmic buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyHistograms {
    /// Away from any termination.
    pub steady: Vec<LatencyBucket>,
    /// Near one.
    pub disrupted: Vec<LatencyBucket>,
}

/// One bucket: values in `[from_ms, to_ms)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyBucket {
    /// Lower edge, in milliseconds.
    pub from_ms: f64,
    /// Upper edge, in milliseconds.
    pub to_ms: f64,
    /// Number of values.
    pub count: u64,
}

/// The requests scheduled in one second of the run, by how they ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Second {
    /// The second's beginning, since the counted part of the load began.
    pub at_s: f64,
    /// Requests answered with success.
    pub ok: u64,
    /// Dropped requests, by outcome.
    pub dropped: BTreeMap<Outcome, u64>,
    /// Other rows (app errors, not sent, cancelled).
    pub other: u64,
    /// Median response time of the answered ones, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub p99_ms: Option<f64>,
}
