//! Parses the kernel's messages about connections that it begins to track (ctnetlink).
//!
//! Pure: bytes in, connections out. The format is defined in `include/uapi/linux/netlink.h`,
//! `include/uapi/linux/netfilter/nfnetlink.h` and `nfnetlink_conntrack.h`: a `nlmsghdr` in native byte order, a
//! `nfgenmsg`, and nested attributes, with addresses and ports in network byte order. Truncated or malformed data is
//! skipped.

use std::net::{IpAddr, SocketAddr};

/// Message type: `NFNL_SUBSYS_CTNETLINK` in the upper byte, and `IPCTNL_MSG_CT_NEW` in the lower byte.
pub(super) const NEW: u16 = 1 << 8;
/// `NLM_F_CREATE`: a message of that type without this flag is about a connection that is already tracked.
pub(super) const CREATE: u16 = 0x400;
/// Lengths of `nlmsghdr` and of `nfgenmsg`.
pub(super) const HEADER: usize = 16;
pub(super) const GENERAL: usize = 4;
/// Mask for the bits of an attribute's type that contain its kind; the other bits contain its byte order and show
/// whether it is nested.
const KIND: u16 = 0x3fff;

/// `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`.
pub(super) const ORIGINAL: u16 = 1;
pub(super) const REPLY: u16 = 2;
/// `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`.
pub(super) const ADDRESSES: u16 = 1;
pub(super) const PROTOCOL: u16 = 2;
/// `CTA_IP_V4_SRC` and `CTA_IP_V6_SRC`, `CTA_IP_V4_DST` and `CTA_IP_V6_DST`.
pub(super) const SOURCE_ADDRESS: [u16; 2] = [1, 3];
pub(super) const DESTINATION_ADDRESS: [u16; 2] = [2, 4];
/// `CTA_PROTO_NUM`, `CTA_PROTO_SRC_PORT` and `CTA_PROTO_DST_PORT`.
pub(super) const NUMBER: u16 = 1;
pub(super) const SOURCE_PORT: u16 = 2;
pub(super) const DESTINATION_PORT: u16 = 3;
/// `IPPROTO_TCP`.
pub(super) const TCP: u8 = 6;

/// A TCP connection that the kernel has begun to track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackedConnection {
    /// Source address of the connection.
    pub(crate) from: SocketAddr,
    /// Destination address of the connection.
    pub(crate) to: SocketAddr,
    /// Address to which the packets go and from which the replies come: `to`, unless that was translated.
    pub(crate) routed_to: SocketAddr,
}

/// Returns the connections in the messages of one datagram.
pub(crate) fn connections(mut datagram: &[u8]) -> impl Iterator<Item = TrackedConnection> {
    std::iter::from_fn(move || {
        loop {
            let length = u32::from_ne_bytes(*datagram.first_chunk()?);
            let message = datagram.get(..usize::try_from(length).ok()?.max(HEADER))?;
            datagram = datagram.get(message.len().next_multiple_of(4)..).unwrap_or_default();
            if let Some(tracked) = connection(message) {
                return Some(tracked);
            }
        }
    })
}

fn connection(message: &[u8]) -> Option<TrackedConnection> {
    if native_u16(message, 4)? != NEW || native_u16(message, 6)? & CREATE == 0 {
        return None;
    }
    let attributes = message.get(HEADER + GENERAL..)?;
    let original = find(attributes, &[ORIGINAL])?;
    let reply = find(attributes, &[REPLY])?;
    Some(TrackedConnection {
        from: end(original, SOURCE_ADDRESS, SOURCE_PORT)?,
        to: end(original, DESTINATION_ADDRESS, DESTINATION_PORT)?,
        routed_to: end(reply, SOURCE_ADDRESS, SOURCE_PORT)?,
    })
}

