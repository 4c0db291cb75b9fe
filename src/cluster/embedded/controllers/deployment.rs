//! Rolls a Deployment's template out through its ReplicaSets.
//!
//! The arithmetic is that of pkg/controller/deployment (rolling.go, util/deployment_util.go):
//! scale up the new ReplicaSet first, else scale down old ones. Terminating pods are not
//! counted. Scaling in the midst of a rollout is not proportional here: old ReplicaSets keep
//! their size until the rollout takes them down.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::queue::Queue;
use super::{
    Key, condition, controller_key, controller_reference, follow, is_being_deleted, is_controlled_by,
    is_terminal, key,
};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{
    DeleteOptions, EventType, Part, WatchEventType, in_name_characters,
};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::Selection;
use crate::cluster::embedded::status::Status;

const COMPONENT: &str = "deployment-controller";
const REVISION: &str = "deployment.kubernetes.io/revision";
const HASH_LABEL: &str = "pod-template-hash";

/// How long to wait after the API refused something.
const RETRY: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Shared) {
    let mut events =
        follow(&shared.registry, &[Resource::Deployments, Resource::ReplicaSets, Resource::Pods]);
    let mut queue = Queue::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => {
                let gone = event.event_type == WatchEventType::Deleted;
                let deployment = match resource {
                    Resource::Deployments if gone => None,
                    Resource::Deployments => Some(key(&event.object)),
                    Resource::ReplicaSets => controller_key(&event.object, Resource::Deployments),
                    // Recreate waits for old pods to end; all else shows in the ReplicaSets.
                    _ if gone || is_terminal(&event.object) => deployment_of_pod(&shared, &event.object),
                    _ => None,
                };
                if let Some(deployment) = deployment {
                    queue.add(deployment, Duration::ZERO);
                }
            }
            deployment = queue.next() => match reconcile(&shared, &deployment) {
                Ok(Some(again)) => queue.add(deployment, again),
                Ok(None) => {}
                Err(status) => {
                    tracing::debug!(%status, ?deployment, "rollout step refused");
                    queue.add(deployment, RETRY);
                }
            },
        }
    }
}

fn deployment_of_pod(shared: &Shared, pod: &Value) -> Option<Key> {
    let (namespace, name) = controller_key(pod, Resource::ReplicaSets)?;
    let replica_set = shared.registry.get(Resource::ReplicaSets, &namespace, &name).ok()?;
    controller_key(&replica_set, Resource::Deployments)
}

/// Takes one step, and answers after which time to look again.
fn reconcile(shared: &Shared, (namespace, name): &Key) -> Result<Option<Duration>, Status> {
    let Ok(deployment) = shared.registry.get(Resource::Deployments, namespace, name) else { return Ok(None) };
    if is_being_deleted(&deployment) {
        return Ok(None);
    }
    let mut rollout = Rollout::of(shared, deployment);
    if rollout.deployment["spec"]["paused"] != true {
        rollout.ensure_new()?;
        if rollout.deployment["spec"]["strategy"]["type"] == "Recreate" {
            rollout.recreate()?;
        } else {
            rollout.roll()?;
        }
        rollout.forget_history()?;
    }
    rollout.update_status()
}

/// One Deployment and its ReplicaSets.
struct Rollout<'a> {
    shared: &'a Shared,
    deployment: Arc<Value>,
    /// The ReplicaSet of the present template.
    new: Option<Arc<Value>>,
    /// The others, oldest first.
    old: Vec<Arc<Value>>,
}

impl<'a> Rollout<'a> {
    fn of(shared: &'a Shared, deployment: Arc<Value>) -> Self {
        let namespace = key(&deployment).0;
        let hash = template_hash(&deployment["spec"]["template"]);
        let mut old = shared.registry.list(Resource::ReplicaSets, Some(&namespace), &Selection::all()).items;
        old.retain(|replica_set| is_controlled_by(replica_set, &deployment));
        old.sort_by_key(|replica_set| revision(replica_set));
        let current =
            old.iter().position(|replica_set| replica_set["metadata"]["labels"][HASH_LABEL] == hash);
        let new = current.map(|at| old.remove(at));
        Self { shared, deployment, new, old }
    }

