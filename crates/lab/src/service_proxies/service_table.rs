//! A proxy's routing tables, computed from Services and EndpointSlices. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use serde::Serialize;

use crate::well_known::SERVICE_NAME;

/// One port of a Service, at the address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ServicePort {
    pub(super) address: SocketAddr,
    pub(super) protocol: PortProtocol,
    /// Node port, at every node's own address.
    pub(super) node_port: Option<u16>,
    /// Policy for connections to the Service's own address.
    pub(super) internal: ServiceTrafficPolicy,
    /// Policy for connections to node ports from outside the node and its pods.
    pub(super) external: ServiceTrafficPolicy,
    /// `namespace/name`.
    pub(super) service: Arc<str>,
}

impl ServicePort {
    /// Returns the routes for connections to this port.
    pub(super) fn routes(&self, endpoints: &PortEndpoints) -> Routes {
        let by = |policy| match endpoints.way(policy) {
            ConnectionFate::To(backends) => Arc::clone(backends),
            ConnectionFate::Rejected | ConnectionFate::Dropped => Arc::default(),
        };
        Routes { internal: by(self.internal), external: by(self.external) }
    }

    fn uses_local_endpoints(&self) -> bool {
        self.internal == ServiceTrafficPolicy::Local
            || (self.node_port.is_some() && self.external == ServiceTrafficPolicy::Local)
    }
}

/// Traffic policy of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ServiceTrafficPolicy {
    /// Endpoints in the whole cluster.
    #[default]
    Cluster,
    /// Endpoints on the node where the connection arrives.
    Local,
}

impl ServiceTrafficPolicy {
    fn of(text: Option<&str>) -> Self {
        if text == Some("Local") { Self::Local } else { Self::Cluster }
    }
}

/// Transport protocol of a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PortProtocol {
    Tcp,
    Udp,
}

impl fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// Endpoint to which a connection can be routed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Backend {
    /// Name of the pod, or its address if the endpoint names none.
    pub(super) pod: Arc<str>,
    pub(super) address: SocketAddr,
}

/// Endpoints of one Service port from the perspective of one node: the ready ones or, if there are none, those that
/// still serve while terminating.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortEndpoints {
    /// Endpoints in the whole cluster.
    pub(super) cluster: Arc<[Backend]>,
    /// Endpoints on the node itself, if one of the port's policies needs them.
    pub(super) local: Arc<[Backend]>,
    /// Time for which a client stays with the endpoint of its last connection (`sessionAffinity: ClientIP`).
    pub(super) affinity: Option<Duration>,
}

/// Backends for connections to a Service port; none if connections are rejected or dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Routes {
    /// Backends for connections to the Service's own address.
    pub(super) internal: Arc<[Backend]>,
    /// Backends for connections to a node port from outside.
    pub(super) external: Arc<[Backend]>,
}

/// Fate of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionFate<'a> {
    /// The connection goes to one of these backends.
    To(&'a Arc<[Backend]>),
    /// There are no endpoints anywhere.
    Rejected,
    /// There are endpoints, but none on this node, and the policy allows no others.
    Dropped,
}

impl PortEndpoints {
    /// Applies a policy as `CategorizeEndpoints` does (kubernetes/kubernetes, `pkg/proxy/topology.go`).
    pub(super) fn way(&self, policy: ServiceTrafficPolicy) -> ConnectionFate<'_> {
        match policy {
            _ if self.cluster.is_empty() => ConnectionFate::Rejected,
            ServiceTrafficPolicy::Cluster => ConnectionFate::To(&self.cluster),
            ServiceTrafficPolicy::Local if self.local.is_empty() => ConnectionFate::Dropped,
            ServiceTrafficPolicy::Local => ConnectionFate::To(&self.local),
        }
    }
}

/// All Service ports, in order.
pub(super) type ServiceTable = BTreeMap<ServicePort, PortEndpoints>;

