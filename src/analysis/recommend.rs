//! What the windows support saying about settings, and what they do not.

use std::collections::{BTreeMap, BTreeSet};

use super::Judged;
use super::model::{Mode, Recommendation, Termination, WhatIf, WindowSummary};
use super::policy::Policy;
use super::stats;
use crate::timeline::{PodEnd, Timeline};

/// A pod that gets new connections too seldom shows its window too coarsely:
/// 3/λ may not exceed this many seconds.
const MAX_COARSENESS_S: f64 = 0.5;

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

/// One recommendation or refusal per mode.
pub(super) fn recommendations(
    timeline: &Timeline,
    terminations: &[Termination],
    judged: &[Judged<'_>],
    policy: &Policy,
    invalid: bool,
) -> Vec<Recommendation> {
    let modes: BTreeSet<Mode> = terminations.iter().map(|t| t.mode).collect();
    let of = |mode| {
        let lost = |j: &&Judged<'_>| {
            is_helped_by_sleep(j) && j.candidates.iter().any(|c| terminations[c.termination].mode == mode)
        };
        let mut recommendation = recommendation(mode, timeline, terminations, policy, invalid);
        if judged.iter().any(|j| lost(&j)) {
            recommendation.suggested_seconds = recommendation.covers_all_seen_seconds;
        }
        recommendation
    };
    modes.into_iter().map(of).collect()
}

fn recommendation(
    mode: Mode,
    timeline: &Timeline,
    terminations: &[Termination],
    policy: &Policy,
    invalid: bool,
) -> Recommendation {
    let of_mode = || terminations.iter().zip(&timeline.ends).filter(|(t, _)| t.mode == mode);
    let windows = || of_mode().flat_map(|(t, _)| &t.windows);
    let n = of_mode().count();
    let needed = stats::wilks_needed(policy.coverage, policy.confidence);
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let mut refused_because = Vec::new();
    if invalid {
        refused_because.push("the measurement is not valid".to_owned());
    }
    if n < needed {
        refused_because.push(format!(
            "the longest window of {n} covers, with {} confidence, {} of future ones only; to say so of {} takes {} more terminations",
            percent(policy.confidence),
            percent(stats::wilks_coverage(n, policy.confidence)),
            percent(policy.coverage),
            needed - n
        ));
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
    let largest = windows().filter_map(|w| w.upper_s).fold(0.0, f64::max);
    let covers_all = (n > 0 && censored == 0 && !invalid && windows().next().is_some())
        .then(|| stats::ceil_seconds(largest));
    let pre_stop = covers_all.filter(|_| refused_because.is_empty()).map(|s| s + policy.margin_s);
    let stopping = of_mode().map(|(_, e)| stopping_s(e)).try_fold(0.0f64, |max, s| s.map(|s| max.max(s)));
    let grace = pre_stop.zip(stopping).map(|(p, s)| p + stats::ceil_seconds(s) + policy.margin_s);
    let stopping_text = match stopping {
        Some(s) => format!("the slowest pod took {s:.2} s from SIGTERM to its end"),
        None => "how long a pod takes from SIGTERM to its end was not seen for every pod".to_owned(),
    };
    let consumers: BTreeSet<&str> = windows().map(|w| w.consumer.as_str()).collect();
    Recommendation {
        mode,
        pre_stop_seconds: pre_stop,
        termination_grace_period_seconds: grace,
        confidence: policy.confidence,
        coverage: stats::wilks_coverage(n, policy.confidence),
        coverage_asked: policy.coverage,
        terminations: n,
        consumers: consumers.into_iter().map(str::to_owned).collect(),
        basis: format!(
            "the longest of the windows lasted {largest:.3} s at most; that is rounded up, with {} s of margin; {stopping_text}",
            policy.margin_s
        ),
        terminations_needed: needed.saturating_sub(n),
        refused_because,
        covers_all_seen_seconds: covers_all,
        suggested_seconds: None,
    }
}

/// Whether the request was lost because the app stopped before the consumers knew.
fn is_helped_by_sleep(j: &Judged<'_>) -> bool {
    j.cause.is_helped_by_sleep()
}

/// From SIGTERM to the end of app and proxy; `None` if not seen or cut short by SIGKILL.
fn stopping_s(end: &PodEnd) -> Option<f64> {
    if end.exit_code == Some(137) {
        return None;
    }
    let ended = end.stages.proxy_exited.max(end.stages.app_exited).or(end.stages.containers_terminated)?;
    Some(ended.seconds_since(end.may_stop_from()).max(0.0))
}

/// What some sleeps would have done. Shorter ones than a pod already had are
/// left out: what they would have lost was not seen.
pub(super) fn what_if(
    timeline: &Timeline,
    terminations: &[Termination],
    judged: &[Judged<'_>],
    covering: Option<u64>,
) -> Vec<WhatIf> {
    if terminations.is_empty() {
        return Vec::new();
    }
    let had = timeline.ends.iter().filter_map(|e| u64::try_from(e.pre_stop_sleep_s?).ok()).max().unwrap_or(0);
    let sleeps: BTreeSet<u64> =
        [0, 1, 2, 5, 10].into_iter().chain(covering).chain([had]).filter(|s| *s >= had).collect();
    sleeps
        .into_iter()
        .map(|pre_stop_seconds| {
            let sleep = std::time::Duration::from_secs(pre_stop_seconds);
            let covered = |t: &&Termination| {
                !t.windows.is_empty()
                    && t.windows.iter().all(|w| w.upper_s.is_some_and(|u| u <= pre_stop_seconds as f64))
            };
            let avoided = |j: &&Judged<'_>| {
                is_helped_by_sleep(j)
                    && pre_stop_seconds > had
                    && !j.candidates.is_empty()
                    && j.candidates
                        .iter()
                        .all(|c| j.request.begun() < timeline.ends[c.termination].t0.earliest + sleep)
            };
            let drops_avoided = judged.iter().filter(avoided).count() as u64;
            WhatIf {
                pre_stop_seconds,
                windows_covered: terminations.iter().filter(covered).count(),
                terminations: terminations.len(),
                drops_avoided,
                drops_left: judged.len() as u64 - drops_avoided,
            }
        })
        .collect()
}
