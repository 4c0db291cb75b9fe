//! A node's nftables rules, as scripts for `nft -f`. Pure.
//!
//! Names and layout follow kube-proxy's nftables mode, except for one rule (`dnat`): a map leads from each Service
//! address to a chain, which picks an endpoint at random; node ports have a similar map; with session affinity, each
//! endpoint has a set of the clients that stay with it. Connections to Services without endpoints are rejected, and
//! those to ports that the `Local` policy leaves without an endpoint are dropped. A script applies the differences
//! between two tables in one transaction. Like kube-proxy's rules, it leaves established connections alone; they follow
//! their conntrack entries, and so does any packet that matches the entry of an earlier connection.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use super::service_table::{
    Backend, ConnectionFate, PortEndpoints, ServicePort, ServiceTable, ServiceTrafficPolicy,
};
use crate::address_block::node_pods;

/// Mark of packets whose replies must come back through this node.
const MASQUERADE_MARK: &str = "0x4000";

/// Node that the rules are for.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeAddresses {
    pub(super) address: Ipv4Addr,
    /// Network address of the /24 for the node's pods.
    pub(super) pods: Ipv4Addr,
}

/// Returns the script that changes `before` (`None` if unknown) to `after`; empty if they are the same.
pub(super) fn script(before: Option<&ServiceTable>, after: &ServiceTable, node: NodeAddresses) -> String {
    let mut script = NftScript::default();
    let nothing = ServiceTable::new();
    let before = match before {
        Some(before) if before == after => return String::new(),
        Some(before) => before,
        None => {
            script.0.push_str(&base(node.address));
            &nothing
        }
    };
    for port in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (former, now) = (before.get(port), after.get(port));
        if former != now {
            let rules = |endpoints: Option<&PortEndpoints>| endpoints.map(|it| PortRules::of(port, it, node));
            script.change(&rules(former).unwrap_or_default(), &rules(now).unwrap_or_default());
        }
    }
    script.hairpins(before, after);
    script.0
}

/// Returns a trial script, which needs every kernel feature that the other scripts need.
pub(crate) fn trial(address: Ipv4Addr) -> String {
    let node = NodeAddresses { address, pods: node_pods(0) };
    let service: Arc<str> = "default/trial".into();
    let address = std::net::SocketAddr::from(([10, 96, 0, 1], 80));
    let port = ServicePort {
        address,
        protocol: super::service_table::PortProtocol::Tcp,
        node_port: Some(30000),
        internal: ServiceTrafficPolicy::Cluster,
        external: ServiceTrafficPolicy::Local,
        service,
    };
    let backend = |low| Backend { pod: "trial".into(), address: ([10, 244, 1, low], 8080).into() };
    let cluster = [backend(2), backend(3)].into();
    let sticky = ServicePort { address: ([10, 96, 0, 2], 80).into(), node_port: None, ..port.clone() };
    let once = PortEndpoints { cluster, ..PortEndpoints::default() };
    let stays = PortEndpoints { affinity: Some(Duration::from_secs(1)), ..once.clone() };
    script(None, &ServiceTable::from([(port, once), (sticky, stays)]), node)
}

/// Returns a script that replaces any previous table with the parts that do not depend on Services.
fn base(node: Ipv4Addr) -> String {
    format!(
        "table ip kube-proxy
delete table ip kube-proxy
table ip kube-proxy {{
  set hairpin-connections {{ type ipv4_addr . ipv4_addr; }}
  map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map service-nodeports {{ type inet_proto . inet_service : verdict; }}
  map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
  chain services {{
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr {node} meta l4proto . th dport vmap @service-nodeports
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority -100
    jump services
  }}
  chain nat-output {{
    type nat hook output priority -100
    jump services
  }}
  chain nat-postrouting {{
    type nat hook postrouting priority 100
    meta mark & {MASQUERADE_MARK} != 0 snat to {node}
    ct status dnat ip saddr . ip daddr @hairpin-connections snat to {node}
  }}
  chain reject-chain {{
    reject
  }}
  chain service-endpoints-check {{
    ip daddr . meta l4proto . th dport vmap @no-endpoint-services
    ip daddr {node} meta l4proto . th dport vmap @no-endpoint-nodeports
  }}
  chain filter-input {{
    type filter hook input priority 0
    ct state new jump service-endpoints-check
  }}
  chain filter-forward {{
    type filter hook forward priority 0
    ct state new jump service-endpoints-check
  }}
  chain filter-output {{
    type filter hook output priority 0
    ct state new jump service-endpoints-check
  }}
}}
"
    )
}

