//! The recording reverse proxy. As a native sidecar, it records the end of every request in relation to the pod's
//! termination. [`inject`] puts it into manifests.
//!
//! It changes nothing that a client can see, with one exception: where the app's closed listener would have refused a
//! connection, the proxy has already accepted it, so the client is reset before the first byte. Each client connection
//! has one connection to the app, opened on accept. A client that connects and sends nothing has a connection number
//! but no row.
//!
//! HTTP/1.0 and HTTP/1.1, including upgrades, and HTTP/2 with prior knowledge are recorded by request; TLS, other
//! protocols, and everything in [`TrafficMode::Tcp`], by connection. In HTTP/1, the proxy itself rejects CONNECT, other
//! versions, heads over 1 MiB or 16,384 lines, and requests whose end is ambiguous. It responds with a 4xx or 5xx, and
//! counts these requests as rejected.
//!
//! `data_port` accepts connections, and closes idle ones when there are too many. `proxied_connection` handles one client
//! connection from accept to close (`origin` creates its rows, `sides` has its state). `h1`, `h2` and `tunnel`
//! implement the protocols, and `relay` has the code that they share. `budget` limits the memory that connections may
//! hold, and `socket` the memory that the kernel may hold for them. `journal` keeps the recorded rows, `admin` sends
//! them to readers, `metrics` counts requests, `app` observes the app, `own_pod` watches the pod, and `pre_stop_mark`
//! learns from the preStop hook that the pod is terminating. The crate writes no files. The caller decides how the pod
//! is terminated, and which signal announces the termination.

mod admin;
mod app;
mod app_listener;
mod budget;
mod data_port;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod h1;
mod h2;
pub mod inject;
mod journal;
mod metrics;
pub mod observed;
mod origin;
mod own_pod;
#[cfg(target_os = "linux")]
mod pre_stop_mark;
#[cfg(not(target_os = "linux"))]
#[path = "pre_stop_mark/elsewhere.rs"]
mod pre_stop_mark;
mod proxied_connection;
mod refusal;
mod relay;
mod sides;
mod socket;
#[cfg(test)]
mod tests;
mod tunnel;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use self::admin::Access;
use self::app::AppListener;
pub use self::budget::Budget;
use self::budget::BytePool;
use self::data_port::DataPort;
use self::journal::RowJournal;
pub use self::metrics::ProxyCounts;
pub use self::own_pod::WatchPod;
use self::pre_stop_mark::PreStopSocket;
pub use self::pre_stop_mark::{PreStopError, mark_pre_stop};
use self::proxied_connection::KnownConnections;
use rolldrop_record::event::ProxyPhase;
use rolldrop_record::row_values::POD_HEADER;
use rolldrop_record::{Clock, Stamp};
use rolldrop_wire::http2::hpack;

/// Requested length of the accept queue; the kernel caps it.
const BACKLOG: u32 = 4096;
/// Maximum duration of the drain. A sidecar can count on only 2 s between SIGTERM and SIGKILL, and the hand-over
/// follows the drain.
const DRAIN_LIMIT: Duration = Duration::from_millis(1500);
/// Maximum duration of the hand-over of rows after the drain.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(400);

/// Settings of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Kind of traffic on the connections.
    pub mode: TrafficMode,
    /// Address that clients connect to.
    pub listen: SocketAddr,
    /// Further such addresses, such as the other one of a dual-stack pod.
    pub also_listen: Vec<SocketAddr>,
    /// Address that the app listens on.
    pub upstream: SocketAddr,
    /// Address that the admin port listens on.
    pub admin: SocketAddr,
    /// Name of the pod, which is also the proxy's source name.
    pub pod: String,
    /// Presence of the pod header in responses.
    pub pod_header: PodHeader,
    /// Path that readiness checks request from the app; without a path, an accepted connection suffices.
    pub app_ready_path: Option<String>,
    /// Readers that the admin port serves.
    pub admin_access: Access,
    /// Setting for watching the proxy's own pod.
    pub watch_pod: WatchPod,
    /// Time for which the proxy keeps accepting connections after the app is gone, to record late ones.
    pub linger: Duration,
    /// Limits on the resources that peers can make the proxy hold.
    pub budget: Budget,
}

#[cfg(any(test, fuzzing))]
impl ProxyConfig {
    /// Returns settings for tests: free local ports, the given app, and no optional features.
    fn bare(upstream: SocketAddr) -> Self {
        let free = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        Self {
            mode: TrafficMode::Http,
            listen: free,
            also_listen: Vec::new(),
            upstream,
            admin: free,
            pod: "web-1".to_owned(),
            pod_header: PodHeader::Added,
            app_ready_path: None,
            admin_access: Access::Everybody,
            watch_pod: WatchPod::Off,
            linger: Duration::ZERO,
            budget: Budget { rows: 1000, unanswered_rows: 500, ..Budget::DEFAULT },
        }
    }
}