    fn wanted(&self) -> i64 {
        self.deployment["spec"]["replicas"].as_i64().unwrap_or(0)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.old.iter().chain(&self.new)
    }

    /// Makes the ReplicaSet of the present template, with no pods yet, and numbers it as the
    /// newest revision.
    fn ensure_new(&mut self) -> Result<(), Status> {
        let newest = self.old.iter().map(|replica_set| revision(replica_set)).max().unwrap_or(0);
        let registry = &self.shared.registry;
        let (namespace, name) = key(&self.deployment);
        let number = match &self.new {
            Some(new) if revision(new) > newest => revision(new),
            Some(new) => {
                let number = newest + 1;
                let updated = registry.modify(
                    Resource::ReplicaSets,
                    &namespace,
                    &key(new).1,
                    Part::Main,
                    |object| {
                        object["metadata"]["annotations"][REVISION] = json!(number.to_string());
                    },
                )?;
                self.new = Some(updated);
                number
            }
            None => {
                let number = newest + 1;
                let object = new_replica_set(&self.deployment, number);
                self.new = Some(registry.create(Resource::ReplicaSets, &namespace, object)?);
                number
            }
        };
        if revision(&self.deployment) != number {
            self.deployment =
                registry.modify(Resource::Deployments, &namespace, &name, Part::Main, |object| {
                    object["metadata"]["annotations"][REVISION] = json!(number.to_string());
                })?;
        }
        Ok(())
    }

    /// One step of a rolling update.
    fn roll(&mut self) -> Result<(), Status> {
        let Some(new) = &self.new else { return Ok(()) };
        let (max_surge, max_unavailable) = surge_and_unavailable(&self.deployment);
        let total = self.all().map(|replica_set| replicas(replica_set)).sum();
        let target = new_replicas(self.wanted(), max_surge, total, replicas(new));
        if target != replicas(new) {
            let new = Arc::clone(new);
            self.new = Some(self.scale(&new, target)?);
            return Ok(());
        }
        let old: Vec<_> = self.old.iter().map(|replica_set| Size::of(replica_set)).collect();
        let targets = old_replicas(self.wanted(), max_unavailable, Size::of(new), &old);
        for (at, target) in targets.into_iter().enumerate() {
            if target != old[at].replicas {
                let replica_set = Arc::clone(&self.old[at]);
                self.old[at] = self.scale(&replica_set, target)?;
            }
        }
        Ok(())
    }

    /// All old pods first have to end, then the new ones start.
    fn recreate(&mut self) -> Result<(), Status> {
        for at in 0..self.old.len() {
            if replicas(&self.old[at]) > 0 {
                let replica_set = Arc::clone(&self.old[at]);
                self.old[at] = self.scale(&replica_set, 0)?;
            }
        }
        let namespace = key(&self.deployment).0;
        let pods = self.shared.registry.list(Resource::Pods, Some(&namespace), &Selection::all()).items;
        let is_old = |pod: &Value| self.old.iter().any(|replica_set| is_controlled_by(pod, replica_set));
        if pods.iter().any(|pod| !is_terminal(pod) && is_old(pod)) {
            return Ok(());
        }
        if let Some(new) = self.new.clone()
            && replicas(&new) != self.wanted()
        {
            self.new = Some(self.scale(&new, self.wanted())?);
        }
        Ok(())
    }

    fn scale(&self, replica_set: &Value, target: i64) -> Result<Arc<Value>, Status> {
        let (namespace, name) = key(replica_set);
        let from = replicas(replica_set);
        let scaled =
            self.shared.registry.modify(Resource::ReplicaSets, &namespace, &name, Part::Main, |object| {
                object["spec"]["replicas"] = json!(target);
            })?;
        let direction = if target > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {name} from {from} to {target}");
        self.shared.registry.record_event(
            &self.deployment,
            EventType::Normal,
            "ScalingReplicaSet",
            &message,
            COMPONENT,
        );
        Ok(scaled)
    }

    /// Deletes the oldest empty ReplicaSets beyond the history limit.
    fn forget_history(&self) -> Result<(), Status> {
        let limit = self.deployment["spec"]["revisionHistoryLimit"].as_u64().unwrap_or(10);
        let excess = self.old.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        for replica_set in self.old.iter().take(excess) {
            let size = Size::of(replica_set);
            if size.replicas == 0 && size.existing == 0 {
                let (namespace, name) = key(replica_set);
                let options = DeleteOptions::default();
                self.shared.registry.delete(Resource::ReplicaSets, &namespace, &name, &options)?;
            }
        }
        Ok(())
    }

