//! Finds the sockets that are ready to be read, with Linux's epoll.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::BATCH;

/// Sockets, each with a slot.
#[derive(Debug)]
pub(super) struct SocketSet(Epoll);

impl SocketSet {
    pub(super) fn new() -> io::Result<Option<Self>> {
        Ok(Some(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?)))
    }

    /// Adds a socket, which is reported once whenever bytes arrive.
    pub(super) fn add(&self, socket: &TcpStream, slot: usize) -> io::Result<()> {
        Ok(self.0.add(socket, arrivals(slot))?)
    }

    /// Makes epoll report a socket again unless it is empty.
    pub(super) fn report_again(&self, socket: &TcpStream, slot: usize) -> io::Result<()> {
        Ok(self.0.modify(socket, &mut arrivals(slot))?)
    }

    /// Removes a socket.
    pub(super) fn remove(&self, socket: &TcpStream) {
        // Closing the socket removes it, too.
        let _ = self.0.delete(socket);
    }

    /// Returns the descriptor that is readable when a socket is ready.
    pub(super) fn readable(&self) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
        // SAFETY: the `AsyncFd` borrows the descriptor, which therefore stays open and unchanged.
        #[expect(unsafe_code, reason = "tokio has no safe way to register a foreign descriptor")]
        let readable = unsafe { AsyncFd::register_with_interest(self.0.0.as_fd(), Interest::READABLE) }?;
        Ok(readable)
    }

    /// Calls `found` for each ready socket, up to one batch, with its slot, and with true if nothing more will be
    /// reported after the bytes that have arrived.
    pub(super) fn take_ready(&self, mut found: impl FnMut(usize, bool)) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); BATCH];
        let count = self.0.wait(&mut events, EpollTimeout::ZERO)?;
        let closing = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        for event in &events[..count] {
            found(usize::try_from(event.data()).unwrap_or(usize::MAX), event.events().intersects(closing));
        }
        Ok(())
    }
}

fn arrivals(slot: usize) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET, slot as u64)
}
