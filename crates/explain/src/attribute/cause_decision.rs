//! Decides the cause of one lost request, in small steps that follow the table "What a client sees" in docs/sources.md.
//!
//! [`of`] is the only entry point. Gateway causes are considered first; failures unrelated to a gateway are decided as
//! if there were no gateway.

use std::collections::BTreeMap;

use crate::model::{StreamPhase, Unclear};
use crate::timeline::PodEnd;
use rolldrop_record::{Cause, Outcome, ServedEnd, ServedRow, Stamp};

/// Upper limit for a round trip to any client.
pub(crate) const ROUND_TRIP_NS: i64 = 200_000_000;
/// Upper limit for a round trip between a proxy and its app.
const BESIDE_NS: i64 = 5_000_000;

/// Minimum share of the total weight of all explanations that a cause needs to be stated.
const OUTWEIGHS: f64 = 0.8;

/// Lost request, with all facts that determine its cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossFacts<'a> {
    pub outcome: Outcome,
    /// Response status, if there was a response.
    pub status: Option<u16>,
    /// True if the connection had carried a request before.
    pub reused: bool,
    /// True if the server was working on another request on the same HTTP/2 connection.
    pub shared: bool,
    /// Number of response bytes that arrived.
    pub bytes_received: u64,
    pub begun: Stamp,
    pub end: Stamp,
    /// Longest time between sending a request and receiving the server's close for which the two could have crossed in
    /// transit.
    pub crossing_ns: i64,
    /// Request as seen by the pod's recording proxy.
    pub served: Option<Served>,
    /// True if an earlier, unanswered connect used the same source port, so that its old conntrack entry routed the
    /// request.
    pub stale: bool,
    /// True if the app or the machine showed signs that it could not keep up.
    pub overloaded: bool,
    /// True if a container had exited in a pod that was not terminating, and had not restarted yet.
    pub restarting: bool,
    /// Facts about the gateway, if one routes the requests.
    pub gateway: Option<ByGateway<'a>>,
}

/// Request that a gateway did not forward, or did not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByGateway<'a> {
    /// Attempts seen by recording proxies, in order; empty if no proxy saw any.
    pub attempts: &'a [AttemptFacts],
    /// True if a pod's termination can explain the loss.
    pub is_explained: bool,
    /// True if no endpoint was usable when the request was sent, or shortly before.
    pub no_endpoint: bool,
    /// True if the gateway had no server.
    pub no_server: bool,
    /// True if a terminating pod sent the response.
    pub is_refused_by_pod: bool,
    /// True if, according to its proxy, a pod that was not terminating closed the gateway's kept connection as the
    /// request arrived.
    pub crossed_a_close: bool,
}

/// Request, or one of a gateway's attempts at it, as seen by a pod's recording proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptFacts {
    /// Outcome at the proxy.
    pub ended: ServedEnd,
    /// State of the pod.
    pub pod: PodState,
}

/// State of a pod when a request reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    /// The pod had not served yet.
    Starting,
    /// The pod was not terminating.
    Staying,
    /// The pod was terminating.
    Ending,
}

/// Request as seen by a proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Outcome at the proxy.
    pub ended: ServedEnd,
    /// Status of the app's response.
    pub status: Option<u16>,
    /// Time from reading the request's head to the end of the request, in nanoseconds.
    pub waited_ns: i64,
}

impl Served {
    /// Extracts these facts from the proxy's row.
    pub(crate) fn of(row: &ServedRow) -> Self {
        let waited_ns = row.head.map_or(0, |head| row.end.ns_since(head));
        Self { ended: row.ended, status: row.status, waited_ns }
    }

    /// Returns true if the app closed the connection as the request arrived, and the request was not the first on the
    /// connection. When an app closes a connection, the kernel resets it if there is unread data, and otherwise closes
    /// it normally.
    pub(super) fn crossed_a_close(&self) -> bool {
        self.status.is_none()
            && match self.ended {
                ServedEnd::UpstreamReset => true,
                ServedEnd::UpstreamEof => self.waited_ns < BESIDE_NS,
                _ => false,
            }
    }
}

impl LossFacts<'_> {
    /// Returns true if the request lasted no longer than `ns`.
    fn is_within(&self, ns: i64) -> bool {
        self.end.ns_since(self.begun) <= ns
    }
}

