//! Waits until the undo has taken effect: the pods of removed objects are gone, and restored workloads have rolled
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use tokio::time::{Instant, sleep};

use super::{ClusterChange, UndoOutcome, Undone};
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::observe::rollout_wait::{Reasons, workloads};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_sidecar::observed::controller;

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(500);
/// Minimum time between two messages about what is still awaited; a message is repeated only if it has changed.
const SAID: Duration = Duration::from_secs(5);
/// Maximum number of pods to name; the others are only counted.
const NAMED: usize = 3;
/// Kinds of objects that have pods. Objects of other kinds are gone as soon as they are removed.
const WITH_PODS: [&str; 6] = ["Pod", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet", "Job"];

/// Returns true if changes to objects of this kind affect pods, some time later.
pub(crate) fn has_pods(kind: &str) -> bool {
    WITH_PODS.contains(&kind)
}

/// Label with the hash of a Deployment's pod template.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Effects that were still missing at the end of the wait for them.
#[derive(Debug)]
pub struct NotYet {
    what: String,
    /// Length of the wait; `None` if it was interrupted.
    after: Option<Duration>,
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cluster is not yet as it was before the run, ")?;
        match self.after {
            Some(after) => write!(f, "{after:?} after the changes were undone: {}", self.what),
            None => write!(f, "and the wait was interrupted: {}", self.what),
        }
    }
}

/// Objects in one namespace whose effects are awaited, by kind and name, such as `Deployment web`.
#[derive(Debug, Default, PartialEq)]
struct Awaited {
    /// Objects that were removed.
    removed: BTreeSet<String>,
    /// Objects that were restored.
    restored: Vec<String>,
}

impl Awaited {
    /// Groups the undone changes by namespace, as far as they affect pods.
    fn of(undone: &[Undone]) -> BTreeMap<String, Self> {
        let mut awaited: BTreeMap<String, Self> = BTreeMap::new();
        for Undone { object, change, outcome, .. } in undone {
            let is_undone = matches!(outcome, UndoOutcome::Undone { .. } | UndoOutcome::Nothing(_));
            let Some(namespace) = object.namespace.clone().filter(|_| is_undone) else { continue };
            if has_pods(&object.kind) {
                let title = format!("{} {}", object.kind, object.name);
                let awaited = awaited.entry(namespace).or_default();
                match change {
                    ClusterChange::Create => drop(awaited.removed.insert(title)),
                    ClusterChange::Edit { .. } => awaited.restored.push(title),
                    ClusterChange::ShutDown | ClusterChange::Hold { .. } => {}
                }
            }
        }
        awaited
    }

    /// Describes what is still missing, and returns the longest grace period of the remaining pods. Returns `None` if
    /// nothing is missing. Leaves out pods with the UIDs `ending_before`.
    async fn pending(
        &self,
        caller: &Caller,
        ending_before: &BTreeSet<String>,
        reasons: &mut Reasons,
    ) -> Result<Option<(String, Duration)>> {
        let pods: Vec<Candidate> = caller.list("list pods", &caller.api(), &ListParams::default()).await?;
        let missing = match self.restored[..] {
            [] => None,
            _ => match workloads(caller).await?.missing_of(&self.restored) {
                Some((workload, missing)) => Some(reasons.explain(caller, workload, missing).await),
                None => None,
            },
        };
        let of_removed = |pod: &&Candidate| {
            self.removed.contains(&format!("Pod {}", pod.name_any()))
                || workload_of(*pod).is_some_and(|workload| self.removed.contains(&workload))
        };
        let of_restored = |pod: &&Candidate| {
            pod.metadata.deletion_timestamp.is_some()
                && pod.metadata.uid.as_ref().is_none_or(|uid| !ending_before.contains(uid))
                && workload_of(*pod).is_some_and(|workload| self.restored.contains(&workload))
        };
        let own: Vec<&Candidate> = pods.iter().filter(of_removed).collect();
        let replaced: Vec<&Candidate> = pods.iter().filter(of_restored).collect();
        let what = [in_words(&own, "of the run"), missing, in_words(&replaced, "being replaced")];
        let what: Vec<String> = what.into_iter().flatten().collect();
        let grace_s = |pod: &&Candidate| pod.metadata.deletion_grace_period_seconds;
        let longest_s = own.iter().chain(&replaced).filter_map(grace_s).max().unwrap_or(0);
        let grace = Duration::from_secs(longest_s.max(0).unsigned_abs());
        Ok((!what.is_empty()).then(|| (what.join("; "), grace)))
    }
}

/// Describes the pods as text; `None` if there are none.
fn in_words(pods: &[&Candidate], which: &str) -> Option<String> {
    let mut names: Vec<String> = pods.iter().take(NAMED).map(|pod| pod.name_any()).collect();
    if pods.len() > NAMED {
        names.push(format!("{} more", pods.len() - NAMED));
    }
    let (s, are) = if pods.len() == 1 { ("", "is") } else { ("s", "are") };
    let number = pods.len();
    (!names.is_empty()).then(|| format!("{number} pod{s} {which} {are} still there ({})", names.join(", ")))
}

