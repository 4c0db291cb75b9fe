//! Changes that an external command made to the namespace's workloads, and the wait until they have settled.
//!
//! Works by polling, because a workload's own status shows when its controller has finished.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use tokio::time::{Instant, sleep};

use super::Observer;
use super::sinks::template_digest;
use super::unready::{why_not_replaced, why_unready};
use super::waiting::Waiting;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_record::{EventKind, Mode};
use rolldrop_sidecar::observed::controller_ref;

/// Time between two polls.
const PERIOD: Duration = Duration::from_millis(250);
/// Time without a change after which workloads count as settled. A controller needs a moment to notice a change.
const STEADY: Duration = Duration::from_secs(1);

/// Snapshot of a namespace's workloads, by kind and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workloads(BTreeMap<String, WorkloadState>);

#[derive(Clone, Debug)]
struct WorkloadState {
    generation: i64,
    /// Requested number of pods.
    replicas: i32,
    /// Digest of the workload's pod template; see [`template_digest`].
    template: String,
    /// Description of what is missing; `None` when everything is as requested.
    missing: Option<String>,
}

impl WorkloadState {
    /// Returns a workload with its title. `have` lists pod counts, each with a description and the number that the
    /// count has to reach.
    fn new(
        kind: &str,
        meta: &ObjectMeta,
        observed: Option<i64>,
        replicas: i32,
        template: &PodTemplateSpec,
        have: &[(&str, Option<i32>, i32)],
    ) -> (String, Self) {
        let generation = meta.generation.unwrap_or(0);
        let missing = if observed.unwrap_or(0) < generation {
            Some("its controller has not seen the change yet".to_owned())
        } else {
            have.iter()
                .find(|(_, count, wanted)| count.unwrap_or(0) != *wanted)
                .map(|(what, count, wanted)| format!("{} of {wanted} {what}", count.unwrap_or(0)))
        };
        let title = format!("{kind} {}", meta.name.as_deref().unwrap_or_default());
        (title, Self { generation, replicas, template: template_digest(Some(template)), missing })
    }
}

impl Workloads {
    /// Returns the first incomplete one of these workloads, and what it lacks; `None` if none is known to lack anything.
    pub(crate) fn missing_of<'a>(&'a self, titles: &'a [String]) -> Option<(&'a str, &'a str)> {
        titles.iter().find_map(|title| Some((title.as_str(), self.0.get(title)?.missing.as_deref()?)))
    }

    /// Returns a workload that has not settled, and what it lacks. Ignores workloads that had not settled before and
    /// have not changed since.
    fn unsettled_since(&self, before: &Workloads) -> Option<(&str, &str)> {
        let mut unsettled = self.0.iter().filter_map(|(name, now)| {
            let counts = match before.0.get(name) {
                Some(then) => then.missing.is_none() || then.generation != now.generation,
                None => true,
            };
            now.missing.as_deref().filter(|_| counts).map(|missing| (name.as_str(), missing))
        });
        unsettled.next()
    }

    /// Returns true if a workload's pod template or number of pods has changed. A new generation alone is no evidence,
    /// because it may be due to the annotation with which another run marks the workload as in use.
    fn is_changed_since(&self, before: &Workloads) -> bool {
        let is_same =
            |((name, now), (name_then, then)): ((&String, &WorkloadState), (&String, &WorkloadState))| {
                let makes_the_same = now.template == then.template && now.replicas == then.replicas;
                name == name_then && (now.generation == then.generation || makes_the_same)
            };
        self.0.len() != before.0.len() || !self.0.iter().zip(&before.0).all(is_same)
    }

    /// Returns the analysis' mode for the terminations that the changes caused.
    fn mode_since(&self, before: &Workloads) -> Mode {
        let pairs = || self.0.iter().filter_map(|(name, now)| Some((before.0.get(name)?, now)));
        if pairs().any(|(then, now)| then.template != now.template) {
            Mode::Rollout
        } else if pairs().any(|(then, now)| then.replicas > now.replicas) {
            Mode::ScaleDown
        } else {
            Mode::Other
        }
    }
}

