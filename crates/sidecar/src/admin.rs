//! The admin port: health, readiness, clock, metrics, row stream.
//!
//! This is a separate HTTP/1.1 server, which shuts down with the row stream, in bounded time, and never serves the data
//! port's clients. Requests first pass two tower layers: the token check, and a concurrency limit. Without the token,
//! the port serves only health and readiness, for the kubelet's probes, which could only carry a token that is readable
//! in the pod spec. If the port is open to everyone, it does not reveal client addresses.

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower::layer::util::{Identity, Stack};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder};
use tower_http::validate_request::{ValidateRequest, ValidateRequestHeaderLayer};

use super::journal::{BATCH_ROWS, Cursor, JournalBatch};
use super::proxied_connection::ConnectionProtocol;
use super::{ProxyState, app, metrics, reap};
use rolldrop_record::metrics_text::MetricsFormat;
use rolldrop_record::parts::PART_AGE;
use rolldrop_record::wire::{
    AdminToken, CLOCK_PATH, COLLECTOR_HEADER, ClockAnswer, ProxyLine, ROWS_PATH, TOKEN_HEADER, TOKEN_WANTED,
};
use rolldrop_record::{ServedRow, Stamp};
use rolldrop_wire::places::{ConnectionPlace, Patience, Places, TrackedBody};

/// Maximum time before a recorded row is sent to the reader.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Same, once the pod is terminating, because rows not sent before the pod is killed are lost.
const ENDING_FLUSH_INTERVAL: Duration = Duration::from_millis(10);
/// Pause between the batches that wait for a reader. Batches written back to back would delay the requests that arrive
/// in the meantime until all of them are written.
const BATCH_PAUSE: Duration = Duration::from_millis(4);
/// Maximum number of waiting rows at which the port still pauses; with more, rows arrive faster than the pauses allow.
const MAX_PAUSED_ROWS: u64 = 1_000;
/// Interval at which a reader gets the list of open responses, equal to the age at which the reader closes a part.
const LIST_INTERVAL: Duration = PART_AGE;
/// Same, once the pod is terminating, because the list may be the only trace of a response that a kill cuts off.
const ENDING_LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failed accept, to avoid a busy loop when descriptors run out.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const HEALTH_PATH: &str = "/healthz";
const READY_PATH: &str = "/readyz";
/// Paths that need no token, because the kubelet has none.
const OPEN_PATHS: [&str; 2] = [HEALTH_PATH, READY_PATH];

/// Readers with access to more than the kubelet's paths.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everyone; rows do not contain client addresses.
    Everybody,
    /// Everyone who sends this token.
    Holders(AdminToken),
    /// No one, because there is no token.
    Nobody,
}

/// Treatment of client addresses in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressDisclosure {
    Told,
    Withheld,
}

impl Access {
    /// Returns how to treat client addresses for admitted readers.
    fn addresses(&self) -> AddressDisclosure {
        match self {
            Self::Holders(_) => AddressDisclosure::Told,
            Self::Everybody | Self::Nobody => AddressDisclosure::Withheld,
        }
    }
}

/// Limits of the admin port.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdminLimits {
    /// Maximum number of simultaneous connections, limited because the data port's clients need descriptors too. When
    /// another connection arrives, an idle one is closed; if none is idle, the new one waits.
    connections: usize,
    /// Maximum number of concurrently processed requests, limited because `/readyz` connects to the app. Further
    /// requests wait.
    answers: usize,
    /// Maximum size of a request head, in bytes.
    head_bytes: usize,
    /// Maximum time for a head to arrive, and for a connection to be idle.
    head_time: Duration,
}

impl Default for AdminLimits {
    fn default() -> Self {
        Self { connections: 256, answers: 16, head_bytes: 16 * 1024, head_time: Duration::from_secs(30) }
    }
}

/// Settings of the admin port.
#[derive(Clone, Debug)]
pub(super) struct AdminSettings {
    /// Path that readiness checks request from the app.
    pub(super) app_ready_path: Option<Arc<str>>,
    /// Readers that the port serves.
    pub(super) access: Access,
    /// Limits of the port.
    pub(super) limits: AdminLimits,
}

