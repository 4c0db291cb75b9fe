//! Routing of new connections to a target's pods: the router and its Service's rules.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Balances, ClusterInfo, Target};
use crate::service_proxy::{ProxyEvidence, Spread};

/// Router of new connections to a target's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Routing {
    /// An unknown router behind a URL.
    Url,
    /// A gateway whose access log shows the address that it sent each request to.
    LoggingGateway,
    /// An unknown router. The only known requests are those that the pod's own proxy recorded.
    SeenAtPod,
    /// The client itself, which looks up the pods' addresses in DNS.
    Dns,
    /// The Service proxy of the client's node, through the Service's cluster IP.
    ClusterIp(ServiceRules),
    /// The Service proxy of a node, through a port of that node.
    NodePort(ServiceRules),
}

/// Settings of a Service that affect how its connections are balanced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRules {
    /// `spec.sessionAffinity`.
    #[serde(default)]
    pub session_affinity: SessionAffinity,
    /// `spec.internalTrafficPolicy`, which applies to the Service's cluster IP.
    #[serde(default)]
    pub internal_traffic: TrafficPolicy,
    /// `spec.externalTrafficPolicy`, which applies to its node ports and external addresses.
    #[serde(default)]
    pub external_traffic: TrafficPolicy,
    /// `spec.trafficDistribution`, or the annotation that requests topology hints, by which nearby endpoints are
    /// preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
}

/// Session affinity, which determines whether a client's connections stay with one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionAffinity {
    /// Each connection is balanced independently.
    #[default]
    None,
    /// All connections from one client address go to the same pod.
    ClientIp,
}

/// Traffic policy: the endpoints that a node's Service proxy uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficPolicy {
    /// All endpoints.
    #[default]
    Cluster,
    /// Only endpoints on the same node.
    Local,
}

/// Distribution of new connections to a target over the ready endpoints of its Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// Each connection goes to any ready endpoint with equal probability, independently of earlier connections.
    Random {
        /// True if this relies on the user's statement, or on defaults because the Service's rules were not recorded.
        assumed: bool,
    },
    /// Another distribution, with the reason.
    No(&'static str),
    /// The distribution is unknown.
    Unknown,
}

impl Routing {
    /// Returns true if the address that a request was routed to belongs to the pod that got it, whatever routed it.
    pub const fn is_to_pod(&self) -> bool {
        matches!(self, Self::LoggingGateway | Self::SeenAtPod)
    }
}

impl Target {
    /// Returns the distribution of new connections to the target over its Service's endpoints. Assumes a Service's
    /// default rules if the run did not record the rules.
    pub fn balancing(&self, cluster: &ClusterInfo) -> Balancing {
        if self.balances == Balances::Requests {
            return Balancing::No(
                "a proxy there balances individual requests and reuses its connections to pods",
            );
        }
        let is_recorded = self.routing.is_some();
        let rules = match &self.routing {
            Some(Routing::Url | Routing::LoggingGateway | Routing::SeenAtPod) => return Balancing::Unknown,
            Some(Routing::Dns) => return Balancing::No("the client picks from the addresses in DNS"),
            Some(Routing::ClusterIp(rules)) => rules.near(rules.internal_traffic),
            Some(Routing::NodePort(rules)) => rules.near(rules.external_traffic),
            None if self.service.is_none() || !self.has_address() => return Balancing::Unknown,
            None => None,
        };
        match (rules, cluster.dataplane.spread()) {
            (Some(why), _) | (None, Spread::Otherwise(why)) => Balancing::No(why),
            (None, Spread::Random) => {
                let assumed = !is_recorded || cluster.dataplane_from == Some(ProxyEvidence::Assumed);
                Balancing::Random { assumed }
            }
            (None, Spread::Unknown) => Balancing::Unknown,
        }
    }

    /// Returns the only node whose pods the target's connections can reach: the Service proxy's node, if the traffic
    /// policy is `Local`. Also returns `None` if that node is unknown.
    pub fn only_node(&self) -> Option<&str> {
        let policy = match &self.routing {
            Some(Routing::ClusterIp(rules)) => rules.internal_traffic,
            Some(Routing::NodePort(rules)) => rules.external_traffic,
            _ => TrafficPolicy::Cluster,
        };
        self.node.as_deref().filter(|_| policy == TrafficPolicy::Local)
    }

    /// Returns the host part of the target's URL.
    pub fn host(&self) -> Option<&str> {
        let (_, rest) = self.url.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        match host.strip_prefix('[') {
            Some(v6) => v6.split(']').next(),
            None => host.split(':').next(),
        }
    }

    /// Returns true if the URL's host is an IP address, so the target is not a headless Service.
    fn has_address(&self) -> bool {
        self.host().is_some_and(|host| host.parse::<IpAddr>().is_ok())
    }
}

impl ServiceRules {
    /// Returns the reason for an uneven distribution over the endpoints; `None` if all get the same share.
    fn near(&self, policy: TrafficPolicy) -> Option<&'static str> {
        if self.session_affinity == SessionAffinity::ClientIp {
            return Some("its Service has session affinity: each client stays with one pod");
        }
        if policy == TrafficPolicy::Local {
            return Some("its Service's traffic policy is Local: only pods on one node get connections");
        }
        self.distribution.is_some().then_some("its Service prefers nearby endpoints")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_info::BalancesBecause;
    use crate::service_proxy::ServiceProxy;

