//! Matches the kernel's connection-tracking entries with the load's connections.
//!
//! Pure. Keeps only the kernel entries that come from this load's addresses and ports, and drops those that turn out to
//! belong to no request.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::message::TrackedConnection;
use rolldrop_record::{RequestRow, Stamp};

/// Interval between removals of entries without a request.
const SWEEP: Duration = Duration::from_secs(10);

/// Addresses and ports from which the load connects.
#[derive(Clone, Debug)]
pub(crate) struct Origins {
    /// Addresses in this network namespace.
    pub(crate) local: HashSet<IpAddr>,
    /// Addresses that the workers use in turn; empty if the kernel chooses.
    pub(crate) chosen: Vec<IpAddr>,
    /// Ports of all workers; `None` if the kernel chooses.
    pub(crate) ports: Option<HashSet<u16>>,
    /// Maximum time from the opening of a connection until the request on it has ended, or until the connection has
    /// carried another request.
    pub(crate) longest: Duration,
}

impl Origins {
    fn has(&self, from: SocketAddr) -> bool {
        let addresses = if self.chosen.is_empty() {
            self.local.contains(&from.ip())
        } else {
            self.chosen.contains(&from.ip())
        };
        addresses && self.ports.as_ref().is_none_or(|ports| ports.contains(&from.port()))
    }

    /// Returns the address that distinguishes one worker's connections from another's with the same port.
    fn address(&self, worker: usize) -> Option<IpAddr> {
        self.chosen.get(worker.checked_rem(self.chosen.len())?).copied()
    }
}

/// Both ends of a connection, as seen by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    /// Local address, if there are several to choose from.
    address: Option<IpAddr>,
    port: u16,
    to: SocketAddr,
}

/// Facts about the connections with the same ends. At most one such connection exists at a time.
#[derive(Debug, Default)]
struct FlowFacts {
    /// Entries not yet matched with a request, in order, each with the time at which it was read; the kernel may have
    /// made it earlier.
    waiting: VecDeque<(Stamp, SocketAddr)>,
    /// Last connection used by a request: the worker, the connection's number within it, and where it was routed.
    last: Option<(usize, u64, Option<SocketAddr>)>,
}

/// Connections of one load.
#[derive(Debug)]
pub(crate) struct TrackedFlows {
    origins: Origins,
    places: HashMap<Ends, FlowFacts>,
    swept: Stamp,
    /// Number of connections opened by the load's requests.
    pub(crate) opened: u64,
    /// Number of opened connections for which the kernel had an entry.
    pub(crate) routed: u64,
}

impl TrackedFlows {
    /// Creates the state for a load with these origins, before the load's first connection.
    pub(crate) fn new(origins: Origins, now: Stamp) -> Self {
        Self { origins, places: HashMap::new(), swept: now, opened: 0, routed: 0 }
    }

    /// Adds an entry that was read at `at`.
    pub(crate) fn observe(&mut self, tracked: TrackedConnection, at: Stamp) {
        let TrackedConnection { from, to, routed_to } = tracked;
        if self.origins.has(from) {
            let address = (!self.origins.chosen.is_empty()).then_some(from.ip());
            let place = self.places.entry(Ends { address, port: from.port(), to }).or_default();
            place.waiting.push_back((at, routed_to));
        }
    }

    /// Returns true if any entry is for a connection to one of `remotes`.
    pub(crate) fn has_any_to(&self, remotes: &[SocketAddr]) -> bool {
        self.places.iter().any(|(ends, place)| !place.waiting.is_empty() && remotes.contains(&ends.to))
    }

    /// Returns where a request's connection was routed. Call this once per row from a worker, in the order in which the
    /// requests ended, after observing all earlier entries.
    pub(crate) fn route(&mut self, worker: usize, row: &RequestRow) -> Option<SocketAddr> {
        let opens = row.connect_start.is_some();
        self.opened += u64::from(opens);
        let routed = self.place_of(worker, row);
        self.routed += u64::from(opens && routed.is_some());
        routed
    }

    fn place_of(&mut self, worker: usize, row: &RequestRow) -> Option<SocketAddr> {
        let to = row.remote_addr.as_deref()?.parse().ok()?;
        let ends = Ends { address: self.origins.address(worker), port: row.local_port?, to };
        let (place, conn) = (self.places.get_mut(&ends)?, row.conn?);
        if let Some((_, _, routed)) = place.last.filter(|(of, last, _)| (*of, *last) == (worker, conn)) {
            return routed;
        }
        let routed = match row.connect_start {
            Some(start) => {
                // Earlier entries belong to the previous connection on this port.
                while place.waiting.front().is_some_and(|(at, _)| *at < start) {
                    place.waiting.pop_front();
                }
                place.waiting.pop_front()
            }
            // The request that opened the connection has not ended yet. If there are two entries, either may belong to
            // this connection.
            None if place.waiting.len() == 1 => place.waiting.pop_front(),
            None => None,
        };
        let routed = routed.map(|(_, routed_to)| routed_to);
        place.last = Some((worker, conn, routed));
        routed
    }

