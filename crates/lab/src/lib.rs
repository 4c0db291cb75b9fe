//! The embedded cluster: a Kubernetes API with real processes as pods.
//!
//! Everything runs in one process: `store` keeps the objects, `registry` gives them Kubernetes' semantics, `http_api`
//! serves them over HTTP, and `controllers` drive them. Each node has an agent (`node`) that runs pods, and a Service
//! proxy (`service_proxies`) that routes to them on one of two dataplanes (`network`). The cluster shares no code with
//! the parts that measure it, except the clock.
//!
//! All of these modules use `shared`. `http_api`, `controllers`, `node`, `service_proxies` and `dns` are peers above
//! it: they communicate through the registry, and none uses another's state (a node also asks `dns` for the text of a
//! `resolv.conf`). `agents`, `api_tokens` and `logs`, which also connect the API server and the nodes, are below both.

mod address_block;
mod agents;
mod api_tokens;
mod bootstrap;
mod conditions;
pub mod config;
mod controllers;
pub mod dataplane_check;
pub mod descendants;
mod dns;
mod duration;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hop_latency;
mod http_api;
pub mod kernel;
mod kubeconfig;
pub mod link_consumer;
mod logs;
mod network;
mod node;
mod object_fields;
pub mod parameters;
mod rbac;
mod readiness;
mod registry;
mod resource;
mod resource_quantity;
mod schema;
mod selector;
mod service_proxies;
mod shared;
mod status;
mod store;
mod sync;
mod value;
mod version;
mod well_known;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{FutureExt, TryFutureExt};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use address_block::AddressBlock;
use agents::Agents;
use api_tokens::ApiTokens;
pub use config::ClusterConfig;
use hop_latency::Sampler;
use kernel::join::Whereabouts;
use kernel::{Fabric, NodePlan};
use network::Network;
use node::NodeInfo;
use registry::Registry;
use rolldrop_record::Clock;
use shared::ClusterContext;

/// Port at which pods reach the API server on a private network, behind the `kubernetes` Service.
const API_PORT: u16 = 6443;
/// Extension of a kubeconfig that gives the location of an embedded cluster on this machine.
pub const EXTENSION: &str = "rolldrop.dev/cluster";

