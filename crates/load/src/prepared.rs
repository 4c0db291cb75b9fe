//! A load with resolved targets: its checks and its start.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::client_tls;
use super::connection::{self, Buffers};
use super::conntrack_listener::{self, ConntrackError, ConntrackListener, Origins};
use super::control::Control;
use super::deadlines::Deadlines;
use super::error::{LoadError, Result};
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::expected_open::expected_open;
use super::feed::RequestFeed;
use super::first_answer::{self, first_answer};
use super::latency_log::LatencyLogFile;
use super::live_feed::LiveJournal;
use super::load_plan::{self, Plan, PlanError};
use super::open_streams::OpenStreams;
use super::planned_target::PlannedTarget;
use super::record_file::{Record, RecordWriter};
use super::request::{self, Http1Template, Persistence, SenderIdentity, WebSocket};
use super::resolve::{AddressCursor, FollowedNames, TargetRoute};
use super::row_recorder::{RecorderOutputs, StreamTable};
use super::running::{LoadRun, RunningLoad};
use super::source_port_pool::{self, PortMemory, PortWalk, PortsBefore};
use super::stream_poller::StreamPoller;
use super::worker::Task;
use rolldrop_record::load::{Family, Http, Load};
use rolldrop_record::{Clock, Evidence, RequestRow, RunDir, Stamp, retry};

/// Lead time between the start and the schedule's zero, so that every worker is ready for its first request.
const LEAD: Duration = Duration::from_millis(50);
/// Time limit for the row of an ended request to reach the recorder.
const ROWS_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of row batches waiting for the recorder.
pub(super) const WAITING_BATCHES: usize = 64;

/// A load with resolved targets, ready to start.
#[derive(Debug)]
pub struct Prepared {
    plan: Plan,
    /// Route to each target.
    routes: Vec<TargetRoute>,
    /// Target names to follow in DNS.
    names: FollowedNames,
    /// Source ports of all workers; `None` if the kernel chooses.
    ports: Option<Vec<u16>>,
    /// Source port at which earlier loads stopped, if the calling run provided it.
    told: Option<PortsBefore>,
    /// Additional row files outside the run directory.
    records: Vec<RecordWriter>,
    /// Journal that reports progress while the load runs.
    journal: Option<Arc<LiveJournal>>,
    /// Listener that reports where connections go, if enabled in the settings.
    listener: Option<ConntrackListener>,
}

impl Prepared {
    /// Resolves the target names and determines the source ports.
    ///
    /// # Errors
    /// Returns an error if a name does not resolve, there are too few ports, or the source addresses cannot be used.
    pub async fn new(plan: Plan) -> Result<Self> {
        plan.settings.unix_socket.as_deref().map_or(Ok(()), is_socket)?;
        let settings = &plan.settings;
        let (names, routes) = match &settings.unix_socket {
            Some(path) => {
                let route = TargetRoute::Fixed(path.as_path().into());
                (FollowedNames::default(), vec![route; plan.targets.len()])
            }
            None => FollowedNames::look_up(&settings.dns, &plan.targets)
                .await
                .map_err(|(host, why)| LoadError::Resolve { host, why })?,
        };
        // A Unix socket has no ports.
        let ports = match plan.settings.unix_socket {
            Some(_) => None,
            None => source_port_pool::usable(plan.settings.source_ports),
        };
        let workers = plan.settings.workers;
        match ports.as_ref().map(Vec::len) {
            Some(ports) if ports < workers => return Err(PlanError::TooFewPorts { ports, workers }.into()),
            _ => {}
        }
        let records = Vec::new();
        let mut prepared =
            Self { plan, routes, names, ports, told: None, records, journal: None, listener: None };
        prepared.check_addresses()?;
        prepared.limit_open()?;
        if !prepared.plan.settings.reuse_ports {
            prepared.check_ports()?;
        }
        Ok(prepared)
    }

    /// Checks that the source addresses can be used for connections.
    fn check_addresses(&self) -> Result<(), PlanError> {
        for address in &self.plan.settings.source_addresses {
            for remote in self.routes.iter().flat_map(TargetRoute::remotes) {
                let why = match UdpSocket::bind((*address, 0)) {
                    Err(error) => error.to_string(),
                    Ok(_) if address.is_ipv4() != remote.is_ipv4() => {
                        "one is IPv4 and the other IPv6".to_owned()
                    }
                    Ok(_) => continue,
                };
                return Err(PlanError::SourceAddress { address: *address, remote: remote.to_string(), why });
            }
        }
        Ok(())
    }

