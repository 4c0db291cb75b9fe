//! Outcomes of a run's streams, in total and for each terminated pod.

use std::collections::BTreeMap;
use std::time::Duration;

use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::stream_records::StreamRecord;
use crate::math::values::ValueHistogram;
use crate::model::figure_text::len;
use crate::model::{
    LostData, OpenStreamCounts, SteadyStreams, StreamEnds, StreamPhase, StreamResult, StreamTimes,
    TerminationStreams, UnevenStreams,
};
use crate::timeline::periods::Periods;
use crate::timeline::{Requests, Timeline};
use rolldrop_record::parts::PartError;
use rolldrop_record::{Outcome, Stamp};

/// Probability that chance alone makes a distribution this uneven, below which it counts as uneven.
const UNEVEN_ALPHA: f64 = 0.001;
/// Factor by which the fullest pod must also exceed the mean.
const UNEVEN_FACTOR: f64 = 1.5;
/// Number of steps of the series of open streams.
const STEPS: usize = 400;

/// Streams of a run.
#[derive(Debug)]
pub(crate) struct StreamTotals {
    /// All streams in the counted part.
    pub result: StreamResult,
    /// By termination; empty if nothing identifies the streams' pods.
    pub by_termination: Vec<TerminationStreams>,
    /// Streams open over time.
    pub open: Vec<OpenStreamCounts>,
    /// Streams of the steady part.
    pub steady: SteadyStreams,
}

impl StreamTotals {
    /// Returns the totals of a run that was disrupted in these periods; `None` if it has no streams.
    pub(crate) fn of(
        timeline: &Timeline,
        disrupted: &Periods,
        records: &[StreamRecord],
        gap_ms: StreamTimes,
    ) -> Option<Self> {
        let steady = SteadyStreams::of(timeline, records)?;
        let counted: Vec<&StreamRecord> = records.iter().filter(|record| record.is_counted).collect();
        let mut result = StreamResult {
            total: len(counted.len()),
            missing: steady.missing,
            survival: steady.survival.clone(),
            uneven: uneven(timeline, records),
            gap_ms: (gap_ms != StreamTimes::default()).then_some(gap_ms),
            ..times(&counted, disrupted)
        };
        for record in &counted {
            *match record.outcome {
                Outcome::StreamCut => &mut result.cut,
                Outcome::StreamUnfinished => &mut result.unfinished,
                Outcome::StreamAborted => &mut result.aborted,
                Outcome::StreamStalled => &mut result.stalled,
                Outcome::Cancelled => &mut result.cancelled,
                _ => &mut result.ok,
            } += 1;
            result.lost.add(record);
        }
        let open = open(timeline, records);
        result.open_max = open.iter().map(OpenStreamCounts::open).max().unwrap_or(0);
        Some(Self { result, by_termination: by_termination(timeline, records), open, steady })
    }
}

impl LostData {
    /// Adds the data that a stream had delivered, if the stream was lost.
    fn add(&mut self, record: &StreamRecord) {
        if record.is_lost() {
            self.events_lost += record.row.events;
            self.bytes_lost += record.row.bytes;
            if let Some(tokens) = record.row.tokens {
                *self.tokens_lost.get_or_insert(0) += tokens;
            }
        }
    }
}

impl StreamEnds {
    fn of_mut(&mut self, outcome: Outcome) -> &mut u64 {
        match outcome {
            Outcome::Ok => &mut self.completed,
            Outcome::StreamAborted => &mut self.told,
            _ => &mut self.cut,
        }
    }
}

/// Returns the times to the first event and the longest gaps, steady and disrupted.
fn times(records: &[&StreamRecord], disrupted: &Periods) -> StreamResult {
    let (mut first, mut gaps) = (<[ValueHistogram; 2]>::default(), <[ValueHistogram; 2]>::default());
    for record in records {
        let place = |from: Stamp, to: Stamp| usize::from(disrupted.meet(from, to));
        if let Some(at) = record.row.first_event {
            first[place(record.begun, at)].add(at.ns_since(record.begun));
        }
        if let (Some(start), Some(ns), Outcome::Ok) =
            (record.row.gap_start, record.row.longest_gap, record.outcome)
        {
            let ns = ns.cast_signed();
            gaps[place(start, start.shifted_ns(ns))].add(ns);
        }
    }
    StreamResult {
        first_event_ms: StreamTimes::of(first),
        longest_gap_ms: StreamTimes::of(gaps),
        ..StreamResult::default()
    }
}

impl StreamTimes {
    fn of([steady, disrupted]: [ValueHistogram; 2]) -> Self {
        Self { steady: steady.percentiles(), disrupted: disrupted.percentiles() }
    }

