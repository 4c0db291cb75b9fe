//! The node agent, which does a kubelet's job with processes on this machine.
//!
//! Each node's agent watches the pods bound to the node and runs a worker for each (`pod`). Containers are child
//! processes in their own process groups. `container_runner` starts, probes and restarts them; `container_termination`
//! and `stop` stop them in Kubernetes' order and with its grace period arithmetic (`grace`). The agent communicates
//! with the rest of the cluster only through the registry, as a kubelet does with the API server, and reports there
//! whether the node is ready (`readiness`). `agents` delivers commands from outside. The agent neither pulls images nor
//! enforces resource limits.

mod agent_mode;
mod container_action;
mod container_process;
mod container_runner;
mod container_termination;
mod container_view;
mod env;
mod expand;
mod grace;
pub(crate) mod grpc_check;
mod hosts;
mod http_get;
mod info;
mod launch;
mod outside_commands;
mod pod;
mod pod_context;
mod pod_status;
mod probe;
mod service_account;
mod stop;
mod volumes;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::agents::AgentCommand;
use super::object_fields::is_terminal;
use super::readiness::NodeReadiness;
use super::registry::{EventType, ObjectPart, ObjectWatch, WatchEvent, WatchEventType, WatchFrom};
use super::resource::Resource;
use super::selector::ObjectSelection;
use super::shared::ClusterContext;
use super::status::note_failure;
use agent_mode::AgentMode;
use info::COMPONENT;
pub(crate) use info::NodeInfo;
use pod::{PodSnapshot, PodWorker};
use pod_context::PodContext;
use pod_status::KubeletTermination;

/// Runs the pods of one node until the cluster stops. When this returns, none of their processes is left.
pub(crate) async fn run(shared: ClusterContext, node: NodeInfo) {
    let mut commands = node.agents.commands_of(&node.name);
    let mut agent = Agent {
        selection: ObjectSelection::field("spec.nodeName", &node.name),
        node: Arc::new(node),
        shared,
        pods: HashMap::new(),
        mode: watch::Sender::new(AgentMode::default()),
    };
    let stop = agent.shared.stop.clone();
    let mut workers = JoinSet::new();
    tokio::select! {
        () = agent.follow(&mut workers, &mut commands) => {}
        () = stop.cancelled() => {}
    }
    // The workers see the same token, kill running processes, and return.
    while workers.join_next().await.is_some() {}
}

struct Agent {
    shared: ClusterContext,
    node: Arc<NodeInfo>,
    selection: ObjectSelection,
    /// Pods that have a worker, by UID.
    pods: HashMap<String, watch::Sender<PodSnapshot>>,
    mode: watch::Sender<AgentMode>,
}

/// Reason why an agent stops following its pods.
enum Pause {
    /// The agent's watch fell behind, so it lists the pods again.
    Behind,
    /// The agent exits and starts again immediately.
    Restart,
    /// The agent exits, or the node is off, until a restart.
    Off,
}

