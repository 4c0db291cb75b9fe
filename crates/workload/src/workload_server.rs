//! Accepts connections, answers requests, and stops according to the chosen habit.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ask_api::Asker;
use super::http2_service;
use super::path_responses::{BodyPace, UnsentResponse, WEBSOCKET_PATH};
use super::response_flush::{LoggedTransport, PacedBody, Unflushed};
use super::server_state::{REQUEST_ID, ServerState};
use super::stop_signals::{Noticed, SignalStream, StopSignal};
use super::stream_service::{self, ServedBody};
use super::websocket_echo;
use super::workload_log::{LoggedExchange, NowNs, ServerEvent, WorkloadLog};
use super::{Habit, WorkloadConfig, WorkloadError};

/// Maximum number of connections in the accept queue.
const BACKLOG: u32 = 4096;
/// Time for which a connection may still send its first request after the server has stopped accepting. The
/// connection was accepted, so its first request is probably on its way.
const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(1);

/// Server that is not listening yet.
pub struct WorkloadServer {
    signals: SignalStream,
    shared: Rc<ServerState>,
    config: WorkloadConfig,
    asking: Option<(Duration, String)>,
}

impl WorkloadConfig {
    fn habit_on(&self, signal: StopSignal) -> Habit {
        let default = if signal.means_stop() { self.on_stop } else { Habit::Ignore };
        self.on_signal.get(&signal).copied().unwrap_or(default)
    }
}

impl WorkloadServer {
    /// Opens the log and installs the signal handlers. Must be called on a runtime with one thread, inside a
    /// [`tokio::task::LocalSet`].
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be opened or the signal handlers cannot be installed.
    pub fn new(config: &WorkloadConfig, now: NowNs) -> Result<Self, WorkloadError> {
        // Install the handlers first so that no signal has its default effect once clients can connect.
        let signals = SignalStream::install().map_err(WorkloadError::Signals)?;
        let pod = config.pod_name.clone().or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
        let asking = config.ask_api_every.map(|period| (period, pod));
        Ok(Self { signals, shared: Rc::new(ServerState::open(config, now)?), config: config.clone(), asking })
    }

    /// Listens and serves until a signal's habit stops the server.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot listen on the address, or if `ask_api_every` is set but the API server cannot be
    /// queried.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), WorkloadError>> {
        // Not an async function, so this crate compiles it with its own optimisation settings.
        self.serve().boxed_local()
    }

    async fn serve(self) -> Result<(), WorkloadError> {
        let Self { mut signals, shared, config, asking } = self;
        let log = shared.log.clone();
        if wait_to_listen(async || signals.next().await, &shared, &config).await == ListenWait::Stopped {
            return Ok(());
        }
        let listener = listen_logged(&config, &log)?;
        let asking = match asking {
            Some((period, pod)) => Some(Asker::new(period, &pod).await.map_err(WorkloadError::Api)?),
            None => None,
        };
        let asking = async {
            match asking {
                Some(asker) => asker.run(&log).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = serve(listener, async || signals.next().await, shared, &config) => {}
            () = asking => {}
        }
        Ok(())
    }
}

/// Outcome of the wait before listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenWait {
    Over,
    /// A signal stopped the server; there is nothing to finish.
    Stopped,
}

async fn wait_to_listen(
    mut next_signal: impl AsyncFnMut() -> Noticed,
    shared: &ServerState,
    config: &WorkloadConfig,
) -> ListenWait {
    let over = shared.started + config.listen_after;
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(over) => return ListenWait::Over,
            noticed = next_signal() => {
                let signal = shared.log_signal(noticed);
                if signal.is_some_and(|signal| config.habit_on(signal) != Habit::Ignore) {
                    shared.log.write(ServerEvent::Exiting);
                    return ListenWait::Stopped;
                }
            }
        }
    }
}

