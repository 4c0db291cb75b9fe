//! Actions on pods: deleting, evicting or crashing them, or taking them out of their Services.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, DeleteParams, DynamicObject, EvictParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::acting::{Acting, Insisting, Refusal, Twice};
use super::recovery::Whole;
use crate::error::{CoordinatorError, Result};
use crate::plan::claims::oldest_ready_first;
use crate::plan::outage_limits::bounds;
use crate::plan::{Claims, PodChoice};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::Mode;
use rolldrop_scenario::{Count, DisruptionAction, Pods, Restore};
use rolldrop_sidecar::observed::controller_ref;

/// Label value that takes a pod out of its Service.
const LEFT: &str = "left-by-rolldrop";
/// Rules for repeating a deletion.
const DELETION: Insisting = Insisting { success: 200, pause: Duration::from_secs(1), twice: Twice::Harmless };
/// Rules for repeating an eviction.
const EVICTION: Insisting = Insisting { success: 201, pause: Duration::from_secs(5), twice: Twice::Harmless };

impl Acting<'_> {
    /// Checks that the selector matches a pod, and that the action stays within its limits.
    pub(super) async fn check_pods(&self, pods: &Pods) -> Result<()> {
        let choice = Claims::default().sort(self.selected(pods).await?);
        let first = self.disruption.chosen(pods, 0, &choice.ready);
        let first = &first[..pods.batch.unwrap_or(first.len()).min(first.len())];
        self.check_bounds(pods, first, &choice).await
    }

    /// Lists the pods that match a selector; it is an error if there are none.
    pub(super) async fn selected(&self, pods: &Pods) -> Result<Vec<Candidate>> {
        let found = self.listed(&pods.selector).await?;
        if found.is_empty() {
            let (selector, namespace) = (pods.selector.clone(), self.changer.caller.namespace.clone());
            return Err(CoordinatorError::NoPods { selector, namespace });
        }
        Ok(found)
    }

    /// Checks that these pods may all terminate at the same time, in addition to those that are already terminating.
    async fn check_bounds(
        &self,
        pods: &Pods,
        going: &[Candidate],
        PodChoice { ready, leaving, .. }: &PodChoice,
    ) -> Result<()> {
        if self.disruption.allow_outage || going.is_empty() {
            return Ok(());
        }
        let action = &self.disruption.action;
        let bounds = bounds(self.changer.caller, action).await?;
        match bounds.refuse_action(action, going, ready, leaving) {
            None => Ok(()),
            Some(why) => Err(self.too_many(&pods.selector, why)),
        }
    }

    pub(super) fn too_many(&self, of: &str, why: String) -> CoordinatorError {
        let action = self.disruption.action.name();
        CoordinatorError::TooMany { action, of: of.to_owned(), why }
    }

    /// Terminates the requested number of pods, batch by batch.
    pub(super) async fn end_pods(&self, pods: &Pods, repetition: u32, whole: &mut Whole) -> usize {
        let mut done = 0;
        let mut left = None;
        loop {
            let began = Instant::now();
            match self.take(pods, repetition, &mut left, whole).await {
                Ok(going) => done += self.end_batch(pods, going).await,
                Err(why) => self.refused(self.mode(), why),
            }
            let Some(left) = left.as_ref().filter(|left| !left.is_empty()) else { return done };
            let mut recovered = self.recovered(whole).await;
            if recovered.is_ok() && self.while_loaded(sleep_until(began + pods.spacing)).await.is_none() {
                recovered = Err("the load ended".to_owned());
            }
            if let Err(why) = recovered {
                self.give_back(left).await;
                left.iter().for_each(|_| self.skipped(why.clone()));
                return done;
            }
        }
    }

    /// Chooses the next pods from those that no other action has chosen. They belong to this action until it gives them
    /// back. `left` contains the pods from the first choice that later batches will terminate; it is `None` before that
    /// choice, and if no pod is free to choose. Pods that the action should take but cannot are recorded as skipped.
    async fn take(
        &self,
        pods: &Pods,
        repetition: u32,
        left: &mut Option<Vec<Candidate>>,
        whole: &mut Whole,
    ) -> Result<Vec<Candidate>, Refusal> {
        let before = left.take();
        // Held until the end so that the second of two concurrent actions chooses from the pods that the first left.
        let mut claims = self.disruptor.claims.lock().await;
        let found = self.listed(&pods.selector).await?;
        self.observer.views().read(|view| whole.see(&oldest_ready_first(found.clone()), view));
        let choice = claims.sort(found);
        let (wanted, mut going) = match before {
            None => {
                if choice.free.is_empty() {
                    return Err(no_free_pod(&choice));
                }
                let chosen = self.disruption.chosen(pods, repetition, &choice.free);
                let wanted = match pods.count {
                    Count::Number(number) => number,
                    Count::Share(_) | Count::All => chosen.len(),
                };
                (wanted, chosen)
            }
            Some(mut before) => {
                let wanted = before.len();
                claims.give_back(&before);
                // Others may have terminated some of them in the meantime.
                before.retain(|pod| choice.ready.iter().any(|other| other.uid() == pod.uid()));
                (wanted, before)
            }
        };
        let why = format!(
            "only {} of {wanted} pods were ready and not already chosen by another action",
            going.len()
        );
        (going.len()..wanted).for_each(|_| self.skipped(why.clone()));
        let later = going.split_off(pods.batch.unwrap_or(going.len()).min(going.len()));
        claims.take(&[], &later);
        *left = Some(later);
        self.check_bounds(pods, &going, &choice).await?;
        claims.take(&going, &[]);
        Ok(going)
    }

    /// Gives pods back once a list shows that they are terminating, or if this action does not terminate them.
    async fn give_back(&self, pods: &[Candidate]) {
        self.disruptor.claims.lock().await.give_back(pods);
    }

    async fn end_batch(&self, pods: &Pods, going: Vec<Candidate>) -> usize {
        // A single termination, with recovery before the next one, is isolated.
        let mode = if going.len() == 1 { Mode::Isolated } else { Mode::Other };
        let ends = going.iter().map(|pod| async move {
            match &self.disruption.action {
                DisruptionAction::Evict(_) => self.evict(mode, pod, pods.grace_seconds).await,
                DisruptionAction::Crash { container, .. } => self.crash(pod, container.as_deref()).await,
                _ => self.delete(mode, pod, pods.grace_seconds).await,
            }
        });
        let done = join_all(ends).await.into_iter().map(usize::from).sum();
        self.give_back(&going).await;
        done
    }

    async fn delete(&self, mode: Mode, pod: &Candidate, grace_seconds: Option<u32>) -> bool {
        let (api, name, params) = (self.pod_api(pod), pod.name_any(), only(pod, grace_seconds));
        self.insist(Some(mode), Some(pod), DELETION, || api.delete(&name, &params)).await.is_accepted
    }

    /// Evicts a pod. If a budget does not allow it yet, retries while the load lasts.
    pub(super) async fn evict(&self, mode: Mode, pod: &Candidate, grace_seconds: Option<u32>) -> bool {
        let (api, name) = (self.pod_api(pod), pod.name_any());
        let params = EvictParams { delete_options: Some(only(pod, grace_seconds)), ..EvictParams::default() };
        self.insist(Some(mode), Some(pod), EVICTION, || api.evict(&name, &params)).await.is_accepted
    }

    /// Checks that the pods exist, and that a Service selects each of them by a label.
    pub(super) async fn check_relabel(&self, pods: &Pods, label: Option<&str>) -> Result<()> {
        self.check_pods(pods).await?;
        for pod in oldest_ready_first(self.selected(pods).await?) {
            self.label_of(&pod, label).await?;
        }
        Ok(())
    }

    /// Returns the label to change so that the pod leaves its Service: the named one, or one by which a Service selects
    /// the pod. Among several, prefers one that only Services use.
    async fn label_of(&self, pod: &Candidate, named: Option<&str>) -> Result<String> {
        let wrong = |why: String| CoordinatorError::Relabel { pod: pod.name_any(), why };
        let of_service = |service: Service| service.spec.and_then(|spec| spec.selector);
        let selectors = self.changer.caller.list_kind_as(of_service).await?;
        let selectors = selectors.iter().flatten();
        let selects = |selector: &&BTreeMap<String, String>| {
            !selector.is_empty() && selector.iter().all(|(name, value)| pod.labels().get(name) == Some(value))
        };
        let by: BTreeSet<&String> = selectors.filter(selects).flat_map(BTreeMap::keys).collect();
        if let Some(named) = named {
            return match by.iter().any(|label| *label == named) {
                true => Ok(named.to_owned()),
                false => Err(wrong(format!("no Service selects it by the label {named:?}"))),
            };
        }
        let of_owner = self.selecting_labels_of_owner(pod).await?;
        let is_free = |label: &&&String| !of_owner.contains(**label);
        let label = by.iter().find(is_free).or(by.first());
        label.map(|label| (*label).clone()).ok_or_else(|| wrong("no Service selects it".to_owned()))
    }

    /// Returns the labels by which a pod's controller selects it, as far as the run may read them. Without one of them,
    /// the controller releases the pod.
    async fn selecting_labels_of_owner(&self, pod: &Candidate) -> Result<BTreeSet<String>> {
        let Some(owner) = controller_ref(pod) else { return Ok(BTreeSet::new()) };
        let resource = match owner.kind.as_str() {
            "ReplicaSet" => ApiResource::erase::<ReplicaSet>(&()),
            "StatefulSet" => ApiResource::erase::<StatefulSet>(&()),
            "DaemonSet" => ApiResource::erase::<DaemonSet>(&()),
            _ => return Ok(BTreeSet::new()),
        };
        let labels = |workload: DynamicObject| {
            let is_owner = workload.uid().as_ref() == Some(&owner.uid);
            let selector = is_owner.then(|| workload.data["spec"]["selector"].clone());
            serde_json::from_value::<LabelSelector>(selector?).ok().map(keys)
        };
        let caller = self.changer.caller;
        let what = format!("list {}", resource.plural);
        let listed = caller.list_shown(&what, &caller.dynamic_api(&resource), labels).await?;
        Ok(listed.into_iter().flatten().flatten().collect())
    }

    /// Takes pods out of their Services by changing a label; the pods keep running.
    pub(super) async fn relabel(
        &self,
        pods: &Pods,
        label: Option<&str>,
        restore: Restore,
        repetition: u32,
        whole: &mut Whole,
    ) -> Result<usize, Refusal> {
        let going = self.take(pods, repetition, &mut None, whole).await?;
        let api = self.changer.caller.dynamic_api(&ApiResource::erase::<Pod>(&()));
        let (mut done, mut changes) = (0, Vec::new());
        for pod in &going {
            let label = match self.label_of(pod, label).await {
                Ok(label) => label,
                Err(error) => {
                    self.refused(None, error.into());
                    self.give_back(std::slice::from_ref(pod)).await;
                    continue;
                }
            };
            let current = json!({"apiVersion": "v1", "kind": "Pod", "metadata": pod.metadata});
            let leave = |pod: &mut Value| pod["metadata"]["labels"][label.as_str()] = LEFT.into();
            let changing = self.changer.alter(&api, &current, leave);
            let (is_accepted, change) = self.noted(None, Some(pod), changing).await;
            changes.extend(change.flatten());
            done += usize::from(is_accepted);
        }
        self.restore(restore, None, &changes).await;
        // Pods that stay out of their Services until the end of the run are not given back.
        if restore != Restore::AtTheEnd {
            self.give_back(&going).await;
        }
        Ok(done)
    }

    fn pod_api(&self, pod: &Candidate) -> Api<Pod> {
        let namespace = pod.namespace().unwrap_or_else(|| self.changer.caller.namespace.clone());
        Api::namespaced(self.changer.caller.client.clone(), &namespace)
    }
}

/// Returns the names of the labels that a selector asks for.
fn keys(selector: LabelSelector) -> Vec<String> {
    let terms = selector.match_expressions.into_iter().flatten().map(|term| term.key);
    selector.match_labels.into_iter().flatten().map(|(name, _)| name).chain(terms).collect()
}

/// Returns parameters that delete only this pod, not another pod with the same name, and that override its grace
/// period.
fn only(pod: &Candidate, grace_seconds: Option<u32>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        grace_period_seconds: grace_seconds,
        ..DeleteParams::default()
    }
}

fn no_free_pod(choice: &PodChoice) -> Refusal {
    let why = match (choice.ready.is_empty(), choice.leaving.is_empty()) {
        (false, _) => "other actions have already chosen all ready pods that it selects",
        (true, false) => "the pods that it selects are not ready, or are already terminating",
        (true, true) => "no pod that it selects is ready",
    };
    Refusal(why.to_owned())
}
