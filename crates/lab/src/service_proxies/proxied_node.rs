//! Node that a proxy serves, and the proxy's reports about it.

use super::service_table::{Routes, ServicePort};
use super::truth::{ProxyLogLine, TruthLog};
use crate::registry::EventType;
use crate::resource::Resource;
use crate::shared::ClusterContext;
use rolldrop_record::clock::Stamp;

/// Node that a proxy serves.
pub(super) struct ProxiedNode {
    pub(super) shared: ClusterContext,
    pub(super) name: String,
    /// Index among the nodes, from 0.
    pub(super) index: u8,
    pub(super) truth: TruthLog,
}

/// Result of a sync: `Yes` if the table is in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Synced {
    Yes,
    /// The proxy must try again.
    No,
}

impl ProxiedNode {
    /// Logs that these routes have been in effect since the second of these times, and that the previous ones were in
    /// effect until the first.
    pub(super) fn report(&self, port: &ServicePort, routes: &Routes, [swap_begin_ns, t_ns]: [Stamp; 2]) {
        let others_for_node_port = port.node_port.is_some() && port.internal != port.external;
        self.truth.write(&ProxyLogLine::Sync {
            t_ns,
            swap_begin_ns,
            node: &self.name,
            service: &port.service,
            port: port.address.port(),
            endpoints: &routes.internal,
            node_port_endpoints: others_for_node_port.then_some(&*routes.external),
        });
    }

    /// Records a warning about a Service (`namespace/name`).
    pub(super) fn warn(&self, service: &str, reason: &str, message: &str) {
        tracing::warn!(%service, node = self.name, "{message}");
        let Some((namespace, name)) = service.split_once('/') else { return };
        let registry = &self.shared.registry;
        if let Ok(service) = registry.get(Resource::Services, namespace, name) {
            registry.record_event(&service, EventType::Warning, reason, message, "service-proxy");
        }
    }
}
