//! Reasons why a measurement is invalid, or its record incomplete.

use std::collections::BTreeMap;
use std::sync::Arc;

use rolldrop_record::run_info::Rows;
use rolldrop_record::{Outcome, Phase};

use crate::model::FindingKind;

/// Reason why a measurement is invalid, with its figures and limits.
#[derive(Clone, Debug, PartialEq)]
pub enum Invalid {
    /// The run was aborted before it sent anything.
    Aborted(String),
    /// Too many requests were not sent.
    NotAllSent { not_sent: u64, scheduled: u64, limit: f64, by_reason: BTreeMap<String, u64> },
    /// No request was recorded.
    NothingRecorded,
    /// The load generator fell behind, judged by the 99th percentile of the send lag.
    FellBehind { lag_ms: f64, limit_ms: f64 },
    /// The load generator's lag hides the measured quantity.
    Drowned { measured: MeasuredQuantity, lag_ms: f64, limit_ms: f64 },
    /// The record contradicts itself.
    Contradiction(RecordContradiction),
    /// The hypervisor stole too much CPU time where this source ran.
    Steal { source: String, share: f64, limit: f64 },
    /// This source's threads waited too long for a CPU.
    Starved { source: String, waiting: f64, limit: f64 },
    /// The machine that sent the load was too busy.
    Busy { share: f64, limit: f64 },
    /// A watch saw nothing while a pod was terminating.
    WatchGap { resource: String, pod: String, length_s: f64 },
    /// The pod watch saw nothing at the end of the load.
    BlindAtEnd { length_s: f64 },
    /// A source, or the embedded cluster if `source` is `None`, stood still for a while under load.
    StoodStill { source: Option<String>, from_s: f64, to_s: f64 },
}

impl Invalid {
    /// Returns the kind of the finding about this reason.
    pub const fn kind(&self) -> FindingKind {
        match self {
            Self::Contradiction(_) => FindingKind::Corrupt,
            _ => FindingKind::Invalid,
        }
    }
}

/// Reason why a record is incomplete.
#[derive(Clone, Debug, PartialEq)]
pub enum Incomplete {
    /// The run was interrupted.
    Interrupted,
    /// The run was aborted.
    Aborted(String),
    /// The run did not complete.
    NotCompleted,
    /// A part could not be read, as reported in the record.
    Torn(String),
    /// A part is damaged, as reported in the record.
    Corrupt(String),
    /// Something was not recorded, or is missing now.
    Missing(Missing),
}

impl Incomplete {
    /// Returns the kind of the finding about this reason.
    pub const fn kind(&self) -> FindingKind {
        match self {
            Self::Corrupt(_) => FindingKind::Corrupt,
            _ => FindingKind::Missing,
        }
    }
}

/// Missing part of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Missing {
    /// Event for the start of the load.
    LoadStarted,
    /// Event for the end of the load.
    LoadEnded,
    /// Number of requests scheduled by a source.
    Scheduled(String),
    /// Comparison of a source's clock with the coordinator's clock.
    ClockSample(String),
    /// Rows for a source's requests.
    Requests { source: String, phase: Phase, scheduled: u64, rows: u64 },
    /// Rows that had been received from a proxy.
    Served { proxy: String, received: u64, rows: u64 },
    /// Rows from some source.
    Rows { scheduled: u64, recorded: u64 },
    /// Rows that a load source recorded but did not hand over; `by_count` has the requests known only as counts.
    HandedOver { source: String, rows: Rows, by_count: Option<BTreeMap<Outcome, u64>> },
    /// Rows that a proxy recorded but did not hand over.
    OfProxy { proxy: String, rows: Rows },
    /// Rows from a pod's proxy about requests that the pod answered.
    Answered { pod: String, requests: u64 },
}

/// Contradiction within a record.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordContradiction {
    /// A file does not match its checksum, as reported in the record.
    Altered(String),
    /// This load event is outside the run's time.
    Untimely(&'static str),
    /// Requests ended later than this many days after the load began.
    TooLate { days: u64 },
    /// A source has more rows than scheduled requests.
    Requests { source: String, phase: Phase, scheduled: u64, rows: u64 },
    /// There are more rows from a proxy than were received.
    Served { proxy: String, received: u64, rows: u64 },
    /// Some of a source's requests have several rows.
    Twice { source: Arc<str>, requests: u64, first: u64 },
    /// Some of a source's rows have stamps out of order.
    Disordered { source: Arc<str>, rows: u64, first: u64 },
    /// Some of a proxy's rows have stamps out of order.
    DisorderedServed { proxy: Arc<str>, rows: u64 },
    /// A proxy read requests before they were sent or after they were answered.
    Impossible { proxy: Arc<str>, impossible: u64, compared: u64, worst_s: f64 },
    /// The samples of this clock contradict each other.
    Clock(String),
}

/// Quantity measured by a run, in milliseconds; the send lag must be small in comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasuredQuantity {
    /// Windows, by the median of their bounds.
    Windows(f64),
    /// Only latencies, by the 99th percentile of the response time.
    Latency(f64),
}
