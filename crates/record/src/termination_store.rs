//! Directory with a `rolldrop watch` history: one JSON object per line, in files that are filled one after another. Old
//! records are removed by deleting the oldest file.
//!
//! `docs/watch.md` documents the format. The calling crates decide what a line contains; this module adds the version
//! and the time, and makes sure that a record is on disk before it counts as written.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Stamp;
use super::run_dir::{RunDirError, open_file, private_dir};

/// Version of the line format. A new kind of record increases it; a new field does not.
pub const HISTORY_VERSION: u32 = 1;

const LOCK: &str = "lock";
const PREFIX: &str = "terminations-";
const SUFFIX: &str = ".jsonl";

/// Limits on a history.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// Time for which records are kept. A file is deleted when its last record is older.
    pub kept: Duration,
    /// Maximum total size of the files, in bytes. Lines written between two calls of [`TerminationStore::rotate`] may
    /// exceed it.
    pub bytes: u64,
    /// Size, in bytes, after which the next file begins.
    pub file_bytes: u64,
    /// Time after which the next file begins.
    pub file_time: Duration,
}

impl Default for StoreLimits {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { kept: 30 * day, bytes: 1 << 30, file_bytes: 8 << 20, file_time: day }
    }
}

/// Failure to write or read a history.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the fields")]
pub enum StoreError {
    /// Another process is writing this history.
    #[error("another `rolldrop watch` is writing to {0}: stop it, or choose another directory")]
    InUse(PathBuf),
    /// The directory contains no history.
    #[error("{0} has no history: choose a directory that `rolldrop watch --out` has written")]
    NoHistory(PathBuf),
    /// A later version of rolldrop wrote the record.
    #[error(
        "{path}:{line} has schema version {found}, but this version of rolldrop reads {HISTORY_VERSION}: use the \
         version that wrote it, or choose another directory"
    )]
    Newer { path: PathBuf, line: usize, found: u32 },
    /// A line is not a record.
    #[error("{path}:{line}: {why}: restore the file, or remove it from the history")]
    Malformed { path: PathBuf, line: usize, why: String },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] RunDirError),
}

impl StoreError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File(RunDirError::Io { path: path.to_owned(), source })
    }
}

/// Function that takes the time at which a line was written, and the line, which is a JSON object. The function parses
/// what it needs.
pub type TakeLine<'a> = dyn FnMut(Stamp, &[u8]) -> Result<(), serde_json::Error> + 'a;

/// A line as it is written.
#[derive(Serialize)]
struct WrittenLine<'a, T> {
    schema_version: u32,
    recorded_ns: Stamp,
    #[serde(flatten)]
    record: &'a T,
}

/// The part of a line that this module adds.
#[derive(Deserialize)]
struct LineHead {
    schema_version: u32,
    /// Required in this version; a newer version may omit it.
    recorded_ns: Option<Stamp>,
}

/// One file of a history.
#[derive(Debug)]
struct HistoryFile {
    number: u64,
    path: PathBuf,
    /// Size of the complete lines, in bytes.
    bytes: u64,
    /// Times of the first and the latest record; `None` in an empty file.
    times: Option<(Stamp, Stamp)>,
}

impl HistoryFile {
    fn new(dir: &Path, number: u64) -> Self {
        Self { number, path: dir.join(format!("{PREFIX}{number:06}{SUFFIX}")), bytes: 0, times: None }
    }

    fn count(&mut self, bytes: usize, at: Stamp) {
        self.bytes += bytes as u64;
        let (first, latest) = self.times.unwrap_or((at, at));
        self.times = Some((first, latest.max(at)));
    }

    /// Reads the complete lines. Returns a description of the last line if it is incomplete.
    fn read(&mut self, take: &mut TakeLine<'_>) -> Result<Option<String>, StoreError> {
        let path = self.path.clone();
        let mut reader = BufReader::new(open_file(&path)?);
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            if reader.read_until(b'\n', &mut bytes).map_err(StoreError::io(&path))? == 0 {
                break;
            }
            if bytes.last() != Some(&b'\n') {
                return Ok(Some(format!("{} ends in the middle of line {line}", path.display())));
            }
            let malformed = |error: serde_json::Error| StoreError::Malformed {
                path: path.clone(),
                line,
                why: error.to_string(),
            };
            let head: LineHead = serde_json::from_slice(&bytes).map_err(malformed)?;
            if head.schema_version > HISTORY_VERSION {
                return Err(StoreError::Newer { path, line, found: head.schema_version });
            }
            let missing = || malformed(serde::de::Error::missing_field("recorded_ns"));
            let recorded = head.recorded_ns.ok_or_else(missing)?;
            take(recorded, &bytes).map_err(malformed)?;
            self.count(bytes.len(), recorded);
        }
        Ok(None)
    }
}

