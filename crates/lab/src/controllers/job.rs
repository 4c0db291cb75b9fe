//! Runs Jobs to completion, and removes them when their time to live expires.
//!
//! Based on pkg/controller/job and pkg/controller/ttlafterfinished: a Job first gets the `SuccessCriteriaMet` or
//! `FailureTarget` condition, and then `Complete` or `Failed` when its last pod has terminated. Success policies and
//! failure policies (per pod or per index) are stored but have no effect.

mod indexes;
mod job_pods;
mod ledger;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::claim::claim;
use super::pod_control::{BURST, PodControl};
use super::reconciler::{self, BACK_OFF, BackOff, ReconcileResult};
use crate::conditions::of as condition;
use crate::conditions::{self, unix_seconds};
use crate::object_fields::{
    self, ObjectKey, controller_key, controller_of, is_active, is_being_deleted, is_ready, is_terminal, key,
    uid,
};
use crate::registry::{DeleteOptions, EventType, ObservedEvent, WatchEventType, follow};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::shared::ClusterContext;
use crate::status::Status;
use crate::sync::lock;
use crate::value::{list, number};
use ledger::JobLedger;
use verdict::{JobEnd, JobVerdict};

const COMPONENT: &str = "job-controller";

/// Maximum back-off after a pod failure (`MaxJobPodFailureBackOff`).
const MAX_POD_FAILURE_BACK_OFF: Duration = Duration::from_secs(600);

/// Ledgers by Job uid.
type Ledgers = Mutex<BTreeMap<String, JobLedger>>;

pub(super) async fn run(shared: ClusterContext) {
    let control = PodControl::new(&shared, COMPONENT);
    let ledgers = Ledgers::default();
    let events = follow(&shared.registry, &[Resource::Jobs, Resource::Pods]);
    let named = |(resource, event): ObservedEvent| {
        let gone = event.event_type == WatchEventType::Deleted;
        if resource == Resource::Jobs {
            if gone {
                lock(&ledgers).remove(uid(&event.object));
                return Vec::new();
            }
            return vec![key(&event.object)];
        }
        let Some(job) = controller_key(&event.object, Resource::Jobs) else { return Vec::new() };
        if gone {
            let owner = controller_of(&event.object).and_then(|owner| owner["uid"].as_str());
            let uid = owner.unwrap_or_default().to_owned();
            // A Job that is gone no longer needs a ledger.
            let found = shared.registry.get(Resource::Jobs, &job.0, &job.1);
            if found.is_ok_and(|job| object_fields::uid(&job) == uid) {
                lock(&ledgers).entry(uid).or_default().keep(Arc::clone(&event.object));
            }
        }
        vec![job]
    };
    let (control, ledgers) = (&control, &ledgers);
    reconciler::run(events, BACK_OFF, named, |job| async move { reconcile(control, ledgers, &job).await })
        .await;
}

async fn reconcile(
    control: &PodControl,
    ledgers: &Ledgers,
    (namespace, name): &ObjectKey,
) -> ReconcileResult {
    let shared = &control.shared;
    let Ok(job) = shared.registry.get(Resource::Jobs, namespace, name) else { return Ok(None) };
    if is_being_deleted(&job) {
        return Ok(None);
    }
    if let Some(finished) = finished_at(&job) {
        return expire(shared, &job, finished);
    }
    let uid = uid(&job).to_owned();
    let mut ledger = lock(ledgers).remove(&uid).unwrap_or_default();
    let outcome = Sync::new(control, &job, &mut ledger)?.run().await;
    // Pods may have been removed in the meantime.
    let mut ledgers = lock(ledgers);
    if let Some(meanwhile) = ledgers.remove(&uid) {
        meanwhile.gone().for_each(|pod| ledger.keep(Arc::clone(pod)));
    }
    ledgers.insert(uid, ledger);
    outcome
}

/// Returns the time when a Job finished, in Unix seconds, or `None` if it has not.
fn finished_at(job: &Value) -> Option<i64> {
    let ends = ["Complete", "Failed"].map(|end| condition(job, end));
    let end = ends.into_iter().find(|end| end["status"] == "True")?;
    unix_seconds(&end["lastTransitionTime"])
}

/// Deletes a finished Job once its time to live has expired.
fn expire(shared: &ClusterContext, job: &Value, finished: i64) -> ReconcileResult {
    let Some(lifetime) = job["spec"]["ttlSecondsAfterFinished"].as_i64() else { return Ok(None) };
    if let Ok(left @ 1..) = u64::try_from(finished + lifetime - shared.registry.now_seconds()) {
        return Ok(Some(Duration::from_secs(left)));
    }
    let (namespace, name) = key(job);
    let options = DeleteOptions::of(uid(job));
    match shared.registry.delete(Resource::Jobs, &namespace, &name, &options) {
        Err(status) if status.code() != 404 => Err(status),
        _ => Ok(None),
    }
}

