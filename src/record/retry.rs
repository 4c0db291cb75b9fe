//! Clients that retry, and what they would not have told their users.
//!
//! Nothing is retried behind anybody's back: [`is_retried`] is the policy of `--retry`, with
//! which an attempt's facts stay those of the first, and [`go_hides`] says which failures Go's
//! `net/http` would have hidden, without sending anything.

use super::{Outcome, RequestRow};

/// The gRPC status UNAVAILABLE.
pub const GRPC_UNAVAILABLE: i32 = 14;

/// Whether a client that retries does so after this outcome: nothing was sent, or HTTP/2 said that
/// nothing was done; or the connection or the gateway failed, and the method is one that may be
/// sent twice (RFC 9110, 9.2.2); or a gRPC server or a proxy before it is unavailable, which is
/// what the usual policies of gRPC clients name.
pub fn is_retried(method: &str, outcome: Outcome, status: Option<u16>, grpc_status: Option<i32>) -> bool {
    if grpc_status == Some(GRPC_UNAVAILABLE) && outcome == Outcome::HttpError {
        return true;
    }
    let nothing_was_sent = matches!(
        outcome,
        Outcome::ConnectRefused
            | Outcome::ConnectTimeout
            | Outcome::ConnectUnreachable
            | Outcome::ConnectError
            | Outcome::DnsError
            | Outcome::TlsError
            | Outcome::H2RefusedStream
            | Outcome::H2Goaway
    );
    nothing_was_sent
        || is_idempotent(method)
            && match outcome {
                Outcome::Ok | Outcome::NotSent | Outcome::Cancelled => false,
                Outcome::HttpError => matches!(status, Some(502..=504)),
                _ => true,
            }
}

/// Whether a method may be sent twice.
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
}

/// Whether Go's `http.Transport` sends a request of this method again by itself, where it has no
/// Idempotency-Key (`Request.isReplayable`, net/http).
pub fn go_replays(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE")
}

/// Whether Go's `http.Transport` would have sent this request again without a word: it was on a
/// connection that had carried one before, which ended before the first byte of the answer, and
/// the request is one that Go replays (`persistConn.shouldRetryRequest`, net/http). In HTTP/2 it
/// sends any request again that the server says it did not process, or that was never written
/// (`canRetryError`, golang.org/x/net/http2).
pub fn go_hides(row: &RequestRow, replays: bool) -> bool {
    match row.outcome {
        Outcome::H2RefusedStream | Outcome::H2Goaway => return true,
        // Others of its streams fail there whatever their method.
        _ if row.stream.is_some() => return false,
        _ => {}
    }
    let ended_without_answer =
        matches!(row.outcome, Outcome::EofBeforeResponse | Outcome::ResetBeforeResponse);
    // Where nothing at all was written, any method is sent again.
    row.conn_reused && ended_without_answer && row.bytes_received == 0 && (replays || row.bytes_sent == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Phase, Stamp};

    #[test]
    fn what_may_be_sent_twice_is_retried_and_what_was_never_sent() {
        let retried = |method, outcome| is_retried(method, outcome, Some(503), None);
        assert!(retried("GET", Outcome::ResetBeforeResponse) && retried("PUT", Outcome::HttpError));
        assert!(retried("POST", Outcome::ConnectRefused) && !retried("POST", Outcome::ResetBeforeResponse));
        assert!(!retried("GET", Outcome::Ok) && !retried("GET", Outcome::NotSent));
        assert!(!is_retried("GET", Outcome::HttpError, Some(500), None));
        assert!(retried("POST", Outcome::H2RefusedStream) && retried("POST", Outcome::H2Goaway));
        assert!(is_retried("POST", Outcome::HttpError, Some(200), Some(GRPC_UNAVAILABLE)));
        assert!(!is_retried("POST", Outcome::HttpError, Some(200), Some(13)));
    }

    #[test]
    fn go_hides_what_ends_on_a_reused_connection_before_an_answer() {
        let at = Stamp::from_unix_ns(0);
        let row = |outcome, conn_reused, bytes_sent| RequestRow {
            outcome,
            conn_reused,
            bytes_sent,
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, at, at)
        };
        assert!(go_hides(&row(Outcome::EofBeforeResponse, true, 80), go_replays("GET")));
        assert!(go_hides(&row(Outcome::ResetBeforeResponse, true, 80), go_replays("OPTIONS")));
        assert!(!go_hides(&row(Outcome::EofBeforeResponse, false, 80), go_replays("GET")), "a fresh one");
        for method in ["POST", "PUT", "DELETE"] {
            assert!(!go_hides(&row(Outcome::EofBeforeResponse, true, 80), go_replays(method)), "{method}");
        }
        assert!(go_hides(&row(Outcome::ResetBeforeResponse, true, 0), go_replays("POST")));
        assert!(!go_hides(&row(Outcome::ResponseTimeout, true, 80), go_replays("GET")));
        let begun = RequestRow { bytes_received: 1, ..row(Outcome::ResetBeforeResponse, true, 80) };
        assert!(!go_hides(&begun, go_replays("GET")));
        let stream = |outcome| RequestRow { stream: Some(3), ..row(outcome, true, 80) };
        assert!(go_hides(&stream(Outcome::H2Goaway), go_replays("POST")));
        assert!(go_hides(&stream(Outcome::H2RefusedStream), go_replays("POST")));
        assert!(!go_hides(&stream(Outcome::EofBeforeResponse), go_replays("GET")));
    }
}
