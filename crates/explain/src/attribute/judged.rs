//! Conclusion about each lost request: its cause, and the terminations that may have caused it to be lost.

use std::sync::Arc;

use crate::attribute::cause_decision::{
    self, AttemptFacts, ByGateway, LossFacts, PodState, ROUND_TRIP_NS, Served,
};
use crate::attribute::suspects::Explanations;
use crate::math::values::ValueHistogram;
use crate::model::{CandidateReason, TerminationCandidate, Unclear, Window};
use crate::route::arrivals::{ArrivalTail, has_met};
use crate::route::facts::Facts;
use crate::route::gateway;
use crate::route::window::window_end;
use crate::timeline::connections::lost_streams::StreamCarriers;
use crate::timeline::drop_policy::OutcomeClass;
use crate::timeline::endpoint_history::Scope;
use crate::timeline::{Request, StreamRows, Timeline};
use rolldrop_record::event::MachineSample;
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::{Balances, Target};
use rolldrop_record::{Cause, Outcome, Phase, RequestRow, ServedEnd, Stamp};

/// Share of busy processor time, 0 to 1, at which the machine alone may lose requests.
const FULL: f64 = 0.95;
/// Minimum number of connects needed to estimate the round-trip time.
const CONNECTS_AT_LEAST: u64 = 20;
/// Lower limit for the crossing time, because client and server together may add this much to two round trips.
const CROSSING_AT_LEAST_NS: i64 = 5_000_000;
/// Multiple of the usual response time at which an app counts as unable to keep up.
const SLOW: f64 = 10.0;
/// Minimum median response time, in milliseconds, of a second in which an app counts as unable to keep up.
const SLOW_MS: f64 = 50.0;

/// Dropped request with its conclusion.
#[derive(Debug)]
pub(crate) struct JudgedRequest<'a> {
    pub(crate) request: &'a Request,
    pub(crate) cause: Cause,
    /// Reason why no cause is given; `None` if there is one.
    pub(crate) unclear: Option<Unclear>,
    /// Terminations that may explain the loss.
    pub(crate) candidates: Vec<TerminationCandidate>,
    pub(crate) in_window: bool,
}

/// Evidence about the load from all requests together.
pub(crate) struct LoadEvidence<'s> {
    /// Median response time in milliseconds, by second since the counted part began; `None` if no request was answered.
    pub medians: Vec<Option<f64>>,
    /// Connect times.
    pub connects: &'s ValueHistogram,
    /// HTTP/2 connections that carried lost requests.
    pub streams: &'s StreamCarriers,
}

/// Judges all lost requests in the counted part. `explanations` belong to the requests that did not plainly succeed.
pub(crate) fn judge<'a>(
    facts: &Facts<'a>,
    explanations: Vec<Explanations>,
    tails: &[Vec<ArrivalTail>],
    windows: &[Vec<Window>],
    (load, stream_rows): (LoadEvidence<'_>, &StreamRows),
) -> Vec<JudgedRequest<'a>> {
    let timeline = facts.timeline;
    let signs = Signs::of(timeline, load.medians);
    let crossing_ns = crossing_ns(load.connects);
    let mut judged = Vec::new();
    for ((request, explained), &stale) in facts.others.iter().zip(explanations).zip(&facts.stale) {
        let row = &request.row;
        if row.phase == Phase::Warmup || OutcomeClass::of(row) != OutcomeClass::Dropped {
            continue;
        }
        let begun = request.begun();
        let target = timeline.target_of(row);
        let attempts = attempts(timeline, request, &explained);
        let failure = LossFacts {
            outcome: stream_rows.outcome(request),
            status: row.status,
            reused: row.conn_reused && load.streams.has_answered(row),
            shared: load.streams.shared(row),
            bytes_received: row.bytes_received,
            begun,
            end: row.end,
            crossing_ns,
            served: request
                .served
                .as_deref()
                .map(Served::of)
                .or_else(|| seen_at_pod(&timeline.info.targets[target?], row)),
            stale,
            overloaded: signs.overload(request, &explained),
            restarting: timeline.is_restarting(begun, row.end),
            gateway: target
                .map(|target| &timeline.info.targets[target])
                .filter(|target| {
                    target.balances == Balances::Requests && target.routing != Some(Routing::SeenAtPod)
                })
                .map(|target| by_gateway(timeline, target, request, &explained, &attempts)),
        };
        let is_inside = |candidate: &TerminationCandidate| {
            let e = candidate.termination;
            target.is_some_and(|t| {
                let until = window_end(&timeline.ends[e], &windows[e][t], tails[e][t].last_possible);
                begun <= until && row.end >= timeline.ends[e].t0.earliest
            })
        };
        let cause = cause_decision::of(&failure, &explained.weighted(timeline));
        let unclear = cause.as_ref().err().map(|unclear| match unclear {
            Unclear::NothingNear if explained.pod.is_some() => Unclear::PodWasWell,
            unclear => unclear.clone(),
        });
        judged.push(JudgedRequest {
            request,
            cause: cause.unwrap_or(Cause::Unattributed),
            unclear,
            in_window: !explained.candidates.is_empty() && explained.candidates.iter().all(is_inside),
            candidates: explained.candidates,
        });
    }
    judged
}

/// Returns the longest time between sending a request and receiving the server's close for which the two could have
/// crossed in transit: two round trips, as measured by the run's own connects.
fn crossing_ns(connects: &ValueHistogram) -> i64 {
    if connects.count() < CONNECTS_AT_LEAST {
        return ROUND_TRIP_NS;
    }
    (2 * connects.quantile_ns(0.99)).clamp(CROSSING_AT_LEAST_NS, ROUND_TRIP_NS)
}