/// Kind of traffic on a proxy's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficMode {
    /// HTTP, TLS or another protocol, determined from the first bytes.
    #[default]
    Http,
    /// Anything: connections are recorded, not requests.
    Tcp,
}

/// Presence of the `rolldrop-pod` header in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodHeader {
    /// Every final response names the pod.
    Added,
    /// Responses are passed on byte for byte.
    Omitted,
}

/// Failure to set up a proxy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ProxyError {
    /// Listening on a port failed.
    #[error("failed to listen on {address} ({role} port)")]
    Listen { role: &'static str, address: SocketAddr, source: io::Error },
    /// The pod's name contains characters that are not allowed in a header value.
    #[error("pod name {0:?} is not a DNS name")]
    PodName(String),
}

/// A proxy whose ports are already bound, so clients can connect before it runs.
#[derive(Debug)]
pub struct Proxy {
    data: Vec<TcpListener>,
    data_addr: SocketAddr,
    admin: TcpListener,
    admin_addr: SocketAddr,
    admin_settings: admin::AdminSettings,
    /// `None` if the name is already taken.
    mark: Option<PreStopSocket>,
    watch_pod: WatchPod,
    linger: Duration,
    shared: Arc<ProxyState>,
}

/// A proxy's totals over its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyReport {
    /// Client connections accepted.
    pub connections: u64,
    /// Counts of requests and rows, by outcome.
    pub counts: ProxyCounts,
}

/// State shared by all tasks of a proxy.
#[derive(Debug)]
struct ProxyState {
    mode: TrafficMode,
    listen: SocketAddr,
    upstream: SocketAddr,
    /// True if the upstream's listener is in this network namespace. Otherwise, as with a Service's address, nothing is
    /// known about it.
    has_local_app: bool,
    pod: Arc<str>,
    /// Header to add to responses; `None` to leave responses unchanged.
    pod_header: Option<PodHeaderBytes>,
    budget: Budget,
    pool: BytePool,
    /// Pool for the bytes held by the kernel.
    sockets: BytePool,
    /// Tick counter; runs while connections may have to make room.
    ticks: AtomicU32,
    clock: Clock,
    /// Start time, which distinguishes this proxy from an earlier one in the same pod.
    started: Stamp,
    journal: RowJournal,
    app: AppListener,
    known: KnownConnections,
    in_flight: InFlight,
    /// Connections whose protocol is not yet known.
    pending: ConnectionTokens,
    /// Client connections.
    open: ConnectionTokens,
    /// Rate limit for log messages about a lack of descriptors or an unreachable app.
    troubles: Seldom,
    /// Cancelled at the first sign of the pod's termination.
    ending: CancellationToken,
}

/// The header that names the pod, encoded for both protocols.
#[derive(Debug)]
struct PodHeaderBytes {
    line: Box<[u8]>,
    field: Box<[u8]>,
}

impl PodHeaderBytes {
    fn of(pod: &str) -> Self {
        let line = format!("{POD_HEADER}: {pod}\r\n").into_bytes().into();
        Self { line, field: hpack::literal(POD_HEADER, pod).into() }
    }
}

/// Number of requests in flight.
#[derive(Debug, Default)]
struct InFlight(AtomicUsize);

impl InFlight {
    fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Rate limit of one log message per second.
#[derive(Debug, Default)]
struct Seldom {
    silent_until_ns: AtomicI64,
    unsaid: AtomicU64,
}

impl Seldom {
    const PAUSE_NS: i64 = 1_000_000_000;

    /// If this message may be logged, returns the number of messages suppressed since the last one; otherwise `None`.
    fn speaks(&self, now: Stamp) -> Option<u64> {
        let now_ns = now.unix_ns();
        let silent_until_ns = self.silent_until_ns.load(Ordering::Relaxed);
        let next_ns = now_ns.saturating_add(Self::PAUSE_NS);
        let (relaxed, until) = (Ordering::Relaxed, &self.silent_until_ns);
        if now_ns < silent_until_ns
            || until.compare_exchange(silent_until_ns, next_ns, relaxed, relaxed).is_err()
        {
            self.unsaid.fetch_add(1, relaxed);
            return None;
        }
        Some(self.unsaid.swap(0, relaxed))
    }
}

/// Token that counts connections; each connection holds a copy.
#[derive(Debug, Default)]
struct ConnectionTokens(Arc<()>);

impl ConnectionTokens {
    fn take(&self) -> Arc<()> {
        self.0.clone()
    }

    fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl ProxyState {
    fn new(config: &ProxyConfig, clock: Clock) -> Self {
        Self {
            mode: config.mode,
            listen: config.listen,
            upstream: config.upstream,
            has_local_app: app_listener::is_local(config.upstream.ip()),
            pod: config.pod.as_str().into(),
            pod_header: (config.pod_header == PodHeader::Added).then(|| PodHeaderBytes::of(&config.pod)),
            budget: config.budget,
            pool: BytePool::new(config.budget.held_bytes),
            sockets: BytePool::new(config.budget.socket_bytes),
            ticks: AtomicU32::default(),
            clock,
            started: clock.now(),
            journal: RowJournal::new(&config.budget),
            app: AppListener::default(),
            known: KnownConnections::default(),
            in_flight: InFlight::default(),
            pending: ConnectionTokens::default(),
            open: ConnectionTokens::default(),
            troubles: Seldom::default(),
            ending: CancellationToken::new(),
        }
    }

    /// Logs a failure, at most once per second.
    fn trouble(&self, what: &str, error: &io::Error) {
        if let Some(unsaid) = self.troubles.speaks(self.clock.now()) {
            tracing::warn!(%error, unsaid, "{what}");
        }
    }
}

impl Proxy {
    /// Binds both ports. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// Fails if the proxy cannot listen on a port, or if the pod's name contains characters that are not allowed in a
    /// header value.
    pub fn bind(config: ProxyConfig, clock: Clock) -> Result<Self, ProxyError> {
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if config.pod.is_empty() || !config.pod.bytes().all(good) {
            return Err(ProxyError::PodName(config.pod));
        }
        let (first, data_addr) = listen("data", config.listen)?;
        let mut data = vec![first];
        for address in &config.also_listen {
            data.push(listen("data", *address)?.0);
        }
        data.iter().for_each(socket::prepare);
        let (admin, admin_addr) = listen("admin", config.admin)?;
        // Without the socket, one stage of the pod's termination is not recorded, but the proxy can still serve.
        let mark = PreStopSocket::bind(admin_addr)
            .inspect_err(|error| tracing::warn!(%error, "failed to listen for the preStop hook"))
            .ok();
        let config = ProxyConfig { listen: data_addr, ..config };
        Ok(Self {
            data,
            data_addr,
            admin,
            admin_addr,
            mark,
            shared: Arc::new(ProxyState::new(&config, clock)),
            admin_settings: admin::AdminSettings {
                app_ready_path: config.app_ready_path.map(Arc::from),
                access: config.admin_access,
                limits: admin::AdminLimits::default(),
            },
            watch_pod: config.watch_pod,
            linger: config.linger,
        })
    }

    /// Returns the first address of the data port.
    pub fn local_addr(&self) -> SocketAddr {
        self.data_addr
    }

    /// Returns the address of the admin port.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// Serves until `stop`, then drains, hands over the rows and returns, all within 2 s. `hurry`, awaited after
    /// `stop`, cuts the drain short.
    pub async fn run(
        self,
        stop: impl Future<Output = ()> + Send,
        hurry: impl Future<Output = ()> + Send,
    ) -> ProxyReport {
        let Proxy { data, admin, admin_settings, mark, watch_pod, linger, shared, .. } = self;
        let mut data_port = DataPort::new(data, shared.clone());
        let mut admin_task = JoinSet::new();
        admin_task.spawn(admin::serve(admin, shared.clone(), admin_settings));
        let mut watches = JoinSet::new();
        watches.spawn({
            let shared = shared.clone();
            async move {
                shared.ending.cancelled().await;
                shared.watch_listener_close().await;
            }
        });
        if let Some(mark) = mark {
            watches.spawn(mark.serve(shared.clone()));
        }
        if watch_pod == WatchPod::Auto {
            let shared = shared.clone();
            watches.spawn(async move {
                if let Some(client) = own_pod::client().await {
                    own_pod::watch(client, shared).await;
                }
            });
        }

        data_port.accept_until(stop).await;
        // An app that has exited closed its listener before this signal arrived.
        shared.look_for_listener();
        shared.journal.phase(ProxyPhase::Sigterm, shared.clock.now());
        shared.ending.cancel();
        let deadline = Instant::now() + DRAIN_LIMIT;
        let limit = async {
            let _ = tokio::time::timeout_at(deadline, hurry).await;
        };
        data_port.drain(limit, linger).await;
        watches.shutdown().await;

        shared.journal.phase_at(ProxyPhase::LastConnection, data_port.last_accepted);
        shared.journal.phase_at(ProxyPhase::LastRequest, shared.journal.last_request());
        shared.journal.phase(ProxyPhase::Exit, shared.clock.now());
        shared.journal.close();
        if timeout(HAND_OVER_LIMIT, admin_task.join_next()).await.is_err() {
            tracing::warn!("the row reader did not receive all rows in time");
        }
        admin_task.shutdown().await;
        ProxyReport { connections: data_port.accepted, counts: shared.journal.counts() }
    }
}

/// Checks a finished task. Relays do not fail, so anything but an abort is a bug.
fn reap(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}

fn listen(role: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), ProxyError> {
    let bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket::keep_alive(&socket);
        let listener = socket.listen(BACKLOG)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    bind().map_err(|source| ProxyError::Listen { role, address, source })
}
