//! Allocation of addresses and node ports to Services.
//!
//! Each address and port is allocated only once. A Service may request a specific address or port, which must be free
//! and within the cluster's range (pkg/registry/core/service).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, MutexGuard};

use serde_json::{Value, json};

use super::{FieldError, Registry, Resource, Status, copy_or_remove, remove};
use crate::sync::lock;

/// Range of node ports for Services (kube-apiserver's `--service-node-port-range`).
const NODE_PORTS: RangeInclusive<u64> = 30_000..=32_767;

/// Exclusive right to allocate addresses and ports, held until the Service is stored.
pub(super) struct Allocation<'a> {
    _turn: MutexGuard<'a, ()>,
    /// All other Services.
    pub(super) others: Vec<Arc<Value>>,
}

impl Registry {
    /// Waits for the right to allocate for the named Service. Returns `None` for any other resource.
    pub(super) fn begin_allocation(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Allocation<'_>> {
        if resource != Resource::Services {
            return None;
        }
        let turn = lock(&self.inner.service_addresses);
        let (mut others, _) = self.inner.store.list(resource, None);
        others.retain(|service| {
            service["metadata"]["namespace"] != namespace || service["metadata"]["name"] != name
        });
        Some(Allocation { _turn: turn, others })
    }

    /// Allocates any missing address and node ports for a Service, and removes those that its type does not use.
    pub(super) fn allocate_for_service(
        &self,
        name: &str,
        service: &mut Value,
        others: &[Arc<Value>],
    ) -> Result<(), Status> {
        let spec = &mut service["spec"];
        let mut errors = Vec::new();
        self.allocate_address(spec, others, &mut errors)?;
        allocate_node_ports(spec, others, &mut errors)?;
        if errors.is_empty() { Ok(()) } else { Err(Status::invalid(Resource::Services, name, &errors)) }
    }

    fn allocate_address(
        &self,
        spec: &mut Value,
        others: &[Arc<Value>],
        errors: &mut Vec<FieldError>,
    ) -> Result<(), Status> {
        if spec["type"] == "ExternalName" {
            for field in ["clusterIP", "clusterIPs"] {
                remove(spec, field);
            }
            return Ok(());
        }
        let taken = |ip: &str| others.iter().any(|service| service["spec"]["clusterIP"] == ip);
        let wanted = [&spec["clusterIP"], &spec["clusterIPs"][0]];
        let wanted = wanted
            .iter()
            .find_map(|ip| ip.as_str().filter(|ip| !ip.is_empty()))
            .unwrap_or_default()
            .to_owned();
        let ip = if wanted == "None" {
            wanted
        } else if wanted.is_empty() {
            let mut free = self.inner.addresses.services().map(|ip| ip.to_string());
            free.find(|ip| !taken(ip)).ok_or_else(|| Status::internal("no Service address is free"))?
        } else {
            let why = if taken(&wanted) {
                "failed to allocate IP: provided IP is already allocated"
            } else if self.inner.addresses.services().any(|ip| wanted.parse() == Ok(ip)) {
                ""
            } else {
                "failed to allocate IP: the provided IP is not in the valid range"
            };
            if !why.is_empty() {
                errors.push(FieldError::invalid("spec.clusterIPs", &json!([wanted]), why));
                return Ok(());
            }
            wanted
        };
        spec["clusterIPs"] = json!([ip]);
        spec["clusterIP"] = json!(ip);
        Ok(())
    }
}

/// Preserves the address and node ports of a changed Service, unless the new version specifies others.
pub(super) fn keep_allocated(current: &Value, new: &mut Value) {
    let has_address = |spec: &Value| spec["type"] != "ExternalName";
    if !has_address(current) || !has_address(new) {
        return;
    }
    for field in ["clusterIP", "clusterIPs"] {
        if new.get(field).is_none_or(|value| value.is_null() || value == "") {
            copy_or_remove(current, new, field);
        }
    }
    let same = |a: &Value, b: &Value| {
        a["port"] == b["port"]
            && a["protocol"].as_str().unwrap_or("TCP") == b["protocol"].as_str().unwrap_or("TCP")
    };
    let old_ports = current["ports"].as_array().map_or(&[][..], Vec::as_slice);
    for port in new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port["nodePort"].as_u64().is_none_or(|number| number == 0)
            && let Some(old) = old_ports.iter().find(|old| same(old, port))
        {
            copy_or_remove(old, port, "nodePort");
        }
    }
}

fn allocate_node_ports(
    spec: &mut Value,
    others: &[Arc<Value>],
    errors: &mut Vec<FieldError>,
) -> Result<(), Status> {
    let wants = match spec["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    };
    let accepts = wants || spec["type"] == "LoadBalancer";
    // TCP and UDP have separate port spaces.
    let key = |port: &Value| {
        (port["protocol"].as_str().unwrap_or("TCP").to_owned(), port["nodePort"].as_u64().unwrap_or(0))
    };
    let ports_of = |service: &Arc<Value>| {
        service["spec"]["ports"].as_array().into_iter().flatten().map(key).collect::<Vec<_>>()
    };
    let mut taken: BTreeSet<_> = others.iter().flat_map(ports_of).collect();
    let Some(ports) = spec["ports"].as_array_mut() else { return Ok(()) };
    for (n, port) in ports.iter().enumerate() {
        let (protocol, number) = key(port);
        if number == 0 || !accepts {
            continue;
        }
        let why = if !NODE_PORTS.contains(&number) {
            "provided port is not in the valid range. The range of valid ports is 30000-32767"
        } else if !taken.insert((protocol, number)) {
            "provided port is already allocated"
        } else {
            continue;
        };
        errors.push(FieldError::invalid(format!("spec.ports[{n}].nodePort"), &json!(number), why));
    }
    for port in ports {
        let (protocol, number) = key(port);
        if !accepts {
            remove(port, "nodePort");
        } else if wants && number == 0 {
            let start: u64 = rand::random_range(NODE_PORTS);
            let mut free = (start..=*NODE_PORTS.end()).chain(*NODE_PORTS.start()..start);
            let free = free.find(|number| taken.insert((protocol.clone(), *number)));
            port["nodePort"] = json!(free.ok_or_else(|| Status::internal("no node port is free"))?);
        }
    }
    Ok(())
}
