//! One request on an HTTP/2 connection, from its dispatch to its end: the facts observed on the wire, and the outcome
//! derived from them.
//!
//! The `h2` crate implements the protocol. The end of a stream takes precedence over the end of the connection. What
//! the peer sent about this stream (RST_STREAM, or a GOAWAY that excludes it) determines the outcome of its request,
//! whatever happened to the connection afterwards. Nothing is retried here.
//!
//! `http2_link` is a connection, `http2_pool` holds a worker's connections, and `observed_wire` records what passes
//! over a connection. If TLS negotiates the HTTP version, all connections of a worker are managed here; those that
//! speak HTTP/1.1 are kept here and used by `carry`.

mod frame_observer;
mod http2_link;
mod http2_pool;
mod observed_wire;
mod sieve;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::answer_headers::PodName;
use super::carry::carry;
use super::deadlines::Elapsed;
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::failure::{ExchangeFailure, ResponseProgress, Result, ended_early, lost, overdue};
use super::grpc;
use super::not_sent_reason::NotSentReason;
use super::pod_body::Beginning;
use super::request::Persistence;
use http2_link::{Http2Link, LinkPlace, Spoken};
pub(super) use http2_pool::{Http2Pool, PoolLimits, Ticket};
use rolldrop_record::{Outcome, RequestRow, Stamp};
use rolldrop_wire::http2::error_name;

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
        LinkPlace::Opener => link.open(context, endpoint, row).await?,
        LinkPlace::Stream => Spoken::Http2(link.join(row).await?),
        LinkPlace::Idle(connection) => Spoken::Http1(connection),
    };
    let requests = match spoken {
        Spoken::Http2(requests) => requests.clone(),
        Spoken::Http1(mut connection) => {
            if carry(context, endpoint, persistence, &mut connection, row).await? {
                link.keep(connection);
            }
            return Ok(());
        }
    };
    let mut call = Http2Exchange { context, endpoint, link: &link, stream: None, beginning: None, row };
    let sent = context.clock.now();
    call.row.sent = Some(sent);
    let limit = context.plan.settings.response_timeout();
    let ended = context.deadlines.within(sent, limit, call.run(requests, sent)).await;
    let ended = ended.unwrap_or_else(|Elapsed| Err(overdue(call.row)));
    if let Some(beginning) = call.beginning.take() {
        endpoint.name_pod(context, &beginning, ended.is_ok(), &mut link.last_pod(), call.row);
    }
    ended
}

/// A request in progress on its connection.
struct Http2Exchange<'a> {
    context: &'a ExchangeContext,
    endpoint: &'a TargetEndpoint,
    link: &'a Http2Link,
    /// Id of the stream, once there is one.
    stream: Option<u32>,
    /// Beginning of the body, if the body is searched for the pod's name.
    beginning: Option<Box<Beginning>>,
    row: &'a mut RequestRow,
}

/// Counts the bytes transferred, however the request ends.
impl Drop for Http2Exchange<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.stream {
            let mut wire = self.link.wire.get();
            let stream = wire.stream(id);
            wire.forget(id);
            self.row.bytes_sent = stream.sent;
            self.row.bytes_received = stream.received;
        }
    }
}

