//! Detects when a response has left the process.
//!
//! hyper flushes the transport only after the kernel has accepted every byte that hyper has buffered. A finished body
//! therefore leaves its exchange with the connection, and the next completed flush closes the exchange. In HTTP/2, h2
//! does the same unless flow control holds a response back.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::workload_log::LoggedExchange;

/// Actions that wait until the kernel has accepted every byte that the connection has buffered.
#[derive(Clone, Default)]
pub(super) struct Unflushed(Rc<RefCell<Vec<FlushAction>>>);

type FlushAction = Box<dyn FnOnce()>;

impl Unflushed {
    /// Calls `action` after the next completed flush; drops it if the connection ends first.
    pub(super) fn then(&self, action: impl FnOnce() + 'static) {
        self.0.borrow_mut().push(Box::new(action));
    }

    fn flushed(&self) {
        for action in self.0.take() {
            action();
        }
    }
}

/// Transport of one connection.
pub(super) struct LoggedTransport {
    stream: TcpStream,
    unflushed: Unflushed,
}

impl LoggedTransport {
    pub(super) fn new(stream: TcpStream, unflushed: Unflushed) -> Self {
        Self { stream, unflushed }
    }

    /// Resets the connection.
    pub(super) fn reset(self) {
        // If this fails, the connection is already gone.
        let _ = self.stream.set_zero_linger();
    }
}

impl AsyncRead for LoggedTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for LoggedTransport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.unflushed.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Body sent in pieces, with a pause before each piece except the first.
pub(super) struct PacedBody {
    content: Bytes,
    piece_bytes: usize,
    pause: Duration,
    next_piece: Option<Pin<Box<Sleep>>>,
    exchange: Option<LoggedExchange>,
    unflushed: Unflushed,
}

impl PacedBody {
    /// Returns a body that sends all of `content` in one piece.
    pub(super) fn whole(content: Bytes, exchange: LoggedExchange, unflushed: Unflushed) -> Self {
        let piece_bytes = content.len().max(1);
        Self {
            content,
            piece_bytes,
            pause: Duration::ZERO,
            next_piece: None,
            exchange: Some(exchange),
            unflushed,
        }
    }

    /// Changes the body to send `content` in pieces of `piece_bytes`.
    pub(super) fn paced(mut self, piece_bytes: usize, pause: Duration) -> Self {
        self.piece_bytes = piece_bytes.max(1);
        self.pause = pause;
        self
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.content.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(sleep) = &mut self.next_piece {
            std::task::ready!(sleep.as_mut().poll(cx));
        }
        let length = self.piece_bytes.min(self.content.len());
        let piece = self.content.split_to(length);
        self.next_piece = (!self.pause.is_zero()).then(|| Box::pin(sleep_until(Instant::now() + self.pause)));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.len() as u64)
    }
}

impl Drop for PacedBody {
    fn drop(&mut self) {
        // hyper drops a body when it has encoded the last piece. A body that still has content was cut off, so its
        // exchange is logged as aborted.
        if self.content.is_empty()
            && let Some(exchange) = self.exchange.take()
        {
            self.unflushed.then(|| exchange.answered());
        }
    }
}