    /// Limits the number of open streams to what this machine's file descriptors and ports allow.
    ///
    /// # Errors
    /// Returns an error if the user asked for more, or if more are expected to be open.
    fn limit_open(&mut self) -> Result<(), PlanError> {
        let settings = &self.plan.settings;
        let Some(stream) = &settings.stream else { return Ok(()) };
        let is_chosen = stream.max_open.or(settings.connections.max).is_some();
        let own = |plan: &Plan| plan.own_workers().map(|worker| plan.part_of_connections(worker)).sum();
        let allowed: usize = own(&self.plan);
        let expected = expected_open(&self.plan);
        let limits = [
            ("the default of --max-open (stream.maxOpen)", allowed),
            ("the open-file limit (ulimit -Hn)", connection::most_open()),
            (
                "the number of source ports (net.ipv4.ip_local_port_range)",
                self.all_ports().unwrap_or(usize::MAX),
            ),
        ];
        for (limit, most) in limits {
            match expected {
                _ if is_chosen && allowed > most => {
                    return Err(PlanError::TooManyOpen { asked: allowed, limit, most });
                }
                Some(expected) if !is_chosen && expected > most => {
                    return Err(PlanError::TooManyExpected { expected, limit, most });
                }
                _ => {}
            }
            if own(&self.plan) > most {
                self.plan.max_connections = most * self.plan.share.of / self.plan.settings.workers;
            }
        }
        Ok(())
    }

    /// Makes the load begin after the source ports that earlier loads used. Without this call, the load reads their
    /// position from a file owned by this user.
    #[must_use]
    pub fn behind(self, told: Option<PortsBefore>) -> Self {
        Self { told, ..self }
    }

    /// Makes the load ask the kernel where its connections go, if enabled in the settings.
    ///
    /// # Errors
    /// Returns an error if the kernel does not report this.
    pub fn with_evidence(mut self, clock: Clock) -> Result<Self> {
        let settings = &self.plan.settings;
        match settings.evidence {
            None => return Ok(self),
            Some(Evidence::Conntrack) => {}
        }
        let local = conntrack_listener::local_addresses().map_err(ConntrackError::Io)?.collect();
        let timeouts = settings.timeout.connect + settings.timeout.tls + settings.response_timeout();
        let origins = Origins {
            local,
            chosen: settings.source_addresses.clone(),
            ports: self.ports.as_ref().map(|ports| ports.iter().copied().collect()),
            longest: timeouts + ROWS_WAIT,
        };
        self.listener = Some(ConntrackListener::begin(origins, clock)?);
        Ok(self)
    }

    /// Waits until every target has responded.
    ///
    /// # Errors
    /// Returns an error if a target does not respond within the limit, or if the kernel has no entry for any connection
    /// to the targets.
    pub(super) async fn first_answers(&mut self, limit: Duration, clock: Clock) -> Result<()> {
        for (target, route) in self.plan.targets.iter().zip(&self.routes) {
            let (tls, walk) = (client(&self.plan, target), AddressCursor::new(route.clone(), 0));
            let from = attempts_from(&self.plan.settings, &mut self.ports);
            first_answer(target, &walk, tls.as_ref(), from, limit, clock).await?;
        }
        let remotes: Vec<SocketAddr> = self.routes.iter().flat_map(TargetRoute::remotes).collect();
        self.listener.as_ref().map_or(Ok(()), |listener| listener.check_has_any_to(&remotes))?;
        Ok(())
    }

    /// Chooses one address family for each name that has addresses of both families but accepts connections on only
    /// one, such as `localhost` with a server that listens only on IPv4. The other family is not used afterwards,
    /// because a client that tries both would never show this failure to its users. Returns a description of what was
    /// dropped.
    pub async fn choose_families(&mut self, clock: Clock) -> Vec<String> {
        let limit = self.plan.settings.timeout.connect;
        let mut from = attempts_from(&self.plan.settings, &mut self.ports);
        let mut dropped = Vec::new();
        for (name, v4, v6) in self.names.of_both_families() {
            match (from.reach(&v4, limit, clock).await, from.reach(&v6, limit, clock).await) {
                (true, false) => dropped.push(name.use_only(Family::Ipv4, &v6)),
                (false, true) => dropped.push(name.use_only(Family::Ipv6, &v4)),
                _ => {}
            }
        }
        dropped
    }

