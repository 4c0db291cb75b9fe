//! The taints that the node controller puts on nodes.

use serde_json::{Value, json};

use super::super::follow;
use super::super::taints::NO_SCHEDULE;
use super::super::worker::{self, BACK_OFF, Outcome};
use super::{condition, key};
use crate::Shared;
use crate::registry::{Part, Registry};
use crate::resource::Resource;
use crate::status::Status;

/// The node says that it is not ready.
pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The node says nothing any more.
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The node is cordoned.
pub(super) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Conditions and states of theirs that keep new pods away, each with its taint
/// (`nodeConditionToTaintKeyStatusMap`).
const BY_CONDITION: [(&str, &str, &str); 2] =
    [("Ready", "False", NOT_READY), ("Ready", "Unknown", UNREACHABLE)];

/// Keeps each node's taints `NoSchedule` as its conditions are, for ever.
pub(super) async fn follow_conditions(shared: &Shared) {
    let events = follow(&shared.registry, &[Resource::Nodes]);
    let named = |(_, event): super::super::Observed| vec![key(&event.object).1];
    worker::run(events, BACK_OFF, named, |name| async move { reconcile(&shared.registry, &name) }).await;
}

fn reconcile(registry: &Registry, name: &str) -> Outcome {
    let Ok(node) = registry.get(Resource::Nodes, "", name) else { return Ok(None) };
    let applies = |kind: &str, status: &str| condition(&node, kind)["status"] == status;
    let (wanted, unwanted): (Vec<_>, Vec<_>) = BY_CONDITION
        .iter()
        .map(|(kind, status, taint)| (*taint, applies(kind, status)))
        .chain([(UNSCHEDULABLE, node["spec"]["unschedulable"] == true)])
        .partition(|(_, applies)| *applies);
    let keys = |taints: Vec<(&'static str, bool)>| taints.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    swap(registry, name, NO_SCHEDULE, &keys(wanted), &keys(unwanted))?;
    Ok(None)
}

/// Gives and takes taints with one effect. Nothing is written where nothing changes.
pub(super) fn swap(
    registry: &Registry,
    node: &str,
    effect: &str,
    wanted: &[&str],
    unwanted: &[&str],
) -> Result<(), Status> {
    let now = registry.now();
    let swapped = registry.modify(Resource::Nodes, "", node, Part::Main, |node| {
        let before = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let mut after = before.clone();
        let is = |taint: &Value, key: &str| taint["key"] == key && taint["effect"] == effect;
        after.retain(|taint| !unwanted.iter().any(|key| is(taint, key)));
        for key in wanted {
            if !after.iter().any(|taint| is(taint, key)) {
                after.push(json!({"key": key, "effect": effect, "timeAdded": now}));
            }
        }
        if after.is_empty() {
            node["spec"].as_object_mut().map(|spec| spec.remove("taints"));
        } else if after != before {
            node["spec"]["taints"] = json!(after);
        }
    });
    match swapped {
        Err(status) if status.code() == 404 => Ok(()),
        swapped => swapped.map(drop),
    }
}
