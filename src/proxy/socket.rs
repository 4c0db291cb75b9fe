//! What the kernel holds for the two sockets of a connection, and how long it waits for the other end.
//!
//! The kernel lets a buffer grow to some MiB where a peer seems to want it, and keeps what was sent until the
//! peer takes it, also after a close. Both count as memory of the container. So each buffer has a [`Room`]:
//! small for all, larger for who transfers much while the shared [`Pool`] lasts. A side that closed is not
//! closed here before its last bytes have been taken.

use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::budget::{Pool, READ_BYTES, Share};

/// After how long without a word the other end is asked whether it is still there, and from then on how
/// often; after nine questions without an answer it is not. A peer that is half closed does not say that it
/// has gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How long a side may take none of the last bytes of another side that has gone. About as long as the
/// kernel of the side that has gone would keep them for it: until its pauses between two attempts reach
/// 120 s (tcp_orphan_retries, tcp(7)).
const LAST_BYTES_LIMIT: Duration = Duration::from_secs(200);
/// How often a socket is asked whether the last bytes have been taken.
const LAST_BYTES_INTERVAL: Duration = Duration::from_millis(250);

/// What the kernel may hold of what is sent on a socket whatever the pool has, in bytes as it counts them.
pub(super) const OWN_ROOM_BYTES: usize = 8 * 1024;
/// The same at the beginning, while the pool has room: what is sent, and the kernel's own size for what
/// is received.
const FIRST_SENT_BYTES: usize = 64 * 1024;
const FIRST_RECEIVED_BYTES: usize = 128 * 1024;
/// After how many bytes the kernel's own size is fixed. It widens a buffer when it has seen more than that.
const FIXED_AFTER_BYTES: usize = 32 * 1024;
/// The largest, which is what the kernel lets everybody ask for (net.core.wmem_max, rmem_max).
const MOST_BYTES: usize = 2 * 212_992;

/// Has the kernel notice that the other end of a connection is gone. What a listener has, the connections
/// that it accepts have as well.
pub(super) fn keep_alive(socket: &impl AsFd) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    // A socket that is gone already shows so at its first read.
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// Gives the connections that a listener will accept their first room for what is sent.
pub(super) fn prepare_listener(socket: &impl AsFd) {
    keep_alive(socket);
    Direction::Sent.set(socket, FIRST_SENT_BYTES);
}

/// Bytes that were written and that the other end has not acknowledged; 0 if that cannot be told.
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

/// Whether the peer has not taken all that was written.
pub(super) fn holds_bytes(socket: &TcpStream) -> bool {
    unsent(socket) > 0
}

/// Has the kernel give a peer up that takes none of the last bytes for as long as the kernel of the side
/// that sent them would wait for it.
pub(super) fn limit_last_bytes(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    // Fails only on a socket that is gone already.
    let _ = SockRef::from(socket).set_tcp_user_timeout(Some(LAST_BYTES_LIMIT));
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Waits until a peer has taken all that was written, or the kernel has given it up. While it waits the
/// memory is that of a connection that counts.
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

/// One of the two buffers of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Sent,
    Received,
}

impl Direction {
    fn set(self, socket: &impl AsFd, bytes: usize) {
        let socket = SockRef::from(socket);
        // The kernel doubles what it is told (socket(7)).
        // Fails only on a socket that is gone already, which shows at its next use.
        let _ = match self {
            Direction::Sent => socket.set_send_buffer_size(bytes / 2),
            Direction::Received => socket.set_recv_buffer_size(bytes / 2),
        };
    }
}

/// What the kernel may hold in one buffer of a socket.
#[derive(Debug)]
pub(super) struct Room<'a> {
    direction: Direction,
    bytes: usize,
    share: Share<'a>,
    /// Bytes that were received since the size was set.
    received: usize,
    /// The kernel has its own size, which it will change.
    is_the_kernels: bool,
}

impl<'a> Room<'a> {
    /// For what is sent and received on a socket that was accepted from a prepared listener.
    pub(super) fn of_accepted(pool: &'a Pool, socket: &TcpStream) -> [Self; 2] {
        let sent = Self::first(pool, socket, Direction::Sent, FIRST_SENT_BYTES);
        [sent, Self::first(pool, socket, Direction::Received, FIRST_RECEIVED_BYTES)]
    }

    /// For what is sent and received on a socket that was connected.
    pub(super) fn of_connected(pool: &'a Pool, socket: &TcpStream) -> [Self; 2] {
        let [sent, received] = Self::of_accepted(pool, socket);
        if sent.bytes == FIRST_SENT_BYTES {
            Direction::Sent.set(socket, FIRST_SENT_BYTES);
        }
        [sent, received]
    }