/// Serves the admin port until the journal is closed and handed over. A collector that disconnected shortly before can
/// reconnect for the rest.
pub(super) async fn serve(listener: TcpListener, shared: Arc<ProxyState>, settings: AdminSettings) {
    let AdminSettings { app_ready_path, access, limits } = settings;
    let layers = layers(&access, limits.answers);
    let places = Places::new(limits.connections, Patience { idle: limits.head_time, head: limits.head_time });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let place = tokio::select! {
                        place = places.take(peer.ip()) => place,
                        () = shared.journal.handed_over() => break,
                    };
                    let port = AdminPort {
                        shared: shared.clone(),
                        app_ready_path: app_ready_path.clone(),
                        addresses: access.addresses(),
                        told_all: Arc::default(),
                    };
                    let service = TowerToHyperService::new(port.layered::<Incoming>(&layers));
                    connections.spawn(async move {
                        tokio::select! {
                            biased;
                            () = place.closing() => {}
                            () = port.serve(stream, service, limits, &place) => {}
                        }
                    });
                }
                Err(error) => {
                    shared.trouble("failed to accept a connection on the admin port", &error);
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

/// Layers that a request passes through before it reaches the port.
type Layers = ServiceBuilder<
    Stack<GlobalConcurrencyLimitLayer, Stack<ValidateRequestHeaderLayer<AccessGuard>, Identity>>,
>;

/// Returns the layers shared by all connections.
fn layers(access: &Access, answers: usize) -> Layers {
    ServiceBuilder::new()
        .layer(ValidateRequestHeaderLayer::custom(AccessGuard(access.clone())))
        .layer(GlobalConcurrencyLimitLayer::new(answers))
}

type AdminBody = UnsyncBoxBody<Bytes, serde_json::Error>;
type AdminResponse = Response<AdminBody>;

fn text(status: StatusCode, body: impl Into<Bytes>) -> AdminResponse {
    whole(status, "text/plain", body)
}

/// Returns a response with a fixed body.
fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Request filter that admits requests for open paths, and requests from readers with access.
#[derive(Clone)]
struct AccessGuard(Access);

impl AccessGuard {
    fn lets_in(&self, headers: &HeaderMap) -> bool {
        match &self.0 {
            Access::Everybody => true,
            Access::Holders(token) => token_of(headers).is_some_and(|given| token.is(given)),
            Access::Nobody => false,
        }
    }
}

impl<B> ValidateRequest<B> for AccessGuard {
    type ResponseBody = AdminBody;

    fn validate(&mut self, request: &mut Request<B>) -> Result<(), AdminResponse> {
        if OPEN_PATHS.contains(&request.uri().path()) || self.lets_in(request.headers()) {
            return Ok(());
        }
        let mut answer = text(StatusCode::UNAUTHORIZED, format!("{TOKEN_WANTED}\n"));
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Err(answer)
    }
}

/// The admin port, for one connection.
#[derive(Clone)]
struct AdminPort {
    shared: Arc<ProxyState>,
    app_ready_path: Option<Arc<str>>,
    addresses: AddressDisclosure,
    /// True once the collector on this connection has received all rows and the end line.
    told_all: Arc<AtomicBool>,
}

impl AdminPort {
    /// Returns the port's service, wrapped in the layers.
    fn layered<B: Send + 'static>(
        &self,
        layers: &Layers,
    ) -> impl Service<Request<B>, Response = AdminResponse, Error = Infallible, Future: Send> + Clone + use<B>
    {
        let port = self.clone();
        layers.clone().service_fn(move |request: Request<B>| port.clone().answer(request))
    }

    async fn serve<S>(
        self,
        mut stream: TcpStream,
        service: S,
        limits: AdminLimits,
        place: &Arc<ConnectionPlace>,
    ) where
        S: hyper::service::Service<Request<Incoming>, Response = AdminResponse, Error = Infallible>,
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "an admin connection ended");
            return;
        }
        let served = {
            let mut settings = http1::Builder::new();
            // The place has its own timeout for slow heads.
            settings.header_read_timeout(None).max_header_size(limits.head_bytes);
            settings.auto_date_header(false);
            let service = service_fn(|request| {
                let (in_hand, answer) = (place.begin_request(), service.call(request));
                async move {
                    answer.await.map(|answer| answer.map(|body| TrackedBody { body, _request: in_hand }))
                }
            });
            let stream = place.noticing(&mut stream);
            let mut connection = pin!(settings.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                served = connection.as_mut() => served,
                () = self.shared.journal.handed_over() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "an admin connection ended");
        } else if self.told_all.load(Ordering::Relaxed) {
            // The process exits next, so wait until the collector has everything, which it signals by closing.
            let _busy = place.begin_request();
            match tokio::io::copy(&mut stream, &mut tokio::io::sink()).await {
                Ok(_) => self.shared.journal.collector_has_all(),
                Err(error) => tracing::debug!(%error, "the collector disconnected"),
            }
        }
    }

    async fn answer<B>(self, request: Request<B>) -> Result<AdminResponse, Infallible> {
        let (head, _body) = request.into_parts();
        let answer = match head.method {
            Method::GET | Method::HEAD => self.answer_to(&head).await,
            _ => Ok(text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n")),
        };
        Ok(answer.unwrap_or_else(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
    }

    async fn answer_to(self, head: &Parts) -> serde_json::Result<AdminResponse> {
        const OK: StatusCode = StatusCode::OK;
        let Self { shared, app_ready_path, addresses, told_all } = self;
        Ok(match head.uri.path() {
            HEALTH_PATH => text(OK, "ok\n"),
            READY_PATH if app::is_ready(shared.upstream, app_ready_path.as_deref()).await => text(OK, "ok\n"),
            READY_PATH => text(StatusCode::SERVICE_UNAVAILABLE, "the app is not ready\n"),
            CLOCK_PATH => {
                let body = serde_json::to_vec(&ClockAnswer {
                    now_ns: shared.clock.now(),
                    started_ns: shared.started,
                    recorded: shared.journal.counts().with_unrecorded(),
                })?;
                whole(OK, "application/json", body)
            }
            ROWS_PATH => match first_wanted(head.uri.query().unwrap_or_default(), shared.started) {
                Some(from) if head.method == Method::GET => {
                    let is_collector = head.headers.contains_key(COLLECTOR_HEADER);
                    rows(shared, from, addresses, is_collector.then_some(told_all))
                }
                _ => text(StatusCode::BAD_REQUEST, "use GET /rows?from=N&of=STARTED\n"),
            },
            "/metrics" => whole(OK, MetricsFormat::Prometheus.content_type(), metrics::text(&shared)),
            _ => text(StatusCode::NOT_FOUND, "no such path\n"),
        })
    }
}

/// Returns the token sent with a request, from either header.
fn token_of(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(TOKEN_HEADER) {
        return Some(value.as_bytes().trim_ascii());
    }
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Returns the number of the first row that a reader wants; `None` if the query is invalid.
fn first_wanted(query: &str, started: Stamp) -> Option<u64> {
    let (mut from, mut of) = (0, started.unix_ns());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("from", value) => from = value.parse().ok()?,
            ("of", value) => of = value.parse().ok()?,
            _ => return None,
        }
    }
    // A row number from another recorder means nothing here.
    Some(if of == started.unix_ns() { from } else { 0 })
}

/// Parses the parts of a request that this module reads itself: the query in the first line, and the headers in the
/// following lines.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let query = lines.next().map(String::from_utf8_lossy).unwrap_or_default();
    let _ = first_wanted(&query, Stamp::from_unix_ns(1));
    let named = lines.filter_map(|line| line.split_at_checked(line.iter().position(|byte| *byte == b':')?));
    let parsed = named.filter_map(|(name, value)| {
        let name = http::HeaderName::from_bytes(name).ok()?;
        Some((name, HeaderValue::from_bytes(value[1..].trim_ascii()).ok()?))
    });
    let _ = token_of(&parsed.collect());
}

