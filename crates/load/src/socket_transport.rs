//! Transports that connections use: TCP, a Unix socket, or TLS over either.
//!
//! An enum rather than a trait object, so that reading cleartext TCP costs no more than reading the socket. A protocol
//! that does its own reads and writes, such as HTTP/2, takes the [`SocketTransport`].

use std::io::{self, Read};
use std::mem;
use std::net::TcpStream as StdTcpStream;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConnection;
use tokio_util::either::Either;

/// A TCP or Unix socket that is connected or about to be.
pub(super) type ClientSocket = Either<TcpStream, UnixStream>;

/// Transport of a connection.
#[derive(Debug)]
pub(super) enum SocketTransport {
    /// Cleartext bytes.
    Plain(ClientSocket),
    /// TLS over a socket.
    Tls(TlsTransport),
    /// The socket has been taken out.
    Taken,
}

/// A TLS session after its handshake. Dropping it sends close_notify to the peer.
#[derive(Debug)]
pub(super) struct TlsTransport {
    stream: Box<TlsStream<ClientSocket>>,
    /// Error that ended the session; held back until everything received before it has been read.
    failure: Option<io::Error>,
}

impl TlsTransport {
    /// Wraps the session that a handshake produced.
    pub(super) fn new(stream: TlsStream<ClientSocket>) -> Self {
        Self { stream: Box::new(stream), failure: None }
    }

    /// Returns the session, with the parameters negotiated in the handshake.
    pub(super) fn session(&self) -> &ClientConnection {
        self.stream.get_ref().1
    }

    /// Reads valid bytes before reporting a failure, because an alert or invalid data may arrive together with them.
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = match self.failure.take() {
            None => Pin::new(&mut self.stream).poll_read(context, buffer),
            Some(failure) => Poll::Ready(Err(failure)),
        };
        let Poll::Ready(Err(failure)) = read else { return read };
        match self.stream.get_mut().1.reader().read(buffer.initialize_unfilled()) {
            Ok(count @ 1..) => {
                buffer.advance(count);
                self.failure = Some(failure);
                Poll::Ready(Ok(()))
            }
            _ => Poll::Ready(Err(failure)),
        }
    }
}

impl Drop for TlsTransport {
    fn drop(&mut self) {
        // Sends as much as possible without blocking.
        let _ = Pin::new(&mut self.stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
    }
}

/// Returns the socket itself, whatever its family.
pub(super) fn raw(socket: &ClientSocket) -> SockRef<'_> {
    match socket {
        Either::Left(tcp) => tcp.into(),
        Either::Right(unix) => unix.into(),
    }
}

/// Waits until the socket is writable, which is when the connection attempt has finished.
///
/// # Errors
/// Returns an error if the runtime shuts down.
pub(super) async fn writable(socket: &ClientSocket) -> io::Result<()> {
    match socket {
        Either::Left(tcp) => tcp.writable().await,
        Either::Right(unix) => unix.writable().await,
    }
}

fn try_read(socket: &ClientSocket, bytes: &mut [u8]) -> io::Result<usize> {
    match socket {
        Either::Left(tcp) => tcp.try_read(bytes),
        Either::Right(unix) => unix.try_read(bytes),
    }
}

impl SocketTransport {
    /// Takes a cleartext TCP socket out of the runtime; `None` for other transports, which remain unchanged.
    pub(super) fn take_tcp(&mut self) -> Option<io::Result<StdTcpStream>> {
        match mem::replace(self, Self::Taken) {
            Self::Plain(Either::Left(tcp)) => Some(tcp.into_std()),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Writes as much as the socket accepts immediately, without asking the runtime; returns `None` if it accepts
    /// nothing, or if the bytes must be encrypted first.
    ///
    /// # Errors
    /// Returns an error if the connection accepts no more bytes.
    pub(super) fn write_now(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self {
            SocketTransport::Plain(socket) => match raw(socket).send(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                sent => sent.map(Some),
            },
            SocketTransport::Tls(_) => Ok(None),
            SocketTransport::Taken => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns true if the runtime has seen nothing arrive: neither a byte nor the end of the stream. TLS's own
    /// messages, such as session tickets, do not count.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        match self {
            SocketTransport::Plain(socket) => {
                matches!(try_read(socket, &mut byte), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
            }
            SocketTransport::Tls(tls) => {
                // The next read registers its own waker.
                let mut context = Context::from_waker(Waker::noop());
                tls.poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
            SocketTransport::Taken => false,
        }
    }
}

impl AsyncRead for SocketTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            SocketTransport::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            SocketTransport::Tls(tls) => tls.poll_read(context, buffer),
            SocketTransport::Taken => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for SocketTransport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            SocketTransport::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            SocketTransport::Tls(tls) => Pin::new(&mut tls.stream).poll_write(context, bytes),
            SocketTransport::Taken => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            SocketTransport::Plain(socket) => Pin::new(socket).poll_flush(context),
            SocketTransport::Tls(tls) => Pin::new(&mut tls.stream).poll_flush(context),
            SocketTransport::Taken => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            SocketTransport::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            SocketTransport::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(context),
            SocketTransport::Taken => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}
