//! Connects to a real cluster or starts the embedded one.
//!
//! Both are used only through the Kubernetes API: a [`Cluster`] provides a [`kube::Client`], and nothing outside this
//! module can tell which kind of cluster is behind it. The embedded cluster runs in a child process
//! (`rolldrop cluster --lifeline`) that exits, together with all its pods, as soon as the pipe to its parent closes.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{Context, KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::process::Command;

use crate::embedded::child::{ChildError, ClusterProcess, Died};
use crate::embedded::lab;
use rolldrop_kubernetes::guard::GuardLayer;
use rolldrop_kubernetes::warnings::Warnings;

/// Choice of the cluster to connect to.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants document their fields")]
pub enum ChosenCluster {
    /// Start the embedded cluster, with its logs and its kubeconfig in this directory.
    Embedded { config: Box<lab::ClusterConfig>, log_dir: PathBuf },
    /// Use a kubeconfig: the given file, or else the one from `KUBECONFIG` or the home directory; inside a pod without
    /// any, use the pod's service account. `None` as the context means the kubeconfig's current one.
    Kubeconfig { path: Option<PathBuf>, context: Option<String> },
    /// Use the cluster that this process runs in as a pod, through its service account, even if there is a kubeconfig.
    InCluster,
}

/// Reason that there is no cluster to talk to.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ClusterError {
    /// The kubeconfig cannot be read or used.
    #[error("cannot read the kubeconfig{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig { path: Option<PathBuf>, source: Box<KubeconfigError> },
    /// There is no kubeconfig, and this process is not in a pod either.
    #[error(
        "found no kubeconfig (looked for {}), and this is not a pod: name one with --kubeconfig or KUBECONFIG",
        files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoCluster { files: Vec<PathBuf>, source: Box<kube::config::InClusterError> },
    /// There is no service account.
    #[error("this process is not running in a pod with a service account")]
    NotInCluster(#[source] Box<kube::config::InClusterError>),
    /// The client cannot be created, for example because of invalid TLS settings.
    #[error("cannot create a client for the cluster")]
    Client(#[source] Box<kube::Error>),
    /// The embedded cluster did not start.
    #[error("the embedded cluster did not start")]
    Embedded(#[from] ChildError),
}

/// Way to reach a cluster again, if it outlives this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The kubeconfig, if it is not the default one.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; `None` in a pod, which has no kubeconfig.
    pub context: Option<String>,
    /// URL of the API server. Another kubeconfig may have a context of the same name.
    #[serde(default)]
    pub server: Option<String>,
}

/// A cluster to work with.
pub struct Cluster {
    client: Client,
    /// Warnings from the cluster's API server.
    warnings: Warnings,
    default_namespace: String,
    origin: Origin,
    /// Contents of the kubeconfig's context.
    context: Option<Context>,
    /// True if the cluster's Services are reached through `rolldrop cluster exec`.
    has_inside: bool,
    process: Option<ClusterProcess>,
}

impl Cluster {
    /// Connects to a cluster, starting it first if it is the embedded one. A real cluster is not contacted yet.
    ///
    /// # Errors
    ///
    /// Fails if the kubeconfig is wrong, or the embedded cluster did not start.
    pub async fn connect(choice: ChosenCluster) -> Result<Self, ClusterError> {
        match choice {
            ChosenCluster::Embedded { config, log_dir } => {
                let process = ClusterProcess::start(&config, &log_dir).await?;
                let path = Some(process.kubeconfig().to_owned());
                Self::from_kubeconfig(path, None, Some(process)).await
            }
            ChosenCluster::Kubeconfig { path: None, context: None } if !has_kubeconfig() => {
                let no_cluster =
                    |error| ClusterError::NoCluster { files: kubeconfig_files(), source: Box::new(error) };
                let config = kube::Config::incluster().map_err(no_cluster)?;
                Self::from_config(config, Origin::default(), None)
            }
            ChosenCluster::Kubeconfig { path, context } => Self::from_kubeconfig(path, context, None).await,
            ChosenCluster::InCluster => {
                let config = kube::Config::incluster();
                let config = config.map_err(|error| ClusterError::NotInCluster(Box::new(error)))?;
                Self::from_config(config, Origin::default(), None)
            }
        }
    }

    async fn from_kubeconfig(
        path: Option<PathBuf>,
        context: Option<String>,
        process: Option<ClusterProcess>,
    ) -> Result<Self, ClusterError> {
        let unusable = |error| ClusterError::Kubeconfig { path: path.clone(), source: Box::new(error) };
        let file = read_kubeconfig(path.as_deref()).map_err(unusable)?;
        let name = context.or(file.current_context.clone());
        let named = file.contexts.iter().find(|named| Some(&named.name) == name.as_ref());
        let context = named.and_then(|named| named.context.clone());
        let cluster =
            file.clusters.iter().find(|named| Some(&named.name) == context.as_ref().map(|c| &c.cluster));
        let cluster = cluster.and_then(|named| named.cluster.clone()).unwrap_or_default();
        let has_inside =
            cluster.extensions.iter().flatten().any(|extension| extension.name == lab::EXTENSION);
        let options = KubeConfigOptions { context: name.clone(), ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(file, &options).await;
        let mut config = config.map_err(unusable)?;
        let own_proxy = cluster.proxy_url.as_deref();
        config.proxy_url = proxy(own_proxy, &config.cluster_url, |name| std::env::var(name).ok());
        let origin = Origin { kubeconfig: path, context: name, server: None };
        Ok(Self { context, has_inside, ..Self::from_config(config, origin, process)? })
    }

    fn from_config(
        mut config: kube::Config,
        origin: Origin,
        process: Option<ClusterProcess>,
    ) -> Result<Self, ClusterError> {
        let default_namespace = config.default_namespace.clone();
        let server = Some(config.cluster_url.to_string().trim_end_matches('/').to_owned());
        // Each measured request must be sent only once, so the client must not retry.
        config.default_retry = false;
        let builder =
            ClientBuilder::try_from(config).map_err(|error| ClusterError::Client(Box::new(error)))?;
        let warnings = Warnings::default();
        let client = builder.with_layer(&GuardLayer).with_layer(&warnings).build();
        Ok(Self {
            client,
            warnings,
            default_namespace,
            origin: Origin { server, ..origin },
            context: None,
            has_inside: false,
            process,
        })
    }

    /// Returns the warnings that the API server sends when the client creates objects.
    pub fn warnings(&self) -> Warnings {
        self.warnings.clone()
    }

    /// Returns a client for the cluster's API.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the namespace for objects that do not name one.
    pub fn default_namespace(&self) -> &str {
        &self.default_namespace
    }

    /// Returns the way to reach the cluster again; `None` if it ends with this process.
    pub fn origin(&self) -> Option<Origin> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let kubeconfig = self.origin.kubeconfig.as_ref().map(absolute);
        self.process.is_none().then(|| Origin { kubeconfig, ..self.origin.clone() })
    }

    /// Describes the cluster; `None` if it ends with this process.
    pub fn title(&self) -> Option<String> {
        let whose = match &self.origin.context {
            Some(context) => format!("context {context}"),
            None => "this pod's cluster".to_owned(),
        };
        self.process.is_none().then(|| format!("{whose} at {}", self.server()))
    }

    /// Returns the URL of the API server.
    pub fn server(&self) -> &str {
        self.origin.server.as_deref().unwrap_or_default()
    }

    /// Returns the `KUBECONFIG` value that lets a program find this cluster and, by default, this namespace; `None` if
    /// it would find them anyway. Writes `file` for this purpose if needed; the file contains no secrets.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn kubeconfig_for(&self, namespace: &str, file: &Path) -> io::Result<Option<OsString>> {
        let files = match &self.origin.kubeconfig {
            Some(path) => vec![std::path::absolute(path)?],
            None => kubeconfig_files(),
        };
        let (Some(name), Some(context)) = (&self.origin.context, &self.context) else { return Ok(None) };
        let current = read_kubeconfig(self.origin.kubeconfig.as_deref());
        let is_current = current.is_ok_and(|file| file.current_context.as_ref() == Some(name));
        if is_current && namespace == self.default_namespace {
            let is_needed = self.origin.kubeconfig.is_some();
            return is_needed.then(|| std::env::join_paths(files).map_err(io::Error::other)).transpose();
        }
        // Among several files, the first one that sets a value takes precedence.
        let overlay = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "contexts": [{"name": name, "context": {
                "cluster": context.cluster, "user": context.user, "namespace": namespace,
            }}],
        });
        std::fs::write(file, format!("{overlay:#}\n"))?;
        let files = std::iter::once(std::path::absolute(file)?).chain(files);
        std::env::join_paths(files).map(Some).map_err(io::Error::other)
    }

    /// Returns true if [`Cluster::command`] enters the cluster's own network.
    pub fn is_entered(&self) -> bool {
        self.has_inside
    }

    /// Returns true if the Services' own addresses can be reached where [`Cluster::command`] runs.
    pub fn reaches_services(&self) -> bool {
        // Without a context, this process runs in a pod.
        self.has_inside || self.origin.context.is_none()
    }

    /// Creates a command that runs `program` where the cluster's Services can be reached.
    ///
    /// # Errors
    ///
    /// Fails if this program's executable, which enters the cluster's network, cannot be found.
    pub fn command(&self, program: &Path) -> io::Result<Command> {
        if !self.has_inside {
            return Ok(Command::new(program));
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["cluster", "exec"]);
        if let Some(kubeconfig) = &self.origin.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        if let Some(context) = &self.origin.context {
            command.args(["--context", context]);
        }
        command.arg("--").arg(program);
        Ok(command)
    }

    /// Returns a notice about the cluster for the user, if there is one.
    pub fn notice(&self) -> Option<&str> {
        self.process.as_ref()?.notice()
    }

    /// Waits until an embedded cluster has died, along with everything in it. For other clusters, never returns.
    pub async fn died(&self) -> Died {
        match &self.process {
            Some(process) => process.died().await,
            None => std::future::pending().await,
        }
    }

    /// Releases the cluster. Stops an embedded cluster, and waits until nothing is left of it.
    pub async fn shut_down(self) {
        drop(self.client);
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

/// Returns the default kubeconfig files, whether they exist or not.
fn kubeconfig_files() -> Vec<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let named: Vec<_> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if named.is_empty() {
        std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect()
    } else {
        named
    }
}

