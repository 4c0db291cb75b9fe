//! Nodes whose agents fall silent or that are shut down, as anybody sees it by the API.

use std::time::Duration;

use serde_json::{Value, json};

use crate::pods::{PODS, log_with, shell, wait_for_async};
use crate::termination::case::condition;
use crate::termination::lab::{Lab, Seen};

const NODE: &str = "/api/v1/nodes/node-1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1";

/// Nodes that are given up soon, whose pods may stay for so long, and a Service.
async fn lab(nodes: u32, toleration_s: u32) -> Lab {
    let config = json!({
        "nodes": nodes,
        "dataplane": "userspace",
        "apiServer": {"defaultUnreachableTolerationSeconds": toleration_s},
        "controllers": {"nodeMonitorPeriod": "500ms", "nodeMonitorGracePeriod": "8s"},
        "kubelet": {"nodeLeaseDurationSeconds": 8, "nodeStatusUpdateFrequency": "1s"},
    });
    let lab = Lab::start("userspace", &config).await;
    let service = json!({
        "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]},
    });
    lab.create("/api/v1/namespaces/default/services", &service).await;
    lab
}

/// Runs a pod on the first node, as a controller would make it, and waits for its endpoint.
async fn run_ready(lab: &Lab, script: &str) {
    let mut app = shell("app", script);
    app["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = json!({"nodeName": "node-1", "terminationGracePeriodSeconds": 1, "containers": [app]});
    lab.create(PODS, &json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": spec})).await;
    lab.until("default", "a ready endpoint", |seen| endpoint(seen, "ready", true)).await;
}

/// Whether the newest slice says this of its endpoint.
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

fn run_on(nodes: u32, toleration_s: u32, test: impl AsyncFnOnce(Lab)) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { test(lab(nodes, toleration_s).await).await });
}

#[test]
fn a_node_whose_agent_stops_is_unknown_and_its_pods_are_evicted_but_stay() {
    run_on(2, 2, async |lab| {
        run_ready(&lab, "trap 'echo got-term; exit 0' TERM; echo up; while :; do sleep 0.1; done").await;
        let lease = lab.call("GET", LEASE, None).await.body;
        let spec = &lease["spec"];
        assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!("node-1"), &json!(8)));
        assert_eq!(lease["metadata"]["ownerReferences"][0]["kind"], "Node");
        let renewed = async || lab.call("GET", LEASE, None).await.body["spec"]["renewTime"].clone();
        wait_for_async(async || renewed().await != spec["renewTime"]).await;

        post(&lab, "stop").await;
        let silent_from = tokio::time::Instant::now();
        let node = node_until(&lab, |node| is_ready(node, "Unknown", "NodeStatusUnknown")).await;
        // The last sign of life came about a quarter of the Lease's duration before, at the earliest.
        assert!(silent_from.elapsed() > Duration::from_secs(4), "{node:#}");
        assert_eq!(condition(&node, "DiskPressure").expect("a condition")["status"], "Unknown");
        let message = &condition(&node, "Ready").expect("a condition")["message"];
        assert_eq!(message, "Kubelet stopped posting node status.");
        let not_ready = |seen: &[Seen]| endpoint(seen, "ready", false);
        lab.until("default", "an endpoint that is not ready", not_ready).await;
        let unreachable =
            ["NoExecute", "NoSchedule"].map(|effect| format!("node.kubernetes.io/unreachable:{effect}"));
        node_until(&lab, |node| taints(node) == unreachable).await;

        let marked = |seen: &[Seen]| {
            let pods = seen.iter().filter(|seen| seen.kind() == "Pod");
            let marked = pods.filter(|seen| seen.object["metadata"]["deletionTimestamp"].is_string());
            marked.map(|seen| seen.object.clone()).next()
        };
        let pod = lab.until("default", "a deletion", marked).await;
        let target = condition(&pod, "DisruptionTarget").expect("a condition");
        assert_eq!(target["reason"], "DeletionByTaintManager");
        assert_eq!(condition(&pod, "Ready").expect("a condition")["status"], "False");
        let warned = |seen: &[Seen]| {
            let mut events = seen.iter().filter(|seen| seen.kind() == "Event");
            events.any(|seen| seen.object["message"] == "Node is not ready").then_some(())
        };
        lab.until("default", "a warning", warned).await;
        // Well past its grace period of a second nothing has happened to it: nobody is there to act.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let pod = lab.call("GET", &format!("{PODS}/web"), None).await;
        assert_eq!((pod.status, &pod.body["status"]["phase"]), (200, &json!("Running")), "{}", pod.body);
        assert_eq!(log_with(&lab, "web", "app", "up"), "up\n");

        post(&lab, "restart").await;
        node_until(&lab, |node| is_ready(node, "True", "KubeletReady") && taints(node).is_empty()).await;
        log_with(&lab, "web", "app", "got-term");
        let gone = |seen: &[Seen]| {
            let mut pods = seen.iter().filter(|seen| seen.kind() == "Pod");
            pods.any(|seen| seen.event == "DELETED").then_some(())
        };
        lab.until("default", "the end of the pod", gone).await;
    });
}

#[test]
fn pods_of_an_agent_that_comes_back_in_time_are_ready_again() {
    run_on(2, 300, async |lab| {
        run_ready(&lab, "while :; do sleep 0.1; done").await;
        post(&lab, "stop").await;
        let not_ready = |seen: &[Seen]| endpoint(seen, "ready", false);
        lab.until("default", "an endpoint that is not ready", not_ready).await;
        post(&lab, "restart").await;
        lab.until("default", "a ready endpoint", |seen| endpoint(seen, "ready", true)).await;
    });
}

#[test]
fn an_endpoint_stays_ready_through_a_nodes_shutdown_until_the_pod_has_ended() {
    run_on(2, 300, async |lab| {
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
        // The node is off: it does not renew its Lease any more.
        node_until(&lab, |node| is_ready(node, "Unknown", "NodeStatusUnknown")).await;
        post(&lab, "restart").await;
        node_until(&lab, |node| is_ready(node, "True", "KubeletReady") && taints(node).is_empty()).await;
    });
}

#[test]
fn nobody_is_evicted_when_the_only_node_fails() {
    run_on(1, 0, async |lab| {
        run_ready(&lab, "while :; do sleep 0.1; done").await;
        post(&lab, "stop").await;
        node_until(&lab, |node| is_ready(node, "Unknown", "NodeStatusUnknown")).await;
        let not_ready = |seen: &[Seen]| endpoint(seen, "ready", false);
        lab.until("default", "an endpoint that is not ready", not_ready).await;
        // No new pod comes to it, but whose pods are there stay, though they tolerate nothing: with two
        // nodes they would be evicted by now.
        let no_schedule = ["node.kubernetes.io/unreachable:NoSchedule"];
        node_until(&lab, |node| taints(node) == no_schedule).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let node = lab.call("GET", NODE, None).await.body;
        assert_eq!(taints(&node), no_schedule);
        let pod = lab.call("GET", &format!("{PODS}/web"), None).await.body;
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod:#}");
        assert_eq!(condition(&pod, "DisruptionTarget"), None);
    });
}
