//! Validity and completeness of the measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::count::sums::Sums;
use crate::model::account::{Incomplete, Invalid, MeasuredQuantity, Missing};
use crate::model::{LoadResult, Percentiles, Termination, WatchGap};
use crate::timeline::{HandOver, Timeline};
use rolldrop_record::Stamp;
use rolldrop_record::event::MachineSample;
use rolldrop_record::run_info::{Role, Rows};

/// Share of unsent requests among the scheduled ones above which a run is invalid.
const NOT_SENT_SHARE: f64 = 0.001;
/// 99th percentile of the send lag, in milliseconds, above which a run is invalid.
const SEND_LAG_P99_MS: f64 = 100.0;
/// Share of CPU time stolen by the hypervisor, averaged over the load, above which a run is invalid.
const STEAL: f64 = 0.20;
/// Number of threads in one measuring process that waited for a CPU, averaged over the load, above which a run is
/// invalid.
const RUN_QUEUE_DELAY: f64 = 1.0;
/// Share of busy CPU time on the machine that sends the load, averaged over the load, at which a run is invalid. The
/// closer it is to 1, the longer runnable threads wait; at 0.95 a queue is twenty times as long as on an idle machine.
/// On the embedded cluster, the pods, the Service proxy and the load share that machine. A closed loop intentionally
/// uses all capacity and has no such limit, nor does a load sent from pods in the cluster.
const BUSY: f64 = 0.95;
/// Duration, in seconds, of a standstill of a measuring process or the embedded cluster under load at which a run is
/// invalid.
const STOOD_STILL_S: f64 = 3.0;
/// Share of a standstill that threads spent waiting for a processor, below which the machine was not the reason.
const WAITED: f64 = 0.25;
/// Ratio of the send lag's 99th percentile to the measured quantity above which a run is invalid. The quantity is the
/// median window, or if no pod was terminated, the 99th percentile of the response time. Beyond this ratio the
/// generator's own lag dominates.
const SEND_LAG_SHARE: f64 = 0.5;
/// Send lag of an ordinary scheduler, in milliseconds, which is allowed however short a window is.
pub(crate) const SEND_LAG_FLOOR_MS: f64 = 50.0;

impl MeasuredQuantity {
    /// Determines the quantity measured by a run with these terminations; `None` if no request was answered.
    pub(crate) fn of(terminations: &[Termination], response: &Percentiles) -> Option<Self> {
        let windows = terminations.iter().flat_map(|t| &t.windows);
        let mut bounds: Vec<f64> = windows.filter_map(|w| w.upper_s.or(w.lower_s)).collect();
        bounds.sort_by(f64::total_cmp);
        match bounds.get(bounds.len() / 2) {
            Some(median_s) => Some(Self::Windows(median_s * 1e3)),
            None if response.n == 0 => None,
            None => Some(Self::Latency(response.p99)),
        }
    }

    /// Returns a reason if the load generator's lag is too large to measure this quantity.
    pub(crate) fn drowned_by(self, load: &LoadResult) -> Option<Invalid> {
        let (Self::Windows(measured_ms) | Self::Latency(measured_ms)) = self;
        let lag_ms = load.send_lag_us.p99 / 1000.0;
        let limit_ms = (SEND_LAG_SHARE * measured_ms).max(SEND_LAG_FLOOR_MS);
        // Without intended send times there is no lag.
        let is_drowned = !load.is_closed_loop() && lag_ms > limit_ms;
        is_drowned.then_some(Invalid::Drowned { measured: self, lag_ms, limit_ms })
    }
}

/// Lists the reasons why a load differed from the requested one; `by_reason` counts the unsent requests.
pub fn not_as_planned(load: &LoadResult, by_reason: &BTreeMap<String, u64>) -> Vec<Invalid> {
    let mut why = Vec::new();
    let LoadResult { not_sent, scheduled, .. } = *load;
    if not_sent as f64 / scheduled.max(1) as f64 > NOT_SENT_SHARE {
        let by_reason = by_reason.clone();
        why.push(Invalid::NotAllSent { not_sent, scheduled, limit: NOT_SENT_SHARE, by_reason });
    }
    if scheduled == 0 {
        why.push(Invalid::NothingRecorded);
    }
    let lag_ms = load.send_lag_us.p99 / 1000.0;
    if lag_ms > SEND_LAG_P99_MS {
        why.push(Invalid::FellBehind { lag_ms, limit_ms: SEND_LAG_P99_MS });
    }
    why
}

/// Lists the reasons why the run is invalid.
pub(crate) fn invalid(
    timeline: &Timeline,
    load: &LoadResult,
    by_reason: &BTreeMap<String, u64>,
    measured: Option<MeasuredQuantity>,
    terminations: &[Termination],
) -> Vec<Invalid> {
    // Only the abort explains why nothing was recorded.
    let aborted = timeline.info.aborted.clone().filter(|_| load.scheduled == 0);
    let mut why: Vec<Invalid> = aborted.into_iter().map(Invalid::Aborted).collect();
    why.extend(not_as_planned(load, by_reason));
    why.extend(timeline.integrity.contradictions.iter().cloned().map(Invalid::Contradiction));
    if why.is_empty() {
        why.extend(measured.and_then(|measured| measured.drowned_by(load)));
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
        let share = average(|s| s.steal);
        if share > STEAL {
            why.push(Invalid::Steal { source: source.clone(), share, limit: STEAL });
        }
        let waiting = average(|s| s.run_queue_delay);
        if waiting > RUN_QUEUE_DELAY {
            why.push(Invalid::Starved { source: source.clone(), waiting, limit: RUN_QUEUE_DELAY });
        }
        busiest = Some(average(|s| s.busy).max(busiest.unwrap_or(0.0)));
    }
    why.extend(busiest.and_then(|busy| too_busy(timeline, load, busy)));
    for Termination { pod, watch_gaps, .. } in terminations {
        for WatchGap { resource, from_s, to_s, .. } in watch_gaps.iter().filter(|gap| gap.lost) {
            let (resource, pod) = (resource.clone(), pod.clone());
            why.push(Invalid::WatchGap { resource, pod, length_s: to_s - from_s });
        }
    }
    why.extend(blind_at_the_end(timeline));
    why.extend(stood_still(timeline));
    why
}

