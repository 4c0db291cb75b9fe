//! One connection, whose opening and closing are recorded in full.
//!
//! Uses raw non-blocking sockets, because the error number, the local port of a failed connection, and the byte counts
//! are facts that belong in the row. `exchange` decides the outcome.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

use super::client_tls::{self, TlsClient};
use super::pod_body::Beginning;
use super::remote_address::Remote;
use super::socket_transport::{self, SocketTransport};
use super::source_port_pool::SourcePorts;
use rolldrop_record::load::Http;
use rolldrop_record::{Clock, Stamp, TlsSession};

/// Number of bytes requested per read.
const READ_SIZE: usize = 8 * 1024;

/// Number of files reserved for the rest of the process.
const OTHER_FILES: u64 = 1024;

/// Returns the number of connections that the system's open-file limit allows.
pub(super) fn most_open() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(_, hard)| hard);
    usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX)
}

/// Raises the open-file limit to what `connections` need, as far as the system allows. Requests that would need more
/// files are not sent.
pub(super) fn allow_open(connections: usize) {
    let wanted = connections as u64 + OTHER_FILES;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

/// A connection that is being established.
pub(super) struct Dialing {
    socket: socket_transport::ClientSocket,
    /// Local port, known even if the attempt fails.
    pub(super) local_port: Option<u16>,
    progress: DialProgress,
}

/// State of a connection attempt after its start.
enum DialProgress {
    /// The peer has not responded yet.
    Begun,
    /// The connection is established.
    Stands,
    /// The attempt failed.
    Failed(io::Error),
}

impl DialProgress {
    /// Returns the progress after a first or repeated `connect`.
    fn of(connected: io::Result<()>) -> Self {
        let Err(e) = connected else { return Self::Stands };
        match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINPROGRESS | Errno::EALREADY | Errno::EWOULDBLOCK) => Self::Begun,
            Some(Errno::EISCONN) => Self::Stands,
            _ => Self::Failed(e),
        }
    }
}

/// Failure to start connecting at all; the fault is the client's own.
#[derive(Debug)]
pub(super) enum CannotDial {
    /// No socket could be opened, for example because the open-file limit was reached.
    Socket(io::Error),
    /// No local port is free: the requested one is taken or, if the kernel chooses, all are.
    LocalPort(io::Error),
}

/// Maximum number of source ports to try in a row before the request is given up; a longer search among busy ports
/// would delay later requests.
const MAX_TRIES: usize = 1000;

/// Starts connecting to `remote`. A TCP connection uses the next free port of `ports`; without `ports` the kernel
/// chooses one.
///
/// # Errors
/// Returns an error if this machine cannot start to connect.
pub(super) fn dial(remote: &Remote, ports: Option<&SourcePorts>) -> Result<Dialing, CannotDial> {
    match remote {
        Remote::Tcp(remote) => dial_tcp(*remote, ports),
        Remote::Unix(path) => dial_unix(path).map_err(CannotDial::Socket),
    }
}

fn dial_unix(path: &Path) -> io::Result<Dialing> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // A Unix socket connects immediately or not at all; EAGAIN means that the queue is full.
    let progress = match socket.connect(&socket2::SockAddr::unix(path)?) {
        Ok(()) => DialProgress::Stands,
        Err(e) => DialProgress::Failed(e),
    };
    let stream = UnixStream::from_std(OwnedFd::from(socket).into())?;
    Ok(Dialing { socket: Either::Right(stream), local_port: None, progress })
}

fn dial_tcp(remote: SocketAddr, ports: Option<&SourcePorts>) -> Result<Dialing, CannotDial> {
    let Some(ports) = ports else { return dial_from(remote, None) };
    let address = ports.address.unwrap_or_else(|| unspecified(remote));
    let mut tries = ports.len().min(MAX_TRIES);
    loop {
        match dial_from(remote, Some(SocketAddr::new(address, ports.next()))) {
            // In use, or not released yet: try the next one.
            Err(CannotDial::LocalPort(_)) if tries > 1 => tries -= 1,
            dialed => return dialed,
        }
    }
}

