//! History of each pod in the EndpointSlices, as seen by the watch.
//!
//! The slices of all Services in the namespace are watched. Only a target's own Service determines whether the target
//! has a usable endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::phases::LifeOf;
use rolldrop_record::Stamp;
use rolldrop_record::event::{Change, EndpointSliceEvent, EndpointState};
use rolldrop_record::run_info::Target;

/// State of a pod in the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PodInSlices {
    ready: bool,
    terminating: bool,
}

/// Set of endpoints: a Service's endpoints, possibly only those on one node, or all endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Service name; `None` if unknown.
    service: Option<String>,
    node: Option<String>,
}

impl Scope {
    /// Returns the endpoints that connections to a target can reach.
    pub fn of(target: &Target) -> Self {
        let service = target.service.clone();
        let node = target.only_node().filter(|_| service.is_some()).map(str::to_owned);
        Self { service, node }
    }

    /// Returns true if only endpoints on one node count.
    pub fn is_of_a_node(&self) -> bool {
        self.node.is_some()
    }

    /// Returns the Service's endpoints on all nodes.
    fn everywhere(&self) -> Self {
        Self { node: None, ..self.clone() }
    }

    fn has(&self, service: Option<&String>, endpoint: &EndpointState) -> bool {
        (self.service.is_none() || self.service.as_ref() == service)
            && (self.node.is_none() || self.node == endpoint.node)
    }
}

/// Change to a pod's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointChange {
    /// The endpoint became ready.
    Ready,
    /// The endpoint was marked as terminating.
    Terminating,
    /// The endpoint was removed from all slices.
    Removed,
}

/// Usable endpoints of a Service between two changes of its slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableEndpoints {
    /// Time at which a watch showed the change.
    pub from: Stamp,
    /// Pods behind the endpoints, sorted; an endpoint without a pod is listed by its address.
    pub pods: Arc<[String]>,
}

impl UsableEndpoints {
    /// Returns true if the pod is behind one of the endpoints.
    pub fn holds(&self, pod: &str) -> bool {
        self.pods.binary_search_by(|other| other.as_str().cmp(pod)).is_ok()
    }
}

/// Identity of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointOf<'a> {
    pod: &'a str,
    /// Pod address, because a StatefulSet reuses the name for the next pod.
    address: Option<&'a str>,
    /// Time the next pod with this name was first seen.
    until: Option<Stamp>,
}

impl<'a> EndpointOf<'a> {
    /// Returns the endpoint of any pod with this name.
    pub(super) fn named(pod: &'a str) -> Self {
        Self { pod, address: None, until: None }
    }

    /// Returns the endpoint of one pod.
    pub(super) fn life(life: LifeOf<'a>, address: Option<&'a str>) -> Self {
        Self { pod: life.name, address, until: life.until }
    }
}

#[derive(Clone, Debug)]
struct ChangedEndpoint {
    at: Stamp,
    pod: String,
    address: String,
    change: EndpointChange,
}

/// History of all endpoints.
#[derive(Clone, Debug, Default)]
pub struct EndpointHistory {
    slices: BTreeMap<String, (Option<String>, Vec<EndpointState>)>,
    /// State by pod and address.
    shown: BTreeMap<(String, String), PodInSlices>,
    changes: Vec<ChangedEndpoint>,
    /// States over time: for each Service, for all Services together, and for the nodes to which targets are confined.
    usable: BTreeMap<Scope, Vec<UsableEndpoints>>,
    confined: Vec<Scope>,
    /// Times at which a Service's slices changed, including changes that left the usable endpoints the same.
    changed: BTreeMap<Option<String>, Vec<Stamp>>,
    /// Largest number of simultaneous endpoints in any state, by Service and for all Services together.
    most: BTreeMap<Option<String>, usize>,
    /// Periods in which the watched state was not the actual state.
    blind: Vec<(Stamp, Stamp)>,
    named: BTreeSet<String>,
    /// Slices not listed again since a gap in the watch; `listed` is the time of that list.
    missing: BTreeSet<String>,
    listed: Option<Stamp>,
}

