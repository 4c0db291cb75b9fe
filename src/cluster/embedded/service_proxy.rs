//! The Service proxy of every node, in its userspace dataplane.
//!
//! Each node has its own table of Service ports and endpoints, synced with
//! kube-proxy's own timing (`runner`) and the measured delay of a sync. Connections
//! to the address of a Service are carried by the proxy of the first node; the others
//! keep their tables and log when a change takes effect there. What took effect when,
//! and where each connection went, is in `service-proxy.jsonl` (`truth`).
//!
//! It routes to endpoints as EndpointSlices show them and knows nothing of pods.

mod dataplane;
mod runner;
mod table;
mod truth;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::Shared;
use super::registry::{EventType, WatchFrom};
use super::resource::Resource;
use super::selector::Selection;
use dataplane::{InEffect, PortProxy};
use runner::Throttle;
use table::{Backend, ServicePort, Table};
use truth::{Line, TruthLog};

/// The log's name in the cluster's log directory.
pub const LOG_FILE: &str = "service-proxy.jsonl";

/// The Service proxies could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceProxyError {
    /// Their log cannot be written.
    #[error("write {}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Runs the Service proxies of `nodes` until the cluster stops. The first node's proxy
/// carries the connections.
///
/// # Errors
///
/// The log cannot be opened or written.
pub async fn run(shared: Shared, nodes: Vec<String>) -> Result<(), ServiceProxyError> {
    let path = shared.log_dir.join(LOG_FILE);
    let log_error = |source| ServiceProxyError::Log { path: path.clone(), source };
    let (truth, writer) = TruthLog::open(&path).await.map_err(log_error)?;

    let mut tasks = JoinSet::new();
    for (index, node) in nodes.into_iter().enumerate() {
        let role = if index == 0 { Role::Carries } else { Role::KeepsTable };
        let proxy = NodeProxy::new(shared.clone(), node, role, truth.clone());
        tasks.spawn(proxy.run());
    }
    drop(truth);

    let writing = writer.run();
    tokio::pin!(writing);
    tokio::select! {
        () = shared.stop.cancelled() => {}
        // The writer ends only when it fails, as long as a proxy lives.
        written = &mut writing => return written.map_err(log_error),
    }
    tasks.shutdown().await;
    writing.await.map_err(log_error)
}

/// What a node's proxy does with its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Carries the connections.
    Carries,
    /// Keeps the table and logs its changes.
    KeepsTable,
}

/// The proxy of one node.
struct NodeProxy {
    shared: Shared,
    node: String,
    role: Role,
    truth: TruthLog,
    ports: BTreeMap<ServicePort, Port>,
    listeners: JoinSet<()>,
}

/// One Service port as it is in effect on a node.
struct Port {
    backends: Arc<[Backend]>,
    in_effect: Arc<InEffect>,
    /// `None` while nothing listens here.
    listener: Option<AbortHandle>,
}

impl NodeProxy {
    fn new(shared: Shared, node: String, role: Role, truth: TruthLog) -> Self {
        Self { shared, node, role, truth, ports: BTreeMap::new(), listeners: JoinSet::new() }
    }

    async fn run(mut self) {
        let changes = Notify::new();
        let shared = self.shared.clone();
        let mut throttle = Throttle::new(shared.config.service_proxy.min_sync_period);
        let syncing = async {
            loop {
                throttle.due(&changes).await;
                self.sync().await;
                throttle.completed();
            }
        };
        tokio::join!(
            announce(&shared, Resource::Services, &changes),
            announce(&shared, Resource::EndpointSlices, &changes),
            syncing,
        );
    }

    /// One sync: takes the objects as they are now; the result is in effect when the
    /// measured duration of a sync has passed.
    async fn sync(&mut self) {
        let services = objects(&self.shared, Resource::Services);
        let slices = objects(&self.shared, Resource::EndpointSlices);
        let table = table::compute(&services, &slices);
        sleep(self.shared.sampler.sample(&self.shared.config.latencies.slice_to_rule)).await;
        self.apply(table);
    }

