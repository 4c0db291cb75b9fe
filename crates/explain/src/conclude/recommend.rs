//! Recommends the settings that the windows support, or gives reasons for refusing to.

use std::collections::{BTreeMap, BTreeSet};

use crate::attribute::judged::JudgedRequest;
use crate::conclude::phase::{self, ConsumerPhase};
use crate::math::stats;
use crate::model::account::{Grounds, More, Narrowing, NoRecommendation, Probe, RecommendationBasis};
use crate::model::figure_text::len;
use crate::model::{
    LossGroup, Mode, Recommendation, SleepNeeded, Termination, TerminationCandidate, Verdict, WhatIf, Window,
    WindowSummary, apart, lasted_at_least_s, shortest_set_sleep_s,
};
use crate::timeline::{PodEnd, T0, Timeline};
use rolldrop_record::event::Replacement;
use rolldrop_record::{Cause, Stamp};

/// Upper limit for 3/λ in seconds, where λ is a pod's rate of new connections; a lower rate shows the window too
/// coarsely.
pub const MAX_COARSENESS_S: f64 = 0.5;
/// Difference in seconds between the largest upper and the largest lower bound beyond which the suggestion is a range.
const MAX_OPEN_S: f64 = 1.0;
/// Time in seconds that the kubelet leaves an app after its preStop hook (`minimumGracePeriodInSeconds` in
/// pkg/kubelet/kuberuntime).
const LEAST_STOPPING_S: u64 = 2;
/// Share of the requests lost in windows at which losses to starting pods make the bounds too large.
const COMPETING_SHARE: f64 = 0.05;

/// Summarises the windows per consumer and mode.
pub(crate) fn summaries(terminations: &[Termination]) -> Vec<WindowSummary> {
    let mut groups: BTreeMap<(Mode, &str), Vec<&crate::model::Window>> = BTreeMap::new();
    for t in terminations {
        for w in t.windows.iter().filter(|w| w.is_one()) {
            groups.entry((t.mode, &w.consumer)).or_default().push(w);
        }
    }
    groups
        .into_iter()
        .map(|((mode, consumer), windows)| {
            // A window without an upper bound may be the longest.
            let mut upper: Vec<f64> = windows.iter().map(|w| w.upper_s.unwrap_or(f64::INFINITY)).collect();
            upper.sort_by(f64::total_cmp);
            let quantile = |p| stats::nearest_rank(&upper, p).filter(|s| s.is_finite());
            let lower = || windows.iter().filter_map(|w| w.lower_s);
            WindowSummary {
                consumer: consumer.to_owned(),
                mode,
                n: windows.len(),
                p50: quantile(0.50),
                p90: quantile(0.90),
                p99: quantile(0.99),
                max: quantile(1.0),
                lower: lower().reduce(f64::min).zip(lower().reduce(f64::max)),
                censored: windows.iter().filter(|w| w.censored_reason.is_some()).count(),
            }
        })
        .collect()
}

/// Data behind all recommendations of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    pub timeline: &'a Timeline,
    pub terminations: &'a [Termination],
    pub groups: &'a [LossGroup],
    pub judged: &'a [JudgedRequest<'a>],
    pub verdict: &'a Verdict,
    /// Service time of a request, in seconds. A request that the sleep saves must have this much time left.
    pub service_s: f64,
}

/// Returns one recommendation or refusal per mode, with its grounds.
pub(crate) fn recommendations(ground: Ground<'_>) -> (Vec<Recommendation>, Vec<Grounds>) {
    let modes: BTreeSet<Mode> = ground.terminations.iter().map(|t| t.mode).collect();
    modes.into_iter().map(|mode| recommendation(ground, mode)).unzip()
}

