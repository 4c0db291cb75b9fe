//! HTTP/1.1 over a connection: writes the request, and reads the response to its end.

use std::io;
use std::mem;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::answer_stream::MediaFault;
use super::body_end::{BodyEnd, ReadEnd, take_body};
use super::connection::Connection;
use super::deadlines::Elapsed;
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::failure::{ExchangeFailure, PROTOCOL_ERROR, ResponseProgress, Result, ended_early, lost, overdue};
use super::open_streams::{ReceivedBytes, StreamHandle};
use super::polled_stream::PolledBody;
use super::request::Persistence;
use super::request_write::RequestWrite;
use super::response::{self, Head};
use rolldrop_record::load::StreamSettings;
use rolldrop_record::{Outcome, RequestRow};
use rolldrop_wire::http1::Body;

/// A request and its response on a connection that nothing else uses in the meantime.
pub(super) struct Http1Exchange<'a> {
    pub(super) context: &'a ExchangeContext,
    pub(super) endpoint: &'a TargetEndpoint,
    pub(super) connection: &'a mut Connection,
    pub(super) row: &'a mut RequestRow,
    /// Progress in writing the request.
    pub(super) write: RequestWrite,
}

/// Protocol switch that the request asked for, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Asked,
    Unasked,
}

impl Http1Exchange<'_> {
    /// Sends the request and receives the response. Returns true if the connection can carry another request.
    pub(super) async fn exchange(&mut self, persistence: Persistence) -> Result<bool> {
        let head = self.ask(persistence).await?;
        self.receive_body(head).await
    }

    /// Receives the body of a plain response. Returns true if the connection can carry another request.
    async fn receive_body(&mut self, mut head: Head) -> Result<bool> {
        let before = self.row.bytes_received;
        if let Err((_, failure)) = self.read_body(&mut head, None).await {
            self.keep_headers();
            return Err(failure);
        }
        // A body that arrived together with its head was complete when the head was.
        self.row.end = match self.row.head {
            Some(complete) if self.row.bytes_received == before => complete,
            _ => self.context.clock.now(),
        };
        self.row.outcome = self.context.plan.outcome_of(head.status);
        Ok(self.is_reusable(&head))
    }

    /// Sends the request and receives a response that is a stream. Its head must arrive within the response timeout;
    /// after that, only silence is limited. Returns true if the connection can carry another request.
    pub(super) async fn receive_stream(
        &mut self,
        settings: &Arc<StreamSettings>,
        persistence: Persistence,
    ) -> Result<bool> {
        let context = self.context;
        let (sent, limit) = (self.row.sent.unwrap_or_default(), context.plan.settings.response_timeout());
        let head = context.deadlines.within(sent, limit, pin!(self.ask(persistence))).await;
        let mut head = head.unwrap_or_else(|Elapsed| Err(overdue(self.row)))?;
        if !context.plan.is_success(head.status) {
            let asked = self.row.head.unwrap_or_default();
            let ended = context.deadlines.within(asked, limit, pin!(self.receive_body(head))).await;
            return ended.unwrap_or_else(|Elapsed| Err(overdue(self.row)));
        }
        let value =
            |place: &Option<Range<usize>>| place.clone().and_then(|place| self.connection.head.get(place));
        let mut fault =
            MediaFault::of(settings.kind, value(&head.content_type), value(&head.content_encoding));
        if let Some(MediaFault::Encoded(detail)) = fault {
            self.keep_headers();
            return Err(ExchangeFailure::with_detail(Outcome::ProtocolError, detail));
        }
        let stream = context.streams.begin(settings, self.row);
        let (end, failure) = match self.read_stream(&mut head, &stream, settings.stall_timeout).await {
            Ok(end) => (end, None),
            Err((end, failure)) => (end, Some(failure)),
        };
        self.row.end = context.clock.now();
        if failure.is_some() || stream.with(|open| open.reader.events().0 > 0) {
            fault = None;
        }
        let outcome = stream.end(self.row.end, end);
        if let Some(MediaFault::OtherType(detail)) = fault {
            self.keep_headers();
            return Err(ExchangeFailure::with_detail(Outcome::ProtocolError, detail));
        }
        if outcome == Some(Outcome::Ok) {
            self.row.outcome = Outcome::Ok;
            return Ok(failure.is_none() && self.is_reusable(&head));
        }
        self.keep_headers();
        // If the transport ended well, the outcome is the stream's own.
        let failure = failure.unwrap_or(PROTOCOL_ERROR);
        Err(ExchangeFailure { outcome: outcome.unwrap_or(failure.outcome), ..failure })
    }

    /// Reads the body of a stream to its end. The worker's poller reads it if possible, unless the body is to be
    /// searched for the pod's name or the request is still being written.
    async fn read_stream(
        &mut self,
        head: &mut Head,
        stream: &StreamHandle<'_>,
        stall_timeout: Duration,
    ) -> BodyEnd {
        let Self { context, connection, row, write, .. } = self;
        let is_only_read = connection.beginning.is_none() && !write.is_underway();
        let poller = context.poller.as_ref().filter(|_| is_only_read);
        let taken = poller.and_then(|poller| Some((poller, connection.take_tcp()?)));
        let Some((poller, socket)) = taken else {
            return self.read_body(head, Some((stream, stall_timeout))).await;
        };
        let end = match socket {
            Err(e) => ReadEnd::Lost(e),
            Ok(socket) => {
                let body = mem::replace(&mut head.body, Body::NONE);
                let polled = PolledBody { socket, body, rest: Vec::new() };
                let ended = poller.begin(stream, polled, &connection.buffer);
                context.buffers.give(mem::take(&mut connection.buffer));
                let received = ReceivedBytes { stream, bytes: &mut row.bytes_received };
                let Ok((polled, end)) = ended.await else {
                    unreachable!("the stream keeps the sender until it has ended")
                };
                drop(received);
                head.body = polled.body;
                connection.buffer = polled.rest;
                // A connection without its socket is not used again.
                let _ = connection.put_back(polled.socket);
                end
            }
        };
        end.of_response(&head.body, row, write.error())
    }

    /// Keeps the headers of a response that did not end well.
    fn keep_headers(&mut self) {
        if self.row.headers.is_none() {
            self.row.headers = self.context.plan.wanted.kept_of_head(&self.connection.head);
        }
    }

    fn is_reusable(&self, head: &Head) -> bool {
        head.keep_alive && self.write.is_complete() && self.connection.buffer.is_empty()
    }

    /// Sends the request and receives the head of the response. The rest of the request may still have to be written.
    async fn ask(&mut self, persistence: Persistence) -> Result<Head> {
        let template = match persistence {
            Persistence::Close => &self.endpoint.closing,
            Persistence::Keep => &self.endpoint.keeping,
        };
        // The connection's buffer is empty between requests, so it is used for the request first.
        let mut request = mem::take(&mut self.connection.buffer);
        template.fill(self.row.seq, self.row.attempts, &mut request);
        let Self { context, connection, row, .. } = self;
        let spare = || context.buffers.take();
        self.write = RequestWrite::begin(request, connection, &mut row.bytes_sent, spare).await;
        let head = self.read_head(Switch::Unasked).await?;
        // Such a server does not want the rest (RFC 9112, 9.5). Others get it (RFC 9110, 7.5): without it, an echo would
        // not end.
        if head.status >= 400 && !head.keep_alive {
            self.write.stop();
        }
        self.row.head = Some(self.context.clock.now());
        self.row.status = Some(head.status);
        Ok(head)
    }

    /// Reads the head of the final response, or of a response that switches protocols if the request asked for that.
    /// Records the headers in the row.
    pub(super) async fn read_head(&mut self, switch: Switch) -> Result<Head> {
        loop {
            // Interim responses (RFC 9110, 15.2) precede a final one.
            while let Some(mut head) = self.parse()? {
                let is_final = match head.status {
                    101 if switch == Switch::Unasked => return Err(PROTOCOL_ERROR),
                    101 => true,
                    status => status >= 200,
                };
                if is_final {
                    self.note_headers(&mut head);
                }
                self.connection.buffer.drain(..head.len);
                if is_final {
                    return Ok(head);
                }
            }
            let reached = match self.connection.buffer.is_empty() {
                true if self.row.conn_reused => ResponseProgress::Nothing,
                true => ResponseProgress::Connection,
                false => ResponseProgress::Head,
            };
            self.read_more(reached).await?;
        }
    }

    /// Reads the next part of a response. The first byte must arrive by its deadline, if there is one.
    pub(super) async fn read_more(&mut self, reached: ResponseProgress) -> Result<()> {
        let Self { context, connection, row, write, .. } = self;
        let first = row.sent.filter(|_| row.bytes_received == 0);
        let read = write.read(connection, &mut row.bytes_sent);
        let read = match first {
            None => read.await,
            Some(sent) => context.by_first_byte(sent, read).await?,
        };
        let is_closed = match &read {
            Ok(count) => *count == 0,
            Err(e) => e.kind() == io::ErrorKind::UnexpectedEof,
        };
        if is_closed {
            // If the server has closed both directions, the rest of the request is answered with a reset.
            write.finish(connection, &mut row.bytes_sent).await;
        }
        match read {
            Ok(0) => Err(ended_early(reached, write.error())),
            Ok(count) => {
                row.bytes_received += count as u64;
                Ok(())
            }
            Err(e) => Err(lost(reached, &e, write.error())),
        }
    }

    fn parse(&self) -> Result<Option<Head>> {
        if self.connection.buffer.is_empty() {
            return Ok(None);
        }
        let wanted = &self.context.plan.wanted;
        response::parse_head(&self.connection.buffer, &self.endpoint.method, wanted)
            .map_err(|_| PROTOCOL_ERROR)
    }

    /// Records the headers of the response whose head is at the beginning of the buffer.
    fn note_headers(&mut self, head: &mut Head) {
        let Self { context, endpoint, connection, row, .. } = self;
        let (bytes, rest) = connection.buffer.split_at(head.len);
        let mut answers = endpoint.answers.borrow_mut();
        let value = |place: &Option<Range<usize>>| place.clone().and_then(|place| bytes.get(place));
        answers.count(value(&head.server), value(&head.via));
        row.pod = head.pod.take();
        answers.compare(&mut connection.pod, row.pod.as_ref());
        connection.beginning = context.searched_body(row);
        if !context.plan.is_success(head.status) && head.status != 101 {
            row.headers = context.plan.wanted.kept_of_head(bytes);
        } else if context.streams.settings().is_some() || !head.is_whole_with(rest) {
            // The headers show whether the body is a stream. If the body is cut off, some of them go into the row.
            connection.head.clear();
            connection.head.extend_from_slice(bytes);
        }
    }

    /// Reads the body to the end of its transport, and keeps its beginning if that is to be searched for the pod's
    /// name. Given a stream and its stall timeout, also passes the content to the stream, and limits how long it may be
    /// silent.
    ///
    /// # Errors
    /// If the transport did not end well, returns how it ended, and the failure that this means for a plain response.
    pub(super) async fn read_body(
        &mut self,
        head: &mut Head,
        stream: Option<(&StreamHandle<'_>, Duration)>,
    ) -> BodyEnd {
        let Self { context, connection, row, write, .. } = self;
        let body = &mut head.body;
        let end = loop {
            let stream = stream.map(|(stream, limit)| (stream, limit, context.clock.now()));
            let Connection { buffer, beginning, .. } = &mut **connection;
            let taken = take_body(body, buffer, |piece| {
                if let Some(beginning) = beginning {
                    beginning.add(piece);
                }
                stream.map_or(Ok(()), |(stream, _, now)| stream.push(now, piece))
            });
            match taken {
                Ok(taken) => drop(buffer.drain(..taken)),
                Err(end) => break end,
            }
            if body.is_done() {
                break ReadEnd::Complete;
            }
            let read = write.read(connection, &mut row.bytes_sent);
            let read = match stream {
                None => Ok(read.await),
                Some((_, limit, now)) => context.deadlines.within(now, limit, pin!(read)).await,
            };
            match read {
                Err(Elapsed) => break ReadEnd::Stalled,
                Ok(Ok(0)) => break ReadEnd::Closed,
                Ok(Ok(count)) => row.bytes_received += count as u64,
                Ok(Err(e)) => break ReadEnd::Lost(e),
            }
        };
        end.of_response(body, row, write.error())
    }
}
