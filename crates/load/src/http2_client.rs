//! One request on an HTTP/2 connection, from its dispatch to its end: the facts observed on the wire, and the outcome
//! derived from them.
//!
//! The end of a stream takes precedence over the end of the connection. What the peer sent about this stream
//! (RST_STREAM, or a GOAWAY that excludes it) determines the outcome of its request, whatever happened to the connection
//! afterwards. Nothing is retried here.
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

use std::future::poll_fn;
use std::task::Poll;

use http::Method;

use super::answer_headers::PodName;
use super::carry::carry;
use super::deadlines::Elapsed;
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::failure::{ExchangeFailure, ResponseProgress, Result, ended_early, lost, overdue};
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

/// Sends a request and follows it to its end.
///
/// # Errors
/// Returns an error if the request did not end with a complete response.
pub(super) async fn attempt(
    context: &ExchangeContext,
    endpoint: &TargetEndpoint,
    ticket: Ticket,
    persistence: Persistence,
    row: &mut RequestRow,
) -> Result<()> {
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
    let mut call = Http2Exchange { context, endpoint, link: &link, slot: None, row };
    let sent = context.clock.now();
    call.row.sent = Some(sent);
    let limit = context.plan.settings.response_timeout();
    let ended = context.deadlines.within(sent, limit, call.run(sent)).await;
    let ended = ended.unwrap_or_else(|Elapsed| Err(overdue(call.row)));
    call.name_pod(ended.is_ok());
    ended
}

/// A request in progress on its connection.
struct Http2Exchange<'a> {
    context: &'a ExchangeContext,
    endpoint: &'a TargetEndpoint,
    link: &'a Http2Link,
    /// Slot of the stream, once there is one.
    slot: Option<usize>,
    row: &'a mut RequestRow,
}

/// Frees the slot, and counts the bytes transferred, however the request ends.
impl Drop for Http2Exchange<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut session = self.link.session.get();
        let stream = session.stream(slot);
        self.row.stream = stream.id;
        self.row.bytes_sent = stream.sent;
        self.row.bytes_received = stream.received;
        if session.close(slot) {
            drop(session);
            self.link.session.wake_driver();
        }
    }
}

impl Http2Exchange<'_> {
    async fn run(&mut self, begun: Stamp) -> Result<()> {
        let Some(slot) = self.send() else {
            self.row.sent = None;
            self.row.not_sent_reason = Some(NotSentReason::NoRequest.as_str().into());
            return Err(ExchangeFailure::new(Outcome::NotSent, None));
        };
        let link = self.link;
        let head = poll_fn(|context| {
            let mut session = link.session.get();
            let stream = session.stream_mut(slot);
            if stream.head.is_some() || stream.end.is_some() {
                return Poll::Ready(stream.head);
            }
            stream.waker = Some(context.waker().clone());
            Poll::Pending
        });
        let Some(head) = self.context.by_first_byte(begun, head).await? else {
            return Err(self.failure(&link.session.get(), slot));
        };
        self.note_head(head, link.session.get().stream(slot));
        let end = poll_fn(|context| {
            let mut session = link.session.get();
            let stream = session.stream_mut(slot);
            if let Some(end) = stream.end {
                return Poll::Ready(end);
            }
            stream.waker = Some(context.waker().clone());
            Poll::Pending
        });
        let (end, at) = end.await;
        let session = link.session.get();
        let ended = match end {
            StreamEnd::Complete => self.judge(head, session.stream(slot), at),
            _ => Err(self.failure(&session, slot)),
        };
        if ended.is_err() || self.row.outcome != Outcome::Ok {
            self.row.headers = self.context.plan.wanted.kept_of(&session.stream(slot).headers);
        }
        ended
    }

    /// Hands the request to the connection. Returns `None` if no valid request can be made.
    fn send(&mut self) -> Option<usize> {
        let template = self.endpoint.http2.as_ref()?;
        let sink = BodySink {
            messages: self.endpoint.grpc.as_ref().map(|_| grpc::Messages::default()),
            beginning: self.context.searched_body(self.row),
        };
        let (seq, attempt) = (self.row.seq, self.row.attempts);
        let is_head = self.endpoint.method == Method::HEAD;
        let slot = self.link.session.get().open(is_head, sink, |block| template.write(seq, attempt, block));
        self.slot = slot.ok();
        self.link.session.wake_driver();
        self.slot
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
        let Some(slot) = self.slot.filter(|_| self.row.head.is_some() && self.row.pod.is_none()) else {
            return;
        };
        if let Some(beginning) = self.link.session.get().stream_mut(slot).sink.beginning.take() {
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
    fn failure(&self, session: &Http2Session, slot: usize) -> ExchangeFailure {
        let stream = session.stream(slot);
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
