//! The load of a scenario: how fast, over which connections, and what is sent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use rolldrop_record::Evidence;

/// The load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    /// How fast requests leave.
    pub pace: Pace,
    /// Whether they come as those of a Poisson process do, not evenly.
    pub poisson: bool,
    /// What is drawn at random is drawn from this.
    pub seed: u64,
    /// Length of the counted part: that of all stages.
    pub duration: Duration,
    /// Length of the warm-up before it.
    pub warmup: Duration,
    /// Which HTTP is spoken.
    pub http: Http,
    /// The gRPC method that is called, if requests are such calls.
    pub grpc: Option<Grpc>,
    /// How connections are used.
    pub connections: Connections,
    /// Limit of connections open at once; `None` leaves it to the load generator.
    pub max_connections: Option<usize>,
    /// Limit of requests that an HTTP/2 connection carries at a time; `None` leaves it to the load
    /// generator.
    pub streams: Option<usize>,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for a TLS handshake.
    pub tls_timeout: Duration,
    /// TLS, for a target whose URL asks for it.
    pub tls: Tls,
    /// Limit for the first byte of the response, where it has one of its own.
    pub first_byte_timeout: Option<Duration>,
    /// Limit for the whole response, from sending the request.
    pub response_timeout: Duration,
    /// The HTTP method.
    pub method: String,
    /// Headers to add.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether paths, header values and bodies have placeholders.
    pub template: bool,
    /// What is sent to each target; one at least.
    pub requests: Vec<Request>,
    /// How often a request that failed is sent again.
    pub retries: u32,
    /// Time from a failure to the next attempt.
    pub retry_delay: Duration,
    /// The most requests that a connection carries.
    pub max_requests: Option<u64>,
    /// The age after which a connection carries no further request.
    pub max_age: Option<Duration>,
    /// The response header that names the pod.
    pub pod_header: String,
    /// The pattern by which bodies name it, where that header does not.
    pub pod_body: Option<String>,
    /// Further response headers that are kept of requests that are not ok.
    pub keep_headers: Vec<String>,
    /// Statuses that count as success.
    pub success: Vec<(u16, u16)>,
    /// Where to connect instead of where the targets are, each as `HOST1:PORT1:HOST2:PORT2`.
    pub connect_to: Vec<String>,
    /// The Unix socket to connect to, wherever the targets are.
    pub unix_socket: Option<PathBuf>,
    /// The ports that connections come from, both ends included; `None` for the system's
    /// ephemeral ports.
    pub source_ports: Option<(u16, u16)>,
    /// Whether a source port may be used again before its last connection is forgotten.
    pub reuse_ports: bool,
    /// The addresses that connections come from; none for the system's choice.
    pub source_addresses: Vec<IpAddr>,
    /// How names are looked up.
    pub dns: Dns,
    /// Worker threads.
    pub workers: usize,
    /// How long before a request's time its worker stops sleeping and watches the clock.
    pub spin: Duration,
    /// Where it is sent from; `None` to go by the targets and the cluster.
    pub from: Option<LoadFrom>,
    /// The pods that send it, where it comes from the cluster.
    pub job: LoadJob,
    /// Who is asked where connections went, beside the answers.
    pub evidence: Option<Evidence>,
    /// When the run is given up.
    pub abort: Option<Abort>,
}

impl Load {
    /// When the load has been brought up, since its counted part began: the first constant stage that
    /// no higher one follows.
    pub(crate) fn steady_from(&self) -> Duration {
        let Pace::Open(stages) = &self.pace else { return Duration::ZERO };
        let is_up = |index: usize| {
            let stage = stages[index];
            let is_higher = |next: &Stage| next.from.max(next.to) > stage.to;
            stage.from == stage.to && stage.to > 0.0 && !stages.get(index + 1).is_some_and(is_higher)
        };
        let brought_up = (0..stages.len()).find(|index| is_up(*index)).unwrap_or(stages.len());
        stages[..brought_up].iter().map(|stage| stage.duration).sum()
    }
}

/// How much may be dropped before everything is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Abort {
    /// More than this share, as a fraction of 1,
    pub share: f64,
    /// of the requests that ended within so long,
    pub over: Duration,
    /// if these are so many at least.
    pub requests: u64,
}

/// Where a load is sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFrom {
    /// From the machine that runs the program.
    Local,
    /// From pods of the cluster.
    Cluster,
}

/// Pods that send a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadJob {
    /// How many; `None` for one on each node, as far as the rate makes sense of it.
    pub workers: Option<usize>,
    /// How long they may take to be ready.
    pub start_limit: Duration,
    /// What each asks for, by the name of the resource.
    pub resources: BTreeMap<String, String>,
}

/// How fast requests leave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pace {
    /// At these rates, one after the other; one stage at least.
    Open(Vec<Stage>),
    /// Whenever a connection is free: a closed loop.
    Closed,
}

/// Calls of a gRPC method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grpc {
    /// `SERVICE/METHOD`.
    pub method: String,
    /// Statuses that count as success.
    pub success: Vec<i32>,
}

/// How a TLS server is known for the right one, and how it knows us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The authorities to trust, in PEM; `None` for the system's.
    pub ca_pem: Option<String>,
    /// Our certificate, in PEM.
    pub cert_pem: Option<String>,
    /// Its key, in PEM; `None` where it stands with the certificate.
    pub key_pem: Option<String>,
    /// The name to ask for and to expect; `None` for the URL's host.
    pub server_name: Option<String>,
    /// Whether any certificate will do.
    pub insecure: bool,
    /// The only version to offer; `None` for both.
    pub version: Option<TlsVersion>,
    /// Whether sessions are resumed.
    pub resume: bool,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// How names are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dns {
    /// The servers to ask, each as `ADDRESS[:PORT]`; none for the system's.
    pub servers: Vec<String>,
    /// The only addresses to use; `None` for all.
    pub family: Option<Family>,
}

/// A kind of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// A request that targets get, as often as its weight says. What it leaves out is the load's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Path and query, in place of the target's.
    pub path: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// Headers, which go before the load's of the same name.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Vec<u8>>,
    /// Its share of the requests: this, of the sum of all requests' weights.
    pub weight: u32,
}

/// A rate over some time: constant, or a straight line from one to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stage {
    /// Requests per second at its beginning.
    pub from: f64,
    /// Requests per second at its end.
    pub to: f64,
    /// Its length.
    pub duration: Duration,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Http {
    /// Over TLS what the server chooses, else HTTP/1.1.
    #[serde(rename = "auto")]
    Auto,
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2: by prior knowledge, or agreed on in TLS.
    #[serde(rename = "2")]
    Http2,
}

/// How connections are used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Connections {
    /// A new one for each request.
    Fresh,
    /// Kept and reused.
    Keepalive,
    /// Both: this share of the requests, 0 to 1, on fresh ones.
    Mixed(f64),
}
