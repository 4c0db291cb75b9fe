//! How the namespaces are connected: point-to-point links and routes, as scripts for `ip -batch`.
//!
//! Every hop is routed; there is no bridge. A node and a pod each have one interface `eth0`, and
//! reach everything by a gateway that exists on the other end of every link. So all traffic of a
//! pod passes its node's netfilter. What is for a pod that does not exist falls to the wider
//! route of its node's pods, which leads nowhere.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use super::NodePlan;
use crate::cluster::embedded::config::GoneAddress;

/// On the outer end of every link, as Calico has it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The hardware address of both ends of a link without ARP: packets carry the sender's own as
/// the receiver's.
const GONE: &str = "02:00:00:00:00:01";

/// Two scripts for the two ends of a link.
pub(super) struct Scripts {
    /// In the namespace that the new one is attached to.
    pub(super) outside: String,
    /// In the new namespace.
    pub(super) inside: String,
}

/// Makes the network namespace of this thread a router.
pub(super) fn forward_packets() -> io::Result<()> {
    const SETTINGS: [(&str, &str); 6] = [
        ("ip_forward", "1"),
        // Interfaces take the default when they are made.
        ("conf/default/rp_filter", "0"),
        ("conf/all/rp_filter", "0"),
        // A packet may leave by the interface that it came in by: a pod that connects to itself
        // by its Service.
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

/// The fabric itself.
pub(super) fn fabric(control_plane: Ipv4Addr) -> String {
    format!(
        "link set lo up\n\
         addr add {control_plane}/32 dev lo\n"
    )
}

/// Node `number`, whose namespace is at the path `net`.
pub(super) fn node(
    number: u32,
    plan: &NodePlan,
    control_plane: Ipv4Addr,
    net: &Path,
    gone: GoneAddress,
) -> Scripts {
    let NodePlan { address, pods, .. } = plan;
    let net = net.display();
    let mut outside = format!(
        "link add node{number} type veth peer name eth0 netns {net}\n\
         addr add {GATEWAY}/32 dev node{number} scope link\n\
         link set node{number} up\n\
         route add {address}/32 dev node{number} src {control_plane}\n\
         route add {pods}/24 via {address} dev node{number} onlink src {control_plane}\n\
         link add gone{number} address {GONE} type veth peer name gone address {GONE} netns {net}\n\
         link set gone{number} arp off\n"
    );
    if gone == GoneAddress::Unreachable {
        // An interface that is down swallows what it gets; one that is up can answer for it.
        outside.push_str(&format!(
            "link set gone{number} up\n\
             rule add iif gone{number} type unreachable\n"
        ));
    }
    let inside = format!(
        "link set lo up\n\
         addr add {address}/32 dev eth0\n\
         link set eth0 up\n\
         route add default via {GATEWAY} dev eth0 onlink src {address}\n\
         link set gone arp off\n\
         link set gone up\n\
         route add {pods}/24 dev gone src {address}\n"
    );
    Scripts { outside, inside }
}

/// A pod of the node with the address `node`; the pod's namespace is at the path `net`.
pub(super) fn pod(node: Ipv4Addr, pod: Ipv4Addr, net: &Path) -> Scripts {
    let link = pod_link(pod);
    let net = net.display();
    let outside = format!(
        "link add {link} type veth peer name eth0 netns {net}\n\
         addr add {GATEWAY}/32 dev {link} scope link\n\
         link set {link} up\n\
         route add {pod}/32 dev {link} src {node}\n"
    );
    let inside = format!(
        "link set lo up\n\
         addr add {pod}/32 dev eth0\n\
         link set eth0 up\n\
         route add default via {GATEWAY} dev eth0 onlink src {pod}\n"
    );
    Scripts { outside, inside }
}

/// Takes a pod's link away, and with it the address. The route goes first: what is sent while the
/// link vanishes goes where everything goes afterwards.
pub(super) fn remove_pod(pod: Ipv4Addr) -> String {
    let link = pod_link(pod);
    format!(
        "route del {pod}/32 dev {link}\n\
         link del {link}\n"
    )
}

/// The node's end of a pod's link.
fn pod_link(pod: Ipv4Addr) -> String {
    format!("pod{}", pod.octets()[3])
}
