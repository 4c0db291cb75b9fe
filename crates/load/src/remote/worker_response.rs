//! Parameters of requests to a worker, and its responses: text, a value, or a stream of lines.

use std::fmt::Display;
use std::io;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde::Serialize;

use super::worker_transport::WorkerResponseBody;

pub(super) type WorkerResponse = Response<WorkerResponseBody>;

/// Returns a text response.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> WorkerResponse {
    with_type("text/plain", status, whole(text))
}

/// Returns an error response.
pub(super) fn failed(why: impl Display) -> WorkerResponse {
    text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n"))
}

/// Returns a JSON response with this value.
pub(super) fn json(value: &impl Serialize) -> WorkerResponse {
    match serde_json::to_vec(value) {
        Ok(json) => with_type("application/json", StatusCode::OK, whole(json)),
        Err(error) => failed(error),
    }
}

/// Returns a response that streams lines of JSON as they become available.
pub(super) fn lines(lines: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> WorkerResponse {
    let body = StreamBody::new(lines.map_ok(Frame::data)).boxed_unsync();
    with_type("application/x-ndjson", StatusCode::OK, body)
}

fn whole(content: impl Into<Bytes>) -> WorkerResponseBody {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

fn with_type(content_type: &'static str, status: StatusCode, body: WorkerResponseBody) -> WorkerResponse {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Returns a numeric parameter of a query string.
pub(super) fn number(query: &str, name: &str) -> Option<u64> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name)?.1.parse().ok()
}
