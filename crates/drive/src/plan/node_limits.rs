//! Pods on a node, and limits on how many of them may terminate with it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::outage_limits::bounds;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::undo::RUN_LABEL;
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_scenario::{Disruption, DisruptionAction};
use rolldrop_sidecar::observed::controller_ref;

/// Label that states the purpose of an object that a run created.
pub(crate) const COMPONENT_LABEL: &str = "rolldrop.dev/component";
pub(crate) const COMPONENT: &str = "load";
/// Node label with the operating system.
pub(crate) const OS_LABEL: &str = "kubernetes.io/os";
/// Prefix of the namespaces with the cluster's own pods, which actions on nodes leave alone.
const SYSTEM: &str = "kube-";

/// Returns the number of nodes that can run the load's pods.
///
/// # Errors
/// Fails if the nodes cannot be listed.
pub(crate) async fn schedulable_nodes(caller: &Caller) -> Result<usize> {
    let what = "list nodes, to place a load worker on each (or set the number with --load-workers)";
    let nodes = Api::<Node>::all(caller.client.clone());
    let params = ListParams::default();
    let takes = caller.list_as(what, &nodes, &params, |node| takes_pods(&node)).await?;
    let takes = takes.map_err(|e| CoordinatorError::api(what, &e))?;
    Ok(takes.into_iter().filter(|takes| *takes).count())
}

/// Returns true if the scheduler may place one of the load's pods on a node.
pub(super) fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let is_linux = node.labels().get(OS_LABEL).is_some_and(|os| os == "linux");
    let repels = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
    is_linux
        && !spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
        && !spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| repels(&taint.effect))
}

/// Returns true if a pod sends this run's load.
pub(super) fn is_load_pod(pod: &impl ResourceExt, run: &str) -> bool {
    let has = |label: &str, value: &str| pod.labels().get(label).is_some_and(|found| found == value);
    has(COMPONENT_LABEL, COMPONENT) && has(RUN_LABEL, run)
}

