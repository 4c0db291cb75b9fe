//! Building answers.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::super::status::Status;

/// An answer whose body may be a stream.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, BodyError>>;

/// Why a body ended early: the reader learns only that it did.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An answer in JSON.
pub(super) fn json(code: StatusCode, value: &Value) -> Answer {
    json_text(code, value.to_string())
}

/// The same of what is written already.
pub(super) fn json_text(code: StatusCode, text: String) -> Answer {
    bytes_of(code, "application/json", text)
}

/// An answer that says what went wrong.
pub(super) fn status(status: &Status) -> Answer {
    let code = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json(code, &status.to_json());
    if let Some(seconds) = status.retry_after_seconds() {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// An answer that says that something was done, and to what.
pub(super) fn success(code: StatusCode, details: Value) -> Answer {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if !details.is_null() {
        status["details"] = details;
    }
    if code != StatusCode::OK {
        status["code"] = json!(code.as_u16());
    }
    self::json(code, &status)
}

/// A plain answer.
pub(super) fn text(text: impl Into<Bytes>) -> Answer {
    bytes_of(StatusCode::OK, "text/plain; charset=utf-8", text)
}

/// The answer for a path that names no kind of object.
pub(super) fn unknown_path() -> Answer {
    bytes_of(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n")
}

pub(super) fn set_content_type(answer: &mut Answer, content_type: &'static str) {
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
}

/// A whole body of some type.
pub(super) fn bytes_of(code: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Answer {
    let body = Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync();
    streaming(code, content_type, body)
}

/// An answer with any body.
pub(super) fn streaming(
    code: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, BodyError>,
) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    set_content_type(&mut answer, content_type);
    answer
}
