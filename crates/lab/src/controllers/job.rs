//! Runs Jobs to completion, and removes them when their time is over.
//!
//! After pkg/controller/job and pkg/controller/ttlafterfinished: a Job first gets the condition
//! `SuccessCriteriaMet` or `FailureTarget`, and `Complete` or `Failed` when its last pod has ended.
//! Failure policies per pod or index and success policies are refused when a Job is created.

mod indexes;
mod ledger;
mod pods;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::claim::claim;
use super::client_rate::ClientRate;
use super::worker::{self, BACK_OFF, Outcome};
use super::{
    Key, condition, controller_key, controller_of, follow, is_active, is_being_deleted, is_ready,
    is_terminal, key,
};
use crate::Shared;
use crate::conditions::{self, unix_seconds};
use crate::registry::{DeleteOptions, EventType, Part, WatchEventType};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::Status;
use ledger::Ledger;
use verdict::{End, Verdict};

const COMPONENT: &str = "job-controller";

/// The most pods that one look at a Job creates or deletes (`MaxPodCreateDeletePerSync`).
const BURST: usize = 500;

/// The longest pause after a failure (`MaxJobPodFailureBackOff`).
const MAX_POD_FAILURE_BACK_OFF: Duration = Duration::from_secs(600);

/// Ledgers by the Jobs' uids.
type Ledgers = Mutex<BTreeMap<String, Ledger>>;

fn lock(ledgers: &Ledgers) -> MutexGuard<'_, BTreeMap<String, Ledger>> {
    ledgers.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) async fn run(shared: Shared) {
    let rate = ClientRate::of(&shared.config);
    let ledgers = Ledgers::default();
    let events = follow(&shared.registry, &[Resource::Jobs, Resource::Pods]);
    let named = |(resource, event): super::Observed| {
        let gone = event.event_type == WatchEventType::Deleted;
        if resource == Resource::Jobs {
            if gone {
                lock(&ledgers).remove(event.object["metadata"]["uid"].as_str().unwrap_or_default());
                return Vec::new();
            }
            return vec![key(&event.object)];
        }
        let Some(job) = controller_key(&event.object, Resource::Jobs) else { return Vec::new() };
        if gone {
            let owner = controller_of(&event.object).and_then(|owner| owner["uid"].as_str());
            let uid = owner.unwrap_or_default().to_owned();
            // A Job that is gone does not count any more.
            let found = shared.registry.get(Resource::Jobs, &job.0, &job.1);
            if found.is_ok_and(|job| job["metadata"]["uid"] == *uid) {
                lock(&ledgers).entry(uid).or_default().keep(Arc::clone(&event.object));
            }
        }
        vec![job]
    };
    worker::run(events, BACK_OFF, named, |job| {
        let (shared, rate, ledgers) = (shared.clone(), rate.clone(), &ledgers);
        async move { reconcile(&shared, &rate, ledgers, &job).await }
    })
    .await;
}

async fn reconcile(
    shared: &Shared,
    rate: &ClientRate,
    ledgers: &Ledgers,
    (namespace, name): &Key,
) -> Outcome {
    let Ok(job) = shared.registry.get(Resource::Jobs, namespace, name) else { return Ok(None) };
    if is_being_deleted(&job) {
        return Ok(None);
    }
    if let Some(finished) = finished_at(&job) {
        return expire(shared, &job, finished);
    }
    let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let mut ledger = lock(ledgers).remove(&uid).unwrap_or_default();
    let outcome = Sync::new(shared, rate, &job, &mut ledger)?.run().await;
    // Pods may have gone meanwhile.
    let mut ledgers = lock(ledgers);
    if let Some(meanwhile) = ledgers.remove(&uid) {
        meanwhile.gone().for_each(|pod| ledger.keep(Arc::clone(pod)));
    }
    ledgers.insert(uid, ledger);
    outcome
}

