//! The nftables rules of a node, as scripts for `nft -f`. Pure.
//!
//! Named and laid out like those of kube-proxy's nftables mode: a map from addresses of Services
//! to a chain each, which picks an endpoint at random; the same for node ports; and Services
//! without endpoints are rejected. A script changes what differs between two tables, in one
//! transaction. Like kube-proxy's it leaves established connections alone: they follow their
//! conntrack entries, and so does whatever meets the entry of an earlier connection.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::table::{Backend, ServicePort, Table};

/// The mark of packets whose answers must come back through this node.
const MASQUERADE_MARK: &str = "0x4000";

/// The script that turns `before` (nothing yet, or nobody knows what) into `after`, on the node
/// with this address. Empty when they are the same.
pub(super) fn script(before: Option<&Table>, after: &Table, node: Ipv4Addr) -> String {
    let mut script = Script::default();
    let nothing = Table::new();
    let before = match before {
        Some(before) if before == after => return String::new(),
        Some(before) => before,
        None => {
            script.0.push_str(&base(node));
            &nothing
        }
    };
    for (port, backends) in before {
        if after.get(port) != Some(backends) {
            script.remove(port, backends, after.get(port).is_some_and(|now| !now.is_empty()));
        }
    }
    for (port, backends) in after {
        let former = before.get(port);
        if former != Some(backends) {
            script.add(port, backends, former.is_some_and(|former| !former.is_empty()));
        }
    }
    script.hairpins(before, after);
    script.0
}

/// A script that needs all that the others need, for trying out.
pub(in crate::cluster::embedded) fn trial(node: Ipv4Addr) -> String {
    let service: Arc<str> = "default/trial".into();
    let address = std::net::SocketAddr::from(([10, 96, 0, 1], 80));
    let port =
        ServicePort { address, protocol: super::table::Protocol::Tcp, node_port: Some(30000), service };
    let backend = |low| Backend { pod: "trial".into(), address: ([10, 244, 1, low], 8080).into() };
    let table = Table::from([(port, [backend(2), backend(3)].into())]);
    script(None, &table, node)
}

/// What is there whatever the Services are, in place of what was there.
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
struct Script(String);

impl Script {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    /// Takes away what was there for a port; its chains stay when they are filled anew.
    fn remove(&mut self, port: &ServicePort, former: &[Backend], chains_stay: bool) {
        if former.is_empty() {
            self.elements("delete", "no-endpoint", port, "goto reject-chain", "goto reject-chain");
        } else if !chains_stay {
            let (service, external) = (chain("service", port), chain("external", port));
            self.elements("delete", "service", port, &format!("goto {service}"), &format!("goto {external}"));
            if port.node_port.is_some() {
                self.line(format_args!("flush chain ip kube-proxy {external}"));
                self.line(format_args!("delete chain ip kube-proxy {external}"));
            }
            self.line(format_args!("flush chain ip kube-proxy {service}"));
            self.line(format_args!("delete chain ip kube-proxy {service}"));
        }
    }

    fn add(&mut self, port: &ServicePort, backends: &[Backend], chains_are_there: bool) {
        if backends.is_empty() {
            return self.elements("add", "no-endpoint", port, "goto reject-chain", "goto reject-chain");
        }
        let (service, external) = (chain("service", port), chain("external", port));
        if chains_are_there {
            self.line(format_args!("flush chain ip kube-proxy {service}"));
        } else {
            self.line(format_args!("add chain ip kube-proxy {service}"));
        }
        let choices: Vec<_> = backends
            .iter()
            .enumerate()
            .map(|(n, backend)| format!("{n} : {} . {}", backend.address.ip(), backend.address.port()))
            .collect();
        self.line(format_args!(
            "add rule ip kube-proxy {service} meta l4proto {} dnat ip to numgen random mod {} map {{ {} }}",
            port.protocol,
            backends.len(),
            choices.join(", ")
        ));
        if chains_are_there {
            return;
        }
        if port.node_port.is_some() {
            self.line(format_args!("add chain ip kube-proxy {external}"));
            self.line(format_args!(
                "add rule ip kube-proxy {external} meta mark set meta mark | {MASQUERADE_MARK} goto {service}"
            ));
        }
        self.elements("add", "service", port, &format!("goto {service}"), &format!("goto {external}"));
    }

    /// Adds or deletes the entries of a port in the maps `PREFIX-ips` (or `-services`) and
    /// `PREFIX-nodeports`.
    fn elements(&mut self, verb: &str, prefix: &str, port: &ServicePort, verdict: &str, external: &str) {
        let ServicePort { address, protocol, node_port, .. } = port;
        let map = if prefix == "service" { "service-ips" } else { "no-endpoint-services" };
        self.line(format_args!(
            "{verb} element ip kube-proxy {map} {{ {} . {protocol} . {} : {verdict} }}",
            address.ip(),
            address.port()
        ));
        if let Some(node_port) = node_port {
            self.line(format_args!(
                "{verb} element ip kube-proxy {prefix}-nodeports {{ {protocol} . {node_port} : {external} }}"
            ));
        }
    }

