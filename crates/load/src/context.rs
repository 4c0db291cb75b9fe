//! State that the exchanges of one worker share: the load, its targets, and its timeouts.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::Method;

use super::answer_headers::Answers;
use super::connection::Buffers;
use super::deadlines::{Deadlines, Elapsed};
use super::failure::{Failure, Result};
use super::grpc;
use super::plan::Plan;
use super::pod_body::Beginning;
use super::ports::SourcePorts;
use super::request::{self, Template, WebSocket};
use super::resolve::Walk;
use super::tls::Client;
use rolldrop_record::load::Http;
use rolldrop_record::{Clock, Outcome, RequestRow, Stamp};

/// State that all exchanges of one worker share.
#[derive(Debug)]
pub(super) struct Context {
    /// The load.
    pub(super) plan: Plan,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// The worker's source name.
    pub(super) source: Arc<str>,
    /// Ports that fresh connections come from; `None` if the kernel chooses.
    pub(super) ports: Option<SourcePorts>,
    /// Destinations of requests, in the plan's order.
    pub(super) endpoints: Vec<Endpoint>,
    /// Deadlines of the exchanges.
    pub(super) deadlines: Deadlines,
    /// Buffers of closed connections.
    pub(super) buffers: Buffers,
    /// True if all exchanges are to end at once. The setter also wakes them.
    pub(super) is_aborted: Cell<bool>,
}

impl Context {
    /// Returns the output of `future`, or `None` if it is cut off.
    pub(super) async fn unless_aborted<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Pending if self.is_aborted.get() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
    }

    /// Returns the output of `future`, which is ready with the first byte of an answer.
    ///
    /// # Errors
    /// Returns a response timeout if the deadline for the first byte, if there is one, passes before that.
    pub(super) async fn by_first_byte<F: Future>(&self, sent: Stamp, future: F) -> Result<F::Output> {
        match self.plan.settings.timeout.first_byte {
            None => Ok(future.await),
            Some(limit) => {
                let read = self.deadlines.within(sent, limit, future).await;
                read.map_err(|Elapsed| Failure::with_detail(Outcome::ResponseTimeout, "first_byte"))
            }
        }
    }

    /// Returns a buffer in which the body of an answer is kept to be searched for the pod's name; `None` if its headers
    /// name the pod, or there is no pattern for bodies.
    pub(super) fn searched_body(&self, row: &RequestRow) -> Option<Box<Beginning>> {
        (self.plan.pod_body.is_some() && row.pod.is_none()).then(Box::default)
    }
}

/// A target with its addresses and its requests.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Name of the target.
    pub(super) name: Arc<str>,
    /// Method of its requests.
    pub(super) method: Method,
    /// True if Go's net/http would replay its requests.
    pub(super) go_replays: bool,
    /// Its addresses, in turn.
    pub(super) walk: Walk,
    /// TLS client, if it uses TLS.
    pub(super) tls: Option<Client>,
    /// Request that closes its connection.
    pub(super) closing: Template,
    /// Request that keeps its connection.
    pub(super) keeping: Template,
    /// HTTP version.
    pub(super) http: Http,
    /// The same requests in HTTP/2, if the target may use it.
    pub(super) http2: Option<request::http2::Template>,
    /// Settings for gRPC; `None` for plain HTTP.
    pub(super) grpc: Option<grpc::Call>,
    /// Handshake and messages to send instead, if it uses WebSocket.
    pub(super) websocket: Option<WebSocket>,
    /// Header statistics of its answers.
    pub(super) answers: RefCell<Answers>,
}

impl Endpoint {
    /// Sets the row's pod to the one that the beginning of the body names. `before` is the pod that the previous answer
    /// on the connection named.
    pub(super) fn name_pod(
        &self,
        context: &Context,
        body: &Beginning,
        is_whole: bool,
        before: &mut Option<Arc<str>>,
        row: &mut RequestRow,
    ) {
        row.pod = context.plan.pod_body.as_ref().and_then(|pattern| pattern.name_in(body, is_whole));
        self.answers.borrow_mut().compare(before, row.pod.as_ref());
    }
}
