//! Actions on nodes: draining them, shutting them down, and restarting their agents.
//!
//! Kubernetes has no API call that shuts a node down, restarts its agent or kills a container's process. A cluster that
//! supports these actions offers them below its nodes' `proxy` path, as the embedded cluster does
//! (docs/embedded-cluster.md). Any other cluster returns 404 there, which a run's plan detects
//! ([`crate::plan`]).

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::time::timeout;

use super::acting::{Acting, Disrupted, Insisting, Refusal, Twice};
use crate::act::load_job::is_load_pod;
use crate::api::caller::Caller;
use crate::error::{CoordinatorError, Result};
use crate::observe::namespace_view::View;
use crate::undo::ask_agent;
use crate::undo::change_journal::{Change, ObjectRef};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::Mode;
use rolldrop_record::event::PodEvent;
use rolldrop_scenario::{Disruption, DisruptionAction, Pods, Restore};

/// Prefix of the namespaces with the cluster's own pods, which actions on nodes leave alone.
const SYSTEM: &str = "kube-";

/// Rules for asking a node's agent to restart, or to kill a container's process.
const AGENT: Insisting = Insisting { success: 200, pause: Duration::from_secs(1), twice: Twice::Harmful };
/// Rules for asking the agent to shut its node down: a shutdown in progress continues, so asking again is harmless.
const SHUTDOWN: Insisting = Insisting { twice: Twice::Harmless, ..AGENT };

impl Caller {
    /// Lists the pods on a node that are not terminating. Leaves out the node's static pods, system pods, and this
    /// run's load workers.
    pub(crate) async fn pods_on(&self, node: &str, run: &str) -> Result<Vec<Candidate>> {
        let what = format!("list the pods of node {node}");
        let api = Api::<Candidate>::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let mut pods = self.list(&what, &api, &on_node).await?;
        pods.retain(|pod| {
            let is_system = pod.namespace().is_some_and(|namespace| namespace.starts_with(SYSTEM));
            !is_owned_by(pod, "Node")
                && !is_system
                && !is_load_pod(pod, run)
                && pod.metadata.deletion_timestamp.is_none()
        });
        Ok(pods)
    }

    /// Checks that the action terminates some pods of the run's namespace on a node, and no more than may end at once.
    pub(crate) async fn check_node(
        &self,
        disruption: &Disruption,
        node: &str,
        pods: Vec<Candidate>,
    ) -> Result<()> {
        let has_ours =
            |pods: &[Candidate]| pods.iter().any(|pod| pod.namespace().as_ref() == Some(&self.namespace));
        let had_ours = has_ours(&pods);
        let going = ended_by(&disruption.action, pods);
        if !has_ours(&going) {
            let (node, namespace) = (node.to_owned(), self.namespace.clone());
            return Err(match had_ours {
                true => CoordinatorError::OnlyDaemonSets { node, namespace },
                false => CoordinatorError::NoPodsOnNode { node, namespace },
            });
        }
        self.check_node_bounds(disruption, node, &going).await
    }

    /// Checks that no more pods of the run's namespace end with the node than may end at once, and that they do not
    /// include all ready pods of any owner.
    async fn check_node_bounds(
        &self,
        disruption: &Disruption,
        node: &str,
        going: &[Candidate],
    ) -> Result<()> {
        if disruption.allow_outage {
            return Ok(());
        }
        let action = &disruption.action;
        let too_many = |why: String| CoordinatorError::TooMany {
            action: action.name(),
            of: format!("node {node}"),
            why,
        };
        let all: Vec<Candidate> = self.list_kind().await?;
        let (leaving, mut ready): (Vec<Candidate>, Vec<Candidate>) =
            all.into_iter().partition(|pod| pod.metadata.deletion_timestamp.is_some());
        ready.retain(|pod| pod.is_ready);
        let uids = |pods: &[Candidate]| pods.iter().filter_map(ResourceExt::uid).collect::<BTreeSet<_>>();
        let among = |pod: &&Candidate, uids: &BTreeSet<String>| {
            pod.metadata.uid.as_ref().is_some_and(|uid| uids.contains(uid))
        };
        let doomed = uids(going);
        let going: Vec<Candidate> = ready.iter().filter(|pod| among(pod, &doomed)).cloned().collect();
        let bounds = self.bounds(action).await?;
        let at_once = bounds.at_once(action, &going);
        let doomed = uids(&at_once);
        let owner = |pod: &Candidate| pod.owner_references().first().map(|owner| owner.uid.clone());
        let with_more: BTreeSet<String> =
            ready.iter().filter(|pod| !among(pod, &doomed)).filter_map(owner).collect();
        let mut owners = at_once.iter().filter_map(|pod| pod.owner_references().first());
        if let Some(of) = owners.find(|of| !with_more.contains(&of.uid)) {
            let count = at_once.iter().filter(|pod| owner(pod).as_ref() == Some(&of.uid)).count();
            return Err(too_many(format!("all {count} ready pods of {} {} are there", of.kind, of.name)));
        }
        bounds.refuse_action(action, &going, &ready, &leaving).map_or(Ok(()), |why| Err(too_many(why)))
    }
}

