//! What a proxy is to do, computed from Services and EndpointSlices. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use serde::Serialize;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// One port of one Service: the address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ServicePort {
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
    /// The same port at every node's own address.
    pub(super) node_port: Option<u16>,
    /// `namespace/name`.
    pub(super) service: Arc<str>,
}

/// What a Service port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// Where a connection may go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Backend {
    /// Name of the pod; its address when the endpoint names none.
    pub(super) pod: Arc<str>,
    pub(super) address: SocketAddr,
}

/// Backends of every Service port, in order.
pub(super) type Table = BTreeMap<ServicePort, Arc<[Backend]>>;

/// The table for these objects. Like kube-proxy: ready endpoints; where a Service
/// port has none, those that still serve while terminating.
pub(super) fn compute(services: &[Service], slices: &[EndpointSlice]) -> Table {
    let mut table = Table::new();
    for service in services {
        let Some(name) = &service.metadata.name else { continue };
        let Some(spec) = &service.spec else { continue };
        // Headless Services ("None") and those of other types have no address to proxy.
        let Some(cluster_ip) = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()) else {
            continue;
        };
        let namespace = service.metadata.namespace.as_deref().unwrap_or("default");
        let service_name: Arc<str> = format!("{namespace}/{name}").into();
        let own: Vec<_> = slices.iter().filter(|slice| belongs_to(slice, namespace, name)).collect();
        for port in spec.ports.iter().flatten() {
            let protocol = match port.protocol.as_deref() {
                None | Some("TCP") => Protocol::Tcp,
                Some("UDP") => Protocol::Udp,
                Some(_) => continue,
            };
            let Ok(number) = u16::try_from(port.port) else { continue };
            let key = ServicePort {
                address: SocketAddr::new(cluster_ip, number),
                protocol,
                node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
                service: Arc::clone(&service_name),
            };
            table.insert(key, backends(&own, port.name.as_deref().unwrap_or_default()));
        }
    }
    table
}

fn belongs_to(slice: &EndpointSlice, namespace: &str, service: &str) -> bool {
    let label = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME_LABEL));
    slice.metadata.namespace.as_deref().unwrap_or("default") == namespace
        && label.is_some_and(|label| label == service)
}

fn backends(slices: &[&EndpointSlice], port_name: &str) -> Arc<[Backend]> {
    let mut ready = Vec::new();
    let mut serving_while_terminating = Vec::new();
    for slice in slices {
        let Some(port) = slice
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref().unwrap_or_default() == port_name)
            .and_then(|port| u16::try_from(port.port?).ok())
        else {
            continue;
        };
        for endpoint in slice.endpoints.iter().flatten() {
            let into = match Usable::of(endpoint) {
                Usable::Ready => &mut ready,
                Usable::ServingWhileTerminating => &mut serving_while_terminating,
                Usable::No => continue,
            };
            // Only the first address counts: consumers treat the others as the same endpoint.
            let Some(ip) = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok())
            else {
                continue;
            };
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
            into.push(Backend {
                pod: pod.unwrap_or_else(|| ip.to_string()).into(),
                address: SocketAddr::new(ip, port),
            });
        }
    }
    let mut chosen = if ready.is_empty() { serving_while_terminating } else { ready };
    // An endpoint may be in two slices for a moment.
    chosen.sort_unstable();
    chosen.dedup();
    chosen.into()
}

enum Usable {
    Ready,
    ServingWhileTerminating,
    No,
}

impl Usable {
    fn of(endpoint: &Endpoint) -> Self {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        // Unset means true for `ready` and for `serving`, and false for `terminating`.
        let ready = conditions.ready.unwrap_or(true);
        if ready {
            Self::Ready
        } else if conditions.serving.unwrap_or(ready) && conditions.terminating.unwrap_or(false) {
            Self::ServingWhileTerminating
        } else {
            Self::No
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, ip: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]},
        }))
        .unwrap()
    }

    /// A slice of `web` with endpoints (pod, ready, serving, terminating).
    fn slice(endpoints: &[(&str, bool, bool, bool)]) -> EndpointSlice {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .enumerate()
            .map(|(n, (pod, ready, serving, terminating))| {
                json!({
                    "addresses": [format!("127.64.0.{}", n + 1)],
                    "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                    "targetRef": {"kind": "Pod", "name": pod},
                })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "web-abcde", "namespace": "shop", "labels": {SERVICE_NAME_LABEL: "web"}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }))
        .unwrap()
    }

    fn pods(slices: &[EndpointSlice]) -> Vec<String> {
        let table = compute(&[service("web", "127.64.240.1")], slices);
        table
            .iter()
            .filter(|(port, _)| port.protocol == Protocol::Tcp)
            .map(|(_, backends)| backends)
            .flat_map(|backends| backends.iter().map(|b| b.pod.to_string()))
            .collect()
    }

    #[test]
    fn ready_endpoints_come_first() {
        let one = slice(&[("a", true, true, false), ("b", false, true, true), ("c", false, false, false)]);
        assert_eq!(pods(&[one]), ["a"]);
    }

    #[test]
    fn without_a_ready_endpoint_the_terminating_ones_that_serve_are_used() {
        let one = slice(&[("a", false, false, true), ("b", false, true, true), ("c", false, false, false)]);
        assert_eq!(pods(&[one]), ["b"]);
    }

    #[test]
    fn a_service_without_endpoints_keeps_its_address() {
        assert!(pods(&[]).is_empty());
        assert!(pods(&[slice(&[("a", false, false, false)])]).is_empty());
    }

    #[test]
    fn unset_conditions_mean_ready() {
        let mut one = slice(&[("a", false, false, false)]);
        one.endpoints.as_mut().unwrap()[0].conditions = None;
        assert_eq!(pods(&[one]), ["a"]);
    }

    #[test]
    fn an_endpoint_in_two_slices_counts_once() {
        let one = slice(&[("a", true, true, false)]);
        assert_eq!(pods(&[one.clone(), one]), ["a"]);
    }

    #[test]
    fn headless_services_and_strangers_slices_are_left_out() {
        let table = compute(
            &[service("web", "None"), service("other", "127.64.240.2")],
            &[slice(&[("a", true, true, false)])],
        );
        let (port, backends) = table.iter().find(|(port, _)| port.protocol == Protocol::Tcp).unwrap();
        assert_eq!((port.address.to_string().as_str(), &*port.service), ("127.64.240.2:80", "shop/other"));
        assert!(backends.is_empty());
    }
}
