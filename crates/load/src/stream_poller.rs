//! Reads the bodies of a worker's open streams in one loop.
//!
//! If the task of each request waited for its stream's next event, every event would touch the memory of that task,
//! which has left the processor's cache by then. With thousands of open streams, this would take most of the time
//! outside the kernel. Here, one loop reads the ready sockets into one buffer, takes one time stamp for each batch of
//! them, and touches only the stream. The task of the request sleeps until its stream has ended. Detecting stalls needs
//! no timer for each event, because each stream is checked again when it could first have been silent for too long.
//!
//! Only TCP sockets without TLS are read here, and only on Linux; `http1_client` reads the others itself.

#[cfg(target_os = "linux")]
mod epoll;
#[cfg(not(target_os = "linux"))]
mod no_epoll;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::convert::Infallible;
use std::io::{self, Read};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::body_end::ReadEnd;
use super::open_streams::{OpenStream, OpenStreams, StreamHandle};
use super::polled_stream::{PolledBody, PolledStream};
#[cfg(target_os = "linux")]
use epoll::SocketSet;
#[cfg(not(target_os = "linux"))]
use no_epoll::SocketSet;
use rolldrop_record::{Clock, Stamp};

/// Maximum number of sockets to read before due requests get their turn. The batch has a single time stamp, which is
/// less than a millisecond too early for bytes that arrive while the batch is read.
const BATCH: usize = 64;
/// Maximum number of bytes read from a socket at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// Reader of a worker's open streams.
#[derive(Debug)]
pub(super) struct StreamPoller {
    clock: Clock,
    sockets: SocketSet,
    stall_timeout: Duration,
    /// Times at which streams may have stalled, with their slots and sequence numbers.
    checks: RefCell<BinaryHeap<Reverse<(Stamp, usize, u64)>>>,
}

/// A socket that has bytes, or has been closed.
struct ReadySocket {
    slot: usize,
    /// True if nothing more will be reported after the bytes that have arrived.
    is_closing: bool,
}

impl StreamPoller {
    /// Creates a poller for streams that stall after this time; `None` if this system has none.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses to create it.
    pub(super) fn new(clock: Clock, stall_timeout: Duration) -> io::Result<Option<Self>> {
        let sockets = SocketSet::new()?;
        Ok(sockets.map(|sockets| Self { clock, sockets, stall_timeout, checks: RefCell::default() }))
    }

    /// Starts reading the body of a stream, whose first bytes are in `first`. The returned channel delivers the body
    /// and the reason why reading stopped. Another task must run [`keep`](Self::keep) in the meantime.
    ///
    /// The channel delivers nothing if the stream is closed first, which also closes the socket.
    pub(super) fn begin(
        &self,
        stream: &StreamHandle<'_>,
        mut body: PolledBody,
        first: &[u8],
    ) -> oneshot::Receiver<(PolledBody, ReadEnd)> {
        let now = self.clock.now();
        let (ended, end) = oneshot::channel();
        stream.with(|open| {
            let added = match body.take(now, first, &mut open.reader) {
                None => self.sockets.add(&body.socket, stream.slot).map_err(ReadEnd::Lost),
                Some(end) => Err(end),
            };
            open.polled = Some(PolledStream { body, last_read: now, ended });
            match added {
                Ok(()) => {
                    let check = (now + self.stall_timeout, stream.slot, open.row.seq);
                    self.checks.borrow_mut().push(Reverse(check));
                }
                Err(end) => self.end(open, end),
            }
        });
        end
    }

    /// Reads the streams with new bytes, and ends those that have stalled. Works only while it is polled.
    ///
    /// # Errors
    /// Returns an error if the operating system does not report which sockets are ready.
    pub(super) async fn keep(&self, streams: &OpenStreams) -> io::Result<Infallible> {
        let readable = self.sockets.readable()?;
        let mut ready = Vec::with_capacity(BATCH);
        let mut bytes = vec![0; PIECE_BYTES];
        loop {
            let check = self.checks.borrow().peek().map(|Reverse((at, ..))| *at);
            // A stream that begins during the wait cannot stall before this time.
            let check = check.unwrap_or_else(|| self.clock.now() + self.stall_timeout);
            match self.clock.instant(check) {
                None => readable.readable().await?.clear_ready(),
                Some(at) => {
                    if let Ok(reported) = timeout_at(at.into(), readable.readable()).await {
                        reported?.clear_ready();
                    }
                }
            }
            loop {
                ready.clear();
                self.sockets.take_ready(|slot, is_closing| ready.push(ReadySocket { slot, is_closing }))?;
                let now = self.clock.now();
                for socket in &ready {
                    streams.read(socket.slot, now, |stream| self.read_ready(stream, socket, now, &mut bytes));
                }
                self.end_stalled(streams, now);
                if ready.len() < BATCH {
                    break;
                }
                yield_now().await;
            }
        }
    }

    fn read_ready(&self, open: &mut OpenStream, ready: &ReadySocket, now: Stamp, bytes: &mut [u8]) {
        let Some(PolledStream { body, last_read, .. }) = &mut open.polled else { return };
        let end = match body.socket.read(bytes) {
            Ok(0) => Some(ReadEnd::Closed),
            Ok(count) => {
                *last_read = now;
                open.received += count as u64;
                let end = body.take(now, &bytes[..count], &mut open.reader);
                // A socket is reported once for everything that has arrived, and a short read leaves its buffer empty.
                if end.is_none() && (count == bytes.len() || ready.is_closing) {
                    self.sockets.report_again(&body.socket, ready.slot).err().map(ReadEnd::Lost)
                } else {
                    end
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            Err(e) => Some(ReadEnd::Lost(e)),
        };
        if let Some(end) = end {
            self.end(open, end);
        }
    }

    fn end_stalled(&self, streams: &OpenStreams, now: Stamp) {
        let mut checks = self.checks.borrow_mut();
        while checks.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, slot, seq))) = checks.pop() else { break };
            streams.with(slot, |stream| {
                let Some(PolledStream { last_read, .. }) = &stream.polled else { return };
                let stalls = *last_read + self.stall_timeout;
                if stream.row.seq != seq {
                    // The stream has ended, and another one uses its slot.
                } else if stalls <= now {
                    self.end(stream, ReadEnd::Stalled);
                } else {
                    checks.push(Reverse((stalls, slot, seq)));
                }
            });
        }
    }

    /// Hands the body back to the task that waits for its end.
    fn end(&self, open: &mut OpenStream, end: ReadEnd) {
        if let Some(PolledStream { body, ended, .. }) = open.polled.take() {
            self.sockets.remove(&body.socket);
            // The task waits for as long as the stream is open.
            let _ = ended.send((body, end));
        }
    }
}
