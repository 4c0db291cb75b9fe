//! One scheduled request from its dispatch to its end: the attempt that its row records, and what a retrying client
//! would do after it.
//!
//! Nothing is retried. Stamps, bytes and errno are written into the row as they
//! become known, so that whatever cuts the exchange short (a timeout, the end
//! of the run) leaves all that was seen until then.

mod not_sent;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::Method;
use tokio::time::sleep;

use super::answer_headers::Answers;
use super::connection::{self, Buffers, CannotDial, Connection};
use super::deadlines::{Deadlines, Elapsed};
use super::failure::{Failure, PROTOCOL_ERROR, Reached, connect_outcome, ended_early, lost};
use super::plan::Plan;
use super::pod_body::Beginning;
use super::ports::SourcePorts;
use super::request::{Persistence, Template};
use super::resolve::Walk;
use super::response::{self, Head};
use super::tls::Client;
use super::websocket::{self, Messages};
use super::{grpc, http2};
pub(super) use not_sent::NotSent;
use rolldrop_record::load::Http;
use rolldrop_record::retry::is_retried;
use rolldrop_record::{Clock, Outcome, RequestRow, Stamp};
use rolldrop_wire::http1::Body;

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
    async fn unless_aborted<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Pending if self.is_aborted.get() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
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
    pub(super) http2: Option<http2::Template>,
    /// What is special to gRPC.
    pub(super) grpc: Option<grpc::Call>,
    /// What is sent instead if it uses WebSocket.
    pub(super) messages: Option<Messages>,
    /// What the headers of its answers say.
    pub(super) answers: RefCell<Answers>,
}

/// How a request gets to its target.
pub(super) enum Via {
    /// Over a connection of its own.
    Own {
        /// An idle one, or the new one once it is established.
        connection: Option<Connection>,
        /// The number of a new one.
        id: u64,
    },
    /// Over a connection that may speak HTTP/2; none when that place was used.
    Http2(Option<http2::Ticket>),
}

impl Via {
    /// A new connection, with its number.
    pub(super) const fn dial(id: u64) -> Self {
        Via::Own { connection: None, id }
    }

    /// An idle connection, which has carried a request before.
    pub(super) const fn over(connection: Connection) -> Self {
        Via::Own { id: connection.id, connection: Some(connection) }
    }

    /// Whether a new connection must be opened.
    pub(super) const fn is_to_dial(&self) -> bool {
        matches!(self, Via::Own { connection: None, .. })
    }

    /// Whether it is over a connection that takes no request any more.
    pub(super) fn is_void(&self) -> bool {
        matches!(self, Via::Http2(Some(ticket)) if ticket.is_void())
    }

    /// The connection, if there is one.
    pub(super) const fn take(&mut self) -> Option<Connection> {
        match self {
            Via::Own { connection, .. } => connection.take(),
            Via::Http2(_) => None,
        }
    }
}

/// A request to be sent now. It stays in place until it has ended, because its parts are large.
pub(super) struct Exchange {
    /// The endpoint's index.
    pub(super) endpoint: usize,
    /// How it gets there. A connection that is left at the end can carry another request.
    pub(super) via: Via,
    /// Whether the connection is kept after the answer.
    pub(super) persistence: Persistence,
    /// The row. What the schedule knows is filled in.
    pub(super) row: RequestRow,
}

impl Exchange {
    /// Sends the request and follows it to its end. Returns when all attempts were over.
    pub(super) async fn run(&mut self, context: &Context) -> Stamp {
        let Self { endpoint, via, persistence, row } = self;
        let result = {
            let attempt = pin!(attempt(context, *endpoint, via, *persistence, row));
            context.unless_aborted(attempt).await
        };
        let is_reusable = match result.unwrap_or(Err(Failure::new(Outcome::Cancelled, None))) {
            Ok(is_reusable) => is_reusable,
            Err(failure) => {
                row.end = context.clock.now();
                row.outcome = failure.outcome;
                row.errno = failure.errno;
                row.detail = failure.detail;
                false
            }
        };
        if !is_reusable && let Some(connection) = via.take() {
            context.buffers.give(connection.into_buffer());
        }
        row.final_outcome = row.outcome;
        if context.plan.settings.retries == 0 {
            return row.end;
        }
        if context.unless_aborted(pin!(retry(context, *endpoint, row))).await.is_none() {
            row.final_outcome = Outcome::Cancelled;
        }
        context.clock.now()
    }
}