impl Http2Exchange<'_> {
    async fn run(&mut self, mut requests: SendRequest<Bytes>, begun: Stamp) -> Result<()> {
        let template = self.endpoint.http2.as_ref();
        let made = template.and_then(|template| template.make(self.row.seq, self.row.attempts).ok());
        let Some((request, body)) = made else {
            self.row.sent = None;
            self.row.not_sent_reason = Some(NotSentReason::NoRequest.as_str().into());
            return Err(ExchangeFailure::new(Outcome::NotSent, None));
        };
        let method = request.method().clone();
        let sent = requests.send_request(request, body.is_empty());
        let (response, mut stream) = sent.map_err(|error| self.failure(&error, None))?;
        let id = response.stream_id().as_u32();
        self.stream = Some(id);
        self.row.stream = Some(id);
        if !body.is_empty() {
            // If the body cannot be sent, the response shows why.
            let _ = stream.send_data(body, true);
        }
        self.answer(response, &method, begun).await
    }

    async fn answer(&mut self, response: ResponseFuture, method: &Method, begun: Stamp) -> Result<()> {
        let response = self.context.by_first_byte(begun, response).await?;
        let response = response.map_err(|error| self.failure(&error, None))?;
        let (head, body) = response.into_parts();
        let row = &mut *self.row;
        row.head = Some(self.context.clock.now());
        row.status = Some(head.status.as_u16());
        let mut pod = PodName::default();
        let wanted = &self.context.plan.wanted;
        head.headers.get_all(&wanted.pod).iter().for_each(|value| pod.add(value.as_bytes()));
        row.pod = pod.take();
        let value = |name: HeaderName| head.headers.get(name).map(HeaderValue::as_bytes);
        self.endpoint.answers.borrow_mut().count(value(header::SERVER), value(header::VIA));
        self.endpoint.answers.borrow_mut().compare(&mut self.link.last_pod(), row.pod.as_ref());
        self.beginning = self.context.searched_body(row);
        let ended = self.end_of(body, &head, method).await;
        if ended.is_err() || self.row.outcome != Outcome::Ok {
            self.row.headers = wanted.kept_of(&head.headers);
        }
        ended
    }

    /// Reads the rest of the response after the head, and determines the outcome.
    async fn end_of(&mut self, body: RecvStream, head: &Parts, method: &Method) -> Result<()> {
        let mut messages = grpc::Messages::default();
        let trailers = self.body(body, announced(&head.headers, method), &mut messages).await?;
        let row = &mut *self.row;
        row.end = self.context.clock.now();
        if let Some(call) = self.endpoint.grpc.as_ref() {
            let answer = grpc::GrpcResponse {
                http: head.status,
                headers: &head.headers,
                trailers: trailers.as_ref(),
                messages: &messages,
            };
            let (status, outcome) = call.judge(&answer);
            row.grpc_status = status;
            row.outcome = outcome?;
        } else {
            row.outcome = self.context.plan.outcome_of(head.status.as_u16());
        }
        Ok(())
    }

    /// Reads the body to its end, and then the trailers.
    async fn body(
        &mut self,
        mut body: RecvStream,
        announced: Option<u64>,
        messages: &mut grpc::Messages,
    ) -> Result<Option<HeaderMap>> {
        while let Some(data) = body.data().await {
            let data: Bytes = match data {
                Ok(data) => data,
                // The response is complete; the server does not need the rest of the request (RFC 9113, 8.1).
                Err(error) if error.reason() == Some(Reason::NO_ERROR) && self.is_complete() => break,
                Err(error) => return Err(self.failure(&error, announced)),
            };
            // This fails only if the stream has ended.
            let _ = body.flow_control().release_capacity(data.len());
            if self.endpoint.grpc.is_some() {
                messages.pass(&data);
            }
            if let Some(beginning) = &mut self.beginning {
                beginning.add(&data);
            }
        }
        match body.trailers().await {
            Ok(trailers) => Ok(trailers),
            Err(error) if error.reason() == Some(Reason::NO_ERROR) && self.is_complete() => Ok(None),
            Err(error) => Err(self.failure(&error, announced)),
        }
    }

    fn is_complete(&self) -> bool {
        self.stream.is_some_and(|id| self.link.wire.get().stream(id).is_complete)
    }

    /// Returns the failure that ended the stream, based on the facts from the wire. `announced` is the length of the
    /// body according to the head.
    fn failure(&self, error: &h2::Error, announced: Option<u64>) -> ExchangeFailure {
        let wire = self.link.wire.get();
        let stream = self.stream.map(|id| wire.stream(id)).unwrap_or_default();
        let reached = match (self.row.head, stream.received) {
            (Some(_), _) => ResponseProgress::Body,
            (None, 0) if wire.max_streams.is_none() => ResponseProgress::Connection,
            (None, 0) => ResponseProgress::Nothing,
            (None, _) => ResponseProgress::Head,
        };
        if let Some(code) = stream.reset {
            let outcome = match (code, reached) {
                // A refused stream was not processed, so no part of a response has arrived.
                (REFUSED_STREAM, ResponseProgress::Connection | ResponseProgress::Nothing) => {
                    Outcome::H2RefusedStream
                }
                (_, ResponseProgress::Connection | ResponseProgress::Nothing) => Outcome::ResetBeforeResponse,
                (_, ResponseProgress::Head | ResponseProgress::Body) => Outcome::ResetMidResponse,
            };
            return ExchangeFailure::with_detail(outcome, error_name(code));
        }
        let goaway = wire.goaway.map(|goaway| (goaway, format!("GOAWAY {}", error_name(goaway.code))));
        match &goaway {
            // A request without a stream never reached the peer.
            Some((goaway, name)) if self.stream.is_none_or(|id| id > goaway.last_stream) => {
                return ExchangeFailure::with_detail(Outcome::H2Goaway, name.clone());
            }
            _ => {}
        }
        let is_short = stream.is_complete && announced.is_some_and(|length| stream.body < length);
        let by_connection = match &wire.read_end {
            _ if error.is_library() && is_short => ExchangeFailure::new(Outcome::TruncatedBody, None),
            Some(Ok(())) if !error.is_library() => ended_early(reached, wire.write_error.as_ref()),
            Some(Err(end)) if !error.is_library() => lost(reached, end, wire.write_error.as_ref()),
            _ => ExchangeFailure::with_detail(Outcome::ProtocolError, error.to_string()),
        };
        match goaway {
            Some((_, name)) if by_connection.detail.is_none() => {
                ExchangeFailure { detail: Some(name.into()), ..by_connection }
            }
            _ => by_connection,
        }
    }
}

const REFUSED_STREAM: u32 = 7;

/// Returns the body length given in the head, if any.
fn announced(headers: &HeaderMap, method: &Method) -> Option<u64> {
    let length = headers.get(header::CONTENT_LENGTH).filter(|_| *method != Method::HEAD)?;
    length.to_str().ok()?.parse().ok()
}

/// Returns a summary of the frames in these pieces: message bytes, body bytes, and all other facts in order.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (u64, u64, String) {
    let (mut frames, mut sums, mut others) = (frame_observer::FrameObserver::after(3), (0, 0), Vec::new());
    for piece in pieces {
        frames.pass(piece, |seen| match seen {
            frame_observer::ObservedFact::Message { bytes, body, .. } => {
                sums = (sums.0 + bytes, sums.1 + body)
            }
            other => others.push(other),
        });
    }
    (sums.0, sums.1, format!("{others:?}"))
}
