//! Result of the analysis: the contents of `result.json` (`schema_version` 1), and the series drawn in the charts.

pub mod account;
mod attributed_losses;
mod chart_series;
pub mod figure_text;
mod outside_terminations;
mod propagation_window;
mod reported_findings;
mod run_aim;
mod stream_results;
mod stream_span;
mod target_results;
mod termination_traffic;
mod watched_termination;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use attributed_losses::{
    Bounded, CandidateReason, GroupWindow, LossGroup, LostRequest, TerminationCandidate, TerminationRequests,
    Unclear,
};
pub use chart_series::{
    ChartData, ClusterAction, Deed, HeatMap, LateArrival, LatencyBucket, LatencyHistograms, PodSpan,
    PodTraffic, RunSecond, SleepNeeded, Traffic,
};
pub use outside_terminations::OutsideCounts;
pub(crate) use propagation_window::separate_ends;
pub use propagation_window::{NoBound, Unbounded, Window, WindowBasis, apart};
pub use reported_findings::{CheckText, CheckVerdict, Figure, FindingKind, FindingText, Severity, Unit};
pub use run_aim::Aim;
pub use stream_results::{
    LostData, OpenStreamCounts, PredictedCut, PredictedMean, SettingsOrigin, StreamEnds, StreamPhase,
    StreamResult, StreamTimes, TerminationStreams, UnevenStreams,
};
pub use stream_span::{MOST_MISSING, MissingShare, SpanEnd, SteadyStreams, StreamSpan, SurvivalStep};
pub use target_results::{TargetName, TargetResult};
pub use termination_traffic::{
    BackgroundSpread, LogGap, SIDECAR_ENDED, SeenConsumers, TerminationTraffic, TrafficWitness,
};
pub use watched_termination::{ContainerEnd, GraceUse, WatchedMode, WatchedTermination};

use account::Account;
use rolldrop_record::expect::LatencyFigure;
use rolldrop_record::load::Pacing;
use rolldrop_record::run_info::{ClusterInfo, Tool};
pub use rolldrop_record::stage::{Stage, StartStage};
use rolldrop_record::{ALPHA, EndCause, Looks, Outcome};
pub use rolldrop_record::{Cause, Mode};

/// Version of `result.json`.
pub const SCHEMA_VERSION: u32 = 1;

/// Analysis of one run.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Part of the request ids that identifies the run.
    pub run: String,
    /// Figures of the run; their wording is filled in last.
    pub result: RunResult,
    /// Findings and reasons, as facts.
    pub account: Account,
    /// All dropped requests.
    pub lost: Vec<LostRequest>,
    /// Series drawn in the charts.
    pub charts: ChartData,
    /// Streams of the steady part; `None` if the load sent none.
    pub steady: Option<SteadyStreams>,
}

impl Analysis {
    /// Returns the dropped requests that the headline counts: all except the generator's own stale flows.
    pub fn counted_losses(&self) -> impl Iterator<Item = &LostRequest> + Clone {
        self.lost.iter().filter(|lost| lost.cause != Cause::StaleFlow)
    }
}