fn recommendation(ground: Ground<'_>, mode: Mode) -> (Recommendation, Grounds) {
    let Ground { timeline, terminations, .. } = ground;
    let policy = &timeline.info.policy;
    // Windows of pods that were not deleted say nothing about a sleep.
    let has_deletions = terminations.iter().any(|t| t.mode == mode && t.was_deleted());
    let of_mode = || {
        let all = terminations.iter().zip(&timeline.ends);
        let all = all.filter(|(t, _)| t.mode == mode && t.was_deleted() == has_deletions);
        all.filter(|(t, _)| t.windows.is_empty() || t.windows.iter().any(Window::is_one))
    };
    let windows = || of_mode().flat_map(|(t, _)| &t.windows).filter(|w| w.is_one());
    let n = of_mode().count();
    let units = units(timeline.info.targets.len(), of_mode().map(|(t, _)| t));
    let needed = stats::wilks_needed(policy.coverage, policy.confidence);
    let seen = longest(windows());
    let seen_s = seen.and_then(|w| w.upper_s);
    let lower_s =
        |counts: &dyn Fn(&Termination) -> bool| lasted_at_least_s(terminations, ground.groups, counts);
    // Windows are longest in rollouts, so evidence from a rollout applies to any mode.
    let of_mode_at_least_s = lower_s(&|t| t.mode == mode || t.mode == Mode::Rollout);
    let clocks = phase::clocks(timeline, of_mode().map(|(_, end)| end));
    let largest = clocks.iter().map(|met| met.clock.longest_s()).fold(seen_s.unwrap_or(0.0), f64::max);
    // The period for which a client caches endpoints is decisive by itself, because no shorter sleep is enough.
    let is_open = clocks.is_empty() && largest - of_mode_at_least_s.unwrap_or(0.0) > MAX_OPEN_S;
    let in_rollouts = of_mode().filter(|_| mode == Mode::Rollout).map(|(_, end)| end);
    let mut refusals = unsound(ground, mode, in_rollouts, is_open || seen.is_none());
    refusals.extend((!has_deletions).then_some(NoRecommendation::NotDeleted));
    let is_sound = refusals.is_empty();
    let covered = stats::wilks_coverage(units, policy.confidence);
    if has_deletions && units < needed {
        let (asked, confidence, windows) = (policy.coverage, policy.confidence, n);
        refusals.push(NoRecommendation::TooFew { windows, units, needed, covered, asked, confidence });
    }
    let unbounded = windows().filter(|w| w.upper_s.is_none()).count();
    if unbounded > 0 {
        refusals.push(NoRecommendation::Unbounded { unbounded, windows: windows().count() });
    }
    refusals.extend(too_coarse(windows()));
    let in_phase = clocks.iter().filter(|met| !met.is_at_random);
    refusals.extend(in_phase.map(|met| NoRecommendation::InPhase(met.clock.clone())));
    // Never suggest less than a bound shown in the same report.
    let covers_all = (n > 0 && unbounded == 0 && is_sound && windows().next().is_some())
        .then(|| stats::covering_sleep(largest, of_mode_at_least_s));
    let set = TerminationSettings::of(of_mode().map(|(_, end)| end));
    // Never advise less than the current setting.
    let pre_stop =
        covers_all.filter(|_| refusals.is_empty()).map(|s| (s + policy.margin_s).max(set.pre_stop_s));
    let stopping = stopping_s(of_mode().map(|(t, _)| t));
    let consumers: BTreeSet<&str> = windows().map(|w| w.consumer.as_str()).collect();
    let rollouts = rollouts(mode, of_mode().map(|(t, _)| t));
    let suggested = covers_all.filter(|s| has_saved(ground, mode, *s));
    let grace = set.advised_grace_s(pre_stop, suggested, stopping, policy.margin_s);
    // One sleep serves all modes, so a range begins where no window of the run is known to have lasted longer.
    let least = stats::ceil_seconds(lower_s(&|_| true).unwrap_or(0.0))
        .max(set_sleep_s(ground, |t| t.mode == mode) + 1);
    let suggested_from = suggested.filter(|to| is_open && least < *to).map(|_| least);
    let to_go = if has_deletions { needed.saturating_sub(units) } else { 0 };
    let basis = RecommendationBasis {
        longest_s: seen_s,
        windows: windows().count(),
        unbounded,
        clocks: clocks.into_iter().map(|ConsumerPhase { clock, .. }| clock).collect(),
        margin_s: policy.margin_s,
        stopping_s: stopping,
    };
    let narrowing = suggested_from.map(|_| narrowing(seen, rollouts, units, to_go));
    let recommendation = Recommendation {
        mode,
        pre_stop_seconds: pre_stop,
        termination_grace_period_seconds: grace,
        confidence: policy.confidence,
        coverage: covered,
        coverage_asked: policy.coverage,
        terminations: n,
        units,
        consumers: consumers.into_iter().map(str::to_owned).collect(),
        basis: String::new(),
        terminations_needed: to_go,
        refused_because: Vec::new(),
        covers_all_seen_seconds: covers_all,
        suggested_seconds: suggested,
        suggested_from_seconds: suggested_from,
        narrowed_by: None,
        lasted_at_least_s: of_mode_at_least_s,
        rollouts,
    };
    (recommendation, Grounds { basis, refusals, narrowing })
}

