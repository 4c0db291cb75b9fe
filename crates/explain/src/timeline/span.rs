//! Part of a run that is explained: all of it, or the time around one termination.

use rolldrop_record::{RequestRow, Stamp};

/// A period of time, on the coordinator's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from: Stamp,
    /// Its end.
    pub until: Stamp,
}

impl Span {
    /// All time: a whole run.
    pub(crate) const ALL: Self =
        Self { from: Stamp::from_unix_ns(i64::MIN), until: Stamp::from_unix_ns(i64::MAX) };

    /// Returns true if it has a time between these.
    pub(crate) fn meets(self, from: Stamp, until: Stamp) -> bool {
        from <= self.until && self.from <= until
    }

    /// Returns true if it has a time at which a request was under way.
    pub(crate) fn has(self, row: &RequestRow) -> bool {
        self.meets(row.scheduled, row.end)
    }
}