    /// What a socket has at its beginning, or the own part if the pool has no more. What is received keeps the
    /// kernel's own size at least: a peer that has seen a large window sends nothing at once into one that is
    /// smaller than its segments, which on a loopback have 32 KiB and more.
    fn first(pool: &'a Pool, socket: &TcpStream, direction: Direction, first: usize) -> Self {
        let mut share = Share::of(pool);
        if direction == Direction::Received {
            return Self { direction, bytes: first, share, received: 0, is_the_kernels: true };
        }
        let fits = share.grow_to(first - OWN_ROOM_BYTES);
        let bytes = if fits { first } else { OWN_ROOM_BYTES };
        if !fits {
            direction.set(socket, bytes);
        }
        Self { direction, bytes, share, received: 0, is_the_kernels: false }
    }

    /// What belongs to the socket whatever the pool has.
    fn own(&self) -> usize {
        match self.direction {
            Direction::Sent => OWN_ROOM_BYTES,
            Direction::Received => FIRST_RECEIVED_BYTES,
        }
    }

    /// As much as there can be, which nobody counts.
    #[cfg(test)]
    pub(super) fn unlimited(pool: &'a Pool) -> Self {
        let share = Share::of(pool);
        Self { direction: Direction::Sent, bytes: MOST_BYTES, share, received: 0, is_the_kernels: false }
    }

    /// Twice as much, if the pool has it: what there is has been filled.
    pub(super) fn widen(&mut self, socket: &TcpStream) {
        let wider = MOST_BYTES.min(2 * self.bytes);
        if wider > self.bytes && self.share.grow_to(wider - self.own()) {
            self.set(socket, wider);
        }
    }

    /// So many bytes were read at once: who sends much at once gets more room.
    pub(super) fn read(&mut self, socket: &TcpStream, bytes: usize) {
        self.received += bytes;
        if self.is_the_kernels {
            // The kernel would ask nobody.
            if self.received >= FIXED_AFTER_BYTES {
                self.set(socket, self.bytes);
            }
        } else if self.received >= 2 * self.bytes && bytes >= READ_BYTES.min(self.bytes / 4) {
            self.received = 0;
            self.widen(socket);
        }
    }

    /// Nothing passes: while others need it, all but the own part of what is sent is given back. What a peer
    /// has not taken still lies there.
    pub(super) fn rest(&mut self, socket: &TcpStream) {
        if self.bytes > self.own() && self.share.is_wanted() && unsent(socket) == 0 {
            self.share.set(0);
            self.set(socket, self.own());
        }
    }

    fn set(&mut self, socket: &TcpStream, bytes: usize) {
        self.direction.set(socket, bytes);
        (self.bytes, self.received, self.is_the_kernels) = (bytes, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn who_transfers_much_gets_more_room_while_there_is_some_and_gives_it_back_when_others_need_it() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let _accepted = listener.accept().await.unwrap();
        let size = || SockRef::from(&socket).send_buffer_size().unwrap();
        let pool = Pool::new(8 * MOST_BYTES);
        let [mut sent, mut received] = Room::of_connected(&pool, &socket);
        assert_eq!((size(), pool.used()), (FIRST_SENT_BYTES, FIRST_SENT_BYTES - OWN_ROOM_BYTES));
        for _ in 0..10 {
            sent.widen(&socket);
            received.read(&socket, 2 * MOST_BYTES);
        }
        assert!(size() > FIRST_SENT_BYTES && sent.bytes == MOST_BYTES && received.bytes == MOST_BYTES);
        // While nobody else needs it.
        sent.rest(&socket);
        assert_eq!(sent.bytes, MOST_BYTES);
        let mut others = Share::of(&pool);
        others.set(5 * MOST_BYTES);
        let [mut late, _] = Room::of_connected(&pool, &socket);
        while late.bytes < MOST_BYTES && late.share.grow_to(2 * late.bytes) {
            late.widen(&socket);
        }
        assert!(late.bytes < MOST_BYTES, "{pool:?}");
        for room in [&mut sent, &mut received, &mut late] {
            room.rest(&socket);
        }
        assert_eq!(
            (sent.bytes, received.bytes, pool.used()),
            (OWN_ROOM_BYTES, OWN_ROOM_BYTES, 5 * MOST_BYTES)
        );
        assert_eq!(size(), OWN_ROOM_BYTES);
    }
}
