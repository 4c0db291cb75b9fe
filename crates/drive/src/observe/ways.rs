//! Paths to a Service's pods, each with its own consumer: the Service's address, its node port, or the name of a
//! Service without an address.

use std::fmt::Display;

use k8s_openapi::api::core::v1::{Node, Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::ListParams;

use super::found_targets::Consumer;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};

/// Default DNS domain of a cluster.
const DOMAIN: &str = "cluster.local";

/// A path to a Service's port.
pub(crate) struct Way<'a> {
    pub(crate) service: &'a Service,
    pub(crate) name: &'a str,
    /// Name or number of the port; `None` for the only one.
    pub(crate) port: Option<&'a str>,
    pub(crate) path: &'a str,
}

impl Way<'_> {
    /// Returns the URL and the consumer. If a node is given, the path leads through its node port.
    pub(crate) async fn find(&self, caller: &Caller, node: Option<&str>) -> Result<(String, Consumer)> {
        let port = self.port()?;
        let (name, service) = (self.name, self.name.to_owned());
        if let Some(node) = node {
            let number = self.node_port(port)?;
            let nodes = Api::<Node>::all(caller.client.clone());
            let found = caller.read(&nodes, &format!("read Node {node}"), node).await?;
            let address =
                address(&found).ok_or_else(|| self.unusable(format!("node {node} has no address")))?;
            let consumer = Consumer::NodePort { number, service, node: node.to_owned() };
            return Ok((self.url(&address, number), consumer));
        }
        if let Some(address) = self.address() {
            return Ok((self.url(address, port.port), Consumer::ServiceProxy { service }));
        }
        if self.cluster_ip().is_empty() {
            return Err(self.unusable("has no cluster IP: give the target as a URL"));
        }
        let number = self.pods_port(caller, port).await?;
        let host = format!("{name}.{}.svc.{DOMAIN}", caller.namespace);
        Ok((self.url(&host, number), Consumer::Dns { service }))
    }

    /// Returns a port's number on each node.
    pub(crate) fn node_port(&self, port: &ServicePort) -> Result<i32> {
        let number = port.node_port.filter(|number| *number > 0);
        number.ok_or_else(|| {
            self.unusable("has no NodePort: remove the target's node, or set type: NodePort in the Service")
        })
    }

    /// Returns the Service's own address, which every node's Service proxy handles; `None` if the Service has none.
    fn address(&self) -> Option<&str> {
        Some(self.cluster_ip()).filter(|address| !["", "None"].contains(address))
    }

    /// Returns the address as stated in the Service, which is the text `None` for a headless Service.
    fn cluster_ip(&self) -> &str {
        self.service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default()
    }

    /// Returns the named port, or the only one.
    pub(crate) fn port(&self) -> Result<&ServicePort> {
        let ports = self.service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let listed = || {
            let names = ports.iter().map(|p| match &p.name {
                Some(name) => format!("{name} ({})", p.port),
                None => p.port.to_string(),
            });
            names.collect::<Vec<_>>().join(", ")
        };
        match (self.port, ports) {
            (Some(wanted), _) => {
                let is_it =
                    |p: &&ServicePort| p.name.as_deref() == Some(wanted) || p.port.to_string() == wanted;
                let missing = || self.unusable(format!("has no port {wanted:?}; use one of {}", listed()));
                ports.iter().find(is_it).ok_or_else(missing)
            }
            (None, [only]) => Ok(only),
            (None, []) => Err(self.unusable("has no ports: add one")),
            (None, [first, ..]) => {
                let (name, listed) = (self.name, listed());
                let number = first.port.to_string();
                let one = first.name.as_deref().unwrap_or(&number);
                let how = format!(
                    "choose one, such as --target svc/{name}:{one}, or target.port: {one} in a scenario"
                );
                Err(self.unusable(format!("has several ports ({listed}): {how}")))
            }
        }
    }

    /// Returns the port that the pods themselves listen on, which is the only one if the Service has no address.
    async fn pods_port(&self, caller: &Caller, port: &ServicePort) -> Result<i32> {
        match &port.target_port {
            None => return Ok(port.port),
            Some(IntOrString::Int(number)) => return Ok(*number),
            Some(IntOrString::String(_)) => {}
        }
        let what = format!("list the EndpointSlices of Service {}", self.name);
        let params = ListParams::default().labels(&format!("kubernetes.io/service-name={}", self.name));
        let slices = caller.list(&what, &caller.api::<EndpointSlice>(), &params).await?;
        let name = port.name.as_deref().unwrap_or_default();
        let mut ports = slices.iter().flat_map(|slice| slice.ports.iter().flatten());
        let found = ports.find(|of_pods| of_pods.name.as_deref().unwrap_or_default() == name);
        let number = found.and_then(|of_pods| of_pods.port);
        number.ok_or_else(|| self.unusable("its EndpointSlices do not say which port its pods listen on"))
    }

    fn url(&self, host: &str, port: impl Display) -> String {
        format!("http://{}{}", authority(host, port), self.path)
    }

    fn unusable(&self, why: impl Into<String>) -> CoordinatorError {
        CoordinatorError::Service { service: self.name.to_owned(), why: why.into() }
    }
}

