//! Takes the workers' rows off their hands: run directory, `latency.hlog`, live progress.
//!
//! One thread, which also owns the workers' threads. It judges nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, LineWriter};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

use super::records::RecordWriter;
use super::tally::{self, Counts};
use super::worker::Batch;
use super::{LoadError, Progress, Recent};
use crate::record::parts::PartWriter;
use crate::record::{Clock, Outcome, Phase, RequestRow, RunDir, Stamp};

/// The interval log's name in the run directory.
const LATENCY_LOG: &str = "latency.hlog";
/// Length of an interval of the log and of live progress.
const INTERVAL: Duration = Duration::from_secs(1);
/// A row arrives this long after its end at most, unless the disk stalls: an
/// interval of the log is written when it is over for so long.
const ROW_DELAY: Duration = Duration::from_millis(500);
/// The recorder looks at the time at least this often.
const TURN: Duration = Duration::from_millis(200);

/// Where the recorder writes to.
pub(super) struct Recorder<'a> {
    clock: Clock,
    /// The rows' tables, one per worker; none without a run directory.
    tables: Vec<PartWriter<RequestRow>>,
    records: Vec<RecordWriter>,
    log: Option<LatencyLog<'a>>,
    live: Live<'a>,
}

/// The files that the recorder writes.
pub(super) struct Files<'a> {
    /// The rows' tables, in the order of the workers; none without a run directory.
    pub(super) tables: Vec<PartWriter<RequestRow>>,
    /// Rows in other forms.
    pub(super) records: Vec<RecordWriter>,
    /// The interval log, where there is a run directory.
    pub(super) log: Option<&'a mut LogFile>,
}

/// What the interval log borrows for its life.
pub(super) struct LogFile {
    file: LineWriter<File>,
    serializer: V2DeflateSerializer,
}

impl LogFile {
    /// Creates the log in a run directory.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(super) fn create(run_dir: &RunDir) -> Result<Self, LoadError> {
        let path = run_dir.path().join(LATENCY_LOG);
        let file = File::create(&path).map_err(|source| LoadError::LatencyLog { path, source })?;
        Ok(Self { file: LineWriter::new(file), serializer: V2DeflateSerializer::new() })
    }
}

impl<'a> Recorder<'a> {
    /// A recorder that writes these files.
    ///
    /// # Errors
    /// When the log cannot be begun.
    pub(super) fn new(
        clock: Clock,
        zero: Stamp,
        files: Files<'a>,
        progress: &'a Mutex<Progress>,
        workers: usize,
    ) -> Result<Self, LoadError> {
        let Files { tables, records, log } = files;
        let log = log.map(|file| LatencyLog::begin(file, zero)).transpose()?;
        Ok(Self { clock, tables, records, log, live: Live::new(progress, zero, workers) })
    }

    /// Records until every worker has dropped its sender. `failed` is called
    /// once, when recording fails: from then on rows are only counted. The
    /// receiver goes with the recorder, so that no worker waits for one that is gone.
    ///
    /// # Errors
    /// When something could not be written; the rows in it are lost.
    pub(super) fn run(mut self, batches: Receiver<Batch>, failed: impl Fn()) -> Result<(), LoadError> {
        let mut result = Ok(());
        loop {
            let received = batches.recv_timeout(TURN);
            let now = self.clock.now();
            self.live.turn(now);
            let batch = match received {
                Ok(batch) => Some(batch),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Some(batch) = &batch {
                self.live.add(batch);
            }
            if result.is_ok() {
                result = self.write(batch, now);
                if result.is_err() {
                    failed();
                }
            }
        }
        result?;
        if let Some(log) = self.log {
            log.finish()?;
        }
        for table in self.tables {
            table.finish()?;
        }
        for record in self.records {
            let path = record.path().to_owned();
            record.finish().map_err(|source| LoadError::Record { path, source })?;
        }
        Ok(())
    }

    fn write(&mut self, batch: Option<Batch>, now: Stamp) -> Result<(), LoadError> {
        if let Some(log) = &mut self.log {
            if let Some(batch) = &batch {
                log.add(&batch.rows);
            }
            log.turn(now)?;
        }
        for record in &mut self.records {
            let rows = batch.as_ref().map_or(&[][..], |batch| &batch.rows);
            let written = record.write(rows);
            written.map_err(|source| LoadError::Record { path: record.path().to_owned(), source })?;
        }
        if let Some(batch) = batch
            && let Some(table) = self.tables.get_mut(batch.worker)
        {
            table.extend(&batch.rows)?;
        }
        for table in &mut self.tables {
            table.tick()?;
        }
        Ok(())
    }
}

/// The HdrHistogram interval log: response times of the counted part in
/// nanoseconds (3 digits; the column of maxima in milliseconds), in intervals of
/// a second by the time of the requests' end, one tag per outcome. A request
/// that failed counts with the time until it failed; `not_sent` and `cancelled`
/// have no time and are left out.
struct LatencyLog<'a> {
    writer: IntervalLogWriter<'a, 'a, LineWriter<File>, V2DeflateSerializer>,
    zero: Stamp,
    /// By number of the interval, counted from the zero.
    intervals: BTreeMap<i64, BTreeMap<Outcome, Histogram<u64>>>,
    /// Intervals before this one have been written.
    first_open: i64,
}

