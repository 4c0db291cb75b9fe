//! Maintains the status of PodDisruptionBudgets: how many pods are healthy, how many must be healthy, and how many may
//! be disrupted.
//!
//! Based on pkg/controller/disruption. [Evictions](crate::registry) are charged against the numbers that this
//! controller writes. A pod whose eviction was approved counts as already gone, but only until the deadline for its
//! deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::deployment::sizes::{PercentRounding, amount};
use super::reconciler::{self, BACK_OFF, ReconcileResult};
use crate::conditions::{self, unix_seconds};
use crate::object_fields::{ObjectKey, controller_of, is_being_deleted, is_ready, key, uid};
use crate::registry::{
    ObjectPart, ObservedEvent, Registry, WatchEventType, covers, follow, set_allowed_condition,
};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::value::{number, text};

/// Time limit for an approved eviction to result in a deletion (`DeletionTimeout`).
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) async fn run(shared: ClusterContext) {
    let followed =
        [Resource::PodDisruptionBudgets, Resource::Pods, Resource::ReplicaSets, Resource::Deployments];
    let events = follow(&shared.registry, &followed);
    let named = |(resource, event): ObservedEvent| {
        if resource == Resource::PodDisruptionBudgets {
            let gone = event.event_type == WatchEventType::Deleted;
            return if gone { Vec::new() } else { vec![key(&event.object)] };
        }
        // The pod's labels or its owner's size may have changed, so any budget may be affected.
        let namespace = key(&event.object).0;
        let budgets = shared.registry.all(Resource::PodDisruptionBudgets, Some(&namespace));
        budgets.iter().map(|budget| key(budget)).collect()
    };
    let shared = &shared;
    reconciler::run(events, BACK_OFF, named, |budget| async move { reconcile(shared, &budget) }).await;
}

fn reconcile(shared: &ClusterContext, (namespace, name): &ObjectKey) -> ReconcileResult {
    let registry = &shared.registry;
    let Ok(budget) = registry.get(Resource::PodDisruptionBudgets, namespace, name) else { return Ok(None) };
    let mut pods = registry.all(Resource::Pods, Some(namespace));
    pods.retain(|pod| covers(&budget, pod));
    let now = registry.now();
    let demand = demand(registry, &budget, &pods);
    let mut again = None;
    registry.change(Resource::PodDisruptionBudgets, &budget, ObjectPart::Status, |budget| match demand {
        Ok(demand) => again = fill_status(budget, &pods, demand, &now),
        Err(why) => fail_safe(budget, &why, &now),
    })?;
    Ok(again)
}

/// Number of expected pods, and the number that must be healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Demand {
    expected: i64,
    healthy: i64,
}

/// Computes a budget's demand (`getExpectedPodCount`), rounding percentages up.
fn demand(registry: &Registry, budget: &Value, pods: &[Arc<Value>]) -> Result<Demand, String> {
    let (min_available, max_unavailable) =
        (&budget["spec"]["minAvailable"], &budget["spec"]["maxUnavailable"]);
    if !max_unavailable.is_null() {
        let expected = expected_scale(registry, pods)?;
        let healthy = (expected - amount(max_unavailable, expected, PercentRounding::Up)).max(0);
        return Ok(Demand { expected, healthy });
    }
    if let Some(healthy) = min_available.as_i64() {
        return Ok(Demand { expected: i64::try_from(pods.len()).unwrap_or(i64::MAX), healthy });
    }
    let expected = if min_available.is_string() { expected_scale(registry, pods)? } else { 0 };
    Ok(Demand { expected, healthy: amount(min_available, expected, PercentRounding::Up) })
}

/// Returns the total number of pods that the controllers of these pods ask for. Pods without a controller do not
/// count.
fn expected_scale(registry: &Registry, pods: &[Arc<Value>]) -> Result<i64, String> {
    let mut scales = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller_of(pod) else { continue };
        let found = scale_of(registry, &key(pod).0, owner);
        let (uid, scale) =
            found.ok_or_else(|| match Resource::of_reference(owner).filter(|kind| !kind.has_scale()) {
                Some(kind) => format!("{} does not implement the scale subresource", kind.qualified()),
                None => format!("found no controllers for pod {:?}", key(pod).1),
            })?;
        scales.insert(uid, scale);
    }
    Ok(scales.values().sum())
}