/// Contents of `result.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Tool that made the measurement.
    pub tool: Tool,
    /// Name of the scenario.
    pub scenario: String,
    /// Fingerprint of the cluster.
    pub cluster: ClusterInfo,
    /// True if the run completed and every source handed over all its rows.
    pub complete: bool,
    /// Verdict on whether the measurement can be trusted.
    pub verdict: Verdict,
    /// Result of the user's command, if one terminated the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandResult>,
    /// Load as actually sent.
    pub load: LoadResult,
    /// Request counts.
    pub requests: RequestCounts,
    /// Latencies.
    pub latency_ms: Latencies,
    /// Streams; absent if the load sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamResult>,
    /// One entry per terminated pod.
    pub terminations: Vec<Termination>,
    /// Groups of terminations that share dropped requests, ordered by their first termination.
    pub groups: Vec<LossGroup>,
    /// Name of the target if there is only one; `None` if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_target: Option<TargetName>,
    /// Results per target; empty if there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetResult>,
    /// One entry per started pod.
    pub starts: Vec<Start>,
    /// Windows of all terminations, summarised per consumer and mode.
    pub windows_s: Vec<WindowSummary>,
    /// Purpose of the run, in particular whether it was meant to terminate pods.
    pub aim: Aim,
    /// Settings supported by the run's evidence, per mode.
    pub recommendation: Vec<Recommendation>,
    /// Predicted effect of other settings on the terminations seen.
    pub what_if: Vec<WhatIf>,
    /// Longest period in which every scheduled request failed, in seconds: from the intended send time of the first
    /// failure to that of the next success.
    pub longest_outage_s: f64,
    /// True if no request succeeded after the last failure. That outage may have lasted longer than the load, so
    /// `longest_outage_s` is a lower bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_failing_at_end: bool,
    /// Findings in words, most severe first; filled in by `report`.
    pub findings: Vec<FindingText>,
    /// Checks of the gate; filled in by `gate`, empty if there are none.
    pub checks: Vec<CheckText>,
    /// Looks at a run that continued while its gate was inconclusive; absent for a run of fixed length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<Looks>,
}

impl RunResult {
    /// Returns the confidence of each bound used by the gate.
    pub fn confidence(&self) -> f64 {
        1.0 - self.looks.as_ref().map_or(ALPHA, Looks::alpha)
    }
}

rolldrop_record::named! {
    /// Evidence for the time at which a deletion took effect.
    pub enum T0Basis {
        /// The run's own delete call, from sending it to its response.
        OwnCall = "own_call",
        /// Beats: own writes with the next lower and the next higher version.
        Beats = "beats",
        /// The deletionTimestamp, which is in whole seconds, and the watch.
        Timestamp = "timestamp",
        /// A gap in the watch, during which the pod vanished.
        Gap = "gap",
        /// Termination of the pod's containers, if the pod was not deleted.
        EndOfContainers = "end_of_containers",
    }
}

impl T0Basis {
    /// Returns true if the pod's deletion itself is dated.
    pub(crate) fn is_deletion(self) -> bool {
        matches!(self, Self::OwnCall | Self::Beats | Self::Timestamp)
    }
}

/// Verdict on whether a measurement can be trusted. `report` fills in its reasons, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Verdict {
    /// The measurement can be trusted.
    Valid,
    /// The run ended early; the recorded part is analysed.
    Partial {
        /// Reasons why the run is partial.
        why: Vec<String>,
    },
    /// The measurement cannot be trusted: the generator or the machine fell behind, or a watch gap hid something.
    Invalid {
        /// Reasons, with the measured figure and its limit.
        why: Vec<String>,
    },
}

/// Result of the user's command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandResult {
    /// Program and arguments.
    pub words: Vec<String>,
    /// Exit code; `None` if a signal killed the command, or the run finished first.
    pub code: Option<i32>,
    /// Signal that killed the command.
    pub signal: Option<i32>,
    /// Duration in seconds; `None` if the run finished first.
    pub duration_s: Option<f64>,
}

/// Load as actually sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Pacing of the requests. In a closed loop a slow response delays the requests after it, so there are only service
    /// times.
    pub pacing: Pacing,
    /// Scheduled requests per second; in a closed loop, sent requests per second.
    pub rate: f64,
    /// Length of the counted part, in seconds.
    pub duration_s: f64,
    /// Number of scheduled requests, excluding the warm-up.
    pub scheduled: u64,
    /// Number of scheduled requests that were not sent.
    pub not_sent: u64,
    /// Actual send time minus intended send time, in microseconds.
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

