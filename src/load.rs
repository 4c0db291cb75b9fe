//! The open-loop load generator.
//!
//! Requests leave at intended send times that are fixed before the first one
//! ([`plan::Plan`], `schedule`), whatever became of the requests before them.
//! Every scheduled request ends in exactly one row with one outcome; none is
//! retried. Each worker thread owns its connections, its share of the schedule
//! and its counts (`worker`); one recorder thread writes what they measured
//! (`recorder`). What an outcome means is not judged here: that is the business
//! of the analysis.
//!
//! [`Prepared`] sends from this process; [`process`] has another process do it, as
//! `rolldrop run` does, and [`remote`] many of them in a cluster. HTTP/1.1 (`exchange`), HTTP/2 (`http2`), unary gRPC (`grpc`) and WebSocket
//! (`websocket`), in clear or inside TLS. Names are followed as the DNS changes (`resolve`).

mod address;
mod connect_to;
mod connection;
mod deadlines;
mod exchange;
mod feed;
mod first_answer;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod grpc;
mod http2;
mod latency_log;
mod pace;
mod pacer;
mod plan;
mod ports;
pub mod process;
mod random;
mod recorder;
mod records;
pub mod remote;
mod request;
mod resolve;
mod response;
mod schedule;
mod stream;
mod tally;
pub mod targets;
mod template;
mod tls;
mod websocket;
mod worker;

#[cfg(test)]
mod known_answers;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::record::parts::{PartError, PartWriter};
use crate::record::retry;
use crate::record::{Clock, Event, EventKind, RequestRow, RunDir, RunDirError, Stamp};
pub use connect_to::{ConnectTo, NotAnOverride};
use connection::Buffers;
use deadlines::Deadlines;
use exchange::{Context, Endpoint};
use feed::Feed;
pub use grpc::{NotAMethod, Rpc, status_name};
use latency_log::LogFile;
pub use pace::{Arrivals, Length, NotAStage, Pace, Stage};
use plan::PlannedTarget;
pub use plan::{Connections, Grpc, Http, Plan, PlanError, Settings, Share, Target};
use ports::SourcePorts;
pub use ports::{NotARange, PortRange};
use recorder::{Files, Recorder};
use records::RecordWriter;
pub use records::{NotARecord, Record, RecordFormat};
use remote::journal::Journal;
use request::{Persistence, Sender, Template};
pub use resolve::{DnsSettings, Family, NotAServer, dns_server};
use resolve::{Names, Route, Walk};
pub use tally::{Counts, ErrorStatuses, Tally, errno_name};
pub use template::UnknownPlaceholder;
pub use tls::{TlsError, TlsSettings, TlsVersions};
use websocket::Messages;
pub use worker::LATE_LIMIT;
use worker::{Batch, Done, Task};

/// From the start to the schedule's zero, so that every worker is ready for its first request.
const LEAD: Duration = Duration::from_millis(50);
/// Batches of rows that may wait for the recorder.
const WAITING_BATCHES: usize = 64;