/// Possible reason for a lost request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Explanation<'a> {
    /// Termination of a pod.
    Termination(&'a PodEnd),
    /// Starting pod.
    Starting,
    /// Service without an endpoint.
    NoEndpoint,
    /// Service proxy that was changing its rules.
    RuleSwap,
    /// None of these.
    Nothing,
}

impl Explanation<'_> {
    fn end(&self) -> Option<&PodEnd> {
        if let Explanation::Termination(end) = self { Some(end) } else { None }
    }
}

/// Returns the cause of a loss, given its possible explanations and their shares, or the reason why no cause is given.
pub(crate) fn of(f: &LossFacts<'_>, explanations: &[(Explanation<'_>, f64)]) -> Result<Cause, Unclear> {
    if has_gateway_cut(f) {
        return Ok(Cause::GatewayCut);
    }
    let by_gateway = f.gateway.and_then(|gateway| cause_by_gateway(f, gateway));
    by_gateway.map_or_else(|| outweighing(f, explanations), Ok)
}

/// Returns the cause implied by these weighted explanations if it outweighs all others together. Otherwise returns the
/// competing causes.
fn outweighing(f: &LossFacts<'_>, explanations: &[(Explanation<'_>, f64)]) -> Result<Cause, Unclear> {
    let mut weights: BTreeMap<Cause, f64> = BTreeMap::new();
    for (by, weight) in explanations {
        *weights.entry(cause_by(f, *by)).or_default() += weight;
    }
    let all: f64 = weights.values().sum();
    let is_beyond = |(_, weight): &(&Cause, &f64)| **weight >= OUTWEIGHS * all;
    match weights.iter().find(is_beyond) {
        Some((Cause::Unattributed, _)) => Err(match explanations[..] {
            [(Explanation::Nothing, _)] => Unclear::NothingNear,
            _ => Unclear::NoFit,
        }),
        Some((cause, _)) => Ok(*cause),
        None => {
            let mut competing: Vec<(Cause, f64)> =
                weights.into_iter().map(|(cause, w)| (cause, w / all)).collect();
            competing.sort_by(|a, b| b.1.total_cmp(&a.1));
            Err(Unclear::Competing(competing))
        }
    }
}

/// Returns the cause of the loss, assuming that this explanation is right.
fn cause_by(f: &LossFacts<'_>, by: Explanation<'_>) -> Cause {
    match cause_by_pods(f, by) {
        Cause::Unattributed if f.restarting && by.end().is_none() => cause_of_restart(f),
        cause => cause,
    }
}

/// Returns the cause if the gateway, or a pod that it tried, failed; `None` if the failure is unrelated to a gateway.
fn cause_by_gateway(f: &LossFacts<'_>, by: ByGateway<'_>) -> Option<Cause> {
    let ByGateway { attempts, is_explained, no_endpoint, .. } = by;
    let any = |pod, ends: &[ServedEnd]| attempts.iter().any(|a| a.pod == pod && ends.contains(&a.ended));
    let unserved = [ServedEnd::UpstreamRefused, ServedEnd::UpstreamReset];
    if f.outcome.is_broken_stream() {
        return None;
    }
    if by.is_refused_by_pod && matches!(f.outcome, Outcome::HttpError | Outcome::Ok) {
        return Some(Cause::RefusedWhileEnding);
    }
    if any(PodState::Ending, &unserved) {
        return Some(Cause::GatewayToDeadPod);
    }
    if any(PodState::Ending, &[ServedEnd::UpstreamEof, ServedEnd::Cancelled, ServedEnd::Open]) {
        return Some(Cause::KilledInFlight);
    }
    if any(PodState::Starting, &unserved) {
        return Some(Cause::NotReadyYet);
    }
    if by.crossed_a_close {
        return Some(Cause::IdleCloseRace);
    }
    if by.no_server {
        return Some(Cause::GatewayNoServer);
    }
    match f.outcome {
        // Part of a response arrived, so some pod was working on the request.
        Outcome::BodyTimeout | Outcome::StreamStalled => is_explained.then_some(Cause::KilledInFlight),
        outcome if outcome.is_cut_off() => is_explained.then_some(Cause::KilledInFlight),
        Outcome::HttpError | Outcome::Ok if no_endpoint && f.status == Some(503) => {
            Some(Cause::NoReadyEndpoint)
        }
        // A recording proxy saw the request, and no pod's termination explains the failure.
        Outcome::HttpError | Outcome::Ok if !attempts.is_empty() && !is_explained => {
            Some(Cause::GatewayError)
        }
        Outcome::HttpError
        | Outcome::Ok
        | Outcome::ResetBeforeResponse
        | Outcome::EofBeforeResponse
        | Outcome::H2RefusedStream
        | Outcome::H2Goaway => Some(match (is_explained, no_endpoint) {
            (true, _) => Cause::GatewayToDeadPod,
            (false, true) => Cause::NoReadyEndpoint,
            (false, false) => Cause::GatewayError,
        }),
        Outcome::ResponseTimeout if is_explained => Some(Cause::GatewayToDeadPod),
        _ => None,
    }
}

