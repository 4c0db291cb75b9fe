//! Requests the server's own pod from the API server repeatedly, as an operator or a leader-election client does.
//! The log shows how long this keeps working.
//!
//! It finds the API server and the credentials like any program in a pod: through the kubeconfig that `KUBECONFIG`
//! names (as on the embedded cluster's userspace dataplane, where no file can be put at the usual path), or else
//! through its service account.

use std::time::Duration;

use http::Request;
use kube::config::{InClusterError, KubeConfigOptions, KubeconfigError};
use kube::{Client, Config};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::workload_log::{ServerEvent, WorkloadLog};

/// Maximum time to wait for a response.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// Error that keeps the server from querying the API server.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// `KUBECONFIG` names a file that cannot be used.
    #[error("use the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// The process has no service account or no address for the API server.
    #[error("use the service account (this works only in a pod)")]
    ServiceAccount(#[from] InClusterError),
    /// No client could be created.
    #[error("create a client")]
    Client(#[from] kube::Error),
}

/// Client that requests one pod.
pub(super) struct Asker {
    client: Client,
    path: String,
    period: Duration,
}

impl Asker {
    /// Reads the credentials. `pod` is the server's own pod.
    ///
    /// # Errors
    ///
    /// Fails if the credentials or the address of the API server are missing.
    pub(super) async fn new(period: Duration, pod: &str) -> Result<Self, ApiError> {
        let mut config = match std::env::var_os("KUBECONFIG") {
            Some(_) => Config::from_kubeconfig(&KubeConfigOptions::default()).await?,
            None => Config::incluster()?,
        };
        config.proxy_url = None;
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", config.default_namespace);
        Ok(Self { client: Client::try_from(config)?, path, period })
    }

    /// Sends requests and logs each result. Never returns.
    pub(super) async fn run(self, log: &WorkloadLog) {
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            match self.ask().await {
                Ok(()) => log.write(ServerEvent::ApiAnswered),
                Err(PodRequestError::Refused(why)) => log.write(ServerEvent::ApiRefused { why: &why }),
                Err(PodRequestError::Failed(why)) => log.write(ServerEvent::ApiFailed { why: &why }),
            }
        }
    }

    async fn ask(&self) -> Result<(), PodRequestError> {
        let request = Request::get(&self.path)
            .body(Vec::new())
            .map_err(|error| PodRequestError::Failed(error.to_string()))?;
        match timeout(LONGEST_ANSWER, self.client.request_text(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                Err(PodRequestError::Refused(status.message))
            }
            Ok(Err(error)) => Err(PodRequestError::Failed(error.to_string())),
            Err(_) => Err(PodRequestError::Failed(format!("no answer within {LONGEST_ANSWER:?}"))),
        }
    }
}

/// Reason for a failed request.
enum PodRequestError {
    /// The API server responded with 403.
    Refused(String),
    Failed(String),
}
