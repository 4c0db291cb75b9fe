//! Whether the measurement can be believed, and whether it is whole.

use std::collections::{BTreeMap, BTreeSet};

use super::figures::count;
use super::model::{LoadResult, Termination, WatchGap};
use super::sums::Sums;
use crate::record::Outcome;
use crate::record::event::MachineSample;
use crate::record::run_info::{Role, Rows};
use crate::timeline::{HandOver, Timeline};

/// Beyond these the run is invalid, not wrong.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Share of scheduled requests that were not sent.
    pub not_sent_share: f64,
    /// 99th percentile of the send lag, in milliseconds.
    pub send_lag_p99_ms: f64,
    /// Share of CPU time taken by the hypervisor, averaged over the load.
    pub steal: f64,
    /// Threads of one measuring process that stood waiting for a CPU, averaged over the load.
    pub run_queue_delay: f64,
}

/// The stated limits.
pub const LIMITS: Limits =
    Limits { not_sent_share: 0.001, send_lag_p99_ms: 100.0, steal: 0.20, run_queue_delay: 1.0 };

/// Each reason why a load was not what was asked for.
pub fn not_as_planned(load: &LoadResult) -> Vec<String> {
    let mut why = Vec::new();
    if load.scheduled == 0 {
        why.push("no request was recorded".to_owned());
    }
    let not_sent = load.not_sent as f64 / load.scheduled.max(1) as f64;
    if not_sent > LIMITS.not_sent_share {
        why.push(format!(
            "{} of {} requests were not sent ({:.2} %, limit {:.2} %)",
            count(load.not_sent),
            count(load.scheduled),
            not_sent * 100.0,
            LIMITS.not_sent_share * 100.0
        ));
    }
    let lag_ms = load.send_lag_us.p99 / 1000.0;
    if lag_ms > LIMITS.send_lag_p99_ms {
        why.push(format!(
            "one request in a hundred was sent {lag_ms:.0} ms late or later (limit {:.0} ms): the load generator fell behind",
            LIMITS.send_lag_p99_ms
        ));
    }
    why
}

/// Each reason why the run is invalid.
pub(super) fn invalid(timeline: &Timeline, load: &LoadResult, terminations: &[Termination]) -> Vec<String> {
    let mut why = not_as_planned(load);
    for (source, samples) in &timeline.machine {
        let average = |value: fn(&MachineSample) -> f64| {
            let during =
                || samples.iter().filter(|(at, _)| *at >= timeline.origin && *at <= timeline.load_ended);
            let length: f64 = during().map(|(_, s)| s.interval_s).sum();
            let sum: f64 = during().map(|(_, s)| value(s) * s.interval_s).sum();
            if length > 0.0 { sum / length } else { 0.0 }
        };
        let steal = average(|s| s.steal);
        if steal > LIMITS.steal {
            why.push(format!(
                "the hypervisor took {:.0} % of the CPU time where {source} ran (limit {:.0} %)",
                steal * 100.0,
                LIMITS.steal * 100.0
            ));
        }
        let delay = average(|s| s.run_queue_delay);
        if delay > LIMITS.run_queue_delay {
            why.push(format!(
                "{delay:.2} threads of {source} stood waiting for a CPU on average (limit {:.1}): the machine was starved",
                LIMITS.run_queue_delay
            ));
        }
    }
    for gap in terminations.iter().flat_map(|t| t.watch_gaps.iter().map(move |gap| (gap, &t.pod))) {
        let (WatchGap { resource, from_s, to_s, lost }, pod) = gap;
        if *lost {
            let s = to_s - from_s;
            why.push(format!("the watch of {resource} saw nothing for {s:.2} s while pod {pod} ended"));
        }
    }
    why.extend(blind_at_the_end(timeline));
    why
}

