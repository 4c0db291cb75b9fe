//! Resolves the cluster's names. Pure: objects in, records out.
//!
//! Follows the DNS specification for Services and pods (kubernetes/dns, docs/specification.md, schema 1.1.0) and
//! CoreDNS's `kubernetes` plugin, which takes readiness from the EndpointSlices; it does not publish an endpoint that
//! is not ready unless the Service asks for that.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use serde_json::Value;

use crate::object_fields::ObjectKey;
use crate::value::list;
use crate::well_known::SERVICE_NAME;

/// Domain of all names in the cluster.
pub(super) const ZONE: [&str; 2] = ["cluster", "local"];

/// Objects from which names are derived.
#[derive(Debug, Default)]
pub(super) struct DnsRecords {
    pub(super) namespaces: BTreeMap<ObjectKey, Arc<Value>>,
    pub(super) services: BTreeMap<ObjectKey, Arc<Value>>,
    pub(super) slices: BTreeMap<ObjectKey, Arc<Value>>,
}

impl DnsRecords {
    /// Resolves a name below [`ZONE`], given as its remaining labels in lower case, from left to right.
    /// Returns `None` if neither this name nor any name below it exists.
    pub(super) fn addresses(&self, labels: &[&str]) -> Option<Vec<Ipv4Addr>> {
        match labels {
            [] | ["svc"] => Some(Vec::new()),
            [namespace, "svc"] => {
                let exists = self.namespaces.contains_key(&(String::new(), (*namespace).to_owned()));
                exists.then(Vec::new)
            }
            [service, namespace, "svc"] => self.service(namespace, service, None),
            [endpoint, service, namespace, "svc"] => self.service(namespace, service, Some(endpoint)),
            _ => None,
        }
    }

    /// Resolves a Service, or one of its endpoints.
    fn service(&self, namespace: &str, name: &str, endpoint: Option<&str>) -> Option<Vec<Ipv4Addr>> {
        let service_key = (namespace.to_owned(), name.to_owned());
        let spec = &self.services.get(&service_key)?["spec"];
        let addresses = match spec["clusterIP"].as_str().and_then(|ip| ip.parse().ok()) {
            Some(address) if endpoint.is_none() => vec![address],
            // The endpoints of a Service with an address also have names.
            _ => self.endpoints(&service_key, endpoint),
        };
        (!addresses.is_empty()).then_some(addresses)
    }

    fn endpoints(&self, service: &ObjectKey, wanted: Option<&str>) -> Vec<Ipv4Addr> {
        let in_namespace = self.slices.iter().filter(|((namespace, _), _)| *namespace == service.0);
        let of_service = in_namespace.filter(|(_, slice)| {
            slice["metadata"]["labels"][SERVICE_NAME] == *service.1 && slice["addressType"] == "IPv4"
        });
        let mut addresses = Vec::new();
        for (_, slice) in of_service {
            for endpoint in list(&slice["endpoints"]) {
                if endpoint["conditions"]["ready"] == false {
                    continue;
                }
                let Some(address) =
                    endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<Ipv4Addr>().ok())
                else {
                    continue;
                };
                let dashed = address.to_string().replace('.', "-");
                let own = endpoint["hostname"].as_str().map_or(dashed, str::to_owned);
                if wanted.is_none_or(|wanted| wanted == own) {
                    addresses.push(address);
                }
            }
        }
        addresses.sort();
        addresses.dedup();
        addresses
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn records() -> DnsRecords {
        let mut records = DnsRecords::default();
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        records.namespaces.insert(key("", "shop"), Arc::new(json!({})));
        let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
        let service = |ip: &str| Arc::new(json!({"spec": {"clusterIP": ip, "ports": ports}}));
        records.services.insert(key("shop", "web"), service("10.96.0.20"));
        records.services.insert(key("shop", "db"), service("None"));
        records.services.insert(key("shop", "empty"), service("None"));
        let endpoint = |ip: &str, ready: bool, hostname: Value| json!({"addresses": [ip], "conditions": {"ready": ready}, "hostname": hostname});
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 5432}],
            "endpoints": [
                endpoint("10.244.1.2", true, json!("db-0")),
                endpoint("10.244.1.3", true, Value::Null),
                endpoint("10.244.1.4", false, Value::Null),
            ],
        });
        records.slices.insert(key("shop", "db-1"), Arc::new(slice));
        records
    }

    fn addresses(name: &str) -> Option<Vec<Ipv4Addr>> {
        records().addresses(&name.split('.').collect::<Vec<_>>())
    }

    fn found(name: &str) -> Vec<String> {
        addresses(name).expect(name).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn headless_name_resolves_ready_endpoints() {
        assert_eq!(found("web.shop.svc"), ["10.96.0.20"]);
        assert_eq!(found("db.shop.svc"), ["10.244.1.2", "10.244.1.3"]);
        assert_eq!(found("db-0.db.shop.svc"), ["10.244.1.2"]);
        assert_eq!(found("10-244-1-3.db.shop.svc"), ["10.244.1.3"]);
    }

    #[test]
    fn empty_answer_differs_from_nxdomain() {
        for name in ["shop.svc", "svc"] {
            assert_eq!(addresses(name), Some(Vec::new()), "{name}");
        }
        for name in [
            "nosuch.shop.svc",
            "web.nosuch.svc",
            "nosuch.svc",
            "empty.shop.svc",
            "db-9.db.shop.svc",
            "10-244-1-4.db.shop.svc",
            "_http._tcp.web.shop.svc",
            "a.b.c.d.e.svc",
        ] {
            assert_eq!(addresses(name), None, "{name}");
        }
    }
}
