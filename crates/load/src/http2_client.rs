//! One request on an HTTP/2 connection, from its dispatch to its end: the facts observed on the wire, and the outcome
//! derived from them.
//!
//! The end of a stream takes precedence over the end of the connection. What the peer sent about this stream
//! (RST_STREAM, or a GOAWAY that excludes it) determines the outcome of its request, whatever happened to the connection
//! afterwards. Nothing is retried here. A request that waits for its turn on a connection has not been sent; if the
//! connection accepts no more requests before then, the request is sent on another.
//!
//! `http2_session` implements the protocol, `http2_link` is a connection, and `http2_pool` holds a worker's
//! connections. If TLS negotiates the HTTP version, all connections of a worker are managed here; those that speak
//! HTTP/1.1 are kept here and used by `carry`.

#[cfg(test)]
mod h2_peer;
mod header_block;
mod http2_fault;
mod http2_link;
mod http2_output;
mod http2_pool;
mod http2_session;
mod lone_request;
#[cfg(any(test, fuzzing))]
mod session_fuzzing;
mod session_io;
mod stream_slot;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use http::Method;

use super::answer_headers::PodName;
use super::carry::carry;
use super::deadlines::Elapsed;
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::failure::{ExchangeFailure, ResponseProgress, Result, ended_early, lost, not_sent, overdue};
use super::grpc;
use super::not_sent_reason::NotSentReason;
use super::request::Persistence;
use http2_fault::Http2Fault;
use http2_link::{Http2Link, LinkPlace, Spoken};
pub(super) use http2_pool::{Http2Pool, PoolLimits, Ticket};
use http2_session::{ConnectionEnd, Http2Session};
pub(super) use lone_request::LoneRequest;
use rolldrop_record::{Outcome, RequestRow, Stamp};
use rolldrop_wire::http2::error_name;
#[cfg(any(test, fuzzing))]
pub(super) use session_fuzzing::fuzz_session;
use stream_slot::{BodySink, ResponseHead, StreamEnd, StreamSlot};

/// Sends a request and follows it to its end. If its connection accepts no more requests before this one was sent, it
/// gets a place on another one from the pool.
///
/// # Errors
/// Returns an error if the request did not end with a complete response.
pub(super) async fn attempt(
    context: &ExchangeContext,
    pool: &RefCell<Http2Pool>,
    target: usize,
    mut ticket: Ticket,
    persistence: Persistence,
    row: &mut RequestRow,
) -> Result<()> {
    let endpoint = &context.endpoints[target];
    let limit = context.plan.settings.response_timeout();
    let mut waiting_since = None;
    loop {
        if ticket.is_void() {
            (row.conn, row.conn_reused, row.local_port, row.remote_addr) = (None, false, None, None);
            let taken = pool.borrow_mut().take_again(target, persistence, context.clock.now());
            ticket = taken.map_err(|reason| not_sent(row, reason))?;
        }
        let Ticket { link, place } = ticket;
        row.conn = Some(link.id);
        row.conn_reused = !matches!(place, LinkPlace::Opener);
        let spoken = match place {
            // Boxed, so that the requests that share a connection do not reserve space for opening one.
            LinkPlace::Opener => Box::pin(link.open(context, endpoint, row)).await?,
            LinkPlace::Stream => link.join(row).await.map(|()| Spoken::Http2)?,
            LinkPlace::Idle(connection) => Spoken::Http1(connection),
        };
        if let Spoken::Http1(mut connection) = spoken {
            if Box::pin(carry(context, endpoint, persistence, &mut connection, row)).await? {
                link.keep(connection);
            }
            return Ok(());
        }
        let now = context.clock.now();
        let mut call = Http2Exchange::begin(context, endpoint, &link, row, now)?;
        let mut sent = call.sent_at();
        if sent.is_none() {
            let since = *waiting_since.get_or_insert(now);
            // Boxed, because few requests wait.
            sent = Box::pin(call.turn(since, limit)).await?;
        }
        if let Some(sent) = sent {
            call.row.sent = Some(sent);
            let ended = context.deadlines.within(sent, limit, pin!(call.receive(sent))).await;
            let ended = ended.unwrap_or_else(|Elapsed| Err(overdue(call.row)));
            call.name_pod(ended.is_ok());
            return ended;
        }
        drop(call);
        // The ticket is void, so that another takes its place.
        ticket = Ticket { link, place: LinkPlace::Stream };
    }
}

