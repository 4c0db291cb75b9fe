//! Pods by address and time, to translate the kernel's connection tracking into pod names.
//!
//! A connection may also be routed to the address of a pod that is gone; a window consists of such connections. An
//! address belongs to the last pod that had it until another pod gets it.

use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::clocks::Clocks;
use super::pod_lives::has_finished;
use super::span::TimeSpan;
use rolldrop_record::event::{Change, PodEvent};
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::{Balances, Target};
use rolldrop_record::{Event, EventKind, RequestRow, RunInfo, Stamp};

/// Pod that has or had an address.
#[derive(Clone, Debug)]
struct Bearer {
    pod: Arc<str>,
    uid: String,
    from: Stamp,
    /// Time the pod's containers had terminated, or the pod was deleted.
    until: Option<Stamp>,
}

/// Pods by address, in chronological order.
#[derive(Clone, Debug, Default)]
pub(super) struct PodAddresses {
    bearers: HashMap<IpAddr, Vec<Bearer>>,
    /// Names of targets where the pod that a connection was routed to need not be the one that answers.
    not_followed: HashSet<String>,
}

impl PodAddresses {
    /// Collects the pod addresses in a run.
    pub(super) fn of(info: &RunInfo, events: &[Event], clocks: &Clocks) -> Self {
        let mut addresses = Self::default();
        let is_opaque = |target: &&Target| {
            target.balances == Balances::Requests && !target.routing.as_ref().is_some_and(Routing::is_to_pod)
        };
        let of_gateways = info.targets.iter().filter(is_opaque);
        addresses.not_followed.extend(of_gateways.map(|target| target.name.clone()));
        let mut names = BTreeMap::new();
        for event in events {
            if let EventKind::Pod(pod) = &event.kind {
                addresses.observe(clocks.place(&event.source, event.at), pod, &mut names);
            }
        }
        addresses
    }

    pub(super) fn observe(&mut self, at: Stamp, pod: &PodEvent, names: &mut BTreeMap<String, Arc<str>>) {
        let Some(ip) = pod.ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()) else { return };
        let bearers = self.bearers.entry(ip).or_default();
        let known = bearers.iter().position(|bearer| bearer.uid == pod.uid);
        let is_over = pod.change == Change::Deleted || has_finished(pod);
        let bearer = match known {
            Some(number) => &mut bearers[number],
            // A finished pod's status still names its address, which another pod may have by now.
            None if is_over => return,
            None => {
                let name = names.entry(pod.name.clone()).or_insert_with(|| pod.name.as_str().into());
                let (name, uid) = (Arc::clone(name), pod.uid.clone());
                bearers.push(Bearer { pod: name, uid, from: at, until: None });
                let last = bearers.len() - 1;
                &mut bearers[last]
            }
        };
        if is_over {
            bearer.until.get_or_insert(at);
        }
    }

    /// Returns the pod that had an address in this short period, or had it last. Returns `None` if no pod had it, if
    /// another pod got it in this period, or if two pods share it, as in the host network of one node.
    pub(super) fn pod(&self, ip: IpAddr, period: TimeSpan) -> Option<&Arc<str>> {
        let bearers = self.bearers.get(&ip)?;
        let pod = Self::pod_at(bearers, period.from)?;
        (bearers.len() == 1 || Self::pod_at(bearers, period.until) == Some(pod)).then_some(pod)
    }

    fn pod_at(bearers: &[Bearer], at: Stamp) -> Option<&Arc<str>> {
        // A watch may show an address slightly later than the rules list it.
        let begun = bearers.partition_point(|bearer| bearer.from <= at).max(1);
        let (last, before) = bearers.get(..begun)?.split_last()?;
        let is_shared = before.iter().any(|bearer| bearer.until.is_none_or(|until| until > last.from));
        (!is_shared).then_some(&last.pod)
    }

    /// Returns the pod that the kernel routed a request's connection to.
    pub(super) fn routed_to(&self, row: &RequestRow, begun: TimeSpan) -> Option<&Arc<str>> {
        let ip = row.routed_to?.ip();
        (!self.not_followed.contains(&*row.target)).then(|| self.pod(ip, begun)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, ip: Option<&str>, phase: &str, change: Change) -> PodEvent {
        PodEvent {
            change,
            namespace: "shop".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            resource_version: "1".into(),
            node: None,
            ip: ip.map(str::to_owned),
            phase: phase.into(),
            ready: true,
            deletion_timestamp: None,
            deletion_grace_s: None,
            grace_s: 30,
            disruption_target: None,
            disruption_message: None,
            reason: None,
            owner: None,
            containers: Vec::new(),
        }
    }

    fn addresses(events: &[(i64, PodEvent)]) -> PodAddresses {
        let (mut addresses, mut names) = (PodAddresses::default(), BTreeMap::new());
        for (at, event) in events {
            addresses.observe(Stamp::from_unix_ns(*at), event, &mut names);
        }
        addresses
    }

    fn pod_at(addresses: &PodAddresses, at: i64) -> Option<&str> {
        pod_within(addresses, at, at)
    }

    fn pod_within(addresses: &PodAddresses, from: i64, until: i64) -> Option<&str> {
        let period = TimeSpan { from: Stamp::from_unix_ns(from), until: Stamp::from_unix_ns(until) };
        addresses.pod("10.244.1.2".parse().unwrap(), period).map(|pod| &**pod)
    }

    #[test]
    fn address_keeps_last_pod_until_reuse() {
        let ip = Some("10.244.1.2");
        let history = addresses(&[
            (5, seen("a", None, "Pending", Change::Applied)),
            (10, seen("a", ip, "Running", Change::Applied)),
            (50, seen("a", ip, "Failed", Change::Applied)),
            (60, seen("a", ip, "Failed", Change::Deleted)),
            (100, seen("b", ip, "Running", Change::Applied)),
        ]);
        let found: Vec<_> = [8, 10, 70, 99, 100, 900].map(|at| pod_at(&history, at)).into();
        assert_eq!(found, [Some("a"), Some("a"), Some("a"), Some("a"), Some("b"), Some("b")]);
        let unused = "10.244.1.3".parse().unwrap();
        assert_eq!(history.pod(unused, TimeSpan::at(Stamp::from_unix_ns(10))), None);
        let unsure =
            [(1, 9), (60, 99), (95, 105), (101, 102)].map(|(from, until)| pod_within(&history, from, until));
        assert_eq!(unsure, [Some("a"), Some("a"), None, Some("b")], "the address changed hands at 100");
    }

    #[test]
    fn finished_pod_does_not_share_address() {
        let ip = Some("10.244.1.2");
        for phase in ["Failed", "Succeeded"] {
            let old = (10, seen("old", ip, phase, Change::Listed));
            let live = (10, seen("live", ip, "Running", Change::Listed));
            let deleted = (30, seen("old", ip, phase, Change::Deleted));
            for listed in [[old.clone(), live.clone()], [live, old]] {
                let history = addresses(&[&listed[..], std::slice::from_ref(&deleted)].concat());
                assert_eq!([15, 40].map(|at| pod_at(&history, at)), [Some("live"); 2]);
            }
        }
    }

    #[test]
    fn shared_address_names_no_pod() {
        let ip = Some("10.244.1.2");
        let history = addresses(&[
            (10, seen("a", ip, "Running", Change::Applied)),
            (20, seen("b", ip, "Running", Change::Applied)),
            (30, seen("a", ip, "Running", Change::Deleted)),
            (40, seen("c", ip, "Running", Change::Applied)),
        ]);
        assert_eq!([15, 25].map(|at| pod_at(&history, at)), [Some("a"), None]);
    }
}
