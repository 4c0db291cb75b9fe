//! The implementation of Services in a cluster: its mode, the evidence for the mode, and the distribution of new
//! connections.
//!
//! `drive::observe::proxy_detection` detects the mode in a cluster. The distribution of one target's connections also
//! depends on its Service: see [`crate::routing`].

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::names::as_text;

/// Implementation of Services. In files it is one word: a kube-proxy mode, or a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceProxy {
    /// kube-proxy with iptables: `-m statistic --mode random`.
    Iptables,
    /// kube-proxy with nftables: `numgen random`. The embedded cluster's kernel dataplane does the same.
    Nftables,
    /// kube-proxy with IPVS, which uses round robin unless another scheduler is configured.
    Ipvs,
    /// The embedded cluster's TCP proxies, which pick an endpoint at random for each connection. The kube-proxy mode of
    /// the same name used round robin; it was removed in 1.26.
    Userspace,
    /// kube-proxy on Windows.
    Kernelspace,
    /// Cilium instead of kube-proxy.
    Cilium,
    /// Another implementation, by its name in the cluster.
    Other(String),
    /// The implementation could not be determined.
    #[default]
    Unknown,
}

/// Words used in files. Old files contain an empty string for an unknown mode.
static NAMES: [(&str, ServiceProxy); 8] = [
    ("iptables", ServiceProxy::Iptables),
    ("nftables", ServiceProxy::Nftables),
    ("ipvs", ServiceProxy::Ipvs),
    ("userspace", ServiceProxy::Userspace),
    ("kernelspace", ServiceProxy::Kernelspace),
    ("cilium", ServiceProxy::Cilium),
    ("unknown", ServiceProxy::Unknown),
    ("", ServiceProxy::Unknown),
];

/// Distribution of new connections over a Service's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each connection goes to any of the endpoints in the rules, with equal probability.
    Random,
    /// Another rule, described by this text.
    Otherwise(&'static str),
    /// Unknown.
    Unknown,
}

/// Evidence for the implementation of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyEvidence {
    /// The ConfigMap of kube-proxy or Cilium.
    ConfigMap,
    /// The arguments of kube-proxy, or of the node agent that contains it.
    Arguments,
    /// The response from kube-proxy's `/proxyMode`.
    ProxyMode,
    /// The user's `--assume-service-proxy`, not confirmed by the cluster.
    Assumed,
}

impl ServiceProxy {
    /// Modes accepted from the user.
    pub const STATED: [&str; 5] = ["iptables", "nftables", "ipvs", "userspace", "cilium"];

    /// Returns the word used in files.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(name) => name,
            named => NAMES.iter().find(|(_, mode)| mode == named).map_or("unknown", |(name, _)| *name),
        }
    }

    /// Returns true if the implementation could be determined.
    pub fn is_known(&self) -> bool {
        *self != Self::Unknown
    }

    /// Returns the distribution of connections for a Service with default settings.
    pub fn spread(&self) -> Spread {
        match self {
            Self::Iptables | Self::Nftables | Self::Userspace => Spread::Random,
            Self::Ipvs => Spread::Otherwise("IPVS does not pick endpoints at random"),
            Self::Kernelspace => Spread::Otherwise("kube-proxy on Windows balances by a hash"),
            Self::Cilium => Spread::Otherwise("Cilium balances Services by its own rules"),
            Self::Other(_) | Self::Unknown => Spread::Unknown,
        }
    }
}

impl fmt::Display for ServiceProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for ServiceProxy {
    fn from(name: &str) -> Self {
        let known = NAMES.iter().find(|(known, _)| *known == name);
        known.map_or_else(|| Self::Other(name.to_owned()), |(_, mode)| mode.clone())
    }
}

impl FromStr for ServiceProxy {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(name.into())
    }
}

as_text!(ServiceProxy);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_names_round_trip_through_json() {
        for name in ["iptables", "nftables", "ipvs", "userspace", "kernelspace", "cilium", "kube-router"] {
            let read: ServiceProxy = serde_json::from_value(name.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), name);
            assert!(read.is_known());
        }
        for name in ["", "unknown"] {
            assert_eq!(ServiceProxy::from(name), ServiceProxy::Unknown);
        }
        for name in ServiceProxy::STATED {
            assert!(!matches!(name.into(), ServiceProxy::Other(_) | ServiceProxy::Unknown), "{name}");
        }
    }

    #[test]
    fn only_random_modes_spread_randomly() {
        let random = |name: &str| ServiceProxy::from(name).spread() == Spread::Random;
        assert!(["iptables", "nftables", "userspace"].into_iter().all(random));
        assert!(!["ipvs", "cilium", "kernelspace", "unknown", "kube-router"].into_iter().any(random));
    }
}
