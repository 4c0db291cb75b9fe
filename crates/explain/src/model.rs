//! The result of the analysis: the contents of `result.json` (`schema_version` 1), and the series that the charts draw.

pub mod account;
mod aim;
mod charts;
pub mod figures;
mod findings;
mod losses;
mod outside;
mod target;
mod window;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use aim::Aim;
pub use charts::{
    Act, ChartData, Deed, HeatMap, LateArrival, LatencyBucket, LatencyHistograms, PodSpan, PodTraffic,
    Second, SleepNeeded, Traffic,
};
pub use findings::{CheckText, CheckVerdict, Figure, FindingKind, FindingText, Severity, Unit};
pub use losses::{Bounded, Candidate, GroupWindow, LossGroup, Lost, TerminationRequests, Unclear, Why};
pub use outside::OutsideCounts;
pub use target::{TargetName, TargetResult};
pub use window::{NoBound, Unbounded, Window, WindowBasis, apart};

use account::Account;
use rolldrop_record::load::Pacing;
use rolldrop_record::run_info::{ClusterInfo, Tool};
pub use rolldrop_record::stage::{Stage, StartStage};
pub use rolldrop_record::{Cause, Mode};
use rolldrop_record::{EndCause, Looks, Outcome};

/// Version of `result.json`.
pub const SCHEMA_VERSION: u32 = 1;

/// The analysis of one run.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The run's part of its requests' ids.
    pub run: String,
    /// The figures, without words: these are the last to be filled in.
    pub result: RunResult,
    /// The findings and reasons as facts.
    pub account: Account,
    /// Every dropped request.
    pub lost: Vec<Lost>,
    /// The series behind the charts.
    pub charts: ChartData,
}

/// The contents of `result.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Tool that measured.
    pub tool: Tool,
    /// Name of the scenario.
    pub scenario: String,
    /// Fingerprint of the cluster.
    pub cluster: ClusterInfo,
    /// True if the run completed and every source handed over all its rows.
    pub complete: bool,
    /// Verdict on the measurement: can it be believed?
    pub verdict: Verdict,
    /// The user's command, if one ended the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandResult>,
    /// The load as it was sent.
    pub load: LoadResult,
    /// Counts of requests.
    pub requests: RequestCounts,
    /// Latencies.
    pub latency_ms: Latencies,
    /// One entry per pod that ended.
    pub terminations: Vec<Termination>,
    /// Groups of terminations that share dropped requests, ordered by their first termination.
    pub groups: Vec<LossGroup>,
    /// The only target; `None` if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_target: Option<TargetName>,
    /// Requests of each target; empty if there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetResult>,
    /// One entry per pod that began.
    pub starts: Vec<Start>,
    /// The windows of all terminations, per consumer and mode.
    pub windows_s: Vec<WindowSummary>,
    /// Purpose of the run: was it to end pods?
    pub aim: Aim,
    /// Settings that the run supports, per mode.
    pub recommendation: Vec<Recommendation>,
    /// Predicted effect of other settings on the terminations seen.
    pub what_if: Vec<WhatIf>,
    /// Longest time in which each scheduled request failed, by intended send time: from the first of them to the next
    /// that succeeded, in seconds.
    pub longest_outage_s: f64,
    /// Findings in words, most severe first; filled in by `report`.
    pub findings: Vec<FindingText>,
    /// The checks of the gate; filled in by `gate`, empty if there are none.
    pub checks: Vec<CheckText>,
    /// Looks of a run that continued while its gate was inconclusive; absent for a run of fixed length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<Looks>,
}

/// Error of a gate, over all its looks: the chance that a bound is wrong.
pub const ALPHA: f64 = 0.05;

impl RunResult {
    /// Returns the confidence of each bound that the gate uses.
    pub fn confidence(&self) -> f64 {
        1.0 - self.looks.as_ref().map_or(ALPHA, Looks::alpha)
    }
}

rolldrop_record::named! {
    /// Evidence for the time at which a deletion took effect.
    pub enum T0Basis {
        /// The run's own call: from when it was sent to when it was answered.
        OwnCall = "own_call",
        /// Beats: the run's own writes with the next smaller and the next larger version.
        Beats = "beats",
        /// The deletionTimestamp, which has whole seconds, and the watch.
        Timestamp = "timestamp",
        /// A gap of the watch, in which the pod vanished.
        Gap = "gap",
        /// The end of its containers: it was not deleted.
        EndOfContainers = "end_of_containers",
    }
}

