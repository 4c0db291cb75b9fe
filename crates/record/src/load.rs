//! The settings of a load, in one vocabulary for the command line, scenarios, the load generator's plan and `run.json`.
//!
//! Here are their names, their types, how they are written, their [`defaults`] and their [`limits`]. The load
//! generator turns them into a plan (`load::plan`); `run.json` holds them as [`LoadPlan`](super::run_info::LoadPlan).

mod addresses;
mod connect_to;
mod pace;
mod tls;
mod transport;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Evidence;
use super::names::named;
use super::row::POD_HEADER;
pub use addresses::{
    DnsSettings, Family, NotARange, NotAServer, PortRange, TIME_WAIT, UnknownFamily, dns_server, ephemeral_of,
};
pub use connect_to::{ConnectTo, NotAnOverride};
pub use pace::{Arrivals, Length, NotARate, NotAStage, Pace, Rate, Stage, UnknownArrivals};
pub use tls::{TlsSettings, TlsVersions, UnknownTlsVersions, WrittenTls};
pub use transport::{
    ConnectionMode, Connections, Grpc, Http, NotAMethod, NotConnections, Rpc, UnknownConnectionMode,
    UnknownHttp,
};

/// Defaults.
pub mod defaults {
    use std::time::Duration;

    /// Requests per second.
    pub const RATE: f64 = 200.0;
    /// Length of the counted part.
    pub const DURATION: Duration = Duration::from_secs(30);
    /// How long connecting may take.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
    /// How long the TLS handshake may take.
    pub const TLS_TIMEOUT: Duration = Duration::from_secs(2);
    /// How long the whole answer may take after sending.
    pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
    /// The request's method.
    pub const METHOD: &str = "GET";
    /// Statuses that count as success, both ends included.
    pub const SUCCESS: (u16, u16) = (200, 399);
    /// The gRPC status that counts as success.
    pub const GRPC_SUCCESS: i32 = 0;
    /// Worker threads.
    pub const WORKERS: usize = 1;
    /// The streams to an HTTP/2 connection: what HTTP/2 recommends to servers as the least (RFC 9113, 6.5.2).
    pub const STREAMS: usize = 100;
    /// The same in a closed loop.
    pub const CLOSED_LOOP_STREAMS: usize = 1;
    /// The connections of a closed loop.
    pub const CLOSED_LOOP_CONNECTIONS: usize = 50;
    /// The least limit on connections that is chosen for an open loop.
    pub const LEAST_CONNECTIONS: usize = 256;
    /// How long the pods that send a load may take to be ready.
    pub const START_LIMIT: Duration = Duration::from_secs(120);
    /// The resource requests of each of these pods.
    pub const LOAD_POD_RESOURCES: [(&str, &str); 2] = [("cpu", "500m"), ("memory", "256Mi")];
    /// The period over which `load.abort` takes the share of dropped requests.
    pub const ABORT_OVER: Duration = Duration::from_secs(10);
    /// The least number of requests in it.
    pub const ABORT_REQUESTS: u64 = 50;
}

/// Limits of settings.
pub mod limits {
    use std::ops::RangeInclusive;
    use std::time::Duration;

    /// The highest rate, in requests per second.
    pub const MAX_RATE: f64 = 1_000_000.0;
    /// The longest duration and timeout: a week.
    pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
    /// The most worker threads.
    pub const MAX_WORKERS: usize = 256;
    /// The most streams to a connection: those that HTTP/2 has numbers for.
    pub const MAX_STREAMS: usize = (1 << 30) - 1;
    /// The most retries.
    pub const MAX_RETRIES: u32 = 100;
    /// HTTP statuses.
    pub const STATUSES: RangeInclusive<u16> = 100..=599;
    /// The most pods that send a load.
    pub const MAX_LOAD_PODS: usize = 1000;
    /// The longest wait for them. They do not wait much longer for their orders.
    pub const MAX_START_LIMIT: Duration = Duration::from_secs(600);
    /// The shortest period of `load.abort`.
    pub const LEAST_ABORT_OVER: Duration = Duration::from_secs(1);
}

/// The response headers that are always kept for requests that are not ok: gateways are recognised by them.
const KEEP_HEADERS: [&str; 3] = ["server", "via", "x-envoy-*"];

/// A duration as options and scenarios have it: a number with its unit, such as `250ms`, `30s` or `1m30s`; `None` where
/// the text is something else.
pub fn duration(text: &str) -> Option<Duration> {
    Duration::try_from(text.parse::<jiff::SignedDuration>().ok()?).ok()
}

/// A duration as it is written in an option or a scenario.
pub fn in_units(duration: Duration) -> String {
    if duration.is_zero() { "0s".to_owned() } else { format!("{duration:?}") }
}

/// Statuses as they are written: one, or a range such as `200-399`; `None` where they are written otherwise.
pub fn statuses(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
}

/// Whether this is a range of HTTP statuses.
pub fn are_statuses((from, to): (u16, u16)) -> bool {
    from <= to && limits::STATUSES.contains(&from) && limits::STATUSES.contains(&to)
}

named! {
    /// Where a load is sent from.
    pub enum LoadFrom else UnknownLoadFrom "{0:?} is neither local nor cluster" {
        /// From the machine that runs the program.
        Local = "local",
        /// From pods of the cluster.
        Cluster = "cluster",
    }
}

/// The response headers that are kept where these are asked for.
pub fn keep_headers(further: &[String]) -> Vec<String> {
    KEEP_HEADERS.iter().map(|name| (*name).to_owned()).chain(further.iter().cloned()).collect()
}

