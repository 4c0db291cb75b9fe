//! Rolls a Deployment's template out through its ReplicaSets.
//!
//! The steps are those of pkg/controller/deployment: a change of `spec.replicas` in the midst of a
//! rollout is shared out proportionally; else the new ReplicaSet is scaled up first, then old ones
//! down. Terminating pods are not counted. The arithmetic is in [`sizes`], revisions and templates
//! in [`mod@revision`], conditions in [`status`].

mod revision;
pub(super) mod sizes;
mod status;

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};

use super::claim::{adopters, claim};
use super::worker::{self, BACK_OFF, Outcome};
use super::{Key, controller_key, follow, is_being_deleted, is_controlled_by, is_terminal, key};
use crate::Shared;
use crate::registry::{DeleteOptions, EventType, Part, WatchEventType};
use crate::resource::Resource;
use crate::selector::{LabelSelector, Selection};
use crate::status::Status;
use revision::{REVISION, revision, runs_template};
use sizes::{Limits, Share, Size};
use status::Draft;

const COMPONENT: &str = "deployment-controller";
const HASH_LABEL: &str = "pod-template-hash";

pub(super) async fn run(shared: Shared) {
    let events = follow(&shared.registry, &[Resource::Deployments, Resource::ReplicaSets, Resource::Pods]);
    let named = |(resource, event): super::Observed| {
        let gone = event.event_type == WatchEventType::Deleted;
        let deployment = match resource {
            Resource::Deployments if gone => None,
            Resource::Deployments => Some(key(&event.object)),
            Resource::ReplicaSets => match controller_key(&event.object, Resource::Deployments) {
                Some(deployment) => Some(deployment),
                None if gone => None,
                None => return adopters(&shared.registry, Resource::Deployments, &event.object),
            },
            // Recreate waits for old pods to end; all else shows in the ReplicaSets.
            _ if gone || is_terminal(&event.object) => deployment_of_pod(&shared, &event.object),
            _ => None,
        };
        deployment.into_iter().collect()
    };
    worker::run(events, BACK_OFF, named, |deployment| {
        let shared = shared.clone();
        async move { reconcile(&shared, &deployment) }
    })
    .await;
}

fn deployment_of_pod(shared: &Shared, pod: &Value) -> Option<Key> {
    let (namespace, name) = controller_key(pod, Resource::ReplicaSets)?;
    let replica_set = shared.registry.get(Resource::ReplicaSets, &namespace, &name).ok()?;
    controller_key(&replica_set, Resource::Deployments)
}

/// Takes one step.
fn reconcile(shared: &Shared, (namespace, name): &Key) -> Outcome {
    let registry = &shared.registry;
    let Ok(deployment) = registry.get(Resource::Deployments, namespace, name) else { return Ok(None) };
    let mut rollout = Rollout::of(shared, deployment)?;
    if is_being_deleted(&rollout.deployment) {
        return rollout.store_counts();
    }
    rollout.store(|draft| draft.note_pause())?;
    if rollout.deployment["spec"]["paused"] == true {
        rollout.sync_revision()?;
        rollout.scale_all()?;
        rollout.forget_history()?;
        return rollout.store_counts();
    }
    rollout.sync_revision()?;
    if rollout.was_scaled() {
        rollout.scale_all()?;
        return rollout.store_counts();
    }
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

/// One Deployment and its ReplicaSets.
struct Rollout<'a> {
    shared: &'a Shared,
    deployment: Arc<Value>,
    /// The ReplicaSet of the present template, the oldest should there be several.
    new: Option<Arc<Value>>,
    /// The others, oldest first.
    old: Vec<Arc<Value>>,
    /// The time of this step.
    now: String,
}

