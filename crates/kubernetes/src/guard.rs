//! Guards the path between the API server and its callers so that no unrequested object gets through.
//!
//! This layer wraps every client that the program's `cluster` hands out, so all objects enter here. Like client-go and
//! apimachinery, it checks:
//!
//! - names and namespaces: in a request before it is sent, in an object before any caller sees it;
//! - that an object is in the requested namespace, has the requested name and matches the requested selectors;
//! - that a response is not longer than [`ANSWER_BYTES`], and a watch line not longer than [`WATCH_LINE_BYTES`].
//!
//! Responses from pods through the API server's proxy are not objects and pass unchanged; their readers limit them.
//! Only errors, which a client reads as a whole, are limited here, to [`ERROR_BYTES`]. The checks themselves are in
//! `asked` and `response_check`.

mod asked;
pub mod object_names;
mod response_check;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as HttpBody, Frame};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

pub use asked::label_selector;
use asked::{GuardedRequest, ResponseReading};

/// Maximum length of an API server response, in bytes. A page of [`PAGE`] pods takes one or two MiB.
pub const ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Maximum length of a watch line, in bytes; etcd accepts objects of up to 1.5 MiB.
pub const WATCH_LINE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum length of an error from a pod or node that is queried through the API server, in bytes.
pub const ERROR_BYTES: usize = 64 * 1024;
/// Number of objects per page of a list. A page is held in memory as received, as text and as objects, and allocators
/// keep much of that memory.
pub const PAGE: u32 = 100;
/// Maximum number of pages per list, enough for 150,000 objects.
pub const MOST_PAGES: u32 = 1500;

/// Reason for not using an API server response, or for not sending a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// A request contains an invalid name.
    #[error("request not sent to the API server: {0}")]
    Request(String),
    /// A response does not match the request.
    #[error("response from the API server rejected: {0}")]
    Answer(String),
}

/// Returns the [`Untrusted`] among an error's causes, if there is one.
pub fn distrust(error: &kube::Error) -> Option<&Untrusted> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Layer that puts a [`Guard`] around a client's service.
#[derive(Clone, Copy, Debug)]
pub struct GuardLayer;

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard(inner)
    }
}

/// Service that checks requests and responses in transit.
#[derive(Clone, Debug)]
pub struct Guard<S>(S);

type GuardedBody = UnsyncBoxBody<Bytes, kube::Error>;

impl<S, B> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<GuardedBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asked = match GuardedRequest::of(&request) {
            Ok(asked) => asked,
            Err(why) => return futures::future::err(why.into()).boxed(),
        };
        let answer = self.0.call(request);
        async move {
            let (parts, body) = answer.await.map_err(Into::into)?.into_parts();
            let body = body.map_err(|error| kube::Error::Service(error.into())).boxed_unsync();
            let body = match asked.reading {
                ResponseReading::Passing if parts.status.is_success() => body,
                ResponseReading::Passing => at_once(whole(body, ERROR_BYTES).await?),
                ResponseReading::Watch if parts.status.is_success() => checked_lines(body, asked),
                ResponseReading::Watch | ResponseReading::Whole => {
                    let whole = whole(body, ANSWER_BYTES).await?;
                    if parts.status.is_success() {
                        response_check::check_answer(&asked, &whole).map_err(Untrusted::Answer)?;
                    }
                    at_once(whole)
                }
            };
            Ok(Response::from_parts(parts, body))
        }
        .boxed()
    }
}

fn at_once(whole: Bytes) -> GuardedBody {
    Full::new(whole).map_err(|never| match never {}).boxed_unsync()
}

async fn whole(body: GuardedBody, most: usize) -> Result<Bytes, BoxError> {
    let collected = Limited::new(body, most).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Untrusted::Answer(format!("it is longer than {most} bytes")).into()
        } else {
            error
        }
    })?;
    // This does not copy the data if there is only one frame.
    let mut collected = collected.aggregate();
    Ok(collected.copy_to_bytes(collected.remaining()))
}

fn unbelieved(why: String) -> kube::Error {
    kube::Error::Service(Untrusted::Answer(why).into())
}

/// Passes on the lines of a watch that match the request, up to the first one that does not.
fn checked_lines(body: GuardedBody, asked: GuardedRequest) -> GuardedBody {
    let state = (body.into_data_stream(), BytesMut::new(), asked);
    let lines = stream::try_unfold(state, |(mut data, mut held, asked)| async move {
        loop {
            // The held bytes contain no line ending.
            let Some(more) = data.try_next().await? else {
                let rest = held.split().freeze();
                let complete = response_check::is_json(&rest);
                if complete {
                    response_check::check_event(&asked, &rest).map_err(unbelieved)?;
                }
                return Ok(complete.then_some((rest, (data, held, asked))));
            };
            let end = memchr::memrchr(b'\n', &more).map(|at| held.len() + at + 1);
            held.extend_from_slice(&more);
            let whole = end.map(|end| held.split_to(end).freeze());
            let lines = || whole.iter().flat_map(|whole| whole.split(|byte| *byte == b'\n'));
            let longest = lines().map(<[u8]>::len).max().unwrap_or(0).max(held.len());
            if longest > WATCH_LINE_BYTES {
                let why = format!("a watch line is longer than {WATCH_LINE_BYTES} bytes");
                return Err(unbelieved(why));
            }
            for line in lines().filter(|line| !line.is_empty()) {
                response_check::check_event(&asked, line).map_err(unbelieved)?;
            }
            if let Some(whole) = whole {
                return Ok(Some((whole, (data, held, asked))));
            }
        }
    });
    StreamBody::new(lines.map(|line| line.map(Frame::data))).boxed_unsync()
}