/// Something to send requests to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The name in the rows' `target` column.
    pub name: String,
    /// `http://host[:port][/path][?query]`, or `https://`.
    pub url: String,
    /// Its share of the requests: this, of the sum of all targets' weights.
    pub weight: u32,
    /// Its own method, if it has one.
    pub method: Option<String>,
    /// Its own headers, which override those of the same name that all requests have.
    pub headers: Vec<(String, String)>,
    /// Its own body.
    pub body: Option<Vec<u8>>,
}

impl Target {
    /// A target without own method, headers or body.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        let (name, url) = (name.into(), url.into());
        Self { name, url, weight: 1, method: None, headers: Vec::new(), body: None }
    }
}

/// Settings as a user gives them; the load generator's plan checks them. A scenario has no targets here until the cluster
/// has said where they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Where requests go: to each in turn, as often as its weight says.
    pub targets: Vec<Target>,
    /// How fast they leave, over all targets and workers.
    pub pace: Pace,
    /// How they are spread over the rates of an open loop.
    pub arrivals: Arrivals,
    /// The seed of all random choices.
    pub seed: u64,
    /// Length of the warm-up before it, which is recorded but not counted.
    pub warmup: Duration,
    /// Which HTTP they speak.
    pub http: Http,
    /// Whether they are calls of a gRPC method; the body is then the message.
    pub grpc: Option<Grpc>,
    /// Which connections carry the requests.
    pub connections: Connections,
    /// The most connections open at a time; `None` for as many as the rate can
    /// keep open when every request runs into its timeouts.
    pub max_connections: Option<usize>,
    /// The most requests that an HTTP/2 connection carries at a time, as far as the server allows;
    /// `None` for 100, or 1 in a closed loop.
    pub streams: Option<usize>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the TLS handshake may take.
    pub tls_timeout: Duration,
    /// How long the first byte of the answer may take, from the moment of sending; `None` for as
    /// long as the whole answer.
    pub first_byte_timeout: Option<Duration>,
    /// How long the answer may take, from the moment of sending to the end of the body.
    pub response_timeout: Duration,
    /// The request's method.
    pub method: String,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// The request's body; none is sent when it is empty.
    pub body: Vec<u8>,
    /// Whether URLs, header values and bodies have placeholders (`template`).
    pub template: bool,
    /// Where to connect instead of where the URLs say; the first that fits counts.
    pub connect_to: Vec<ConnectTo>,
    /// The Unix socket to connect to, whatever the URLs say.
    pub unix_socket: Option<PathBuf>,
    /// How names are looked up.
    pub dns: DnsSettings,
    /// TLS, for URLs that ask for it.
    pub tls: TlsSettings,
    /// The most requests that a connection carries; `None` for any number.
    pub max_requests: Option<u64>,
    /// The age after which a connection carries no further request; `None` for any age.
    pub max_age: Option<Duration>,
    /// How often a request that failed is sent again. The row keeps the first outcome.
    pub retries: u32,
    /// Time from a failure to the next attempt.
    pub retry_delay: Duration,
    /// The response header that names the pod.
    pub pod_header: String,
    /// The regular expression by which bodies name it, where that header does not.
    pub pod_body: Option<String>,
    /// Response headers that are kept of requests that are not ok; a name may end in `*`.
    pub keep_headers: Vec<String>,
    /// Statuses that count as success, as inclusive ranges.
    pub success: Vec<(u16, u16)>,
    /// Worker threads.
    pub workers: usize,
    /// How long before a request's time its worker stops sleeping and watches the clock.
    pub spin: Duration,
    /// The ports that connections come from; `None` for the system's ephemeral ports.
    pub source_ports: Option<PortRange>,
    /// The addresses that connections come from, which the workers take in turn; none to let
    /// the system choose.
    pub source_addresses: Vec<IpAddr>,
    /// Whether a source port may be used again before the system has forgotten its last connection.
    pub reuse_ports: bool,
    /// Further evidence of where connections went.
    pub evidence: Option<Evidence>,
}

impl Settings {
    /// The default load on one target, whose name is its URL.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self { targets: vec![Target::new(url.as_str(), url.as_str())], ..Self::default() }
    }

    /// Fresh connections a second at the highest rate, as far as they are planned: those of a closed loop are not.
    pub fn fresh_per_s(&self) -> f64 {
        let rate = self.pace.peak_rate();
        match self.connections {
            Connections::Fresh => rate,
            Connections::Keepalive => 0.0,
            Connections::Mixed(share) => rate * share,
        }
    }
}

/// The default load, on no target: GET requests on fresh connections.
impl Default for Settings {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            pace: Pace::constant(defaults::RATE, defaults::DURATION),
            arrivals: Arrivals::Even,
            seed: 0,
            warmup: Duration::ZERO,
            http: Http::Auto,
            grpc: None,
            connections: Connections::Fresh,
            max_connections: None,
            streams: None,
            connect_timeout: defaults::CONNECT_TIMEOUT,
            tls_timeout: defaults::TLS_TIMEOUT,
            first_byte_timeout: None,
            response_timeout: defaults::RESPONSE_TIMEOUT,
            method: defaults::METHOD.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            template: false,
            connect_to: Vec::new(),
            unix_socket: None,
            dns: DnsSettings::default(),
            tls: TlsSettings::default(),
            max_requests: None,
            max_age: None,
            retries: 0,
            retry_delay: Duration::ZERO,
            pod_header: POD_HEADER.to_owned(),
            pod_body: None,
            keep_headers: keep_headers(&[]),
            success: vec![defaults::SUCCESS],
            workers: defaults::WORKERS,
            spin: Duration::ZERO,
            source_ports: None,
            source_addresses: Vec::new(),
            reuse_ports: false,
            evidence: None,
        }
    }
}