    /// Writes the status, and answers when a rollout without progress will have taken too long.
    fn update_status(&self) -> Result<Option<Duration>, Status> {
        let sum = |field: &str| -> i64 {
            self.all().map(|replica_set| replica_set["status"][field].as_i64().unwrap_or(0)).sum()
        };
        let wanted = self.wanted();
        let updated = self.new.as_ref().map_or(0, |new| new["status"]["replicas"].as_i64().unwrap_or(0));
        let (existing, ready, available) = (sum("replicas"), sum("readyReplicas"), sum("availableReplicas"));
        let (_, max_unavailable) = surge_and_unavailable(&self.deployment);
        let old_status = &self.deployment["status"];
        let complete = updated == wanted && existing == wanted && available == wanted;
        let counts = [("replicas", existing), ("updatedReplicas", updated), ("readyReplicas", ready)];
        let progressed =
            counts.iter().any(|(field, count)| old_status[*field].as_i64().unwrap_or(0) != *count);

        let now = self.shared.registry.now();
        let progressing_before = condition(&self.deployment, "Progressing");
        let (progress, overdue_in) = self.progress(complete, progressed, progressing_before, &now);
        let is_available = available >= wanted - max_unavailable;
        let availability = Condition {
            condition_type: "Available",
            status: is_available,
            reason: if is_available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" },
            message: if is_available {
                "Deployment has minimum availability.".to_owned()
            } else {
                "Deployment does not have minimum availability.".to_owned()
            },
        };
        let conditions = [
            availability.to_json(condition(&self.deployment, "Available"), false, &now),
            progress.to_json(progressing_before, progressed, &now),
        ];
        let status = json!({
            "observedGeneration": self.deployment["metadata"]["generation"],
            "replicas": existing,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": available,
            "unavailableReplicas": (wanted - available).max(0),
            "terminatingReplicas": sum("terminatingReplicas"),
            "conditions": conditions,
        });
        let (namespace, name) = key(&self.deployment);
        self.shared.registry.modify(Resource::Deployments, &namespace, &name, Part::Status, |object| {
            object["status"] = status;
        })?;
        Ok(overdue_in)
    }

    /// The Progressing condition, and when it would turn false if nothing happened until then.
    fn progress(
        &self,
        complete: bool,
        progressed: bool,
        before: &Value,
        now: &str,
    ) -> (Condition, Option<Duration>) {
        let new_name = self.new.as_ref().map_or_else(String::new, |new| key(new).1);
        let condition =
            |status, reason, message| Condition { condition_type: "Progressing", status, reason, message };
        if complete {
            let message = format!("ReplicaSet \"{new_name}\" has successfully progressed.");
            return (condition(true, "NewReplicaSetAvailable", message), None);
        }
        let seconds = |text: &str| text.parse::<Timestamp>().ok().map(Timestamp::as_second);
        let deadline = self.deployment["spec"]["progressDeadlineSeconds"].as_i64().unwrap_or(600);
        let last_update = before["lastUpdateTime"]
            .as_str()
            .filter(|_| !progressed && before["reason"] != "NewReplicaSetAvailable");
        let waited = last_update.and_then(seconds).zip(seconds(now)).map_or(0, |(last, now)| now - last);
        if waited >= deadline {
            let message = format!("ReplicaSet \"{new_name}\" has timed out progressing.");
            return (condition(false, "ProgressDeadlineExceeded", message), None);
        }
        let message = format!("ReplicaSet \"{new_name}\" is progressing.");
        let left = Duration::from_secs(u64::try_from(deadline - waited).unwrap_or(0));
        (condition(true, "ReplicaSetUpdated", message), Some(left))
    }
}

