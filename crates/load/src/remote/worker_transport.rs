//! Interface for sending requests to a worker, which separates the fleet from the transport.

use std::io;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;

use rolldrop_record::wire::{AdminToken, TOKEN_HEADER};

/// Body of a response, which may last as long as the worker lives.
pub type WorkerResponseBody = UnsyncBoxBody<Bytes, io::Error>;

/// Transport to one worker.
pub trait WorkerTransport: Send + Sync {
    /// Sends a request whose URI is a path. Returns once the head of the response has arrived, whatever its status.
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>>;
}

/// Error for a request without a response.
#[derive(Debug, thiserror::Error)]
#[error("the load worker did not answer: {0}")]
pub struct WorkerTransportError(pub String);

/// Returns the request as sent on a transport: with `prefix` prepended to its path, and with the token.
pub(super) fn addressed(
    request: Request<Bytes>,
    prefix: &str,
    token: &AdminToken,
) -> Result<Request<Bytes>, WorkerTransportError> {
    let (mut parts, body) = request.into_parts();
    let uri: Result<Uri, _> = format!("{prefix}{}", parts.uri).parse();
    parts.uri = uri.map_err(|error| WorkerTransportError(error.to_string()))?;
    let token: Result<HeaderValue, _> = token.as_str().parse();
    parts.headers.insert(TOKEN_HEADER, token.map_err(|error| WorkerTransportError(error.to_string()))?);
    Ok(Request::from_parts(parts, body))
}
