//! Which pod a value of the pod header means.
//!
//! Apps and gateways name pods as they like: by the pod's name, its host name, its address, or its name and
//! namespace; each proxy on the way may add a value of its own. What names no pod that the run watched
//! names none: it may be a cache or a gateway.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::clocks::Clocks;
use crate::record::{Event, EventKind, Stamp};

/// Values that name no pod are kept in this number.
const MAX_UNMATCHED: usize = 8;

/// The pods that a run watched, by what they may be called.
#[derive(Clone, Debug, Default)]
pub(super) struct PodNames {
    names: HashMap<Arc<str>, Arc<str>>,
    /// An address may pass from one pod to the next: since when it was whose.
    addresses: HashMap<IpAddr, Vec<(Stamp, Arc<str>)>>,
}

impl PodNames {
    /// All pods of which the events tell.
    pub(super) fn of(events: &[Event], clocks: &Clocks) -> Self {
        let mut pods = Self::default();
        for event in events {
            match &event.kind {
                EventKind::Pod(pod) | EventKind::OwnPod(pod) => {
                    let name = pods.add(&pod.name);
                    if let Some(address) = pod.ip.as_deref().and_then(|ip| ip.parse().ok()) {
                        let owners = pods.addresses.entry(address).or_default();
                        if owners.last().is_none_or(|(_, owner)| *owner != name) {
                            owners.push((clocks.place(&event.source, event.at), name));
                        }
                    }
                }
                EventKind::ProxyPhase { pod, .. } | EventKind::ProxyEnded { pod, .. } => _ = pods.add(pod),
                _ => {}
            }
        }
        pods.addresses.values_mut().for_each(|owners| owners.sort_by_key(|(since, _)| *since));
        pods
    }

    fn add(&mut self, name: &str) -> Arc<str> {
        if let Some(name) = self.names.get(name) {
            return Arc::clone(name);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name), Arc::clone(&name));
        name
    }

    /// Whether no pod was watched, so that nothing can be said about a value.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The pod that a header's value means at `at`. Of a list the first one that is a pod counts: the one
    /// nearest to the app wrote first.
    pub(super) fn find(&self, value: &str, at: Stamp) -> Option<&Arc<str>> {
        if let Some(name) = self.names.get(value) {
            return Some(name);
        }
        value.split(',').find_map(|one| self.find_one(one.trim().trim_matches('"'), at))
    }

    fn find_one(&self, value: &str, at: Stamp) -> Option<&Arc<str>> {
        let address = value.parse::<IpAddr>().ok().or_else(|| {
            let with_port = value.parse::<SocketAddr>().ok();
            with_port.map(|address| address.ip())
        });
        if let Some(address) = address {
            let owners = self.addresses.get(&address)?;
            // It was the first one's before that was seen.
            let since = owners.partition_point(|(since, _)| *since <= at).max(1);
            return owners.get(since - 1).map(|(_, name)| name);
        }
        // NAMESPACE/NAME, NAME.NAMESPACE and NAME.SERVICE.NAMESPACE.svc, NAME:PORT.
        let value = value.rsplit('/').next().unwrap_or(value);
        let value = value.split(':').next().unwrap_or(value);
        let label = || self.names.get(value.split('.').next()?);
        self.names.get(value).or_else(label)
    }
}

/// Values of the pod header that name no pod which the run watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Answers with such a value.
    pub answers: u64,
    /// Some of the values, with their numbers.
    pub values: BTreeMap<Arc<str>, u64>,
}

impl Unmatched {
    pub(super) fn add(&mut self, value: &Arc<str>) {
        self.answers += 1;
        let known = self.values.len();
        match self.values.get_mut(value) {
            Some(count) => *count += 1,
            None if known < MAX_UNMATCHED => _ = self.values.insert(Arc::clone(value), 1),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns(s * 1_000_000_000)
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

    fn pods() -> PodNames {
        let events =
            [pod(1, "web-0", "10.1.0.1"), pod(2, "web-7d9f.x", "10.1.0.2"), pod(9, "web-1", "10.1.0.1")];
        PodNames::of(&events, &Clocks::default())
    }

    #[test]
    fn a_pod_is_known_by_what_apps_and_gateways_call_it() {
        let pods = pods();
        let find = |value: &str| pods.find(value, at(5)).map(|name| &**name);
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
            assert_eq!(find(value), Some("web-0"), "{value}");
        }
        assert_eq!(find("web-7d9f.x"), Some("web-7d9f.x"), "a pod's name may have dots");
        assert_eq!(find("web-0, web-1"), Some("web-0"), "the first pod of several");
        for value in ["", "web", "cache-fra1234", "10.9.9.9", ",", ".", "/", ":", "[::1"] {
            assert_eq!(find(value), None, "{value}");
        }
    }

    #[test]
    fn an_address_is_the_pods_that_had_it_then() {
        let pods = pods();
        let find = |s| pods.find("10.1.0.1", at(s)).map(|name| &**name);
        assert_eq!(
            [find(0), find(5), find(9), find(20)],
            [Some("web-0"), Some("web-0"), Some("web-1"), Some("web-1")]
        );
    }

    #[test]
    fn some_of_the_values_that_name_no_pod_are_kept_and_all_are_counted() {
        let mut unmatched = Unmatched::default();
        (0..100).for_each(|n| unmatched.add(&format!("cache-{}", n % 10).into()));
        assert_eq!((unmatched.answers, unmatched.values.len()), (100, MAX_UNMATCHED));
        assert_eq!(unmatched.values.values().sum::<u64>(), 80);
    }
}
