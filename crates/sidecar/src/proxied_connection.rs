//! One client connection, and the corresponding connection to the app.
//!
//! The proxy connects to the app as soon as it accepts the client, so the client sees whatever the app does with a
//! silent connection. If the app's listener refuses, the client is reset, because it must not see a response that the
//! app did not send. Before the reset, the proxy waits briefly for the client's request so that the row can contain the
//! request id.
//!
//! The client's first bytes determine the protocol (`h1`, `h2`, `tunnel`).

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::TrafficMode;
use super::budget::Buffer;
use super::h1::RequestsInFlight;
use super::h2::Http2;
use super::origin::RowOrigin;
use super::refusal::ProxyRefusal;
use super::relay::{self, ConnectionFinish, Inlet, Outlet, Receiver, RelayStreams};
use super::socket::{self, Room, SocketDirection};
use super::tunnel::Tunnel;
use rolldrop_record::{Protocol, ServedEnd, ServedRow};
use rolldrop_wire::http2::{FrameHeader, PREFACE, SETTINGS};

/// Maximum time for a client to read one of the proxy's own responses.
const REFUSAL_LINGER: Duration = Duration::from_secs(1);
/// Maximum time that a client refused by the app has to send its request before the reset.
const REFUSED_LAST_WORDS: Duration = Duration::from_secs(1);
/// Same, if the app or its kernel had accepted the connection and then reset it.
const RESET_LAST_WORDS: Duration = Duration::from_millis(100);
/// Maximum number of bytes to read from such a request.
const LAST_WORDS_BYTES: usize = 64 * 1024;
/// The first byte of a TLS connection: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;
/// Maximum length of a word that may be a method; the longest registered method has 17 characters.
const LONGEST_METHOD: usize = 32;
/// Beginning of every HTTP/1 response.
const VERSION: &[u8] = b"HTTP/";
/// First bytes of the PROXY protocol (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, 2.1 and 2.2).
const PROXY_V1: [&[u8]; 3] = [b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN"];
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Maximum length of a version 1 header, including the line end.
const LONGEST_PROXY_V1: usize = 107;

/// A newly accepted client connection.
pub(super) struct Accepted {
    /// The client's socket.
    pub(super) stream: TcpStream,
    /// Fields shared by the rows of this connection.
    pub(super) origin: Arc<RowOrigin>,
    /// Held until the connection's protocol is known.
    pub(super) pending: Arc<()>,
    /// Held until the connection is closed.
    pub(super) open: Arc<()>,
}

/// Protocol of a connection, and its requests in flight.
pub(super) enum ConnectionProtocol {
    Http1(RequestsInFlight),
    Http2(Http2),
    Tunnel(Tunnel),
}

impl ConnectionProtocol {
    /// Returns a record for a connection of this kind.
    fn begin(kind: ConnectionKind, origin: &Arc<RowOrigin>) -> Arc<Self> {
        let own = origin.clone();
        let talk = Arc::new(match kind {
            ConnectionKind::Http1 => ConnectionProtocol::Http1(RequestsInFlight::new(own)),
            ConnectionKind::Http2 => ConnectionProtocol::Http2(Http2::new(own)),
            ConnectionKind::Tls => ConnectionProtocol::Tunnel(Tunnel::begin(own, Protocol::Tls)),
            ConnectionKind::Tcp => ConnectionProtocol::Tunnel(Tunnel::begin(own, Protocol::Tcp)),
        });
        origin.shared.known.entries().insert(origin.conn, Arc::downgrade(&talk));
        talk
    }

    /// Adds the rows of the responses that are being passed on. The bytes of a tunnel belong to no known response.
    pub(super) fn list_open(&self, rows: &mut Vec<ServedRow>) {
        match self {
            ConnectionProtocol::Http1(exchange) => exchange.list_open(rows),
            ConnectionProtocol::Http2(http2) => http2.list_open(rows),
            ConnectionProtocol::Tunnel(_) => {}
        }
    }

    /// Ends everything in flight; returns true if there was anything.
    fn end_all(&self, end: ServedEnd) -> bool {
        match self {
            ConnectionProtocol::Http1(exchange) => exchange.end_all(end),
            ConnectionProtocol::Http2(http2) => http2.end_all(end),
            ConnectionProtocol::Tunnel(tunnel) => tunnel.end(end),
        }
    }
}

/// The connections whose protocol is known, by number.
#[derive(Debug, Default)]
pub(super) struct KnownConnections(Mutex<HashMap<u64, Weak<ConnectionProtocol>>>);

impl KnownConnections {
    /// Returns all known connections. Some may be closed by the time they are looked at.
    pub(super) fn all(&self) -> Vec<Weak<ConnectionProtocol>> {
        self.entries().values().cloned().collect()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, Weak<ConnectionProtocol>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kind of connection, determined from the first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionKind {
    Http1,
    Http2,
    Tls,
    Tcp,
}

impl ConnectionKind {
    /// Returns the kind from the client's first bytes; `None` if more bytes are needed. If they do not begin with an
    /// HTTP method, which is a word followed by a space, the connection carries another protocol.
    fn of_client(bytes: &[u8]) -> Option<ConnectionKind> {
        match bytes {
            [] => return None,
            [TLS_HANDSHAKE, ..] => return Some(ConnectionKind::Tls),
            _ if bytes.starts_with(PREFACE) => return Some(ConnectionKind::Http2),
            _ if PREFACE.starts_with(bytes) => return None,
            _ => {}
        }
        // Empty lines may precede a request (RFC 9112, 2.2).
        let begin = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
        let word = &bytes[begin..];
        let end = word.iter().position(|byte| !byte.is_ascii_uppercase() && !b"-_".contains(byte));
        match end.map(|end| (end, word[end])) {
            None if word.len() <= LONGEST_METHOD => None,
            // A tab is left for the HTTP/1 parser to refuse.
            Some((1.., b' ' | b'\t')) => Some(ConnectionKind::Http1),
            _ => Some(ConnectionKind::Tcp),
        }
    }

    /// Returns the kind from the first bytes of an app that speaks before its client. In HTTP/1, that happens only with
    /// a final message before the app closes.
    fn of_app(bytes: &[u8]) -> Option<ConnectionKind> {
        if matches!(FrameHeader::read(bytes), Some(FrameHeader { kind: SETTINGS, stream: 0, .. })) {
            return Some(ConnectionKind::Http2);
        }
        let may_be_settings =
            bytes.len() < FrameHeader::BYTES && bytes.get(3).is_none_or(|kind| *kind == SETTINGS);
        if bytes.starts_with(VERSION) {
            Some(ConnectionKind::Http1)
        } else if VERSION.starts_with(bytes) || may_be_settings {
            None
        } else {
            Some(ConnectionKind::Tcp)
        }
    }
}

/// Returns the length of the header with client information that a load balancer sends before the client's own bytes
/// (PROXY protocol, version 1 or 2): 0 if there is none, `None` if more bytes are needed.
fn proxy_header(bytes: &[u8]) -> Option<usize> {
    if let Some(rest) = bytes.strip_prefix(PROXY_V2) {
        let [_, _, high, low, ..] = *rest else { return None };
        let length = PROXY_V2.len() + 4 + usize::from(u16::from_be_bytes([high, low]));
        return (bytes.len() >= length).then_some(length);
    }
    if PROXY_V2.starts_with(bytes) {
        return None;
    }
    let is_begun = |word: &[u8]| word.starts_with(&bytes[..bytes.len().min(word.len())]);
    if !PROXY_V1.iter().any(|word| is_begun(word)) {
        return Some(0);
    }
    match bytes.iter().take(LONGEST_PROXY_V1).position(|byte| *byte == b'\n') {
        Some(end) => Some(end + 1),
        None if bytes.len() < LONGEST_PROXY_V1 => None,
        None => Some(0),
    }
}

/// Passes on the PROXY protocol header once it is complete; returns true if it was.
async fn introduce(from: &Inlet<'_>, to: &mut Outlet<'_>, buf: &mut Buffer<'_>) -> bool {
    let Some(length) = proxy_header(buf) else { return false };
    // A failed side is detected when it is read from.
    let _ = relay::write(from, to, &buf[..length]).await;
    buf.advance(length);
    true
}

/// Relays a client connection until it is closed.
///
/// Every request whose head was read gets exactly one row. If the future is dropped early, the outcome is `cancelled`,
/// and both sides are reset.
pub(super) async fn serve(accepted: Accepted) {
    let Accepted { stream, origin, pending, open: _open } = accepted;
    let mut link = ProxiedConnection { client: stream, app: None, origin, talk: None, finished: false };
    match link.relay(pending).await {
        ConnectionFinish::Closed => {
            link.end_all(ServedEnd::Complete);
            link.finished = true;
            socket::last_bytes_are_taken(&link.client).await;
        }
        ConnectionFinish::Reset(end) => {
            link.end_all(end);
            link.reset();
        }
        ConnectionFinish::Refuse(refusal) => {
            // The app may have received part of a head, which it must not take for a complete one.
            link.app = None;
            match link.talk.as_deref() {
                Some(ConnectionProtocol::Http1(exchange)) if exchange.refused() => {
                    refuse(&mut link.client, refusal).await;
                }
                _ => link.reset(),
            }
        }
    }
    link.finished = true;
}

/// Responds in place of the app so that the client can read the response even if it is still sending.
async fn refuse(client: &mut TcpStream, refusal: ProxyRefusal) {
    let answer = async {
        client.write_all(refusal.answer()).await?;
        client.shutdown().await?;
        // Closing with unread bytes would reset the connection before the client has read the response.
        tokio::io::copy(client, &mut tokio::io::sink()).await
    };
    // A client that does not read the response has disconnected, or is cut off.
    let _ = timeout(REFUSAL_LINGER, answer).await;
}

/// Both connections, and the requests in flight on them.
struct ProxiedConnection {
    client: TcpStream,
    app: Option<TcpStream>,
    origin: Arc<RowOrigin>,
    /// `None` until something has been sent.
    talk: Option<Arc<ConnectionProtocol>>,
    /// True if the relay finished by itself.
    finished: bool,
}

impl ProxiedConnection {
    async fn relay(&mut self, pending: Arc<()>) -> ConnectionFinish {
        let origin = self.origin.clone();
        let shared = &origin.shared;
        socket::begin(&self.client);
        let app = match self.connect().await {
            Ok(app) => self.app.insert(app),
            Err(finish) => return finish,
        };
        shared.app.accepts(origin.accepted);
        origin.sides.app_accepted.store(true, Ordering::Relaxed);
        socket::begin(app);
        let room = |socket: &TcpStream, way| Room::of(&shared.sockets, socket, way);
        let (into_app, out_of_app) = (room(app, SocketDirection::Send), room(app, SocketDirection::Receive));
        let (from_app, to_app) = app.split();
        let mut from_app = Inlet::new(from_app, out_of_app);
        let mut to_app = Outlet::new(Receiver::App, to_app, into_app, &origin.sides, &shared.ticks);
        let mut from_app_buf = Buffer::of_app(&shared.pool);
        let (into_client, out_of_client) =
            (room(&self.client, SocketDirection::Send), room(&self.client, SocketDirection::Receive));
        let (from_client, to_client) = self.client.split();
        let mut from_client = Inlet::new(from_client, out_of_client);
        let mut to_client =
            Outlet::new(Receiver::Client, to_client, into_client, &origin.sides, &shared.ticks);
        let mut from_client_buf = Buffer::of_client(&shared.pool, &origin.sides);
        let mut is_introduced = false;
        let mut client_is_done = pin!(origin.sides.client_is_done());
        let kind = match shared.mode {
            TrafficMode::Tcp => ConnectionKind::Tcp,
            TrafficMode::Http => loop {
                if !from_client_buf.may_hold_more() {
                    break ConnectionKind::Tcp;
                }
                let read = tokio::select! {
                    biased;
                    read = relay::fill(&mut from_client, &mut from_client_buf, &mut to_app) => read,
                    read = relay::fill(&mut from_app, &mut from_app_buf, &mut to_client),
                        if !origin.sides.is_app_closed() => match read {
                        // From here on, only the client's bytes can show the protocol.
                        Ok(0) if from_app_buf.is_empty() => {
                            origin.sides.app_closed.store(true, Ordering::Relaxed);
                            to_client.close().await;
                            continue;
                        }
                        Ok(0) => break ConnectionKind::Http1,
                        Ok(_) => match ConnectionKind::of_app(&from_app_buf) {
                            Some(kind) => break kind,
                            None => continue,
                        },
                        Err(_) => {
                            let end = ServedEnd::UpstreamReset;
                            drop((from_client, to_client, from_app, to_app));
                            return self.last_words(from_client_buf, RESET_LAST_WORDS, end).await;
                        }
                    },
                    () = &mut client_is_done, if origin.sides.is_app_closed() => {
                        return ConnectionFinish::Closed;
                    }
                };
                is_introduced =
                    is_introduced || introduce(&from_client, &mut to_app, &mut from_client_buf).await;
                let kind = is_introduced.then(|| ConnectionKind::of_client(&from_client_buf)).flatten();
                match (read, kind) {
                    (Err(_), _) => return ConnectionFinish::Reset(ServedEnd::ClientGone),
                    (Ok(_), Some(kind)) => break kind,
                    (Ok(1..), None) => {}
                    // The relay will detect the close again.
                    (Ok(0), None) => break ConnectionKind::Http1,
                }
            },
        };
        drop(pending);
        let talk = self.talk.insert(ConnectionProtocol::begin(kind, &self.origin));
        let streams =
            RelayStreams { from_client, to_client, from_app, to_app, from_client_buf, from_app_buf };
        match &**talk {
            ConnectionProtocol::Http1(exchange) => exchange.relay(streams).await,
            ConnectionProtocol::Http2(http2) => http2.relay(streams).await,
            ConnectionProtocol::Tunnel(tunnel) => tunnel.relay(streams).await,
        }
    }

    /// Connects to the app. On failure, returns how the client's connection ends.
    async fn connect(&mut self) -> Result<TcpStream, ConnectionFinish> {
        let origin = Arc::clone(&self.origin);
        let connected = tokio::select! {
            biased;
            connected = socket::connect(origin.shared.upstream) => connected,
            _ = self.client.ready(Interest::ERROR) => return Err(ConnectionFinish::Reset(ServedEnd::ClientGone)),
        };
        match connected {
            Ok(app) => Ok(app),
            Err(error) => {
                let end = origin.shared.connect_failed(&error);
                let buf = Buffer::of_client(&origin.shared.pool, &origin.sides);
                Err(self.last_words(buf, REFUSED_LAST_WORDS, end).await)
            }
        }
    }

    /// Waits briefly for the client's request, although the app is unavailable, because the row should contain the
    /// request id. A client that sends nothing loses nothing, so it has no row.
    async fn last_words(&mut self, mut buf: Buffer<'_>, limit: Duration, end: ServedEnd) -> ConnectionFinish {
        let tcp = (self.origin.shared.mode == TrafficMode::Tcp).then_some(ConnectionKind::Tcp);
        let words = async {
            let mut is_introduced = tcp.is_some();
            loop {
                if !is_introduced && let Some(length) = proxy_header(&buf) {
                    is_introduced = true;
                    buf.advance(length);
                }
                let kind = || is_introduced.then(|| ConnectionKind::of_client(&buf)).flatten();
                if let (None, Some(kind)) = (&self.talk, tcp.or_else(kind)) {
                    self.talk = Some(ConnectionProtocol::begin(kind, &self.origin));
                }
                let has_asked = match self.talk.as_deref() {
                    None => false,
                    Some(ConnectionProtocol::Http1(exchange)) => exchange.ask(&buf),
                    Some(ConnectionProtocol::Http2(http2)) => http2.ask(&buf),
                    Some(ConnectionProtocol::Tunnel(_)) => true,
                };
                let goes_on = !has_asked && buf.len() < LAST_WORDS_BYTES && buf.may_hold_more();
                if !goes_on || !matches!(buf.read_from(&mut self.client).await, Ok(1..)) {
                    return;
                }
            }
        };
        let _ = timeout(limit, words).await;
        ConnectionFinish::Reset(end)
    }

    /// Ends everything in flight; returns true if there was anything.
    fn end_all(&self, end: ServedEnd) -> bool {
        self.talk.as_ref().is_some_and(|talk| talk.end_all(end))
    }

    /// Arranges for both sides to be reset when they are dropped.
    fn reset(&self) {
        for stream in std::iter::once(&self.client).chain(&self.app) {
            // Fails only on a socket that is already gone.
            let _ = stream.set_zero_linger();
        }
    }
}

impl Drop for ProxiedConnection {
    fn drop(&mut self) {
        // A client that never got a response would have been refused by the app itself. A client that awaits a response
        // must not mistake the close for the end of that response. A connection that makes room must not leave any
        // bytes in the kernel.
        let gives_way = self.origin.sides.gives_way.load(Ordering::Relaxed);
        let end = if gives_way { ServedEnd::ProxyExhausted } else { ServedEnd::Cancelled };
        if !self.finished
            && (self.end_all(end) || self.app.is_none() || gives_way && socket::holds_bytes(&self.client))
        {
            self.reset();
        }
        self.origin.shared.known.entries().remove(&self.origin.conn);
    }
}
