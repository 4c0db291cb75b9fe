//! The legacy Endpoints object of a Service, for clients that still read it.
//!
//! Unlike an EndpointSlice it knows no terminating endpoints: an address is dropped when its
//! pod's deletion is seen.

use serde_json::{Value, json};

use super::key;
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::Part;
use crate::cluster::embedded::resource::Resource;

/// Writes the Endpoints of `service`; each group holds ports and the slice endpoints that have them.
pub(super) fn write<'a>(
    shared: &Shared,
    service: &Value,
    groups: impl Iterator<Item = &'a (Value, Vec<Value>)>,
) {
    let registry = &shared.registry;
    let (namespace, name) = key(service);
    let subsets: Vec<_> = groups.filter_map(|(ports, endpoints)| subset(ports, endpoints)).collect();
    let written = if registry.get(Resource::Endpoints, &namespace, &name).is_ok() {
        registry.modify(Resource::Endpoints, &namespace, &name, Part::Main, |object| {
            object["subsets"] = json!(subsets)
        })
    } else {
        let labels = json!({"endpoints.kubernetes.io/managed-by": "endpoint-controller"});
        let object = json!({"metadata": {"name": name, "labels": labels}, "subsets": subsets});
        registry.create(Resource::Endpoints, &namespace, object)
    };
    if let Err(status) = written {
        tracing::debug!(%status, "Endpoints not written");
    }
}

/// Deletes the Endpoints of a Service that is gone.
pub(super) fn remove(shared: &Shared, service: &Value) {
    let (namespace, name) = key(service);
    let removed = shared.registry.delete(Resource::Endpoints, &namespace, &name, &Default::default());
    if let Err(status) = removed {
        tracing::debug!(%status, "Endpoints not deleted");
    }
}

fn subset(ports: &Value, endpoints: &[Value]) -> Option<Value> {
    let is = |endpoint: &Value, condition: &str| endpoint["conditions"][condition] == true;
    let (mut ready, mut not_ready) = (Vec::new(), Vec::new());
    for endpoint in endpoints {
        let address = json!({
            "ip": endpoint["addresses"][0],
            "nodeName": endpoint["nodeName"],
            "targetRef": endpoint["targetRef"],
        });
        if is(endpoint, "ready") {
            ready.push(address);
        } else if !is(endpoint, "terminating") {
            not_ready.push(address);
        }
    }
    let mut subset = json!({"ports": ports});
    for (field, addresses) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
        if !addresses.is_empty() {
            subset[field] = json!(addresses);
        }
    }
    subset.as_object().is_some_and(|fields| fields.len() > 1).then_some(subset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminating_addresses_are_dropped() {
        let endpoint = |ip: &str, ready: bool, terminating: bool| {
            json!({
                "addresses": [ip], "nodeName": "node-1", "targetRef": {"name": ip},
                "conditions": {"ready": ready, "serving": true, "terminating": terminating},
            })
        };
        let ports = json!([{"port": 8080}]);
        let all = [endpoint("a", true, false), endpoint("b", false, true), endpoint("c", false, false)];
        let subset = subset(&ports, &all).unwrap();
        assert_eq!(subset["addresses"].as_array().unwrap().len(), 1);
        assert_eq!(subset["addresses"][0]["ip"], "a");
        assert_eq!(subset["notReadyAddresses"][0]["ip"], "c");
        assert_eq!(super::subset(&ports, &all[1..2]), None);
    }
}
