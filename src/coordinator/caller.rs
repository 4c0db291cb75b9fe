//! What every dealing with the cluster takes: a client, a namespace, and an end to every wait.

use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{CoordinatorError, Limits};

/// Calls the API server on behalf of one run.
#[derive(Clone)]
pub struct Caller {
    /// The cluster.
    pub client: Client,
    /// The namespace in which everything happens.
    pub namespace: String,
    /// How long to wait for what.
    pub limits: Limits,
    /// Ended when the run is to end early.
    pub stop: CancellationToken,
}

impl Caller {
    /// The future's result, or an error when the run is stopped first.
    pub(super) async fn stoppable<T>(&self, future: impl Future<Output = T>) -> Result<T, CoordinatorError> {
        tokio::select! {
            result = future => Ok(result),
            () = self.stop.cancelled() => Err(CoordinatorError::Interrupted),
        }
    }

    /// The API server's version, such as `v1.36.2`.
    pub(super) async fn server_version(&self) -> Result<String, CoordinatorError> {
        let what = "read the version";
        let version = self.limited(what, self.client.apiserver_version()).await?;
        Ok(version.map_err(|e| CoordinatorError::api(what, &e))?.git_version)
    }

    /// The future's result, within the limit for API calls.
    pub(super) async fn limited<T>(
        &self,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, CoordinatorError> {
        let limit: Duration = self.limits.api_call;
        match self.stoppable(tokio::time::timeout(limit, future)).await? {
            Ok(result) => Ok(result),
            Err(_) => Err(CoordinatorError::Timeout { what: what.to_owned(), limit }),
        }
    }
}
