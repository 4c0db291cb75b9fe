//! What a node agent is doing, as its pods and its heartbeats need to know it.

use tokio::sync::watch;

/// What a node agent is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mode {
    /// The agent does not run: it is between its end and its start, or the node is off. Nothing is
    /// noticed, and nothing written; the containers of a stopped agent live on.
    pub(super) down: bool,
    /// How often it has ended so far.
    pub(super) restarts: u32,
    /// The node is shutting down, and pods get so many seconds.
    pub(super) shutdown_grace: Option<i64>,
}

/// Waits until the node agent is there to act.
pub(super) async fn until_up(mode: &watch::Receiver<Mode>) {
    // The agent holds the other end as long as pods run.
    let _ = mode.clone().wait_for(|mode| !mode.down).await;
}
