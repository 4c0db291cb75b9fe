//! Conclusions from the runs of `rolldrop tune`: a preStop sleep, a grace period, their price, and the proof that they
//! suffice.
//!
//! The first run shows the losses with the current settings. If it is known which pod answered each request, the pods
//! of the second run sleep long enough for every window to be seen to its end. The chosen sleep is the longest of these
//! windows, rounded up to whole seconds. It has no safety margin, because the next run proves it. The claimed coverage
//! follows Wilks (1941): the largest of n windows covers a certain share of all windows at a certain confidence
//! (`stats`). If it is not known which pod answered each request, the search starts from the window bounds of the first
//! run (module `first_sleep`).

mod alike;
mod first_sleep;
mod grace_choice;
mod price;
mod proof;
mod proof_parts;
mod search;
mod starts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use alike::Alike;
pub use first_sleep::without_names;
pub use grace_choice::{ChosenStreams, EndedStreams, GraceChoice, NoChoice};
pub use price::{Price, RolloutShape, Strategy};
pub use proof::{CoverageUnit, LongestWindows, Proof, Units, Unproven, proof, refuted};
pub use proof_parts::parts;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{
    LostRequest, Mode, Recommendation, RunResult, Stage, Start, StartStage, Termination, Verdict,
};
use rolldrop_record::run_info::ClusterInfo;
use rolldrop_record::{Cause, Outcome as Ended, Policy, run_info::Tool};
pub use search::{MOST_PROOFS, Next, SleepSearch};
pub use starts::{LostAtStart, StartSetting, lost_at_starts, with_starts};

/// Version of `tune.json`.
pub const SCHEMA_VERSION: u32 = 1;

/// Settings that govern how a workload's pods terminate and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSettings {
    /// Duration of the preStop sleep, in seconds; 0 for none.
    pub pre_stop_seconds: u64,
    /// `terminationGracePeriodSeconds`.
    pub termination_grace_period_seconds: u64,
    /// `minReadySeconds`.
    pub min_ready_seconds: u64,
    /// `initialDelaySeconds` of the readiness probe; `None` without a probe.
    pub readiness_delay_seconds: Option<u64>,
}

/// Contents of `tune.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Tool that made the measurements.
    pub tool: Tool,
    /// Workload, such as `deployment/web`.
    pub workload: String,
    /// The workload's containers that get the preStop sleep.
    pub containers: Vec<String>,
    /// Cluster in which the tuning ran.
    pub cluster: ClusterInfo,
    /// Requested coverage: the share of future terminations for which the chosen sleep should suffice.
    pub coverage_asked: f64,
    /// Confidence of that coverage.
    pub confidence: f64,
    /// Settings in force before the tuning.
    pub before: PodSettings,
    /// Runs, in the order in which they were made.
    pub steps: Vec<TuningStep>,
    /// Longest windows seen in any run.
    pub seen: LongestWindows,
    /// Requests lost with the original settings, by cause; `None` if no run shows them, because it was invalid or was
    /// not made.
    pub lost_before: Option<Vec<LostTo>>,
    /// Chosen settings, if any follow from the windows.
    pub chosen: Option<ChosenSettings>,
    /// Fields of each container with the chosen settings, as the proof applied them, a line of YAML each: the whole
    /// preStop hook, and the readiness probe's delay if it changes.
    #[serde(default)]
    pub container_fields: BTreeMap<String, Vec<String>>,
    /// Price of the chosen settings.
    pub price: Option<Price>,
    /// Effects of platform limits on the chosen settings, one sentence each.
    pub limits: Vec<String>,
    /// Outcome of the tuning.
    pub outcome: TuningOutcome,
}

/// Outcome of a tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TuningOutcome {
    /// With the chosen settings, the required number of terminations lost nothing that a sleep could have saved.
    Proven,
    /// The current settings are already right.
    AlreadyRight,
    /// A sleep could have saved none of the lost requests.
    NotForASleep,
    /// The tuning found no settings that demonstrably suffice.
    NotShown {
        /// Reasons, one sentence each.
        why: Vec<String>,
    },
    /// The settings chosen by an earlier tuning lose requests that a sleep could save.
    NoLonger {
        /// Reasons, one sentence each.
        why: Vec<String>,
    },
    /// The tuning has not finished, or was interrupted. The result contains the measurements so far.
    Partial {
        /// Reasons, one sentence each.
        why: Vec<String>,
    },
}

impl TuningOutcome {
    /// Returns true if the runs demonstrate that the chosen settings suffice.
    pub const fn is_shown(&self) -> bool {
        matches!(self, Self::Proven | Self::AlreadyRight)
    }
}

/// Purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Shows the losses with the current settings.
    Before,
    /// Shows every window to its end.
    Windows,
    /// Shows how long streams last, without disruptions.
    Lengths,
    /// Proves that the chosen settings suffice.
    Proof,
}

impl Purpose {
    /// Returns the purpose's name, as used in the names of run directories.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Windows => "windows",
            Self::Lengths => "lengths",
            Self::Proof => "proof",
        }
    }
}

/// One run of a tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningStep {
    /// Purpose of the run.
    pub purpose: Purpose,
    /// Path of the run directory, relative to the tuning's directory.
    pub run: String,
    /// Settings that the pods had during the run.
    pub settings: PodSettings,
    /// Verdict on the measurement.
    pub verdict: Verdict,
    /// Modes of the terminations in the run.
    pub modes: BTreeSet<Mode>,
    /// Number of pods that ended.
    pub terminations: usize,
    /// Number of rollouts in which pods ended.
    pub rollouts: usize,
    /// Unit in which the coverage is counted.
    pub unit: CoverageUnit,
    /// Number of such units.
    pub units: usize,
    /// Confidence of `coverage`.
    pub confidence: f64,
    /// Share of future units that this number of units covers, at that confidence.
    pub coverage: f64,
    /// Number of lost requests.
    pub lost: u64,
    /// Number of requests lost to causes that a sleep helps against.
    pub lost_for_a_sleep: u64,
    /// Lost requests that no sleep could have saved, listed individually; only for a proof.
    pub lost_otherwise: Vec<LostOtherwise>,
    /// Total number of requests.
    pub requests: u64,
    /// Streams of the pods that ended; `None` if the load sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<EndedStreams>,
}

impl TuningStep {
    /// Summarises a run as a step.
    pub fn of(
        purpose: Purpose,
        run: &str,
        settings: PodSettings,
        (result, lost): (&RunResult, &[LostRequest]),
    ) -> Self {
        let lost_otherwise =
            if purpose == Purpose::Proof { lost_otherwise(result, lost) } else { Vec::new() };
        let (units, confidence) = (Units::of(result), confidence(result));
        Self {
            purpose,
            run: run.to_owned(),
            settings,
            verdict: result.verdict.clone(),
            modes: result.terminations.iter().map(|t| t.mode).collect(),
            terminations: result.terminations.len(),
            rollouts: units.rollouts,
            unit: units.unit,
            units: units.number,
            confidence,
            coverage: stats::wilks_coverage(units.number, confidence),
            lost: result.requests.lost(),
            lost_for_a_sleep: for_a_sleep(result),
            lost_otherwise,
            requests: result.requests.total,
            streams: EndedStreams::of(result),
        }
    }
}

impl TuningStep {
    /// Counts the requests that were lost for an unknown reason after their pod's sleep was over. A longer sleep might
    /// save them.
    pub fn unclear(&self) -> u64 {
        let slept_s = self.settings.pre_stop_seconds as f64;
        let is_unclear = |lost: &&LostOtherwise| {
            lost.cause == Cause::Unattributed
                && lost.after_deletion_seconds.is_some_and(|after| after >= slept_s)
        };
        self.lost_otherwise.iter().filter(is_unclear).count() as u64
    }
}

/// A request lost during a proof to a cause that no sleep helps against, and what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostOtherwise {
    /// Number of the request in its load source, as in `lost.csv`.
    pub seq: u64,
    /// Name of the load source.
    pub source: String,
    /// Time the request began, in seconds since the counted part of the load began.
    pub begun_seconds: f64,
    /// Cause of the loss.
    pub cause: Cause,
    /// Outcome of the request.
    pub outcome: Ended,
    /// Pod that most likely lost the request; `None` if no terminating pod accounts for it.
    pub pod: Option<String>,
    /// Time from the deletion of that pod to the start of the request, in seconds; negative if the request began first.
    pub after_deletion_seconds: Option<f64>,
}

/// Returns a run's requests that were lost to causes that no sleep helps against, in order of time, including the
/// generator's own stale flows.
fn lost_otherwise(result: &RunResult, lost: &[LostRequest]) -> Vec<LostOtherwise> {
    let terminations = &result.terminations;
    let of = |lost: &LostRequest| {
        let likeliest = lost.candidates.iter().max_by(|a, b| a.share.total_cmp(&b.share));
        let t = likeliest.and_then(|candidate| terminations.get(candidate.termination));
        LostOtherwise {
            seq: lost.seq,
            source: lost.source.to_string(),
            begun_seconds: lost.begun_s,
            cause: lost.cause,
            outcome: lost.outcome,
            pod: t.map(|t| t.pod.clone()),
            after_deletion_seconds: t.map(|t| lost.begun_s - t.t0_s),
        }
    };
    let mut all: Vec<LostOtherwise> =
        lost.iter().filter(|lost| !lost.cause.is_helped_by_sleep()).map(of).collect();
    all.sort_by(|a, b| a.begun_seconds.total_cmp(&b.begun_seconds));
    all
}