#[derive(Default)]
struct NftScript(String);

impl NftScript {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    /// Removes the rules that a port no longer has and adds new ones. A chain must exist for as long as any rule refers
    /// to it.
    fn change(&mut self, before: &PortRules, after: &PortRules) {
        for element in before.elements.difference(&after.elements) {
            self.line(format_args!("delete element ip kube-proxy {element}"));
        }
        let gone = || before.chains.keys().filter(|name| !after.chains.contains_key(*name));
        for name in after.chains.keys().filter(|name| !before.chains.contains_key(*name)) {
            self.line(format_args!("add chain ip kube-proxy {name}"));
        }
        for (name, timeout) in after.sets.iter().filter(|(name, _)| !before.sets.contains_key(*name)) {
            let seconds = timeout.as_secs();
            self.line(format_args!(
                "add set ip kube-proxy {name} {{ type ipv4_addr; flags dynamic,timeout; timeout {seconds}s; }}"
            ));
        }
        for name in gone() {
            self.line(format_args!("flush chain ip kube-proxy {name}"));
        }
        for (name, rules) in &after.chains {
            match before.chains.get(name) {
                Some(former) if former == rules => continue,
                Some(_) => self.line(format_args!("flush chain ip kube-proxy {name}")),
                None => {}
            }
            for rule in rules {
                self.line(format_args!("add rule ip kube-proxy {name} {rule}"));
            }
        }
        for name in gone() {
            self.line(format_args!("delete chain ip kube-proxy {name}"));
        }
        for name in before.sets.keys().filter(|name| !after.sets.contains_key(*name)) {
            self.line(format_args!("delete set ip kube-proxy {name}"));
        }
        for element in after.elements.difference(&before.elements) {
            self.line(format_args!("add element ip kube-proxy {element}"));
        }
    }

    /// Updates the endpoints' hairpin entries, because a pod that reaches itself through its Service must see a sender
    /// other than itself.
    fn hairpins(&mut self, before: &ServiceTable, after: &ServiceTable) {
        let addresses = |table: &ServiceTable| -> BTreeSet<IpAddr> {
            let all = table.values().flat_map(|endpoints| endpoints.cluster.iter().chain(&*endpoints.local));
            all.map(|backend| backend.address.ip()).collect()
        };
        let (before, after) = (addresses(before), addresses(after));
        for (verb, changed) in [("delete", before.difference(&after)), ("add", after.difference(&before))] {
            for ip in changed {
                self.line(format_args!("{verb} element ip kube-proxy hairpin-connections {{ {ip} . {ip} }}"));
            }
        }
    }
}

/// Rules for one Service port on a node.
#[derive(Debug, Default, PartialEq, Eq)]
struct PortRules {
    /// Rules by chain name.
    chains: BTreeMap<String, Vec<String>>,
    /// Map elements, each with the name of its map.
    elements: BTreeSet<String>,
    /// Names of the sets of clients that stay with an endpoint, each with the time for which clients stay after
    /// their last connection.
    sets: BTreeMap<String, Duration>,
}

impl PortRules {
    fn of(port: &ServicePort, endpoints: &PortEndpoints, node: NodeAddresses) -> Self {
        let mut rules = Self::default();
        let ServicePort { address, protocol, .. } = port;
        let own = format!("{} . {protocol} . {}", address.ip(), address.port());
        for (kind, backends) in [("service", &endpoints.cluster), ("local", &endpoints.local)] {
            if !backends.is_empty() {
                let pick = match endpoints.affinity {
                    None => dnat(port, backends),
                    Some(timeout) => rules.sticky(port, backends, timeout),
                };
                rules.chains.insert(chain(kind, port), pick);
            }
        }
        let way = endpoints.way(port.internal);
        rules.elements.insert(match (verdict(way), port.internal) {
            (Some(verdict), _) => format!("no-endpoint-services {{ {own} : {verdict} }}"),
            (None, ServiceTrafficPolicy::Cluster) => {
                format!("service-ips {{ {own} : goto {} }}", chain("service", port))
            }
            (None, ServiceTrafficPolicy::Local) => {
                format!("service-ips {{ {own} : goto {} }}", chain("local", port))
            }
        });
        if let Some(node_port) = port.node_port {
            rules.node_port(port, node_port, endpoints, node);
        }
        rules
    }

