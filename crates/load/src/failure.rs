//! Failures of exchanges without a complete response. Maps an error or an early end to its outcome, depending on the
//! progress of the exchange.

use std::io;
use std::sync::Arc;

use super::client_tls::{self, TlsFailure};
use super::not_sent_reason::NotSentReason;
use rolldrop_record::{Outcome, RequestRow};

/// Result of one step of an exchange.
pub(super) type Result<T, E = ExchangeFailure> = std::result::Result<T, E>;

/// An exchange that did not end with a complete response.
#[derive(Clone, Debug)]
pub(super) struct ExchangeFailure {
    pub(super) outcome: Outcome,
    pub(super) errno: Option<i32>,
    /// Reason that the protocol reported, if there is no error number.
    pub(super) detail: Option<Arc<str>>,
}

impl ExchangeFailure {
    pub(super) const fn new(outcome: Outcome, errno: Option<i32>) -> Self {
        Self { outcome, errno, detail: None }
    }

    pub(super) fn with_detail(outcome: Outcome, detail: impl Into<Arc<str>>) -> Self {
        Self { outcome, errno: None, detail: Some(detail.into()) }
    }
}

/// Progress of the exchange before the failure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseProgress {
    /// Nothing has been received on this connection.
    Connection,
    /// The connection has carried earlier requests, but no part of this response has been received.
    Nothing,
    /// Part of the head has been received.
    Head,
    /// The complete head has been received, and perhaps part of the body.
    Body,
}

/// The failure for a peer that violated the protocol.
pub(super) const PROTOCOL_ERROR: ExchangeFailure = ExchangeFailure::new(Outcome::ProtocolError, None);

/// Returns the failure for a request that the load itself did not send, and records the reason.
pub(super) fn not_sent(row: &mut RequestRow, reason: NotSentReason) -> ExchangeFailure {
    row.not_sent_reason = Some(reason.as_str().into());
    ExchangeFailure::new(Outcome::NotSent, None)
}

/// Returns the failure for an expired response timeout.
pub(super) fn overdue(row: &RequestRow) -> ExchangeFailure {
    let outcome = if row.head.is_some() { Outcome::BodyTimeout } else { Outcome::ResponseTimeout };
    ExchangeFailure::new(outcome, None)
}

/// Returns the failure for a stream that ended before the response did. A reset during the write appears as an end of
/// stream in later reads.
pub(super) fn ended_early(reached: ResponseProgress, write_error: Option<&io::Error>) -> ExchangeFailure {
    match (write_error, reached) {
        (Some(e), _) => lost(reached, e, None),
        (None, ResponseProgress::Connection | ResponseProgress::Nothing) => {
            ExchangeFailure::new(Outcome::EofBeforeResponse, None)
        }
        (None, ResponseProgress::Head | ResponseProgress::Body) => {
            ExchangeFailure::new(Outcome::TruncatedBody, None)
        }
    }
}

/// Returns the failure for a broken connection. The kernel's own timeout (ETIMEDOUT: retransmissions were not
/// acknowledged) is a timeout; every other error ended the connection like a reset.
///
/// With TLS, too, a reset during the write appears as an end of stream in later reads.
pub(super) fn lost(
    reached: ResponseProgress,
    error: &io::Error,
    write_error: Option<&io::Error>,
) -> ExchangeFailure {
    if let Some(fault) = client_tls::fault(error) {
        return ExchangeFailure::with_detail(tls_outcome(reached, &fault), fault.what);
    }
    let outcome = match (error.kind(), reached) {
        // The connection was closed without close_notify, perhaps not by the server.
        (io::ErrorKind::UnexpectedEof, _) if write_error.is_some() => {
            return ended_early(reached, write_error);
        }
        (io::ErrorKind::UnexpectedEof, _) => {
            return ExchangeFailure { detail: Some("no_close_notify".into()), ..ended_early(reached, None) };
        }
        (
            io::ErrorKind::TimedOut,
            ResponseProgress::Connection | ResponseProgress::Nothing | ResponseProgress::Head,
        ) => Outcome::ResponseTimeout,
        (io::ErrorKind::TimedOut, ResponseProgress::Body) => Outcome::BodyTimeout,
        (_, ResponseProgress::Connection | ResponseProgress::Nothing) => Outcome::ResetBeforeResponse,
        (_, ResponseProgress::Head | ResponseProgress::Body) => Outcome::ResetMidResponse,
    };
    ExchangeFailure::new(outcome, error.raw_os_error())
}

