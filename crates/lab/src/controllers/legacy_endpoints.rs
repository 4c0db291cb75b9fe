//! A Service's legacy Endpoints object, for clients that still read it.
//!
//! Unlike EndpointSlices, it has no terminating endpoints: an address is removed as soon as the pod's deletion is
//! visible (pkg/controller/endpoint).

use serde_json::{Value, json};

use super::client_rate::ClientRate;
use crate::object_fields::key;
use crate::registry::ObjectPart;
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::status::{Status, note_failure};
use crate::well_known::HEADLESS;

/// Ports, with the slice endpoints that have these ports.
pub(super) type Group = (Value, Vec<Value>);

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

/// Writes the Endpoints object of `service`, built from these groups.
pub(super) async fn write<'a>(
    shared: &ClusterContext,
    rate: &ClientRate,
    service: &Value,
    groups: impl Iterator<Item = &'a Group>,
) -> Result<(), Status> {
    let registry = &shared.registry;
    let (namespace, name) = key(service);
    let subsets: Vec<_> = groups.filter_map(|(ports, endpoints)| subset(ports, endpoints)).collect();
    let subsets = if subsets.is_empty() { Value::Null } else { json!(subsets) };
    let labels = labels(service, json!({MANAGED_BY: "endpoint-controller"}));
    let current = registry.get(Resource::Endpoints, &namespace, &name).ok();
    let is_right = |current: &Value| current["subsets"] == subsets && current["metadata"]["labels"] == labels;
    if current.as_deref().is_some_and(is_right) {
        return Ok(());
    }
    rate.permit().await;
    let fill = |object: &mut Value| {
        object["metadata"]["labels"] = labels;
        match subsets {
            Value::Null => drop(object.as_object_mut().map(|object| object.remove("subsets"))),
            subsets => object["subsets"] = subsets,
        }
    };
    if current.is_some() {
        registry.modify(Resource::Endpoints, &namespace, &name, ObjectPart::Main, fill)?;
    } else {
        let mut object = json!({"metadata": {"name": name}});
        fill(&mut object);
        registry.create(Resource::Endpoints, &namespace, object)?;
    }
    Ok(())
}

/// Deletes the Endpoints object of a Service that is gone.
pub(super) fn remove(shared: &ClusterContext, service: &Value) {
    note_failure(shared.registry.remove(Resource::Endpoints, service), "failed to delete the Endpoints");
}

fn subset(ports: &Value, endpoints: &[Value]) -> Option<Value> {
    let is = |endpoint: &Value, condition: &str| endpoint["conditions"][condition] == true;
    let (mut ready, mut not_ready) = (Vec::new(), Vec::new());
    for endpoint in endpoints {
        let mut address = json!({"ip": endpoint["addresses"][0], "targetRef": endpoint["targetRef"]});
        for field in ["nodeName", "hostname"] {
            if endpoint[field].is_string() {
                address[field] = endpoint[field].clone();
            }
        }
        if is(endpoint, "ready") {
            ready.push(address);
        } else if !is(endpoint, "terminating") {
            not_ready.push(address);
        }
    }
    let mut subset = json!({"ports": ports});
    for (field, mut addresses) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
        if !addresses.is_empty() {
            addresses.sort_by_cached_key(|address| address["ip"].to_string());
            subset[field] = json!(addresses);
        }
    }
    subset.as_object().is_some_and(|fields| fields.len() > 1).then_some(subset)
}

/// Returns the labels for a Service's slices or Endpoints: the Service's labels plus `own`, the identifying labels.
pub(super) fn labels(service: &Value, own: Value) -> Value {
    let mut labels = own;
    for (name, value) in service["metadata"]["labels"].as_object().into_iter().flatten() {
        if labels.get(name).is_none() && name != HEADLESS {
            labels[name] = value.clone();
        }
    }
    if service["spec"]["clusterIP"] == "None" {
        labels[HEADLESS] = json!("");
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminating_pod_addresses_are_removed() {
        let endpoint = |ip: &str, ready: bool, terminating: bool| {
            json!({
                "addresses": [ip], "nodeName": "node-1", "targetRef": {"name": ip},
                "conditions": {"ready": ready, "serving": true, "terminating": terminating},
            })
        };
        let ports = json!([{"port": 8080}]);
        let all = [
            endpoint("d", true, false),
            endpoint("a", true, false),
            endpoint("b", false, true),
            endpoint("c", false, false),
        ];
        let subset = subset(&ports, &all).unwrap();
        let ips = |field: &str| -> Vec<Value> {
            subset[field].as_array().unwrap().iter().map(|address| address["ip"].clone()).collect()
        };
        assert_eq!(ips("addresses"), ["a", "d"]);
        assert_eq!(ips("notReadyAddresses"), ["c"]);
        assert_eq!(super::subset(&ports, &all[2..3]), None);
    }
}
