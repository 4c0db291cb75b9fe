//! Writing of an HTTP/1.1 request that the connection does not accept at once, while the response may already arrive.
//!
//! A server may answer before it has read the whole request: one that refuses a large body, or a gateway whose pod is
//! gone. It may then read no further, so that the rest can never be written.

use std::future::poll_fn;
use std::io::{self, Cursor};
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::Buf;

use super::connection::Connection;

/// Progress in writing a request.
#[derive(Debug)]
pub(super) enum RequestWrite {
    /// The connection has accepted the whole request.
    Complete,
    /// The connection has not accepted the bytes after the cursor yet.
    Underway(Cursor<Vec<u8>>),
    /// A write failed. A server may respond and close before it has read everything, so a response is awaited even then.
    Failed(io::Error),
    /// The rest is not sent, because the server does not want it.
    Stopped,
}

impl RequestWrite {
    /// Returns the progress after a write that has ended.
    pub(super) fn ended(written: io::Result<()>) -> Self {
        written.map_or_else(Self::Failed, |()| Self::Complete)
    }

    /// Writes the request as far as the connection accepts it immediately, and adds to `sent`. Leaves the connection's
    /// buffer empty: the request's, or `spare` if the rest of the request is still needed.
    pub(super) async fn begin(
        mut request: Vec<u8>,
        connection: &mut Connection,
        sent: &mut u64,
        spare: impl FnOnce() -> Vec<u8>,
    ) -> Self {
        let before = *sent;
        let written =
            poll_fn(|context| Poll::Ready(pin!(connection.write_all(&request, sent)).poll(context)));
        match written.await {
            Poll::Ready(written) => {
                request.clear();
                connection.buffer = request;
                Self::ended(written)
            }
            Poll::Pending => {
                connection.buffer = spare();
                let mut request = Cursor::new(request);
                request.set_position(*sent - before);
                Self::Underway(request)
            }
        }
    }

    /// Waits for more bytes and reads them into the connection's buffer. In the meantime, writes the rest of the request,
    /// if any, and adds to `sent`. Returns 0 bytes at the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the read fails. A failed write is not an error: the server may have responded before.
    pub(super) async fn read(&mut self, connection: &mut Connection, sent: &mut u64) -> io::Result<usize> {
        poll_fn(|context| {
            let _ = self.poll(context, connection, sent);
            connection.poll_read(context)
        })
        .await
    }

    /// Writes the rest of the request, if any, and adds to `sent`.
    pub(super) async fn finish(&mut self, connection: &mut Connection, sent: &mut u64) {
        poll_fn(|context| self.poll(context, connection, sent)).await;
    }

    /// Gives up the rest of the request, if any.
    pub(super) fn stop(&mut self) {
        if self.is_underway() {
            *self = Self::Stopped;
        }
    }

    /// Returns true if the connection has accepted the whole request.
    pub(super) const fn is_complete(&self) -> bool {
        matches!(self, Self::Complete)
    }

    /// Returns true if a part of the request is still to be written.
    pub(super) const fn is_underway(&self) -> bool {
        matches!(self, Self::Underway(_))
    }

    /// Returns the error of a failed write.
    pub(super) const fn error(&self) -> Option<&io::Error> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Complete | Self::Underway(_) | Self::Stopped => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, connection: &mut Connection, sent: &mut u64) -> Poll<()> {
        let Self::Underway(rest) = self else { return Poll::Ready(()) };
        let before = *sent;
        let written = pin!(connection.write_all(rest.chunk(), sent)).poll(context);
        rest.set_position(rest.position() + *sent - before);
        written.map(|written| *self = Self::ended(written))
    }
}
