//! Tests of finding out what implements Services in various vendors' clusters.

use k8s_openapi::api::core::v1::Node;

use super::*;
use crate::observe::proxy_detection::find;
use rolldrop_record::service_proxy::{ProxyEvidence, ServiceProxy};

/// Returns the findings for a cluster with these objects, identified by resource and name, in `kube-system`.
async fn found(objects: &[(&str, Value)], nodes: Value) -> (ServiceProxy, Option<ProxyEvidence>) {
    let objects: Vec<(String, Value)> =
        objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
    let (client, _) = api(move |_, path| {
        let (_, own) = path.split_once("/namespaces/kube-system/").expect(path);
        match objects.iter().find(|(path, _)| path == own) {
            Some((_, object)) => (200, object.to_string()),
            None => status(404, "NotFound", "no such thing"),
        }
    });
    let stop = CancellationToken::new();
    let caller = Caller::in_shop(client, TimeLimits::default(), stop);
    let nodes: Vec<Node> = serde_json::from_value(nodes).unwrap();
    find(&caller, &nodes).await.unwrap().known
}

fn map(key: &str, text: &str) -> Value {
    json!({"metadata": {"name": "x"}, "data": {key: text}})
}

fn daemon_set(nodes: i32) -> Value {
    let status = json!({"desiredNumberScheduled": nodes, "currentNumberScheduled": nodes,
        "numberMisscheduled": 0, "numberReady": nodes});
    json!({"metadata": {"name": "kube-proxy"}, "status": status})
}

fn pods(arguments: &[&str]) -> Value {
    let pod = |argument: &&str| {
        json!({"metadata": {"name": "x"},
            "spec": {"containers": [{"name": "kube-proxy", "command": ["kube-proxy", argument]}]}})
    };
    let items: Vec<Value> = arguments.iter().map(pod).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

#[tokio::test]
async fn service_proxy_is_detected_across_distributions() {
    let of_map = |mode| (mode, Some(ProxyEvidence::ConfigMap));
    let of_arguments = |mode| (mode, Some(ProxyEvidence::Arguments));
    let config = "kind: KubeProxyConfiguration\nmode: nftables\n";
    let kubeadm = ("configmaps/kube-proxy", map("config.conf", config));
    let eks = [
        ("configmaps/kube-proxy", map("kubeconfig", "kind: Config\n")),
        ("configmaps/kube-proxy-config", map("config", config)),
    ];
    let none = || json!([]);
    assert_eq!(found(std::slice::from_ref(&kubeadm), none()).await, of_map(ServiceProxy::Nftables));
    assert_eq!(found(&eks, none()).await, of_map(ServiceProxy::Nftables));
    let cilium = ("configmaps/cilium-config", map("kube-proxy-replacement", "true"));
    // A former kube-proxy often leaves its settings behind.
    assert_eq!(found(&[kubeadm.clone(), cilium], none()).await, of_map(ServiceProxy::Cilium));
    let off = [kubeadm.clone(), ("daemonsets/kube-proxy", daemon_set(0))];
    assert_eq!(found(&off, none()).await, (ServiceProxy::Unknown, None));
    let on = [kubeadm, ("daemonsets/kube-proxy", daemon_set(3))];
    assert_eq!(found(&on, none()).await, of_map(ServiceProxy::Nftables));
    let rke2 = [("pods", pods(&["--proxy-mode=ipvs", "--proxy-mode=ipvs"]))];
    assert_eq!(found(&rke2, none()).await, of_arguments(ServiceProxy::Ipvs));
    let mixed = [("pods", pods(&["--proxy-mode=ipvs", "--proxy-mode=iptables"]))];
    assert_eq!(found(&mixed, none()).await, (ServiceProxy::Unknown, None));
    let annotations = json!({"k3s.io/node-args": "[\"server\"]"});
    let k3s = json!([{"metadata": {"name": "no-such-host.", "annotations": annotations}}]);
    assert_eq!(found(&[], k3s).await, of_arguments(ServiceProxy::Iptables));
    assert_eq!(found(&[], none()).await, (ServiceProxy::Unknown, None));
}

#[tokio::test]
async fn missing_permissions_are_listed_once() {
    let (client, _) = api(|_, _| status(403, "Forbidden", "no such right"));
    let stop = CancellationToken::new();
    let caller = Caller::in_shop(client, TimeLimits::default(), stop);
    let found = find(&caller, &[]).await.unwrap();
    assert_eq!(found.known, (ServiceProxy::Unknown, None));
    let rights = [
        "get configmaps/cilium-config",
        "get daemonsets/kube-proxy",
        "get configmaps/kube-proxy",
        "get configmaps/kube-proxy-config",
        "list pods",
    ];
    assert_eq!(found.denied, rights.map(|right| format!("{right} in kube-system")));
}