/// Returns a pod's state when a request reached it.
fn state(timeline: &Timeline, pod: &str, request: &Request, explained: &Explanations) -> PodState {
    match timeline.end_of(pod, request.begun()) {
        _ if explained.starting > 0.0 => PodState::Starting,
        Some(e) if has_met(timeline, e, request) => PodState::Ending,
        _ => PodState::Staying,
    }
}

/// Returns the attempts at a request that recording proxies saw or a gateway logged, in order.
fn attempts(timeline: &Timeline, request: &Request, explained: &Explanations) -> Vec<AttemptFacts> {
    let earlier = request.other_attempts.iter().map(|attempt| (attempt.ended, &attempt.pod));
    let last = request.served.iter().map(|served| (served.ended, &served.pod));
    let logged = || Some((logged_end(request.row.outcome)?, request.routed.as_ref()?));
    let last = last.chain(logged().filter(|_| request.served.is_none()));
    let attempt = |(ended, pod): (ServedEnd, &Arc<str>)| AttemptFacts {
        ended,
        pod: state(timeline, pod, request, explained),
    };
    earlier.chain(last).map(attempt).collect()
}

/// Returns what a recording proxy beside the pod would have seen of an attempt that a gateway logged with this outcome.
fn logged_end(outcome: Outcome) -> Option<ServedEnd> {
    match outcome {
        Outcome::ConnectRefused
        | Outcome::ConnectTimeout
        | Outcome::ConnectUnreachable
        | Outcome::ConnectError => Some(ServedEnd::UpstreamRefused),
        Outcome::ResetBeforeResponse => Some(ServedEnd::UpstreamReset),
        Outcome::EofBeforeResponse => Some(ServedEnd::UpstreamEof),
        _ => None,
    }
}

/// Returns a request as the pod's recording proxy saw it, if that is where the row is from.
fn seen_at_pod(target: &Target, row: &RequestRow) -> Option<Served> {
    let ended = logged_end(row.outcome).filter(|_| target.routing == Some(Routing::SeenAtPod))?;
    Some(Served { ended, status: row.status, waited_ns: row.end.ns_since(row.scheduled) })
}

/// Returns the facts about the gateway's role in a lost request.
fn by_gateway<'f>(
    timeline: &Timeline,
    target: &Target,
    request: &Request,
    explained: &Explanations,
    attempts: &'f [AttemptFacts],
) -> ByGateway<'f> {
    // The response header or the pod's own proxy names the pod that sent this response.
    let is_named = |candidate: &TerminationCandidate| candidate.why == CandidateReason::Named;
    let is_pods_answer = request.row.pod.is_some()
        || request.served.as_ref().is_some_and(|served| served.status == request.row.status);
    let crossed_a_close = request.served.as_ref().is_some_and(|served| {
        state(timeline, &served.pod, request, explained) == PodState::Staying
            && !served.conn_first_request
            && Served::of(served).crossed_a_close()
            && !timeline.is_restarting(request.begun(), request.row.end)
    });
    ByGateway {
        attempts,
        is_explained: !explained.candidates.is_empty(),
        no_endpoint: gateway::none_usable(timeline, &Scope::of(target), &request.row),
        no_server: explained.no_server,
        is_refused_by_pod: is_pods_answer && explained.candidates.iter().any(is_named),
        crossed_a_close,
    }
}

/// Signs that the app or the machine could not keep up.
struct Signs<'a> {
    timeline: &'a Timeline,
    /// Median response time in milliseconds, by second since the counted part began.
    medians: Vec<Option<f64>>,
    usual_ms: f64,
}

impl<'a> Signs<'a> {
    fn of(timeline: &'a Timeline, medians: Vec<Option<f64>>) -> Self {
        let mut usual: Vec<f64> = medians.iter().flatten().copied().collect();
        usual.sort_by(f64::total_cmp);
        let usual_ms = usual.get(usual.len() / 2).copied().unwrap_or(0.0);
        Self { timeline, medians, usual_ms }
    }

    /// Returns true if a request timed out at an app or on a machine that could not keep up.
    fn overload(&self, request: &Request, explained: &Explanations) -> bool {
        let row = &request.row;
        let is_timeout = matches!(
            row.outcome,
            Outcome::ConnectTimeout
                | Outcome::ResponseTimeout
                | Outcome::BodyTimeout
                | Outcome::StreamStalled
        );
        // The pod was healthy but did not answer in time.
        let is_at_a_pod_that_is_well = explained.pod.is_some() && explained.candidates.is_empty();
        is_timeout
            && (is_at_a_pod_that_is_well
                || self.is_slow(row.scheduled, row.end)
                || self.is_machine_full(row.scheduled, row.end))
    }

    fn is_slow(&self, from: Stamp, to: Stamp) -> bool {
        let [first, last] = [from, to].map(|at| self.timeline.second_of(at));
        let during = self.medians.iter().skip(first).take(last.saturating_sub(first) + 1);
        during.flatten().any(|ms| *ms > SLOW_MS && *ms > SLOW * self.usual_ms)
    }

    fn is_machine_full(&self, from: Stamp, to: Stamp) -> bool {
        let meets = |(at, sample): &(Stamp, MachineSample)| {
            // A sample covers the time before it.
            *at >= from && at.seconds_since(to) <= sample.interval_s && sample.busy >= FULL
        };
        self.timeline.notes.machine.values().flatten().any(meets)
    }
}