/// Returns the cause if a container exited in a pod that was not terminating. Requests are affected as if the pod were
/// terminating.
fn cause_of_restart(f: &LossFacts<'_>) -> Cause {
    match (f.served, f.outcome) {
        (Some(Served { ended: ServedEnd::UpstreamRefused, .. }), _) => Cause::RoutedToDeadPod,
        (Some(_), _) => Cause::KilledInFlight,
        (None, Outcome::ConnectRefused | Outcome::ConnectTimeout | Outcome::ConnectError) => {
            Cause::RoutedToDeadPod
        }
        (None, Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse) => Cause::KilledInFlight,
        (None, outcome) if outcome.is_cut_off() => Cause::KilledInFlight,
        _ => Cause::Unattributed,
    }
}

fn cause_by_pods(f: &LossFacts<'_>, by: Explanation<'_>) -> Cause {
    if let Some(served) = f.served {
        return cause_of_served(f, served, by);
    }
    match f.outcome {
        Outcome::HttpError | Outcome::Ok => cause_of_refusal(by),
        Outcome::ConnectRefused
        | Outcome::ConnectTimeout
        | Outcome::ConnectUnreachable
        | Outcome::ConnectError
        | Outcome::DnsError => cause_of_no_connection(f, by),
        Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse | Outcome::TlsError => {
            cause_of_no_answer(f, by)
        }
        Outcome::H2RefusedStream | Outcome::H2Goaway => cause_of_left_out(f, by.end()),
        outcome if outcome.is_broken_stream() => cause_of_broken_stream(f, by.end()),
        outcome if outcome.is_cut_off() && by.end().is_some() => Cause::KilledInFlight,
        outcome if is_timeout(outcome) => cause_of_timeout(f, by.end()),
        _ => Cause::Unattributed,
    }
}

/// Returns the cause if the request reached the pod's recording proxy.
fn cause_of_served(f: &LossFacts<'_>, served: Served, by: Explanation<'_>) -> Cause {
    let is_ending = by.end().is_some();
    // On a reused connection: HTTP/1.1, or HTTP/2 without other requests in flight.
    let is_alone_on_a_kept_one = f.reused && !f.shared;
    match served.ended {
        _ if matches!(f.outcome, Outcome::HttpError | Outcome::Ok) => cause_of_refusal(by),
        ServedEnd::UpstreamRefused if is_ending => Cause::RoutedToDeadPod,
        ServedEnd::UpstreamRefused if matches!(by, Explanation::Starting) => Cause::NotReadyYet,
        _ if is_alone_on_a_kept_one && served.crossed_a_close() => Cause::IdleCloseRace,
        ServedEnd::UpstreamReset if is_ending && served.status.is_none() && !f.reused => {
            Cause::AcceptQueueReset
        }
        _ if f.outcome.is_broken_stream() => cause_of_broken_stream(f, by.end()),
        // The proxy was still forwarding the response when it, and thus the pod, was last heard from.
        ServedEnd::UpstreamReset | ServedEnd::UpstreamEof | ServedEnd::Cancelled | ServedEnd::Open
            if is_ending =>
        {
            Cause::KilledInFlight
        }
        _ if is_timeout(f.outcome) => cause_of_timeout(f, by.end()),
        ServedEnd::Complete | ServedEnd::ClientGone if is_ending => Cause::KilledInFlight,
        _ => Cause::Unattributed,
    }
}

/// Returns true if the pod's recording proxy saw its client close a response that the real client was still reading, or
/// if a complete stream lost its end. Something in between must have done so, even if nothing else shows a gateway. If
/// the app itself aborted the stream, its client may have closed the connection.
fn has_gateway_cut(f: &LossFacts<'_>) -> bool {
    match f.served.map(|served| served.ended) {
        Some(ServedEnd::ClientGone) => f.outcome.is_cut_off() && f.outcome != Outcome::StreamAborted,
        Some(ServedEnd::Complete) => f.outcome == Outcome::StreamCut,
        _ => false,
    }
}