/// A condition of a Deployment's status.
struct Condition {
    condition_type: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    /// As it is written: its times change only when it does, or when it is refreshed.
    fn to_json(&self, before: &Value, refreshed: bool, now: &str) -> Value {
        let status = if self.status { "True" } else { "False" };
        let kept =
            |field: &str, keep: bool| before[field].as_str().filter(|_| keep).unwrap_or(now).to_owned();
        let same_status = before["status"] == status;
        let same = same_status && before["reason"] == self.reason && !refreshed;
        json!({
            "type": self.condition_type,
            "status": status,
            "reason": self.reason,
            "message": self.message,
            "lastUpdateTime": kept("lastUpdateTime", same),
            "lastTransitionTime": kept("lastTransitionTime", same_status),
        })
    }
}

/// How many pods a ReplicaSet asks for, has, and has available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    replicas: i64,
    existing: i64,
    available: i64,
}

impl Size {
    fn of(replica_set: &Value) -> Self {
        let status = |field: &str| replica_set["status"][field].as_i64().unwrap_or(0);
        Self {
            replicas: replicas(replica_set),
            existing: status("replicas"),
            available: status("availableReplicas"),
        }
    }
}

fn replicas(replica_set: &Value) -> i64 {
    replica_set["spec"]["replicas"].as_i64().unwrap_or(0)
}

fn revision(object: &Value) -> i64 {
    let text = object["metadata"]["annotations"][REVISION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The size that the new ReplicaSet may have now (`NewRSNewReplicas`), where `total` counts the
/// replicas of all ReplicaSets, the new one's included.
fn new_replicas(wanted: i64, max_surge: i64, total: i64, new: i64) -> i64 {
    if new >= wanted {
        return wanted;
    }
    let room = (wanted + max_surge - total).max(0);
    new + room.min(wanted - new)
}

/// The sizes that the old ReplicaSets may be taken down to now (`reconcileOldReplicaSets`), oldest
/// first: pods that are not available anyway go before those that are.
fn old_replicas(wanted: i64, max_unavailable: i64, new: Size, old: &[Size]) -> Vec<i64> {
    let mut targets: Vec<_> = old.iter().map(|size| size.replicas).collect();
    let min_available = wanted - max_unavailable;
    let total = targets.iter().sum::<i64>() + new.replicas;
    let mut may_go = total - min_available - (new.replicas - new.available);
    for (target, size) in targets.iter_mut().zip(old) {
        let unhealthy = (size.replicas - size.available).clamp(0, may_go.max(0));
        *target -= unhealthy;
        may_go -= unhealthy;
    }
    let available = old.iter().map(|size| size.available).sum::<i64>() + new.available;
    // A status may lag behind the size that was asked for last, so both set a limit.
    let mut may_go = may_go.min(available - min_available).max(0);
    for target in &mut targets {
        let gone = (*target).min(may_go);
        *target -= gone;
        may_go -= gone;
    }
    targets
}

/// `maxSurge` and `maxUnavailable` in pods: one is rounded up, the other down, and they are not
/// both 0.
fn surge_and_unavailable(deployment: &Value) -> (i64, i64) {
    let wanted = deployment["spec"]["replicas"].as_i64().unwrap_or(0);
    let strategy = &deployment["spec"]["strategy"];
    if strategy["type"] == "Recreate" {
        return (0, wanted);
    }
    let of_percent = |text: &str| wanted * text.trim_end_matches('%').parse::<i64>().unwrap_or(0);
    let amount = |field: &str, round_up: i64| match &strategy["rollingUpdate"][field] {
        Value::String(text) => (of_percent(text) + round_up) / 100,
        other => other.as_i64().unwrap_or(0),
    };
    let (surge, unavailable) = (amount("maxSurge", 99), amount("maxUnavailable", 0));
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable.min(wanted)) }
}

/// A short name for a pod template: equal templates have equal ones, whatever order their fields
/// were written in (`serde_json` sorts them).
fn template_hash(template: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    template.to_string().hash(&mut hasher);
    in_name_characters(hasher.finish(), 10)
}