    /// A pod that reaches itself by its Service must see another sender than itself.
    fn hairpins(&mut self, before: &Table, after: &Table) {
        let addresses = |table: &Table| -> BTreeSet<IpAddr> {
            table.values().flat_map(|backends| backends.iter().map(|backend| backend.address.ip())).collect()
        };
        let (before, after) = (addresses(before), addresses(after));
        for (verb, changed) in [("delete", before.difference(&after)), ("add", after.difference(&before))] {
            for ip in changed {
                self.line(format_args!("{verb} element ip kube-proxy hairpin-connections {{ {ip} . {ip} }}"));
            }
        }
    }
}

/// The name of a port's chain, such as `service-shop/web/tcp/80`.
fn chain(kind: &str, port: &ServicePort) -> String {
    format!("{kind}-{}/{}/{}", port.service, port.protocol, port.address.port())
}

#[cfg(test)]
mod tests {
    use super::super::table::Protocol;
    use super::*;

    const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn port(node_port: Option<u16>) -> ServicePort {
        let address = ([10, 96, 0, 5], 80).into();
        ServicePort { address, protocol: Protocol::Tcp, node_port, service: "shop/web".into() }
    }

    fn table(node_port: Option<u16>, pods: &[u8]) -> Table {
        let backend = |low| Backend { pod: "web".into(), address: ([10, 244, 1, low], 8080).into() };
        Table::from([(port(node_port), pods.iter().map(|low| backend(*low)).collect())])
    }

    #[test]
    fn nothing_is_done_when_nothing_changes() {
        assert_eq!(script(Some(&table(None, &[2])), &table(None, &[2]), NODE), "");
        assert!(script(None, &Table::new(), NODE).starts_with("table ip kube-proxy\ndelete table"));
    }

    #[test]
    fn an_endpoint_goes_in_one_rule() {
        let script = script(Some(&table(Some(30080), &[2, 3])), &table(Some(30080), &[3]), NODE);
        insta::assert_snapshot!(script, @r"
        flush chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 meta l4proto tcp dnat ip to numgen random mod 1 map { 0 : 10.244.1.3 . 8080 }
        delete element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
    }

    #[test]
    fn a_service_comes_loses_its_endpoints_and_goes() {
        let come = script(Some(&Table::new()), &table(Some(30080), &[2]), NODE);
        insta::assert_snapshot!(come, @r"
        add chain ip kube-proxy service-shop/web/tcp/80
        add rule ip kube-proxy service-shop/web/tcp/80 meta l4proto tcp dnat ip to numgen random mod 1 map { 0 : 10.244.1.2 . 8080 }
        add chain ip kube-proxy external-shop/web/tcp/80
        add rule ip kube-proxy external-shop/web/tcp/80 meta mark set meta mark | 0x4000 goto service-shop/web/tcp/80
        add element ip kube-proxy service-ips { 10.96.0.5 . tcp . 80 : goto service-shop/web/tcp/80 }
        add element ip kube-proxy service-nodeports { tcp . 30080 : goto external-shop/web/tcp/80 }
        add element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
        let empty = script(Some(&table(Some(30080), &[2])), &table(Some(30080), &[]), NODE);
        insta::assert_snapshot!(empty, @r"
        delete element ip kube-proxy service-ips { 10.96.0.5 . tcp . 80 : goto service-shop/web/tcp/80 }
        delete element ip kube-proxy service-nodeports { tcp . 30080 : goto external-shop/web/tcp/80 }
        flush chain ip kube-proxy external-shop/web/tcp/80
        delete chain ip kube-proxy external-shop/web/tcp/80
        flush chain ip kube-proxy service-shop/web/tcp/80
        delete chain ip kube-proxy service-shop/web/tcp/80
        add element ip kube-proxy no-endpoint-services { 10.96.0.5 . tcp . 80 : goto reject-chain }
        add element ip kube-proxy no-endpoint-nodeports { tcp . 30080 : goto reject-chain }
        delete element ip kube-proxy hairpin-connections { 10.244.1.2 . 10.244.1.2 }
        ");
        let gone = script(Some(&table(None, &[])), &Table::new(), NODE);
        insta::assert_snapshot!(gone, @"delete element ip kube-proxy no-endpoint-services { 10.96.0.5 . tcp . 80 : goto reject-chain }");
    }
}
