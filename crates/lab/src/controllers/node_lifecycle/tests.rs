//! Tests with nodes that have no agents; the tests themselves write the status.

use futures::FutureExt;

use super::super::tests::bench::Bench;
use super::*;
use crate::ClusterConfig;

/// Creates a cluster with one ready node.
fn cluster() -> Bench {
    let bench = Bench::start_with(ClusterConfig::default(), &[|shared| run(shared).boxed()]);
    bench.create(Resource::Nodes, json!({"metadata": {"name": "node-1"}}));
    say_ready(&bench, "True");
    bench
}

/// Sets the node's `Ready` condition.
fn say_ready(bench: &Bench, ready: &str) {
    let now = bench.registry().now();
    bench.modify(Resource::Nodes, "node-1", ObjectPart::Status, |node| {
        conditions::put(node, json!({"type": "Ready", "status": ready}), &now);
    });
}

fn keys_and_effects(bench: &Bench) -> Vec<(String, String)> {
    let node = bench.get(Resource::Nodes, "node-1");
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let text = |taint: &Value, field: &str| taint[field].as_str().unwrap().to_owned();
    taints.iter().map(|taint| (text(taint, "key"), text(taint, "effect"))).collect()
}

fn no_schedule(key: &str) -> [(String, String); 1] {
    [(key.to_owned(), NO_SCHEDULE.to_owned())]
}

fn pod(name: &str, tolerations: Value) -> Value {
    let containers = [json!({"name": "app", "image": "host", "command": ["true"]})];
    let spec = json!({"nodeName": "node-1", "tolerations": tolerations, "containers": containers});
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn taint_follows_node_readiness() {
    let bench = cluster();
    say_ready(&bench, "False");
    bench.holds("the node is tainted", |bench| keys_and_effects(bench) == no_schedule(NOT_READY)).await;
    say_ready(&bench, "True");
    bench.holds("the taint is removed", |bench| keys_and_effects(bench).is_empty()).await;
}

#[tokio::test]
async fn cordoned_node_is_tainted() {
    let bench = cluster();
    let cordon = |cordoned: bool| {
        bench.modify(Resource::Nodes, "node-1", ObjectPart::Main, |node| {
            node["spec"]["unschedulable"] = json!(cordoned);
        });
    };
    cordon(true);
    bench.holds("the node is tainted", |bench| keys_and_effects(bench) == no_schedule(UNSCHEDULABLE)).await;
    cordon(false);
    bench.holds("the taint is removed", |bench| keys_and_effects(bench).is_empty()).await;
}

#[tokio::test]
async fn no_execute_taint_evicts_pods_without_toleration() {
    let bench = cluster();
    let tolerant = json!([{"key": "maintenance", "operator": "Exists"}]);
    for (name, tolerations) in [("web", json!([])), ("steady", tolerant)] {
        bench.create(Resource::Pods, pod(name, tolerations));
    }
    bench.modify(Resource::Nodes, "node-1", ObjectPart::Main, |node| {
        node["spec"]["taints"] = json!([{"key": "maintenance", "value": "now", "effect": NO_EXECUTE}]);
    });
    bench.holds("the pod is evicted", |bench| is_being_deleted(&bench.get(Resource::Pods, "web"))).await;
    let evicted = bench.get(Resource::Pods, "web");
    assert_eq!(condition(&evicted, "DisruptionTarget")["reason"], "DeletionByTaintManager");
    assert_eq!(bench.events("TaintManagerEviction"), ["Marking for deletion Pod default/web"]);
    assert!(!is_being_deleted(&bench.get(Resource::Pods, "steady")));
}
