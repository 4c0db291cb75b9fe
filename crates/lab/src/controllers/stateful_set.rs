//! Runs StatefulSets: numbered pods with stable names that are replaced in order.
//!
//! Based on pkg/controller/statefulset. [`stateful_set_steps`] decides the next steps, and [`stateful_set_pods`] has
//! names and claims. A pod's claims always outlive the pod, regardless of `persistentVolumeClaimRetentionPolicy`.

mod stateful_set_pods;
mod stateful_set_steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::availability::Judge;
use super::claim::{claim, owners_concerned};
use super::pod_control::{BURST, PodControl, Wording};
use super::reconciler::{self, BACK_OFF, ReconcileResult};
use super::revision_history::{RevisionHistory, revision_of, template_of};
use crate::object_fields::{ObjectKey, is_being_deleted, key, write_counts};
use crate::registry::{EventType, follow};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::shared::ClusterContext;
use crate::status::Status;
use crate::value::{number, text};
use stateful_set_steps::{StatefulSetStep, TemplateRevision};

const COMPONENT: &str = "statefulset-controller";

pub(super) async fn run(shared: ClusterContext) {
    let control = PodControl::new(&shared, COMPONENT).wording(Wording::StatefulSets);
    let events = follow(&shared.registry, &[Resource::StatefulSets, Resource::Pods]);
    let named = |observed| owners_concerned(&shared.registry, Resource::StatefulSets, &observed);
    let control = &control;
    reconciler::run(events, BACK_OFF, named, |set| async move { reconcile(control, &set).await }).await;
}

/// Takes the next steps, and returns the delay before the next pass.
async fn reconcile(control: &PodControl, (namespace, name): &ObjectKey) -> ReconcileResult {
    let registry = &control.shared.registry;
    let Ok(set) = registry.get(Resource::StatefulSets, namespace, name) else { return Ok(None) };
    let look = StatefulSetPass::of(control, &set)?;
    let done = if is_being_deleted(&set) { Ok(()) } else { look.manage().await };
    let Ok(set) = registry.get(Resource::StatefulSets, namespace, name) else { return Ok(None) };
    let pods = own_pods(&control.shared, &set)?;
    let judge = Judge::new(&set, &registry.now());
    let status = look.status(&set, &pods, judge);
    registry.set_status(Resource::StatefulSets, &set, status)?;
    done?;
    let in_use = pods.iter().map(|pod| revision_of(pod).to_owned()).chain([look.current.clone()]);
    let in_use: BTreeSet<_> = in_use.collect();
    look.history.forget(registry, &set, |revision| in_use.contains(&key(revision).1))?;
    Ok(judge.next(pods.iter().map(Arc::as_ref)))
}

fn own_pods(shared: &ClusterContext, set: &Value) -> Result<Vec<Arc<Value>>, Status> {
    let selector = LabelSelector::from_object(&set["spec"]["selector"]);
    let is_member = |pod: &Value| stateful_set_pods::ordinal(set, pod).is_some();
    claim(&shared.registry, set, Resource::Pods, &selector, is_member)
}

/// State of one pass over a StatefulSet.
struct StatefulSetPass<'a> {
    control: &'a PodControl,
    set: &'a Value,
    history: RevisionHistory,
    /// Names of the current revision and the update revision in the status.
    current: String,
    update: String,
}

impl<'a> StatefulSetPass<'a> {
    fn of(control: &'a PodControl, set: &'a Value) -> Result<Self, Status> {
        let history = RevisionHistory::of(&control.shared.registry, set, |name, _| name.to_owned())?;
        let update = key(&history.update).1;
        let known = text(&set["status"]["currentRevision"]);
        let current = if history.find(known).is_some() { known.to_owned() } else { update.clone() };
        Ok(Self { control, set, history, current, update })
    }

    async fn manage(&self) -> Result<(), Status> {
        let shared = &self.control.shared;
        let pods = own_pods(shared, self.set)?;
        let judge = Judge::new(self.set, &shared.registry.now());
        let (mut new, mut excess) = (Vec::new(), Vec::new());
        for step in stateful_set_steps::next(self.set, &self.update, &pods, judge) {
            match step {
                StatefulSetStep::Create(ordinal, template) => new.push(self.new_pod(ordinal, template)),
                StatefulSetStep::Delete(pod) => excess.push(pod),
            }
        }
        new.truncate(BURST);
        for pod in &new {
            self.ensure_claims(&key(pod).1)?;
        }
        self.control.create(self.set, new, &mut Vec::new()).await?;
        excess.truncate(BURST);
        self.control.delete(self.set, &excess).await
    }

    fn new_pod(&self, ordinal: i64, template: TemplateRevision) -> Value {
        match (template, self.history.find(&self.current)) {
            (TemplateRevision::Current, Some(revision)) => {
                let mut then = self.set.clone();
                then["spec"]["template"] = template_of(revision);
                stateful_set_pods::new(&then, &self.current, ordinal)
            }
            _ => stateful_set_pods::new(self.set, &self.update, ordinal),
        }
    }

    fn ensure_claims(&self, pod: &str) -> Result<(), Status> {
        let registry = &self.control.shared.registry;
        let (namespace, set_name) = key(self.set);
        for claim in stateful_set_pods::claims(self.set, pod) {
            let name = key(&claim).1;
            match registry.create(Resource::PersistentVolumeClaims, &namespace, claim) {
                Err(status) if status.code() == 409 => {}
                Err(status) => {
                    let message = format!(
                        "create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: {status}"
                    );
                    self.control.record(self.set, EventType::Warning, "FailedCreate", &message);
                    return Err(status);
                }
                Ok(_) => {
                    let message = format!("create Claim {name} Pod {pod} in StatefulSet {set_name} success");
                    self.control.record(self.set, EventType::Normal, "SuccessfulCreate", &message);
                }
            }
        }
        Ok(())
    }

    /// Computes the set's status from its pods (`updateStatus`, `completeRollingUpdate`).
    fn status(&self, set: &Value, pods: &[Arc<Value>], judge: Judge) -> Value {
        let count = |counts: &dyn Fn(&Value) -> bool| pods.iter().filter(|pod| counts(pod)).count();
        let of_revision =
            |revision: &str| count(&|pod| !is_being_deleted(pod) && revision_of(pod) == revision);
        let ready = count(&stateful_set_steps::is_running);
        let updated = of_revision(&self.update);
        let is_done = set["spec"]["updateStrategy"]["type"] == "RollingUpdate"
            && [updated, ready, pods.len()]
                .iter()
                .all(|count| i64::try_from(*count) == Ok(number(&set["spec"]["replicas"])));
        let current = if is_done { &self.update } else { &self.current };
        let mut status = json!({
            "observedGeneration": self.set["metadata"]["generation"],
            "replicas": pods.len(),
            "availableReplicas": count(&|pod| stateful_set_steps::is_running(pod) && judge.is_available(pod)),
            "currentRevision": current,
            "updateRevision": self.update,
            "collisionCount": 0,
        });
        let counts = [
            ("readyReplicas", ready),
            ("currentReplicas", of_revision(current)),
            ("updatedReplicas", updated),
        ];
        write_counts(&mut status, counts);
        status
    }
}

#[cfg(test)]
mod tests;
