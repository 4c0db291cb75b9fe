//! `run.json`: a run's settings, cluster, tool and completion state.

pub mod routing;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use super::load::LoadPlan;
use super::names::sparse;
use super::service_proxy::{ProxyEvidence, ServiceProxy};
use super::{Expect, Looks, Policy, RequestId, RequestRow, Rounds, RunId, Stamp};
use routing::Routing;

/// Version of the run directory format.
pub const FORMAT_VERSION: u32 = 2;

sparse! {
    /// Contents of `run.json`, written at the beginning and the end of the run.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct RunInfo {
        /// Version of the format: [`FORMAT_VERSION`].
        pub format: u32,
        /// Tool that wrote the run.
        pub tool: Tool,
        /// Random part of the run's request ids.
        pub run: RunId,
        /// Name of the scenario.
        pub name: String,
        /// The scenario, with values resolved and secrets redacted.
        pub scenario: serde_json::Value,
        /// Results expected from the run.
        pub expect: Expect = default,
        /// Fingerprint of the cluster.
        pub cluster: ClusterInfo,
        /// Targets of the load.
        pub targets: Vec<Target>,
        /// The planned load.
        pub load: LoadPlan,
        /// Recorders of the run, each with its own clock.
        pub sources: Vec<Source>,
        /// Time the run began, on the coordinator's clock.
        pub started: Stamp,
        /// Time the run ended, on the coordinator's clock; absent while the run is in progress and after a kill.
        pub ended: Option<Stamp> = default,
        /// True if the run finished with every row written.
        pub complete: bool,
        /// True if the run was interrupted by the user (Ctrl-C).
        pub interrupted: bool,
        /// Maximum CPU usage of the measuring machine, if it differs from the documented limit.
        pub max_busy: Option<f64> = default,
        /// Reason for aborting the run: more requests were dropped than `load.abort` allows.
        pub aborted: Option<String> = default,
        /// Planned looks of a run that continues while its gate is inconclusive; absent for a run of fixed length.
        pub looks: Option<Looks> = default,
        /// Rounds of a run that continues until its windows reach the requested coverage; absent for other runs, and
        /// while the run is in progress.
        pub rounds: Option<Rounds> = default,
        /// Requirements that a recommendation must meet.
        pub policy: Policy = default,
        /// Size and checksum of the event log; absent while the run is in progress and after a kill.
        pub events: Option<EventsWritten> = default,
    }
}

impl RunInfo {
    /// Returns the id that the request carried.
    pub fn request_id(&self, row: &RequestRow) -> RequestId {
        RequestId::new(&self.run, &row.source, row.seq)
    }
}

/// The tool that wrote a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `rolldrop`.
    pub name: String,
    /// Version of the tool.
    pub version: String,
}

impl Tool {
    /// Returns the name and version of this program.
    pub fn this() -> Self {
        Self { name: "rolldrop".into(), version: env!("CARGO_PKG_VERSION").into() }
    }
}

/// Size and checksum of an event log at closing time, to detect later changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsWritten {
    /// Number of lines.
    pub lines: u64,
    /// CRC-32 of the file's bytes.
    pub crc32: u32,
}

sparse! {
    /// Properties of a cluster that affect results.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ClusterInfo {
        /// Version of the API server, such as `v1.36.2`.
        pub version: String,
        /// Implementation of Services; `unknown` if it could not be determined.
        pub dataplane: ServiceProxy,
        /// Evidence for `dataplane`; `None` if the implementation is unknown.
        pub dataplane_from: Option<ProxyEvidence> = default,
        /// Reads that were denied during detection, such as `get configmaps/kube-proxy in kube-system`.
        pub dataplane_denied: Vec<String> = default,
        /// Number of nodes.
        pub nodes: usize,
        /// Number of endpoints of the target Services when the load began.
        pub endpoints: usize,
        /// Namespace of the target.
        pub namespace: String,
    }
}

/// The user stated a Service proxy that differs from the detected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--assume-service-proxy says {stated}, but the cluster's Service proxy is {found}: remove the option"
)]
pub struct ServiceProxyMismatch {
    stated: ServiceProxy,
    found: ServiceProxy,
}

impl ClusterInfo {
    /// Adopts the Service proxy stated by the user, unless the cluster has shown which one it uses.
    ///
    /// # Errors
    /// Fails if the cluster's Service proxy is known and differs from the stated one.
    pub fn assume(&mut self, stated: &ServiceProxy) -> Result<(), ServiceProxyMismatch> {
        let is_free = !self.dataplane.is_known() || self.dataplane_from == Some(ProxyEvidence::Assumed);
        if is_free {
            self.dataplane = stated.clone();
            self.dataplane_from = Some(ProxyEvidence::Assumed);
        } else if self.dataplane != *stated {
            return Err(ServiceProxyMismatch { stated: stated.clone(), found: self.dataplane.clone() });
        }
        Ok(())
    }
}