/// A request in progress on its connection.
struct Http2Exchange<'a> {
    context: &'a ExchangeContext,
    endpoint: &'a TargetEndpoint,
    link: &'a Http2Link,
    /// Slot of the stream.
    slot: usize,
    row: &'a mut RequestRow,
}

/// Frees the slot, and counts the bytes transferred, however the request ends.
impl Drop for Http2Exchange<'_> {
    fn drop(&mut self) {
        let mut session = self.link.session.get();
        let stream = session.stream(self.slot);
        self.row.stream = stream.id;
        self.row.bytes_sent = stream.sent;
        self.row.bytes_received = stream.received;
        if session.close(self.slot) {
            drop(session);
            self.link.session.wake_driver();
        }
    }
}

impl<'a> Http2Exchange<'a> {
    /// Hands the request to the connection.
    ///
    /// # Errors
    /// Returns an error if no valid request can be made.
    fn begin(
        context: &'a ExchangeContext,
        endpoint: &'a TargetEndpoint,
        link: &'a Http2Link,
        row: &'a mut RequestRow,
        now: Stamp,
    ) -> Result<Self> {
        let sink = BodySink {
            messages: endpoint.grpc.as_ref().map(|_| grpc::Messages::default()),
            beginning: context.searched_body(row),
        };
        let is_head = endpoint.method == Method::HEAD;
        let opened = endpoint.http2.as_ref().and_then(|template| {
            let write = |block: &mut Vec<u8>| template.write(row.seq, row.attempts, block);
            link.session.get().open(now, is_head, sink, write).ok()
        });
        let slot = opened.ok_or_else(|| not_sent(row, NotSentReason::NoRequest))?;
        link.session.wake_driver();
        Ok(Self { context, endpoint, link, slot, row })
    }

    /// Returns the time the request was sent; `None` if it waits, or will not be sent on this connection.
    fn sent_at(&self) -> Option<Stamp> {
        self.link.session.get().stream(self.slot).sent_at
    }

    /// Waits until the request has been sent. Returns the time, or `None` if the connection accepts no more requests.
    ///
    /// # Errors
    /// Returns an error if the request is not sent within `limit` after `since`.
    async fn turn(&self, since: Stamp, limit: Duration) -> Result<Option<Stamp>> {
        let is_over = |stream: &StreamSlot| stream.sent_at.is_some() || stream.end.is_some();
        let turn = self.when(|stream| is_over(stream).then_some(stream.sent_at));
        match self.context.deadlines.within(since, limit, turn).await {
            Ok(Some(sent)) => Ok(Some(sent)),
            // A request that moves from connection to connection must end, too.
            Ok(None) if self.context.clock.now() < since + limit => Ok(None),
            Ok(None) | Err(Elapsed) => Err(overdue(self.row)),
        }
    }

    /// Receives the response.
    async fn receive(&mut self, sent: Stamp) -> Result<()> {
        let (link, slot) = (self.link, self.slot);
        let is_told = |stream: &StreamSlot| stream.head.is_some() || stream.end.is_some();
        let head = self.when(|stream| is_told(stream).then_some(stream.head));
        let Some(head) = self.context.by_first_byte(sent, head).await? else {
            return Err(self.failure(&link.session.get()));
        };
        self.note_head(head, link.session.get().stream(slot));
        let (end, at) = self.when(|stream| stream.end).await;
        let session = link.session.get();
        let ended = match end {
            StreamEnd::Complete => self.judge(head, session.stream(slot), at),
            _ => Err(self.failure(&session)),
        };
        if ended.is_err() || self.row.outcome != Outcome::Ok {
            self.row.headers = self.context.plan.wanted.kept_of(&session.stream(slot).headers);
        }
        ended
    }

