//! Runs StatefulSets: numbered pods with stable names that are replaced in order.
//!
//! Based on pkg/controller/statefulset. [`stateful_set_steps`] decides the next steps, and [`stateful_set_pods`] builds
//! pods. New pods always come from the latest template, even below a partition. `volumeClaimTemplates` become pod
//! volumes, without claim objects.

mod stateful_set_pods;
mod stateful_set_steps;

use std::sync::Arc;

use serde_json::{Value, json};

use super::availability::Judge;
use super::claim::{claim, owners_concerned};
use super::pod_control::{BURST, PodControl};
use super::pod_template::{self, revision_of};
use super::reconciler::{self, BACK_OFF, ReconcileResult};
use crate::object_fields::{ObjectKey, is_being_deleted, key, write_counts};
use crate::registry::follow;
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::shared::ClusterContext;
use crate::status::Status;
use crate::value::{number, text};
use stateful_set_steps::StatefulSetStep;

const COMPONENT: &str = "statefulset-controller";

pub(super) async fn run(shared: ClusterContext) {
    let control = PodControl::new(&shared, COMPONENT);
    let events = follow(&shared.registry, &[Resource::StatefulSets, Resource::Pods]);
    let named = |observed| owners_concerned(&shared.registry, Resource::StatefulSets, &observed);
    let control = &control;
    reconciler::run(events, BACK_OFF, named, |set| async move { reconcile(control, &set).await }).await;
}

/// Takes the next steps, and returns the delay before the next pass.
async fn reconcile(control: &PodControl, (namespace, name): &ObjectKey) -> ReconcileResult {
    let registry = &control.shared.registry;
    let Ok(set) = registry.get(Resource::StatefulSets, namespace, name) else { return Ok(None) };
    let look = StatefulSetPass::of(control, &set);
    let done = if is_being_deleted(&set) { Ok(()) } else { look.manage().await };
    let Ok(set) = registry.get(Resource::StatefulSets, namespace, name) else { return Ok(None) };
    let pods = own_pods(&control.shared, &set)?;
    let judge = Judge::new(&set, &registry.now());
    let status = look.status(&set, &pods, judge);
    registry.set_status(Resource::StatefulSets, &set, status)?;
    done?;
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
    /// Revision that the pods have, or had before an unfinished update.
    current: String,
    /// Revision of the latest template.
    update: String,
}

impl<'a> StatefulSetPass<'a> {
    fn of(control: &'a PodControl, set: &'a Value) -> Self {
        let update = format!("{}-{}", key(set).1, pod_template::hash(&set["spec"]["template"]));
        let current = match text(&set["status"]["currentRevision"]) {
            "" => update.clone(),
            known => known.to_owned(),
        };
        Self { control, set, current, update }
    }

    async fn manage(&self) -> Result<(), Status> {
        let shared = &self.control.shared;
        let pods = own_pods(shared, self.set)?;
        let judge = Judge::new(self.set, &shared.registry.now());
        let (mut new, mut excess) = (Vec::new(), Vec::new());
        for step in stateful_set_steps::next(self.set, &self.update, &pods, judge) {
            match step {
                StatefulSetStep::Create(ordinal) => {
                    new.push(stateful_set_pods::new(self.set, &self.update, ordinal));
                }
                StatefulSetStep::Delete(pod) => excess.push(pod),
            }
        }
        new.truncate(BURST);
        self.control.create(self.set, new, &mut Vec::new()).await?;
        excess.truncate(BURST);
        self.control.delete(self.set, &excess).await
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
