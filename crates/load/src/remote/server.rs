//! The worker's side: serves HTTP while it sends its load, until its rows were fetched or the run is gone.
//!
//! Orders go to [`worker`], which obeys them; reports come from there.

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
use super::answer::{Answer, json, lines, text};
use super::backlog::Backlog;
use super::handover::Handover;
use super::reverse;
use super::{
    ABANDONED, ACKNOWLEDGED_PATH, HEALTH_PATH, KEPT, ORDERS_PATH, READY_PATH, REPORTS_PATH, UNCLAIMED,
    VERSION_PATH,
};
use crate::process::protocol::Order;
use crate::process::worker;
use rolldrop_record::run_info::Tool;
use rolldrop_record::wire::{AdminToken, CLOCK_PATH, ClockAnswer, TOKEN_HEADER};
use rolldrop_record::{Clock, RunDir, Stamp};
use rolldrop_wire::places::Place;

/// Time that a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an order in bytes, which includes request bodies.
const MAX_ORDER_BYTES: usize = 8 * 1024 * 1024;
/// Interval at which the time since the last request is checked.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time that open answers may take at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Settings of a worker in a pod.
#[derive(Debug)]
pub struct PodWorker {
    /// Run directory for its rows.
    pub run_dir: RunDir,
    /// Token that requests must have.
    pub token: AdminToken,
    /// Run to connect to, if the run cannot reach the worker.
    pub visit: Option<Visit>,
}

/// The run that a worker connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Host and port.
    pub address: String,
    /// Name of the worker at the run.
    pub name: String,
}