/// Returns one end of a TCP tuple.
fn end(tuple: &[u8], address: [u16; 2], port: u16) -> Option<SocketAddr> {
    let protocol = find(tuple, &[PROTOCOL])?;
    if find(protocol, &[NUMBER])? != [TCP] {
        return None;
    }
    let port = u16::from_be_bytes(find(protocol, &[port])?.try_into().ok()?);
    let address = find(find(tuple, &[ADDRESSES])?, &address)?;
    let address: IpAddr = match address.len() {
        4 => <[u8; 4]>::try_from(address).ok()?.into(),
        16 => <[u8; 16]>::try_from(address).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Returns the value of the first attribute (`nlattr`) that has one of these kinds.
fn find<'a>(mut attributes: &'a [u8], kinds: &[u16]) -> Option<&'a [u8]> {
    loop {
        let length = usize::from(native_u16(attributes, 0)?);
        let kind = native_u16(attributes, 2)? & KIND;
        let value = attributes.get(4..length)?;
        if kinds.contains(&kind) {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn native_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fuzzing::{attribute, fuzz, message};
    use super::*;

    /// Message recorded on Linux 6.18 about a connection from 10.9.9.1:54914 to 10.9.9.9:80, which an nftables rule
    /// translates to 10.8.8.2:8080. The message is little-endian.
    #[cfg(target_endian = "little")]
    const RECORDED: &str = "c4000000000100060000000000000000020000003400018014000180080001000a090901\
        080002000a0909091c000280050001000600000006000200d682000006000300005000003400028014000180080001000a08\
        0802080002000a0909011c0002800500010006000000060002001f90000006000300d682000008000c0001f9b36d08000300\
        000001a80800070000000078300004802c000180050001000100000005000200\
        0a000000050003000000000006000400030000000600050000000000";

    #[cfg(target_endian = "little")]
    fn recorded() -> Vec<u8> {
        let digits: Vec<u8> = RECORDED.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn tracked(from: &str, to: &str, routed_to: &str) -> TrackedConnection {
        let [from, to, routed_to] = [from, to, routed_to].map(|address| address.parse().unwrap());
        TrackedConnection { from, to, routed_to }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn parser_reads_recorded_kernel_message() {
        let expected = tracked("10.9.9.1:54914", "10.9.9.9:80", "10.8.8.2:8080");
        let bytes = recorded();
        assert_eq!(bytes.len(), 0xc4);
        assert_eq!(connections(&bytes).collect::<Vec<_>>(), [expected]);
        assert_eq!(connections(&bytes.repeat(3)).count(), 3);
        for cut in 0..bytes.len() {
            let found: Vec<_> = connections(&bytes[..cut]).collect();
            assert_eq!(found, [], "{cut}");
        }
    }

    #[test]
    fn parser_keeps_only_new_tcp_connections() {
        let one = tracked("[fd00::1]:40000", "[fd00::9]:80", "[fd00:1::2]:8080");
        let bytes = message(one);
        assert_eq!(connections(&bytes).collect::<Vec<_>>(), [one]);
        let mut updated = bytes.clone();
        updated[6..8].copy_from_slice(&0_u16.to_ne_bytes());
        let mut deleted = bytes.clone();
        deleted[4..6].copy_from_slice(&(NEW | 2).to_ne_bytes());
        let mut udp = bytes.clone();
        let number = attribute(NUMBER, &[TCP]);
        let at = udp.windows(number.len()).position(|window| window == number).unwrap();
        udp[at + 4] = 17;
        for other in [updated, deleted, udp] {
            assert_eq!(connections(&other).count(), 0);
            assert_eq!(connections(&[other, bytes.clone()].concat()).collect::<Vec<_>>(), [one]);
        }
    }

    proptest! {
        #[test]
        fn message_parser_survives_arbitrary_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            at in 0..196_usize,
            value in any::<u8>(),
        ) {
            fuzz(&bytes);
            let mut bytes = message(tracked("10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"));
            let at = at % bytes.len();
            bytes[at] = value;
            fuzz(&bytes);
        }
    }
}
