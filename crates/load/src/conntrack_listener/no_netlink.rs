//! Stand-in for operating systems other than Linux, whose kernels do not report where connections go.

use std::io;
use std::time::Duration;

use super::NetlinkRead;

/// Uninhabited type.
#[derive(Debug)]
pub(super) enum NetlinkSocket {}

impl NetlinkSocket {
    /// Always fails.
    ///
    /// # Errors
    /// Always.
    pub(super) fn open() -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "only Linux reports tracked connections"))
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub(super) fn read(&mut self) -> io::Result<NetlinkRead<'_>> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub(super) fn signal(&self) -> io::Result<NetlinkSignal> {
        match *self {}
    }
}

/// Uninhabited type.
#[derive(Debug)]
pub(super) enum NetlinkSignal {}

impl NetlinkSignal {
    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub(super) fn wait(&self, _limit: Duration) -> io::Result<()> {
        match *self {}
    }
}
