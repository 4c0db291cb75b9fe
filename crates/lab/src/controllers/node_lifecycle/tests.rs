//! Nodes that fail, without agents: the test speaks for them.

use std::time::Duration;

use futures::FutureExt;

use super::super::is_being_deleted;
use super::super::taint_eviction;
use super::super::taints::{NO_EXECUTE, NO_SCHEDULE};
use super::super::tests::bench::Bench;
use super::taint::UNSCHEDULABLE;
use super::*;
use crate::Config;

/// A cluster of so many ready nodes that looks at them often.
fn cluster(nodes: usize) -> Bench {
    let mut config = Config::default();
    config.controllers.node_monitor_period = Duration::from_millis(10);
    config.controllers.node_monitor_grace_period = Duration::from_secs(2);
    let bench = Bench::start_with(
        config,
        &[|shared| run(shared).boxed(), |shared| taint_eviction::run(shared).boxed()],
    );
    for n in 1..=nodes {
        bench.create(Resource::Nodes, json!({"metadata": {"name": format!("node-{n}")}}));
        beat(&bench, n, "True");
    }
    bench
}

/// A heartbeat: the node says whether it is ready.
fn beat(bench: &Bench, node: usize, ready: &str) {
    let now = bench.registry().now_in_micros();
    bench.modify(Resource::Nodes, &format!("node-{node}"), Part::Status, |node| {
        let condition = json!({"type": "Ready", "status": ready, "lastHeartbeatTime": now});
        conditions::put(node, condition, &now);
    });
}

fn keys_and_effects(bench: &Bench) -> Vec<(String, String)> {
    let node = bench.get(Resource::Nodes, "node-1");
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let text = |taint: &Value, field: &str| taint[field].as_str().unwrap().to_owned();
    taints.iter().map(|taint| (text(taint, "key"), text(taint, "effect"))).collect()
}

fn taints(key: &str, effects: &[&str]) -> Vec<(String, String)> {
    effects.iter().map(|effect| (key.to_owned(), (*effect).to_owned())).collect()
}

fn pod(name: &str, toleration_seconds: Value) -> Value {
    let toleration = |taint: &str| {
        let mut toleration = json!({"key": taint, "operator": "Exists", "effect": "NoExecute"});
        if !toleration_seconds.is_null() {
            toleration["tolerationSeconds"] = toleration_seconds.clone();
        }
        toleration
    };
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": "node-1",
            "tolerations": [toleration(NOT_READY), toleration(UNREACHABLE)],
            "containers": [{"name": "app", "image": "host", "command": ["true"]}],
        },
    })
}

#[tokio::test]
async fn a_silent_node_is_unknown_its_pods_are_not_ready_and_go_when_their_time_is_up() {
    let bench = cluster(2);
    bench.holds("known", |bench| bench.events("RegisteredNode").len() == 2).await;
    for (name, seconds) in [("soon", json!(1)), ("late", json!(300)), ("never", Value::Null)] {
        bench.create(Resource::Pods, pod(name, seconds));
        bench.set_ready(name, true);
    }
    bench
        .holds("unknown", |bench| {
            beat(bench, 2, "True");
            condition(&bench.get(Resource::Nodes, "node-1"), "Ready")["reason"] == "NodeStatusUnknown"
        })
        .await;
    let expected = taints(UNREACHABLE, &[NO_EXECUTE, NO_SCHEDULE]);
    bench
        .holds("tainted", |bench| {
            beat(bench, 2, "True");
            let mut found = keys_and_effects(bench);
            found.sort();
            found == expected
        })
        .await;
    bench.holds("not ready", |bench| !is_ready(&bench.get(Resource::Pods, "late"))).await;
    assert_eq!(bench.events("NodeNotReady").len(), 4, "of the node and of each pod");
    bench
        .holds("evicted", |bench| {
            beat(bench, 2, "True");
            is_being_deleted(&bench.get(Resource::Pods, "soon"))
        })
        .await;
    let evicted = bench.get(Resource::Pods, "soon");
    assert_eq!(condition(&evicted, "DisruptionTarget")["reason"], "DeletionByTaintManager");
    assert_eq!(bench.events("TaintManagerEviction"), ["Marking for deletion Pod default/soon"]);
    for name in ["late", "never"] {
        assert!(!is_being_deleted(&bench.get(Resource::Pods, name)), "{name}");
    }
    beat(&bench, 1, "True");
    bench
        .holds("no taint any more", |bench| {
            beat(bench, 1, "True");
            keys_and_effects(bench).is_empty()
        })
        .await;
    let cancelled = "Cancelling deletion of Pod default/late".to_owned();
    bench
        .holds("its eviction is off", |bench| bench.events("TaintManagerEviction").contains(&cancelled))
        .await;
}

#[tokio::test]
async fn a_node_that_says_it_is_not_ready_is_tainted_and_its_pods_stay_as_they_are() {
    let bench = cluster(2);
    bench.holds("known", |bench| bench.events("RegisteredNode").len() == 2).await;
    bench.create(Resource::Pods, pod("web", json!(300)));
    bench.set_ready("web", true);
    let expected = taints(NOT_READY, &[NO_EXECUTE, NO_SCHEDULE]);
    bench
        .holds("tainted", |bench| {
            beat(bench, 1, "False");
            beat(bench, 2, "True");
            let mut found = keys_and_effects(bench);
            found.sort();
            found == expected
        })
        .await;
    assert!(is_ready(&bench.get(Resource::Pods, "web")));
    assert!(bench.events("NodeNotReady").is_empty());
}

#[tokio::test]
async fn nobody_is_evicted_when_all_nodes_fail() {
    let bench = cluster(1);
    let unschedulable = taints(UNREACHABLE, &[NO_SCHEDULE]);
    bench.holds("tainted", |bench| keys_and_effects(bench) == unschedulable).await;
    // The next look would add the taint `NoExecute`, if any did.
    bench.create(Resource::Nodes, json!({"metadata": {"name": "node-2"}}));
    bench.holds("looked", |bench| bench.events("RegisteredNode").len() == 2).await;
    assert_eq!(keys_and_effects(&bench), unschedulable);
}

#[tokio::test]
async fn a_cordoned_node_is_tainted() {
    let bench = cluster(1);
    bench.modify(Resource::Nodes, "node-1", Part::Main, |node| {
        node["spec"]["unschedulable"] = json!(true);
    });
    let expected = taints(UNSCHEDULABLE, &[NO_SCHEDULE]);
    bench
        .holds("tainted", |bench| {
            beat(bench, 1, "True");
            keys_and_effects(bench) == expected
        })
        .await;
    bench.modify(Resource::Nodes, "node-1", Part::Main, |node| {
        node["spec"]["unschedulable"] = json!(false);
    });
    bench
        .holds("no taint any more", |bench| {
            beat(bench, 1, "True");
            keys_and_effects(bench).is_empty()
        })
        .await;
}
