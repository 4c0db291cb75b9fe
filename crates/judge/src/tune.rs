//! Conclusions from the runs of `rolldrop tune`: a sleep, a grace period, their price, and the proof that they hold.
//!
//! The first run shows the losses with the current settings. If something names the pods, they sleep in the second run
//! for long enough that every window is seen to its end. The chosen sleep is the longest of these windows, in whole
//! seconds: no margin is added, because the next run proves it. The statement is that of Wilks 1941: the largest of n
//! windows covers a share of all, at a confidence (`stats`). Without names, the search begins at the windows that the
//! first run bounds (module `first`).

mod alike;
mod first;
mod parts;
mod price;
mod proof;
mod search;
mod starts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use alike::Alike;
pub use first::without_names;
pub use parts::parts;
pub use price::{Price, Rollout, Strategy};
pub use proof::{Proof, Seen, Unit, Units, Unproven, proof, refuted};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{
    Lost, Mode, Recommendation, RunResult, Stage, Start, StartStage, Termination, Verdict,
};
use rolldrop_record::run_info::ClusterInfo;
use rolldrop_record::{Cause, Outcome as Ended, Policy, run_info::Tool};
pub use search::{MOST_PROOFS, Next, Search};
pub use starts::{LostAtStart, StartSetting, lost_at_starts, with_starts};

/// Version of `tune.json`.
pub const SCHEMA_VERSION: u32 = 1;

/// Settings by which the pods of a workload end and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Length of the preStop sleep, in seconds; 0 for none.
    pub pre_stop_seconds: u64,
    /// `terminationGracePeriodSeconds`.
    pub termination_grace_period_seconds: u64,
    /// `minReadySeconds`.
    pub min_ready_seconds: u64,
    /// `initialDelaySeconds` of the readiness probe; `None` without a probe.
    pub readiness_delay_seconds: Option<u64>,
}

/// The contents of `tune.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Tool that measured.
    pub tool: Tool,
    /// Workload, such as `deployment/web`.
    pub workload: String,
    /// Containers of the workload that sleep.
    pub containers: Vec<String>,
    /// Fingerprint of the cluster.
    pub cluster: ClusterInfo,
    /// Share of future terminations that was to be covered.
    pub coverage_asked: f64,
    /// Confidence of that coverage.
    pub confidence: f64,
    /// Settings before the tuning.
    pub before: Settings,
    /// Runs, in order.
    pub steps: Vec<Step>,
    /// Longest windows of all runs.
    pub seen: Seen,
    /// Requests lost with the settings before, by cause.
    pub lost_before: Vec<LostTo>,
    /// Chosen settings, if the windows show any.
    pub chosen: Option<Choice>,
    /// Price of the chosen settings.
    pub price: Option<Price>,
    /// Effects of platform limits on the chosen settings, a sentence each.
    pub limits: Vec<String>,
    /// Outcome of the tuning.
    pub outcome: Outcome,
}

/// Outcome of a tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Outcome {
    /// The chosen settings lost nothing that a sleep saves, in the required number of terminations.
    Proven,
    /// The current settings are already right.
    AlreadyRight,
    /// No lost request is one that a sleep saves.
    NotForASleep,
    /// The tuning could not show any settings to hold.
    NotShown {
        /// Reasons, one sentence each.
        why: Vec<String>,
    },
    /// The chosen settings of an earlier tuning lose requests that a sleep saves.
    NoLonger {
        /// Reasons, one sentence each.
        why: Vec<String>,
    },
    /// The tuning has not ended, or was interrupted; the result holds what it has measured so far.
    Partial {
        /// Reasons, one sentence each.
        why: Vec<String>,
    },
}

impl Outcome {
    /// Returns true if the chosen settings are shown to hold.
    pub const fn is_shown(&self) -> bool {
        matches!(self, Self::Proven | Self::AlreadyRight)
    }
}

/// The purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To show the losses with the current settings.
    Before,
    /// To show the whole windows.
    Windows,
    /// To prove that the chosen settings hold.
    Proof,
}

impl Purpose {
    /// Returns its name, as in the names of the run directories.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Windows => "windows",
            Self::Proof => "proof",
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Purpose of the run.
    pub purpose: Purpose,
    /// Run directory, relative to that of the tuning.
    pub run: String,
    /// Settings of its pods.
    pub settings: Settings,
    /// Verdict on the measurement.
    pub verdict: Verdict,
    /// Modes of its terminations.
    pub modes: BTreeSet<Mode>,
    /// Pods that ended.
    pub terminations: usize,
    /// Rollouts in which they ended.
    pub rollouts: usize,
    /// Unit that the coverage counts.
    pub unit: Unit,
    /// Number of these units.
    pub units: usize,
    /// Confidence at which it was to show something.
    pub confidence: f64,
    /// Share of future units of which this many show something, at that confidence.
    pub coverage: f64,
    /// Requests that were lost.
    pub lost: u64,
    /// Number of these with a cause that a sleep helps.
    pub lost_for_a_sleep: u64,
    /// Those that no sleep saves, one by one; only for a proof.
    pub lost_otherwise: Vec<LostOtherwise>,
    /// Number of all requests.
    pub requests: u64,
}

