//! Converts a request that a sidecar recorded to the form of a gateway's line about an attempt at the pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rolldrop_record::retry::GRPC_UNAVAILABLE;
use rolldrop_record::{
    LoggedAttempt, LoggedRequest, LoggedUpstream, Outcome, SERVER_ERROR, ServedEnd, ServedRow,
};

/// Status with which an app reports that it is unavailable.
const UNAVAILABLE: u16 = 503;

/// Returns the request of a row. If the sidecar could not inspect a connection, the whole connection counts as one
/// request about which nothing is known.
pub(super) fn logged_request(row: &ServedRow, pod: IpAddr) -> LoggedRequest {
    let begun = row.head.unwrap_or(row.accepted);
    let took = Duration::from_nanos(u64::try_from(row.end.ns_since(begun)).unwrap_or_default());
    let is_request = row.head.is_some();
    let status = if is_request { status(row) } else { None };
    let attempt = LoggedAttempt {
        upstream: LoggedUpstream::Address(SocketAddr::new(pod, 0)),
        outcome: outcome(row, status).filter(|_| is_request),
        status,
        took: Some(took),
    };
    LoggedRequest {
        earliest: begun,
        latest: begun,
        took: Some(took),
        status,
        attempts: vec![attempt],
        // Other attempts do not reach this sidecar.
        attempts_made: None,
        client_left: is_request && row.ended == ServedEnd::ClientGone,
        bytes: None,
        route: None,
    }
}

/// Returns the status of the app's response. With gRPC, an app reports that it is unavailable in a response with status
/// 200.
fn status(row: &ServedRow) -> Option<u16> {
    match row.grpc_status {
        Some(GRPC_UNAVAILABLE) => Some(UNAVAILABLE),
        _ => row.status,
    }
}

/// Returns the outcome of a request; `None` if the row does not show it.
fn outcome(row: &ServedRow, status: Option<u16>) -> Option<Outcome> {
    let has_begun = status.is_some();
    match row.ended {
        ServedEnd::Complete if status.is_some_and(|status| status >= SERVER_ERROR) => {
            Some(Outcome::HttpError)
        }
        ServedEnd::Complete => Some(Outcome::Ok),
        ServedEnd::UpstreamRefused => Some(Outcome::ConnectRefused),
        ServedEnd::UpstreamReset if has_begun => Some(Outcome::ResetMidResponse),
        ServedEnd::UpstreamEof if has_begun => Some(Outcome::TruncatedBody),
        // Only a new connection can have been waiting in the app's accept queue. A kept connection had been accepted
        // before.
        ServedEnd::UpstreamReset if row.conn_first_request => Some(Outcome::ResetBeforeResponse),
        ServedEnd::UpstreamReset | ServedEnd::UpstreamEof => Some(Outcome::EofBeforeResponse),
        ServedEnd::ClientGone | ServedEnd::Cancelled | ServedEnd::ProxyExhausted | ServedEnd::Open => None,
    }
}
