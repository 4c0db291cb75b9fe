//! The node agent: a kubelet's job with processes of this machine.
//!
//! One agent per node follows the pods that are bound to it and runs a worker for each
//! (`pod`): containers are child processes in process groups of their own, started,
//! probed and restarted by `container`, ended by `stop` in the order and with the
//! arithmetic of Kubernetes (`grace`). It speaks to the rest of the cluster only through
//! the registry, as a kubelet speaks to the API server. Images, volumes and resource
//! limits do not exist here.

mod action;
mod container;
mod expand;
mod grace;
mod launch;
mod pod;
mod probe;
mod process;
mod status;
mod stop;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Shared;
use super::registry::{WatchEvent, WatchEventType, WatchFrom};
use super::resource::Resource;
use super::selector::Selection;
use pod::{PodContext, PodWorker, Seen};

/// What an agent knows of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's name.
    pub name: String,
    /// Its place among the nodes, from 0.
    pub index: u8,
    /// The node's address.
    pub address: Ipv4Addr,
    /// The program that runs for the image `rolldrop`.
    pub own_binary: PathBuf,
}

/// Where the log files of a pod's containers are: `CONTAINER.log`, stdout and stderr together.
pub fn pod_log_dir(log_dir: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    log_dir.join("pods").join(format!("{namespace}_{name}_{uid}"))
}

/// Runs the pods of one node until the cluster stops; no process of theirs is left then.
pub async fn run(shared: Shared, node: NodeInfo) {
    let mut agent = Agent {
        selection: Selection::field("spec.nodeName", &node.name),
        node: Arc::new(node),
        shared,
        pods: HashMap::new(),
    };
    let stop = agent.shared.stop.clone();
    let mut workers = JoinSet::new();
    tokio::select! {
        () = agent.follow(&mut workers) => {}
        () = stop.cancelled() => {}
    }
    // The workers see the same token, kill what runs, and end.
    while workers.join_next().await.is_some() {}
}

struct Agent {
    shared: Shared,
    node: Arc<NodeInfo>,
    selection: Selection,
    /// The pods with a worker, by uid.
    pods: HashMap<String, watch::Sender<Seen>>,
}

impl Agent {
    /// Hands the pods' changes to their workers. Never returns.
    async fn follow(&mut self, workers: &mut JoinSet<String>) {
        loop {
            let watch =
                self.shared.registry.watch(Resource::Pods, None, self.selection.clone(), WatchFrom::Existing);
            if let Ok(mut watch) = watch {
                self.forget_missing();
                loop {
                    tokio::select! {
                        event = watch.next() => match event {
                            Ok(event) => self.handle(event, workers),
                            // The watch fell behind: list again.
                            Err(_) => break,
                        },
                        Some(uid) = workers.join_next() => {
                            if let Ok(uid) = uid {
                                self.pods.remove(&uid);
                            }
                        }
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Pods that vanished while no watch was open.
    fn forget_missing(&self) {
        let list = self.shared.registry.list(Resource::Pods, None, &self.selection);
        for (uid, seen) in &self.pods {
            if !list.items.iter().any(|pod| pod["metadata"]["uid"] == **uid) {
                seen.send_modify(|seen| seen.gone = true);
            }
        }
    }

    fn handle(&mut self, event: WatchEvent, workers: &mut JoinSet<String>) {
        let WatchEvent { event_type, object } = event;
        let Some(uid) = object["metadata"]["uid"].as_str().map(str::to_owned) else { return };
        let gone = event_type == WatchEventType::Deleted;
        if let Some(worker) = self.pods.get(&uid) {
            worker.send_replace(Seen { object, gone });
            return;
        }
        if gone || is_over(&object) {
            return;
        }
        let pod = match Pod::deserialize(&*object) {
            Ok(pod) => pod,
            Err(error) => {
                // The registry has checked its shape, so this is a fault of ours.
                tracing::error!(%error, uid, "a pod cannot be read");
                return;
            }
        };
        let (sender, seen) = watch::channel(Seen { object: Arc::clone(&object), gone: false });
        let context = PodContext::new(self.shared.clone(), Arc::clone(&self.node), object, pod);
        let stop = self.shared.stop.clone();
        self.pods.insert(uid.clone(), sender);
        workers.spawn(async move {
            PodWorker::run(context, seen, stop).await;
            uid
        });
    }
}

/// Whether nothing is left to be done for a pod.
fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests;