/// Why a load could not be started or brought to its end.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A target's name does not resolve.
    #[error("failed to resolve {host}: {why}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        why: String,
    },
    /// There is no such Unix socket.
    #[error("{path} is no Unix socket: {why}")]
    NoSocket {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The target does not answer from here.
    #[error("{url} gave no answer within {limit:?}: {why}")]
    NoAnswer {
        /// The target.
        url: String,
        /// The limit.
        limit: Duration,
        /// What the last attempt met.
        why: String,
    },
    /// The load does not fit this machine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The operating system refused a thread, a runtime or a timer.
    #[error("failed to run a load worker")]
    Worker(#[source] io::Error),
    /// A worker or the recorder panicked.
    #[error("a thread of the load generator panicked")]
    Panicked,
    /// The interval log could not be written.
    #[error("failed to write {path}")]
    LatencyLog {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of rows could not be written.
    #[error("failed to write {path}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The rows' directory could not be made.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// Rows could not be written.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// What a load has done so far, warm-up included. Counts lag by a fraction of a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Requests that were due so far.
    pub scheduled: u64,
    /// Requests that are in flight.
    pub in_flight: u64,
    /// Requests that ended, by outcome.
    pub outcomes: Counts,
    /// Statuses of complete answers outside the success set.
    #[serde(flatten)]
    pub error_statuses: ErrorStatuses,
    /// Response times of the answered requests of the last second, if there were any.
    pub recent: Option<Recent>,
}

/// Response times of about the last second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

/// What a load did.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The load's sources: one per worker.
    pub sources: Vec<String>,
    /// The schedule's zero.
    pub started: Stamp,
    /// When the last request had ended.
    pub ended: Stamp,
    /// Requests that were scheduled, warm-up included; each has its row.
    pub scheduled: u64,
    /// Whether it was stopped before its schedule was over.
    pub stopped_early: bool,
    /// What became of the requests.
    pub tally: Tally,
}

/// What may be known and asked of a load that is under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Control {
    progress: Arc<Mutex<Progress>>,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Control {
    /// What it has done so far.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another process says what it has done so far.
    fn report(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Ends the schedule: no further request becomes due, and those in flight end
    /// as they would have, within their timeouts.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends the schedule and cuts off what is in flight: such requests end as `cancelled`.
    pub fn abort(&self) {
        self.stop.cancel();
        self.abort.cancel();
    }
}

/// A load that is under way in this process. Dropping it aborts the load.
#[derive(Debug)]
pub struct Running {
    started: Stamp,
    control: Control,
    events: UnboundedReceiver<Event>,
    summary: oneshot::Receiver<Result<Summary, LoadError>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A load whose targets are known, ready to start.
#[derive(Debug)]
pub struct Prepared {
    plan: Plan,
    /// Where each target is.
    routes: Vec<Route>,
    /// The names among them.
    names: Names,
    /// The source ports of all workers; `None` where the kernel chooses.
    ports: Option<Vec<u16>>,
    /// Files that rows go to beside the run directory.
    records: Vec<RecordWriter>,
    /// What is told of the load while it lasts goes there.
    journal: Option<Arc<Journal>>,
}

impl Prepared {
    /// Resolves the targets' names, and finds out which source ports there are.
    ///
    /// # Errors
    /// When a name does not resolve, there are too few ports, or connections cannot come from the
    /// source addresses.
    pub async fn new(plan: Plan) -> Result<Self, LoadError> {
        plan.settings.unix_socket.as_deref().map_or(Ok(()), is_socket)?;
        let settings = &plan.settings;
        let (names, routes) = match &settings.unix_socket {
            Some(path) => {
                let route = Route::Fixed(path.as_path().into());
                (Names::default(), vec![route; plan.targets.len()])
            }
            None => Names::look_up(&settings.dns, &plan.targets)
                .await
                .map_err(|(host, why)| LoadError::Resolve { host, why })?,
        };
        // A Unix socket has no ports.
        let ports = match plan.settings.unix_socket {
            Some(_) => None,
            None => ports::usable(plan.settings.source_ports),
        };
        let workers = plan.settings.workers;
        match ports.as_ref().map(Vec::len) {
            Some(ports) if ports < workers => return Err(PlanError::TooFewPorts { ports, workers }.into()),
            _ => {}
        }
        let prepared = Self { plan, routes, names, ports, records: Vec::new(), journal: None };
        prepared.check_addresses()?;
        if !prepared.plan.settings.reuse_ports {
            prepared.check_ports()?;
        }
        Ok(prepared)
    }

    /// Whether connections can come from the source addresses.
    fn check_addresses(&self) -> Result<(), PlanError> {
        for address in &self.plan.settings.source_addresses {
            for remote in self.routes.iter().flat_map(Route::remotes) {
                let why = match std::net::UdpSocket::bind((*address, 0)) {
                    Err(error) => error.to_string(),
                    Ok(_) if address.is_ipv4() != remote.is_ipv4() => {
                        "one is IPv4, the other IPv6".to_owned()
                    }
                    Ok(_) => continue,
                };
                return Err(PlanError::SourceAddress { address: *address, remote: remote.to_string(), why });
            }
        }
        Ok(())
    }

    /// Waits until every target gives some answer.
    ///
    /// # Errors
    /// When one gives none within the limit.
    async fn first_answers(&mut self, limit: Duration, clock: Clock) -> Result<(), LoadError> {
        for (target, route) in self.plan.targets.iter().zip(&self.routes) {
            let (tls, walk) = (client(&self.plan, target), Walk::new(route.clone(), 0));
            let from = attempts_from(&self.plan.settings, &mut self.ports);
            first_answer::first_answer(target, &walk, tls.as_ref(), from, limit, clock).await?;
        }
        Ok(())
    }

    /// Finds out whether names with IPv4 and IPv6 addresses answer on both, and leaves out what
    /// does not. Answers what was left out, in words.
    pub async fn choose_families(&mut self, clock: Clock) -> Vec<String> {
        let limit = self.plan.settings.connect_timeout;
        let from = attempts_from(&self.plan.settings, &mut self.ports);
        self.names.choose_families(from, limit, clock).await
    }

    /// The same load, whose rows also go to these files, which are created at once.
    ///
    /// # Errors
    /// When one cannot be created.
    pub fn with_records(mut self, records: &[Record]) -> Result<Self, LoadError> {
        for record in records {
            let writer = RecordWriter::create(record, &self.plan)
                .map_err(|source| LoadError::Record { path: record.path.clone(), source })?;
            self.records.push(writer);
        }
        Ok(self)
    }

    /// The same load, which is told of in this journal while it lasts: for whoever is far from its
    /// run directory, which it has to have.
    #[must_use]
    pub fn with_journal(self, journal: Arc<Journal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Whether there are enough source ports for the fresh connections to each address, were this
    /// side to close each of them first.
    fn check_ports(&self) -> Result<(), PlanError> {
        let Some(ports) = &self.ports else { return Ok(()) };
        let Settings { source_addresses, warmup, pace, .. } = &self.plan.settings;
        let addresses = source_addresses.len().max(1);
        let ports = ports.len() * addresses;
        let length = *warmup + pace.duration().unwrap_or_default();
        // The turns that each address has; a name's addresses share those of its targets.
        let mut turns = BTreeMap::<SocketAddr, f64>::new();
        for target in &self.plan.cycle {
            let remotes = self.routes[*target].remotes();
            for remote in &remotes {
                *turns.entry(*remote).or_default() += 1.0 / remotes.len() as f64;
            }
        }
        for (remote, turns) in turns {
            let per_s = self.plan.fresh_per_s() * turns / self.plan.cycle.len() as f64;
            let held = ports::held(remote.ip());
            let needed = per_s * held.min(length).as_secs_f64();
            if needed > ports as f64 {
                let (held_s, enough) = (held.as_secs(), ports as f64 / held.as_secs_f64());
                let remote = remote.to_string();
                return Err(PlanError::PortsRunOut {
                    remote,
                    per_s,
                    needed,
                    held_s,
                    ports,
                    addresses,
                    enough,
                });
            }
        }
        Ok(())
    }

    /// What whoever wants this load should know before it starts.
    pub fn warnings(&self) -> Vec<String> {
        let Some(ports) = &self.ports else { return Vec::new() };
        let settings = &self.plan.settings;
        let ports = ports.len() * settings.source_addresses.len().max(1);
        let length = settings.warmup + settings.pace.duration().unwrap_or_default();
        let again = ports::used_again_after(self.plan.fresh_per_s(), length, ports);
        let warning = |again: Duration| {
            format!(
                "source ports are used again after {:.0} s: there are {ports}. For {:.0} s after a connection \
                 attempt that nobody answered, another one from its port may be led to the same dead pod \
                 (stale_flow). A lower rate, more ports (net.ipv4.ip_local_port_range) or more source \
                 addresses avoid that",
                again.as_secs_f64(),
                ports::ENTRY_LIFE.as_secs_f64(),
            )
        };
        again.map(warning).into_iter().collect()
    }

    /// The names of the load's sources: one per worker.
    pub fn sources(&self) -> Vec<String> {
        self.plan.sources()
    }

    /// Starts the load at once.
    ///
    /// # Errors
    /// When the files cannot be created, or no thread can be started.
    pub fn start(self, clock: Clock, run_dir: Option<&RunDir>) -> Result<Running, LoadError> {
        let zero = clock.now() + LEAD;
        self.start_at(zero, clock, run_dir)
    }

    /// Starts the load so that its schedule begins at `zero`. Its rows and its interval
    /// log go to `run_dir`, if one is given; events and run.json are the caller's.
    /// The process's limit of open files is raised where the connections need it.
    ///
    /// # Errors
    /// When the files cannot be created, or no thread can be started.
    pub fn start_at(self, zero: Stamp, clock: Clock, run_dir: Option<&RunDir>) -> Result<Running, LoadError> {
        let Self { plan, routes, names, ports, records, journal } = self;
        let sources = plan.sources();
        let mut tables = Vec::new();
        let mut log = None;
        if let Some(run_dir) = run_dir {
            for source in &sources {
                tables.push(run_dir.part_writer::<RequestRow>(source, clock)?);
            }
            log = Some(LogFile::create(run_dir)?);
        }
        connection::allow_open(plan.max_connections);
        let control = Control::default();
        let stop = control.stop.clone();
        let (batches, received) = sync_channel(WAITING_BATCHES);
        let mut tasks = Vec::with_capacity(sources.len());
        for (worker, (source, number)) in sources.iter().zip(plan.own_workers()).enumerate() {
            tasks.push(Task {
                worker,
                context: Context {
                    ports: ports.as_ref().map(|ports| {
                        let own = &plan.settings.source_addresses;
                        SourcePorts::share(ports, own, worker, sources.len())
                    }),
                    plan: plan.clone(),
                    clock,
                    source: source.as_str().into(),
                    endpoints: endpoints(&plan, number, &routes),
                    deadlines: Deadlines::new(clock),
                    buffers: Buffers::default(),
                    is_aborted: Cell::new(false),
                },
                feed: Feed::new(&plan, number, plan.share.of, zero),
                max_connections: share_of(plan.max_connections, number, plan.share.of),
                stop: control.stop.clone(),
                abort: control.abort.clone(),
                batches: batches.clone(),
            });
        }
        drop(batches);
        let (happened, events) = unbounded_channel();
        let run = Run {
            names,
            happened,
            clock,
            started: zero,
            planned: plan.own_requests(),
            sources,
            tasks,
            received,
            records,
            stop,
            tables,
            log,
            journal,
        };
        let (done, summary) = oneshot::channel();
        let thread = thread::Builder::new().name("load-recorder".to_owned());
        let shared = control.clone();
        let thread = thread
            .spawn(move || {
                // Nobody waits for the summary of a load that was dropped.
                let _ = done.send(run.complete(&shared.progress, &shared.abort));
            })
            .map_err(LoadError::Worker)?;
        Ok(Running { started: zero, control, events, summary, thread: Some(thread) })
    }
}

impl Running {
    /// The schedule's zero, when the warm-up begins.
    pub fn started(&self) -> Stamp {
        self.started
    }

    /// What may be known and asked of it meanwhile.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// What happens beside the requests, for the run directory: what the targets' names lead to.
    /// It ends when the load does. To be taken once.
    pub fn take_events(&mut self) -> UnboundedReceiver<Event> {
        std::mem::replace(&mut self.events, unbounded_channel().1)
    }

    /// Waits until every scheduled request has its row, on disk where there is a
    /// run directory. The future may be dropped and made again.
    ///
    /// # Errors
    /// When the load could not be recorded or a thread failed.
    ///
    /// # Panics
    /// When it is called again after it has answered.
    pub async fn join(&mut self) -> Result<Summary, LoadError> {
        (&mut self.summary).await.unwrap_or(Err(LoadError::Panicked))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.abort();
        if let Some(thread) = self.thread.take() {
            // A panic has been told to whoever joined.
            let _ = thread.join();
        }
    }
}

/// The whole of a load, on its way to the thread that runs it.
struct Run {
    clock: Clock,
    started: Stamp,
    planned: Option<u64>,
    names: Names,
    happened: UnboundedSender<Event>,
    sources: Vec<String>,
    tasks: Vec<Task>,
    received: Receiver<Batch>,
    stop: CancellationToken,
    records: Vec<RecordWriter>,
    tables: Vec<PartWriter<RequestRow>>,
    log: Option<LogFile>,
    journal: Option<Arc<Journal>>,
}

impl Run {
    /// Runs the workers and records their rows until all have ended.
    fn complete(
        mut self,
        progress: &Mutex<Progress>,
        abort: &CancellationToken,
    ) -> Result<Summary, LoadError> {
        let journal = self.journal.map(Journal::writer);
        let files = Files { tables: self.tables, records: self.records, log: self.log.as_mut(), journal };
        let recorder = Recorder::new(self.clock, self.started, files, progress, &self.sources)?;
        let stop = self.stop;
        // Without one of its workers or its record the load is not what was asked for.
        let end_all = || {
            stop.cancel();
            abort.cancel();
        };
        let ended = CancellationToken::new();
        let (recorded, done, followed) = thread::scope(|scope| {
            let follow = || {
                let source = self.sources.first().map(String::as_str).unwrap_or_default();
                follow(self.names, self.clock, ended.clone(), |at, kind| {
                    // Nobody may want to know.
                    let _ = self.happened.send(Event::new(at, source, kind));
                })
            };
            let names = thread::Builder::new().name("load-names".to_owned()).spawn_scoped(scope, follow);
            let threads: Vec<_> = self
                .tasks
                .into_iter()
                .map(|task| {
                    let name = task.context.source.to_string();
                    let spawned = thread::Builder::new().name(name).spawn_scoped(scope, || {
                        let done = task.run();
                        if done.is_err() {
                            end_all();
                        }
                        done
                    });
                    if spawned.is_err() {
                        end_all();
                    }
                    spawned
                })
                .collect();
            let recorded = recorder.run(self.received, end_all);
            let done: Vec<Result<Done, LoadError>> = threads
                .into_iter()
                .map(|thread| match thread.map_err(LoadError::Worker)?.join() {
                    Ok(done) => done.map_err(LoadError::Worker),
                    Err(_) => Err(LoadError::Panicked),
                })
                .collect();
            ended.cancel();
            (recorded, done, names.map(thread::ScopedJoinHandle::join))
        });
        recorded?;
        followed.map_err(LoadError::Worker)?.map_err(|_| LoadError::Panicked)?.map_err(LoadError::Worker)?;
        let is_stopped = stop.is_cancelled();
        let (mut scheduled, mut tally) = (0, Tally::default());
        for done in done {
            let done = done?;
            scheduled += done.scheduled;
            tally.merge(&done.tally);
        }
        Ok(Summary {
            sources: self.sources,
            started: self.started,
            ended: self.clock.now(),
            scheduled,
            stopped_early: self.planned.map_or(is_stopped, |planned| scheduled < planned),
            tally,
        })
    }
}

impl LoadError {
    /// The interval log could not be written to.
    fn latency_log(source: io::Error) -> Self {
        LoadError::LatencyLog { path: PathBuf::from("latency.hlog"), source }
    }
}

/// The error with its causes.
fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(&format!(": {error}"));
        cause = error.source();
    }
    words
}

/// Where attempts to reach a target before the load come from.
fn attempts_from<'a>(settings: &Settings, ports: &'a mut Option<Vec<u16>>) -> first_answer::From<'a> {
    first_answer::From {
        address: settings.source_addresses.first().copied(),
        ports: ports.as_mut(),
        left: settings.workers,
        response_timeout: settings.response_timeout,
    }
}