fn has_kubeconfig() -> bool {
    kubeconfig_files().iter().any(|path| path.is_file())
}

/// Reads a kubeconfig file, or else the default ones. Like kubectl, skips default ones that do not exist.
fn read_kubeconfig(path: Option<&Path>) -> Result<Kubeconfig, KubeconfigError> {
    match path {
        Some(path) => Kubeconfig::read_from(path),
        None => merged(&kubeconfig_files()),
    }
}

fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    // Without any, the error is about the first one.
    let is_any = files.iter().any(|path| path.exists());
    let read = files.iter().filter(|path| !is_any || path.exists());
    read.map(Kubeconfig::read_from).try_fold(Kubeconfig::default(), |merged, file| merged.merge(file?))
}

/// Returns the proxy on the way to the API server: the kubeconfig's own, or else the environment's, as kubectl chooses
/// it. kube applies `NO_PROXY` to the proxy's own URL.
fn proxy(own: Option<&str>, server: &Uri, env: impl Fn(&str) -> Option<String>) -> Option<Uri> {
    let either =
        |name: &str| env(name).or_else(|| env(&name.to_lowercase())).filter(|value| !value.is_empty());
    let url = match own.filter(|url| !url.is_empty()) {
        Some(own) => own.to_owned(),
        None => {
            let url = either("HTTPS_PROXY")?;
            let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
            let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
            let matcher = Matcher::builder().https(&*url).no(either("NO_PROXY").unwrap_or_default()).build();
            if is_loopback || matcher.intercept(server).is_none() {
                return None;
            }
            url
        }
    };
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    // kube has refused a malformed URL already.
    url.parse().ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn client_does_not_retry_refusals() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let cluster = Cluster::from_config(kube::Config::new(server), Origin::default(), None).unwrap();
        let pods: Api<Pod> = Api::default_namespaced(cluster.client());
        for status in ["429 Too Many Requests", "503 Service Unavailable", "504 Gateway Timeout"] {
            let answer = async {
                // Nothing would accept a second request in this round, so the test would hang.
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let ((), answered) = futures::join!(answer, pods.get("web"));
            let kube::Error::Api(error) = answered.unwrap_err() else { panic!("no API response") };
            assert_eq!(error.code.to_string(), status[..3]);
        }
    }

    #[test]
    fn missing_default_kubeconfigs_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let (there, missing) = (dir.path().join("config"), dir.path().join("missing"));
        std::fs::write(&there, "current-context: staging").unwrap();
        let both = merged(&[missing.clone(), there]).unwrap();
        assert_eq!(both.current_context.as_deref(), Some("staging"));
        let error = merged(std::slice::from_ref(&missing)).unwrap_err();
        assert!(matches!(error, KubeconfigError::ReadConfig(_, path) if path == missing));
    }

    #[test]
    fn proxy_is_chosen_as_by_kubectl() {
        const HTTPS: (&str, &str) = ("HTTPS_PROXY", "http://user:p%40ss@localhost:3128");
        let chosen = |own: Option<&str>, server: &'static str, env: &[(&str, &str)]| {
            let value =
                |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
            proxy(own, &Uri::from_static(server), value).map(|url| url.to_string())
        };
        let of = |server, env: &[(&str, &str)]| chosen(None, server, env);
        let prod = "https://api.prod.example:6443";
        assert_eq!(of(prod, &[]), None);
        assert_eq!(of(prod, &[HTTPS]).as_deref(), Some("http://user:p%40ss@localhost:3128/"));
        assert_eq!(of(prod, &[("https_proxy", "proxy:3128")]).as_deref(), Some("http://proxy:3128/"));
        for rule in ["api.prod.example", ".example", "localhost,prod.example"] {
            assert_eq!(of(prod, &[HTTPS, ("NO_PROXY", rule)]), None, "{rule}");
        }
        // The proxy's own address says nothing about the server's.
        assert!(of(prod, &[HTTPS, ("no_proxy", "localhost,10.0.0.0/8")]).is_some());
        assert_eq!(of("https://10.1.2.3:6443", &[HTTPS, ("no_proxy", "localhost,10.0.0.0/8")]), None);
        for local in
            ["https://127.0.0.1:6443", "https://[::1]:6443", "https://localhost", "http://proxied:8001"]
        {
            assert_eq!(of(local, &[HTTPS]), None, "{local}");
        }
        let own = chosen(Some("socks5://bastion:1080"), prod, &[HTTPS, ("NO_PROXY", "*")]);
        assert_eq!(own.as_deref(), Some("socks5://bastion:1080/"));
    }

    #[tokio::test]
    async fn pods_and_embedded_clusters_reach_services() {
        let url = || "http://127.0.0.1:1".parse().unwrap();
        let nowhere = Origin::default();
        let in_a_pod = Cluster::from_config(kube::Config::new(url()), nowhere, None).unwrap();
        assert!(in_a_pod.reaches_services() && !in_a_pod.is_entered());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        for is_embedded in [false, true] {
            let extension = json!({"name": lab::EXTENSION, "extension": {}});
            let extensions = if is_embedded { vec![extension] } else { Vec::new() };
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "one",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", "extensions": extensions}}],
                "contexts": [{"name": "one", "context": {"cluster": "c"}}],
            });
            std::fs::write(&file, config.to_string()).unwrap();
            let cluster =
                Cluster::connect(ChosenCluster::Kubeconfig { path: Some(file.clone()), context: None });
            assert_eq!(cluster.await.unwrap().reaches_services(), is_embedded);
        }
    }

    #[tokio::test]
    async fn kubeconfig_overlay_sets_context_and_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let (file, overlay) = (dir.path().join("config"), dir.path().join("overlay"));
        let context = |name: &str| json!({"name": name, "context": {"cluster": "c", "user": "u"}});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "one",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "hush"}}],
            "contexts": [context("one"), context("two")],
        });
        std::fs::write(&file, config.to_string()).unwrap();
        let named = |context: Option<&str>| {
            let context = context.map(str::to_owned);
            Cluster::connect(ChosenCluster::Kubeconfig { path: Some(file.clone()), context })
        };
        let plain = named(None).await.unwrap();
        assert_eq!(plain.kubeconfig_for("default", &overlay).unwrap(), Some(file.clone().into()));
        assert!(!overlay.exists());
        for (cluster, namespace) in [(plain, "shop"), (named(Some("two")).await.unwrap(), "default")] {
            let origin = cluster.origin().unwrap();
            let value = cluster.kubeconfig_for(namespace, &overlay).unwrap().unwrap();
            let paths: Vec<_> = std::env::split_paths(&value).collect();
            assert_eq!(paths, [overlay.clone(), file.clone()]);
            assert!(!std::fs::read_to_string(&overlay).unwrap().contains("hush"));
            let merged = Kubeconfig::read_from(&overlay).unwrap();
            let merged = merged.merge(Kubeconfig::read_from(&file).unwrap()).unwrap();
            assert_eq!(merged.current_context, origin.context);
            let found = merged.contexts.iter().find(|c| Some(&c.name) == origin.context.as_ref()).unwrap();
            assert_eq!(found.context.as_ref().unwrap().namespace.as_deref(), Some(namespace));
        }
    }
}
