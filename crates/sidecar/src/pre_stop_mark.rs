//! The preStop hook's mark. The kubelet runs this same program in the proxy's container (`inject::container` has the
//! command), and it notifies the proxy.
//!
//! The two communicate over an abstract Unix socket named after the admin port's address. It needs no file, so it works
//! with a read-only root filesystem. All processes in the network namespace can connect to the socket, including those
//! in the pod's other containers, so the proxy asks the kernel who is connecting (SO_PEERCRED, unix(7)). The mark
//! counts only from a process that has a PID in the proxy's own PID namespace and runs as the proxy's user; such a
//! process could just as well signal the proxy. A process in another container has no PID there, unless the pod shares
//! its process namespace.
//!
//! Nothing is sent: the connection itself is the mark, and the proxy confirms it.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use super::ProxyState;
use super::admin::ACCEPT_PAUSE;
use rolldrop_record::Stamp;
use rolldrop_record::event::ProxyPhase;

/// The proxy's confirmation of a mark.
const TAKEN: &[u8] = b"ok\n";
/// Maximum time for notifying the proxy, limited because the pod's termination waits for its hooks.
const TELL_LIMIT: Duration = Duration::from_secs(2);

/// Failure to notify a proxy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum PreStopError {
    /// There is no proxy with this admin port in this network namespace, or the proxy does not respond.
    #[error("failed to reach the proxy with admin port {admin}")]
    NoProxy { admin: SocketAddr, source: io::Error },
    /// The listening process does not belong to this container and user.
    #[error("the process listening for the proxy with admin port {0} belongs to another container or user")]
    Stranger(SocketAddr),
    /// The proxy did not confirm the mark.
    #[error("the proxy with admin port {0} did not confirm the preStop call")]
    NotTaken(SocketAddr),
}

/// Notifies the proxy with this admin port, in this container, that the pod's termination has begun. Waits at most 2 s.
///
/// # Errors
///
/// Fails if the proxy does not confirm the mark.
pub fn mark_pre_stop(admin: SocketAddr) -> Result<(), PreStopError> {
    let unreached = |source| PreStopError::NoProxy { admin, source };
    let socket = connect(admin).map_err(unreached)?;
    let peer = getsockopt(&socket, sockopt::PeerCredentials).map_err(|errno| unreached(errno.into()))?;
    if !is_own(peer) {
        return Err(PreStopError::Stranger(admin));
    }
    let mut said = Vec::new();
    (&socket).take(TAKEN.len() as u64).read_to_end(&mut said).map_err(unreached)?;
    if said == TAKEN { Ok(()) } else { Err(PreStopError::NotTaken(admin)) }
}

fn connect(admin: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(TELL_LIMIT))?;
    socket.set_read_timeout(Some(TELL_LIMIT))?;
    // A path that begins with NUL is an abstract name.
    socket.connect(&SockAddr::unix(format!("\0{}", name(admin)))?)?;
    Ok(socket)
}

/// Returns the socket name of the proxy with this admin port. No other proxy in the network namespace has the same
/// port.
fn name(admin: SocketAddr) -> String {
    format!("rolldrop-pre-stop/{admin}")
}

/// Returns true if a process has the same user as this one, and is in the same PID namespace or one below it. Processes
/// in any other namespace have PID 0 here.
fn is_own(peer: UnixCredentials) -> bool {
    peer.pid() > 0 && peer.uid() == geteuid().as_raw()
}

/// Socket that the preStop hook's process connects to.
#[derive(Debug)]
pub(super) struct PreStopSocket {
    listener: net::UnixListener,
}

impl PreStopSocket {
    /// Claims the socket name for the proxy with this admin port.
    pub(super) fn bind(admin: SocketAddr) -> io::Result<Self> {
        let address = net::SocketAddr::from_abstract_name(name(admin))?;
        let listener = net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Accepts marks from its own container, forever.
    pub(super) async fn serve(self, shared: Arc<ProxyState>) {
        let listener = match UnixListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return shared.trouble("failed to listen for the preStop hook", &error),
        };
        let mut calls = Calls::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => take(&stream, &mut calls, &shared),
                Err(error) => {
                    shared.trouble("failed to accept a call from the preStop hook", &error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn take(stream: &UnixStream, calls: &mut Calls, shared: &ProxyState) {
    match getsockopt(stream, sockopt::PeerCredentials) {
        Ok(peer) if is_own(peer) => {
            shared.pre_stop(calls);
            // Three bytes always fit; a peer that has left does not need them.
            let _ = stream.try_write(TAKEN);
        }
        Ok(peer) => {
            let error = io::Error::from(io::ErrorKind::PermissionDenied);
            shared.trouble(
                &format!("ignored a preStop call from process {} (user {})", peer.pid(), peer.uid()),
                &error,
            );
        }
        Err(errno) => shared.trouble("failed to identify the caller of the preStop hook", &errno.into()),
    }
}

/// Rate limit for preStop hook calls, because a container may make any number of them.
#[derive(Debug, Default)]
struct Calls {
    next: Stamp,
    counted: usize,
}

impl Calls {
    /// Minimum time between two calls that count.
    const PAUSE_NS: i64 = 100_000_000;
    /// Maximum number of calls that count.
    const MOST: usize = 10_000;

    /// Returns true if a call at this time counts.
    fn count(&mut self, now: Stamp) -> bool {
        let counts = now >= self.next && self.counted < Self::MOST;
        if counts {
            self.next = now.shifted_ns(Self::PAUSE_NS);
            self.counted += 1;
        }
        counts
    }
}

impl ProxyState {
    /// Records a preStop hook call. Every call that counts is recorded, so that a reader can choose the one that
    /// matches the pod's deletion.
    fn pre_stop(&self, calls: &mut Calls) {
        let now = self.clock.now();
        if calls.count(now) {
            self.journal.phase(ProxyPhase::PreStop, now);
        }
        self.ending.cancel();
    }
}
