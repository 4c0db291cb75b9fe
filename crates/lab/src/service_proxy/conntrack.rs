//! Forgets UDP flows that the kernel still leads to an endpoint that serves no longer.
//!
//! A client that goes on sending from one port keeps its flow, and with it the address that it was
//! once translated to: unlike TCP, nothing ends it. So kube-proxy removes such entries after a
//! change of endpoints (kubernetes/kubernetes, `pkg/proxy/conntrack/cleanup.go`). Those of a Service
//! without any endpoint stay, as there. This speaks ctnetlink
//! (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`) in the network namespace of its thread.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::table::{Backend, Protocol, Table};

/// `NFNL_SUBSYS_CTNETLINK`, in the upper half of a message's type.
const CONNTRACK: u16 = 1 << 8;
const GET: u16 = CONNTRACK | 1;
const DELETE: u16 = CONNTRACK | 2;
const ERROR: u16 = 2;
const DONE: u16 = 3;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;

/// Lengths of `nlmsghdr`, and of it with the `nfgenmsg` after it.
const HEADER: usize = 16;
const HEAD: usize = 20;

/// Attributes of an entry, of a tuple, of its addresses and of its ports.
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const SOURCE: [u16; 2] = [1, 2];
const DESTINATION: [u16; 2] = [2, 3];
const PROTO_NUMBER: u16 = 1;

/// The kernel answers at once.
const PATIENCE_S: i64 = 2;