/// State of one pass over a Job.
struct Sync<'a> {
    control: &'a PodControl,
    job: &'a Arc<Value>,
    ledger: &'a mut JobLedger,
    pods: Vec<Arc<Value>>,
    /// New status.
    status: Value,
    succeeded: i64,
    failed: i64,
    completed: BTreeSet<i64>,
    now: String,
}

impl<'a> Sync<'a> {
    fn new(control: &'a PodControl, job: &'a Arc<Value>, ledger: &'a mut JobLedger) -> Result<Self, Status> {
        let registry = &control.shared.registry;
        let selector = LabelSelector::from_object(&job["spec"]["selector"]);
        let pods = claim(registry, job, Resource::Pods, &selector, |_| true)?;
        let count = |field: &str| number(&job["status"][field]);
        Ok(Self {
            control,
            job,
            ledger,
            pods,
            status: job["status"].clone(),
            succeeded: count("succeeded"),
            failed: count("failed"),
            completed: indexes::parse(job["status"]["completedIndexes"].as_str().unwrap_or_default()),
            now: registry.now(),
        })
    }

    fn spec(&self, field: &str) -> Option<i64> {
        self.job["spec"][field].as_i64()
    }

    fn is_indexed(&self) -> bool {
        self.job["spec"]["completionMode"] == "Indexed"
    }

    async fn run(mut self) -> ReconcileResult {
        self.count_finished();
        let mut again = None;
        if self.status["startTime"].is_null() {
            self.status["startTime"] = json!(self.now);
        }
        let deadline = self.deadline_in();
        let verdict = JobVerdict::before(self.job).or_else(|| self.failure(deadline));
        let managed = match &verdict {
            Some(_) => self.delete_active().await,
            None => {
                again = deadline.and_then(|left| u64::try_from(left).ok()).map(Duration::from_secs);
                self.manage().await.map(|pause| again = again.into_iter().chain(pause).min())
            }
        };
        self.reload_pods();
        let verdict = verdict.or_else(|| self.success());
        let finished = verdict.as_ref().and_then(|verdict| self.conclude(verdict));
        self.write()?;
        if let Some((event_type, reason, message)) = finished {
            self.control.record(self.job, event_type, &reason, &message);
            // Run another pass, which starts the time to live.
            again = Some(Duration::ZERO);
        }
        managed.map(|()| again)
    }

    fn active(&self) -> Vec<Arc<Value>> {
        self.pods.iter().filter(|pod| is_active(pod)).cloned().collect()
    }

    fn terminating(&self) -> usize {
        self.pods.iter().filter(|pod| is_being_deleted(pod) && !is_terminal(pod)).count()
    }

    /// Reloads the pods. A pod that is gone is counted according to its last state.
    fn reload_pods(&mut self) {
        for pod in std::mem::take(&mut self.pods) {
            let (namespace, name) = key(&pod);
            match self.control.shared.registry.get(Resource::Pods, &namespace, &name) {
                Ok(pod) => self.pods.push(pod),
                Err(_) => self.ledger.keep(pod),
            }
        }
        self.count_finished();
    }

    /// Counts each finished pod once. A pod that is being deleted counts as failed, unless it has succeeded.
    fn count_finished(&mut self) {
        let gone: Vec<_> = self.ledger.gone().cloned().collect();
        let (mut succeeded, mut failed) = (0, 0);
        for (pod, exists) in
            gone.iter().map(|pod| (pod, false)).chain(self.pods.iter().map(|pod| (pod, true)))
        {
            if !self.ledger.is_open(pod) {
                continue;
            }
            let has_failed = match pod["status"]["phase"].as_str() {
                Some("Succeeded") => false,
                Some("Failed") => true,
                _ if !exists || is_being_deleted(pod) => true,
                _ => continue,
            };
            self.ledger.close(pod);
            let index = indexes::of(pod);
            if has_failed {
                failed += 1;
            } else if !self.is_indexed() || index.is_some_and(|index| self.completed.insert(index)) {
                succeeded += 1;
            }
        }
        self.ledger.note(succeeded, failed);
        self.succeeded += i64::try_from(succeeded).unwrap_or(i64::MAX);
        self.failed += i64::try_from(failed).unwrap_or(i64::MAX);
    }

    /// Returns the number of seconds that the Job may remain active.
    fn deadline_in(&self) -> Option<i64> {
        let limit = self.spec("activeDeadlineSeconds")?;
        let started = unix_seconds(&self.status["startTime"])?;
        Some(started + limit - unix_seconds(&json!(self.now))?)
    }

