//! The node agent: a kubelet's job with processes of this machine.
//!
//! One agent per node follows the pods that are bound to it and runs a worker for each
//! (`pod`): containers are child processes in process groups of their own, started,
//! probed and restarted by `container`, ended by `ending` and `stop` in the order and with the
//! arithmetic of Kubernetes (`grace`). It speaks to the rest of the cluster only through
//! the registry, as a kubelet speaks to the API server; [`Agents`] reaches it from outside.
//! Images and resource limits do not exist here.

mod action;
mod agents;
mod container;
mod context;
mod ending;
mod env;
mod expand;
mod grace;
mod grpc_check;
mod http_get;
mod launch;
mod logs;
mod pod;
mod probe;
mod process;
mod quantity;
mod service_account;
mod status;
mod stop;
mod view;
mod volumes;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Shared;
use super::registry::{EventType, Part, WatchEvent, WatchEventType, WatchFrom};
use super::resource::Resource;
use super::selector::Selection;
pub use agents::{Agents, Command, UnknownNode};
use context::PodContext;
pub use logs::{LogEntry, container_log, next_log, pod_log_dir, previous_container_log};
use pod::{Mode, PodWorker, Seen};
use status::Verdict;

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

/// Runs the pods of one node until the cluster stops; no process of theirs is left then.
pub async fn run(shared: Shared, node: NodeInfo) {
    let mut commands = shared.agents.commands_of(&node.name);
    let mut agent = Agent {
        selection: Selection::field("spec.nodeName", &node.name),
        node: Arc::new(node),
        shared,
        pods: HashMap::new(),
        mode: watch::Sender::new(Mode::default()),
    };
    let stop = agent.shared.stop.clone();
    let mut workers = JoinSet::new();
    tokio::select! {
        () = agent.follow(&mut workers, &mut commands) => {}
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
    mode: watch::Sender<Mode>,
}

impl Agent {
    /// Hands the pods' changes to their workers. Never returns.
    async fn follow(
        &mut self,
        workers: &mut JoinSet<String>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) {
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
                        Some(command) = commands.recv() => match command {
                            Command::Restart => {
                                self.restart().await;
                                break;
                            }
                            Command::Shutdown { grace_seconds } => self.shut_down(grace_seconds),
                        },
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Ends, and starts again after a while. Nothing is noticed meanwhile; processes live on.
    async fn restart(&self) {
        self.mode.send_modify(|mode| (mode.down, mode.restarts) = (true, mode.restarts + 1));
        sleep(self.shared.sampler.sample(&self.shared.config.latencies.node_agent_restart)).await;
        let was_shut_down = self.mode.borrow().shutdown_grace.is_some();
        self.mode.send_modify(|mode| (mode.down, mode.shutdown_grace) = (false, None));
        self.note("Starting", "Starting kubelet.");
        if was_shut_down {
            self.set_ready(true, "KubeletReady", "kubelet is posting ready status");
            self.note("NodeReady", &format!("Node {} status is now: NodeReady", self.node.name));
        }
    }

    fn shut_down(&self, grace_seconds: i64) {
        self.set_ready(false, "KubeletNotReady", "node is shutting down");
        self.note("NodeNotReady", &format!("Node {} status is now: NodeNotReady", self.node.name));
        self.mode.send_modify(|mode| mode.shutdown_grace = Some(grace_seconds));
    }

    fn note(&self, reason: &str, message: &str) {
        let registry = &self.shared.registry;
        if let Ok(node) = registry.get(Resource::Nodes, "", &self.node.name) {
            registry.record_event(&node, EventType::Normal, reason, message, "kubelet");
        }
    }

    fn set_ready(&self, ready: bool, reason: &str, message: &str) {
        let registry = &self.shared.registry;
        let now = registry.now();
        let written = registry.modify(Resource::Nodes, "", &self.node.name, Part::Status, |node| {
            let conditions = node["status"]["conditions"].as_array_mut().into_iter().flatten();
            for condition in conditions.filter(|condition| condition["type"] == "Ready") {
                condition["status"] = json!(if ready { "True" } else { "False" });
                condition["reason"] = json!(reason);
                condition["message"] = json!(message);
                condition["lastHeartbeatTime"] = json!(now);
                condition["lastTransitionTime"] = json!(now);
            }
        });
        if let Err(status) = written {
            tracing::debug!(%status, node = self.node.name, "node status");
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
        if self.mode.borrow().shutdown_grace.is_some() {
            self.reject(&object);
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
        let (mode, stop) = (self.mode.subscribe(), self.shared.stop.clone());
        self.pods.insert(uid.clone(), sender);
        workers.spawn(async move {
            PodWorker::run(context, seen, mode, stop).await;
            uid
        });
    }

    /// Refuses a pod that came while the node shuts down.
    fn reject(&self, pod: &Value) {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        let verdict = Verdict::NotAdmitted;
        let registry = &self.shared.registry;
        let (namespace, name) = (text("namespace"), text("name"));
        let written = registry.modify(Resource::Pods, namespace, name, Part::Status, |pod| {
            pod["status"]["phase"] = json!("Failed");
            pod["status"]["reason"] = json!(verdict.reason());
            pod["status"]["message"] = json!(verdict.message());
        });
        if let Err(status) = written {
            tracing::debug!(%status, name, "pod status");
        }
        registry.record_event(pod, EventType::Warning, verdict.reason(), verdict.message(), "kubelet");
    }
}

/// Whether nothing is left to be done for a pod.
fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests;
