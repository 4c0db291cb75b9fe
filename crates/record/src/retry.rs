//! Retrying clients, and the failures that they hide.
//!
//! No request is retried silently. [`is_retried`] is the policy of `--retry`, which keeps the facts about the first
//! attempt. [`go_hides`] determines which failures Go's `net/http` would have hidden, without sending anything.

use super::outcome::is_gateway_status;
use super::{Outcome, RequestRow};

/// The gRPC status UNAVAILABLE.
pub const GRPC_UNAVAILABLE: i32 = 14;

/// Returns true if a retrying client would resend the request after this attempt: if nothing was sent, or HTTP/2
/// reported that nothing was processed; if the connection or the gateway failed and the method is idempotent (RFC 9110,
/// 9.2.2); or if a gRPC server, or a proxy in front of it, is unavailable, which is the status that common gRPC client
/// policies retry.
pub fn is_retried(method: &str, attempt: &RequestRow) -> bool {
    let was_not_processed = match attempt.outcome {
        Outcome::ConnectRefused
        | Outcome::ConnectTimeout
        | Outcome::ConnectUnreachable
        | Outcome::ConnectError
        | Outcome::DnsError
        | Outcome::H2RefusedStream
        | Outcome::H2Goaway => true,
        // An alert may also arrive after the request was sent. A request that waited for its turn on an HTTP/2
        // connection may never have been sent.
        Outcome::TlsError | Outcome::ResponseTimeout => attempt.sent.is_none(),
        Outcome::HttpError => attempt.grpc_status == Some(GRPC_UNAVAILABLE),
        _ => false,
    };
    was_not_processed
        || is_idempotent(method)
            && match attempt.outcome {
                Outcome::Ok | Outcome::NotSent | Outcome::Cancelled => false,
                Outcome::HttpError => attempt.status.is_some_and(is_gateway_status),
                _ => true,
            }
}

/// Returns true if the method is idempotent, so a request may be sent twice.
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
}

/// Returns true if a header with this name declares that a request may be sent twice, whatever its method.
pub fn is_idempotency_key(name: &str) -> bool {
    ["idempotency-key", "x-idempotency-key"].iter().any(|key| key.eq_ignore_ascii_case(name))
}

/// Returns true if Go's `http.Transport` resends requests with this method on its own, even without an Idempotency-Key
/// (`Request.isReplayable`, net/http).
pub fn go_replays(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE")
}

