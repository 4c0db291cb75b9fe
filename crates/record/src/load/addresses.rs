//! Source ports of connections, and name lookup.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::named;

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// A range of ports in a wrong form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a range of ports such as 32768-60999")]
pub struct NotARange(String);

impl FromStr for PortRange {
    type Err = NotARange;

    fn from_str(text: &str) -> Result<Self, NotARange> {
        let ends =
            text.split_once('-').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
        match ends {
            Some((first, last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(NotARange(text.to_owned())),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// How names are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsSettings {
    /// The servers to ask, instead of the system's.
    pub servers: Vec<SocketAddr>,
    /// The addresses to use.
    pub family: Family,
}

/// A DNS server in a wrong form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a DNS server, such as 10.96.0.10 or [::1]:5353")]
pub struct NotAServer(String);

/// A DNS server, written as `ADDRESS[:PORT]`.
///
/// # Errors
/// When the form is wrong.
pub fn dns_server(text: &str) -> Result<SocketAddr, NotAServer> {
    let alone = || text.trim_matches(['[', ']']).parse().map(|address: IpAddr| SocketAddr::new(address, 53));
    text.parse().or_else(|_| alone()).map_err(|_| NotAServer(text.to_owned()))
}

named! {
    /// Which of a name's addresses are used.
    #[derive(Default)]
    pub enum Family else UnknownFamily "{0:?} is not any, ipv4 or ipv6" {
        /// All.
        #[default]
        Any = "any",
        /// IPv4 (A records).
        Ipv4 = "ipv4",
        /// IPv6 (AAAA records).
        Ipv6 = "ipv6",
    }
}

impl Family {
    /// Whether an address is one of these.
    pub fn has(self, address: IpAddr) -> bool {
        match self {
            Family::Any => true,
            Family::Ipv4 => address.is_ipv4(),
            Family::Ipv6 => address.is_ipv6(),
        }
    }

    /// The name for people, which `run.json` has as well.
    pub const fn label(self) -> &'static str {
        match self {
            Family::Any => "any",
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        }
    }
}