/// Request counts for the counted part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Number of warm-up rows, which no other count includes.
    pub warmup: u64,
    /// `ok + dropped + app_errors + not_sent + cancelled`.
    pub total: u64,
    /// Answered with a success status.
    pub ok: u64,
    /// Lost because of infrastructure, according to the drop policy.
    pub dropped: u64,
    /// Answered by the app with a status that is neither a success nor a gateway error.
    pub app_errors: u64,
    /// App errors that were 5xx responses from terminating pods, or, if nothing identifies the pod, 5xx responses while
    /// pods were terminating.
    pub app_errors_while_ending: u64,
    /// Not sent.
    pub not_sent: u64,
    /// Unsent requests by reason, as in the rows' `not_sent_reason`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_sent_by_reason: BTreeMap<String, u64>,
    /// Cut off when the run ended.
    pub cancelled: u64,
    /// All rows in the counted part, by outcome.
    pub by_outcome: BTreeMap<Outcome, u64>,
    /// Dropped requests by cause.
    pub by_cause: BTreeMap<Cause, u64>,
    /// Dropped inside the window of every termination that may explain them.
    pub in_window: u64,
    /// Dropped in a window and begun before t0: in flight when their pod's deletion took effect.
    pub in_flight: u64,
    /// Dropped in a window, not in flight at t0, and attributed by time and outcome alone. The attribution itself
    /// places them in a window, so they are not evidence for one.
    pub by_time: u64,
    /// All other dropped requests.
    pub outside_window: u64,
    /// Dropped without a fitting cause.
    pub unattributed: u64,
    /// Dropped by one of several terminations, without evidence for which.
    pub ambiguous: u64,
    /// Dropped because a connection-tracking entry left by the generator's own earlier connections routed them to a pod
    /// that was gone. They concern only the generator, so no headline, limit or comparison counts them.
    pub stale_flow_own: u64,
    /// Requests dropped by the generator's own stale flows, by outcome.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stale_flow_own_by_outcome: BTreeMap<Outcome, u64>,
    /// Requests sent while no pod was terminating.
    pub outside_terminations: OutsideCounts,
    /// Dropped requests that a client with retries would have hidden.
    pub retry_hidden: RetryHidden,
    /// Requests known only as counts, for load sources whose rows did not all arrive; they are in no other figure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub without_rows: BTreeMap<String, BTreeMap<Outcome, u64>>,
}

impl RequestCounts {
    /// Returns true if the accounting balances: every request is counted once, and every dropped one has one cause.
    pub fn closes(&self) -> bool {
        self.total == self.ok + self.dropped + self.app_errors + self.not_sent + self.cancelled
            && self.total == self.by_outcome.values().sum::<u64>()
            && self.dropped == self.in_window + self.outside_window
            && self.dropped == self.by_cause.values().sum::<u64>()
    }

    /// Returns the number of dropped requests excluding the generator's own stale flows, as used in headlines, limits
    /// and comparisons.
    pub fn lost(&self) -> u64 {
        self.dropped - self.stale_flow_own
    }
}

/// Dropped requests that a client with retries would have hidden from its user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryHidden {
    /// Hidden by the rule of Go's net/http: idempotent, on a reused connection, no response byte received.
    pub go_net_http: u64,
    /// Hidden by a client that retries safe and idempotent methods on any transport error.
    pub safe_idempotent: u64,
}

/// Latencies of answered requests, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Time from the intended send time to completion; empty for a closed loop, which has no intended send times.
    pub response: Percentiles,
    /// Time from the actual send time to completion. The actual send time is the start of connecting, or on an open
    /// connection the time the request was written. Service time plus send lag is the response time.
    pub service: Percentiles,
    /// Response time (closed loop: service time) of requests scheduled away from any termination.
    pub steady: Percentiles,
    /// Response time (closed loop: service time) of requests scheduled between a pod's t0 and the time the pod was gone
    /// or its window had ended.
    pub disrupted: Percentiles,
}

/// Percentiles in milliseconds; all zero if `n` is zero.
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

