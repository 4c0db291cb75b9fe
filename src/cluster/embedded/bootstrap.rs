//! The objects that every cluster has from the start.

use serde_json::{Value, json};

use super::Config;
use super::api::GIT_VERSION;
use super::registry::Registry;
use super::resource::Resource;
use super::status::Status;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates them, and answers the names of the nodes.
pub(super) fn create_objects(registry: &Registry, config: &Config) -> Result<Vec<String>, Status> {
    for namespace in NAMESPACES {
        let labels = json!({"kubernetes.io/metadata.name": namespace});
        registry.create(
            Resource::Namespaces,
            "",
            json!({"metadata": {"name": namespace, "labels": labels}}),
        )?;
        registry.create(Resource::ServiceAccounts, namespace, json!({"metadata": {"name": "default"}}))?;
    }
    // Where clients look up how Services are proxied; kubeadm puts kube-proxy's settings there.
    let settings = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\nminSyncPeriod: {}\n",
        super::duration::to_text(config.service_proxy.min_sync_period),
    );
    let proxy = json!({"metadata": {"name": "kube-proxy"}, "data": {"config.conf": settings}});
    registry.create(Resource::ConfigMaps, "kube-system", proxy)?;

    let mut nodes = Vec::new();
    for index in 0..config.nodes {
        let name = format!("node-{}", index + 1);
        // The number of nodes is bounded well below 255.
        let address = registry.node_address(u8::try_from(index).unwrap_or(u8::MAX));
        registry.create(Resource::Nodes, "", node(&name, &address.to_string(), &registry.now()))?;
        nodes.push(name);
    }
    Ok(nodes)
}

fn node(name: &str, address: &str, now: &str) -> Value {
    let (os, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
    let resources = json!({"pods": "1000"});
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": os,
                "kubernetes.io/arch": architecture,
            },
        },
        "spec": {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "the node agent runs pods as processes of this machine",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "architecture": architecture,
                "bootID": "",
                "containerRuntimeVersion": "processes://",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "kubeletVersion": GIT_VERSION,
                "machineID": "",
                "operatingSystem": os,
                "osImage": "",
                "systemUUID": "",
            },
        },
    })
}
