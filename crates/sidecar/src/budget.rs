//! Limits of everything that a peer can make the proxy hold.
//!
//! Each connection owns a part of the memory, so that hostile neighbours cannot take it away; the rest comes from a
//! [`Pool`] that all connections share. No holder gets more than a quarter of the free bytes, so a few greedy ones
//! leave something for those who come later. Whatever does not fit is passed on without being recorded where that is
//! safe, and elsewhere refused as an app would refuse it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::sides::Sides;

/// Room for one read, in bytes. A waiting connection holds no buffer.
pub(super) const READ_BYTES: usize = 16 * 1024;
/// Room for one read when the pool has no more.
const SMALL_READ_BYTES: usize = 1024;
/// Bytes that each buffer may hold even if the pool is empty: most heads are smaller.
pub(super) const OWN_BYTES: usize = 4 * 1024;
/// Divisor: a holder gets at most this fraction of the pool's free bytes.
const PART: usize = 4;

/// Limits of what the peers of a proxy can make it hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Client connections at once. When one more comes, an idle one of the address that has the most of them makes
    /// room; if none has been idle for long enough, the new one waits in the kernel's accept queue.
    pub connections: usize,
    /// Bytes that all connections hold together beyond their own 4 KiB a direction: unfinished heads and frames, tables
    /// of fields, and bytes that a slow reader has not taken.
    pub held_bytes: usize,
    /// Bytes that the kernel holds for all connections together, beyond 6 KiB for each direction of each of
    /// their sockets.
    pub socket_bytes: usize,
    /// Bytes of one head of HTTP/1, or of one block of fields of HTTP/2.
    pub head_bytes: usize,
    /// Requests under way on one connection: streams, and requests that wait for their turn.
    pub requests_per_connection: usize,
    /// Requests under way on all connections, beyond the first of each.
    pub requests: usize,
    /// Rows kept for a reader. Beyond them the oldest are dropped, and counted.
    pub rows: usize,
    /// Rows kept of requests that got no answer. They never displace rows of answered requests.
    pub unanswered_rows: usize,
}

impl Budget {
    /// The limits that hold unless the caller sets others.
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
    /// Reason that requests, or parts of them, were passed on without being recorded.
    pub(super) enum Unrecorded {
        /// Too many requests were under way.
        Requests = "requests",
        /// A head, or a block of fields, was larger than could be held.
        Head = "head",
        /// Too many rows were waiting for a reader.
        Rows = "rows",
        /// Too many clients were connected: a connection without a request under way was closed to make room.
        Connections = "connections",
        /// The end of an answer could not be determined, and the connection stayed open.
        Answers = "answers",
    }
}

/// Pool of bytes that all connections share.
#[derive(Debug)]
pub(super) struct Pool {
    limit: usize,
    used: AtomicUsize,
}

impl Pool {
    /// Returns a pool of this many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Returns the number of bytes that are held.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.limit.saturating_sub(self.used()) / PART
    }
}

/// Bytes of a pool that one holder has. They are given back when the share is dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    pool: &'a Pool,
    bytes: usize,
}

impl<'a> Share<'a> {
    /// Returns a share that has no bytes of the pool yet.
    pub(super) fn of(pool: &'a Pool) -> Self {
        Self { pool, bytes: 0 }
    }

    /// Returns true if the pool has room for the share to become this large.
    fn can_be(&self, bytes: usize) -> bool {
        bytes <= self.bytes || self.pool.has(bytes)
    }

    /// Makes the share this large; returns true if the pool had room.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let fits = self.can_be(bytes);
        if fits && bytes > self.bytes {
            self.set(bytes);
        }
        fits
    }

    /// Returns true if more than half of the pool is in use, so that holders must return bytes that they do not need.
    pub(super) fn is_wanted(&self) -> bool {
        self.pool.used() > self.pool.limit / 2
    }

    /// Makes the share this large, whatever the pool has.
    pub(super) fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => _ = self.pool.used.fetch_add(more, Ordering::Relaxed),
            None => _ = self.pool.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        }
        self.bytes = bytes;
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes of one direction that have been read and not yet passed on.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    bytes: BytesMut,
    share: Share<'a>,
    /// State to update when the client sends something.
    sides: Option<&'a Sides>,
}

impl<'a> Buffer<'a> {
    /// Returns an empty buffer for bytes of an app.
    pub(super) fn of_app(pool: &'a Pool) -> Self {
        Self { bytes: BytesMut::new(), share: Share::of(pool), sides: None }
    }

    /// Returns an empty buffer for bytes of a client.
    pub(super) fn of_client(pool: &'a Pool, sides: &'a Sides) -> Self {
        Self { sides: Some(sides), ..Self::of_app(pool) }
    }

    /// Returns true if an incomplete head or frame may become longer before it is passed on.
    pub(super) fn may_hold_more(&self) -> bool {
        let needed = self.bytes.len() + SMALL_READ_BYTES;
        needed <= OWN_BYTES || self.share.can_be(needed - OWN_BYTES)
    }

    /// Reads available bytes into the buffer, behind those it holds; returns 0 if the other side closed.
    pub(super) async fn read_from(&mut self, from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<usize> {
        self.make_room();
        let read = from.read_buf(&mut self.bytes).await?;
        if let Some(sides) = self.sides {
            sides.hear_client();
        }
        Ok(read)
    }

    /// Shrinks the buffer to the bytes it holds, as nothing is there to be read.
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
        // Each byte of a long head is copied a few times at most.
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
        let pool = Pool::new(1 << 20);
        let mut greedy = Vec::new();
        for _ in 0..20 {
            let mut share = Share::of(&pool);
            while share.grow_to(share.bytes + SMALL_READ_BYTES) {}
            greedy.push(share);
        }
        assert!(pool.used() <= 1 << 20);
        assert!(Share::of(&pool).grow_to(2000), "{} of {} are used", pool.used(), 1 << 20);
        drop(greedy);
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test]
    async fn buffer_falls_back_to_small_reads() {
        let pool = Pool::new(8 * READ_BYTES);
        let mut first = Buffer::of_app(&pool);
        first.read_from(&mut &[b'x'; 100][..]).await.unwrap();
        assert!(pool.used() >= READ_BYTES - OWN_BYTES);
        // It waits for more of a head.
        first.rest();
        assert_eq!((pool.used(), first.len()), (0, 100));

        let mut all = Share::of(&pool);
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
