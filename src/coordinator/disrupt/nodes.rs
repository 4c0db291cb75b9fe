//! Nodes that are drained or shut down, and their agents.
//!
//! Kubernetes has no call that shuts a node down, restarts its agent or kills a container's
//! process. A cluster that allows it offers that below its nodes' `proxy`, as the embedded one does
//! (docs/embedded-cluster.md); any other answers 404 there.

use std::collections::BTreeMap;

use futures::future::join_all;
use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::time::timeout;

use super::super::CoordinatorError;
use super::super::journal::{Change, ObjectRef};
use super::super::load_job::is_load_pod;
use super::super::undo::{agent_path, ask_agent};
use super::super::view::View;
use super::pods::is_ready;
use super::{Acting, Disrupted, counted};
use crate::record::event::{self, PodEvent};
use crate::scenario::{Pods, Restore};

/// What a cluster itself needs stays where it is.
const SYSTEM: &str = "kube-";

impl Acting<'_> {
    /// The node's pods that a drain ends: all but those of DaemonSets, of the node itself and of the
    /// system, and those that send the run's load.
    async fn pods_to_drain(&self, node: &str) -> Result<Vec<Pod>, CoordinatorError> {
        let caller = &self.session.caller;
        let what = format!("list the pods of node {node}");
        let api = Api::<Pod>::all(caller.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = caller.ask(&what, || api.list(&on_node)).await?;
        let mut pods = pods.map_err(|e| CoordinatorError::api(&what, &e))?.items;
        let run = self.session.journal().run().to_owned();
        pods.retain(|pod| {
            let stays = pod
                .owner_references()
                .iter()
                .any(|owner| ["DaemonSet", "Node"].contains(&owner.kind.as_str()));
            let is_system = pod.namespace().is_some_and(|namespace| namespace.starts_with(SYSTEM));
            !stays && !is_system && !is_load_pod(pod, &run) && pod.metadata.deletion_timestamp.is_none()
        });
        Ok(pods)
    }

    /// The node is there, has pods of the run's namespace, and not all that some owner has ready.
    pub(super) async fn check_drain(&self, node: &str) -> Result<(), CoordinatorError> {
        let caller = &self.session.caller;
        let what = format!("read Node {node}");
        let nodes = Api::<Node>::all(caller.client.clone());
        let found = caller.ask(&what, || nodes.get(node)).await?;
        found.map_err(|e| CoordinatorError::api(&what, &e))?;
        let going = self.pods_to_drain(node).await?;
        if !going.iter().any(|pod| pod.namespace().as_ref() == Some(&caller.namespace)) {
            let namespace = caller.namespace.clone();
            return Err(CoordinatorError::NoPods { selector: format!("spec.nodeName={node}"), namespace });
        }
        if self.disruption.allow_outage {
            return Ok(());
        }
        let all: Vec<Pod> = self.session.list_kind().await?;
        let mut owners: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for pod in all.iter().filter(|pod| is_ready(pod)) {
            let Some(owner) = pod.owner_references().first() else { continue };
            let (ready, leaving) = owners.entry(format!("{} {}", owner.kind, owner.name)).or_default();
            *ready += 1;
            *leaving += usize::from(going.iter().any(|other| other.uid() == pod.uid()));
        }
        let last = owners.into_iter().find(|(_, (ready, leaving))| ready == leaving);
        match last {
            None => Ok(()),
            Some((owner, (ready, _))) => {
                let why = format!("all {ready} ready pods of {owner} are there");
                Err(self.too_many(&format!("node {node}"), why))
            }
        }
    }

    /// Cordons a node and evicts its pods, as `kubectl drain` does.
    pub(super) async fn drain(&self, node: &str, restore: Restore) -> Disrupted {
        let mode = "drain";
        let resource = ApiResource::erase::<Node>(&());
        let api = Api::<DynamicObject>::all_with(self.session.caller.client.clone(), &resource);
        let current = match api.get(node).await {
            Ok(current) => serde_json::to_value(current).unwrap_or_default(),
            Err(error) => {
                let error = CoordinatorError::api(&format!("read Node {node}"), &error);
                return self.refused(mode, error.to_string());
            }
        };
        let mut wanted = current.clone();
        wanted["spec"]["unschedulable"] = true.into();
        let cordoned = match self.session.change(&api, &current, &wanted).await {
            Ok(change) => change,
            Err(error) => return self.refused(mode, error.to_string()),
        };
        let done = match self.pods_to_drain(node).await {
            Ok(pods) => {
                let mut done = Disrupted::default();
                let evicted = join_all(pods.iter().map(|pod| self.evict(mode, pod, None))).await;
                evicted.into_iter().for_each(|is_accepted| done += counted(is_accepted));
                done
            }
            Err(error) => self.refused(mode, error.to_string()),
        };
        self.restore(restore, event::NO_END, cordoned.as_slice()).await;
        done
    }

    /// The node can be shut down, and has not all pods that some owner has ready.
    pub(super) async fn check_shutdown(&self, node: &str) -> Result<(), CoordinatorError> {
        self.check_drain(node).await?;
        self.check_agent(node, "shutdown").await
    }

    /// The cluster allows a node's agent to be asked for this.
    pub(super) async fn check_agent(&self, node: &str, command: &str) -> Result<(), CoordinatorError> {
        let caller = &self.session.caller;
        let what = format!("ask whether node {node} allows {command}");
        // It takes POST alone; what is not there at all answers 404.
        let request = Request::get(agent_path(node, command)).body(Vec::new());
        let request =
            request.map_err(|e| CoordinatorError::Api { what: what.clone(), why: e.to_string() })?;
        match caller.limited(&what, caller.client.request::<Value>(request)).await? {
            Err(kube::Error::Api(status)) if status.code == 405 => Ok(()),
            Err(kube::Error::Api(status)) if [401, 403].contains(&status.code) => {
                Err(CoordinatorError::api(&what, &kube::Error::Api(status)))
            }
            Ok(_) | Err(kube::Error::Api(_)) => {
                let action = self.disruption.action.name().to_owned();
                Err(CoordinatorError::NotAllowed { action, path: agent_path(node, command) })
            }
            Err(error) => Err(CoordinatorError::api(&what, &error)),
        }
    }

    /// Shuts a node down; it is booted again.
    pub(super) async fn shut_node_down(&self, node: &str, grace_seconds: u32, restore: Restore) -> Disrupted {
        let mode = "node_shutdown";
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "Node".into(),
            namespace: None,
            name: node.to_owned(),
            uid: None,
            resource_version: None,
        };
        let shut_down = async {
            let change = self.session.journal().announce(object, Change::ShutDown)?;
            let command = format!("shutdown?grace={grace_seconds}");
            match self.session.caller.limited("shut a node down", self.ask(node, &command)).await? {
                Ok(()) => Ok(Some(change)),
                Err(error) => {
                    if matches!(error, kube::Error::Api(_)) {
                        self.session.journal().undone(change, "refused")?;
                    }
                    Err(CoordinatorError::api(&format!("shut node {node} down"), &error))
                }
            }
        };
        self.changed(mode, restore, shut_down).await
    }

    /// Restarts a node's agent; its containers live on.
    pub(super) async fn restart_agent(&self, node: &str) -> Disrupted {
        let call = self.stamped(200, self.ask(node, "restart")).await;
        counted(self.note(event::NO_END, None, call))
    }

    /// The pods must be there, and their nodes allow it.
    pub(super) async fn check_crash(
        &self,
        pods: &Pods,
        container: Option<&str>,
    ) -> Result<(), CoordinatorError> {
        self.check_pods(pods).await?;
        for pod in self.selected(pods).await?.iter().filter(|pod| is_ready(pod)) {
            let (node, command) = kill_command(pod, container)?;
            self.check_agent(node, &command).await?;
        }
        Ok(())
    }

    /// Kills the first process of a pod's container, and waits until the pod shows that it was started
    /// again, while the load lasts.
    pub(super) async fn crash(&self, pod: &Pod, container: Option<&str>) -> bool {
        let uid = pod.uid().unwrap_or_default();
        let shown = |view: &View| view.pods.get(&uid).map(|seen| restarts(&seen.event));
        let before = self.session.views.read(shown);
        let call = match kill_command(pod, container) {
            Ok((node, command)) => self.stamped(200, self.ask(node, &command)).await,
            Err(error) => self.stamped_change(async { Err::<(), _>(error) }).await.0,
        };
        let is_accepted = self.note(event::NO_END, Some((pod.name_any(), pod.uid())), call);
        if is_accepted {
            let limit = self.session.caller.limits.recovery;
            let again = self.session.views.wait_until(|view| shown(view) != before);
            // What is not back then is for the recovery to say.
            let _ = self.while_loaded(timeout(limit, again)).await;
        }
        is_accepted
    }

    async fn ask(&self, node: &str, command: &str) -> kube::Result<()> {
        ask_agent(&self.session.caller.client, node, command).await
    }
}

/// How often a pod's containers were started again, in all.
fn restarts(pod: &PodEvent) -> i32 {
    pod.containers.iter().map(|container| container.restarts).sum()
}

/// Who kills a container of a pod, and by which command.
fn kill_command<'a>(pod: &'a Pod, container: Option<&str>) -> Result<(&'a str, String), CoordinatorError> {
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let names = || spec.into_iter().flat_map(|spec| &spec.containers).map(|found| found.name.as_str());
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