impl EndpointHistory {
    /// Creates an empty history. If connections to one of these targets reach only the pods on one node, those are
    /// tracked separately.
    pub(super) fn of(targets: &[Target]) -> Self {
        let confined = targets.iter().map(Scope::of).filter(|scope| scope.node.is_some()).collect();
        Self { confined, ..Self::default() }
    }

    /// Processes an event that the watch showed at `at`; events must be passed in order.
    pub(super) fn observe(&mut self, at: Stamp, event: &EndpointSliceEvent) {
        let slice = format!("{}/{}", event.namespace, event.name);
        if event.change == Change::Listed {
            self.listed = Some(at);
        } else {
            // The watch continues only after the complete list.
            self.listed.get_or_insert(at);
            self.end_list();
        }
        self.missing.remove(&slice);
        let service = event.service.clone();
        match event.change {
            Change::Deleted => self.slices.remove(&slice),
            Change::Listed | Change::Applied => {
                self.slices.insert(slice, (service.clone(), event.endpoints.clone()))
            }
        };
        self.compare(at);
        self.count_of(at, service);
        self.count(at, Scope::default());
    }

    /// Records that the watched state was not the actual state between these times. Slices missing from the list after
    /// a gap are gone.
    pub(super) fn was_blind(&mut self, from: Stamp, to: Stamp, is_lost: bool) {
        self.blind.push((from, to));
        if is_lost {
            self.end_list();
            (self.missing, self.listed) = (self.slices.keys().cloned().collect(), None);
        }
    }

    /// Finishes the history after the last event.
    pub(super) fn end(&mut self) {
        self.end_list();
    }

    /// Removes the slices missing from the list after a gap; does nothing if there was no gap.
    fn end_list(&mut self) {
        let Some(at) = self.listed else { return };
        let gone = std::mem::take(&mut self.missing);
        let services: BTreeSet<Option<String>> =
            gone.iter().filter_map(|slice| Some(self.slices.remove(slice)?.0)).collect();
        if gone.is_empty() {
            return;
        }
        self.compare(at);
        services.into_iter().for_each(|service| self.count_of(at, service));
        self.count(at, Scope::default());
    }

    /// Records the changes since the slices were last compared.
    fn compare(&mut self, at: Stamp) {
        let mut now: BTreeMap<(String, String), PodInSlices> = BTreeMap::new();
        for endpoint in self.slices.values().flat_map(|(_, endpoints)| endpoints) {
            if let Some(pod) = &endpoint.pod {
                let key = (pod.clone(), endpoint.address.clone());
                let shown = now.entry(key).or_insert(PodInSlices { ready: false, terminating: false });
                shown.ready |= endpoint.ready;
                shown.terminating |= endpoint.terminating;
            }
        }
        let mut changes = Vec::new();
        for (key, shown) in &now {
            self.named.insert(key.0.clone());
            let before = self.shown.get(key);
            if shown.ready && !before.is_some_and(|b| b.ready) {
                changes.push((key, EndpointChange::Ready));
            }
            if shown.terminating && !before.is_some_and(|b| b.terminating) {
                changes.push((key, EndpointChange::Terminating));
            }
        }
        let removed = self.shown.keys().filter(|key| !now.contains_key(*key));
        changes.extend(removed.map(|key| (key, EndpointChange::Removed)));
        let changed = |((pod, address), change): (&(String, String), EndpointChange)| ChangedEndpoint {
            at,
            pod: pod.clone(),
            address: address.clone(),
            change,
        };
        self.changes.extend(changes.into_iter().map(changed));
        self.shown = now;
    }

    /// Updates a Service's usable endpoints from `at` on.
    fn count_of(&mut self, at: Stamp, service: Option<String>) {
        let Some(service) = service else { return };
        let confined = self.confined.iter().filter(|scope| scope.service.as_ref() == Some(&service));
        let confined: Vec<Scope> = confined.cloned().collect();
        confined.into_iter().for_each(|scope| self.count(at, scope));
        self.count(at, Scope { service: Some(service), node: None });
    }

