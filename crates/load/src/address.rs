//! Addresses that connections are made to.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rolldrop_record::load::Family;

/// Peer to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(Arc<Path>),
}

/// Peer to connect to, with its text in rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The peer itself.
    pub(super) remote: Remote,
    /// Its text in rows.
    pub(super) text: Arc<str>,
}

impl Address {
    /// Returns true if it is an IP address of this family.
    pub(super) fn is_of(&self, family: Family) -> bool {
        matches!(self.remote, Remote::Tcp(address) if family.has(address.ip()))
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { remote: Remote::Tcp(address), text: address.to_string().into() }
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self { remote: Remote::Unix(path.into()), text: path.display().to_string().into() }
    }
}
