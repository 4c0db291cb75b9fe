//! Decides the cause of one lost request: small decisions over facts, after the table "What a client sees" of the
//! termination notes.

use std::collections::BTreeMap;

use crate::model::Unclear;
use crate::timeline::PodEnd;
use rolldrop_record::{Cause, Outcome, ServedEnd, ServedRow, Stamp};

/// Longer than a round trip to any client.
pub(crate) const ROUND_TRIP_NS: i64 = 200_000_000;
/// Longer than a round trip between a proxy and its app.
const BESIDE_NS: i64 = 5_000_000;

/// A cause is stated if its share among all explanations of a request is at least this.
const OUTWEIGHS: f64 = 0.8;

/// Facts that the cause is decided on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub outcome: Outcome,
    /// True if the connection had carried a request before.
    pub reused: bool,
    /// True if the server was working on another request of the same connection, in HTTP/2.
    pub shared: bool,
    /// Bytes of the answer that arrived.
    pub bytes_received: u64,
    pub begun: Stamp,
    pub end: Stamp,
    /// Longest time after a request at which the server's own close may come and still have crossed it on its way.
    pub crossing_ns: i64,
    /// The request as the pod's recording proxy saw it.
    pub served: Option<Served>,
    /// True if its source port is that of an earlier unanswered connect: the old entry routed it.
    pub stale: bool,
    /// True if the app or the machine showed signs that it could not keep up.
    pub overloaded: bool,
    /// True if a container had ended in a pod that stays, and was not back yet.
    pub restarting: bool,
}

/// A request as a proxy saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Outcome at the proxy.
    pub ended: ServedEnd,
    /// The app's status.
    pub status: Option<u16>,
    /// Time from the request's head to its end, in nanoseconds.
    pub waited_ns: i64,
}

impl Served {
    /// Takes these facts from the proxy's row.
    pub(crate) fn of(row: &ServedRow) -> Self {
        let waited_ns = row.head.map_or(0, |head| row.end.ns_since(head));
        Self { ended: row.ended, status: row.status, waited_ns }
    }

    /// Returns true if the app closed the connection as the request came, and the request was not the first on it. A
    /// kernel resets a connection with data that the app has not read, and closes it otherwise.
    pub(super) fn crossed_a_close(&self) -> bool {
        self.status.is_none()
            && match self.ended {
                ServedEnd::UpstreamReset => true,
                ServedEnd::UpstreamEof => self.waited_ns < BESIDE_NS,
                _ => false,
            }
    }
}

impl Facts {
    /// Returns true if the request lasted no longer than `ns`.
    fn is_within(&self, ns: i64) -> bool {
        self.end.ns_since(self.begun) <= ns
    }
}

/// A possible reason why a request was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Explanation<'a> {
    /// The end of a pod.
    Termination(&'a PodEnd),
    /// A pod that was starting.
    Starting,
    /// A Service without an endpoint.
    NoEndpoint,
    /// The Service proxy, while it changed its rules.
    RuleSwap,
    /// None of these.
    Nothing,
}

impl Explanation<'_> {
    fn end(&self) -> Option<&PodEnd> {
        if let Explanation::Termination(end) = self { Some(end) } else { None }
    }
}

/// Returns the cause of the loss if this explanation is the right one.
pub(crate) fn cause(f: &Facts, by: Explanation<'_>) -> Cause {
    match cause_by_pods(f, by) {
        Cause::Unattributed if f.restarting && by.end().is_none() => cause_of_restart(f),
        cause => cause,
    }
}

