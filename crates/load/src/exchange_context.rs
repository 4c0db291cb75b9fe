//! State shared by the exchanges of one worker: the load, its targets, and its timeouts.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::Method;

use super::answer_headers::Answers;
use super::client_tls::TlsClient;
use super::connection::Buffers;
use super::deadlines::{Deadlines, Elapsed};
use super::failure::{ExchangeFailure, Result};
use super::grpc;
use super::load_plan::Plan;
use super::open_streams::OpenStreams;
use super::pod_body::Beginning;
use super::request::{self, Http1Template, WebSocket};
use super::resolve::AddressCursor;
use super::source_port_pool::SourcePorts;
use super::stream_poller::StreamPoller;
use rolldrop_record::load::Http;
use rolldrop_record::{Clock, Outcome, RequestRow, Stamp};

/// State shared by all exchanges of one worker.
#[derive(Debug)]
pub(super) struct ExchangeContext {
    /// Plan of the load.
    pub(super) plan: Plan,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// The worker's source name.
    pub(super) source: Arc<str>,
    /// Source ports of fresh connections; `None` if the kernel chooses.
    pub(super) ports: Option<SourcePorts>,
    /// Destinations of requests, in the plan's order.
    pub(super) endpoints: Vec<TargetEndpoint>,
    /// Deadlines of the exchanges.
    pub(super) deadlines: Deadlines,
    /// Buffers of closed connections.
    pub(super) buffers: Buffers,
    /// Streams that are being read.
    pub(super) streams: OpenStreams,
    /// Reader of streams; `None` without streams, or if each exchange reads its own.
    pub(super) poller: Option<StreamPoller>,
    /// True if all exchanges should end immediately. The code that sets it also wakes them.
    pub(super) is_aborted: Cell<bool>,
}

impl ExchangeContext {
    /// Reads the open streams. Works only while it is polled.
    ///
    /// # Errors
    /// Returns an error if the operating system does not report which sockets are ready.
    pub(super) async fn poll_streams(&self) -> io::Result<Infallible> {
        match &self.poller {
            Some(poller) => poller.keep(&self.streams).await,
            None => pending().await,
        }
    }

    /// Returns the output of `future`, or `None` if the load is aborted first.
    pub(super) async fn unless_aborted<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Pending if self.is_aborted.get() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
    }

    /// Returns the output of `future`, which becomes ready with the first byte of a response.
    ///
    /// # Errors
    /// Returns a response timeout if the deadline for the first byte, if any, expires first.
    pub(super) async fn by_first_byte<F: Future>(&self, sent: Stamp, future: F) -> Result<F::Output> {
        match self.plan.settings.timeout.first_byte {
            None => Ok(future.await),
            Some(limit) => {
                let read = self.deadlines.within(sent, limit, future).await;
                read.map_err(|Elapsed| ExchangeFailure::with_detail(Outcome::ResponseTimeout, "first_byte"))
            }
        }
    }

    /// Returns a buffer for a response body that is to be searched for the pod's name; `None` if the headers name the
    /// pod, or if there is no pattern for bodies.
    pub(super) fn searched_body(&self, row: &RequestRow) -> Option<Box<Beginning>> {
        (self.plan.pod_body.is_some() && row.pod.is_none()).then(Box::default)
    }
}

/// A target with its addresses and request templates.
#[derive(Debug)]
pub(super) struct TargetEndpoint {
    /// Name of the target.
    pub(super) name: Arc<str>,
    /// Method of the target's requests.
    pub(super) method: Method,
    /// True if Go's net/http would replay the target's requests.
    pub(super) go_replays: bool,
    /// Addresses of the target, used in turn.
    pub(super) walk: AddressCursor,
    /// TLS client, if the target uses TLS.
    pub(super) tls: Option<TlsClient>,
    /// Request template that closes the connection.
    pub(super) closing: Http1Template,
    /// Request template that keeps the connection.
    pub(super) keeping: Http1Template,
    /// HTTP version of the requests.
    pub(super) http: Http,
    /// HTTP/2 template of the target's requests, if the target may use HTTP/2.
    pub(super) http2: Option<request::http2_template::Http2Template>,
    /// Settings for gRPC; `None` for plain HTTP.
    pub(super) grpc: Option<grpc::GrpcCall>,
    /// Handshake and message templates, which replace the request templates if the target uses WebSocket.
    pub(super) websocket: Option<WebSocket>,
    /// Header statistics of the target's responses.
    pub(super) answers: RefCell<Answers>,
}

impl TargetEndpoint {
    /// Sets the row's pod to the one named in the beginning of the body. `before` is the pod named by the previous
    /// response on the connection.
    pub(super) fn name_pod(
        &self,
        context: &ExchangeContext,
        body: &Beginning,
        is_whole: bool,
        before: &mut Option<Arc<str>>,
        row: &mut RequestRow,
    ) {
        row.pod = context.plan.pod_body.as_ref().and_then(|pattern| pattern.name_in(body, is_whole));
        self.answers.borrow_mut().compare(before, row.pod.as_ref());
    }
}
