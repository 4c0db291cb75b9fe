//! Parameters of an embedded cluster: `spec.cluster.embedded` in a scenario file.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::duration;
use super::hop_latency::HopLatencies;
use super::link_consumer::LinkConsumer;

/// Maximum number of nodes in an embedded cluster.
pub const MAX_NODES: u32 = 200;

/// The parameters of an embedded cluster, all with defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterConfig {
    /// Number of nodes, at least 1. Each has its own agent and its own Service proxy.
    pub nodes: u32,
    /// Dataplane that connects clients to pods.
    pub dataplane: DataplaneChoice,
    /// Image configurations, keyed by the last component of the image name without tag or digest.
    pub images: BTreeMap<String, Image>,
    /// Handling of connections to a removed pod's address on the kernel dataplane.
    pub gone_address: GoneAddress,
    /// Service proxy settings.
    pub service_proxy: ServiceProxyConfig,
    /// API server settings.
    pub api_server: ApiServer,
    /// Controller settings.
    pub controllers: Controllers,
    /// DNS settings.
    pub dns: Dns,
    /// Modelled delays.
    pub latencies: HopLatencies,
    /// Share (0 to 1) of probes whose first tick finds no container yet, so the first probe comes one period later.
    /// Observed in 15 of 90 starts (`reference/timings.csv`, hops "process start" and "first probe", case F and the
    /// replacements of cases A and C; 11 of the 15 probes came 1.00 to 1.02 s after the process started, the other four
    /// after 0.59 to 0.96 s).
    pub first_probe_missed: f64,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            nodes: 1,
            dataplane: DataplaneChoice::Auto,
            images: BTreeMap::new(),
            gone_address: GoneAddress::default(),
            service_proxy: ServiceProxyConfig::default(),
            api_server: ApiServer::default(),
            controllers: Controllers::default(),
            dns: Dns::default(),
            latencies: HopLatencies::default(),
            first_probe_missed: 15.0 / 90.0,
        }
    }
}

impl ClusterConfig {
    /// Checks the constraints that the types cannot express.
    ///
    /// # Errors
    ///
    /// The first parameter that this machine or version cannot honour.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return Err(ConfigError::Nodes(self.nodes));
        }
        let signals =
            self.images.iter().filter_map(|(name, image)| Some((name, image.stop_signal.as_ref()?)));
        if let Some((image, signal)) = signals.into_iter().find(|(_, name)| signal(name).is_none()) {
            return Err(ConfigError::Signal(image.clone(), signal.clone()));
        }
        if !(0.0..=1.0).contains(&self.first_probe_missed) {
            return Err(ConfigError::FirstProbeMissed(self.first_probe_missed));
        }
        let is_unknown =
            |consumer: &&LinkConsumer| matches!(consumer, LinkConsumer::Node(number) if *number > self.nodes);
        if let Some(consumer) = self.latencies.link.keys().find(is_unknown) {
            return Err(ConfigError::NoSuchNode(consumer.clone(), self.nodes));
        }
        if self.api_server.bookmark_period.is_zero() {
            return Err(ConfigError::NoPause("apiServer.bookmarkPeriod"));
        }
        Ok(())
    }
}

/// A parameter that cannot be honoured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Too few or too many nodes.
    #[error("nodes: {0} is not between 1 and {MAX_NODES}")]
    Nodes(u32),
    /// A signal that cannot be sent.
    #[error("images.{0}.stopSignal: unknown signal {1:?}; use a name such as SIGQUIT")]
    Signal(String, String),
    /// A share outside 0..=1.
    #[error("firstProbeMissed: {0} is not between 0 and 1")]
    FirstProbeMissed(f64),
    /// A link for a node that does not exist.
    #[error("latencies.link.{0}: no such node; the number of nodes is {1} (`nodes`)")]
    NoSuchNode(LinkConsumer, u32),
    /// A link that the userspace dataplane does not support.
    #[error("latencies.link.{0}: only the kernel dataplane can delay pod links; use a node, such as node-1")]
    LinkOfPods(LinkConsumer),
    /// A repeated action with a period of zero.
    #[error("{0} must be longer than 0")]
    NoPause(&'static str),
}

/// Configuration of an image. The cluster has no images, so only this configuration counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The image's STOPSIGNAL, such as `SIGQUIT`, for containers that specify no stop signal of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
}

/// Returns the signal with this name, in Linux or Kubernetes notation. Real-time signals cannot be sent.
pub fn signal(name: &str) -> Option<Signal> {
    Signal::from_str(match name {
        "SIGCLD" => "SIGCHLD",
        "SIGIOT" => "SIGABRT",
        "SIGPOLL" => "SIGIO",
        name => name,
    })
    .ok()
}

