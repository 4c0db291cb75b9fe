//! `run.json`: what was run, on what, by whom, and whether it completed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::load::{Arrivals, ConnectionMode, Http, WrittenTls};
use super::names::named;
use super::routing::Routing;
use super::service_proxy::{ProxyEvidence, ServiceProxy};
use super::{Evidence, Expect, Looks, Policy, RequestId, RequestRow, Rounds, RunId, Stamp};

/// The version of the run directory's format. The second has checksums and totals, which show whether a
/// record is whole.
pub const FORMAT_VERSION: u32 = 2;
/// The oldest version that is read.
pub const OLDEST_FORMAT: u32 = 1;

/// The contents of `run.json`. Written when the run begins and again when it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The format's version, from [`OLDEST_FORMAT`] to [`FORMAT_VERSION`].
    pub format: u32,
    /// Name and version of the tool.
    pub tool: Tool,
    /// The random part of the ids of its requests; absent in runs of earlier versions, whose ids had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The scenario's name.
    pub name: String,
    /// The scenario, resolved and redacted.
    pub scenario: serde_json::Value,
    /// What the run is expected to show.
    #[serde(default, skip_serializing_if = "Expect::is_empty", deserialize_with = "super::expect::recorded")]
    pub expect: Expect,
    /// The cluster's fingerprint.
    pub cluster: ClusterInfo,
    /// The targets of the load.
    pub targets: Vec<Target>,
    /// The load that was planned.
    pub load: LoadPlan,
    /// The recorders.
    pub sources: Vec<Source>,
    /// When the run began, on the coordinator's clock.
    pub started: Stamp,
    /// When the run ended, on the coordinator's clock; absent while it runs and after a kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Stamp>,
    /// Whether the run came to its end, with every row written.
    pub complete: bool,
    /// Whether it was interrupted on purpose (Ctrl-C).
    #[serde(default)]
    pub interrupted: bool,
    /// The share of its processors' time that the measuring machine may have in use, where that is another
    /// than the stated limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_busy: Option<f64>,
    /// Why it was aborted: more was dropped than `load.abort` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted: Option<String>,
    /// The looks of a run that goes on while its gate is inconclusive; absent for a run of fixed length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<Looks>,
    /// The rounds of a run that goes on until its windows cover what is asked for; absent for others, and while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// How sure a recommendation must be.
    #[serde(default, skip_serializing_if = "Policy::is_default")]
    pub policy: Policy,
    /// The run's log of events as it was written; absent while it runs, after a kill, and in runs of before 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsWritten>,
}

impl RunInfo {
    /// Whether its format has what it takes to tell whether the record is whole.
    pub fn has_checks(&self) -> bool {
        self.format > OLDEST_FORMAT
    }

    /// The id that a request of the run carried.
    pub fn request_id(&self, row: &RequestRow) -> RequestId {
        RequestId::new(self.run.as_ref(), &row.source, row.seq)
    }
}

/// The tool that wrote a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `rolldrop`.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Tool {
    /// This program.
    pub fn this() -> Self {
        Self { name: "rolldrop".into(), version: env!("CARGO_PKG_VERSION").into() }
    }
}

/// The size and checksum of a log of events when it was closed, which show whether it has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsWritten {
    /// Its lines.
    pub lines: u64,
    /// CRC-32 of its bytes.
    pub crc32: u32,
}

/// The properties of a cluster that results depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The API server's version, such as `v1.36.2`.
    pub version: String,
    /// What implements Services; `unknown` where that could not be found out.
    pub dataplane: ServiceProxy,
    /// How that is known; `None` where it is not, and in runs of before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataplane_from: Option<ProxyEvidence>,
    /// Reads that the run had no right to make when it looked for that, such as `get configmaps/kube-proxy in
    /// kube-system`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dataplane_denied: Vec<String>,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of endpoints of the target Services when the load began.
    pub endpoints: usize,
    /// Namespace of the target.
    pub namespace: String,
}

/// The user stated one thing, and the cluster shows another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--assume-service-proxy says {stated}, but the cluster's Service proxy is {found}: leave the option out"
)]
pub struct Contradiction {
    stated: ServiceProxy,
    found: ServiceProxy,
}

impl ClusterInfo {
    /// Takes what the user states for what implements Services, where nothing else is known of it.
    ///
    /// # Errors
    /// When something else is known.
    pub fn assume(&mut self, stated: &ServiceProxy) -> Result<(), Contradiction> {
        let is_free = !self.dataplane.is_known() || self.dataplane_from == Some(ProxyEvidence::Assumed);
        if is_free {
            self.dataplane = stated.clone();
            self.dataplane_from = Some(ProxyEvidence::Assumed);
        } else if self.dataplane != *stated {
            return Err(Contradiction { stated: stated.clone(), found: self.dataplane.clone() });
        }
        Ok(())
    }
}

