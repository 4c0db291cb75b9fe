//! Receives rows from the workers and writes them to all outputs: the run directory, `latency.hlog`, live progress, and
//! the journal for a remote reader.
//!
//! Runs on one thread, which also owns the worker threads. It does not judge outcomes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::conntrack_listener::ConntrackListener;
use super::control::{Progress, Recent};
use super::error::{LoadError, Result};
use super::latency_log::{self, ByOutcome, INTERVAL, LatencyLog, LatencyLogFile, interval_of};
use super::live_feed::{Beside, LiveJournal, LiveJournalWriter, SourceProgress};
use super::open_streams::OpenRows;
use super::record_file::RecordWriter;
use super::second_series::{LoadSecond, SecondSeries};
use super::tally::{self, Times};
use super::worker::RowBatch;
use rolldrop_record::parts::{PartWriter, replace_open};
use rolldrop_record::{Clock, GapRow, Phase, RequestRow, Stamp, StreamRow};

/// Time within which the row of an ended request arrives, unless the disk stalls. Each interval of the log is written
/// this long after the interval ended.
const ROW_DELAY: Duration = Duration::from_millis(500);
/// Maximum time between two checks of the clock.
const TURN: Duration = Duration::from_millis(200);

/// The recorder, with all of its outputs.
pub(super) struct RowRecorder<'a> {
    clock: Clock,
    files: RecorderOutputs,
    seconds: Option<SecondsWriter<'a>>,
    series: SecondSeries,
    live: LiveFigures<'a>,
}

/// Outputs of the recorder, and the listener that it asks for evidence.
pub(super) struct RecorderOutputs {
    /// Row tables in worker order; empty without a run directory.
    pub(super) tables: Vec<PartWriter<RequestRow>>,
    /// Tables of streams in worker order; empty without a run directory, or if requests ask for no streams.
    pub(super) streams: Vec<StreamTable>,
    /// Additional row files in other formats.
    pub(super) records: Vec<RecordWriter>,
    /// Journal for a remote reader, if any. It needs a run directory.
    pub(super) journal: Option<Arc<LiveJournal>>,
    /// Listener that reports where connections went, if enabled in the settings.
    pub(super) listener: Option<ConntrackListener>,
}

/// One worker's stream tables, with the list of its open streams.
pub(super) struct StreamTable {
    run_dir: PathBuf,
    source: String,
    ended: PartWriter<StreamRow>,
    gaps: PartWriter<GapRow>,
}

impl StreamTable {
    /// Creates a worker's stream table.
    ///
    /// # Errors
    /// Returns an error if the table's directory cannot be created.
    pub(super) fn create(run_dir: &Path, source: &str, clock: Clock) -> Result<Self> {
        let ended = PartWriter::create(run_dir, source, clock)?;
        let gaps = PartWriter::create(run_dir, source, clock)?;
        Ok(Self { run_dir: run_dir.to_owned(), source: source.to_owned(), ended, gaps })
    }

    fn write(&mut self, batch: &RowBatch) -> Result<()> {
        self.ended.extend(&batch.streams)?;
        self.gaps.extend(&batch.gaps)?;
        if let Some(OpenRows { requests, streams }) = &batch.open {
            replace_open(&self.run_dir, &self.source, requests)?;
            replace_open(&self.run_dir, &self.source, streams)?;
        }
        Ok(())
    }

    /// Closes the table. Call this after the request table is closed, when no stream is open.
    fn finish(self) -> Result<()> {
        self.ended.finish()?;
        self.gaps.finish()?;
        let (run_dir, source) = (&self.run_dir, &self.source);
        replace_open::<StreamRow>(run_dir, source, &[])?;
        Ok(replace_open::<RequestRow>(run_dir, source, &[])?)
    }
}

impl<'a> RowRecorder<'a> {
    /// Creates the recorder for these sources. It borrows the log file for its lifetime.
    ///
    /// # Errors
    /// Returns an error if the log cannot be started.
    pub(super) fn new(
        clock: Clock,
        zero: Stamp,
        files: RecorderOutputs,
        log: &'a mut Option<LatencyLogFile>,
        progress: &'a Mutex<Progress>,
        sources: &[String],
    ) -> Result<Self> {
        let journal = || files.journal.clone().map(LiveJournal::writer);
        let seconds = log.as_mut().map(|log| SecondsWriter::begin(log, journal(), zero)).transpose()?;
        Ok(Self {
            clock,
            files,
            seconds,
            series: SecondSeries::new(zero),
            live: LiveFigures::new(progress, zero, sources),
        })
    }

