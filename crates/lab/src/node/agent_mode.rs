//! A node agent's mode, as its pods see it.

use tokio::sync::watch;

/// A node agent's mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AgentMode {
    /// True if the agent is not running: it is between exit and start, or the node is off. It notices and writes
    /// nothing; the containers of a stopped agent keep running.
    pub(super) down: bool,
    /// Number of times that the agent has exited so far.
    pub(super) restarts: u32,
    /// Grace period of pods, in seconds, while the node is shutting down.
    pub(super) shutdown_grace: Option<i64>,
}

/// Waits until the node agent is up.
pub(super) async fn until_up(mode: &watch::Receiver<AgentMode>) {
    // The agent holds the other end while pods are running.
    let _ = mode.clone().wait_for(|mode| !mode.down).await;
}
