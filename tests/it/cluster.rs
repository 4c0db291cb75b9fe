//! Embedded clusters as processes: they run side by side, and exit with the process that started them.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::harness::{LIMIT, Process, process_tree, wait_for};
use crate::lab::{Cluster, Setup};
use crate::runs::{self, Dataplane};
use crate::web::Web;

/// Runs a pod whose processes try to survive: they ignore SIGTERM, and one leaves its session and its parent.
async fn run_stubborn_pod(cluster: &Cluster) {
    let script = "trap '' TERM; (setsid sh -c 'sleep 1000; :' &); sleep 1000; :";
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "stubborn"},
        "spec": {"containers": [{"name": "app", "image": "host", "command": ["sh", "-c", script]}]},
    }))
    .expect("a pod");
    let pods = Api::<Pod>::default_namespaced(cluster.client().await);
    pods.create(&PostParams::default(), &pod).await.expect("it is created");
}

fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

#[tokio::test]
async fn closed_pipe_stops_both_clusters_cleanly() {
    let mut clusters = [(); 2].map(|()| Setup::on("auto").start());
    assert_ne!(clusters[0].ready()["server"], clusters[1].ready()["server"]);
    let mut all = Vec::new();
    for cluster in &clusters {
        run_stubborn_pod(cluster).await;
        let sleeping = |tree: &[Process]| tree.iter().filter(|process| process.runs("1000")).count();
        let tree = wait_for("the pod's processes", LIMIT, || {
            Some(process_tree(cluster.pid())).filter(|tree| sleeping(tree) == 2)
        });
        all.extend(tree);
    }
    for cluster in &mut clusters {
        cluster.let_go();
    }
    let gone = || (!all.iter().any(|process| process.is_alive())).then_some(());
    wait_for("all processes to exit", LIMIT, gone);
    for cluster in &mut clusters {
        assert!(cluster.end().success());
        assert!(!exists(&cluster.kubeconfig()));
    }
}

#[test]
fn unmodelled_manifest_fields_become_findings() {
    // Like Node.js, whose handler re-raises the signal with the default action.
    let script = "trap 'trap - TERM; kill -TERM $$$$' TERM; while :; do sleep 0.05; done";
    let labels = json!({"app": "raiser"});
    let raiser = json!({"name": "raiser", "image": "host", "command": ["sh", "-c", script]});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [raiser]}});
    let raiser = json!({"selector": {"matchLabels": labels}, "template": template});
    let web = Web::new(1)
        .service(json!({"trafficDistribution": "PreferClose"}))
        .pod(json!({"hostAliases": [{"ip": "127.0.0.1"}]}))
        .and("apps/v1", "Deployment", "raiser", raiser);
    let scenario = web.scenario(
        "not-modelled",
        "
  cluster: {embedded: {nodes: 1}}
  target: {service: web}
  load: {rate: 20, duration: 2s, warmup: 0s}
  sidecar: {inject: true, workloads: [deployment/web]}
  disruptions: [{at: 100ms, action: deletePod, selector: app=raiser, allowOutage: true}]
",
    );
    let run = runs::measure(&scenario, Dataplane::Userspace, &[]);
    let said: Vec<_> = run.result.findings.iter().map(|finding| finding.what.as_str()).collect();
    let named: Vec<_> = said.iter().copied().filter(|what| what.contains("does not model")).collect();
    assert_eq!(
        named,
        [
            "Deployment web: the embedded cluster does not model spec.template.spec.hostAliases: pods on the \
             userspace dataplane cannot resolve these names",
            "Service web: the embedded cluster does not model spec.trafficDistribution: connections go to all \
             endpoints equally",
        ],
        "{}",
        run.finished
    );
    // The message is about one or both pods, depending on whether the watch sees the end of the run.
    let is_raiser = |what: &str| {
        what.starts_with("container raiser of ") && what.contains("the default action of SIGTERM")
    };
    assert!(said.iter().any(|what| is_raiser(what)), "{}", run.finished);
}
