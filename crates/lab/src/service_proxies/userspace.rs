//! Puts a node's table into effect with listeners on loopback addresses.
//!
//! The first node's proxy carries connections to Services' own addresses; every node's proxy carries those to node
//! ports at the node's own address. The proxy cannot tell where a connection to a node port comes from, so it treats
//! each as coming from outside.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::{AbortHandle, JoinSet};

use super::link_relay::PodLink;
use super::port_listener::{ArrivalSide, InEffect, PortProxy};
use super::proxied_node::ProxiedNode;
use super::service_table::{PortEndpoints, PortProtocol, ServicePort, ServiceTable};

/// A node's listeners.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    ports: BTreeMap<ServicePort, PortListeners>,
    tasks: JoinSet<()>,
}

/// State of one Service port that is in effect on a node.
#[derive(Debug, Default)]
struct PortListeners {
    in_effect: Arc<InEffect>,
    /// Listeners by address.
    listeners: BTreeMap<SocketAddr, AbortHandle>,
}

impl Listeners {
    /// Puts a table into effect.
    pub(super) fn apply(&mut self, node: &ProxiedNode, mut table: ServiceTable) {
        // A UDP proxy would have to guess which of a client's packets belong together.
        table.retain(|port, _| port.protocol == PortProtocol::Tcp);
        let gone: Vec<_> = self.ports.keys().filter(|port| !table.contains_key(*port)).cloned().collect();
        for key in gone {
            self.put_into_effect(node, &key, PortEndpoints::default());
            for listener in self.ports.remove(&key).into_iter().flat_map(|port| port.listeners.into_values())
            {
                listener.abort();
            }
        }
        while let Some((key, endpoints)) = table.pop_first() {
            self.put_into_effect(node, &key, endpoints);
            if node.index == 0 {
                self.listen(node, &key, key.address);
            }
            if let Some(node_port) = key.node_port {
                let address = node.shared.registry.addresses().node(node.index);
                self.listen(node, &key, SocketAddr::from((address, node_port)));
            }
        }
        // Reap the listeners of removed Services.
        while self.tasks.try_join_next().is_some() {}
    }

    fn put_into_effect(&mut self, node: &ProxiedNode, key: &ServicePort, endpoints: PortEndpoints) {
        let port = self.ports.entry(key.clone()).or_default();
        let routes = key.routes(&endpoints);
        if let Some(at) = port.in_effect.swap(node.shared.clock, routes.clone(), endpoints.affinity) {
            node.report(key, &routes, at);
        }
    }

    /// Listens for a Service at an address, unless a listener exists. Every sync retries after a failure.
    fn listen(&mut self, node: &ProxiedNode, key: &ServicePort, address: SocketAddr) {
        let Some(port) = self.ports.get_mut(key) else { return };
        if port.listeners.contains_key(&address) {
            return;
        }
        let proxy = PortProxy {
            service: Arc::clone(&key.service),
            address,
            side: if address == key.address { ArrivalSide::Internal } else { ArrivalSide::External },
            in_effect: Arc::clone(&port.in_effect),
            link: PodLink {
                delay: node.shared.config.latencies.link_of_node(node.index),
                sampler: node.shared.sampler.clone(),
            },
            truth: node.truth.clone(),
            clock: node.shared.clock,
        };
        match proxy.listen() {
            Ok(listener) => {
                port.listeners.insert(address, self.tasks.spawn(proxy.serve(listener)));
            }
            Err(error) => report_unreachable(node, &key.service, address, &error),
        }
    }
}

fn report_unreachable(node: &ProxiedNode, service: &str, address: SocketAddr, error: &io::Error) {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; connections to this Service fail. Give it a port of at least 1024 (lower ports need root), and set \
             targetPort to the port that the pods listen on"
        }
        io::ErrorKind::AddrInUse => {
            "; connections to this Service fail. Stop the process that uses this port (it probably listens on all \
             addresses), or give the Service another port"
        }
        _ => "",
    };
    node.warn(service, "FailedToListen", &format!("cannot listen on {address}: {error}{remedy}"));
}
