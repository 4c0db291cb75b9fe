//! Facts from the bytes of an HTTP/2 connection: the byte counts and the end of each stream, and how the connection
//! ended.
//!
//! The `h2` crate implements the protocol. It does not report which bytes belong to which stream, the error number with
//! which a connection ended, or the streams that a GOAWAY excludes. Therefore its transport is observed here.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame_observer::{FrameObserver, ObservedFact};
use super::sieve::Sieve;
use rolldrop_wire::http2::{FrameHeader, WINDOW_UPDATE};

/// Length of the client's preface, in bytes.
const PREFACE: usize = 24;

/// A stream as observed on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Http2StreamFacts {
    /// Bytes in the request's frames.
    pub(super) sent: u64,
    /// Bytes in the response's frames.
    pub(super) received: u64,
    /// Bytes of the response body, including padding.
    pub(super) body: u64,
    /// Error code of the RST_STREAM received, if any.
    pub(super) reset: Option<u32>,
    /// True if the response is complete.
    pub(super) is_complete: bool,
}

/// Contents of a GOAWAY frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoAway {
    /// Highest stream that may have been processed; streams above it were not processed and never will be.
    pub(super) last_stream: u32,
    pub(super) code: u32,
}

/// Facts known about a connection so far.
#[derive(Debug)]
pub(super) struct Wire {
    outbound: FrameObserver,
    inbound: FrameObserver,
    /// Streams whose request has been written and whose exchange has not ended.
    streams: HashMap<u32, Http2StreamFacts>,
    /// Maximum number of concurrent streams that the peer allows; `None` until its settings have arrived.
    pub(super) max_streams: Option<u32>,
    /// Last GOAWAY received.
    pub(super) goaway: Option<GoAway>,
    /// Result of the last read, an error or the end of the stream; `None` while reading continues.
    pub(super) read_end: Option<Result<(), io::Error>>,
    /// Error from a failed write.
    pub(super) write_error: Option<io::Error>,
    /// True if the connection has ended, for any reason.
    pub(super) is_over: bool,
}

impl Wire {
    /// Returns the facts known about a stream so far; all are zero if its request was never written.
    pub(super) fn stream(&self, id: u32) -> Http2StreamFacts {
        self.streams.get(&id).copied().unwrap_or_default()
    }

    pub(super) fn forget(&mut self, id: u32) {
        self.streams.remove(&id);
    }

    fn sent(&mut self, bytes: &[u8]) {
        let streams = &mut self.streams;
        self.outbound.pass(bytes, |seen| {
            if let ObservedFact::Message { stream, bytes, .. } = seen {
                streams.entry(stream).or_default().sent += bytes;
            }
        });
    }

    fn received(&mut self, bytes: &[u8]) {
        let Self { inbound, streams, max_streams, goaway, .. } = self;
        inbound.pass(bytes, |seen| match seen {
            ObservedFact::Message { stream, bytes, body } => {
                if let Some(stream) = streams.get_mut(&stream) {
                    stream.received += bytes;
                    stream.body += body;
                }
            }
            ObservedFact::EndStream(stream) => {
                if let Some(stream) = streams.get_mut(&stream) {
                    stream.is_complete = true;
                }
            }
            ObservedFact::Reset { stream, code } => {
                if let Some(stream) = streams.get_mut(&stream) {
                    stream.reset = Some(code);
                }
            }
            // Settings without the limit mean that there is no limit; later settings replace earlier ones.
            ObservedFact::Settings { max_streams: said } => {
                *max_streams = said.or(*max_streams).or(Some(u32::MAX))
            }
            ObservedFact::GoAway { last_stream, code } => *goaway = Some(GoAway { last_stream, code }),
        });
    }
}

/// A connection's wire, shared by its streams and its transport.
#[derive(Clone, Debug)]
pub(super) struct SharedWire(Arc<Mutex<Wire>>);

