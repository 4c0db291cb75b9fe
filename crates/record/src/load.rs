//! The settings of a load, in one vocabulary for the command line, scenarios, the load generator's plan and
//! `run.json`.
//!
//! [`Load`] has them all. serde reads it from a scenario, group by group, and from the orders of a load worker. This
//! module has their [`defaults`], their [`limits`] and what is checked of them (`check`), and [`LoadPlan`], which
//! `run.json` has of them. The load generator turns them into a plan (`load::plan`).

mod addresses;
mod check;
mod connect_to;
mod connections;
mod pace;
mod timeouts;
mod tls;
mod transport;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::row::POD_HEADER;
use super::{Evidence, Secret};
pub use crate::units::{duration, in_units};
pub use addresses::{
    DnsSettings, Family, NotARange, NotAServer, PortRange, TIME_WAIT, UnknownFamily, dns_server, ephemeral_of,
};
pub use check::NotALoad;
pub use connect_to::{ConnectTo, NotAnOverride};
pub use connections::{ConnectionMode, Connections, NotConnections, UnknownConnectionMode};
pub use pace::{
    Arrivals, Length, NotARate, NotAStage, Pace, Pacing, Rate, Stage, UnknownArrivals, UnknownPacing,
};
pub use timeouts::{Retry, Timeouts};
pub use tls::{TlsSettings, TlsVersions, UnknownTlsVersions, WrittenTls};
pub use transport::{Grpc, Http, NotAMethod, Rpc, UnknownHttp};
pub use written::LoadPlan;

/// Default values of settings.
pub mod defaults {
    use std::time::Duration;

    /// Requests per second.
    pub const RATE: f64 = 200.0;
    /// Length of the counted part.
    pub const DURATION: Duration = Duration::from_secs(30);
    /// Maximum time to connect.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
    /// Maximum time for the TLS handshake.
    pub const TLS_TIMEOUT: Duration = Duration::from_secs(2);
    /// Maximum time for the whole answer, counted from sending the request.
    pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
    /// Method of the requests.
    pub const METHOD: &str = "GET";
    /// Statuses that count as success, both ends included.
    pub const SUCCESS: (u16, u16) = (200, 399);
    /// The gRPC status that counts as success.
    pub const GRPC_SUCCESS: i32 = 0;
    /// Number of worker threads.
    pub const WORKERS: usize = 1;
    /// Streams per HTTP/2 connection: the minimum that HTTP/2 recommends to servers (RFC 9113, 6.5.2).
    pub const STREAMS: usize = 100;
    /// Streams per HTTP/2 connection in a closed loop.
    pub const CLOSED_LOOP_STREAMS: usize = 1;
    /// Connections of a closed loop.
    pub const CLOSED_LOOP_CONNECTIONS: usize = 50;
    /// Smallest limit on connections that is chosen automatically for an open loop.
    pub const LEAST_CONNECTIONS: usize = 256;
    /// Maximum time for the pods that send a load to become ready.
    pub const START_LIMIT: Duration = Duration::from_secs(120);
    /// Resource requests of each of these pods.
    pub const LOAD_POD_RESOURCES: [(&str, &str); 2] = [("cpu", "500m"), ("memory", "256Mi")];
    /// Period over which `load.abort` computes the share of dropped requests.
    pub const ABORT_OVER: Duration = Duration::from_secs(10);
    /// Minimum number of requests in that period.
    pub const ABORT_REQUESTS: u64 = 50;
}

/// Limits of settings.
pub mod limits {
    use std::ops::RangeInclusive;
    use std::time::Duration;

    /// Highest rate, in requests per second.
    pub const MAX_RATE: f64 = 1_000_000.0;
    /// Maximum of durations and timeouts: a week.
    pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
    /// Maximum number of worker threads.
    pub const MAX_WORKERS: usize = 256;
    /// Maximum number of streams per connection: as many as HTTP/2 has numbers for.
    pub const MAX_STREAMS: usize = (1 << 30) - 1;
    /// Maximum number of retries.
    pub const MAX_RETRIES: u32 = 100;
    /// Valid HTTP statuses.
    pub const STATUSES: RangeInclusive<u16> = 100..=599;
    /// Maximum number of pods that send a load.
    pub const MAX_LOAD_PODS: usize = 1000;
    /// Maximum time to wait for these pods. They wait only a little longer for their instructions.
    pub const MAX_START_LIMIT: Duration = Duration::from_secs(600);
    /// Shortest period of `load.abort`.
    pub const LEAST_ABORT_OVER: Duration = Duration::from_secs(1);
}

/// Response headers that are always kept for requests that are not `ok`, because they identify gateways.
const KEEP_HEADERS: [&str; 3] = ["server", "via", "x-envoy-*"];

/// Parses statuses: a single one, or a range such as `200-399`. Returns `None` for any other text.
pub fn statuses(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
}

/// Returns true if this is a valid range of HTTP statuses.
pub fn are_statuses((from, to): (u16, u16)) -> bool {
    from <= to && limits::STATUSES.contains(&from) && limits::STATUSES.contains(&to)
}

