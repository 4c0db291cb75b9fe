//! Validity and completeness of the measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::count::not_sent::{self, reasons_in_words};
use crate::count::sums::Sums;
use crate::model::figures::count;
use crate::model::{FindingKind, LoadResult, Percentiles, Termination, WatchGap};
use crate::timeline::{HandOver, Timeline};
use rolldrop_record::event::MachineSample;
use rolldrop_record::run_info::{Role, Rows};
use rolldrop_record::{Outcome, Stamp};

/// Share of the scheduled requests that were not sent, above which a run is invalid.
const NOT_SENT_SHARE: f64 = 0.001;
/// 99th percentile of the send lag, in milliseconds, above which a run is invalid.
const SEND_LAG_P99_MS: f64 = 100.0;
/// Share of the CPU time that the hypervisor took, averaged over the load, above which a run is invalid.
const STEAL: f64 = 0.20;
/// Number of threads of one measuring process that waited for a CPU, averaged over the load, above which a run is
/// invalid.
const RUN_QUEUE_DELAY: f64 = 1.0;
/// Share of the CPU time in use on the machine that sends the load, averaged over the load, from which a run is
/// invalid. The nearer to 1, the longer runnable threads wait: at 0.95 a queue is twenty times as long as on an idle
/// machine. On the embedded cluster the pods, the Service proxy and the load share that machine. A closed loop uses all
/// there is, by intent, and has no such limit; neither has a load that comes from pods of the cluster.
const BUSY: f64 = 0.95;
/// Time, in seconds, for which a process of the measurement, or the embedded cluster, did nothing under load, and from
/// which a run is invalid.
const STOOD_STILL_S: f64 = 3.0;
/// Share of such a time below which threads that waited for a processor show that the machine was not the reason.
const WAITED: f64 = 0.25;
/// Ratio of the 99th percentile of the send lag to the measured quantity, above which a run is invalid. The quantity is
/// the median window, or if no pod ended, the 99th percentile of the response time. Beyond this ratio the generator's
/// own lag is the greater part.
const SEND_LAG_SHARE: f64 = 0.5;
/// Send lag of an ordinary scheduler, in milliseconds; up to this it is allowed however short a window is.
pub(crate) const SEND_LAG_FLOOR_MS: f64 = 50.0;

/// Reason why a run is invalid, or its record incomplete.
#[derive(Clone, Debug)]
pub(crate) struct Reason {
    /// Reason as text, with figures.
    pub(crate) what: String,
    /// Kind of finding: [`FindingKind::Corrupt`] if the record is damaged or contradicts itself.
    pub(crate) kind: FindingKind,
    /// Remedy, if it differs from that of others of the kind.
    pub(crate) remedy: Option<String>,
}

impl Reason {
    const fn invalid(what: String) -> Self {
        Self { what, kind: FindingKind::Invalid, remedy: None }
    }

    const fn missing(what: String) -> Self {
        Self { what, kind: FindingKind::Missing, remedy: None }
    }

    const fn corrupt(what: String) -> Self {
        Self { what, kind: FindingKind::Corrupt, remedy: None }
    }
}

/// Quantity that a run measures, in milliseconds: the send lag must be small compared with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measured {
    /// Windows; the median of their bounds.
    Windows(f64),
    /// Only latencies; the 99th percentile of the response time.
    Latency(f64),
    /// Nothing: no request was answered.
    Nothing,
}

impl Measured {
    /// Determines the quantity that a run with these terminations measures.
    pub(crate) fn of(terminations: &[Termination], response: &Percentiles) -> Self {
        let windows = terminations.iter().flat_map(|t| &t.windows);
        let mut bounds: Vec<f64> = windows.filter_map(|w| w.upper_s.or(w.lower_s)).collect();
        bounds.sort_by(f64::total_cmp);
        match bounds.get(bounds.len() / 2) {
            Some(median_s) => Self::Windows(median_s * 1e3),
            None if response.n == 0 => Self::Nothing,
            None => Self::Latency(response.p99),
        }
    }

