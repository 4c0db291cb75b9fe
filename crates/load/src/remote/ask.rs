//! How requests get to a worker: the seam between the fleet and the transport.

use std::io;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;

/// The body of an answer, which may go on as long as the worker lives.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// The way to one worker.
pub trait Ask: Send + Sync {
    /// Sends a request, whose URI is a path. Returns as soon as the head of the answer is there, whatever its status.
    fn ask(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<AnswerBody>, AskError>>;
}

/// There was no answer.
#[derive(Debug, thiserror::Error)]
#[error("the load worker gave no answer: {0}")]
pub struct AskError(pub String);
