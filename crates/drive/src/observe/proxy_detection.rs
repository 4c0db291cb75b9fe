//! Finds out what implements Services in a cluster, from the places where clusters keep kube-proxy's and Cilium's
//! settings, from kube-proxy's arguments, and from kube-proxy itself if this process runs on one of the cluster's
//! nodes.
//!
//! Each source may be missing, and needs a permission that a run can do without. If two sources contradict each other,
//! the mode is unknown.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Node, Pod, PodSpec, Service};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::api::Caller;
use crate::error::Result;
use rolldrop_load::machine::kube_proxy;
use rolldrop_record::routing::{ServiceRules, SessionAffinity, TrafficPolicy};
use rolldrop_record::service_proxy::{ProxyEvidence, ServiceProxy};

/// Namespace of the cluster's own programs.
pub(crate) const NAMESPACE: &str = "kube-system";
/// ConfigMap with Cilium's settings.
pub(crate) const CILIUM: &str = "cilium-config";
/// ConfigMaps with kube-proxy's settings: first the one in kubeadm and most other clusters, then the one in EKS.
pub(crate) const KUBE_PROXY_MAPS: [&str; 2] = ["kube-proxy", "kube-proxy-config"];
/// DaemonSet that runs kube-proxy on each node, if it runs in pods.
pub(crate) const DAEMON_SET: &str = "kube-proxy";
/// Labels of kube-proxy's pods: first of a DaemonSet's pods, then of static pods.
pub(super) const POD_LABELS: [&str; 2] = ["k8s-app=kube-proxy", "component=kube-proxy"];
/// Node annotations in which k3s and RKE2 keep their arguments.
const NODE_ARGS: [&str; 2] = ["k3s.io/node-args", "rke2.io/node-args"];
/// Annotations with which a Service asks for topology hints; `Disabled` asks for none.
const TOPOLOGY: [&str; 2] =
    ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"];

/// Implementation of Services and the evidence for it.
pub(crate) type KnownProxy = (ServiceProxy, Option<ProxyEvidence>);

const UNKNOWN: KnownProxy = (ServiceProxy::Unknown, None);

/// Implementation of Services, and the permissions that the search for it lacked.
pub(crate) struct DetectedProxy {
    pub(crate) known: KnownProxy,
    /// Missing permissions, such as `get configmaps/kube-proxy in kube-system`.
    pub(crate) denied: Vec<String>,
}

/// Finds out what implements Services in the cluster.
///
/// # Errors
/// Fails if the API server does not respond, or if the run is interrupted. A missing permission is not an error.
pub(crate) async fn find(caller: &Caller, nodes: &[Node]) -> Result<DetectedProxy> {
    let mut search = ProxySearch { caller, denied: Vec::new() };
    let known = search.run(nodes).await?;
    Ok(DetectedProxy { known, denied: search.denied })
}

struct ProxySearch<'a> {
    caller: &'a Caller,
    denied: Vec<String>,
}

impl ProxySearch<'_> {
    async fn run(&mut self, nodes: &[Node]) -> Result<KnownProxy> {
        let of_maps = |mode| (mode, Some(ProxyEvidence::ConfigMap));
        let of_arguments = |mode| (mode, Some(ProxyEvidence::Arguments));
        if self.map(CILIUM).await?.is_some_and(|map| replaces_kube_proxy(&map)) {
            return Ok(of_maps(ServiceProxy::Cilium));
        }
        let sets = Api::<DaemonSet>::namespaced(self.caller.client.clone(), NAMESPACE);
        let set = self.caller.ask("read kube-proxy's DaemonSet", || sets.get(DAEMON_SET)).await?;
        if self.allowed(&format!("get daemonsets/{DAEMON_SET}"), set).as_ref().is_some_and(is_switched_off) {
            // kube-proxy's settings still exist, but something else has replaced it.
            return Ok(UNKNOWN);
        }
        for name in KUBE_PROXY_MAPS {
            if let Some(mode) = self.map(name).await?.as_ref().and_then(configured_mode) {
                return Ok(of_maps(mode));
            }
        }
        let pods = Api::<Pod>::namespaced(self.caller.client.clone(), NAMESPACE);
        for labels in POD_LABELS {
            let params = ListParams::default().labels(labels);
            let known = |pod: Pod| mode_of_pod(&pod.spec?);
            let modes = self.caller.list_as("list kube-proxy's pods", &pods, &params, known).await?;
            let modes = self.allowed("list pods", modes);
            if let Some(mode) = agreed(modes.into_iter().flatten().flatten()) {
                return Ok(of_arguments(mode));
            }
        }
        if let Some(mode) = agreed(nodes.iter().filter_map(mode_of_node)) {
            return Ok(of_arguments(mode));
        }
        if is_here(nodes)
            && let Ok(Some(mode)) = tokio::task::spawn_blocking(kube_proxy::mode).await
        {
            return Ok((mode, Some(ProxyEvidence::ProxyMode)));
        }
        Ok(UNKNOWN)
    }

    async fn map(&mut self, name: &str) -> Result<Option<ConfigMap>> {
        let maps = Api::<ConfigMap>::namespaced(self.caller.client.clone(), NAMESPACE);
        let what = format!("read ConfigMap {NAMESPACE}/{name}");
        let answer = self.caller.ask(&what, || maps.get(name)).await?;
        Ok(self.allowed(&format!("get configmaps/{name}"), answer))
    }

    /// Returns the object from the response, if there is one, and notes a missing permission.
    fn allowed<T>(&mut self, right: &str, answer: kube::Result<T>) -> Option<T> {
        if let Err(kube::Error::Api(status)) = &answer
            && status.code == 403
        {
            let right = format!("{right} in {NAMESPACE}");
            if !self.denied.contains(&right) {
                self.denied.push(right);
            }
        }
        answer.ok()
    }
}