impl Step {
    /// Summarises a run.
    pub fn of(
        purpose: Purpose,
        run: &str,
        settings: Settings,
        (result, lost): (&RunResult, &[Lost]),
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
        }
    }
}

impl Step {
    /// Counts the requests that were lost by no known cause when their pod's sleep was over: a longer one may save
    /// them.
    pub fn unclear(&self) -> u64 {
        let slept_s = self.settings.pre_stop_seconds as f64;
        let is_unclear = |lost: &&LostOtherwise| {
            lost.cause == Cause::Unattributed
                && lost.after_deletion_seconds.is_some_and(|after| after >= slept_s)
        };
        self.lost_otherwise.iter().filter(is_unclear).count() as u64
    }
}

/// A request that a proof lost by a cause that no sleep helps, with what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostOtherwise {
    /// Its number in its load source, as in `lost.csv`.
    pub seq: u64,
    /// Load source.
    pub source: String,
    /// Time at which it was begun, in seconds since the counted part of the load began.
    pub begun_seconds: f64,
    /// Cause of its loss.
    pub cause: Cause,
    /// Its outcome.
    pub outcome: Ended,
    /// Pod that most likely lost it; `None` if no ending pod explains it.
    pub pod: Option<String>,
    /// Time from that pod's deletion to the request's beginning, in seconds; negative if before.
    pub after_deletion_seconds: Option<f64>,
}

/// Returns the requests of a run that were lost by causes that no sleep helps, in order, including the generator's own
/// stale flows.
fn lost_otherwise(result: &RunResult, lost: &[Lost]) -> Vec<LostOtherwise> {
    let terminations = &result.terminations;
    let of = |lost: &Lost| {
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

/// Counts the requests that a run lost by causes that a sleep helps.
pub fn for_a_sleep(result: &RunResult) -> u64 {
    result.requests.by_cause.iter().filter(|(cause, _)| cause.is_helped_by_sleep()).map(|(_, n)| n).sum()
}

/// Knowledge of the pod that a late request was routed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Known: from a header, the sidecar, connection tracking or the address.
    Known,
    /// Not known.
    Unknown,
}

/// Tells if a run knows by name which pods answered its requests, and so the time at which each new pod first answered.
pub fn names(result: &RunResult) -> Names {
    let is_named = |start: &Start| start.timeline.contains_key(&StartStage::FirstRequest);
    if result.starts.iter().any(is_named) { Names::Known } else { Names::Unknown }
}

fn confidence(result: &RunResult) -> f64 {
    result.recommendation.first().map_or(Policy::default().confidence, |rec| rec.confidence)
}

/// Requests lost by one cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostTo {
    /// The cause.
    pub cause: Cause,
    /// Number of requests.
    pub requests: u64,
    /// True if a preStop sleep saves them.
    pub helped_by_sleep: bool,
    /// Remedy. Empty if a sleep helps: the length that one run suggests is not the one that the tuning finds.
    pub remedy: String,
}

/// Returns a run's lost requests by cause, most first. The generator's own stale flows are left out: they are not the
/// workload's.
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

/// Settings that the windows support.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Chosen settings.
    pub settings: Settings,
    /// Each consumer, with the sleep that it needs alone.
    pub consumers: Vec<Consumer>,
    /// Time from SIGTERM to the end of the slowest pod, in seconds; `None` if not seen for every pod.
    pub stopping_seconds: Option<f64>,
}

/// Sleep that one consumer needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Consumer {
    /// Name of the consumer.
    pub consumer: String,
    /// Upper bounds of its windows, in seconds, sorted.
    pub windows_seconds: Vec<f64>,
    /// Smallest whole number of seconds that covers them all.
    pub pre_stop_seconds: u64,
    /// Likeness of the windows within a rollout; `None` if not known.
    pub within_rollouts: Option<Alike>,
}

/// Constraints on the choice of settings.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Current settings, with those that starting pods need.
    pub before: Settings,
    /// True if the grace period may become shorter than it is.
    pub may_shorten: bool,
    /// Shortest sleep, in whole seconds, that no window of the runs so far is known to outlast.
    pub least_s: u64,
}

