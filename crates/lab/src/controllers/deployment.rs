//! Rolls out a Deployment's template through its ReplicaSets.
//!
//! The steps follow pkg/controller/deployment: the new ReplicaSet is scaled up first, then the old ones are scaled
//! down. Changing `spec.replicas` during a rollout triggers the same steps, without sync.go's proportional scaling.
//! Terminating pods do not count. The arithmetic is in [`sizes`], revisions and templates are in [`mod@revision`],
//! and conditions in [`deployment_status`].

mod deployment_status;
mod revision;
pub(super) mod sizes;

use std::sync::Arc;

use serde_json::{Value, json};

use super::claim::{adopters, claim};
use super::reconciler::{self, BACK_OFF, ReconcileResult};
use crate::object_fields::{ObjectKey, controller_key, is_being_deleted, is_controlled_by, is_terminal, key};
use crate::registry::{EventType, ObjectPart, ObservedEvent, WatchEventType, follow};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::shared::ClusterContext;
use crate::status::Status;
use crate::value::{number, text};
use deployment_status::Draft;
use revision::{REVISION, revision, runs_template};
use sizes::{RolloutLimits, Size, replicas};

const COMPONENT: &str = "deployment-controller";

pub(super) async fn run(shared: ClusterContext) {
    let events = follow(&shared.registry, &[Resource::Deployments, Resource::ReplicaSets, Resource::Pods]);
    let named = |(resource, event): ObservedEvent| {
        let gone = event.event_type == WatchEventType::Deleted;
        let deployment = match resource {
            Resource::Deployments if gone => None,
            Resource::Deployments => Some(key(&event.object)),
            Resource::ReplicaSets => match controller_key(&event.object, Resource::Deployments) {
                Some(deployment) => Some(deployment),
                None if gone => None,
                None => return adopters(&shared.registry, Resource::Deployments, &event.object),
            },
            // Recreate waits for old pods to terminate. Everything else is visible in the ReplicaSets.
            _ if gone || is_terminal(&event.object) => deployment_of_pod(&shared, &event.object),
            _ => None,
        };
        deployment.into_iter().collect()
    };
    let shared = &shared;
    reconciler::run(events, BACK_OFF, named, |deployment| async move { reconcile(shared, &deployment) })
        .await;
}

fn deployment_of_pod(shared: &ClusterContext, pod: &Value) -> Option<ObjectKey> {
    let (namespace, name) = controller_key(pod, Resource::ReplicaSets)?;
    let replica_set = shared.registry.get(Resource::ReplicaSets, &namespace, &name).ok()?;
    controller_key(&replica_set, Resource::Deployments)
}

/// Takes one step of a Deployment's rollout.
fn reconcile(shared: &ClusterContext, (namespace, name): &ObjectKey) -> ReconcileResult {
    let registry = &shared.registry;
    let Ok(deployment) = registry.get(Resource::Deployments, namespace, name) else { return Ok(None) };
    let mut rollout = DeploymentRollout::of(shared, deployment)?;
    if is_being_deleted(&rollout.deployment) {
        return rollout.store_counts();
    }
    rollout.store(|draft| draft.note_pause())?;
    if rollout.deployment["spec"]["paused"] == true {
        rollout.sync_revision()?;
        rollout.scale_paused()?;
        rollout.forget_history()?;
        return rollout.store_counts();
    }
    rollout.sync_revision()?;
    let recreates = rollout.deployment["spec"]["strategy"]["type"] == "Recreate";
    let waits = if recreates { rollout.recreate()? } else { rollout.roll()? };
    let draft = rollout.judge();
    let (complete, again) = (draft.is_complete(), draft.look_again_in());
    rollout.write(draft.finish())?;
    if complete && !waits {
        rollout.forget_history()?;
    }
    Ok(again)
}

/// A Deployment and its ReplicaSets.
struct DeploymentRollout<'a> {
    shared: &'a ClusterContext,
    deployment: Arc<Value>,
    /// ReplicaSet for the current template. If there are several, the oldest one.
    new: Option<Arc<Value>>,
    /// Other ReplicaSets, oldest first.
    old: Vec<Arc<Value>>,
    /// Time of this step.
    now: String,
}

impl<'a> DeploymentRollout<'a> {
    fn of(shared: &'a ClusterContext, deployment: Arc<Value>) -> Result<Self, Status> {
        let selector = LabelSelector::from_object(&deployment["spec"]["selector"]);
        let mut old = claim(&shared.registry, &deployment, Resource::ReplicaSets, &selector, |_| true)?;
        old.sort_by_cached_key(|replica_set| {
            let created = text(&replica_set["metadata"]["creationTimestamp"]).to_owned();
            (created, revision(replica_set), key(replica_set).1)
        });
        let template = &deployment["spec"]["template"];
        let new = old.iter().position(|replica_set| runs_template(replica_set, template));
        let new = new.map(|at| old.remove(at));
        let now = shared.registry.now();
        Ok(Self { shared, deployment, new, old, now })
    }

