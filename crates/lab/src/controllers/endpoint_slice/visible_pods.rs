//! The EndpointSlice controller's view of pods. Each change becomes visible only after a delay, sampled from the
//! latencies measured for that kind of change.
//!
//! Changes to the same pod keep their order, as do deletions of pods in the same namespace. Deletions in quick
//! succession become visible together. Apart from that, a slow change to one pod does not delay changes to others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::hop_latency::{HopLatencies, HopLatency};
use crate::object_fields::{ObjectKey, is_being_deleted, is_terminal};
use crate::shared::ClusterContext;

/// Maximum time after a first deletion within which other deletions become visible together with it. Of 30 deletions
/// measured in rollouts of six pods (timings.csv, D), 20 appeared in the same slice update as another deletion, which
/// had been observed 0.2 to 5.4 ms earlier or later.
const TOGETHER: Duration = Duration::from_micros(5_400);

/// The visible pods, and pending changes.
#[derive(Debug, Default)]
pub(super) struct VisiblePods {
    pods: BTreeMap<ObjectKey, Arc<Value>>,
    /// Pending changes in order, each with the time when it becomes visible.
    coming: BTreeMap<ObjectKey, VecDeque<Coming>>,
    /// Most recent group of pending deletions in each namespace.
    deletions: BTreeMap<String, Deletions>,
}

/// Group of deletions that become visible together.
#[derive(Debug)]
struct Deletions {
    first_observed: Instant,
    visible: Instant,
    pods: Vec<ObjectKey>,
}

/// Pending change to a pod.
#[derive(Debug)]
struct Coming {
    observed: Instant,
    visible: Instant,
    /// New state, or `None` if the pod is gone.
    state: Option<Arc<Value>>,
}

impl VisiblePods {
    /// Records a pod's new state (`None` if it is gone). Returns the time until the pod's next change becomes visible.
    pub(super) fn observe(
        &mut self,
        pod: ObjectKey,
        state: Option<Arc<Value>>,
        shared: &ClusterContext,
    ) -> Duration {
        let seen = self.pods.get(&pod);
        let coming = self.coming.entry(pod.clone()).or_default();
        let before = coming.back().map_or(seen, |earlier| earlier.state.as_ref());
        let latency = hop(before.map(Arc::as_ref), state.as_deref(), &shared.config.latencies);
        let was = |fact: fn(&Value) -> bool| before.is_some_and(|before| fact(before));
        let is_deletion = state.as_deref().is_some_and(is_being_deleted) && !was(is_being_deleted);
        let observed = Instant::now();
        let soonest = observed + shared.sampler.sample(&latency);
        // A change must never overtake an earlier change to the same pod, or even move closer to it, because the
        // controller writes slices for both.
        let visible = coming.back().map_or(soonest, |earlier| {
            soonest.max(earlier.visible + observed.saturating_duration_since(earlier.observed))
        });
        coming.push_back(Coming { observed, visible, state });
        if is_deletion {
            self.show_together(pod.clone(), observed, visible);
        }
        let first = self.coming.get(&pod).and_then(VecDeque::front);
        first.map_or(visible, |first| first.visible).saturating_duration_since(observed)
    }

    /// Groups a deletion with those just before it, and never lets it become visible before earlier ones.
    fn show_together(&mut self, pod: ObjectKey, observed: Instant, visible: Instant) {
        self.deletions.retain(|_, last| last.visible > observed);
        let group = self.deletions.entry(pod.0.clone()).or_insert_with(|| Deletions {
            first_observed: observed,
            visible,
            pods: Vec::new(),
        });
        group.visible = group.visible.max(visible);
        if observed.saturating_duration_since(group.first_observed) > TOGETHER {
            group.first_observed = observed;
            group.pods.clear();
        }
        group.pods.push(pod);
        for pod in &group.pods {
            for coming in self.coming.get_mut(pod).into_iter().flatten() {
                if coming.state.as_deref().is_none_or(is_being_deleted) {
                    coming.visible = coming.visible.max(group.visible);
                }
            }
        }
    }

    /// Makes all due changes to a pod visible, and returns the states that the pod went through.
    pub(super) fn advance(&mut self, pod: &ObjectKey) -> Vec<Arc<Value>> {
        let mut states: Vec<_> = self.pods.get(pod).cloned().into_iter().collect();
        let now = Instant::now();
        let Some(coming) = self.coming.get_mut(pod) else { return states };
        while coming.front().is_some_and(|first| first.visible <= now) {
            match coming.pop_front().and_then(|first| first.state) {
                Some(state) => {
                    self.pods.insert(pod.clone(), Arc::clone(&state));
                    states.push(state);
                }
                None => {
                    self.pods.remove(pod);
                }
            }
        }
        if coming.is_empty() {
            self.coming.remove(pod);
        }
        states
    }

