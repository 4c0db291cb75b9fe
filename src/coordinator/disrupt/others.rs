//! Workloads that are restarted or scaled, and nodes that are drained.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::super::CoordinatorError;
use super::pods::is_ready;
use super::{Acting, Answered, Disrupted, counted};
use crate::scenario::{Workload, WorkloadKind};

/// What `kubectl rollout restart` sets.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// From a refused restart to the next attempt, where the API server does not say.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// What a cluster itself needs stays where it is.
const SYSTEM: &str = "kube-";

impl Acting<'_> {
    /// The workload as it is.
    pub(super) async fn workload(
        &self,
        workload: &Workload,
    ) -> Result<(Api<DynamicObject>, Value), CoordinatorError> {
        let resource = match workload.kind {
            WorkloadKind::Deployment => ApiResource::erase::<Deployment>(&()),
            WorkloadKind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            WorkloadKind::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
        };
        let caller = &self.session.caller;
        let api = Api::<DynamicObject>::namespaced_with(caller.client.clone(), &caller.namespace, &resource);
        let what = format!("read {} {}", resource.kind, workload.name);
        let found = caller.ask(&what, || api.get(&workload.name)).await?;
        let found = found.map_err(|e| CoordinatorError::api(&what, &e))?;
        Ok((api, serde_json::to_value(found).unwrap_or_default()))
    }

    /// Not all pods may go.
    pub(super) async fn check_scale(
        &self,
        workload: &Workload,
        replicas: u32,
    ) -> Result<(), CoordinatorError> {
        self.workload(workload).await?;
        if replicas > 0 || self.disruption.allow_outage {
            return Ok(());
        }
        Err(self.too_many(&workload.to_string(), "no pod would be left".into()))
    }

    /// Has a workload replace its pods, as `kubectl rollout restart` does. That is not changed back:
    /// it would be a rollout again.
    pub(super) async fn restart(&self, workload: &Workload) -> Disrupted {
        let (api, _) = match self.workload(workload).await {
            Ok(found) => found,
            Err(error) => return self.refused("rollout", error.to_string()),
        };
        let now = jiff::Timestamp::from_nanosecond(self.session.clock.now().unix_ns().into());
        let now = now.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: now}}}}});
        let patch = kube::api::Patch::Merge(patch);
        let params = kube::api::PatchParams::default();
        let call = || api.patch(&workload.name, &params, &patch);
        counted(self.insist("rollout", None, (200, RESTART_PAUSE), call).await)
    }

    /// Gives a workload another number of pods; it gets its own back at the end of the run.
    pub(super) async fn scale(&self, workload: &Workload, replicas: u32) -> Disrupted {
        let mode = "scale_down";
        let (api, current) = match self.workload(workload).await {
            Ok(found) => found,
            Err(error) => return self.refused(mode, error.to_string()),
        };
        let mut wanted = current.clone();
        wanted["spec"]["replicas"] = replicas.into();
        counted(self.change(mode, &api, &current, &wanted).await)
    }

    /// Changes an object and records that as an action; it is changed back at the end of the run.
    async fn change(&self, mode: &str, api: &Api<DynamicObject>, current: &Value, wanted: &Value) -> bool {
        let sent = self.session.clock.now();
        let changed = self.session.change(api, current, wanted).await;
        let answered = self.session.clock.now();
        let (status, error) = match changed {
            Ok(_) => (Some(200), None),
            Err(error) => (None, Some(error.to_string())),
        };
        self.note(mode, None, Answered { sent, answered, status, error, is_undone: false })
    }

    /// The node's pods that a drain ends: all but those of DaemonSets, of the node itself and of the
    /// system.
    async fn pods_to_drain(&self, node: &str) -> Result<Vec<Pod>, CoordinatorError> {
        let caller = &self.session.caller;
        let what = format!("list the pods of node {node}");
        let api = Api::<Pod>::all(caller.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = caller.ask(&what, || api.list(&on_node)).await?;
        let mut pods = pods.map_err(|e| CoordinatorError::api(&what, &e))?.items;
        pods.retain(|pod| {
            let stays = pod
                .owner_references()
                .iter()
                .any(|owner| ["DaemonSet", "Node"].contains(&owner.kind.as_str()));
            let is_system = pod.namespace().is_some_and(|namespace| namespace.starts_with(SYSTEM));
            !stays && !is_system && pod.metadata.deletion_timestamp.is_none()
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

    /// Cordons a node and evicts its pods, as `kubectl drain` does. It is uncordoned at the end of the
    /// run.
    pub(super) async fn drain(&self, node: &str) -> Disrupted {
        let mode = "drain";
        let resource = ApiResource::erase::<Node>(&());
        let api = Api::<DynamicObject>::all_with(self.session.caller.client.clone(), &resource);
        let what = format!("read Node {node}");
        let current = match self.session.caller.ask(&what, || api.get(node)).await {
            Ok(Ok(current)) => serde_json::to_value(current).unwrap_or_default(),
            Ok(Err(error)) => return self.refused(mode, CoordinatorError::api(&what, &error).to_string()),
            Err(error) => return self.refused(mode, error.to_string()),
        };
        let mut wanted = current.clone();
        wanted["spec"]["unschedulable"] = true.into();
        if let Err(error) = self.session.change(&api, &current, &wanted).await {
            return self.refused(mode, error.to_string());
        }
        match self.pods_to_drain(node).await {
            Ok(pods) => {
                let mut done = Disrupted::default();
                let evicted = join_all(pods.iter().map(|pod| self.evict(mode, pod))).await;
                evicted.into_iter().for_each(|is_accepted| done += counted(is_accepted));
                done
            }
            Err(error) => self.refused(mode, error.to_string()),
        }
    }
}
