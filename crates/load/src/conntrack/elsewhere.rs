//! Where there is no Linux, no kernel says where connections go.

use std::io;
use std::time::Duration;

use super::Read;

/// There is none.
#[derive(Debug)]
pub(super) enum Socket {}

impl Socket {
    /// # Errors
    /// Always.
    pub(super) fn open() -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "only Linux reports the connections that it tracks"))
    }

    /// Is never called.
    ///
    /// # Errors
    /// Never.
    pub(super) fn read(&mut self) -> io::Result<Read<'_>> {
        match *self {}
    }

    /// Is never called.
    ///
    /// # Errors
    /// Never.
    pub(super) fn signal(&self) -> io::Result<Signal> {
        match *self {}
    }
}

/// There is none.
#[derive(Debug)]
pub(super) enum Signal {}

impl Signal {
    /// Is never called.
    ///
    /// # Errors
    /// Never.
    pub(super) fn wait(&self, _limit: Duration) -> io::Result<()> {
        match *self {}
    }
}
