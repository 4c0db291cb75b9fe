//! One TCP connection: opened without hiding a fact, and read to known ends.
//!
//! Raw non-blocking sockets, because the error number, the local port of a
//! connection that failed, and the count of bytes are facts that belong in the
//! row. Which outcome they make is `exchange`'s business.

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes that are asked for in one read.
const READ_SIZE: usize = 8 * 1024;

/// Raises the limit of open files to what `connections` need, as far as the
/// system allows; what it does not shows as requests that are not sent.
#[cfg(unix)]
pub(super) fn allow_open(connections: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    /// Files that the rest of the process may have open.
    const OTHERS: u64 = 1024;

    let wanted = connections as u64 + OTHERS;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

/// There is no such limit here.
#[cfg(not(unix))]
pub(super) fn allow_open(_connections: usize) {}

/// A connection on its way.
pub(super) struct Dialing {
    stream: TcpStream,
    /// Its local port, also if it fails.
    pub(super) local_port: Option<u16>,
    /// How connecting failed, where that is known already.
    failed: Option<io::Error>,
}

/// Why connecting did not even begin: the client's own fault.
#[derive(Debug)]
pub(super) enum CannotDial {
    /// No socket could be opened, such as when the limit of open files is reached.
    Socket(io::Error),
    /// Every local port towards the target is in use.
    LocalPort(io::Error),
}

/// Begins to connect to `remote`. The kernel chooses the local port.
///
/// # Errors
/// When this machine cannot begin.
pub(super) fn dial(remote: SocketAddr) -> Result<Dialing, CannotDial> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))
        .map_err(CannotDial::Socket)?;
    socket.set_nonblocking(true).map_err(CannotDial::Socket)?;
    socket.set_tcp_nodelay(true).map_err(CannotDial::Socket)?;
    let failed = match socket.connect(&remote.into()) {
        Ok(()) => None,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
        Err(e) if e.raw_os_error() == Some(Errno::EINPROGRESS as i32) => None,
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => return Err(CannotDial::LocalPort(e)),
        Err(e) => Some(e),
    };
    let local = socket.local_addr().ok().and_then(|address| address.as_socket());
    let local_port = local.map(|address| address.port()).filter(|port| *port != 0);
    let stream = TcpStream::from_std(StdTcpStream::from(socket)).map_err(CannotDial::Socket)?;
    Ok(Dialing { stream, local_port, failed })
}

impl Dialing {
    /// Waits until the connection stands.
    ///
    /// # Errors
    /// When it was refused or could not be made.
    pub(super) async fn connected(self, id: u64) -> io::Result<Connection> {
        if let Some(e) = self.failed {
            return Err(e);
        }
        self.stream.writable().await?;
        if let Some(e) = self.stream.take_error()? {
            return Err(e);
        }
        let buffer = Vec::with_capacity(READ_SIZE);
        Ok(Connection { stream: self.stream, id, local_port: self.local_port, buffer })
    }
}

/// A connection that stands.
pub(super) struct Connection {
    stream: TcpStream,
    /// Its number within its source.
    pub(super) id: u64,
    /// Its local port.
    pub(super) local_port: Option<u16>,
    /// Bytes that were read and not yet taken.
    pub(super) buffer: Vec<u8>,
}

impl Connection {
    /// Whether nothing has arrived on the idle connection, as far as the runtime
    /// has been told: a close or stray bytes make it useless.
    pub(super) fn is_idle(&self) -> bool {
        let mut byte = [0];
        matches!(self.stream.try_read(&mut byte), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Writes all of `bytes`, adding to `written` as they leave.
    ///
    /// # Errors
    /// When the connection takes no more.
    pub(super) async fn write_all(&mut self, mut bytes: &[u8], written: &mut u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.stream.write(bytes).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            *written += count as u64;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Reads what comes next into the buffer; 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// When the connection was reset or lost.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_SIZE / 2);
        self.stream.read_buf(&mut self.buffer).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_idle_connection_shows_a_close_that_has_arrived() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialing = dial(listener.local_addr().unwrap()).unwrap();
        let port = dialing.local_port;
        let connection = dialing.connected(7).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        assert_eq!((connection.id, connection.local_port), (7, Some(peer.port())));
        assert_eq!(port, connection.local_port);
        assert!(connection.is_idle());
        drop(server);
        let deadline = Instant::now() + Duration::from_secs(30);
        while connection.is_idle() {
            assert!(Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
    }
}
