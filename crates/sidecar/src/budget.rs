//! Limits on everything that a peer can make the proxy hold.
//!
//! Each connection has some memory of its own that hostile neighbours cannot take away; the rest comes from a
//! [`BytePool`] shared by all connections. No holder gets more than a quarter of the free bytes, so a few greedy
//! holders leave something for latecomers. Anything that does not fit is passed on unrecorded if that is safe, and
//! otherwise refused as an app would refuse it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::sides::ConnectionSides;

/// Room for one read, in bytes. A waiting connection holds no buffer.
pub(super) const READ_BYTES: usize = 16 * 1024;
/// Room for one read when the pool is exhausted.
const SMALL_READ_BYTES: usize = 1024;
/// Bytes that each buffer, and each direction's HTTP/2 fields, may hold even if the pool is exhausted. Most heads are
/// smaller.
pub(super) const OWN_BYTES: usize = 4 * 1024;
/// A holder gets at most the pool's free bytes divided by this number.
const PART: usize = 4;

/// Limits on the resources that peers can make the proxy hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of simultaneous client connections. When another arrives, an idle connection from the address
    /// with the most idle connections makes room. If none has been idle for long enough, the new one waits in the
    /// kernel's accept queue.
    pub connections: usize,
    /// Maximum number of bytes held by all connections together, beyond their own 4 KiB per direction (in HTTP/2 also
    /// 4 KiB for field blocks and tables): unfinished heads and frames, field tables, and bytes that a slow reader has
    /// not accepted.
    pub held_bytes: usize,
    /// Maximum number of bytes that the kernel holds for all connections together, beyond 6 KiB for each direction of
    /// each socket.
    pub socket_bytes: usize,
    /// Maximum size of an HTTP/1 head or an HTTP/2 field block, in bytes.
    pub head_bytes: usize,
    /// Maximum number of requests in flight on one connection: streams, and requests that wait for their turn.
    pub requests_per_connection: usize,
    /// Maximum number of requests in flight on all connections, not counting the first on each.
    pub requests: usize,
    /// Maximum number of rows kept for a reader. Beyond that, the oldest rows are dropped and counted.
    pub rows: usize,
    /// Maximum number of rows kept for requests that got no response. They never displace rows of answered requests.
    pub unanswered_rows: usize,
}

impl Budget {
    /// Default limits.
    pub const DEFAULT: Budget = Budget {
        connections: 4_096,
        held_bytes: 24 * 1024 * 1024,
        socket_bytes: 32 * 1024 * 1024,
        head_bytes: 1024 * 1024,
        requests_per_connection: 4096,
        requests: 65_536,
        rows: 250_000,
        unanswered_rows: 62_500,
    };
}

impl Default for Budget {
    fn default() -> Self {
        Self::DEFAULT
    }
}

rolldrop_record::named! {
    /// Reason why requests, or parts of them, were passed on unrecorded.
    pub(super) enum Unrecorded {
        /// Too many requests were in flight.
        Requests = "requests",
        /// A head or field block was too large to hold, or a field block could not be decoded.
        Head = "head",
        /// Too many rows were waiting for a reader.
        Rows = "rows",
        /// Too many clients were connected, so a connection without a request in flight was closed to make room.
        Connections = "connections",
        /// The end of a response could not be determined, and the connection stayed open.
        Answers = "answers",
    }
}

/// Pool of bytes shared by all connections.
#[derive(Debug)]
pub(super) struct BytePool {
    limit: usize,
    used: AtomicUsize,
}

impl BytePool {
    /// Returns a pool of this many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Returns the number of bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.limit.saturating_sub(self.used()) / PART
    }
}

/// One holder's share of a pool's bytes, returned on drop.
#[derive(Debug)]
pub(super) struct PoolShare<'a> {
    pool: &'a BytePool,
    bytes: usize,
}

impl<'a> PoolShare<'a> {
    /// Returns an empty share of the pool.
    pub(super) fn of(pool: &'a BytePool) -> Self {
        Self { pool, bytes: 0 }
    }

    /// Returns true if the pool has room for a share of this size.
    fn can_be(&self, bytes: usize) -> bool {
        bytes <= self.bytes || self.pool.has(bytes)
    }