/// When a Job ended, in Unix seconds; `None` when it has not.
fn finished_at(job: &Value) -> Option<i64> {
    let ends = ["Complete", "Failed"].map(|end| condition(job, end));
    let end = ends.into_iter().find(|end| end["status"] == "True")?;
    unix_seconds(&end["lastTransitionTime"])
}

/// Deletes a finished Job when its time is over.
fn expire(shared: &Shared, job: &Value, finished: i64) -> Outcome {
    let Some(lifetime) = job["spec"]["ttlSecondsAfterFinished"].as_i64() else { return Ok(None) };
    let now = unix_seconds(&json!(shared.registry.now())).unwrap_or(finished);
    if let Ok(left @ 1..) = u64::try_from(finished + lifetime - now) {
        return Ok(Some(Duration::from_secs(left)));
    }
    let (namespace, name) = key(job);
    let options = DeleteOptions::of(job["metadata"]["uid"].as_str().unwrap_or_default());
    match shared.registry.delete(Resource::Jobs, &namespace, &name, &options) {
        Err(status) if status.code() != 404 => Err(status),
        _ => Ok(None),
    }
}

/// One look at one Job.
struct Sync<'a> {
    shared: &'a Shared,
    rate: &'a ClientRate,
    job: &'a Value,
    ledger: &'a mut Ledger,
    pods: Vec<Arc<Value>>,
    /// The status to come.
    status: Value,
    succeeded: i64,
    failed: i64,
    completed: BTreeSet<i64>,
    now: String,
}

impl<'a> Sync<'a> {
    fn new(
        shared: &'a Shared,
        rate: &'a ClientRate,
        job: &'a Value,
        ledger: &'a mut Ledger,
    ) -> Result<Self, Status> {
        let selector = LabelSelector::from_object(&job["spec"]["selector"]);
        let pods = claim(&shared.registry, job, Resource::Pods, &selector, |_| true)?;
        let count = |field: &str| job["status"][field].as_i64().unwrap_or(0);
        Ok(Self {
            shared,
            rate,
            job,
            ledger,
            pods,
            status: job["status"].clone(),
            succeeded: count("succeeded"),
            failed: count("failed"),
            completed: indexes::parse(job["status"]["completedIndexes"].as_str().unwrap_or_default()),
            now: shared.registry.now(),
        })
    }

    fn spec(&self, field: &str) -> Option<i64> {
        self.job["spec"][field].as_i64()
    }

    fn is_indexed(&self) -> bool {
        self.job["spec"]["completionMode"] == "Indexed"
    }

    fn is_suspended(&self) -> bool {
        self.job["spec"]["suspend"] == true
    }