/// Does what a retrying client would do: sends the request again, on a new connection, while it fails and attempts
/// are left. The row keeps the facts of the first attempt.
async fn retry(context: &Context, endpoint: usize, row: &mut RequestRow) {
    let method = context.endpoints[endpoint].method.as_str();
    let settings = &context.plan.settings;
    let mut is_wanted = is_retried(method, row);
    while row.attempts <= settings.retries && is_wanted {
        if !settings.retry_delay.is_zero() {
            sleep(settings.retry_delay).await;
        }
        row.attempts += 1;
        let now = context.clock.now();
        let (source, target) = (row.source.clone(), row.target.clone());
        let again = RequestRow::not_sent(source, row.seq, target, row.phase, row.scheduled, now);
        let mut again = RequestRow { attempts: row.attempts, ..again };
        // Its connection has no row and is not kept: it needs no number.
        let mut via = match context.endpoints[endpoint].http2 {
            Some(_) => Via::Http2(Some(http2::Ticket::alone())),
            None => Via::dial(0),
        };
        let ended = attempt(context, endpoint, &mut via, Persistence::Close, &mut again).await;
        if let Err(failure) = ended {
            again.outcome = failure.outcome;
        }
        row.final_outcome = again.outcome;
        is_wanted = is_retried(method, &again);
    }
}

/// Returns whether the connection can carry another request.
async fn attempt(
    context: &Context,
    endpoint: usize,
    via: &mut Via,
    persistence: Persistence,
    row: &mut RequestRow,
) -> Result<bool, Failure> {
    let endpoint = &context.endpoints[endpoint];
    let connection = match via {
        Via::Own { connection: Some(connection), .. } => connection,
        Via::Own { connection, id } => connection.insert(connect(context, endpoint, *id, row).await?),
        // Apart, so that the future of an HTTP/1.1 exchange stays small.
        Via::Http2(ticket) => {
            let Some(ticket) = ticket.take() else { unreachable!("a ticket is for one attempt") };
            let attempt = http2::attempt(context, endpoint, ticket, persistence, row);
            return Box::pin(attempt).await.map(|()| false);
        }
    };
    carry(context, endpoint, persistence, connection, row).await
}

/// Sends the request over a connection of its own. Returns whether the connection can carry another one.
pub(super) async fn carry(
    context: &Context,
    endpoint: &Endpoint,
    persistence: Persistence,
    connection: &mut Connection,
    row: &mut RequestRow,
) -> Result<bool, Failure> {
    if connection.requests > 0 {
        row.conn = Some(connection.id);
        row.conn_reused = true;
        row.local_port = connection.local_port;
        row.remote_addr = Some(connection.remote.clone());
    }
    connection.requests += 1;
    let sent = context.clock.now();
    row.sent = Some(sent);
    let limit = context.plan.settings.response_timeout;
    let ended = match &endpoint.messages {
        None => {
            let talk = pin!(talk(context, endpoint, persistence, connection, row));
            context.deadlines.within(sent, limit, talk).await
        }
        // Boxed, so that requests do not carry the room for it.
        Some(messages) => {
            let talk = websocket::talk(context, (endpoint, messages), persistence, connection, row);
            context.deadlines.within(sent, limit, Box::pin(talk)).await
        }
    };
    if let Some(beginning) = connection.beginning.take() {
        let is_whole = matches!(ended, Ok(Ok(_)));
        beginning.name_pod(is_whole, context, endpoint, &mut connection.pod, row);
    }
    match ended {
        Ok(result) => Ok(result? && persistence == Persistence::Keep),
        Err(Elapsed) if row.head.is_some() => Err(Failure::new(Outcome::BodyTimeout, None)),
        Err(Elapsed) => Err(Failure::new(Outcome::ResponseTimeout, None)),
    }
}

