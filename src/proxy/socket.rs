//! What the kernel holds for the two sockets of a connection, and how long it waits for the other end.
//!
//! The kernel lets a buffer grow to some MiB where a peer seems to want it, and keeps what was sent until the
//! peer takes it, also after a close. Both count as memory of the container. So what is sent has a [`Room`]:
//! small for all, larger for who transfers much while the shared [`Pool`] lasts. A side that closed is not
//! closed here before its last bytes have been taken.

use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::budget::{Pool, Share};

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
const OWN_ROOM_BYTES: usize = 8 * 1024;
/// The same at the beginning, while the pool has room.
const FIRST_ROOM_BYTES: usize = 64 * 1024;
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
    set(socket, FIRST_ROOM_BYTES);
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

/// Sets how much the kernel may hold of what is sent on a socket.
fn set(socket: &impl AsFd, bytes: usize) {
    // The kernel doubles what it is told (socket(7)).
    // Fails only on a socket that is gone already, which shows at its next use.
    let _ = SockRef::from(socket).set_send_buffer_size(bytes / 2);
}

/// What the kernel may hold of what is sent on a socket.
///
/// What is received is left to the kernel: a peer that has seen a large window sends nothing at once into one
/// that has been made smaller than its segments, which on a loopback have 32 KiB and more.
#[derive(Debug)]
pub(super) struct Room<'a> {
    bytes: usize,
    share: Share<'a>,
}

impl<'a> Room<'a> {
    /// Of a socket that was accepted from a prepared listener.
    pub(super) fn of_accepted(pool: &'a Pool, socket: &TcpStream) -> Self {
        let mut share = Share::of(pool);
        if share.grow_to(FIRST_ROOM_BYTES - OWN_ROOM_BYTES) {
            return Self { bytes: FIRST_ROOM_BYTES, share };
        }
        set(socket, OWN_ROOM_BYTES);
        Self { bytes: OWN_ROOM_BYTES, share }
    }

    /// Of a socket that was connected.
    pub(super) fn of_connected(pool: &'a Pool, socket: &TcpStream) -> Self {
        set(socket, FIRST_ROOM_BYTES);
        Self::of_accepted(pool, socket)
    }

    /// As much as there can be, which nobody counts.
    #[cfg(test)]
    pub(super) fn unlimited(pool: &'a Pool) -> Self {
        Self { bytes: MOST_BYTES, share: Share::of(pool) }
    }

    /// Twice as much, if the pool has it: what there is has been filled.
    pub(super) fn widen(&mut self, socket: &TcpStream) {
        let wider = MOST_BYTES.min(2 * self.bytes);
        if wider > self.bytes && self.share.grow_to(wider - OWN_ROOM_BYTES) {
            self.bytes = wider;
            set(socket, wider);
        }
    }

    /// Nothing passes: while others need it, all but the own part is given back, unless the peer has not taken
    /// what lies there.
    pub(super) fn rest(&mut self, socket: &TcpStream) {
        if self.bytes > OWN_ROOM_BYTES && self.share.is_wanted() && unsent(socket) == 0 {
            self.share.set(0);
            self.bytes = OWN_ROOM_BYTES;
            set(socket, OWN_ROOM_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn who_sends_much_gets_more_room_while_there_is_some_and_gives_it_back_when_others_need_it() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let _accepted = listener.accept().await.unwrap();
        let size = || SockRef::from(&socket).send_buffer_size().unwrap();
        let pool = Pool::new(8 * MOST_BYTES);
        let mut room = Room::of_connected(&pool, &socket);
        assert_eq!((size(), pool.used()), (FIRST_ROOM_BYTES, FIRST_ROOM_BYTES - OWN_ROOM_BYTES));
        for _ in 0..10 {
            room.widen(&socket);
        }
        assert!(size() > FIRST_ROOM_BYTES && room.bytes == MOST_BYTES);
        // Nobody else needs it.
        room.rest(&socket);
        assert_eq!(room.bytes, MOST_BYTES);
        let mut others = Share::of(&pool);
        others.set(7 * MOST_BYTES);
        assert_eq!(Room::of_accepted(&pool, &socket).bytes, OWN_ROOM_BYTES);
        room.rest(&socket);
        assert_eq!((size(), room.bytes, pool.used()), (OWN_ROOM_BYTES, OWN_ROOM_BYTES, 7 * MOST_BYTES));
    }
}