/// Follows names, until `stop`, on this thread.
fn follow(
    names: Names,
    clock: Clock,
    stop: CancellationToken,
    changed: impl Fn(Stamp, EventKind),
) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(names.follow(clock, stop, changed));
    // A name that the system is still asked for is not waited for.
    runtime.shutdown_background();
    Ok(())
}

/// Whether something can be connected to at `path`.
#[cfg(unix)]
fn is_socket(path: &Path) -> Result<(), LoadError> {
    use std::os::unix::fs::FileTypeExt;

    let why = match std::fs::metadata(path) {
        Ok(file) if file.file_type().is_socket() => return Ok(()),
        Ok(_) => "it is something else".to_owned(),
        Err(e) => e.to_string(),
    };
    Err(LoadError::NoSocket { path: path.to_owned(), why })
}

/// There are none here.
#[cfg(not(unix))]
fn is_socket(path: &Path) -> Result<(), LoadError> {
    Err(LoadError::NoSocket { path: path.to_owned(), why: "this system has none".to_owned() })
}

/// The TLS of a target, where it speaks it.
fn client(plan: &Plan, target: &PlannedTarget) -> Option<tls::Client> {
    plan.tls.as_ref().zip(target.tls_name.clone()).map(|(tls, name)| tls.client(name))
}