/// Returns the uid and scale of the topmost controller that has a scale: for example, a Deployment, or a ReplicaSet
/// that does not belong to one.
fn scale_of(registry: &Registry, namespace: &str, owner: &Value) -> Option<(String, i64)> {
    let resource = Resource::of_reference(owner).filter(|resource| resource.has_scale())?;
    let object = registry.get(resource, namespace, text(&owner["name"])).ok()?;
    if object["metadata"]["uid"] != owner["uid"] {
        return None;
    }
    if let Some(above) = controller_of(&object).and_then(|above| scale_of(registry, namespace, above)) {
        return Some(above);
    }
    Some((uid(&object).to_owned(), number(&object["spec"]["replicas"])))
}

/// Writes the counts. Returns the time until the next approved eviction without a deletion expires.
fn fill_status(budget: &mut Value, pods: &[Arc<Value>], demand: Demand, now: &str) -> Option<Duration> {
    let mut disrupted = Map::new();
    let (mut healthy, mut again) = (0, None);
    for pod in pods.iter().filter(|pod| !is_being_deleted(pod)) {
        let (_, name) = key(pod);
        let approved = &budget["status"]["disruptedPods"][&name];
        if let Some(left) = time_left(approved, now) {
            again = Some(again.map_or(left, |other: Duration| other.min(left)));
            disrupted.insert(name, approved.clone());
        } else {
            healthy += i64::from(is_ready(pod));
        }
    }
    let allowed = if demand.expected > 0 { (healthy - demand.healthy).max(0) } else { 0 };
    let before = budget["status"].clone();
    let mut status = json!({
        "observedGeneration": budget["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": demand.healthy,
        "expectedPods": demand.expected,
        "conditions": before["conditions"].as_array().cloned().unwrap_or_default(),
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = Value::Object(disrupted);
    }
    budget["status"] = status;
    set_allowed_condition(budget, now);
    again
}

/// Returns the time left for an eviction approved at `since` to result in a deletion, or `None` if it has expired.
fn time_left(since: &Value, now: &str) -> Option<Duration> {
    let now = unix_seconds(&json!(now)).unwrap_or(0);
    let passed = u64::try_from(now - unix_seconds(since)?).unwrap_or(0);
    DELETION_TIMEOUT.checked_sub(Duration::from_secs(passed)).filter(|left| !left.is_zero())
}

/// Disallows all disruptions while the expected number of pods is unknown.
fn fail_safe(budget: &mut Value, why: &str, now: &str) {
    budget["status"]["disruptionsAllowed"] = json!(0);
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": budget["status"]["observedGeneration"],
        "reason": "SyncFailed",
        "message": why,
    });
    conditions::put(budget, condition, now);
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::replica_set;
    use super::super::tests::bench::Bench;
    use super::*;
    use crate::registry::WriteEffect;

    async fn bench_with(budget: Value) -> Bench {
        let bench = Bench::start(&[|shared| run(shared).boxed(), |shared| replica_set::run(shared).boxed()]);
        bench.create(
            Resource::ReplicaSets,
            json!({
                "metadata": {"name": "web"},
                "spec": {
                    "replicas": 3,
                    "selector": {"matchLabels": {"app": "web"}},
                    "template": {
                        "metadata": {"labels": {"app": "web"}},
                        "spec": {"containers": [{"name": "app", "image": "host", "command": ["true"]}]},
                    },
                },
            }),
        );
        let mut spec = budget;
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        bench.create(Resource::PodDisruptionBudgets, json!({"metadata": {"name": "web"}, "spec": spec}));
        bench.holds("three pods", |bench| !bench.run_nodes() && bench.live_pods().len() == 3).await;
        bench
    }

    /// Returns the counts: allowed, healthy, desired, expected.
    fn counts(bench: &Bench) -> [i64; 4] {
        let status = bench.get(Resource::PodDisruptionBudgets, "web")["status"].clone();
        ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"]
            .map(|field| status[field].as_i64().unwrap())
    }

    async fn counts_become(bench: &Bench, expected: [i64; 4]) {
        bench.holds(&format!("{expected:?}"), |bench| counts(bench) == expected).await;
    }

    #[tokio::test]
    async fn budget_accepts_number_or_percentage() {
        let cases = [
            (json!({"minAvailable": 2}), [1, 3, 2, 3]),
            (json!({"minAvailable": "50%"}), [1, 3, 2, 3]),
            (json!({"maxUnavailable": 1}), [1, 3, 2, 3]),
            (json!({"maxUnavailable": "50%"}), [2, 3, 1, 3]),
            (json!({"maxUnavailable": 0}), [0, 3, 3, 3]),
        ];
        for (spec, expected) in cases {
            counts_become(&bench_with(spec).await, expected).await;
        }
    }

    #[tokio::test]
    async fn budget_status_matches_real_cluster() {
        let bench = bench_with(json!({"minAvailable": 3})).await;
        counts_become(&bench, [0, 3, 3, 3]).await;
        let mut status = bench.get(Resource::PodDisruptionBudgets, "web")["status"].clone();
        status["conditions"][0].as_object_mut().unwrap().remove("lastTransitionTime");
        assert_eq!(
            status,
            json!({
                "observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 3, "desiredHealthy": 3,
                "expectedPods": 3,
                "conditions": [{
                    "type": "DisruptionAllowed", "status": "False", "observedGeneration": 1,
                    "reason": "InsufficientPods", "message": "",
                }],
            })
        );
    }

    #[tokio::test]
    async fn eviction_consumes_budget_until_pod_is_replaced() {
        let bench = bench_with(json!({"minAvailable": 2})).await;
        counts_become(&bench, [1, 3, 2, 3]).await;
        let pods = bench.live_pods();
        let evict = |n: usize| bench.registry().approve_eviction(&pods[n], WriteEffect::Stored);
        assert_eq!(bench.registry().approve_eviction(&pods[0], WriteEffect::DryRun), Ok(()));
        assert_eq!(evict(0), Ok(()));
        let refused = evict(1).unwrap_err();
        assert_eq!(refused.code(), 429);
        counts_become(&bench, [0, 2, 2, 3]).await;
        let name = key(&pods[0]).1;
        bench.registry().delete(Resource::Pods, "default", &name, &Default::default()).unwrap();
        bench.holds("the pod is replaced", |bench| !bench.run_nodes() && counts(bench) == [1, 3, 2, 3]).await;
        assert_eq!(evict(1), Ok(()));
    }

    #[tokio::test]
    async fn unhealthy_pod_eviction_consumes_no_budget() {
        let bench = bench_with(json!({"minAvailable": 2})).await;
        counts_become(&bench, [1, 3, 2, 3]).await;
        let name = key(&bench.live_pods()[0]).1;
        bench.set_ready(&name, false);
        counts_become(&bench, [0, 2, 2, 3]).await;
        let unhealthy = bench.get(Resource::Pods, &name);
        assert_eq!(bench.registry().approve_eviction(&unhealthy, WriteEffect::Stored), Ok(()));
        let second = bench.live_pods().into_iter().find(|pod| key(pod).1 != name).unwrap();
        bench.set_ready(&key(&second).1, false);
        counts_become(&bench, [0, 1, 2, 3]).await;
        assert_eq!(
            bench.registry().approve_eviction(&unhealthy, WriteEffect::Stored).unwrap_err().code(),
            429
        );
        bench.modify(Resource::PodDisruptionBudgets, "web", ObjectPart::Main, |budget| {
            budget["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        });
        assert_eq!(bench.registry().approve_eviction(&unhealthy, WriteEffect::Stored), Ok(()));
    }

    #[test]
    fn approved_eviction_counts_for_two_minutes() {
        let left = |now| time_left(&json!("2026-01-01T00:00:00Z"), now);
        assert_eq!(left("2026-01-01T00:01:59Z"), Some(Duration::from_secs(1)));
        assert_eq!(left("2026-01-01T00:02:00Z"), None);
    }

    #[tokio::test]
    async fn budget_detects_unscalable_owner() {
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true});
        let bench = bench_with(json!({"maxUnavailable": 1})).await;
        counts_become(&bench, [1, 3, 2, 3]).await;
        let labels = json!({"app": "web"});
        let app = json!({"name": "app", "image": "host", "command": ["true"]});
        bench.create(
            Resource::Pods,
            json!({"metadata": {"name": "j-1", "labels": labels, "ownerReferences": [owner]}, "spec": {"containers": [app]}}),
        );
        counts_become(&bench, [0, 3, 2, 3]).await;
        let budget = bench.get(Resource::PodDisruptionBudgets, "web");
        let why = "jobs.batch does not implement the scale subresource";
        assert_eq!(conditions::of(&budget, "DisruptionAllowed")["message"], why);
    }
}
