//! What must hold before load is sent: the Service exists, and has endpoints.

use crate::cluster::guard::names::in_path;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use serde_json::Value;

use super::{Caller, CoordinatorError};

pub(super) async fn service(caller: &Caller, name: &str) -> Result<Service, CoordinatorError> {
    let what = format!("read Service {name} in namespace {} (-n names another)", caller.namespace);
    let part = in_path(name);
    let api = Api::<Service>::namespaced(caller.client.clone(), &caller.namespace);
    caller.ask(&what, || api.get(&part)).await?.map_err(|e| CoordinatorError::api(&what, &e))
}

/// Whether a Service has no address, so that clients ask the DNS for its pods: one of these manifests, or an existing
/// one. False for an unknown Service.
pub(super) async fn is_headless(
    caller: &Caller,
    name: &str,
    manifests: &[Value],
) -> Result<bool, CoordinatorError> {
    let own =
        manifests.iter().find(|object| object["kind"] == "Service" && object["metadata"]["name"] == *name);
    if let Some(own) = own {
        return Ok(own["spec"]["clusterIP"] == "None");
    }
    let api = Api::<Service>::namespaced(caller.client.clone(), &caller.namespace);
    let part = in_path(name);
    let found = caller.ask(&format!("read Service {name}"), || api.get_opt(&part)).await?;
    let spec = found.ok().flatten().and_then(|service| service.spec);
    Ok(spec.and_then(|spec| spec.cluster_ip).as_deref() == Some("None"))
}

/// How many endpoints to wait for: the replicas of the manifests whose pods the Service selects, else one.
pub(super) fn wanted_endpoints(service: &Service, manifests: &[Value]) -> usize {
    let selector = service.spec.as_ref().and_then(|s| s.selector.clone()).unwrap_or_default();
    let selected = |manifest: &&Value| {
        let labels = &manifest["spec"]["template"]["metadata"]["labels"];
        !selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == value.as_str())
    };
    let replicas: u64 =
        manifests.iter().filter(selected).map(|m| m["spec"]["replicas"].as_u64().unwrap_or(1)).sum();
    usize::try_from(replicas).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn as_many_endpoints_are_wanted_as_the_manifests_make() {
        let spec = json!({"selector": {"app": "web"}});
        let service = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        let deployment = |app: &str, replicas: u64| json!({"spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": app, "x": "y"}}}}});
        assert_eq!(wanted_endpoints(&service, &[deployment("web", 3), deployment("db", 9)]), 3);
        assert_eq!(wanted_endpoints(&service, &[]), 1);
    }
}
