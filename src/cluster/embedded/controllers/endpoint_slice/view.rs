//! The pods as the EndpointSlice controller sees them: each change becomes visible to it after the
//! measured latency of its kind.
//!
//! So one pod's slow change does not hold up another's, and changes of one pod keep their order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::super::{Key, is_being_deleted, is_terminal};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::latency::{Latencies, Latency};

/// The pods that are visible, and what is about to become so.
#[derive(Debug, Default)]
pub(super) struct View {
    pods: BTreeMap<Key, Arc<Value>>,
    /// Changes that are not yet visible, in order, each with the time when it will be.
    coming: BTreeMap<Key, VecDeque<Coming>>,
}

/// A change of a pod.
#[derive(Debug)]
struct Coming {
    observed: Instant,
    visible: Instant,
    /// `None`: gone.
    state: Option<Arc<Value>>,
}

impl View {
    /// Takes note of a pod's new state (`None`: gone) and answers when its next change is visible.
    pub(super) fn observe(&mut self, pod: Key, state: Option<Arc<Value>>, shared: &Shared) -> Duration {
        let seen = self.pods.get(&pod);
        let coming = self.coming.entry(pod).or_default();
        let before = coming.back().map_or(seen, |earlier| earlier.state.as_ref());
        let latency = hop(before.map(Arc::as_ref), state.as_deref(), &shared.config.latencies);
        let observed = Instant::now();
        let soonest = observed + shared.sampler.sample(&latency);
        // A change never overtakes an earlier one of the same pod, nor comes closer to it: the
        // controller writes slices for both.
        let visible = coming.back().map_or(soonest, |earlier| {
            soonest.max(earlier.visible + observed.saturating_duration_since(earlier.observed))
        });
        coming.push_back(Coming { observed, visible, state });
        coming.front().map_or(visible, |first| first.visible).saturating_duration_since(observed)
    }

    /// Makes all changes of a pod visible that are due, and answers the states that it went through.
    pub(super) fn advance(&mut self, pod: &Key) -> Vec<Arc<Value>> {
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

    /// When the next change of a pod becomes visible.
    pub(super) fn next_due(&self, pod: &Key) -> Option<Duration> {
        let first = self.coming.get(pod)?.front()?;
        Some(first.visible.saturating_duration_since(Instant::now()))
    }

    /// The visible pods of a namespace.
    pub(super) fn pods_in(&self, namespace: &str) -> Vec<Arc<Value>> {
        let in_namespace = self.pods.range((namespace.to_owned(), String::new())..);
        in_namespace.take_while(|((home, _), _)| home == namespace).map(|(_, pod)| Arc::clone(pod)).collect()
    }
}

/// The latency of the hop from a pod's change to the slice that shows it.
fn hop(before: Option<&Value>, after: Option<&Value>, latencies: &Latencies) -> Latency {
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

    use super::*;

    #[test]
    fn each_kind_of_change_has_its_own_hop() {
        let latencies = Latencies::default();
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
