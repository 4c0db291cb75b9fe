//! The admin port: health, readiness, clock, preStop hook, metrics, row stream.
//!
//! A small HTTP/1.1 server of its own: it has to end with the row stream, in a
//! bounded time, and never answers the data port's clients.
//!
//! With a token it tells nothing to those who do not know it, but for what the kubelet asks, whose
//! probes and hooks could only carry it in the clear in the pod's spec.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
#[cfg(any(test, fuzzing))]
use futures::FutureExt;
use httparse::Status;
use ring::digest::{SHA256, digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::journal::Cursor;
use super::{Shared, app, metrics, reap};
use crate::record::Stamp;
use crate::record::wire::{
    AdminToken, CLOCK_PATH, ClockAnswer, PRE_STOP_PATH, ProxyLine, ROWS_PATH, TOKEN_HEADER, TOKEN_WANTED,
};

/// How long a recorded row may wait before it is sent to the reader.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// The same from the first sign that the pod ends: what has not been sent when it is killed is lost.
const ENDING_FLUSH_INTERVAL: Duration = Duration::from_millis(10);
/// The largest request head, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long to wait after an accept that failed, so that a lack of descriptors is no busy loop.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const HEALTH_PATH: &str = "/healthz";
const READY_PATH: &str = "/readyz";
/// What the kubelet asks: it has no token.
const OPEN_PATHS: [&str; 3] = [HEALTH_PATH, READY_PATH, PRE_STOP_PATH];

/// What the admin port's owner decides.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The path of the app that says whether it is ready.
    pub(super) app_ready_path: Option<Arc<str>>,
    /// Whom it answers.
    pub(super) token: Option<Arc<AdminToken>>,
}

/// Serves the admin port until the journal is closed and handed over. A reader
/// that broke off just before can come back for the end.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, settings: Settings) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let connection = Connection { stream, shared: shared.clone(), settings: settings.clone() };
                    connections.spawn(async move {
                        if let Err(error) = connection.serve().await {
                            tracing::debug!(%error, "an admin connection ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting on the admin port failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => reap(ended),
            () = shared.journal.handed_over() => break,
        }
    }
    while let Some(ended) = connections.join_next().await {
        reap(ended);
    }
}

struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    settings: Settings,
}

/// What a request asks for.
struct Request {
    method: Method,
    path: String,
    query: String,
    keep_alive: bool,
    /// The digest of the token that came with it.
    token: Option<Digest>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Head,
    Other,
}

/// An answer that is known as a whole.
struct Answer {
    status: &'static str,
    /// A header line, or nothing.
    challenge: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, challenge: "", content_type: "text/plain", body: body.into() }
    }

    fn unauthorized() -> Self {
        let challenge = "www-authenticate: Bearer\r\n";
        Self { challenge, ..Self::text("401 Unauthorized", format!("{TOKEN_WANTED}\n")) }
    }
}

impl Connection {
    async fn serve(mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let mut buf = BytesMut::new();
        loop {
            let request = tokio::select! {
                request = next_request(&mut self.stream, &mut buf) => request?,
                () = self.shared.journal.handed_over() => return Ok(()),
            };
            let Some(request) = request else { return Ok(()) };
            let is_allowed = self.allows(&request);
            if is_allowed
                && request.path == ROWS_PATH
                && request.method == Method::Get
                && let Some(from) = first_wanted(&request.query, self.shared.started)
            {
                return send_rows(&mut self.stream, &self.shared, from).await;
            }
            let answer = if is_allowed { self.answer(&request).await? } else { Answer::unauthorized() };
            let connection = if request.keep_alive { "keep-alive" } else { "close" };
            let mut text = format!(
                "HTTP/1.1 {}\r\n{}content-type: {}\r\ncontent-length: {}\r\nconnection: {connection}\r\n\r\n",
                answer.status,
                answer.challenge,
                answer.content_type,
                answer.body.len(),
            );
            if request.method != Method::Head {
                text.push_str(&answer.body);
            }
            self.stream.write_all(text.as_bytes()).await?;
            if !request.keep_alive {
                return self.stream.shutdown().await;
            }
        }
    }

    /// Whether the request is for everybody, or carries the token.
    fn allows(&self, request: &Request) -> bool {
        let Some(token) = &self.settings.token else { return true };
        OPEN_PATHS.contains(&request.path.as_str())
            || request.token.is_some_and(|given| given == digest_of(token.as_str().as_bytes()))
    }

    async fn answer(&self, request: &Request) -> io::Result<Answer> {
        if request.method == Method::Other {
            return Ok(Answer::text("405 Method Not Allowed", "only GET and HEAD\n"));
        }
        Ok(match request.path.as_str() {
            HEALTH_PATH => Answer::text("200 OK", "ok\n"),
            READY_PATH => {
                let path = self.settings.app_ready_path.as_deref();
                match app::is_ready(self.shared.upstream, path).await {
                    true => Answer::text("200 OK", "ok\n"),
                    false => Answer::text("503 Service Unavailable", "the app is not ready\n"),
                }
            }
            CLOCK_PATH => {
                let body = serde_json::to_string(&ClockAnswer {
                    now_ns: self.shared.clock.now(),
                    started_ns: self.shared.started,
                    recorded: self.shared.journal.counts().recorded,
                })?;
                Answer { content_type: "application/json", ..Answer::text("200 OK", body) }
            }
            PRE_STOP_PATH => {
                self.shared.pre_stop();
                Answer::text("200 OK", "ok\n")
            }
            ROWS_PATH => Answer::text("400 Bad Request", "ask with GET /rows?from=N&of=STARTED\n"),
            "/metrics" => {
                let body = metrics::text(&self.shared.journal.counts(), self.shared.in_flight.count());
                Answer { content_type: metrics::CONTENT_TYPE, ..Answer::text("200 OK", body) }
            }
            _ => Answer::text("404 Not Found", "no such path\n"),
        })
    }
}

