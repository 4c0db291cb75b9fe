//! Checks, before anything is touched, that the targets can be reached as the scenario specifies.

use std::fmt::Write;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::Api;
use kube::api::ListParams;

use super::call::RunPlan;
use super::disruption_checks::Checks;
use crate::api::Caller;
use crate::error::Result;
use crate::observe::ways;
use crate::observe::{Way, target_service};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_scenario::{Place, Scenario};
use rolldrop_sidecar::inject;

/// A target that is reached through a node port.
struct NodePort<'a> {
    service: &'a Service,
    node: &'a str,
    key: &'a str,
}

/// A Service that every cluster has. Its address shows whether Services have IPv4 or IPv6 addresses.
const ANY_SERVICE: (&str, &str) = ("default", "kubernetes");

/// Returns, for each target, a stand-in for the address and port that its connections will go to; `None` for a URL. The
/// address is the real one, or another Service's if the manifests create the target's Service. The port serves only to
/// distinguish targets; those with the same Service, port and node share it. Returns `None` in place of the list if an
/// address cannot be determined.
///
/// # Errors
/// Fails if the API server does not respond.
pub(crate) async fn expected_remotes(
    caller: &Caller,
    scenario: &Scenario,
) -> Result<Option<Vec<Option<String>>>> {
    let mut remotes = Vec::new();
    let mut standing_in: Vec<(&str, Option<&str>, Option<&str>)> = Vec::new();
    for target in &scenario.targets {
        let Place::Service { name, port, node, .. } = &target.place else {
            remotes.push(None);
            continue;
        };
        let (port, node) = (port.as_deref(), node.as_deref());
        let host = match (node, target_service::is_headless(caller, name, scenario).await?) {
            (Some(node), _) => address_of_node(caller, node).await?,
            (None, true) => None,
            (None, false) => address_like(caller, name, scenario).await?,
        };
        let Some(host) = host else { return Ok(None) };
        let one = (name.as_str(), port, node);
        let number = standing_in.iter().position(|other| *other == one).unwrap_or_else(|| {
            standing_in.push(one);
            standing_in.len() - 1
        });
        remotes.push(Some(ways::authority(&host, number + 1)));
    }
    Ok(Some(remotes))
}

async fn address_of_node(caller: &Caller, node: &str) -> Result<Option<String>> {
    Ok(caller.ask_node(node).await?.ok().and_then(|node| ways::address(&node)))
}

/// Returns the address of a Service or, if it does not exist yet, of another Service.
async fn address_like(caller: &Caller, name: &str, scenario: &Scenario) -> Result<Option<String>> {
    let (namespace, name) = match scenario.own_service(name) {
        Some(_) => ANY_SERVICE,
        None => (caller.namespace.as_str(), name),
    };
    let services = Api::<Service>::namespaced(caller.client.clone(), namespace);
    let found = caller.ask_for(&services, &format!("read Service {name}"), name).await?;
    let address = found.ok().and_then(|service| service.spec?.cluster_ip);
    Ok(address.filter(|address| address.parse::<IpAddr>().is_ok()))
}

