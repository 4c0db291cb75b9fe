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

impl RecorderOutputs {
    fn write_tables(&mut self, batch: Option<&RowBatch>) -> Result<()> {
        if let Some(batch) = batch
            && let Some(table) = self.tables.get_mut(batch.worker)
        {
            table.extend(&batch.rows)?;
            if let Some(streams) = self.streams.get_mut(batch.worker) {
                streams.write(batch)?;
            }
        }
        for table in &mut self.tables {
            table.tick()?;
        }
        for streams in &mut self.streams {
            streams.ended.tick()?;
            streams.gaps.tick()?;
        }
        Ok(())
    }

    /// Closes the tables, also if they could not be written in full (`written`) or one cannot be closed; then the lists
    /// of open streams remain.
    fn finish_tables(&mut self, mut written: Result<()>) -> Result<()> {
        for table in std::mem::take(&mut self.tables) {
            written = written.and(table.finish().map(drop).map_err(LoadError::from));
        }
        written?;
        std::mem::take(&mut self.streams).into_iter().try_for_each(StreamTable::finish)
    }
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
    /// when the tables or another output fails; the others continue without it. Dropping the recorder also drops the
    /// receiver, so that no worker waits for a recorder that is gone.
    ///
    /// # Errors
    /// Returns an error if a row or a log entry could not be written; the affected rows are lost.
    pub(super) fn run(mut self, batches: Receiver<RowBatch>, failed: impl Fn()) -> Result<Vec<LoadSecond>> {
        let (mut tables, mut others) = (Ok(()), Ok(()));
        loop {
            let received = batches.recv_timeout(TURN);
            let now = self.clock.now();
            self.live.turn(now);
            let mut batch = match received {
                Ok(batch) => Some(batch),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Some(batch) = &batch {
                self.live.add(batch);
                self.series.add(&batch.rows);
            }
            self.series.end_before(now - ROW_DELAY);
            if let (Some(listener), Some(batch)) = (&self.files.listener, &mut batch) {
                listener.fill_in(batch.worker, &mut batch.rows);
            }
            if tables.is_ok() {
                tables = self.files.write_tables(batch.as_ref()).inspect_err(|_| failed());
            }
            others = others.and(self.write_others(batch.as_ref(), now).inspect_err(|_| failed()));
        }
        let tables = self.files.finish_tables(tables);
        if let Some(seconds) = &mut self.seconds {
            others = others.and(seconds.write_before(i64::MAX, &self.live.workers));
        }
        for record in self.files.records {
            others = others.and(record.finish());
        }
        tables.and(others)?;
        if let Some(journal) = self.seconds.and_then(|seconds| seconds.journal) {
            journal.end(self.live.workers);
        }
        Ok(self.series.finish())
    }

    /// Writes to the outputs other than the tables. Closes those that fail, and returns the first error.
    fn write_others(&mut self, batch: Option<&RowBatch>, now: Stamp) -> Result<()> {
        let rows = batch.map_or(&[][..], |batch| &batch.rows);
        let mut failures = Vec::new();
        let mut is_written = |written: Result<()>| written.map_err(|e| failures.push(e)).is_ok();
        self.seconds.take_if(|seconds| {
            seconds.add(rows);
            let end = interval_of(now - ROW_DELAY, seconds.zero);
            !is_written(seconds.write_before(end, &self.live.workers))
        });
        self.files.records.retain_mut(|record| is_written(record.write(rows)));
        failures.into_iter().next().map_or(Ok(()), Err)
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

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::load_plan::Plan;
    use crate::record_file::{Record, RecordFormat};
    use crate::{Load, LoadTarget};
    use rolldrop_record::parts::read_table;

    #[test]
    fn full_disk_of_record_spares_other_outputs() {
        const BATCH: u64 = 1_000;
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let settings = Load { targets: vec![LoadTarget::new("web", "http://web:80/")], ..Load::new("") };
        let plan = Plan::new(settings).unwrap();
        let record = |format, path: &Path| {
            RecordWriter::create(&Record { format, path: path.to_owned() }, &plan).unwrap()
        };
        let [before, after] = ["before.csv", "after.json"].map(|name| dir.path().join(name));
        let files = RecorderOutputs {
            tables: vec![PartWriter::create(dir.path(), "load-0", clock).unwrap()],
            streams: vec![StreamTable::create(dir.path(), "load-0", clock).unwrap()],
            records: vec![
                record(RecordFormat::Csv, &before),
                record(RecordFormat::Csv, Path::new("/dev/full")),
                record(RecordFormat::VegetaJson, &after),
            ],
            journal: None,
            listener: None,
        };
        let now = clock.now();
        let row = |seq| RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, now, now);
        let (batches, received) = channel();
        for batch in 0..3 {
            let rows = (batch * BATCH..(batch + 1) * BATCH).map(row).collect();
            let (streams, gaps) = Default::default();
            let scheduled = (batch + 1) * BATCH;
            let batch = RowBatch { worker: 0, rows, streams, gaps, open: None, scheduled, in_flight: 0 };
            batches.send(batch).unwrap();
        }
        drop(batches);
        let (progress, failures) = (Mutex::default(), std::cell::Cell::new(0));
        let mut no_log = None;
        let sources = ["load-0".to_owned()];
        let recorder = RowRecorder::new(clock, now, files, &mut no_log, &progress, &sources).unwrap();
        let error = recorder.run(received, || failures.set(failures.get() + 1)).unwrap_err();
        assert!(
            matches!(&error, LoadError::Record { path, .. } if path == Path::new("/dev/full")),
            "{error}"
        );
        assert_eq!(failures.get(), 1);
        let rows: Vec<RequestRow> = read_table(dir.path()).unwrap();
        assert_eq!(rows.len() as u64, 3 * BATCH);
        let lines = |path| std::fs::read_to_string(path).unwrap().lines().count() as u64;
        assert_eq!((lines(&before), lines(&after)), (3 * BATCH + 1, 3 * BATCH));
    }
}
