//! Pod links with a delay: two TUN devices in place of the two ends of a veth, and a task that forwards each packet
//! after a delay.
//!
//! The delay depends on the peer's address, so one consumer can be far from a pod and another near. Each peer's packets
//! stay in order. The kernel's own mechanism (netem) is missing from many kernels and cannot distinguish peers.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::libc::{self, c_short};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::hop_latency::{HopLatency, Sampler};
use crate::sync::lock;

/// Maximum number of packets in flight per direction; a link drops any others.
const MAX_UNDER_WAY: usize = 10_000;
/// Maximum length of a packet (RFC 791).
const MAX_PACKET: usize = 65_535;

/// One-way delays of links, by the address of the consumer at the other end.
#[derive(Debug)]
pub struct Delays {
    by_peer: Mutex<HashMap<Ipv4Addr, HopLatency>>,
    sampler: Sampler,
}

impl Delays {
    /// Creates the delays from those of the nodes, keyed by node address. Pods' delays are added later.
    pub(crate) fn new(nodes: impl IntoIterator<Item = (Ipv4Addr, HopLatency)>, sampler: Sampler) -> Self {
        Self { by_peer: Mutex::new(nodes.into_iter().collect()), sampler }
    }

    pub(super) fn set(&self, peer: Ipv4Addr, delay: HopLatency) {
        lock(&self.by_peer).insert(peer, delay);
    }

    pub(super) fn remove(&self, peer: Ipv4Addr) {
        lock(&self.by_peer).remove(&peer);
    }

    fn sample(&self, peer: Ipv4Addr) -> Duration {
        let delay = lock(&self.by_peer).get(&peer).copied();
        delay.map_or(Duration::ZERO, |delay| self.sampler.sample(&delay))
    }
}

/// Creates a TUN device in this thread's network namespace.
///
/// # Errors
///
/// Fails if there is no `/dev/net/tun`, or the system refuses to create the device.
#[expect(unsafe_code, reason = "no crate in use here wraps this call")]
pub(super) fn tun(name: &str) -> io::Result<File> {
    let path = "/dev/net/tun";
    let told = |error: io::Error| {
        io::Error::new(error.kind(), format!("{path}: {error}; delayed links (latencies.link) need it"))
    };
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    let file = options.open(path).map_err(told)?;
    let flags = c_short::try_from(libc::IFF_TUN | libc::IFF_NO_PI).map_err(io::Error::other)?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // The last byte stays 0.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the kernel reads and writes the request, which lives until the call returns.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(told(io::Error::last_os_error())),
    }
}

/// Tasks that pass packets between the two ends of a pod's link. Dropping this removes both devices.
#[derive(Debug)]
pub(super) struct DelayedLink {
    _passing: JoinSet<()>,
}

impl DelayedLink {
    /// Passes packets between two devices. Must be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses to watch the devices.
    pub(super) fn between(node: File, pod: File, delays: &Arc<Delays>) -> io::Result<Self> {
        let (node, pod) = (Arc::new(watched(node)?), Arc::new(watched(pod)?));
        let mut passing = JoinSet::new();
        passing.spawn(pass(Arc::clone(&node), Arc::clone(&pod), Arc::clone(delays), source));
        passing.spawn(pass(pod, node, Arc::clone(delays), destination));
        Ok(Self { _passing: passing })
    }
}

#[expect(unsafe_code, reason = "the caller must guarantee that the descriptor stays open")]
fn watched(device: File) -> io::Result<AsyncFd<File>> {
    // SAFETY: the file is not replaced, and stays open until it is dropped.
    Ok(unsafe { AsyncFd::register(device) }?)
}

/// Passes packets in one direction until the device is gone.
async fn pass(
    from: Arc<AsyncFd<File>>,
    to: Arc<AsyncFd<File>>,
    delays: Arc<Delays>,
    peer: fn(&[u8]) -> Option<Ipv4Addr>,
) {
    let mut under_way = PacketsUnderWay::default();
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let due = under_way.due();
        tokio::select! {
            read = from.async_io(Interest::READABLE, |mut device| device.read(&mut buffer)) => {
                let Ok(length) = read else { return };
                let packet = &buffer[..length];
                // Other packets are dropped, because no process here waits for anything but IPv4.
                if let Some(peer) = peer(packet) {
                    under_way.send(packet, peer, Instant::now() + delays.sample(peer));
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                for packet in under_way.arrived(Instant::now()) {
                    // A packet that cannot be delivered is lost, as on any link.
                    let _ = to.get_ref().write(&packet);
                }
            }
        }
    }
}

fn source(packet: &[u8]) -> Option<Ipv4Addr> {
    address_at(packet, 12)
}

fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    address_at(packet, 16)
}

/// Returns the address at an offset in an IPv4 packet's header (RFC 791).
fn address_at(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    let is_version_4 = packet.first()? >> 4 == 4;
    let address: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
    is_version_4.then(|| address.into())
}

/// Packets in flight, by arrival time.
#[derive(Debug, Default)]
struct PacketsUnderWay {
    packets: BTreeMap<(Instant, u64), Vec<u8>>,
    sent: u64,
    /// Arrival time of each peer's last packet.
    last: HashMap<Ipv4Addr, Instant>,
}

impl PacketsUnderWay {
    fn send(&mut self, packet: &[u8], peer: Ipv4Addr, due: Instant) {
        if self.packets.len() >= MAX_UNDER_WAY {
            return;
        }
        let last = self.last.entry(peer).or_insert(due);
        *last = due.max(*last);
        self.sent += 1;
        self.packets.insert((*last, self.sent), packet.to_owned());
    }

    fn due(&self) -> Option<Instant> {
        self.packets.first_key_value().map(|((due, _), _)| *due)
    }

    fn arrived(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let later = self.packets.split_off(&(now, u64::MAX));
        if later.is_empty() {
            self.last.clear();
        }
        std::mem::replace(&mut self.packets, later).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_packets_stay_ordered_per_peer() {
        let (far, near) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let mut under_way = PacketsUnderWay::default();
        under_way.send(b"1", far, after(20));
        under_way.send(b"2", far, after(10));
        under_way.send(b"3", near, after(5));
        assert_eq!(under_way.due(), Some(after(5)));
        assert_eq!(under_way.arrived(after(5)), [b"3"]);
        assert_eq!(under_way.arrived(after(19)), [[0; 0]; 0]);
        assert_eq!(under_way.arrived(after(20)), [b"1", b"2"]);
        assert_eq!(under_way.due(), None);
    }

    #[test]
    fn ipv4_header_yields_source_and_destination() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 244, 1, 2]);
        assert_eq!(source(&packet), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(destination(&packet), Some(Ipv4Addr::new(10, 244, 1, 2)));
        packet[0] = 0x65;
        assert_eq!(source(&packet), None);
        assert_eq!(source(&[0x45]), None);
    }
}
