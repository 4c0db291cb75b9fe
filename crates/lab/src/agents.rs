//! Commands to node agents from outside: stop, restart, node shutdown, and killing a container's process.

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
    /// Functions that kill running containers, by pod UID and container name.
    running: Arc<Mutex<HashMap<(String, String), Kill>>>,
}

/// Command to a node agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// End and start again, while containers live on. The termination of a pod starts over, with its whole grace
    /// period. A node that was shut down boots.
    Restart,
    /// End, while containers live on, until a restart. The agent obeys no other command meanwhile.
    Stop,
    /// Shut the node down: its pods end within this time, or within their own grace period if that is shorter,
    /// without being deleted. When the last has ended the node is off until a restart.
    Shutdown {
        /// Grace period of all pods.
        grace_seconds: i64,
    },
}

/// A container whose process runs, until this is dropped.
pub(crate) struct Running {
    agents: Agents,
    key: (String, String),
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.agents.running).remove(&self.key);
    }
}

impl Agents {
    /// Sends a node's agent a command; does not wait until it is done. Returns true if there is such a node.
    pub(crate) fn command(&self, node: &str, command: Command) -> bool {
        lock(&self.senders).get(node).is_some_and(|sender| sender.send(command).is_ok())
    }

    /// Kills the process of a pod's container, if one runs; the agent notices that by itself. Returns true if there
    /// was one.
    pub(crate) fn kill(&self, pod_uid: &str, container: &str) -> bool {
        let running = lock(&self.running);
        let found = running.get(&(pod_uid.to_owned(), container.to_owned()));
        found.inspect(|kill| kill()).is_some()
    }

    /// Registers a container's running process; it can be killed until the returned value is dropped.
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

    /// Returns a receiver of the commands to a node's agent from now on.
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
