//! Source ports and name lookup.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::names::{as_text, named};

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Ephemeral ports of a new network namespace on Linux, such as a pod's (`net.ipv4.ip_local_port_range`).
    pub const OF_LINUX: Self = Self { first: 32_768, last: 60_999 };
}

/// Error for text that is not a range of ports.
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

as_text!(PortRange);

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Time for which a port cannot be reused for the same remote address after this side was the first to close a
/// connection (Linux: TCP_TIMEWAIT_LEN).
pub const TIME_WAIT: Duration = Duration::from_secs(60);

/// Parses the ephemeral ports from two settings in Linux's format: `32768 60999` (`net.ipv4.ip_local_port_range`) and
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

/// Name lookup settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DnsSettings {
    /// DNS servers to ask instead of the system's.
    #[serde(deserialize_with = "dns_servers")]
    pub servers: Vec<SocketAddr>,
    /// Address family to use.
    pub family: Family,
}

/// Error for text that is not a DNS server address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a DNS server, such as 10.96.0.10 or [::1]:5353")]
pub struct NotAServer(String);

/// Parses a DNS server address, written as `ADDRESS[:PORT]`.
///
/// # Errors
/// Fails if the text has another form.
pub fn dns_server(text: &str) -> Result<SocketAddr, NotAServer> {
    let alone = || text.trim_matches(['[', ']']).parse().map(|address: IpAddr| SocketAddr::new(address, 53));
    text.parse().or_else(|_| alone()).map_err(|_| NotAServer(text.to_owned()))
}

fn dns_servers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    #[serde(try_from = "String")]
    struct DnsServer(SocketAddr);

    impl TryFrom<String> for DnsServer {
        type Error = NotAServer;

        fn try_from(text: String) -> Result<Self, NotAServer> {
            dns_server(&text).map(Self)
        }
    }

    let servers = Vec::<DnsServer>::deserialize(deserializer)?;
    Ok(servers.into_iter().map(|DnsServer(address)| address).collect())
}

named! {
    /// Address family to use for connections.
    #[derive(Default)]
    pub enum Family else UnknownFamily "{0:?} is not any, ipv4 or ipv6" {
        /// All addresses.
        #[default]
        Any = "any",
        /// IPv4 (A records).
        Ipv4 = "ipv4",
        /// IPv6 (AAAA records).
        Ipv6 = "ipv6",
    }
}

impl Family {
    /// Returns true if the address belongs to this family.
    pub fn has(self, address: IpAddr) -> bool {
        match self {
            Family::Any => true,
            Family::Ipv4 => address.is_ipv4(),
            Family::Ipv6 => address.is_ipv6(),
        }
    }

    /// Returns the display name, which is also used in `run.json`.
    pub const fn label(self) -> &'static str {
        match self {
            Family::Any => "any",
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        }
    }
}
