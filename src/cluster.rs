//! Connects to a real cluster or starts the embedded one.
//!
//! The only seam between the two is the Kubernetes API: a [`Cluster`] hands out a
//! [`kube::Client`], and nothing outside this module can ask which kind of cluster is
//! behind it. The embedded cluster runs in a child process (`rolldrop cluster --lifeline`)
//! that ends, and takes all its pods with it, as soon as the pipe to its parent closes.

mod child;
pub mod embedded;

use std::io;
use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::process::Command;

use child::ClusterProcess;
pub use child::{ChildError, Ready};

/// Which cluster to connect to.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Start the embedded one.
    Embedded {
        /// Its parameters.
        config: Box<embedded::Config>,
        /// Where its logs and its kubeconfig go.
        log_dir: PathBuf,
    },
    /// Use a kubeconfig: the given file, or the one that `KUBECONFIG` or the home directory names,
    /// or inside a pod the pod's service account.
    Kubeconfig {
        /// The file.
        path: Option<PathBuf>,
        /// The context in it; the current one by default.
        context: Option<String>,
    },
}

/// There is no cluster to talk to.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be read or used.
    #[error("cannot read the kubeconfig{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig {
        /// The file, if one was named.
        path: Option<PathBuf>,
        /// The cause.
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no kubeconfig, and this is no pod either.
    #[error("none is named: there is no kubeconfig, and this is not a pod")]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    /// The client cannot be made, with TLS settings that do not work for example.
    #[error("cannot make a client for it")]
    Client(#[source] Box<kube::Error>),
    /// The embedded cluster did not start.
    #[error("the embedded cluster did not start")]
    Embedded(#[from] ChildError),
}

/// A cluster to work with.
pub struct Cluster {
    client: Client,
    default_namespace: String,
    kubeconfig: Option<PathBuf>,
    process: Option<ClusterProcess>,
}

impl Cluster {
    /// Connects to a cluster, starting it first if it is the embedded one. A real cluster is not
    /// contacted yet.
    ///
    /// # Errors
    ///
    /// What is wrong with the kubeconfig, or why the embedded cluster did not start.
    pub async fn connect(choice: Choice) -> Result<Self, ClusterError> {
        match choice {
            Choice::Embedded { config, log_dir } => {
                let process = ClusterProcess::start(&config, &log_dir).await?;
                let path = Some(process.kubeconfig().to_owned());
                Self::from_kubeconfig(path, None, Some(process)).await
            }
            Choice::Kubeconfig { path: None, context: None } => {
                let config = kube::Config::infer().await;
                let config = config.map_err(|error| ClusterError::NoCluster(Box::new(error)))?;
                Self::from_config(config, None, None)
            }
            Choice::Kubeconfig { path, context } => Self::from_kubeconfig(path, context, None).await,
        }
    }

    async fn from_kubeconfig(
        path: Option<PathBuf>,
        context: Option<String>,
        process: Option<ClusterProcess>,
    ) -> Result<Self, ClusterError> {
        let unusable = |error| ClusterError::Kubeconfig { path: path.clone(), source: Box::new(error) };
        let file = match &path {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(file.map_err(unusable)?, &options).await;
        let mut config = config.map_err(unusable)?;
        if process.is_some() {
            // It is on loopback: a proxy that the environment names does not lead there.
            config.proxy_url = None;
        }
        Self::from_config(config, path, process)
    }

    fn from_config(
        mut config: kube::Config,
        kubeconfig: Option<PathBuf>,
        process: Option<ClusterProcess>,
    ) -> Result<Self, ClusterError> {
        let default_namespace = config.default_namespace.clone();
        // What is measured is one request, not the client's repetitions of it.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| ClusterError::Client(Box::new(error)))?;
        Ok(Self { client, default_namespace, kubeconfig, process })
    }

    /// A client for the cluster's API.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace for objects that name none.
    pub fn default_namespace(&self) -> &str {
        &self.default_namespace
    }

    /// The kubeconfig that leads to it, where it is not the one that any program would use.
    pub fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    /// A command to run `program` where the cluster's Services can be reached.
    ///
    /// # Errors
    ///
    /// This program's own file, which has to take it there, is not found.
    pub fn command(&self, program: &Path) -> io::Result<Command> {
        let Some(process) = &self.process else { return Ok(Command::new(program)) };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["cluster", "exec", "--kubeconfig"]).arg(process.kubeconfig()).arg("--").arg(program);
        Ok(command)
    }

    /// What the user should know of the cluster.
    pub fn notice(&self) -> Option<&str> {
        self.process.as_ref()?.notice()
    }

    /// Lets go of the cluster. The embedded one ends, and nothing of it is left when this returns.
    pub async fn shut_down(self) {
        drop(self.client);
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_refused_request_is_not_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let cluster = Cluster::from_config(kube::Config::new(server), None, None).unwrap();
        let pods: Api<Pod> = Api::default_namespaced(cluster.client());
        for status in ["429 Too Many Requests", "503 Service Unavailable", "504 Gateway Timeout"] {
            let answer = async {
                // Any further request of this round would find nobody, and the test would not end.
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let ((), answered) = futures::join!(answer, pods.get("web"));
            let kube::Error::Api(error) = answered.unwrap_err() else { panic!("no answer of the API") };
            assert_eq!(error.code.to_string(), status[..3]);
        }
    }
}