    fn apply(&mut self, mut table: Table) {
        let gone: Vec<_> = self.ports.keys().filter(|port| !table.contains_key(*port)).cloned().collect();
        for key in gone {
            self.put_into_effect(&key, Arc::default());
            if let Some(listener) = self.ports.remove(&key).and_then(|port| port.listener) {
                listener.abort();
            }
        }
        while let Some((key, backends)) = table.pop_first() {
            self.put_into_effect(&key, backends);
            if self.role == Role::Carries {
                self.listen(&key);
            }
        }
        // Reap the listeners of Services that are gone.
        while self.listeners.try_join_next().is_some() {}
    }

    fn put_into_effect(&mut self, key: &ServicePort, backends: Arc<[Backend]>) {
        let port = self.ports.entry(key.clone()).or_insert_with(|| Port {
            backends: Arc::default(),
            in_effect: Arc::default(),
            listener: None,
        });
        if port.backends == backends {
            return;
        }
        let (swap_begin_ns, t_ns) = port.in_effect.swap(self.shared.clock, Arc::clone(&backends));
        self.truth.write(&Line::Sync {
            t_ns,
            swap_begin_ns,
            node: &self.node,
            service: &key.service,
            port: key.address.port(),
            endpoints: &backends,
        });
        port.backends = backends;
    }

    /// Listens on a Service's address, if nothing does yet. What fails is tried again with
    /// every sync.
    fn listen(&mut self, key: &ServicePort) {
        let Some(port) = self.ports.get_mut(key) else { return };
        if port.listener.is_some() {
            return;
        }
        let proxy = PortProxy {
            port: key.clone(),
            in_effect: Arc::clone(&port.in_effect),
            truth: self.truth.clone(),
            clock: self.shared.clock,
        };
        match proxy.listen() {
            Ok(listener) => port.listener = Some(self.listeners.spawn(proxy.serve(listener))),
            Err(error) => self.report_unreachable(key, &error),
        }
    }

    fn report_unreachable(&self, key: &ServicePort, error: &io::Error) {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "; connections to this Service fail: give it a port from 1024 on (the system keeps lower \
                 ones for root), and the port that pods listen on as targetPort"
            }
            io::ErrorKind::AddrInUse => {
                "; connections to this Service fail: stop the process that listens on this port (on all \
                 addresses, most likely), or give the Service another port"
            }
            _ => "",
        };
        let message = format!("cannot listen on {}: {error}{remedy}", key.address);
        tracing::warn!(service = %key.service, "{message}");
        let Some((namespace, name)) = key.service.split_once('/') else { return };
        if let Ok(service) = self.shared.registry.get(Resource::Services, namespace, name) {
            self.shared.registry.record_event(
                &service,
                EventType::Warning,
                "FailedToListen",
                &message,
                "service-proxy",
            );
        }
    }
}

/// Announces every change of a resource, whatever it changes. Never returns.
async fn announce(shared: &Shared, resource: Resource, changes: &Notify) {
    loop {
        let watch = shared.registry.watch(resource, None, Selection::all(), WatchFrom::Existing);
        if let Ok(mut watch) = watch {
            while watch.next().await.is_ok() {
                changes.notify_one();
            }
        }
        // The watch fell behind the history. What it missed is a change, too.
        changes.notify_one();
        tokio::task::yield_now().await;
    }
}

/// All objects of a resource. One that cannot be read is no Service or slice to route by.
fn objects<T: DeserializeOwned>(shared: &Shared, resource: Resource) -> Vec<T> {
    let list = shared.registry.list(resource, None, &Selection::all());
    list.items.iter().filter_map(|object| T::deserialize(&**object).ok()).collect()
}

#[cfg(test)]
mod tests;
