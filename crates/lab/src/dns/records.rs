//! What the names of the cluster mean. Pure: objects in, records out.
//!
//! After the specification of DNS for Services and pods (kubernetes/dns, docs/specification.md,
//! schema 1.1.0) and CoreDNS's plugin `kubernetes`, which leaves it open to the slices which
//! endpoints are ready: one that is not is not named, unless its Service publishes it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use serde_json::Value;

/// Namespace and name of an object.
pub(super) type Key = (String, String);

/// The domain of all names of the cluster.
pub(super) const ZONE: [&str; 2] = ["cluster", "local"];

/// The objects that names are made of.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) namespaces: BTreeMap<Key, Arc<Value>>,
    pub(super) services: BTreeMap<Key, Arc<Value>>,
    pub(super) slices: BTreeMap<Key, Arc<Value>>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// No such name, nor one below it.
    Nothing,
    /// The name exists, if only as a part of others, and has these records.
    Found(Vec<Target>),
    /// Another name.
    Alias(String),
}

/// Where a name leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// The name that has this address alone; that of the Service for a cluster address.
    pub(super) name: String,
    /// The address.
    pub(super) address: Ipv4Addr,
    /// The ports that were asked for (all without a port in the question): name and number.
    pub(super) ports: Vec<u16>,
}

/// A question about a Service.
struct Question<'a> {
    namespace: &'a str,
    service: &'a str,
    /// `_PORT._PROTOCOL`, without the underscores.
    port: Option<(&'a str, &'a str)>,
    /// One endpoint of a headless Service.
    endpoint: Option<&'a str>,
}

impl Records {
    /// The meaning of a name below [`ZONE`], given by its other labels in lower case, from left to
    /// right.
    pub(super) fn meaning(&self, labels: &[&str]) -> Meaning {
        let question = match labels {
            [] | ["svc"] | ["pod"] => return Meaning::Found(Vec::new()),
            [namespace, "svc" | "pod"] => {
                let exists = self.namespaces.contains_key(&(String::new(), (*namespace).to_owned()));
                return if exists { Meaning::Found(Vec::new()) } else { Meaning::Nothing };
            }
            [address, namespace, "pod"] => return self.pod(address, namespace),
            [service, namespace, "svc"] => Question { namespace, service, port: None, endpoint: None },
            [port, protocol, service, namespace, "svc"]
                if port.starts_with('_') && protocol.starts_with('_') =>
            {
                Question { namespace, service, port: Some((&port[1..], &protocol[1..])), endpoint: None }
            }
            [endpoint, service, namespace, "svc"] => {
                Question { namespace, service, port: None, endpoint: Some(endpoint) }
            }
            _ => return Meaning::Nothing,
        };
        self.service(&question)
    }

    /// The name of a pod is its address (`pods insecure` in kubeadm's Corefile).
    fn pod(&self, address: &str, namespace: &str) -> Meaning {
        let exists = self.namespaces.contains_key(&(String::new(), namespace.to_owned()));
        match address.replace('-', ".").parse() {
            Ok(parsed) if exists => {
                let name = format!("{address}.{namespace}.pod.{}", ZONE.join("."));
                Meaning::Found(vec![Target { name, address: parsed, ports: Vec::new() }])
            }
            _ => Meaning::Nothing,
        }
    }

    fn service(&self, question: &Question<'_>) -> Meaning {
        let service_key = (question.namespace.to_owned(), question.service.to_owned());
        let Some(service) = self.services.get(&service_key) else { return Meaning::Nothing };
        let spec = &service["spec"];
        if spec["type"] == "ExternalName" {
            let alias = spec["externalName"].as_str().unwrap_or_default().to_owned();
            return if question.endpoint.is_none() { Meaning::Alias(alias) } else { Meaning::Nothing };
        }
        let name = format!("{}.{}.svc.{}", question.service, question.namespace, ZONE.join("."));
        let targets = match spec["clusterIP"].as_str().and_then(|ip| ip.parse().ok()) {
            Some(address) if question.endpoint.is_none() => {
                let ports = matching_ports(&spec["ports"], question);
                if ports.is_empty() { Vec::new() } else { vec![Target { name, address, ports }] }
            }
            // The endpoints of a Service with an address have names as well.
            _ => self.endpoints(&service_key, question, &name),
        };
        if targets.is_empty() { Meaning::Nothing } else { Meaning::Found(targets) }
    }