/// Returns the files of a history, oldest first. The order comes from their numbers, because the clock may have been
/// set back.
fn files(dir: &Path) -> Result<VecDeque<HistoryFile>, StoreError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir))? {
        let name = entry.map_err(StoreError::io(dir))?.file_name();
        let number: Option<u64> =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers.into_iter().map(|number| HistoryFile::new(dir, number)).collect())
}

/// Returns true if a directory contains a history.
pub fn has_history(dir: &Path) -> bool {
    files(dir).is_ok_and(|files| !files.is_empty())
}

/// Reads a history, oldest record first, even while a watch is writing it. `take` receives each record with the time at
/// which it was written. Returns descriptions of the incomplete lines, which are skipped.
///
/// # Errors
/// Fails if there is no history, or a file cannot be read.
pub fn read_history(dir: &Path, take: &mut TakeLine<'_>) -> Result<Vec<String>, StoreError> {
    let files = files(dir)?;
    if files.is_empty() {
        return Err(StoreError::NoHistory(dir.to_owned()));
    }
    let mut skipped = Vec::new();
    for mut file in files {
        match file.read(take) {
            // The watch that is writing the history has just deleted its oldest file.
            Err(StoreError::File(RunDirError::Io { source, .. }))
                if source.kind() == io::ErrorKind::NotFound => {}
            torn => skipped.extend(torn?.map(|torn| format!("{torn}, which is left out"))),
        }
    }
    Ok(skipped)
}

/// A history that is open for writing. No other process has it open for writing.
#[derive(Debug)]
pub struct TerminationStore {
    dir: PathBuf,
    limits: StoreLimits,
    /// Files before the current one, oldest first.
    earlier: VecDeque<HistoryFile>,
    current: HistoryFile,
    writer: File,
    /// Locked until this process ends, however it ends.
    _lock: File,
}

impl TerminationStore {
    /// Opens the history in `dir`, which is created if it does not exist. `take` receives the existing records, as in
    /// [`read_history`]. Cuts off a last line that a kill left incomplete. Also returns descriptions of the lost
    /// records.
    ///
    /// # Errors
    /// Fails if another process is writing the history, or the directory cannot be read and written.
    pub fn open(
        dir: &Path,
        limits: StoreLimits,
        take: &mut TakeLine<'_>,
    ) -> Result<(Self, Vec<String>), StoreError> {
        if let Some(above) = dir.parent() {
            fs::create_dir_all(above).map_err(StoreError::io(above))?;
        }
        match private_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::io(dir)(error));
            }
            // An existing directory keeps its permissions.
            Ok(()) | Err(_) => {}
        }
        let path = dir.join(LOCK);
        let lock = OpenOptions::new().create(true).append(true).open(&path).map_err(StoreError::io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(StoreError::io(&path)(source)),
        }
        let mut earlier = files(dir)?;
        let mut lost = Vec::new();
        for file in &mut earlier {
            lost.extend(file.read(take)?.map(|torn| format!("{torn}: that record is lost")));
        }
        let current = earlier.pop_back().unwrap_or_else(|| HistoryFile::new(dir, 1));
        let writer = open_to_append(dir, &current)?;
        Ok((Self { dir: dir.to_owned(), limits, earlier, current, writer, _lock: lock }, lost))
    }

    /// Writes a record, and waits until it is on disk.
    ///
    /// # Errors
    /// Fails if the record cannot be written, for example to a full disk. Then the history does not contain it.
    pub fn append(&mut self, now: Stamp, record: &impl Serialize) -> Result<(), StoreError> {
        let io = |source| StoreError::io(&self.current.path)(source);
        let line = WrittenLine { schema_version: HISTORY_VERSION, recorded_ns: now, record };
        let mut line = serde_json::to_vec(&line).map_err(|error| io(error.into()))?;
        line.push(b'\n');
        if let Err(error) = self.writer.write_all(&line).and_then(|()| self.writer.sync_data()) {
            // Remove the partial line so that the next one starts cleanly.
            let _ = self.writer.set_len(self.current.bytes);
            return Err(io(error));
        }
        self.current.count(line.len(), now);
        Ok(())
    }

    /// Begins the next file if the current one is large or old, and deletes the oldest files beyond the limits. The
    /// caller first records the time up to which the history is complete, so that a deleted file contains both the
    /// terminations and the statement about that time.
    ///
    /// # Errors
    /// Fails if a file cannot be created or deleted.
    pub fn rotate(&mut self, now: Stamp) -> Result<(), StoreError> {
        let is_old = |limit: Duration, since: Stamp| now > since + limit;
        let is_done = self.current.times.is_some_and(|(first, latest)| {
            // A new file also begins if the clock was set back, so that all records in a file are of about the same
            // age.
            self.current.bytes >= self.limits.file_bytes
                || is_old(self.limits.file_time, first)
                || now < latest
        });
        if is_done {
            let next = HistoryFile::new(&self.dir, self.current.number + 1);
            self.writer = open_to_append(&self.dir, &next)?;
            self.earlier.push_back(std::mem::replace(&mut self.current, next));
        }
        let total = |store: &Self| store.earlier.iter().map(|file| file.bytes).sum::<u64>();
        let allowed = self.limits.bytes.saturating_sub(self.limits.file_bytes);
        while let Some(oldest) = self.earlier.front()
            && (total(self) > allowed
                || oldest.times.is_none_or(|(_, latest)| is_old(self.limits.kept, latest)))
        {
            fs::remove_file(&oldest.path).map_err(StoreError::io(&oldest.path))?;
            self.earlier.pop_front();
        }
        Ok(())
    }
}