/// Serves until the load's rows were fetched, or the run has been silent for too long. `stop` ends the load; its rows
/// can be fetched after that, as long as the process runs.
pub async fn serve(listener: TcpListener, mut settings: PodWorker, stop: CancellationToken) {
    let visit = settings.visit.take();
    let (worker, taken) = Worker::new(settings);
    let visiting = async {
        let Some(Visit { address, name }) = visit else { return pending().await };
        let answer = |request: Request<Incoming>| {
            let worker = Arc::clone(&worker);
            // The worker itself has made that connection.
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

/// Orders that were taken.
struct Orders {
    /// Number of orders taken.
    taken: u64,
    /// True if the load was ordered to start.
    is_started: bool,
    /// Channel for the orders; `None` once the worker obeys no more.
    to: Option<UnboundedSender<Bytes>>,
}

struct Worker {
    clock: Clock,
    started: Stamp,
    token: AdminToken,
    run_dir: RunDir,
    handover: Handover,
    reports: Arc<Backlog>,
    orders: Mutex<Orders>,
    /// Time when the last request with the token came.
    heard: Mutex<Option<Instant>>,
    /// Cancelled when everything was fetched.
    acknowledged: CancellationToken,
}

impl Worker {
    /// Creates a worker without orders, and the channel that they will come from.
    fn new(PodWorker { run_dir, token, .. }: PodWorker) -> (Arc<Self>, UnboundedReceiver<Bytes>) {
        let clock = Clock::start();
        let (to, orders) = unbounded();
        let worker = Self {
            clock,
            started: clock.now(),
            token,
            handover: Handover::new(run_dir.path()),
            run_dir,
            reports: Arc::default(),
            orders: Mutex::new(Orders { taken: 0, is_started: false, to: Some(to) }),
            heard: Mutex::new(None),
            acknowledged: CancellationToken::new(),
        };
        (Arc::new(worker), orders)
    }

    /// Runs from the first order to the end of the process.
    async fn live(&self, orders: UnboundedReceiver<Bytes>, stop: CancellationToken) {
        let began = Instant::now();
        let loading = async {
            let orders = StreamReader::new(orders.map(Ok::<_, io::Error>));
            let run_dir = || Ok(self.run_dir.clone());
            let (journal, say) = (Some(self.handover.journal()), |report: &_| self.reports.push(report));
            worker::serve(run_dir, journal, self.clock, orders, say).await;
            self.end_orders();
            self.reports.end();
        };
        let abandoned = async {
            loop {
                sleep(LOOK_AGAIN).await;
                let silent = self.silence(began);
                let limit = if self.heard().is_some() { ABANDONED } else { UNCLAIMED };
                if silent > limit {
                    tracing::warn!(?limit, "no contact with the run for too long: the load ends");
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
        // Without a load there are no rows.
        if self.orders().is_started && !self.acknowledged.is_cancelled() {
            tokio::select! {
                () = self.silent_for(KEPT, began) => tracing::warn!("nobody has fetched the rows within {KEPT:?}"),
                () = self.acknowledged.cancelled() => {}
            }
        } else if !self.acknowledged.is_cancelled() {
            // The run reads the reason why there is no load.
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.acknowledged.cancelled() => {}
                () = self.silent_for(ABANDONED, began) => {}
            }
        }
        sleep(LAST_ANSWERS).await;
    }

    /// Waits until no request has come for this long.
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

    /// Takes no further order: the load is cut off, if it is not over.
    fn end_orders(&self) {
        self.orders().to = None;
    }

    /// Answers requests on a connection until that ends.
    async fn serve(self: Arc<Self>, stream: TcpStream, place: Arc<Place>) -> hyper::Result<()> {
        // Reports are short, and needed at once.
        let _ = stream.set_nodelay(true);
        let service =
            service_fn(|request| async { Ok::<_, Infallible>(self.answer(request, Some(&place)).await) });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        server.serve_connection(TokioIo::new(stream), service).await
    }

    async fn answer(&self, request: Request<Incoming>, place: Option<&Arc<Place>>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if matches!((&method, path.as_str()), (&Method::GET, HEALTH_PATH | READY_PATH)) {
            return text(StatusCode::OK, "ok\n");
        }
        let given = request.headers().get(TOKEN_HEADER);
        if !given.is_some_and(|given| self.token.is(given.as_bytes())) {
            return text(StatusCode::UNAUTHORIZED, "the token of the run is required\n");
        }
        // Whoever knows the token is no stranger.
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

    async fn take_order(&self, number: u64, body: Incoming) -> Answer {
        let body = match Limited::new(body, MAX_ORDER_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let order: Order = match serde_json::from_slice(&body) {
            Ok(order) => order,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let mut orders = self.orders();
        if number < orders.taken {
            return text(StatusCode::OK, "taken before\n");
        }
        if number > orders.taken {
            return text(StatusCode::CONFLICT, format!("the next order is number {}\n", orders.taken));
        }
        let Some(to) = &orders.to else { return text(StatusCode::CONFLICT, "the load has ended\n") };
        // A line for each order, whatever white space it contains.
        let mut line = serde_json::to_vec(&order).unwrap_or_default();
        line.push(b'\n');
        if to.unbounded_send(line.into()).is_err() {
            return text(StatusCode::CONFLICT, "the load has ended\n");
        }
        orders.taken += 1;
        orders.is_started |= matches!(order, Order::Start { .. });
        text(StatusCode::OK, "taken\n")
    }
}

/// Returns a number in a query.
fn number(query: &str, name: &str) -> Option<u64> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lives(heard: bool) -> Duration {
        let dir = tempfile::tempdir().unwrap();
        let (run_dir, token) = (RunDir::create(dir.path()).unwrap(), "secret".parse().unwrap());
        let (worker, orders) = Worker::new(PodWorker { run_dir, token, visit: None });
        if heard {
            *worker.heard.lock().unwrap() = Some(Instant::now());
        }
        let began = Instant::now();
        worker.live(orders, CancellationToken::new()).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn worker_exits_without_its_run() {
        let margin = Duration::from_secs(10);
        let (abandoned, unclaimed) = (lives(true).await, lives(false).await);
        assert!((ABANDONED..ABANDONED + margin).contains(&abandoned), "{abandoned:?}");
        assert!((UNCLAIMED..UNCLAIMED + margin).contains(&unclaimed), "{unclaimed:?}");
    }
}