/// Counts the requests that a run lost to causes that a sleep helps against.
pub fn for_a_sleep(result: &RunResult) -> u64 {
    result.requests.by_cause.iter().filter(|(cause, _)| cause.is_helped_by_sleep()).map(|(_, n)| n).sum()
}

/// Knowledge about which pod received a late request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNaming {
    /// Known from a header, the sidecar, connection tracking or the address.
    Known,
    /// Unknown.
    Unknown,
}

/// Determines whether it is known which pod answered each request of a run, and therefore when each new pod first
/// answered.
pub fn names(result: &RunResult) -> PodNaming {
    let is_named = |start: &Start| start.timeline.contains_key(&StartStage::FirstRequest);
    if result.starts.iter().any(is_named) { PodNaming::Known } else { PodNaming::Unknown }
}

fn confidence(result: &RunResult) -> f64 {
    result.recommendation.first().map_or(Policy::default().confidence, |rec| rec.confidence)
}

/// Number of requests lost to one cause, with the remedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostTo {
    /// Cause of the losses.
    pub cause: Cause,
    /// Number of requests.
    pub requests: u64,
    /// True if a preStop sleep would save these requests.
    pub helped_by_sleep: bool,
    /// Remedy; empty if a sleep helps, because the length that one run suggests differs from the length that the tuning
    /// finds.
    pub remedy: String,
}

/// Returns a run's lost requests by cause, most frequent first, without the generator's own stale flows, which are not
/// the workload's fault.
pub fn lost_to(result: &RunResult) -> Vec<LostTo> {
    let others = result.findings.iter().filter_map(|found| Some((found.cause?, found.remedy.as_str())));
    let remedies: BTreeMap<Cause, &str> = others.filter(|(cause, _)| !cause.is_helped_by_sleep()).collect();
    let mut lost: Vec<LostTo> = result
        .requests
        .by_cause
        .iter()
        .filter(|(cause, _)| **cause != Cause::StaleFlow)
        .map(|(cause, requests)| LostTo {
            cause: *cause,
            requests: *requests,
            helped_by_sleep: cause.is_helped_by_sleep(),
            remedy: remedies.get(cause).copied().unwrap_or_default().to_owned(),
        })
        .collect();
    lost.sort_by_key(|lost| std::cmp::Reverse(lost.requests));
    lost
}

/// Returns the losses of a tuning's first run by cause; `None` if they say nothing about the original settings, because
/// the run is invalid or has another purpose, such as to prove an earlier choice again.
pub fn lost_before(first: &RunResult, steps: &[TuningStep]) -> Option<Vec<LostTo>> {
    let is_before = steps.first().is_some_and(|step| step.purpose == Purpose::Before);
    (is_before && !matches!(first.verdict, Verdict::Invalid { .. })).then(|| lost_to(first))
}

/// Settings derived from the windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenSettings {
    /// Chosen settings.
    pub settings: PodSettings,
    /// Consumers, each with the sleep that it requires on its own.
    pub consumers: Vec<ConsumerSleep>,
    /// Time from SIGTERM until the slowest pod ended, in seconds; `None` if not known for every pod.
    pub stopping_seconds: Option<f64>,
    /// Settings that streams need; `None` if the tuning does not choose a grace period for streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<ChosenStreams>,
}

/// The sleep that one consumer requires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsumerSleep {
    /// Name of the consumer.
    pub consumer: String,
    /// Upper bounds of the consumer's windows, in seconds, shortest first.
    pub windows_seconds: Vec<f64>,
    /// Shortest sleep, in whole seconds, that covers all these windows.
    pub pre_stop_seconds: u64,
    /// Similarity of the windows within a rollout; `None` if unknown.
    pub within_rollouts: Option<Alike>,
}

/// Constraints on the choice of settings.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Current settings, including those that starting pods need.
    pub before: PodSettings,
    /// True if the grace period may be reduced.
    pub may_shorten: bool,
    /// Shortest sleep, in whole seconds, that no window so far is known to have outlasted.
    pub least_s: u64,
}