/// Computes the table of `node` from these objects.
pub(super) fn compute(services: &[Service], slices: &[EndpointSlice], node: &str) -> ServiceTable {
    let mut table = ServiceTable::new();
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
                None | Some("TCP") => PortProtocol::Tcp,
                Some("UDP") => PortProtocol::Udp,
                Some(_) => continue,
            };
            let Ok(number) = u16::try_from(port.port) else { continue };
            let key = ServicePort {
                address: SocketAddr::new(cluster_ip, number),
                protocol,
                node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
                internal: ServiceTrafficPolicy::of(spec.internal_traffic_policy.as_deref()),
                external: ServiceTrafficPolicy::of(spec.external_traffic_policy.as_deref()),
                service: Arc::clone(&service_name),
            };
            let endpoints = endpoints(&key, &own, port.name.as_deref().unwrap_or_default(), node);
            table.insert(key, PortEndpoints { affinity: affinity(spec), ..endpoints });
        }
    }
    table
}

/// Returns the session affinity timeout, as `newBaseServiceInfo` does (kubernetes/kubernetes,
/// `pkg/proxy/serviceport.go`). The API server fills in a missing timeout.
fn affinity(spec: &ServiceSpec) -> Option<Duration> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let seconds = spec.session_affinity_config.as_ref()?.client_ip.as_ref()?.timeout_seconds?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

fn belongs_to(slice: &EndpointSlice, namespace: &str, service: &str) -> bool {
    let label = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
    slice.metadata.namespace.as_deref().unwrap_or("default") == namespace
        && label.is_some_and(|label| label == service)
}

fn endpoints(port: &ServicePort, slices: &[&EndpointSlice], port_name: &str, node: &str) -> PortEndpoints {
    let mut all = Vec::new();
    for slice in slices {
        let Some(number) = slice
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref().unwrap_or_default() == port_name)
            .and_then(|port| u16::try_from(port.port?).ok())
        else {
            continue;
        };
        all.extend(
            slice
                .endpoints
                .iter()
                .flatten()
                .filter_map(|endpoint| UsableEndpoint::of(endpoint, number, node)),
        );
    }
    let choose = |may_be: &dyn Fn(&UsableEndpoint) -> bool| -> Arc<[Backend]> {
        let backends = |may_be: &dyn Fn(&UsableEndpoint) -> bool| {
            let mut chosen: Vec<_> =
                all.iter().filter(|one| may_be(one)).map(|one| one.backend.clone()).collect();
            // An endpoint may be in two slices for a short time.
            chosen.sort_unstable();
            chosen.dedup();
            chosen
        };
        let ready = backends(&|one| may_be(one) && one.is == EndpointReadiness::Ready);
        if ready.is_empty() { backends(may_be).into() } else { ready.into() }
    };
    let local = if port.uses_local_endpoints() { choose(&|one| one.is_local) } else { Arc::default() };
    PortEndpoints { cluster: choose(&|_| true), local, affinity: None }
}

/// Endpoint that takes new connections, or may have to.
struct UsableEndpoint {
    backend: Backend,
    is: EndpointReadiness,
    is_local: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EndpointReadiness {
    Ready,
    ServingWhileTerminating,
}

impl UsableEndpoint {
    fn of(endpoint: &Endpoint, port: u16, node: &str) -> Option<Self> {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        // Unset means true for `ready` and for `serving`, and false for `terminating`.
        let ready = conditions.ready.unwrap_or(true);
        let is = if ready {
            EndpointReadiness::Ready
        } else if conditions.serving.unwrap_or(ready) && conditions.terminating.unwrap_or(false) {
            EndpointReadiness::ServingWhileTerminating
        } else {
            return None;
        };
        // Only the first address counts, because consumers treat the others as the same endpoint.
        let ip = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok())?;
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
        let backend =
            Backend { pod: pod.unwrap_or_else(|| ip.to_string()).into(), address: SocketAddr::new(ip, port) };
        Some(Self { backend, is, is_local: endpoint.node_name.as_deref() == Some(node) })
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

