//! A container's environment. Pure.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kubelet_pods.go` (`makeEnvironmentVariables`) and
//! `pkg/kubelet/envvars/envvars.go` (Service variables).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::expand::expand;
use crate::resource_quantity;
use crate::well_known::DEFAULT_ACCOUNT;

/// Maximum length of a host name; pod names may be longer.
const LONGEST_HOST_NAME: usize = 63;

/// Data of a ConfigMap or Secret.
pub(super) type ConfigData = BTreeMap<String, Vec<u8>>;

/// Data, besides the container's manifest, on which its environment or a volume depends.
pub(super) struct Surroundings<'a> {
    pub(super) pod: &'a Pod,
    pub(super) pod_ip: &'a str,
    pub(super) host_ip: &'a str,
    /// Returns the data of a ConfigMap or Secret in the pod's namespace; `None` if it does not exist.
    pub(super) data: &'a dyn Fn(KeySource, &str) -> Option<ConfigData>,
    /// Variables that the cluster sets: those for Services and the location of the API server.
    pub(super) given: &'a BTreeMap<String, String>,
    /// Allocatable resources of the node, which are the limits of containers that set none.
    pub(super) allocatable: &'a BTreeMap<String, Quantity>,
}

/// Kind of object that may hold a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    ConfigMap,
    Secret,
}

impl KeySource {
    fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

/// Returns a message that a ConfigMap or Secret does not exist.
pub(super) fn not_found(kind: KeySource, name: &str) -> String {
    format!("{} {name:?} not found", kind.kind().to_lowercase())
}

/// Returns the variables that the cluster sets and those from the manifest, each of which may refer to earlier ones.
///
/// # Errors
///
/// Fails if a required value is missing.
pub(super) fn environment(
    container: &Container,
    around: &Surroundings<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut env = BTreeMap::new();
    for from in container.env_from.iter().flatten() {
        let (kind, name, optional) = if let Some(map) = &from.config_map_ref {
            (KeySource::ConfigMap, &map.name, map.optional)
        } else if let Some(secret) = &from.secret_ref {
            (KeySource::Secret, &secret.name, secret.optional)
        } else {
            continue;
        };
        let prefix = from.prefix.as_deref().unwrap_or_default();
        match (around.data)(kind, name) {
            Some(data) => {
                env.extend(data.into_iter().map(|(key, value)| (format!("{prefix}{key}"), text(value))));
            }
            None if optional == Some(true) => {}
            None => return Err(not_found(kind, name)),
        }
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value_of(variable, container, around, &env)? {
            env.insert(variable.name.clone(), value);
        }
    }
    for (name, value) in around.given {
        env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(env)
}

fn text(bytes: Vec<u8>) -> String {
    // A NUL would terminate the value and keep the container from starting.
    String::from_utf8_lossy(&bytes).replace('\0', "")
}

fn value_of(
    variable: &EnvVar,
    container: &Container,
    around: &Surroundings<'_>,
    before: &BTreeMap<String, String>,
) -> Result<Option<String>, String> {
    let given = variable.value.as_deref().filter(|value| !value.is_empty());
    match (&variable.value_from, given) {
        (Some(source), None) => value_from(&variable.name, source, container, around),
        (_, given) => {
            let lookup = |name: &str| before.get(name).or_else(|| around.given.get(name)).cloned();
            Ok(Some(expand(given.unwrap_or_default(), lookup)))
        }
    }
}

fn value_from(
    variable: &str,
    source: &EnvVarSource,
    container: &Container,
    around: &Surroundings<'_>,
) -> Result<Option<String>, String> {
    if let Some(field) = &source.field_ref {
        return field_value(&field.field_path, around).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_value(field, container, around).map(Some);
    }
    let (kind, name, key, optional) = if let Some(source) = &source.config_map_key_ref {
        (KeySource::ConfigMap, &source.name, &source.key, source.optional)
    } else if let Some(source) = &source.secret_key_ref {
        (KeySource::Secret, &source.name, &source.key, source.optional)
    } else {
        return Err(format!(
            "env {variable:?}: the embedded cluster does not support this kind of valueFrom"
        ));
    };
    let optional = optional == Some(true);
    match (around.data)(kind, name) {
        None if optional => Ok(None),
        None => Err(not_found(kind, name)),
        Some(mut data) => match data.remove(key) {
            Some(value) => Ok(Some(text(value))),
            None if optional => Ok(None),
            None => {
                let namespace = around.pod.metadata.namespace.as_deref().unwrap_or_default();
                Err(format!("couldn't find key {key} in {} {namespace}/{name}", kind.kind()))
            }
        },
    }
}

/// Returns the value of a pod field as the downward API reports it.
///
/// # Errors
///
/// Fails if the downward API does not support the field.
pub(super) fn field_value(path: &str, around: &Surroundings<'_>) -> Result<String, String> {
    let metadata = &around.pod.metadata;
    let spec = around.pod.spec.as_ref();
    let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    let in_map = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
    };
    let all = |map: &Option<BTreeMap<String, String>>| {
        let lines = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    Ok(match path {
        "metadata.name" => metadata.name.clone().unwrap_or_default(),
        "metadata.namespace" => metadata.namespace.clone().unwrap_or_default(),
        "metadata.uid" => metadata.uid.clone().unwrap_or_default(),
        "metadata.labels" => all(&metadata.labels),
        "metadata.annotations" => all(&metadata.annotations),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => service_account(around.pod).to_owned(),
        "status.podIP" | "status.podIPs" => around.pod_ip.to_owned(),
        "status.hostIP" | "status.hostIPs" => around.host_ip.to_owned(),
        _ => match (keyed("metadata.labels['"), keyed("metadata.annotations['")) {
            (Some(key), _) => in_map(&metadata.labels, key),
            (_, Some(key)) => in_map(&metadata.annotations, key),
            _ => return Err(format!("unsupported fieldPath: {path}")),
        },
    })
}

/// Returns the service account of a pod.
pub(super) fn service_account(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_ACCOUNT)
}

/// Returns the host name for a pod's containers (`truncatePodHostnameIfNeeded`).
pub(super) fn host_name(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let of_node = spec.filter(|spec| spec.host_network == Some(true)).and_then(|spec| spec.node_name.clone());
    let given = spec.and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty());
    let name = of_node.or(given).or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    match name.get(..LONGEST_HOST_NAME) {
        Some(start) => start.trim_end_matches(['-', '.']).to_owned(),
        None => name,
    }
}

