//! Checks on latencies, outages and pod starts, as observed in this run.

use super::figure::{each_limit, each_within};
use crate::judgements::basis::{Basis, LatencyBasis, Measured, PodFact};
use crate::judgements::gate_check::Check;
use rolldrop_explain::model::{Latencies, Percentiles, Start, StartStage, Unit};
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

pub(super) fn millis(percentiles: &Percentiles, figure: LatencyFigure) -> Measured {
    let Some(value_ms) = percentiles.known(figure) else {
        return too_few(Unit::Millis, percentiles.n, figure);
    };
    let basis = Basis::Latency(figure, LatencyBasis::Answers(percentiles.n));
    Measured::exactly(Unit::Millis, value_ms).because(basis)
}

fn ratio(disrupted: &Percentiles, steady: &Percentiles, figure: LatencyFigure) -> Measured {
    let steady_ms = steady.known(figure).filter(|ms| *ms > 0.0);
    let (Some(disrupted_ms), Some(steady_ms)) = (disrupted.known(figure), steady_ms) else {
        return too_few(Unit::Times, disrupted.n.min(steady.n), figure);
    };
    let basis = Basis::Latency(figure, LatencyBasis::Ratio { disrupted_ms, steady_ms });
    Measured::exactly(Unit::Times, disrupted_ms / steady_ms).because(basis)
}

fn too_few(unit: Unit, answers: u64, figure: LatencyFigure) -> Measured {
    let needed = Percentiles::fewest(figure);
    Measured::unknown(unit, Basis::Latency(figure, LatencyBasis::Few { answers, needed }))
}

/// Returns the longest outage. An outage that the end of the load cut short has no upper bound.
pub(super) fn outage(longest_s: f64, is_failing_at_end: bool) -> Measured {
    match is_failing_at_end {
        true => Measured::between(Unit::Seconds, Some(longest_s), None, None).because(Basis::StillFailing),
        false => Measured::exactly(Unit::Seconds, longest_s),
    }
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