/// Choice of a dataplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataplaneChoice {
    /// `kernel` if it works, otherwise `userspace`.
    #[default]
    Auto,
    /// Network namespaces and nftables rules.
    Kernel,
    /// Loopback addresses and TCP proxies.
    Userspace,
}

/// Handling of connections to a removed pod's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GoneAddress {
    /// Packets are dropped, so the connection stalls, as measured on a real cluster.
    #[default]
    Drop,
    /// The client is told that the host is unreachable.
    Unreachable,
}

/// Service proxy settings, named after kube-proxy's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceProxyConfig {
    /// Minimum time from the end of one sync to the start of the next.
    #[serde(with = "duration")]
    pub min_sync_period: Duration,
}

impl Default for ServiceProxyConfig {
    fn default() -> Self {
        Self { min_sync_period: Duration::from_secs(1) }
    }
}

/// Settings of the cluster's DNS server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Time for which clients may cache a response, in whole seconds.
    #[serde(with = "duration")]
    pub ttl: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        // The default of CoreDNS's `kubernetes` plugin; kubeadm sets 30 s.
        Self { ttl: Duration::from_secs(5) }
    }
}

impl Dns {
    /// Returns the TTL in seconds, as responses carry it.
    pub fn ttl_seconds(&self) -> u32 {
        u32::try_from(self.ttl.as_secs()).unwrap_or(u32::MAX)
    }
}

/// API server settings, named after kube-apiserver's options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiServer {
    /// Interval between bookmarks on a watch that allows them; not zero.
    #[serde(with = "duration")]
    pub bookmark_period: Duration,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self {
            // `defaultBookmarkFrequency` in staging/src/k8s.io/apiserver/pkg/storage/cacher/cacher.go.
            bookmark_period: Duration::from_secs(60),
        }
    }
}

/// Controller settings, named after the options and constants of kube-controller-manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Controllers {
    /// Number of API calls per second that one controller may make.
    pub kube_api_qps: u32,
    /// Number of API calls that one controller may make in a burst.
    pub kube_api_burst: u32,
    /// Job: pause after a pod has failed, doubling with each consecutive failure.
    #[serde(with = "duration")]
    pub job_pod_failure_back_off: Duration,
}

impl Default for Controllers {
    fn default() -> Self {
        Self {
            // `RecommendedDefaultGenericControllerManagerConfiguration` in
            // staging/src/k8s.io/controller-manager/config/v1alpha1/defaults.go.
            kube_api_qps: 20,
            kube_api_burst: 30,
            // `DefaultJobPodFailureBackOff` in pkg/controller/job.
            job_pod_failure_back_off: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_config_equals_default() {
        let config: ClusterConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(config, ClusterConfig::default());
        assert_eq!(config.service_proxy.min_sync_period, Duration::from_secs(1));
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn config_rejects_unknown_or_invalid_settings() {
        assert!(serde_json::from_str::<ClusterConfig>(r#"{"node": 1}"#).is_err());
        assert!(serde_json::from_str::<ClusterConfig>(r#"{"latencies": {"podDeleet": "1s"}}"#).is_err());
        let share = ClusterConfig { first_probe_missed: 1.5, ..ClusterConfig::default() };
        assert_eq!(share.validate(), Err(ConfigError::FirstProbeMissed(1.5)));
        let mut hasty = ClusterConfig::default();
        hasty.api_server.bookmark_period = Duration::ZERO;
        assert_eq!(hasty.validate(), Err(ConfigError::NoPause("apiServer.bookmarkPeriod")));
        let link: ClusterConfig =
            serde_json::from_str(r#"{"latencies": {"link": {"node-2": "5ms"}}}"#).unwrap();
        assert_eq!(link.validate(), Err(ConfigError::NoSuchNode(LinkConsumer::Node(2), 1)));
        let error =
            serde_json::from_str::<ClusterConfig>(r#"{"latencies": {"link": {"web": "5ms"}}}"#).unwrap_err();
        assert!(error.to_string().contains("nor a pod label (such as app=gateway)"), "{error}");
        assert_eq!(
            ClusterConfig { nodes: 0, ..ClusterConfig::default() }.validate(),
            Err(ConfigError::Nodes(0))
        );
        let odd: ClusterConfig =
            serde_json::from_str(r#"{"images": {"nginx": {"stopSignal": "QUIT"}}}"#).unwrap();
        assert_eq!(odd.validate(), Err(ConfigError::Signal("nginx".to_owned(), "QUIT".to_owned())));
    }

    #[test]
    fn config_round_trips_through_json() {
        let config: ClusterConfig =
            serde_json::from_str(r#"{"nodes": 3, "images": {"nginx": {"stopSignal": "SIGQUIT"}}, "latencies": {"sliceToRule": "5ms", "link": {"app=a": "1ms", "node-3": "2ms"}}}"#).unwrap();
        let again: ClusterConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(config, again);
    }
}