/// Returns the value of a container's resource in units of the divisor, rounded up.
///
/// # Errors
///
/// Fails if the resource does not exist.
pub(super) fn resource_value(
    field: &ResourceFieldSelector,
    own: &Container,
    around: &Surroundings<'_>,
) -> Result<String, String> {
    let unsupported = || format!("unsupported container resource: {}", field.resource);
    let named = field.container_name.as_deref().filter(|name| !name.is_empty() && *name != own.name);
    let spec = around.pod.spec.as_ref();
    let container = match named {
        None => own,
        Some(name) => {
            let mut all = spec
                .into_iter()
                .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
            all.find(|container| container.name == name).ok_or_else(unsupported)?
        }
    };
    let (list, resource) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let limit = limits.and_then(|limits| limits.get(resource)).or_else(|| around.allocatable.get(resource));
    let quantity = match list {
        "limits" => limit,
        "requests" => requests.and_then(|requests| requests.get(resource)),
        _ => return Err(unsupported()),
    };
    let value = match quantity {
        Some(quantity) => resource_quantity::parse(&quantity.0).ok_or_else(unsupported)?,
        // The container requests nothing.
        None if list == "requests" => 0.0,
        None => return Err(unsupported()),
    };
    let divisor = field.divisor.as_ref().and_then(|divisor| resource_quantity::parse(&divisor.0));
    Ok(resource_quantity::whole_units(value, divisor.filter(|divisor| *divisor > 0.0).unwrap_or(1.0)))
}