    fn count(&mut self, at: Stamp, scope: Scope) {
        let of_slices = self.slices.values().flat_map(|(of, list)| list.iter().map(move |one| (of, one)));
        let (mut all, mut ready, mut draining) = (0, BTreeSet::new(), BTreeSet::new());
        for (_, endpoint) in of_slices.filter(|(of, endpoint)| scope.has(of.as_ref(), endpoint)) {
            all += 1;
            let pod = endpoint.pod.as_ref().unwrap_or(&endpoint.address);
            if endpoint.ready {
                ready.insert(pod);
            } else if endpoint.serving && endpoint.terminating {
                draining.insert(pod);
            }
        }
        // Without a ready endpoint, Services fall back to endpoints that are serving while terminating.
        let usable = if ready.is_empty() { draining } else { ready };
        let pods: Arc<[String]> = usable.into_iter().cloned().collect();
        if scope.node.is_none() {
            let most = self.most.entry(scope.service.clone()).or_default();
            *most = all.max(*most);
            self.changed.entry(scope.service.clone()).or_default().push(at);
        }
        // Nothing is known about a node that no slice has named yet.
        let is_known = all > 0 || scope.node.is_none();
        let history = self.usable.entry(scope).or_default();
        if history.last().map_or(is_known, |last| last.pods != pods) {
            history.push(UsableEndpoints { from: at, pods });
        }
    }

    /// Returns the usable endpoints over time, in order. If those on the node are not known, returns those on all
    /// nodes.
    pub fn usable(&self, scope: &Scope) -> &[UsableEndpoints] {
        let of_node = self.usable.get(scope).filter(|history| !history.is_empty());
        let found = of_node.or_else(|| self.usable.get(&scope.everywhere()));
        found.map_or(&[], Vec::as_slice)
    }

    /// Returns the usable endpoints at `at`; `None` while nothing is known.
    pub fn usable_at(&self, scope: &Scope, at: Stamp) -> Option<&UsableEndpoints> {
        let usable = self.usable(scope);
        usable[..usable.partition_point(|state| state.from <= at)].last()
    }

    /// Returns true if a pod was usable at any time from `from` to `to`.
    pub fn was_usable(&self, scope: &Scope, pod: &str, from: Stamp, to: Stamp) -> bool {
        let usable = self.usable(scope);
        let first = usable.partition_point(|state| state.from <= from).saturating_sub(1);
        usable[first..].iter().take_while(|state| state.from <= to).any(|state| state.holds(pod))
    }

    /// Returns the times of all changes to a Service's slices, in order.
    pub fn changes(&self, service: Option<&str>) -> &[Stamp] {
        self.changed.get(&service.map(str::to_owned)).map_or(&[], Vec::as_slice)
    }

    /// Returns the time of the endpoint's first change of this kind at or after `from`.
    pub(super) fn first(&self, of: EndpointOf<'_>, change: EndpointChange, from: Stamp) -> Option<Stamp> {
        let of_pod = || self.changes.iter().filter(|changed| changed.pod == of.pod);
        // A pod whose address was never in a slice is known only by name.
        let address = of.address.filter(|address| of_pod().any(|changed| changed.address == **address));
        let is_its = |changed: &&ChangedEndpoint| address.is_none_or(|address| changed.address == address);
        let is_then =
            |at: Stamp| at >= from && (address.is_some() || of.until.is_none_or(|until| at < until));
        let mut changes = of_pod().filter(is_its).filter(|changed| changed.change == change);
        changes.find(|changed| is_then(changed.at)).map(|changed| changed.at)
    }

    /// Returns true if `pod` was ever an endpoint.
    pub(super) fn ever_named(&self, pod: &str) -> bool {
        self.named.contains(pod)
    }

    /// Returns true if no slice was ever seen.
    pub(super) fn is_empty(&self) -> bool {
        self.usable.is_empty()
    }

    /// Returns true if the slices showed no usable endpoint at `at`, and false while nothing is known.
    pub fn none_usable(&self, scope: &Scope, at: Stamp) -> bool {
        self.none_usable_but(scope, &[], at)
    }

    /// Returns true if the slices showed no usable endpoint at `at` other than those of `pods`, and false while nothing
    /// is known.
    pub fn none_usable_but(&self, scope: &Scope, pods: &[&str], at: Stamp) -> bool {
        if self.blind.iter().any(|(from, to)| (*from..=*to).contains(&at)) {
            return false;
        }
        self.usable_at(scope, at)
            .is_some_and(|usable| usable.pods.iter().all(|pod| pods.contains(&pod.as_str())))
    }

