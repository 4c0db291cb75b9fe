//! Source ports of connections, and name lookup.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

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

impl PortRange {
    /// The ephemeral ports of a new network namespace of Linux, such as a pod's (`net.ipv4.ip_local_port_range`).
    pub const OF_LINUX: Self = Self { first: 32_768, last: 60_999 };
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

/// How long a port stays taken towards the same address after a connection that this side closed first (Linux:
/// TCP_TIMEWAIT_LEN).
pub const TIME_WAIT: Duration = Duration::from_secs(60);

/// The ephemeral ports by the two settings as Linux writes them: `32768 60999` (`net.ipv4.ip_local_port_range`) and
/// `8080,9000-9010` (`net.ipv4.ip_local_reserved_ports`).
pub fn ephemeral_of(range: &str, reserved: &str) -> Option<Vec<u16>> {
    let mut ends = range.split_ascii_whitespace().map(str::parse::<u16>);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    let reserved: Vec<PortRange> = reserved
        .trim()
        .split(',')
        .filter_map(|part| match part.parse() {
            Ok(range) => Some(range),
            Err(_) => part.parse().ok().map(|port| PortRange { first: port, last: port }),
        })
        .collect();
    let is_free = |port: &u16| !reserved.iter().any(|range| (range.first..=range.last).contains(port));
    Some((first..=last).filter(is_free).collect())
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