/// Returns the longest time from SIGTERM to a pod's exit, in seconds; `None` if it was not seen for every pod.
pub(crate) fn stopping_s<'a>(mut terminations: impl Iterator<Item = &'a Termination>) -> Option<f64> {
    terminations.try_fold(0.0f64, |max, t| t.stopping_seconds.map(|s| max.max(s)))
}

/// Returns the window with the largest upper bound.
fn longest<'a>(windows: impl Iterator<Item = &'a Window>) -> Option<&'a Window> {
    let bounded = windows.filter_map(|window| Some((window.upper_s?, window)));
    bounded.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, window)| window)
}

/// Returns the reasons why this mode's windows cannot determine a sleep. Requests to starting pods are a reason if the
/// windows are loosely bounded.
fn unsound<'a>(
    ground: Ground<'_>,
    mode: Mode,
    in_rollouts: impl Iterator<Item = &'a PodEnd>,
    are_loose: bool,
) -> Vec<NoRecommendation> {
    let Ground { timeline, terminations, judged, verdict, .. } = ground;
    let starts = starts_compete(timeline, terminations, judged, mode).filter(|_| are_loose);
    let starts = starts.map(|requests| NoRecommendation::ProbeFirst { probe: probe(timeline), requests });
    not_believed(verdict).into_iter().chain(all_at_once(in_rollouts)).chain(starts).collect()
}

/// Returns the reason, if any, why nothing may be concluded from the run.
fn not_believed(verdict: &Verdict) -> Option<NoRecommendation> {
    match verdict {
        Verdict::Valid => None,
        Verdict::Partial { .. } => Some(NoRecommendation::NotWhole),
        Verdict::Invalid { .. } => Some(NoRecommendation::NotValid),
    }
}

/// Returns the reason why no sleep can help, if the workload terminates all of its pods at the same time.
fn all_at_once<'a>(ends: impl Iterator<Item = &'a PodEnd>) -> Option<NoRecommendation> {
    let mut workloads = ends.filter_map(|end| end.workload.as_ref());
    let workload = workloads.find(|workload| workload.strategy == Some(Replacement::Recreate))?;
    Some(NoRecommendation::Recreated(workload.name.clone()))
}

/// Counts requests to pods that were not listening yet while windows of this mode may have been open. Returns a count
/// only if it is large enough to inflate the windows' upper bounds.
pub(crate) fn starts_compete(
    timeline: &Timeline,
    terminations: &[Termination],
    judged: &[JudgedRequest<'_>],
    mode: Mode,
) -> Option<u64> {
    let of_mode = terminations.iter().zip(&timeline.ends).filter(|(t, _)| t.mode == mode);
    let window = |(t, end): (&Termination, &PodEnd)| {
        let uppers: Option<Vec<f64>> = t.windows.iter().filter(|w| w.is_one()).map(|w| w.upper_s).collect();
        let longest_s = uppers.map(|uppers| uppers.into_iter().fold(0.0, f64::max));
        let until = longest_s.map(|s| end.t0.earliest + std::time::Duration::from_secs_f64(s));
        (end.t0.earliest, until.unwrap_or(timeline.load_ended))
    };
    let windows: Vec<(Stamp, Stamp)> = of_mode.map(window).collect();
    let is_in_one = |at: Stamp| windows.iter().any(|(from, to)| (*from..=*to).contains(&at));
    let in_one = |cause: fn(Cause) -> bool| {
        len(judged.iter().filter(|j| cause(j.cause) && is_in_one(j.request.begun())).count())
    };
    let (starts, all) = (in_one(|cause| cause == Cause::NotReadyYet), in_one(|_| true));
    (starts > 0 && starts as f64 >= COMPETING_SHARE * all as f64).then_some(starts)
}

/// Returns the state of the readiness probe that should keep traffic away from pods that are not serving yet.
pub(crate) fn probe(timeline: &Timeline) -> Probe {
    let mut began = timeline.pods.iter().filter(|pod| !pod.listed).map(|pod| pod.is_probed).peekable();
    match began.peek().is_some() && began.all(|is_probed| is_probed == Some(true)) {
        true => Probe::TooEarly,
        false => Probe::Missing,
    }
}

/// Returns a refusal if a pod gets too few connections to show its window.
fn too_coarse<'a>(windows: impl Iterator<Item = &'a Window>) -> Option<NoRecommendation> {
    let slowest = windows.map(|w| w.rate_before).filter(|r| *r > 0.0).fold(f64::INFINITY, f64::min);
    let is_coarse = slowest.is_finite() && 3.0 / slowest > MAX_COARSENESS_S;
    is_coarse.then_some(NoRecommendation::TooCoarse { rate: slowest })
}

