//! A Deployment's status: its counts and conditions, and the progress of its rollout.
//!
//! Based on pkg/controller/deployment (progress.go, `calculateStatus` in sync.go).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::sizes::{RolloutLimits, replicas};
use crate::conditions::{find, remove, unix_seconds};
use crate::object_fields::{key, write_counts};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_REPLICA_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// Draft of a Deployment's new status.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    deployment: &'a Value,
    status: Value,
    conditions: Vec<Value>,
    now: &'a str,
}

impl<'a> Draft<'a> {
    /// Creates a draft from the current status.
    pub(super) fn of(deployment: &'a Value, now: &'a str) -> Self {
        let conditions = deployment["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let status = if deployment["status"].is_object() { deployment["status"].clone() } else { json!({}) };
        Self { deployment, status, conditions, now }
    }

    /// Counts the replicas of the ReplicaSets, and sets the `Available` condition.
    pub(super) fn count(&mut self, all: &[Arc<Value>], new: Option<&Value>) {
        let sum = |field: &str| -> i64 { all.iter().map(|replica_set| count(replica_set, field)).sum() };
        let available = sum("availableReplicas");
        let asked_for: i64 = all.iter().map(|replica_set| replicas(replica_set)).sum();
        let mut status = json!({
            "observedGeneration": self.deployment["metadata"]["generation"],
            "terminatingReplicas": sum("terminatingReplicas"),
        });
        let counts = [
            ("replicas", sum("replicas")),
            ("updatedReplicas", new.map_or(0, |new| count(new, "replicas"))),
            ("readyReplicas", sum("readyReplicas")),
            ("availableReplicas", available),
            ("unavailableReplicas", (asked_for - available).max(0)),
        ];
        write_counts(&mut status, counts);
        self.status = status;
        if available >= replicas(self.deployment) - RolloutLimits::of(self.deployment).max_unavailable {
            self.set(AVAILABLE, "True", "MinimumReplicasAvailable", "Deployment has minimum availability.");
        } else {
            let message = "Deployment does not have minimum availability.";
            self.set(AVAILABLE, "False", "MinimumReplicasUnavailable", message);
        }
    }

    /// Sets the condition for a rollout's progress (`syncRolloutStatus`). Call [`Draft::count`] first.
    pub(super) fn judge_progress(&mut self, all: &[Arc<Value>], new: Option<&Value>) {
        if deadline(self.deployment).is_none() {
            remove(&mut self.conditions, PROGRESSING);
        } else if !self.was_complete() {
            let subject = match new {
                Some(new) => format!("ReplicaSet \"{}\"", key(new).1),
                None => format!("Deployment \"{}\"", key(self.deployment).1),
            };
            if self.is_complete() {
                let message = format!("{subject} has successfully progressed.");
                self.set(PROGRESSING, "True", NEW_REPLICA_SET_AVAILABLE, &message);
            } else if self.has_progressed() {
                // Set the condition even if it is unchanged, because its time matters.
                let message = format!("{subject} is progressing.");
                self.put(PROGRESSING, "True", "ReplicaSetUpdated", &message);
            } else if self.seconds_left().is_some_and(|left| left < 0) {
                let message = format!("{subject} has timed out progressing.");
                self.set(PROGRESSING, "False", TIMED_OUT, &message);
            }
        }
        let failure = |set: &Value| find(set["status"]["conditions"].as_array()?, REPLICA_FAILURE).cloned();
        match new.and_then(failure).or_else(|| all.iter().find_map(|replica_set| failure(replica_set))) {
            Some(failure) => {
                let text = |field: &str| failure[field].as_str().unwrap_or_default().to_owned();
                self.set(REPLICA_FAILURE, &text("status"), &text("reason"), &text("message"));
            }
            None => remove(&mut self.conditions, REPLICA_FAILURE),
        }
    }

    /// Records in the conditions that a rollout has started, with either a new or an existing ReplicaSet.
    pub(super) fn note_replica_set(&mut self, name: &str, is_new: bool) {
        if deadline(self.deployment).is_none() {
            return;
        }
        if is_new {
            let message = format!("Created new replica set \"{name}\"");
            self.set(PROGRESSING, "True", "NewReplicaSetCreated", &message);
        } else if find(&self.conditions, PROGRESSING).is_none() {
            let message = format!("Found new replica set \"{name}\"");
            self.set(PROGRESSING, "True", "FoundNewReplicaSet", &message);
        }
    }

    /// Records in the conditions that the new ReplicaSet could not be created.
    pub(super) fn note_creation_failure(&mut self, message: &str) {
        if deadline(self.deployment).is_some() {
            self.set(PROGRESSING, "False", "ReplicaSetCreateError", message);
        }
    }

    /// Records in the conditions that the rollout was paused or resumed so that a pause does not count as a lack of
    /// progress (`checkPausedConditions`).
    pub(super) fn note_pause(&mut self) {
        if deadline(self.deployment).is_none() {
            return;
        }
        let reason = find(&self.conditions, PROGRESSING).map_or(&Value::Null, |progress| &progress["reason"]);
        if reason == TIMED_OUT {
            return;
        }
        match (self.deployment["spec"]["paused"] == true, reason == PAUSED) {
            (true, false) => self.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused"),
            (false, true) => self.set(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed"),
            _ => {}
        }
    }

    /// Returns true if all pods use the new template and are available, and no old pods are left
    /// (`DeploymentComplete`).
    pub(super) fn is_complete(&self) -> bool {
        let wanted = replicas(self.deployment);
        let counts = ["updatedReplicas", "replicas", "availableReplicas"];
        counts.iter().all(|field| self.status[*field].as_i64().unwrap_or(0) == wanted)
            && self.status["observedGeneration"] == self.deployment["metadata"]["generation"]
    }

    /// Returns true if the rollout was already complete, in which case its progress no longer matters.
    fn was_complete(&self) -> bool {
        let count = |field: &str| self.status[field].as_i64().unwrap_or(0);
        count("replicas") == count("updatedReplicas")
            && find(&self.conditions, PROGRESSING)
                .is_some_and(|was| was["reason"] == NEW_REPLICA_SET_AVAILABLE)
    }

    fn has_progressed(&self) -> bool {
        let before = |field: &str| self.deployment["status"][field].as_i64().unwrap_or(0);
        let now = |field: &str| self.status[field].as_i64().unwrap_or(0);
        let rises = |field: &str| now(field) > before(field);
        let old_fall =
            now("replicas") - now("updatedReplicas") < before("replicas") - before("updatedReplicas");
        rises("updatedReplicas") || old_fall || rises("readyReplicas") || rises("availableReplicas")
    }

    /// Returns the number of seconds left for the rollout to make progress, or `None` if no deadline applies.
    fn seconds_left(&self) -> Option<i64> {
        let progress = find(&self.conditions, PROGRESSING)?;
        if [NEW_REPLICA_SET_AVAILABLE, TIMED_OUT].iter().any(|reason| progress["reason"] == *reason) {
            return None;
        }
        let since = unix_seconds(&progress["lastUpdateTime"])?;
        let now = unix_seconds(&json!(self.now))?;
        Some(since + deadline(self.deployment)? - now)
    }

    /// Returns the time until the next check of the progress deadline.
    pub(super) fn look_again_in(&self) -> Option<Duration> {
        if self.is_complete() {
            return None;
        }
        // Add a second, because times are in whole seconds.
        let seconds = self.seconds_left()?.max(0) + 1;
        Some(Duration::from_secs(u64::try_from(seconds).ok()?))
    }

    /// Returns the status to store.
    pub(super) fn finish(mut self) -> Value {
        self.status["conditions"] = json!(self.conditions);
        self.status
    }

    /// Sets a condition, unless it already has this status and reason.
    fn set(&mut self, condition_type: &str, status: &str, reason: &str, message: &str) {
        let before = find(&self.conditions, condition_type);
        if before.is_none_or(|before| before["status"] != status || before["reason"] != reason) {
            self.put(condition_type, status, reason, message);
        }
    }

    fn put(&mut self, condition_type: &str, status: &str, reason: &str, message: &str) {
        let before = find(&self.conditions, condition_type).filter(|before| before["status"] == status);
        let since = before.map_or_else(|| json!(self.now), |before| before["lastTransitionTime"].clone());
        remove(&mut self.conditions, condition_type);
        self.conditions.push(json!({
            "type": condition_type,
            "status": status,
            "lastUpdateTime": self.now,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        }));
    }
}

/// Returns `progressDeadlineSeconds`, unless it is unlimited.
fn deadline(deployment: &Value) -> Option<i64> {
    deployment["spec"]["progressDeadlineSeconds"].as_i64().filter(|seconds| *seconds != i64::from(i32::MAX))
}

fn count(replica_set: &Value, field: &str) -> i64 {
    replica_set["status"][field].as_i64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn deployment(status: Value) -> Value {
        json!({
            "metadata": {"name": "web", "generation": 2},
            "spec": {"replicas": 3, "progressDeadlineSeconds": 60, "strategy": {"type": "Recreate"}},
            "status": status,
        })
    }

    fn replica_set(replicas: i64, available: i64) -> Arc<Value> {
        Arc::new(json!({
            "metadata": {"name": "web-1"},
            "spec": {"replicas": replicas},
            "status": {"replicas": replicas, "readyReplicas": available, "availableReplicas": available},
        }))
    }

    fn judged(deployment: &Value, new: &Arc<Value>) -> (Value, Option<Duration>) {
        let mut draft = Draft::of(deployment, NOW);
        draft.count(std::slice::from_ref(new), Some(new));
        draft.judge_progress(std::slice::from_ref(new), Some(new));
        let again = draft.look_again_in();
        (draft.finish(), again)
    }

    fn progress(reason: &str, status: &str, updated: &str) -> Value {
        json!({"type": "Progressing", "status": status, "reason": reason, "message": "",
               "lastUpdateTime": updated, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn reason_and_times(status: &Value) -> [String; 3] {
        let conditions = status["conditions"].as_array().unwrap();
        let progress = find(conditions, PROGRESSING).unwrap();
        ["reason", "lastUpdateTime", "lastTransitionTime"]
            .map(|field| progress[field].as_str().unwrap().to_owned())
    }

    #[test]
    fn complete_rollout_status_matches_real_cluster() {
        let begun = progress("NewReplicaSetCreated", "True", "2026-01-01T00:09:00Z");
        let (status, again) = judged(&deployment(json!({"conditions": [begun]})), &replica_set(3, 3));
        assert_eq!(again, None);
        assert_eq!(
            status,
            json!({
                "observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3,
                "availableReplicas": 3, "terminatingReplicas": 0,
                "conditions": [
                    {"type": "Available", "status": "True", "lastUpdateTime": NOW, "lastTransitionTime": NOW,
                     "reason": "MinimumReplicasAvailable", "message": "Deployment has minimum availability."},
                    {"type": "Progressing", "status": "True", "lastUpdateTime": NOW,
                     "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "NewReplicaSetAvailable",
                     "message": "ReplicaSet \"web-1\" has successfully progressed."},
                ],
            })
        );
    }

    #[test]
    fn stalled_rollout_exceeds_deadline() {
        let old = progress("ReplicaSetUpdated", "True", "2026-01-01T00:08:59Z");
        let (status, again) = judged(&deployment(json!({"conditions": [old]})), &replica_set(3, 1));
        let [reason, updated, since] = reason_and_times(&status);
        assert_eq!((reason.as_str(), updated.as_str()), ("ReplicaSetUpdated", NOW));
        assert_eq!(since, "2026-01-01T00:00:00Z");
        assert_eq!(again, Some(Duration::from_secs(61)));

        let counts = json!({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 1, "availableReplicas": 1, "conditions": [old]});
        let (status, again) = judged(&deployment(counts.clone()), &replica_set(3, 1));
        assert_eq!(reason_and_times(&status)[0], TIMED_OUT);
        assert_eq!(again, None);

        let mut in_time = counts;
        in_time["conditions"] = json!([progress("ReplicaSetUpdated", "True", "2026-01-01T00:09:30Z")]);
        let (status, again) = judged(&deployment(in_time), &replica_set(3, 1));
        assert_eq!(reason_and_times(&status)[0], "ReplicaSetUpdated");
        assert_eq!(again, Some(Duration::from_secs(31)));
    }

    #[test]
    fn pause_stops_progress_deadline() {
        let mut paused = deployment(json!({"conditions": [progress("ReplicaSetUpdated", "True", NOW)]}));
        paused["spec"]["paused"] = json!(true);
        let mut draft = Draft::of(&paused, NOW);
        draft.note_pause();
        let status = draft.finish();
        assert_eq!(reason_and_times(&status)[0], PAUSED);
        let resumed = deployment(status);
        let mut draft = Draft::of(&resumed, NOW);
        draft.note_pause();
        assert_eq!(reason_and_times(&draft.finish())[0], "DeploymentResumed");
    }
}