/// Returns the outcome for a failure of TLS itself. In TLS 1.3, the server's verdict on the client arrives after the
/// client has completed its handshake. On a connection that has carried requests, an alert is TLS's form of a reset.
fn tls_outcome(reached: ResponseProgress, fault: &TlsFailure) -> Outcome {
    match reached {
        ResponseProgress::Connection => Outcome::TlsError,
        _ if !fault.is_alert => Outcome::ProtocolError,
        ResponseProgress::Nothing => Outcome::ResetBeforeResponse,
        ResponseProgress::Head | ResponseProgress::Body => Outcome::ResetMidResponse,
    }
}

/// Returns the outcome of a connection that could not be established.
pub(super) fn connect_outcome(error: &io::Error) -> Outcome {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Outcome::ConnectRefused,
        io::ErrorKind::TimedOut => Outcome::ConnectTimeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Outcome::ConnectUnreachable,
        // A refused SYN causes ECONNREFUSED. Here, an established connection was reset before its socket was checked.
        io::ErrorKind::ConnectionReset => Outcome::ResetBeforeResponse,
        _ => Outcome::ConnectError,
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn os(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno as i32)
    }

    #[test]
    fn errno_determines_connect_outcome() {
        for (errno, outcome) in [
            (Errno::ECONNREFUSED, Outcome::ConnectRefused),
            (Errno::ETIMEDOUT, Outcome::ConnectTimeout),
            (Errno::EHOSTUNREACH, Outcome::ConnectUnreachable),
            (Errno::ENETUNREACH, Outcome::ConnectUnreachable),
            (Errno::ECONNRESET, Outcome::ResetBeforeResponse),
            (Errno::EACCES, Outcome::ConnectError),
        ] {
            assert_eq!(connect_outcome(&os(errno)), outcome, "{errno}");
        }
    }

    #[test]
    fn write_error_overrides_eof_outcome() {
        let ended = |reached, write_error: Option<Errno>| {
            let failure = ended_early(reached, write_error.map(os).as_ref());
            (failure.outcome, failure.errno)
        };
        let [reset, pipe, timed_out] = [Errno::ECONNRESET, Errno::EPIPE, Errno::ETIMEDOUT];
        assert_eq!(ended(ResponseProgress::Nothing, None), (Outcome::EofBeforeResponse, None));
        assert_eq!(ended(ResponseProgress::Head, None), (Outcome::TruncatedBody, None));
        assert_eq!(ended(ResponseProgress::Body, None), (Outcome::TruncatedBody, None));
        let with = |outcome, errno: Errno| (outcome, Some(errno as i32));
        assert_eq!(ended(ResponseProgress::Nothing, Some(reset)), with(Outcome::ResetBeforeResponse, reset));
        assert_eq!(ended(ResponseProgress::Nothing, Some(pipe)), with(Outcome::ResetBeforeResponse, pipe));
        assert_eq!(ended(ResponseProgress::Body, Some(reset)), with(Outcome::ResetMidResponse, reset));
        assert_eq!(ended(ResponseProgress::Head, Some(timed_out)), with(Outcome::ResponseTimeout, timed_out));
        assert_eq!(ended(ResponseProgress::Body, Some(timed_out)), with(Outcome::BodyTimeout, timed_out));
        // The connection was closed without close_notify.
        let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
        let by_reset = lost(ResponseProgress::Body, &cut, Some(&os(reset)));
        assert_eq!((by_reset.outcome, by_reset.errno), with(Outcome::ResetMidResponse, reset));
        let by_nobody = lost(ResponseProgress::Body, &cut, None);
        assert_eq!(
            (by_nobody.outcome, by_nobody.detail.as_deref()),
            (Outcome::TruncatedBody, Some("no_close_notify"))
        );
    }
}
