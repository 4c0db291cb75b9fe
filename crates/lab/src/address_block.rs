//! Addresses of a cluster's nodes, pods and Services.
//!
//! On the userspace dataplane, each cluster claims a `127.N.0.0/16` block so that several clusters can run side by side
//! on one machine. Nodes start at `127.N.0.1`, Services use `127.N.240.0/20`, and pods use the addresses in between. On
//! the kernel dataplane, each cluster has its own network, and all clusters use the same addresses: nodes start at
//! `10.0.0.1`, node N's pods use `10.244.N.0/24`, and Services use `10.96.0.0/16`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Mutex;

use super::sync::lock;

/// Second octets to choose from, well away from 127.0, where everything else lives.
const BLOCKS: std::ops::RangeInclusive<u8> = 64..=191;
/// First and last pod address within the block, as the lower 16 bits.
const PODS: (u16, u16) = (0x0101, 0xEFFE);
/// First and last Service address within the block, as the lower 16 bits.
const SERVICES: (u16, u16) = (0xF001, 0xFFFD);
/// Port whose listener, on the block's second-to-last address, marks the block as taken.
const CLAIM_PORT: u16 = 10_259;
/// First and last Service address of a private network, as the lower 16 bits.
const PRIVATE_SERVICES: (u16, u16) = (0x0001, 0xFFFE);
/// Last octet of the control plane's address, which is in the node range.
const CONTROL_PLANE: u8 = 254;
/// First and last pod address on each node of a private network, as the lowest 8 bits.
const NODE_PODS: (u8, u8) = (2, 254);

/// Addresses of one cluster. Dropping this frees its loopback block.
#[derive(Debug)]
pub(crate) struct AddressBlock(AddressPlan);

#[derive(Debug)]
enum AddressPlan {
    Loopback {
        second_octet: u8,
        next_pod: Mutex<u16>,
        /// Listener that keeps other clusters off this block; it never accepts a connection.
        _claim: TcpListener,
    },
    Private {
        pods: Mutex<PrivatePods>,
    },
}

#[derive(Debug, Default)]
struct PrivatePods {
    /// Last address given to a pod on each node.
    last: BTreeMap<u8, u8>,
    in_use: BTreeSet<Ipv4Addr>,
}

impl AddressBlock {
    /// Claims the first free block of loopback addresses, counting up from `start` (any number).
    ///
    /// # Errors
    ///
    /// The error from the last block if none is free.
    pub(crate) fn claim(start: usize) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for n in 0..BLOCKS.len() {
            let second_octet = BLOCKS.clone().nth((start + n) % BLOCKS.len()).unwrap_or(*BLOCKS.start());
            let at = SocketAddr::from((within([127, second_octet], 0xFFFE), CLAIM_PORT));
            match TcpListener::bind(at) {
                Ok(claim) => {
                    let next_pod = Mutex::new(PODS.0);
                    return Ok(Self(AddressPlan::Loopback { second_octet, next_pod, _claim: claim }));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Returns the addresses of a private network.
    pub(crate) fn private() -> Self {
        Self(AddressPlan::Private { pods: Mutex::default() })
    }

    /// Returns the address of node `index` (from 0).
    pub(crate) fn node(&self, index: u8) -> Ipv4Addr {
        self.among_nodes(index.saturating_add(1))
    }

    /// Returns the control plane's address, where pods reach the API server and DNS.
    pub(crate) fn control_plane(&self) -> Ipv4Addr {
        self.among_nodes(CONTROL_PLANE)
    }

    fn among_nodes(&self, low: u8) -> Ipv4Addr {
        match self.0 {
            AddressPlan::Loopback { second_octet, .. } => Ipv4Addr::new(127, second_octet, 0, low),
            AddressPlan::Private { .. } => Ipv4Addr::new(10, 0, 0, low),
        }
    }

    /// Returns an address for a new pod on node `index` (from 0), or `None` if all are in use. Addresses are handed out
    /// in turn, so a pod's address is reused only after some 61,000 others (on a private network, after the node's
    /// other 252).
    pub(crate) fn next_pod(&self, index: u8) -> Option<Ipv4Addr> {
        match &self.0 {
            AddressPlan::Loopback { second_octet, next_pod, .. } => {
                let mut next = lock(next_pod);
                let ip = *next;
                // Skip x.x.n.0 and x.x.n.255. Nothing forbids them on loopback, but they look wrong.
                *next = loop {
                    *next = if *next >= PODS.1 { PODS.0 } else { *next + 1 };
                    if !matches!(*next & 0xFF, 0 | 0xFF) {
                        break *next;
                    }
                };
                Some(within([127, *second_octet], ip))
            }
            AddressPlan::Private { pods } => {
                let mut pods = lock(pods);
                let [a, b, node, _] = node_pods(index).octets();
                let (first, end) = NODE_PODS;
                for _ in first..=end {
                    let last = pods.last.get(&index).copied().unwrap_or(end);
                    let next = if last < end { last + 1 } else { first };
                    pods.last.insert(index, next);
                    let ip = Ipv4Addr::new(a, b, node, next);
                    if pods.in_use.insert(ip) {
                        return Some(ip);
                    }
                }
                None
            }
        }
    }

    /// Returns a pod's address to the pool.
    pub(crate) fn release_pod(&self, ip: Ipv4Addr) {
        if let AddressPlan::Private { pods } = &self.0 {
            lock(pods).in_use.remove(&ip);
        }
    }

    /// Returns all addresses available to Services, in order.
    pub(crate) fn services(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let (high, (first, last)) = match self.0 {
            AddressPlan::Loopback { second_octet, .. } => ([127, second_octet], SERVICES),
            AddressPlan::Private { .. } => ([10, 96], PRIVATE_SERVICES),
        };
        (first..=last).map(move |low| within(high, low))
    }
}

/// Returns the network address of the /24 for pods on node `index` (from 0) of a private network.
pub(crate) fn node_pods(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, index.saturating_add(1), 0)
}

fn within(high: [u8; 2], low: u16) -> Ipv4Addr {
    let [third, fourth] = low.to_be_bytes();
    Ipv4Addr::new(high[0], high[1], third, fourth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_claim_distinct_address_blocks() {
        let first = AddressBlock::claim(7).unwrap();
        let second = AddressBlock::claim(7).unwrap();
        assert_ne!(first.node(0), second.node(0));
    }

    #[test]
    fn pod_addresses_wrap_within_range() {
        let block = AddressBlock::claim(40).unwrap();
        let first = block.next_pod(0).unwrap();
        let mut count = 1;
        loop {
            let ip = block.next_pod(0).unwrap();
            let [_, _, third, fourth] = ip.octets();
            assert!((0x01..=0xEF).contains(&third) && !matches!(fourth, 0 | 255), "{ip}");
            if ip == first {
                break;
            }
            count += 1;
        }
        assert!(count > 60_000, "{count}");
    }

    #[test]
    fn private_node_reuses_released_pod_address() {
        let block = AddressBlock::private();
        let all: Vec<_> = std::iter::from_fn(|| block.next_pod(1)).collect();
        assert_eq!((all.len(), all[0], all[252]), (253, [10, 244, 2, 2].into(), [10, 244, 2, 254].into()));
        assert_eq!(block.next_pod(0), Some([10, 244, 1, 2].into()), "nodes do not share");
        block.release_pod(all[7]);
        assert_eq!(block.next_pod(1), Some(all[7]));
        assert_eq!(block.next_pod(1), None);
    }
}