/// Waits until the workloads have settled after changes since `before`, and no pod is terminating. Records the mode
/// of the terminations. `disruption` is the scenario's disruption that started the changes.
///
/// # Errors
/// Fails if the run is stopped, or if the API server does not respond.
pub(crate) async fn await_rollout(
    caller: &Caller,
    observer: &Observer,
    before: &Workloads,
    disruption: Option<u32>,
) -> Result<()> {
    let (now, missing) = until_settled(caller, observer, before).await?;
    let mode = now.mode_since(before);
    let limit = caller.limits.rollout;
    let unsettled = missing.map(|missing| format!("{missing}, after {limit:?}"));
    observer.recorder().record(EventKind::CommandSettled { mode, disruption, unsettled });
    Ok(())
}

/// Waits until the workloads are complete again after a round, and no pod is terminating. `before` is the
/// workloads' state before the round.
///
/// # Errors
/// Fails if the run is stopped.
pub(crate) async fn await_recovery(caller: &Caller, observer: &Observer, before: &Workloads) -> Result<()> {
    if let (_, Some(missing)) = until_settled(caller, observer, before).await? {
        let limit = caller.limits.rollout;
        observer
            .recorder()
            .warn(format!("a round had not settled {limit:?} after its last action: {missing}"));
    }
    Ok(())
}

