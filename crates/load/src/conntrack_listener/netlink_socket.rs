//! Netlink socket on which the kernel reports the connections that it begins to track, in the network namespace of the
//! current thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt, socket, sockopt,
};

use super::NetlinkRead;

/// Group mask bit for `NFNLGRP_CONNTRACK_NEW`.
const NEW: u32 = 1;
/// Size in bytes of the receive buffer, which holds a few thousand unread messages.
const ROOM: usize = 8 << 20;
/// Size in bytes of the buffer for one datagram.
const DATAGRAM: usize = 64 << 10;

/// A netlink socket, with a buffer for the next datagram.
#[derive(Debug)]
pub(super) struct NetlinkSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Subscribes to the kernel's reports of new connections.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses: EPERM without CAP_NET_ADMIN.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        // Exceeds the system's limit if this process is allowed to.
        if setsockopt(&fd, sockopt::RcvBufForce, &ROOM).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &ROOM)?;
        }
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, NEW))?;
        Ok(Self { fd, buffer: vec![0; DATAGRAM] })
    }

    /// Reads one datagram, if any.
    ///
    /// # Errors
    /// Returns an error if the kernel has stopped reporting.
    pub(super) fn read(&mut self) -> io::Result<NetlinkRead<'_>> {
        loop {
            match recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), &mut self.buffer) {
                // Any process can send to a netlink socket.
                Ok((_, Some(sender))) if sender.pid() != 0 => {}
                Ok((length, _)) => return Ok(NetlinkRead::Datagram(&self.buffer[..length])),
                Err(Errno::EAGAIN) => return Ok(NetlinkRead::Nothing),
                Err(Errno::ENOBUFS) => return Ok(NetlinkRead::Overrun),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns a second handle to the socket, to wait on while another thread may read.
    ///
    /// # Errors
    /// Returns an error if too many files are open.
    pub(super) fn signal(&self) -> io::Result<NetlinkSignal> {
        Ok(NetlinkSignal(self.fd.try_clone()?))
    }
}

/// Handle that signals when there is something to read.
#[derive(Debug)]
pub(super) struct NetlinkSignal(OwnedFd);

impl NetlinkSignal {
    /// Waits until there is something to read, or until the limit has passed.
    ///
    /// # Errors
    /// Returns an error if waiting fails.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