    /// Returns the time until the next change to a pod becomes visible.
    pub(super) fn next_due(&self, pod: &ObjectKey) -> Option<Duration> {
        let first = self.coming.get(pod)?.front()?;
        Some(first.visible.saturating_duration_since(Instant::now()))
    }

    /// Returns the visible pods in a namespace.
    pub(super) fn pods_in(&self, namespace: &str) -> Vec<Arc<Value>> {
        let in_namespace = self.pods.range((namespace.to_owned(), String::new())..);
        in_namespace.take_while(|((home, _), _)| home == namespace).map(|(_, pod)| Arc::clone(pod)).collect()
    }
}

/// Returns the latency between a change to a pod and the slice that reflects it.
fn hop(before: Option<&Value>, after: Option<&Value>, latencies: &HopLatencies) -> HopLatency {
    let was = |fact: fn(&Value) -> bool| before.is_some_and(fact);
    let Some(after) = after else { return latencies.terminated_to_slice };
    if is_terminal(after) && !was(is_terminal) {
        latencies.terminated_to_slice
    } else if is_being_deleted(after) && !was(is_being_deleted) {
        latencies.deletion_to_slice
    } else if has_address(after) && !was(has_address) {
        latencies.running_to_endpoint
    } else if before.is_some_and(|before| before["metadata"]["labels"] != after["metadata"]["labels"]) {
        latencies.terminated_to_slice
    } else {
        latencies.ready_to_slice
    }
}

fn has_address(pod: &Value) -> bool {
    pod["status"]["podIP"].is_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tests::bench::Bench;
    use super::*;
    use crate::ClusterConfig;

    #[tokio::test(start_paused = true)]
    async fn batched_deletions_appear_together_in_order() {
        let bench = Bench::start(&[]);
        let latencies = HopLatencies {
            deletion_to_slice: HopLatencies::default().deletion_to_slice,
            ..HopLatencies::ZERO
        };
        let config = ClusterConfig { latencies, ..ClusterConfig::default() };
        let shared = ClusterContext { config: Arc::new(config), ..bench.shared.clone() };
        let mut view = VisiblePods::default();
        let pods: Vec<ObjectKey> = (0..20).map(|n| ("shop".to_owned(), format!("web-{n}"))).collect();
        let state =
            |deleted: Option<&str>| Some(Arc::new(json!({"metadata": {"deletionTimestamp": deleted}})));
        for pod in &pods {
            view.observe(pod.clone(), state(None), &shared);
        }
        for (n, pod) in pods.iter().enumerate() {
            if n == 10 {
                tokio::time::advance(TOGETHER + Duration::from_millis(1)).await;
            }
            view.observe(pod.clone(), state(Some("x")), &shared);
        }
        let visible: Vec<_> = pods.iter().map(|pod| view.coming[pod].back().unwrap().visible).collect();
        assert!(visible.is_sorted(), "{visible:?}");
        assert_eq!(visible.first(), visible.get(9));
        assert_eq!(visible.get(10), visible.last());
    }

    #[test]
    fn pod_change_selects_latency_hop() {
        let latencies = HopLatencies::default();
        let hop_of = |before: Option<&Value>, after: Option<&Value>| hop(before, after, &latencies);
        let running = json!({
            "metadata": {"labels": {"app": "web"}},
            "status": {"podIP": "127.64.1.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let changed = |change: fn(&mut Value)| {
            let mut pod = running.clone();
            change(&mut pod);
            pod
        };
        let pending = changed(|pod| pod["status"]["podIP"] = Value::Null);
        let unready = changed(|pod| pod["status"]["conditions"][0]["status"] = json!("False"));
        let deleted = changed(|pod| pod["metadata"]["deletionTimestamp"] = json!("x"));
        let relabelled = changed(|pod| pod["metadata"]["labels"] = json!({"app": "debug"}));
        let ended = changed(|pod| {
            pod["metadata"]["deletionTimestamp"] = json!("x");
            pod["status"]["phase"] = json!("Failed");
        });
        assert_eq!(hop_of(Some(&pending), Some(&running)), latencies.running_to_endpoint);
        assert_eq!(hop_of(Some(&unready), Some(&running)), latencies.ready_to_slice);
        assert_eq!(hop_of(Some(&running), Some(&deleted)), latencies.deletion_to_slice);
        assert_eq!(hop_of(Some(&running), Some(&relabelled)), latencies.terminated_to_slice);
        assert_eq!(hop_of(Some(&deleted), Some(&ended)), latencies.terminated_to_slice);
        assert_eq!(hop_of(Some(&ended), None), latencies.terminated_to_slice);
    }
}
