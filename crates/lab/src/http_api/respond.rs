//! Builds responses.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::super::status::Status;

/// Response whose body may be a stream.
pub(super) type ApiResponse = Response<UnsyncBoxBody<Bytes, BodyError>>;

/// Reason why a body was cut short. The client learns only that it was cut short.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Builds a JSON response.
pub(super) fn json(code: StatusCode, value: &Value) -> ApiResponse {
    json_text(code, value.to_string())
}

/// Builds a response from JSON text.
pub(super) fn json_text(code: StatusCode, text: String) -> ApiResponse {
    bytes_of(code, "application/json", text)
}

/// Builds an error response.
pub(super) fn status(status: &Status) -> ApiResponse {
    let code = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json(code, &status.to_json());
    if let Some(seconds) = status.retry_after_seconds() {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// Builds a success status, with details about the object.
pub(super) fn success(code: StatusCode, details: Value) -> ApiResponse {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if !details.is_null() {
        status["details"] = details;
    }
    if code != StatusCode::OK {
        status["code"] = json!(code.as_u16());
    }
    self::json(code, &status)
}

/// Builds a plain-text response.
pub(super) fn text(text: impl Into<Bytes>) -> ApiResponse {
    bytes_of(StatusCode::OK, "text/plain; charset=utf-8", text)
}

/// Builds the response for an unknown path.
pub(super) fn unknown_path() -> ApiResponse {
    bytes_of(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n")
}

pub(super) fn set_content_type(answer: &mut ApiResponse, content_type: &'static str) {
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
}

/// Builds a response with a complete body and its content type.
pub(super) fn bytes_of(code: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> ApiResponse {
    let body = Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync();
    streaming(code, content_type, body)
}

/// Builds a response with a body that may be a stream.
pub(super) fn streaming(
    code: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, BodyError>,
) -> ApiResponse {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    set_content_type(&mut answer, content_type);
    answer
}
