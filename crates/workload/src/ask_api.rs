//! Requests the server's own pod from the API server again and again, as an operator or a client that elects a leader
//! does: so the log shows until when that works.
//!
//! It finds the API server and its credentials like any program in a pod: by the variables `KUBERNETES_SERVICE_HOST`
//! and `KUBERNETES_SERVICE_PORT`, and the files of the service account. On the embedded cluster's userspace dataplane,
//! where no file can be put at that path, the variable `ROLLDROP_SERVICE_ACCOUNT` has the path of the files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::log::{Entry, Log};

const FILES: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Longest time to wait for an answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// Reason that the API server cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The process has no address of the API server.
    #[error("the variable {0} is not set: this works in a pod only")]
    NoVariable(&'static str),
    /// The pod has no service account.
    #[error("there is no {}: the pod has no service account token", .0.display())]
    NoFile(PathBuf),
    /// The service account cannot be used.
    #[error("use the service account")]
    Config(#[from] KubeconfigError),
    /// No client could be made from the service account.
    #[error("make a client")]
    Client(#[from] kube::Error),
}

/// Asks for one pod.
pub(super) struct Asker {
    client: Client,
    path: String,
    period: Duration,
}

impl Asker {
    /// Reads the service account. `pod` is the server's own.
    ///
    /// # Errors
    ///
    /// Fails if there is no service account, or no address of the API server.
    pub(super) async fn new(period: Duration, pod: &str) -> Result<Self, ApiError> {
        let variable = |name| std::env::var(name).map_err(|_| ApiError::NoVariable(name));
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let dir = std::env::var("ROLLDROP_SERVICE_ACCOUNT").unwrap_or_else(|_| FILES.to_owned());
        let told = |file: &str| {
            let path = Path::new(&dir).join(file);
            std::fs::read_to_string(&path).map_err(|_| ApiError::NoFile(path))
        };
        let (ca, token, namespace) = (told("ca.crt")?, told("token")?, told("namespace")?);
        let cluster = json!({
            "server": format!("https://{host}:{port}"),
            "certificate-authority-data": BASE64_STANDARD.encode(ca),
        });
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "clusters": [{"name": "own", "cluster": cluster}],
            "users": [{"name": "own", "user": {"token": token.trim()}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
            "current-context": "own",
        }))
        .map_err(kube::Error::SerdeError)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", namespace.trim());
        Ok(Self { client: Client::try_from(config)?, path, period })
    }

    /// Asks, and logs each result. Never returns.
    pub(super) async fn run(self, log: &Log) {
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            match self.ask().await {
                Ok(()) => log.write(Entry::ApiAnswered),
                Err(AskError::Refused(why)) => log.write(Entry::ApiRefused { why: &why }),
                Err(AskError::Failed(why)) => log.write(Entry::ApiFailed { why: &why }),
            }
        }
    }

    async fn ask(&self) -> Result<(), AskError> {
        let request =
            Request::get(&self.path).body(Vec::new()).map_err(|error| AskError::Failed(error.to_string()))?;
        match timeout(LONGEST_ANSWER, self.client.request_text(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(AskError::Refused(status.message)),
            Ok(Err(error)) => Err(AskError::Failed(error.to_string())),
            Err(_) => Err(AskError::Failed(format!("no answer within {LONGEST_ANSWER:?}"))),
        }
    }
}

/// Reason that there is no answer.
enum AskError {
    /// The API server answered 403.
    Refused(String),
    Failed(String),
}
