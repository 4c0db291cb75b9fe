//! Why one request was dropped: small decisions over facts, after the table
//! "What a client sees" of the termination notes.

use crate::record::{Cause, Outcome, ServedEnd, ServedRow, Stamp};
use crate::timeline::PodEnd;

/// Longer than a round trip to any client: a close that comes so long after a request did not cross
/// it on its way. The server had it, or at least its kernel.
const ROUND_TRIP_NS: i64 = 200_000_000;
/// The same between a proxy and the app beside it.
const BESIDE_NS: i64 = 5_000_000;

/// What a cause is decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub outcome: Outcome,
    /// On a connection that had carried a request before.
    pub reused: bool,
    /// The server was at work on another request of the same connection, in HTTP/2.
    pub shared: bool,
    /// Bytes of the answer that arrived.
    pub bytes_received: u64,
    pub begun: Stamp,
    pub end: Stamp,
    /// What the proxy beside the pod saw of it.
    pub served: Option<Served>,
    /// No endpoint was usable when it began.
    pub no_endpoint: bool,
    /// Its source port repeats that of an earlier connect that nobody answered: the old entry led it.
    pub stale: bool,
    /// Its pod, or the only pod that fits, had not served yet.
    pub starting: bool,
    /// A container had ended then in a pod that stays, and was not back yet.
    pub restarting: bool,
}

/// What a proxy saw of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// How it ended.
    pub ended: ServedEnd,
    /// The app's status.
    pub status: Option<u16>,
    /// From its head to its end, in nanoseconds.
    pub waited_ns: i64,
}

impl Served {
    /// Of the proxy's row.
    pub(super) fn of(row: &ServedRow) -> Self {
        let waited_ns = row.head.map_or(0, |head| row.end.ns_since(head));
        Self { ended: row.ended, status: row.status, waited_ns }
    }
}

impl Facts {
    /// Whether the server ended the connection long after it must have had the request.
    fn had_arrived(&self) -> bool {
        self.end.ns_since(self.begun) > ROUND_TRIP_NS
    }
}

/// The cause, given the termination that the request belongs to, if any.
pub(super) fn cause(f: &Facts, end: Option<&PodEnd>) -> Cause {
    match cause_by_pods(f, end) {
        Cause::Unattributed if f.restarting && end.is_none() => cause_of_restart(f),
        cause => cause,
    }
}

/// A container ended under it, in a pod that stays: what an ending pod does to a request.
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

fn cause_by_pods(f: &Facts, end: Option<&PodEnd>) -> Cause {
    if let Some(served) = f.served {
        return cause_of_served(f, served, end);
    }
    match f.outcome {
        Outcome::HttpError | Outcome::Ok => Cause::GatewayError,
        Outcome::ConnectRefused
        | Outcome::ConnectTimeout
        | Outcome::ConnectUnreachable
        | Outcome::ConnectError
        | Outcome::DnsError => cause_of_no_connection(f, end),
        Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse | Outcome::TlsError => {
            cause_of_no_answer(f, end)
        }
        Outcome::H2RefusedStream | Outcome::H2Goaway => cause_of_left_out(f, end),
        Outcome::ResetMidResponse | Outcome::TruncatedBody if end.is_some() => Cause::KilledInFlight,
        Outcome::ResponseTimeout | Outcome::BodyTimeout => cause_of_timeout(f, end),
        _ => Cause::Unattributed,
    }
}

/// The request reached the proxy beside the pod.
fn cause_of_served(f: &Facts, served: Served, end: Option<&PodEnd>) -> Cause {
    // On a connection of HTTP/1.1, or an HTTP/2 one without other requests, that had carried one before.
    let unanswered_reuse = f.reused && !f.shared && served.status.is_none();
    match served.ended {
        _ if matches!(f.outcome, Outcome::HttpError | Outcome::Ok) => Cause::GatewayError,
        ServedEnd::UpstreamRefused if end.is_some() => Cause::RoutedToDeadPod,
        ServedEnd::UpstreamRefused if f.starting => Cause::NotReadyYet,
        // A kernel resets what the app has not read, and closes what it has.
        ServedEnd::UpstreamReset if unanswered_reuse => Cause::IdleCloseRace,
        ServedEnd::UpstreamEof if unanswered_reuse && served.waited_ns < BESIDE_NS => Cause::IdleCloseRace,
        ServedEnd::UpstreamReset if end.is_some() && served.status.is_none() && !f.reused => {
            Cause::AcceptQueueReset
        }
        ServedEnd::UpstreamReset | ServedEnd::UpstreamEof | ServedEnd::Cancelled if end.is_some() => {
            Cause::KilledInFlight
        }
        _ if is_timeout(f.outcome) => cause_of_timeout(f, end),
        ServedEnd::Complete | ServedEnd::ClientGone if end.is_some() => Cause::KilledInFlight,
        _ => Cause::Unattributed,
    }
}