impl Acting<'_> {
    /// Lists the pods that the action terminates on a node.
    async fn pods_ending(&self, node: &str) -> Result<Vec<Candidate>> {
        let run = self.session.journal().run().to_owned();
        let pods = self.session.caller.pods_on(node, &run).await?;
        Ok(ended_by(&self.disruption.action, pods))
    }

    /// Reads a node.
    pub(super) async fn node(&self, node: &str) -> Result<(Api<DynamicObject>, Value)> {
        let caller = &self.session.caller;
        let resource = ApiResource::erase::<Node>(&());
        let api = Api::<DynamicObject>::all_with(caller.client.clone(), &resource);
        let found = caller.read(&api, &format!("read Node {node}"), node).await?;
        Ok((api, serde_json::to_value(found).unwrap_or_default()))
    }

    /// Checks that the node exists, and that the action may terminate its pods.
    pub(super) async fn check_node(&self, node: &str) -> Result<()> {
        self.node(node).await?;
        let (caller, run) = (&self.session.caller, self.session.journal().run().to_owned());
        let pods = caller.pods_on(node, &run).await?;
        caller.check_node(self.disruption, node, pods).await
    }

    /// Cordons a node and evicts its pods, as `kubectl drain` does.
    pub(super) async fn drain(&self, node: &str, restore: Restore) -> Result<Disrupted, Refusal> {
        let (api, current) = self.node(node).await?;
        let going = self.pods_ending(node).await?;
        self.session.caller.check_node_bounds(self.disruption, node, &going).await?;
        let cordon = |node: &mut Value| node["spec"]["unschedulable"] = true.into();
        let cordoned = self.session.alter(&api, &current, cordon).await?;
        let done = match self.pods_ending(node).await {
            Ok(pods) => {
                let evicted = join_all(pods.iter().map(|pod| self.evict(Mode::Drain, pod, None))).await;
                evicted.into_iter().map(Disrupted::from).sum()
            }
            Err(error) => self.refused(self.mode(), error.into()),
        };
        self.restore(restore, None, cordoned.as_slice()).await;
        Ok(done)
    }

    /// Shuts a node down. The run boots it again when `restore` says so.
    pub(super) async fn shut_node_down(
        &self,
        node: &str,
        grace_seconds: u32,
        restore: Restore,
    ) -> Result<Disrupted, Refusal> {
        let object = ObjectRef::new("v1", "Node", None, node);
        let change =
            self.session.journal().announce(object, Change::ShutDown).map_err(CoordinatorError::from)?;
        let command = format!("shutdown?grace={grace_seconds}");
        let insisted = self.insist(self.mode(), None, SHUTDOWN, || self.ask(node, &command)).await;
        if insisted.may_be_done {
            self.restore(restore, self.mode(), &[change]).await;
        } else if let Err(error) = self.session.journal().undone(change, "refused") {
            self.session.warn(error.to_string());
        }
        Ok(insisted.is_accepted.into())
    }

    /// Restarts a node's agent. The node's containers keep running.
    pub(super) async fn restart_agent(&self, node: &str) -> Disrupted {
        self.insist(None, None, AGENT, || self.ask(node, "restart")).await.is_accepted.into()
    }

    /// Checks that the pods exist and have the container.
    pub(super) async fn check_crash(&self, pods: &Pods, container: Option<&str>) -> Result<()> {
        self.check_pods(pods).await?;
        let found = self.selected(pods).await?;
        found.iter().filter(|pod| pod.is_ready).try_for_each(|pod| kill_command(pod, container).map(drop))
    }

    /// Kills the first process of a pod's container. While the load lasts, waits until the pod's status shows that the
    /// container was restarted.
    pub(super) async fn crash(&self, pod: &Candidate, container: Option<&str>) -> bool {
        let uid = pod.uid().unwrap_or_default();
        let shown = |view: &View| view.pods.get(&uid).map(|seen| restarts(&seen.event));
        let before = self.session.views.read(shown);
        let is_accepted = match kill_command(pod, container) {
            Ok((node, command)) => {
                self.insist(None, Some(pod), AGENT, || self.ask(node, &command)).await.is_accepted
            }
            Err(error) => {
                self.refused(None, error.into());
                false
            }
        };
        if is_accepted {
            let limit = self.session.caller.limits.recovery;
            let again = self.session.views.wait_until(|view| shown(view) != before);
            // If the container is not back by then, the wait for recovery reports it.
            let _ = self.while_loaded(timeout(limit, again)).await;
        }
        is_accepted
    }

    async fn ask(&self, node: &str, command: &str) -> kube::Result<()> {
        ask_agent(&self.session.caller.client, node, command).await
    }
}

/// Returns the pods on a node that an action terminates; a drain leaves DaemonSet pods in place.
fn ended_by(action: &DisruptionAction, mut pods: Vec<Candidate>) -> Vec<Candidate> {
    if matches!(action, DisruptionAction::Drain { .. }) {
        pods.retain(|pod| !is_owned_by(pod, "DaemonSet"));
    }
    pods
}

fn is_owned_by(pod: &Candidate, kind: &str) -> bool {
    pod.owner_references().iter().any(|owner| owner.kind == kind)
}

/// Returns the sum of the restart counts of a pod's containers.
fn restarts(pod: &PodEvent) -> i32 {
    pod.containers.iter().map(|container| container.restarts).sum()
}

/// Returns the node whose agent kills a pod's container, and the command for it.
fn kill_command<'a>(pod: &'a Candidate, container: Option<&str>) -> Result<(&'a str, String)> {
    let node = pod.node.as_deref().unwrap_or_default();
    let names = || pod.containers.iter().map(String::as_str);
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let found = match container {
        None => names().next(),
        Some(container) => names().find(|found| *found == container),
    };
    let found = found.ok_or_else(|| CoordinatorError::NoContainer {
        of: format!("Pod {name}"),
        container: container.unwrap_or_default().to_owned(),
    })?;
    Ok((node, format!("kill/{namespace}/{name}/{found}")))
}