/// Returns the load-balancing rules that a Service asks for.
pub(crate) fn rules(service: &Service) -> ServiceRules {
    let spec = service.spec.clone().unwrap_or_default();
    let policy = |policy: Option<String>| match policy.as_deref() {
        Some("Local") => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    };
    let hints = TOPOLOGY.iter().filter_map(|name| service.annotations().get(*name));
    let mut hints = hints.filter(|value| !value.eq_ignore_ascii_case("disabled"));
    ServiceRules {
        session_affinity: match spec.session_affinity.as_deref() {
            Some("ClientIP") => SessionAffinity::ClientIp,
            _ => SessionAffinity::None,
        },
        internal_traffic: policy(spec.internal_traffic_policy),
        external_traffic: policy(spec.external_traffic_policy),
        distribution: spec.traffic_distribution.or_else(|| hints.next().cloned()),
    }
}

/// Parses kube-proxy's name for a mode; an empty name means the default on Linux.
fn mode(word: &str) -> ServiceProxy {
    match word.trim() {
        "" => ServiceProxy::Iptables,
        word => word.into(),
    }
}

/// Returns the mode if all of them agree; `None` if there are none, or if they contradict each other.
fn agreed(mut modes: impl Iterator<Item = ServiceProxy>) -> Option<ServiceProxy> {
    let first = modes.next()?;
    modes.all(|other| other == first).then_some(first)
}

/// Returns the mode from kube-proxy's settings, whatever key they are stored under.
fn configured_mode(map: &ConfigMap) -> Option<ServiceProxy> {
    map.data.iter().flatten().find_map(|(_, text)| {
        let config: Value = serde_saphyr::from_str(text).ok()?;
        match config.get("mode") {
            Some(Value::String(word)) => Some(mode(word)),
            _ => (config.get("kind")? == "KubeProxyConfiguration").then(|| mode("")),
        }
    })
}

/// Returns true if Cilium has replaced kube-proxy, or a part of it.
fn replaces_kube_proxy(map: &ConfigMap) -> bool {
    let setting = map.data.as_ref().and_then(|data| data.get("kube-proxy-replacement"));
    setting.is_some_and(|value| ["true", "strict", "partial", "probe"].contains(&value.as_str()))
}

/// Returns true if the DaemonSet is not scheduled on any node, as is the case if something else replaces kube-proxy.
fn is_switched_off(set: &DaemonSet) -> bool {
    set.status.as_ref().is_some_and(|status| status.desired_number_scheduled == 0)
}

/// Returns the mode from a kube-proxy pod's arguments; `None` if a configuration file sets the mode.
fn mode_of_pod(spec: &PodSpec) -> Option<ServiceProxy> {
    spec.containers.iter().find_map(|Container { command, args, .. }| {
        // A command line for a shell is one word that contains all arguments.
        let words = command.iter().chain(args).flatten().flat_map(|word| word.split_whitespace());
        let words: Vec<&str> = words.map(|word| word.trim_matches(['"', '\''])).collect();
        if !words.iter().any(|word| word.ends_with("kube-proxy")) && option(&words, "proxy-mode").is_none() {
            return None;
        }
        // A configuration file overrides the options.
        match option(&words, "config") {
            Some(_) => None,
            None => Some(mode(option(&words, "proxy-mode").unwrap_or_default())),
        }
    })
}

/// Returns the value of an option, which follows an `=` or is the next word.
fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let value = |(index, word): (usize, &&'a str)| {
        let rest = word.trim_start_matches('-').strip_prefix(name)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => words.get(index + 1).copied(),
            None => None,
        }
    };
    words.iter().enumerate().filter(|(_, word)| word.starts_with('-')).find_map(value)
}

/// Returns the mode of the kube-proxy that is built into this node's agent, as in k3s and RKE2.
fn mode_of_node(node: &Node) -> Option<ServiceProxy> {
    let text = NODE_ARGS.iter().find_map(|name| node.annotations().get(*name))?;
    let words: Vec<String> = serde_json::from_str(text).ok()?;
    if words.iter().any(|word| word.trim_start_matches('-').starts_with("disable-kube-proxy")) {
        return Some(ServiceProxy::Unknown);
    }
    let mut of_proxy = words.iter().filter_map(|word| {
        let (_, rest) = word.split_once("proxy-mode=")?;
        Some(mode(rest))
    });
    of_proxy.next_back().or_else(|| Some(mode("")))
}