    /// Returns true if at some time from `from` to `to` no endpoint was usable, for a consumer whose own view may be as
    /// old as `from`.
    pub fn none_usable_within(&self, scope: &Scope, from: Stamp, to: Stamp) -> bool {
        let changes = self.usable(scope).iter().map(|state| state.from).filter(|at| (from..=to).contains(at));
        changes.chain([from]).any(|at| self.none_usable(scope, at))
    }

    /// Returns true if a pod was ever usable for a Service. If the Service is not known, any Service that also used
    /// some of `others` counts.
    pub(crate) fn are_together(&self, service: Option<&str>, pod: &str, others: &[&str]) -> bool {
        let holds = |states: &[UsableEndpoints], pod: &str| states.iter().any(|state| state.holds(pod));
        let is_meant = |of: &str, states: &[UsableEndpoints]| match service {
            Some(service) => of == service,
            None => others.iter().any(|other| holds(states, other)),
        };
        let of_services = self.usable.iter().filter(|(of, _)| of.node.is_none());
        let mut usable = of_services.filter_map(|(of, states)| Some((of.service.as_deref()?, states)));
        usable.any(|(of, states)| holds(states, pod) && is_meant(of, states))
    }

    /// Returns the largest number of simultaneous endpoints, in any state, of a Service, or of all Services together if
    /// the Service is not known. Returns 0 while nothing is known.
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
                node: None,
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

    fn of(service: &str) -> Scope {
        Scope { service: Some(service.to_owned()), node: None }
    }

    #[test]
    fn confined_node_uses_only_own_endpoints() {
        let at = Stamp::from_unix_ns;
        let local = |node: &str| Scope { node: Some(node.to_owned()), ..of("web") };
        let mut endpoints = EndpointHistory { confined: vec![local("node-1")], ..EndpointHistory::default() };
        let shown = |a: (bool, bool, bool)| {
            let mut event = slice(&[("a", a.0, a.1, a.2), ("b", true, true, false)]);
            event.endpoints[0].node = Some("node-1".into());
            event.endpoints[1].node = Some("node-2".into());
            event
        };
        let mut without = shown((true, true, false));
        without.endpoints.remove(0);
        endpoints.observe(at(5), &without);
        assert!(!endpoints.none_usable(&local("node-1"), at(6)), "its pods have never been seen");
        endpoints.observe(at(10), &shown((true, true, false)));
        // The node's own rules fall back to the terminating pod, though another node has a ready one.
        endpoints.observe(at(20), &shown((false, true, true)));
        endpoints.observe(at(30), &without);
        let none = |time| endpoints.none_usable(&local("node-1"), at(time));
        assert_eq!([15, 25, 30].map(none), [false, false, true]);
        assert!(!endpoints.none_usable(&of("web"), at(30)));
        assert!(!endpoints.was_usable(&local("node-1"), "b", at(0), at(40)));
        // The record names no nodes.
        assert!(endpoints.was_usable(&local("node-3"), "b", at(0), at(40)));
    }

    #[test]
    fn terminating_endpoints_serve_only_as_fallback() {
        let at = Stamp::from_unix_ns;
        let mut endpoints = EndpointHistory::default();
        let all = &Scope::default();
        assert!(!endpoints.none_usable(all, at(5)));
        endpoints.observe(at(10), &slice(&[("a", true, true, false)]));
        endpoints.observe(at(20), &slice(&[("a", false, true, true)]));
        endpoints.observe(at(30), &slice(&[]));
        assert!(!endpoints.none_usable(all, at(25)));
        assert!(endpoints.none_usable(all, at(30)));
        assert_eq!(endpoints.first(EndpointOf::named("a"), EndpointChange::Ready, at(0)), Some(at(10)));
        assert_eq!(endpoints.first(EndpointOf::named("a"), EndpointChange::Terminating, at(0)), Some(at(20)));
        assert_eq!(endpoints.first(EndpointOf::named("a"), EndpointChange::Removed, at(0)), Some(at(30)));
        assert_eq!(endpoints.first(EndpointOf::named("a"), EndpointChange::Removed, at(31)), None);
    }

