//! Relays bytes between client and app: the code shared by all protocols.
//!
//! Bytes are passed on as they arrive. When one side closes or resets its connection, the proxy does the same on the
//! other side, even if that side is not reading.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{Buf, BytesMut};
use futures::FutureExt;
use nix::errno::Errno;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::budget::Buffer;
use super::refusal::ProxyRefusal;
use super::sides::ConnectionSides;
use super::socket::{self, Room};
use rolldrop_record::ServedEnd;

/// Minimum number of bytes per tick for a client not to count as idle: 240 per second (Kestrel:
/// `MinRequestBodyDataRate`).
const LEAST_BYTES: usize = 120;

/// Way in which a connection ends.
pub(super) enum ConnectionFinish {
    /// Both sides have closed.
    Closed,
    /// One side failed, so the other side is reset. Requests in flight get this outcome.
    Reset(ServedEnd),
    /// The proxy responds to the request itself and closes the connection.
    Refuse(ProxyRefusal),
}

/// Reason why bytes could not be passed on.
pub(super) enum RelayStop {
    /// The sending side closed.
    SourceClosed,
    /// The sending side failed.
    Source,
    /// The receiving side failed.
    Sink,
    /// The end of the message is unknown.
    Framing,
}

/// Both connections, split into halves, with the bytes read from them so far.
pub(super) struct RelayStreams<'a> {
    pub(super) from_client: Inlet<'a>,
    pub(super) to_client: Outlet<'a>,
    pub(super) from_app: Inlet<'a>,
    pub(super) to_app: Outlet<'a>,
    pub(super) from_client_buf: Buffer<'a>,
    pub(super) from_app_buf: Buffer<'a>,
}

/// Record of the requests in flight on a connection.
pub(super) trait Ledger {
    /// Ends the requests that await a response with this outcome, because the app will send nothing more.
    fn app_closed(&self, end: ServedEnd);

    /// Returns true if client bytes may still matter to an app that will send nothing more.
    fn goes_one_way(&self) -> bool;
}

/// Ends the request side of a connection after it stopped.
pub(super) async fn end_requests(
    stop: RelayStop,
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    sides: &ConnectionSides,
    ledger: &impl Ledger,
) -> ConnectionFinish {
    match stop {
        RelayStop::SourceClosed => client_closed(from, to, sides, ledger).await,
        RelayStop::Source => ConnectionFinish::Reset(ServedEnd::ClientGone),
        RelayStop::Sink => app_unwritable(sides).await,
        RelayStop::Framing => ConnectionFinish::Refuse(ProxyRefusal::Malformed),
    }
}

/// Ends the response side of a connection after it stopped.
pub(super) async fn end_responses(
    stop: RelayStop,
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    sides: &ConnectionSides,
    ledger: &impl Ledger,
) -> ConnectionFinish {
    match stop {
        RelayStop::SourceClosed => app_closed(from, to, sides, ledger).await,
        RelayStop::Source | RelayStop::Framing => ConnectionFinish::Reset(ServedEnd::UpstreamReset),
        RelayStop::Sink => ConnectionFinish::Reset(ServedEnd::ClientGone),
    }
}

/// Closes the connection to the app, after the client closed its side.
async fn client_closed(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    sides: &ConnectionSides,
    ledger: &impl Ledger,
) -> ConnectionFinish {
    to.close().await;
    sides.client_closed.store(true, Ordering::Relaxed);
    if sides.is_app_closed() {
        ledger.app_closed(ServedEnd::UpstreamEof);
        return ConnectionFinish::Closed;
    }
    from.has_failed().await;
    ConnectionFinish::Reset(ServedEnd::ClientGone)
}

/// Handles an app that accepts no more bytes. The app may have responded earlier, so the response side passes on the
/// rest, then resets.
async fn app_unwritable(sides: &ConnectionSides) -> ConnectionFinish {
    sides.app_unwritable.store(true, Ordering::Relaxed);
    if sides.is_app_closed() {
        return ConnectionFinish::Reset(ServedEnd::UpstreamEof);
    }
    std::future::pending().await
}

