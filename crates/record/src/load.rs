//! The settings of a load, in one vocabulary for the command line, scenarios, the load generator's plan and
//! `run.json`.
//!
//! [`Load`] holds all settings. serde reads them from a scenario, group by group, and from a load worker's orders. This
//! module also contains the [`defaults`], the [`limits`], the validation (`check`), and [`LoadPlan`], the form stored
//! in `run.json`. The load generator turns the settings into a plan (`load::load_plan`).

mod addresses;
mod check;
mod connect_to;
mod connections;
mod pace;
mod streaming;
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
use super::row_values::POD_HEADER;
use super::{Evidence, Secret};
pub use crate::units::{duration, in_units};
pub use addresses::{
    DnsSettings, Family, NotARange, NotAServer, PortRange, TIME_WAIT, UnknownFamily, dns_server, ephemeral_of,
};
pub use check::NotALoad;
pub use connect_to::{ConnectTo, NotAnOverride};
pub use connections::{ConnectionMode, Connections, NotConnections, UnknownConnectionMode};
pub use pace::{
    Arrivals, Length, NotARate, NotAStage, Pace, Pacing, Rate, RateStage, UnknownArrivals, UnknownPacing,
};
pub use streaming::{EndPattern, NotAnEndPattern, StreamKind, StreamSettings, UnknownStreamKind};
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
    /// Maximum time for the whole response, counted from sending the request.
    pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
    /// Maximum time without any byte of a stream.
    pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);
    /// Values of OpenAI's `finish_reason` that count as success.
    pub const FINISH_REASONS: [&str; 4] = ["stop", "length", "tool_calls", "content_filter"];
    /// Values of Anthropic's `stop_reason` that count as success: all those that the model itself decides on.
    pub const STOP_REASONS: [&str; 7] = [
        "end_turn",
        "max_tokens",
        "model_context_window_exceeded",
        "pause_turn",
        "refusal",
        "stop_sequence",
        "tool_use",
    ];
    /// Maximum number of open streams; fewer if the machine lacks descriptors or ports.
    pub const MAX_OPEN: usize = 20_000;
    /// Maximum time from sending the request to the head of a stream's response.
    pub const STREAM_HEAD_TIMEOUT: Duration = Duration::from_secs(60);
    /// Request method.
    pub const METHOD: &str = "GET";
    /// Statuses that count as success, as an inclusive range.
    pub const SUCCESS: (u16, u16) = (200, 399);
    /// The gRPC status that counts as success.
    pub const GRPC_SUCCESS: i32 = 0;
    /// Number of worker threads.
    pub const WORKERS: usize = 1;
    /// Streams per HTTP/2 connection: the minimum limit that HTTP/2 recommends for servers (RFC 9113, 6.5.2).
    pub const STREAMS: usize = 100;
    /// Streams per HTTP/2 connection in a closed loop.
    pub const CLOSED_LOOP_STREAMS: usize = 1;
    /// Number of connections in a closed loop.
    pub const CLOSED_LOOP_CONNECTIONS: usize = 50;
    /// Smallest automatic connection limit for an open loop.
    pub const LEAST_CONNECTIONS: usize = 256;
    /// Maximum time for load pods to become ready.
    pub const START_LIMIT: Duration = Duration::from_secs(120);
    /// Resource requests of each load pod.
    pub const LOAD_POD_RESOURCES: [(&str, &str); 2] = [("cpu", "500m"), ("memory", "256Mi")];
    /// Period over which `load.abort` computes the share of dropped requests.
    pub const ABORT_OVER: Duration = Duration::from_secs(10);
    /// Minimum number of requests in that period for `load.abort` to apply.
    pub const ABORT_REQUESTS: u64 = 50;
}

/// Limits of settings.
pub mod limits {
    use std::ops::RangeInclusive;
    use std::time::Duration;