impl<'a> LatencyLog<'a> {
    fn begin(file: &'a mut LogFile, zero: Stamp) -> Result<Self, LoadError> {
        let start = UNIX_EPOCH + since_epoch(zero);
        let writer = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .with_start_time(start)
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut file.file, &mut file.serializer)
            .map_err(LoadError::latency_log)?;
        Ok(Self { writer, zero, intervals: BTreeMap::new(), first_open: 0 })
    }

    fn add(&mut self, rows: &[RequestRow]) {
        for row in rows {
            if row.phase == Phase::Main && !matches!(row.outcome, Outcome::NotSent | Outcome::Cancelled) {
                let interval = self.interval_of(row.end).max(self.first_open);
                let by_outcome = self.intervals.entry(interval).or_default();
                let histogram = by_outcome.entry(row.outcome).or_insert_with(tally::histogram);
                tally::record(histogram, tally::response_ns(row));
            }
        }
    }

    /// Writes the intervals that are over.
    fn turn(&mut self, now: Stamp) -> Result<(), LoadError> {
        let current = self.interval_of(now - ROW_DELAY);
        self.write_before(current)
    }

    fn finish(mut self) -> Result<(), LoadError> {
        self.write_before(i64::MAX)
    }

    fn write_before(&mut self, end: i64) -> Result<(), LoadError> {
        while let Some(entry) = self.intervals.first_entry().filter(|entry| *entry.key() < end) {
            let (interval, by_outcome) = entry.remove_entry();
            let length = i64::try_from(INTERVAL.as_nanos()).unwrap_or(i64::MAX);
            let start = since_epoch(self.zero.shifted_ns(interval.saturating_mul(length)));
            for (outcome, histogram) in by_outcome {
                self.writer
                    .write_histogram(&histogram, start, INTERVAL, Tag::new(outcome.as_str()))
                    .map_err(|e| LoadError::latency_log(io::Error::other(e)))?;
            }
        }
        self.first_open = self.first_open.max(end);
        Ok(())
    }

    fn interval_of(&self, at: Stamp) -> i64 {
        let length = i64::try_from(INTERVAL.as_nanos()).unwrap_or(i64::MAX);
        at.ns_since(self.zero).div_euclid(length)
    }
}

fn since_epoch(at: Stamp) -> Duration {
    Duration::from_nanos(u64::try_from(at.unix_ns()).unwrap_or(0))
}

/// The live figures.
struct Live<'a> {
    progress: &'a Mutex<Progress>,
    /// Scheduled and in flight, per worker.
    workers: Vec<(u64, u64)>,
    outcomes: Counts,
    error_statuses: BTreeMap<u16, u64>,
    grpc_statuses: BTreeMap<i32, u64>,
    recent: Histogram<u64>,
    recent_since: Stamp,
}

impl<'a> Live<'a> {
    fn new(progress: &'a Mutex<Progress>, zero: Stamp, workers: usize) -> Self {
        Self {
            progress,
            workers: vec![(0, 0); workers],
            outcomes: Counts::default(),
            error_statuses: BTreeMap::new(),
            grpc_statuses: BTreeMap::new(),
            recent: tally::histogram(),
            recent_since: zero,
        }
    }

    fn add(&mut self, batch: &Batch) {
        self.workers[batch.worker] = (batch.scheduled, batch.in_flight);
        for row in &batch.rows {
            self.outcomes.add(row.outcome, 1);
            match (row.outcome, row.grpc_status, row.status) {
                (Outcome::HttpError, Some(status), _) => *self.grpc_statuses.entry(status).or_default() += 1,
                (Outcome::HttpError, None, Some(status)) => {
                    *self.error_statuses.entry(status).or_default() += 1;
                }
                _ => {}
            }
            if tally::is_answered(row) {
                tally::record(&mut self.recent, tally::response_ns(row));
            }
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.scheduled = self.workers.iter().map(|(scheduled, _)| scheduled).sum();
        progress.in_flight = self.workers.iter().map(|(_, in_flight)| in_flight).sum();
        progress.outcomes.clone_from(&self.outcomes);
        progress.error_statuses.clone_from(&self.error_statuses);
        progress.grpc_statuses.clone_from(&self.grpc_statuses);
    }

    /// Begins a new interval of recent latencies when the last is over.
    fn turn(&mut self, now: Stamp) {
        if now < self.recent_since + INTERVAL {
            return;
        }
        let at = |quantile| Duration::from_nanos(self.recent.value_at_quantile(quantile));
        let recent = (!self.recent.is_empty()).then(|| Recent { p50: at(0.5), p99: at(0.99) });
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).recent = recent;
        self.recent.reset();
        self.recent_since = now;
    }
}