    /// Waits until `read` finds something in the stream, and returns it.
    fn when<T>(&self, read: impl Fn(&StreamSlot) -> Option<T>) -> impl Future<Output = T> {
        poll_fn(move |context| {
            let mut session = self.link.session.get();
            let stream = session.stream_mut(self.slot);
            let Some(found) = read(stream) else {
                stream.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            Poll::Ready(found)
        })
    }

    /// Records the head of the response.
    fn note_head(&mut self, head: ResponseHead, stream: &StreamSlot) {
        let row = &mut *self.row;
        row.head = Some(head.at);
        row.status = Some(head.status);
        let mut pod = PodName::default();
        stream.headers.all(self.context.plan.wanted.pod.as_str()).for_each(|value| pod.add(value));
        row.pod = pod.take();
        let mut answers = self.endpoint.answers.borrow_mut();
        answers.count(stream.headers.get("server"), stream.headers.get("via"));
        answers.compare(&mut self.link.last_pod(), row.pod.as_ref());
    }

    /// Finds the pod's name in the beginning of the body, if no header has named the pod.
    fn name_pod(&mut self, is_whole: bool) {
        if self.row.head.is_none() || self.row.pod.is_some() {
            return;
        }
        if let Some(beginning) = self.link.session.get().stream_mut(self.slot).sink.beginning.take() {
            let mut before = self.link.last_pod();
            self.endpoint.name_pod(self.context, &beginning, is_whole, &mut before, self.row);
        }
    }

    /// Determines the outcome of a complete response.
    fn judge(&mut self, head: ResponseHead, stream: &StreamSlot, at: Stamp) -> Result<()> {
        let row = &mut *self.row;
        row.end = at;
        let Some((call, messages)) = self.endpoint.grpc.as_ref().zip(stream.sink.messages.as_ref()) else {
            row.outcome = self.context.plan.outcome_of(head.status);
            return Ok(());
        };
        let (status, outcome) = call.judge(&grpc::GrpcResponse {
            http: head.status,
            headers: &stream.headers,
            trailers: stream.trailers.as_ref(),
            messages,
        });
        row.grpc_status = status;
        row.outcome = outcome?;
        Ok(())
    }

    /// Returns the failure that ended the stream.
    fn failure(&self, session: &Http2Session) -> ExchangeFailure {
        let stream = session.stream(self.slot);
        let reached = match (self.row.head, stream.received) {
            (Some(_), _) => ResponseProgress::Body,
            (None, 0) if session.max_streams.is_none() => ResponseProgress::Connection,
            (None, 0) => ResponseProgress::Nothing,
            (None, _) => ResponseProgress::Head,
        };
        let fault =
            |fault: &Http2Fault| ExchangeFailure::with_detail(Outcome::ProtocolError, format!("{fault}"));
        let failure = match (stream.end.as_ref().map(|(end, _)| end), &session.end) {
            (Some(StreamEnd::Reset(code)), _) => {
                let outcome = match (*code, reached) {
                    // A refused stream was not processed, so no part of a response has arrived.
                    (REFUSED_STREAM, ResponseProgress::Connection | ResponseProgress::Nothing) => {
                        Outcome::H2RefusedStream
                    }
                    (_, ResponseProgress::Connection | ResponseProgress::Nothing) => {
                        Outcome::ResetBeforeResponse
                    }
                    (_, ResponseProgress::Head | ResponseProgress::Body) => Outcome::ResetMidResponse,
                };
                return ExchangeFailure::with_detail(outcome, error_name(*code));
            }
            (Some(StreamEnd::GoAway(code)), _) => {
                return ExchangeFailure::with_detail(Outcome::H2Goaway, goaway_name(*code));
            }
            (Some(StreamEnd::Short), _) => ExchangeFailure::new(Outcome::TruncatedBody, None),
            (Some(StreamEnd::Fault(why)), _) | (_, Some(ConnectionEnd::Fault(why))) => fault(why),
            (_, Some(ConnectionEnd::Lost(end))) => lost(reached, end, session.write_error.as_ref()),
            (_, Some(ConnectionEnd::Closed) | None) => ended_early(reached, session.write_error.as_ref()),
        };
        match session.goaway {
            Some(goaway) if failure.detail.is_none() => {
                ExchangeFailure { detail: Some(goaway_name(goaway.code).into()), ..failure }
            }
            _ => failure,
        }
    }
}

fn goaway_name(code: u32) -> String {
    format!("GOAWAY {}", error_name(code))
}

const REFUSED_STREAM: u32 = 7;