    #[test]
    fn services_keep_separate_endpoints() {
        let at = Stamp::from_unix_ns;
        let mut endpoints = EndpointHistory::default();
        let other = |shown: &[(&str, bool, bool, bool)]| EndpointSliceEvent {
            name: "other-y".into(),
            service: Some("other".into()),
            ..slice(shown)
        };
        endpoints.observe(at(10), &slice(&[("a", true, true, false)]));
        endpoints.observe(at(10), &other(&[("b", true, true, false)]));
        endpoints.observe(at(20), &slice(&[]));
        assert!(endpoints.none_usable(&of("web"), at(20)));
        assert!(
            !endpoints.none_usable(&of("other"), at(20)) && !endpoints.none_usable(&Scope::default(), at(20))
        );
        assert!(!endpoints.none_usable(&of("unknown"), at(20)));
        endpoints.was_blind(at(19), at(25), false);
        assert!(!endpoints.none_usable(&of("web"), at(22)) && endpoints.none_usable(&of("web"), at(26)));
    }

    #[test]
    fn relist_removes_slice_lost_in_gap() {
        let at = Stamp::from_unix_ns;
        let named = |name: &str, change, pod: &str| EndpointSliceEvent {
            change,
            name: name.into(),
            service: Some(name.into()),
            ..slice(&[(pod, true, true, false)])
        };
        let mut endpoints = EndpointHistory::default();
        endpoints.observe(at(10), &named("web", Change::Listed, "a"));
        endpoints.observe(at(10), &named("api", Change::Listed, "b"));
        endpoints.was_blind(at(20), at(30), true);
        let mut unlisted = endpoints.clone();
        endpoints.observe(at(31), &named("web", Change::Listed, "a"));
        endpoints.end();
        let removed = |endpoints: &EndpointHistory, pod| {
            endpoints.first(EndpointOf::named(pod), EndpointChange::Removed, at(0))
        };
        assert_eq!((removed(&endpoints, "a"), removed(&endpoints, "b")), (None, Some(at(31))));
        assert!(endpoints.none_usable(&of("api"), at(32)) && !endpoints.none_usable(&of("web"), at(32)));
        unlisted.end();
        assert_eq!(removed(&unlisted, "b"), None, "no list since the gap");
        // The watch continued after an empty list.
        unlisted.observe(at(40), &named("new", Change::Applied, "c"));
        assert_eq!((removed(&unlisted, "a"), removed(&unlisted, "b")), (Some(at(40)), Some(at(40))));
    }

    #[test]
    fn same_named_pods_keep_separate_endpoints() {
        let at = Stamp::from_unix_ns;
        let with = |address: &str, ready, terminating| {
            let mut event = slice(&[("web-0", ready, true, terminating)]);
            event.endpoints[0].address = address.into();
            event
        };
        let mut endpoints = EndpointHistory::default();
        endpoints.observe(at(10), &with("10.0.0.1", true, false));
        // One update replaces the old endpoint with the new one, so the name is never without an endpoint.
        endpoints.observe(at(20), &with("10.0.0.2", false, false));
        endpoints.observe(at(30), &with("10.0.0.2", true, false));
        endpoints.observe(at(40), &with("10.0.0.2", false, true));
        let life = |uid, from, until: Option<i64>| LifeOf {
            name: "web-0",
            uid,
            from: at(from),
            until: until.map(at),
        };
        let first = EndpointOf::life(life("u1", 5, Some(18)), Some("10.0.0.1"));
        let second = EndpointOf::life(life("u2", 18, None), Some("10.0.0.2"));
        assert_eq!(endpoints.first(first, EndpointChange::Removed, at(15)), Some(at(20)));
        assert_eq!(
            endpoints.first(first, EndpointChange::Terminating, at(15)),
            None,
            "that is the next pod's"
        );
        assert_eq!(endpoints.first(second, EndpointChange::Ready, at(18)), Some(at(30)));
        let nameless = EndpointOf::life(life("u1", 5, Some(18)), None);
        assert_eq!(endpoints.first(nameless, EndpointChange::Terminating, at(15)), None, "after it ended");
    }
}