    fn failure(&self, deadline: Option<i64>) -> Option<JobVerdict> {
        let limit = self.spec("backoffLimit").unwrap_or(6);
        if self.failed > limit {
            let message = "Job has reached the specified backoff limit";
            return Some(JobVerdict::new(JobEnd::Failed, "BackoffLimitExceeded", message));
        }
        deadline.filter(|left| *left <= 0)?;
        Some(JobVerdict::new(
            JobEnd::Failed,
            "DeadlineExceeded",
            "Job was active longer than specified deadline",
        ))
    }

    fn success(&self) -> Option<JobVerdict> {
        let enough = match self.spec("completions") {
            Some(completions) => self.succeeded >= completions,
            None => self.succeeded > 0,
        };
        let is_met = enough && self.active().is_empty();
        let message = "Reached expected number of succeeded pods";
        is_met.then(|| JobVerdict::new(JobEnd::Complete, "CompletionsReached", message))
    }

    /// Records the verdict and, once no pods are left, the final condition. Returns the event for the latter.
    fn conclude(&mut self, verdict: &JobVerdict) -> Option<(EventType, String, String)> {
        let (certain, end) = verdict.end.conditions();
        self.set_condition(certain, &verdict.reason, &verdict.message);
        let open = self.pods.iter().any(|pod| self.ledger.is_open(pod));
        if open || self.terminating() > 0 {
            return None;
        }
        self.set_condition(end, &verdict.reason, &verdict.message);
        if verdict.end == JobEnd::Failed {
            return Some((EventType::Warning, verdict.reason.clone(), verdict.message.clone()));
        }
        self.status["completionTime"] = json!(self.now);
        Some((EventType::Normal, "Completed".to_owned(), "Job completed".to_owned()))
    }

    /// Sets a condition to true.
    fn set_condition(&mut self, condition_type: &str, reason: &str, message: &str) {
        let mut conditions = list(&self.status["conditions"]).to_vec();
        if conditions::find(&conditions, condition_type).is_some_and(|known| known["status"] == "True") {
            return;
        }
        let condition = json!({
            "type": condition_type, "status": "True", "reason": reason, "message": message,
            "lastProbeTime": self.now,
        });
        conditions::put_in(&mut conditions, condition, &self.now);
        self.status["conditions"] = json!(conditions);
    }

    fn write(&mut self) -> Result<(), Status> {
        let active = self.active();
        let ready = active.iter().filter(|pod| is_ready(pod)).count();
        let optional = [
            ("active", i64::try_from(active.len()).unwrap_or(i64::MAX)),
            ("succeeded", self.succeeded),
            ("failed", self.failed),
        ];
        for (field, count) in optional {
            match count {
                0 => drop(self.status.as_object_mut().map(|status| status.remove(field))),
                count => self.status[field] = json!(count),
            }
        }
        self.status["ready"] = json!(ready);
        self.status["terminating"] = json!(self.terminating());
        self.status["uncountedTerminatedPods"] = json!({});
        if self.is_indexed() && !self.completed.is_empty() {
            self.status["completedIndexes"] = json!(indexes::write(&self.completed));
        }
        let registry = &self.control.shared.registry;
        registry.set_status(Resource::Jobs, self.job, self.status.clone()).map(drop)
    }

    /// Creates missing pods, and returns the time until the next pod may be created.
    async fn manage(&mut self) -> Result<Option<Duration>, Status> {
        let active = self.active();
        let parallelism = self.spec("parallelism").unwrap_or(1);
        let wanted = match self.spec("completions") {
            Some(completions) => parallelism.min(completions - self.succeeded),
            None if self.succeeded > 0 => i64::try_from(active.len()).unwrap_or(i64::MAX),
            None => parallelism,
        };
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let missing = wanted.saturating_sub(active.len()).min(BURST);
        if missing == 0 {
            return Ok(None);
        }
        let first = self.control.shared.config.controllers.job_pod_failure_back_off;
        let pause = self.ledger.pause(BackOff { first, longest: MAX_POD_FAILURE_BACK_OFF });
        if !pause.is_zero() {
            return Ok(Some(pause));
        }
        let mut places: Vec<Option<i64>> = vec![None; missing];
        if self.is_indexed() {
            let taken: BTreeSet<_> = active.iter().filter_map(|pod| indexes::of(pod)).collect();
            let all = 0..self.spec("completions").unwrap_or(0);
            let open = all.filter(|index| !taken.contains(index) && !self.completed.contains(index));
            places = open.take(missing).map(Some).collect();
        }
        let new = places.into_iter().map(|index| job_pods::new(self.job, index)).collect();
        self.control.create(self.job, new, &mut self.pods).await?;
        Ok(None)
    }

    async fn delete_active(&self) -> Result<(), Status> {
        self.control.delete(self.job, &self.active()).await
    }
}

#[cfg(test)]
mod tests;