/// Returns the cause if a stream ended before it was complete, given the termination of its pod. The time of the cut
/// shows whether the pod, the app or a gateway ended the stream.
fn cause_of_broken_stream(f: &LossFacts<'_>, end: Option<&PodEnd>) -> Cause {
    let Some(end) = end else { return Cause::Unattributed };
    match end.stream_phase(f.end) {
        StreamPhase::BeforeSigterm if f.gateway.is_some() => Cause::GatewayCut,
        StreamPhase::BeforeSigterm => Cause::KilledInFlight,
        StreamPhase::AtGraceEnd => Cause::DrainedTooShort,
        StreamPhase::AfterSigterm if end.was_killed_early() => Cause::KilledInFlight,
        StreamPhase::AfterSigterm => Cause::CutAtSigterm,
    }
}

/// Returns the cause of an error response that the app sent itself, with no gateway in between.
fn cause_of_refusal(by: Explanation<'_>) -> Cause {
    match by {
        Explanation::Termination(_) => Cause::RefusedWhileEnding,
        Explanation::Starting => Cause::NotReadyYet,
        Explanation::NoEndpoint | Explanation::RuleSwap | Explanation::Nothing => Cause::Unattributed,
    }
}

/// Returns the cause if no connection was established.
fn cause_of_no_connection(f: &LossFacts<'_>, by: Explanation<'_>) -> Cause {
    match by {
        _ if f.stale => Cause::StaleFlow,
        Explanation::NoEndpoint => Cause::NoReadyEndpoint,
        _ if f.outcome == Outcome::DnsError => Cause::Unattributed,
        Explanation::Termination(_) => Cause::RoutedToDeadPod,
        Explanation::Starting => Cause::NotReadyYet,
        Explanation::RuleSwap => Cause::RuleSwap,
        Explanation::Nothing if f.outcome == Outcome::ConnectTimeout && f.overloaded => Cause::Overload,
        Explanation::Nothing => Cause::Unattributed,
    }
}

/// Returns the cause if a connection was established and closed before any byte of the response arrived.
fn cause_of_no_answer(f: &LossFacts<'_>, by: Explanation<'_>) -> Cause {
    if f.reused {
        return match by.end() {
            _ if f.bytes_received > 0 => Cause::Unattributed,
            // The kernel sends a reset for data that the server has not read.
            _ if !f.shared && (f.outcome == Outcome::ResetBeforeResponse || f.is_within(f.crossing_ns)) => {
                Cause::IdleCloseRace
            }
            Some(_) => Cause::KilledInFlight,
            None => Cause::Unattributed,
        };
    }
    let end = match by {
        Explanation::Termination(end) => end,
        Explanation::NoEndpoint => return Cause::NoReadyEndpoint,
        Explanation::Starting => return Cause::NotReadyYet,
        Explanation::RuleSwap | Explanation::Nothing => return Cause::Unattributed,
    };
    let closed = end.stages.listener_closed.or(end.stages.app_exited).unwrap_or(end.may_stop_from());
    match f.outcome {
        _ if f.begun >= closed && f.is_within(ROUND_TRIP_NS) => Cause::RoutedToDeadPod,
        Outcome::EofBeforeResponse => Cause::KilledInFlight,
        _ => Cause::AcceptQueueReset,
    }
}

/// Returns the cause if the server reported that it did not process the request, as an HTTP/2 server does when it
/// closes a connection or has too many streams.
fn cause_of_left_out(f: &LossFacts<'_>, end: Option<&PodEnd>) -> Cause {
    match end {
        None if f.outcome == Outcome::H2RefusedStream => Cause::Overload,
        _ if f.reused => Cause::H2Unprocessed,
        None => Cause::Unattributed,
        Some(_) => Cause::RoutedToDeadPod,
    }
}

/// Returns the cause if no response arrived in time. The pod's termination is the cause only if it happened during the
/// wait. An unresponsive pod that is not terminating counts as overloaded only if there is another sign of overload.
fn cause_of_timeout(f: &LossFacts<'_>, end: Option<&PodEnd>) -> Cause {
    let Some(end) = end else {
        return if f.overloaded { Cause::Overload } else { Cause::Unattributed };
    };
    let exit = end.stages.app_exited.or(end.stages.containers_terminated);
    match exit {
        Some(exit) if f.begun <= exit && exit <= f.end => Cause::KilledInFlight,
        _ => Cause::Unattributed,
    }
}