    /// Highest rate, in requests per second.
    pub const MAX_RATE: f64 = 1_000_000.0;
    /// Maximum duration or timeout: one week.
    pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
    /// Maximum number of worker threads.
    pub const MAX_WORKERS: usize = 256;
    /// Maximum number of streams per connection; HTTP/2 has no more stream ids.
    pub const MAX_STREAMS: usize = (1 << 30) - 1;
    /// Maximum number of retries.
    pub const MAX_RETRIES: u32 = 100;
    /// Valid HTTP statuses.
    pub const STATUSES: RangeInclusive<u16> = 100..=599;
    /// Maximum number of load pods.
    pub const MAX_LOAD_PODS: usize = 1000;
    /// Maximum time to wait for load pods. The pods themselves wait only slightly longer for instructions.
    pub const MAX_START_LIMIT: Duration = Duration::from_secs(600);
    /// Shortest period for `load.abort`.
    pub const LEAST_ABORT_OVER: Duration = Duration::from_secs(1);
}

/// Response headers that identify gateways; always kept for requests that are not `ok`.
const KEEP_HEADERS: [&str; 3] = ["server", "via", "x-envoy-*"];

/// Parses a single status or a range such as `200-399`. Returns `None` for any other text.
pub fn statuses(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
}

/// Returns true for a valid range of HTTP statuses.
pub fn are_statuses((from, to): (u16, u16)) -> bool {
    from <= to && limits::STATUSES.contains(&from) && limits::STATUSES.contains(&to)
}

named! {
    /// Origin of the load.
    pub enum LoadFrom else UnknownLoadFrom "{0:?} is neither local nor cluster" {
        /// The machine running rolldrop.
        Local = "local",
        /// Pods in the cluster.
        Cluster = "cluster",
    }
}

/// Returns the response headers to keep: the default ones, followed by `further`.
pub fn keep_headers(further: &[String]) -> Vec<String> {
    KEEP_HEADERS.iter().map(|name| (*name).to_owned()).chain(further.iter().cloned()).collect()
}

/// A destination for requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadTarget {
    /// Name used in the rows' `target` column.
    pub name: String,
    /// `http://host[:port][/path][?query]`, or `https://`.
    pub url: String,
    /// Weight of the target. Its share of the requests is this weight divided by the sum of all weights.
    pub weight: u32,
    /// Request method; `None` for the method of the whole load.
    pub method: Option<String>,
    /// Request headers; these override the whole load's headers of the same name.
    pub headers: Vec<(String, Secret)>,
    /// Request body; `None` for the body of the whole load.
    pub body: Option<Vec<u8>>,
}

impl LoadTarget {
    /// Creates a target without its own method, headers or body.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        let (name, url) = (name.into(), url.into());
        Self { name, url, weight: 1, method: None, headers: Vec::new(), body: None }
    }
}

/// Load settings as given by the user; [`Load::check`] validates them. In a scenario, `targets` stays empty until the
/// cluster has provided the addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Request targets, used in turn in proportion to their weights.
    pub targets: Vec<LoadTarget>,
    /// Pace of the requests, over all targets and workers.
    pub pace: Pace,
    /// Distribution of requests in time, at the rates of an open loop.
    pub arrivals: Arrivals,
    /// Seed for all random choices.
    pub seed: u64,
    /// Length of the warm-up before the counted part; warm-up requests are recorded but not counted.
    pub warmup: Duration,
    /// HTTP version to speak.
    pub http: Http,
    /// gRPC method to call, with the body as its message; `None` for plain HTTP requests.
    pub grpc: Option<Grpc>,
    /// Streams that the requests ask for; `None` for plain requests.
    pub stream: Option<StreamSettings>,
    /// Connections that carry the requests.
    pub connections: Connections,
    /// Time limits for the parts of a request.
    pub timeout: Timeouts,
    /// Request method.
    pub method: String,
    /// Additional request headers.
    pub headers: Vec<(String, Secret)>,
    /// Request body; an empty body is not sent.
    pub body: Vec<u8>,
    /// True if URLs, header values and bodies contain placeholders (`template`).
    pub template: bool,
    /// Overrides of the connection addresses in the URLs; the first match applies.
    pub connect_to: Vec<ConnectTo>,
    /// Unix socket to connect to, whatever the URLs say.
    pub unix_socket: Option<PathBuf>,
    /// Name lookup settings.
    pub dns: DnsSettings,
    /// TLS settings, for `https` URLs.
    pub tls: TlsSettings,
    /// Retries of a failed request.
    pub retry: Retry,
    /// Response header that names the pod.
    pub pod_header: String,
    /// Regular expression that finds the pod's name in bodies, for responses without that header.
    pub pod_body: Option<String>,
    /// Response headers to keep for requests that are not `ok`; a name may end in `*`.
    pub keep_headers: Vec<String>,
    /// Statuses that count as success, as inclusive ranges.
    pub success: Vec<(u16, u16)>,
    /// Number of worker threads.
    pub workers: usize,
    /// Lead time before a request is due during which the worker polls the clock instead of sleeping.
    pub spin: Duration,
    /// Source ports of connections; `None` for the system's ephemeral ports.
    pub source_ports: Option<PortRange>,
    /// Source addresses of connections, assigned to the workers in turn; empty to let the system choose.
    pub source_addresses: Vec<IpAddr>,
    /// True if a source port may be reused before the system has forgotten the last connection from it.
    pub reuse_ports: bool,
    /// Additional evidence of where connections went.
    pub evidence: Option<Evidence>,
}