/// Verdict on a measurement: can it be believed? Its reasons are in words; filled in by `report`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Verdict {
    /// The measurement can be believed.
    Valid,
    /// The run ended early; the recorded part is analysed.
    Partial {
        /// Reasons why it is partial.
        why: Vec<String>,
    },
    /// The measurement cannot be believed: the generator or the machine fell behind, or a watch gap hid something.
    Invalid {
        /// Reasons, with figure and limit.
        why: Vec<String>,
    },
}

/// The user's command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandResult {
    /// Program and arguments.
    pub words: Vec<String>,
    /// Its exit code; `None` if a signal ended it, or the run ended first.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Duration, in seconds; `None` if the run ended first.
    pub duration_s: Option<f64>,
}

/// The load as it was sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Pacing of the requests. In a closed loop a slow answer delays the requests after it, so there are only service
    /// times.
    pub pacing: Pacing,
    /// Requests per second that were scheduled, in a closed loop those that were sent.
    pub rate: f64,
    /// Length of the counted part, in seconds.
    pub duration_s: f64,
    /// Requests scheduled, warm-up excluded.
    pub scheduled: u64,
    /// Number of these that were not sent.
    pub not_sent: u64,
    /// Actual minus intended send time, in microseconds.
    pub send_lag_us: SendLag,
}

impl LoadResult {
    /// Returns true if there are no intended send times.
    pub fn is_closed_loop(&self) -> bool {
        self.pacing == Pacing::ClosedLoop
    }
}

/// Percentiles of the send lag, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendLag {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// Counts of requests of the counted part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Rows of the warm-up, which are in no other count.
    pub warmup: u64,
    /// `ok + dropped + app_errors + not_sent + cancelled`.
    pub total: u64,
    /// Answered with a status of the success set.
    pub ok: u64,
    /// Lost because of infrastructure, by the policy of `analysis`.
    pub dropped: u64,
    /// Answered by the app with a status that is neither success nor a gateway's.
    pub app_errors: u64,
    /// Of the app errors, answers of 5xx while pods were ending: by such pods, or if nothing names the pod, at that
    /// time.
    pub app_errors_while_ending: u64,
    /// Not sent.
    pub not_sent: u64,
    /// Requests that were not sent, by reason: the `not_sent_reason` of the rows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_sent_by_reason: BTreeMap<String, u64>,
    /// Cut off by the end of the run.
    pub cancelled: u64,
    /// Every row of the counted part, by outcome.
    pub by_outcome: BTreeMap<Outcome, u64>,
    /// The dropped ones, by cause.
    pub by_cause: BTreeMap<Cause, u64>,
    /// Dropped inside the window of each termination that may explain them.
    pub in_window: u64,
    /// Of those in a window, begun before t0: they were in flight when their pod's deletion took effect.
    pub in_flight: u64,
    /// Of those in a window and not in flight at t0, attributed by time and outcome alone. That attribution puts them
    /// into a window, so it is no evidence for one.
    pub by_time: u64,
    /// Dropped otherwise.
    pub outside_window: u64,
    /// Dropped without a cause that fits.
    pub unattributed: u64,
    /// Dropped by one of several terminations, without evidence of which one.
    pub ambiguous: u64,
    /// Dropped because a connection-tracking entry of the generator's own earlier connections sent them to a pod that
    /// was gone. They are about the generator: no headline, limit or comparison counts them.
    pub stale_flow_own: u64,
    /// Those dropped by stale flows, by outcome.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stale_flow_own_by_outcome: BTreeMap<Outcome, u64>,
    /// Requests sent while no pod ended.
    pub outside_terminations: OutsideCounts,
    /// Dropped requests that a retrying client would have hidden.
    pub retry_hidden: RetryHidden,
    /// Requests known only as counts, by load source whose rows did not all arrive; they are in no other figure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub without_rows: BTreeMap<String, BTreeMap<Outcome, u64>>,
}

impl RequestCounts {
    /// Returns true if the accounting closes: every request is counted once, every dropped one has one cause.
    pub fn closes(&self) -> bool {
        self.total == self.ok + self.dropped + self.app_errors + self.not_sent + self.cancelled
            && self.total == self.by_outcome.values().sum::<u64>()
            && self.dropped == self.in_window + self.outside_window
            && self.dropped == self.by_cause.values().sum::<u64>()
    }

