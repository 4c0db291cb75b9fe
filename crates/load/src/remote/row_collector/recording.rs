//! Records the workers' reports while the load runs: `latency.hlog` for all workers together, and the rows that were
//! not `ok`.
//!
//! These rows stay in a separate directory until it is known which workers' parts arrive. A worker's parts contain
//! the same rows. If the parts do not arrive, the rows become a part of the table instead.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use tokio::sync::mpsc::Receiver;

use super::CollectError;
use crate::latency_log::{ByOutcome, LatencyLog, LatencyLogFile};
use crate::live_feed::LiveBatch;
use rolldrop_record::LIVE_DIR;
use rolldrop_record::parts::{self, PartWriter, Row};
use rolldrop_record::{Clock, Outcome, RequestRow, RunDir, RunDirError, Stamp};

/// Number of seconds by which a batch from any worker must be ahead before a second is written.
const LAG: i64 = 10;

/// Records until all senders have been dropped.
///
/// # Errors
/// Returns an error if writing fails.
pub(super) fn record(
    run_dir: &RunDir,
    clock: Clock,
    zero: Stamp,
    mut batches: Receiver<LiveBatch>,
) -> Result<(), CollectError> {
    let mut file = LatencyLogFile::create(run_dir)?;
    let mut seconds =
        MergedSeconds { log: LatencyLog::begin(&mut file, zero)?, open: BTreeMap::new(), first: 0 };
    let mut rows = PartWriter::<RequestRow>::create(&run_dir.path().join(LIVE_DIR), "live", clock)?;
    while let Some(batch) = batches.blocking_recv() {
        seconds.add(&batch)?;
        rows.extend(&batch.rows)?;
    }
    seconds.write_before(i64::MAX)?;
    rows.finish()?;
    Ok(())
}

/// Seconds of the load, over all workers.
struct MergedSeconds<'a> {
    log: LatencyLog<'a>,
    open: BTreeMap<i64, ByOutcome>,
    /// Number of the first second not yet written.
    first: i64,
}

impl MergedSeconds<'_> {
    fn add(&mut self, batch: &LiveBatch) -> Result<(), CollectError> {
        let n = i64::try_from(batch.n).unwrap_or(i64::MAX);
        let second = self.open.entry(n.max(self.first)).or_default();
        for (outcome, packed) in &batch.response {
            match packed.unpack() {
                Ok(times) => second.entry(*outcome).or_default().merge(&times),
                Err(error) => tracing::warn!(%error, "a load worker's latencies are missing"),
            }
        }
        self.write_before(n.saturating_sub(LAG))
    }

    fn write_before(&mut self, end: i64) -> Result<(), CollectError> {
        while let Some(second) = self.open.first_entry().filter(|second| *second.key() < end) {
            let (n, times) = second.remove_entry();
            self.log.write(n, &times)?;
        }
        self.first = self.first.max(end);
        Ok(())
    }
}

/// Number of rows kept, by source.
pub(super) type KeptRows = BTreeMap<String, u64>;

/// Turns the reported rows of these sources into parts, without rows that are already in the table, and removes all
/// other reported rows.
///
/// # Errors
/// Returns an error if the rows cannot be read or written.
pub(super) fn keep(
    run_dir: &RunDir,
    clock: Clock,
    sources: &HashSet<String>,
) -> Result<KeptRows, CollectError> {
    let (live, mut kept) = (run_dir.path().join(LIVE_DIR), KeptRows::new());
    if !sources.is_empty() {
        remove_unfinished(run_dir, sources)?;
        let mut known: HashSet<(String, u64)> = HashSet::new();
        for path in parts::parts_of::<RequestRow>(run_dir.path())? {
            if is_of(&path, sources) {
                parts::each_row_of(&[path], |row: &RequestRow| {
                    if row.outcome != Outcome::Ok {
                        known.insert((row.source.to_string(), row.seq));
                    }
                })?;
            }
        }
        let mut writers: BTreeMap<String, PartWriter<RequestRow>> = BTreeMap::new();
        for path in parts::parts_of::<RequestRow>(&live)? {
            let mut written = Ok(());
            let mut write = |row: &RequestRow| {
                let source = row.source.to_string();
                if !sources.contains(&source) || !known.insert((source.clone(), row.seq)) {
                    return Ok(());
                }
                *kept.entry(source.clone()).or_default() += 1;
                let writer = match writers.entry(source) {
                    Entry::Occupied(writer) => writer.into_mut(),
                    Entry::Vacant(entry) => {
                        let name = format!("{}-live", entry.key());
                        entry.insert(PartWriter::create(run_dir.path(), &name, clock)?)
                    }
                };
                writer.extend([row])
            };
            parts::each_row_of(&[path], |row| {
                if written.is_ok() {
                    written = write(row);
                }
            })?;
            written?;
        }
        for writer in writers.into_values() {
            writer.finish()?;
        }
    }
    match fs::remove_dir_all(&live) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RunDirError::Io { path: live, source }.into())
        }
        _ => Ok(kept),
    }
}

/// Removes parts that will never be completed.
fn remove_unfinished(run_dir: &RunDir, sources: &HashSet<String>) -> Result<(), CollectError> {
    let table = run_dir.path().join(RequestRow::TABLE);
    for entry in fs::read_dir(&table).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "part") && is_of(&path.with_extension(""), sources) {
            fs::remove_file(&path).map_err(|source| RunDirError::Io { path, source })?;
        }
    }
    Ok(())
}

/// Returns true if a part belongs to one of these sources.
fn is_of(path: &Path, sources: &HashSet<String>) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    name.rsplit_once('-').is_some_and(|(source, _)| sources.contains(source))
}