    /// Makes the load also write its rows to these files, which are created immediately.
    ///
    /// # Errors
    /// Returns an error if a file cannot be created.
    pub fn with_records(mut self, records: &[Record]) -> Result<Self> {
        for record in records {
            let writer = RecordWriter::create(record, &self.plan)
                .map_err(|source| LoadError::Record { path: record.path.clone(), source })?;
            self.records.push(writer);
        }
        Ok(self)
    }

    /// Makes the load report its progress in this journal while it runs, for readers that cannot access the run
    /// directory. The load still needs a run directory.
    #[must_use]
    pub fn with_journal(self, journal: Arc<LiveJournal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Checks that there are enough source ports for the fresh connections to each address, in case this side closes
    /// every connection first.
    fn check_ports(&self) -> Result<(), PlanError> {
        let Some(ports) = self.all_ports() else { return Ok(()) };
        let addresses = self.plan.settings.source_addresses.len().max(1);
        let length = self.plan.known_length();
        // Number of turns per address; the addresses of a name share the turns of its targets.
        let mut turns = BTreeMap::<SocketAddr, f64>::new();
        for target in &self.plan.cycle {
            let remotes = self.routes[*target].remotes();
            for remote in &remotes {
                *turns.entry(*remote).or_default() += 1.0 / remotes.len() as f64;
            }
        }
        for (remote, turns) in turns {
            let per_s = self.plan.fresh_per_s() * turns / self.plan.cycle.len() as f64;
            let held = source_port_pool::held(remote.ip());
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

    /// Returns the number of source ports, over all source addresses; `None` if the kernel chooses.
    fn all_ports(&self) -> Option<usize> {
        let addresses = self.plan.settings.source_addresses.len().max(1);
        self.ports.as_ref().map(|ports| ports.len() * addresses)
    }

    /// Returns the warnings to show before the load starts.
    pub fn warnings(&self) -> Vec<String> {
        let Some((ports, own)) = self.all_ports().zip(self.ports.as_deref()) else { return Vec::new() };
        let before = self.told.or_else(|| PortMemory::of_here(own).read());
        let again = source_port_pool::used_again_after(
            self.plan.fresh_per_s(),
            self.plan.known_length(),
            ports,
            before,
        );
        let warning = |again: Duration| {
            format!(
                "the load reuses source ports after {:.0} s: there are only {ports}. For {:.0} s after an unanswered \
                 connection attempt, a new connection from the same port may reach the same dead pod \
                 (stale_flow). To avoid this, lower the rate, or add ports (net.ipv4.ip_local_port_range) or \
                 source addresses",
                again.as_secs_f64(),
                source_port_pool::ENTRY_LIFE.as_secs_f64(),
            )
        };
        again.map(warning).into_iter().collect()
    }

    /// Returns the source names of the load, one per worker.
    pub fn sources(&self) -> Vec<String> {
        self.plan.sources()
    }

    /// Starts the load immediately.
    ///
    /// # Errors
    /// Returns an error if a file cannot be created or a thread cannot be started.
    pub fn start(self, clock: Clock, run_dir: Option<&RunDir>) -> Result<RunningLoad> {
        let zero = clock.now() + LEAD;
        self.start_at(zero, clock, run_dir)
    }

    /// Starts the load so that its schedule begins at `zero`. Writes rows and the interval log to `run_dir`, if given;
    /// the caller writes events and run.json. Raises the process's open-file limit if the connections need it.
    ///
    /// # Errors
    /// Returns an error if a file cannot be created or a thread cannot be started.
    pub fn start_at(self, zero: Stamp, clock: Clock, run_dir: Option<&RunDir>) -> Result<RunningLoad> {
        let Self { plan, routes, names, ports, told, records, journal, listener } = self;
        let sources = plan.sources();
        let (mut tables, mut streams, mut log) = (Vec::new(), Vec::new(), None);
        if let Some(run_dir) = run_dir {
            for source in &sources {
                tables.push(run_dir.part_writer::<RequestRow>(source, clock)?);
                if plan.settings.stream.is_some() {
                    streams.push(StreamTable::create(run_dir.path(), source, clock)?);
                }
            }
            log = Some(LatencyLogFile::create(run_dir)?);
        }
        connection::allow_open(plan.max_connections);
        let walk = ports.map(|ports| PortWalk::begin(ports, &plan.settings.source_addresses, told));
        let control = Control::default();
        let (batches, received) = sync_channel(WAITING_BATCHES);
        let mut tasks = Vec::with_capacity(sources.len());
        for (worker, (source, number)) in sources.iter().zip(plan.own_workers()).enumerate() {
            tasks.push(Task {
                worker,
                context: ExchangeContext {
                    ports: walk.as_ref().map(|walk| walk.share(worker, sources.len())),
                    plan: plan.clone(),
                    clock,
                    source: source.as_str().into(),
                    endpoints: endpoints(&plan, number, &routes),
                    deadlines: Deadlines::new(clock),
                    buffers: Buffers::default(),
                    streams: OpenStreams::new(source.as_str().into(), plan.settings.stream.as_ref()),
                    poller: poller(&plan, clock).map_err(LoadError::Worker)?,
                    is_aborted: Cell::new(false),
                },
                feed: RequestFeed::new(&plan, number, plan.share.of, zero),
                max_connections: plan.part_of_connections(number),
                control: control.clone(),
                batches: batches.clone(),
            });
        }
        drop(batches);
        let run = LoadRun {
            names,
            clock,
            started: zero,
            planned: plan.own_requests(),
            walk,
            sources,
            tasks,
            received,
            files: RecorderOutputs { tables, streams, records, journal, listener },
            log,
        };
        run.begin(control)
    }
}

/// Returns the poller for a worker's streams, if its requests ask for streams and there is a poller for this system.
fn poller(plan: &Plan, clock: Clock) -> io::Result<Option<StreamPoller>> {
    match &plan.settings.stream {
        Some(stream) => StreamPoller::new(clock, stream.stall_timeout),
        None => Ok(None),
    }
}

/// Returns the source address and ports for connection attempts before the load.
fn attempts_from<'a>(settings: &Load, ports: &'a mut Option<Vec<u16>>) -> first_answer::From<'a> {
    first_answer::From {
        address: settings.source_addresses.first().copied(),
        ports: ports.as_mut(),
        left: settings.workers,
        response_timeout: settings.response_timeout(),
    }
}

/// Checks that `path` is a Unix socket.
fn is_socket(path: &Path) -> Result<()> {
    let why = match std::fs::metadata(path) {
        Ok(file) if file.file_type().is_socket() => return Ok(()),
        Ok(_) => "it is another kind of file".to_owned(),
        Err(e) => e.to_string(),
    };
    Err(LoadError::NoSocket { path: path.to_owned(), why })
}

/// Returns the TLS client for a target, if the target uses TLS.
fn client(plan: &Plan, target: &PlannedTarget) -> Option<client_tls::TlsClient> {
    plan.tls.as_ref().zip(target.tls_name.clone()).map(|(tls, name)| tls.client(name))
}

/// Returns the plan's targets as endpoints for worker number `worker`.
pub(super) fn endpoints(plan: &Plan, worker: usize, routes: &[TargetRoute]) -> Vec<TargetEndpoint> {
    let number = worker as u64;
    let ids = format!("{}-{}-", plan.run, load_plan::source_name(worker));
    let sender =
        SenderIdentity { ids, worker: number, workers: plan.share.of as u64, seed: plan.settings.seed };
    let endpoint = |(target, route): (&PlannedTarget, &TargetRoute)| TargetEndpoint {
        name: target.name.clone(),
        method: target.method.clone(),
        go_replays: !target.is_websocket
            && (retry::go_replays(target.method.as_str()) || target.has_idempotency_key()),
        walk: AddressCursor::new(route.clone(), worker),
        tls: client(plan, target),
        closing: Http1Template::new(target, &sender, Persistence::Close),
        keeping: Http1Template::new(target, &sender, Persistence::Keep),
        http: target.http,
        http2: (target.http != Http::Http1)
            .then(|| request::http2_template::Http2Template::new(target, &sender)),
        grpc: target.grpc.clone(),
        websocket: target.is_websocket.then(|| WebSocket::new(target, &sender)),
        answers: RefCell::default(),
    };
    plan.targets.iter().zip(routes).map(endpoint).collect()
}