/// Counts the rollouts that terminated these pods; `None` for modes other than rollouts, or if nothing distinguishes
/// the rollouts.
fn rollouts<'a>(mode: Mode, terminations: impl Iterator<Item = &'a Termination>) -> Option<usize> {
    if mode != Mode::Rollout {
        return None;
    }
    let each = terminations.map(|t| Some((t.disruption?, t.repetition)));
    Some(each.collect::<Option<BTreeSet<_>>>()?.len())
}

/// Returns the measurement that would narrow a range: more rollouts or terminations.
fn narrowing(seen: Option<&Window>, rollouts: Option<usize>, units: usize, needed: usize) -> Narrowing {
    let more = match rollouts {
        Some(rollouts) => More::Rollouts((needed * rollouts).div_ceil(units.max(1)).max(1)),
        None => More::Terminations(needed.max(1)),
    };
    Narrowing { more, basis: seen.and_then(|w| w.upper_basis) }
}

/// Counts the independent window ends. Pods that a Service proxy removes from its rules in one sync share the end of
/// their windows, so windows that may have ended at the same time count once; only ends that are certainly separate are
/// counted. With several consumers, the one with the fewest determines the result; a consumer that routed to none of
/// these pods has no windows, and says nothing.
fn units<'a>(consumers: usize, terminations: impl Iterator<Item = &'a Termination> + Clone) -> usize {
    let of_consumer = |consumer: usize| {
        let windows = terminations.clone().map(|t| (t, t.windows.get(consumer)));
        apart(windows.filter(|(_, window)| window.is_none_or(Window::is_one))).len()
    };
    (0..consumers).map(of_consumer).filter(|ends| *ends > 0).min().unwrap_or(0)
}

/// Current settings of terminated pods, in seconds: the longest of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminationSettings {
    pre_stop_s: u64,
    grace_s: u64,
    shortest_grace_s: u64,
    /// Time that the grace period leaves for stopping after the sleep.
    rest_s: u64,
}

impl TerminationSettings {
    pub(crate) fn of<'a>(ends: impl Iterator<Item = &'a PodEnd> + Clone) -> Self {
        let seconds = |s: i64| u64::try_from(s).unwrap_or(0);
        let graces = ends.clone().map(|end| seconds(end.own_grace_s));
        let sleeps = ends.map(|end| seconds(end.pre_stop_sleep_s.unwrap_or(0)));
        Self {
            pre_stop_s: sleeps.clone().max().unwrap_or(0),
            grace_s: graces.clone().max().unwrap_or(0),
            shortest_grace_s: graces.clone().min().unwrap_or(0),
            rest_s: graces.zip(sleeps).map(|(grace, sleep)| grace.saturating_sub(sleep)).max().unwrap_or(0),
        }
    }

    /// Returns the grace period that goes with a recommended sleep, if it was seen how long stopping takes, or one that a
    /// sleep needs because the pods' own is too short.
    fn advised_grace_s(
        &self,
        recommended_s: Option<u64>,
        suggested_s: Option<u64>,
        stopping_s: Option<f64>,
        margin_s: u64,
    ) -> Option<u64> {
        let longer = recommended_s.or(suggested_s).and_then(|s| self.longer_grace_s(s, stopping_s, margin_s));
        longer.or(recommended_s.and(stopping_s).map(|_| self.grace_s))
    }

    /// Returns a grace period into which a sleep and the app's stopping fit, if the pods' own is too short. The API
    /// server refuses a sleep that is longer than the grace period. If it was not seen how long stopping takes, it gets
    /// as much time as before.
    pub(crate) fn longer_grace_s(
        &self,
        pre_stop_s: u64,
        stopping_s: Option<f64>,
        margin_s: u64,
    ) -> Option<u64> {
        let stopping = stopping_s.map(|s| stats::ceil_seconds(s) + margin_s);
        let least = pre_stop_s + stopping.unwrap_or(LEAST_STOPPING_S);
        let fitting = pre_stop_s + stopping.unwrap_or(self.rest_s.max(LEAST_STOPPING_S));
        (least > self.shortest_grace_s).then_some(fitting.max(self.grace_s))
    }
}