pub(super) async fn connect(
    context: &Context,
    endpoint: &Endpoint,
    id: u64,
    row: &mut RequestRow,
) -> Result<Connection, Failure> {
    let start = context.clock.now();
    let address = endpoint.walk.next().map_err(|why| Failure::with_detail(Outcome::DnsError, why))?;
    let dialing = connection::dial(&address.remote, context.ports.as_ref()).map_err(|e| {
        let (reason, e) = match e {
            CannotDial::Socket(e) => (NotSent::NoSocket, e),
            CannotDial::LocalPort(e) => (NotSent::NoLocalPort, e),
        };
        row.not_sent_reason = Some(reason.as_str().into());
        Failure::new(Outcome::NotSent, e.raw_os_error())
    })?;
    row.connect_start = Some(start);
    row.conn = Some(id);
    row.local_port = dialing.local_port;
    row.remote_addr = Some(address.text.clone());
    let settings = &context.plan.settings;
    let connected = pin!(dialing.connected(id, address.text.clone(), context.clock));
    let mut connection = match context.deadlines.within(start, settings.connect_timeout, connected).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(e)) => return Err(Failure::new(connect_outcome(&e), e.raw_os_error())),
        Err(Elapsed) => return Err(Failure::new(Outcome::ConnectTimeout, None)),
    };
    let connected = connection.since;
    row.connected = Some(connected);
    connection.buffer = context.buffers.take();
    let Some(tls) = &endpoint.tls else { return Ok(connection) };
    let secured = pin!(connection.secured(tls));
    let connection = match context.deadlines.within(connected, settings.tls_timeout, secured).await {
        Ok(Ok(connection)) => connection,
        // There was no TLS yet that could have been closed.
        Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(ended_early(Reached::Connection, None));
        }
        Ok(Err(e)) => return Err(lost(Reached::Connection, &e, None)),
        Err(Elapsed) => return Err(Failure::with_detail(Outcome::TlsError, "timeout")),
    };
    row.tls = Some(context.clock.now());
    row.tls_session = connection.tls_session();
    Ok(connection)
}

/// Writes the request and reads the response to its end. Returns whether the
/// connection can carry another request.
async fn talk(
    context: &Context,
    endpoint: &Endpoint,
    persistence: Persistence,
    connection: &mut Connection,
    row: &mut RequestRow,
) -> Result<bool, Failure> {
    let template = match persistence {
        Persistence::Close => &endpoint.closing,
        Persistence::Keep => &endpoint.keeping,
    };
    // The connection's buffer is empty between requests; it serves the request first.
    let mut request = std::mem::take(&mut connection.buffer);
    template.fill(row.seq, row.attempts, &mut request);
    let written = connection.write_all(&request, &mut row.bytes_sent).await;
    connection.buffer = request;
    connection.buffer.clear();
    // A server may answer and close before it has read everything: a write that
    // failed is no reason not to look for its answer.
    let write_error = written.err();
    let switch = Switch::Unasked;
    let mut head = read_head(context, endpoint, switch, connection, row, write_error.as_ref()).await?;
    let complete = context.clock.now();
    row.head = Some(complete);
    row.status = Some(head.status);
    let before = row.bytes_received;
    let ended = read_body(connection, &mut head, row, write_error.as_ref()).await;
    if ended.is_err() && row.headers.is_none() {
        row.headers = context.plan.wanted.kept_of_head(&connection.head);
    }
    ended?;
    // A body that came with its head has ended when that was there.
    row.end = if row.bytes_received == before { complete } else { context.clock.now() };
    row.outcome = if context.plan.is_success(head.status) { Outcome::Ok } else { Outcome::HttpError };
    let nothing_more = connection.buffer.is_empty();
    Ok(head.keep_alive && write_error.is_none() && nothing_more)
}

/// Whether the request asked for another protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Asked,
    Unasked,
}

