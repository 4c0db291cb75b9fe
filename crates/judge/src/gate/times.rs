//! Checks on latencies, outages, pod starts and rollouts, as observed in this run.

use std::collections::BTreeMap;

use super::figure::{each_limit, each_within};
use crate::judgements::basis::{Basis, LatencyBasis, Measured, PodFact};
use crate::judgements::gate_check::Check;
use rolldrop_explain::model::{
    Latencies, Mode, Percentiles, RunResult, Stage, Start, StartStage, Termination, Unit,
};
use rolldrop_record::expect::{
    Bounds, LatencyFigure, LatencyFigures, LatencyLimit, LatencyLimits, Span, StartLimits,
};

/// Returns the groups of latencies by key. The latencies of all requests are response times or, in a closed loop,
/// service times.
pub(super) fn parts(latencies: &Latencies, is_closed_loop: bool) -> [(&'static str, &Percentiles); 3] {
    let all = if is_closed_loop { &latencies.service } else { &latencies.response };
    [("latency", all), ("latency.steady", &latencies.steady), ("latency.disrupted", &latencies.disrupted)]
}

pub(super) fn latency(latencies: &Latencies, is_closed_loop: bool, limits: &LatencyLimits) -> Vec<Check> {
    let parts = parts(latencies, is_closed_loop);
    let limits = [limits.all(), limits.steady.unwrap_or_default(), limits.disrupted.unwrap_or_default()];
    let of_part = |((part, percentiles), limits): ((&str, &Percentiles), LatencyFigures)| {
        let of_figure = |(figure, bounds): (LatencyFigure, Bounds<LatencyLimit>)| {
            let name = format!("{part}.{figure}");
            each_limit(bounds, |limit, side| match limit {
                LatencyLimit::Time(time) => {
                    millis(percentiles, figure).against(&name, time.seconds() * 1e3, side)
                }
                LatencyLimit::Times(times) => {
                    ratio(percentiles, &latencies.steady, figure).against(&name, times, side)
                }
            })
        };
        limits.set().flat_map(of_figure).collect::<Vec<_>>()
    };
    parts.into_iter().zip(limits).flat_map(of_part).collect()
}

/// Returns a latency figure, and the minimum number of requests that it requires.
fn value(percentiles: &Percentiles, figure: LatencyFigure) -> (f64, u64) {
    match figure {
        LatencyFigure::Mean => (percentiles.mean, 1),
        LatencyFigure::P50 => (percentiles.p50, 2),
        LatencyFigure::P90 => (percentiles.p90, 10),
        LatencyFigure::P95 => (percentiles.p95, 20),
        LatencyFigure::P99 => (percentiles.p99, 100),
        LatencyFigure::P99_9 => (percentiles.p99_9, 1000),
    }
}

pub(super) fn millis(percentiles: &Percentiles, figure: LatencyFigure) -> Measured {
    let (value_ms, fewest) = value(percentiles, figure);
    if percentiles.n < fewest {
        return too_few(Unit::Millis, percentiles.n, figure, fewest);
    }
    let basis = Basis::Latency(figure, LatencyBasis::Answers(percentiles.n));
    Measured::exactly(Unit::Millis, value_ms).because(basis)
}

fn ratio(disrupted: &Percentiles, steady: &Percentiles, figure: LatencyFigure) -> Measured {
    let ((disrupted_ms, fewest), (steady_ms, _)) = (value(disrupted, figure), value(steady, figure));
    let n = disrupted.n.min(steady.n);
    if n < fewest || steady_ms <= 0.0 {
        return too_few(Unit::Times, n, figure, fewest);
    }
    let basis = Basis::Latency(figure, LatencyBasis::Ratio { disrupted_ms, steady_ms });
    Measured::exactly(Unit::Times, disrupted_ms / steady_ms).because(basis)
}

fn too_few(unit: Unit, answers: u64, figure: LatencyFigure, needed: u64) -> Measured {
    Measured::unknown(unit, Basis::Latency(figure, LatencyBasis::Few { answers, needed }))
}

pub(super) fn outage(longest_s: f64, bounds: Bounds<Span>) -> Vec<Check> {
    Measured::exactly(Unit::Seconds, longest_s).within("outage", bounds.map(Span::seconds))
}

/// Checks the time to the first request of each starting pod.
pub(super) fn first_request(starts: &[Start], limits: &StartLimits) -> Vec<Check> {
    let Some(bounds) = limits.first_request else { return Vec::new() };
    each_within("starts.firstRequest", bounds.map(Span::seconds), &each_start(starts), no_start)
}

/// Returns the time to the first request of each starting pod.
pub(super) fn each_start(starts: &[Start]) -> Vec<Measured> {
    let of = |start: &Start| match start.timeline.get(&StartStage::FirstRequest) {
        Some(at_s) => Measured::exactly(Unit::Seconds, *at_s),
        None => Measured::unknown(Unit::Seconds, Basis::Pod(start.pod.clone(), PodFact::NoFirstRequest)),
    };
    starts.iter().map(of).collect()
}

pub(super) fn no_start() -> Measured {
    Measured::unknown(Unit::Seconds, Basis::NoStart)
}

/// Checks the duration of each rollout, from the first deletion of an old pod until the last old pod was gone.
pub(super) fn rollout(result: &RunResult, bounds: Bounds<Span>) -> Vec<Check> {
    each_within("rollout", bounds.map(Span::seconds), &each_rollout(result), no_rollout)
}

/// Returns the duration of each rollout.
pub(super) fn each_rollout(result: &RunResult) -> Vec<Measured> {
    let mut rollouts: BTreeMap<_, Vec<&Termination>> = BTreeMap::new();
    for t in result.terminations.iter().filter(|t| t.mode == Mode::Rollout) {
        rollouts.entry((t.disruption, t.repetition)).or_default().push(t);
    }
    // In a StatefulSet, the previous pod had the same name.
    let is_it = |t: &Termination, start: &Start| match start.uid.as_str() {
        "" => t.pod == start.pod,
        uid => t.uid == uid,
    };
    let has_ended = |start: &&Start| result.terminations.iter().any(|t| is_it(t, start));
    let serves = |start: &&Start| {
        [StartStage::Ready, StartStage::FirstRequest].iter().any(|stage| start.timeline.contains_key(stage))
    };
    let starting = result.starts.iter().find(|start| !serves(start) && !has_ended(start));
    rollouts.values().map(|pods| length(pods, starting)).collect()
}

pub(super) fn no_rollout() -> Measured {
    Measured::unknown(Unit::Seconds, Basis::NoRollout)
}

/// Returns the duration of one rollout. `starting` is a pod that was not yet ready when the run ended; old pods may
/// then have ended later.
fn length(pods: &[&Termination], starting: Option<&Start>) -> Measured {
    let began = pods.iter().map(|t| t.t0_s).min_by(f64::total_cmp).unwrap_or(0.0);
    let gone = |t: &&Termination| Some(t.t0_s + t.timeline.get(&Stage::PodDeleted)?);
    let last = pods.iter().filter_map(gone).max_by(f64::total_cmp);
    let low = last.map(|last| last - began);
    let left = pods.iter().find(|t| gone(t).is_none());
    let open = match (left, starting) {
        (Some(left), _) => Basis::Pod(left.pod.clone(), PodFact::NotGone),
        (None, Some(starting)) => Basis::Pod(starting.pod.clone(), PodFact::NotReady),
        (None, None) => return Measured::between(Unit::Seconds, low, low, low),
    };
    Measured::between(Unit::Seconds, low, None, None).because(open)
}
