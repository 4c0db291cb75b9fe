//! Series drawn in the charts.

use std::collections::BTreeMap;

use super::OpenStreamCounts;
use rolldrop_record::event::ActionName;
use rolldrop_record::{Outcome, Stamp};

/// Series drawn in the charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartData {
    /// Answered late arrivals.
    pub late_ok: Vec<LateArrival>,
    /// Response times of answered requests, steady and disrupted.
    pub latency: LatencyHistograms,
    /// Response times of answered requests by time.
    pub heat: HeatMap,
    /// Requests by answering pod.
    pub traffic: Traffic,
    /// Requests by second of the run.
    pub seconds: Vec<RunSecond>,
    /// Stages of the load, if there are several: start time in seconds since the counted part of the load began, then
    /// initial and final rate in requests per second.
    pub stages: Vec<(f64, f64, f64)>,
    /// Measured end of the counted part, in seconds since the counted part of the load began.
    pub end_s: f64,
    /// Time the counted part of the load began, on the coordinator's clock.
    pub origin: Stamp,
    /// Pods behind the targets, in order of creation.
    pub pods: Vec<PodSpan>,
    /// Actions on the cluster, in chronological order.
    pub actions: Vec<ClusterAction>,
    /// Streams open over time; empty if the load sent none.
    pub open_streams: Vec<OpenStreamCounts>,
    /// PreStop sleep that each dropped request needed, in the order of [`super::Analysis::lost`]; `None` if no sleep
    /// would have saved it.
    pub sleeps: Vec<Option<SleepNeeded>>,
}

/// PreStop sleep, in seconds, beyond which a dropped request would not have been lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SleepNeeded {
    /// Enough in any case, whichever candidate termination lost the request, and whenever the deletions took effect.
    pub certain_s: f64,
    /// Enough in the best case.
    pub possible_s: f64,
}

/// Life of a pod, in seconds since the counted part of the load began. Its end is in the termination's timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpan {
    /// Name of the pod.
    pub name: String,
    /// Time a watch first showed the pod; `None` if it existed before the watch began.
    pub created_s: Option<f64>,
    /// Time the pod's endpoint, or else the pod itself, was first seen ready.
    pub ready_s: Option<f64>,
    /// Index into [`super::RunResult::terminations`], if the pod was terminated under load.
    pub termination: Option<usize>,
    /// Periods in which one of the pod's containers was down while the pod was not terminating: the start of each, and
    /// its end if the container came back.
    pub down_s: Vec<(f64, Option<f64>)>,
    /// Periods in which a label kept the pod out of its Services: the start of each, and its end if the pod came back.
    pub out_s: Vec<(f64, Option<f64>)>,
}

/// Action on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterAction {
    /// Time of the action, in seconds since the counted part of the load began.
    pub at_s: f64,
    /// Kind of action.
    pub what: Deed,
}

/// Kind of action on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// A call made by the run, and the pod that it names.
    Action(ActionName, Option<String>),
    /// A call by the run that the cluster refused or did not carry out: for example, an eviction delayed by a
    /// disruption budget.
    Refused(ActionName, Option<String>),
    /// The user's command was started, with these words.
    CommandStarted(Vec<String>),
    /// The user's command exited with this code, or `None` if a signal killed it.
    CommandEnded(Option<i32>),
}

/// New connection to a terminating pod, with an answered request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateArrival {
    /// Index into [`super::RunResult::terminations`].
    pub termination: usize,
    /// Index of the request's target in run.json.
    pub target: Option<usize>,
    /// Time the request began, in seconds since the counted part of the load began.
    pub begun_s: f64,
}

/// Response times of answered requests in logarithmic buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyHistograms {
    /// Values away from any termination.
    pub steady: Vec<LatencyBucket>,
    /// Values near a termination.
    pub disrupted: Vec<LatencyBucket>,
}

/// Bucket for values in `[from_ms, to_ms)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyBucket {
    /// Lower edge, in milliseconds.
    pub from_ms: f64,
    /// Upper edge, in milliseconds.
    pub to_ms: f64,
    /// Number of values.
    pub count: u64,
}

/// Latencies of answered requests by intended send time; their percentiles are in `latency_ms.steady` and
/// `latency_ms.disrupted`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// Length of a column, in seconds. The first column begins with the counted part of the load.
    pub step_s: f64,
    /// Columns in chronological order, each with its non-empty buckets, fastest first.
    pub columns: Vec<Vec<LatencyBucket>>,
}

/// Successful requests by pod and intended send time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Length of a step, in seconds. The first step begins with the counted part of the load.
    pub step_s: f64,
    /// Watched pods that answered at least one request.
    pub pods: Vec<PodTraffic>,
    /// Requests with an unknown pod, by step.
    pub unknown: Vec<u64>,
}

/// Requests answered by one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodTraffic {
    /// Name of the pod. Successive pods of a StatefulSet share a name.
    pub name: String,
    /// Number of answered requests, by step.
    pub answered: Vec<u64>,
}

/// Requests scheduled in one second of the run, by outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSecond {
    /// Start of the second, in seconds since the counted part of the load began.
    pub at_s: f64,
    /// Successful requests.
    pub ok: u64,
    /// Dropped requests, by outcome.
    pub dropped: BTreeMap<Outcome, u64>,
    /// Other rows (app errors, not sent, cancelled).
    pub other: u64,
    /// Median response time of the answered requests, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the answered requests' response time, in milliseconds.
    pub p99_ms: Option<f64>,
}