/// Lists the pods on a node that are not terminating. Leaves out the node's static pods, system pods, and this
/// run's load workers.
pub(crate) async fn pods_on(caller: &Caller, node: &str, run: &str) -> Result<Vec<Candidate>> {
    let what = format!("list the pods on node {node}");
    let api = Api::<Candidate>::all(caller.client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut pods = caller.list(&what, &api, &on_node).await?;
    pods.retain(|pod| {
        let is_system = pod.namespace().is_some_and(|namespace| namespace.starts_with(SYSTEM));
        !is_owned_by(pod, "Node")
            && !is_system
            && !is_load_pod(pod, run)
            && pod.metadata.deletion_timestamp.is_none()
    });
    Ok(pods)
}

/// Checks that an action on a node terminates pods in the run's namespace, and that all pods that it terminates may
/// terminate at the same time.
pub(crate) async fn check_node(
    caller: &Caller,
    disruption: &Disruption,
    node: &str,
    pods: Vec<Candidate>,
) -> Result<()> {
    let has_ours =
        |pods: &[Candidate]| pods.iter().any(|pod| pod.namespace().as_ref() == Some(&caller.namespace));
    let had_ours = has_ours(&pods);
    let going = ended_by(&disruption.action, pods);
    if !has_ours(&going) {
        let (node, namespace) = (node.to_owned(), caller.namespace.clone());
        return Err(match had_ours {
            true => CoordinatorError::OnlyDaemonSets { node, namespace },
            false => CoordinatorError::NoPodsOnNode { node, namespace },
        });
    }
    check_node_bounds(caller, disruption, node, &going).await
}

/// Checks, in each namespace, that these pods of a node may all terminate at the same time, that they do not include all
/// ready pods of any owner, and that something recreates each of them.
pub(crate) async fn check_node_bounds(
    caller: &Caller,
    disruption: &Disruption,
    node: &str,
    going: &[Candidate],
) -> Result<()> {
    if disruption.allow_outage {
        return Ok(());
    }
    let action = &disruption.action;
    let too_many =
        |why: String| CoordinatorError::TooMany { action: action.name(), of: format!("node {node}"), why };
    if let Some(pod) = going.iter().find(|pod| is_lost_for_good(pod)) {
        let namespace = pod.namespace().unwrap_or_default();
        return Err(too_many(format!("nothing would recreate pod {} in {namespace}", pod.name_any())));
    }
    let namespaces: BTreeSet<String> = going.iter().filter_map(ResourceExt::namespace).collect();
    for namespace in namespaces {
        let of_namespace = Caller { namespace, ..caller.clone() };
        if let Some(why) = refuse_in_namespace(&of_namespace, action, going).await? {
            return Err(too_many(why));
        }
    }
    Ok(())
}

/// Returns true if a pod that an action ends does not come back. A run needs the pods that it created itself no longer
/// than it lasts.
fn is_lost_for_good(pod: &Candidate) -> bool {
    controller_ref(pod).is_none() && !pod.is_over && !pod.labels().contains_key(RUN_LABEL)
}

/// Returns the reason that those of these pods that are in the caller's namespace may not all terminate at the same
/// time; `None` if they may.
async fn refuse_in_namespace(
    caller: &Caller,
    action: &DisruptionAction,
    going: &[Candidate],
) -> Result<Option<String>> {
    let all: Vec<Candidate> = caller.list_kind().await?;
    let (leaving, mut ready): (Vec<Candidate>, Vec<Candidate>) =
        all.into_iter().partition(|pod| pod.metadata.deletion_timestamp.is_some());
    ready.retain(|pod| pod.is_ready);
    let uids = |pods: &[Candidate]| pods.iter().filter_map(ResourceExt::uid).collect::<BTreeSet<_>>();
    let among = |pod: &&Candidate, uids: &BTreeSet<String>| {
        pod.metadata.uid.as_ref().is_some_and(|uid| uids.contains(uid))
    };
    let doomed = uids(going);
    let going: Vec<Candidate> = ready.iter().filter(|pod| among(pod, &doomed)).cloned().collect();
    let bounds = bounds(caller, action).await?;
    let at_once = bounds.at_once(action, &going);
    let doomed = uids(&at_once);
    let owner = |pod: &Candidate| controller_ref(pod).map(|owner| owner.uid.clone());
    let with_more: BTreeSet<String> =
        ready.iter().filter(|pod| !among(pod, &doomed)).filter_map(owner).collect();
    let mut owners = at_once.iter().filter_map(controller_ref);
    if let Some(of) = owners.find(|of| !with_more.contains(&of.uid)) {
        let count = at_once.iter().filter(|pod| owner(pod).as_ref() == Some(&of.uid)).count();
        let of = format!("{} {} in {}", of.kind, of.name, caller.namespace);
        return Ok(Some(match count {
            1 => format!("the only ready pod of {of} is on it"),
            all => format!("all {all} ready pods of {of} are on it"),
        }));
    }
    Ok(bounds.refuse_action(action, &going, &ready, &leaving))
}

/// Returns the pods on a node that an action terminates; a drain leaves DaemonSet pods in place.
pub(crate) fn ended_by(action: &DisruptionAction, mut pods: Vec<Candidate>) -> Vec<Candidate> {
    if matches!(action, DisruptionAction::Drain { .. }) {
        pods.retain(|pod| !is_owned_by(pod, "DaemonSet"));
    }
    pods
}

fn is_owned_by(pod: &Candidate, kind: &str) -> bool {
    pod.owner_references().iter().any(|owner| owner.kind == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unschedulable_nodes_take_no_load() {
        let takes = |os: &str, spec: serde_json::Value| {
            let node = json!({"metadata": {"labels": {OS_LABEL: os}}, "spec": spec});
            takes_pods(&serde_json::from_value(node).unwrap())
        };
        let taint = |effect: &str| json!({"taints": [{"key": "x", "effect": effect}]});
        assert!(takes("linux", json!({})) && takes("linux", taint("PreferNoSchedule")));
        assert!(!takes("windows", json!({})) && !takes("linux", json!({"unschedulable": true})));
        assert!(!takes("linux", taint("NoSchedule")) && !takes("linux", taint("NoExecute")));
    }
}
