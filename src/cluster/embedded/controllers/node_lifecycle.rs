//! Draws the consequences of a node's state: taints on the node, and what its pods are worth.
//!
//! After pkg/controller/nodelifecycle: a node whose `Ready` is not true gets the taint
//! `not-ready` (false) or `unreachable` (unknown), which keeps new pods away at once and evicts
//! those that are there after their `tolerationSeconds` ([`super::taint_eviction`]); its pods count
//! as not ready from then on. Cordoning is a taint, too. The state itself is written by the node's
//! agent.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::taints::{NO_EXECUTE, NO_SCHEDULE};
use super::worker::{self, BACK_OFF, Outcome};
use super::{condition, conditions, follow, is_ready, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{EventType, Part, WatchEventType};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::Selection;

const COMPONENT: &str = "node-controller";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) async fn run(shared: Shared) {
    let events = follow(&shared.registry, &[Resource::Nodes]);
    let known = Mutex::new(BTreeSet::new());
    let named = |(_, event): super::Observed| {
        let (_, name) = key(&event.object);
        match event.event_type {
            WatchEventType::Deleted => {
                known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&name);
                Vec::new()
            }
            _ => vec![name],
        }
    };
    worker::run(events, BACK_OFF, named, |name| {
        let is_new = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.clone());
        let shared = shared.clone();
        async move { reconcile(&shared, &name, is_new) }
    })
    .await;
}

fn reconcile(shared: &Shared, name: &str, is_new: bool) -> Outcome {
    let registry = &shared.registry;
    let Ok(node) = registry.get(Resource::Nodes, "", name) else { return Ok(None) };
    if is_new {
        let message = format!("Node {name} event: Registered Node {name} in Controller");
        registry.record_event(&node, EventType::Normal, "RegisteredNode", &message, COMPONENT);
    }
    let wanted = taints_of_state(&node);
    let is_ours = |taint: &Value| {
        [NOT_READY, UNREACHABLE, UNSCHEDULABLE].iter().any(|taint_key| taint["key"] == *taint_key)
    };
    let same = |a: &Value, b: &Value| a["key"] == b["key"] && a["effect"] == b["effect"];
    let before = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let mut after: Vec<_> = before
        .iter()
        .filter(|taint| !is_ours(taint) || wanted.iter().any(|wanted| same(wanted, taint)))
        .cloned()
        .collect();
    let now = registry.now();
    for mut taint in wanted {
        if !after.iter().any(|other| same(other, &taint)) {
            taint["timeAdded"] = json!(now);
            after.push(taint);
        }
    }
    if after != before {
        registry.modify(Resource::Nodes, "", name, Part::Main, |node| {
            if after.is_empty() {
                node["spec"].as_object_mut().map(|spec| spec.remove("taints"));
            } else {
                node["spec"]["taints"] = json!(after);
            }
        })?;
        if condition(&node, "Ready")["status"] != "True" {
            let message = format!("Node {name} status is now: NodeNotReady");
            registry.record_event(&node, EventType::Normal, "NodeNotReady", &message, COMPONENT);
        }
    }
    if condition(&node, "Ready")["status"] != "True" {
        mark_pods_not_ready(shared, name)?;
    }
    Ok(None)
}

/// The taints that a node's state asks for.
fn taints_of_state(node: &Value) -> Vec<Value> {
    let mut taints = Vec::new();
    if node["spec"]["unschedulable"] == true {
        taints.push(json!({"key": UNSCHEDULABLE, "effect": NO_SCHEDULE}));
    }
    let state = match condition(node, "Ready")["status"].as_str() {
        Some("True") => return taints,
        Some("False") => NOT_READY,
        _ => UNREACHABLE,
    };
    taints.extend([NO_SCHEDULE, NO_EXECUTE].map(|effect| json!({"key": state, "effect": effect})));
    taints
}

