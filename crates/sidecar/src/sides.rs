//! The state of both sides of a connection, on which the choice of an idle one rests.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Longest silence of a client, and longest time in total, after an app has ended its side and will not answer any more
/// (nginx: `lingering_timeout`, `lingering_time`). A half-closed socket does not show whether its other end is still
/// there.
const LINGER_SILENCE: Duration = Duration::from_secs(5);
const LINGER_LIMIT: Duration = Duration::from_secs(30);

/// State of both sides of a connection: which have closed, and what they owe each other.
#[derive(Debug, Default)]
pub(super) struct Sides {
    pub(super) client_closed: AtomicBool,
    pub(super) app_closed: AtomicBool,
    pub(super) app_unwritable: AtomicBool,
    pub(super) client_was_heard: AtomicBool,
    /// The app has accepted the connection.
    pub(super) app_accepted: AtomicBool,
    /// Requests under way.
    pub(super) under_way: AtomicUsize,
    /// The client does not take the bytes sent to it.
    pub(super) client_stalls: AtomicBool,
    /// The client has begun a message that it has not ended.
    pub(super) client_owes: AtomicBool,
    /// Tick of the proxy at which enough bytes had last passed, not counting heads of requests.
    pub(super) passed_at: AtomicU32,
    /// Bytes of the client that have passed since that tick.
    pub(super) passed_since: AtomicUsize,
    /// The connection has to make room for another one.
    pub(super) gives_way: AtomicBool,
}

/// State in which a connection is idle, in the order in which idle connections make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Idleness {
    /// No request is under way: it says nothing, or its head does not end.
    NoRequest,
    /// The client does not take its answer, or sends its request too slowly.
    Stalled,
    /// The app has not accepted the connection, or not answered.
    Unanswered,
}

impl Sides {
    /// Returns the state of a connection that begins at this tick.
    pub(super) fn beginning_at(tick: u32) -> Self {
        Self { passed_at: tick.into(), ..Self::default() }
    }

    /// Counts a request that began.
    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that ended.
    pub(super) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that the app has accepted the connection: from now on the client's silence is its own.
    pub(super) fn app_accepted(&self) {
        self.app_accepted.store(true, Ordering::Relaxed);
    }

    /// Returns the kind of idleness of the connection, and the tick since which it is idle.
    pub(super) fn idle(&self) -> (Idleness, u32) {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let idleness = if is_set(&self.client_stalls) {
            Idleness::Stalled
        } else if is_set(&self.app_accepted) && self.under_way.load(Ordering::Relaxed) == 0 {
            Idleness::NoRequest
        } else if is_set(&self.client_owes) {
            Idleness::Stalled
        } else {
            Idleness::Unanswered
        };
        (idleness, self.passed_at.load(Ordering::Relaxed))
    }

    /// Marks the connection as closed to make room; returns true if a request was under way.
    pub(super) fn give_way(&self) -> bool {
        self.gives_way.store(true, Ordering::Relaxed);
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Returns true if the connection is closed to make room for another one.
    pub(super) fn has_given_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// Returns true if the client has closed its side.
    pub(super) fn is_client_closed(&self) -> bool {
        self.client_closed.load(Ordering::Relaxed)
    }

    /// Notes that the client sent something, or closed.
    pub(super) fn hear_client(&self) {
        self.client_was_heard.store(true, Ordering::Relaxed);
    }

    /// Waits until the client has been silent for [`LINGER_SILENCE`], or [`LINGER_LIMIT`] is over.
    pub(super) async fn client_is_done(&self) {
        let limit = Instant::now() + LINGER_LIMIT;
        loop {
            self.client_was_heard.store(false, Ordering::Relaxed);
            sleep_until(limit.min(Instant::now() + LINGER_SILENCE)).await;
            if !self.client_was_heard.load(Ordering::Relaxed) || Instant::now() >= limit {
                return;
            }
        }
    }

    /// Returns true if the app has closed its side.
    pub(super) fn is_app_closed(&self) -> bool {
        self.app_closed.load(Ordering::Relaxed)
    }
}
