//! Deadlines of a worker's requests, in one queue instead of one timer each.
//!
//! Deadlines with the same limit usually expire in the order in which they were set. So each limit has its own list, in
//! which a new deadline is the last, or a few places before it if its limit began earlier. Setting and removing a
//! deadline takes a few nanoseconds, and nearly all deadlines are removed before they expire. Only the earliest one has
//! a timer, which is not moved when that deadline is removed. An expired deadline is noticed a few milliseconds late.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout_at;

use rolldrop_record::{Clock, Stamp};

/// Error for a limit that expired before the awaited result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elapsed;

/// Deadlines of everything that one thread waits for.
#[derive(Debug)]
pub(super) struct Deadlines {
    clock: Clock,
    queue: RefCell<DeadlineQueue>,
    /// Notified when a deadline is set that expires before the timer fires.
    sooner: Notify,
}

impl Deadlines {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, queue: RefCell::default(), sooner: Notify::new() }
    }

    /// Returns the output of `future`, or [`Elapsed`] if the future is not ready `limit` after `since`. Another task
    /// must run [`keep`](Self::keep) in the meantime.
    pub(super) async fn within<F: Future>(
        &self,
        since: Stamp,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut waiting: Option<PendingDeadline<'_>> = None;
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            match &waiting {
                Some(waiting) if waiting.has_passed() => return Poll::Ready(Err(Elapsed)),
                Some(_) => {}
                None => waiting = Some(self.set(since, limit, context.waker())),
            }
            Poll::Pending
        })
        .await
    }

    /// Wakes every waiter whose deadline has expired. Works only while it is polled.
    pub(super) async fn keep(&self) -> Infallible {
        loop {
            let now = self.clock.now();
            while let Some(waker) = self.queue.borrow_mut().take_passed(now) {
                waker.wake();
            }
            let next = self.queue.borrow_mut().arm();
            let sooner = self.sooner.notified();
            match next.and_then(|at| self.clock.instant(at)) {
                Some(at) => {
                    // Either way, the queue is checked again.
                    let _ = timeout_at(at.into(), sooner).await;
                }
                None => sooner.await,
            }
        }
    }

    fn set(&self, since: Stamp, limit: Duration, waker: &Waker) -> PendingDeadline<'_> {
        let (id, is_sooner) = self.queue.borrow_mut().set(since + limit, limit, waker.clone());
        if is_sooner {
            self.sooner.notify_one();
        }
        PendingDeadline { deadlines: self, id }
    }
}

/// A pending deadline, which is removed when this is dropped.
struct PendingDeadline<'a> {
    deadlines: &'a Deadlines,
    id: usize,
}

impl PendingDeadline<'_> {
    fn has_passed(&self) -> bool {
        self.deadlines.queue.borrow().waits[self.id].waker.is_none()
    }
}

impl Drop for PendingDeadline<'_> {
    fn drop(&mut self) {
        self.deadlines.queue.borrow_mut().take_back(self.id);
    }
}

/// All deadlines, in linked lists.
#[derive(Debug, Default)]
struct DeadlineQueue {
    lists: Vec<DeadlineList>,
    waits: Vec<QueuedDeadline>,
    /// Unused slots in `waits`.
    free: Vec<usize>,
    /// Time the timer fires; `None` if it is not set.
    alarm: Option<Stamp>,
}

/// Deadlines with the same limit, earliest first.
#[derive(Debug)]
struct DeadlineList {
    limit: Duration,
    first: Option<usize>,
    last: Option<usize>,
}

#[derive(Debug)]
struct QueuedDeadline {
    at: Stamp,
    /// Waker of the waiting task; `None` once the deadline has expired.
    waker: Option<Waker>,
    list: usize,
    before: Option<usize>,
    after: Option<usize>,
}

