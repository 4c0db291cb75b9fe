//! `latency.hlog`: response times in HdrHistogram's interval log format.
//!
//! Contains the times of the counted part in nanoseconds (3 digits; the column for the maximum is in milliseconds), in
//! one-second intervals by the time at which requests ended, with one tag per outcome. A failed request counts with the
//! time until it failed; `not_sent` and `cancelled` have no time and are left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, LineWriter};
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

use super::error::{LoadError, Result};
use super::tally::Times;
use rolldrop_record::{Outcome, Phase, RequestRow, RunDir, Stamp};

/// File name of the log in the run directory.
const LATENCY_LOG: &str = "latency.hlog";
/// Length of an interval.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Response times by outcome.
pub(super) type ByOutcome = BTreeMap<Outcome, Times>;

/// Adds a request's response time, if there is one and the request belongs to the counted part.
pub(super) fn add(by_outcome: &mut ByOutcome, row: &RequestRow) {
    if row.phase == Phase::Main && !matches!(row.outcome, Outcome::NotSent | Outcome::Cancelled) {
        by_outcome.entry(row.outcome).or_default().record(row.response_ns());
    }
}

/// Returns the number of the interval that contains a stamp, counted from the schedule's zero.
pub(super) fn interval_of(at: Stamp, zero: Stamp) -> i64 {
    at.ns_since(zero).div_euclid(length_ns())
}

/// File and buffers that the log borrows.
pub(super) struct LatencyLogFile {
    file: LineWriter<File>,
    serializer: V2DeflateSerializer,
}

impl LatencyLogFile {
    /// Creates the log in a run directory.
    ///
    /// # Errors
    /// Returns an error if the log cannot be created.
    pub(super) fn create(run_dir: &RunDir) -> Result<Self> {
        let path = run_dir.path().join(LATENCY_LOG);
        let file = File::create(&path).map_err(|source| LoadError::LatencyLog { path, source })?;
        Ok(Self { file: LineWriter::new(file), serializer: V2DeflateSerializer::new() })
    }
}

/// Writer of the log, one interval at a time.
pub(super) struct LatencyLog<'a> {
    writer: IntervalLogWriter<'a, 'a, LineWriter<File>, V2DeflateSerializer>,
    zero: Stamp,
}

impl<'a> LatencyLog<'a> {
    /// Writes the header that precedes the intervals.
    ///
    /// # Errors
    /// Returns an error if the header cannot be written.
    pub(super) fn begin(file: &'a mut LatencyLogFile, zero: Stamp) -> Result<Self> {
        let writer = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .with_start_time(UNIX_EPOCH + since_epoch(zero))
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut file.file, &mut file.serializer)
            .map_err(LoadError::latency_log)?;
        Ok(Self { writer, zero })
    }

    /// Writes an interval.
    ///
    /// # Errors
    /// Returns an error if the interval cannot be written.
    pub(super) fn write(&mut self, interval: i64, by_outcome: &ByOutcome) -> Result<()> {
        let start = since_epoch(self.zero.shifted_ns(interval.saturating_mul(length_ns())));
        for (outcome, histogram) in by_outcome {
            self.writer
                .write_histogram(histogram, start, INTERVAL, Tag::new(outcome.as_str()))
                .map_err(|e| LoadError::latency_log(io::Error::other(e)))?;
        }
        Ok(())
    }
}

fn length_ns() -> i64 {
    i64::try_from(INTERVAL.as_nanos()).unwrap_or(i64::MAX)
}

fn since_epoch(at: Stamp) -> Duration {
    Duration::from_nanos(u64::try_from(at.unix_ns()).unwrap_or(0))
}