/// Error that prevented an embedded cluster from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// A parameter cannot be honoured.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// No addresses are left for another cluster.
    #[error("reserve loopback addresses")]
    Addresses(#[source] io::Error),
    /// The log directory cannot be created.
    #[error("create the log directory {}", path.display())]
    LogDir {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The API server's port cannot be used.
    #[error("listen for API clients")]
    Listen(#[source] io::Error),
    /// The kernel dataplane cannot be set up.
    #[error("set up the kernel dataplane")]
    Kernel(#[from] kernel::KernelError),
    /// The API server's certificate cannot be created.
    #[error("create the API server's certificate")]
    Identity(#[from] http_api::IdentityError),
    /// No DNS port can be opened.
    #[error("open a DNS port")]
    Dns(#[source] io::Error),
    /// The initial objects cannot be created.
    #[error("create the cluster's own objects")]
    Bootstrap(#[source] status::Status),
    /// The Service proxies failed.
    #[error(transparent)]
    ServiceProxy(#[from] service_proxies::ServiceProxyError),
    /// Another process killed the first process of the containers' PID namespace and, with it, all containers.
    #[error("another process killed all containers")]
    Containers(#[source] Option<io::Error>),
    /// A part of the cluster panicked; its message is in the log.
    #[error("a part of the cluster stopped unexpectedly: see cluster.log")]
    Ended,
}

/// Environment for an embedded cluster on this machine.
#[derive(Debug)]
pub struct EmbeddedOptions {
    /// Directory for pod and Service proxy logs; created if missing.
    pub log_dir: PathBuf,
    /// The API server's loopback listener, for clients outside the cluster.
    pub listener: std::net::TcpListener,
    /// Namespaces that this process has entered, if the cluster is to use the kernel dataplane.
    pub entered: Option<kernel::Entered>,
    /// Program to run for the `rolldrop` image.
    pub own_binary: PathBuf,
}

/// A running embedded cluster. Dropping it stops the cluster, but only [`Embedded::stop`] waits for that.
#[derive(Debug)]
pub struct Embedded {
    server: SocketAddr,
    dns: SocketAddr,
    identity: http_api::ServerIdentity,
    token: String,
    whereabouts: Whereabouts,
    stop: CancellationToken,
    tasks: JoinSet<Result<(), EmbeddedError>>,
}

impl Embedded {
    /// Starts a cluster in this process. Its API is ready when this returns.
    ///
    /// # Errors
    ///
    /// Fails if a parameter cannot be honoured, or the machine rejects part of the setup.
    pub async fn start(config: ClusterConfig, options: EmbeddedOptions) -> Result<Self, EmbeddedError> {
        config.validate()?;
        std::fs::create_dir_all(&options.log_dir)
            .map_err(|source| EmbeddedError::LogDir { path: options.log_dir.clone(), source })?;
        let sampler = Sampler::random();
        let addresses = match options.entered {
            Some(_) => AddressBlock::private(),
            None => {
                AddressBlock::claim(sampler.index(usize::from(u8::MAX))).map_err(EmbeddedError::Addresses)?
            }
        };
        let clock = Clock::start();
        let identity = http_api::ServerIdentity::new(&server_addresses(&addresses, config.nodes))?;
        let registry = Registry::new(clock, addresses, Arc::clone(identity.authority_pem()));
        let network = match options.entered {
            Some(entered) => {
                Network::Kernel(Arc::new(fabric(entered, &registry, &config, &sampler, &options.log_dir)?))
            }
            None => {
                if let Some(consumer) = config.latencies.link_of_pods() {
                    return Err(config::ConfigError::LinkOfPods(consumer.clone()).into());
                }
                Network::Userspace
            }
        };
        let mut listeners = vec![listen(options.listener).map_err(EmbeddedError::Listen)?];
        let address = listeners[0].local_addr().map_err(EmbeddedError::Listen)?;
        let inside = match network {
            Network::Userspace => address,
            Network::Kernel(_) => {
                let address = SocketAddr::from((registry.addresses().control_plane(), API_PORT));
                listeners.push(TcpListener::bind(address).await.map_err(EmbeddedError::Listen)?);
                address
            }
        };
        let nodes = bootstrap::create_objects(&registry, &config, network.proxy_mode(), inside)
            .map_err(EmbeddedError::Bootstrap)?;
        let dns =
            dns::ClusterDns::bind(registry.addresses().control_plane()).await.map_err(EmbeddedError::Dns)?;
        let dns_address = dns.address();
        bootstrap::announce_dns(&registry, dns_address).map_err(EmbeddedError::Bootstrap)?;
        let tokens = ApiTokens::default();
        let token = tokens.issue_admin();

        let stop = CancellationToken::new();
        let log_dir = Arc::new(options.log_dir);
        let shared = ClusterContext {
            registry,
            config: Arc::new(config),
            sampler,
            clock,
            network: network.clone(),
            log_dir: Arc::clone(&log_dir),
            stop: stop.clone(),
        };
        let server = http_api::ApiServerState {
            shared: shared.clone(),
            agents: Agents::default(),
            tokens,
            identity: identity.clone(),
        };
        let tasks = run(shared, Arc::new(server), listeners, dns, nodes, &options.own_binary);
        let namespaces = matches!(network, Network::Kernel(_)).then_some(log_dir.as_path());
        let whereabouts = Whereabouts::of_this_process(namespaces);
        Ok(Self { server: address, dns: dns_address, identity, token, whereabouts, stop, tasks })
    }

    /// Returns the API server's URL.
    pub fn server(&self) -> String {
        format!("https://{}", self.server)
    }

    /// Returns the address of the cluster's DNS server, for UDP and TCP.
    pub fn dns(&self) -> SocketAddr {
        self.dns
    }

    /// Returns a kubeconfig for this cluster, in JSON, which is also valid YAML.
    pub fn kubeconfig(&self) -> String {
        let authority = BASE64_STANDARD.encode(&**self.identity.authority_pem());
        let cluster = json!({
            "server": self.server(),
            "certificate-authority-data": authority,
            "extensions": [{"name": EXTENSION, "extension": self.whereabouts}],
        });
        kubeconfig::text("rolldrop", &cluster, &json!({"token": self.token}), "default")
    }

    /// Waits until a part of the cluster fails or stops unexpectedly, and returns the error.
    pub async fn failure(&mut self) -> EmbeddedError {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            _ => EmbeddedError::Ended,
        }
    }

    /// Stops the cluster: kills its pods and waits for its tasks.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Runs each part of a cluster in its own task until the cluster is stopped.
fn run(
    shared: ClusterContext,
    server: Arc<http_api::ApiServerState>,
    listeners: Vec<TcpListener>,
    dns: dns::ClusterDns,
    nodes: Vec<String>,
    own_binary: &Path,
) -> JoinSet<Result<(), EmbeddedError>> {
    let mut tasks = JoinSet::new();
    for listener in listeners {
        tasks.spawn(http_api::serve(listener, Arc::clone(&server)).map(Ok));
    }
    if let Network::Kernel(fabric) = &shared.network {
        let (fabric, stop) = (Arc::clone(fabric), shared.stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                ended = fabric.ended() => Err(EmbeddedError::Containers(ended.err())),
                () = stop.cancelled() => Ok(()),
            }
        });
    }
    tasks.spawn(dns.serve(shared.clone()).map(Ok));
    for (index, name) in (0..).zip(&nodes) {
        let node = NodeInfo {
            name: name.clone(),
            index,
            address: shared.registry.addresses().node(index),
            own_binary: own_binary.to_owned(),
            agents: server.agents.clone(),
            tokens: server.tokens.clone(),
        };
        tasks.spawn(node::run(shared.clone(), node).map(Ok));
    }
    tasks.spawn(service_proxies::run(shared.clone(), nodes).map_err(EmbeddedError::from));
    tasks.spawn(controllers::run(shared).map(Ok));
    tasks
}

/// Returns the addresses, besides loopback, at which nodes reach the API server and pods reach the `kubernetes`
/// Service.
fn server_addresses(addresses: &AddressBlock, nodes: u32) -> Vec<IpAddr> {
    let nodes = (0..=u8::MAX).zip(0..nodes).map(|(index, _)| addresses.node(index));
    let inside = [Some(addresses.control_plane()), addresses.services().next()];
    nodes.chain(inside.into_iter().flatten()).map(IpAddr::from).collect()
}

fn listen(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Creates the network of the kernel dataplane.
fn fabric(
    entered: kernel::Entered,
    registry: &Registry,
    config: &ClusterConfig,
    sampler: &Sampler,
    log_dir: &Path,
) -> Result<Fabric, kernel::KernelError> {
    let plan = |index| NodePlan {
        name: bootstrap::node_name(index),
        address: registry.addresses().node(index),
        pods: address_block::node_pods(index),
    };
    let plans: Vec<_> = (0..=u8::MAX).zip(0..config.nodes).map(|(index, _)| plan(index)).collect();
    let (names, control_plane) = (kernel::names_dir(log_dir), registry.addresses().control_plane());
    let mut fabric = Fabric::build(entered, control_plane, &plans, config.gone_address, names)?;
    fabric.look_names_up_by(&dns::resolv_conf("default", control_plane))?;
    if !config.latencies.link.is_empty() {
        let of_node = |(index, plan): (u8, &NodePlan)| (plan.address, config.latencies.link_of_node(index));
        fabric.delay_links(kernel::Delays::new((0..).zip(&plans).map(of_node), sampler.clone()));
    }
    Ok(fabric)
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
