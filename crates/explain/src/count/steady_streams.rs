//! Streams of the steady part of a run: after the population had built up, and before the first termination.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::stream_records::StreamRecord;
use crate::math::stats;
use crate::math::survival::{Life, Survival};
use crate::model::{MOST_MISSING, MissingShare, SpanEnd, SteadyStreams, StreamSpan};
use crate::timeline::Timeline;
use rolldrop_record::{Outcome, Stamp};

/// Confidence of the survival curve's bands, which are not shown here.
const BANDS: f64 = 0.95;
/// Maximum number of steps of the survival curve that are kept.
const MOST_STEPS: usize = 400;
impl SteadyStreams {
    /// Returns the steady part of a run. Returns `None` if the run has no streams.
    pub(crate) fn of(timeline: &Timeline, records: &[StreamRecord]) -> Option<Self> {
        let began = records.iter().map(|record| record.begun).min()?;
        let spans: Vec<StreamSpan> = records.iter().map(|record| StreamSpan::of(timeline, record)).collect();
        let first_end = timeline.ends.iter().map(|end| end.t0.earliest).min();
        let last_began = records.iter().map(|record| record.begun).max()?;
        let to = first_end.map_or(last_began, |first| first.min(last_began));
        let lives: Vec<Life> = spans.iter().map(Life::from).collect();
        let survival = Survival::of(&lives, BANDS);
        let missing_at = |at: Stamp| survival.as_ref()?.missing_share(at.seconds_since(began).max(0.0));
        let from = grown(timeline.origin.max(began), to, |at| missing_at(at).map(MissingShare::at_least));
        // A pod created later did not serve throughout the period.
        let late = timeline.pods.iter().filter(|life| !life.listed && life.created > from);
        let late: BTreeSet<&str> = late.map(|life| life.name.as_str()).collect();
        let mut pods: BTreeMap<Arc<str>, Vec<StreamSpan>> = BTreeMap::new();
        let mut unnamed = 0;
        for (record, span) in records.iter().zip(spans) {
            match &record.pod {
                Some(pod) if span.start < to && !late.contains(&**pod) => {
                    pods.entry(Arc::clone(pod)).or_default().push(span)
                }
                Some(_) => {}
                None => unnamed += 1,
            }
        }
        let numbered = pods
            .values()
            .enumerate()
            .flat_map(|(pod, spans)| spans.iter().map(move |span| StreamSpan { pod, ..*span }));
        Some(Self {
            spans: numbered.collect(),
            pods: pods.keys().cloned().collect(),
            from,
            to,
            missing: missing_at(from),
            unnamed,
            survival: survival.as_ref().map(|curve| curve.thinned(MOST_STEPS)).unwrap_or_default(),
        })
    }
}

/// Returns the first time at which at most the share [`MOST_MISSING`] is missing, to within 0.1 s; `to` if there is
/// none.
fn grown(from: Stamp, to: Stamp, missing: impl Fn(Stamp) -> Option<f64>) -> Stamp {
    /// Accuracy in nanoseconds.
    const STEP_NS: i64 = 100_000_000;

    let steps = to.ns_since(from).max(0).unsigned_abs() / STEP_NS.unsigned_abs();
    let after = |steps: u64| from.shifted_ns(steps.cast_signed() * STEP_NS);
    let is_grown = |steps: u64| missing(after(steps)).is_some_and(|share| share <= MOST_MISSING);
    let grown = if is_grown(0) { 0 } else { stats::first(0, steps + 1, is_grown) };
    after(grown).min(to)
}

impl StreamSpan {
    /// Returns the span of a stream, on pod 0. It ends at its pod's t0 at the latest, because streams may end sooner in
    /// a pod that gets no new work.
    fn of(timeline: &Timeline, record: &StreamRecord) -> Self {
        let (start, end) = (record.begun, record.end);
        let censored = |end| Self { pod: 0, start, end, ended: SpanEnd::Censored, entered: None };
        let t0 = (record.pod.as_ref())
            .and_then(|pod| timeline.end_of(pod, start))
            .map(|e| timeline.ends[e].t0.earliest.max(start));
        match t0 {
            Some(t0) if t0 <= end => censored(t0),
            _ if record.outcome == Outcome::Ok => Self { ended: SpanEnd::Complete, ..censored(end) },
            _ => censored(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_part_begins_when_little_is_missing() {
        let at = |s: i64| Stamp::from_unix_ns(s * 1_000_000_000);
        let missing = |at: Stamp| Some(1.0 / (1.0 + at.unix_ns() as f64 / 1e9));
        assert_eq!(grown(at(0), at(200), missing), at(99));
        assert_eq!(grown(at(120), at(200), missing), at(120));
        assert_eq!(grown(at(0), at(50), missing), at(50));
        assert_eq!(grown(at(0), at(200), |_| None), at(200));
    }
}