impl Agent {
    /// Passes pod changes to their workers. Never returns.
    async fn follow(
        &mut self,
        workers: &mut JoinSet<String>,
        commands: &mut mpsc::UnboundedReceiver<AgentCommand>,
    ) {
        loop {
            let watch =
                self.shared.registry.watch(Resource::Pods, None, self.selection.clone(), WatchFrom::Existing);
            if let Ok(mut watch) = watch {
                self.forget_missing();
                match self.serve(&mut watch, workers, commands).await {
                    Pause::Behind => {}
                    Pause::Restart => self.stay_down(async {}).await,
                    Pause::Off => self.stay_down(restart_command(commands)).await,
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Passes pod changes to their workers until there is a reason to pause.
    async fn serve(
        &mut self,
        watch: &mut ObjectWatch,
        workers: &mut JoinSet<String>,
        commands: &mut mpsc::UnboundedReceiver<AgentCommand>,
    ) -> Pause {
        loop {
            tokio::select! {
                event = watch.next() => match event {
                    Ok(event) => self.handle(event, workers),
                    Err(_) => return Pause::Behind,
                },
                Some(uid) = workers.join_next() => {
                    if let Ok(uid) = uid {
                        self.pods.remove(&uid);
                    }
                }
                Some(command) = commands.recv() => match command {
                    AgentCommand::Restart => return Pause::Restart,
                    AgentCommand::Stop => return Pause::Off,
                    AgentCommand::Shutdown { grace_seconds } => self.shut_down(grace_seconds),
                },
            }
            if self.is_off() {
                return Pause::Off;
            }
        }
    }

    /// Keeps the agent down until `until` completes, then starts it again. Meanwhile it notices nothing, and processes
    /// keep running.
    async fn stay_down(&self, until: impl Future<Output = ()>) {
        self.mode.send_modify(|mode| (mode.down, mode.restarts) = (true, mode.restarts + 1));
        until.await;
        self.shared.delay(|latencies| latencies.node_agent_restart).await;
        self.mode.send_modify(|mode| (mode.down, mode.shutdown_grace) = (false, None));
        self.say(NodeReadiness::Ready);
        let registry = &self.shared.registry;
        if let Ok(node) = registry.get(Resource::Nodes, "", &self.node.name) {
            registry.record_event(&node, EventType::Normal, "Starting", "Starting kubelet.", COMPONENT);
        }
    }

    fn shut_down(&self, grace_seconds: i64) {
        self.say(NodeReadiness::ShuttingDown);
        self.mode.send_modify(|mode| mode.shutdown_grace = Some(grace_seconds));
    }

    fn say(&self, readiness: NodeReadiness) {
        let written = readiness.post(&self.shared.registry, &self.node.name);
        note_failure(written, "failed to write the node status");
    }

    /// Returns true if the node was shut down and its last pod has terminated.
    fn is_off(&self) -> bool {
        let over = |seen: &watch::Sender<PodSnapshot>| is_terminal(&seen.borrow().object);
        self.mode.borrow().shutdown_grace.is_some() && self.pods.values().all(over)
    }

    /// Marks the pods that disappeared while no watch was open.
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
            worker.send_replace(PodSnapshot { object, gone });
            return;
        }
        if gone || is_terminal(&object) {
            return;
        }
        if self.mode.borrow().shutdown_grace.is_some() {
            self.reject(&object);
            return;
        }
        let pod = match Pod::deserialize(&*object) {
            Ok(pod) => pod,
            Err(error) => {
                // The registry has checked the pod's format, so this is a bug in this program.
                tracing::error!(%error, uid, "cannot read a pod");
                return;
            }
        };
        let (sender, seen) = watch::channel(PodSnapshot { object: Arc::clone(&object), gone: false });
        let (shared, node, mode) = (self.shared.clone(), Arc::clone(&self.node), self.mode.subscribe());
        let context = PodContext::new(shared, node, object, pod, mode);
        let stop = self.shared.stop.clone();
        self.pods.insert(uid.clone(), sender);
        workers.spawn(async move {
            PodWorker::run(context, seen, stop).await;
            uid
        });
    }

    /// Rejects a pod that arrived while the node was shutting down.
    fn reject(&self, pod: &Value) {
        let verdict = KubeletTermination::NotAdmitted;
        let registry = &self.shared.registry;
        let written = registry.change(Resource::Pods, pod, ObjectPart::Status, |pod| {
            pod["status"]["phase"] = json!("Failed");
            pod["status"]["reason"] = json!(verdict.reason());
            pod["status"]["message"] = json!(verdict.message());
        });
        note_failure(written, "failed to write the pod status");
        registry.record_event(pod, EventType::Warning, verdict.reason(), verdict.message(), COMPONENT);
    }
}

/// Waits for a restart command.
async fn restart_command(commands: &mut mpsc::UnboundedReceiver<AgentCommand>) {
    while commands.recv().await.is_some_and(|command| command != AgentCommand::Restart) {}
}

#[cfg(test)]
mod tests;