    /// Counts the dropped requests without the generator's own stale flows: the figure of headlines, limits and
    /// comparisons.
    pub fn lost(&self) -> u64 {
        self.dropped - self.stale_flow_own
    }
}

/// Dropped requests that a retrying client would have hidden from its user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryHidden {
    /// Hidden by the rule of Go's net/http: idempotent, on a reused connection, no byte of the answer received.
    pub go_net_http: u64,
    /// Hidden by a client that retries safe and idempotent methods on any transport error.
    pub safe_idempotent: u64,
}

/// Latencies in milliseconds, of requests that were answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Time from the intended send time to the end; empty for a closed loop, which has no intended send times.
    pub response: Percentiles,
    /// Time from the actual send time to the end. The actual send time is when connecting began, or on an open
    /// connection when the request was written. With the send lag it adds up to the response time.
    pub service: Percentiles,
    /// Response time (closed loop: service time) of requests scheduled away from any termination.
    pub steady: Percentiles,
    /// Response time (closed loop: service time) of requests scheduled between a t0 and the end of that pod, or its
    /// window.
    pub disrupted: Percentiles,
}

/// Percentiles in milliseconds; all zero when `n` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of values.
    pub n: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Largest.
    pub max: f64,
}

/// The end of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Termination {
    /// The pod's name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// Its node.
    pub node: Option<String>,
    /// Its mode.
    pub mode: Mode,
    /// The disruption that caused it, counted from 0; `None` if something else did.
    pub disruption: Option<u32>,
    /// Number of the repetition of that disruption, counted from 0: each is a rollout of its own, for example. Absent
    /// if the disruption is about single pods, or not this run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition: Option<u32>,
    /// Cause of its end, as far as the cluster shows it, in words.
    pub cause: Option<EndCause>,
    /// Periods of its end in which a watch saw nothing.
    pub watch_gaps: Vec<WatchGap>,
    /// t0 latest minus t0 earliest, in seconds.
    pub t0_uncertainty_s: f64,
    /// Evidence for t0.
    pub t0_basis: T0Basis,
    /// Latest t0, in seconds since the counted part of the load began.
    pub t0_s: f64,
    /// Stages, in seconds since t0 latest.
    pub timeline: BTreeMap<Stage, f64>,
    /// The preStop sleep that was set, in seconds: 0 without a hook, `None` if a hook of another kind hides it.
    pub pre_stop_seconds: Option<u64>,
    /// The grace period of its deletion, in seconds.
    pub grace_period_seconds: u64,
    /// Exit code of the main container, if it was seen. With several: the first that is not 0.
    pub exit_code: Option<i32>,
    /// The window towards each consumer.
    pub windows: Vec<Window>,
    /// Requests that concern this pod from t0 on.
    pub requests: TerminationRequests,
    /// Answers of 5xx that the app gave after t0 and that policy does not call dropped; `None` if nothing names the pod
    /// of a request.
    pub app_errors_after_t0: Option<u64>,
    /// Best estimate of the new connections that this pod dropped after t0, divided by the best estimate of the rate at
    /// which it got new connections at t0; in seconds, and never beyond its window's upper bound.
    pub dead_seconds: Option<f64>,
}

/// A period in which a watch saw nothing, in seconds since the counted part of the load began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchGap {
    /// Watched resource: `pods` or `endpointslices`.
    pub resource: String,
    /// Time of its last sign of life before the gap.
    pub from_s: f64,
    /// Time of its first sign of life after the gap.
    pub to_s: f64,
    /// True if the events of the period are not known. Otherwise they were shown late: a stage that was seen then may
    /// have been reached at any time of the period.
    pub lost: bool,
}

/// The start of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Stages, in seconds since the first.
    pub timeline: BTreeMap<StartStage, f64>,
    /// True if requests were lost to starting pods until shortly before its first answer, which then shows the time at
    /// which it began to listen. Other pods may have been sent no request for longer.
    pub was_awaited: bool,
}

