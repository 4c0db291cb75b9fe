//! Unary gRPC over HTTP/2: the additions to a request, and the status in its response.
//!
//! Follows the protocol specification (grpc/grpc, doc/PROTOCOL-HTTP2.md, and doc/http-grpc-status-mapping.md for
//! responses without a gRPC status). The user supplies messages as bytes.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};

use super::failure::{ExchangeFailure, Result};
use super::field_list::FieldList;
use rolldrop_record::Outcome;
use rolldrop_record::load::Grpc;
use rolldrop_record::retry::GRPC_UNAVAILABLE;

/// Length in bytes of the prefix of each message: a compression flag, and the message's length.
const PREFIX: usize = 5;
/// Content type of requests, and prefix of the content type of responses.
const CONTENT_TYPE: &str = "application/grpc";

/// Settings common to all calls to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcCall {
    /// Response timeout, which a header announces to the server.
    timeout: Duration,
    /// Statuses that count as success.
    success: Vec<i32>,
}

impl GrpcCall {
    /// Creates the settings common to all calls in a plan.
    pub(super) fn new(grpc: &Grpc, timeout: Duration) -> Self {
        Self { timeout, success: grpc.success.clone() }
    }

    /// Adds the headers of a call.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static(CONTENT_TYPE));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        if let Ok(timeout) = HeaderValue::try_from(timeout(self.timeout)) {
            headers.insert("grpc-timeout", timeout);
        }
    }

    /// Returns the status and the outcome of a complete response.
    ///
    /// A response from a proxy that does not speak gRPC gets the status to which its HTTP status is mapped, as in every
    /// gRPC client. A response with HTTP status 200 that is not gRPC or has no gRPC status violates the protocol.
    pub(super) fn judge(&self, answer: &GrpcResponse<'_>) -> (Option<i32>, Result<Outcome>) {
        let broken = |why: String| Err(ExchangeFailure::with_detail(Outcome::ProtocolError, why));
        let status = match (answer.http, answer.status()) {
            (HTTP_OK, _) if !answer.is_grpc() => return (None, broken(answer.content_type())),
            (HTTP_OK, None) => return (None, broken("no grpc-status".to_owned())),
            (http, None) => return (Some(status_of(http)), Ok(Outcome::HttpError)),
            (_, Some(status)) => status,
        };
        let outcome = match (self.success.contains(&status), answer.messages) {
            (false, _) => Ok(Outcome::HttpError),
            (true, messages) if messages.is_cut_off() => {
                Err(ExchangeFailure::new(Outcome::TruncatedBody, None))
            }
            (true, messages) if messages.is_compressed && !answer.names_compression() => {
                broken("compressed without grpc-encoding".to_owned())
            }
            (true, messages) if status == OK && messages.whole != 1 => {
                broken(format!("{} messages", messages.whole))
            }
            (true, _) => Ok(Outcome::Ok),
        };
        (Some(status), outcome)
    }
}

/// gRPC status OK.
const OK: i32 = 0;
/// HTTP status OK.
const HTTP_OK: u16 = 200;

/// A complete response.
#[derive(Debug)]
pub(super) struct GrpcResponse<'a> {
    /// HTTP status.
    pub(super) http: u16,
    /// Response headers.
    pub(super) headers: &'a FieldList,
    /// Response trailers, if any.
    pub(super) trailers: Option<&'a FieldList>,
    /// Messages in the body.
    pub(super) messages: &'a Messages,
}

impl GrpcResponse<'_> {
    /// Returns the status from the trailers or, in a trailers-only response, from the headers.
    fn status(&self) -> Option<i32> {
        let from = match self.trailers {
            Some(trailers) => trailers,
            None if self.messages.is_empty() => self.headers,
            None => return None,
        };
        from.text("grpc-status")?.parse().ok()
    }

    fn is_grpc(&self) -> bool {
        self.headers.text("content-type").is_some_and(|given| given.starts_with(CONTENT_TYPE))
    }

    /// Describes the content type of a response that is not gRPC.
    fn content_type(&self) -> String {
        match self.headers.text("content-type") {
            Some(given) => format!("content-type {given}"),
            None => "no content-type".to_owned(),
        }
    }

    fn names_compression(&self) -> bool {
        self.headers.text("grpc-encoding").is_some_and(|encoding| encoding != "identity")
    }
}

/// Counter for the messages of a body, fed as bytes arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Messages {
    /// Number of complete messages.
    whole: u64,
    /// True if any message is marked as compressed.
    is_compressed: bool,
    /// Beginning of the current message's prefix.
    prefix: [u8; PREFIX],
    /// Number of bytes of the prefix that have arrived.
    begun: usize,
    /// Bytes still missing from the current message.
    left: usize,
}

