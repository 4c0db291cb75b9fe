//! Objects that every cluster has from the start.

mod roles;

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::ClusterConfig;
use super::readiness::NodeReadiness;
use super::registry::Registry;
use super::resource::Resource;
use super::status::Status;
use super::version::{GIT_VERSION, architecture};
use super::well_known::SERVICE_NAME;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Index of the DNS Service's address among all Service addresses; it makes the address 10.96.0.10 where possible.
const DNS_SERVICE_ADDRESS: usize = 9;

/// Creates the objects that every cluster has from the start, and returns the nodes' names. `proxy_mode` is
/// kube-proxy's name for the dataplane; pods reach the API server at `server`.
pub(super) fn create_objects(
    registry: &Registry,
    config: &ClusterConfig,
    proxy_mode: &str,
    server: SocketAddr,
) -> Result<Vec<String>, Status> {
    for namespace in NAMESPACES {
        let labels = json!({"kubernetes.io/metadata.name": namespace});
        registry.create(
            Resource::Namespaces,
            "",
            json!({"metadata": {"name": namespace, "labels": labels}}),
        )?;
    }
    roles::create(registry)?;
    create_kubernetes_service(registry, server)?;
    // Clients look here for the proxy mode; kubeadm puts kube-proxy's settings in the same place.
    let settings = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {proxy_mode}\nminSyncPeriod: {}\n",
        super::duration::to_text(config.service_proxy.min_sync_period),
    );
    let proxy = json!({"metadata": {"name": "kube-proxy"}, "data": {"config.conf": settings}});
    registry.create(Resource::ConfigMaps, "kube-system", proxy)?;

    let mut nodes = Vec::new();
    // The number of nodes is bounded well below 255.
    for (index, _) in (0..=u8::MAX).zip(0..config.nodes) {
        let name = node_name(index);
        let address = registry.addresses().node(index);
        registry.create(Resource::Nodes, "", node_object(&name, &address.to_string()))?;
        NodeReadiness::Ready.post(registry, &name)?;
        nodes.push(name);
    }
    Ok(nodes)
}

/// Returns the name of node `index` (from 0).
pub(super) fn node_name(index: u8) -> String {
    format!("node-{}", u32::from(index) + 1)
}

/// Creates the Service through which pods reach the API server.
fn create_kubernetes_service(registry: &Registry, server: SocketAddr) -> Result<(), Status> {
    // On loopback, a port below 1024 may not be available.
    let port = if server.ip().is_loopback() { server.port() } else { 443 };
    let service = OwnService {
        namespace: "default",
        name: "kubernetes",
        labels: json!({"component": "apiserver", "provider": "kubernetes"}),
        address: registry.addresses().services().next(),
        ports: &[("https", "TCP")],
        port,
        target: server,
    };
    service.create(registry)?;
    let subset = json!({
        "addresses": [{"ip": server.ip()}],
        "ports": [{"name": "https", "port": server.port(), "protocol": "TCP"}],
    });
    let endpoints = json!({"metadata": {"name": "kubernetes"}, "subsets": [subset]});
    registry.create(Resource::Endpoints, "default", endpoints).map(drop)
}

/// Creates the Service through which pods reach the DNS server at `server`.
pub(super) fn announce_dns(registry: &Registry, server: SocketAddr) -> Result<(), Status> {
    let labels = json!({
        "k8s-app": "kube-dns",
        "kubernetes.io/cluster-service": "true",
        "kubernetes.io/name": "CoreDNS",
    });
    let service = OwnService {
        namespace: "kube-system",
        name: "kube-dns",
        labels,
        address: registry.addresses().services().nth(DNS_SERVICE_ADDRESS),
        ports: &[("dns", "UDP"), ("dns-tcp", "TCP")],
        port: server.port(),
        target: server,
    };
    service.create(registry)
}

/// Service that belongs to the cluster itself, routed to `target`.
struct OwnService<'a> {
    namespace: &'a str,
    name: &'a str,
    labels: Value,
    address: Option<Ipv4Addr>,
    /// Names and protocols of the ports, which all have the same number.
    ports: &'a [(&'a str, &'a str)],
    port: u16,
    target: SocketAddr,
}

impl OwnService<'_> {
    /// Creates the Service and its EndpointSlice.
    fn create(self, registry: &Registry) -> Result<(), Status> {
        let Self { namespace, name, labels, address, ports, port, target } = self;
        let ports_at = |port: u16| -> Vec<Value> {
            let ports = ports.iter();
            ports.map(|(name, protocol)| json!({"name": name, "port": port, "protocol": protocol})).collect()
        };
        let mut service_ports = ports_at(port);
        service_ports.iter_mut().for_each(|shown| shown["targetPort"] = json!(target.port()));
        let service = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"clusterIP": address, "ports": service_ports},
        });
        registry.create(Resource::Services, namespace, service)?;
        let slice = json!({
            "metadata": {"name": name, "labels": {SERVICE_NAME: name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [target.ip()], "conditions": {"ready": true}}],
            "ports": ports_at(target.port()),
        });
        registry.create(Resource::EndpointSlices, namespace, slice).map(drop)
    }
}

fn node_object(name: &str, address: &str) -> Value {
    let os = std::env::consts::OS;
    let architecture = architecture();
    let resources = resources();
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": architecture,
                "beta.kubernetes.io/os": os,
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
            "nodeInfo": {
                "architecture": architecture,
                "bootID": first_line("/proc/sys/kernel/random/boot_id"),
                "containerRuntimeVersion": concat!("processes://", env!("CARGO_PKG_VERSION")),
                "kernelVersion": first_line("/proc/sys/kernel/osrelease"),
                "kubeProxyVersion": "",
                "kubeletVersion": GIT_VERSION,
                "machineID": first_line("/etc/machine-id"),
                "operatingSystem": os,
                "osImage": os_image(),
                "systemUUID": "",
            },
        },
    })
}

/// Returns a node's capacity, which is this machine's. CPU and memory are not divided among pods; only the number of
/// pods is limited.
fn resources() -> Value {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("0 kB");
    let memory = memory.trim().trim_end_matches(" kB");
    json!({"cpu": cpus.to_string(), "memory": format!("{memory}Ki"), "pods": "1000"})
}

/// Returns the name of this machine's operating system.
fn os_image() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches(['"', '\'']).to_owned())
}

/// Returns the first line of a file, or an empty string if there is no such file.
fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
