//! One client connection, relayed to a connection of its own to the app.
//!
//! The relay reads message heads to learn where messages end, and passes every
//! byte on as it came; only the pod header is put behind the response's own.
//! Requests and responses flow independently, so pipelining, early responses,
//! 1xx, trailers and upgrades need nothing special. A side that closes is
//! closed towards the other side, at the same byte; a side that resets is reset.
//!
//! The app is connected to when the first request head is complete. Should the
//! app's listener refuse, the client is reset: it must not see an answer that
//! the app did not give.

mod exchange;
mod head;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use self::exchange::Exchange;
use self::head::{Refusal, RequestHead, ResponseHead};
use super::Shared;
use crate::http1::Body;
use crate::record::{ServedEnd, Stamp};

/// Room for one read, in bytes. A connection that waits holds no buffer.
const READ_BYTES: usize = 16 * 1024;
/// How long a client may take to read an answer of the proxy's own.
const REFUSAL_LINGER: Duration = Duration::from_secs(1);

/// A client connection as it was accepted.
pub(super) struct Accepted {
    /// The connection.
    pub(super) stream: TcpStream,
    /// The client's address.
    pub(super) peer: SocketAddr,
    /// When it was accepted.
    pub(super) at: Stamp,
    /// Its number within this proxy.
    pub(super) conn: u64,
}

/// How a connection ends.
enum Finish {
    /// Both sides have closed.
    Closed,
    /// One side failed, so the other is reset; requests in flight end this way.
    Reset(ServedEnd),
    /// The proxy answers the request itself, and closes.
    Refuse(Refusal),
}

/// Relays a client connection to its end.
///
/// Every request whose head was read gets exactly one row, also when the
/// future is dropped half-way: then it is `cancelled` and both sides are reset.
pub(super) async fn serve(accepted: Accepted, shared: Arc<Shared>) {
    let Accepted { stream, peer, at, conn } = accepted;
    let mut link =
        Link { client: stream, app: None, exchange: Exchange::new(shared, peer, at, conn), finished: false };
    match link.relay().await {
        Finish::Closed => {}
        Finish::Reset(end) => {
            link.exchange.end_all(end);
            link.reset();
        }
        Finish::Refuse(refusal) => {
            link.app = None;
            if link.exchange.refused() {
                refuse(&mut link.client, refusal).await;
            } else {
                link.reset();
            }
        }
    }
    link.finished = true;
}

/// Answers in the app's stead, so that the client can read it whatever it still sends.
async fn refuse(client: &mut TcpStream, refusal: Refusal) {
    let answer = async {
        client.write_all(refusal.answer()).await?;
        client.shutdown().await?;
        // Closing with unread bytes would reset the connection under the answer.
        tokio::io::copy(client, &mut tokio::io::sink()).await
    };
    // A client that does not take the answer has gone, or will have to.
    let _ = tokio::time::timeout(REFUSAL_LINGER, answer).await;
}

/// Both connections, and the requests on them.
struct Link {
    client: TcpStream,
    app: Option<TcpStream>,
    exchange: Exchange,
    /// Whether the relay came to an end of its own.
    finished: bool,
}

impl Link {
    async fn relay(&mut self) -> Finish {
        let mut requests = BytesMut::new();
        // The data port is local to the pod or next to it; small writes must not wait for acks.
        // A socket that is gone already shows so at its first read.
        let _ = self.client.set_nodelay(true);
        let (mut from_client, to_client) = self.client.split();
        let mut first = match next_request(&mut from_client, &mut requests).await {
            Ok(Some(head)) => head,
            Ok(None) => return Finish::Closed,
            Err(finish) => return finish,
        };
        let exchange = &self.exchange;
        exchange.begin(&mut first);
        let connected = tokio::select! {
            biased;
            connected = TcpStream::connect(exchange.shared().upstream) => connected,
            _ = from_client.ready(Interest::ERROR) => return Finish::Reset(ServedEnd::ClientGone),
        };
        let app = match connected {
            Ok(app) => self.app.insert(app),
            Err(error) => return Finish::Reset(exchange.shared().connect_failed(&error)),
        };
        exchange.shared().app.accepts();
        let _ = app.set_nodelay(true);
        let (from_app, to_app) = app.split();
        tokio::select! {
            biased;
            finish = relay_responses(from_app, to_client, exchange) => finish,
            finish = relay_requests(first, requests, from_client, to_app, exchange) => finish,
        }
    }