    /// Returns the reason why the load generator's lag is too large to measure this, if it is.
    pub fn drowned_by(self, load: &LoadResult) -> Option<String> {
        let (what, measured_ms) = match self {
            Self::Windows(ms) => ("median window", ms),
            Self::Latency(ms) => ("99th percentile of the response time", ms),
            Self::Nothing => return None,
        };
        let lag_ms = load.send_lag_us.p99 / 1000.0;
        let limit_ms = (SEND_LAG_SHARE * measured_ms).max(SEND_LAG_FLOOR_MS);
        // Without intended send times there is no lag.
        let is_drowned = !load.is_closed_loop() && lag_ms > limit_ms;
        is_drowned.then(|| {
            format!(
                "1 % of the requests were sent {lag_ms:.0} ms late or later, and the {what} is \
                 {measured_ms:.0} ms (limit {limit_ms:.0} ms): the lag is the load generator's own"
            )
        })
    }
}

/// Lists the reasons why a load was not the one that was asked for; `by_reason` counts the requests that were not sent.
pub fn not_as_planned(load: &LoadResult, by_reason: &BTreeMap<String, u64>) -> Vec<String> {
    let mut why = Vec::new();
    why.extend(not_all_sent(load, by_reason));
    if load.scheduled == 0 {
        why.push("no request was recorded".to_owned());
    }
    let lag_ms = load.send_lag_us.p99 / 1000.0;
    if lag_ms > SEND_LAG_P99_MS {
        why.push(format!(
            "1 % of the requests were sent {lag_ms:.0} ms late or later (limit {SEND_LAG_P99_MS:.0} ms): the load \
             generator fell behind"
        ));
    }
    why
}

/// Returns the reason, with figures, if too many requests were not sent.
fn not_all_sent(load: &LoadResult, by_reason: &BTreeMap<String, u64>) -> Option<String> {
    let not_sent = load.not_sent as f64 / load.scheduled.max(1) as f64;
    (not_sent > NOT_SENT_SHARE).then(|| {
        let because = match by_reason.is_empty() {
            true => String::new(),
            false => format!("; {}", reasons_in_words(by_reason)),
        };
        format!(
            "{} of {} requests were not sent ({:.2} %, limit {:.2} %){because}",
            count(load.not_sent),
            count(load.scheduled),
            not_sent * 100.0,
            NOT_SENT_SHARE * 100.0
        )
    })
}

/// Lists the reasons why the run is invalid.
pub(crate) fn invalid(
    timeline: &Timeline,
    load: &LoadResult,
    by_reason: &BTreeMap<String, u64>,
    measured: Measured,
    terminations: &[Termination],
) -> Vec<Reason> {
    // Nothing else gives the reason why nothing was recorded.
    let aborted = timeline.info.aborted.as_deref().filter(|_| load.scheduled == 0).map(was_aborted);
    let unsent = not_all_sent(load, by_reason);
    let planned = not_as_planned(load, by_reason);
    let mut why: Vec<Reason> = aborted.into_iter().chain(planned).map(Reason::invalid).collect();
    for reason in why.iter_mut().filter(|reason| unsent.as_ref() == Some(&reason.what)) {
        reason.remedy = Some(not_sent::remedy(by_reason)).filter(|remedy| !remedy.is_empty());
    }
    why.extend(timeline.integrity.contradictions.iter().cloned().map(Reason::corrupt));
    let mut others = Vec::new();
    if why.is_empty() {
        others.extend(measured.drowned_by(load));
    }
    let mut busiest: Option<f64> = None;
    for (source, samples) in &timeline.notes.machine {
        let average = |value: fn(&MachineSample) -> f64| {
            let during =
                || samples.iter().filter(|(at, _)| *at >= timeline.origin && *at <= timeline.load_ended);
            let length: f64 = during().map(|(_, s)| s.interval_s).sum();
            let sum: f64 = during().map(|(_, s)| value(s) * s.interval_s).sum();
            if length > 0.0 { sum / length } else { 0.0 }
        };
        let steal = average(|s| s.steal);
        if steal > STEAL {
            others.push(format!(
                "the hypervisor took {:.0} % of the CPU time where {source} ran (limit {:.0} %)",
                steal * 100.0,
                STEAL * 100.0
            ));
        }
        let delay = average(|s| s.run_queue_delay);
        if delay > RUN_QUEUE_DELAY {
            others.push(format!(
                "{delay:.2} threads of {source} waited for a CPU on average (limit {RUN_QUEUE_DELAY:.1}): the machine \
                 was starved"
            ));
        }
        busiest = Some(average(|s| s.busy).max(busiest.unwrap_or(0.0)));
    }
    others.extend(busiest.and_then(|busy| too_busy(timeline, load, busy)));
    for Termination { pod, watch_gaps, .. } in terminations {
        for WatchGap { resource, from_s, to_s, .. } in watch_gaps.iter().filter(|gap| gap.lost) {
            let s = to_s - from_s;
            others.push(format!("the watch of {resource} saw nothing for {s:.2} s while pod {pod} ended"));
        }
    }
    others.extend(blind_at_the_end(timeline));
    why.extend(others.into_iter().map(Reason::invalid));
    why.extend(stood_still(timeline));
    why
}