/// Returns true if a sleep of this many seconds would have saved requests lost in this mode.
fn has_saved(ground: Ground<'_>, mode: Mode, pre_stop_s: u64) -> bool {
    let is_of_mode =
        |j: &&JudgedRequest<'_>| j.candidates.iter().any(|c| ground.terminations[c.termination].mode == mode);
    ground.judged.iter().filter(is_of_mode).any(|j| saves(ground, j, pre_stop_s))
}

/// Returns true if a request would have survived if every pod that may have lost it had slept this long before it
/// stopped, instead of only for its current sleep.
fn saves(ground: Ground<'_>, j: &JudgedRequest<'_>, pre_stop_s: u64) -> bool {
    needed(ground, j).is_some_and(|needed| pre_stop_s as f64 > needed.certain_s)
}

/// Returns the sleep beyond which a request would not have been lost, which is never below the current one of its pod;
/// `None` if no sleep would have saved it.
///
/// With that sleep, a pod that no longer accepted a request routed to it would have accepted it. A request cut off as
/// the pod exited would have been answered, unless it takes longer than requests usually do; it makes no difference
/// whether the app had read it. A pod that is not deleted gets requests for as long as it sleeps.
fn needed(ground: Ground<'_>, j: &JudgedRequest<'_>) -> Option<SleepNeeded> {
    let takes_s = match j.cause {
        cause if cause.is_helped_by_sleep() => 0.0,
        Cause::KilledInFlight if !j.request.row.conn_reused => ground.service_s,
        _ => return None,
    };
    if j.candidates.iter().any(|c| !ground.terminations[c.termination].was_deleted()) {
        return None;
    }
    let needed_s = |c: &TerminationCandidate, t0: fn(&T0) -> Stamp| {
        let set_s = ground.terminations[c.termination].pre_stop_seconds.unwrap_or(0);
        let begun_s = j.request.begun().seconds_since(t0(&ground.timeline.ends[c.termination].t0));
        (begun_s + takes_s).max(set_s as f64)
    };
    let certain_s = j.candidates.iter().map(|c| needed_s(c, |t0| t0.earliest)).reduce(f64::max)?;
    let possible_s = j.candidates.iter().map(|c| needed_s(c, |t0| t0.latest)).reduce(f64::min)?;
    Some(SleepNeeded { certain_s, possible_s })
}

/// Returns the current sleep of the pods that count and lost requests which a longer sleep would have saved.
fn set_sleep_s(ground: Ground<'_>, counts: impl Fn(&Termination) -> bool) -> u64 {
    let saved = ground.judged.iter().filter(|j| needed(ground, j).is_some());
    let candidates = saved.flat_map(|j| &j.candidates).map(|c| c.termination);
    shortest_set_sleep_s(ground.terminations, candidates.filter(|e| counts(&ground.terminations[*e])))
}

/// Returns the sleep that each lost request needed.
pub(crate) fn sleeps(ground: Ground<'_>) -> Vec<Option<SleepNeeded>> {
    ground.judged.iter().map(|j| needed(ground, j)).collect()
}

/// Predicts the effect of some sleeps. Sleeps shorter than the one a pod already had are omitted, because their losses
/// were not seen.
pub(crate) fn what_if(ground: Ground<'_>, covering: Option<u64>) -> Vec<WhatIf> {
    let terminations = ground.terminations;
    if terminations.is_empty() {
        return Vec::new();
    }
    let had = set_sleep_s(ground, |_| true);
    let sleeps: BTreeSet<u64> =
        [0, 1, 2, 5, 10].into_iter().chain(covering).chain([had]).filter(|s| *s >= had).collect();
    let lost = || ground.judged.iter().filter(|j| j.cause != Cause::StaleFlow);
    let what_if = |pre_stop_seconds| {
        let avoided = lost().filter(|j| saves(ground, j, pre_stop_seconds)).count();
        let covered: Vec<bool> =
            terminations.iter().filter_map(|t| t.is_covered_by(pre_stop_seconds)).collect();
        WhatIf {
            pre_stop_seconds,
            windows_covered: covered.iter().filter(|is_covered| **is_covered).count(),
            terminations: covered.len(),
            drops_avoided: len(avoided),
            drops_left: len(lost().count() - avoided),
        }
    };
    sleeps.into_iter().map(what_if).collect()
}
