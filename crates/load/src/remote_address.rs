//! Addresses to connect to.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rolldrop_record::load::Family;

/// Peer to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(Arc<Path>),
}

/// Peer to connect to, with its string form for rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The peer.
    pub(super) remote: Remote,
    /// Text used in rows.
    pub(super) text: Arc<str>,
}

impl Address {
    /// Returns true if this is an IP address of the given family.
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