/// Something that load is sent to: one consumer's view of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The name in the rows' `target` column.
    pub name: String,
    /// Where requests go.
    pub url: String,
    /// Who routes them to pods, in words for the report, such as `service web (service proxy of this host)`.
    pub consumer: String,
    /// Whether it balances connections or single requests.
    pub balances: Balances,
    /// Why; absent in runs of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balances_because: Option<BalancesBecause>,
    /// The Service whose endpoints it routes to, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What routes new connections, and by which rules; `None` in runs of before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<Routing>,
    /// The node whose Service proxy routes them, if that is one, and known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What a consumer balances, and so what shows its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balances {
    /// New connections: a Service.
    Connections,
    /// Single requests: an L7 proxy, which pools its connections to pods.
    Requests,
}

/// Why a consumer counts as one that balances connections, or requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum BalancesBecause {
    /// The scenario or the command line says so.
    Stated,
    /// It is a Service: its Service proxy routes connections.
    Service,
    /// It is a URL, and its answers have not shown otherwise.
    Assumed,
    /// It answered with a gateway's status, and that answer named no pod.
    GatewayStatus {
        /// The most frequent one.
        status: u16,
        /// How many answers had any status of a gateway.
        answers: u64,
    },
    /// Its answers have a header that a gateway adds.
    GatewayHeader {
        /// Its name.
        header: String,
        /// The most frequent value.
        value: String,
    },
    /// Requests of one connection reached several pods.
    PodsOfOneConnection {
        /// Two of them.
        pods: [String; 2],
    },
}

impl fmt::Display for BalancesBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stated => f.write_str("the scenario or the command line says so"),
            Self::Service => f.write_str("it is a Service"),
            Self::Assumed => f.write_str("nothing in its answers shows otherwise"),
            Self::GatewayStatus { status, answers: 1 } => {
                write!(f, "it answered {status} itself, without the name of a pod")
            }
            Self::GatewayStatus { status, answers } => {
                write!(
                    f,
                    "{answers} answers without the name of a pod have a gateway's status, such as {status}"
                )
            }
            Self::GatewayHeader { header, value } => {
                write!(f, "its answers have the header \"{header}: {value}\"")
            }
            Self::PodsOfOneConnection { pods: [one, other] } => {
                write!(f, "requests of one connection reached the pods {one} and {other}")
            }
        }
    }
}

/// The planned load of a run: those of its [settings](super::load::Settings) that may be written.
///
/// What is absent is at its default, was not asked for, or does not apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// How the requests are paced.
    #[serde(default)]
    pub pacing: Pacing,
    /// Requests per second, over all sources: the mean of the counted part; 0 for a closed loop.
    pub rate: f64,
    /// Length of the counted part, in seconds; 0 where requests are counted instead.
    pub duration_s: f64,
    /// Length of the warm-up before it, in seconds.
    pub warmup_s: f64,
    /// How connections are used.
    pub connections: ConnectionMode,
    /// Connect timeout, in seconds.
    pub connect_timeout_s: f64,
    /// Response timeout, in seconds.
    pub response_timeout_s: f64,
    /// Statuses that count as success, as ranges.
    pub success: Vec<(u16, u16)>,
    /// The most connections open at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Worker threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// The pods that sent it; absent where it came from the run's own machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_workers: Option<usize>,
    /// The stages of an open loop that has several, as the command line takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<String>>,
    /// How the requests are spread over the rates, where not evenly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// The seed of random choices, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Which HTTP is spoken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// The most requests that an HTTP/2 connection carries at a time, where HTTP/2 may be spoken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// The share of the requests on fresh connections, where these are mixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh_share: Option<f64>,
    /// The most requests that a connection carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests_per_connection: Option<u64>,
    /// The age after which a connection carries no further request, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connection_age_s: Option<f64>,
    /// How often a request that failed is sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// The HTTP methods of each target, by its name; several are joined with a comma.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub methods: Option<BTreeMap<String, String>>,
    /// Whether requests have an Idempotency-Key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<bool>,
    /// The names of further request headers; values may be secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<String>>,
    /// The gRPC method that is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<String>,
    /// gRPC statuses that count as success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_success: Option<Vec<i32>>,
    /// The response header that names the pod, where it is not the proxy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_header: Option<String>,
    /// The regular expression by which bodies name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_body: Option<String>,
    /// Where connections go instead of where the URLs say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_to: Option<Vec<String>>,
    /// The Unix socket that all connections go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_socket: Option<String>,
    /// The only kind of addresses that is used: `IPv4` or `IPv6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// TLS, where a target speaks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<WrittenTls>,
    /// TLS timeout, in seconds, where a target speaks TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_timeout_s: Option<f64>,
    /// Timeout of the first byte of the answer, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_timeout_s: Option<f64>,
    /// How long before a request's time its worker watches the clock, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_s: Option<f64>,
    /// The ports that connections come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<String>,
    /// Further evidence of where connections went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Settings that this version does not know.
    #[serde(default, flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