impl Load {
    /// Creates the default load for one target, named after its URL.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self { targets: vec![LoadTarget::new(url.as_str(), url.as_str())], ..Self::default() }
    }

    /// Returns the number of fresh connections per second at the highest rate; 0 for a closed loop, which does not plan
    /// its connections.
    pub fn fresh_per_s(&self) -> f64 {
        self.pace.peak_rate() * self.connections.fresh_share()
    }

    /// Returns the maximum number of simultaneously open connections; by default, as many as the rate keeps open when
    /// every request runs into both timeouts. No timeout limits how long a stream stays open, so streams have a fixed
    /// default.
    pub fn max_connections(&self) -> usize {
        let max_open = self.stream.as_ref().and_then(|stream| stream.max_open);
        if let Some(max) = self.connections.max.or(max_open) {
            return max;
        }
        if self.pace.is_closed() {
            return defaults::CLOSED_LOOP_CONNECTIONS.max(self.workers);
        }
        if self.stream.is_some() {
            return defaults::MAX_OPEN.max(self.workers);
        }
        let tls = if self.is_secure() { self.timeout.tls } else { Duration::ZERO };
        let held_s = (self.timeout.connect + tls + self.response_timeout()).as_secs_f64();
        let connections = (self.pace.peak_rate() * held_s).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and the cast saturates"
        )]
        let connections = connections as usize;
        connections.max(defaults::LEAST_CONNECTIONS).max(self.workers)
    }

    /// Returns the maximum time from sending a request to the end of its response, or to the end of the head of a
    /// stream's response.
    pub fn response_timeout(&self) -> Duration {
        let default = match &self.stream {
            None => defaults::RESPONSE_TIMEOUT,
            Some(_) => defaults::STREAM_HEAD_TIMEOUT,
        };
        self.timeout.response.unwrap_or(default)
    }

    /// Returns the maximum number of concurrent requests on an HTTP/2 connection.
    pub fn max_concurrent_streams(&self) -> usize {
        let default = if self.pace.is_closed() { defaults::CLOSED_LOOP_STREAMS } else { defaults::STREAMS };
        self.connections.max_concurrent_streams.unwrap_or(default)
    }

    /// Returns the HTTP version of the requests, unless TLS negotiates it. gRPC needs HTTP/2. If there are WebSocket
    /// targets, which start with HTTP/1.1, all targets use that version; so do streams.
    pub fn spoken(&self) -> Http {
        match self.http {
            Http::Auto if self.grpc.is_some() => Http::Http2,
            Http::Auto if self.stream.is_some() => Http::Http1,
            Http::Auto if self.has_scheme(&["ws:", "wss:"]) => Http::Http1,
            Http::Auto if !self.has_scheme(&["https:"]) => Http::Http1,
            http => http,
        }
    }

    /// Returns true if something about the load is chosen at random.
    pub(super) fn is_random(&self) -> bool {
        let has_law = self.stream.as_ref().is_some_and(|stream| stream.length.is_some());
        self.arrivals != Arrivals::Even || self.template || has_law
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

    /// Returns all request header names, including those of individual targets.
    fn header_names(&self) -> impl Iterator<Item = &str> {
        let own = self.targets.iter().flat_map(|target| &target.headers);
        self.headers.iter().chain(own).map(|(name, _)| &**name)
    }

    /// Returns the methods by target name. Several methods under one name are joined with commas; no client is known to
    /// replay such a combination.
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
            stream: None,
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
    fn settings_serialize_as_in_scenarios() {
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
