//! A load as a user asks for it: targets, and what is sent to them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Connections, Grpc, Http};
use crate::connect_to::ConnectTo;
use crate::pace::{Arrivals, Pace};
use crate::pod_body::PodBody;
use crate::ports::PortRange;
use crate::resolve::DnsSettings;
use crate::tls::TlsSettings;
use rolldrop_record::Evidence;
use rolldrop_record::row::POD_HEADER;

/// The response headers that are kept of requests that are not ok where nothing else is said: those by which
/// gateways can be told.
const KEEP_HEADERS: [&str; 3] = ["server", "via", "x-envoy-*"];

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
    /// The method of its requests, where it has one of its own.
    pub method: Option<String>,
    /// Headers of its own, which go before those of the same name that all requests have.
    pub headers: Vec<(String, String)>,
    /// A body of its own.
    pub body: Option<Vec<u8>>,
}

impl Target {
    /// A target with nothing of its own.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        let (name, url) = (name.into(), url.into());
        Self { name, url, weight: 1, method: None, headers: Vec::new(), body: None }
    }
}

/// Settings as a user gives them; [`Plan::new`](super::Plan::new) checks them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Where requests go: to each in turn, as often as its weight says.
    pub targets: Vec<Target>,
    /// How fast they leave, over all targets and workers.
    pub pace: Pace,
    /// How they are spread over the rates of an open loop.
    pub arrivals: Arrivals,
    /// Whatever is drawn at random is drawn from this.
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
    /// What names it in the body of an answer, where that header does not.
    pub pod_body: Option<PodBody>,
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
    /// Who is asked where connections went, beside the answers.
    pub evidence: Option<Evidence>,
}

impl Settings {
    /// The default load on one target, whose name is its URL: 200 GET requests/s for 30 s on fresh
    /// connections.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self {
            targets: vec![Target::new(url.as_str(), url.as_str())],
            pace: Pace::constant(200.0, Duration::from_secs(30)),
            arrivals: Arrivals::Even,
            seed: 0,
            warmup: Duration::ZERO,
            http: Http::Auto,
            grpc: None,
            connections: Connections::Fresh,
            max_connections: None,
            streams: None,
            connect_timeout: Duration::from_secs(1),
            tls_timeout: Duration::from_secs(2),
            first_byte_timeout: None,
            response_timeout: Duration::from_secs(5),
            method: "GET".to_owned(),
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
            success: vec![(200, 399)],
            workers: 1,
            spin: Duration::ZERO,
            source_ports: None,
            source_addresses: Vec::new(),
            reuse_ports: false,
            evidence: None,
        }
    }
}
