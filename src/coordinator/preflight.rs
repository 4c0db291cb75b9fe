//! What must hold before load is sent: the Service has a port and endpoints.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{Api, Client};
use serde_json::Value;

use super::CoordinatorError;

pub(super) async fn service(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Service, CoordinatorError> {
    Api::<Service>::namespaced(client.clone(), namespace)
        .get(name)
        .await
        .map_err(|e| CoordinatorError::api(&format!("read Service {name}"), &e))
}

/// The URL of a Service's port on its cluster address.
pub(super) fn service_url(
    service: &Service,
    name: &str,
    port: Option<&str>,
    path: &str,
) -> Result<String, CoordinatorError> {
    let unusable = |why: String| CoordinatorError::Service { service: name.to_owned(), why };
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let listed = || {
        let names = ports.iter().map(|p| match &p.name {
            Some(name) => format!("{name} ({})", p.port),
            None => p.port.to_string(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let number = match (port, ports.as_slice()) {
        (Some(wanted), _) => {
            let is_it = |p: &&k8s_openapi::api::core::v1::ServicePort| {
                p.name.as_deref() == Some(wanted) || p.port.to_string() == wanted
            };
            let found = ports.iter().find(is_it);
            found.ok_or_else(|| unusable(format!("has no port {wanted:?}, but {}", listed())))?.port
        }
        (None, [only]) => only.port,
        (None, _) => return Err(unusable(format!("name one of its ports: {}", listed()))),
    };
    match spec.cluster_ip.as_deref() {
        None | Some("" | "None") => Err(unusable("has no cluster address; give the target as a url".into())),
        Some(ip) if ip.contains(':') => Ok(format!("http://[{ip}]:{number}{path}")),
        Some(ip) => Ok(format!("http://{ip}:{number}{path}")),
    }
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

    fn web(ports: Value, ip: &str) -> Service {
        let spec = json!({"selector": {"app": "web"}, "clusterIP": ip, "ports": ports});
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_port_is_found_by_name_or_number_or_because_it_is_the_only_one() {
        let two = web(json!([{"name": "http", "port": 80}, {"name": "admin", "port": 81}]), "10.0.0.1");
        let url = |port| service_url(&two, "web", port, "/x").map_err(|e| e.to_string());
        assert_eq!(url(Some("admin")).unwrap(), "http://10.0.0.1:81/x");
        assert_eq!(url(Some("80")).unwrap(), "http://10.0.0.1:80/x");
        assert_eq!(url(None).unwrap_err(), "service web: name one of its ports: http (80), admin (81)");
        assert_eq!(
            url(Some("no")).unwrap_err(),
            "service web: has no port \"no\", but http (80), admin (81)"
        );
        let one = web(json!([{"port": 80}]), "fd00::1");
        assert_eq!(service_url(&one, "web", None, "/").unwrap(), "http://[fd00::1]:80/");
        assert!(service_url(&web(json!([{"port": 80}]), "None"), "web", None, "/").is_err());
    }

    #[test]
    fn as_many_endpoints_are_wanted_as_the_manifests_make() {
        let service = web(json!([{"port": 80}]), "10.0.0.1");
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
