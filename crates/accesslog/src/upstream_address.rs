//! Addresses and host names of upstreams.

use std::net::{IpAddr, SocketAddr};

use rolldrop_record::LoggedUpstream;

/// Maximum length of a DNS name.
const LONGEST_NAME: usize = 253;

/// Parses `10.1.0.7:8080`, `[fd00::7]:8080`, HAProxy's `fd00::7:8080`, or `web.shop:8080`.
pub(crate) fn read_upstream(text: &str) -> LoggedUpstream {
    let bare = || {
        let (ip, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    };
    text.parse().ok().or_else(bare).map_or_else(|| host_with_port(text), at)
}

/// Parses the address in a URL such as `http://10.1.0.7:8080/`.
pub(crate) fn read_upstream_url(text: &str) -> LoggedUpstream {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let authority = rest.split('/').next().unwrap_or_default();
    let without_port = || {
        let ip: IpAddr = authority.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(ip, if scheme == "https" { 443 } else { 80 }))
    };
    let named = || match authority.contains(':') {
        true => host_with_port(authority),
        false => host(authority),
    };
    authority.parse().ok().or_else(without_port).map_or_else(named, at)
}

/// Parses a host name with a port, which distinguishes it from a socket path or the name of a server group.
fn host_with_port(text: &str) -> LoggedUpstream {
    let host_of = |(name, port): (&str, &str)| port.parse::<u16>().is_ok().then(|| host(name));
    text.split_once(':').and_then(host_of).unwrap_or(LoggedUpstream::Unnamed)
}

fn host(name: &str) -> LoggedUpstream {
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.len() <= LONGEST_NAME
        && name.bytes().all(is_in_name);
    if is_name { LoggedUpstream::Host(name.into()) } else { LoggedUpstream::Unnamed }
}

/// Returns this address. An IPv4-mapped IPv6 address becomes an IPv4 address, as in a pod's status.
fn at(address: SocketAddr) -> LoggedUpstream {
    LoggedUpstream::Address(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_parser_rejects_invalid_host_names() {
        let host = |name: &str| LoggedUpstream::Host(name.into());
        assert_eq!(read_upstream("web.shop.svc:8080"), host("web.shop.svc"));
        assert_eq!(read_upstream_url("http://web:8080/path"), host("web"));
        assert_eq!(read_upstream_url("http://web.shop/path"), host("web.shop"));
        for text in
            ["web", "unix:/run/a.sock", "/run/a.sock:80", "{web:80}", "web:80:80", "web:x", "10.0:80", ":80"]
        {
            assert_eq!(read_upstream(text), LoggedUpstream::Unnamed, "{text}");
        }
        assert_eq!(read_upstream(&format!("{}:80", "a".repeat(254))), LoggedUpstream::Unnamed);
        assert_eq!(read_upstream_url("http://user@web/"), LoggedUpstream::Unnamed);
    }
}
