//! What can be done to a node agent from outside: a stop, a restart, the node's shutdown, and the end
//! of a container's process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use super::process::Process;

/// Reaches the node agents of a cluster by their nodes' names. Clones reach the same ones.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    senders: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Command>>>>,
    /// What runs, by pod UID and container.
    processes: Arc<Mutex<HashMap<(String, String), Process>>>,
}

/// What a node agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// End and start again, while containers live on. A pod that is being terminated starts
    /// over, with its whole grace period. A node that was shut down is booted.
    Restart,
    /// End, while containers live on, until it is told to restart. It hears of nothing else
    /// meanwhile.
    Stop,
    /// Shut the node down: its pods end within this time, or within their own grace period if
    /// that is shorter, without being deleted. When the last has ended the node is off, until it is
    /// told to restart.
    Shutdown {
        /// Of all pods.
        grace_seconds: i64,
    },
}

/// A container whose process runs.
struct Running {
    agents: Agents,
    key: (String, String),
}

impl Drop for Running {
    fn drop(&mut self) {
        self.agents.processes.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// There is no node agent of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node agent runs for node {0:?}")]
pub struct UnknownNode(pub String);

impl Agents {
    /// Tells a node's agent to do something; does not wait until that is done.
    ///
    /// # Errors
    ///
    /// There is no such node.
    pub fn command(&self, node: &str, command: Command) -> Result<(), UnknownNode> {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = senders.get(node).map(|sender| sender.send(command));
        sent.and_then(Result::ok).ok_or_else(|| UnknownNode(node.to_owned()))
    }

    /// Kills the process of a pod's container, if one runs; the agent notices that by itself.
    /// Answers whether there was one.
    pub fn kill(&self, pod_uid: &str, container: &str) -> bool {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = processes.get(&(pod_uid.to_owned(), container.to_owned()));
        found.map(Process::kill).is_some()
    }

    /// A container's process runs; it can be killed as long as the answer lives.
    pub(super) fn runs(&self, pod_uid: &str, container: &str, process: Process) -> impl Drop + use<> {
        let key = (pod_uid.to_owned(), container.to_owned());
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.insert(key.clone(), process);
        Running { agents: self.clone(), key }
    }

    /// What a node's agent is told from now on.
    pub(super) fn commands_of(&self, node: &str) -> mpsc::UnboundedReceiver<Command> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned(), sender);
        receiver
    }
}
