//! Streams of the steady part of a run: after the population had grown, and before the first termination.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::math::stats;
use crate::math::survival::{Life, MissingShare, Survival};
use crate::model::{SpanEnd, StreamSpan};
use crate::timeline::{Request, Requests, Timeline};
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::{Outcome, Stamp};

/// Share of the stationary population that may be missing at the beginning of the steady part.
pub const MOST_MISSING: f64 = 0.01;
/// Confidence of the survival curve's bands, which are not shown here.
const BANDS: f64 = 0.95;
/// Columns that a request's pod and its times need.
const COLUMNS: Wanted = Wanted::Only(&[
    "source",
    "seq",
    "target",
    "scheduled_ns",
    "connect_start_ns",
    "sent_ns",
    "head_ns",
    "end_ns",
    "outcome",
    "grpc_status",
    "conn",
    "conn_reused",
    "local_port",
    "remote_addr",
    "routed_to",
    "pod",
]);

/// Streams of the steady part of a run.
#[derive(Clone, Debug)]
pub struct SteadyStreams {
    /// All streams on pods that served throughout the period, by pod.
    pub spans: Vec<StreamSpan>,
    /// Names of these pods, in the order of their numbers.
    pub pods: Vec<Arc<str>>,
    /// Beginning of the period.
    pub from: Stamp,
    /// End of the period: the first t0, or the end of the load.
    pub to: Stamp,
    /// Share of the stationary population that is missing when the period begins; `None` if it is unknown.
    pub missing: Option<MissingShare>,
    /// Number of streams whose pod nothing names.
    pub unnamed: u64,
}

/// A stream with the name of its pod.
type NamedSpan = (Option<Arc<str>>, StreamSpan);

impl SteadyStreams {
    /// Reads the streams of a run. Returns `None` if the run has no streams.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub fn of(timeline: &Timeline, requests: &Requests) -> Result<Option<Self>, PartError> {
        let add = |spans: &mut Vec<NamedSpan>, request: &Request| spans.extend(span(request));
        let mut spans = requests.unheld(COLUMNS, Vec::new, add, |spans, later| spans.extend(later))?;
        requests.others.iter().for_each(|request| add(&mut spans, request));
        let Some(began) = spans.iter().map(|(_, span)| span.start).min() else { return Ok(None) };
        let first_end = timeline.ends.iter().map(|end| end.t0.earliest).min();
        let to = first_end.map_or(timeline.load_ended, |first| first.min(timeline.load_ended));
        let lives: Vec<Life> = spans.iter().map(|(_, span)| Life::from(span)).collect();
        let survival = Survival::of(&lives, BANDS);
        let missing_at = |at: Stamp| survival.as_ref()?.missing_share(at.seconds_since(began).max(0.0));
        let from = grown(timeline.origin.max(began), to, |at| missing_at(at).map(MissingShare::at_least));
        // A pod that came later did not serve throughout the period.
        let late = timeline.pods.iter().filter(|life| !life.listed && life.created > from);
        let late: BTreeSet<&str> = late.map(|life| life.name.as_str()).collect();
        let mut pods: BTreeMap<Arc<str>, Vec<StreamSpan>> = BTreeMap::new();
        let mut unnamed = 0;
        for (pod, span) in spans {
            match pod {
                Some(pod) if span.start < to && !late.contains(&*pod) => {
                    pods.entry(pod).or_default().push(span)
                }
                Some(_) => {}
                None => unnamed += 1,
            }
        }
        let numbered = pods
            .values()
            .enumerate()
            .flat_map(|(pod, spans)| spans.iter().map(move |span| StreamSpan { pod, ..*span }));
        Ok(Some(Self {
            spans: numbered.collect(),
            pods: pods.keys().cloned().collect(),
            from,
            to,
            missing: missing_at(from),
            unnamed,
        }))
    }

    /// Returns true if the population is as large as it will be, as far as the record shows.
    pub fn is_stationary(&self) -> bool {
        self.missing.is_some_and(|missing| missing.at_least() <= MOST_MISSING)
    }
}

/// Returns the first time from which no more than [`MOST_MISSING`] is missing, to 0.1 s; `to` if there is none.
fn grown(from: Stamp, to: Stamp, missing: impl Fn(Stamp) -> Option<f64>) -> Stamp {
    /// Accuracy in nanoseconds.
    const STEP_NS: i64 = 100_000_000;

    let steps = to.ns_since(from).max(0).unsigned_abs() / STEP_NS.unsigned_abs();
    let after = |steps: u64| from.shifted_ns(steps.cast_signed() * STEP_NS);
    let is_grown = |steps: u64| missing(after(steps)).is_some_and(|share| share <= MOST_MISSING);
    let grown = if is_grown(0) { 0 } else { stats::first(0, steps + 1, is_grown) };
    after(grown).min(to)
}

/// Returns a request's stream and the name of its pod, if its response began as a stream.
fn span(request: &Request) -> Option<NamedSpan> {
    let row = &request.row;
    let ended = match row.outcome {
        Outcome::Ok => SpanEnd::Complete,
        Outcome::StreamCut
        | Outcome::StreamUnfinished
        | Outcome::StreamAborted
        | Outcome::StreamStalled
        | Outcome::Cancelled => SpanEnd::Censored,
        _ => return None,
    };
    row.head?;
    let span = StreamSpan { pod: 0, start: request.begun(), end: row.end, ended, entered: None };
    Some((request.pod().cloned(), span))
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