/// Starts connecting to `remote` from `local`, or from an address and port that the kernel chooses.
///
/// # Errors
/// Returns an error if this machine cannot start to connect.
pub(super) fn dial_from(remote: SocketAddr, local: Option<SocketAddr>) -> Result<Dialing, CannotDial> {
    let socket = open_socket(remote).map_err(CannotDial::Socket)?;
    if let Some(local) = local {
        // A port in TIME_WAIT may still be used for a connection to another address.
        socket.set_reuse_address(true).map_err(CannotDial::Socket)?;
        socket.bind(&local.into()).map_err(CannotDial::LocalPort)?;
    }
    let remote = remote.into();
    let mut progress = DialProgress::of(socket.connect(&remote));
    // Within one host, the peer has responded by the time the call returns. Calling again costs less than waiting for a
    // runtime event.
    if matches!(progress, DialProgress::Begun) {
        progress = DialProgress::of(socket.connect(&remote));
    }
    let progress = match progress {
        DialProgress::Failed(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
            return Err(CannotDial::LocalPort(e));
        }
        progress => progress,
    };
    let local = local.or_else(|| socket.local_addr().ok()?.as_socket());
    let local_port = local.map(|address| address.port()).filter(|port| *port != 0);
    let stream = TcpStream::from_std(StdTcpStream::from(socket)).map_err(CannotDial::Socket)?;
    Ok(Dialing { socket: Either::Left(stream), local_port, progress })
}

