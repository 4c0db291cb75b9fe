//! Looks up a name: in the hosts file, then in DNS, then in the system's other sources.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use tokio::time::Instant;

use rolldrop_record::load::{DnsSettings, Family};

/// Time for which an answer from the system, which reports no TTL, is considered valid.
const SYSTEM_TTL: Duration = Duration::from_secs(30);

/// Reason to report if no server answered.
const TIMEOUT: &str = "timeout";

/// Source in which a name was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameSource {
    /// The hosts file, as read when the load was prepared.
    Hosts,
    /// The system's DNS servers.
    Dns,
    /// Another service of the system, such as multicast DNS (through getaddrinfo).
    System,
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LookupResult {
    /// Distinct addresses in sorted order.
    pub(super) addresses: Vec<IpAddr>,
    /// Time for which the addresses are valid; `None` for the whole load.
    pub(super) ttl: Option<Duration>,
}

/// Name lookup. It caches no answers, because the caller keeps track of how long each is valid.
pub(super) struct Lookup {
    hosts: Hosts,
    /// DNS resolver; `None` if the system has no DNS configuration.
    dns: Option<TokioResolver>,
    family: Family,
    /// True if the system may be asked for names that are unknown to DNS.
    asks_system: bool,
}

impl Lookup {
    /// Creates a lookup from the settings and the current system files.
    pub(super) fn new(settings: &DnsSettings) -> Self {
        Self {
            hosts: Hosts::from_system().unwrap_or_default(),
            dns: resolver(settings),
            family: settings.family,
            asks_system: settings.servers.is_empty(),
        }
    }

    /// Looks up a name for the first time.
    ///
    /// # Errors
    /// Returns an error with the reason why there is no address.
    pub(super) async fn first(&self, host: &str) -> Result<(NameSource, LookupResult), String> {
        if let Some(found) = self.in_hosts(host) {
            return Ok((NameSource::Hosts, found));
        }
        match self.in_dns(host).await {
            Ok(found) => Ok((NameSource::Dns, found)),
            // The system's other sources would wait for the same servers.
            Err(why) if !self.asks_system || why == TIMEOUT => Err(why),
            Err(_) => Ok((NameSource::System, in_system(host).await?)),
        }
    }

    /// Looks up a name again, in the source in which it was found.
    ///
    /// # Errors
    /// Returns an error with the reason why there is no address.
    pub(super) async fn again(&self, host: &str, source: NameSource) -> Result<LookupResult, String> {
        match source {
            NameSource::Hosts => self.in_hosts(host).ok_or_else(|| "no_address".to_owned()),
            NameSource::Dns => self.in_dns(host).await,
            NameSource::System => in_system(host).await,
        }
    }

    fn in_hosts(&self, host: &str) -> Option<LookupResult> {
        let name = Name::from_utf8(host).ok()?;
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let lookups = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of);
        let records = lookups.flat_map(|lookup| lookup.answers().to_vec());
        let addresses = records.filter_map(|record| match record.data {
            RData::A(address) => Some(IpAddr::from(*address)),
            RData::AAAA(address) => Some(IpAddr::from(*address)),
            _ => None,
        });
        let addresses = in_order(addresses.filter(|address| self.family.has(*address)));
        (!addresses.is_empty()).then_some(LookupResult { addresses, ttl: None })
    }

    async fn in_dns(&self, host: &str) -> Result<LookupResult, String> {
        let dns = self.dns.as_ref().ok_or("no_dns_server")?;
        dns.clear_cache();
        let asked = Instant::now();
        let answer = dns.lookup_ip(host).await.map_err(|error| in_words(&error))?;
        let ttl = Instant::from_std(answer.valid_until()).saturating_duration_since(asked);
        match in_order(answer.iter()) {
            addresses if addresses.is_empty() => Err("no_address".to_owned()),
            addresses => Ok(LookupResult { addresses, ttl: Some(ttl) }),
        }
    }
}

async fn in_system(host: &str) -> Result<LookupResult, String> {
    let found = tokio::net::lookup_host((host, 0)).await.map_err(|e| e.to_string())?;
    match in_order(found.map(|address| address.ip())) {
        addresses if addresses.is_empty() => Err("no_address".to_owned()),
        addresses => Ok(LookupResult { addresses, ttl: Some(SYSTEM_TTL) }),
    }
}

/// Sorts addresses, because servers return them in varying order, and a new order is not a change.
fn in_order(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = addresses.collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn resolver(settings: &DnsSettings) -> Option<TokioResolver> {
    let mut builder = if settings.servers.is_empty() {
        TokioResolver::builder_tokio().ok()?
    } else {
        let servers = settings.servers.iter().map(|server| name_server(*server)).collect();
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = match settings.family {
        Family::Any => LookupIpStrategy::Ipv4AndIpv6,
        Family::Ipv4 => LookupIpStrategy::Ipv4Only,
        Family::Ipv6 => LookupIpStrategy::Ipv6Only,
    };
    builder.build().ok()
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let at = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(at);
    NameServerConfig::new(address.ip(), true, connections.into())
}

/// Describes a failure in a few words, with fixed wording for each common failure.
fn in_words(error: &NetError) -> String {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(no)) => match no.response_code {
            ResponseCode::NoError => "no_address".to_owned(),
            code => in_word(code),
        },
        NetError::Dns(DnsError::ResponseCode(code)) => in_word(*code),
        NetError::Timeout => TIMEOUT.to_owned(),
        error => error.to_string(),
    }
}

/// Returns a response code in the usual spelling, in lower case: `nxdomain`.
fn in_word(code: ResponseCode) -> String {
    format!("{code:?}").to_ascii_lowercase()
}