/// Forgets those that lead to what is not among the serving endpoints of a port of the table;
/// answers how many.
///
/// # Errors
///
/// The kernel has no ctnetlink, or refuses.
pub(super) fn forget_stale_udp(table: &Table) -> io::Result<usize> {
    let serving = Serving::of(table);
    let socket = open()?;
    let mut stale = Vec::new();
    ask(&socket, &message(GET, REQUEST | DUMP, &[]), |entry| {
        stale.extend(Flow::parse(entry).filter(|flow| serving.is_stale(flow)));
    })?;
    let mut forgotten = 0;
    for flow in &stale {
        match ask(&socket, &message(DELETE, REQUEST | ACKNOWLEDGE, &flow.identity), |_| {}) {
            Ok(()) => forgotten += 1,
            // It ended meanwhile.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(forgotten)
}

/// The endpoints that flows may lead to.
struct Serving<'a> {
    by_address: BTreeMap<SocketAddr, &'a Arc<[Backend]>>,
    by_node_port: BTreeMap<u16, &'a Arc<[Backend]>>,
}

impl<'a> Serving<'a> {
    fn of(table: &'a Table) -> Self {
        let (mut by_address, mut by_node_port) = (BTreeMap::new(), BTreeMap::new());
        for (port, endpoints) in table {
            if port.protocol == Protocol::Udp && !endpoints.serving.is_empty() {
                by_address.insert(port.address, &endpoints.serving);
                by_node_port.extend(port.node_port.map(|node_port| (node_port, &endpoints.serving)));
            }
        }
        Self { by_address, by_node_port }
    }

    fn is_stale(&self, flow: &Flow) -> bool {
        let of = [self.by_address.get(&flow.to), self.by_node_port.get(&flow.to.port())];
        let leads_to = |backends: &&Arc<[Backend]>| backends.iter().any(|it| it.address == flow.answered_by);
        of.into_iter().flatten().any(|backends| !leads_to(backends))
    }
}

/// A UDP flow over IPv4.
#[derive(Debug, PartialEq, Eq)]
struct Flow {
    /// Where its client sends.
    to: SocketAddr,
    /// Where that leads.
    answered_by: SocketAddr,
    /// The attributes that tell the kernel which it is.
    identity: Vec<u8>,
}

impl Flow {
    /// Reads the attributes of an entry; `None` if it is none of UDP.
    fn parse(entry: &[u8]) -> Option<Self> {
        let find = |kind| attributes(entry).find(|attribute| attribute.kind == kind);
        let (original, reply) = (find(TUPLE_ORIGINAL)?, find(TUPLE_REPLY)?);
        let identity = [original.whole, find(ID)?.whole].concat();
        let [to, answered_by] = [(original, DESTINATION), (reply, SOURCE)]
            .map(|(tuple, [ip, port])| udp_address(tuple.value, ip, port));
        Some(Self { to: to?, answered_by: answered_by?, identity })
    }
}

/// One side of a tuple of UDP.
fn udp_address(tuple: &[u8], ip: u16, port: u16) -> Option<SocketAddr> {
    let find = |of, kind| attributes(of).find(|it: &Attribute<'_>| it.kind == kind).map(|it| it.value);
    let protocol = find(tuple, TUPLE_PROTO)?;
    if find(protocol, PROTO_NUMBER)? != [17] {
        return None;
    }
    let ip: [u8; 4] = find(find(tuple, TUPLE_IP)?, ip)?.try_into().ok()?;
    let port: [u8; 2] = find(protocol, port)?.try_into().ok()?;
    Some(SocketAddr::from((Ipv4Addr::from(ip), u16::from_be_bytes(port))))
}

/// An attribute of a message (`nlattr`).
#[derive(Clone, Copy)]
struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
    /// With head and padding.
    whole: &'a [u8],
}

/// The attributes in a row; what is cut off is left out.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // Whether it is nested is in the upper bits.
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        let (whole, rest) = bytes.split_at(length.next_multiple_of(4).min(bytes.len()));
        bytes = rest;
        Some(Attribute { kind, value, whole })
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn open() -> io::Result<OwnedFd> {
    let protocol = SockProtocol::NetlinkNetFilter;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
    Ok(socket)
}

/// A message about entries of IPv4.
fn message(kind: u16, flags: u16, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEAD + attributes.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Number and sender are the kernel's business.
    bytes.extend([0; 8]);
    bytes.extend([AddressFamily::Inet as u8, 0, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Sends a message and hands over the attributes of each entry that is answered, until the end.
fn ask(socket: &OwnedFd, message: &[u8], mut entry: impl FnMut(&[u8])) -> io::Result<()> {
    sendto(socket.as_raw_fd(), message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut messages = &buffer[..length];
        while let Some(head) = messages.first_chunk::<HEADER>() {
            let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let kind = u16::from_ne_bytes([head[4], head[5]]);
            let cut = || io::Error::other("an answer of the kernel is cut off");
            let body = messages.get(HEADER..length).ok_or_else(cut)?;
            match kind {
                DONE => return Ok(()),
                ERROR => {
                    let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code)).ok_or_else(cut)?;
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => entry(body.get(HEAD - HEADER..).unwrap_or_default()),
            }
            messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Endpoints, Policy, ServicePort};
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn tuple(kind: u16, protocol: u8, from: &str, to: &str) -> Vec<u8> {
        const NESTED: u16 = 0x8000;
        let [from, to] = [from, to].map(|address| address.parse::<std::net::SocketAddrV4>().unwrap());
        let ip = [attribute(1, &from.ip().octets()), attribute(2, &to.ip().octets())].concat();
        let ports = [attribute(2, &from.port().to_be_bytes()), attribute(3, &to.port().to_be_bytes())];
        let proto = [attribute(1, &[protocol]), ports.concat()].concat();
        attribute(kind | NESTED, &[attribute(1 | NESTED, &ip), attribute(2 | NESTED, &proto)].concat())
    }

    fn entry(protocol: u8, to: &str, answered_by: &str) -> Vec<u8> {
        let original = tuple(TUPLE_ORIGINAL, protocol, "10.244.1.9:40001", to);
        let reply = tuple(TUPLE_REPLY, protocol, answered_by, "10.244.1.9:40001");
        [original, reply, attribute(ID, &[0, 0, 0, 7])].concat()
    }

    #[test]
    fn a_flow_is_read_with_what_tells_it_from_others() {
        let bytes = entry(17, "10.96.0.5:53", "10.244.1.2:5353");
        let flow = Flow::parse(&bytes).unwrap();
        assert_eq!((flow.to.to_string().as_str(), flow.answered_by.port()), ("10.96.0.5:53", 5353));
        assert_eq!(attributes(&flow.identity).map(|it| it.kind).collect::<Vec<_>>(), [TUPLE_ORIGINAL, ID]);
        assert_eq!(Flow::parse(&entry(6, "10.96.0.5:53", "10.244.1.2:5353")), None);
        // Whatever is cut off or says nonsense is no flow, and does no harm.
        for length in 0..bytes.len() {
            assert!(Flow::parse(&bytes[..length]).is_none_or(|cut| cut.to == flow.to), "{length}");
        }
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn a_flow_is_stale_when_it_leads_elsewhere_than_to_a_serving_endpoint() {
        let port = |number, service: &str| ServicePort {
            address: ([10, 96, 0, number], 53).into(),
            protocol: Protocol::Udp,
            node_port: Some(30050 + u16::from(number)),
            internal: Policy::Cluster,
            external: Policy::Cluster,
            service: service.into(),
        };
        let serving = [Backend { pod: "dns".into(), address: ([10, 244, 1, 3], 5353).into() }].into();
        let table = Table::from([
            (port(5, "shop/dns"), Endpoints { serving, ..Endpoints::default() }),
            (port(6, "shop/empty"), Endpoints::default()),
        ]);
        let is_stale = |to, by| Serving::of(&table).is_stale(&Flow::parse(&entry(17, to, by)).unwrap());
        assert!(is_stale("10.96.0.5:53", "10.244.1.2:5353"));
        assert!(!is_stale("10.96.0.5:53", "10.244.1.3:5353"));
        assert!(is_stale("10.0.0.1:30055", "10.244.1.2:5353"));
        assert!(!is_stale("10.96.0.6:53", "10.244.1.2:5353"), "its Service has no endpoint at all");
        assert!(!is_stale("10.96.0.7:53", "10.96.0.7:53"), "no Service is there");
    }
}