impl LoadPlan {
    /// The settings that not every load has, as they are in `run.json`.
    pub fn further(&self) -> BTreeMap<String, serde_json::Value> {
        let written = |plan: &Self| -> BTreeMap<String, serde_json::Value> {
            serde_json::to_value(plan).and_then(serde_json::from_value).unwrap_or_default()
        };
        let of_every = written(&Self::default());
        written(self).into_iter().filter(|(name, _)| !of_every.contains_key(name)).collect()
    }

    /// Whether each connection sent its next request when it had the answer to the last.
    pub fn is_closed_loop(&self) -> bool {
        self.pacing == Pacing::ClosedLoop
    }
}

named! {
    /// How requests are paced.
    #[derive(Default)]
    pub enum Pacing else UnknownPacing "unknown pacing {0:?}" {
        /// At one rate, by a schedule.
        #[default]
        Constant = "constant",
        /// At rates that change, by a schedule.
        Stages = "stages",
        /// The next request of a connection when the last is answered: there are no intended send times.
        ClosedLoop = "closed_loop",
    }
}

/// One recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name in rows and events.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its clock minus the coordinator's, in nanoseconds; 0 within one process.
    pub clock_offset_ns: i64,
    /// The offset is known to ± this many nanoseconds; `None` if it was never sampled.
    pub clock_uncertainty_ns: Option<i64>,
    /// Of a source that hands its rows over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
}

/// How many rows a source recorded, and how many of them arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Rows that it recorded in its whole life, if it could say so at its end.
    pub recorded: Option<u64>,
    /// Rows that it had recorded by its last report.
    #[serde(default)]
    pub known: u64,
    /// Requests that it had in flight then: if it was killed, they have no row.
    #[serde(default)]
    pub in_flight: u64,
    /// Rows that arrived.
    pub received: u64,
}

impl Rows {
    /// Rows have arrived.
    pub fn arrive(&mut self, rows: u64) {
        self.received += rows;
        self.known = self.known.max(self.received);
    }

    /// It reported how many rows it has recorded, and possibly how many requests are in flight.
    pub fn hear(&mut self, recorded: u64, in_flight: Option<u64>) {
        self.known = self.known.max(recorded);
        self.in_flight = in_flight.unwrap_or(self.in_flight);
    }

    /// The final counts; `recorded` is what it reported at its end.
    #[must_use]
    pub fn ended(self, recorded: Option<u64>) -> Self {
        match recorded {
            Some(recorded) => Self { recorded: Some(recorded), known: recorded, in_flight: 0, ..self },
            None => self,
        }
    }
}

/// What a recorder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Watches, acts, and owns the reference clock.
    Coordinator,
    /// Sends requests.
    Load,
    /// Runs beside a pod.
    Proxy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stated_fills_a_gap_and_overrules_nothing() {
        let mut cluster = ClusterInfo::default();
        cluster.assume(&ServiceProxy::Iptables).unwrap();
        cluster.assume(&ServiceProxy::Nftables).unwrap();
        assert_eq!(
            (&cluster.dataplane, cluster.dataplane_from),
            (&ServiceProxy::Nftables, Some(ProxyEvidence::Assumed))
        );
        let dataplane_from = Some(ProxyEvidence::ConfigMap);
        let mut found =
            ClusterInfo { dataplane: ServiceProxy::Ipvs, dataplane_from, ..ClusterInfo::default() };
        assert_eq!(found.assume(&ServiceProxy::Ipvs), Ok(()));
        assert_eq!(found.dataplane_from, dataplane_from);
        let error = found.assume(&ServiceProxy::Iptables).unwrap_err().to_string();
        assert!(error.contains("says iptables, but the cluster's Service proxy is ipvs"), "{error}");
    }
}
