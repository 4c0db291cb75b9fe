//! Conditions that must be met before load is sent: the Service exists and has endpoints.

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_scenario::Scenario;
use rolldrop_sidecar::inject;

pub(crate) async fn service(caller: &Caller, name: &str) -> Result<Service> {
    let what = format!("read Service {name} in namespace {} (-n selects another)", caller.namespace);
    caller.read(&caller.api(), &what, name).await
}

/// Returns the label selector of a Service as text; `None` if it selects nothing.
pub(crate) fn selector(service: &Service) -> Option<String> {
    let selector = service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())?;
    let labels: Vec<String> = selector.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Some(labels.join(","))
}

/// Returns true if a Service has no cluster IP, which means that clients look up its pods in DNS. Looks for the
/// Service in the scenario's manifests, then in the cluster. Returns false for an unknown Service.
pub(crate) async fn is_headless(caller: &Caller, name: &str, scenario: &Scenario) -> Result<bool> {
    if let Some(own) = scenario.own_service(name) {
        return Ok(own["spec"]["clusterIP"] == "None");
    }
    let found = caller.find(&caller.api::<Service>(), &format!("read Service {name}"), name).await;
    let spec = match found {
        Err(CoordinatorError::Api { .. }) => None,
        found => found?.and_then(|service| service.spec),
    };
    Ok(spec.and_then(|spec| spec.cluster_ip).as_deref() == Some("None"))
}

/// Returns the number of endpoints to wait for: all replicas in the manifests whose pods the Service selects, but at
/// least one.
pub(super) fn wanted_endpoints(service: &Service, manifests: &[Value]) -> usize {
    let service = serde_json::to_value(service).unwrap_or_default();
    let selected =
        |manifest: &&Value| inject::selects(&service, &manifest["spec"]["template"]["metadata"]["labels"]);
    let replicas: u64 =
        manifests.iter().filter(selected).map(|m| m["spec"]["replicas"].as_u64().unwrap_or(1)).sum();
    usize::try_from(replicas).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn manifests_determine_wanted_endpoint_count() {
        let spec = json!({"selector": {"app": "web"}});
        let service = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        let deployment = |app: &str, replicas: u64| json!({"spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": app, "x": "y"}}}}});
        assert_eq!(wanted_endpoints(&service, &[deployment("web", 3), deployment("db", 9)]), 3);
        assert_eq!(wanted_endpoints(&service, &[]), 1);
    }
}
