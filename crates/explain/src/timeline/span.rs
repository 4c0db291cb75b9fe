//! Part of a run to explain: the whole run, or the time around one termination.

use rolldrop_record::{RequestRow, Stamp};

/// Period of time, on the coordinator's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    /// Start of the period.
    pub from: Stamp,
    /// End of the period.
    pub until: Stamp,
}

impl TimeSpan {
    /// Span of a whole run.
    pub(crate) const ALL: Self =
        Self { from: Stamp::from_unix_ns(i64::MIN), until: Stamp::from_unix_ns(i64::MAX) };

    /// Returns the time `at` alone.
    pub(crate) const fn at(at: Stamp) -> Self {
        Self { from: at, until: at }
    }

    /// Returns the period within `ns` of these times.
    pub(crate) const fn widened(self, ns: i64) -> Self {
        Self { from: self.from.shifted_ns(-ns), until: self.until.shifted_ns(ns) }
    }

    /// Returns true if the span overlaps the period between these times.
    pub(crate) fn meets(self, from: Stamp, until: Stamp) -> bool {
        from <= self.until && self.from <= until
    }

    /// Returns true if a request was under way at some time in the span.
    pub(crate) fn has(self, row: &RequestRow) -> bool {
        self.meets(row.scheduled, row.end)
    }
}
