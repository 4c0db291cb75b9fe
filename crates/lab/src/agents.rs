//! What can be done to a node agent from outside: a stop, a restart, the node's shutdown, and the end
//! of a container's process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::sync::lock;

/// Kills the process of one container.
type Kill = Box<dyn Fn() + Send + Sync>;

/// Reaches the node agents of a cluster by their nodes' names. Clones reach the same ones.
#[derive(Clone, Default)]
pub(crate) struct Agents {
    senders: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Command>>>>,
    /// How to kill what runs, by pod UID and container.
    running: Arc<Mutex<HashMap<(String, String), Kill>>>,
}

/// What a node agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
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

/// A container whose process runs, as long as this lives.
pub(crate) struct Running {
    agents: Agents,
    key: (String, String),
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.agents.running).remove(&self.key);
    }
}

/// There is no node agent of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node agent runs for node {0:?}")]
pub(crate) struct UnknownNode(pub(crate) String);

impl Agents {
    /// Tells a node's agent to do something; does not wait until that is done.
    ///
    /// # Errors
    ///
    /// There is no such node.
    pub(crate) fn command(&self, node: &str, command: Command) -> Result<(), UnknownNode> {
        let senders = lock(&self.senders);
        let sent = senders.get(node).map(|sender| sender.send(command));
        sent.and_then(Result::ok).ok_or_else(|| UnknownNode(node.to_owned()))
    }

    /// Kills the process of a pod's container, if one runs; the agent notices that by itself.
    /// Returns whether there was one.
    pub(crate) fn kill(&self, pod_uid: &str, container: &str) -> bool {
        let running = lock(&self.running);
        let found = running.get(&(pod_uid.to_owned(), container.to_owned()));
        found.inspect(|kill| kill()).is_some()
    }

    /// Notes that a container's process runs; it can be killed as long as the returned value lives.
    pub(crate) fn runs(
        &self,
        pod_uid: &str,
        container: &str,
        kill: impl Fn() + Send + Sync + 'static,
    ) -> Running {
        let key = (pod_uid.to_owned(), container.to_owned());
        let mut running = lock(&self.running);
        running.insert(key.clone(), Box::new(kill));
        Running { agents: self.clone(), key }
    }

    /// The commands to a node's agent from now on.
    pub(crate) fn commands_of(&self, node: &str) -> mpsc::UnboundedReceiver<Command> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.senders).insert(node.to_owned(), sender);
        receiver
    }
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agents").finish_non_exhaustive()
    }
}
