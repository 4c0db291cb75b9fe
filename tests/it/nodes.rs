//! Node shutdown, as seen through the API.

use serde_json::{Value, json};

use crate::lab::Setup;
use crate::pods::{PODS, shell, wait_for_async};
use crate::termination::case::condition;
use crate::termination::lab::{Lab, Seen};

const NODE: &str = "/api/v1/nodes/node-1";

/// Starts a cluster with this many nodes and a Service.
async fn lab(nodes: u32) -> Lab {
    let lab = Setup::new().nodes(nodes).watched().await;
    let service = json!({
        "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]},
    });
    lab.create("/api/v1/namespaces/default/services", &service).await;
    lab
}

/// Creates a pod on the first node, as a controller would, and waits for its endpoint.
async fn run_ready(lab: &Lab, script: &str) {
    let mut app = shell("app", script);
    app["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = json!({"nodeName": "node-1", "terminationGracePeriodSeconds": 1, "containers": [app]});
    lab.create(PODS, &json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": spec})).await;
    lab.until("default", "a ready endpoint", |seen| endpoint(seen, "ready", true)).await;
}

/// Returns `Some` if the endpoint's field has this value in the newest slice.
fn endpoint(seen: &[Seen], field: &str, is: bool) -> Option<()> {
    let slice =
        seen.iter().rfind(|seen| seen.kind() == "EndpointSlice" && seen.name().starts_with("web-"))?;
    (slice.object["endpoints"][0]["conditions"][field] == is).then_some(())
}

async fn node_until(lab: &Lab, found: impl Fn(&Value) -> bool) -> Value {
    wait_for_async(async || found(&lab.call("GET", NODE, None).await.body)).await;
    lab.call("GET", NODE, None).await.body
}

fn ready(node: &Value) -> (String, String) {
    let text = |field: &str| condition(node, "Ready").and_then(|ready| ready[field].as_str());
    (text("status").unwrap_or_default().to_owned(), text("reason").unwrap_or_default().to_owned())
}

fn is_ready(node: &Value, status: &str, reason: &str) -> bool {
    ready(node) == (status.to_owned(), reason.to_owned())
}

fn taints(node: &Value) -> Vec<String> {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let text = |taint: &Value, field: &str| taint[field].as_str().unwrap_or_default().to_owned();
    let mut taints: Vec<_> = taints.map(|t| format!("{}:{}", text(t, "key"), text(t, "effect"))).collect();
    taints.sort();
    taints
}

async fn post(lab: &Lab, command: &str) {
    assert_eq!(lab.call("POST", &format!("{NODE}/proxy/{command}"), None).await.status, 200);
}

fn run_on(nodes: u32, test: impl AsyncFnOnce(Lab)) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { test(lab(nodes).await).await });
}

#[test]
fn endpoint_stays_ready_during_node_shutdown() {
    run_on(2, async |lab| {
        run_ready(&lab, "trap 'sleep 3; exit 0' TERM; while :; do sleep 0.1; done").await;
        let before = lab.seen("default").len();
        post(&lab, "shutdown?grace=5").await;
        node_until(&lab, |node| is_ready(node, "False", "KubeletNotReady")).await;
        let ended = |seen: &[Seen]| {
            let mut pods = seen.iter().filter(|seen| seen.kind() == "Pod");
            pods.find(|seen| seen.object["status"]["phase"] == "Failed").map(|seen| seen.at_ns)
        };
        let ended_ns = lab.until("default", "the pod's end", ended).await;
        lab.until("default", "no endpoint", |seen| {
            let slice = seen.iter().rfind(|seen| seen.kind() == "EndpointSlice")?;
            slice.object["endpoints"].as_array().is_none_or(Vec::is_empty).then_some(())
        })
        .await;
        for seen in &lab.seen("default")[before..] {
            let is_ready = condition(&seen.object, "Ready").is_some_and(|ready| ready["status"] == "True");
            assert!(seen.kind() != "Pod" || is_ready || seen.at_ns >= ended_ns, "{seen:#?}");
            let leads = &seen.object["endpoints"][0]["conditions"];
            assert!(
                leads.is_null() || *leads == json!({"ready": true, "serving": true, "terminating": false})
            );
        }
        // The node accepts no more pods until it is booted, whether or not it is off.
        node_until(&lab, |node| taints(node) == ["node.kubernetes.io/not-ready:NoSchedule"]).await;
        post(&lab, "restart").await;
        node_until(&lab, |node| is_ready(node, "True", "KubeletReady") && taints(node).is_empty()).await;
    });
}
