//! Source ports of fresh connections, used in turn instead of being chosen by the kernel.
//!
//! An unanswered SYN leaves a connection-tracking entry for 120 s, and a connection with the same addresses and ports
//! within that time follows the entry, regardless of where the rules would route it by then (a stale flow).
//! The kernel chooses ports by a hash and may reuse one immediately. Here, each port is reused only after all other
//! ports of the worker's share, and this also applies to the next load ([`walk`]).

mod walk;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rolldrop_record::load::{PortRange, TIME_WAIT};
pub(super) use walk::PortWalk;
pub use walk::{PortMemory, PortsBefore};

/// Time for which Linux keeps the entry of an unanswered connection attempt (`nf_conntrack_tcp_timeout_syn_sent`).
pub(super) const ENTRY_LIFE: Duration = Duration::from_secs(120);

/// Time for which a closed connection occupies its port if `net.ipv4.tcp_tw_reuse` lets a new connection take over the
/// port.
const TIME_WAIT_REUSED: Duration = Duration::from_secs(1);

/// Returns the source ports available to all workers together.
///
/// These are the given ports, or the system's ephemeral ports without the reserved ones. Returns `None` if neither is
/// known; the kernel then chooses.
pub(super) fn usable(given: Option<PortRange>) -> Option<Vec<u16>> {
    match given {
        Some(range) => Some((range.first..=range.last).collect()),
        None => ephemeral(),
    }
}

/// Returns the ephemeral ports of this process's network namespace.
#[cfg(target_os = "linux")]
fn ephemeral() -> Option<Vec<u16>> {
    let setting = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
    let reserved = setting("ip_local_reserved_ports").unwrap_or_default();
    rolldrop_record::load::ephemeral_of(&setting("ip_local_port_range")?, &reserved)
}

#[cfg(not(target_os = "linux"))]
fn ephemeral() -> Option<Vec<u16>> {
    None
}

/// A worker's share of the source ports, used in turn.
#[derive(Debug)]
pub(super) struct SourcePorts {
    /// Source address; `None` if the kernel chooses.
    pub(super) address: Option<IpAddr>,
    ports: Vec<u16>,
    start: usize,
    taken: AtomicUsize,
}

impl SourcePorts {
    /// Returns the share for worker number `worker`, starting at a position among all ports. Workers take the addresses
    /// in turn, and workers with the same address divide the ports among themselves.
    pub(super) fn share(
        (all, place): (&[u16], usize),
        addresses: &[IpAddr],
        (worker, workers): (usize, usize),
    ) -> Self {
        let groups = addresses.len().max(1);
        let (group, member) = (worker % groups, worker / groups);
        let members = (workers - group).div_ceil(groups);
        let ports: Vec<u16> = all.iter().skip(member).step_by(members).copied().collect();
        Self {
            address: addresses.get(group).copied(),
            ports,
            start: place / members,
            taken: AtomicUsize::new(0),
        }
    }

    /// Returns the number of ports.
    pub(super) fn len(&self) -> usize {
        self.ports.len()
    }

    /// Takes the next port. The share must not be empty.
    pub(super) fn next(&self) -> u16 {
        let place = self.start + self.taken.fetch_add(1, Ordering::Relaxed);
        self.ports[place % self.ports.len()]
    }

    /// Returns the number of times a port has been taken so far.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Returns the time for which the port of a connection to this address stays taken if this side closes first.
pub(super) fn held(remote: IpAddr) -> Duration {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_tw_reuse").unwrap_or_default();
    held_with(setting.trim(), remote)
}

fn held_with(tw_reuse: &str, remote: IpAddr) -> Duration {
    match tw_reuse {
        "1" => TIME_WAIT_REUSED,
        "2" if remote.is_loopback() => TIME_WAIT_REUSED,
        _ => TIME_WAIT,
    }
}

/// Returns the time after which ports must be reused, if that is before an entry expires. The load opens `fresh_per_s`
/// fresh connections per second for `length`, using `ports` ports after those that earlier loads (`before`) took.
/// Returns `None` if no port is reused that early.
pub(super) fn used_again_after(
    fresh_per_s: f64,
    length: Duration,
    ports: usize,
    before: Option<PortsBefore>,
) -> Option<Duration> {
    let own = (fresh_per_s * length.as_secs_f64() > ports as f64).then(|| ports as f64 / fresh_per_s);
    let of_before = before.filter(|before| before.taken > 0).and_then(|before| {
        let until_there = ports.saturating_sub(before.taken) as f64 / fresh_per_s;
        (until_there < length.as_secs_f64()).then_some(until_there + before.since_s as f64)
    });
    let first = own.into_iter().chain(of_before).reduce(f64::min)?;
    (first < ENTRY_LIFE.as_secs_f64()).then(|| Duration::from_secs_f64(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::load::ephemeral_of;

    #[test]
    fn port_range_requires_two_ordered_ports() {
        assert_eq!("40000-40010".parse::<PortRange>().unwrap().to_string(), "40000-40010");
        for wrong in ["40000", "2-1", "0-5", "1-65536", "a-b"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn reserved_ports_are_left_out() {
        assert_eq!(ephemeral_of("10\t16\n", "11,13-14\n").unwrap(), [10, 12, 15, 16]);
        assert_eq!(ephemeral_of("10\t12\n", "\n").unwrap(), [10, 11, 12]);
        assert_eq!(ephemeral_of("", ""), None);
    }

    #[test]
    fn workers_cycle_through_disjoint_ports() {
        let all: Vec<u16> = (100..107).collect();
        let a = IpAddr::from([127, 0, 0, 1]);
        let b = IpAddr::from([127, 0, 0, 2]);
        for addresses in [&[][..], &[a], &[a, b]] {
            let mut taken = Vec::new();
            for worker in 0..3 {
                let share = SourcePorts::share((&all, 5), addresses, (worker, 3));
                let round: Vec<u16> = (0..share.len()).map(|_| share.next()).collect();
                let again: Vec<u16> = (0..share.len()).map(|_| share.next()).collect();
                assert_eq!(round, again);
                taken.extend(round.into_iter().map(|port| (share.address, port)));
            }
            let uses = taken.len();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!((taken.len(), uses), (7 * addresses.len().max(1), uses));
            assert_eq!(taken.len(), uses);
        }
    }

    #[test]
    fn loopback_releases_ports_sooner() {
        let (near, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let held = |setting| [near, far].map(|remote| held_with(setting, remote).as_secs());
        assert_eq!([held("0"), held("1"), held("2"), held("")], [[60, 60], [1, 1], [1, 60], [60, 60]]);
    }

    #[test]
    fn port_walk_predicts_early_reuse() {
        let minute = Duration::from_secs(60);
        let after = |length, ports| used_again_after(100.0, length, ports, None).map(|after| after.as_secs());
        assert_eq!(after(minute, 6000), None);
        assert_eq!(after(minute, 5000), Some(50));
        assert_eq!(after(60 * minute, 12_000), None);
        assert_eq!(after(60 * minute, 11_000), Some(110));
        // The same load follows a one-minute load, which has either just ended or ended a minute ago.
        let after = |ports, since_s| {
            let before = PortsBefore { next: 0, taken: 6000, since_s };
            used_again_after(100.0, minute, ports, Some(before)).map(|after| after.as_secs())
        };
        assert_eq!(after(9000, 60), Some(90));
        assert_eq!(after(9000, 120), None);
        assert_eq!(after(12_000, 60), None, "they suffice for both");
    }
}