    fn wanted(&self) -> i64 {
        replicas(&self.deployment)
    }

    fn limits(&self) -> RolloutLimits {
        RolloutLimits::of(&self.deployment)
    }

    fn all(&self) -> Vec<Arc<Value>> {
        self.old.iter().chain(&self.new).cloned().collect()
    }

    fn newest_old_revision(&self) -> i64 {
        self.old.iter().map(|replica_set| revision(replica_set)).max().unwrap_or(0)
    }

    /// Assigns the newest revision number to the ReplicaSet for the current template, if it exists, and copies the
    /// Deployment's settings to that ReplicaSet.
    fn sync_revision(&mut self) -> Result<(), Status> {
        let Some(new) = self.new.clone() else { return Ok(()) };
        let newest = self.newest_old_revision() + 1;
        let min_ready = number(&self.deployment["spec"]["minReadySeconds"]);
        let deployment = Arc::clone(&self.deployment);
        let new = self.shared.registry.change(Resource::ReplicaSets, &new, ObjectPart::Main, |object| {
            revision::annotate(object, &deployment, newest);
            if number(&object["spec"]["minReadySeconds"]) != min_ready {
                object["spec"]["minReadySeconds"] = json!(min_ready);
            }
        })?;
        self.note_revision(revision(&new))?;
        self.store(|draft| draft.note_replica_set(&key(&new).1, false))?;
        self.new = Some(new);
        Ok(())
    }

    fn note_revision(&mut self, number: i64) -> Result<(), Status> {
        if revision(&self.deployment) == number {
            return Ok(());
        }
        let annotate = |object: &mut Value| {
            object["metadata"]["annotations"][REVISION] = json!(number.to_string());
        };
        let registry = &self.shared.registry;
        self.deployment =
            registry.change(Resource::Deployments, &self.deployment, ObjectPart::Main, annotate)?;
        Ok(())
    }