/// Returns the workload that a pod belongs to, such as `Deployment web`, even if the workload and its ReplicaSet are
/// gone.
pub(crate) fn workload_of(pod: &impl ResourceExt) -> Option<String> {
    let controller = controller(pod)?;
    let (kind, name) = controller.split_once('/')?;
    // A Deployment names each of its ReplicaSets after itself and the hash of its template (getReplicaSetName in
    // pkg/controller/deployment/sync.go).
    let hash = pod.labels().get(TEMPLATE_HASH).filter(|_| kind == "ReplicaSet");
    let of_deployment = hash.and_then(|hash| name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    Some(of_deployment.map_or_else(|| format!("{kind} {name}"), |name| format!("Deployment {name}")))
}

/// Waits until the undo has taken effect. Passes descriptions of what is still missing to `tell`. `ending_before` has
/// the UIDs of pods that were terminating before the run, as far as they are known; the wait is not for them.
///
/// # Errors
/// Fails if the limit for a rollout, extended by the longest grace period of a pod, has passed, or the wait is
/// interrupted.
pub async fn await_effect(
    caller: &Caller,
    undone: &[Undone],
    ending_before: &BTreeSet<String>,
    tell: impl Fn(&str),
) -> Result<(), NotYet> {
    let began = Instant::now();
    let mut limit = caller.limits.rollout;
    let (mut last, mut told): (String, Option<(Instant, String)>) = Default::default();
    let (mut awaited, mut reasons) = (Awaited::of(undone), Reasons::begin(caller));
    while let Some((namespace, first)) = awaited.first_key_value() {
        let of_namespace = Caller { namespace: namespace.clone(), ..caller.clone() };
        let what = match first.pending(&of_namespace, ending_before, &mut reasons).await {
            Ok(None) => {
                awaited.pop_first();
                continue;
            }
            Ok(Some((what, grace))) => {
                limit = limit.max(caller.limits.rollout + grace);
                what
            }
            Err(CoordinatorError::Interrupted) => return Err(NotYet { what: last, after: None }),
            // The API server may be available again before the limit.
            Err(error) => error.to_string(),
        };
        let now = Instant::now();
        if now >= began + limit {
            return Err(NotYet { what, after: Some(limit) });
        }
        if told.as_ref().is_none_or(|(at, said)| *at + SAID <= now && *said != what) {
            tell(&what);
            told = Some((now, what.clone()));
        }
        last = what;
        if caller.stoppable(sleep(PERIOD)).await.is_err() {
            return Err(NotYet { what: last, after: None });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::TimeLimits;
    use crate::session::tests::api;
    use crate::undo::change_journal::ObjectRef;
    use rolldrop_kubernetes::warnings::Warnings;

    fn undone(kind: &str, name: &str, change: ClusterChange, outcome: UndoOutcome) -> Undone {
        let object = ObjectRef::new("apps/v1", kind, Some("shop".into()), name);
        Undone { object, change, outcome, unrecorded: None }
    }

    /// Returns the changes of a run that has created a Deployment and a StatefulSet, and changed another Deployment.
    fn changes() -> Vec<Undone> {
        let done = || UndoOutcome::Undone { others: Vec::new() };
        vec![
            undone("Deployment", "web", ClusterChange::Edit { edits: Vec::new() }, done()),
            undone("Deployment", "own", ClusterChange::Create, done()),
            undone("StatefulSet", "db", ClusterChange::Create, UndoOutcome::Nothing("already gone".into())),
            undone("Deployment", "left", ClusterChange::Create, UndoOutcome::LeftAlone("replaced".into())),
            undone("Service", "web", ClusterChange::Create, done()),
        ]
    }

    /// Returns a terminating pod of this controller, with a grace period of 40 s.
    fn ending(name: &str, kind: &str, controller: &str) -> Value {
        let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": controller, "uid": "u", "controller": true});
        json!({"metadata": {"name": name, "labels": {TEMPLATE_HASH: "7f9"}, "ownerReferences": [owner],
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 40}})
    }

    fn all_pods() -> Vec<Value> {
        let of = |name: &str| ending(&format!("{name}-1"), "ReplicaSet", &format!("{name}-7f9"));
        let more = (2..5).map(|n| ending(&format!("own-{n}"), "ReplicaSet", "own-7f9"));
        let mut pods =
            vec![ending("db-0", "StatefulSet", "db"), of("own"), of("web"), of("left"), of("others")];
        pods.extend(more);
        pods
    }

    /// Returns a caller for a cluster with these pods, and a Deployment that has `updated` of its two pods updated.
    fn caller(pods: Arc<Mutex<Vec<Value>>>, updated: Arc<AtomicUsize>) -> Caller {
        let (client, _) = api(move |_, path| {
            let items = match path.rsplit('/').next() {
                Some("pods") => pods.lock().unwrap().clone(),
                Some("deployments") => {
                    let n = updated.load(Ordering::SeqCst);
                    let status = json!({"observedGeneration": 3, "updatedReplicas": n, "replicas": 2, "availableReplicas": 2});
                    let spec = json!({"replicas": 2, "selector": {}, "template": {}});
                    vec![
                        json!({"metadata": {"name": "web", "generation": 3}, "spec": spec, "status": status}),
                    ]
                }
                _ => Vec::new(),
            };
            (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
        });
        let (warnings, limits, stop) = (Warnings::default(), TimeLimits::default(), CancellationToken::new());
        Caller { client, warnings, namespace: String::new(), limits, stop }
    }

    #[tokio::test(start_paused = true)]
    async fn undo_awaits_run_and_rollback_pods() {
        let (pods, updated) = (Arc::new(Mutex::new(all_pods())), Arc::new(AtomicUsize::new(1)));
        let mut stuck = ending("web-9", "ReplicaSet", "web-7f9");
        stuck["metadata"]["uid"] = "stuck".into();
        pods.lock().unwrap().insert(4, stuck);
        let before = BTreeSet::from(["stuck".to_owned()]);
        let told = Mutex::new(Vec::new());
        let tell = |what: &str| {
            let mut told = told.lock().unwrap();
            told.push(what.to_owned());
            // Each message triggers the next change.
            match told.len() {
                1 => pods.lock().unwrap().truncate(6),
                2 => drop(pods.lock().unwrap().drain(..2)),
                3 => updated.store(2, Ordering::SeqCst),
                _ => drop(pods.lock().unwrap().remove(0)),
            }
        };
        let waited =
            await_effect(&caller(Arc::clone(&pods), Arc::clone(&updated)), &changes(), &before, tell).await;
        assert!(waited.is_ok(), "{waited:?}");
        let rolling = "Deployment web: 1 of 2 pods updated";
        let replaced = "1 pod being replaced is still there (web-1)";
        assert_eq!(
            told.into_inner().unwrap(),
            [
                format!(
                    "5 pods of the run are still there (db-0, own-1, own-2, 2 more); {rolling}; {replaced}"
                ),
                format!("2 pods of the run are still there (db-0, own-1); {rolling}; {replaced}"),
                format!("{rolling}; {replaced}"),
                replaced.to_owned(),
            ]
        );
        assert_eq!(pods.lock().unwrap().len(), 3, "pods of others stay, and one that was terminating before");
    }

    #[tokio::test(start_paused = true)]
    async fn undo_names_pod_that_blocks_rollback() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true}]);
        let pod = json!({"metadata": {"name": "db-0", "ownerReferences": owner,
            "labels": {"controller-revision-hash": "db-2"}}});
        let set = json!({"metadata": {"name": "db", "generation": 3},
            "spec": {"replicas": 1, "serviceName": "db", "selector": {}, "template": {}},
            "status": {"observedGeneration": 3, "replicas": 1, "updateRevision": "db-1"}});
        let (client, _) = api(move |_, path| {
            let items = match path.rsplit('/').next() {
                Some("pods") => json!([pod]),
                Some("statefulsets") => json!([set]),
                _ => json!([]),
            };
            (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
        });
        let caller = Caller::in_shop(client, TimeLimits::default(), CancellationToken::new());
        let edited = ClusterChange::Edit { edits: Vec::new() };
        let restored = [undone("StatefulSet", "db", edited, UndoOutcome::Undone { others: Vec::new() })];
        let not_yet = await_effect(&caller, &restored, &BTreeSet::new(), |_| {}).await.unwrap_err();
        assert!(not_yet.to_string().ends_with("kubectl delete pod db-0 -n shop)"), "{not_yet}");
    }

    #[tokio::test(start_paused = true)]
    async fn undo_wait_is_limited_and_interruptible() {
        let caller = caller(Arc::new(Mutex::new(all_pods())), Arc::new(AtomicUsize::new(2)));
        let began = Instant::now();
        let not_yet = await_effect(&caller, &changes(), &BTreeSet::new(), |_| {}).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 340);
        let word = "the cluster is not yet as it was before the run, 340s after the changes were undone: 5 pods of the run are still there";
        assert!(not_yet.to_string().starts_with(word), "{not_yet}");
        let stop = caller.stop.clone();
        let not_yet =
            await_effect(&caller, &changes(), &BTreeSet::new(), |_| stop.cancel()).await.unwrap_err();
        let word = "the cluster is not yet as it was before the run, and the wait was interrupted: 5 pods of the run";
        assert!(not_yet.to_string().starts_with(word), "{not_yet}");
        let nothing = await_effect(&caller, &changes()[4..], &BTreeSet::new(), |_| {}).await;
        assert!(nothing.is_ok(), "a Service has no pods: {nothing:?}");
    }
}