/// The plan's targets, as they are at hand for the worker of this number.
fn endpoints(plan: &Plan, worker: usize, routes: &[Route]) -> Vec<Endpoint> {
    let (source, number) = (plan::source_name(worker), worker as u64);
    let sender = Sender { source, worker: number, workers: plan.share.of as u64, seed: plan.settings.seed };
    let endpoint = |(target, route): (&PlannedTarget, &Route)| Endpoint {
        name: target.name.clone(),
        method: target.method.clone(),
        go_replays: !target.is_websocket
            && (retry::go_replays(target.method.as_str()) || target.has_idempotency_key()),
        walk: Walk::new(route.clone(), worker),
        tls: client(plan, target),
        closing: Template::new(target, &sender, Persistence::Close),
        keeping: Template::new(target, &sender, Persistence::Keep),
        http: target.http,
        http2: (target.http != Http::Http1).then(|| http2::Template::new(target, &sender)),
        grpc: target.grpc.clone(),
        messages: target.is_websocket.then(|| Messages::new(target, &sender)),
    };
    plan.targets.iter().zip(routes).map(endpoint).collect()
}

/// Worker `worker`'s part of `total`, divided as evenly as whole numbers can be.
fn share_of(total: usize, worker: usize, workers: usize) -> usize {
    total / workers + usize::from(worker < total % workers)
}