/// Listens and logs the address.
fn listen_logged(config: &WorkloadConfig, log: &WorkloadLog) -> Result<TcpListener, WorkloadError> {
    let listener = listen(config.listen).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => WorkloadError::AddressInUse(config.listen),
        _ => WorkloadError::Listen { address: config.listen, source },
    })?;
    // With port 0, only the log says which port was chosen.
    let address = listener.local_addr().unwrap_or(config.listen).to_string();
    log.write(ServerEvent::Listening { address: &address });
    Ok(listener)
}

/// Serves on `listener` until a signal's habit stops the server.
async fn serve(
    listener: TcpListener,
    mut next_signal: impl AsyncFnMut() -> Noticed,
    shared: Rc<ServerState>,
    config: &WorkloadConfig,
) {
    let mut connections = JoinSet::new();
    let finish = CancellationToken::new();
    let carry = |stream, connections: &mut JoinSet<()>| {
        connections.spawn_local(serve_connection(stream, shared.clone(), finish.clone()));
    };

    let mut drained_at: Option<Instant> = None;
    loop {
        tokio::select! {
            // A stop signal is handled before a connection that arrived at the same moment.
            biased;
            noticed = next_signal() => {
                let Some(signal) = shared.log_signal(noticed) else { continue };
                let habit = config.habit_on(signal);
                if habit == Habit::Ignore || drained_at.is_some() {
                    continue;
                }
                // Blocks the one thread that serves, as an app's own shutdown hooks do.
                std::thread::sleep(config.stop_work);
                shared.streams.stop();
                match habit {
                    Habit::Ignore => {}
                    Habit::Exit => {
                        shared.streams.exit();
                        drop(listener);
                        connections.shutdown().await;
                        shared.log.write(ServerEvent::Exiting);
                        return;
                    }
                    Habit::Finish => break,
                    Habit::Drain | Habit::CloseIdle => {
                        if habit == Habit::CloseIdle {
                            shared.close_idle.cancel();
                        }
                        shared.draining.set(true);
                        drained_at = Some(Instant::now() + config.drain_for);
                    }
                }
            }
            () = at(drained_at) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => carry(stream, &mut connections),
                Err(error) => back_off_from(&error).await,
            },
        }
    }

    shared.draining.set(true);
    if drained_at.is_some() {
        for stream in close_after_accepting_all(listener) {
            carry(stream, &mut connections);
        }
    } else {
        drop(listener);
    }
    shared.log.write(ServerEvent::StoppedAccepting);
    finish.cancel();
    loop {
        tokio::select! {
            noticed = next_signal() => drop(shared.log_signal(noticed)),
            ended = connections.join_next() => if ended.is_none() { break },
        }
    }
    shared.log.write(ServerEvent::Exiting);
}

/// Waits until an instant. Never returns if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Closes the listener after accepting the connections in its accept queue, which the kernel would otherwise reset.
///
/// This asks the kernel directly, because the runtime is notified of a connection only later.
fn close_after_accepting_all(listener: TcpListener) -> Vec<TcpStream> {
    let mut waiting = Vec::new();
    if let Ok(listener) = listener.into_std() {
        while let Ok((stream, _)) = listener.accept() {
            waiting.push(stream);
        }
    }
    let adopt = |stream: std::net::TcpStream| {
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    };
    waiting.into_iter().filter_map(|stream| adopt(stream).ok()).collect()
}

