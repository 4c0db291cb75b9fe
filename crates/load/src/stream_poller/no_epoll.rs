//! Stand-in for systems without epoll, where no stream is polled.

use std::io;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;

use tokio::io::unix::AsyncFd;

/// Uninhabited type.
#[derive(Debug)]
pub(super) enum SocketSet {}

impl SocketSet {
    pub(super) fn new() -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(super) fn add(&self, _: &TcpStream, _: usize) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn report_again(&self, _: &TcpStream, _: usize) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn remove(&self, _: &TcpStream) {
        match *self {}
    }

    pub(super) fn readable(&self) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
        match *self {}
    }

    pub(super) fn take_ready(&self, _: impl FnMut(usize, bool)) -> io::Result<()> {
        match *self {}
    }
}
