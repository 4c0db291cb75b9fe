//! The state of both sides of a connection, which determines whether the connection is idle.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum silence of a client, and maximum total time, after the app has closed its side and will send no more
/// responses (nginx: `lingering_timeout`, `lingering_time`). A half-closed socket does not show whether the other end
/// is still there.
const LINGER_SILENCE: Duration = Duration::from_secs(5);
const LINGER_LIMIT: Duration = Duration::from_secs(30);

/// State of both sides of a connection: which have closed, and what they still owe each other.
#[derive(Debug, Default)]
pub(super) struct ConnectionSides {
    pub(super) client_closed: AtomicBool,
    pub(super) app_closed: AtomicBool,
    pub(super) app_unwritable: AtomicBool,
    /// True if the client has sent something, or closed, since this was last reset.
    pub(super) client_was_heard: AtomicBool,
    /// True if the app has accepted the connection; after that, any silence is the client's.
    pub(super) app_accepted: AtomicBool,
    /// Number of requests in flight.
    pub(super) under_way: AtomicUsize,
    /// True if the client does not accept the bytes sent to it.
    pub(super) client_stalls: AtomicBool,
    /// True if the client has begun a message and not finished it.
    pub(super) client_owes: AtomicBool,
    /// Tick at which enough bytes had last passed, not counting request heads.
    pub(super) passed_at: AtomicU32,
    /// Number of client bytes that have passed since that tick.
    pub(super) passed_since: AtomicUsize,
    /// True if the connection must make room for another one.
    pub(super) gives_way: AtomicBool,
}

/// Kinds of idleness, in the order in which idle connections make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Idleness {
    /// No request is in flight: the client is silent, or its request head is incomplete.
    NoRequest,
    /// The client does not read the response, or sends its request too slowly.
    Stalled,
    /// The app has not accepted the connection, or not responded.
    Unanswered,
}

impl ConnectionSides {
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

    /// Returns the connection's kind of idleness, and the tick at which it became idle.
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

    /// Marks the connection as closed to make room; returns true if a request was in flight.
    pub(super) fn give_way(&self) -> bool {
        self.gives_way.store(true, Ordering::Relaxed);
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Returns true if the client has closed its side.
    pub(super) fn is_client_closed(&self) -> bool {
        self.client_closed.load(Ordering::Relaxed)
    }

    /// Waits until the client has been silent for [`LINGER_SILENCE`], or [`LINGER_LIMIT`] has passed.
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
