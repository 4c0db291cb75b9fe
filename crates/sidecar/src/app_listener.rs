//! Detects the app's listener by asking the kernel (sock_diag(7)); nothing is sent to the app.
//!
//! The query asks which socket a connection to the address would find, and takes microseconds. The table in /proc gives
//! the same information, but for each read the kernel walks its entire connection hash table, which takes milliseconds
//! during which nothing would be relayed.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Returns true if an address belongs to this network namespace.
pub(super) fn is_local(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// Returns true if a connection to `address` would find a listener in this network namespace. Returns `None` if the
/// kernel cannot tell, that is, if it finds neither this listener nor `known`, a listener that is certainly open.
pub(super) fn listens(address: SocketAddr, known: SocketAddr) -> Option<bool> {
    if sock_diag::finds(address)? {
        return Some(true);
    }
    sock_diag::finds(known)?.then_some(false)
}

#[cfg(target_os = "linux")]
mod sock_diag {
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

    // The kernel's numbers: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h.
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    const IPPROTO_TCP: u8 = 6;
    const TCP_LISTEN: u8 = 10;
    /// Size of a `struct nlmsghdr` followed by a `struct inet_diag_req_v2`.
    const REQUEST_BYTES: u32 = 16 + 56;

    /// Returns true if the kernel finds a listener for connections to this address; `None` without a response.
    pub(super) fn finds(address: SocketAddr) -> Option<bool> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let netlink =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag).ok()?;
        send(netlink.as_raw_fd(), &request(address), MsgFlags::empty()).ok()?;
        // The response is available as soon as the kernel has accepted the request. Its attributes are cut off.
        let mut answer = [0; 128];
        let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).ok()?;
        is_listener(&answer[..length])
    }

    fn request(address: SocketAddr) -> Vec<u8> {
        let (family, ip) = match address.ip().to_canonical() {
            IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
        };
        let mut request = Vec::new();
        request.extend(REQUEST_BYTES.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(NLM_F_REQUEST.to_ne_bytes());
        // Sequence number and sender of the message.
        request.extend([0; 8]);
        request.extend([family, IPPROTO_TCP, 0, 0]);
        // Any state, no remote address, any device, any cookie.
        request.extend([0xff; 4]);
        request.extend(address.port().to_be_bytes());
        request.extend([0; 2]);
        request.extend(&ip);
        request.resize(request.len() + 16 - ip.len() + 16 + 4, 0);
        request.extend([0xff; 8]);
        request
    }

    /// Returns true if the response is a `struct inet_diag_msg` for a listener, and false for any other response, such
    /// as an error: `ENOENT` if there is no socket, or another error if the kernel cannot tell. Returns `None` if the
    /// response is too short.
    fn is_listener(answer: &[u8]) -> Option<bool> {
        let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
        // The message begins with the family and the state.
        let state = *answer.get(17)?;
        Some(kind == SOCK_DIAG_BY_FAMILY && state == TCP_LISTEN)
    }
}

#[cfg(not(target_os = "linux"))]
mod sock_diag {
    /// Returns `None`, because only Linux has this interface.
    pub(super) fn finds(_: std::net::SocketAddr) -> Option<bool> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn listener(address: &str) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("its address");
        (listener, address)
    }

    #[test]
    fn listener_state_ignores_open_connections() {
        let (_known, known) = listener("127.0.0.1:0");
        let (listener, address) = listener("127.0.0.1:0");
        let _connection = (TcpStream::connect(address).unwrap(), listener.accept().unwrap());
        assert_eq!(listens(address, known), Some(true));
        drop(listener);
        assert_eq!(listens(address, known), Some(false));
        assert_eq!(listens(address, address), None, "both arguments name the closed listener");
    }

    #[test]
    fn documentation_address_is_not_local() {
        let local = |ip: &str| is_local(ip.parse().unwrap());
        assert!(["127.9.9.9", "0.0.0.0", "::ffff:127.0.0.1"].into_iter().all(local));
        assert!(!["192.0.2.1", "2001:db8::1"].into_iter().any(local));
    }

    #[test]
    fn ipv4_wildcard_covers_ipv4_only() {
        let (_known, known) = listener("127.0.0.1:0");
        let (_wildcard, any) = listener("0.0.0.0:0");
        for ip in ["127.0.0.1", "127.9.8.7", "::ffff:127.0.0.1"] {
            let address = SocketAddr::new(ip.parse().unwrap(), any.port());
            assert_eq!(listens(address, known), Some(true), "{ip}");
        }
        let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), known.port());
        assert_eq!(listens(elsewhere, known), Some(false));
        let v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), any.port());
        assert_eq!(listens(v6, known), Some(false), "an IPv4 listener accepts no IPv6 connections");
    }

    #[test]
    fn ipv6_wildcard_honours_v6_only() {
        let (_known, known) = listener("127.0.0.1:0");
        for only_v6 in [false, true] {
            let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
            socket.set_only_v6(only_v6).unwrap();
            socket.bind(&SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0).into()).unwrap();
            socket.listen(1).unwrap();
            let port = socket.local_addr().unwrap().as_socket().unwrap().port();
            let v4 = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
            assert_eq!(listens(v4, known), Some(!only_v6), "{only_v6}");
        }
    }
}
