//! Commands to node agents from outside: stop, restart, shut down the node, and kill a container's process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use super::sync::lock;

/// Pod UID and container name.
type ContainerKey = (String, String);

/// Handle to a cluster's node agents, by node name. Clones share the same agents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agents {
    senders: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<AgentCommand>>>>,
    /// Channels for signals to the processes of running containers.
    running: Arc<Mutex<HashMap<ContainerKey, mpsc::UnboundedSender<Signal>>>>,
}

/// Command to a node agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentCommand {
    /// Exit and start again while containers keep running. Pod terminations start over with their full grace period. A
    /// node that was shut down boots.
    Restart,
    /// Exit while containers keep running, and stay down until a restart. Meanwhile, the agent ignores all other
    /// commands.
    Stop,
    /// Shut the node down: its pods are terminated, but not deleted, within this time or their own grace period,
    /// whichever is shorter. Once the last pod has terminated, the node is off until a restart.
    Shutdown {
        /// Maximum grace period of each pod, in seconds.
        grace_seconds: i64,
    },
}

/// A container's running process, registered until this is dropped.
pub(crate) struct RegisteredProcess {
    agents: Agents,
    key: ContainerKey,
}

impl Drop for RegisteredProcess {
    fn drop(&mut self) {
        lock(&self.agents.running).remove(&self.key);
    }
}

impl Agents {
    /// Sends a command to a node's agent without waiting for it to be carried out. Returns true if the node exists.
    pub(crate) fn command(&self, node: &str, command: AgentCommand) -> bool {
        lock(&self.senders).get(node).is_some_and(|sender| sender.send(command).is_ok())
    }

    /// Kills the process of a pod's container, if it is running; the agent notices on its own. Returns true if it was
    /// running.
    pub(crate) fn kill(&self, pod_uid: &str, container: &str) -> bool {
        let running = lock(&self.running);
        let found = running.get(&(pod_uid.to_owned(), container.to_owned()));
        found.is_some_and(|signals| signals.send(Signal::SIGKILL).is_ok())
    }

    /// Registers a container's running process, which can be killed until the returned value is dropped.
    pub(crate) fn runs(
        &self,
        pod_uid: &str,
        container: &str,
        signals: mpsc::UnboundedSender<Signal>,
    ) -> RegisteredProcess {
        let key = (pod_uid.to_owned(), container.to_owned());
        let mut running = lock(&self.running);
        running.insert(key.clone(), signals);
        RegisteredProcess { agents: self.clone(), key }
    }

    /// Returns a receiver for commands sent to a node's agent from now on.
    pub(crate) fn commands_of(&self, node: &str) -> mpsc::UnboundedReceiver<AgentCommand> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.senders).insert(node.to_owned(), sender);
        receiver
    }
}