/// Reports each process that did nothing for a while under load, although it had a processor. Its samples, one each
/// second, have a gap then.
fn stood_still(timeline: &Timeline) -> Vec<Reason> {
    let during = |from: Stamp, to: Stamp| from <= timeline.load_ended && to >= timeline.origin;
    let say = |what: &str, from: Stamp, to: Stamp, remedy: &str| {
        let [from_s, to_s] = [from, to].map(|at| timeline.seconds(at));
        let s = to_s - from_s;
        let what = format!("{what} stood still for {s:.1} s, from {from_s:.1} to {to_s:.1} s");
        Reason { remedy: Some(remedy.to_owned()), ..Reason::invalid(what) }
    };
    let gap = |(at, sample): &(Stamp, MachineSample)| {
        let is_gap = sample.interval_s >= STOOD_STILL_S && sample.run_queue_delay < WAITED;
        is_gap.then(|| (*at - Duration::try_from_secs_f64(sample.interval_s).unwrap_or_default(), *at))
    };
    let mut why = Vec::new();
    for (source, samples) in &timeline.notes.machine {
        let remedy = "repeat it, and do not stop or suspend its processes; a lower rate changes nothing";
        let gaps = samples.iter().filter_map(gap).filter(|(from, to)| during(*from, *to));
        why.extend(gaps.map(|(from, to)| say(source, from, to, remedy)));
    }
    let has_said = !why.is_empty();
    let silences = timeline.notes.silences.iter().filter(|(from, to)| {
        // If the coordinator stood still, so did its questions.
        !has_said && to.seconds_since(*from) >= STOOD_STILL_S && during(*from, *to)
    });
    let remedy = "repeat it, and do not stop or suspend the embedded cluster; a lower rate changes nothing \
                  unless the machine was busy";
    why.extend(silences.map(|(from, to)| say("the embedded cluster", *from, *to, remedy)));
    why
}

/// Returns the reason why a machine this busy cannot measure; `None` if it can.
fn too_busy(timeline: &Timeline, load: &LoadResult, busy: f64) -> Option<String> {
    let comes_from_pods = timeline.info.load.load_workers.is_some();
    let limit = timeline.info.max_busy.unwrap_or(BUSY);
    (busy >= limit && limit < 1.0 && !load.is_closed_loop() && !comes_from_pods).then(|| {
        format!(
            "{:.0} % of the processors' time was in use on the machine that sent the load (limit {:.0} %): what is \
             late by that is not the cluster's",
            busy * 100.0,
            limit * 100.0
        )
    })
}

