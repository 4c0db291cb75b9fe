//! HTTP/1.1 over a connection: writes the request, and reads the response to its end.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use super::answer_stream::TransportEnd;
use super::connection::Connection;
use super::deadlines::Elapsed;
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::failure::{ExchangeFailure, PROTOCOL_ERROR, ResponseProgress, Result, ended_early, lost, overdue};
use super::request::Persistence;
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
    /// Error of a failed write. A server may respond and close before it has read everything, so a response is awaited
    /// even after a failed write.
    pub(super) write_error: Option<io::Error>,
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
        settings: &StreamSettings,
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
        context.streams.begin(self.row);
        let (end, failure) = match self.read_body(&mut head, Some(settings.stall_timeout)).await {
            Ok(end) => (end, None),
            Err((end, failure)) => (end, Some(failure)),
        };
        self.row.end = context.clock.now();
        let outcome = context.streams.end(self.row.seq, end);
        if outcome == Some(Outcome::Ok) {
            self.row.outcome = Outcome::Ok;
            return Ok(failure.is_none() && self.is_reusable(&head));
        }
        self.keep_headers();
        // A transport that ended well needs the stream's own outcome.
        let failure = failure.unwrap_or(PROTOCOL_ERROR);
        Err(ExchangeFailure { outcome: outcome.unwrap_or(failure.outcome), ..failure })
    }

    /// Keeps the headers of a response that did not end well.
    fn keep_headers(&mut self) {
        if self.row.headers.is_none() {
            self.row.headers = self.context.plan.wanted.kept_of_head(&self.connection.head);
        }
    }

    fn is_reusable(&self, head: &Head) -> bool {
        head.keep_alive && self.write_error.is_none() && self.connection.buffer.is_empty()
    }

    /// Sends the request and receives the head of the response.
    async fn ask(&mut self, persistence: Persistence) -> Result<Head> {
        let template = match persistence {
            Persistence::Close => &self.endpoint.closing,
            Persistence::Keep => &self.endpoint.keeping,
        };
        // The connection's buffer is empty between requests, so it is used for the request first.
        let mut request = std::mem::take(&mut self.connection.buffer);
        template.fill(self.row.seq, self.row.attempts, &mut request);
        self.write_error = self.connection.write_all(&request, &mut self.row.bytes_sent).await.err();
        self.connection.buffer = request;
        self.connection.buffer.clear();
        let head = self.read_head(Switch::Unasked).await?;
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
        let read = self.connection.read();
        let read = match self.row.sent.filter(|_| self.row.bytes_received == 0) {
            None => read.await,
            Some(sent) => self.context.by_first_byte(sent, read).await?,
        };
        match read {
            Ok(0) => Err(ended_early(reached, self.write_error.as_ref())),
            Ok(count) => {
                self.row.bytes_received += count as u64;
                Ok(())
            }
            Err(e) => Err(lost(reached, &e, self.write_error.as_ref())),
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
        } else if !head.is_whole_with(rest) {
            // If the body is cut off, the row keeps headers of this response.
            connection.head.clear();
            connection.head.extend_from_slice(bytes);
        }
    }

    /// Reads the body to the end of its transport, and keeps its beginning if that is to be searched for the pod's name.
    /// With a stall timeout, the body is a stream, whose events are read and whose silence is limited.
    ///
    /// # Errors
    /// Returns how the transport ended, and the outcome of a plain response that ends like that, if it did not end well.
    pub(super) async fn read_body(
        &mut self,
        head: &mut Head,
        stall_timeout: Option<Duration>,
    ) -> Result<TransportEnd, (TransportEnd, ExchangeFailure)> {
        let Self { context, connection, row, write_error, .. } = self;
        let (body, write_error) = (&mut head.body, write_error.as_ref());
        loop {
            let now = stall_timeout.map(|_| context.clock.now());
            let mut pushed = Ok(());
            let Connection { buffer, beginning, .. } = &mut **connection;
            let taken = body.take_with(buffer, |piece| {
                if let Some(beginning) = beginning {
                    beginning.add(piece);
                }
                if let Some(now) = now {
                    pushed = pushed.and_then(|()| context.streams.push(row.seq, now, piece));
                }
            });
            let taken = taken.map_err(|_| (TransportEnd::Malformed, PROTOCOL_ERROR))?;
            pushed.map_err(|_| (TransportEnd::EventTooLong, PROTOCOL_ERROR))?;
            buffer.drain(..taken);
            if body.is_done() {
                return Ok(match body {
                    Body::Length(_) => TransportEnd::ContentLength,
                    Body::Chunked(_) | Body::UntilClose => TransportEnd::LastChunk,
                });
            }
            let read = match now.zip(stall_timeout) {
                None => Ok(connection.read().await),
                Some((now, limit)) => context.deadlines.within(now, limit, pin!(connection.read())).await,
            };
            match read {
                Err(Elapsed) => return Err((TransportEnd::Stalled, overdue(row))),
                Ok(Ok(0)) if *body == Body::UntilClose && write_error.is_none() => {
                    return Ok(TransportEnd::Close);
                }
                Ok(Ok(0)) => {
                    return Err((TransportEnd::Truncated, ended_early(ResponseProgress::Body, write_error)));
                }
                Ok(Ok(count)) => row.bytes_received += count as u64,
                Ok(Err(e)) => {
                    return Err((TransportEnd::Reset, lost(ResponseProgress::Body, &e, write_error)));
                }
            }
        }
    }
}