named! {
    /// Place that a load is sent from.
    pub enum LoadFrom else UnknownLoadFrom "{0:?} is neither local nor cluster" {
        /// The machine that runs the program.
        Local = "local",
        /// Pods of the cluster.
        Cluster = "cluster",
    }
}

/// Returns the response headers to keep: those that are always kept, and the `further` ones.
pub fn keep_headers(further: &[String]) -> Vec<String> {
    KEEP_HEADERS.iter().map(|name| (*name).to_owned()).chain(further.iter().cloned()).collect()
}

/// A destination of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadTarget {
    /// Name used in the rows' `target` column.
    pub name: String,
    /// `http://host[:port][/path][?query]`, or `https://`.
    pub url: String,
    /// Weight of the target: its share of the requests is its weight divided by the sum of all targets' weights.
    pub weight: u32,
    /// Method of its requests; `None` for the method that all requests have.
    pub method: Option<String>,
    /// Headers of its requests, which override headers of the same name that all requests have.
    pub headers: Vec<(String, Secret)>,
    /// Body of its requests; `None` for the body that all requests have.
    pub body: Option<Vec<u8>>,
}

impl LoadTarget {
    /// Makes a target without its own method, headers or body.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        let (name, url) = (name.into(), url.into());
        Self { name, url, weight: 1, method: None, headers: Vec::new(), body: None }
    }
}

/// The settings of a load, as a user gives them; [`Load::check`] tells whether they can be carried out. A scenario's
/// settings have no targets until the cluster has provided the addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Targets of the requests. Each gets requests in turn, in proportion to its weight.
    pub targets: Vec<LoadTarget>,
    /// Pace of the requests, over all targets and workers.
    pub pace: Pace,
    /// Distribution of the requests over the rates of an open loop.
    pub arrivals: Arrivals,
    /// Seed of all random choices.
    pub seed: u64,
    /// Length of the warm-up before the counted part, which is recorded but not counted.
    pub warmup: Duration,
    /// HTTP version to speak.
    pub http: Http,
    /// gRPC method to call, with the body as its message; `None` for plain HTTP requests.
    pub grpc: Option<Grpc>,
    /// Connections that carry the requests.
    pub connections: Connections,
    /// Maximum times that the parts of a request may take.
    pub timeout: Timeouts,
    /// Method of the requests.
    pub method: String,
    /// Further request headers.
    pub headers: Vec<(String, Secret)>,
    /// Body of the requests; an empty one is not sent.
    pub body: Vec<u8>,
    /// True if URLs, header values and bodies contain placeholders (`template`).
    pub template: bool,
    /// Overrides of the addresses that the URLs would connect to; the first that matches applies.
    pub connect_to: Vec<ConnectTo>,
    /// Unix socket to connect to, whatever the URLs say.
    pub unix_socket: Option<PathBuf>,
    /// Settings of name lookup.
    pub dns: DnsSettings,
    /// TLS settings, for `https` URLs.
    pub tls: TlsSettings,
    /// Retries of a failed request.
    pub retry: Retry,
    /// Response header that names the pod.
    pub pod_header: String,
    /// Regular expression that finds the pod's name in bodies, if that header does not name it.
    pub pod_body: Option<String>,
    /// Response headers that are kept for requests that are not `ok`; a name may end in `*`.
    pub keep_headers: Vec<String>,
    /// Statuses that count as success, as inclusive ranges.
    pub success: Vec<(u16, u16)>,
    /// Number of worker threads.
    pub workers: usize,
    /// Time before a request is due from which its worker stops sleeping and polls the clock.
    pub spin: Duration,
    /// Ports that connections come from; `None` for the system's ephemeral ports.
    pub source_ports: Option<PortRange>,
    /// Addresses that connections come from, used by the workers in turn; empty to let the system choose.
    pub source_addresses: Vec<IpAddr>,
    /// True if a source port may be reused before the system has forgotten the last connection from it.
    pub reuse_ports: bool,
    /// Further evidence about where connections went.
    pub evidence: Option<Evidence>,
}

