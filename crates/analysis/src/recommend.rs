//! Which settings the windows support, and which they do not.

use std::collections::{BTreeMap, BTreeSet};

use super::Judged;
use super::model::{
    Candidate, Mode, Recommendation, SleepNeeded, Termination, Verdict, WhatIf, Window, WindowSummary,
};
use super::phase::{self, Clock};
use super::stats;
use crate::timeline::{PodEnd, Timeline};
use rolldrop_record::{Cause, Policy, Stamp};

/// A pod that gets new connections too seldom shows its window too coarsely: 3/λ may not exceed this many seconds.
pub const MAX_COARSENESS_S: f64 = 0.5;

/// The windows per consumer and mode.
pub(super) fn summaries(terminations: &[Termination]) -> Vec<WindowSummary> {
    let mut groups: BTreeMap<(Mode, &str), Vec<&super::model::Window>> = BTreeMap::new();
    for t in terminations {
        for w in &t.windows {
            groups.entry((t.mode, &w.consumer)).or_default().push(w);
        }
    }
    groups
        .into_iter()
        .map(|((mode, consumer), windows)| {
            let mut upper: Vec<f64> = windows.iter().filter_map(|w| w.upper_s).collect();
            upper.sort_by(f64::total_cmp);
            let lower = || windows.iter().filter_map(|w| w.lower_s);
            WindowSummary {
                consumer: consumer.to_owned(),
                mode,
                n: windows.len(),
                p50: stats::nearest_rank(&upper, 0.50),
                p90: stats::nearest_rank(&upper, 0.90),
                p99: stats::nearest_rank(&upper, 0.99),
                max: upper.last().copied(),
                lower: lower().reduce(f64::min).zip(lower().reduce(f64::max)),
                censored: windows.iter().filter(|w| w.censored.is_some()).count(),
            }
        })
        .collect()
}

/// What all recommendations of a run rest on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    pub timeline: &'a Timeline,
    pub terminations: &'a [Termination],
    pub judged: &'a [Judged<'a>],
    pub verdict: &'a Verdict,
    /// How long a request takes, in seconds: a sleep must leave this time to a request that it saves.
    pub service_s: f64,
}

/// One recommendation or refusal per mode.
pub(super) fn recommendations(ground: Ground<'_>) -> Vec<Recommendation> {
    let modes: BTreeSet<Mode> = ground.terminations.iter().map(|t| t.mode).collect();
    modes.into_iter().map(|mode| recommendation(ground, mode)).collect()
}

fn recommendation(ground: Ground<'_>, mode: Mode) -> Recommendation {
    let Ground { timeline, terminations, .. } = ground;
    let policy = &timeline.info.policy;
    let of_mode = || terminations.iter().zip(&timeline.ends).filter(|(t, _)| t.mode == mode);
    let windows = || of_mode().flat_map(|(t, _)| &t.windows);
    let n = of_mode().count();
    let units = units(timeline.info.targets.len(), of_mode().map(|(t, _)| t));
    let mut refused_because = Vec::new();
    match ground.verdict {
        Verdict::Valid => {}
        Verdict::Partial { .. } => refused_because.push("the record is not whole".to_owned()),
        Verdict::Invalid { .. } => refused_because.push("the measurement is not valid".to_owned()),
    }
    let is_sound = refused_because.is_empty();
    let needed = stats::wilks_needed(policy.coverage, policy.confidence);
    if units < needed {
        refused_because.push(too_few(policy, n, units, needed));
    }
    let censored = windows().filter(|w| w.upper_s.is_none()).count();
    if censored > 0 {
        refused_because.push(format!("{censored} of {} windows have no upper bound", windows().count()));
    }
    let slowest = windows().map(|w| w.rate_before).filter(|r| *r > 0.0).fold(f64::INFINITY, f64::min);
    if slowest.is_finite() && 3.0 / slowest > MAX_COARSENESS_S {
        refused_because.push(format!(
            "a pod got only {slowest:.1} new connections/s, which shows its window to {:.2} s at best (limit {MAX_COARSENESS_S} s): raise the rate",
            3.0 / slowest
        ));
    }
    let seen = windows().filter_map(|w| w.upper_s).max_by(f64::total_cmp);
    let clocks = phase::clocks(timeline, of_mode().map(|(_, end)| end));
    refused_because.extend(clocks.iter().filter_map(Clock::in_step));
    let largest = clocks.iter().map(Clock::longest_s).fold(seen.unwrap_or(0.0), f64::max);
    let covers_all = (n > 0 && censored == 0 && is_sound && windows().next().is_some())
        .then(|| stats::ceil_seconds(largest));
    let set = Settings::of(of_mode().map(|(_, end)| end));
    // No advice lowers what is set.
    let pre_stop =
        covers_all.filter(|_| refused_because.is_empty()).map(|s| (s + policy.margin_s).max(set.pre_stop_s));
    let stopping = of_mode().map(|(_, e)| stopping_s(e)).try_fold(0.0f64, |max, s| s.map(|s| max.max(s)));
    let grace =
        pre_stop.zip(stopping).map(|(p, s)| (p + stats::ceil_seconds(s) + policy.margin_s).max(set.grace_s));
    let stopping_text = match stopping {
        Some(s) => format!("the slowest pod took {s:.2} s from SIGTERM to its end"),
        None => "the time from SIGTERM to the pod's end was not seen for every pod".to_owned(),
    };
    let consumers: BTreeSet<&str> = windows().map(|w| w.consumer.as_str()).collect();
    Recommendation {
        mode,
        pre_stop_seconds: pre_stop,
        termination_grace_period_seconds: grace,
        confidence: policy.confidence,
        coverage: stats::wilks_coverage(units, policy.confidence),
        coverage_asked: policy.coverage,
        terminations: n,
        units,
        consumers: consumers.into_iter().map(str::to_owned).collect(),
        basis: format!(
            "{}{}; a sleep is the longest time rounded up, with {} s of margin, and never below the current \
             setting; {stopping_text}",
            longest_window(seen, windows().count(), censored),
            clocks.iter().map(Clock::in_words).collect::<String>(),
            policy.margin_s
        ),
        terminations_needed: needed.saturating_sub(units),
        refused_because,
        covers_all_seen_seconds: covers_all,
        suggested_seconds: covers_all
            .filter(|s| *s > set.pre_stop_s && has_saved(ground, mode, *s, set.pre_stop_s)),
    }
}