/// Ignores an accept error that affects a single connection, but pauses after one that affects the process (no
/// descriptors left), which would make the loop spin.
async fn back_off_from(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        let _ = writeln!(io::stderr(), "rolldrop workload: failed to accept a connection: {error}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn serve_connection(stream: TcpStream, shared: Rc<ServerState>, finish: CancellationToken) {
    // Without this, a small response may wait for the client's acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let begun = async {
        tokio::select! {
            is_http2 = http2_service::is_spoken(&stream) => Some(is_http2),
            () = async {
                finish.cancelled().await;
                sleep(FIRST_REQUEST_WAIT).await;
            } => None,
        }
    };
    match begun.await {
        Some(Ok(true)) => return http2_service::serve(stream, shared, finish).await,
        Some(Ok(false)) => {}
        // The client has sent no request and will send none.
        Some(Err(_)) | None => return,
    }
    let unflushed = Unflushed::default();
    let asked = Rc::new(Cell::new(ProtocolInUse::Nothing));
    // Each exchange holds a clone.
    let in_flight = Rc::new(());
    let service = service_fn(|request| {
        asked.set(ProtocolInUse::Http);
        Box::pin(respond(request, shared.clone(), unflushed.clone(), asked.clone(), in_flight.clone()))
    });
    let is_to_close = async {
        shared.close_idle.cancelled().await;
        if asked.get() != ProtocolInUse::Http || Rc::strong_count(&in_flight) > 1 {
            std::future::pending().await
        }
    };
    let transport = TokioIo::new(LoggedTransport::new(stream, unflushed.clone()));
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // The timeout starts when the server begins to wait for the next head.
        .header_read_timeout(shared.idle_timeout)
        .serve_connection(transport, service);
    // If the connection fails, the log already contains each of its requests.
    let ended = tokio::select! {
        biased;
        // Checked before the connection reads the bytes that have arrived, so the kernel resets it.
        () = is_to_close => return,
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = finish.cancelled() => {
            let mut ended = None;
            if asked.get() == ProtocolInUse::Nothing {
                let first = poll_fn(|cx| connection.poll_without_shutdown(cx));
                ended = timeout(FIRST_REQUEST_WAIT, first).await.ok();
            }
            match ended {
                Some(ended) => ended,
                None => {
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                    poll_fn(|cx| connection.poll_without_shutdown(cx)).await
                }
            }
        }
    };
    let parts = connection.into_parts();
    let mut transport = parts.io.into_inner();
    match asked.get() {
        _ if stream_service::is_to_reset(&ended) => transport.reset(),
        ProtocolInUse::WebSocket => websocket_echo::serve(transport, parts.read_buf, &shared, &finish).await,
        ProtocolInUse::Nothing | ProtocolInUse::Http => drop(transport.shutdown().await),
    }
}

/// Protocol used on a connection so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProtocolInUse {
    Nothing,
    Http,
    /// The connection is no longer HTTP.
    WebSocket,
}

async fn respond(
    request: Request<Incoming>,
    shared: Rc<ServerState>,
    unflushed: Unflushed,
    asked: Rc<Cell<ProtocolInUse>>,
    in_flight: Rc<()>,
) -> Result<Response<ServedBody>, Infallible> {
    if request.uri().path() == WEBSOCKET_PATH
        && let Some(fields) = websocket_echo::switch(&request)
    {
        asked.set(ProtocolInUse::WebSocket);
        // The log contains the connection's messages, each with its id, but not the upgrade.
        let exchange = LoggedExchange::received(&shared.log, None);
        let body = PacedBody::whole(Bytes::new(), exchange, unflushed);
        return Ok(shared.response(StatusCode::SWITCHING_PROTOCOLS, fields, Either::Left(body)));
    }
    let id = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let exchange = LoggedExchange::received(&shared.log, id).with_share_of(in_flight);
    let unsent = match stream_service::requested(&request, &shared) {
        Some(Ok(stream)) => {
            return Ok(
                stream_service::respond(stream, request.into_body(), exchange, unflushed, &shared).await
            );
        }
        Some(Err(refused)) => refused,
        None => shared.answer(request.uri().path(), request.uri().query()),
    };
    let UnsentResponse { status, body, delay, pace } = unsent;
    shared.delay(delay).await;
    let body = PacedBody::whole(body, exchange.with_status(status.as_u16()), unflushed);
    let body = match pace {
        BodyPace::AtOnce => body,
        BodyPace::Pieces { piece_bytes, pause } => body.paced(piece_bytes, pause),
    };
    Ok(shared.response(status, shared.connection_fields(), Either::Left(body)))
}

#[cfg(test)]
mod tests;
