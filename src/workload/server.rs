//! Accepts, answers, and stops in the chosen habit.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Pace, Readiness, answer, index_body};
use super::connection::{PacedBody, Transport, Unflushed};
use super::log::{Entry, Exchange, Log, NowNs};
use super::{Config, Habit, WorkloadError};

/// Connections that may wait in the accept queue.
const BACKLOG: i32 = 4096;
/// How long a connection that has not asked yet may do so after the server
/// stopped accepting: it was accepted, so its request is probably on its way.
const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(1);
const REQUEST_ID: HeaderName = HeaderName::from_static("rolldrop-id");
const POD: HeaderName = HeaderName::from_static("rolldrop-pod");

/// A server that listens but does not serve yet.
pub struct Server {
    listener: TcpListener,
    signals: Signals,
    shared: Rc<Shared>,
    on_stop: Habit,
    drain_for: Duration,
}

/// What every connection needs.
struct Shared {
    log: Log,
    started: Instant,
    ready_after: Duration,
    draining: Cell<bool>,
    response_time: Duration,
    index: Bytes,
    pod: Option<HeaderValue>,
}

impl Server {
    /// Opens the log, installs the signal handlers and listens. Must be called
    /// on a runtime with one thread, inside a [`tokio::task::LocalSet`].
    ///
    /// # Errors
    ///
    /// The address is in use or cannot be listened on, or the log cannot be opened.
    pub fn bind(config: &Config, now: NowNs) -> Result<Self, WorkloadError> {
        // First, so that no signal finds the default action once somebody can connect.
        let signals = Signals::install().map_err(WorkloadError::Signals)?;
        let (listener, shared) = open(config, now)?;
        Ok(Self { listener, signals, shared, on_stop: config.on_stop, drain_for: config.drain_for })
    }

    /// Serves until a stop signal and the habit end it.
    pub async fn run(self) {
        let Self { listener, mut signals, shared, on_stop, drain_for } = self;
        serve(listener, async || signals.next().await, shared, on_stop, drain_for).await;
    }
}

/// Opens the log and listens.
fn open(config: &Config, now: NowNs) -> Result<(TcpListener, Rc<Shared>), WorkloadError> {
    let log = Log::open(config.log.as_ref(), now)?;
    let listener = listen(config.listen).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => WorkloadError::AddressInUse(config.listen),
        _ => WorkloadError::Listen { address: config.listen, source },
    })?;
    // With port 0 the log is the only place that says which one it became.
    let address = listener.local_addr().unwrap_or(config.listen).to_string();
    log.write(Entry::Listening { address: &address });
    let shared = Shared {
        log,
        started: Instant::now(),
        ready_after: config.ready_after,
        draining: Cell::new(false),
        response_time: config.response_time,
        index: index_body(config.body_bytes, config.pod_name.as_deref()),
        pod: config.pod_name.as_deref().and_then(|name| HeaderValue::from_str(name).ok()),
    };
    Ok((listener, Rc::new(shared)))
}

/// Serves on `listener` until the habit ends it; `next_signal` answers the names of signals.
async fn serve(
    listener: TcpListener,
    mut next_signal: impl AsyncFnMut() -> &'static str,
    shared: Rc<Shared>,
    on_stop: Habit,
    drain_for: Duration,
) {
    let mut connections = JoinSet::new();
    let finish = CancellationToken::new();
    let carry = |stream, connections: &mut JoinSet<()>| {
        connections.spawn_local(serve_connection(stream, shared.clone(), finish.clone()));
    };

    let mut drained_at: Option<Instant> = None;
    loop {
        tokio::select! {
            // A stop signal goes before a connection that came at the same moment.
            biased;
            name = next_signal() => {
                shared.log.write(Entry::Signal { name });
                match on_stop {
                    _ if name == "SIGHUP" || drained_at.is_some() => {}
                    Habit::Ignore => {}
                    Habit::Exit => {
                        drop(listener);
                        connections.shutdown().await;
                        shared.log.write(Entry::Exiting);
                        return;
                    }
                    Habit::Finish => break,
                    Habit::Drain => {
                        shared.draining.set(true);
                        drained_at = Some(Instant::now() + drain_for);
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
    if on_stop == Habit::Drain {
        for stream in close_after_accepting_all(listener) {
            carry(stream, &mut connections);
        }
    } else {
        drop(listener);
    }
    shared.log.write(Entry::StoppedAccepting);
    finish.cancel();
    loop {
        tokio::select! {
            name = next_signal() => shared.log.write(Entry::Signal { name }),
            ended = connections.join_next() => if ended.is_none() { break },
        }
    }
    shared.log.write(Entry::Exiting);
}

/// Waits for an instant; for none, forever.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Closes the listener, but takes what waits in its accept queue first: that would be reset.
///
/// The kernel is asked itself. The runtime knows of a connection only some time after it came.
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

/// An accept error of one connection is nothing; one of the process (no
/// descriptors left) would otherwise spin.
async fn back_off_from(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        eprintln!("rolldrop workload: accept: {error}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn serve_connection(stream: TcpStream, shared: Rc<Shared>, finish: CancellationToken) {
    // Without it a small answer may wait for the client's acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let unflushed = Unflushed::default();
    let asked = Rc::new(Cell::new(false));
    let service = service_fn(|request| {
        asked.set(true);
        respond(request, shared.clone(), unflushed.clone())
    });
    let transport = TokioIo::new(Transport::new(stream, unflushed.clone()));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(transport, service);
    tokio::pin!(connection);
    // A connection that fails has told its story in the log, request by request.
    tokio::select! {
        _ = &mut connection => return,
        () = finish.cancelled() => {}
    }
    if !asked.get() && timeout(FIRST_REQUEST_WAIT, &mut connection).await.is_ok() {
        return;
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

async fn respond(
    request: Request<Incoming>,
    shared: Rc<Shared>,
    unflushed: Unflushed,
) -> Result<Response<PacedBody>, Infallible> {
    let id = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let exchange = Exchange::received(&shared.log, id);
    let readiness = if shared.draining.get() || shared.started.elapsed() < shared.ready_after {
        Readiness::NotReady
    } else {
        Readiness::Ready
    };
    let Answer { status, body, delay, pace } =
        answer(request.uri().path(), request.uri().query(), readiness, &shared.index);
    let delay = delay + shared.response_time;
    if !delay.is_zero() {
        sleep(delay).await;
    }

    let body = PacedBody::whole(body, exchange.with_status(status.as_u16()), unflushed);
    let mut response = Response::new(match pace {
        Pace::AtOnce => body,
        Pace::Pieces { piece_bytes, pause } => body.paced(piece_bytes, pause),
    });
    *response.status_mut() = status;
    if let Some(pod) = &shared.pod {
        response.headers_mut().insert(POD, pod.clone());
    }
    if shared.draining.get() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// The signals that the server notices.
struct Signals {
    term: Signal,
    int: Signal,
    quit: Signal,
    hup: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    /// The name of the next signal.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            _ = self.quit.recv() => "SIGQUIT",
            _ = self.hup.recv() => "SIGHUP",
        }
    }
}

#[cfg(test)]
mod tests;