/// The longest window, as far as it is known.
fn longest_window(upper_s: Option<f64>, windows: usize, censored: usize) -> String {
    match upper_s {
        Some(upper_s) if censored == 0 => format!("the longest of the windows lasted at most {upper_s:.3} s"),
        Some(upper_s) => format!(
            "the longest of the {} windows that have an upper bound lasted at most {upper_s:.3} s",
            windows - censored
        ),
        None if windows == 0 => "there are no windows".to_owned(),
        None => "how long the longest window lasted is unknown, as none has an upper bound".to_owned(),
    }
}

/// Why these windows are not enough.
fn too_few(policy: &Policy, n: usize, units: usize, needed: usize) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let what = if units < n {
        format!("the longest window of {n} pods, which left the rules in {units} steps that count,")
    } else {
        format!("the longest window of {n}")
    };
    format!(
        "{what} covers {} of future ones at {} confidence; {} more are needed to claim {} coverage",
        percent(stats::wilks_coverage(units, policy.confidence)),
        percent(policy.confidence),
        needed - units,
        percent(policy.coverage)
    )
}

/// How many independent ends the windows show. Pods that one sync of a Service proxy removes from its rules share the
/// end of their windows, so windows that may have ended at the same time count once: the count is that of ends that
/// are surely apart. With several consumers, the consumer with the fewest counts.
fn units<'a>(consumers: usize, terminations: impl Iterator<Item = &'a Termination> + Clone) -> usize {
    let of_consumer =
        |consumer: usize| apart(terminations.clone().map(|t| (t, t.windows.get(consumer)))).len();
    (0..consumers).map(of_consumer).min().unwrap_or(0)
}

/// The windows, in blocks that surely ended apart from each other.
pub(super) fn apart<'a>(
    windows: impl Iterator<Item = (&'a Termination, Option<&'a Window>)>,
) -> Vec<Vec<(&'a Termination, Option<&'a Window>)>> {
    let end = |(t, window): (&'a Termination, Option<&'a Window>)| {
        let lower_s = window.and_then(|w| w.lower_s).unwrap_or(0.0);
        let upper_s = window.and_then(|w| w.upper_s).unwrap_or(f64::INFINITY);
        (t.t0_s + lower_s, t.t0_s - t.t0_uncertainty_s + upper_s, (t, window))
    };
    let mut ends: Vec<_> = windows.map(end).collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut blocks: Vec<Vec<_>> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for (from, to, window) in ends {
        match blocks.last_mut() {
            Some(block) if from <= last => block.push(window),
            _ => {
                last = to;
                blocks.push(vec![window]);
            }
        }
    }
    blocks
}

