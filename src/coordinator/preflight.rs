//! What must hold before load is sent: the Service is there, and has endpoints.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Api;
use serde_json::Value;

use super::{Caller, CoordinatorError};

pub(super) async fn service(caller: &Caller, name: &str) -> Result<Service, CoordinatorError> {
    let what = format!("read Service {name} in namespace {} (-n names another)", caller.namespace);
    let api = Api::<Service>::namespaced(caller.client.clone(), &caller.namespace);
    caller.ask(&what, || api.get(name)).await?.map_err(|e| CoordinatorError::api(&what, &e))
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

/// The mode in kube-proxy's configuration, where a cluster keeps it as most do.
pub(super) fn kube_proxy_mode(map: &ConfigMap) -> Option<String> {
    let config = map.data.as_ref()?.get("config.conf")?;
    let config: Value = serde_saphyr::from_str(config).ok()?;
    config.get("mode").and_then(Value::as_str).map(|mode| match mode {
        // kube-proxy's own default on Linux.
        "" => "iptables".to_owned(),
        mode => mode.to_owned(),
    })
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

    #[test]
    fn the_mode_of_kube_proxy_is_read_from_its_configuration() {
        let map = |config: &str| serde_json::from_value(json!({"data": {"config.conf": config}})).unwrap();
        assert_eq!(kube_proxy_mode(&map("kind: X\nmode: nftables\n")).as_deref(), Some("nftables"));
        assert_eq!(kube_proxy_mode(&map("mode: \"\"\n")).as_deref(), Some("iptables"));
        assert_eq!(kube_proxy_mode(&map("kind: X\n")), None);
    }
}