impl<'a> Rollout<'a> {
    fn of(shared: &'a Shared, deployment: Arc<Value>) -> Result<Self, Status> {
        let selector = LabelSelector::from_object(&deployment["spec"]["selector"]);
        let mut old = claim(&shared.registry, &deployment, Resource::ReplicaSets, &selector, |_| true)?;
        old.sort_by_key(|replica_set| {
            let (_, name) = key(replica_set);
            (
                replica_set["metadata"]["creationTimestamp"].as_str().map(str::to_owned),
                revision(replica_set),
                name,
            )
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

    fn limits(&self) -> Limits {
        Limits::of(&self.deployment)
    }

    fn all(&self) -> Vec<Arc<Value>> {
        self.old.iter().chain(&self.new).cloned().collect()
    }

    fn newest_old_revision(&self) -> i64 {
        self.old.iter().map(|replica_set| revision(replica_set)).max().unwrap_or(0)
    }

    /// Numbers the ReplicaSet of the present template, if there is one, as the newest revision, and
    /// keeps it in step with the Deployment.
    fn sync_revision(&mut self) -> Result<(), Status> {
        let Some(new) = self.new.clone() else { return Ok(()) };
        let newest = self.newest_old_revision() + 1;
        let min_ready = self.deployment["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
        let deployment = Arc::clone(&self.deployment);
        let (namespace, name) = key(&new);
        let new =
            self.shared.registry.modify(Resource::ReplicaSets, &namespace, &name, Part::Main, |object| {
                revision::annotate(object, &deployment, newest);
                if object["spec"]["minReadySeconds"].as_i64().unwrap_or(0) != min_ready {
                    object["spec"]["minReadySeconds"] = json!(min_ready);
                }
            })?;
        self.note_revision(revision(&new))?;
        self.store(|draft| draft.note_replica_set(&name, false))?;
        self.new = Some(new);
        Ok(())
    }

    fn note_revision(&mut self, number: i64) -> Result<(), Status> {
        if revision(&self.deployment) == number {
            return Ok(());
        }
        let (namespace, name) = key(&self.deployment);
        let registry = &self.shared.registry;
        let annotate = |object: &mut Value| {
            object["metadata"]["annotations"][REVISION] = json!(number.to_string());
        };
        self.deployment = registry.modify(Resource::Deployments, &namespace, &name, Part::Main, annotate)?;
        Ok(())
    }

    /// Makes the ReplicaSet of the present template, unless there is one.
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
            Err(status) if status.code() == 409 => {
                // Somebody else's ReplicaSet has this name: the next one will be called otherwise.
                self.store(|draft| draft.note_collision())?;
                return Err(status);
            }
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

    /// Whether `spec.replicas` has changed since the ReplicaSets were last scaled.
    fn was_scaled(&self) -> bool {
        let mut active = self.old.iter().chain(&self.new).filter(|replica_set| replicas(replica_set) > 0);
        active.any(|replica_set| {
            revision::desired_replicas(replica_set).is_some_and(|desired| desired != self.wanted())
        })
    }

    /// Shares a new number of pods out among the ReplicaSets (`scale` in sync.go).
    fn scale_all(&mut self) -> Result<(), Status> {
        let mut active: Vec<_> = self.all();
        active.retain(|replica_set| replicas(replica_set) > 0);
        if active.len() <= 1 {
            let latest = self.new.as_ref().or(self.old.last());
            if let Some(only) = active.first().or(latest).cloned()
                && replicas(&only) != self.wanted()
            {
                self.scale(&only, self.wanted())?;
            }
            return Ok(());
        }
        if self.is_saturated() {
            for old in self.old.clone() {
                if replicas(&old) > 0 {
                    self.scale(&old, 0)?;
                }
            }
            return Ok(());
        }
        if self.deployment["spec"]["strategy"]["type"] == "Recreate" {
            return Ok(());
        }
        let max_surge = self.limits().max_surge;
        let most = if self.wanted() > 0 { self.wanted() + max_surge } else { 0 };
        let total: i64 = active.iter().map(|replica_set| replicas(replica_set)).sum();
        // From the oldest to the newest so far; sorting keeps the order of equals.
        if most > total {
            active.reverse();
        }
        active.sort_by_key(|replica_set| Reverse(replicas(replica_set)));
        let before = self.deployment["status"]["replicas"].as_i64().unwrap_or(0);
        let shares: Vec<_> = active
            .iter()
            .map(|replica_set| Share {
                replicas: replicas(replica_set),
                max_before: revision::max_replicas(replica_set).filter(|most| *most > 0).unwrap_or(before),
            })
            .collect();
        let targets = sizes::proportional(self.wanted(), max_surge, &shares);
        for (replica_set, target) in active.iter().zip(targets) {
            self.scale(replica_set, target)?;
        }
        Ok(())
    }

    /// Whether the new ReplicaSet has all pods that are wanted, available.
    fn is_saturated(&self) -> bool {
        self.new.as_ref().is_some_and(|new| {
            let Size { replicas, available } = Size::of(new);
            let desired = revision::desired_replicas(new);
            replicas == self.wanted() && available == self.wanted() && desired == Some(self.wanted())
        })
    }

    /// One step of a rolling update. Answers whether it scaled something, so that more will follow.
    fn roll(&mut self) -> Result<bool, Status> {
        let new = self.ensure_new()?;
        let Limits { max_surge, max_unavailable } = self.limits();
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

    /// All old pods first have to end, then the new ones start. Answers whether more is to follow.
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
        if self.old.iter().any(|old| old["status"]["replicas"].as_i64().unwrap_or(0) > 0) {
            return true;
        }
        let namespace = key(&self.deployment).0;
        let pods = self.shared.registry.list(Resource::Pods, Some(&namespace), &Selection::all()).items;
        let is_old = |pod: &Value| self.old.iter().any(|replica_set| is_controlled_by(pod, replica_set));
        pods.iter().any(|pod| !is_terminal(pod) && is_old(pod))
    }

    /// Gives a ReplicaSet a size, and notes on it for how many wanted pods that was.
    fn scale(&mut self, replica_set: &Value, target: i64) -> Result<(), Status> {
        let (namespace, name) = key(replica_set);
        let deployment = Arc::clone(&self.deployment);
        let registry = &self.shared.registry;
        let scaled = registry.modify(Resource::ReplicaSets, &namespace, &name, Part::Main, |object| {
            object["spec"]["replicas"] = json!(target);
            revision::note_sizes(object, &deployment);
        })?;
        let from = replicas(replica_set);
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

    /// Deletes the oldest empty ReplicaSets beyond the history limit.
    fn forget_history(&self) -> Result<(), Status> {
        let limit = self.deployment["spec"]["revisionHistoryLimit"].as_u64().unwrap_or(10);
        let excess = self.old.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        let mut by_revision = self.old.clone();
        by_revision.sort_by_key(|replica_set| revision(replica_set));
        for replica_set in by_revision.iter().take(excess) {
            let is_empty = replicas(replica_set) == 0
                && replica_set["status"]["replicas"].as_i64().unwrap_or(0) == 0
                && replica_set["status"]["observedGeneration"] == replica_set["metadata"]["generation"];
            if is_empty && !is_being_deleted(replica_set) {
                let (namespace, name) = key(replica_set);
                let options = DeleteOptions::default();
                self.shared.registry.delete(Resource::ReplicaSets, &namespace, &name, &options)?;
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

    /// Stores the counts alone, where no progress is to be expected.
    fn store_counts(&mut self) -> Outcome {
        let (all, new) = (self.all(), self.new.clone());
        self.store(|draft| draft.count(&all, new.as_deref()))?;
        Ok(None)
    }

    /// Changes the status as it stands.
    fn store(&mut self, change: impl FnOnce(&mut Draft<'_>)) -> Result<(), Status> {
        let mut draft = Draft::of(&self.deployment, &self.now);
        change(&mut draft);
        let status = draft.finish();
        self.write(status)
    }

    fn write(&mut self, status: Value) -> Result<(), Status> {
        if self.deployment["status"] == status {
            return Ok(());
        }
        let (namespace, name) = key(&self.deployment);
        let registry = &self.shared.registry;
        self.deployment =
            registry.modify(Resource::Deployments, &namespace, &name, Part::Status, |object| {
                object["status"] = status;
            })?;
        Ok(())
    }
}

fn replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(0)
}

#[cfg(test)]
mod tests;
