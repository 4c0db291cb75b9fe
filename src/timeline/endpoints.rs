//! What the watch of EndpointSlices showed, as a history per pod.
//!
//! The slices of all Services of the namespace are watched. Whether a target has an endpoint that can
//! be used is a question of its own Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// The endpoints that a Service could use from one change of its slices to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// When a watch showed the change.
    pub from: Stamp,
    /// The pods behind the endpoints, sorted; an endpoint without a pod has its address here.
    pub pods: Arc<[String]>,
}

impl Usable {
    /// Whether the pod is one of them.
    pub fn holds(&self, pod: &str) -> bool {
        self.pods.binary_search_by(|other| other.as_str().cmp(pod)).is_ok()
    }
}

/// The history of all endpoints.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    slices: BTreeMap<String, (Option<String>, Vec<EndpointState>)>,
    shown: BTreeMap<String, Shown>,
    changes: Vec<(Stamp, String, EndpointChange)>,
    /// By Service, and of all together.
    usable: BTreeMap<Option<String>, Vec<Usable>>,
    /// When anything of a Service's slices changed, also what makes no difference to what it can use.
    changed: BTreeMap<Option<String>, Vec<Stamp>>,
    /// The most endpoints at once, whatever their state, by Service, and of all together.
    most: BTreeMap<Option<String>, usize>,
    /// When what was shown was not what was so.
    blind: Vec<(Stamp, Stamp)>,
    named: BTreeSet<String>,
}

impl Endpoints {
    /// Takes in what the watch showed at `at`; call it in order.
    pub(super) fn observe(&mut self, at: Stamp, event: &EndpointSliceEvent) {
        let slice = format!("{}/{}", event.namespace, event.name);
        match event.change {
            Change::Deleted => self.slices.remove(&slice),
            Change::Listed | Change::Applied => {
                self.slices.insert(slice, (event.service.clone(), event.endpoints.clone()))
            }
        };
        let mut now: BTreeMap<String, Shown> = BTreeMap::new();
        for endpoint in self.slices.values().flat_map(|(_, endpoints)| endpoints) {
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
        if event.service.is_some() {
            self.count(at, event.service.clone());
        }
        self.count(at, None);
    }

    /// Which endpoints of a Service, or of all, can be used from now on.
    fn count(&mut self, at: Stamp, service: Option<String>) {
        let is_meant = |of: &Option<String>| service.is_none() || *of == service;
        let slices = self.slices.values().filter(|(of, _)| is_meant(of));
        let (mut all, mut ready, mut draining) = (0, BTreeSet::new(), BTreeSet::new());
        for endpoint in slices.flat_map(|(_, endpoints)| endpoints) {
            all += 1;
            let pod = endpoint.pod.as_ref().unwrap_or(&endpoint.address);
            if endpoint.ready {
                ready.insert(pod);
            } else if endpoint.serving && endpoint.terminating {
                draining.insert(pod);
            }
        }
        // Without a ready endpoint, Services fall back to those that serve while they terminate.
        let usable = if ready.is_empty() { draining } else { ready };
        let pods: Arc<[String]> = usable.into_iter().cloned().collect();
        let most = self.most.entry(service.clone()).or_default();
        *most = all.max(*most);
        self.changed.entry(service.clone()).or_default().push(at);
        let history = self.usable.entry(service).or_default();
        if history.last().is_none_or(|last| last.pods != pods) {
            history.push(Usable { from: at, pods });
        }
    }

    /// The endpoints that a Service could use over time, in order; of all Services where it is not known which.
    pub fn usable(&self, service: Option<&str>) -> &[Usable] {
        self.usable.get(&service.map(str::to_owned)).map_or(&[], Vec::as_slice)
    }

    /// Which it could use at `at`; `None` while nothing is known.
    pub fn usable_at(&self, service: Option<&str>, at: Stamp) -> Option<&Usable> {
        let usable = self.usable(service);
        usable[..usable.partition_point(|state| state.from <= at)].last()
    }

    /// When the slices of a Service changed in any way, in order.
    pub fn changes(&self, service: Option<&str>) -> &[Stamp] {
        self.changed.get(&service.map(str::to_owned)).map_or(&[], Vec::as_slice)
    }

    /// Between these, what was shown was not what was so.
    pub(super) fn was_blind(&mut self, from: Stamp, to: Stamp) {
        self.blind.push((from, to));
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

    /// Whether the slices of a Service, or all if it is not known which, showed no endpoint that
    /// could take a request at `at`. Says no while nothing is known.
    pub fn none_usable(&self, service: Option<&str>, at: Stamp) -> bool {
        if self.blind.iter().any(|(from, to)| (*from..=*to).contains(&at)) {
            return false;
        }
        self.usable_at(service, at).is_some_and(|usable| usable.pods.is_empty())
    }

    /// The same at any moment from `from` to `to`: for a consumer whose own view may be so old.
    pub fn none_usable_within(&self, service: Option<&str>, from: Stamp, to: Stamp) -> bool {
        let changes =
            self.usable(service).iter().map(|state| state.from).filter(|at| (from..=to).contains(at));
        changes.chain([from]).any(|at| self.none_usable(service, at))
    }

    /// The most endpoints that a Service, or all together if it is not known which, had at once, whatever
    /// their state; 0 while nothing is known.
    pub fn most(&self, service: Option<&str>) -> usize {
        self.most.get(&service.map(str::to_owned)).copied().unwrap_or(0)
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
        assert!(!endpoints.none_usable(None, at(5)));
        endpoints.observe(at(10), &slice(&[("a", true, true, false)]));
        endpoints.observe(at(20), &slice(&[("a", false, true, true)]));
        endpoints.observe(at(30), &slice(&[]));
        assert!(!endpoints.none_usable(None, at(25)));
        assert!(endpoints.none_usable(None, at(30)));
        assert_eq!(endpoints.first("a", EndpointChange::Ready, at(0)), Some(at(10)));
        assert_eq!(endpoints.first("a", EndpointChange::Terminating, at(0)), Some(at(20)));
        assert_eq!(endpoints.first("a", EndpointChange::Removed, at(0)), Some(at(30)));
        assert_eq!(endpoints.first("a", EndpointChange::Removed, at(31)), None);
    }

    #[test]
    fn each_service_has_endpoints_of_its_own_and_what_was_not_seen_is_not_known() {
        let at = Stamp::from_unix_ns;
        let mut endpoints = Endpoints::default();
        let other = |shown: &[(&str, bool, bool, bool)]| EndpointSliceEvent {
            name: "other-y".into(),
            service: Some("other".into()),
            ..slice(shown)
        };
        endpoints.observe(at(10), &slice(&[("a", true, true, false)]));
        endpoints.observe(at(10), &other(&[("b", true, true, false)]));
        endpoints.observe(at(20), &slice(&[]));
        assert!(endpoints.none_usable(Some("web"), at(20)));
        assert!(!endpoints.none_usable(Some("other"), at(20)) && !endpoints.none_usable(None, at(20)));
        assert!(!endpoints.none_usable(Some("unknown"), at(20)));
        endpoints.was_blind(at(19), at(25));
        assert!(!endpoints.none_usable(Some("web"), at(22)) && endpoints.none_usable(Some("web"), at(26)));
    }
}