    /// Returns the times between events, steady and disrupted. The time at which a gap ended is known only to the
    /// second. A gap that may have overlapped a disruption counts as disrupted.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub(crate) fn between_events(requests: &Requests, disrupted: &Periods) -> Result<Self, PartError> {
        let mut gaps = <[ValueHistogram; 2]>::default();
        requests.each_gap(|row| {
            let from = row.second.shifted_ns(-i64::try_from(row.gap_ns).unwrap_or(i64::MAX));
            let place = usize::from(disrupted.meet(from, row.second + Duration::from_secs(1)));
            gaps[place].add_equal(row.gap_ns, row.gaps);
        })?;
        Ok(Self::of(gaps))
    }
}

/// Returns the streams of each terminated pod from t0 on; none if nothing identifies the pods.
fn by_termination(timeline: &Timeline, records: &[StreamRecord]) -> Vec<TerminationStreams> {
    if records.iter().all(|record| record.pod.is_none()) {
        return Vec::new();
    }
    let mut all = vec![TerminationStreams::default(); timeline.ends.len()];
    for record in records {
        let Some(e) = record.pod.as_ref().and_then(|pod| timeline.end_of(pod, record.begun)) else {
            continue;
        };
        let end = &timeline.ends[e];
        if record.end < end.t0.earliest {
            continue;
        }
        let of = &mut all[e];
        *if record.begun <= end.t0.latest { &mut of.alive_at_t0 } else { &mut of.began_later } += 1;
        if record.outcome == Outcome::Cancelled {
            of.open_at_end += 1;
            continue;
        }
        // A stream that was not lost did not end because of the grace period.
        let phase = match end.stream_phase(record.end) {
            StreamPhase::AtGraceEnd if !record.is_lost() => StreamPhase::AfterSigterm,
            phase => phase,
        };
        *of.phase_mut(phase).of_mut(record.outcome) += 1;
        of.lost.add(record);
        let ended_s = record.end.seconds_since(end.t0.latest);
        of.last_ended_s = Some(of.last_ended_s.map_or(ended_s, |last| last.max(ended_s)));
    }
    all
}

/// Returns the streams open over time.
fn open(timeline: &Timeline, records: &[StreamRecord]) -> Vec<OpenStreamCounts> {
    let last = records.iter().map(|record| record.end).max().unwrap_or(timeline.origin);
    let step_ns = last.ns_since(timeline.origin).max(1).unsigned_abs().div_ceil(STEPS as u64).max(1);
    let step_s = step_ns as f64 / 1e9;
    let mut series: Vec<OpenStreamCounts> = (0..=STEPS)
        .map(|step| OpenStreamCounts { at_s: step as f64 * step_s, ..OpenStreamCounts::default() })
        .collect();
    // Index of the first step at or after a time.
    let first = |at: Stamp| {
        let since = at.ns_since(timeline.origin).max(0).unsigned_abs();
        usize::try_from(since.div_ceil(step_ns)).unwrap_or(STEPS).min(STEPS + 1)
    };
    for record in records {
        for at in &mut series[first(record.begun)..first(record.end).max(first(record.begun))] {
            *match record.outcome {
                Outcome::Cancelled => &mut at.open_at_end,
                outcome => at.ends.of_mut(outcome),
            } += 1;
        }
    }
    series
}

/// Returns the distribution of the streams over the pods when the load ended, if the run was disrupted before and
/// chance does not explain the difference. Uses Pearson's chi-squared test against equal shares.
fn uneven(timeline: &Timeline, records: &[StreamRecord]) -> Option<UnevenStreams> {
    let at = timeline.load_ended;
    let last = timeline.ends.iter().map(|end| end.gone().unwrap_or(end.t0.latest)).max()?;
    let ended: Vec<&str> = timeline.ends.iter().map(|end| end.uid.as_str()).collect();
    let serving = timeline.pods.iter().filter(|life| {
        life.endpoint_ready.or(life.ready).is_some_and(|ready| ready <= at) && !ended.contains(&&*life.uid)
    });
    let mut open: BTreeMap<&str, u64> = serving.map(|life| (life.name.as_str(), 0)).collect();
    for record in records.iter().filter(|record| record.begun <= at && record.end >= at) {
        if let Some(open) = record.pod.as_deref().and_then(|pod| open.get_mut(pod)) {
            *open += 1;
        }
    }
    let (pods, sum) = (open.len(), open.values().sum::<u64>());
    let mean = sum as f64 / pods as f64;
    let most = open.iter().max_by_key(|(_, n)| **n)?;
    let fewest = open.iter().min_by_key(|(_, n)| **n)?;
    // The approximation needs five expected streams per pod.
    if pods < 2 || mean < 5.0 || last > at || (*most.1 as f64) < UNEVEN_FACTOR * mean {
        return None;
    }
    let chi: f64 = open.values().map(|n| (*n as f64 - mean).powi(2) / mean).sum();
    let by_chance = ChiSquared::new(pods as f64 - 1.0).ok()?.sf(chi);
    (by_chance < UNEVEN_ALPHA).then(|| UnevenStreams {
        pods,
        open: sum,
        most: ((*most.0).to_owned(), *most.1),
        fewest: ((*fewest.0).to_owned(), *fewest.1),
        after_s: at.seconds_since(last),
    })
}