/// Closes the connection to the client, after the app closed its side.
async fn app_closed(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    sides: &ConnectionSides,
    ledger: &impl Ledger,
) -> ConnectionFinish {
    sides.app_closed.store(true, Ordering::Relaxed);
    let end = if sides.is_client_closed() { ServedEnd::ClientGone } else { ServedEnd::UpstreamEof };
    ledger.app_closed(end);
    if sides.app_unwritable.load(Ordering::Relaxed) {
        return ConnectionFinish::Reset(end);
    }
    to.close().await;
    if sides.is_client_closed() {
        return ConnectionFinish::Closed;
    }
    // Bytes that the client still sends are passed to the app, whose kernel may respond with a reset.
    let is_over = async {
        match ledger.goes_one_way() {
            // Keepalive detects a client that has disconnected.
            true => std::future::pending().await,
            false => sides.client_is_done().await,
        }
    };
    tokio::select! {
        () = from.has_failed() => {
            // The app's kernel would not discard its last bytes, either.
            socket::last_bytes_are_taken(to.socket()).await;
            ConnectionFinish::Reset(ServedEnd::UpstreamEof)
        }
        () = is_over => {
            ledger.app_closed(end);
            ConnectionFinish::Closed
        }
    }
}

/// Source of the bytes in one direction.
pub(super) struct Inlet<'a> {
    half: ReadHalf<'a>,
    room: Room<'a>,
}

impl<'a> Inlet<'a> {
    /// Returns an inlet for bytes from this half.
    pub(super) fn new(half: ReadHalf<'a>, room: Room<'a>) -> Self {
        Self { half, room }
    }

    /// Waits until this side has been reset or abandoned.
    pub(super) async fn has_failed(&self) {
        let _ = self.half.ready(Interest::ERROR).await;
    }

    /// Reads available bytes. A side that quickly fills its room gets more room.
    async fn read_into(&mut self, buf: &mut Buffer<'_>) -> io::Result<usize> {
        let read = buf.read_from(&mut self.half).await?;
        if read >= self.room.bytes() / 4 {
            self.room.widen(self.half.as_ref());
        }
        Ok(read)
    }
}

/// Destination of the bytes in one direction.
pub(super) struct Outlet<'a> {
    half: WriteHalf<'a>,
    room: Room<'a>,
    sides: &'a ConnectionSides,
    ticks: &'a AtomicU32,
    receiver: Receiver,
}

/// The receiving side of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    Client,
    App,
}

impl<'a> Outlet<'a> {
    /// Returns an outlet for bytes to this half; `ticks` is the proxy's tick counter.
    pub(super) fn new(
        receiver: Receiver,
        half: WriteHalf<'a>,
        room: Room<'a>,
        sides: &'a ConnectionSides,
        ticks: &'a AtomicU32,
    ) -> Self {
        Self { half, room, sides, ticks, receiver }
    }

    fn socket(&self) -> &TcpStream {
        self.half.as_ref()
    }

    /// Closes this half, because the sending side has closed.
    pub(super) async fn close(&mut self) {
        // Fails only if the receiving side has disconnected, which is detected when it is read from.
        let _ = self.half.shutdown().await;
    }

    /// Notes that bytes of a message have passed. A client's bytes count only if they arrive fast enough; otherwise a
    /// crowd could occupy all places by sending a byte now and then.
    pub(super) fn has_passed(&self, bytes: usize) {
        let ConnectionSides { passed_at, passed_since, .. } = self.sides;
        let now = self.ticks.load(Ordering::Relaxed);
        if self.receiver == Receiver::App {
            let ticks = now.saturating_sub(passed_at.load(Ordering::Relaxed)) as usize;
            let since = passed_since.load(Ordering::Relaxed) + bytes;
            if since < ticks.saturating_mul(LEAST_BYTES) {
                return passed_since.store(since, Ordering::Relaxed);
            }
        }
        passed_since.store(0, Ordering::Relaxed);
        passed_at.store(now, Ordering::Relaxed);
    }

    /// Notes that the client has begun or finished a message.
    pub(super) fn owes(&self, owes: bool) {
        self.sides.client_owes.store(owes, Ordering::Relaxed);
    }

    /// Waits until more bytes fit, or until the sending side fails.
    async fn has_room(&mut self, from: &Inlet<'_>) -> Result<(), RelayStop> {
        self.room.widen(self.half.as_ref());
        let is_to_client = self.receiver == Receiver::Client;
        if is_to_client {
            self.sides.client_stalls.store(true, Ordering::Relaxed);
        }
        // While the app is not reading, the client is not the slow side.
        let owed = !is_to_client && self.sides.client_owes.swap(false, Ordering::Relaxed);
        let mut is_source_gone = false;
        let has_room = loop {
            tokio::select! {
                biased;
                writable = self.half.writable() => break writable.map_err(|_| RelayStop::Sink),
                () = from.has_failed(), if !is_source_gone => {
                    if !has_ended(from) {
                        break Err(RelayStop::Source);
                    }
                    is_source_gone = true;
                    socket::limit_last_bytes(self.socket());
                }
            }
        };
        if is_to_client {
            self.sides.client_stalls.store(false, Ordering::Relaxed);
        }
        if owed {
            self.owes(true);
        }
        has_room
    }
}