    fn target(routing: Option<Routing>) -> Target {
        Target {
            name: "web".into(),
            url: "http://10.96.0.7:80/x".into(),
            consumer: "Service web (Service proxy of this host)".into(),
            balances: Balances::Connections,
            balances_because: BalancesBecause::Service,
            service: Some("web".into()),
            routing,
            node: None,
        }
    }

    fn cluster(mode: &str, from: Option<ProxyEvidence>) -> ClusterInfo {
        let dataplane = ServiceProxy::from(mode);
        ClusterInfo { dataplane, dataplane_from: from, ..ClusterInfo::default() }
    }

    #[test]
    fn local_policy_keeps_connections_on_node() {
        let of = |routing: fn(ServiceRules) -> Routing, policy| {
            let rules = ServiceRules {
                internal_traffic: policy,
                external_traffic: policy,
                ..ServiceRules::default()
            };
            Target { node: Some("node-1".into()), ..target(Some(routing(rules))) }
        };
        for routing in [Routing::ClusterIp as fn(_) -> _, Routing::NodePort] {
            assert_eq!(of(routing, TrafficPolicy::Local).only_node(), Some("node-1"));
            assert_eq!(of(routing, TrafficPolicy::Cluster).only_node(), None);
        }
        assert_eq!(
            Target { routing: Some(Routing::Url), ..of(Routing::NodePort, TrafficPolicy::Local) }.only_node(),
            None
        );
    }

    #[test]
    fn balancing_follows_proxy_mode_and_routing() {
        let found = |mode| cluster(mode, Some(ProxyEvidence::ConfigMap));
        let plain = || target(Some(Routing::ClusterIp(ServiceRules::default())));
        assert_eq!(plain().balancing(&found("nftables")), Balancing::Random { assumed: false });
        assert_eq!(plain().balancing(&found("unknown")), Balancing::Unknown);
        assert!(matches!(plain().balancing(&found("ipvs")), Balancing::No(_)));
        let stated = cluster("iptables", Some(ProxyEvidence::Assumed));
        assert_eq!(plain().balancing(&stated), Balancing::Random { assumed: true });
        let l7 = Target { balances: Balances::Requests, ..plain() };
        assert!(matches!(l7.balancing(&found("nftables")), Balancing::No(_)));
        for routing in [Routing::Url, Routing::Dns] {
            let balancing = target(Some(routing)).balancing(&found("nftables"));
            assert!(!matches!(balancing, Balancing::Random { .. }), "{balancing:?}");
        }
    }

    #[test]
    fn pod_preference_prevents_random_balancing() {
        let rules = |change: fn(&mut ServiceRules)| {
            let mut rules = ServiceRules::default();
            change(&mut rules);
            rules
        };
        let affinity = rules(|rules| rules.session_affinity = SessionAffinity::ClientIp);
        let internal = rules(|rules| rules.internal_traffic = TrafficPolicy::Local);
        let external = rules(|rules| rules.external_traffic = TrafficPolicy::Local);
        let hints = rules(|rules| rules.distribution = Some("PreferSameZone".into()));
        let cluster = cluster("iptables", Some(ProxyEvidence::ConfigMap));
        let is_random = |routing| {
            matches!(target(Some(routing)).balancing(&cluster), Balancing::Random { assumed: false })
        };
        // The applicable policy depends on the path of the connections.
        assert!(is_random(Routing::ClusterIp(external.clone())));
        assert!(is_random(Routing::NodePort(internal.clone())));
        assert!(!is_random(Routing::ClusterIp(internal)));
        assert!(!is_random(Routing::NodePort(external)));
        for rules in [affinity, hints] {
            assert!(!is_random(Routing::ClusterIp(rules.clone())));
            assert!(!is_random(Routing::NodePort(rules)));
        }
    }

    #[test]
    fn unrecorded_routing_assumes_random_balancing() {
        let cluster = cluster("nftables", None);
        assert_eq!(target(None).balancing(&cluster), Balancing::Random { assumed: true });
        let v6 = Target { url: "http://[fd00::7]:80/".into(), ..target(None) };
        assert_eq!(v6.balancing(&cluster), Balancing::Random { assumed: true });
        // A host name means a headless Service, or something outside the cluster.
        let named = Target { url: "http://web.shop.svc.cluster.local:80/".into(), ..target(None) };
        assert_eq!(named.balancing(&cluster), Balancing::Unknown);
        let url = Target { service: None, ..target(None) };
        assert_eq!(url.balancing(&cluster), Balancing::Unknown);
    }

    #[test]
    fn routing_round_trips_through_json() {
        let rules = ServiceRules { distribution: Some("PreferClose".into()), ..ServiceRules::default() };
        for routing in [Routing::Url, Routing::Dns, Routing::NodePort(rules)] {
            let json = serde_json::to_value(&routing).unwrap();
            assert_eq!(serde_json::from_value::<Routing>(json).unwrap(), routing);
        }
    }
}