sparse! {
    /// A destination of the load, representing one consumer's view of the pods.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Target {
        /// Name used in the rows' `target` column.
        pub name: String,
        /// Request URL.
        pub url: String,
        /// Consumer that routes the requests to pods, worded for the report, such as `service web (service proxy of
        /// this host)`.
        pub consumer: String,
        /// Unit that the consumer balances: connections or individual requests.
        pub balances: Balances,
        /// Reason for `balances`.
        pub balances_because: BalancesBecause,
        /// Service whose endpoints the consumer routes to, if known.
        pub service: Option<String> = default,
        /// Component that routes new connections, and its rules; `None` if unknown.
        pub routing: Option<Routing> = default,
        /// Node of the Service proxy that routes the connections, if one does and its node is known.
        pub node: Option<String> = default,
    }
}

/// Unit that a consumer balances. It determines the evidence for the consumer's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balances {
    /// New connections, as with a Service.
    Connections,
    /// Single requests, as with an L7 proxy that pools its connections to pods.
    Requests,
}

/// Reason for assuming that a consumer balances connections, or requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each reason describes its fields")]
pub enum BalancesBecause {
    /// Stated in the scenario or on the command line.
    Stated,
    /// The consumer is a Service, and the Service proxy routes connections.
    Service,
    /// The consumer is a URL, and the responses gave no evidence to the contrary.
    Assumed,
    /// Responses had a gateway status and named no pod. Holds the most frequent such status, and the number of
    /// responses.
    GatewayStatus { status: u16, answers: u64 },
    /// The responses have a header that gateways add; `value` is the most frequent value.
    GatewayHeader { header: String, value: String },
    /// Requests on one connection reached several pods, for example these two.
    PodsOfOneConnection { pods: [String; 2] },
}

impl fmt::Display for BalancesBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stated => f.write_str("the scenario or the command line says so"),
            Self::Service => f.write_str("it is a Service"),
            Self::Assumed => f.write_str("its answers show nothing to the contrary"),
            Self::GatewayStatus { status, answers: 1 } => {
                write!(f, "it answered {status} itself, without naming a pod")
            }
            Self::GatewayStatus { status, answers } => {
                write!(f, "{answers} answers have a gateway's status, such as {status}, and name no pod")
            }
            Self::GatewayHeader { header, value } => {
                write!(f, "its answers have the header \"{header}: {value}\"")
            }
            Self::PodsOfOneConnection { pods: [one, other] } => {
                write!(f, "requests on one connection reached the pods {one} and {other}")
            }
        }
    }
}

/// One recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Name of the source in rows and events.
    pub name: String,
    /// Role of the source.
    pub role: Role,
    /// The source's clock minus the coordinator's, in nanoseconds; 0 within one process.
    pub clock_offset_ns: i64,
    /// Uncertainty of the offset, ± in nanoseconds; `None` if it was never sampled.
    pub clock_uncertainty_ns: Option<i64>,
    /// Row counts of a source that transfers its rows; `None` for other sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
}

/// Numbers of recorded and received rows of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Total number of rows that the source recorded; `None` if the source did not report a total when it finished.
    pub recorded: Option<u64>,
    /// Rows recorded as of the last report.
    pub known: u64,
    /// Requests in flight at the time of the last report. If the source was killed, these have no row.
    pub in_flight: u64,
    /// Rows received.
    pub received: u64,
}

impl Rows {
    /// Adds to the number of received rows.
    pub fn arrive(&mut self, rows: u64) {
        self.received += rows;
        self.known = self.known.max(self.received);
    }

    /// Updates the counts from a source's report: rows recorded so far and, if reported, requests in flight.
    pub fn hear(&mut self, recorded: u64, in_flight: Option<u64>) {
        self.known = self.known.max(recorded);
        self.in_flight = in_flight.unwrap_or(self.in_flight);
    }

    /// Returns the final counts; `recorded` is the total that the source reported when it finished.
    #[must_use]
    pub fn ended(self, recorded: Option<u64>) -> Self {
        match recorded {
            Some(recorded) => Self { recorded: Some(recorded), known: recorded, in_flight: 0, ..self },
            None => self,
        }
    }
}

/// Role of a recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Watches the cluster, runs the disruptions, and has the reference clock.
    Coordinator,
    /// Sends the load.
    Load,
    /// Runs beside a pod.
    Proxy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_proxy_never_overrides_detected_proxy() {
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
