//! Pods that are deleted, evicted, crashed, or led out of their Services.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::time::{Instant, sleep_until};

use super::super::limits::Bounds;
use super::super::{CoordinatorError, Session};
use super::recovery::Whole;
use super::{Acting, Disrupted, counted};
use crate::record::{EventKind, event};
use crate::scenario::{Action, Order, Pods, Restore};

/// The value of a label by which a pod has left its Service.
const LEFT: &str = "left-by-rolldrop";
/// From a refused eviction to the next attempt, where the API server does not say.
const EVICTION_PAUSE: Duration = Duration::from_secs(5);
/// The same for a deletion.
const DELETION_PAUSE: Duration = Duration::from_secs(1);

impl Acting<'_> {
    /// The selector must match something, and not all may go at once.
    pub(super) async fn check_pods(&self, pods: &Pods) -> Result<(), CoordinatorError> {
        let ready = oldest_ready_first(self.selected(pods).await?);
        let first = self.chosen(pods, 0, &ready);
        let first = &first[..pods.batch.unwrap_or(first.len()).min(first.len())];
        self.check_bounds(pods, first, &ready).await
    }

    /// The pods that a selector matches; there must be one.
    pub(super) async fn selected(&self, pods: &Pods) -> Result<Vec<Pod>, CoordinatorError> {
        let found = list(self.session, &pods.selector).await?;
        if found.is_empty() {
            let (selector, namespace) = (pods.selector.clone(), self.session.caller.namespace.clone());
            return Err(CoordinatorError::NoPods { selector, namespace });
        }
        Ok(found)
    }

    /// The pods that an action takes of those that are ready, in the order in which it takes them.
    fn chosen(&self, pods: &Pods, repetition: u32, ready: &[Pod]) -> Vec<Pod> {
        let mut chosen = ready.to_vec();
        if pods.order == Order::Random {
            self.disruption.shuffle(repetition, &mut chosen);
        }
        chosen.truncate(pods.count.of(ready.len()));
        chosen
    }

    /// Not more than may go at once.
    async fn check_bounds(&self, pods: &Pods, going: &[Pod], ready: &[Pod]) -> Result<(), CoordinatorError> {
        if self.disruption.allow_outage || going.is_empty() {
            return Ok(());
        }
        let budgets = match self.disruption.action {
            // The API server holds evictions to them.
            Action::Evict(_) => Vec::new(),
            _ => self.session.list_kind().await?,
        };
        let bounds = Bounds { budgets, deployments: self.session.list_kind().await? };
        match bounds.refuse(going, ready) {
            None => Ok(()),
            Some(why) => Err(self.too_many(&pods.selector, why)),
        }
    }

    pub(super) fn too_many(&self, of: &str, why: String) -> CoordinatorError {
        let action = self.disruption.action.name().to_owned();
        CoordinatorError::TooMany { action, of: of.to_owned(), why }
    }

    /// Ends as many pods as are to go, a batch after the other.
    pub(super) async fn end_pods(&self, pods: &Pods, repetition: u32, whole: &mut Whole) -> Disrupted {
        let mut done = Disrupted::default();
        let mut ready = match self.ready_pods(pods, whole).await {
            Ok(ready) => ready,
            Err(refused) => return refused,
        };
        let mut left = self.chosen(pods, repetition, &ready);
        let batch = pods.batch.unwrap_or(left.len());
        loop {
            let began = Instant::now();
            let going: Vec<Pod> = left.drain(..batch.min(left.len())).collect();
            done += self.end_batch(pods, &going, &ready).await;
            if left.is_empty() {
                return done;
            }
            let spaced = self.while_loaded(sleep_until(began + pods.spacing)).await;
            let recovered = match spaced {
                Some(()) => self.recovered(whole).await,
                None => Err("the load ended".to_owned()),
            };
            if let Err(why) = recovered {
                let name = self.disruption.action.name();
                let message = format!("{name} left {} of its pods out: {why}", left.len());
                self.session.record(EventKind::Warning { message });
                done.skipped += left.len();
                return done;
            }
            ready = match self.ready_pods(pods, whole).await {
                Ok(ready) => ready,
                Err(refused) => return done + refused,
            };
            // Others may have ended some of them meanwhile.
            left.retain(|pod| ready.iter().any(|other| other.uid() == pod.uid()));
            if left.is_empty() {
                return done;
            }
        }
    }

    /// The pods that an action may take; refused is one for which there is none.
    async fn ready_pods(&self, pods: &Pods, whole: &mut Whole) -> Result<Vec<Pod>, Disrupted> {
        match list(self.session, &pods.selector).await.map(oldest_ready_first) {
            Ok(ready) if ready.is_empty() => {
                Err(self.refused("other", "no pod that it selects is ready".into()))
            }
            Ok(ready) => {
                self.session.views.read(|view| whole.see(&ready, view));
                Ok(ready)
            }
            Err(error) => Err(self.refused("other", error.to_string())),
        }
    }

    async fn end_batch(&self, pods: &Pods, going: &[Pod], ready: &[Pod]) -> Disrupted {
        // One at a time, with recovery in between, is what makes a termination isolated.
        let mode = if going.len() == 1 { "isolated" } else { "other" };
        // The API server itself holds evictions to the budgets, and they may have to wait.
        let is_eviction = matches!(self.disruption.action, Action::Evict(_));
        let _taking = if is_eviction { None } else { Some(self.session.taking.lock().await) };
        // Another action may have taken some while this one waited.
        let left = list(self.session, &pods.selector).await.map(oldest_ready_first);
        let left = left.unwrap_or_else(|_| ready.to_vec());
        let still = |pod: &&Pod| left.iter().any(|other| other.uid() == pod.uid());
        let gone = going.iter().filter(|pod| !still(pod)).count();
        let going: Vec<Pod> = going.iter().filter(still).cloned().collect();
        if gone > 0 {
            self.refused(mode, format!("{gone} of its pods are going already"));
        }
        if let Err(error) = self.check_bounds(pods, &going, &left).await {
            return self.refused(mode, error.to_string());
        }
        let ends = going.iter().map(|pod| async move {
            match &self.disruption.action {
                Action::Evict(_) => self.evict(mode, pod, pods.grace_seconds).await,
                Action::Crash { container, .. } => self.crash(pod, container.as_deref()).await,
                _ => self.delete(mode, pod, pods.grace_seconds).await,
            }
        });
        let mut done = Disrupted { failed: gone, ..Disrupted::default() };
        join_all(ends).await.into_iter().for_each(|is_accepted| done += counted(is_accepted));
        done
    }

    async fn delete(&self, mode: &str, pod: &Pod, grace_seconds: Option<u32>) -> bool {
        let api = self.pod_api(pod);
        let (name, params) = (pod.name_any(), only(pod, grace_seconds));
        let of = Some((name.clone(), pod.uid()));
        self.insist(mode, of, (200, DELETION_PAUSE), || api.delete(&name, &params)).await
    }

    /// Evicts a pod. Where a budget does not allow it yet, it waits and asks again while the load lasts.
    pub(super) async fn evict(&self, mode: &str, pod: &Pod, grace_seconds: Option<u32>) -> bool {
        let api = self.pod_api(pod);
        let params = EvictParams { delete_options: Some(only(pod, grace_seconds)), ..EvictParams::default() };
        let name = pod.name_any();
        let of = Some((name.clone(), pod.uid()));
        self.insist(mode, of, (201, EVICTION_PAUSE), || api.evict(&name, &params)).await
    }

    /// The pods must be there, and each have a label that a Service selects by.
    pub(super) async fn check_relabel(
        &self,
        pods: &Pods,
        label: Option<&str>,
    ) -> Result<(), CoordinatorError> {
        self.check_pods(pods).await?;
        for pod in oldest_ready_first(self.selected(pods).await?) {
            self.label_of(&pod, label).await?;
        }
        Ok(())
    }

    /// The label by which the pod leaves its Service: the one that is named, or one that a Service
    /// selects it by; of several one that nothing but Services names.
    async fn label_of(&self, pod: &Pod, named: Option<&str>) -> Result<String, CoordinatorError> {
        let wrong = |why: String| CoordinatorError::Relabel { pod: pod.name_any(), why };
        let services: Vec<Service> = self.session.list_kind().await?;
        let selectors = services.iter().filter_map(|service| service.spec.as_ref()?.selector.as_ref());
        let selects = |selector: &&BTreeMap<String, String>| {
            !selector.is_empty() && selector.iter().all(|(name, value)| pod.labels().get(name) == Some(value))
        };
        let by: BTreeSet<&String> = selectors.filter(selects).flat_map(BTreeMap::keys).collect();
        if let Some(named) = named {
            return match by.iter().any(|label| *label == named) {
                true => Ok(named.to_owned()),
                false => Err(wrong(format!("no Service selects it by {named:?}"))),
            };
        }
        let sets: Vec<ReplicaSet> = self.session.list_kind().await?;
        let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
        let set = sets.iter().find(|set| owner.is_some_and(|owner| set.uid().as_ref() == Some(&owner.uid)));
        let of_owner = set.and_then(|set| set.spec.as_ref()?.selector.match_labels.as_ref());
        let is_free = |label: &&&String| !of_owner.is_some_and(|labels| labels.contains_key(**label));
        let label = by.iter().find(is_free).or(by.first());
        label.map(|label| (*label).clone()).ok_or_else(|| wrong("no Service selects it".to_owned()))
    }

    /// Takes pods out of their Services by a label; they live on.
    pub(super) async fn relabel(
        &self,
        pods: &Pods,
        label: Option<&str>,
        restore: Restore,
        repetition: u32,
        whole: &mut Whole,
    ) -> Disrupted {
        let mut done = Disrupted::default();
        let ready = match self.ready_pods(pods, whole).await {
            Ok(ready) => ready,
            Err(refused) => return refused,
        };
        let going = self.chosen(pods, repetition, &ready);
        if let Err(error) = self.check_bounds(pods, &going, &ready).await {
            return self.refused(event::NO_END, error.to_string());
        }
        let mut changes = Vec::new();
        for pod in &going {
            let label = match self.label_of(pod, label).await {
                Ok(label) => label,
                Err(error) => {
                    done += self.refused(event::NO_END, error.to_string());
                    continue;
                }
            };
            let mut current = serde_json::to_value(pod).unwrap_or_default();
            // Items of a list are without their kind.
            (current["apiVersion"], current["kind"]) = ("v1".into(), "Pod".into());
            let mut wanted = current.clone();
            wanted["metadata"]["labels"][label.as_str()] = LEFT.into();
            let api = Api::<DynamicObject>::namespaced_with(
                self.session.caller.client.clone(),
                &self.session.caller.namespace,
                &ApiResource::erase::<Pod>(&()),
            );
            let (call, change) = self.stamped_change(self.session.change(&api, &current, &wanted)).await;
            changes.extend(change.flatten());
            done += counted(self.note(event::NO_END, Some((pod.name_any(), pod.uid())), call));
        }
        self.restore(restore, event::NO_END, &changes).await;
        done
    }

    fn pod_api(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.namespace().unwrap_or_else(|| self.session.caller.namespace.clone());
        Api::namespaced(self.session.caller.client.clone(), &namespace)
    }
}

