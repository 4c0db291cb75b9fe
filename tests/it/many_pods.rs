//! A run in a namespace with far more pods than its own, and the cost of those pods for the run's process.
//! `scripts/proofs/many-pods` is the long form (docs/proofs.md).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::{LIMIT, cpu_s, wait_for};
use crate::hostile::memory_kib_if_alive;
use crate::lab::{Cluster, Setup};
use crate::runs::{json_lines, turn};
use crate::web::Web;

/// Number of other pods in the namespace, unless `MANY_PODS` sets it.
const FEW: usize = 3000;
/// Maximum peak memory of a run, in KiB.
const MOST_KIB: u64 = 150 * 1024;
/// Maximum memory per additional pod, in KiB: twice what a debug build needs. A fully decoded pod takes five times the
/// size of its JSON.
const MOST_KIB_EACH: f64 = 10.0;

/// Returns a pod of typical size on a node without an agent.
fn other(number: usize) -> Pod {
    let container = |name: &str| {
        let variables = (0..16).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "x".repeat(60)}));
        json!({"name": name, "image": format!("registry.example.org/shop/{name}@sha256:{number:064x}"),
            "env": variables.collect::<Vec<_>>(), "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"memory": "1Mi"}},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}},
            "livenessProbe": {"httpGet": {"path": "/livez", "port": "http"}}})
    };
    let annotations = (0..8).map(|n| (format!("example.org/annotation-{n}"), json!("y".repeat(120))));
    let pod = json!({
        "metadata": {"name": format!("other-{number}"), "labels": {"app": "other"},
            "annotations": annotations.collect::<serde_json::Map<_, _>>()},
        "spec": {"nodeName": "far", "tolerations": [{"operator": "Exists"}],
            "containers": [container("app"), container("agent")]},
    });
    serde_json::from_value(pod).expect("a pod")
}

/// Fills the namespace with pods. Returns the size of one pod in bytes of JSON.
async fn fill(client: Client, pods: usize) -> usize {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "far"}})).expect("a node");
    Api::all(client.clone()).create(&kube::api::PostParams::default(), &node).await.expect("a node");
    let api = Api::<Pod>::namespaced(client.clone(), "default");
    let api = &api;
    let made = stream::iter(0..pods).map(|number| async move {
        api.create(&kube::api::PostParams::default(), &other(number)).await.map(drop)
    });
    made.buffer_unordered(16).try_collect::<Vec<()>>().await.expect("pods");
    let path = http::Request::get("/api/v1/namespaces/default/pods/other-0").body(Vec::new());
    client.request_text(path.expect("a request")).await.expect("a pod").len()
}

/// Costs of a run.
#[derive(Debug)]
struct Cost {
    /// Peak resident memory of the run's process.
    peak_kib: u64,
    cpu_s: f64,
    /// Number of pods in the run's first list.
    listed: usize,
    /// Seconds from the list of EndpointSlices to the end of the list of pods; the run requests both at the same time.
    list_s: f64,
}

/// Runs against the namespace, and measures the run's process only, without its load worker.
fn run(binary: &Path, cluster: &Cluster, dir: &Path, name: &str) -> Cost {
    let words =
        ["run", "--target", "svc/web", "-n", "default", "-r", "20", "-d", "3s", "--yes", "--out", name];
    let mut run = Command::new(binary);
    run.args(words).arg("--kubeconfig").arg(cluster.kubeconfig()).current_dir(dir);
    let log = dir.join(format!("{name}.log"));
    let file = std::fs::File::create(&log).expect("a file");
    let mut run =
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("the binary starts");
    let (mut peak_kib, mut used_s) = (0, 0.0);
    let status = wait_for("the end of the run", LIMIT, || {
        if let Some(kib) = memory_kib_if_alive(run.id(), "VmHWM") {
            (peak_kib, used_s) = (kib, cpu_s(run.id()));
        }
        run.try_wait().expect("its state")
    });
    let said = std::fs::read_to_string(log).expect("its stderr");
    assert!(said.contains("undoing the changes"), "{status}\n{said}");
    let events = json_lines(&dir.join(name).join("events.jsonl"));
    let listed = |kind: &str| {
        let is_it = |event: &&Value| event["change"] == "listed" && event["kind"] == *kind;
        events.iter().filter(is_it).map(|event| event["t_ns"].as_i64().expect("a stamp")).collect::<Vec<_>>()
    };
    let (pods, slices) = (listed("pod"), listed("endpoint_slice"));
    // All objects in a list share its stamp, and both lists are requested at the same time.
    let list_s = (pods[0] - slices[0]) as f64 / 1e9;
    let listed = pods.len();
    Cost { peak_kib, cpu_s: used_s, listed, list_s }
}

#[test]
fn other_pods_add_little_memory() {
    let _turn = turn();
    let pods = std::env::var("MANY_PODS").map_or(FEW, |text| text.parse().expect("MANY_PODS=NUMBER"));
    let binary =
        std::env::var_os("MANY_PODS_ROLLDROP").map_or(env!("CARGO_BIN_EXE_rolldrop").into(), PathBuf::from);
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Setup::new().by(Command::new(&binary)).within(dir.path()).start();
    cluster.deploy(&Web::new(2));
    let without = run(&binary, &cluster, dir.path(), "without");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let bytes = runtime.block_on(async { fill(cluster.client().await, pods).await });
    let with = run(&binary, &cluster, dir.path(), "with");
    assert!(with.listed >= pods, "{with:?}");

    let kib_each = with.peak_kib.saturating_sub(without.peak_kib) as f64 / pods as f64;
    println!(
        "{pods} pods of {bytes} bytes: {} MiB at most ({} without them, {kib_each:.1} KiB for each), {:.1} s of \
         processor time ({:.1}), listed in {:.2} s",
        with.peak_kib / 1024,
        without.peak_kib / 1024,
        with.cpu_s,
        without.cpu_s,
        with.list_s,
    );
    assert!(with.peak_kib < MOST_KIB, "{with:?} {without:?}");
    assert!(kib_each < MOST_KIB_EACH, "{kib_each:.1} KiB for each pod: {with:?} {without:?}");
}