impl DeadlineQueue {
    /// Sets a deadline. Returns its number, and true if it expires before the timer fires.
    fn set(&mut self, at: Stamp, limit: Duration, waker: Waker) -> (usize, bool) {
        let list = self.lists.iter().position(|list| list.limit == limit).unwrap_or_else(|| {
            self.lists.push(DeadlineList { limit, first: None, last: None });
            self.lists.len() - 1
        });
        let mut before = self.lists[list].last;
        while let Some(later) = before.filter(|id| self.waits[*id].at > at) {
            before = self.waits[later].before;
        }
        let after = before.map_or(self.lists[list].first, |before| self.waits[before].after);
        let wait = QueuedDeadline { at, waker: Some(waker), list, before, after };
        let id = match self.free.pop() {
            Some(id) => {
                self.waits[id] = wait;
                id
            }
            None => {
                self.waits.push(wait);
                self.waits.len() - 1
            }
        };
        match before {
            Some(before) => self.waits[before].after = Some(id),
            None => self.lists[list].first = Some(id),
        }
        match after {
            Some(after) => self.waits[after].before = Some(id),
            None => self.lists[list].last = Some(id),
        }
        let is_sooner = self.alarm.is_none_or(|alarm| at < alarm);
        if is_sooner {
            self.alarm = Some(at);
        }
        (id, is_sooner)
    }

    fn take_back(&mut self, id: usize) {
        if self.waits[id].waker.take().is_some() {
            self.unlink(id);
        }
        self.free.push(id);
    }

    /// Returns the waker of a task whose deadline has expired by `now`.
    fn take_passed(&mut self, now: Stamp) -> Option<Waker> {
        let mut firsts = self.lists.iter().filter_map(|list| list.first);
        let id = firsts.find(|id| self.waits[*id].at <= now)?;
        self.unlink(id);
        self.waits[id].waker.take()
    }

    /// Returns the earliest deadline, for which the caller must set the timer.
    fn arm(&mut self) -> Option<Stamp> {
        let firsts = self.lists.iter().filter_map(|list| list.first);
        self.alarm = firsts.map(|id| self.waits[id].at).min();
        self.alarm
    }

    fn unlink(&mut self, id: usize) {
        let QueuedDeadline { list, before, after, .. } = self.waits[id];
        match before {
            Some(before) => self.waits[before].after = after,
            None => self.lists[list].first = after,
        }
        match after {
            Some(after) => self.waits[after].before = before,
            None => self.lists[list].last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use proptest::prelude::*;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn future_times_out_at_deadline() {
        let clock = Clock::start();
        let deadlines = Deadlines::new(clock);
        let within = |ms, future| deadlines.within(clock.now(), Duration::from_millis(ms), future);
        let waiting = async {
            let long = deadlines.within(clock.now(), Duration::from_secs(600), async {
                yield_now().await;
                7
            });
            // A later, shorter deadline expires first, and so does a third one that begins after it.
            let short = within(1, pending::<()>());
            let done = tokio::join!(long, short, within(2, pending()));
            assert_eq!(done, (Ok(7), Err(Elapsed), Err(Elapsed)));
            assert_eq!(deadlines.within(clock.now(), Duration::ZERO, ready(8)).await, Ok(8));
        };
        tokio::select! {
            () = waiting => {}
            never = deadlines.keep() => match never {},
        }
        let queue = deadlines.queue.borrow();
        assert!(queue.free.len() == queue.waits.len() && queue.lists.iter().all(|list| list.first.is_none()));
    }

    proptest! {
        /// Compares the queue with a plain list of all pending deadlines.
        #[test]
        fn deadlines_expire_in_order(steps in proptest::collection::vec((0..4u8, 0..3u64, 0..15i64, any::<prop::sample::Index>()), 1..200)) {
            let at = Stamp::from_unix_ns;
            let mut queue = DeadlineQueue::default();
            let mut waiting: Vec<(usize, Stamp)> = Vec::new();
            for ((what, limit, late, which), now) in steps.into_iter().zip(0..) {
                match what {
                    0 | 1 => {
                        let limit = Duration::from_nanos(10 + limit * 20);
                        // The limit may have begun before the deadline is set.
                        let due = at(now - late) + limit;
                        let (id, _) = queue.set(due, limit, Waker::noop().clone());
                        waiting.push((id, due));
                    }
                    2 if !waiting.is_empty() => {
                        let (id, _) = waiting.swap_remove(which.index(waiting.len()));
                        queue.take_back(id);
                    }
                    _ => {
                        while queue.take_passed(at(now)).is_some() {}
                        let (passed, left) = waiting.into_iter().partition(|(_, due)| *due <= at(now));
                        waiting = left;
                        for (id, _) in passed {
                            prop_assert!(queue.waits[id].waker.is_none());
                            queue.take_back(id);
                        }
                        prop_assert_eq!(queue.arm(), waiting.iter().map(|(_, due)| *due).min());
                        prop_assert!(waiting.iter().all(|(id, _)| queue.waits[*id].waker.is_some()));
                    }
                }
            }
        }
    }
}