    /// Periodically removes entries that no request has claimed, because they do not belong to the load.
    pub(crate) fn sweep(&mut self, now: Stamp) {
        if now < self.swept + SWEEP {
            return;
        }
        self.swept = now;
        let longest = self.origins.longest;
        for place in self.places.values_mut() {
            while place.waiting.front().is_some_and(|(at, _)| *at + longest < now) {
                place.waiting.pop_front();
            }
        }
        self.places.retain(|_, place| place.last.is_some() || !place.waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rolldrop_record::Phase;

    const SERVICE: &str = "10.96.0.10:80";

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns(ms * 1_000_000)
    }

    fn origins() -> Origins {
        let local = HashSet::from(["10.0.0.1".parse().unwrap()]);
        let ports = Some((40_000..40_010).collect());
        Origins { local, chosen: Vec::new(), ports, longest: Duration::from_secs(8) }
    }

    fn tracked(from: &str, pod: u8) -> TrackedConnection {
        let (from, to) = (from.parse().unwrap(), SERVICE.parse().unwrap());
        TrackedConnection { from, to, routed_to: ([10, 244, 1, pod], 8080).into() }
    }

    fn row(conn: u64, port: u16, start_ms: Option<i64>) -> RequestRow {
        let (source, target): (Arc<str>, Arc<str>) = ("load-0".into(), "web".into());
        RequestRow {
            connect_start: start_ms.map(at),
            conn: Some(conn),
            conn_reused: start_ms.is_none(),
            local_port: Some(port),
            remote_addr: Some(SERVICE.into()),
            ..RequestRow::not_sent(source, conn, target, Phase::Main, at(0), at(0))
        }
    }

    fn pod(routed: Option<SocketAddr>) -> Option<u8> {
        routed.map(|address| match address.ip() {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        })
    }

    #[test]
    fn time_distinguishes_flows_on_reused_port() {
        let mut flows = TrackedFlows::new(origins(), at(0));
        flows.observe(tracked("10.0.0.1:40001", 2), at(11));
        assert_eq!(pod(flows.route(0, &row(1, 40_001, Some(10)))), Some(2));
        // The next connection has no entry, because the kernel routed it by the first one's entry, or refused it.
        assert_eq!(pod(flows.route(0, &row(2, 40_001, Some(500)))), None);
        // The entry for a connection without a row, such as a second attempt, does not belong to the next connection
        // either.
        flows.observe(tracked("10.0.0.1:40001", 3), at(600));
        flows.observe(tracked("10.0.0.1:40001", 4), at(1_001));
        assert_eq!(pod(flows.route(0, &row(3, 40_001, Some(1_000)))), Some(4));
        assert_eq!((flows.opened, flows.routed), (3, 2));
    }

    #[test]
    fn requests_inherit_pod_from_their_connection() {
        let mut flows = TrackedFlows::new(origins(), at(0));
        flows.observe(tracked("10.0.0.1:40002", 5), at(2));
        // A stream may end before the request that opened its connection.
        assert_eq!(pod(flows.route(0, &row(7, 40_002, None))), Some(5));
        assert_eq!(pod(flows.route(0, &row(7, 40_002, Some(1)))), Some(5));
        assert_eq!(pod(flows.route(0, &row(7, 40_002, None))), Some(5));
        // Another connection from the same address and port has no known entry.
        assert_eq!(pod(flows.route(0, &row(8, 40_002, None))), None);
        assert_eq!((flows.opened, flows.routed), (1, 1));
        // Two entries, and no request that shows when the connection was opened.
        flows.observe(tracked("10.0.0.1:40002", 5), at(3));
        flows.observe(tracked("10.0.0.1:40002", 6), at(4));
        assert_eq!(pod(flows.route(0, &row(9, 40_002, None))), None);
    }

    #[test]
    fn tracked_flows_keep_own_entries_until_expiry() {
        let mut flows = TrackedFlows::new(origins(), at(0));
        // Entries for a pod on this node, whose packets pass through, and for another program on this node.
        flows.observe(tracked("10.244.0.7:40001", 2), at(1));
        flows.observe(tracked("10.0.0.1:50000", 2), at(1));
        assert!(flows.places.is_empty());
        // An entry for another program that uses one of the load's ports.
        flows.observe(tracked("10.0.0.1:40003", 2), at(1));
        let to: SocketAddr = SERVICE.parse().unwrap();
        assert!(flows.has_any_to(&[to]) && !flows.has_any_to(&["10.96.0.10:81".parse().unwrap()]));
        flows.sweep(at(9_999));
        assert_eq!(flows.places.len(), 1);
        flows.sweep(at(10_001));
        assert!(flows.places.is_empty());
    }

    #[test]
    fn source_address_distinguishes_flows_on_shared_port() {
        let chosen = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let mut flows = TrackedFlows::new(Origins { chosen, ..origins() }, at(0));
        flows.observe(tracked("10.0.0.1:40001", 2), at(1));
        flows.observe(tracked("10.0.0.2:40001", 3), at(1));
        assert_eq!(pod(flows.route(1, &row(0, 40_001, Some(0)))), Some(3));
        assert_eq!(pod(flows.route(2, &row(0, 40_001, Some(0)))), Some(2));
    }
}