    /// Returns the rules that send each client to its last endpoint, and any other client to a random one. Also adds a
    /// chain and a set for each endpoint.
    fn sticky(&mut self, port: &ServicePort, backends: &[Backend], timeout: Duration) -> Vec<String> {
        let own = |kind: &str, Backend { address, .. }: &Backend| {
            format!("{}/{}/{}", chain(kind, port), address.ip(), address.port())
        };
        let endpoint = |backend: &Backend| own("endpoint", backend);
        // The timeout is part of the name because it cannot be changed in an existing set.
        let clients = |backend: &Backend| format!("{}/{}s", own("affinity", backend), timeout.as_secs());
        for backend in backends {
            let set = clients(backend);
            let rules = vec![
                format!("update @{set} {{ ip saddr }}"),
                format!("meta l4proto {} dnat ip to {}", port.protocol, backend.address),
            ];
            self.chains.insert(endpoint(backend), rules);
            self.sets.insert(set, timeout);
        }
        let known = backends
            .iter()
            .map(|backend| format!("ip saddr @{} goto {}", clients(backend), endpoint(backend)));
        let others = shares(backends).map(|(chance, backend)| format!("{chance}goto {}", endpoint(backend)));
        known.chain(others).collect()
    }

    fn node_port(
        &mut self,
        port: &ServicePort,
        node_port: u16,
        endpoints: &PortEndpoints,
        node: NodeAddresses,
    ) {
        let own = format!("{} . {node_port}", port.protocol);
        let way = endpoints.way(port.external);
        if way != ConnectionFate::Rejected {
            let (external, everywhere) = (chain("external", port), chain("service", port));
            let masquerade = format!("meta mark set meta mark | {MASQUERADE_MARK}");
            let mut rules = Vec::new();
            match port.external {
                ServiceTrafficPolicy::Cluster => rules.push(format!("{masquerade} goto {everywhere}")),
                // The policy applies to connections from outside, not to those from the node and its pods.
                ServiceTrafficPolicy::Local => {
                    rules.push(format!("ip saddr {}/24 goto {everywhere}", node.pods));
                    rules.push(format!("ip saddr {} {masquerade} goto {everywhere}", node.address));
                }
            }
            if port.external == ServiceTrafficPolicy::Local && way != ConnectionFate::Dropped {
                rules.push(format!("goto {}", chain("local", port)));
            }
            self.elements.insert(format!("service-nodeports {{ {own} : goto {external} }}"));
            self.chains.insert(external, rules);
        }
        if let Some(verdict) = verdict(way) {
            self.elements.insert(format!("no-endpoint-nodeports {{ {own} : {verdict} }}"));
        }
    }
}