/// No connection came about.
fn cause_of_no_connection(f: &Facts, end: Option<&PodEnd>) -> Cause {
    if f.stale {
        Cause::StaleFlow
    } else if f.no_endpoint {
        Cause::NoReadyEndpoint
    } else if f.outcome == Outcome::DnsError {
        Cause::Unattributed
    } else if end.is_some() {
        Cause::RoutedToDeadPod
    } else if f.outcome == Outcome::ConnectTimeout {
        Cause::Overload
    } else if f.starting {
        Cause::NotReadyYet
    } else {
        Cause::Unattributed
    }
}

/// A connection came about, and ended before a byte of the answer.
fn cause_of_no_answer(f: &Facts, end: Option<&PodEnd>) -> Cause {
    if f.reused {
        return match end {
            _ if f.bytes_received > 0 => Cause::Unattributed,
            // A kernel resets what the server has not read.
            _ if !f.shared && (f.outcome == Outcome::ResetBeforeResponse || !f.had_arrived()) => {
                Cause::IdleCloseRace
            }
            Some(_) => Cause::KilledInFlight,
            None => Cause::Unattributed,
        };
    }
    let Some(end) = end else {
        return match (f.no_endpoint, f.starting) {
            (true, _) => Cause::NoReadyEndpoint,
            (_, true) => Cause::NotReadyYet,
            _ => Cause::Unattributed,
        };
    };
    let closed = end.stages.listener_closed.or(end.stages.app_exited).unwrap_or(end.may_stop_from());
    match f.outcome {
        _ if f.begun >= closed && !f.had_arrived() => Cause::RoutedToDeadPod,
        Outcome::EofBeforeResponse => Cause::KilledInFlight,
        _ => Cause::AcceptQueueReset,
    }
}

/// The server said that it did not process the request, as an HTTP/2 server does that closes the
/// connection or has too many streams.
fn cause_of_left_out(f: &Facts, end: Option<&PodEnd>) -> Cause {
    match end {
        None if f.outcome == Outcome::H2RefusedStream => Cause::Overload,
        _ if f.reused && !f.shared => Cause::IdleCloseRace,
        None => Cause::Unattributed,
        Some(_) if f.reused => Cause::KilledInFlight,
        Some(_) => Cause::RoutedToDeadPod,
    }
}

/// The answer did not come in time: for the pod's end only if that fell into the wait.
fn cause_of_timeout(f: &Facts, end: Option<&PodEnd>) -> Cause {
    let Some(end) = end else { return Cause::Overload };
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
            served: None,
            no_endpoint: false,
            stale: false,
            starting: false,
            restarting: false,
        };
        let refused = Facts { outcome: Outcome::ConnectRefused, ..plain };
        let eof = Facts { outcome: Outcome::EofBeforeResponse, ..plain };
        let served = |ended, waited_ns| Some(Served { ended, status: None, waited_ns });
        for (facts, expected) in [
            (plain, Cause::Overload),
            (Facts { stale: true, ..plain }, Cause::StaleFlow),
            (Facts { outcome: Outcome::ResponseTimeout, ..plain }, Cause::Overload),
            (refused, Cause::Unattributed),
            (Facts { no_endpoint: true, ..refused }, Cause::NoReadyEndpoint),
            (Facts { starting: true, ..refused }, Cause::NotReadyYet),
            (Facts { restarting: true, ..refused }, Cause::RoutedToDeadPod),
            (Facts { restarting: true, ..eof }, Cause::KilledInFlight),
            (eof, Cause::Unattributed),
            (Facts { reused: true, ..eof }, Cause::IdleCloseRace),
            (Facts { reused: true, shared: true, ..eof }, Cause::Unattributed),
            (Facts { reused: true, end: Stamp::from_unix_ns(ROUND_TRIP_NS + 1), ..eof }, Cause::Unattributed),
            (Facts { outcome: Outcome::H2RefusedStream, reused: true, ..plain }, Cause::Overload),
            (Facts { outcome: Outcome::H2Goaway, reused: true, ..plain }, Cause::IdleCloseRace),
            (Facts { outcome: Outcome::H2Goaway, reused: true, shared: true, ..plain }, Cause::Unattributed),
            (Facts { outcome: Outcome::HttpError, ..plain }, Cause::GatewayError),
            (
                Facts { served: served(ServedEnd::UpstreamRefused, 0), starting: true, ..eof },
                Cause::NotReadyYet,
            ),
            (Facts { served: served(ServedEnd::UpstreamEof, 0), ..eof }, Cause::Unattributed),
            (
                Facts { served: served(ServedEnd::UpstreamReset, 0), reused: true, ..eof },
                Cause::IdleCloseRace,
            ),
            (Facts { served: served(ServedEnd::UpstreamEof, 0), reused: true, ..eof }, Cause::IdleCloseRace),
            (
                Facts { served: served(ServedEnd::UpstreamEof, BESIDE_NS), reused: true, ..eof },
                Cause::Unattributed,
            ),
        ] {
            assert_eq!(cause(&facts, None), expected, "{facts:?}");
        }
    }
}