fn is_timeout(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::ResponseTimeout | Outcome::BodyTimeout | Outcome::StreamStalled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> LossFacts<'static> {
        LossFacts {
            outcome: Outcome::ConnectTimeout,
            status: None,
            reused: false,
            shared: false,
            bytes_received: 0,
            begun: Stamp::from_unix_ns(0),
            end: Stamp::from_unix_ns(1),
            crossing_ns: 5_000_000,
            served: None,
            stale: false,
            overloaded: false,
            restarting: false,
            gateway: None,
        }
    }

    #[test]
    fn single_explanation_decides_cause() {
        let plain = plain();
        let refused = LossFacts { outcome: Outcome::ConnectRefused, ..plain };
        let eof = LossFacts { outcome: Outcome::EofBeforeResponse, ..plain };
        let full = LossFacts { overloaded: true, ..plain };
        let served = |ended, waited_ns| Some(Served { ended, status: None, waited_ns });
        let dead = LossFacts { served: served(ServedEnd::UpstreamRefused, 0), ..eof };
        use Explanation::{NoEndpoint, Nothing, RuleSwap, Starting};
        for (failure, by, expected) in [
            (plain, Nothing, Cause::Unattributed),
            (full, Nothing, Cause::Overload),
            (LossFacts { stale: true, ..plain }, Nothing, Cause::StaleFlow),
            (LossFacts { outcome: Outcome::ResponseTimeout, ..plain }, Nothing, Cause::Unattributed),
            (LossFacts { outcome: Outcome::ResponseTimeout, ..full }, Nothing, Cause::Overload),
            (refused, Nothing, Cause::Unattributed),
            (refused, NoEndpoint, Cause::NoReadyEndpoint),
            (refused, Starting, Cause::NotReadyYet),
            (refused, RuleSwap, Cause::RuleSwap),
            (LossFacts { restarting: true, ..refused }, Nothing, Cause::RoutedToDeadPod),
            (LossFacts { restarting: true, ..eof }, Nothing, Cause::KilledInFlight),
            (
                LossFacts { restarting: true, outcome: Outcome::StreamCut, ..plain },
                Nothing,
                Cause::KilledInFlight,
            ),
            (LossFacts { outcome: Outcome::StreamUnfinished, ..plain }, Nothing, Cause::Unattributed),
            (LossFacts { outcome: Outcome::StreamStalled, ..full }, Nothing, Cause::Overload),
            (eof, Nothing, Cause::Unattributed),
            (LossFacts { reused: true, ..eof }, Nothing, Cause::IdleCloseRace),
            (LossFacts { reused: true, shared: true, ..eof }, Nothing, Cause::Unattributed),
            (
                LossFacts { reused: true, end: Stamp::from_unix_ns(5_000_001), ..eof },
                Nothing,
                Cause::Unattributed,
            ),
            (
                LossFacts { outcome: Outcome::H2RefusedStream, reused: true, ..plain },
                Nothing,
                Cause::Overload,
            ),
            (LossFacts { outcome: Outcome::H2Goaway, reused: true, ..plain }, Nothing, Cause::H2Unprocessed),
            (LossFacts { outcome: Outcome::H2Goaway, ..plain }, Nothing, Cause::Unattributed),
            (LossFacts { outcome: Outcome::HttpError, ..plain }, Nothing, Cause::Unattributed),
            (LossFacts { outcome: Outcome::HttpError, ..plain }, Starting, Cause::NotReadyYet),
            (dead, Starting, Cause::NotReadyYet),
            (LossFacts { served: served(ServedEnd::UpstreamEof, 0), ..eof }, Nothing, Cause::Unattributed),
            (LossFacts { served: served(ServedEnd::Open, 0), ..eof }, Nothing, Cause::Unattributed),
            (
                LossFacts { served: served(ServedEnd::UpstreamReset, 0), reused: true, ..eof },
                Nothing,
                Cause::IdleCloseRace,
            ),
            (
                LossFacts { served: served(ServedEnd::UpstreamEof, 0), reused: true, ..eof },
                Nothing,
                Cause::IdleCloseRace,
            ),
            (
                LossFacts { served: served(ServedEnd::UpstreamEof, BESIDE_NS), reused: true, ..eof },
                Nothing,
                Cause::Unattributed,
            ),
        ] {
            assert_eq!(cause_by(&failure, by), expected, "{failure:?}");
        }
        let told =
            |weights: [f64; 2]| outweighing(&refused, &[(Starting, weights[0]), (NoEndpoint, weights[1])]);
        assert_eq!(told([0.9, 0.1]), Ok(Cause::NotReadyYet));
        assert_eq!(told([0.1, 0.9]), Ok(Cause::NoReadyEndpoint));
        let competing = vec![(Cause::NotReadyYet, 0.75), (Cause::NoReadyEndpoint, 0.25)];
        assert_eq!(told([0.75, 0.25]), Err(Unclear::Competing(competing)));
        assert_eq!(outweighing(&refused, &[(Nothing, 1.0)]), Err(Unclear::NothingNear));
        assert_eq!(
            outweighing(&LossFacts { outcome: Outcome::DnsError, ..plain }, &[(Starting, 1.0)]),
            Err(Unclear::NoFit)
        );
    }

    #[test]
    fn proxy_attempts_outrank_timing() {
        use Outcome::{EofBeforeResponse, HttpError, ResponseTimeout, TruncatedBody};
        let attempt = |ended, pod| vec![AttemptFacts { ended, pod }];
        let [none, one] = [false, true];
        let refused = attempt(ServedEnd::UpstreamRefused, PodState::Ending);
        let passed_on = attempt(ServedEnd::Complete, PodState::Staying);
        let retried = vec![refused[0], passed_on[0]];
        let cut_off = attempt(ServedEnd::UpstreamEof, PodState::Ending);
        let open = attempt(ServedEnd::Open, PodState::Ending);
        let starting = attempt(ServedEnd::UpstreamRefused, PodState::Starting);
        for (outcome, status, attempts, is_explained, no_endpoint, expected) in [
            (HttpError, Some(502), vec![], one, false, Some(Cause::GatewayToDeadPod)),
            (HttpError, Some(503), vec![], one, false, Some(Cause::GatewayToDeadPod)),
            (HttpError, Some(503), vec![], one, true, Some(Cause::NoReadyEndpoint)),
            (HttpError, Some(502), vec![], one, true, Some(Cause::GatewayToDeadPod)),
            (HttpError, Some(502), vec![], none, true, Some(Cause::NoReadyEndpoint)),
            (HttpError, Some(504), vec![], none, false, Some(Cause::GatewayError)),
            (HttpError, Some(502), refused, one, false, Some(Cause::GatewayToDeadPod)),
            (HttpError, Some(502), retried, one, false, Some(Cause::GatewayToDeadPod)),
            (HttpError, Some(502), cut_off, one, false, Some(Cause::KilledInFlight)),
            (TruncatedBody, Some(200), open, one, false, Some(Cause::KilledInFlight)),
            (HttpError, Some(502), passed_on, none, false, Some(Cause::GatewayError)),
            (HttpError, Some(502), starting.clone(), none, false, Some(Cause::NotReadyYet)),
            (ResponseTimeout, None, starting, none, false, Some(Cause::NotReadyYet)),
            (ResponseTimeout, None, vec![], one, false, Some(Cause::GatewayToDeadPod)),
            (ResponseTimeout, None, vec![], none, false, None),
            (EofBeforeResponse, None, vec![], one, false, Some(Cause::GatewayToDeadPod)),
            (EofBeforeResponse, None, vec![], none, false, Some(Cause::GatewayError)),
            (TruncatedBody, None, vec![], one, false, Some(Cause::KilledInFlight)),
            (TruncatedBody, None, vec![], none, false, None),
            (Outcome::ConnectRefused, None, vec![], one, false, None),
        ] {
            let by = ByGateway {
                attempts: &attempts,
                is_explained,
                no_endpoint,
                no_server: false,
                is_refused_by_pod: false,
                crossed_a_close: false,
            };
            let failure = LossFacts { outcome, status, ..plain() };
            assert_eq!(cause_by_gateway(&failure, by), expected, "{failure:?} {by:?}");
            if outcome == HttpError && attempts.is_empty() {
                let cause = |by| of(&LossFacts { gateway: Some(by), ..failure }, &[]);
                assert_eq!(cause(ByGateway { no_server: true, ..by }), Ok(Cause::GatewayNoServer));
                let by_pod = ByGateway { is_refused_by_pod: true, ..by };
                assert_eq!(cause(by_pod), Ok(Cause::RefusedWhileEnding));
            }
        }
    }
}