impl Checks<'_> {
    /// Checks that each target's Service exists and has its port, and, if the target names a node, that the NodePort
    /// can be reached through that node. Adds findings to the plan.
    pub(super) async fn targets(&self, plan: &mut RunPlan) -> Result<()> {
        let is_list = self.scenario.resolved()["spec"]["target"].is_array();
        for (index, target) in self.scenario.targets.iter().enumerate() {
            let Place::Service { name, port, path, node } = &target.place else { continue };
            let key = if is_list { format!("spec.target[{index}]") } else { "spec.target".to_owned() };
            let Some((service, is_own)) = self.service_of_target(name, &key).await? else { continue };
            let has_ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()).next().is_some();
            if is_own && !has_ports {
                // The API server reports what is wrong with the Service.
                continue;
            }
            let way = Way { service: &service, name, port: port.as_deref(), path };
            let found = way.port().map_err(|error| error.at(self.scenario, &format!("{key}.port")))?;
            let Some(node) = node else { continue };
            let to = NodePort { service: &service, node, key: &format!("{key}.node") };
            self.has_node_port(&way, found, is_own).map_err(|error| error.at(self.scenario, to.key))?;
            self.check_target_node(&to).await?;
            self.check_local_pods(&to, plan).await?;
        }
        Ok(())
    }

    /// Returns the Service, and true if the manifests create it; `None` if it cannot be read.
    pub(super) async fn service_of_target(&self, name: &str, key: &str) -> Result<Option<(Service, bool)>> {
        if let Some(own) = self.scenario.own_service(name) {
            return Ok(serde_json::from_value(own.clone()).ok().map(|service| (service, true)));
        }
        match self.caller.ask_for(&self.caller.api(), &format!("read Service {name}"), name).await? {
            Ok(service) => Ok(Some((service, false))),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let why = format!(
                    "there is no Service {name} in namespace {}: fix the name, or use another namespace (-n)",
                    self.caller.namespace
                );
                Err(self.scenario.invalid(&format!("{key}.service"), why).into())
            }
            Err(_) => Ok(None),
        }
    }

    fn has_node_port(&self, way: &Way<'_>, port: &ServicePort, is_own: bool) -> Result<()> {
        let kind = way.service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
        // The API server chooses the number when the Service is created.
        let will_have = is_own && matches!(kind, Some("NodePort" | "LoadBalancer"));
        if will_have { Ok(()) } else { way.node_port(port).map(drop) }
    }

    /// Checks that the node exists, is ready and has an address.
    async fn check_target_node(&self, to: &NodePort<'_>) -> Result<()> {
        let wrong = |why: String| Err(self.scenario.invalid(to.key, why).into());
        let node = match self.caller.ask_node(to.node).await? {
            Ok(node) => node,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return wrong(format!("{}: name an existing node (kubectl get nodes)", status.message));
            }
            // Without permission to read the node, problems are left for the run itself to report.
            Err(_) => return Ok(()),
        };
        if ways::address(&node).is_none() {
            return wrong(format!(
                "node {} has no address: name another node, or give the target as a URL",
                to.node
            ));
        }
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        match conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready" && condition.status != "True")
        {
            None => Ok(()),
            Some(condition) => {
                let mut why = format!("node {} is not ready", to.node);
                if let Some(reason) = &condition.reason {
                    let _ = write!(why, " ({reason})");
                }
                wrong(format!("{why}, so its NodePort may not answer: name another node"))
            }
        }
    }

    /// Checks that the node has a ready pod of the Service. With `externalTrafficPolicy: Local`, the node responds only
    /// if it has one.
    async fn check_local_pods(&self, to: &NodePort<'_>, plan: &mut RunPlan) -> Result<()> {
        let spec = to.service.spec.clone().unwrap_or_default();
        let Some(selector) = spec.selector.filter(|selector| !selector.is_empty()) else { return Ok(()) };
        if spec.external_traffic_policy.as_deref() != Some("Local") {
            return Ok(());
        }
        let service = serde_json::to_value(to.service).unwrap_or_default();
        let is_meant = |pod: &Candidate| {
            inject::selects(&service, &serde_json::to_value(&pod.metadata.labels).unwrap_or_default())
        };
        let node = to.node;
        if self.made.may_differ || self.made.pods.iter().any(is_meant) {
            let why = format!(
                "node {node} answers only while it has a ready pod of the Service (externalTrafficPolicy: Local): \
                 the load fails until the scheduler places one there"
            );
            plan.findings.push(self.scenario.invalid(to.key, why).to_string());
            return Ok(());
        }
        let terms: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let params = ListParams::default().labels(&terms.join(","));
        let pods = self.caller.api::<Candidate>();
        let known = |pod: Candidate| pod.is_ready && pod.node.as_deref() == Some(node);
        match self.caller.list_as("list the target's pods", &pods, &params, known).await? {
            Ok(are_there) if !are_there.contains(&true) => {
                let why = format!(
                    "node {node} answers only while it has a ready pod of the Service (externalTrafficPolicy: \
                     Local), and it has none: name a node that has one"
                );
                Err(self.scenario.invalid(to.key, why).into())
            }
            _ => Ok(()),
        }
    }
}
