//! The series behind the charts.

use std::collections::BTreeMap;

use rolldrop_record::event::ActionName;
use rolldrop_record::{Outcome, Stamp};

/// The series behind the charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartData {
    /// Late arrivals that were answered.
    pub late_ok: Vec<LateArrival>,
    /// Response times of answered requests, steady against disrupted.
    pub latency: LatencyHistograms,
    /// The same by time.
    pub heat: HeatMap,
    /// Who answered.
    pub traffic: Traffic,
    /// Requests by second of the run.
    pub seconds: Vec<Second>,
    /// The load's stages, where there are several: when each began, in seconds since the counted part of the load
    /// began, and its rates then and at its end, in requests per second.
    pub stages: Vec<(f64, f64, f64)>,
    /// Length of the counted part as measured, in seconds since the counted part of the load began.
    pub end_s: f64,
    /// When the counted part of the load began, on the coordinator's clock.
    pub origin: Stamp,
    /// The pods behind the targets, by creation.
    pub pods: Vec<PodSpan>,
    /// What was done to the cluster, in order of time.
    pub actions: Vec<Act>,
    /// For each dropped request, in the order of [`super::Analysis::lost`], the preStop sleep that it needed; `None` if
    /// no sleep helps it.
    pub sleeps: Vec<Option<SleepNeeded>>,
}

/// The preStop sleep beyond which a dropped request would not have been lost, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SleepNeeded {
    /// Whichever of the terminations that may explain it lost it, and whenever they took effect.
    pub certain_s: f64,
    /// In the best case.
    pub possible_s: f64,
}

/// The life of a pod, in seconds since the counted part of the load began. Its end is a termination's timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpan {
    /// Its name.
    pub name: String,
    /// When a watch first showed it; `None` if it was there before the watch began.
    pub created_s: Option<f64>,
    /// When its endpoint was first seen ready, or else the pod itself.
    pub ready_s: Option<f64>,
    /// Index into [`super::RunResult::terminations`], if it ended under load.
    pub termination: Option<usize>,
    /// When a container of it was down while the pod stayed: from, and until, if it came back.
    pub down_s: Vec<(f64, Option<f64>)>,
    /// When a label kept it out of its Services: from, and until, if it came back.
    pub out_s: Vec<(f64, Option<f64>)>,
}

/// Something that was done to the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// When, in seconds since the counted part of the load began.
    pub at_s: f64,
    /// What.
    pub what: Deed,
}

/// What was done.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// A call of the run, and the pod that it names.
    Action(ActionName, Option<String>),
    /// The same, but the cluster refused it or did not do it: a budget delays an eviction, for example.
    Refused(ActionName, Option<String>),
    /// The user's command was started: its words.
    CommandStarted(Vec<String>),
    /// It ended: its exit code, or `None` where a signal ended it.
    CommandEnded(Option<i32>),
}

/// A new connection to a terminating pod whose request was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateArrival {
    /// Index into [`super::RunResult::terminations`].
    pub termination: usize,
    /// Index of its target in run.json.
    pub target: Option<usize>,
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

/// Latencies of answered requests by intended send time: those whose percentiles are in `latency_ms.steady` and
/// `latency_ms.disrupted`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// Length of a column, in seconds. The first begins with the counted part of the load.
    pub step_s: f64,
    /// The columns in order of time: their buckets that hold requests, fastest first.
    pub columns: Vec<Vec<LatencyBucket>>,
}

/// Requests that were answered with success, by pod and intended send time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Length of a step, in seconds. The first begins with the counted part of the load.
    pub step_s: f64,
    /// The pods that answered any, as the run watched them.
    pub pods: Vec<PodTraffic>,
    /// Requests whose pod is not known, by step.
    pub unknown: Vec<u64>,
}

/// The requests that one pod answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodTraffic {
    /// Its name. Pods of a StatefulSet that follow each other share one.
    pub name: String,
    /// By step.
    pub answered: Vec<u64>,
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