impl Messages {
    /// Processes a piece of the body.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let part;
            if self.begun < PREFIX {
                (part, bytes) = bytes.split_at((PREFIX - self.begun).min(bytes.len()));
                self.prefix[self.begun..self.begun + part.len()].copy_from_slice(part);
                self.begun += part.len();
                if self.begun == PREFIX {
                    let [flag, a, b, c, d] = self.prefix;
                    self.is_compressed |= flag != 0;
                    self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                }
            } else {
                (part, bytes) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= part.len();
            }
            if self.begun == PREFIX && self.left == 0 {
                self.whole += 1;
                self.begun = 0;
            }
        }
    }

    fn is_cut_off(&self) -> bool {
        self.begun > 0
    }

    fn is_empty(&self) -> bool {
        self.whole == 0 && !self.is_cut_off()
    }
}

/// Returns a message with its prefix, ready to send.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    // A message too long for its length field would not fit into memory twice.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// Formats a timeout for the `grpc-timeout` header: at most eight digits and a unit.
fn timeout(timeout: Duration) -> String {
    const MOST: u128 = 99_999_999;
    match (timeout.as_micros(), timeout.as_millis()) {
        (us, _) if us <= MOST => format!("{us}u"),
        (_, ms) if ms <= MOST => format!("{ms}m"),
        _ => format!("{}S", timeout.as_secs()),
    }
}

/// Maps an HTTP status other than 200 to a gRPC status, for a response without one.
fn status_of(http: u16) -> i32 {
    match http {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => GRPC_UNAVAILABLE,
        _ => 2,
    }
}

/// Returns the name of a status.
pub fn status_name(status: i32) -> String {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let name = usize::try_from(status).ok().and_then(|index| NAMES.get(index));
    name.map_or_else(|| format!("gRPC status {status}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(http: u16, headers: &[&str], trailers: Option<&[&str]>, body: &[u8]) -> (Outcome, Option<i32>) {
        let map = |statuses: &[&str]| {
            let mut fields = FieldList::default();
            statuses.iter().for_each(|status| fields.push(b"grpc-status", status.as_bytes()));
            fields.push(b"content-type", b"application/grpc+proto");
            fields
        };
        let mut messages = Messages::default();
        body.chunks(2).for_each(|part| messages.pass(part));
        let trailers = trailers.map(map);
        let call = GrpcCall { timeout: Duration::from_secs(5), success: vec![0, 5] };
        let (status, outcome) = call.judge(&GrpcResponse {
            http,
            headers: &map(headers),
            trailers: trailers.as_ref(),
            messages: &messages,
        });
        (outcome.unwrap_or_else(|failure| failure.outcome), status)
    }

    #[test]
    fn grpc_status_comes_from_trailers() {
        let message = framed(b"hello");
        assert_eq!(judged(200, &[], Some(&["0"]), &message), (Outcome::Ok, Some(0)));
        assert_eq!(judged(200, &[], Some(&["0"]), &framed(b"")), (Outcome::Ok, Some(0)));
        assert_eq!(judged(200, &["14"], None, b""), (Outcome::HttpError, Some(14)));
        assert_eq!(judged(200, &["5"], None, b""), (Outcome::Ok, Some(5)), "it counts as success");
        assert_eq!(judged(200, &[], Some(&["13"]), &message), (Outcome::HttpError, Some(13)));
    }

    #[test]
    fn only_proxy_errors_may_omit_grpc_status() {
        let message = framed(b"hello");
        assert_eq!(judged(200, &[], None, &message), (Outcome::ProtocolError, None));
        assert_eq!(judged(200, &["0"], None, &message), (Outcome::ProtocolError, None), "too early");
        assert_eq!(judged(200, &[], Some(&["x"]), &message), (Outcome::ProtocolError, None));
        assert_eq!(judged(503, &[], None, b"no healthy upstream"), (Outcome::HttpError, Some(14)));
        assert_eq!(judged(404, &[], None, b""), (Outcome::HttpError, Some(12)));
    }

    #[test]
    fn grpc_success_needs_one_whole_message() {
        let message = framed(b"hello");
        assert_eq!(judged(200, &[], Some(&["0"]), &message[..7]), (Outcome::TruncatedBody, Some(0)));
        assert_eq!(judged(200, &[], Some(&["0"]), b""), (Outcome::ProtocolError, Some(0)));
        let two = [&message[..], &message[..]].concat();
        assert_eq!(judged(200, &[], Some(&["0"]), &two), (Outcome::ProtocolError, Some(0)));
    }

    #[test]
    fn grpc_timeout_fits_in_eight_digits() {
        assert_eq!(timeout(Duration::from_millis(250)), "250000u");
        assert_eq!(timeout(Duration::from_secs(5)), "5000000u");
        assert_eq!(timeout(Duration::from_secs(600)), "600000m");
        assert_eq!(timeout(Duration::from_secs(200_000)), "200000S");
    }
}
