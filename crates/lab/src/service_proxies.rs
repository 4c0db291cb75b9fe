//! The Service proxy on every node.
//!
//! Each node has its own table of Service ports and endpoints (`service_table`), synced with kube-proxy's timing
//! (`runner`) and the measured sync duration. The dataplane applies a table as TCP proxies on loopback addresses
//! (`userspace`), or as nftables rules in the node's network namespace (`nft_dataplane`, `nft_script`, `nft`). On both
//! dataplanes, each node's own address serves the node ports according to that node's table. `service-proxy.jsonl`
//! (`truth`) records the changes and when each took effect.
//!
//! The Service proxy routes to endpoints as EndpointSlices list them and knows nothing of pods.

mod link_relay;
mod nft;
mod nft_dataplane;
pub(super) mod nft_script;
mod port_listener;
mod proxied_node;
mod runner;
mod service_table;
mod truth;
mod userspace;

use std::io;
use std::path::PathBuf;

use futures::StreamExt;
use k8s_openapi::serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::network::Network;
use super::registry::follow;
use super::resource::Resource;
use super::shared::ClusterContext;
use proxied_node::{ProxiedNode, Synced};
use runner::{SyncReason, Throttle};
use service_table::ServiceTable;
use truth::TruthLog;

/// Name of the log file in the cluster's log directory.
pub(crate) const LOG_FILE: &str = "service-proxy.jsonl";

/// Error that stopped the Service proxies.
#[derive(Debug, thiserror::Error)]
pub enum ServiceProxyError {
    /// The log cannot be written.
    #[error("write {}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel dataplane's program is missing.
    #[error(transparent)]
    Kernel(#[from] super::kernel::KernelError),
}

/// Runs the Service proxies for `nodes` until the cluster stops.
///
/// # Errors
///
/// Fails if the log cannot be opened or written, or `nft` is missing.
pub(crate) async fn run(shared: ClusterContext, nodes: Vec<String>) -> Result<(), ServiceProxyError> {
    let path = shared.log_dir.join(LOG_FILE);
    let log_error = |source| ServiceProxyError::Log { path: path.clone(), source };
    let (truth, writer) = TruthLog::open(&path).await.map_err(log_error)?;

    let mut tasks = JoinSet::new();
    for (index, name) in (0..).zip(nodes) {
        let node = ProxiedNode { shared: shared.clone(), name, index, truth: truth.clone() };
        let dataplane = match &shared.network {
            Network::Userspace => DataplaneBackend::Userspace(userspace::Listeners::default()),
            Network::Kernel(fabric) => {
                DataplaneBackend::Kernel(nft_dataplane::NftRules::new(fabric.clone(), index)?)
            }
        };
        tasks.spawn(NodeProxy { node, dataplane, table: ServiceTable::new() }.run());
    }
    drop(truth);

    let writing = writer.run();
    tokio::pin!(writing);
    tokio::select! {
        () = shared.stop.cancelled() => {}
        // While a proxy is running, the writer returns only if it fails.
        written = &mut writing => return written.map_err(log_error),
    }
    tasks.shutdown().await;
    writing.await.map_err(log_error)
}

/// Proxy for one node.
struct NodeProxy {
    node: ProxiedNode,
    dataplane: DataplaneBackend,
    /// Table from the last sync.
    table: ServiceTable,
}

/// Mechanism that puts a table into effect.
enum DataplaneBackend {
    Userspace(userspace::Listeners),
    Kernel(nft_dataplane::NftRules),
}

impl NodeProxy {
    async fn run(mut self) {
        let changes = Notify::new();
        let shared = self.node.shared.clone();
        let mut throttle = Throttle::new(shared.config.service_proxy.min_sync_period);
        let syncing = async {
            loop {
                let due = throttle.due(&changes).await;
                if self.sync(due).await == Synced::No {
                    changes.notify_one();
                }
                throttle.completed();
            }
        };
        let announcing = async {
            let mut events = follow(&shared.registry, &[Resource::Services, Resource::EndpointSlices]);
            while events.next().await.is_some() {
                changes.notify_one();
            }
        };
        tokio::join!(announcing, syncing);
    }

    /// Runs one sync: reads the current objects, and completes once the measured sync duration has passed and the
    /// result is in effect.
    async fn sync(&mut self, due: SyncReason) -> Synced {
        let shared = &self.node.shared;
        let table = compute(shared, &self.node.name);
        let latencies = &shared.config.latencies;
        let duration = shared.sampler.sample(match due {
            SyncReason::HeldBack => &latencies.throttled_sync,
            SyncReason::AtOnce if table == self.table => &latencies.unchanged_sync,
            SyncReason::AtOnce => &latencies.slice_to_rule,
        });
        self.table.clone_from(&table);
        match &mut self.dataplane {
            DataplaneBackend::Userspace(listeners) => {
                sleep(duration).await;
                listeners.apply(&self.node, table);
                Synced::Yes
            }
            DataplaneBackend::Kernel(rules) => {
                // The measured duration includes programming the kernel.
                sleep(duration.saturating_sub(rules.usual_duration())).await;
                rules.apply(&self.node, table).await
            }
        }
    }
}

/// Computes a node's table from the current objects.
fn compute(shared: &ClusterContext, node: &str) -> ServiceTable {
    let services = objects(shared, Resource::Services);
    let slices = objects(shared, Resource::EndpointSlices);
    service_table::compute(&services, &slices, node)
}

/// Returns the objects of a resource, except those that cannot be decoded, which the proxy cannot use for routing.
fn objects<T: DeserializeOwned>(shared: &ClusterContext, resource: Resource) -> Vec<T> {
    shared.registry.all(resource, None).iter().filter_map(|object| T::deserialize(&**object).ok()).collect()
}

#[cfg(test)]
mod tests;
