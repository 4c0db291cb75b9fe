//! Actions on nodes: draining them, shutting them down, and restarting their agents.
//!
//! Kubernetes has no API call that shuts a node down, restarts its agent or kills a container's process. A cluster that
//! supports these actions offers them below its nodes' `proxy` path, as the embedded cluster does
//! (docs/embedded-cluster.md). Any other cluster returns 404 there, which a run's plan detects
//! ([`crate::plan`]).

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::time::timeout;

use super::acting::{Acting, Insisting, Refusal, Twice};
use crate::api::ask_agent;
use crate::error::{CoordinatorError, Result};
use crate::observe::View;
use crate::plan::node_limits::{check_node, check_node_bounds, ended_by, pods_on};
use crate::undo::{ClusterChange, ObjectRef};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::Mode;
use rolldrop_record::event::PodEvent;
use rolldrop_scenario::{Pods, Restore};

/// Rules for asking a node's agent to restart, or to kill a container's process.
const AGENT: Insisting = Insisting { success: 200, pause: Duration::from_secs(1), twice: Twice::Harmful };
/// Rules for asking the agent to shut its node down. Asking again is harmless, because a shutdown in progress
/// continues.
const SHUTDOWN: Insisting = Insisting { twice: Twice::Harmless, ..AGENT };

impl Acting<'_> {
    /// Lists the pods that the action terminates on a node.
    async fn pods_ending(&self, node: &str) -> Result<Vec<Candidate>> {
        let run = self.changer.ledger.run().to_owned();
        let pods = pods_on(self.changer.caller, node, &run).await?;
        Ok(ended_by(&self.disruption.action, pods))
    }

    /// Reads a node.
    pub(super) async fn node(&self, node: &str) -> Result<(Api<DynamicObject>, Value)> {
        let caller = self.changer.caller;
        let resource = ApiResource::erase::<Node>(&());
        let api = Api::<DynamicObject>::all_with(caller.client.clone(), &resource);
        let found = caller.read(&api, &format!("read Node {node}"), node).await?;
        Ok((api, serde_json::to_value(found).unwrap_or_default()))
    }

    /// Checks that the node exists, and that the action may terminate its pods.
    pub(super) async fn check_node(&self, node: &str) -> Result<()> {
        self.node(node).await?;
        let (caller, run) = (self.changer.caller, self.changer.ledger.run().to_owned());
        let pods = pods_on(caller, node, &run).await?;
        check_node(caller, self.disruption, node, pods).await
    }

    /// Cordons a node and evicts its pods, as `kubectl drain` does.
    pub(super) async fn drain(&self, node: &str, restore: Restore) -> Result<usize, Refusal> {
        let (api, current) = self.node(node).await?;
        let going = self.pods_ending(node).await?;
        check_node_bounds(self.changer.caller, self.disruption, node, &going).await?;
        let cordon = |node: &mut Value| node["spec"]["unschedulable"] = true.into();
        let cordoned = self.changer.alter(&api, &current, cordon).await?;
        let done = match self.pods_ending(node).await {
            Ok(pods) => {
                let evicted = join_all(pods.iter().map(|pod| self.evict(Mode::Drain, pod, None))).await;
                evicted.into_iter().map(usize::from).sum()
            }
            Err(error) => {
                self.refused(self.mode(), error.into());
                0
            }
        };
        self.restore(restore, None, cordoned.as_slice()).await;
        Ok(done)
    }

    /// Shuts a node down. The run boots it again at the time that `restore` sets.
    pub(super) async fn shut_node_down(
        &self,
        node: &str,
        grace_seconds: u32,
        restore: Restore,
    ) -> Result<usize, Refusal> {
        let object = ObjectRef::new("v1", "Node", None, node);
        let change = self
            .changer
            .ledger
            .journal()
            .announce(object, ClusterChange::ShutDown)
            .map_err(CoordinatorError::from)?;
        let command = format!("shutdown?grace={grace_seconds}");
        let insisted = self.insist(self.mode(), None, SHUTDOWN, || self.ask(node, &command)).await;
        if insisted.may_be_done {
            self.restore(restore, self.mode(), &[change]).await;
        } else if let Err(error) = self.changer.ledger.journal().undone(change, "refused") {
            self.observer.recorder().warn(error.to_string());
        }
        Ok(insisted.is_accepted.into())
    }

    /// Restarts a node's agent. The node's containers keep running.
    pub(super) async fn restart_agent(&self, node: &str) -> usize {
        self.insist(None, None, AGENT, || self.ask(node, "restart")).await.is_accepted.into()
    }

    /// Checks that the pods exist and have the container.
    pub(super) async fn check_crash(&self, pods: &Pods, container: Option<&str>) -> Result<()> {
        self.check_pods(pods).await?;
        let found = self.selected(pods).await?;
        found.iter().filter(|pod| pod.is_ready).try_for_each(|pod| kill_command(pod, container).map(drop))
    }

    /// Kills the first process in a pod's container. While the load lasts, waits until the pod's status shows that the
    /// container was restarted.
    pub(super) async fn crash(&self, pod: &Candidate, container: Option<&str>) -> bool {
        let uid = pod.uid().unwrap_or_default();
        let shown = |view: &View| view.pods.get(&uid).map(|seen| restarts(&seen.event));
        let before = self.observer.views().read(shown);
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
            let limit = self.changer.caller.limits.recovery;
            let again = self.observer.views().wait_until(|view| shown(view) != before);
            // If the container has not restarted within the limit, the wait for recovery reports it.
            let _ = self.while_loaded(timeout(limit, again)).await;
        }
        is_accepted
    }

    async fn ask(&self, node: &str, command: &str) -> kube::Result<()> {
        ask_agent(&self.changer.caller.client, node, command).await
    }
}

/// Returns the total restart count of a pod's containers.
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