impl Percentiles {
    /// Returns a figure in milliseconds; `None` if there are fewer than [`Self::fewest`] values.
    pub fn known(&self, figure: LatencyFigure) -> Option<f64> {
        let value = match figure {
            LatencyFigure::Mean => self.mean,
            LatencyFigure::P50 => self.p50,
            LatencyFigure::P90 => self.p90,
            LatencyFigure::P95 => self.p95,
            LatencyFigure::P99 => self.p99,
            LatencyFigure::P99_9 => self.p99_9,
        };
        (self.n >= Self::fewest(figure)).then_some(value)
    }

    /// Returns the number of values that a figure requires.
    pub const fn fewest(figure: LatencyFigure) -> u64 {
        match figure {
            LatencyFigure::Mean => 1,
            LatencyFigure::P50 => 2,
            LatencyFigure::P90 => 10,
            LatencyFigure::P95 => 20,
            LatencyFigure::P99 => 100,
            LatencyFigure::P99_9 => 1000,
        }
    }
}

/// Termination of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Termination {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Node that the pod ran on.
    pub node: Option<String>,
    /// Mode of the termination.
    pub mode: Mode,
    /// Index of the disruption that caused the termination, counted from 0; `None` if something else caused it.
    pub disruption: Option<u32>,
    /// Index of that disruption's repetition, counted from 0; for example, each repetition is a separate rollout.
    /// Absent if the disruption affects single pods, or was not made by this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition: Option<u32>,
    /// Cause of the termination in words, as far as the cluster shows it.
    pub cause: Option<EndCause>,
    /// Periods during the termination in which a watch saw nothing.
    pub watch_gaps: Vec<WatchGap>,
    /// Latest minus earliest possible t0, in seconds.
    pub t0_uncertainty_s: f64,
    /// Evidence for t0.
    pub t0_basis: T0Basis,
    /// Latest t0, in seconds since the counted part of the load began.
    pub t0_s: f64,
    /// Stages of the termination, in seconds since t0 latest.
    pub timeline: BTreeMap<Stage, f64>,
    /// Configured preStop sleep in seconds: 0 without a hook, `None` if a hook of another kind hides it.
    pub pre_stop_seconds: Option<u64>,
    /// Grace period of the deletion, in seconds.
    pub grace_period_seconds: u64,
    /// Exit code of the main container, if seen. With several containers, 137 if SIGKILL ended one of them, otherwise the
    /// first code that is not 0.
    pub exit_code: Option<i32>,
    /// True if SIGKILL terminated a container when the grace period expired; `None` if this is unknown.
    pub killed_at_grace_end: Option<bool>,
    /// Containers whose preStop hooks failed, according to Events; `None` if Events may have been missed.
    pub failed_hooks: Option<BTreeSet<String>>,
    /// Time from the earliest SIGTERM until the app and the proxy exited, in seconds; `None` if not seen, or cut short
    /// by SIGKILL.
    pub stopping_seconds: Option<f64>,
    /// Window for each consumer.
    pub windows: Vec<Window>,
    /// Requests that concern this pod from t0 on.
    pub requests: TerminationRequests,
    /// Number of 5xx responses from the app after t0 that the drop policy does not count as dropped; `None` if nothing
    /// identifies the requests' pods.
    pub app_errors_after_t0: Option<u64>,
    /// Streams of the pod from t0 on; absent if the load sent none, or nothing identifies their pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<TerminationStreams>,
    /// Estimated number of new connections that this pod dropped after t0, divided by its estimated rate of new
    /// connections at t0; in seconds, and never above the window's upper bound.
    pub dead_seconds: Option<f64>,
}

impl Termination {
    /// Returns the time from SIGTERM to SIGKILL, in whole seconds, after a preStop hook that slept as long as
    /// configured. The kubelet gives an app at least 2 s, however long the hook took (`minimumGracePeriodInSeconds` in
    /// pkg/kubelet/kuberuntime).
    pub fn shutdown_seconds(&self) -> u64 {
        self.grace_period_seconds.saturating_sub(self.pre_stop_seconds.unwrap_or(0)).max(2)
    }