/// Returns a response that streams rows as they are recorded, until the journal is closed. `told_all` is `None` for a
/// reader that does not collect them.
fn rows(
    shared: Arc<ProxyState>,
    from: u64,
    addresses: AddressDisclosure,
    told_all: Option<Arc<AtomicBool>>,
) -> AdminResponse {
    if told_all.is_some() {
        shared.journal.collector_came();
    }
    let reader = RowReader {
        shared,
        addresses,
        told_all,
        cursor: Cursor::at(from),
        taken: None,
        hello: None,
        state: None,
        listed: None,
        unlisted: Vec::new(),
    };
    let mut answer = Response::new(StreamBody::new(reader.frames()).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// A row reader and its position.
struct RowReader {
    shared: Arc<ProxyState>,
    addresses: AddressDisclosure,
    told_all: Option<Arc<AtomicBool>>,
    cursor: Cursor,
    /// Batch that is being sent.
    taken: Option<JournalBatch>,
    /// Number of the row that was last announced as the next one.
    hello: Option<u64>,
    /// Proxy state as last sent to the reader.
    state: Option<ProxyLine>,
    /// Time at which the last list of open responses began.
    listed: Option<Stamp>,
    /// Connections whose open responses are still missing from that list.
    unlisted: Vec<Weak<ConnectionProtocol>>,
}

impl RowReader {
    fn frames(self) -> impl Stream<Item = serde_json::Result<Frame<Bytes>>> {
        stream::try_unfold(self, |mut reader| async {
            Ok(reader.next().await?.map(|lines| (Frame::data(lines), reader)))
        })
    }

    /// Returns the next lines. Calling this also signals that the connection has accepted the previous ones.
    async fn next(&mut self) -> serde_json::Result<Option<Bytes>> {
        if let Some(batch) = self.taken.take() {
            if let Some(told_all) = &self.told_all {
                self.shared.journal.sent(&batch);
                told_all.store(batch.end.is_some(), Ordering::Relaxed);
            }
            if batch.end.is_some() {
                return Ok(None);
            }
            let is_hurried =
                self.shared.ending.is_cancelled() || batch.recorded - batch.next.row > MAX_PAUSED_ROWS;
            match batch.is_full() || !self.unlisted.is_empty() {
                // Yield so that requests wait for only one batch, not for all remaining rows.
                true if is_hurried => tokio::task::yield_now().await,
                true => tokio::time::sleep(BATCH_PAUSE).await,
                false => self.pause().await,
            }
        }
        loop {
            // Listed before the rows are read so that a request's final row always follows its open row.
            let open = self.list_open();
            let batch = self.shared.journal.read(self.cursor);
            let hello = (self.hello != Some(batch.first)).then(|| ProxyLine::Hello {
                source: self.shared.pod.to_string(),
                pod: self.shared.pod.to_string(),
                started_ns: self.shared.started,
                next: batch.first,
            });
            let in_flight = self.shared.in_flight.count() as u64;
            let state = ProxyLine::State { recorded: batch.recorded, in_flight };
            let news = (self.state.as_ref() != Some(&state)).then(|| state.clone());
            self.state = Some(state);
            self.cursor = batch.next;
            self.hello = Some(self.cursor.row);
            if hello.is_some() || news.is_some() || !open.is_empty() || !batch.is_empty() {
                let open = open.into_iter().map(ProxyLine::Open);
                let lines = hello.into_iter().chain(open).chain(batch.lines(news));
                let lines = written(lines.map(|line| self.for_its_reader(line)))?;
                self.taken = Some(batch);
                return Ok(Some(lines));
            }
            self.pause().await;
        }
    }

    /// Returns the next piece of the list of open responses.
    fn list_open(&mut self) -> Vec<ServedRow> {
        let ProxyState { clock, ending, known, .. } = &*self.shared;
        let interval = if ending.is_cancelled() { ENDING_LIST_INTERVAL } else { LIST_INTERVAL };
        let now = clock.now();
        if self.unlisted.is_empty() && self.listed.is_none_or(|listed| now >= listed + interval) {
            self.listed = Some(now);
            self.unlisted = known.all();
        }
        let mut rows = Vec::new();
        while rows.len() < BATCH_ROWS
            && let Some(connection) = self.unlisted.pop()
        {
            if let Some(connection) = connection.upgrade() {
                connection.list_open(&mut rows);
            }
        }
        rows
    }

    /// Returns a line without the fields that the reader must not see.
    fn for_its_reader(&self, line: ProxyLine) -> ProxyLine {
        if self.addresses == AddressDisclosure::Told {
            return line;
        }
        let hide = |row| ServedRow { peer_addr: "".into(), ..row };
        match line {
            ProxyLine::Row(row) => ProxyLine::Row(hide(row)),
            ProxyLine::Open(row) => ProxyLine::Open(hide(row)),
            line => line,
        }
    }

    /// Waits until it is time to check for rows again.
    async fn pause(&self) {
        let ProxyState { ending, journal, .. } = &*self.shared;
        let is_ending = ending.is_cancelled();
        let pause = if is_ending { ENDING_FLUSH_INTERVAL } else { FLUSH_INTERVAL };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = ending.cancelled(), if !is_ending => {}
            () = journal.closed() => {}
        }
    }
}

/// Serializes lines of the row stream.
fn written(lines: impl IntoIterator<Item = ProxyLine>) -> serde_json::Result<Bytes> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, &line)?;
        text.push(b'\n');
    }
    Ok(text.into())
}
