//! The worker's side: serves HTTP while sending its load, until its rows have been fetched or the run is gone.
//!
//! Orders go to [`order_executor`], which carries them out and sends the reports.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use super::accept::accept;
use super::backlog::Backlog;
use super::reverse;
use super::row_handover::RowHandover;
use super::worker_response::{WorkerResponse, json, lines, number, text};
use super::{
    ABANDONED, ACKNOWLEDGED_PATH, HEALTH_PATH, KEPT, ORDERS_PATH, READY_PATH, REPORTS_PATH, UNCLAIMED,
    VERSION_PATH,
};
use crate::load_process::order_executor;
use crate::load_process::worker_protocol::WorkerOrder;
use rolldrop_record::run_info::Tool;
use rolldrop_record::wire::{AdminToken, CLOCK_PATH, ClockAnswer, TOKEN_HEADER};
use rolldrop_record::{Clock, RunDir, Stamp};
use rolldrop_wire::places::ConnectionPlace;

/// Time limit for receiving a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an order in bytes, including request bodies.
const MAX_ORDER_BYTES: usize = 8 * 1024 * 1024;
/// Interval between checks of the time since the last request.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time limit for responses still open at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Settings for a worker in a pod.
#[derive(Debug)]
pub struct WorkerServerSettings {
    /// Run directory for the worker's rows.
    pub run_dir: RunDir,
    /// Token that requests must carry.
    pub token: AdminToken,
    /// Run to connect to, if the run cannot connect to the worker.
    pub visit: Option<Visit>,
}

/// The run to which a worker connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Host and port of the run.
    pub address: String,
    /// Name under which the worker registers with the run.
    pub name: String,
}

/// Serves until the load's rows have been fetched or the run has been silent for too long. `stop` ends the load; its
/// rows can still be fetched while the process runs.
pub async fn serve(listener: TcpListener, mut settings: WorkerServerSettings, stop: CancellationToken) {
    let visit = settings.visit.take();
    let (worker, taken) = WorkerServer::new(settings);
    let visiting = async {
        let Some(Visit { address, name }) = visit else { return pending().await };
        let answer = |request: Request<Incoming>| {
            let worker = Arc::clone(&worker);
            // The worker opened this connection itself.
            async move { worker.answer(request, None).await }
        };
        reverse::visit(&address, &name, &worker.token, answer).await;
    };
    tokio::select! {
        () = accept(listener, |stream, place| Arc::clone(&worker).serve(stream, place)) => {}
        () = visiting => {}
        () = worker.live(taken, stop) => {}
    }
}

/// State of the accepted orders.
struct Orders {
    /// Number of accepted orders.
    taken: u64,
    /// True if an order to start the load was accepted.
    is_started: bool,
    /// Channel for orders; `None` once the worker accepts no more.
    to: Option<UnboundedSender<Bytes>>,
}

struct WorkerServer {
    clock: Clock,
    started: Stamp,
    token: AdminToken,
    run_dir: RunDir,
    handover: RowHandover,
    reports: Arc<Backlog>,
    orders: Mutex<Orders>,
    /// Time of the last request with the token.
    heard: Mutex<Option<Instant>>,
    /// Token that is cancelled when everything has been fetched.
    acknowledged: CancellationToken,
}

impl WorkerServer {
    /// Creates a worker without orders, and the channel on which orders will arrive.
    fn new(
        WorkerServerSettings { run_dir, token, .. }: WorkerServerSettings,
    ) -> (Arc<Self>, UnboundedReceiver<Bytes>) {
        let clock = Clock::start();
        let (to, orders) = unbounded();
        let worker = Self {
            clock,
            started: clock.now(),
            token,
            handover: RowHandover::new(run_dir.path()),
            run_dir,
            reports: Arc::default(),
            orders: Mutex::new(Orders { taken: 0, is_started: false, to: Some(to) }),
            heard: Mutex::new(None),
            acknowledged: CancellationToken::new(),
        };
        (Arc::new(worker), orders)
    }

    /// Runs from the first order until the process exits.
    async fn live(&self, orders: UnboundedReceiver<Bytes>, stop: CancellationToken) {
        let began = Instant::now();
        let loading = async {
            let orders = StreamReader::new(orders.map(Ok::<_, io::Error>));
            let run_dir = || Ok(self.run_dir.clone());
            let (journal, say) = (Some(self.handover.journal()), |report: &_| self.reports.push(report));
            order_executor::serve(run_dir, journal, self.clock, orders, say).await;
            self.end_orders();
            self.reports.end();
        };
        let abandoned = async {
            loop {
                sleep(LOOK_AGAIN).await;
                let silent = self.silence(began);
                let limit = if self.heard().is_some() { ABANDONED } else { UNCLAIMED };
                if silent > limit {
                    tracing::warn!(?limit, "no contact with the run for too long: stopping the load");
                    return;
                }
            }
        };
        let ended = async {
            tokio::select! {
                () = abandoned => {}
                () = stop.cancelled() => {}
            }
            self.end_orders();
            pending::<()>().await;
        };
        tokio::select! {
            () = loading => {}
            () = ended => {}
            () = self.acknowledged.cancelled() => {}
        }
        // If no load was started, there are no rows to fetch, but the run needs time to read the reason.
        let is_started = self.orders().is_started;
        let limit = if is_started { KEPT } else { ABANDONED };
        tokio::select! {
            () = self.acknowledged.cancelled() => {}
            () = stop.cancelled(), if !is_started => {}
            () = self.silent_for(limit, began) => if is_started {
                tracing::warn!("the rows were not fetched within {limit:?}");
            },
        }
        sleep(LAST_ANSWERS).await;
    }