/// The current settings of the pods of a mode: the largest of each.
#[derive(Clone, Copy, Debug)]
struct Settings {
    pre_stop_s: u64,
    grace_s: u64,
}

impl Settings {
    fn of<'a>(ends: impl Iterator<Item = &'a PodEnd> + Clone) -> Self {
        let largest =
            |values: &mut dyn Iterator<Item = i64>| values.filter_map(|s| u64::try_from(s).ok()).max();
        Self {
            pre_stop_s: largest(&mut ends.clone().filter_map(|end| end.pre_stop_sleep_s)).unwrap_or(0),
            grace_s: largest(&mut ends.map(|end| end.grace_s)).unwrap_or(0),
        }
    }
}

/// Whether requests were lost in this mode that a sleep of this many seconds would have saved.
fn has_saved(ground: Ground<'_>, mode: Mode, pre_stop_s: u64, had_s: u64) -> bool {
    let is_of_mode =
        |j: &&Judged<'_>| j.candidates.iter().any(|c| ground.terminations[c.termination].mode == mode);
    ground.judged.iter().filter(is_of_mode).any(|j| saves(ground, j, pre_stop_s, had_s))
}

/// Whether a request would not have been lost if every pod that may have lost it had slept this long before it
/// stopped, instead of the current setting.
fn saves(ground: Ground<'_>, j: &Judged<'_>, pre_stop_s: u64, had_s: u64) -> bool {
    pre_stop_s > had_s && needed(ground, j).is_some_and(|needed| pre_stop_s as f64 > needed.certain_s)
}

/// The sleep beyond which a request would not have been lost; `None` if no sleep helps it.
///
/// A request that was routed to a pod that no longer accepted it would have been accepted. A request that was cut off
/// as the pod ended would have been answered, if it takes no longer than requests do; whether an app had read it
/// makes no difference.
fn needed(ground: Ground<'_>, j: &Judged<'_>) -> Option<SleepNeeded> {
    let takes_s = match j.cause {
        cause if cause.is_helped_by_sleep() => 0.0,
        Cause::KilledInFlight if !j.request.row.conn_reused => ground.service_s,
        _ => return None,
    };
    let t0 = |c: &Candidate| ground.timeline.ends[c.termination].t0;
    let since = |at: Stamp| j.request.begun().seconds_since(at) + takes_s;
    let certain_s = j.candidates.iter().map(|c| since(t0(c).earliest)).reduce(f64::max)?;
    let possible_s = j.candidates.iter().map(|c| since(t0(c).latest)).reduce(f64::min)?;
    Some(SleepNeeded { certain_s, possible_s })
}

/// For each dropped request, the sleep that it needed.
pub(super) fn sleeps(ground: Ground<'_>) -> Vec<Option<SleepNeeded>> {
    ground.judged.iter().map(|j| needed(ground, j)).collect()
}

/// From SIGTERM to the end of app and proxy; `None` if not seen or cut short by SIGKILL.
fn stopping_s(end: &PodEnd) -> Option<f64> {
    if end.exit_code == Some(137) {
        return None;
    }
    let ended = end.stages.proxy_exited.max(end.stages.app_exited).or(end.stages.containers_terminated)?;
    Some(ended.seconds_since(end.may_stop_from()).max(0.0))
}

/// What some sleeps would have done. Sleeps shorter than a pod already had are omitted: their losses were not seen.
pub(super) fn what_if(ground: Ground<'_>, covering: Option<u64>) -> Vec<WhatIf> {
    let terminations = ground.terminations;
    if terminations.is_empty() {
        return Vec::new();
    }
    let had = Settings::of(ground.timeline.ends.iter()).pre_stop_s;
    let sleeps: BTreeSet<u64> =
        [0, 1, 2, 5, 10].into_iter().chain(covering).chain([had]).filter(|s| *s >= had).collect();
    sleeps
        .into_iter()
        .map(|pre_stop_seconds| {
            let is_covered = |t: &&Termination| {
                !t.windows.is_empty()
                    && t.windows.iter().all(|w| w.upper_s.is_some_and(|u| u <= pre_stop_seconds as f64))
            };
            let avoided = ground.judged.iter().filter(|j| saves(ground, j, pre_stop_seconds, had)).count();
            WhatIf {
                pre_stop_seconds,
                windows_covered: terminations.iter().filter(is_covered).count(),
                terminations: terminations.len(),
                drops_avoided: avoided as u64,
                drops_left: (ground.judged.len() - avoided) as u64,
            }
        })
        .collect()
}
