//! A run in a namespace with far more pods than its own: what they cost its process. `scripts/proofs/many-pods`
//! is the long form (docs/proofs.md).

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use http::request::Parts;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::faulty_api::{Act, FaultyApi, is_watch};
use crate::harness::{ClusterProcess, cpu_s, wait_for};
use crate::hostile::memory_kib_if_alive;
use crate::kubectl;
use crate::runs::turn;

/// Other pods in the namespace, unless `MANY_PODS` says how many.
const FEW: usize = 3000;
/// The most memory that a run may ever have had, in KiB.
const MOST_KIB: u64 = 150 * 1024;
const LIMIT: Duration = Duration::from_secs(180);

/// The run's own pods.
const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: app
          image: rolldrop
          args: [workload, --listen, '$(POD_IP):8080']
          env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
          ports: [{containerPort: 8080}]
          readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
";

/// A pod of about the size that pods have, on a node without an agent.
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

/// Fills the namespace.
async fn fill(client: Client, pods: usize) {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "far"}})).expect("a node");
    Api::all(client.clone()).create(&kube::api::PostParams::default(), &node).await.expect("a node");
    let api = Api::<Pod>::namespaced(client, "default");
    let api = &api;
    let made = stream::iter(0..pods).map(|number| async move {
        api.create(&kube::api::PostParams::default(), &other(number)).await.map(drop)
    });
    made.buffer_unordered(16).try_collect::<Vec<()>>().await.expect("pods");
}

/// Pages of lists of pods, as they were asked for.
type Pages = Arc<Mutex<Vec<(Instant, bool)>>>;

fn is_page(request: &Parts) -> bool {
    request.method == Method::GET && request.uri.path().ends_with("/default/pods") && !is_watch(request)
}

/// How long each list took from its first page to when its last was asked for; a list of one object is none.
fn lists(pages: &[(Instant, bool)]) -> Vec<(usize, Duration)> {
    let mut lists: Vec<Vec<Instant>> = Vec::new();
    for (at, goes_on) in pages {
        match lists.last_mut() {
            Some(list) if *goes_on => list.push(*at),
            _ => lists.push(vec![*at]),
        }
    }
    lists.iter().map(|list| (list.len(), list[list.len() - 1] - list[0])).collect()
}

#[test]
fn pods_that_are_not_its_own_cost_a_run_little() {
    let _turn = turn();
    let pods = std::env::var("MANY_PODS").map_or(FEW, |text| text.parse().expect("MANY_PODS=NUMBER"));
    let binary =
        std::env::var_os("MANY_PODS_ROLLDROP").map_or(env!("CARGO_BIN_EXE_rolldrop").into(), PathBuf::from);
    let dir = tempfile::tempdir().expect("a directory");
    let config = json!({"nodes": 1, "dataplane": "userspace"});
    let cluster = ClusterProcess::start_as(std::process::Command::new(&binary), &config, dir.path());
    let kubectl = |args: &str, input: &str| kubectl::run(&cluster.kubeconfig(), args, input).ok();
    kubectl("apply -f -", SHOP);
    kubectl("rollout status deployment/web --timeout=60s", "");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { fill(cluster.client().await, pods).await });

    let api = FaultyApi::before(&cluster);
    let pages = Pages::default();
    let seen = Arc::clone(&pages);
    api.set(move |request| {
        let query = request.uri.query().unwrap_or_default();
        if is_page(request) && query.contains("limit=100") {
            seen.lock().expect("no panic").push((Instant::now(), query.contains("continue=")));
        }
        Act::Pass
    });
    let words =
        ["run", "--target", "svc/web", "-n", "default", "-r", "20", "-d", "3s", "--out", "run", "--yes"];
    let mut run = std::process::Command::new(&binary);
    run.args(words).arg("--kubeconfig").arg(api.kubeconfig()).current_dir(dir.path());
    let log = std::fs::File::create(dir.path().join("run.log")).expect("a file");
    let mut run = run
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(log)
        .spawn()
        .expect("it starts");
    let (mut peak_kib, mut took_s) = (0, 0.0);
    let status = wait_for("the end of the run", LIMIT, || {
        if let Some(kib) = memory_kib_if_alive(run.id(), "VmHWM") {
            (peak_kib, took_s) = (kib, cpu_s(run.id()));
        }
        run.try_wait().expect("its state")
    });
    let said = std::fs::read_to_string(dir.path().join("run.log")).expect("its words");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).expect("events");
    let listed = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let listed = listed.filter(|event| event["kind"] == "pod" && event["change"] == "listed").count();
    assert!(listed >= pods, "{listed} of {pods} listed, {status}\n{said}");

    let lists = lists(&pages.lock().expect("no panic"));
    let (most, longest) = lists.iter().max_by_key(|(_, took)| *took).copied().expect("a list");
    println!(
        "{pods} pods: {} MiB at most, {took_s:.1} s of processor time, {} lists, the longest of {most} pages in {:.2} s",
        peak_kib / 1024,
        lists.len(),
        longest.as_secs_f64(),
    );
    assert!(most > pods / 100, "{lists:?}");
    assert!(peak_kib < MOST_KIB, "{peak_kib} KiB for {pods} pods");
}
