//! Sends requests to a worker: the seam between the fleet and the transport.

use std::io;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;

use rolldrop_record::wire::{AdminToken, TOKEN_HEADER};

/// Body of an answer, which may last as long as the worker lives.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// Way to one worker.
pub trait Ask: Send + Sync {
    /// Sends a request, whose URI is a path. Returns when the head of the answer has arrived, whatever its status.
    fn ask(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<AnswerBody>, AskError>>;
}

/// There was no answer.
#[derive(Debug, thiserror::Error)]
#[error("the load worker gave no answer: {0}")]
pub struct AskError(pub String);

/// Returns the request as it is sent on a way: with `prefix` before its path, and with the token.
pub(super) fn addressed(
    request: Request<Bytes>,
    prefix: &str,
    token: &AdminToken,
) -> Result<Request<Bytes>, AskError> {
    let (mut parts, body) = request.into_parts();
    let uri: Result<Uri, _> = format!("{prefix}{}", parts.uri).parse();
    parts.uri = uri.map_err(|error| AskError(error.to_string()))?;
    let token: Result<HeaderValue, _> = token.as_str().parse();
    parts.headers.insert(TOKEN_HEADER, token.map_err(|error| AskError(error.to_string()))?);
    Ok(Request::from_parts(parts, body))
}
