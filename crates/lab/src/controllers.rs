//! The control plane's loops: each watches a few resources and brings objects closer to their specifications.
//!
//! They run in the same process as the store, so a controller keeps no cache; an event only tells it which objects to
//! check. Named [latencies](super::hop_latency::HopLatencies) represent the time that a real cluster takes.

mod availability;
mod claim;
mod client_rate;
mod daemon_set;
mod deployment;
mod disruption_budget;
mod endpoint_slice;
mod events;
mod garbage;
mod job;
mod legacy_endpoints;
mod namespace_deletion;
mod node_lifecycle;
mod pod_control;
mod pod_template;
mod queue;
mod reconciler;
mod replica_set;
mod scheduler;
mod stateful_set;
mod taints;

use tokio::task::JoinSet;

use super::shared::ClusterContext;

/// Runs all controllers until the cluster stops.
pub(crate) async fn run(shared: ClusterContext) {
    let stop = shared.stop.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(deployment::run(shared.clone()));
    tasks.spawn(replica_set::run(shared.clone()));
    tasks.spawn(stateful_set::run(shared.clone()));
    tasks.spawn(daemon_set::run(shared.clone()));
    tasks.spawn(scheduler::run(shared.clone()));
    tasks.spawn(disruption_budget::run(shared.clone()));
    tasks.spawn(job::run(shared.clone()));
    tasks.spawn(node_lifecycle::run(shared.clone()));
    tasks.spawn(endpoint_slice::run(shared.clone()));
    tasks.spawn(garbage::run(shared.clone()));
    tasks.spawn(namespace_deletion::run(shared.clone()));
    tasks.spawn(events::run(shared));
    tokio::select! {
        () = stop.cancelled() => {}
        // Controllers never return on their own; one that does has panicked.
        Some(ended) = tasks.join_next() => {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller failed; stopping the cluster");
            }
            stop.cancel();
        }
    }
    tasks.shutdown().await;
}

#[cfg(test)]
mod tests;