impl SharedWire {
    /// Creates the wire for a new connection.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Wire {
            outbound: FrameObserver::after(PREFACE),
            inbound: FrameObserver::after(0),
            streams: HashMap::new(),
            max_streams: None,
            goaway: None,
            read_end: None,
            write_error: None,
            is_over: false,
        })))
    }

    /// Locks the wire. Do not hold the guard across an await.
    pub(super) fn get(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transport whose bytes are observed.
#[derive(Debug)]
pub(super) struct ObservedTransport<S> {
    stream: S,
    wire: SharedWire,
    sieve: Sieve,
    /// Bytes that passed the sieve but did not fit into the reader's buffer.
    passed: Vec<u8>,
    /// Our own frames, to be sent between two outgoing frames.
    own: Vec<u8>,
    /// True if a write has failed, after which nothing more is written.
    is_mute: bool,
}

impl<S> ObservedTransport<S> {
    /// Wraps `stream` and records its facts in `wire`.
    pub(super) fn new(stream: S, wire: SharedWire) -> Self {
        Self { stream, wire, sieve: Sieve::default(), passed: Vec::new(), own: Vec::new(), is_mute: false }
    }

    fn mute(&mut self, error: io::Error) {
        self.wire.get().write_error = Some(error);
        self.is_mute = true;
    }
}

impl<S: AsyncRead + Unpin> ObservedTransport<S> {
    /// Reads the next bytes into a buffer that has at least the minimum room.
    fn poll_next(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let before = buf.filled().len();
            let held = self.sieve.held();
            buf.put_slice(&held);
            let begin = buf.filled().len();
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buf) else {
                buf.set_filled(before);
                self.sieve.hold(held);
                return Poll::Pending;
            };
            let mut wire = self.wire.get();
            if let Err(error) = read {
                buf.set_filled(before);
                let kind = error.kind();
                wire.read_end = Some(Err(error));
                return Poll::Ready(Err(kind.into()));
            }
            if buf.filled().len() == begin {
                wire.read_end = Some(Ok(()));
                return Poll::Ready(Ok(()));
            }
            wire.received(&buf.filled()[begin..]);
            let passed = self.sieve.pass(&mut buf.filled_mut()[before..]);
            buf.set_filled(before + passed);
            for frame in self.sieve.padding() {
                let is_open = wire.streams.contains_key(&frame.stream);
                for stream in std::iter::once(0).chain(is_open.then_some(frame.stream)) {
                    let header = FrameHeader { length: 4, kind: WINDOW_UPDATE, flags: 0, stream };
                    let [.., a, b, c] = frame.length.to_be_bytes();
                    self.own.extend(header.bytes());
                    self.own.extend([0, a, b, c]);
                }
            }
            // An empty read would signal the end of the stream.
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedTransport<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.passed.is_empty() {
            if buf.remaining() >= Sieve::LEAST_ROOM {
                return self.poll_next(cx, buf);
            }
            let mut room = [0; 512];
            let mut room = ReadBuf::new(&mut room);
            ready!(self.poll_next(cx, &mut room))?;
            self.passed.extend_from_slice(room.filled());
        }
        let count = self.passed.len().min(buf.remaining());
        buf.put_slice(&self.passed[..count]);
        self.passed.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> ObservedTransport<S> {
    /// Writes our own frames, if there are any and the outgoing bytes are at a frame boundary.
    fn poll_own(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.own.is_empty() && !self.is_mute && self.wire.get().outbound.is_between() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.own)) {
                Ok(0) => self.mute(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.own.drain(..count)),
                Err(error) => self.mute(error),
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedTransport<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_own(cx));
        if self.is_mute {
            return Poll::Ready(Ok(buf.len()));
        }
        // A failed write is recorded and reported as a success, so that bytes that have arrived are still read. A
        // server may respond and close before it has read everything.
        Poll::Ready(Ok(match ready!(Pin::new(&mut self.stream).poll_write(cx, buf)) {
            Ok(count) => {
                self.wire.get().sent(&buf[..count]);
                count
            }
            Err(error) => {
                self.mute(error);
                buf.len()
            }
        }))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_own(cx));
        if self.is_mute { Poll::Ready(Ok(())) } else { Pin::new(&mut self.stream).poll_flush(cx) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_mute { Poll::Ready(Ok(())) } else { Pin::new(&mut self.stream).poll_shutdown(cx) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use rolldrop_wire::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PREFACE};

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader { length: payload.len(), kind, flags, stream };
        [&header.bytes()[..], payload].concat()
    }

    #[tokio::test]
    async fn window_update_returns_padding_between_frames() {
        let (client, mut server) = duplex(1 << 16);
        let mut client = ObservedTransport::new(client, SharedWire::new());
        let request = [PREFACE, &frame(HEADERS, END_HEADERS | END_STREAM, 1, b"abc")[..]].concat();
        client.write_all(&request).await.unwrap();
        let next = frame(HEADERS, END_HEADERS | END_STREAM, 3, b"abc");
        let (begin, rest) = next.split_at(5);
        client.write_all(begin).await.unwrap();
        // Padding on an open stream, and on a stream that was never opened.
        let padding = [frame(DATA, PADDED, 1, &[2, 0, 0]), frame(DATA, PADDED, 7, &[0])].concat();
        let answer = frame(DATA, PADDED | END_STREAM, 1, &[0]);
        server.write_all(&[padding, answer.clone()].concat()).await.unwrap();
        let mut read = vec![0; answer.len()];
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(read, answer);
        client.flush().await.unwrap();
        client.write_all(rest).await.unwrap();
        client.flush().await.unwrap();
        let update = |stream, room| frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, room]);
        let wanted = [request, next.clone(), update(0, 3), update(1, 3), update(0, 1)].concat();
        let mut written = vec![0; wanted.len()];
        server.read_exact(&mut written).await.unwrap();
        assert_eq!(written, wanted);
    }
}
