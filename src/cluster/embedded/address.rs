//! Loopback addresses of the userspace dataplane.
//!
//! Every cluster takes one block `127.N.0.0/16` for itself, so that several can run
//! side by side on one machine. Nodes are `127.N.0.1` onwards, Services come from
//! `127.N.240.0/20`, and pods from what lies between.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::PoisonError;

/// Second octets to choose from: well away from 127.0, where everything else lives.
const BLOCKS: std::ops::RangeInclusive<u8> = 64..=191;
/// The control plane's place among the nodes.
const CONTROL_PLANE: u16 = 254;
/// First and last pod address within the block, as the lower 16 bits.
const PODS: (u16, u16) = (0x0101, 0xEFFE);
/// First and last Service address within the block, as the lower 16 bits.
const SERVICES: (u16, u16) = (0xF001, 0xFFFD);
/// The port on the block's last address but one whose listener marks the block as taken.
const CLAIM_PORT: u16 = 10_259;

/// One cluster's addresses. The block is free again when this is dropped.
#[derive(Debug)]
pub struct AddressBlock {
    second_octet: u8,
    next_pod: Mutex<u16>,
    /// Held, never accepted from: it keeps other clusters off this block.
    _claim: TcpListener,
}

impl AddressBlock {
    /// Takes the first free block, trying from `start` (any number) on.
    ///
    /// # Errors
    ///
    /// The last block's error when none is free.
    pub fn claim(start: usize) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for n in 0..BLOCKS.len() {
            let second_octet = BLOCKS.clone().nth((start + n) % BLOCKS.len()).unwrap_or(*BLOCKS.start());
            let at = SocketAddr::from((address(second_octet, 0xFFFE), CLAIM_PORT));
            match TcpListener::bind(at) {
                Ok(claim) => return Ok(Self { second_octet, next_pod: Mutex::new(PODS.0), _claim: claim }),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The address of node `index` (from 0).
    pub fn node(&self, index: u8) -> Ipv4Addr {
        address(self.second_octet, u16::from(index) + 1)
    }

    /// The control plane's address: that of DNS.
    pub fn control_plane(&self) -> Ipv4Addr {
        address(self.second_octet, CONTROL_PLANE)
    }

    /// An address for a new pod. Addresses are handed out in turn, so one that a pod had is not
    /// used again before some 61,000 others were.
    pub fn next_pod(&self) -> Ipv4Addr {
        let mut next = self.next_pod.lock().unwrap_or_else(PoisonError::into_inner);
        let ip = *next;
        // Skip x.x.n.0 and x.x.n.255: nothing forbids them on loopback, but they look wrong.
        *next = loop {
            *next = if *next >= PODS.1 { PODS.0 } else { *next + 1 };
            if !matches!(*next & 0xFF, 0 | 0xFF) {
                break *next;
            }
        };
        address(self.second_octet, ip)
    }

    /// All addresses that a Service may have, in order.
    pub fn services(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let second_octet = self.second_octet;
        (SERVICES.0..=SERVICES.1).map(move |low| address(second_octet, low))
    }
}

fn address(second_octet: u8, low: u16) -> Ipv4Addr {
    let [third, fourth] = low.to_be_bytes();
    Ipv4Addr::new(127, second_octet, third, fourth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_never_share_a_block() {
        let first = AddressBlock::claim(7).unwrap();
        let second = AddressBlock::claim(7).unwrap();
        assert_ne!(first.second_octet, second.second_octet);
    }

    #[test]
    fn pod_addresses_stay_in_their_range_and_come_round() {
        let block = AddressBlock::claim(40).unwrap();
        let first = block.next_pod();
        let mut count = 1;
        loop {
            let ip = block.next_pod();
            let [_, _, third, fourth] = ip.octets();
            assert!((0x01..=0xEF).contains(&third) && !matches!(fourth, 0 | 255), "{ip}");
            if ip == first {
                break;
            }
            count += 1;
        }
        assert!(count > 60_000, "{count}");
    }
}