/// Reports each process that stood still for a while under load although a processor was available. Its samples, taken
/// every second, have a gap there.
fn stood_still(timeline: &Timeline) -> Vec<Invalid> {
    let during = |from: Stamp, to: Stamp| from <= timeline.load_ended && to >= timeline.origin;
    let stood_still = |source: Option<&String>, (from, to): (Stamp, Stamp)| {
        let [from_s, to_s] = [from, to].map(|at| timeline.seconds(at));
        Invalid::StoodStill { source: source.cloned(), from_s, to_s }
    };
    let gap = |(at, sample): &(Stamp, MachineSample)| {
        let is_gap = sample.interval_s >= STOOD_STILL_S && sample.run_queue_delay < WAITED;
        is_gap.then(|| (*at - Duration::try_from_secs_f64(sample.interval_s).unwrap_or_default(), *at))
    };
    let mut why = Vec::new();
    for (source, samples) in &timeline.notes.machine {
        let gaps = samples.iter().filter_map(gap).filter(|(from, to)| during(*from, *to));
        why.extend(gaps.map(|gap| stood_still(Some(source), gap)));
    }
    let has_said = !why.is_empty();
    let silences = timeline.notes.silences.iter().filter(|(from, to)| {
        // While the coordinator stood still, it sent no probes to the cluster either.
        !has_said && to.seconds_since(*from) >= STOOD_STILL_S && during(*from, *to)
    });
    why.extend(silences.map(|silence| stood_still(None, *silence)));
    why
}

/// Returns a reason if the machine was too busy to measure.
fn too_busy(timeline: &Timeline, load: &LoadResult, busy: f64) -> Option<Invalid> {
    let comes_from_pods = timeline.info.load.load_workers.is_some();
    let limit = timeline.info.max_busy.unwrap_or(BUSY);
    let is_too_busy = busy >= limit && limit < 1.0 && !load.is_closed_loop() && !comes_from_pods;
    is_too_busy.then_some(Invalid::Busy { share: busy, limit })
}

/// Returns a reason if the pod watch did not recover before the load ended, because terminations in that time cannot be
/// marked.
fn blind_at_the_end(timeline: &Timeline) -> Option<Invalid> {
    let lost = timeline.gaps.iter().filter(|gap| gap.is_lost && gap.is_of_pods());
    let unlisted = lost.filter(|gap| !timeline.was_listed_after(gap) && gap.from <= timeline.load_ended);
    let from = unlisted.map(|gap| gap.from).min()?;
    Some(Invalid::BlindAtEnd { length_s: timeline.load_ended.seconds_since(from) })
}

/// Lists the reasons why the record is incomplete.
pub(crate) fn incomplete(timeline: &Timeline, sums: &Sums<'_>) -> Vec<Incomplete> {
    let mut why = Vec::new();
    if timeline.info.interrupted {
        why.push(Incomplete::Interrupted);
    } else if let Some(too_much) = &timeline.info.aborted {
        why.push(Incomplete::Aborted(too_much.clone()));
    } else if !timeline.info.complete {
        why.push(Incomplete::NotCompleted);
    }
    why.extend(timeline.torn.iter().cloned().map(Incomplete::Torn));
    why.extend(timeline.corrupt.iter().cloned().map(Incomplete::Corrupt));
    let mut missing = timeline.integrity.missing.clone();
    let loads = timeline.info.sources.iter().filter(|source| source.role == Role::Load);
    let handed_over: Vec<_> = loads.filter_map(|source| Some((&source.name, source.rows?))).collect();
    let is_whole = |rows: &Rows| rows.recorded == Some(rows.received);
    missing.extend(handed_over.iter().filter(|(_, rows)| !is_whole(rows)).map(|(source, rows)| {
        let by_count = sums.all.counts.without_rows.get(*source).cloned();
        Missing::HandedOver { source: (*source).clone(), rows: *rows, by_count }
    }));
    // A source that hands over its rows reports its own missing rows.
    let recorded = sums.recorded;
    let is_alone = handed_over.is_empty() && timeline.integrity.missing.is_empty();
    if let Some(scheduled) = timeline.announced.filter(|announced| *announced != recorded && is_alone) {
        missing.push(Missing::Rows { scheduled, recorded });
    }
    missing.extend(
        timeline
            .notes
            .hand_overs
            .iter()
            .filter(|proxy| proxy.misses_rows())
            .map(|HandOver { source, rows, .. }| Missing::OfProxy { proxy: source.clone(), rows: *rows }),
    );
    missing.extend(
        sums.unrecorded
            .iter()
            .map(|(pod, requests)| Missing::Answered { pod: (*pod).to_owned(), requests: *requests }),
    );
    why.extend(missing.into_iter().map(Incomplete::Missing));
    why
}