/// Reads the next request; `None` if the client closed between requests.
async fn next_request(
    stream: &mut (impl AsyncRead + Unpin),
    buf: &mut BytesMut,
) -> io::Result<Option<Request>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(buf) {
            Ok(Status::Complete(len)) => {
                let has = |name: &str, value: &str| {
                    request.headers.iter().any(|header| {
                        header.name.eq_ignore_ascii_case(name)
                            && header.value.eq_ignore_ascii_case(value.as_bytes())
                    })
                };
                let method = match request.method {
                    Some("GET") => Method::Get,
                    Some("HEAD") => Method::Head,
                    _ => Method::Other,
                };
                // A request with a body would be read as the next one: close after it.
                let keep_alive =
                    request.version == Some(1) && method != Method::Other && !has("connection", "close");
                let target = request.path.unwrap_or_default();
                let (path, query) = target.split_once('?').unwrap_or((target, ""));
                let (path, query) = (path.to_owned(), query.to_owned());
                let token = token_of(request.headers);
                let _ = buf.split_to(len);
                return Ok(Some(Request { method, path, query, keep_alive, token }));
            }
            Ok(Status::Partial) if buf.len() < MAX_HEAD_BYTES => {}
            Ok(Status::Partial) => return Err(invalid("request head too large")),
            Err(error) => return Err(invalid(&error.to_string())),
        }
        if stream.read_buf(buf).await? == 0 {
            return Ok(None);
        }
    }
}

/// Tokens are compared by their digests, so that the time which that takes tells nothing about them.
type Digest = [u8; 32];

fn digest_of(token: &[u8]) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest(&SHA256, token).as_ref());
    bytes
}

/// The token that came with a request, in either of its headers.
fn token_of(headers: &[httparse::Header<'_>]) -> Option<Digest> {
    headers.iter().find_map(|header| {
        let token = if header.name.eq_ignore_ascii_case(TOKEN_HEADER) {
            header.value
        } else if header.name.eq_ignore_ascii_case("authorization") {
            let (scheme, token) = header.value.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)?
        } else {
            return None;
        };
        Some(digest_of(token.trim_ascii()))
    })
}

/// The row that a reader wants first; `None` if the query does not say so properly.
fn first_wanted(query: &str, started: Stamp) -> Option<u64> {
    let (mut from, mut of) = (0, started.unix_ns());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("from", value) => from = value.parse().ok()?,
            ("of", value) => of = value.parse().ok()?,
            _ => return None,
        }
    }
    // The number of a row that another one recorded says nothing here.
    Some(if of == started.unix_ns() { from } else { 0 })
}

/// Reads requests as a client may send them.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(mut bytes: &[u8]) {
    let mut buf = BytesMut::new();
    while let Some(Ok(Some(request))) = next_request(&mut bytes, &mut buf).now_or_never() {
        let _ = first_wanted(&request.query, Stamp::from_unix_ns(1));
    }
}

/// Sends rows as they come, until the journal is closed or the reader goes away.
async fn send_rows(stream: &mut TcpStream, shared: &Shared, from: u64) -> io::Result<()> {
    shared.journal.reader_came();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\
                transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut cursor = Cursor::at(from);
    let (mut told, mut told_state) = (None, None);
    loop {
        let batch = shared.journal.read(cursor);
        let hello = (told != Some(batch.first)).then(|| ProxyLine::Hello {
            source: shared.pod.to_string(),
            pod: shared.pod.to_string(),
            started_ns: shared.started,
            next: batch.first,
        });
        let state = ProxyLine::State { recorded: batch.recorded, in_flight: shared.in_flight.count() as u64 };
        let news = (told_state.as_ref() != Some(&state)).then(|| state.clone());
        if hello.is_some() || news.is_some() || !batch.is_empty() {
            stream.write_all(&chunk(hello.into_iter().chain(batch.lines(news)))?).await?;
            shared.journal.sent(&batch);
        }
        told_state = Some(state);
        cursor = batch.next;
        told = Some(cursor.row);
        if batch.end.is_some() {
            break;
        }
        if batch.is_full() {
            continue;
        }
        let is_ending = shared.ending.is_cancelled();
        let pause = if is_ending { ENDING_FLUSH_INTERVAL } else { FLUSH_INTERVAL };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.ending.cancelled(), if !is_ending => {}
            () = shared.journal.closed() => {}
            gone = gone(stream) => return gone,
        }
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await?;
    // The process exits next: wait until the reader has it all, which it says by closing.
    gone(stream).await?;
    shared.journal.reader_has_all();
    Ok(())
}

/// Waits until the other side closes.
async fn gone(stream: &mut TcpStream) -> io::Result<()> {
    let mut ignored = [0; 64];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// Lines of the row stream as one HTTP chunk.
fn chunk(lines: impl IntoIterator<Item = ProxyLine>) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, &line)?;
        text.push(b'\n');
    }
    let mut chunk = format!("{:x}\r\n", text.len()).into_bytes();
    chunk.append(&mut text);
    chunk.extend_from_slice(b"\r\n");
    Ok(chunk)
}