/// Returns the variables for a Service, or none if it has no address. Variables in the style of Docker links
/// (`WEB_PORT_80_TCP`) are omitted.
pub(super) fn service_variables(service: &Value) -> Vec<(String, String)> {
    let ip = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(first) = ports.first().filter(|_| !ip.is_empty() && ip != "None") else { return Vec::new() };
    let upper = |name: &str| name.replace('-', "_").to_uppercase();
    let name = upper(service["metadata"]["name"].as_str().unwrap_or_default());
    let number = |port: &Value| port["port"].to_string();
    let mut variables = vec![
        (format!("{name}_SERVICE_HOST"), ip.to_owned()),
        (format!("{name}_SERVICE_PORT"), number(first)),
    ];
    for port in ports {
        if let Some(port_name) = port["name"].as_str().filter(|name| !name.is_empty()) {
            variables.push((format!("{name}_SERVICE_PORT_{}", upper(port_name)), number(port)));
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn try_environment(container: Value) -> Result<BTreeMap<String, String>, String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "shop", "uid": "u-1", "labels": {"app": "web"}},
            "spec": {"nodeName": "node-1", "containers": []},
        }))
        .unwrap();
        let settings = ConfigData::from([("mode".to_owned(), b"fast".to_vec())]);
        let data =
            |kind, name: &str| (kind == KeySource::ConfigMap && name == "settings").then(|| settings.clone());
        let service = json!({
            "metadata": {"name": "my-db"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}]},
        });
        let services = service_variables(&service).into_iter().collect();
        let allocatable = BTreeMap::from([("cpu".to_owned(), Quantity("2".to_owned()))]);
        let around = Surroundings {
            pod: &pod,
            pod_ip: "127.64.1.1",
            host_ip: "127.64.0.1",
            data: &data,
            given: &services,
            allocatable: &allocatable,
        };
        environment(&serde_json::from_value(container).unwrap(), &around)
    }

    fn field(name: &str, path: &str) -> Value {
        json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    }

    fn resource(name: &str, resource: &str, divisor: &str) -> Value {
        let reference = json!({"resource": resource, "divisor": divisor});
        json!({"name": name, "valueFrom": {"resourceFieldRef": reference}})
    }

    #[test]
    fn environment_resolves_manifest_sources() {
        let env = try_environment(json!({
            "name": "c",
            "envFrom": [{"prefix": "CFG_", "configMapRef": {"name": "settings"}},
                        {"secretRef": {"name": "none", "optional": true}}],
            "env": [
                field("POD_IP", "status.podIP"),
                {"name": "LISTEN", "value": "$(POD_IP):8080"},
                {"name": "DB", "value": "$(MY_DB_SERVICE_HOST)"},
                field("UID_", "metadata.uid"),
                field("APP", "metadata.labels['app']"),
                {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
                {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
                resource("CPUS", "limits.cpu", "1"),
                resource("MILLI", "requests.cpu", "1m"),
                resource("MEBI", "limits.memory", "1Mi"),
            ],
            "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}},
        }))
        .unwrap();
        for (name, value) in [
            ("CFG_mode", "fast"),
            ("POD_IP", "127.64.1.1"),
            ("LISTEN", "127.64.1.1:8080"),
            ("DB", "10.96.0.7"),
            ("UID_", "u-1"),
            ("APP", "web"),
            ("MODE", "fast"),
            ("CPUS", "2"),
            ("MILLI", "250"),
            ("MEBI", "64"),
            ("MY_DB_SERVICE_PORT", "5432"),
            ("MY_DB_SERVICE_PORT_PG", "5432"),
        ] {
            assert_eq!(env[name], value, "{name}");
        }
        assert!(!env.contains_key("NONE"));
    }

    #[test]
    fn missing_env_source_error_matches_kubelet() {
        let missing = |source: Value| {
            let container = json!({"name": "c", "env": [{"name": "X", "valueFrom": source}]});
            try_environment(container).unwrap_err()
        };
        assert_eq!(
            missing(json!({"configMapKeyRef": {"name": "settings", "key": "other"}})),
            "couldn't find key other in ConfigMap shop/settings"
        );
        assert_eq!(missing(json!({"secretKeyRef": {"name": "s", "key": "k"}})), "secret \"s\" not found");
    }
}
