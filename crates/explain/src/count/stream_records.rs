//! Streams of a run: their requests joined with their rows in `streams/*.parquet`.

use std::sync::Arc;

use crate::timeline::{Request, Requests, StreamRows};
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::{Outcome, Phase, Stamp, StreamRow};

/// Columns needed for a request's pod and times.
const COLUMNS: Wanted = Wanted::Only(&[
    "source",
    "seq",
    "target",
    "phase",
    "scheduled_ns",
    "connect_start_ns",
    "sent_ns",
    "head_ns",
    "end_ns",
    "outcome",
    "grpc_status",
    "conn",
    "conn_reused",
    "local_port",
    "remote_addr",
    "routed_to",
    "pod",
]);

/// Request whose response began as a stream. All stamps are on the coordinator's clock.
#[derive(Clone, Debug)]
pub(crate) struct StreamRecord {
    /// Pod that the request reached, if known.
    pub pod: Option<Arc<str>>,
    /// True if the request belongs to the counted part.
    pub is_counted: bool,
    /// Time the request was sent.
    pub begun: Stamp,
    /// Time the stream ended.
    pub end: Stamp,
    /// Outcome of the stream: complete, one of the stream outcomes, or cancelled.
    pub outcome: Outcome,
    /// Events of the stream.
    pub row: StreamRow,
}

impl StreamRecord {
    /// Joins the streams of a run with their rows, in memory and in no particular order. `pod` returns the pod that a
    /// request reached.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub(crate) fn read<'r>(
        requests: &'r Requests,
        rows: &StreamRows,
        pod: impl for<'q> Fn(&'q Request) -> Option<Arc<str>> + Sync,
    ) -> Result<Vec<Self>, PartError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let add = |records: &mut Vec<Self>, request: &Request| {
            records.extend(
                rows.of(request).and_then(|row| Self::of(request, rows.outcome(request), pod(request), row)),
            );
        };
        let mut records = requests.unheld(COLUMNS, Vec::new, add, |records, later| records.extend(later))?;
        requests.others.iter().for_each(|request| add(&mut records, request));
        Ok(records)
    }

    /// Joins a request with its stream. Returns `None` if its response did not begin, or was not a stream.
    fn of(request: &Request, outcome: Outcome, pod: Option<Arc<str>>, row: &StreamRow) -> Option<Self> {
        let is_stream = outcome.is_broken_stream()
            || matches!(outcome, Outcome::Ok | Outcome::StreamStalled | Outcome::Cancelled);
        (is_stream && request.row.head.is_some()).then(|| Self {
            pod,
            is_counted: request.row.phase == Phase::Main,
            begun: request.begun(),
            end: request.row.end,
            outcome,
            row: row.clone(),
        })
    }

    /// Returns true if the stream ended before it was complete.
    pub(crate) fn is_lost(&self) -> bool {
        self.outcome.is_broken_stream() || self.outcome == Outcome::StreamStalled
    }
}