    /// Returns true if the pod began to end with its deletion. Until the deletion, or the end of a pod that is not
    /// deleted, as on a node that shuts down, its endpoint stays ready, and no preStop sleep helps.
    pub fn was_deleted(&self) -> bool {
        self.t0_basis != T0Basis::EndOfContainers && self.mode != Mode::NodeShutdown
    }

    /// Returns true if a sleep of this many seconds certainly outlasts all windows of the pod; `None` if it has none,
    /// or if no sleep matters.
    pub fn is_covered_by(&self, sleep_s: u64) -> Option<bool> {
        let mut windows = self.windows.iter().filter(|w| w.is_one() && self.was_deleted()).peekable();
        windows.peek()?;
        Some(windows.all(|w| w.upper_s.is_some_and(|upper_s| upper_s <= sleep_s as f64)))
    }
}

/// Period in which a watch saw nothing, in seconds since the counted part of the load began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchGap {
    /// Watched resource: `pods` or `endpointslices`.
    pub resource: String,
    /// Time of the watch's last sign of life before the gap.
    pub from_s: f64,
    /// Time of the watch's first sign of life after the gap.
    pub to_s: f64,
    /// True if events in the period were lost. Otherwise they were delivered late: a stage seen then may have been
    /// reached at any time during the period.
    pub lost: bool,
}

/// Start of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Stages of the start, in seconds since the first stage.
    pub timeline: BTreeMap<StartStage, f64>,
    /// True if requests were lost to starting pods until shortly before this pod's first response, which then shows the
    /// time the pod began to listen. Other pods may have received no requests for a while after they began to listen.
    pub was_awaited: bool,
}

/// Windows of all terminations of one mode, for one consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowSummary {
    /// The consumer.
    pub consumer: String,
    /// The mode.
    pub mode: Mode,
    /// Number of terminations.
    pub n: usize,
    /// Median of the upper bounds, in seconds. A window without a bound counts as longer than all others, so this and
    /// the three figures below are `None` where they depend on one.
    pub p50: Option<f64>,
    /// 90th percentile of the upper bounds.
    pub p90: Option<f64>,
    /// 99th percentile of the upper bounds.
    pub p99: Option<f64>,
    /// Largest upper bound.
    pub max: Option<f64>,
    /// Smallest and largest lower bound among the windows that have one.
    pub lower: Option<(f64, f64)>,
    /// Number of censored windows.
    pub censored: usize,
}

/// Settings supported by a run's evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Termination mode that the recommendation applies to.
    pub mode: Mode,
    /// Seconds of preStop sleep; `None` when refused.
    pub pre_stop_seconds: Option<u64>,
    /// `terminationGracePeriodSeconds`; for a suggestion, only if the pods' own is too short. `None` when refused.
    pub termination_grace_period_seconds: Option<u64>,
    /// Confidence of the statement, such as 0.95.
    pub confidence: f64,
    /// Share of future terminations covered at this confidence.
    pub coverage: f64,
    /// Requested coverage.
    pub coverage_asked: f64,
    /// Number of terminations behind the recommendation.
    pub terminations: usize,
    /// Number of these terminations whose windows ended separately; pods that a Service proxy removes from its rules in
    /// one sync count once. Confidence and coverage are computed from this number.
    pub units: usize,
    /// The consumers that were measured.
    pub consumers: Vec<String>,
    /// Basis of the recommendation in one sentence; filled in by `report`, like the other texts.
    pub basis: String,
    /// Reasons for not recommending anything, one sentence each; empty if there is a recommendation.
    pub refused_because: Vec<String>,
    /// Number of independent terminations still needed for the requested coverage; 0 when enough were seen.
    pub terminations_needed: usize,
    /// Smallest whole-second sleep that would have covered every observed window of this mode: a fact, not a
    /// recommendation.
    pub covers_all_seen_seconds: Option<u64>,
    /// That sleep, if it would have saved lost requests: a suggestion, not a proof.
    pub suggested_seconds: Option<u64>,
    /// Lower end of the suggested range, if the window bounds leave more than a second open, and if it is below the
    /// suggested sleep. No window of the run, of any mode, is known to have lasted longer than this.
    pub suggested_from_seconds: Option<u64>,
    /// Measurement that would narrow that range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed_by: Option<String>,
    /// Minimum duration, in seconds, of at least one window of this mode or of a rollout.
    pub lasted_at_least_s: Option<f64>,
    /// Number of rollouts behind the recommendation, for [`Mode::Rollout`] if the run started them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollouts: Option<usize>,
}