    async fn run(mut self) -> Outcome {
        self.count_finished();
        let mut again = None;
        if self.status["startTime"].is_null() && !self.is_suspended() {
            self.status["startTime"] = json!(self.now);
        }
        let deadline = self.deadline_in();
        let verdict = Verdict::before(self.job).or_else(|| self.failure(deadline));
        let managed = match &verdict {
            Some(_) => self.delete_all(Counts::Yes).await,
            None if self.is_suspended() => {
                self.suspend();
                self.delete_all(Counts::No).await
            }
            None => {
                self.resume();
                again = deadline.and_then(|left| u64::try_from(left).ok()).map(Duration::from_secs);
                self.manage().await.map(|pause| again = again.into_iter().chain(pause).min())
            }
        };
        self.reload_pods();
        let verdict = verdict.or_else(|| self.success());
        let finished = verdict.as_ref().and_then(|verdict| self.conclude(verdict));
        self.write()?;
        if let Some((event_type, reason, message)) = finished {
            self.shared.registry.record_event(self.job, event_type, &reason, &message, COMPONENT);
            // Its lifetime begins.
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

    /// Looks at the pods again; one that is gone counts in its last state.
    fn reload_pods(&mut self) {
        for pod in std::mem::take(&mut self.pods) {
            let (namespace, name) = key(&pod);
            match self.shared.registry.get(Resource::Pods, &namespace, &name) {
                Ok(pod) => self.pods.push(pod),
                Err(_) => self.ledger.keep(pod),
            }
        }
        self.count_finished();
    }

    /// Counts each pod that is over, once. A pod on its way out counts as failed, unless it has
    /// succeeded, or only those that have failed are to be replaced.
    fn count_finished(&mut self) {
        let waits_for_end = self.job["spec"]["podReplacementPolicy"] == "Failed";
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
                _ if !exists || (is_being_deleted(pod) && !waits_for_end) => true,
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

    /// The seconds that the Job may still be active.
    fn deadline_in(&self) -> Option<i64> {
        let limit = self.spec("activeDeadlineSeconds").filter(|_| !self.is_suspended())?;
        let started = unix_seconds(&self.status["startTime"])?;
        Some(started + limit - unix_seconds(&json!(self.now))?)
    }

    fn failure(&self, deadline: Option<i64>) -> Option<Verdict> {
        let limit = self.spec("backoffLimit").unwrap_or(6);
        if self.failed > limit || self.restarts_exceed(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(Verdict::new(End::Failed, "BackoffLimitExceeded", message));
        }
        deadline.filter(|left| *left <= 0)?;
        Some(Verdict::new(End::Failed, "DeadlineExceeded", "Job was active longer than specified deadline"))
    }

    /// With restarts in place, these count (`pastBackoffLimitOnFailure`).
    fn restarts_exceed(&self, limit: i64) -> bool {
        if self.job["spec"]["template"]["spec"]["restartPolicy"] != "OnFailure" {
            return false;
        }
        let of_pod = |pod: &Arc<Value>| -> i64 {
            let lists = ["initContainerStatuses", "containerStatuses"];
            let statuses = lists.iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
            statuses.map(|status| status["restartCount"].as_i64().unwrap_or(0)).sum()
        };
        let restarts: i64 = self.pods.iter().filter(|pod| !is_terminal(pod)).map(of_pod).sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn success(&self) -> Option<Verdict> {
        let enough = match self.spec("completions") {
            Some(completions) => self.succeeded >= completions,
            None => self.succeeded > 0,
        };
        let is_met = enough && self.active().is_empty() && !self.is_suspended();
        let message = "Reached expected number of succeeded pods";
        is_met.then(|| Verdict::new(End::Complete, "CompletionsReached", message))
    }

    /// Writes the verdict down, and the end with its event when no pod is left.
    fn conclude(&mut self, verdict: &Verdict) -> Option<(EventType, String, String)> {
        let (certain, end) = verdict.end.conditions();
        self.set_condition(certain, "True", &verdict.reason, &verdict.message);
        let open = self.pods.iter().any(|pod| self.ledger.is_open(pod));
        if open || self.terminating() > 0 {
            return None;
        }
        self.set_condition(end, "True", &verdict.reason, &verdict.message);
        if verdict.end == End::Failed {
            return Some((EventType::Warning, verdict.reason.clone(), verdict.message.clone()));
        }
        self.status["completionTime"] = json!(self.now);
        Some((EventType::Normal, "Completed".to_owned(), "Job completed".to_owned()))
    }

    fn suspend(&mut self) {
        if self.set_condition("Suspended", "True", "JobSuspended", "Job suspended") {
            self.record(EventType::Normal, "Suspended", "Job suspended");
            self.status.as_object_mut().map(|status| status.remove("startTime"));
        }
    }

    fn resume(&mut self) {
        let was_suspended = condition(self.job, "Suspended")["status"] == "True";
        if was_suspended && self.set_condition("Suspended", "False", "JobResumed", "Job resumed") {
            self.record(EventType::Normal, "Resumed", "Job resumed");
            self.status["startTime"] = json!(self.now);
        }
    }

    fn record(&self, event_type: EventType, reason: &str, message: &str) {
        self.shared.registry.record_event(self.job, event_type, reason, message, COMPONENT);
    }

    /// Sets a condition; whether that was news.
    fn set_condition(&mut self, condition_type: &str, status: &str, reason: &str, message: &str) -> bool {
        let mut object = json!({"status": self.status});
        if condition(&object, condition_type)["status"] == status {
            return false;
        }
        let condition = json!({
            "type": condition_type, "status": status, "reason": reason, "message": message,
            "lastProbeTime": self.now,
        });
        conditions::put(&mut object, condition, &self.now);
        self.status = object["status"].take();
        true
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
        if self.status == self.job["status"] {
            return Ok(());
        }
        let (namespace, name) = key(self.job);
        let status = self.status.clone();
        self.shared.registry.modify(Resource::Jobs, &namespace, &name, Part::Status, |job| {
            job["status"] = status;
        })?;
        Ok(())
    }

    /// Creates or deletes pods as far as their number is not right, and answers after which time
    /// the next may be created.
    async fn manage(&mut self) -> Result<Option<Duration>, Status> {
        let active = self.active();
        let parallelism = self.spec("parallelism").unwrap_or(1);
        let wanted = match self.spec("completions") {
            Some(completions) => parallelism.min(completions - self.succeeded),
            None if self.succeeded > 0 => i64::try_from(active.len()).unwrap_or(i64::MAX),
            None => parallelism,
        };
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let surplus = self.surplus(&active, wanted);
        if !surplus.is_empty() {
            return self.delete_pods(&surplus, Counts::No).await.map(|()| None);
        }
        let waits_for_end = self.job["spec"]["podReplacementPolicy"] == "Failed";
        let still_there = active.len() + if waits_for_end { self.terminating() } else { 0 };
        let missing = wanted.saturating_sub(still_there).min(BURST);
        if missing == 0 {
            return Ok(None);
        }
        let first = self.shared.config.controllers.job_pod_failure_back_off;
        let pause = self.ledger.pause(first, MAX_POD_FAILURE_BACK_OFF);
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
        let mut batch = 1;
        while !places.is_empty() {
            let now: Vec<_> = places.drain(..batch.min(places.len())).collect();
            let calls = now.into_iter().map(|index| pods::create(self.shared, self.rate, self.job, index));
            for created in futures::future::join_all(calls).await {
                self.pods.push(created?);
            }
            batch *= 2;
        }
        Ok(None)
    }

    /// The pods that are too many: of an index that another pod has, or beyond the wanted number,
    /// those that are not ready and the youngest first.
    fn surplus(&self, active: &[Arc<Value>], wanted: usize) -> Vec<Arc<Value>> {
        let mut order: Vec<_> = active.to_vec();
        order.sort_by_cached_key(|pod| {
            let created = pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
            (!is_ready(pod), created, key(pod).1)
        });
        let mut seen = BTreeSet::new();
        let completions = self.spec("completions").unwrap_or(i64::MAX);
        let (mut kept, mut surplus): (Vec<_>, Vec<_>) = order.into_iter().partition(|pod| {
            let index = indexes::of(pod);
            !self.is_indexed() || index.is_some_and(|index| index < completions && seen.insert(index))
        });
        surplus.extend(kept.drain(wanted.min(kept.len())..));
        surplus.truncate(BURST);
        surplus
    }

    async fn delete_all(&mut self, counts: Counts) -> Result<(), Status> {
        let active = self.active();
        self.delete_pods(&active, counts).await
    }

    async fn delete_pods(&mut self, pods: &[Arc<Value>], counts: Counts) -> Result<(), Status> {
        if counts == Counts::No {
            pods.iter().for_each(|pod| self.ledger.close(pod));
        }
        let calls = pods.iter().map(|pod| pods::delete(self.shared, self.rate, self.job, pod));
        futures::future::join_all(calls).await.into_iter().collect()
    }
}

/// Whether a pod that is deleted counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

#[cfg(test)]
mod tests;
