use futures::FutureExt;

use super::super::scheduler;
use super::super::tests::bench::{Bench, Controller};
use super::*;
use crate::registry::ObjectPart;
use crate::value::{number, text};

const BOTH: [Controller; 2] = [|shared| run(shared).boxed(), |shared| scheduler::run(shared).boxed()];

fn bench_with(spec: Value) -> Bench {
    let bench = Bench::start(&BOTH);
    for name in ["node-1", "node-2"] {
        node(&bench, name);
    }
    let mut set = json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "app", "image": "host", "command": ["v1"]}]},
            },
        },
    });
    json_patch::merge(&mut set["spec"], &spec);
    bench.create(Resource::DaemonSets, set);
    bench
}

fn node(bench: &Bench, name: &str) {
    bench.create(
        Resource::Nodes,
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}),
    );
}

fn set_version(bench: &Bench, version: &str) {
    bench.modify(Resource::DaemonSets, "agent", ObjectPart::Main, |set| {
        set["spec"]["template"]["spec"]["containers"][0]["command"] = json!([version]);
    });
}

/// Returns the pods, each with its node, its command, and a mark if it is being deleted.
fn pods(bench: &Bench) -> Vec<String> {
    let pods = bench.list(Resource::Pods);
    let shown = |pod: &Arc<Value>| {
        let going = if is_being_deleted(pod) { " ending" } else { "" };
        let command = &pod["spec"]["containers"][0]["command"][0];
        format!("{} {}{going}", text(&pod["spec"]["nodeName"]), text(command))
    };
    let mut all: Vec<_> = pods.iter().map(shown).collect();
    all.sort();
    all
}

/// Starts the pods that are bound to a node, without removing any.
fn start_pods(bench: &Bench) {
    for pod in bench.list(Resource::Pods) {
        if pod["spec"]["nodeName"].is_string() && pod["status"]["phase"] == "Pending" {
            bench.set_ready(&key(&pod).1, true);
        }
    }
}

fn end_pods(bench: &Bench) {
    for pod in bench.list(Resource::Pods).iter().filter(|pod| is_being_deleted(pod)) {
        bench.end_pod(&key(pod).1);
    }
}

async fn settle(bench: &Bench) {
    let is_settled = |bench: &Bench| {
        start_pods(bench);
        end_pods(bench);
        let set = bench.get(Resource::DaemonSets, "agent");
        let status = &set["status"];
        let wanted = number(&status["desiredNumberScheduled"]);
        status["observedGeneration"] == set["metadata"]["generation"]
            && wanted > 0
            && bench.list(Resource::Pods).len() == usize::try_from(wanted).unwrap()
            && ["updatedNumberScheduled", "numberAvailable"]
                .iter()
                .all(|count| number(&status[count]) == wanted)
    };
    bench.holds("the DaemonSet is up to date", is_settled).await;
}

#[tokio::test]
async fn new_node_gets_daemon_pod() {
    let bench = bench_with(json!({}));
    settle(&bench).await;
    assert_eq!(pods(&bench), ["node-1 v1", "node-2 v1"]);
    node(&bench, "node-3");
    bench
        .holds("a third pod starts", |bench| {
            start_pods(bench);
            pods(bench).contains(&"node-3 v1".to_owned())
        })
        .await;
    settle(&bench).await;
    let expected = json!({
        "observedGeneration": 1, "desiredNumberScheduled": 3, "currentNumberScheduled": 3,
        "numberMisscheduled": 0, "numberReady": 3, "updatedNumberScheduled": 3, "numberAvailable": 3,
    });
    assert_eq!(bench.get(Resource::DaemonSets, "agent")["status"], expected);
}

#[tokio::test]
async fn rollout_waits_for_pod_deletion() {
    let bench = bench_with(json!({}));
    settle(&bench).await;
    set_version(&bench, "v2");
    bench.holds("the first pod terminates", |bench| pods(bench) == ["node-1 v1 ending", "node-2 v1"]).await;
    end_pods(&bench);
    bench.holds("the first pod is replaced", |bench| pods(bench) == ["node-1 v2", "node-2 v1"]).await;
    start_pods(&bench);
    bench.holds("the second pod terminates", |bench| pods(bench) == ["node-1 v2", "node-2 v1 ending"]).await;
    settle(&bench).await;
}

#[tokio::test]
async fn max_surge_starts_new_pod_first() {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    let bench = bench_with(json!({"updateStrategy": strategy}));
    settle(&bench).await;
    set_version(&bench, "v2");
    bench
        .holds("the new pod runs beside the old one", |bench| {
            pods(bench) == ["node-1 v1", "node-1 v2", "node-2 v1"]
        })
        .await;
    start_pods(&bench);
    bench.holds("the old pod terminates", |bench| pods(bench).contains(&"node-1 v1 ending".to_owned())).await;
    settle(&bench).await;
    assert_eq!(pods(&bench), ["node-1 v2", "node-2 v2"]);
}

#[tokio::test]
async fn cordoned_node_keeps_daemon_pod() {
    let bench = bench_with(json!({}));
    settle(&bench).await;
    bench.modify(Resource::Nodes, "node-1", ObjectPart::Main, |node| {
        node["spec"]["unschedulable"] = json!(true);
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
    });
    set_version(&bench, "v2");
    settle(&bench).await;
    assert_eq!(pods(&bench), ["node-1 v2", "node-2 v2"]);
}
