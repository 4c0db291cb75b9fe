//! Limits for the memory that the kernel holds for the two sockets of a connection, and for its wait for the other end.
//!
//! The kernel lets a buffer grow to some MiB where a peer seems to want it, and keeps sent bytes until the peer takes
//! them, even after a close. Both count as memory of the container. So each direction has a [`Room`]: small for all,
//! larger for sides that transfer much, while the shared [`Pool`] lasts. If one side closes, the other socket is closed
//! when its last bytes have been taken.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use super::budget::{Pool, Share};

/// Silence after which the kernel asks whether the other end is still there, and interval at which it repeats the
/// question; after nine questions without an answer the other end counts as gone. A half-closed peer does not say that
/// it has gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Longest time for which a side may take none of the last bytes after the other side has gone. It is about as long as
/// the kernel of the gone side would keep them: until its pauses between two attempts reach 120 s (tcp_orphan_retries,
/// tcp(7)).
#[cfg(target_os = "linux")]
const LAST_BYTES_LIMIT: Duration = Duration::from_secs(200);
/// Interval at which a socket is asked whether the last bytes have been taken.
const LAST_BYTES_INTERVAL: Duration = Duration::from_millis(250);

/// Bytes, as the kernel counts them, that it may hold in each direction of a socket even if the pool is empty.
const OWN_ROOM_BYTES: usize = 6 * 1024;
/// Bytes for the same at the beginning, while the pool has room.
const FIRST_ROOM_BYTES: usize = 32 * 1024;
/// Most bytes for the same, which is what the kernel lets everybody ask for (net.core.wmem_max, rmem_max).
const MOST_BYTES: usize = 2 * 212_992;

/// Makes the kernel notice when the other end of a connection is gone. Connections inherit this from the listener that
/// accepts them.
pub(super) fn keep_alive(socket: &impl AsFd) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    // A socket that is gone already shows so at its first read.
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// Gives little room to a socket that has no connection yet. It can become more later, as for the connections that the
/// socket accepts.
pub(super) fn prepare(socket: &impl AsFd) {
    Way::Send.set(socket, OWN_ROOM_BYTES);
    let _ = SockRef::from(socket).set_recv_buffer_size(OWN_ROOM_BYTES / 2);
    // The largest window that a connection can ever announce is agreed on when it begins, and follows from
    // the buffer unless that may grow.
    lock_buffers(socket, Locks::Send);
}

/// Connects to the app.
pub(super) async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    keep_alive(&socket);
    prepare(&socket);
    // One that is given up while it is made is reset, as its client's was.
    let _ = socket.set_zero_linger();
    let stream = socket.connect(to).await?;
    let _ = SockRef::from(&stream).set_linger(None);
    Ok(stream)
}

/// Makes a connection send small writes at once, and keep the room that it is given.
pub(super) fn begin(socket: &TcpStream) {
    // The data port is local to the pod or next to it; small writes must not wait for acks.
    // A socket that is gone already shows so at its first read.
    let _ = socket.set_nodelay(true);
    lock_buffers(socket, Locks::Both);
}

/// Buffers whose size the kernel leaves as it was set.
#[derive(Clone, Copy, Debug)]
enum Locks {
    Send = 1,
    Both = 3,
}

/// Without a lock the kernel grows a receive buffer beyond the size that was asked for: up to 32 MiB if it is read
/// quickly. Linux before 5.15 has no lock; there windows stay below 64 KiB.
fn lock_buffers(socket: &impl AsFd, locks: Locks) {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::socket::setsockopt(&socket.as_fd(), options::BufLock, &(locks as i32));
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, locks);
}

/// Makes the kernel announce windows up to this many bytes, where there is room for them.
fn limit_window(socket: &impl AsFd, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let _ = nix::sys::socket::setsockopt(&socket.as_fd(), options::WindowClamp, &bytes);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, bytes);
}

/// Options that nix does not have (socket(7), tcp(7)).
#[cfg(target_os = "linux")]
mod options {
    use nix::{libc, setsockopt_impl, sockopt_impl};

    sockopt_impl!(BufLock, SetOnly, libc::SOL_SOCKET, libc::SO_BUF_LOCK, i32);
    sockopt_impl!(WindowClamp, SetOnly, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, i32);
}

/// Returns the number of written bytes that the other end has not acknowledged; 0 if it is unknown.
fn unsent(socket: &TcpStream) -> usize {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;

        let mut bytes: nix::libc::c_int = 0;
        #[expect(unsafe_code, reason = "there is no safe way to ask for SIOCOUTQ (tcp(7))")]
        // SAFETY: the descriptor is open, and the kernel writes one int.
        let asked = unsafe { nix::libc::ioctl(socket.as_raw_fd(), nix::libc::TIOCOUTQ, &mut bytes) };
        // Of a connection that is gone the number stays as it was, and means nothing.
        let means_something = asked == 0 && bytes > 0 && socket.peer_addr().is_ok();
        if means_something { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        0
    }
}

/// Returns true if the peer has not taken all written bytes.
pub(super) fn holds_bytes(socket: &TcpStream) -> bool {
    unsent(socket) > 0
}

/// Makes the kernel give up a peer that takes none of the last bytes for as long as the kernel of the side that sent
/// them would wait for it.
pub(super) fn limit_last_bytes(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    // Fails only on a socket that is gone already.
    let _ = SockRef::from(socket).set_tcp_user_timeout(Some(LAST_BYTES_LIMIT));
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Waits until a peer has taken all written bytes, or the kernel has given it up. During the wait the memory counts as
/// that of an open connection.
pub(super) async fn last_bytes_are_taken(socket: &TcpStream) {
    let mut left = unsent(socket);
    if left == 0 {
        return;
    }
    limit_last_bytes(socket);
    // A peer that takes nothing is given up by the kernel, which then has nothing left.
    while left > 0 {
        sleep(LAST_BYTES_INTERVAL).await;
        left = unsent(socket);
    }
}

/// The two directions of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    Receive,
}

