//! Limits on the kernel memory for a connection's two sockets, and on the kernel's wait for the other end.
//!
//! The kernel lets a buffer grow to several MiB if a peer seems to want it, and keeps sent bytes until the peer accepts
//! them, even after a close. Both count towards the container's memory. Therefore each direction has a [`Room`], which
//! starts small and grows for sides that transfer a lot, while the shared [`BytePool`] lasts. If one side closes, the
//! other socket is closed once its peer has accepted the last bytes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use super::budget::{BytePool, PoolShare};

/// Silence after which the kernel probes the other end, and the interval between probes. After nine unanswered probes,
/// the other end counts as gone. Keepalive is needed because a half-closed peer gives no sign of having gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum time for which a side may accept none of the last bytes after the other side is gone. This is about as long
/// as the departed side's kernel would keep them: until its retry interval reaches 120 s (tcp_orphan_retries, tcp(7)).
#[cfg(target_os = "linux")]
const LAST_BYTES_LIMIT: Duration = Duration::from_secs(200);
/// Interval between checks for remaining last bytes on a socket.
const LAST_BYTES_INTERVAL: Duration = Duration::from_millis(250);

/// Bytes that the kernel may hold in each direction of a socket even if the pool is empty, as counted by the kernel.
const OWN_ROOM_BYTES: usize = 6 * 1024;
/// Same, at the beginning of a connection, while the pool has room.
const FIRST_ROOM_BYTES: usize = 32 * 1024;
/// Same, at most: what the kernel allows every process to request (net.core.wmem_max, rmem_max).
const MOST_BYTES: usize = 2 * 212_992;

/// Makes the kernel notice when the other end of a connection is gone. Accepted connections inherit this from the
/// listener.
pub(super) fn keep_alive(socket: &impl AsFd) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    // A socket that is already gone fails at its first read.
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// Gives little room to a socket that is not connected yet. The room can be widened later, also for connections
/// accepted on it.
pub(super) fn prepare(socket: &impl AsFd) {
    SocketDirection::Send.set(socket, OWN_ROOM_BYTES);
    let _ = SockRef::from(socket).set_recv_buffer_size(OWN_ROOM_BYTES / 2);
    // A connection's largest possible window is negotiated at its start, and is derived from the buffer size unless the
    // buffer may grow.
    lock_buffers(socket, Locks::Send);
}

/// Connects to the app.
pub(super) async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    keep_alive(&socket);
    prepare(&socket);
    // A connection attempt that is abandoned is reset, like its client's connection.
    let _ = socket.set_zero_linger();
    let stream = socket.connect(to).await?;
    let _ = SockRef::from(&stream).set_linger(None);
    Ok(stream)
}

/// Makes a connection send small writes immediately, and keep the room it is given.
pub(super) fn begin(socket: &TcpStream) {
    // Small writes must not wait until earlier ones are acknowledged. Errors do not matter: a socket that is already
    // gone fails at its first read.
    let _ = socket.set_nodelay(true);
    lock_buffers(socket, Locks::Both);
}

/// Buffers whose size the kernel must not change.
#[derive(Clone, Copy, Debug)]
enum Locks {
    Send = 1,
    Both = 3,
}

/// Locks buffer sizes. Without a lock, the kernel grows a receive buffer beyond the requested size: up to 32 MiB if it
/// is read quickly. Linux before 5.15 has no lock; windows there stay below 64 KiB.
fn lock_buffers(socket: &impl AsFd, locks: Locks) {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::socket::setsockopt(&socket.as_fd(), options::BufLock, &(locks as i32));
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, locks);
}

/// Makes the kernel announce windows of up to this many bytes, if there is room for them.
fn limit_window(socket: &impl AsFd, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let _ = nix::sys::socket::setsockopt(&socket.as_fd(), options::WindowClamp, &bytes);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, bytes);
}

/// Socket options that nix does not provide (socket(7), tcp(7)).
#[cfg(target_os = "linux")]
mod options {
    use nix::{libc, setsockopt_impl, sockopt_impl};

    sockopt_impl!(BufLock, SetOnly, libc::SOL_SOCKET, libc::SO_BUF_LOCK, i32);
    sockopt_impl!(WindowClamp, SetOnly, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, i32);
}

/// Returns the number of written bytes that the other end has not acknowledged; 0 if unknown.
fn unsent(socket: &TcpStream) -> usize {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;

        let mut bytes: nix::libc::c_int = 0;
        #[expect(unsafe_code, reason = "there is no safe way to ask for SIOCOUTQ (tcp(7))")]
        // SAFETY: the descriptor is open, and the kernel writes one int.
        let asked = unsafe { nix::libc::ioctl(socket.as_raw_fd(), nix::libc::TIOCOUTQ, &mut bytes) };
        // For a connection that is gone, the number is stale and meaningless.
        let means_something = asked == 0 && bytes > 0 && socket.peer_addr().is_ok();
        if means_something { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        0
    }
}

