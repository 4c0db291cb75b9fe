//! Other ways to measure a Service whose own address cannot be reached from this machine.

use k8s_openapi::api::core::v1::{Node, NodeAddress, Service};
use k8s_openapi::api::networking::v1::{Ingress, IngressSpec};
use kube::Api;

use crate::api::Caller;
use crate::observe::target_service;
use crate::observe::ways::authority;
use rolldrop_scenario::{Place, Scenario};

/// Describes why the targets may not respond, and the other paths to them that the cluster shows.
pub(super) async fn other_ways(caller: &Caller, scenario: &Scenario) -> String {
    let mut words = Vec::new();
    for target in &scenario.targets {
        let Place::Service { name, .. } = &target.place else { continue };
        let Ok(service) = target_service::service(caller, name).await else { continue };
        let ingresses = caller.list_kind_as(|ingress: Ingress| ingress.spec).await.unwrap_or_default();
        let nodes = Api::<Node>::all(caller.client.clone());
        let nodes = caller.list_shown("list nodes", &nodes, node_addresses).await.unwrap_or_default();
        let urls = urls(&service, ingresses.iter().flatten(), nodes.iter().flatten());
        words.push(if urls.is_empty() {
            format!(
                "the address of Service {name} can be reached only inside the cluster, and there is no other path \
                 to it: give it a NodePort, a LoadBalancer or an Ingress and name that URL as the target, or run \
                 rolldrop on a node or in a pod"
            )
        } else {
            format!(
                "the address of Service {name} can be reached only inside the cluster: from here, try --target {}",
                urls.join(" or --target ")
            )
        });
    }
    if words.is_empty() { "the target does not answer".to_owned() } else { words.join("; ") }
}

fn node_addresses(node: Node) -> Vec<NodeAddress> {
    node.status.and_then(|status| status.addresses).unwrap_or_default()
}

/// Returns the URLs that lead to a Service from outside.
fn urls<'a>(
    service: &Service,
    ingresses: impl Iterator<Item = &'a IngressSpec>,
    addresses: impl Iterator<Item = &'a NodeAddress>,
) -> Vec<String> {
    let mut urls = Vec::new();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let ports = || service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    for address in balancer.into_iter().flat_map(|balancer| balancer.ingress.iter().flatten()) {
        let host = address.hostname.as_ref().or(address.ip.as_ref());
        urls.extend(
            host.iter()
                .flat_map(|host| ports().map(move |port| format!("http://{}/", authority(host, port.port)))),
        );
    }
    let node = addresses.filter(|a| ["ExternalIP", "InternalIP"].contains(&a.type_.as_str()));
    if let Some(node) = node.max_by_key(|address| address.type_ == "ExternalIP") {
        let node_ports = ports().filter_map(|port| port.node_port);
        urls.extend(node_ports.map(|port| format!("http://{}/", authority(&node.address, port))));
    }
    for spec in ingresses {
        let is_secure = |host: &str| {
            let hosts = spec.tls.iter().flatten().flat_map(|tls| tls.hosts.iter().flatten());
            hosts.into_iter().any(|secure| secure == host)
        };
        for rule in spec.rules.iter().flatten() {
            let Some(host) = &rule.host else { continue };
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                if path.backend.service.as_ref().is_some_and(|backend| backend.name == name) {
                    let scheme = if is_secure(host) { "https" } else { "http" };
                    urls.push(format!("{scheme}://{host}{}", path.path.as_deref().unwrap_or("/")));
                }
            }
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn external_urls_of_service_are_listed() {
        let service: Service = read(json!({
            "metadata": {"name": "web"},
            "spec": {"ports": [{"port": 80, "nodePort": 30080}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}},
        }));
        let node: Node = read(json!({"metadata": {}, "status": {"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"}
        ]}}));
        let path = |service: &str| json!({"pathType": "Prefix", "path": "/x", "backend": {"service": {"name": service, "port": {"number": 80}}}});
        let ingress: Ingress = read(json!({"metadata": {}, "spec": {
            "tls": [{"hosts": ["shop.example"]}],
            "rules": [{"host": "shop.example", "http": {"paths": [path("web"), path("other")]}}],
        }}));
        assert_eq!(
            urls(&service, ingress.spec.iter(), node_addresses(node).iter()),
            ["http://203.0.113.7:80/", "http://10.0.0.1:30080/", "https://shop.example/x"]
        );
        let balanced: Service = read(json!({
            "metadata": {"name": "web"},
            "spec": {"ports": [{"port": 80, "nodePort": 30080}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "2001:db8::7"}]}},
        }));
        let node: Node = read(json!({"metadata": {}, "status": {"addresses": [
            {"type": "InternalIP", "address": "fd00::1"}
        ]}}));
        assert_eq!(
            urls(&balanced, [].iter(), node_addresses(node).iter()),
            ["http://[2001:db8::7]:80/", "http://[fd00::1]:30080/"]
        );
        let inside: Service = read(json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}));
        assert!(urls(&inside, [].iter(), [].iter()).is_empty());
    }
}
