//! Waits until what is to be measured is there, and can be disrupted as the scenario says.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::error::CoordinatorError;
use super::session::Session;
use super::targets::{Consumer, Found, Ready};
use super::ways::Way;
use super::{disrupt, preflight, service_proxy};
use crate::scenario::{Disruption, Place, Target};
use rolldrop_record::routing::ServiceRules;
use rolldrop_record::run_info::ClusterInfo;

impl Session {
    /// Waits until the targets' pods are ready. Whether they answer is checked by the load, from where it is sent.
    ///
    /// # Errors
    /// When a pod cannot start (with the reason that it gives), when the limits
    /// pass, or when the Service cannot be used.
    pub(crate) async fn await_ready(
        &self,
        targets: &[Target],
        manifests: &[Value],
        disruptions: &[Disruption],
    ) -> Result<Ready, CoordinatorError> {
        let mut found = Vec::with_capacity(targets.len());
        let mut endpoints_of = BTreeMap::new();
        for target in targets {
            let (url, consumer, service, rules) = match &target.place {
                Place::Url(url) => {
                    (url.to_string(), Consumer::Url(url.to_string()), None, ServiceRules::default())
                }
                Place::Service { name, port, path, node } => {
                    let service = preflight::service(&self.caller, name).await?;
                    let wanted = preflight::wanted_endpoints(&service, manifests);
                    endpoints_of.insert(name, self.await_endpoints(name, wanted).await?);
                    let way = Way { service: &service, name, port: port.as_deref(), path };
                    let (url, consumer) = way.find(&self.caller, node.as_deref()).await?;
                    (url, consumer, Some(name.clone()), service_proxy::rules(&service))
                }
            };
            let Target { name, balances, balances_because, .. } = target.clone();
            found.push(Found { name, url, consumer, balances, balances_because, service, rules });
        }
        if targets.iter().any(|target| matches!(target.place, Place::Url(_))) {
            self.await_own_workloads(manifests).await?;
        }
        let endpoints = endpoints_of.into_values().sum();
        for disruption in disruptions {
            disrupt::check(self, disruption).await?;
        }
        let cluster = self.fingerprint(endpoints).await?;
        Ok(Ready { targets: found, cluster })
    }

    pub(super) async fn await_endpoints(
        &self,
        service: &str,
        wanted: usize,
    ) -> Result<usize, CoordinatorError> {
        let limit = self.caller.limits.ready;
        let mut waiting = self.waiting(limit);
        loop {
            let (ready, stuck) =
                self.views.read(|view| (view.ready_endpoints(service), view.stuck_container(|_| true)));
            if ready >= wanted {
                return Ok(ready);
            }
            if waiting.is_over(stuck.as_ref())? {
                let service = service.to_owned();
                let not_ready = CoordinatorError::NotReady { service, ready, wanted, limit };
                return Err(stuck.map_or(not_ready, |why| CoordinatorError::PodNeverStarts(why.to_string())));
            }
            self.look_again(&waiting).await?;
        }
    }

    /// Waits until the workloads among the manifests have the pods that they ask for: the endpoints of a URL are not
    /// known.
    async fn await_own_workloads(&self, manifests: &[Value]) -> Result<(), CoordinatorError> {
        let name = |object: &Value| {
            let title = format!("{} {}", object["kind"].as_str()?, object["metadata"]["name"].as_str()?);
            (!object["spec"]["template"].is_null()).then_some(title)
        };
        let own: Vec<String> = manifests.iter().filter_map(name).collect();
        if own.is_empty() {
            return Ok(());
        }
        let limit = self.caller.limits.ready;
        let mut waiting = self.waiting(limit);
        while let Some(missing) = self.workloads().await?.missing_of(&own) {
            let stuck = self.views.read(|view| view.stuck_container(|_| true));
            if waiting.is_over(stuck.as_ref())? {
                return Err(CoordinatorError::WorkloadNotReady { missing, limit });
            }
            self.look_again(&waiting).await?;
        }
        Ok(())
    }

    async fn fingerprint(&self, endpoints: usize) -> Result<ClusterInfo, CoordinatorError> {
        let version = self.caller.server_version().await?;
        // All of it is read where rights allow; without them the fingerprint says less.
        let nodes = Api::<Node>::all(self.caller.client.clone());
        let params = ListParams::default();
        let known = |node: Node| Node { spec: None, status: None, ..node };
        let nodes = self.caller.list_as("list nodes", &nodes, &params, known).await?.unwrap_or_default();
        let (dataplane, dataplane_from) = service_proxy::find(&self.caller, &nodes).await?;
        Ok(ClusterInfo {
            version,
            dataplane,
            dataplane_from,
            nodes: nodes.len(),
            endpoints,
            namespace: self.caller.namespace.clone(),
        })
    }
}
