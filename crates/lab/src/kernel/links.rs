//! Connections between the namespaces: point-to-point links and routes, as scripts for `ip -batch`.
//!
//! Every hop is routed; there is no bridge. Each node and each pod has one interface, `eth0`, and reaches everything
//! through the other end of that link, so all of a pod's traffic passes through its node's netfilter. Packets to a pod
//! that does not exist take the wider route for the node's pods, which leads nowhere: to an interface whose other end
//! is down.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

/// Address of the node's end of every pod link, the same as Calico's. Node links need a different gateway, because a
/// node does not answer ARP requests from its own addresses.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Name of the pod's end of its link.
pub(super) const IN_POD: &str = "eth0";

/// Next hop to pods that do not exist, behind an interface whose other end is down.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 2);

/// Plan for a node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Name of the node.
    pub name: String,
    /// Address of the node.
    pub address: Ipv4Addr,
    /// Network address of the /24 for the node's pods.
    pub pods: Ipv4Addr,
}

/// Scripts for the two ends of a link.
pub(super) struct Scripts {
    /// Script for the existing namespace.
    pub(super) outside: String,
    /// Script for the new namespace.
    pub(super) inside: String,
}

/// Lets this thread's network namespace send every ICMP error so that a measuring client sees each refusal. By default,
/// a peer in another namespace gets six in a burst and then one per second, and the attempts in between stall.
pub(super) fn send_all_icmp_errors() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/icmp_ratemask", "0")
}

/// Turns this thread's network namespace into a router.
pub(super) fn forward_packets() -> io::Result<()> {
    const SETTINGS: [(&str, &str); 6] = [
        ("ip_forward", "1"),
        // New interfaces inherit the default.
        ("conf/default/rp_filter", "0"),
        ("conf/all/rp_filter", "0"),
        // A packet may leave through the interface on which it arrived if a pod connects to itself through its Service.
        ("conf/default/send_redirects", "0"),
        ("conf/all/send_redirects", "0"),
        ("conf/lo/rp_filter", "0"),
    ];
    for (name, value) in SETTINGS {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        fs::write(&path, value)
            .map_err(|error| io::Error::new(error.kind(), format!("write {}: {error}", path.display())))?;
    }
    Ok(())
}

/// Returns the script for the fabric itself.
pub(super) fn fabric(control_plane: Ipv4Addr) -> String {
    format!(
        "link set lo up\n\
         addr add {control_plane}/32 dev lo\n"
    )
}

/// Returns the scripts for node `number`, whose namespace is at the path `net`.
pub(super) fn node(number: u32, plan: &NodePlan, control_plane: Ipv4Addr, net: &Path) -> Scripts {
    let NodePlan { address, pods, .. } = plan;
    let net = net.display();
    let outside = format!(
        "link add node{number} type veth peer name eth0 netns {net}\n\
         addr add {control_plane}/32 dev node{number}\n\
         link set node{number} up\n\
         route add {address}/32 dev node{number} src {control_plane}\n\
         route add {pods}/24 via {address} dev node{number} onlink src {control_plane}\n"
    );
    let inside = format!(
        "link set lo up\n\
         addr add {address}/32 dev eth0\n\
         link set eth0 up\n\
         route add default via {control_plane} dev eth0 onlink src {address}\n\
         link add gone type veth peer name nowhere\n\
         link set gone arp off\n\
         link set gone up\n\
         route add {pods}/24 via {NOWHERE} dev gone onlink src {address}\n"
    );
    Scripts { outside, inside }
}

/// Returns an `nft` script for a node that tells senders when a pod's address is gone. It matches the route, because
/// the interface that a rule sees for a local packet is the one before address translation.
pub(super) fn gone_is_unreachable() -> String {
    let chain = |hook| {
        format!(
            "chain {hook} {{\n\
             type filter hook {hook} priority 10\n\
             rt ip nexthop {NOWHERE} reject with icmp host-unreachable\n\
             }}\n"
        )
    };
    format!("table ip gone {{\n{}{}}}\n", chain("forward"), chain("output"))
}

/// Returns the script that creates the two ends of a pod's link; the pod's namespace is at the path `net`.
pub(super) fn pod_ends(pod: Ipv4Addr, net: &Path) -> String {
    format!("link add {} type veth peer name {IN_POD} netns {}\n", pod_link(pod), net.display())
}

/// Returns the scripts for a pod on the node with the address `node`. The ends of the pod's link must already exist.
pub(super) fn pod(node: Ipv4Addr, pod: Ipv4Addr) -> Scripts {
    let link = pod_link(pod);
    let outside = format!(
        "addr add {GATEWAY}/32 dev {link} scope link\n\
         link set {link} up\n\
         route add {pod}/32 dev {link} src {node}\n"
    );
    let inside = format!(
        "link set lo up\n\
         addr add {pod}/32 dev {IN_POD}\n\
         link set {IN_POD} up\n\
         route add default via {GATEWAY} dev {IN_POD} onlink src {pod}\n"
    );
    Scripts { outside, inside }
}

/// Returns the script that removes a pod's link and, with it, the pod's address. The route is deleted first so that
/// packets sent while the link disappears already take the route that all packets take afterwards.
pub(super) fn remove_pod(pod: Ipv4Addr) -> String {
    let link = pod_link(pod);
    format!(
        "route del {pod}/32 dev {link}\n\
         link del {link}\n"
    )
}

/// Returns the name of the node's end of a pod link.
pub(super) fn pod_link(pod: Ipv4Addr) -> String {
    format!("pod{}", pod.octets()[3])
}
