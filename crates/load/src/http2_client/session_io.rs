//! Moves the bytes of an HTTP/2 session: everything that is due in one write, and what has arrived into one buffer.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http2_session::{ConnectionEnd, Http2Session};
use rolldrop_record::Clock;

/// Size of the read buffer, in bytes.
const READ_SIZE: usize = 32 * 1024;
/// Maximum number of reads before other tasks get their turn.
const READS_PER_TURN: usize = 4;

/// Transport of a session.
pub(super) struct SessionIo<S> {
    transport: S,
    buffer: Box<[u8]>,
    /// True if written bytes may not have left the transport.
    is_unflushed: bool,
    clock: Clock,
}

impl<S: AsyncRead + AsyncWrite + Unpin> SessionIo<S> {
    pub(super) fn new(transport: S, clock: Clock) -> Self {
        Self { transport, buffer: vec![0; READ_SIZE].into(), is_unflushed: false, clock }
    }

    /// Writes and reads as much as possible. Returns once nothing more can happen on the connection; until then, the
    /// task must be woken if the session has something to write.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, session: &mut Http2Session) -> Poll<()> {
        for _ in 0..READS_PER_TURN {
            self.write(context, session);
            if session.is_finished() {
                return Poll::Ready(());
            }
            // Writing again will wake the task.
            if session.is_clogged() || !self.read(context, session) {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once. Returns false if nothing has arrived.
    fn read(&mut self, context: &mut Context<'_>, session: &mut Http2Session) -> bool {
        let mut buffer = ReadBuf::new(&mut self.buffer);
        let Poll::Ready(read) = Pin::new(&mut self.transport).poll_read(context, &mut buffer) else {
            return false;
        };
        let now = self.clock.now();
        match read {
            Ok(()) if buffer.filled().is_empty() => session.finish(ConnectionEnd::Closed, now),
            Ok(()) => session.receive(buffer.filled(), now),
            Err(error) => session.finish(ConnectionEnd::Lost(error), now),
        }
        true
    }

    /// Writes everything that the transport accepts. After a failed write nothing more is written, but reading
    /// continues, because a server may respond and close before it has read everything.
    fn write(&mut self, context: &mut Context<'_>, session: &mut Http2Session) {
        loop {
            let output = session.output();
            let written = match (output.is_empty(), self.is_unflushed) {
                (true, false) => return,
                (true, true) => Pin::new(&mut self.transport).poll_flush(context).map_ok(|()| None),
                (false, _) => Pin::new(&mut self.transport).poll_write(context, output).map_ok(Some),
            };
            match written {
                Poll::Pending => return,
                Poll::Ready(Ok(None)) => self.is_unflushed = false,
                Poll::Ready(Ok(Some(0))) => session.write_error = Some(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(Some(count))) => {
                    session.wrote(count);
                    self.is_unflushed = true;
                }
                Poll::Ready(Err(error)) => {
                    session.write_error = Some(error);
                    self.is_unflushed = false;
                }
            }
        }
    }
}
