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
    /// Response times of answered requests by time.
    pub heat: HeatMap,
    /// Requests by the pod that answered.
    pub traffic: Traffic,
    /// Requests by second of the run.
    pub seconds: Vec<Second>,
    /// Stages of the load, if there are several: the time at which each began, in seconds since the counted part of the
    /// load began, and its rates then and at its end, in requests per second.
    pub stages: Vec<(f64, f64, f64)>,
    /// Length of the counted part as measured, in seconds since the counted part of the load began.
    pub end_s: f64,
    /// Time at which the counted part of the load began, on the coordinator's clock.
    pub origin: Stamp,
    /// The pods behind the targets, by creation.
    pub pods: Vec<PodSpan>,
    /// Actions on the cluster, in order of time.
    pub actions: Vec<Act>,
    /// For each dropped request, in the order of [`super::Analysis::lost`], the preStop sleep that it needed; `None` if
    /// no sleep helps it.
    pub sleeps: Vec<Option<SleepNeeded>>,
}

/// The preStop sleep beyond which a dropped request would not have been lost, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SleepNeeded {
    /// Enough in any case, whichever of the possible terminations lost it, and whenever these took effect.
    pub certain_s: f64,
    /// Enough in the best case.
    pub possible_s: f64,
}

/// The life of a pod, in seconds since the counted part of the load began. Its end is a termination's timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpan {
    /// Its name.
    pub name: String,
    /// Time at which a watch first showed it; `None` if it was there before the watch began.
    pub created_s: Option<f64>,
    /// Time at which its endpoint was first seen ready, or else the pod itself.
    pub ready_s: Option<f64>,
    /// Index into [`super::RunResult::terminations`], if it ended under load.
    pub termination: Option<usize>,
    /// Periods in which one of its containers was down while the pod stayed: from, and until, if it came back.
    pub down_s: Vec<(f64, Option<f64>)>,
    /// Periods in which a label kept it out of its Services: from, and until, if it came back.
    pub out_s: Vec<(f64, Option<f64>)>,
}

/// An action on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// Time of the action, in seconds since the counted part of the load began.
    pub at_s: f64,
    /// Kind of action.
    pub what: Deed,
}

/// Kind of action on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// A call of the run, and the pod that it names.
    Action(ActionName, Option<String>),
    /// A call of the run that the cluster refused or did not do: a budget delays an eviction, for example.
    Refused(ActionName, Option<String>),
    /// The user's command was started, with these words.
    CommandStarted(Vec<String>),
    /// The user's command ended, with this exit code, or `None` if a signal ended it.
    CommandEnded(Option<i32>),
}

/// A new connection to a terminating pod whose request was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateArrival {
    /// Index into [`super::RunResult::terminations`].
    pub termination: usize,
    /// Index of its target in run.json.
    pub target: Option<usize>,
    /// Time at which it was begun, in seconds since the counted part of the load began.
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
    /// Columns in order of time: their buckets that hold requests, fastest first.
    pub columns: Vec<Vec<LatencyBucket>>,
}

/// Requests that were answered with success, by pod and intended send time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Length of a step, in seconds. The first begins with the counted part of the load.
    pub step_s: f64,
    /// Pods that answered any, as the run watched them.
    pub pods: Vec<PodTraffic>,
    /// Requests whose pod is not known, by step.
    pub unknown: Vec<u64>,
}

/// The requests that one pod answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodTraffic {
    /// Its name. Pods of a StatefulSet that follow each other share one.
    pub name: String,
    /// Number of answered requests, by step.
    pub answered: Vec<u64>,
}

/// The requests scheduled in one second of the run, by how they ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Second {
    /// Beginning of the second, in seconds since the counted part of the load began.
    pub at_s: f64,
    /// Requests answered with success.
    pub ok: u64,
    /// Dropped requests, by outcome.
    pub dropped: BTreeMap<Outcome, u64>,
    /// Other rows (app errors, not sent, cancelled).
    pub other: u64,
    /// Median response time of the answered ones, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of their response time, in milliseconds.
    pub p99_ms: Option<f64>,
}