impl Wish {
    /// Returns the settings with a sleep of `sleep_s` seconds, for pods that take `stopping_s` seconds to stop after
    /// SIGTERM. If that time is unknown, the pods keep the time that they have now.
    pub fn settings(self, sleep_s: u64, stopping_s: Option<f64>) -> PodSettings {
        let set = self.before.termination_grace_period_seconds;
        let least = match stopping_s {
            Some(s) => sleep_s + stats::ceil_seconds(s) + Policy::default().margin_s,
            None => set.saturating_sub(self.before.pre_stop_seconds) + sleep_s,
        };
        PodSettings {
            pre_stop_seconds: sleep_s,
            termination_grace_period_seconds: if self.may_shorten { least } else { least.max(set) },
            ..self.before
        }
    }
}

/// Reason why no settings follow from the windows of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Unknown {
    /// A window lasted as long as the pods slept, and may have lasted longer.
    Outlasted,
    /// A pod that ended before its sleep was over.
    EndedEarly(EndedEarly),
    /// There are no windows, or no recommendation is possible.
    Unsupported(Unsupported),
}

/// A pod that ended before its sleep was over.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedEarly {
    /// Name of the pod.
    pub pod: String,
    /// Time from the pod's deletion to its end, in seconds.
    pub ended_s: f64,
    /// Time the pod should have slept, in seconds.
    pub sleep_s: u64,
}

/// Reason why no settings follow from the windows, regardless of the sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// No pod ended.
    NoEnd,
    /// No recommendation is possible, for these reasons.
    Refused(Vec<String>),
}

/// Derives settings from the windows of a run in which the pods slept for `seen_with` seconds.
///
/// # Errors
/// Fails if no settings follow from the windows.
pub fn choose(windows: &RunResult, seen_with: u64, wish: Wish) -> Result<ChosenSettings, Unknown> {
    let Some(rec) = widest(&windows.recommendation) else {
        return Err(Unknown::Unsupported(Unsupported::NoEnd));
    };
    if is_outlasted(windows, seen_with) {
        return Err(Unknown::Outlasted);
    }
    if let Some(early) = ended_early(windows, seen_with) {
        return Err(Unknown::EndedEarly(early));
    }
    let why = rec.refused_because.clone();
    let consumers = consumers(windows);
    let Some(sleep_s) = rec.covers_all_seen_seconds.filter(|_| why.is_empty()) else {
        return Err(Unknown::Unsupported(Unsupported::Refused(why)));
    };
    let (stopping, sleep_s) = (stopping(windows), sleep_s.max(wish.least_s));
    let settings = wish.settings(sleep_s, stopping);
    Ok(ChosenSettings { settings, consumers, stopping_seconds: stopping, streams: None })
}

/// Returns the first pod that ended before its sleep was over; `None` if there is no such pod.
fn ended_early(windows: &RunResult, sleep_s: u64) -> Option<EndedEarly> {
    let early = |t: &Termination| {
        let ended_s = *t.timeline.get(&Stage::ContainersTerminated)?;
        let is_early = ended_s < sleep_s as f64 - 0.5;
        is_early.then(|| EndedEarly { pod: t.pod.clone(), ended_s, sleep_s })
    };
    windows.terminations.iter().find_map(early)
}

/// Returns true if a window lasted at least as long as the pods slept, so its end is unknown.
pub fn is_outlasted(windows: &RunResult, slept_s: u64) -> bool {
    let all = windows.terminations.iter().flat_map(|t| &t.windows);
    let lasted = all.filter_map(|window| window.upper_s.or(window.lower_s));
    let groups = windows.groups.iter().flat_map(|group| &group.windows).filter_map(|window| window.lower_s);
    lasted.chain(groups).any(|lasted| lasted >= slept_s as f64)
}

/// Returns the time from SIGTERM until the slowest pod ended, in seconds; `None` if not known for every pod.
pub fn stopping(result: &RunResult) -> Option<f64> {
    result.terminations.iter().map(|t| t.stopping_seconds).try_fold(0.0_f64, |most, s| Some(most.max(s?)))
}

/// Returns the recommendation of the mode with the longest windows.
fn widest(all: &[Recommendation]) -> Option<&Recommendation> {
    all.iter().max_by_key(|rec| rec.covers_all_seen_seconds)
}

fn consumers(windows: &RunResult) -> Vec<ConsumerSleep> {
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for window in windows.terminations.iter().flat_map(|t| &t.windows) {
        all.entry(&window.consumer).or_default().extend(window.upper_s);
    }
    let consumer = |(name, mut seconds): (&str, Vec<f64>)| {
        seconds.sort_by(f64::total_cmp);
        ConsumerSleep {
            consumer: name.to_owned(),
            pre_stop_seconds: stats::ceil_seconds(seconds.last().copied().unwrap_or(0.0)),
            windows_seconds: seconds,
            within_rollouts: alike::alike(&windows.terminations, name),
        }
    };
    all.into_iter().map(consumer).collect()
}
