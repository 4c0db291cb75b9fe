//! Builds messages like the kernel's, and provides the entry point for fuzzing the parser with arbitrary ones.

use std::net::{IpAddr, SocketAddr};

use super::message::{
    ADDRESSES, CREATE, DESTINATION_ADDRESS, DESTINATION_PORT, GENERAL, HEADER, NEW, NUMBER, ORIGINAL,
    PROTOCOL, REPLY, SOURCE_ADDRESS, SOURCE_PORT, TCP, TrackedConnection, connections,
};

/// Checks that a connection parsed from any input remains the same after it is written and parsed again.
pub(crate) fn fuzz(bytes: &[u8]) {
    let most = bytes.len() / HEADER;
    let found: Vec<TrackedConnection> = connections(bytes).take(most + 1).collect();
    assert!(found.len() <= most, "more messages than fit into the datagram");
    for tracked in found {
        assert_eq!(connections(&message(tracked)).collect::<Vec<_>>(), [tracked]);
    }
}

pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn tuple(kind: u16, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    const NESTED: u16 = 0x8000;
    let address = |address: IpAddr, [v4, v6]: [u16; 2]| match address {
        IpAddr::V4(address) => attribute(v4, &address.octets()),
        IpAddr::V6(address) => attribute(v6, &address.octets()),
    };
    let addresses = [address(from.ip(), SOURCE_ADDRESS), address(to.ip(), DESTINATION_ADDRESS)].concat();
    let protocol = [
        attribute(NUMBER, &[TCP]),
        attribute(SOURCE_PORT, &from.port().to_be_bytes()),
        attribute(DESTINATION_PORT, &to.port().to_be_bytes()),
    ];
    let both = [attribute(ADDRESSES | NESTED, &addresses), attribute(PROTOCOL | NESTED, &protocol.concat())];
    attribute(kind | NESTED, &both.concat())
}

/// Returns a message about a connection.
pub(super) fn message(tracked: TrackedConnection) -> Vec<u8> {
    let TrackedConnection { from, to, routed_to } = tracked;
    let tuples = [tuple(ORIGINAL, from, to), tuple(REPLY, routed_to, from)].concat();
    let length = u32::try_from(HEADER + GENERAL + tuples.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(NEW.to_ne_bytes());
    bytes.extend((CREATE | 0x200).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([2, 0, 0, 0]);
    bytes.extend(tuples);
    bytes
}
