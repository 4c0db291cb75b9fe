//! Clusters for tests: a builder whose defaults suit most tests, and operations on clusters.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{LIMIT, Rolldrop, wait_for};
use crate::kubectl::{self, Ran};
use crate::runs::Dataplane;
use crate::termination::lab::Lab;
use crate::web::Web;

/// Returns a binding that grants all permissions to pods in the namespace `default` that name no service account.
pub(crate) fn trust_default_account() -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "trust-default-account"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    })
}

/// Returns a role and a binding, with the paths to create them at. They let pods that name no service account get pods
/// in their own namespace.
pub(crate) fn may_get_pods() -> [(&'static str, Value); 2] {
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let binding = json!({
        "metadata": {"name": "default-gets-pods"},
        "roleRef": {"kind": "Role", "name": "get-pods"},
        "subjects": [{"kind": "ServiceAccount", "name": "default"}],
    });
    [("roles", json!({"metadata": {"name": "get-pods"}, "rules": rules})), ("rolebindings", binding)]
}

/// Builder of a cluster. By default, it has one node, the userspace dataplane, and its own log directory.
pub(crate) struct Setup<'a> {
    dataplane: &'static str,
    config: Value,
    program: Command,
    dir: Option<&'a Path>,
}

impl<'a> Setup<'a> {
    pub(crate) fn new() -> Self {
        Self::on(Dataplane::Userspace)
    }

    pub(crate) fn on(dataplane: impl Into<&'static str>) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
        Self { dataplane: dataplane.into(), config: json!({}), program, dir: None }
    }

    pub(crate) fn nodes(self, nodes: u32) -> Self {
        self.with(json!({"nodes": nodes}))
    }

    /// Sets configuration fields.
    pub(crate) fn with(mut self, fields: Value) -> Self {
        let Value::Object(fields) = fields else { panic!("{fields} has no fields") };
        self.config.as_object_mut().expect("an object").extend(fields);
        self
    }

    /// Starts the cluster with another command, for example as another user.
    pub(crate) fn by(mut self, program: Command) -> Self {
        self.program = program;
        self
    }

    /// Makes the cluster write its logs to the caller's directory.
    pub(crate) fn within(mut self, dir: &'a Path) -> Self {
        self.dir = Some(dir);
        self
    }

    /// Starts the cluster, and records everything that happens on it.
    pub(crate) async fn watched(self) -> Lab {
        let dataplane = self.dataplane;
        Lab::watch(self.start(), dataplane).await
    }

    /// Starts the cluster, and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(self) -> Cluster {
        let dataplane = json!({"dataplane": self.dataplane});
        let Self { config, mut program, dir, .. } = self.with(dataplane);
        let own = dir.is_none().then(|| tempfile::tempdir().expect("a temporary directory"));
        let dir = dir.or(own.as_ref().map(TempDir::path)).expect("a directory").to_owned();
        let log = std::fs::File::create(dir.join("stderr.log")).expect("a file");
        program.args(["cluster", "--lifeline", "--config", &config.to_string(), "--log-dir"]).arg(&dir);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = program.spawn().expect("the binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its stdout");
        BufReader::new(stdout).read_line(&mut line).expect("the line printed when ready");
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let cluster = Cluster { child, ready, dir, _own: own };
        assert_eq!(cluster.ready["ready"], true, "no cluster: {line:?}\n{}", cluster.said());
        cluster
    }
}

/// A `rolldrop cluster` process. This value holds the lifeline, so dropping it shuts the cluster down.
pub(crate) struct Cluster {
    child: Child,
    ready: Value,
    dir: PathBuf,
    _own: Option<TempDir>,
}

impl Cluster {
    /// Returns the JSON that the cluster printed when it was ready.
    pub(crate) fn ready(&self) -> &Value {
        &self.ready
    }

    /// Returns the cluster's stderr so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr.log")).unwrap_or_default()
    }

    /// Returns the cluster's log directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Returns the kubeconfig without the mark of an embedded cluster so that rolldrop treats the cluster as one whose
    /// Services it cannot reach.
    pub(crate) fn kubeconfig_as_of_a_real_one(&self) -> String {
        let text = std::fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        config["clusters"][0]["cluster"]["extensions"].take();
        config.to_string()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the kube-rs configuration for the cluster.
    pub(crate) async fn client_config(&self) -> kube::Config {
        let file = Kubeconfig::read_from(self.kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.expect("a config");
        config.proxy_url = None;
        config
    }

    /// Returns a client for the cluster.
    pub(crate) async fn client(&self) -> kube::Client {
        kube::Client::try_from(self.client_config().await).expect("a client")
    }

    /// Runs kubectl, which must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn kubectl(&self, args: &str) -> String {
        self.fed(args, "").ok()
    }

    fn fed(&self, args: &str, input: &str) -> Ran {
        kubectl::run(&self.kubeconfig(), args, input)
    }

    /// Applies manifests.
    #[track_caller]
    pub(crate) fn apply(&self, manifests: &str) {
        self.fed("apply -f -", manifests).ok();
    }

    /// Deploys the app, and waits until it is ready.
    #[track_caller]
    pub(crate) fn deploy(&self, web: &Web) {
        self.apply(&web.manifests());
        self.kubectl(kubectl::ROLLED_OUT);
    }

    /// Returns a pod's address, once it has one.
    #[track_caller]
    pub(crate) fn address_of(&self, pod: &str) -> String {
        wait_for(&format!("the address of {pod}"), LIMIT, || {
            let address = self.kubectl(&format!("get pod {pod} -o jsonpath={{.status.podIP}}"));
            Some(address).filter(|address| !address.is_empty())
        })
    }

    /// Returns `rolldrop run` for a scenario on this cluster.
    pub(crate) fn run(&self, scenario: &str) -> Rolldrop {
        Rolldrop::run(scenario).on_cluster(&self.kubeconfig())
    }

    /// Closes the cluster's lifeline.
    pub(crate) fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Closes the cluster's lifeline, and waits until the cluster exits.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.let_go();
        wait_for("the cluster to exit", LIMIT, || self.child.try_wait().expect("its state"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test has already failed, so a clean shutdown is not checked.
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            self.end();
        }
    }
}
