//! The `/etc/hosts` file of a pod's containers. Pure.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kubelet_pods.go` (`managedHostsFileContent`).

use std::fmt::Write;

use k8s_openapi::api::core::v1::Pod;

use super::env::host_name;

const OF_ALL: &str = "\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

/// Returns the text of the file for a pod with this address.
pub(super) fn text(pod: &Pod, address: &str) -> String {
    let (spec, own, mut text) = (pod.spec.as_ref(), host_name(pod), OF_ALL.to_owned());
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref()).filter(|name| !name.is_empty());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let full = subdomain.map(|name| format!("{own}.{name}.{namespace}.svc.cluster.local\t"));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{address}\t{}{own}", full.unwrap_or_default());
    let aliases = spec.and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    if !aliases.is_empty() {
        text += "\n# Entries added by HostAliases.\n";
    }
    for alias in aliases {
        let _ = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.as_deref().unwrap_or_default().join("\t"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web-1", "namespace": "shop"}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn hosts_file_lists_pod_and_aliases() {
        let own = |spec: Value| text(&pod(spec), "10.244.1.2").strip_prefix(OF_ALL).unwrap().to_owned();
        assert_eq!(own(json!({"containers": []})), "10.244.1.2\tweb-1\n");
        let spec = json!({"containers": [], "hostname": "db", "subdomain": "all", "hostAliases": [
            {"ip": "10.0.0.9", "hostnames": ["old", "older"]}]});
        assert_eq!(
            own(spec),
            "10.244.1.2\tdb.all.shop.svc.cluster.local\tdb\n\n# Entries added by HostAliases.\n10.0.0.9\told\tolder\n"
        );
    }

    #[test]
    fn host_name_follows_pod_or_node() {
        let name = |spec: Value| host_name(&pod(spec));
        assert_eq!(name(json!({"containers": []})), "web-1");
        assert_eq!(name(json!({"containers": [], "hostname": "db"})), "db");
        let on_host = json!({"containers": [], "hostname": "db", "hostNetwork": true, "nodeName": "node-2"});
        assert_eq!(name(on_host), "node-2");
        let long = json!({"metadata": {"name": format!("{}-{}", "a".repeat(62), "b".repeat(9))}});
        assert_eq!(host_name(&serde_json::from_value(long).unwrap()), "a".repeat(62));
    }
}
