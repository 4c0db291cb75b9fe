//! Embedded clusters as processes: side by side, and gone with whoever started them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::{process_tree, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// A cluster as `rolldrop run` starts it, and its log directory.
struct ClusterProcess {
    child: Child,
    server: String,
    dir: tempfile::TempDir,
}

impl ClusterProcess {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut child = Command::new(env!("CARGO_BIN_EXE_rolldrop"))
            .args(["cluster", "--lifeline", "--log-dir"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its stdout");
        BufReader::new(stdout).read_line(&mut line).expect("a line when it is ready");
        let ready: Value = serde_json::from_str(&line).expect("the line is JSON");
        let server = ready["server"].as_str().expect("a server").to_owned();
        Self { child, server, dir }
    }

    /// Runs a pod whose processes do what they can to stay: they ignore SIGTERM, and one leaves
    /// its session and its parent.
    async fn run_stubborn_pod(&self) {
        let file = Kubeconfig::read_from(self.dir.path().join("kubeconfig")).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.expect("a config");
        config.proxy_url = None;
        let client = Client::try_from(config).expect("a client");
        let script = "trap '' TERM; (setsid sh -c 'sleep 1000; :' &); sleep 1000; :";
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "stubborn"},
            "spec": {"containers": [{"name": "app", "image": "host", "command": ["sh", "-c", script]}]},
        }))
        .expect("a pod");
        let pods = Api::<Pod>::default_namespaced(client);
        pods.create(&PostParams::default(), &pod).await.expect("it is created");
    }
}

fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

#[tokio::test]
async fn two_clusters_run_side_by_side_and_leave_nothing_when_the_pipe_closes() {
    let mut clusters = [ClusterProcess::start(), ClusterProcess::start()];
    assert_ne!(clusters[0].server, clusters[1].server);
    let mut all = Vec::new();
    for cluster in &clusters {
        cluster.run_stubborn_pod().await;
        // The cluster, two shells, and the sleep that each has started.
        let tree = wait_for("the pod's processes", LIMIT, || {
            Some(process_tree(cluster.child.id())).filter(|tree| tree.len() >= 5)
        });
        all.extend(tree);
    }
    for cluster in &mut clusters {
        drop(cluster.child.stdin.take());
    }
    let gone = || (!all.iter().any(|process| process.is_alive())).then_some(());
    wait_for("every process gone", Duration::from_secs(2), gone);
    for cluster in &mut clusters {
        assert!(cluster.child.wait().expect("an end").success());
        assert!(!exists(&cluster.dir.path().join("kubeconfig")));
    }
}
