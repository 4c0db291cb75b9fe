//! State that the tasks of a cluster share. This module is below all of them: the API server, controllers, node agents,
//! Service proxies and DNS use it, and none of them uses another's state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::config::ClusterConfig;
use super::hop_latency::{HopLatencies, HopLatency, Sampler};
use super::network::Network;
use super::registry::{DeleteOptions, Deleted, Registry};
use super::resource::Resource;
use super::status::Status;
use rolldrop_record::Clock;

/// State that every task of a cluster uses. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ClusterContext {
    pub(crate) registry: Registry,
    pub(crate) config: Arc<ClusterConfig>,
    pub(crate) sampler: Sampler,
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    /// Directory for pod and Service proxy logs.
    pub(crate) log_dir: Arc<PathBuf>,
    /// Cancelled when the cluster stops.
    pub(crate) stop: CancellationToken,
}

impl ClusterContext {
    /// Draws one of the model's delays.
    pub(crate) fn sample(&self, latency: impl FnOnce(&HopLatencies) -> HopLatency) -> Duration {
        self.sampler.sample(&latency(&self.config.latencies))
    }

    /// Waits for one of the model's delays.
    pub(crate) async fn delay(&self, latency: impl FnOnce(&HopLatencies) -> HopLatency) {
        tokio::time::sleep(self.sample(latency)).await;
    }

    /// Deletes a pod as the API server does, including the delays: the pod is marked and, if it has no grace period,
    /// then removed. If this future is dropped in between, the pod is removed immediately.
    pub(crate) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        self.delay(|latencies| latencies.pod_delete).await;
        Ok(match self.registry.begin_delete(Resource::Pods, namespace, name, options)? {
            Deleted::Due(due) => {
                self.delay(|latencies| latencies.marked_to_deleted).await;
                Deleted::Removed(due.finish())
            }
            deleted => deleted,
        })
    }
}