/// Reads the head of the final response, or of one that switches protocols if that was requested. The row gets what
/// its headers say.
pub(super) async fn read_head(
    context: &Context,
    endpoint: &Endpoint,
    switch: Switch,
    connection: &mut Connection,
    row: &mut RequestRow,
    write_error: Option<&io::Error>,
) -> Result<Head, Failure> {
    loop {
        // Interim responses (RFC 9110, 15.2) announce a final one.
        while let Some(mut head) = parse(context, endpoint, connection)? {
            let is_final = match head.status {
                101 if switch == Switch::Unasked => return Err(PROTOCOL_ERROR),
                101 => true,
                status => status >= 200,
            };
            if is_final {
                note_headers(context, endpoint, connection, row, &mut head);
            }
            connection.buffer.drain(..head.len);
            if is_final {
                return Ok(head);
            }
        }
        let reached = match connection.buffer.is_empty() {
            true if row.conn_reused => Reached::Nothing,
            true => Reached::Connection,
            false => Reached::Head,
        };
        read_more(context, connection, row, reached, write_error).await?;
    }
}

/// Reads the next part of an answer that has its own end; its first byte by the deadline for that.
pub(super) async fn read_more(
    context: &Context,
    connection: &mut Connection,
    row: &mut RequestRow,
    reached: Reached,
    write_error: Option<&io::Error>,
) -> Result<(), Failure> {
    let limit = context.plan.settings.first_byte_timeout.filter(|_| row.bytes_received == 0);
    let read = match limit.zip(row.sent) {
        None => connection.read().await,
        Some((limit, sent)) => {
            let read = context.deadlines.within(sent, limit, connection.read()).await;
            read.map_err(|Elapsed| Failure::with_detail(Outcome::ResponseTimeout, "first_byte"))?
        }
    };
    match read {
        Ok(0) => Err(ended_early(reached, write_error)),
        Ok(count) => {
            row.bytes_received += count as u64;
            Ok(())
        }
        Err(e) => Err(lost(reached, &e, write_error)),
    }
}

fn parse(context: &Context, endpoint: &Endpoint, connection: &Connection) -> Result<Option<Head>, Failure> {
    if connection.buffer.is_empty() {
        return Ok(None);
    }
    let head = response::parse_head(&connection.buffer, &endpoint.method, &context.plan.wanted);
    head.map_err(|_| PROTOCOL_ERROR)
}

/// Records what the headers of an answer say; its head is at the beginning of the buffer.
fn note_headers(
    context: &Context,
    endpoint: &Endpoint,
    connection: &mut Connection,
    row: &mut RequestRow,
    head: &mut Head,
) {
    let (bytes, rest) = connection.buffer.split_at(head.len);
    let mut answers = endpoint.answers.borrow_mut();
    let value = |place: &Option<Range<usize>>| place.clone().and_then(|place| bytes.get(place));
    answers.count(value(&head.server), value(&head.via));
    row.pod = head.pod.take();
    answers.compare(&mut connection.pod, row.pod.as_ref());
    connection.beginning = Beginning::wanted(context, row);
    if !context.plan.is_success(head.status) && head.status != 101 {
        row.headers = context.plan.wanted.kept_of_head(bytes);
    } else if !head.is_whole_with(rest) {
        // Who knows how it ends.
        connection.head.clear();
        connection.head.extend_from_slice(bytes);
    }
}

/// Reads the body to its end. Its beginning is kept if it is searched for the pod's name.
pub(super) async fn read_body(
    connection: &mut Connection,
    head: &mut Head,
    row: &mut RequestRow,
    write_error: Option<&io::Error>,
) -> Result<(), Failure> {
    loop {
        let taken = match &mut connection.beginning {
            None => head.body.take(&connection.buffer),
            Some(beginning) => head.body.take_with(&connection.buffer, |piece| beginning.add(piece)),
        };
        let taken = taken.map_err(|_| PROTOCOL_ERROR)?;
        connection.buffer.drain(..taken);
        if head.body.is_done() {
            return Ok(());
        }
        match connection.read().await {
            Ok(0) if head.body == Body::UntilClose && write_error.is_none() => return Ok(()),
            Ok(0) => return Err(ended_early(Reached::Body, write_error)),
            Ok(count) => row.bytes_received += count as u64,
            Err(e) => return Err(lost(Reached::Body, &e, write_error)),
        }
    }
}
