//! Asks the kernel's connection tracking where each connection of the load was routed.
//!
//! If kernel rules from kube-proxy or from the embedded cluster's kernel dataplane translate a Service's address,
//! connection tracking reports, for each connection that it begins to track, the address from which it expects the
//! replies. A [`ConntrackListener`] receives these reports in the network namespace of this process, and the recorder
//! writes the address into the rows (`routed_to`), whether or not there was a response.
//!
//! The kernel queues its message while it sends the first packet, before `connect` returns. The recorder handles only
//! requests that have ended, so it finds all of their entries by reading the queue to its end (`netlink_socket`). The
//! workers take no part in this, and never wait for it. Between these reads, a thread empties the queue. A message
//! ([`message`]) is kept if it may belong to the load (`tracked_flows`). Messages that did not fit into the queue leave
//! gaps, which are listed in the run's events.
//!
//! There are no entries for connections without a packet (refused by a rule), for connections that a kube-proxy
//! replacement balances at the socket, or for connections that match an earlier entry. Entries never show why a request
//! was lost.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod message;
#[cfg(target_os = "linux")]
mod netlink_socket;
#[cfg(not(target_os = "linux"))]
mod no_netlink;
mod tracked_flows;

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

#[cfg(target_os = "linux")]
use netlink_socket::{NetlinkSignal, NetlinkSocket};
#[cfg(not(target_os = "linux"))]
use no_netlink::{NetlinkSignal, NetlinkSocket};
pub(super) use tracked_flows::Origins;
use tracked_flows::TrackedFlows;

use crate::machine::kube_proxy;
use rolldrop_record::{Clock, EventKind, RequestRow, Stamp};

/// Interval at which the thread checks for the end of the load.
const TURN: Duration = Duration::from_millis(200);
/// Time that [`check`] waits for a report, because a Service proxy that has just started is still creating its first
/// rules.
const PATIENCE: Duration = Duration::from_secs(3);
/// Setting that makes the kernel report entries: 0 means never, 2 means only while a process listens.
const EVENTS: &str = "/proc/sys/net/netfilter/nf_conntrack_events";

/// Result of one read from the socket.
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "the code that reads it is the same on all systems")
)]
enum NetlinkRead<'a> {
    /// One or more messages from the kernel.
    Datagram(&'a [u8]),
    /// Nothing more to read for now.
    Nothing,
    /// Messages have been lost since the last read because the queue was full.
    Overrun,
}

/// Reason why the kernel does not report where connections go.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ConntrackError {
    /// This process lacks the permission to listen.
    #[error(
        "--evidence conntrack needs CAP_NET_ADMIN on the machine that sends the load: run as root on a node, or use \
         the embedded cluster's kernel dataplane"
    )]
    Denied(#[source] io::Error),
    /// Reporting is switched off.
    #[error(
        "--evidence conntrack has no data: the kernel does not report connections, because \
         net.netfilter.nf_conntrack_events is 0. Set it to 1 or 2"
    )]
    SwitchedOff,
    /// Connections have no tracking entries here.
    #[error(
        "--evidence conntrack has no data: the kernel tracks no connections on the machine that sends the load, \
         because no rule there requires tracking"
    )]
    Untracked,
    /// Connections to the targets have no tracking entries.
    #[error(
        "--evidence conntrack has no data: the kernel tracked no connection to {to}. This is normal \
         with a kube-proxy replacement that balances at the socket, and in a pod's own network"
    )]
    NoEntry { to: String },
    /// Listening failed, for example because the system does not support it.
    #[error("failed to listen to the kernel's connection tracking (--evidence conntrack)")]
    Io(#[source] io::Error),
}

/// Checks that the kernel reports where connections go, by opening a connection within this network namespace.
///
/// # Errors
/// Returns an error if the kernel does not report this.
pub fn check() -> Result<(), ConntrackError> {
    let mut socket = open()?;
    let deadline = Instant::now() + PATIENCE;
    let local: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loop {
        // One of the address families may be unavailable, or have no rules.
        if local.iter().any(|address| is_told_of(&mut socket, *address).unwrap_or(false)) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(ConntrackError::Untracked);
        }
        sleep(TURN);
    }
}

fn open() -> Result<NetlinkSocket, ConntrackError> {
    let setting = fs::read_to_string(EVENTS).unwrap_or_default();
    if setting.trim() == "0" {
        return Err(ConntrackError::SwitchedOff);
    }
    NetlinkSocket::open().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ConntrackError::Denied(error),
        _ => ConntrackError::Io(error),
    })
}

/// Returns true if the kernel reports a connection within this network namespace.
fn is_told_of(socket: &mut NetlinkSocket, address: IpAddr) -> io::Result<bool> {
    let listener = TcpListener::bind((address, 0))?;
    let to = listener.local_addr()?;
    let from = TcpStream::connect(to)?.local_addr()?;
    loop {
        match socket.read()? {
            NetlinkRead::Nothing => return Ok(false),
            NetlinkRead::Overrun => {}
            NetlinkRead::Datagram(datagram) => {
                if message::connections(datagram).any(|tracked| (tracked.from, tracked.to) == (from, to)) {
                    return Ok(true);
                }
            }
        }
    }
}

/// Returns the addresses of this network namespace.
pub(super) fn local_addresses() -> io::Result<impl Iterator<Item = IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    Ok(interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    }))
}

