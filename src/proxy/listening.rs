//! Whether the app listens, as the kernel's own table tells: nothing is sent to the app.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// State LISTEN in /proc/net/tcp.
const LISTEN: &str = "0A";

/// Whether a socket of this network namespace listens at `address`, on it or on the
/// wildcard address. `None` where there is no /proc to tell.
pub(super) fn listens(address: SocketAddr) -> Option<bool> {
    let v4 = any_listener("/proc/self/net/tcp", address)?;
    // Absent where IPv6 is off.
    let v6 = any_listener("/proc/self/net/tcp6", address).unwrap_or(false);
    Some(v4 || v6)
}

/// Looks through the listening sockets, which the kernel lists before all others.
fn any_listener(table: &str, wanted: SocketAddr) -> Option<bool> {
    let lines = BufReader::new(File::open(table).ok()?).lines().skip(1);
    for line in lines {
        let line = line.ok()?;
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        if state != LISTEN {
            break;
        }
        if accepts(parse_address(local)?, wanted) {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether a listener at `local` gets connections to `wanted`.
fn accepts(local: SocketAddr, wanted: SocketAddr) -> bool {
    let same_address = match (local.ip(), wanted.ip()) {
        (IpAddr::V6(local), IpAddr::V4(wanted)) => {
            local.is_unspecified() || local.to_ipv4_mapped() == Some(wanted)
        }
        (local, wanted) => local == wanted || (local.is_ipv4() == wanted.is_ipv4() && local.is_unspecified()),
    };
    same_address && local.port() == wanted.port()
}

/// An address as /proc writes it: words of 32 bits in the machine's byte order, then the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for word in ip.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => IpAddr::V4(Ipv4Addr::from(v4)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?)),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_seen_while_it_stands() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listens(address), Some(true));
        drop(listener);
        assert_eq!(listens(address), Some(false));
    }

    #[test]
    fn a_wildcard_listener_gets_connections_to_every_address_of_its_port() {
        let [wanted, other]: [SocketAddr; 2] = ["10.0.0.7:80", "10.0.0.7:81"].map(|a| a.parse().unwrap());
        for local in ["0.0.0.0:80", "10.0.0.7:80", "[::]:80", "[::ffff:10.0.0.7]:80"] {
            let local = local.parse().unwrap();
            assert!(accepts(local, wanted) && !accepts(local, other), "{local}");
        }
        assert!(!accepts("10.0.0.8:80".parse().unwrap(), wanted));
        assert!(!accepts("0.0.0.0:80".parse().unwrap(), "[::1]:80".parse().unwrap()));
    }

    #[test]
    fn addresses_are_read_as_proc_writes_them() {
        let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let v4 = format!("{}:1F90", word([127, 0, 0, 1]));
        assert_eq!(parse_address(&v4), Some("127.0.0.1:8080".parse().unwrap()));
        let zero = word([0; 4]);
        let v6 = format!("{zero}{zero}{zero}{}:0050", word([0, 0, 0, 1]));
        assert_eq!(parse_address(&v6), Some("[::1]:80".parse().unwrap()));
        assert_eq!(parse_address("nonsense"), None);
    }
}
