//! Pods that actions have chosen. Tracking them ensures that two actions never choose the same pod.

use std::collections::BTreeSet;

use kube::ResourceExt;
use rolldrop_kubernetes::pods::Candidate;

/// UIDs of the pods that actions have chosen.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Pods that an action is terminating. They do not count as ready, and stay here until a list shows that they are
    /// terminating.
    ending: BTreeSet<String>,
    /// Pods in later batches. They still serve requests, but no other action may choose them.
    waiting: BTreeSet<String>,
}

/// Pods that match a selector, as an action sees them.
#[derive(Debug)]
pub(crate) struct PodChoice {
    /// Ready pods that stay for now, oldest first, including those that another action has chosen for later.
    pub(crate) ready: Vec<Candidate>,
    /// Ready pods that no other action has chosen.
    pub(crate) free: Vec<Candidate>,
    /// Pods that are being deleted, or that an action is terminating.
    pub(crate) leaving: Vec<Candidate>,
}

impl Claims {
    /// Sorts listed pods by their state.
    pub(crate) fn sort(&self, found: Vec<Candidate>) -> PodChoice {
        let leaves = |pod: &Candidate| pod.metadata.deletion_timestamp.is_some() || has(&self.ending, pod);
        let (leaving, staying): (Vec<Candidate>, Vec<Candidate>) = found.into_iter().partition(leaves);
        let ready = oldest_ready_first(staying);
        let free = ready.iter().filter(|pod| !has(&self.waiting, pod)).cloned().collect();
        PodChoice { ready, free, leaving }
    }

    /// Claims pods: the first ones are to be terminated now, the others later.
    pub(crate) fn take(&mut self, now: &[Candidate], later: &[Candidate]) {
        self.give_back(now);
        self.ending.extend(now.iter().filter_map(ResourceExt::uid));
        self.waiting.extend(later.iter().filter_map(ResourceExt::uid));
    }

    /// Releases pods that are known to be terminating, or that this action does not terminate.
    pub(crate) fn give_back(&mut self, pods: &[Candidate]) {
        for uid in pods.iter().filter_map(ResourceExt::uid) {
            self.ending.remove(&uid);
            self.waiting.remove(&uid);
        }
    }
}

fn has(uids: &BTreeSet<String>, pod: &Candidate) -> bool {
    pod.metadata.uid.as_ref().is_some_and(|uid| uids.contains(uid))
}

/// Returns the ready pods, oldest first.
pub(crate) fn oldest_ready_first(mut pods: Vec<Candidate>) -> Vec<Candidate> {
    pods.retain(|pod| pod.is_ready);
    pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.name_any()));
    pods
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, created: &str, ready: &str, deleted: Option<&str>) -> Candidate {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created, "deletionTimestamp": deleted},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn oldest_ready_pods_come_first() {
        let pods = vec![
            pod("young", "2026-01-01T00:00:09Z", "True", None),
            pod("going", "2026-01-01T00:00:01Z", "True", Some("2026-01-01T00:00:31Z")),
            pod("starting", "2026-01-01T00:00:02Z", "False", None),
            pod("old-b", "2026-01-01T00:00:03Z", "True", None),
            pod("old-a", "2026-01-01T00:00:03Z", "True", None),
        ];
        let names: Vec<_> = oldest_ready_first(pods).iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["old-a", "old-b", "young"]);
    }
}