fn new_replica_set(deployment: &Value, number: i64) -> Value {
    let hash = template_hash(&deployment["spec"]["template"]);
    let (_, name) = key(deployment);
    let mut template = deployment["spec"]["template"].clone();
    template["metadata"]["labels"][HASH_LABEL] = json!(hash);
    let mut selector = deployment["spec"]["selector"].clone();
    selector["matchLabels"][HASH_LABEL] = json!(hash);
    let mut annotations = json!({});
    annotations[REVISION] = json!(number.to_string());
    json!({
        "metadata": {
            "name": format!("{name}-{hash}"),
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [controller_reference(deployment)],
        },
        "spec": {
            "replicas": 0,
            "minReadySeconds": deployment["spec"]["minReadySeconds"].as_i64().unwrap_or(0),
            "selector": selector,
            "template": template,
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(replicas: i64, max_surge: Value, max_unavailable: Value) -> (i64, i64) {
        surge_and_unavailable(&json!({"spec": {"replicas": replicas, "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": max_unavailable},
        }}}))
    }

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
        assert_eq!(limits(3, json!("25%"), json!("25%")), (1, 0));
        assert_eq!(limits(4, json!("25%"), json!("25%")), (1, 1));
        assert_eq!(limits(10, json!("25%"), json!("25%")), (3, 2));
        assert_eq!(limits(3, json!(2), json!(0)), (2, 0));
        assert_eq!(limits(2, json!(0), json!("25%")), (0, 1));
        assert_eq!(limits(2, json!(1), json!(5)), (1, 2));
    }

    #[test]
    fn a_rollout_of_three_goes_one_by_one() {
        let size = |replicas, available| Size { replicas, existing: replicas, available };
        assert_eq!(new_replicas(3, 1, 3, 0), 1);
        // The new pod is not available yet: nothing may go.
        assert_eq!(old_replicas(3, 0, size(1, 0), &[size(3, 3)]), [3]);
        assert_eq!(old_replicas(3, 0, size(1, 1), &[size(3, 3)]), [2]);
        // The status does not show yet that one is on its way out.
        assert_eq!(old_replicas(3, 0, size(1, 1), &[Size { replicas: 2, existing: 3, available: 3 }]), [2]);
        // Terminating pods are not counted, so the next one starts at once.
        assert_eq!(new_replicas(3, 1, 3, 1), 2);
    }

    #[test]
    fn unavailable_old_pods_go_first() {
        let size = |replicas, available| Size { replicas, existing: replicas, available };
        assert_eq!(old_replicas(4, 1, size(1, 0), &[size(4, 2)]), [3]);
        assert_eq!(old_replicas(4, 1, size(2, 2), &[size(2, 0), size(2, 2)]), [0, 1]);
    }

    #[test]
    fn a_new_replica_set_shrinks_with_its_deployment() {
        assert_eq!(new_replicas(2, 1, 5, 5), 2);
        assert_eq!(new_replicas(5, 2, 2, 2), 5);
        assert_eq!(new_replicas(0, 1, 0, 0), 0);
    }

    #[test]
    fn equal_templates_have_equal_hashes() {
        let template = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(template_hash(&template), template_hash(&template.clone()));
        assert_ne!(
            template_hash(&template),
            template_hash(&json!({"spec": {"containers": [{"name": "b"}]}}))
        );
    }

    proptest! {
        #[test]
        fn no_step_breaks_the_limits(
            wanted in 1_i64..20,
            max_surge in 0_i64..6,
            max_unavailable in 0_i64..6,
            new in 0_i64..20,
            // A status that lags may show more available pods than are asked for.
            olds in prop::collection::vec((0_i64..10, 0_i64..10), 0..4),
        ) {
            prop_assume!(max_surge + max_unavailable > 0);
            let olds: Vec<_> = olds
                .into_iter()
                .map(|(replicas, available)| Size { replicas, existing: replicas, available })
                .collect();
            let total = new + olds.iter().map(|size| size.replicas).sum::<i64>();
            let target = new_replicas(wanted, max_surge, total, new);
            prop_assert!(target <= wanted);
            prop_assert!(target <= new || total - new + target <= wanted + max_surge);

            let new = Size { replicas: new.min(wanted), existing: new.min(wanted), available: new.min(wanted) };
            let truly_available = |size: &Size| size.available.min(size.replicas);
            let available_before = new.available + olds.iter().map(truly_available).sum::<i64>();
            let targets = old_replicas(wanted, max_unavailable, new, &olds);
            let mut available_after = new.available;
            for (target, size) in targets.iter().zip(&olds) {
                prop_assert!((0..=size.replicas).contains(target));
                available_after += size.available.min(*target);
            }
            prop_assert!(available_after >= available_before.min(wanted - max_unavailable));
        }
    }
}