impl Recommendation {
    /// Returns the recommended or, without proof, the suggested sleep; never shorter than the current one.
    pub fn advised_seconds(&self) -> Option<u64> {
        self.pre_stop_seconds.or(self.suggested_seconds)
    }

    /// Counts the terminations, over all modes, whose losses are independent: pods that left the rules in one step lose
    /// requests together, and count once. Where the windows do not separate the pods, deletions one at a time count
    /// each, and so do rollouts.
    pub fn independent_ends(all: &[Self]) -> usize {
        let of = |rec: &Self| match rec.mode {
            Mode::Isolated => rec.terminations,
            _ => rec.units.max(rec.rollouts.unwrap_or(0)),
        };
        all.iter().map(of).sum()
    }

    /// Returns the recommendation with the longest sleep among all modes, which is the run's advice in all forms of the
    /// report. Returns `None` if a window of any mode or group is known to have lasted longer.
    pub fn longest<'a>(
        all: &'a [Self],
        terminations: &[Termination],
        groups: &[LossGroup],
    ) -> Option<&'a Self> {
        let longest = all.iter().max_by_key(|rec| rec.advised_seconds())?;
        let advised = longest.advised_seconds()? as f64;
        let lower_s = lasted_at_least_s(terminations, groups, |_| true);
        lower_s.is_none_or(|lower_s| lower_s <= advised).then_some(longest)
    }
}

/// Returns the longest known minimum duration, in seconds, of a window of a deleted pod whose termination counts, or of a
/// group that contains one.
pub fn lasted_at_least_s(
    terminations: &[Termination],
    groups: &[LossGroup],
    counts: impl Fn(&Termination) -> bool,
) -> Option<f64> {
    let counts = |t: &Termination| t.was_deleted() && counts(t);
    let of_pods = terminations.iter().filter(|t| counts(t)).flat_map(|t| &t.windows);
    let of_groups = groups
        .iter()
        .filter(|group| group.terminations.iter().any(|e| counts(&terminations[*e])))
        .flat_map(|group| &group.windows);
    of_pods.filter_map(|w| w.lower_s).chain(of_groups.filter_map(|w| w.lower_s)).reduce(f64::max)
}

/// Returns the shortest configured preStop sleep, in seconds, of the pods that lost requests which a longer sleep would
/// have saved; if there are none, the longest of all pods. Everything that compares another sleep with the current one
/// starts from it.
pub fn shortest_set_sleep_s(terminations: &[Termination], lost: impl Iterator<Item = usize>) -> u64 {
    let longest = || terminations.iter().filter_map(|t| t.pre_stop_seconds).max();
    lost.map(|e| terminations[e].pre_stop_seconds.unwrap_or(0)).min().or_else(longest).unwrap_or(0)
}

/// Predicted effect of another preStop sleep on the terminations seen, for pods whose sleep is shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Seconds of preStop sleep.
    pub pre_stop_seconds: u64,
    /// Number of terminations whose whole window the sleep covers (by upper bound).
    pub windows_covered: usize,
    /// Number of terminations with a window.
    pub terminations: usize,
    /// Dropped requests that the sleep would have saved: those with a cause that a sleep prevents, begun before t0 +
    /// sleep, and those on connections of their own that were cut off as the pod exited, if they take no longer than
    /// others.
    pub drops_avoided: u64,
    /// Dropped requests that the sleep would not have saved. Like the headline, this does not count the generator's own
    /// stale flows.
    pub drops_left: u64,
}