/// Returns true if this process runs on one of these nodes; by default, a node is named after its host. Without this
/// check, the run might ask another cluster's kube-proxy.
fn is_here(nodes: &[Node]) -> bool {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    !host.is_empty() && nodes.iter().any(|node| node.name_any() == host.to_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(key: &str, text: &str) -> ConfigMap {
        serde_json::from_value(json!({"data": {key: text}})).unwrap()
    }

    #[test]
    fn any_config_key_reveals_proxy_mode() {
        let of = |key: &str, text: &str| configured_mode(&map(key, text));
        assert_eq!(of("config.conf", "kind: X\nmode: nftables\n"), Some(ServiceProxy::Nftables));
        assert_eq!(of("config", "mode: \"\"\n"), Some(ServiceProxy::Iptables));
        assert_eq!(of("config", "kind: KubeProxyConfiguration\n"), Some(ServiceProxy::Iptables));
        assert_eq!(of("config.conf", "kind: X\n"), None);
        // On EKS, the ConfigMap kube-proxy has only this key.
        assert_eq!(of("kubeconfig", "kind: Config\nclusters: []\n"), None);
    }

    #[test]
    fn pod_arguments_reveal_proxy_mode() {
        let of = |command: Value| {
            let container = json!({"name": "x", "command": command});
            mode_of_pod(&serde_json::from_value(json!({"containers": [container]})).unwrap())
        };
        let ipvs = Some(ServiceProxy::Ipvs);
        assert_eq!(of(json!(["kube-proxy", "--proxy-mode=ipvs", "--v=2"])), ipvs);
        assert_eq!(of(json!(["/usr/bin/kube-proxy", "--proxy-mode", "ipvs"])), ipvs);
        assert_eq!(of(json!(["/bin/sh", "-c", "exec kube-proxy --proxy-mode=ipvs 1>>/log 2>&1"])), ipvs);
        assert_eq!(of(json!(["kube-proxy", "--v=2"])), Some(ServiceProxy::Iptables));
        // The file takes precedence, and its content is not known here.
        assert_eq!(of(json!(["kube-proxy", "--config=/var/lib/config.conf", "--proxy-mode=ipvs"])), None);
        assert_eq!(of(json!(["sleep", "1"])), None);
    }

    #[test]
    fn agent_arguments_reveal_proxy_mode() {
        let of = |name: &str, words: Value| {
            let annotations = json!({name: words.to_string()});
            mode_of_node(&serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap())
        };
        let k3s = |words| of("k3s.io/node-args", words);
        assert_eq!(k3s(json!(["server", "--disable", "traefik"])), Some(ServiceProxy::Iptables));
        let ipvs = Some(ServiceProxy::Ipvs);
        assert_eq!(k3s(json!(["agent", "--kube-proxy-arg", "proxy-mode=ipvs"])), ipvs);
        assert_eq!(of("rke2.io/node-args", json!(["server", "--kube-proxy-arg=proxy-mode=ipvs"])), ipvs);
        assert_eq!(k3s(json!(["server", "--disable-kube-proxy"])), Some(ServiceProxy::Unknown));
        assert_eq!(of("other", json!([])), None);
    }

    #[test]
    fn contradictory_modes_yield_none() {
        let (one, other) = (ServiceProxy::Ipvs, ServiceProxy::Iptables);
        assert_eq!(agreed([one.clone(), one.clone()].into_iter()), Some(one.clone()));
        assert_eq!(agreed([one, other].into_iter()), None);
        assert_eq!(agreed([].into_iter()), None);
    }

    #[test]
    fn cilium_setting_reveals_kube_proxy_replacement() {
        let replaces = |value: &str| replaces_kube_proxy(&map("kube-proxy-replacement", value));
        assert!(replaces("true") && replaces("strict") && replaces("partial"));
        assert!(!replaces("false") && !replaces("disabled"));
        assert!(!replaces_kube_proxy(&map("tunnel", "vxlan")));
    }

    #[test]
    fn rules_reflect_spec_and_annotations() {
        let of = |service: Value| rules(&serde_json::from_value(service).unwrap());
        assert_eq!(of(json!({"spec": {"sessionAffinity": "None"}})), ServiceRules::default());
        let spec = json!({"sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local", "trafficDistribution": "PreferSameZone"});
        let all = ServiceRules {
            session_affinity: SessionAffinity::ClientIp,
            internal_traffic: TrafficPolicy::Local,
            external_traffic: TrafficPolicy::Local,
            distribution: Some("PreferSameZone".into()),
        };
        assert_eq!(of(json!({"spec": spec})), all);
        let hints = |value: &str| {
            let annotations = json!({"service.kubernetes.io/topology-mode": value});
            of(json!({"metadata": {"annotations": annotations}})).distribution
        };
        assert_eq!(hints("Auto").as_deref(), Some("Auto"));
        assert_eq!(hints("Disabled"), None);
    }
}