    /// Creates the ReplicaSet for the current template, unless it already exists.
    fn ensure_new(&mut self) -> Result<Arc<Value>, Status> {
        if let Some(new) = &self.new {
            return Ok(Arc::clone(new));
        }
        let registry = &self.shared.registry;
        let number = self.newest_old_revision() + 1;
        let total = self.old.iter().map(|replica_set| replicas(replica_set)).sum();
        let size = if self.deployment["spec"]["strategy"]["type"] == "Recreate" {
            self.wanted()
        } else {
            sizes::new_replicas(self.wanted(), self.limits().max_surge, total, 0)
        };
        let object = revision::new_replica_set(&self.deployment, number, size);
        let name = key(&object).1;
        let created = match registry.create(Resource::ReplicaSets, &key(&self.deployment).0, object) {
            Ok(created) => created,
            Err(status) => {
                let message = format!("Failed to create new replica set \"{name}\": {status}");
                self.store(|draft| draft.note_creation_failure(&message))?;
                self.record(EventType::Warning, "ReplicaSetCreateError", &message);
                return Err(status);
            }
        };
        if size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            self.record(EventType::Normal, "ScalingReplicaSet", &message);
        }
        self.note_revision(number)?;
        self.store(|draft| draft.note_replica_set(&name, true))?;
        self.new = Some(Arc::clone(&created));
        Ok(created)
    }

    /// Scales the newest ReplicaSet that has pods to `spec.replicas` while the rollout is paused. If other ReplicaSets
    /// also have pods, the surge may remain.
    fn scale_paused(&mut self) -> Result<(), Status> {
        let all = self.all();
        let mut active = all.iter().rev().filter(|replica_set| replicas(replica_set) > 0).peekable();
        let Some(newest) = active.peek().copied().or(all.last()) else { return Ok(()) };
        let total: i64 = all.iter().map(|replica_set| replicas(replica_set)).sum();
        let surge = if active.count() > 1 { self.limits().max_surge } else { 0 };
        let change = total.clamp(self.wanted(), self.wanted() + surge) - total;
        if change == 0 {
            return Ok(());
        }
        self.scale(newest, (replicas(newest) + change).max(0))
    }

    /// Takes one step of a rolling update. Returns true if it scaled a ReplicaSet, in which case more steps follow.
    fn roll(&mut self) -> Result<bool, Status> {
        let new = self.ensure_new()?;
        let RolloutLimits { max_surge, max_unavailable } = self.limits();
        let total = self.all().iter().map(|replica_set| replicas(replica_set)).sum();
        let target = sizes::new_replicas(self.wanted(), max_surge, total, replicas(&new));
        if target != replicas(&new) {
            self.scale(&new, target)?;
            return Ok(true);
        }
        let old: Vec<_> = self.old.iter().map(|replica_set| Size::of(replica_set)).collect();
        let targets = sizes::old_replicas(self.wanted(), max_unavailable, Size::of(&new), &old);
        let mut scaled = false;
        for (replica_set, target) in self.old.clone().iter().zip(targets) {
            if target != replicas(replica_set) {
                self.scale(replica_set, target)?;
                scaled = true;
            }
        }
        Ok(scaled)
    }

    /// Scales the old ReplicaSets down to 0, and starts the new pods once all old ones have terminated. Returns true if
    /// more steps will follow.
    fn recreate(&mut self) -> Result<bool, Status> {
        let mut scaled = false;
        for old in self.old.clone() {
            if replicas(&old) > 0 {
                self.scale(&old, 0)?;
                scaled = true;
            }
        }
        if scaled || self.old_pods_run() {
            return Ok(true);
        }
        let new = self.ensure_new()?;
        if replicas(&new) != self.wanted() {
            self.scale(&new, self.wanted())?;
            scaled = true;
        }
        Ok(scaled)
    }

    fn old_pods_run(&self) -> bool {
        if self.old.iter().any(|old| number(&old["status"]["replicas"]) > 0) {
            return true;
        }
        let namespace = key(&self.deployment).0;
        let pods = self.shared.registry.all(Resource::Pods, Some(&namespace));
        let is_old = |pod: &Value| self.old.iter().any(|replica_set| is_controlled_by(pod, replica_set));
        pods.iter().any(|pod| !is_terminal(pod) && is_old(pod))
    }

    fn scale(&mut self, replica_set: &Value, target: i64) -> Result<(), Status> {
        let registry = &self.shared.registry;
        let scaled = registry.change(Resource::ReplicaSets, replica_set, ObjectPart::Main, |object| {
            object["spec"]["replicas"] = json!(target);
        })?;
        let (from, name) = (replicas(replica_set), key(replica_set).1);
        if from != target {
            let direction = if target > from { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {name} from {from} to {target}");
            self.record(EventType::Normal, "ScalingReplicaSet", &message);
        }
        for known in self.old.iter_mut().chain(&mut self.new) {
            if known["metadata"]["uid"] == scaled["metadata"]["uid"] {
                *known = Arc::clone(&scaled);
            }
        }
        Ok(())
    }

    fn record(&self, event_type: EventType, reason: &str, message: &str) {
        self.shared.registry.record_event(&self.deployment, event_type, reason, message, COMPONENT);
    }

    /// Deletes the oldest empty ReplicaSets that exceed the history limit.
    fn forget_history(&self) -> Result<(), Status> {
        let limit = self.deployment["spec"]["revisionHistoryLimit"].as_u64().unwrap_or(10);
        let excess = self.old.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        let mut by_revision = self.old.clone();
        by_revision.sort_by_key(|replica_set| revision(replica_set));
        for replica_set in by_revision.iter().take(excess) {
            let is_empty = replicas(replica_set) == 0
                && number(&replica_set["status"]["replicas"]) == 0
                && replica_set["status"]["observedGeneration"] == replica_set["metadata"]["generation"];
            if is_empty && !is_being_deleted(replica_set) {
                self.shared.registry.remove(Resource::ReplicaSets, replica_set)?;
            }
        }
        Ok(())
    }

    fn judge(&self) -> Draft<'_> {
        let all = self.all();
        let new = self.new.as_deref();
        let mut draft = Draft::of(&self.deployment, &self.now);
        draft.count(&all, new);
        draft.judge_progress(&all, new);
        draft
    }

    /// Stores only the counts, because no progress is expected.
    fn store_counts(&mut self) -> ReconcileResult {
        let (all, new) = (self.all(), self.new.clone());
        self.store(|draft| draft.count(&all, new.as_deref()))?;
        Ok(None)
    }

    /// Applies a change to the current status and stores the result.
    fn store(&mut self, change: impl FnOnce(&mut Draft<'_>)) -> Result<(), Status> {
        let mut draft = Draft::of(&self.deployment, &self.now);
        change(&mut draft);
        let status = draft.finish();
        self.write(status)
    }

    fn write(&mut self, status: Value) -> Result<(), Status> {
        let registry = &self.shared.registry;
        self.deployment = registry.set_status(Resource::Deployments, &self.deployment, status)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