/// Returns true if a failed side had already sent its end of stream, in which case nothing is missing. The
/// kernel of a peer that has disconnected responds with a reset to bytes for a finished connection.
fn has_ended(from: &Inlet<'_>) -> bool {
    let socket: &TcpStream = from.half.as_ref();
    // A reset is EPIPE after the end of the stream (tcp_reset), otherwise ECONNRESET.
    let error = socket.take_error().ok().flatten();
    error.and_then(|error| error.raw_os_error()).is_some_and(|code| Errno::from_raw(code) == Errno::EPIPE)
}

/// Reads available bytes into `buf`; returns 0 if the other side closed.
pub(super) async fn fill(
    from: &mut Inlet<'_>,
    buf: &mut Buffer<'_>,
    to: &mut Outlet<'_>,
) -> io::Result<usize> {
    if from.half.readable().now_or_never().is_none() {
        buf.rest();
        to.room.rest(to.half.as_ref());
        from.half.readable().await?;
    }
    from.read_into(buf).await
}

/// Writes all bytes, unless the sending side fails in the meantime.
pub(super) async fn write(from: &Inlet<'_>, to: &mut Outlet<'_>, mut bytes: &[u8]) -> Result<(), RelayStop> {
    while !bytes.is_empty() {
        let written = write_some(from, to, bytes).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Waits until any bytes fit, then writes as many as possible and returns their number, unless the sending side fails
/// first.
async fn write_some(from: &Inlet<'_>, to: &mut Outlet<'_>, bytes: &[u8]) -> Result<usize, RelayStop> {
    // The kernel accepts a write as a whole.
    let bytes = &bytes[..bytes.len().min(to.room.bytes())];
    loop {
        match to.half.try_write(bytes) {
            Ok(written) => return Ok(written),
            Err(error) if error.kind() == ErrorKind::WouldBlock => to.has_room(from).await?,
            Err(_) => return Err(RelayStop::Sink),
        }
    }
}

/// An observer of the bytes that are passed on.
pub(super) trait ByteWatch {
    /// Returns the number of bytes at the front of `buf` that may be passed on. May insert bytes.
    fn look(&mut self, buf: &mut BytesMut) -> usize;

    /// Notes that this many bytes have been passed on. Called after each write, because the other side may see these
    /// bytes and no more.
    fn passed(&mut self, bytes: usize);

    /// Notes that no more bytes can be held back: the held bytes are passed on unread.
    fn give_up(&mut self);
}

/// Passes bytes both ways until the connection is finished.
pub(super) async fn both_ways(
    streams: RelayStreams<'_>,
    sides: &ConnectionSides,
    ledger: &impl Ledger,
    mut requests: impl ByteWatch,
    mut responses: impl ByteWatch,
) -> ConnectionFinish {
    let RelayStreams {
        mut from_client,
        mut to_client,
        mut from_app,
        mut to_app,
        from_client_buf,
        from_app_buf,
    } = streams;
    let requests = async {
        let stop = pump(&mut from_client, &mut to_app, from_client_buf, &mut requests).await;
        end_requests(stop, &mut from_client, &mut to_app, sides, ledger).await
    };
    let responses = async {
        let stop = pump(&mut from_app, &mut to_client, from_app_buf, &mut responses).await;
        end_responses(stop, &mut from_app, &mut to_client, sides, ledger).await
    };
    tokio::select! {
        biased;
        finish = responses => finish,
        finish = requests => finish,
    }
}

/// Passes bytes on until one side stops, including any bytes held back at that point.
async fn pump(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    mut buf: Buffer<'_>,
    watch: &mut impl ByteWatch,
) -> RelayStop {
    loop {
        let mut ready = watch.look(&mut buf);
        while ready > 0 {
            match write_some(from, to, &buf[..ready]).await {
                Ok(written) => {
                    buf.advance(written);
                    ready -= written;
                    watch.passed(written);
                    to.has_passed(written);
                }
                Err(stop) => return stop,
            }
        }
        if !buf.may_hold_more() {
            watch.give_up();
            continue;
        }
        let stop = match fill(from, &mut buf, to).await {
            Ok(0) => RelayStop::SourceClosed,
            Ok(_) => continue,
            Err(_) => RelayStop::Source,
        };
        return flush(from, to, &buf, stop).await;
    }
}

/// Passes on held-back bytes of an incomplete message, because the other side must get the same bytes.
pub(super) async fn flush(from: &Inlet<'_>, to: &mut Outlet<'_>, held: &[u8], stop: RelayStop) -> RelayStop {
    match stop {
        RelayStop::SourceClosed => write(from, to, held).await.err().unwrap_or(stop),
        // The other side will be reset, so it gets only the bytes that fit into its socket buffer right now.
        _ => {
            let _ = to.half.try_write(held);
            stop
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::super::budget::{BytePool, READ_BYTES};
    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// Returns both ends of a connection with minimal kernel buffers: the connecting end, then the accepting end.
    async fn narrow() -> (TcpStream, TcpStream) {
        let [listening, connecting] = [(); 2].map(|()| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_send_buffer_size(1).unwrap();
            socket.set_recv_buffer_size(1).unwrap();
            socket
        });
        listening.bind(ANY).unwrap();
        let listener = listening.listen(1).unwrap();
        let connected = connecting.connect(listener.local_addr().unwrap()).await.unwrap();
        (connected, listener.accept().await.unwrap().0)
    }

    /// Watch that lets everything pass.
    #[derive(Default)]
    struct Passed(usize);

    impl ByteWatch for Passed {
        fn look(&mut self, buf: &mut BytesMut) -> usize {
            buf.len()
        }

        fn passed(&mut self, bytes: usize) {
            self.0 += bytes;
        }

        fn give_up(&mut self) {}
    }

    #[tokio::test]
    async fn bytes_received_before_app_reset_are_counted() {
        let listener = TcpListener::bind(ANY).await.unwrap();
        let app = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut from_app = listener.accept().await.unwrap().0;
        let (mut client, mut to_client) = narrow().await;
        let mut passed = Passed::default();
        // More bytes than the kernel accepts for a client that does not read, already read from the app.
        let pool = BytePool::new(0);
        let mut ready = Buffer::of_app(&pool);
        ready.resize(64 * READ_BYTES, 0);
        let ((from, _), (_, to)) = (from_app.split(), to_client.split());
        let mut from = Inlet::new(from, Room::unlimited(&pool));
        let (sides, ticks) = (ConnectionSides::default(), AtomicU32::default());
        let mut to = Outlet::new(Receiver::Client, to, Room::unlimited(&pool), &sides, &ticks);
        let mut relay = Box::pin(pump(&mut from, &mut to, ready, &mut passed));
        assert!((&mut relay).now_or_never().is_none(), "the client accepted everything");
        app.set_zero_linger().unwrap();
        drop(app);
        assert!(matches!(relay.await, RelayStop::Source));
        drop(to);
        to_client.set_zero_linger().unwrap();
        drop(to_client);
        let mut seen = Vec::new();
        let end = client.read_to_end(&mut seen).await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        assert!((1..=passed.0).contains(&seen.len()), "{} seen, {} passed", seen.len(), passed.0);
    }

    #[tokio::test]
    async fn answer_from_closed_app_reaches_slow_client() {
        const LENGTH: usize = 100_000;
        let listener = TcpListener::bind(ANY).await.unwrap();
        let mut app = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut from_app = listener.accept().await.unwrap().0;
        // Only part of the app's bytes are on their way to the client.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(1).unwrap();
        socket.bind(ANY).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut to_client = listener.accept().await.unwrap().0;
        app.write_all(&[b'x'; LENGTH]).await.unwrap();
        // The app's kernel reports that the connection is gone as soon as it is probed, for example by keepalive.
        drop(app);
        from_app.readable().await.unwrap();
        from_app.try_write(b"?").unwrap();
        from_app.ready(Interest::ERROR).await.unwrap();
        let pool = BytePool::new(0);
        let (sides, ticks, mut passed) =
            (ConnectionSides::default(), AtomicU32::default(), Passed::default());
        let ((from, _), (_, to)) = (from_app.split(), to_client.split());
        let mut from = Inlet::new(from, Room::unlimited(&pool));
        let mut to = Outlet::new(Receiver::Client, to, Room::unlimited(&pool), &sides, &ticks);
        let relay = pump(&mut from, &mut to, Buffer::of_app(&pool), &mut passed);
        let mut got = vec![0; LENGTH];
        let (stop, read) = tokio::join!(relay, client.read_exact(&mut got));
        assert!(matches!(stop, RelayStop::SourceClosed));
        assert_eq!(read.unwrap(), LENGTH);
    }
}
