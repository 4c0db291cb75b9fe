//! Services whose addresses gateways may send requests to, and the pods behind them, as EndpointSlices show them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rolldrop_record::event::{Change, EndpointSliceEvent, ServiceEvent};
use rolldrop_record::{EventKind, LoggedUpstream, Stamp};

/// Number that stands for a Service but takes fewer bytes than its name.
pub(super) type ServiceNumber = u32;

/// Services, and the pods that were their endpoints in the last minutes.
#[derive(Debug, Default)]
pub(super) struct KnownServices {
    /// Services by number. None is forgotten, because there are few.
    services: Vec<KnownService>,
    numbers: HashMap<(String, String), ServiceNumber>,
    by_address: HashMap<IpAddr, ServiceNumber>,
    by_node_port: HashMap<u16, ServiceNumber>,
}

#[derive(Debug)]
struct KnownService {
    namespace: String,
    name: String,
    /// Endpoints by address and pod, because pods' addresses and names are reused.
    endpoints: BTreeMap<(IpAddr, String), KnownEndpoint>,
}

#[derive(Debug)]
struct KnownEndpoint {
    slice: Arc<str>,
    /// Time from which no slice listed the endpoint any more.
    gone: Option<Stamp>,
}

impl KnownServices {
    /// Processes a watch event.
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::Service(event) => self.observe_service(event),
            EventKind::EndpointSlice(event) => self.observe_slice(at, event),
            // A list follows, which lacks everything deleted during the gap.
            EventKind::WatchGap { resource, .. } if resource == "services" => {
                self.by_address.clear();
                self.by_node_port.clear();
            }
            EventKind::WatchGap { resource, .. } if resource == "endpointslices" => {
                let endpoints = self.services.iter_mut().flat_map(|service| service.endpoints.values_mut());
                endpoints.for_each(|endpoint| _ = endpoint.gone.get_or_insert(at));
            }
            _ => {}
        }
    }

    fn observe_service(&mut self, event: &ServiceEvent) {
        let number = self.number_of(&event.namespace, &event.name);
        self.by_address.retain(|_, of| *of != number);
        self.by_node_port.retain(|_, of| *of != number);
        if event.change != Change::Deleted {
            self.by_address.extend(event.cluster_ips.iter().map(|address| (*address, number)));
            self.by_node_port.extend(event.node_ports.iter().map(|port| (*port, number)));
        }
    }

    fn observe_slice(&mut self, at: Stamp, event: &EndpointSliceEvent) {
        let Some(name) = &event.service else { return };
        let number = self.number_of(&event.namespace, name);
        let endpoints = &mut self.services[number as usize].endpoints;
        for endpoint in endpoints.values_mut().filter(|endpoint| *endpoint.slice == *event.name) {
            endpoint.gone.get_or_insert(at);
        }
        if event.change == Change::Deleted {
            return;
        }
        let slice: Arc<str> = event.name.as_str().into();
        for endpoint in &event.endpoints {
            if let (Some(pod), Ok(address)) = (&endpoint.pod, endpoint.address.parse()) {
                let known = KnownEndpoint { slice: Arc::clone(&slice), gone: None };
                endpoints.insert((address, pod.clone()), known);
            }
        }
    }

    fn number_of(&mut self, namespace: &str, name: &str) -> ServiceNumber {
        let next = ServiceNumber::try_from(self.services.len()).unwrap_or(ServiceNumber::MAX);
        let key = (namespace.to_owned(), name.to_owned());
        *self.numbers.entry(key).or_insert_with_key(|(namespace, name)| {
            let (namespace, name) = (namespace.clone(), name.clone());
            self.services.push(KnownService { namespace, name, endpoints: BTreeMap::new() });
            next
        })
    }

    /// Returns the Service that a log names by its address or DNS name. `namespace` is the gateway's namespace, in
    /// which a Service's bare name is enough.
    pub(super) fn named(&self, upstream: &LoggedUpstream, namespace: Option<&str>) -> Option<ServiceNumber> {
        let host = match upstream {
            LoggedUpstream::Address(address) => return self.at(*address),
            LoggedUpstream::Host(host) => host,
            LoggedUpstream::Unnamed => return None,
        };
        let mut labels = host.split('.');
        let name = labels.next()?;
        let namespace = labels.next().or(namespace)?;
        let is_service = labels.next().is_none_or(|label| label == "svc");
        self.numbers.get(&(namespace.to_owned(), name.to_owned())).copied().filter(|_| is_service)
    }

    /// Returns the Service that has this address: a cluster IP, or a node's address with a node port. A pod in its
    /// node's network may itself listen on a port with the same number as its Service's node port.
    fn at(&self, address: SocketAddr) -> Option<ServiceNumber> {
        let by_node_port = || {
            let number = *self.by_node_port.get(&address.port())?;
            let first = (address.ip(), String::new());
            let next = self.services[number as usize].endpoints.range(first..).next();
            next.is_none_or(|((of, _), _)| *of != address.ip()).then_some(number)
        };
        self.by_address.get(&address.ip()).copied().or_else(by_node_port)
    }

    /// Returns the Services that have or had a pod as an endpoint.
    pub(super) fn of_pod(&self, namespace: &str, name: &str, address: IpAddr) -> Vec<ServiceNumber> {
        let numbers = (0..).take(self.services.len());
        numbers.filter(|number| self.has_pod(*number, namespace, name, address)).collect()
    }

    /// Returns true if this Service has or had a pod as an endpoint.
    pub(super) fn has_pod(
        &self,
        number: ServiceNumber,
        namespace: &str,
        name: &str,
        address: IpAddr,
    ) -> bool {
        let of = &self.services[number as usize];
        of.namespace == namespace && of.endpoints.contains_key(&(address, name.to_owned()))
    }

    /// Returns the namespace and name of a Service, as shown in reports.
    pub(super) fn name(&self, number: ServiceNumber) -> String {
        let KnownService { namespace, name, .. } = &self.services[number as usize];
        format!("{namespace}/{name}")
    }

    /// Forgets endpoints that were gone before `before`.
    pub(super) fn forget_before(&mut self, before: Stamp) {
        for service in &mut self.services {
            service.endpoints.retain(|_, endpoint| endpoint.gone.is_none_or(|gone| gone >= before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::event::EndpointState;

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns(s * 1_000_000_000)
    }

    fn slice(name: &str, change: Change, endpoints: &[(&str, &str)]) -> EventKind {
        let endpoint = |(pod, address): &(&str, &str)| EndpointState {
            pod: Some((*pod).to_owned()),
            address: (*address).to_owned(),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
        };
        EventKind::EndpointSlice(EndpointSliceEvent {
            change,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            service: Some("web".to_owned()),
            endpoints: endpoints.iter().map(endpoint).collect(),
        })
    }

    fn service(change: Change, name: &str, ip: &str, node_port: Option<u16>) -> EventKind {
        EventKind::Service(ServiceEvent {
            change,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            cluster_ips: vec![ip.parse().unwrap()],
            node_ports: node_port.into_iter().collect(),
        })
    }

    #[test]
    fn addresses_identify_current_service() {
        let mut known = KnownServices::default();
        let at_address = |known: &KnownServices, address: &str| {
            known.at(address.parse().unwrap()).map(|number| known.name(number))
        };
        known.observe(at(0), &service(Change::Listed, "web", "10.96.0.1", Some(30_080)));
        known.observe(at(0), &slice("web-x", Change::Listed, &[("host", "192.168.0.2")]));
        for (address, name) in [
            ("10.96.0.1:80", Some("shop/web")),
            ("192.168.0.1:30080", Some("shop/web")),
            ("192.168.0.2:30080", None),
            ("192.168.0.1:30081", None),
        ] {
            assert_eq!(at_address(&known, address).as_deref(), name, "{address}");
        }
        // The address is reassigned to another Service.
        known.observe(at(1), &service(Change::Deleted, "web", "10.96.0.1", Some(30_080)));
        assert_eq!(at_address(&known, "10.96.0.1:80"), None);
        known.observe(at(2), &service(Change::Applied, "api", "10.96.0.1", None));
        assert_eq!(at_address(&known, "10.96.0.1:80").as_deref(), Some("shop/api"));
        known.observe(at(3), &EventKind::WatchGap { resource: "services".to_owned(), from: at(2) });
        assert_eq!(at_address(&known, "10.96.0.1:80"), None, "it may have been deleted");
    }

    #[test]
    fn dns_names_identify_services() {
        let mut known = KnownServices::default();
        known.observe(at(0), &slice("web-x", Change::Listed, &[("a", "10.0.0.1")]));
        let is_web =
            |host: &str, namespace| known.named(&LoggedUpstream::Host(host.into()), namespace).is_some();
        for host in ["web.shop", "web.shop.svc", "web.shop.svc.cluster.local", "web.shop.svc.example.org."] {
            assert!(is_web(host, None) && is_web(host, Some("edge")), "{host}");
        }
        assert!(is_web("web", Some("shop")) && !is_web("web", Some("edge")) && !is_web("web", None));
        assert!(!is_web("web.shop.example.org", None) && !is_web("web.edge", Some("shop")));
    }

    #[test]
    fn removed_endpoints_are_remembered_for_a_while() {
        let mut known = KnownServices::default();
        let is_behind = |known: &KnownServices, pod: &str, address: &str| {
            known.of_pod("shop", pod, address.parse().unwrap()).len() == 1
        };
        known.observe(at(0), &slice("web-x", Change::Listed, &[("a", "10.0.0.1"), ("b", "10.0.0.2")]));
        // An endpoint moves to another slice.
        known.observe(at(1), &slice("web-y", Change::Applied, &[("b", "10.0.0.2")]));
        known.observe(at(2), &slice("web-x", Change::Applied, &[]));
        known.forget_before(at(2));
        assert!(is_behind(&known, "a", "10.0.0.1") && is_behind(&known, "b", "10.0.0.2"));
        assert!(!is_behind(&known, "a", "10.0.0.2"), "another pod has this address");
        assert!(known.of_pod("other", "a", "10.0.0.1".parse().unwrap()).is_empty());
        known.forget_before(at(3));
        assert!(!is_behind(&known, "a", "10.0.0.1") && is_behind(&known, "b", "10.0.0.2"));
        // The list after a gap no longer contains the slice.
        known.observe(at(4), &EventKind::WatchGap { resource: "endpointslices".to_owned(), from: at(3) });
        known.forget_before(at(5));
        assert!(!is_behind(&known, "b", "10.0.0.2"));
    }
}
