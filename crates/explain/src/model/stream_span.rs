//! Time during which a pod had a stream.

use rolldrop_record::Stamp;

/// One stream on one pod. All stamps are on the clock of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpan {
    /// Index of the pod, from 0.
    pub pod: usize,
    /// Time at which the stream began.
    pub start: Stamp,
    /// Time at which it ended, or was last known to be open.
    pub end: Stamp,
    /// Meaning of `end`.
    pub ended: SpanEnd,
    /// Time at which a watch found the stream open. Its like that had ended before are not in the record (left
    /// truncation). `None` if the stream was recorded from its beginning.
    pub entered: Option<Stamp>,
}

/// Meaning of a stream's last stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanEnd {
    /// The stream ended by itself.
    Complete,
    /// The stream was cut, or the record ended first: it would have lasted longer (right-censored).
    Censored,
}
