//! The netlink socket on which the kernel reports the connections that it begins to track, in this thread's network
//! namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt, socket, sockopt,
};

use super::Read;

/// The bit of `NFNLGRP_CONNTRACK_NEW`.
const NEW: u32 = 1;
/// Room for messages that are not read at once: some thousands.
const ROOM: usize = 8 << 20;
/// Room for one datagram.
const DATAGRAM: usize = 64 << 10;

/// The socket, with a buffer for what comes next.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// Makes the kernel report new connections from now on.
    ///
    /// # Errors
    /// When the kernel refuses: EPERM without CAP_NET_ADMIN.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        // Beyond the system's limit where this process may go beyond it.
        if setsockopt(&fd, sockopt::RcvBufForce, &ROOM).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &ROOM)?;
        }
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, NEW))?;
        Ok(Self { fd, buffer: vec![0; DATAGRAM] })
    }

    /// Reads one datagram, if there is one.
    ///
    /// # Errors
    /// When the kernel reports no more.
    pub(super) fn read(&mut self) -> io::Result<Read<'_>> {
        loop {
            match recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), &mut self.buffer) {
                // Any process may send to a netlink socket.
                Ok((_, Some(sender))) if sender.pid() != 0 => {}
                Ok((length, _)) => return Ok(Read::Datagram(&self.buffer[..length])),
                Err(Errno::EAGAIN) => return Ok(Read::Nothing),
                Err(Errno::ENOBUFS) => return Ok(Read::Overrun),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The same socket, to wait on while another thread may read.
    ///
    /// # Errors
    /// When there are too many files open.
    pub(super) fn signal(&self) -> io::Result<Signal> {
        Ok(Signal(self.fd.try_clone()?))
    }
}

/// Says when there is something to read.
#[derive(Debug)]
pub(super) struct Signal(OwnedFd);

impl Signal {
    /// Waits until there is something to read, or the limit has passed.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