/// The windows of all terminations of one mode towards one consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowSummary {
    /// The consumer.
    pub consumer: String,
    /// The mode.
    pub mode: Mode,
    /// Number of terminations.
    pub n: usize,
    /// Median of the upper bounds, in seconds.
    pub p50: Option<f64>,
    /// 90th percentile of the upper bounds.
    pub p90: Option<f64>,
    /// 99th percentile of the upper bounds.
    pub p99: Option<f64>,
    /// Largest upper bound.
    pub max: Option<f64>,
    /// Smallest and largest lower bound, of the windows that have one.
    pub lower: Option<(f64, f64)>,
    /// Number of windows that are censored.
    pub censored: usize,
}

/// Settings that a run supports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Mode of the terminations that it is for.
    pub mode: Mode,
    /// Seconds of preStop sleep; `None` when refused.
    pub pre_stop_seconds: Option<u64>,
    /// `terminationGracePeriodSeconds`; `None` when refused.
    pub termination_grace_period_seconds: Option<u64>,
    /// The confidence of the statement, such as 0.95.
    pub confidence: f64,
    /// The share of future terminations that it covers at this confidence.
    pub coverage: f64,
    /// The requested share.
    pub coverage_asked: f64,
    /// Number of terminations behind it.
    pub terminations: usize,
    /// Number of these that ended their windows separately: pods that one sync of a Service proxy removes from its
    /// rules count once. Confidence and coverage are computed from this.
    pub units: usize,
    /// The consumers that were measured.
    pub consumers: Vec<String>,
    /// Basis of the recommendation, in one sentence; filled in by `report`, like the other words.
    pub basis: String,
    /// Reasons for recommending nothing, one sentence each; empty if something is recommended.
    pub refused_because: Vec<String>,
    /// Number of independent terminations still needed for the coverage asked; 0 when enough were seen.
    pub terminations_needed: usize,
    /// The smallest whole-second sleep that would have covered every window seen: a fact, not a recommendation.
    pub covers_all_seen_seconds: Option<u64>,
    /// That sleep, if requests were lost that it would have saved: a suggestion of the run, not a proof.
    pub suggested_seconds: Option<u64>,
    /// Beginning of the suggested range, if the bounds of the windows leave more than a second open.
    pub suggested_from_seconds: Option<u64>,
    /// Measurement that would make that range narrower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed_by: Option<String>,
    /// Time that at least one window of this mode, or of a rollout, lasted.
    pub lasted_at_least_s: Option<f64>,
    /// Number of rollouts behind it, for [`Mode::Rollout`] if the run began them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollouts: Option<usize>,
}

impl Recommendation {
    /// Returns the sleep that is recommended or, without proof, suggested; never shorter than the one that is set.
    pub fn advised_seconds(&self) -> Option<u64> {
        self.pre_stop_seconds.or(self.suggested_seconds)
    }

    /// Returns, of all modes, the recommendation with the longest sleep: the advice of a run, in all its forms. `None`
    /// if a window of any mode, or one of a group, is known to have lasted longer.
    pub fn longest<'a>(
        all: &'a [Self],
        terminations: &[Termination],
        groups: &[LossGroup],
    ) -> Option<&'a Self> {
        let longest = all.iter().max_by_key(|rec| rec.advised_seconds())?;
        let advised = longest.advised_seconds()? as f64;
        lasted_at_least_s(terminations, groups).is_none_or(|lower_s| lower_s <= advised).then_some(longest)
    }
}

/// Returns the longest time that a window, of a pod or of one of a group, is known to have lasted, in seconds.
pub fn lasted_at_least_s(terminations: &[Termination], groups: &[LossGroup]) -> Option<f64> {
    let of_pods = terminations.iter().flat_map(|t| &t.windows).filter_map(|w| w.lower_s);
    let of_groups = groups.iter().flat_map(|group| &group.windows).filter_map(|w| w.lower_s);
    of_pods.chain(of_groups).reduce(f64::max)
}

/// Predicted effect of another preStop sleep on the terminations seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Seconds of preStop sleep.
    pub pre_stop_seconds: u64,
    /// Number of terminations whose whole window it covers (by upper bound).
    pub windows_covered: usize,
    /// Number of all terminations.
    pub terminations: usize,
    /// Dropped requests that it would have saved: those with causes that a sleep helps, begun before t0 + sleep, and
    /// requests on their own connections that were cut off as the pod ended, if they take no longer than others.
    pub drops_avoided: u64,
    /// Dropped requests that it would not have saved.
    pub drops_left: u64,
}