/// Formats a host and port as in a URL.
pub(crate) fn authority(host: &str, port: impl Display) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns a node's address: the external one if there is one, otherwise the internal one.
pub(crate) fn address(node: &Node) -> Option<String> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let reached = addresses.filter(|a| ["ExternalIP", "InternalIP"].contains(&a.type_.as_str()));
    let best = reached.min_by_key(|a| a.type_ != "ExternalIP");
    best.map(|address| address.address.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::TimeLimits;

    /// Returns the URL of a path that can be found without asking the cluster, or the error.
    async fn url(ports: Value, address: &str, port: Option<&str>) -> Result<String, String> {
        let spec = json!({"selector": {"app": "web"}, "clusterIP": address, "ports": ports});
        let service = json!({"metadata": {"name": "web"}, "spec": spec});
        let service: Service = serde_json::from_value(service).unwrap();
        let client =
            kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let (limits, stop) = (TimeLimits::default(), CancellationToken::new());
        let caller = Caller::in_shop(client, limits, stop);
        let way = Way { service: &service, name: "web", port, path: "/x" };
        way.find(&caller, None).await.map(|(url, _)| url).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn port_resolves_by_name_or_number() {
        let two = || json!([{"name": "http", "port": 80}, {"name": "admin", "port": 81}]);
        let of_two = async |port| url(two(), "10.0.0.1", port).await;
        assert_eq!(of_two(Some("admin")).await.unwrap(), "http://10.0.0.1:81/x");
        assert_eq!(of_two(Some("80")).await.unwrap(), "http://10.0.0.1:80/x");
        assert_eq!(
            of_two(None).await.unwrap_err(),
            "service web: has several ports (http (80), admin (81)): choose one, such as --target svc/web:http, or target.port: http in a scenario"
        );
        assert_eq!(
            of_two(Some("no")).await.unwrap_err(),
            "service web: has no port \"no\"; use one of http (80), admin (81)"
        );
        let one = |port: Value, address| url(json!([port]), address, None);
        assert_eq!(one(json!({"port": 80}), "fd00::1").await.unwrap(), "http://[fd00::1]:80/x");
        assert!(one(json!({"port": 80}), "").await.unwrap_err().contains("no cluster IP"));
        let headless = "http://web.shop.svc.cluster.local";
        assert_eq!(one(json!({"port": 80}), "None").await.unwrap(), format!("{headless}:80/x"));
        let other = json!({"port": 80, "targetPort": 8080});
        assert_eq!(one(other, "None").await.unwrap(), format!("{headless}:8080/x"));
    }
}