impl Load {
    /// Makes the default load on one target, named by its URL.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self { targets: vec![LoadTarget::new(url.as_str(), url.as_str())], ..Self::default() }
    }

    /// Returns the number of fresh connections per second at the highest rate. Those of a closed loop are not
    /// planned, so it has 0 of them.
    pub fn fresh_per_s(&self) -> f64 {
        self.pace.peak_rate() * self.connections.fresh_share()
    }

    /// Returns the maximum number of connections open at a time; by default as many as the rate keeps open when every
    /// request runs into both timeouts.
    pub fn max_connections(&self) -> usize {
        if let Some(max) = self.connections.max {
            return max;
        }
        if self.pace.is_closed() {
            return defaults::CLOSED_LOOP_CONNECTIONS.max(self.workers);
        }
        let tls = if self.is_secure() { self.timeout.tls } else { Duration::ZERO };
        let held_s = (self.timeout.connect + tls + self.timeout.response).as_secs_f64();
        let connections = (self.pace.peak_rate() * held_s).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and the cast saturates"
        )]
        let connections = connections as usize;
        connections.max(defaults::LEAST_CONNECTIONS).max(self.workers)
    }

    /// Returns the maximum number of requests that an HTTP/2 connection carries at a time.
    pub fn max_concurrent_streams(&self) -> usize {
        let default = if self.pace.is_closed() { defaults::CLOSED_LOOP_STREAMS } else { defaults::STREAMS };
        self.connections.max_concurrent_streams.unwrap_or(default)
    }

    /// Returns the HTTP version of the requests, unless TLS negotiates it: gRPC needs HTTP/2. With WebSocket targets,
    /// which begin with HTTP/1.1, all targets use that version.
    pub fn spoken(&self) -> Http {
        match self.http {
            Http::Auto if self.grpc.is_some() => Http::Http2,
            Http::Auto if self.has_scheme(&["ws:", "wss:"]) => Http::Http1,
            Http::Auto if !self.has_scheme(&["https:"]) => Http::Http1,
            http => http,
        }
    }

    /// Returns true if a target uses TLS.
    pub fn is_secure(&self) -> bool {
        self.has_scheme(&["https:", "wss:"])
    }

    fn has_scheme(&self, schemes: &[&str]) -> bool {
        let begins = |url: &str, scheme: &str| {
            url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
        };
        self.targets.iter().any(|target| schemes.iter().any(|scheme| begins(&target.url, scheme)))
    }

    /// Returns the HTTP method of the requests to a target.
    pub fn method_of<'a>(&'a self, target: &'a LoadTarget) -> &'a str {
        match self.grpc {
            Some(_) => "POST",
            None => target.method.as_deref().unwrap_or(&self.method),
        }
    }

    /// Returns the names of the headers of all requests.
    fn header_names(&self) -> impl Iterator<Item = &str> {
        let own = self.targets.iter().flat_map(|target| &target.headers);
        self.headers.iter().chain(own).map(|(name, _)| &**name)
    }

    /// Returns the methods of each target. Several methods under one name are joined; no client is known to replay
    /// that.
    fn methods(&self) -> BTreeMap<String, String> {
        let mut methods = BTreeMap::<&str, BTreeSet<&str>>::new();
        for target in &self.targets {
            methods.entry(&target.name).or_default().insert(self.method_of(target));
        }
        let joined = |(name, methods): (&str, BTreeSet<&str>)| {
            (name.to_owned(), methods.into_iter().collect::<Vec<_>>().join(", "))
        };
        methods.into_iter().map(joined).collect()
    }
}

/// The default load, without a target: GET requests on fresh connections.
impl Default for Load {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            pace: Pace::constant(defaults::RATE, defaults::DURATION),
            arrivals: Arrivals::Even,
            seed: 0,
            warmup: Duration::ZERO,
            http: Http::Auto,
            grpc: None,
            connections: Connections::FRESH,
            timeout: Timeouts::default(),
            method: defaults::METHOD.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            template: false,
            connect_to: Vec::new(),
            unix_socket: None,
            dns: DnsSettings::default(),
            tls: TlsSettings::default(),
            retry: Retry::default(),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn load() -> Load {
        Load {
            headers: vec![("Authorization".into(), "hush".into())],
            tls: TlsSettings {
                key_pem: Some("hush".into()),
                versions: TlsVersions::Only13,
                ..TlsSettings::default()
            },
            dns: DnsSettings { servers: vec![dns_server("[::1]").unwrap()], family: Family::Ipv6 },
            connections: Connections {
                max: Some(5),
                max_age: Some(Duration::from_micros(1_500_001)),
                ..Connections::mixed(0.5)
            },
            timeout: Timeouts { first_byte: Some(Duration::from_millis(20)), ..Timeouts::default() },
            retry: Retry { times: 2, delay: Duration::from_nanos(7) },
            grpc: Some(Grpc::new("a.B/c".parse().unwrap())),
            connect_to: vec!["web:80:127.0.0.1:8080".parse().unwrap()],
            source_ports: Some(PortRange::OF_LINUX),
            ..Load::new("https://web/")
        }
    }

    #[test]
    fn load_round_trips_through_json() {
        for load in [load(), Load::new("http://web/")] {
            let json = serde_json::to_string(&load).unwrap();
            assert_eq!(serde_json::from_str::<Load>(&json).unwrap(), load, "{json}");
        }
    }

    #[test]
    fn settings_are_written_as_in_scenarios() {
        let json = serde_json::to_value(load()).unwrap();
        let connections = json!({"mode": "mixed", "share": 0.5, "max": 5, "maxAge": "1.500001s"});
        assert_eq!(json["connections"], connections);
        assert_eq!(json["dns"], json!({"servers": ["[::1]:53"], "family": "ipv6"}));
        assert_eq!(json["retry"], json!({"times": 2, "delay": "7ns"}));
    }

    #[test]
    fn secrets_are_never_printed() {
        let printed = format!("{:?}", load());
        assert!(printed.contains("Authorization") && !printed.contains("hush"), "{printed}");
    }
}