/// Returns true if Go's `http.Transport` would have silently resent this request: it was on a reused connection that
/// was closed before the first byte of the response, and Go replays the request (`persistConn.shouldRetryRequest`,
/// net/http).
///
/// In HTTP/2 the method does not matter, provided that the body can be resent. Go resends a request that failed before
/// the response head if the request was never written, or the server reports not having processed it (`canRetryError`,
/// net/http/internal/http2). The exception is the first stream of a connection closed by a GOAWAY with an error
/// (`ClientConn.setGoAway`).
///
/// This describes Go 1.27. Go 1.19 also resent that first stream, and requests reset with PROTOCOL_ERROR.
pub fn go_hides(row: &RequestRow, replays: bool) -> bool {
    let detail = row.detail.as_deref();
    let ended_without_answer =
        matches!(row.outcome, Outcome::EofBeforeResponse | Outcome::ResetBeforeResponse)
            && row.bytes_received == 0;
    match row.outcome {
        _ if row.head.is_some() => false,
        Outcome::H2Goaway => row.stream != Some(1) || detail == Some("GOAWAY NO_ERROR"),
        Outcome::H2RefusedStream => true,
        Outcome::ResetMidResponse if detail == Some("REFUSED_STREAM") => true,
        _ if row.stream.is_some() => ended_without_answer && row.bytes_sent == 0,
        // If nothing at all was written, Go resends any method.
        _ => row.conn_reused && ended_without_answer && (replays || row.bytes_sent == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, Stamp};

    #[test]
    fn client_retries_idempotent_or_unsent_requests() {
        let at = Stamp::from_unix_ns(0);
        let attempt = |outcome, status, grpc_status| RequestRow {
            outcome,
            sent: Some(at),
            status,
            grpc_status,
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, at, at)
        };
        let retried = |method, outcome| is_retried(method, &attempt(outcome, Some(503), None));
        assert!(retried("GET", Outcome::ResetBeforeResponse) && retried("PUT", Outcome::HttpError));
        assert!(retried("POST", Outcome::ConnectRefused) && !retried("POST", Outcome::ResetBeforeResponse));
        assert!(!retried("GET", Outcome::Ok) && !retried("GET", Outcome::NotSent));
        assert!(!is_retried("GET", &attempt(Outcome::HttpError, Some(500), None)));
        assert!(retried("POST", Outcome::H2RefusedStream) && retried("POST", Outcome::H2Goaway));
        assert!(is_retried("POST", &attempt(Outcome::HttpError, Some(200), Some(GRPC_UNAVAILABLE))));
        assert!(!is_retried("POST", &attempt(Outcome::HttpError, Some(200), Some(13))));
        let alert = attempt(Outcome::TlsError, None, None);
        assert!(is_retried("GET", &alert) && !is_retried("POST", &alert), "the request had been sent");
        assert!(is_retried("POST", &RequestRow { sent: None, ..alert }));
        let overdue = attempt(Outcome::ResponseTimeout, None, None);
        assert!(!is_retried("POST", &overdue) && is_retried("POST", &RequestRow { sent: None, ..overdue }));
    }

    #[test]
    fn go_hides_failures_on_reused_connections() {
        let at = Stamp::from_unix_ns(0);
        let row = |outcome, conn_reused, bytes_sent| RequestRow {
            outcome,
            conn_reused,
            bytes_sent,
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, at, at)
        };
        assert!(go_hides(&row(Outcome::EofBeforeResponse, true, 80), go_replays("GET")));
        assert!(go_hides(&row(Outcome::ResetBeforeResponse, true, 80), go_replays("OPTIONS")));
        assert!(
            !go_hides(&row(Outcome::EofBeforeResponse, false, 80), go_replays("GET")),
            "a fresh connection"
        );
        for method in ["POST", "PUT", "DELETE"] {
            assert!(!go_hides(&row(Outcome::EofBeforeResponse, true, 80), go_replays(method)), "{method}");
        }
        assert!(go_hides(&row(Outcome::ResetBeforeResponse, true, 0), go_replays("POST")));
        assert!(!go_hides(&row(Outcome::ResponseTimeout, true, 80), go_replays("GET")));
        let begun = RequestRow { bytes_received: 1, ..row(Outcome::ResetBeforeResponse, true, 80) };
        assert!(!go_hides(&begun, go_replays("GET")));
    }

    #[test]
    fn go_hides_unprocessed_http2_requests() {
        let at = Stamp::from_unix_ns(0);
        let row = |stream, outcome, detail: &str| RequestRow {
            outcome,
            conn_reused: stream > 1,
            stream: Some(stream),
            detail: Some(detail.into()),
            bytes_sent: 80,
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, at, at)
        };
        let hides = |row: &RequestRow| go_hides(row, false);
        assert!(hides(&row(1, Outcome::H2Goaway, "GOAWAY NO_ERROR")));
        assert!(hides(&row(3, Outcome::H2Goaway, "GOAWAY ENHANCE_YOUR_CALM")));
        assert!(!hides(&row(1, Outcome::H2Goaway, "GOAWAY ENHANCE_YOUR_CALM")), "a new connection");
        assert!(hides(&row(1, Outcome::H2RefusedStream, "REFUSED_STREAM")));
        assert!(!hides(&row(3, Outcome::ResetBeforeResponse, "PROTOCOL_ERROR")));
        let begun = RequestRow { head: Some(at), ..row(3, Outcome::ResetMidResponse, "REFUSED_STREAM") };
        assert!(!hides(&begun), "its head was already passed on");
        let lost = RequestRow { detail: None, ..row(3, Outcome::EofBeforeResponse, "") };
        assert!(!go_hides(&lost, true));
        assert!(hides(&RequestRow { bytes_sent: 0, ..lost }), "never written");
    }
}
