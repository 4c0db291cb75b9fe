//! What the exchanges of one worker share: the load, its targets, and the limits of time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::Method;

use super::answer_headers::Answers;
use super::connection::Buffers;
use super::deadlines::{Deadlines, Elapsed};
use super::failure::Failure;
use super::grpc;
use super::plan::Plan;
use super::pod_body::Beginning;
use super::ports::SourcePorts;
use super::request::{self, Template, WebSocket};
use super::resolve::Walk;
use super::tls::Client;
use rolldrop_record::load::Http;
use rolldrop_record::{Clock, Outcome, RequestRow, Stamp};

/// What all exchanges of one worker share.
#[derive(Debug)]
pub(super) struct Context {
    /// The load.
    pub(super) plan: Plan,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// The worker's source name.
    pub(super) source: Arc<str>,
    /// The ports that fresh connections come from; none if the kernel chooses.
    pub(super) ports: Option<SourcePorts>,
    /// Where requests go, in the plan's order.
    pub(super) endpoints: Vec<Endpoint>,
    /// How long they may take.
    pub(super) deadlines: Deadlines,
    /// Buffers of connections that are gone.
    pub(super) buffers: Buffers,
    /// Whether they are all to end at once. Setting this also wakes them.
    pub(super) is_aborted: Cell<bool>,
}

impl Context {
    /// The output of `future`, unless that is cut off.
    pub(super) async fn unless_aborted<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Pending if self.is_aborted.get() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
    }

    /// The output of `future`, which is ready with the first byte of an answer: by the deadline for that, if there is
    /// one.
    pub(super) async fn by_first_byte<F: Future>(
        &self,
        sent: Stamp,
        future: F,
    ) -> Result<F::Output, Failure> {
        match self.plan.settings.first_byte_timeout {
            None => Ok(future.await),
            Some(limit) => {
                let read = self.deadlines.within(sent, limit, future).await;
                read.map_err(|Elapsed| Failure::with_detail(Outcome::ResponseTimeout, "first_byte"))
            }
        }
    }

    /// Where the body of an answer is kept to be searched for the pod's name: nowhere if its headers name the pod, or
    /// there is no pattern for bodies.
    pub(super) fn searched_body(&self, row: &RequestRow) -> Option<Box<Beginning>> {
        (self.plan.pod_body.is_some() && row.pod.is_none()).then(Box::default)
    }
}

/// A target with its address and its requests.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// The target's name.
    pub(super) name: Arc<str>,
    /// The method of its requests.
    pub(super) method: Method,
    /// Whether Go's net/http would replay its requests.
    pub(super) go_replays: bool,
    /// Where it is.
    pub(super) walk: Walk,
    /// Its TLS, if it uses it.
    pub(super) tls: Option<Client>,
    /// The request that closes its connection.
    pub(super) closing: Template,
    /// The request that keeps it.
    pub(super) keeping: Template,
    /// Its HTTP version.
    pub(super) http: Http,
    /// The same requests in HTTP/2, if the target may use it.
    pub(super) http2: Option<request::http2::Template>,
    /// What is special to gRPC.
    pub(super) grpc: Option<grpc::Call>,
    /// What is sent instead if it uses WebSocket.
    pub(super) websocket: Option<WebSocket>,
    /// What the headers of its answers say.
    pub(super) answers: RefCell<Answers>,
}

impl Endpoint {
    /// Sets the row's pod to the one that the beginning of the body names. `before` is the pod that the answer before
    /// it on its connection named.
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
