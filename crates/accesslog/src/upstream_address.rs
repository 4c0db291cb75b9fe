//! Addresses of upstreams.

use std::net::{IpAddr, SocketAddr};

use rolldrop_record::LoggedUpstream;

/// Reads `10.1.0.7:8080`, `[fd00::7]:8080`, or HAProxy's `fd00::7:8080`.
pub(crate) fn read_upstream(text: &str) -> LoggedUpstream {
    let bare = || {
        let (ip, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    };
    text.parse().ok().or_else(bare).map_or(LoggedUpstream::Unnamed, at)
}

/// Reads the address of a URL, such as `http://10.1.0.7:8080/`.
pub(crate) fn read_upstream_url(text: &str) -> LoggedUpstream {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let authority = rest.split('/').next().unwrap_or_default();
    let without_port = || {
        let ip: IpAddr = authority.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(ip, if scheme == "https" { 443 } else { 80 }))
    };
    authority.parse().ok().or_else(without_port).map_or(LoggedUpstream::Unnamed, at)
}

/// Returns this address; an IPv4 address in the form of IPv6 becomes IPv4, as in the status of a pod.
fn at(address: SocketAddr) -> LoggedUpstream {
    LoggedUpstream::Address(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