/// This pod and no other of its name, with this grace period in place of its own.
fn only(pod: &Pod, grace_seconds: Option<u32>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        grace_period_seconds: grace_seconds,
        ..DeleteParams::default()
    }
}

pub(super) async fn list(session: &Session, selector: &str) -> Result<Vec<Pod>, CoordinatorError> {
    let pods = Api::<Pod>::namespaced(session.caller.client.clone(), &session.caller.namespace);
    let (what, params) = (format!("list pods {selector:?}"), ListParams::default().labels(selector));
    let listed = session.caller.ask(&what, || pods.list(&params)).await?;
    Ok(listed.map_err(|e| CoordinatorError::api(&what, &e))?.items)
}

/// Those that are ready and stay, the oldest first.
fn oldest_ready_first(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.retain(is_ready);
    pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.name_any()));
    pods
}

/// Whether a pod is ready, and not about to end.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, created: &str, ready: &str, deleted: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created, "deletionTimestamp": deleted},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_that_are_ready_and_stay_are_chosen_the_oldest_first() {
        let pods = vec![
            pod("young", "2026-01-01T00:00:09Z", "True", None),
            pod("going", "2026-01-01T00:00:01Z", "True", Some("2026-01-01T00:00:31Z")),
            pod("starting", "2026-01-01T00:00:02Z", "False", None),
            pod("old-b", "2026-01-01T00:00:03Z", "True", None),
            pod("old-a", "2026-01-01T00:00:03Z", "True", None),
        ];
        let names: Vec<_> = oldest_ready_first(pods).iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["old-a", "old-b", "young"]);
    }
}
