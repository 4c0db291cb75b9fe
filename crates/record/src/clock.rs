//! The only reader of the operating system's clocks.
//!
//! A process reads the wall clock once, anchors it to the monotonic clock, and from then on only adds elapsed monotonic
//! time. One source's stamps therefore never jump, even if the wall clock is stepped. The clocks of two sources differ
//! by an offset, which the coordinator samples (see [`crate::event::EventKind::ClockSample`]).

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time on one recorder's clock, in nanoseconds since the Unix epoch.
///
/// Stamps of different sources may be compared only after correcting for the offset between their clocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(i64);

impl Stamp {
    /// Creates the stamp at `ns` nanoseconds since the Unix epoch.
    pub const fn from_unix_ns(ns: i64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the Unix epoch.
    pub const fn unix_ns(self) -> i64 {
        self.0
    }

    /// Returns the nanoseconds from `earlier` to `self`; negative if `self` comes first. Saturates at 292 years.
    pub const fn ns_since(self, earlier: Stamp) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the seconds from `earlier` to `self`; negative if `self` comes first.
    pub fn seconds_since(self, earlier: Stamp) -> f64 {
        self.ns_since(earlier) as f64 / 1e9
    }

    /// Returns the stamp moved by a signed number of nanoseconds.
    #[must_use]
    pub const fn shifted_ns(self, ns: i64) -> Stamp {
        Stamp(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Stamp {
    type Output = Stamp;

    fn add(self, rhs: Duration) -> Stamp {
        self.shifted_ns(duration_ns(rhs))
    }
}

impl Sub<Duration> for Stamp {
    type Output = Stamp;

    fn sub(self, rhs: Duration) -> Stamp {
        self.shifted_ns(-duration_ns(rhs))
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stamp({})", self.0)
    }
}

/// Converts a duration to nanoseconds, saturating at the range of `i64` (292 years).
fn duration_ns(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// A monotonic clock anchored once to the wall clock.
///
/// Copies share the anchor, so a process creates one clock with [`Clock::start`] and hands out copies.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Instant,
    anchor_unix_ns: i64,
}

impl Clock {
    /// Reads both clocks and anchors the monotonic clock to the wall clock. Call this once per process.
    pub fn start() -> Self {
        let anchor = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { anchor, anchor_unix_ns: duration_ns(wall) }
    }

    /// Returns the current time on this clock.
    pub fn now(&self) -> Stamp {
        self.stamp(Instant::now())
    }

    /// Converts a monotonic instant to a stamp.
    pub fn stamp(&self, at: Instant) -> Stamp {
        let elapsed = match at.checked_duration_since(self.anchor) {
            Some(after) => duration_ns(after),
            None => -duration_ns(self.anchor.duration_since(at)),
        };
        Stamp(self.anchor_unix_ns + elapsed)
    }

    /// Converts a stamp to a monotonic instant; returns `None` if the instant is outside the range of the operating
    /// system's clock.
    pub fn instant(&self, stamp: Stamp) -> Option<Instant> {
        let ns = stamp.0 - self.anchor_unix_ns;
        let distance = Duration::from_nanos(ns.unsigned_abs());
        if ns >= 0 { self.anchor.checked_add(distance) } else { self.anchor.checked_sub(distance) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_round_trips_through_instant() {
        let clock = Clock::start();
        let stamp = clock.now() + Duration::from_millis(250);
        let instant = clock.instant(stamp).unwrap();
        assert_eq!(clock.stamp(instant), stamp);
        let before = stamp - Duration::from_secs(1);
        assert_eq!(before.ns_since(stamp), -1_000_000_000);
        assert_eq!(clock.stamp(clock.instant(before).unwrap()), before);
    }

    #[test]
    fn clock_never_runs_backwards() {
        let clock = Clock::start();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