    /// Returns a slice of `web` with endpoints (pod, ready, serving, terminating).
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
            "metadata": {"name": "web-abcde", "namespace": "shop", "labels": {SERVICE_NAME: "web"}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }))
        .unwrap()
    }

    fn pods(slices: &[EndpointSlice]) -> Vec<String> {
        let table = compute(&[service("web", "127.64.240.1")], slices, "node-1");
        let of_tcp = table.iter().filter(|(port, _)| port.protocol == PortProtocol::Tcp);
        of_tcp.flat_map(|(_, endpoints)| names(&endpoints.cluster)).collect()
    }

    fn names(backends: &[Backend]) -> Vec<String> {
        backends.iter().map(|backend| backend.pod.to_string()).collect()
    }

    /// Returns the fate of outside connections to a node port with the `Local` policy.
    fn local(slices: &[EndpointSlice], node: &str) -> String {
        let mut service = service("web", "127.64.240.1");
        let spec = service.spec.as_mut().unwrap();
        spec.external_traffic_policy = Some("Local".to_owned());
        spec.ports.as_mut().unwrap()[0].node_port = Some(30080);
        let table = compute(&[service], slices, node);
        let (port, endpoints) = table.iter().find(|(port, _)| port.node_port.is_some()).unwrap();
        assert_eq!(port.internal, ServiceTrafficPolicy::Cluster);
        match endpoints.way(port.external) {
            ConnectionFate::To(backends) => names(backends).join(" "),
            way => format!("{way:?}"),
        }
    }

    #[test]
    fn local_policy_uses_only_node_endpoints() {
        let on = |mut slice: EndpointSlice| {
            for (n, endpoint) in slice.endpoints.iter_mut().flatten().enumerate() {
                endpoint.node_name = Some(format!("node-{}", n + 1));
            }
            [slice]
        };
        let both = on(slice(&[("a", true, true, false), ("b", true, true, false)]));
        assert_eq!(local(&both, "node-1"), "a");
        assert_eq!(local(&both, "node-3"), "Dropped");
        // The node uses its own terminating endpoint, although another node has a ready one.
        let leaving = on(slice(&[("a", false, true, true), ("b", true, true, false)]));
        assert_eq!(local(&leaving, "node-1"), "a");
        assert_eq!(pods(&leaving), ["b"]);
        let unready = on(slice(&[("a", false, false, true), ("b", true, true, false)]));
        assert_eq!(local(&unready, "node-1"), "Dropped");
        assert_eq!(local(&on(slice(&[("a", false, false, true)])), "node-1"), "Rejected");
    }

    #[test]
    fn session_affinity_timeout_is_read() {
        let affinity = |spec: Value| affinity(&serde_json::from_value(spec).unwrap());
        let config = json!({"clientIP": {"timeoutSeconds": 90}});
        let sticky = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config});
        assert_eq!(affinity(sticky), Some(Duration::from_secs(90)));
        assert_eq!(affinity(json!({"sessionAffinity": "None"})), None);
    }

    #[test]
    fn ready_endpoints_exclude_all_others() {
        let one = slice(&[("a", true, true, false), ("b", false, true, true), ("c", false, false, false)]);
        assert_eq!(pods(&[one]), ["a"]);
    }

    #[test]
    fn serving_terminating_endpoints_are_fallback() {
        let one = slice(&[("a", false, false, true), ("b", false, true, true), ("c", false, false, false)]);
        assert_eq!(pods(&[one]), ["b"]);
    }

    #[test]
    fn service_without_endpoints_stays_in_table() {
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
    fn duplicate_endpoint_counts_once() {
        let one = slice(&[("a", true, true, false)]);
        assert_eq!(pods(&[one.clone(), one]), ["a"]);
    }

    #[test]
    fn table_skips_headless_services_and_their_slices() {
        let table = compute(
            &[service("web", "None"), service("other", "127.64.240.2")],
            &[slice(&[("a", true, true, false)])],
            "node-1",
        );
        let (port, endpoints) = table.iter().find(|(port, _)| port.protocol == PortProtocol::Tcp).unwrap();
        assert_eq!((port.address.to_string().as_str(), &*port.service), ("127.64.240.2:80", "shop/other"));
        assert!(endpoints.cluster.is_empty());
    }
}
