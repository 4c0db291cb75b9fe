//! The load's targets, as the cluster shows them and as the load's senders see them.

use std::collections::BTreeSet;
use std::fmt;

use rolldrop_record::routing::{Routing, ServiceRules};
use rolldrop_record::run_info::{Balances, BalancesBecause, ClusterInfo, Target};

/// The load's targets, as the cluster shows them.
#[derive(Clone, Debug)]
pub(crate) struct ReadyTargets {
    /// Targets in the scenario's order.
    pub(crate) targets: Vec<FoundTarget>,
    /// Fingerprint of the cluster.
    pub cluster: ClusterInfo,
}

/// A target of the load.
#[derive(Clone, Debug)]
pub(crate) struct FoundTarget {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) consumer: Consumer,
    pub(crate) balances: Balances,
    pub(crate) balances_because: BalancesBecause,
    /// Service that the target is or leads to.
    pub(crate) service: Option<String>,
    /// Load-balancing rules that this Service asks for.
    pub(crate) rules: ServiceRules,
}

/// Consumer that routes the client to the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// Whatever responds at this URL.
    Url(String),
    /// The Service proxy on the client's own node.
    ServiceProxy { service: String },
    /// The Service proxy on this node, reached through its node port.
    NodePort { number: i32, service: String, node: String },
    /// The client itself, with the DNS response.
    Dns { service: String },
}

/// Location of the client.
#[derive(Clone, Copy, Debug)]
enum Seat<'a> {
    ThisHost,
    Node(&'a str),
    Cluster,
}

impl fmt::Display for Seat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seat::ThisHost => f.write_str("this host"),
            Seat::Node(node) => write!(f, "node {node}"),
            Seat::Cluster => f.write_str("the cluster"),
        }
    }
}

impl Consumer {
    fn seen_from(&self, seat: Seat<'_>) -> String {
        match self {
            Consumer::Url(url) => format!("{url} (as seen from {seat})"),
            Consumer::ServiceProxy { service } => format!("Service {service} (Service proxy of {seat})"),
            Consumer::NodePort { number, service, node } => {
                format!("NodePort {number} of Service {service} (Service proxy of node {node})")
            }
            Consumer::Dns { service } => format!("headless Service {service} (DNS, as resolved from {seat})"),
        }
    }
}

impl FoundTarget {
    fn seen_from(&self, seat: Seat<'_>) -> Target {
        let Self { name, url, consumer, balances, balances_because, service, .. } = self.clone();
        let routing = Some(self.routing());
        let (name, node) = match (&consumer, seat) {
            (Consumer::NodePort { node, .. }, _) => (name, Some(node.clone())),
            // Each node has its own Service proxy.
            (Consumer::ServiceProxy { .. }, Seat::Node(node)) => {
                (at_node(&name, node), Some(node.to_owned()))
            }
            _ => (name, None),
        };
        let consumer = consumer.seen_from(seat);
        Target { name, url, consumer, balances, balances_because, service, routing, node }
    }

    fn routing(&self) -> Routing {
        match self.consumer {
            Consumer::Url(_) => Routing::Url,
            Consumer::Dns { .. } => Routing::Dns,
            Consumer::ServiceProxy { .. } => Routing::ClusterIp(self.rules.clone()),
            Consumer::NodePort { .. } => Routing::NodePort(self.rules.clone()),
        }
    }
}

impl ReadyTargets {
    /// Returns the targets for run.json, as seen from this host.
    pub(crate) fn seen_from_here(&self) -> Vec<Target> {
        told_apart(self.targets.iter().map(|target| target.seen_from(Seat::ThisHost)).collect())
    }

    /// Returns the targets as seen from these nodes of the cluster.
    pub(crate) fn seen_from(&self, nodes: &BTreeSet<String>) -> Vec<Target> {
        let seen = |target: &FoundTarget| match target.consumer {
            Consumer::ServiceProxy { .. } => {
                nodes.iter().map(|node| target.seen_from(Seat::Node(node))).collect()
            }
            _ => vec![target.seen_from(Seat::Cluster)],
        };
        told_apart(self.targets.iter().flat_map(seen).collect())
    }

    /// Returns the names of the targets that are routed by the Service proxy on the client's own node.
    pub(crate) fn by_service_proxy(&self) -> impl Iterator<Item = &str> {
        let by_service_proxy =
            |target: &&FoundTarget| matches!(target.consumer, Consumer::ServiceProxy { .. });
        self.targets.iter().filter(by_service_proxy).map(|target| target.name.as_str())
    }
}

/// Returns the name of a target as seen from a node.
pub(crate) fn at_node(target: &str, node: &str) -> String {
    format!("{target}@{node}")
}

/// Makes the consumers' descriptions unique, because two targets with the same description are still two consumers.
fn told_apart(mut targets: Vec<Target>) -> Vec<Target> {
    for index in 1..targets.len() {
        let (before, target) = targets.split_at_mut(index);
        if before.iter().any(|other| other.consumer == target[0].consumer) {
            target[0].consumer = format!("{}: {}", target[0].name, target[0].consumer);
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_targets_are_split_by_node() {
        let found = |name: &str, consumer| FoundTarget {
            name: name.into(),
            url: "http://x/".into(),
            consumer,
            balances: Balances::Connections,
            balances_because: BalancesBecause::Assumed,
            service: None,
            rules: ServiceRules::default(),
        };
        let service = || "web".to_owned();
        let targets = vec![
            found("web", Consumer::ServiceProxy { service: service() }),
            found("port", Consumer::NodePort { number: 30080, service: service(), node: "b".into() }),
            found("pods", Consumer::Dns { service: service() }),
            found("url", Consumer::Url("http://x/".into())),
            found("again", Consumer::ServiceProxy { service: service() }),
        ];
        let ready = ReadyTargets { targets, cluster: ClusterInfo::default() };
        assert_eq!(ready.by_service_proxy().collect::<Vec<_>>(), ["web", "again"]);
        let told = |targets: Vec<Target>| {
            targets.into_iter().map(|t| format!("{} = {}", t.name, t.consumer)).collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(told(ready.seen_from_here()), @r"
        web = Service web (Service proxy of this host)
        port = NodePort 30080 of Service web (Service proxy of node b)
        pods = headless Service web (DNS, as resolved from this host)
        url = http://x/ (as seen from this host)
        again = again: Service web (Service proxy of this host)
        ");
        let nodes = ["a", "b"].map(str::to_owned).into();
        insta::assert_snapshot!(told(ready.seen_from(&nodes)), @r"
        web@a = Service web (Service proxy of node a)
        web@b = Service web (Service proxy of node b)
        port = NodePort 30080 of Service web (Service proxy of node b)
        pods = headless Service web (DNS, as resolved from the cluster)
        url = http://x/ (as seen from the cluster)
        again@a = again@a: Service web (Service proxy of node a)
        again@b = again@b: Service web (Service proxy of node b)
        ");
    }
}