    /// Makes both sides end in a reset when they are dropped.
    fn reset(&self) {
        for stream in std::iter::once(&self.client).chain(&self.app) {
            // Fails only on a socket that is gone already.
            let _ = stream.set_zero_linger();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A client that was never answered would have been refused by the app itself,
        // and one that waits for an answer must not take the end for a complete one.
        if !self.finished && (self.exchange.end_all(ServedEnd::Cancelled) || self.app.is_none()) {
            self.reset();
        }
    }
}

/// Passes requests on until the connection is over.
async fn relay_requests(
    mut head: RequestHead,
    mut buf: BytesMut,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    exchange: &Exchange,
) -> Finish {
    loop {
        match pass(head.len, &mut head.body, &mut buf, &mut from, &mut to).await {
            Ok(()) => {}
            Err(Stop::SourceClosed) => break,
            Err(Stop::Source) => return Finish::Reset(ServedEnd::ClientGone),
            Err(Stop::Framing) => return Finish::Refuse(Refusal::Malformed),
            Err(Stop::Sink) if exchange.app_stopped_reading() => {
                return Finish::Reset(ServedEnd::UpstreamEof);
            }
            // It may have answered before: the response side passes on what is left, then resets.
            Err(Stop::Sink) => std::future::pending().await,
        }
        if head.asks_upgrade && exchange.settled().await.is_switched() {
            head = RequestHead::TUNNEL;
            continue;
        }
        head = match next_request(&mut from, &mut buf).await {
            Ok(Some(head)) => head,
            Ok(None) => break,
            // An answer of our own waits for its turn.
            Err(Finish::Refuse(refusal)) => {
                exchange.settled().await;
                return Finish::Refuse(refusal);
            }
            Err(finish) => return finish,
        };
        exchange.begin(&mut head);
    }
    // Fails only if the app is gone, which the response side sees as well.
    let _ = to.shutdown().await;
    if exchange.client_closed() {
        return Finish::Closed;
    }
    let _ = from.ready(Interest::ERROR).await;
    Finish::Reset(ServedEnd::ClientGone)
}

/// Passes responses on until the connection is over.
async fn relay_responses(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, exchange: &Exchange) -> Finish {
    let mut buf = BytesMut::new();
    loop {
        let mut head = match next_response(&mut from, &mut buf, exchange).await {
            Ok(Some(head)) => head,
            Ok(None) => break,
            Err(_) => return Finish::Reset(ServedEnd::UpstreamReset),
        };
        if !head.is_interim() {
            exchange.answered(&head);
            if let Some(line) = &exchange.shared().pod_line {
                head.insert(&mut buf, line);
            }
        }
        let mut passed = pass(head.len, &mut head.body, &mut buf, &mut from, &mut to).await;
        if matches!(passed, Err(Stop::Framing)) {
            // Where it ends cannot be told any more; the client shall see what the app sends.
            passed = pass(0, &mut Body::UntilClose, &mut buf, &mut from, &mut to).await;
        }
        match passed {
            Ok(()) if head.is_interim() => {}
            Ok(()) => exchange.complete(),
            Err(Stop::SourceClosed) => {
                if head.ends_by_close() {
                    exchange.complete();
                }
                break;
            }
            Err(Stop::Source | Stop::Framing) => return Finish::Reset(ServedEnd::UpstreamReset),
            Err(Stop::Sink) => return Finish::Reset(ServedEnd::ClientGone),
        }
    }
    let end = exchange.app_closed();
    if exchange.is_app_unwritable() {
        return Finish::Reset(end);
    }
    // Fails only if the client is gone, which the request side sees as well.
    let _ = to.shutdown().await;
    if exchange.is_client_closed() {
        return Finish::Closed;
    }
    // What the client still sends goes on to the app, whose kernel may answer it with a reset.
    let _ = from.ready(Interest::ERROR).await;
    Finish::Reset(ServedEnd::UpstreamEof)
}

/// The next request head at the front of `buf`; `None` if the client closed.
async fn next_request(from: &mut ReadHalf<'_>, buf: &mut BytesMut) -> Result<Option<RequestHead>, Finish> {
    let mut looked_at = 0;
    loop {
        // Only a line end can complete a head: a head that drips in is not parsed anew for each byte.
        if (buf.len() > head::MAX_HEAD_BYTES || buf[looked_at..].contains(&b'\n'))
            && let Some(head) = head::parse_request(buf).map_err(Finish::Refuse)?
        {
            return Ok(Some(head));
        }
        looked_at = buf.len();
        match fill(from, buf).await {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(_) => return Err(Finish::Reset(ServedEnd::ClientGone)),
        }
    }
}

/// The next response head at the front of `buf`; `None` if the app closed.
async fn next_response(
    from: &mut ReadHalf<'_>,
    buf: &mut BytesMut,
    exchange: &Exchange,
) -> io::Result<Option<ResponseHead>> {
    loop {
        if !buf.is_empty() {
            match head::parse_response(buf, exchange.is_next_to_head()) {
                Ok(Some(head)) => return Ok(Some(head)),
                Ok(None) => {}
                Err(head::Unreadable) => return Ok(Some(ResponseHead::UNREADABLE)),
            }
        }
        if fill(from, buf).await? == 0 {
            // Half a head is passed on too: the client shall see as much as the app sent.
            return Ok((!buf.is_empty()).then_some(ResponseHead::UNREADABLE));
        }
    }
}

/// Reads what there is into `buf`; 0 means that the other side closed.
async fn fill(from: &mut ReadHalf<'_>, buf: &mut BytesMut) -> io::Result<usize> {
    if buf.is_empty() && from.readable().now_or_never().is_none() {
        *buf = BytesMut::new();
        from.readable().await?;
    }
    buf.reserve(READ_BYTES);
    from.read_buf(buf).await
}

/// Why a message could not be passed on to its end.
enum Stop {
    /// The side it came from closed.
    SourceClosed,
    /// The side it came from failed.
    Source,
    /// The side it went to failed.
    Sink,
    /// Its body breaks the grammar.
    Framing,
}

/// Passes on the message at the front of `buf`: `head_len` bytes of head, then its body.
async fn pass(
    head_len: usize,
    body: &mut Body,
    buf: &mut BytesMut,
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
) -> Result<(), Stop> {
    let mut ready = head_len;
    loop {
        ready += body.take(&buf[ready..]).map_err(|_| Stop::Framing)?;
        if ready > 0 {
            to.write_all(&buf[..ready]).await.map_err(|_| Stop::Sink)?;
            buf.advance(ready);
            ready = 0;
        }
        if body.is_done() {
            return Ok(());
        }
        if fill(from, buf).await.map_err(|_| Stop::Source)? == 0 {
            return Err(Stop::SourceClosed);
        }
    }
}