/// Waits until the workloads have settled after changes since `before`, and no pod is terminating. Returns the
/// workloads' final state, and what is missing if the limit has passed.
pub(crate) async fn until_settled(
    caller: &Caller,
    observer: &Observer,
    before: &Workloads,
) -> Result<(Workloads, Option<String>)> {
    let limit = caller.limits.rollout;
    let (deadline, mut reasons) = (Instant::now() + limit, Reasons::begin(caller));
    let mut settled_since = None;
    let mut last = before.clone();
    loop {
        let now = match workloads(caller).await {
            Ok(now) => now,
            // The wait continues, as the load does.
            Err(error @ (CoordinatorError::Api { .. } | CoordinatorError::Timeout { .. })) => {
                settled_since = None;
                if Instant::now() >= deadline {
                    return Ok((last, Some(error.to_string())));
                }
                caller.stoppable(sleep(PERIOD)).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let missing = match now.unsettled_since(before) {
            Some((workload, what)) => Some(reasons.explain(caller, workload, what).await),
            None => {
                let first = observer.views().read(|view| view.terminating().next().map(|p| p.name.clone()));
                first.map(|pod| format!("pod {pod} is terminating"))
            }
        };
        observer.viewer().unsettled(missing.as_deref());
        let at = Instant::now();
        if missing.is_some() {
            settled_since = None;
        }
        let is_steady = missing.is_none() && *settled_since.get_or_insert(at) + STEADY <= at;
        if is_steady || at >= deadline {
            return Ok((now, missing));
        }
        last = now;
        caller.stoppable(sleep(PERIOD)).await?;
    }
}

/// Explains during a wait what a workload lacks. Looks the reason up only now and then.
pub(crate) struct Reasons {
    waiting: Waiting,
    /// A workload and the reason last found for it.
    because: Option<(String, String)>,
}

impl Reasons {
    pub(crate) fn begin(caller: &Caller) -> Self {
        Self { waiting: Waiting::begin(caller, caller.limits.rollout), because: None }
    }

    /// Adds the reason, if it is known, to what a workload, such as `Deployment web`, lacks.
    pub(crate) async fn explain(&mut self, caller: &Caller, workload: &str, missing: &str) -> String {
        if self.waiting.wants_reason() {
            // Boxed, because this large future would be part of each disruption's.
            let why = Box::pin(why_incomplete(caller, workload)).await;
            self.because = why.map(|why| (workload.to_owned(), why));
        }
        match &self.because {
            Some((of, why)) if of == workload => format!("{workload}: {missing} ({why})"),
            _ => format!("{workload}: {missing}"),
        }
    }
}

/// Returns the reason that a workload, such as `Deployment web`, does not have its pods, as far as the run may read it.
async fn why_incomplete(caller: &Caller, workload: &str) -> Option<String> {
    let (kind, name) = workload.split_once(' ')?;
    if kind == "StatefulSet"
        && let Some(why) = why_not_replaced(caller, name).await
    {
        return Some(why);
    }
    let title = |owner: &OwnerReference| format!("{} {}", owner.kind, owner.name);
    // A Deployment owns its pods through ReplicaSets.
    let of_set = |set: ReplicaSet| {
        let is_own = title(controller_ref(&set)?) == workload;
        set.metadata.uid.zip(set.metadata.name).filter(|_| is_own)
    };
    let (sets, names): (BTreeSet<String>, BTreeSet<String>) =
        caller.list_kind_as(of_set).await.ok()?.into_iter().flatten().unzip();
    let is_own = |pod: &Pod| {
        controller_ref(pod).is_some_and(|owner| title(owner) == workload || sets.contains(&owner.uid))
    };
    why_unready(caller, None, is_own, |maker| maker == name || names.contains(maker)).await
}

/// Waits until others have changed a workload and the change has settled.
pub(crate) async fn until_rolled_out(caller: &Caller, observer: &Observer) {
    let mut before = None;
    loop {
        // An API server that does not respond now may respond later; the end of the load ends the wait.
        if let Ok(now) = workloads(caller).await {
            let before: &Workloads = before.get_or_insert_with(|| now.clone());
            if now.is_changed_since(before)
                && matches!(until_settled(caller, observer, before).await, Ok((_, None)))
            {
                return;
            }
        }
        sleep(PERIOD).await;
    }
}

/// Returns the current state of the workloads. Leaves out kinds that the cluster does not have or does not let the run
/// list.
///
/// # Errors
/// Fails if the API server does not respond.
pub(crate) async fn workloads(caller: &Caller) -> Result<Workloads> {
    let of_deployment = |deployment: Deployment| {
        let (spec, status) = (deployment.spec?, deployment.status.unwrap_or_default());
        let (meta, replicas) = (&deployment.metadata, spec.replicas.unwrap_or(1));
        let have = [
            ("pods updated", status.updated_replicas, replicas),
            ("pods in total", status.replicas, replicas),
            ("pods available", status.available_replicas, replicas),
        ];
        let observed = status.observed_generation;
        Some(WorkloadState::new("Deployment", meta, observed, replicas, &spec.template, &have))
    };
    let deployments = caller.list_kind_as(of_deployment).await?;
    let stateful_sets = caller.list_kind_as(of_stateful_set).await?;
    let daemon_sets = caller.list_kind_as(of_daemon_set).await?;
    Ok(Workloads(deployments.into_iter().chain(stateful_sets).chain(daemon_sets).flatten().collect()))
}

fn of_stateful_set(set: StatefulSet) -> Option<(String, WorkloadState)> {
    let (spec, status) = (set.spec?, set.status?);
    let (meta, replicas) = (&set.metadata, spec.replicas.unwrap_or(1));
    // Pods below the partition are not meant to be replaced; with OnDelete, no pods are.
    let strategy = spec.update_strategy.unwrap_or_default();
    let held_back = match strategy.type_.as_deref() {
        Some("OnDelete") => replicas,
        _ => strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or(0),
    };
    let wanted = (replicas - held_back).max(0);
    let updated = status.updated_replicas.map(|updated| updated.min(wanted));
    let have = [("pods ready", status.ready_replicas, replicas), ("pods updated", updated, wanted)];
    let observed = status.observed_generation;
    Some(WorkloadState::new("StatefulSet", meta, observed, replicas, &spec.template, &have))
}

fn of_daemon_set(set: DaemonSet) -> Option<(String, WorkloadState)> {
    let (spec, status) = (set.spec?, set.status?);
    let (meta, wanted) = (&set.metadata, status.desired_number_scheduled);
    let have = [
        ("pods updated", status.updated_number_scheduled, wanted),
        ("pods available", status.number_available, wanted),
    ];
    let is_on_delete =
        spec.update_strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete"));
    let have = if is_on_delete { &have[1..] } else { &have[..] };
    let observed = status.observed_generation;
    Some(WorkloadState::new("DaemonSet", meta, observed, wanted, &spec.template, have))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn workload(generation: i64, observed: i64, replicas: i32, updated: i32, image: &str) -> WorkloadState {
        let template = json!({"spec": {"containers": [{"name": "app", "image": image}]}});
        let have = [("pods updated", Some(updated), replicas)];
        let template: PodTemplateSpec = serde_json::from_value(template).unwrap();
        let meta = ObjectMeta { generation: Some(generation), ..ObjectMeta::default() };
        WorkloadState::new("Deployment", &meta, Some(observed), replicas, &template, &have).1
    }

    fn workloads(all: &[(&str, WorkloadState)]) -> Workloads {
        Workloads(all.iter().map(|(name, workload)| ((*name).to_owned(), workload.clone())).collect())
    }

    #[test]
    fn only_changed_workloads_must_settle() {
        let before = workloads(&[("web", workload(1, 1, 3, 3, "a")), ("broken", workload(1, 1, 3, 0, "a"))]);
        let broken = ("broken", workload(1, 1, 3, 0, "a"));
        let unsettled = |web: WorkloadState| {
            let now = workloads(&[("web", web), broken.clone()]);
            now.unsettled_since(&before).map(|(workload, what)| format!("{workload}: {what}"))
        };
        assert_eq!(unsettled(workload(1, 1, 3, 3, "a")), None);
        let unseen = Some("web: its controller has not seen the change yet".to_owned());
        assert_eq!(unsettled(workload(2, 1, 3, 3, "b")), unseen);
        assert_eq!(unsettled(workload(2, 2, 3, 1, "b")).unwrap(), "web: 1 of 3 pods updated");
        assert_eq!(unsettled(workload(2, 2, 3, 3, "b")), None);
        let changed = workloads(&[("broken", workload(2, 2, 3, 0, "b"))]);
        assert!(changed.unsettled_since(&before).is_some());
    }

    #[test]
    fn wait_ignores_held_back_pods() {
        let missing = |replicas: i32, strategy: Value, updated: i32| {
            let set = json!({
                "metadata": {"name": "web", "generation": 2},
                "spec": {
                    "replicas": replicas, "serviceName": "web", "selector": {}, "template": {},
                    "updateStrategy": strategy,
                },
                "status": {
                    "observedGeneration": 2, "replicas": replicas, "readyReplicas": replicas,
                    "updatedReplicas": updated,
                },
            });
            of_stateful_set(serde_json::from_value(set).unwrap()).unwrap().1.missing
        };
        let partition =
            |partition: i32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
        assert_eq!(missing(3, partition(0), 2).unwrap(), "2 of 3 pods updated");
        assert_eq!(missing(3, partition(1), 1).unwrap(), "1 of 2 pods updated");
        assert_eq!(missing(3, partition(1), 2), None);
        // There was nothing to change.
        assert_eq!(missing(3, partition(1), 3), None);
        assert_eq!(missing(3, partition(9), 0), None);
        assert_eq!(missing(3, json!({"type": "OnDelete"}), 0), None);

        let on_nodes = |strategy: &str, updated: i32| {
            let set = json!({
                "metadata": {"name": "agent", "generation": 2},
                "spec": {"selector": {}, "template": {}, "updateStrategy": {"type": strategy}},
                "status": {
                    "observedGeneration": 2, "desiredNumberScheduled": 2, "currentNumberScheduled": 2,
                    "numberMisscheduled": 0, "numberReady": 2, "numberAvailable": 2,
                    "updatedNumberScheduled": updated,
                },
            });
            of_daemon_set(serde_json::from_value(set).unwrap()).unwrap().1.missing
        };
        assert_eq!(on_nodes("RollingUpdate", 1).unwrap(), "1 of 2 pods updated");
        assert_eq!(on_nodes("OnDelete", 0), None);
    }

    #[test]
    fn workload_annotation_does_not_count_as_rollout() {
        let before = workloads(&[("web", workload(1, 1, 3, 3, "a"))]);
        let is_changed = |web: WorkloadState| workloads(&[("web", web)]).is_changed_since(&before);
        assert!(!is_changed(workload(2, 2, 3, 3, "a")), "a new generation alone");
        assert!(is_changed(workload(2, 2, 3, 3, "b")) && is_changed(workload(2, 2, 4, 4, "a")));
        assert!(workloads(&[]).is_changed_since(&before));
    }

    #[test]
    fn mode_follows_workload_change() {
        let before = workloads(&[("web", workload(1, 1, 3, 3, "a"))]);
        let mode = |web: WorkloadState| workloads(&[("web", web)]).mode_since(&before);
        assert_eq!(mode(workload(2, 2, 3, 3, "b")), Mode::Rollout);
        assert_eq!(mode(workload(2, 2, 1, 1, "a")), Mode::ScaleDown);
        assert_eq!(mode(workload(1, 1, 3, 3, "a")), Mode::Other);
    }
}