    /// Records until every worker has dropped its sender, and returns the seconds of the counted part. Calls `failed`
    /// once if recording fails; later rows are only counted. Dropping the recorder also drops the receiver, so that no
    /// worker waits for a recorder that is gone.
    ///
    /// # Errors
    /// Returns an error if a row or a log entry could not be written; the affected rows are lost.
    pub(super) fn run(mut self, batches: Receiver<RowBatch>, failed: impl Fn()) -> Result<Vec<LoadSecond>> {
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
                self.series.add(&batch.rows);
            }
            self.series.end_before(now - ROW_DELAY);
            if result.is_ok() {
                result = self.write(batch, now);
                if result.is_err() {
                    failed();
                }
            }
        }
        result?;
        if let Some(seconds) = &mut self.seconds {
            seconds.write_before(i64::MAX, &self.live.workers)?;
        }
        for table in self.files.tables {
            table.finish()?;
        }
        for streams in self.files.streams {
            streams.finish()?;
        }
        for record in self.files.records {
            let path = record.path().to_owned();
            record.finish().map_err(|source| LoadError::Record { path, source })?;
        }
        if let Some(journal) = self.seconds.and_then(|seconds| seconds.journal) {
            journal.end(self.live.workers);
        }
        Ok(self.series.finish())
    }

    fn write(&mut self, mut batch: Option<RowBatch>, now: Stamp) -> Result<()> {
        if let (Some(listener), Some(batch)) = (&self.files.listener, &mut batch) {
            listener.fill_in(batch.worker, &mut batch.rows);
        }
        if let Some(seconds) = &mut self.seconds {
            if let Some(batch) = &batch {
                seconds.add(&batch.rows);
            }
            seconds.write_before(interval_of(now - ROW_DELAY, seconds.zero), &self.live.workers)?;
        }
        for record in &mut self.files.records {
            let rows = batch.as_ref().map_or(&[][..], |batch| &batch.rows);
            let written = record.write(rows);
            written.map_err(|source| LoadError::Record { path: record.path().to_owned(), source })?;
        }
        if let Some(batch) = batch
            && let Some(table) = self.files.tables.get_mut(batch.worker)
        {
            table.extend(&batch.rows)?;
            if let Some(streams) = self.files.streams.get_mut(batch.worker) {
                streams.write(&batch)?;
            }
        }
        for table in &mut self.files.tables {
            table.tick()?;
        }
        for streams in &mut self.files.streams {
            streams.ended.tick()?;
            streams.gaps.tick()?;
        }
        Ok(())
    }
}

/// Seconds of the load, by the time at which requests ended. Each second is written to the interval log and to the
/// journal once it is over.
struct SecondsWriter<'a> {
    log: LatencyLog<'a>,
    journal: Option<LiveJournalWriter>,
    zero: Stamp,
    /// Open seconds by number, counted from the schedule's zero.
    open: BTreeMap<i64, Logged>,
    /// Number of the first second not yet written.
    first_open: i64,
}

#[derive(Default)]
struct Logged {
    response: ByOutcome,
    beside: Beside,
}

impl<'a> SecondsWriter<'a> {
    fn begin(file: &'a mut LatencyLogFile, journal: Option<LiveJournalWriter>, zero: Stamp) -> Result<Self> {
        let log = LatencyLog::begin(file, zero)?;
        Ok(Self { log, journal, zero, open: BTreeMap::new(), first_open: 0 })
    }

    fn add(&mut self, rows: &[RequestRow]) {
        for row in rows {
            let number = interval_of(row.end, self.zero).max(self.first_open);
            let second = self.open.entry(number).or_default();
            latency_log::add(&mut second.response, row);
            if self.journal.is_some() {
                second.beside.add(row);
            }
        }
    }

    /// Writes the seconds before `end`, including those in which no request ended, so that a reader can tell that the
    /// load continues.
    fn write_before(&mut self, end: i64, reached: &[SourceProgress]) -> Result<()> {
        let after_last = self.open.last_key_value().map_or(self.first_open, |(number, _)| number + 1);
        let end = if end == i64::MAX { after_last } else { end };
        for number in self.first_open..end {
            let Logged { response, beside } = self.open.remove(&number).unwrap_or_default();
            self.log.write(number, &response)?;
            if let Some(journal) = &mut self.journal {
                journal.push(beside.batch(number.unsigned_abs(), &response, reached));
            }
        }
        self.first_open = self.first_open.max(end);
        Ok(())
    }
}

/// Figures for the live display.
struct LiveFigures<'a> {
    progress: &'a Mutex<Progress>,
    /// Progress by worker.
    workers: Vec<SourceProgress>,
    recent: Times,
    recent_since: Stamp,
}

impl<'a> LiveFigures<'a> {
    fn new(progress: &'a Mutex<Progress>, zero: Stamp, sources: &[String]) -> Self {
        let reached =
            |source: &String| SourceProgress { source: source.clone(), ..SourceProgress::default() };
        Self {
            progress,
            workers: sources.iter().map(reached).collect(),
            recent: Times::default(),
            recent_since: zero,
        }
    }

    fn add(&mut self, batch: &RowBatch) {
        let worker = &mut self.workers[batch.worker];
        (worker.scheduled, worker.in_flight) = (batch.scheduled, batch.in_flight);
        worker.rows += batch.rows.len() as u64;
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        for row in &batch.rows {
            progress.outcomes.add(row.outcome, 1);
            match row.phase {
                Phase::Warmup => progress.warmup.add(row.outcome, 1),
                Phase::Main => worker.main.add(row.outcome, 1),
            }
            progress.error_statuses.add(row);
            if tally::is_answered(row) {
                self.recent.record(row.response_ns());
            }
        }
        progress.scheduled = self.workers.iter().map(|worker| worker.scheduled).sum();
        progress.in_flight = self.workers.iter().map(|worker| worker.in_flight).sum();
    }

    /// Starts a new interval of recent response times if the previous one is over.
    fn turn(&mut self, now: Stamp) {
        if now < self.recent_since + INTERVAL {
            return;
        }
        let recent = std::mem::take(&mut self.recent);
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).recent = Recent::of(&recent);
        self.recent_since = now;
    }
}