/// What happened to pods until the load ended is not known if their watch did not come back: then no
/// termination that fell into that could be marked.
fn blind_at_the_end(timeline: &Timeline) -> Option<String> {
    let lost = timeline.gaps.iter().filter(|gap| gap.is_lost && gap.resource == "pods");
    let unlisted = lost.filter(|gap| !timeline.was_listed_after(gap) && gap.from <= timeline.load_ended);
    let from = unlisted.map(|gap| gap.from).min()?;
    let s = timeline.load_ended.seconds_since(from);
    Some(format!("the watch of pods saw nothing in the last {s:.2} s of the load"))
}

/// Each reason why the record is not whole.
pub(super) fn partial(timeline: &Timeline, sums: &Sums<'_>) -> Vec<String> {
    let mut why = Vec::new();
    if timeline.info.interrupted {
        why.push("the run was interrupted".to_owned());
    } else if let Some(too_much) = &timeline.info.aborted {
        why.push(format!("the run was aborted: {too_much}"));
    } else if !timeline.info.complete {
        why.push("the run did not come to its end".to_owned());
    }
    why.extend(timeline.torn.iter().cloned());
    let loads = timeline.info.sources.iter().filter(|source| source.role == Role::Load);
    let handed_over: Vec<_> = loads.filter_map(|source| Some((&source.name, source.rows?))).collect();
    let by_count = |source: &String| sums.counts.without_rows.get(source);
    why.extend(
        handed_over.iter().filter_map(|(source, rows)| missing_requests(source, *rows, by_count(source))),
    );
    // Sources that hand over say so each for itself.
    let rows = sums.recorded;
    if let Some(announced) = timeline.announced.filter(|a| *a != rows && handed_over.is_empty()) {
        why.push(format!("{} requests were scheduled, {} were recorded", count(announced), count(rows)));
    }
    why.extend(timeline.hand_overs.iter().filter_map(missing_rows));
    why.extend(sums.unrecorded.iter().map(|(pod, requests)| {
        format!("{} requests that pod {pod} answered have no row of its proxy", count(*requests))
    }));
    why
}

/// What a load source is known to have recorded, or to have had in flight, that did not arrive.
fn missing_requests(source: &str, rows: Rows, by_count: Option<&BTreeMap<Outcome, u64>>) -> Option<String> {
    let Rows { recorded, known, in_flight, received } = rows;
    let (received, known) = match recorded {
        Some(recorded) if recorded == received => return None,
        Some(recorded) => (count(received), count(recorded)),
        None => (count(received), format!("at least {}", count(known))),
    };
    let counted = by_count.map_or_else(String::new, |by_count| {
        let each: Vec<_> = by_count.iter().map(|(o, n)| format!("{} {}", count(*n), o.as_str())).collect();
        format!("; known by count alone, and in no figure: {}", each.join(", "))
    });
    let flying = match in_flight {
        0 => String::new(),
        _ => format!("; {} were in flight when it was last heard of", count(in_flight)),
    };
    Some(format!(
        "of {known} requests of {source} the rows of {received} arrived, above all of those that were not ok, \
         which weigh too much in all shares{counted}{flying}"
    ))
}

/// What a proxy is known to have recorded, or to have had in hand, that did not arrive.
fn missing_rows(proxy: &HandOver) -> Option<String> {
    let Rows { recorded, known, in_flight, received } = proxy.rows;
    let source = &proxy.source;
    match recorded {
        None => {
            let (missing, received) = (count(known.saturating_sub(received)), count(received));
            Some(format!(
                "the proxy {source} ended without handing over all its rows: {received} arrived, at least \
                 {missing} did not, and {} requests were under way when it was last heard of",
                count(in_flight)
            ))
        }
        Some(recorded) if recorded != received => {
            Some(format!("the proxy {source} recorded {} rows, {} arrived", count(recorded), count(received)))
        }
        Some(_) => None,
    }
}

/// Pods whose proxies' rows did not all arrive.
pub(super) fn incomplete(timeline: &Timeline) -> BTreeSet<&str> {
    timeline.hand_overs.iter().filter(|p| missing_rows(p).is_some()).map(|p| p.pod.as_str()).collect()
}