/// Returns the verdict for connections that go to no endpoint.
fn verdict(way: ConnectionFate<'_>) -> Option<&'static str> {
    match way {
        ConnectionFate::To(_) => None,
        ConnectionFate::Rejected => Some("goto reject-chain"),
        ConnectionFate::Dropped => Some("drop"),
    }
}

/// Returns the rules that pick one of these backends at random. Each rule takes its share of the connections left by
/// the earlier rules, so that all backends get the same number on average.
///
/// kube-proxy has one rule with a map of all endpoints. A packet that meets such a map at the moment its rule is
/// replaced finds nothing in the map, and its connection is lost (docs/proofs.md). This is caused by the kernel, not by
/// the pod.
fn dnat(port: &ServicePort, backends: &[Backend]) -> Vec<String> {
    let rule = |(chance, backend): (String, &Backend)| {
        format!("meta l4proto {} {chance}dnat ip to {}", port.protocol, backend.address)
    };
    shares(backends).map(rule).collect()
}

/// Returns each backend with a match expression. With the expressions tried in order, all backends get equal shares of
/// the connections.
fn shares(backends: &[Backend]) -> impl Iterator<Item = (String, &Backend)> {
    backends.iter().enumerate().map(|(n, backend)| match backends.len() - n {
        1 => (String::new(), backend),
        left => (format!("numgen random mod {left} 0 "), backend),
    })
}

/// Returns the name of a port's chain, such as `service-shop/web/tcp/80`.
fn chain(kind: &str, port: &ServicePort) -> String {
    format!("{kind}-{}/{}/{}", port.service, port.protocol, port.address.port())
}

#[cfg(test)]
mod tests {
    use super::super::service_table::PortProtocol;
    use super::*;

    const NODE: NodeAddresses =
        NodeAddresses { address: Ipv4Addr::new(10, 0, 0, 1), pods: Ipv4Addr::new(10, 244, 1, 0) };

    fn port(node_port: Option<u16>) -> ServicePort {
        let (internal, external) = (ServiceTrafficPolicy::Cluster, ServiceTrafficPolicy::Cluster);
        let address = ([10, 96, 0, 5], 80).into();
        ServicePort {
            address,
            protocol: PortProtocol::Tcp,
            node_port,
            internal,
            external,
            service: "shop/web".into(),
        }
    }

    fn backends(pods: &[u8]) -> Arc<[Backend]> {
        let backend = |low: &u8| Backend { pod: "web".into(), address: ([10, 244, 1, *low], 8080).into() };
        pods.iter().map(backend).collect()
    }

    fn table(node_port: Option<u16>, pods: &[u8]) -> ServiceTable {
        ServiceTable::from([(
            port(node_port),
            PortEndpoints { cluster: backends(pods), ..PortEndpoints::default() },
        )])
    }

    /// Returns the same table with the `Local` policy for connections from outside.
    fn local_table(pods: &[u8], local: &[u8]) -> ServiceTable {
        let port = ServicePort { external: ServiceTrafficPolicy::Local, ..port(Some(30080)) };
        let (cluster, local) = (backends(pods), backends(local));
        ServiceTable::from([(port, PortEndpoints { cluster, local, affinity: None })])
    }

    #[test]
    fn local_policy_drops_traffic_without_endpoint() {
        let script = script(Some(&local_table(&[2, 3], &[2])), &local_table(&[3], &[]), NODE);
        insta::assert_snapshot!(script, @r"
        flush chain ip kube-proxy local-shop/web/tcp/80
        flush chain ip kube-proxy external-shop/web/tcp/80
        add rule ip kube-proxy external-shop/web/tcp/80 ip saddr 10.244.1.0/24 goto service-shop/web/tcp/80
        add rule ip kube-proxy external-shop/web/tcp/80 ip saddr 10.0.0.1 meta mark set meta mark | 0x4000 goto service-shop/web/tcp/80
        flush chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 meta l4proto tcp dnat ip to 10.244.1.3:8080
        delete chain ip kube-proxy local-shop/web/tcp/80
        add element ip kube-proxy no-endpoint-nodeports { tcp . 30080 : drop }
        delete element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
    }

    #[test]
    fn unchanged_table_yields_empty_script() {
        assert_eq!(script(Some(&table(None, &[2])), &table(None, &[2]), NODE), "");
        assert!(script(None, &ServiceTable::new(), NODE).starts_with("table ip kube-proxy\ndelete table"));
    }

    #[test]
    fn endpoint_removal_rewrites_one_chain() {
        let script = script(Some(&table(Some(30080), &[2, 3])), &table(Some(30080), &[3]), NODE);
        insta::assert_snapshot!(script, @r"
        flush chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 meta l4proto tcp dnat ip to 10.244.1.3:8080
        delete element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
    }

    #[test]
    fn endpoint_rules_share_traffic_equally() {
        let rules = PortRules::of(&port(None), &table(None, &[2, 3, 4])[&port(None)], NODE);
        insta::assert_snapshot!(rules.chains["service-shop/web/tcp/80"].join("\n"), @r"
        meta l4proto tcp numgen random mod 3 0 dnat ip to 10.244.1.2:8080
        meta l4proto tcp numgen random mod 2 0 dnat ip to 10.244.1.3:8080
        meta l4proto tcp dnat ip to 10.244.1.4:8080
        ");
    }

    #[test]
    fn affinity_set_changes_with_endpoint_and_timeout() {
        let table = |pods: &[u8], seconds| {
            let affinity = Some(Duration::from_secs(seconds));
            ServiceTable::from([(
                port(None),
                PortEndpoints { cluster: backends(pods), affinity, ..PortEndpoints::default() },
            )])
        };
        let rules = PortRules::of(&port(None), &table(&[2, 3], 60)[&port(None)], NODE);
        insta::assert_snapshot!(rules.chains["service-shop/web/tcp/80"].join("\n"), @r"
        ip saddr @affinity-shop/web/tcp/80/10.244.1.2/8080/60s goto endpoint-shop/web/tcp/80/10.244.1.2/8080
        ip saddr @affinity-shop/web/tcp/80/10.244.1.3/8080/60s goto endpoint-shop/web/tcp/80/10.244.1.3/8080
        numgen random mod 2 0 goto endpoint-shop/web/tcp/80/10.244.1.2/8080
        goto endpoint-shop/web/tcp/80/10.244.1.3/8080
        ");
        let script = script(Some(&table(&[2, 3], 60)), &table(&[3], 60), NODE);
        insta::assert_snapshot!(script, @r"
        flush chain ip kube-proxy endpoint-shop/web/tcp/80/10.244.1.2/8080
        flush chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 ip saddr @affinity-shop/web/tcp/80/10.244.1.3/8080/60s goto endpoint-shop/web/tcp/80/10.244.1.3/8080
        add rule ip kube-proxy service-shop/web/tcp/80 goto endpoint-shop/web/tcp/80/10.244.1.3/8080
        delete chain ip kube-proxy endpoint-shop/web/tcp/80/10.244.1.2/8080
        delete set ip kube-proxy affinity-shop/web/tcp/80/10.244.1.2/8080/60s
        delete element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
        let longer = super::script(Some(&table(&[3], 60)), &table(&[3], 90), NODE);
        insta::assert_snapshot!(longer, @r"
        add set ip kube-proxy affinity-shop/web/tcp/80/10.244.1.3/8080/90s { type ipv4_addr; flags dynamic,timeout; timeout 90s; }
        flush chain ip kube-proxy endpoint-shop/web/tcp/80/10.244.1.3/8080
        add rule ip kube-proxy endpoint-shop/web/tcp/80/10.244.1.3/8080 update @affinity-shop/web/tcp/80/10.244.1.3/8080/90s { ip saddr }
        add rule ip kube-proxy endpoint-shop/web/tcp/80/10.244.1.3/8080 meta l4proto tcp dnat ip to 10.244.1.3:8080
        flush chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 ip saddr @affinity-shop/web/tcp/80/10.244.1.3/8080/90s goto endpoint-shop/web/tcp/80/10.244.1.3/8080
        add rule ip kube-proxy service-shop/web/tcp/80 goto endpoint-shop/web/tcp/80/10.244.1.3/8080
        delete set ip kube-proxy affinity-shop/web/tcp/80/10.244.1.3/8080/60s
        ");
    }

    #[test]
    fn service_rules_follow_service_lifecycle() {
        let come = script(Some(&ServiceTable::new()), &table(Some(30080), &[2]), NODE);
        insta::assert_snapshot!(come, @r"
        add chain ip kube-proxy external-shop/web/tcp/80
        add chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy external-shop/web/tcp/80 meta mark set meta mark | 0x4000 goto service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 meta l4proto tcp dnat ip to 10.244.1.2:8080
        add element ip kube-proxy service-ips { 10.96.0.5 . tcp . 80 : goto service-shop/web/tcp/80 }
        add element ip kube-proxy service-nodeports { tcp . 30080 : goto external-shop/web/tcp/80 }
        add element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
        let empty = script(Some(&table(Some(30080), &[2])), &table(Some(30080), &[]), NODE);
        insta::assert_snapshot!(empty, @r"
        delete element ip kube-proxy service-ips { 10.96.0.5 . tcp . 80 : goto service-shop/web/tcp/80 }
        delete element ip kube-proxy service-nodeports { tcp . 30080 : goto external-shop/web/tcp/80 }
        flush chain ip kube-proxy external-shop/web/tcp/80
        flush chain ip kube-proxy service-shop/web/tcp/80
        delete chain ip kube-proxy external-shop/web/tcp/80
        delete chain ip kube-proxy service-shop/web/tcp/80
        add element ip kube-proxy no-endpoint-nodeports { tcp . 30080 : goto reject-chain }
        add element ip kube-proxy no-endpoint-services { 10.96.0.5 . tcp . 80 : goto reject-chain }
        delete element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
        let gone = script(Some(&table(None, &[])), &ServiceTable::new(), NODE);
        insta::assert_snapshot!(gone, @"delete element ip kube-proxy no-endpoint-services { 10.96.0.5 . tcp . 80 : goto reject-chain }");
    }
}
