//! Mode of a node agent, as its pods need to know it.

use tokio::sync::watch;

/// Mode of a node agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mode {
    /// True if the agent does not run: it is between its end and its start, or the node is off. It notices and writes
    /// nothing; the containers of a stopped agent live on.
    pub(super) down: bool,
    /// Number of times that it has ended so far.
    pub(super) restarts: u32,
    /// Grace period of pods, in seconds, while the node is shutting down.
    pub(super) shutdown_grace: Option<i64>,
}

/// Waits until the node agent is up.
pub(super) async fn until_up(mode: &watch::Receiver<Mode>) {
    // The agent holds the other end as long as pods run.
    let _ = mode.clone().wait_for(|mode| !mode.down).await;
}