    fn endpoints(&self, service: &Key, question: &Question<'_>, service_name: &str) -> Vec<Target> {
        let in_namespace = self.slices.iter().filter(|((namespace, _), _)| *namespace == service.0);
        let of_service = in_namespace.filter(|(_, slice)| {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] == *service.1
                && slice["addressType"] == "IPv4"
        });
        let mut targets = Vec::new();
        for (_, slice) in of_service {
            let ports = matching_ports(&slice["ports"], question);
            if ports.is_empty() && question.port.is_some() {
                continue;
            }
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
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
                if question.endpoint.is_none_or(|wanted| wanted == own) {
                    let name = format!("{own}.{service_name}");
                    targets.push(Target { name, address, ports: ports.clone() });
                }
            }
        }
        targets.sort();
        targets.dedup();
        targets
    }
}

/// The numbers of the ports that a question is about.
fn matching_ports(ports: &Value, question: &Question<'_>) -> Vec<u16> {
    let is_asked_for = |port: &&Value| {
        question.port.is_none_or(|(name, protocol)| {
            let own = |field: &str| port[field].as_str().unwrap_or_default().to_ascii_lowercase();
            own("name") == name && own("protocol") == protocol
        })
    };
    let ports = ports.as_array().into_iter().flatten().filter(is_asked_for);
    ports.filter_map(|port| u16::try_from(port["port"].as_u64()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn records() -> Records {
        let mut records = Records::default();
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        records.namespaces.insert(key("", "shop"), Arc::new(json!({})));
        let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
        let service = |ip: &str| Arc::new(json!({"spec": {"clusterIP": ip, "ports": ports}}));
        records.services.insert(key("shop", "web"), service("10.96.0.20"));
        records.services.insert(key("shop", "db"), service("None"));
        records.services.insert(key("shop", "empty"), service("None"));
        let alias = json!({"spec": {"type": "ExternalName", "externalName": "example.org"}});
        records.services.insert(key("shop", "far"), Arc::new(alias));
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

    fn meaning(name: &str) -> Meaning {
        records().meaning(&name.split('.').collect::<Vec<_>>())
    }

    fn found(name: &str) -> Vec<(String, String, Vec<u16>)> {
        match meaning(name) {
            Meaning::Found(targets) => targets
                .into_iter()
                .map(|target| (target.name, target.address.to_string(), target.ports))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn target(name: &str, address: &str, port: u16) -> (String, String, Vec<u16>) {
        (format!("{name}.cluster.local"), address.to_owned(), vec![port])
    }

    #[test]
    fn a_service_has_its_address_and_a_headless_one_its_ready_endpoints() {
        assert_eq!(found("web.shop.svc"), [target("web.shop.svc", "10.96.0.20", 80)]);
        let both = [
            target("10-244-1-3.db.shop.svc", "10.244.1.3", 5432),
            target("db-0.db.shop.svc", "10.244.1.2", 5432),
        ];
        assert_eq!(found("db.shop.svc"), both);
        assert_eq!(found("_http._tcp.db.shop.svc"), both);
        assert_eq!(found("db-0.db.shop.svc"), both[1..]);
        assert_eq!(found("10-244-1-3.db.shop.svc"), both[..1]);
        assert_eq!(found("_http._tcp.web.shop.svc"), [target("web.shop.svc", "10.96.0.20", 80)]);
        assert_eq!(meaning("far.shop.svc"), Meaning::Alias("example.org".to_owned()));
    }

    #[test]
    fn what_does_not_exist_is_told_from_what_has_no_address() {
        for name in ["shop.svc", "svc"] {
            assert_eq!(meaning(name), Meaning::Found(Vec::new()), "{name}");
        }
        for name in [
            "nosuch.shop.svc",
            "web.nosuch.svc",
            "nosuch.svc",
            "empty.shop.svc",
            "db-9.db.shop.svc",
            "10-244-1-4.db.shop.svc",
            "_nosuch._tcp.web.shop.svc",
            "_http._udp.web.shop.svc",
            "a.b.c.d.e.svc",
        ] {
            assert_eq!(meaning(name), Meaning::Nothing, "{name}");
        }
    }

    #[test]
    fn a_pods_name_is_its_address() {
        assert!(matches!(meaning("10-244-1-2.shop.pod"), Meaning::Found(targets) if targets.len() == 1));
        assert_eq!(meaning("10-244-1.shop.pod"), Meaning::Nothing);
    }
}