/// Returns a reason if the watch of pods did not come back before the load ended: no termination in that time can be
/// marked.
fn blind_at_the_end(timeline: &Timeline) -> Option<String> {
    let lost = timeline.gaps.iter().filter(|gap| gap.is_lost && gap.is_of_pods());
    let unlisted = lost.filter(|gap| !timeline.was_listed_after(gap) && gap.from <= timeline.load_ended);
    let from = unlisted.map(|gap| gap.from).min()?;
    let s = timeline.load_ended.seconds_since(from);
    Some(format!("the watch of pods saw nothing in the last {s:.2} s of the load"))
}

fn was_aborted(why: &str) -> String {
    format!("the run was aborted: {why}")
}

/// Lists the reasons why the record is incomplete.
pub(crate) fn partial(timeline: &Timeline, sums: &Sums<'_>) -> Vec<Reason> {
    let mut why = Vec::new();
    if timeline.info.interrupted {
        why.push("the run was interrupted".to_owned());
    } else if let Some(too_much) = &timeline.info.aborted {
        why.push(was_aborted(too_much));
    } else if !timeline.info.complete {
        why.push("the run did not complete".to_owned());
    }
    why.extend(timeline.torn.iter().cloned());
    let mut missing = timeline.integrity.missing.clone();
    let loads = timeline.info.sources.iter().filter(|source| source.role == Role::Load);
    let handed_over: Vec<_> = loads.filter_map(|source| Some((&source.name, source.rows?))).collect();
    let by_count = |source: &String| sums.all.counts.without_rows.get(source);
    missing.extend(
        handed_over.iter().filter_map(|(source, rows)| missing_requests(source, *rows, by_count(source))),
    );
    // A source that hands its rows over reports for itself.
    let rows = sums.recorded;
    let is_alone = handed_over.is_empty() && timeline.integrity.missing.is_empty();
    if let Some(announced) = timeline.announced.filter(|announced| *announced != rows && is_alone) {
        missing.push(format!("{} requests were scheduled, {} were recorded", count(announced), count(rows)));
    }
    missing.extend(timeline.notes.hand_overs.iter().filter_map(missing_rows));
    missing.extend(sums.unrecorded.iter().map(|(pod, requests)| {
        format!("{} requests that pod {pod} answered have no row of its proxy", count(*requests))
    }));
    let mut why: Vec<Reason> = why.into_iter().map(Reason::missing).collect();
    why.extend(timeline.corrupt.iter().cloned().map(Reason::corrupt));
    why.extend(missing.into_iter().map(Reason::missing));
    why
}

/// Describes requests that a load source recorded, or had in flight, and that did not arrive.
fn missing_requests(source: &str, rows: Rows, by_count: Option<&BTreeMap<Outcome, u64>>) -> Option<String> {
    let Rows { recorded, known, in_flight, received } = rows;
    let (received, known) = match recorded {
        Some(recorded) if recorded == received => return None,
        Some(recorded) => (count(received), count(recorded)),
        None => (count(received), format!("at least {}", count(known))),
    };
    let counted = by_count.map_or_else(String::new, |by_count| {
        let each: Vec<_> = by_count.iter().map(|(o, n)| format!("{} {}", count(*n), o.as_str())).collect();
        format!("; known only as counts, in no figure: {}", each.join(", "))
    });
    let flying = match in_flight {
        0 => String::new(),
        _ => format!("; {} were in flight at its last report", count(in_flight)),
    };
    Some(format!(
        "of {known} requests of {source} the rows of {received} arrived, above all of those that were not ok, \
         which weigh too much in all shares{counted}{flying}"
    ))
}

/// Describes requests that a proxy recorded, or had in flight, and that did not arrive.
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
        // Requests that end while a proxy reports its total are in its rows, and not in the total.
        Some(recorded) if recorded > received => {
            Some(format!("the proxy {source} recorded {} rows, {} arrived", count(recorded), count(received)))
        }
        Some(_) => None,
    }
}