impl Wish {
    /// Returns the settings with a sleep of `sleep_s` seconds, for pods that take `stopping_s` from SIGTERM to their
    /// end. If that is not known, they keep the time that they have for it.
    pub fn settings(self, sleep_s: u64, stopping_s: Option<f64>) -> Settings {
        let set = self.before.termination_grace_period_seconds;
        let least = match stopping_s {
            Some(s) => sleep_s + stats::ceil_seconds(s) + Policy::default().margin_s,
            None => set.saturating_sub(self.before.pre_stop_seconds) + sleep_s,
        };
        Settings {
            pre_stop_seconds: sleep_s,
            termination_grace_period_seconds: if self.may_shorten { least } else { least.max(set) },
            ..self.before
        }
    }
}

/// Reason why the windows of a run support no settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Unknown {
    /// A window lasted as long as the pods slept, and may last longer.
    Outlasted,
    /// A pod ended before its sleep was over.
    EndedEarly(EndedEarly),
    /// There is no window, or the windows are refused.
    Unsupported(Unsupported),
}

/// A pod that ended before its sleep was over.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedEarly {
    /// The pod.
    pub pod: String,
    /// Time from its deletion to its end, in seconds.
    pub ended_s: f64,
    /// Time that it was to sleep, in seconds.
    pub sleep_s: u64,
}

/// Reason why windows support no settings, whatever the sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// No pod ended.
    NoEnd,
    /// The run's recommendation is refused, for these reasons.
    Refused(Vec<String>),
}

/// Returns the settings that the windows of a run support, in which pods slept for `seen_with` seconds.
///
/// # Errors
/// If the windows support none.
pub fn choose(windows: &RunResult, seen_with: u64, wish: Wish) -> Result<Choice, Unknown> {
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
    Ok(Choice { settings: wish.settings(sleep_s, stopping), consumers, stopping_seconds: stopping })
}

/// Returns the first pod that did not sleep as long as it was to; `None` if all did.
fn ended_early(windows: &RunResult, sleep_s: u64) -> Option<EndedEarly> {
    let early = |t: &Termination| {
        let ended_s = *t.timeline.get(&Stage::ContainersTerminated)?;
        let is_early = ended_s < sleep_s as f64 - 0.5;
        is_early.then(|| EndedEarly { pod: t.pod.clone(), ended_s, sleep_s })
    };
    windows.terminations.iter().find_map(early)
}

/// Returns true if a window lasted as long as the pods slept, so that its end is not known.
pub fn is_outlasted(windows: &RunResult, slept_s: u64) -> bool {
    let all = windows.terminations.iter().flat_map(|t| &t.windows);
    let lasted = all.filter_map(|window| window.upper_s.or(window.lower_s));
    let groups = windows.groups.iter().flat_map(|group| &group.windows).filter_map(|window| window.lower_s);
    lasted.chain(groups).any(|lasted| lasted >= slept_s as f64)
}

/// Returns the time from SIGTERM to the end of the slowest pod, in seconds; `None` if that was not seen for every pod.
pub fn stopping(result: &RunResult) -> Option<f64> {
    result.terminations.iter().map(stopping_s).try_fold(0.0_f64, |most, s| Some(most.max(s?)))
}

/// Returns the recommendation of the mode with the longest windows.
fn widest(all: &[Recommendation]) -> Option<&Recommendation> {
    all.iter().max_by_key(|rec| rec.covers_all_seen_seconds)
}

fn consumers(windows: &RunResult) -> Vec<Consumer> {
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for window in windows.terminations.iter().flat_map(|t| &t.windows) {
        all.entry(&window.consumer).or_default().extend(window.upper_s);
    }
    let consumer = |(name, mut seconds): (&str, Vec<f64>)| {
        seconds.sort_by(f64::total_cmp);
        Consumer {
            consumer: name.to_owned(),
            pre_stop_seconds: stats::ceil_seconds(seconds.last().copied().unwrap_or(0.0)),
            windows_seconds: seconds,
            within_rollouts: alike::alike(&windows.terminations, name),
        }
    };
    all.into_iter().map(consumer).collect()
}

/// Returns the time from SIGTERM to the end of a pod's containers; `None` if not seen, or cut short by SIGKILL.
fn stopping_s(t: &Termination) -> Option<f64> {
    if t.exit_code == Some(137) {
        return None;
    }
    let at = |stage: Stage| t.timeline.get(&stage).copied();
    let ended = at(Stage::AppExited).or(at(Stage::ContainersTerminated))?;
    Some((ended - at(Stage::AppSigterm).unwrap_or(0.0)).max(0.0))
}
