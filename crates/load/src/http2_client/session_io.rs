//! Moves the bytes of an HTTP/2 session: writes everything due at once, and reads what has arrived into one buffer.

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
        if session.is_request_due() {
            session.send_waiting(self.clock.now());
        }
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
                Poll::Ready(Ok(Some(0))) => {
                    session.stop_writing(std::io::ErrorKind::WriteZero.into(), self.clock.now());
                }
                Poll::Ready(Ok(Some(count))) => {
                    session.wrote(count);
                    self.is_unflushed = true;
                }
                Poll::Ready(Err(error)) => {
                    session.stop_writing(error, self.clock.now());
                    self.is_unflushed = false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;
    use std::task::Waker;

    use bytes::Bytes;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::super::stream_slot::{BodySink, StreamEnd};
    use super::*;
    use rolldrop_record::Stamp;
    use rolldrop_wire::http2::{END_HEADERS, END_STREAM, FrameHeader, HEADERS, PING};

    const RESPONSE: FrameHeader =
        FrameHeader { length: 1, kind: HEADERS, flags: END_HEADERS | END_STREAM, stream: 1 };

    fn open(session: &mut Http2Session) -> usize {
        let request = |block: &mut Vec<u8>| {
            block.extend_from_slice(&[0x82, 0x84, 0x86]);
            Ok::<_, Infallible>(Bytes::new())
        };
        session.open(Stamp::default(), false, BodySink::default(), request).unwrap()
    }

    /// A transport that can be read, but not written.
    struct DeafPeer(DuplexStream);

    impl AsyncRead for DeafPeer {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for DeafPeer {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn response_is_read_after_failed_write() {
        let (client, mut server) = duplex(1 << 10);
        let (mut session, mut io) =
            (Http2Session::new(usize::MAX), SessionIo::new(DeafPeer(client), Clock::start()));
        let slot = open(&mut session);
        server.write_all(&[&RESPONSE.bytes()[..], &[0x88]].concat()).await.unwrap();
        drop(server);
        let context = &mut Context::from_waker(Waker::noop());
        assert!(io.poll(context, &mut session).is_ready());
        let end = session.stream(slot).end.map(|(end, _)| end);
        assert_eq!((end, session.stream(slot).sent), (Some(StreamEnd::Complete), 0));
        assert_eq!(session.write_error.map(|error| error.kind()), Some(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn session_stops_reading_from_stalled_peer() {
        let (client, mut server) = duplex(1 << 10);
        let (mut session, mut io) = (Http2Session::new(usize::MAX), SessionIo::new(client, Clock::start()));
        let slot = open(&mut session);
        let ping = FrameHeader { length: 8, kind: PING, flags: 0, stream: 0 };
        let pings = [&ping.bytes()[..], &[0; 8]].concat().repeat(50);
        let context = &mut Context::from_waker(Waker::noop());
        let mut taken = 0;
        loop {
            assert!(io.poll(context, &mut session).is_pending());
            let mut context = Context::from_waker(Waker::noop());
            match Pin::new(&mut server).poll_write(&mut context, &pings[taken % pings.len()..]) {
                Poll::Ready(count) => taken += count.unwrap(),
                Poll::Pending => break,
            }
        }
        assert!((64 << 10..80 << 10).contains(&taken), "{taken}");
        // Once it reads again, the session continues. The response follows the rest of the last ping.
        let rest =
            [&pings[taken % 17..17 * usize::from(taken % 17 > 0)], &RESPONSE.bytes(), &[0x88]].concat();
        let mut buffer = vec![0; 1 << 16];
        let mut rest = &rest[..];
        while session.stream(slot).end.is_none() {
            assert!(io.poll(context, &mut session).is_pending());
            let mut context = Context::from_waker(Waker::noop());
            let mut read = ReadBuf::new(&mut buffer);
            let _ = Pin::new(&mut server).poll_read(&mut context, &mut read);
            if let Poll::Ready(written) = Pin::new(&mut server).poll_write(&mut context, rest) {
                rest = &rest[written.unwrap()..];
            }
        }
    }
}