    /// Grows the share to this size; returns true if the pool had room.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let fits = self.can_be(bytes);
        if fits && bytes > self.bytes {
            self.set(bytes);
        }
        fits
    }

    /// Returns true if more than half of the pool is in use, so holders must return bytes that they do not need.
    pub(super) fn is_wanted(&self) -> bool {
        self.pool.used() > self.pool.limit / 2
    }

    /// Sets the share to this size, even if the pool has no room.
    pub(super) fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => _ = self.pool.used.fetch_add(more, Ordering::Relaxed),
            None => _ = self.pool.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        }
        self.bytes = bytes;
    }
}

impl Drop for PoolShare<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes of one direction that have been read but not yet passed on.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    bytes: BytesMut,
    share: PoolShare<'a>,
    /// State to update when the client sends something.
    sides: Option<&'a ConnectionSides>,
}

impl<'a> Buffer<'a> {
    /// Returns an empty buffer for an app's bytes.
    pub(super) fn of_app(pool: &'a BytePool) -> Self {
        Self { bytes: BytesMut::new(), share: PoolShare::of(pool), sides: None }
    }

    /// Returns an empty buffer for a client's bytes.
    pub(super) fn of_client(pool: &'a BytePool, sides: &'a ConnectionSides) -> Self {
        Self { sides: Some(sides), ..Self::of_app(pool) }
    }

    /// Returns true if there is room for an incomplete head or frame to grow before it is passed on.
    pub(super) fn may_hold_more(&self) -> bool {
        let needed = self.bytes.len() + SMALL_READ_BYTES;
        needed <= OWN_BYTES || self.share.can_be(needed - OWN_BYTES)
    }

    /// Appends available bytes to the buffer; returns 0 if the other side closed.
    pub(super) async fn read_from(&mut self, from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<usize> {
        self.make_room();
        let read = from.read_buf(&mut self.bytes).await?;
        if let Some(sides) = self.sides {
            sides.client_was_heard.store(true, Ordering::Relaxed);
        }
        Ok(read)
    }

    /// Shrinks the buffer to its contents while there is nothing to read.
    pub(super) fn rest(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            self.share.set(0);
        } else if self.bytes.capacity() > 2 * self.bytes.len() {
            self.resize(self.bytes.len());
        }
    }

    fn make_room(&mut self) {
        let len = self.bytes.len();
        // Growing by half ensures that each byte of a long head is copied only a few times.
        let room = READ_BYTES.max(len / 2);
        if self.bytes.try_reclaim(room.min(READ_BYTES)) {
            return;
        }
        if self.share.grow_to((len + room).saturating_sub(OWN_BYTES)) {
            self.resize(len + room);
        } else if !self.bytes.try_reclaim(SMALL_READ_BYTES) {
            self.resize(len + SMALL_READ_BYTES);
        }
    }

    fn resize(&mut self, capacity: usize) {
        let mut bytes = BytesMut::with_capacity(capacity);
        bytes.extend_from_slice(&self.bytes);
        self.bytes = bytes;
        self.share.set(self.bytes.capacity().saturating_sub(OWN_BYTES));
    }
}

impl Deref for Buffer<'_> {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_shares_leave_budget_for_newcomers() {
        let pool = BytePool::new(1 << 20);
        let mut greedy = Vec::new();
        for _ in 0..20 {
            let mut share = PoolShare::of(&pool);
            while share.grow_to(share.bytes + SMALL_READ_BYTES) {}
            greedy.push(share);
        }
        assert!(pool.used() <= 1 << 20);
        assert!(PoolShare::of(&pool).grow_to(2000), "{} of {} are used", pool.used(), 1 << 20);
        drop(greedy);
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test]
    async fn buffer_falls_back_to_small_reads() {
        let pool = BytePool::new(8 * READ_BYTES);
        let mut first = Buffer::of_app(&pool);
        first.read_from(&mut &[b'x'; 100][..]).await.unwrap();
        assert!(pool.used() >= READ_BYTES - OWN_BYTES);
        // The buffer waits for the rest of a head.
        first.rest();
        assert_eq!((pool.used(), first.len()), (0, 100));

        let mut all = PoolShare::of(&pool);
        all.set(8 * READ_BYTES);
        let mut late = Buffer::of_app(&pool);
        let mut from = &[b'x'; 2 * OWN_BYTES][..];
        while late.may_hold_more() {
            late.read_from(&mut from).await.unwrap();
        }
        assert!((OWN_BYTES - SMALL_READ_BYTES..=OWN_BYTES).contains(&late.len()), "{}", late.len());
        drop((first, late, all));
        assert_eq!(pool.used(), 0);
    }
}