/// Nobody can say any more whether the pods of a lost node are ready (`MarkPodsNotReady`).
fn mark_pods_not_ready(shared: &Shared, node: &str) -> Result<(), crate::cluster::embedded::status::Status> {
    let registry = &shared.registry;
    let now = registry.now();
    for pod in registry.list(Resource::Pods, None, &Selection::field("spec.nodeName", node)).items {
        if !is_ready(&pod) {
            continue;
        }
        let (namespace, name) = key(&pod);
        let marked = registry.modify(Resource::Pods, &namespace, &name, Part::Status, |pod| {
            let mut ready = condition(pod, "Ready").clone();
            ready["status"] = json!("False");
            conditions::put(pod, ready, &now);
        });
        match marked {
            Ok(pod) => {
                registry.record_event(
                    &pod,
                    EventType::Warning,
                    "NodeNotReady",
                    "Node is not ready",
                    COMPONENT,
                );
            }
            Err(status) if status.code() == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::bench::Bench;
    use super::super::taint_eviction;
    use super::*;

    fn keys_and_effects(bench: &Bench) -> Vec<(String, String)> {
        let node = bench.get(Resource::Nodes, "node-1");
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let text = |taint: &Value, field: &str| taint[field].as_str().unwrap().to_owned();
        taints.iter().map(|taint| (text(taint, "key"), text(taint, "effect"))).collect()
    }

    fn set_ready(bench: &Bench, status: &str) {
        let now = bench.registry().now();
        bench.modify(Resource::Nodes, "node-1", Part::Status, |node| {
            conditions::put(node, json!({"type": "Ready", "status": status}), &now);
        });
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
    async fn a_lost_node_is_tainted_and_its_pods_go_when_their_time_is_up() {
        let bench =
            Bench::start(&[|shared| run(shared).boxed(), |shared| taint_eviction::run(shared).boxed()]);
        bench.create(Resource::Nodes, json!({"metadata": {"name": "node-1"}}));
        set_ready(&bench, "True");
        bench.holds("known", |bench| !bench.events("RegisteredNode").is_empty()).await;
        for (name, seconds) in [("soon", json!(1)), ("late", json!(300)), ("never", Value::Null)] {
            bench.create(Resource::Pods, pod(name, seconds));
            bench.set_ready(name, true);
        }
        bench.holds("no taint yet", |bench| keys_and_effects(bench).is_empty()).await;
        set_ready(&bench, "False");
        let expected = [NO_SCHEDULE, NO_EXECUTE].map(|effect| (NOT_READY.to_owned(), effect.to_owned()));
        bench.holds("tainted", |bench| keys_and_effects(bench) == expected).await;
        bench.holds("not ready", |bench| !is_ready(&bench.get(Resource::Pods, "late"))).await;
        bench
            .holds("evicted", |bench| super::super::is_being_deleted(&bench.get(Resource::Pods, "soon")))
            .await;
        let evicted = bench.get(Resource::Pods, "soon");
        assert_eq!(condition(&evicted, "DisruptionTarget")["reason"], "DeletionByTaintManager");
        assert_eq!(bench.events("TaintManagerEviction"), ["Marking for deletion Pod default/soon"]);
        for name in ["late", "never"] {
            assert!(!super::super::is_being_deleted(&bench.get(Resource::Pods, name)), "{name}");
        }
        set_ready(&bench, "True");
        bench.holds("no taint any more", |bench| keys_and_effects(bench).is_empty()).await;
        bench
            .holds("its eviction is off", |bench| {
                bench
                    .events("TaintManagerEviction")
                    .contains(&"Cancelling deletion of Pod default/late".to_owned())
            })
            .await;
    }

    #[tokio::test]
    async fn a_cordoned_node_is_tainted() {
        let bench = Bench::start(&[|shared| run(shared).boxed()]);
        bench.create(Resource::Nodes, json!({"metadata": {"name": "node-1"}}));
        set_ready(&bench, "True");
        bench.modify(Resource::Nodes, "node-1", Part::Main, |node| {
            node["spec"]["unschedulable"] = json!(true)
        });
        let expected = [(UNSCHEDULABLE.to_owned(), NO_SCHEDULE.to_owned())];
        bench.holds("tainted", |bench| keys_and_effects(bench) == expected).await;
        bench.modify(Resource::Nodes, "node-1", Part::Main, |node| {
            node["spec"]["unschedulable"] = json!(false)
        });
        bench.holds("no taint any more", |bench| keys_and_effects(bench).is_empty()).await;
    }
}