    /// Waits until there has been no request for `limit`.
    async fn silent_for(&self, limit: Duration, began: Instant) {
        while self.silence(began) <= limit {
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns the time since the last request, or since `began`.
    fn silence(&self, began: Instant) -> Duration {
        self.heard().unwrap_or(began).elapsed()
    }

    fn heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops accepting orders; a load that is still running is aborted.
    fn end_orders(&self) {
        self.orders().to = None;
    }

    /// Serves requests on a connection until it is closed.
    async fn serve(self: Arc<Self>, stream: TcpStream, place: Arc<ConnectionPlace>) -> hyper::Result<()> {
        // Reports are short, and needed immediately.
        let _ = stream.set_nodelay(true);
        let service =
            service_fn(|request| async { Ok::<_, Infallible>(self.answer(request, Some(&place)).await) });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        server.serve_connection(TokioIo::new(stream), service).await
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        place: Option<&Arc<ConnectionPlace>>,
    ) -> WorkerResponse {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if matches!((&method, path.as_str()), (&Method::GET, HEALTH_PATH | READY_PATH)) {
            return text(StatusCode::OK, "ok\n");
        }
        let given = request.headers().get(TOKEN_HEADER);
        if !given.is_some_and(|given| self.token.is(given.as_bytes())) {
            return text(StatusCode::UNAUTHORIZED, "the run's token is required\n");
        }
        // A client that knows the token is not a stranger.
        place.inspect(|place| place.keep());
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if let Some(answer) = self.handover.answer(&method, request.uri(), request.headers()).await {
            return answer;
        }
        let number = |name: &str| number(request.uri().query().unwrap_or_default(), name);
        match (&method, path.as_str()) {
            (&Method::GET, CLOCK_PATH) => {
                let (now_ns, started_ns) = (self.clock.now(), self.started);
                json(&ClockAnswer { now_ns, started_ns, recorded: 0 })
            }
            (&Method::GET, VERSION_PATH) => json(&Tool::this()),
            (&Method::GET, REPORTS_PATH) => lines(self.reports.read(number("from").unwrap_or(0)).map(Ok)),
            (&Method::POST, ORDERS_PATH) => match number("n") {
                Some(number) => self.take_order(number, request.into_body()).await,
                None => text(StatusCode::BAD_REQUEST, "the order has no number: ?n=N\n"),
            },
            (&Method::POST, ACKNOWLEDGED_PATH) => {
                self.acknowledged.cancel();
                text(StatusCode::OK, "ok\n")
            }
            _ => text(StatusCode::NOT_FOUND, "no such path\n"),
        }
    }

    async fn take_order(&self, number: u64, body: Incoming) -> WorkerResponse {
        let body = match Limited::new(body, MAX_ORDER_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let order: WorkerOrder = match serde_json::from_slice(&body) {
            Ok(order) => order,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let mut orders = self.orders();
        if number < orders.taken {
            return text(StatusCode::OK, "already accepted\n");
        }
        if number > orders.taken {
            return text(StatusCode::CONFLICT, format!("the next order is number {}\n", orders.taken));
        }
        let Some(to) = &orders.to else { return text(StatusCode::CONFLICT, "the load has ended\n") };
        // One line per order, whatever white space the order contains.
        let mut line = serde_json::to_vec(&order).unwrap_or_default();
        line.push(b'\n');
        if to.unbounded_send(line.into()).is_err() {
            return text(StatusCode::CONFLICT, "the load has ended\n");
        }
        orders.taken += 1;
        orders.is_started |= matches!(order, WorkerOrder::Start { .. });
        text(StatusCode::OK, "accepted\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lives(heard: bool) -> Duration {
        let dir = tempfile::tempdir().unwrap();
        let (run_dir, token) = (RunDir::create(dir.path()).unwrap(), "secret".parse().unwrap());
        let (worker, orders) = WorkerServer::new(WorkerServerSettings { run_dir, token, visit: None });
        if heard {
            *worker.heard.lock().unwrap() = Some(Instant::now());
        }
        let began = Instant::now();
        worker.live(orders, CancellationToken::new()).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn worker_exits_if_its_run_is_absent() {
        let margin = Duration::from_secs(10);
        let (abandoned, unclaimed) = (lives(true).await, lives(false).await);
        assert!((ABANDONED..ABANDONED + margin).contains(&abandoned), "{abandoned:?}");
        assert!((UNCLAIMED..UNCLAIMED + margin).contains(&unclaimed), "{unclaimed:?}");
    }
}