/// Returns true if the peer has not accepted all written bytes.
pub(super) fn holds_bytes(socket: &TcpStream) -> bool {
    unsent(socket) > 0
}

/// Makes the kernel give up on a peer that accepts none of the last bytes for as long as the sending side's kernel
/// would have waited.
pub(super) fn limit_last_bytes(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    // Fails only on a socket that is already gone.
    let _ = SockRef::from(socket).set_tcp_user_timeout(Some(LAST_BYTES_LIMIT));
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Waits until a peer has accepted all written bytes, or the kernel has given up on it. During the wait, the memory
/// counts towards an open connection.
pub(super) async fn last_bytes_are_taken(socket: &TcpStream) {
    let mut left = unsent(socket);
    if left == 0 {
        return;
    }
    limit_last_bytes(socket);
    // The kernel gives up on a peer that accepts nothing, and then has no bytes left.
    while left > 0 {
        sleep(LAST_BYTES_INTERVAL).await;
        left = unsent(socket);
    }
}

/// The two directions of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketDirection {
    Send,
    Receive,
}

impl SocketDirection {
    /// Sets the number of bytes that the kernel may hold in this direction of a socket.
    fn set(self, socket: &impl AsFd, bytes: usize) {
        // The kernel doubles the given size (socket(7)). These calls fail only on a socket that is already gone, which
        // shows at its next use.
        match self {
            SocketDirection::Send => _ = SockRef::from(socket).set_send_buffer_size(bytes / 2),
            SocketDirection::Receive => {
                let _ = SockRef::from(socket).set_recv_buffer_size(bytes / 2);
                limit_window(socket, bytes);
            }
        }
    }
}

/// Bytes that the kernel may hold in one direction of a socket.
///
/// The receiving direction starts with little room, and gets more as its bytes are read. It never shrinks: a peer that
/// has seen a large window does not immediately send into a window smaller than its segments, which are 32 KiB and more
/// on loopback.
#[derive(Debug)]
pub(super) struct Room<'a> {
    way: SocketDirection,
    bytes: usize,
    share: PoolShare<'a>,
}

impl<'a> Room<'a> {
    /// Returns the room for one direction of a socket that was created by [`connect`], or accepted by a listener after
    /// [`prepare`].
    pub(super) fn of(pool: &'a BytePool, socket: &TcpStream, way: SocketDirection) -> Self {
        let mut room = Self { way, bytes: OWN_ROOM_BYTES, share: PoolShare::of(pool) };
        room.widen_to(FIRST_ROOM_BYTES, socket);
        room
    }

    /// Returns a room of the maximum size, which no pool accounts for.
    #[cfg(test)]
    pub(super) fn unlimited(pool: &'a BytePool) -> Self {
        Self { way: SocketDirection::Send, bytes: MOST_BYTES, share: PoolShare::of(pool) }
    }

    /// Returns the number of bytes that the kernel may hold, as counted by the kernel.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Doubles the room after it has been filled, if the pool has enough bytes.
    pub(super) fn widen(&mut self, socket: &TcpStream) {
        self.widen_to(MOST_BYTES.min(2 * self.bytes), socket);
    }

    fn widen_to(&mut self, bytes: usize, socket: &TcpStream) {
        if bytes > self.bytes && self.share.grow_to(bytes - OWN_ROOM_BYTES) {
            self.bytes = bytes;
            self.way.set(socket, bytes);
        }
    }

    /// Returns all but the connection's own part while nothing is being sent and others need it, unless the peer has
    /// yet to accept bytes in it.
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
        let pool = BytePool::new(8 * MOST_BYTES);
        let mut room = Room::of(&pool, &socket, SocketDirection::Send);
        assert_eq!((size(), pool.used()), (FIRST_ROOM_BYTES, FIRST_ROOM_BYTES - OWN_ROOM_BYTES));
        for _ in 0..10 {
            room.widen(&socket);
        }
        assert!(size() > FIRST_ROOM_BYTES && room.bytes == MOST_BYTES);
        // No one else needs the room.
        room.rest(&socket);
        assert_eq!(room.bytes, MOST_BYTES);
        let mut others = PoolShare::of(&pool);
        others.set(7 * MOST_BYTES);
        assert_eq!(Room::of(&pool, &socket, SocketDirection::Send).bytes, OWN_ROOM_BYTES);
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
        let pool = BytePool::new(8 * MOST_BYTES);
        let mut room = Room::of(&pool, &socket, SocketDirection::Receive);
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
        // Counts the bytes that fit when no one reads, until nothing has fit for a while.
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