/// Receiver of the kernel's reports about a load's connections. Clones share the same state.
#[derive(Clone, Debug)]
pub(super) struct ConntrackListener {
    heard: Arc<Mutex<ListenerState>>,
    signal: Arc<NetlinkSignal>,
    clock: Clock,
}

#[derive(Debug)]
struct ListenerState {
    /// Socket for the reports; `None` after a failure.
    socket: Option<NetlinkSocket>,
    flows: TrackedFlows,
    /// Time the queue was last empty.
    emptied: Stamp,
    /// Intervals in which messages were lost: start and end.
    gaps: Vec<(Stamp, Stamp)>,
}

impl ConntrackListener {
    /// Starts listening for new connections from `origins`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not report connections.
    pub(super) fn begin(origins: Origins, clock: Clock) -> Result<Self, ConntrackError> {
        let socket = open()?;
        let signal = Arc::new(socket.signal().map_err(ConntrackError::Io)?);
        let now = clock.now();
        let flows = TrackedFlows::new(origins, now);
        let heard = ListenerState { socket: Some(socket), flows, emptied: now, gaps: Vec::new() };
        Ok(Self { heard: Arc::new(Mutex::new(heard)), signal, clock })
    }

    /// Checks that the kernel had an entry for a connection to one of `remotes`.
    ///
    /// # Errors
    /// Returns an error if there was no such entry.
    pub(super) fn check_has_any_to(&self, remotes: &[SocketAddr]) -> Result<(), ConntrackError> {
        if self.up_to_now().flows.has_any_to(remotes) {
            return Ok(());
        }
        let remotes: Vec<String> = remotes.iter().map(SocketAddr::to_string).collect();
        Err(ConntrackError::NoEntry { to: remotes.join(", ") })
    }

    /// Empties the queue whenever it has messages, until `end` is cancelled. Must run on its own thread.
    pub(super) fn listen(&self, end: &CancellationToken) {
        while !end.is_cancelled() {
            // Without a signal, the queue is emptied at intervals.
            if self.signal.wait(TURN).is_err() {
                sleep(TURN);
            }
            if self.up_to_now().socket.is_none() {
                return;
            }
        }
    }

    /// Fills in the address to which the connection of each request was routed; the rows must be in the order in which
    /// their requests ended.
    pub(super) fn fill_in(&self, worker: usize, rows: &mut [RequestRow]) {
        let mut heard = self.up_to_now();
        for row in rows {
            row.routed_to = heard.flows.route(worker, row);
        }
    }

    /// Returns the summary events: the number of connections that had an entry, and the times when entries were lost.
    pub(super) fn events(&self) -> Vec<(Stamp, EventKind)> {
        let mut heard = self.up_to_now();
        let now = self.clock.now();
        if heard.socket.is_none() {
            let from = heard.emptied;
            heard.gaps.push((from, now));
        }
        let gap = |(from, to): &(Stamp, Stamp)| (*to, EventKind::ConntrackGap { from: *from });
        let mut events: Vec<_> = heard.gaps.iter().map(gap).collect();
        let (connections, routed) = (heard.flows.opened, heard.flows.routed);
        let service_proxy = kube_proxy::mode();
        events.push((now, EventKind::ConntrackEnded { connections, routed, service_proxy }));
        events
    }

    /// Reads all reports that the kernel has queued so far.
    fn up_to_now(&self) -> MutexGuard<'_, ListenerState> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.read_all(self.clock);
        heard
    }
}

impl ListenerState {
    fn read_all(&mut self, clock: Clock) {
        let Some(socket) = &mut self.socket else { return };
        let is_broken = loop {
            match socket.read() {
                Ok(NetlinkRead::Datagram(datagram)) => {
                    let now = clock.now();
                    message::connections(datagram).for_each(|tracked| self.flows.observe(tracked, now));
                }
                Ok(NetlinkRead::Overrun) => self.gaps.push((self.emptied, clock.now())),
                Ok(NetlinkRead::Nothing) => break false,
                Err(error) => {
                    tracing::warn!(%error, "the kernel no longer reports where connections go");
                    break true;
                }
            }
        };
        if is_broken {
            self.socket = None;
            return;
        }
        self.emptied = clock.now();
        self.flows.sweep(self.emptied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_tracks_connections_unless_check_fails() {
        let clock = Clock::start();
        let local = local_addresses().unwrap().collect();
        let longest = Duration::from_secs(60);
        let origins = Origins { local, chosen: Vec::new(), ports: None, longest };
        let began = ConntrackListener::begin(origins, clock);
        match (check(), began) {
            (Ok(()), Ok(listener)) => {
                let server = TcpListener::bind("127.0.0.1:0").unwrap();
                let to = server.local_addr().unwrap();
                let client = TcpStream::connect(to).unwrap();
                listener.check_has_any_to(&[to]).unwrap();
                drop(client);
                let events = listener.events();
                assert!(matches!(events[..], [(_, EventKind::ConntrackEnded { connections: 0, routed: 0, .. })]));
            }
            (Err(ConntrackError::Denied(_)), Err(ConntrackError::Denied(_)))
            | (Err(ConntrackError::SwitchedOff), Err(ConntrackError::SwitchedOff))
            // Listening succeeds, but the kernel reports nothing.
            | (Err(ConntrackError::Untracked), Ok(_)) => {}
            (checked, began) => panic!("{checked:?}, {began:?}"),
        }
    }
}