/// Returns the cause that these weighted explanations imply, if it outweighs all others together. Otherwise returns
/// those that compete.
pub(crate) fn outweighing(f: &Facts, explanations: &[(Explanation<'_>, f64)]) -> Result<Cause, Unclear> {
    let mut weights: BTreeMap<Cause, f64> = BTreeMap::new();
    for (by, weight) in explanations {
        *weights.entry(cause(f, *by)).or_default() += weight;
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

/// Returns the cause if a container ended in a pod that stays: the effects on a request are those of the end of a pod.
fn cause_of_restart(f: &Facts) -> Cause {
    match (f.served, f.outcome) {
        (Some(Served { ended: ServedEnd::UpstreamRefused, .. }), _) => Cause::RoutedToDeadPod,
        (Some(_), _) => Cause::KilledInFlight,
        (None, Outcome::ConnectRefused | Outcome::ConnectTimeout | Outcome::ConnectError) => {
            Cause::RoutedToDeadPod
        }
        (
            None,
            Outcome::ResetBeforeResponse
            | Outcome::EofBeforeResponse
            | Outcome::ResetMidResponse
            | Outcome::TruncatedBody,
        ) => Cause::KilledInFlight,
        _ => Cause::Unattributed,
    }
}

fn cause_by_pods(f: &Facts, by: Explanation<'_>) -> Cause {
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
        Outcome::ResetMidResponse | Outcome::TruncatedBody if by.end().is_some() => Cause::KilledInFlight,
        Outcome::ResponseTimeout | Outcome::BodyTimeout => cause_of_timeout(f, by.end()),
        _ => Cause::Unattributed,
    }
}

/// Returns the cause if the request reached the recording proxy of the pod.
fn cause_of_served(f: &Facts, served: Served, by: Explanation<'_>) -> Cause {
    let is_ending = by.end().is_some();
    // On a connection of HTTP/1.1, or an HTTP/2 one without other requests, that had carried one before.
    let is_alone_on_a_kept_one = f.reused && !f.shared;
    match served.ended {
        _ if matches!(f.outcome, Outcome::HttpError | Outcome::Ok) => cause_of_refusal(by),
        ServedEnd::UpstreamRefused if is_ending => Cause::RoutedToDeadPod,
        ServedEnd::UpstreamRefused if matches!(by, Explanation::Starting) => Cause::NotReadyYet,
        _ if is_alone_on_a_kept_one && served.crossed_a_close() => Cause::IdleCloseRace,
        ServedEnd::UpstreamReset if is_ending && served.status.is_none() && !f.reused => {
            Cause::AcceptQueueReset
        }
        ServedEnd::UpstreamReset | ServedEnd::UpstreamEof | ServedEnd::Cancelled if is_ending => {
            Cause::KilledInFlight
        }
        _ if is_timeout(f.outcome) => cause_of_timeout(f, by.end()),
        ServedEnd::Complete | ServedEnd::ClientGone if is_ending => Cause::KilledInFlight,
        _ => Cause::Unattributed,
    }
}

/// Returns the cause of an answer that refuses the request when no gateway is between: the app gave it.
fn cause_of_refusal(by: Explanation<'_>) -> Cause {
    match by {
        Explanation::Termination(_) => Cause::RefusedWhileEnding,
        Explanation::Starting => Cause::NotReadyYet,
        Explanation::NoEndpoint | Explanation::RuleSwap | Explanation::Nothing => Cause::Unattributed,
    }
}

/// Returns the cause if no connection was established.
fn cause_of_no_connection(f: &Facts, by: Explanation<'_>) -> Cause {
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

/// Returns the cause if a connection was established, and ended before a byte of the answer.
fn cause_of_no_answer(f: &Facts, by: Explanation<'_>) -> Cause {
    if f.reused {
        return match by.end() {
            _ if f.bytes_received > 0 => Cause::Unattributed,
            // A kernel resets what the server has not read.
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
/// closes the connection or has too many streams.
fn cause_of_left_out(f: &Facts, end: Option<&PodEnd>) -> Cause {
    match end {
        None if f.outcome == Outcome::H2RefusedStream => Cause::Overload,
        _ if f.reused => Cause::H2Unprocessed,
        None => Cause::Unattributed,
        Some(_) => Cause::RoutedToDeadPod,
    }
}

/// Returns the cause if the answer did not come in time. The pod's end is the cause only if it fell into the wait. A
/// pod that is not ending and does not answer counts as overloaded only if there is another sign of overload.
fn cause_of_timeout(f: &Facts, end: Option<&PodEnd>) -> Cause {
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
    matches!(outcome, Outcome::ResponseTimeout | Outcome::BodyTimeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_termination_near() {
        let plain = Facts {
            outcome: Outcome::ConnectTimeout,
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
        };
        let refused = Facts { outcome: Outcome::ConnectRefused, ..plain };
        let eof = Facts { outcome: Outcome::EofBeforeResponse, ..plain };
        let full = Facts { overloaded: true, ..plain };
        let served = |ended, waited_ns| Some(Served { ended, status: None, waited_ns });
        let dead = Facts { served: served(ServedEnd::UpstreamRefused, 0), ..eof };
        use Explanation::{NoEndpoint, Nothing, RuleSwap, Starting};
        for (facts, by, expected) in [
            (plain, Nothing, Cause::Unattributed),
            (full, Nothing, Cause::Overload),
            (Facts { stale: true, ..plain }, Nothing, Cause::StaleFlow),
            (Facts { outcome: Outcome::ResponseTimeout, ..plain }, Nothing, Cause::Unattributed),
            (Facts { outcome: Outcome::ResponseTimeout, ..full }, Nothing, Cause::Overload),
            (refused, Nothing, Cause::Unattributed),
            (refused, NoEndpoint, Cause::NoReadyEndpoint),
            (refused, Starting, Cause::NotReadyYet),
            (refused, RuleSwap, Cause::RuleSwap),
            (Facts { restarting: true, ..refused }, Nothing, Cause::RoutedToDeadPod),
            (Facts { restarting: true, ..eof }, Nothing, Cause::KilledInFlight),
            (eof, Nothing, Cause::Unattributed),
            (Facts { reused: true, ..eof }, Nothing, Cause::IdleCloseRace),
            (Facts { reused: true, shared: true, ..eof }, Nothing, Cause::Unattributed),
            (
                Facts { reused: true, end: Stamp::from_unix_ns(5_000_001), ..eof },
                Nothing,
                Cause::Unattributed,
            ),
            (Facts { outcome: Outcome::H2RefusedStream, reused: true, ..plain }, Nothing, Cause::Overload),
            (Facts { outcome: Outcome::H2Goaway, reused: true, ..plain }, Nothing, Cause::H2Unprocessed),
            (Facts { outcome: Outcome::H2Goaway, ..plain }, Nothing, Cause::Unattributed),
            (Facts { outcome: Outcome::HttpError, ..plain }, Nothing, Cause::Unattributed),
            (Facts { outcome: Outcome::HttpError, ..plain }, Starting, Cause::NotReadyYet),
            (dead, Starting, Cause::NotReadyYet),
            (Facts { served: served(ServedEnd::UpstreamEof, 0), ..eof }, Nothing, Cause::Unattributed),
            (
                Facts { served: served(ServedEnd::UpstreamReset, 0), reused: true, ..eof },
                Nothing,
                Cause::IdleCloseRace,
            ),
            (
                Facts { served: served(ServedEnd::UpstreamEof, 0), reused: true, ..eof },
                Nothing,
                Cause::IdleCloseRace,
            ),
            (
                Facts { served: served(ServedEnd::UpstreamEof, BESIDE_NS), reused: true, ..eof },
                Nothing,
                Cause::Unattributed,
            ),
        ] {
            assert_eq!(cause(&facts, by), expected, "{facts:?}");
        }
        let told =
            |weights: [f64; 2]| outweighing(&refused, &[(Starting, weights[0]), (NoEndpoint, weights[1])]);
        assert_eq!(told([0.9, 0.1]), Ok(Cause::NotReadyYet));
        assert_eq!(told([0.1, 0.9]), Ok(Cause::NoReadyEndpoint));
        let competing = vec![(Cause::NotReadyYet, 0.75), (Cause::NoReadyEndpoint, 0.25)];
        assert_eq!(told([0.75, 0.25]), Err(Unclear::Competing(competing)));
        assert_eq!(outweighing(&refused, &[(Nothing, 1.0)]), Err(Unclear::NothingNear));
        assert_eq!(
            outweighing(&Facts { outcome: Outcome::DnsError, ..plain }, &[(Starting, 1.0)]),
            Err(Unclear::NoFit)
        );
    }
}