impl Way {
    /// Sets the number of bytes that the kernel may hold in this direction of a socket.
    fn set(self, socket: &impl AsFd, bytes: usize) {
        // The kernel doubles what it is told (socket(7)). All of this fails only on a socket that is gone
        // already, which shows at its next use.
        match self {
            Way::Send => _ = SockRef::from(socket).set_send_buffer_size(bytes / 2),
            Way::Receive => {
                let _ = SockRef::from(socket).set_recv_buffer_size(bytes / 2);
                limit_window(socket, bytes);
            }
        }
    }
}

/// Bytes that the kernel may hold in one direction of a socket.
///
/// The receiving direction starts with little room, and gets more as its bytes are read. It gives none back: a peer
/// that has seen a large window sends nothing at once into a window that has become smaller than its segments, which on
/// a loopback have 32 KiB and more.
#[derive(Debug)]
pub(super) struct Room<'a> {
    way: Way,
    bytes: usize,
    share: Share<'a>,
}

impl<'a> Room<'a> {
    /// Returns the room of one direction of a socket that [`connect`] or a listener after [`prepare`] made.
    pub(super) fn of(pool: &'a Pool, socket: &TcpStream, way: Way) -> Self {
        let mut room = Self { way, bytes: OWN_ROOM_BYTES, share: Share::of(pool) };
        room.widen_to(FIRST_ROOM_BYTES, socket);
        room
    }

    /// Returns a room of the largest size, which no pool counts.
    #[cfg(test)]
    pub(super) fn unlimited(pool: &'a Pool) -> Self {
        Self { way: Way::Send, bytes: MOST_BYTES, share: Share::of(pool) }
    }

    /// Returns the number of bytes that the kernel may hold, as it counts them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Doubles the room, if the pool has as much, because it has been filled.
    pub(super) fn widen(&mut self, socket: &TcpStream) {
        self.widen_to(MOST_BYTES.min(2 * self.bytes), socket);
    }

    fn widen_to(&mut self, bytes: usize, socket: &TcpStream) {
        if bytes > self.bytes && self.share.grow_to(bytes - OWN_ROOM_BYTES) {
            self.bytes = bytes;
            self.way.set(socket, bytes);
        }
    }

    /// Gives back all but the own part while nothing is sent and others need it, unless the peer has not taken the
    /// bytes in it.
    pub(super) fn rest(&mut self, socket: &TcpStream) {
        if self.bytes > OWN_ROOM_BYTES && self.share.is_wanted() && unsent(socket) == 0 {
            self.share.set(0);
            self.bytes = OWN_ROOM_BYTES;
            self.way.set(socket, OWN_ROOM_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn send_room_yields_to_other_connections() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).await.unwrap();
        let socket = connect(listener.local_addr().unwrap()).await.unwrap();
        begin(&socket);
        let _accepted = listener.accept().await.unwrap();
        let size = || SockRef::from(&socket).send_buffer_size().unwrap();
        let pool = Pool::new(8 * MOST_BYTES);
        let mut room = Room::of(&pool, &socket, Way::Send);
        assert_eq!((size(), pool.used()), (FIRST_ROOM_BYTES, FIRST_ROOM_BYTES - OWN_ROOM_BYTES));
        for _ in 0..10 {
            room.widen(&socket);
        }
        assert!(size() > FIRST_ROOM_BYTES && room.bytes == MOST_BYTES);
        // No other holder needs the room.
        room.rest(&socket);
        assert_eq!(room.bytes, MOST_BYTES);
        let mut others = Share::of(&pool);
        others.set(7 * MOST_BYTES);
        assert_eq!(Room::of(&pool, &socket, Way::Send).bytes, OWN_ROOM_BYTES);
        room.rest(&socket);
        assert_eq!((size(), room.bytes, pool.used()), (OWN_ROOM_BYTES, OWN_ROOM_BYTES, 7 * MOST_BYTES));
    }

    /// The kernel grows a buffer that is read quickly, up to 32 MiB, and never shrinks it.
    #[tokio::test]
    async fn receive_room_overrides_kernel_autotuning() {
        const QUICKLY: usize = 64 * 1024 * 1024;
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        prepare(&listener);
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        begin(&socket);
        let pool = Pool::new(8 * MOST_BYTES);
        let mut room = Room::of(&pool, &socket, Way::Receive);
        let bytes = vec![b'x'; QUICKLY];
        let mut read = vec![0; 64 * 1024];
        let reads = async {
            let mut left = QUICKLY;
            while left > 0 {
                left -= socket.read(&mut read).await.unwrap();
                room.widen(&socket);
            }
        };
        tokio::join!(peer.write_all(&bytes), reads).0.unwrap();
        assert_eq!(room.bytes(), MOST_BYTES);
        // Counts the bytes that the room takes when nobody reads, until it has taken none for a while.
        let (mut written, mut held, mut rests) = (0, 0, 0);
        while rests < 20 {
            while let Ok(more) = peer.try_write(&bytes[..64 * 1024]) {
                written += more;
            }
            sleep(Duration::from_millis(20)).await;
            let now = written - unsent(&peer);
            rests = if now == held { rests + 1 } else { 0 };
            held = now;
        }
        assert!((1..=MOST_BYTES).contains(&held), "{held} bytes");
    }
}