/// Opens a file of the history for writing, after its last complete line.
fn open_to_append(dir: &Path, file: &HistoryFile) -> Result<File, StoreError> {
    let io = |source| StoreError::io(&file.path)(source);
    let writer = OpenOptions::new().create(true).append(true).open(&file.path).map_err(io)?;
    writer.set_len(file.bytes).map_err(io)?;
    // Make sure that the file's directory entry survives a system crash.
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(StoreError::io(dir))?;
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn day(n: u32) -> Stamp {
        Stamp::from_unix_ns(1_767_366_245_000_000_000) + n * DAY
    }

    fn open(dir: &Path, limits: StoreLimits) -> (TerminationStore, Vec<String>, Vec<Value>) {
        let mut found = Vec::new();
        let mut take = |_: Stamp, line: &[u8]| serde_json::from_slice(line).map(|record| found.push(record));
        let (store, lost) = TerminationStore::open(dir, limits, &mut take).unwrap();
        (store, lost, found)
    }

    fn numbers(dir: &Path) -> Vec<i64> {
        let mut found = Vec::new();
        let mut take = |_: Stamp, line: &[u8]| {
            serde_json::from_slice(line).map(|record: Value| found.push(record["n"].as_i64().unwrap()))
        };
        read_history(dir, &mut take).unwrap();
        found
    }

    fn ignore(_: Stamp, line: &[u8]) -> Result<(), serde_json::Error> {
        serde_json::from_slice(line).map(|_: Value| ())
    }

    fn write(store: &mut TerminationStore, at: Stamp, n: i64) {
        store.append(at, &json!({"kind": "x", "n": n})).unwrap();
        store.rotate(at).unwrap();
    }

    #[test]
    fn store_continues_after_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history/of");
        let (mut store, lost, found) = open(&path, StoreLimits::default());
        assert!(lost.is_empty() && found.is_empty());
        write(&mut store, day(0), 1);
        store.writer.write_all(b"{\"schema_version\":1,\"reco").unwrap();
        let skipped = read_history(&path, &mut ignore).unwrap();
        assert!(
            skipped[0].ends_with("terminations-000001.jsonl ends in the middle of line 2, which is left out")
        );
        drop(store);
        let (mut store, lost, found) = open(&path, StoreLimits::default());
        assert!(lost[0].ends_with("ends in the middle of line 2: that record is lost"), "{lost:?}");
        assert_eq!((found.len(), &found[0]["n"]), (1, &json!(1)));
        write(&mut store, day(0), 2);
        assert_eq!(numbers(&path), [1, 2]);
        // A kill may leave a file without a complete line.
        drop(store);
        fs::write(path.join("terminations-000002.jsonl"), "{").unwrap();
        let (mut store, lost, _) = open(&path, StoreLimits::default());
        assert_eq!(lost.len(), 1);
        write(&mut store, day(0), 3);
        assert_eq!(numbers(&path), [1, 2, 3]);
    }

    #[test]
    fn store_deletes_oldest_records_by_age() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, ..) = open(dir.path(), StoreLimits::default());
        (0..=32).for_each(|n| write(&mut store, day(n) + Duration::from_secs(n.into()), n.into()));
        assert_eq!(numbers(dir.path()), (2..=32).collect::<Vec<_>>());
        drop(store);
        let (mut store, _, found) = open(dir.path(), StoreLimits::default());
        assert_eq!(found.len(), 31);
        store.rotate(day(90)).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the lock and the current file");
    }

    #[test]
    fn store_deletes_oldest_records_by_size() {
        let dir = tempfile::tempdir().unwrap();
        let limits = StoreLimits { bytes: 1000, file_bytes: 100, ..StoreLimits::default() };
        let (mut store, ..) = open(dir.path(), limits);
        for n in 0..100 {
            write(&mut store, day(0), n);
            let entries = fs::read_dir(dir.path()).unwrap().flatten();
            let bytes: u64 = entries.map(|entry| entry.metadata().unwrap().len()).sum();
            assert!(bytes <= 1000, "{bytes}");
        }
        let left = numbers(dir.path());
        assert!(left.len() >= 8 && left.last() == Some(&99), "{left:?}");
        assert!(left.is_sorted_by(|a, b| a + 1 == *b), "{left:?}");
    }

    #[test]
    fn store_keeps_records_when_clock_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, ..) = open(dir.path(), StoreLimits::default());
        write(&mut store, day(100), 1);
        write(&mut store, day(100), 2);
        write(&mut store, day(50), 3);
        drop(store);
        let (mut store, ..) = open(dir.path(), StoreLimits::default());
        write(&mut store, day(51), 4);
        assert_eq!(numbers(dir.path()), [1, 2, 3, 4], "in the order written");
        write(&mut store, day(101), 5);
        store.rotate(day(131)).unwrap();
        assert_eq!(numbers(dir.path()), [4, 5], "the latest record of each file decides");
    }

    #[test]
    fn store_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let (store, ..) = open(dir.path(), StoreLimits::default());
        let second = TerminationStore::open(dir.path(), StoreLimits::default(), &mut ignore);
        let error = second.unwrap_err();
        assert!(matches!(&error, StoreError::InUse(of) if of == dir.path()), "{error}");
        drop(store);
        open(dir.path(), StoreLimits::default());
        let none = tempfile::tempdir().unwrap();
        assert!(matches!(read_history(none.path(), &mut ignore), Err(StoreError::NoHistory(_))));
    }

    #[test]
    fn store_refuses_newer_schema() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, ..) = open(dir.path(), StoreLimits::default());
        write(&mut store, day(0), 1);
        drop(store);
        let path = dir.path().join("terminations-000001.jsonl");
        let line = fs::read_to_string(&path).unwrap();
        let newer = line.replace("\"schema_version\":1", "\"schema_version\":2");
        fs::write(&path, format!("{line}{newer}")).unwrap();
        let read = read_history(dir.path(), &mut ignore).unwrap_err().to_string();
        assert!(
            read.contains("000001.jsonl:2 has schema version 2, but this version of rolldrop reads 1"),
            "{read}"
        );
        let opened = TerminationStore::open(dir.path(), StoreLimits::default(), &mut ignore);
        assert!(matches!(opened, Err(StoreError::Newer { line: 2, found: 2, .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{line}{newer}"), "the file is unchanged");
        for malformed in ["nonsense", "{\"schema_version\":1}"] {
            fs::write(&path, format!("{line}{malformed}\n")).unwrap();
            let error = read_history(dir.path(), &mut ignore).unwrap_err().to_string();
            assert!(error.contains("000001.jsonl:2: "), "{error}");
        }
        fs::write(&path, "{\"schema_version\":2}\n").unwrap();
        assert!(matches!(read_history(dir.path(), &mut ignore), Err(StoreError::Newer { line: 1, .. })));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_leaves_no_partial_record() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, ..) = open(dir.path(), StoreLimits::default());
        write(&mut store, day(0), 1);
        store.writer = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let error = store.append(day(0), &json!({"n": 2})).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("No space left"), "{error}: {source}");
        drop(store);
        let (mut store, lost, found) = open(dir.path(), StoreLimits::default());
        assert_eq!((lost.len(), found.len()), (0, 1));
        write(&mut store, day(0), 2);
        assert_eq!(numbers(dir.path()), [1, 2]);
    }
}
