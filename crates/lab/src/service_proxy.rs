//! The Service proxy on every node.
//!
//! Each node has its own table of Service ports and endpoints (`table`), synced with kube-proxy's timing (`runner`) and
//! the measured sync duration. The dataplane applies a table as TCP proxies on loopback addresses (`userspace`), or as
//! nftables rules in the node's network namespace (`kernel`, `rules`, `nft`). On both dataplanes, each node's own
//! address serves the node ports according to that node's table. `service-proxy.jsonl` (`truth`) records the changes
//! and when each took effect.
//!
//! It routes to endpoints as EndpointSlices list them and knows nothing of pods.

mod dataplane;
mod kernel;
mod nft;
mod node;
mod relay;
pub(super) mod rules;
mod runner;
mod table;
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
use super::shared::Shared;
use node::{ProxiedNode, Synced};
use runner::{Due, Throttle};
use table::Table;
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

/// Runs the Service proxies of `nodes` until the cluster stops.
///
/// # Errors
///
/// The log cannot be opened or written, or `nft` is missing.
pub(crate) async fn run(shared: Shared, nodes: Vec<String>) -> Result<(), ServiceProxyError> {
    let path = shared.log_dir.join(LOG_FILE);
    let log_error = |source| ServiceProxyError::Log { path: path.clone(), source };
    let (truth, writer) = TruthLog::open(&path).await.map_err(log_error)?;

    let mut tasks = JoinSet::new();
    for (index, name) in (0..).zip(nodes) {
        let node = ProxiedNode { shared: shared.clone(), name, index, truth: truth.clone() };
        let dataplane = match &shared.network {
            Network::Userspace => Dataplane::Userspace(userspace::Listeners::default()),
            Network::Kernel(fabric) => Dataplane::Kernel(kernel::Rules::new(fabric.clone(), index)?),
        };
        tasks.spawn(NodeProxy { node, dataplane, table: Table::new() }.run());
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

/// The proxy of one node.
struct NodeProxy {
    node: ProxiedNode,
    dataplane: Dataplane,
    /// Table of the last sync.
    table: Table,
}

/// Mechanism that puts a table into effect.
enum Dataplane {
    Userspace(userspace::Listeners),
    Kernel(kernel::Rules),
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
    async fn sync(&mut self, due: Due) -> Synced {
        let shared = &self.node.shared;
        let table = compute(shared, &self.node.name);
        let latencies = &shared.config.latencies;
        let duration = shared.sampler.sample(match due {
            Due::HeldBack => &latencies.throttled_sync,
            Due::AtOnce if table == self.table => &latencies.unchanged_sync,
            Due::AtOnce => &latencies.slice_to_rule,
        });
        self.table.clone_from(&table);
        match &mut self.dataplane {
            Dataplane::Userspace(listeners) => {
                sleep(duration).await;
                listeners.apply(&self.node, table);
                Synced::Yes
            }
            Dataplane::Kernel(rules) => {
                // The measured duration includes programming the kernel.
                sleep(duration.saturating_sub(rules.usual_duration())).await;
                rules.apply(&self.node, table).await
            }
        }
    }
}

/// Computes a node's table from the current objects.
fn compute(shared: &Shared, node: &str) -> Table {
    let services = objects(shared, Resource::Services);
    let slices = objects(shared, Resource::EndpointSlices);
    table::compute(&services, &slices, node)
}

/// Returns the objects of a resource, except those that cannot be decoded: the proxy cannot route by them.
fn objects<T: DeserializeOwned>(shared: &Shared, resource: Resource) -> Vec<T> {
    shared.registry.all(resource, None).iter().filter_map(|object| T::deserialize(&**object).ok()).collect()
}

#[cfg(test)]
mod tests;