/// Opens a non-blocking socket that does not delay small writes (TCP_NODELAY).
fn open_socket(remote: SocketAddr) -> io::Result<Socket> {
    // Setting the flag in the same call, where the kernel supports this, saves two calls.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    let socket = {
        let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket
    };
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Returns the unspecified address of the same address family.
pub(super) fn unspecified(remote: SocketAddr) -> IpAddr {
    match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl Dialing {
    /// Waits until the connection is established, and stores `id` and `remote` in it.
    ///
    /// # Errors
    /// Returns an error if the connection was refused or failed.
    pub(super) async fn connected(self, id: u64, remote: Arc<str>, clock: Clock) -> io::Result<Connection> {
        match self.progress {
            DialProgress::Stands => {}
            DialProgress::Failed(e) => return Err(e),
            DialProgress::Begun => {
                socket_transport::writable(&self.socket).await?;
                if let Some(e) = socket_transport::raw(&self.socket).take_error()? {
                    return Err(e);
                }
            }
        }
        Ok(Connection {
            transport: SocketTransport::Plain(self.socket),
            id,
            since: clock.now(),
            requests: 0,
            local_port: self.local_port,
            remote,
            buffer: Vec::new(),
            pod: None,
            head: Vec::new(),
            beginning: None,
            is_websocket: false,
        })
    }
}

/// Buffers of closed connections, for reuse.
#[derive(Debug, Default)]
pub(super) struct Buffers(RefCell<Vec<Vec<u8>>>);

impl Buffers {
    /// Maximum number of buffers to keep.
    const MOST: usize = 64;
    /// Maximum capacity of a buffer to keep, in bytes.
    const MOST_BYTES: usize = 4 * READ_SIZE;

    /// Returns an empty buffer.
    pub(super) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(READ_SIZE))
    }

    /// Stores a buffer that is no longer needed.
    pub(super) fn give(&self, mut buffer: Vec<u8>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < Self::MOST && buffer.capacity() <= Self::MOST_BYTES {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

/// An established connection.
pub(super) struct Connection {
    transport: SocketTransport,
    /// Number of the connection within its source.
    pub(super) id: u64,
    /// Time the connection was established, before any TLS handshake.
    pub(super) since: Stamp,
    /// Number of requests sent on the connection.
    pub(super) requests: u64,
    /// Local port; a Unix socket has none.
    pub(super) local_port: Option<u16>,
    /// Remote address in the format used in rows.
    pub(super) remote: Arc<str>,
    /// Bytes read but not yet consumed.
    pub(super) buffer: Vec<u8>,
    /// Pod named by the last response, if any.
    pub(super) pod: Option<Arc<str>>,
    /// Head of the last response, if the body did not arrive with it.
    pub(super) head: Vec<u8>,
    /// Beginning of the current body, if the body is searched for the pod's name.
    pub(super) beginning: Option<Box<Beginning>>,
    /// True if the connection has switched to WebSocket.
    pub(super) is_websocket: bool,
}

impl Connection {
    /// Wraps the connection in TLS.
    ///
    /// # Errors
    /// Returns an error if the handshake fails; [`client_tls::fault`] distinguishes TLS from connection failures.
    pub(super) async fn secured(self, client: &TlsClient) -> io::Result<Self> {
        let transport = match self.transport {
            SocketTransport::Plain(socket) => SocketTransport::Tls(client.handshake(socket).await?),
            other @ (SocketTransport::Tls(_) | SocketTransport::Taken) => other,
        };
        Ok(Self { transport, ..self })
    }

    /// Returns the version of the TLS session and whether it was resumed; `None` without TLS.
    pub(super) fn tls_session(&self) -> Option<TlsSession> {
        match &self.transport {
            SocketTransport::Plain(_) | SocketTransport::Taken => None,
            SocketTransport::Tls(tls) => client_tls::session(tls),
        }
    }

    /// Returns true if the connection speaks HTTP/2: as negotiated by TLS (ALPN), or as `wanted` without TLS.
    pub(super) fn speaks_http2(&self, wanted: Http) -> bool {
        match &self.transport {
            SocketTransport::Plain(_) | SocketTransport::Taken => wanted == Http::Http2,
            SocketTransport::Tls(tls) => tls.session().alpn_protocol() == Some(client_tls::HTTP2),
        }
    }

    /// Returns only the transport, for a protocol that does its own reads and writes. If no request was sent, nothing
    /// has been read from it.
    pub(super) fn into_transport(self) -> SocketTransport {
        self.transport
    }

    /// Takes a cleartext TCP socket out of the runtime, for another reader; `None` for other transports. The connection
    /// is unusable until the socket is put back.
    pub(super) fn take_tcp(&mut self) -> Option<io::Result<StdTcpStream>> {
        self.transport.take_tcp()
    }

    /// Puts the socket back.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot register the socket.
    pub(super) fn put_back(&mut self, socket: StdTcpStream) -> io::Result<()> {
        self.transport = SocketTransport::Plain(Either::Left(TcpStream::from_std(socket)?));
        Ok(())
    }

    /// Returns only the buffer, and closes the connection.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Returns true if the runtime has seen nothing arrive on the idle connection. After a close or stray bytes, the
    /// connection could not be used again.
    pub(super) fn is_idle(&mut self) -> bool {
        self.transport.is_quiet()
    }

    /// Writes all of `bytes`, and adds to `written` as they are accepted. If cancelled, continue after those bytes.
    ///
    /// # Errors
    /// Returns an error if the connection accepts no more bytes.
    pub(super) async fn write_all(&mut self, mut bytes: &[u8], written: &mut u64) -> io::Result<()> {
        // All bytes nearly always fit into one write.
        if let Some(count) = self.transport.write_now(bytes)? {
            *written += count as u64;
            bytes = &bytes[count..];
        }
        while !bytes.is_empty() {
            let count = self.transport.write(bytes).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            *written += count as u64;
            bytes = &bytes[count..];
        }
        self.transport.flush().await
    }

    /// Writes as many of `bytes` as the connection accepts immediately. An idle connection accepts a few bytes in full.
    pub(super) fn write_now(&mut self, bytes: &[u8]) {
        let mut written = 0;
        let mut write = pin!(self.write_all(bytes, &mut written));
        // The result is irrelevant.
        let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Reads bytes into the buffer if the runtime has seen any arrive. Returns `None` if none have arrived, and 0 bytes
    /// at the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the connection was reset or lost.
    pub(super) fn read_now(&mut self) -> io::Result<Option<usize>> {
        // The next read registers its own waker.
        match self.poll_read(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read.map(Some),
            Poll::Pending => Ok(None),
        }
    }

    /// Waits for more bytes and reads them into the buffer. Returns 0 bytes at the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the connection was reset or lost, or `UnexpectedEof` if it was closed without TLS's
    /// close_notify.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// Reads bytes into the buffer like [`read`](Self::read), or registers to be woken when some arrive.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(READ_SIZE / 2);
        pin!(self.transport.read_buf(&mut self.buffer)).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn idle_connection_detects_server_close() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialing = dial(&Remote::Tcp(listener.local_addr().unwrap()), None).unwrap();
        let port = dialing.local_port;
        let mut connection = dialing.connected(7, "web".into(), Clock::start()).await.unwrap();
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

    #[tokio::test]
    async fn dial_skips_busy_source_ports() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = Remote::Tcp(listener.local_addr().unwrap());
        // Ports that the kernel never chooses by itself (its range starts at 32768); a listener occupies the middle
        // one.
        let from = 10_000 + u16::try_from(std::process::id() % 20_000).unwrap();
        let bind = |port: u16| std::net::TcpListener::bind(("0.0.0.0", port));
        let free: Vec<u16> = (from..32_768).filter(|port| bind(*port).is_ok()).take(4).collect();
        let held = bind(free[1]).unwrap();
        let ports = SourcePorts::share((&free, 0), &[], (0, 1));
        let mut used: Vec<u16> =
            (0..3).map(|_| dial(&remote, Some(&ports)).unwrap().local_port.unwrap()).collect();
        used.sort_unstable();
        let mut expected = vec![free[0], free[2], free[3]];
        expected.sort_unstable();
        assert_eq!(used, expected);
        let busy = SourcePorts::share((&free[1..2], 0), &[], (0, 1));
        assert!(matches!(dial(&remote, Some(&busy)), Err(CannotDial::LocalPort(_))));
        drop(held);
    }
}
