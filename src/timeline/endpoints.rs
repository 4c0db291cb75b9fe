//! What the watch of EndpointSlices showed, as a history per pod.
//!
//! The slices of all watched Services are taken together: a run watches those of its targets.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::Stamp;
use crate::record::event::{Change, EndpointSliceEvent, EndpointState};

/// A pod's state in the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    ready: bool,
    terminating: bool,
}

/// How a pod's endpoint changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointChange {
    /// It became ready.
    Ready,
    /// It is marked as terminating.
    Terminating,
    /// It is in no slice any more.
    Removed,
}

/// The history of all endpoints.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    slices: BTreeMap<String, Vec<EndpointState>>,
    shown: BTreeMap<String, Shown>,
    changes: Vec<(Stamp, String, EndpointChange)>,
    usable: Vec<(Stamp, usize)>,
    named: BTreeSet<String>,
}

impl Endpoints {
    /// Takes in what the watch showed at `at`; call it in order.
    pub(super) fn observe(&mut self, at: Stamp, event: &EndpointSliceEvent) {
        let slice = format!("{}/{}", event.namespace, event.name);
        match event.change {
            Change::Deleted => self.slices.remove(&slice),
            Change::Listed | Change::Applied => self.slices.insert(slice, event.endpoints.clone()),
        };
        let mut now: BTreeMap<String, Shown> = BTreeMap::new();
        let (mut ready, mut draining) = (0, 0);
        for endpoint in self.slices.values().flatten() {
            ready += usize::from(endpoint.ready);
            draining += usize::from(endpoint.serving && endpoint.terminating);
            if let Some(pod) = &endpoint.pod {
                let shown = now.entry(pod.clone()).or_insert(Shown { ready: false, terminating: false });
                shown.ready |= endpoint.ready;
                shown.terminating |= endpoint.terminating;
            }
        }
        for (pod, shown) in &now {
            self.named.insert(pod.clone());
            let before = self.shown.get(pod);
            if shown.ready && !before.is_some_and(|b| b.ready) {
                self.changes.push((at, pod.clone(), EndpointChange::Ready));
            }
            if shown.terminating && !before.is_some_and(|b| b.terminating) {
                self.changes.push((at, pod.clone(), EndpointChange::Terminating));
            }
        }
        for pod in self.shown.keys().filter(|pod| !now.contains_key(*pod)) {
            self.changes.push((at, pod.clone(), EndpointChange::Removed));
        }
        self.shown = now;
        // Without a ready endpoint, Services fall back to those that serve while they terminate.
        self.usable.push((at, if ready > 0 { ready } else { draining }));
    }

    /// When `pod` first changed in this way at or after `from`.
    pub(super) fn first(&self, pod: &str, change: EndpointChange, from: Stamp) -> Option<Stamp> {
        self.changes.iter().find(|(at, p, c)| *at >= from && p == pod && *c == change).map(|(at, ..)| *at)
    }

    /// Whether `pod` was ever an endpoint.
    pub(super) fn ever_named(&self, pod: &str) -> bool {
        self.named.contains(pod)
    }

    /// Whether any slice was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.usable.is_empty()
    }

    /// Whether the slices showed no endpoint that could take a request at `at`.
    /// Says no while nothing is known.
    pub fn none_usable(&self, at: Stamp) -> bool {
        let next = self.usable.partition_point(|(t, _)| *t <= at);
        next > 0 && self.usable[next - 1].1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(endpoints: &[(&str, bool, bool, bool)]) -> EndpointSliceEvent {
        let endpoints = endpoints
            .iter()
            .map(|&(pod, ready, serving, terminating)| EndpointState {
                pod: Some(pod.into()),
                address: "10.0.0.1".into(),
                ready,
                serving,
                terminating,
            })
            .collect();
        EndpointSliceEvent {
            change: Change::Applied,
            namespace: "default".into(),
            name: "web-x".into(),
            service: Some("web".into()),
            endpoints,
        }
    }

    #[test]
    fn terminating_endpoints_are_used_only_when_none_is_ready() {
        let at = Stamp::from_unix_ns;
        let mut endpoints = Endpoints::default();
        assert!(!endpoints.none_usable(at(5)));
        endpoints.observe(at(10), &slice(&[("a", true, true, false)]));
        endpoints.observe(at(20), &slice(&[("a", false, true, true)]));
        endpoints.observe(at(30), &slice(&[]));
        assert!(!endpoints.none_usable(at(25)));
        assert!(endpoints.none_usable(at(30)));
        assert_eq!(endpoints.first("a", EndpointChange::Ready, at(0)), Some(at(10)));
        assert_eq!(endpoints.first("a", EndpointChange::Terminating, at(0)), Some(at(20)));
        assert_eq!(endpoints.first("a", EndpointChange::Removed, at(0)), Some(at(30)));
        assert_eq!(endpoints.first("a", EndpointChange::Removed, at(31)), None);
    }
}
