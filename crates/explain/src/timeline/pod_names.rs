//! Maps pod header values to pods.
//!
//! Apps and gateways name pods in different ways: by the pod's name, its host name, its address, or its name and
//! namespace; each proxy on the path may add its own value. A value that matches no watched pod names none: it may
//! belong to a cache or a gateway.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashSet;

use super::pod_addresses::PodAddresses;
use super::span::TimeSpan;
use rolldrop_record::{Event, EventKind};

/// Maximum number of stored values that name no pod.
const MAX_UNMATCHED: usize = 8;

/// Names of the pods that a run watched.
#[derive(Clone, Debug, Default)]
pub(super) struct PodNames(HashSet<Arc<str>>);

impl PodNames {
    /// Collects the names of all pods in the events.
    pub(super) fn of(events: &[Event]) -> Self {
        let name = |event: &Event| match &event.kind {
            EventKind::Pod(pod) | EventKind::OwnPod(pod) => Some(pod.name.as_str().into()),
            EventKind::ProxyPhase { pod, .. } | EventKind::ProxyEnded { pod, .. } => {
                Some(pod.as_str().into())
            }
            _ => None,
        };
        Self(events.iter().filter_map(name).collect())
    }

    /// Returns true if no pod was watched, so that a value cannot be judged.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pod that a header value names at that time. In a list, the first value that names a pod counts,
    /// because the hop nearest to the app writes first.
    pub(super) fn find<'a>(
        &'a self,
        addresses: &'a PodAddresses,
        value: &str,
        at: TimeSpan,
    ) -> Option<&'a Arc<str>> {
        if let Some(name) = self.0.get(value) {
            return Some(name);
        }
        value.split(',').find_map(|one| self.find_one(addresses, one.trim().trim_matches('"'), at))
    }

    fn find_one<'a>(
        &'a self,
        addresses: &'a PodAddresses,
        value: &str,
        at: TimeSpan,
    ) -> Option<&'a Arc<str>> {
        let address = value.parse::<IpAddr>().ok().or_else(|| {
            let with_port = value.parse::<SocketAddr>().ok();
            with_port.map(|address| address.ip())
        });
        if let Some(address) = address {
            return addresses.pod(address, at);
        }
        // NAMESPACE/NAME, NAME.NAMESPACE and NAME.SERVICE.NAMESPACE.svc, NAME:PORT.
        let value = value.rsplit('/').next().unwrap_or(value);
        let value = value.split(':').next().unwrap_or(value);
        let label = || self.0.get(value.split('.').next()?);
        self.0.get(value).or_else(label)
    }
}

/// Pods that forward requests to others. Responses name them after another pod, and no response names them first. These
/// pods do not serve or lose requests.
#[derive(Debug, Default)]
pub(super) struct Relays {
    behind: HashSet<Arc<str>>,
    first: HashSet<Arc<str>>,
}

impl Relays {
    /// Adds the header value of a response from `first`.
    pub(super) fn see(&mut self, names: &PodNames, value: &str, first: &Arc<str>) {
        if !self.first.contains(first) {
            self.first.insert(Arc::clone(first));
        }
        if value.contains(',') {
            let others = value.split(", ").skip(1).filter_map(|one| names.0.get(one));
            self.behind.extend(others.cloned());
        }
    }

    pub(super) fn merge(&mut self, later: Self) {
        self.behind.extend(later.behind);
        self.first.extend(later.first);
    }

    /// Returns the pods that only forwarded requests in the whole run.
    pub(super) fn finish(self) -> HashSet<Arc<str>> {
        self.behind.difference(&self.first).cloned().collect()
    }
}

/// Pod header values that match no pod in the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Number of responses with such a value.
    pub answers: u64,
    /// Sample of the values.
    pub values: BTreeSet<Arc<str>>,
}

impl Unmatched {
    pub(super) fn add(&mut self, value: &Arc<str>) {
        self.answers += 1;
        if self.values.len() < MAX_UNMATCHED && !self.values.contains(value) {
            self.values.insert(Arc::clone(value));
        }
    }

    pub(super) fn merge(&mut self, later: Self) {
        self.answers += later.answers;
        let room = MAX_UNMATCHED - self.values.len();
        let new: Vec<_> = later.values.difference(&self.values).take(room).cloned().collect();
        self.values.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use rolldrop_record::event::Change;

    fn at(s: i64) -> rolldrop_record::Stamp {
        rolldrop_record::Stamp::from_unix_ns(s * 1_000_000_000)
    }

    fn pod(s: i64, name: &str, ip: &str) -> Event {
        let pod = json!({
            "v": 1, "t_ns": at(s), "source": "coordinator", "kind": "pod",
            "change": "applied", "namespace": "shop", "name": name, "uid": name, "resource_version": "1",
            "node": "n1", "ip": ip, "phase": "Running", "ready": true, "deletion_timestamp": null,
            "deletion_grace_s": null, "grace_s": 30, "disruption_target": null, "containers": [],
        });
        serde_json::from_value(pod).unwrap()
    }

    fn found(value: &str, s: i64) -> Option<String> {
        let events =
            [pod(1, "web-0", "10.1.0.1"), pod(2, "web-7d9f.x", "10.1.0.2"), pod(9, "web-1", "10.1.0.1")];
        let mut gone = pod(8, "web-0", "10.1.0.1");
        if let EventKind::Pod(pod) = &mut gone.kind {
            pod.change = Change::Deleted;
        }
        let events = [&events[..2], &[gone], &events[2..]].concat();
        let mut addresses = PodAddresses::default();
        let mut names = BTreeMap::new();
        for event in &events {
            if let EventKind::Pod(pod) = &event.kind {
                addresses.observe(event.at, pod, &mut names);
            }
        }
        PodNames::of(&events).find(&addresses, value, TimeSpan::at(at(s))).map(ToString::to_string)
    }

    #[test]
    fn pod_resolves_from_every_alias() {
        let find = |value: &str| found(value, 5);
        for value in [
            "web-0",
            "web-0.shop",
            "web-0.web.shop.svc.cluster.local",
            "shop/web-0",
            "web-0:8080",
            "10.1.0.1",
            "10.1.0.1:8080",
            "web-0, cache-fra1234",
            "cache-fra1234,web-0",
            "\"web-0\"",
        ] {
            assert_eq!(find(value).as_deref(), Some("web-0"), "{value}");
        }
        assert_eq!(find("web-7d9f.x").as_deref(), Some("web-7d9f.x"), "a pod's name may have dots");
        assert_eq!(find("web-0, web-1").as_deref(), Some("web-0"), "the first pod of several");
        for value in ["", "web", "cache-fra1234", "10.9.9.9", ",", ".", "/", ":", "[::1"] {
            assert_eq!(find(value), None, "{value}");
        }
    }

    #[test]
    fn address_resolves_by_time() {
        let found: Vec<_> = [0, 5, 9, 20].map(|s| found("10.1.0.1", s).unwrap()).into();
        assert_eq!(found, ["web-0", "web-0", "web-1", "web-1"]);
    }

    #[test]
    fn only_a_few_unmatched_names_are_kept() {
        let mut unmatched = Unmatched::default();
        (0..100).for_each(|n| unmatched.add(&format!("cache-{}", n % 10).into()));
        assert_eq!((unmatched.answers, unmatched.values.len()), (100, MAX_UNMATCHED));
    }
}
