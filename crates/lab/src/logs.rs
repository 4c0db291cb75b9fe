//! Container log files: their location, format and rotation.
//!
//! The agent reads the output of a container's processes and writes it to a file line by line, as a container runtime
//! does: `TIME STREAM TAG TEXT`. The tag `F` ends a line, and `P` means that the line continues in the next entry. When
//! a file has grown too large, it is renamed and a new one is started, so no line is lost or appears in two files.
//!
//! Source: the format of the container runtime interface (kubernetes/kubernetes,
//! `staging/src/k8s.io/cri-client/pkg/logs`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStderr, ChildStdout};

use rolldrop_record::Clock;

/// Maximum size of a log before it is rotated (the kubelet's `containerLogMaxSize`).
const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// Maximum number of files per container run, including the current one (the kubelet's `containerLogMaxFiles`).
const MAX_FILES: usize = 5;
/// Maximum length of a line; a longer one is split (containerd's `max_container_log_line_size`).
const MAX_TEXT_BYTES: usize = 16 * 1024;
const CHUNK_BYTES: usize = 16 * 1024;

/// Returns the directory for the log files of a pod's containers (see [`container_log`]).
pub(crate) fn pod_log_dir(log_dir: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    log_dir.join("pods").join(format!("{namespace}_{name}_{uid}"))
}

/// Returns the log file of a container's current run, with stdout and stderr combined.
pub(crate) fn container_log(pod_log_dir: &Path, container: &str) -> PathBuf {
    pod_log_dir.join(format!("{container}.log"))
}

/// Returns the log file of a container's previous run.
pub(crate) fn previous_container_log(pod_log_dir: &Path, container: &str) -> PathBuf {
    pod_log_dir.join(format!("{container}.previous.log"))
}

/// One entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry<'a> {
    /// Time at which the output was read, in RFC 3339.
    pub time: &'a str,
    /// True if the entry ends its line.
    pub ends_line: bool,
    /// Text without the line ending.
    pub text: &'a [u8],
}

impl<'a> LogEntry<'a> {
    /// Parses an entry without its line ending; returns `None` if it is not an entry.
    pub(crate) fn parse(entry: &'a [u8]) -> Option<Self> {
        let mut parts = entry.splitn(4, |byte| *byte == b' ');
        let (time, _stream, tag, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(Self { time: std::str::from_utf8(time).ok()?, ends_line: tag == b"F", text })
    }
}

/// Returns the log file that follows the one with this inode number, in the container run whose current log is at
/// `path`. The result is the current log or a rotated one; `None` if there is none.
pub(crate) fn next_log(path: &Path, inode: u64) -> Option<PathBuf> {
    let mut files = set_aside(path).into_iter().map(|(_, file)| file).chain([path.to_owned()]);
    let is_it = |file: &PathBuf| fs::metadata(file).is_ok_and(|found| found.ino() == inode);
    files.find(is_it)?;
    files.next()
}

/// Returns the rotated logs, oldest first: `app.log.1`, `app.log.2`, …
fn set_aside(path: &Path) -> Vec<(u64, PathBuf)> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let number = |file: &fs::DirEntry| {
        file.file_name().to_str()?.strip_prefix(name)?.strip_prefix('.')?.parse::<u64>().ok()
    };
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = files.filter_map(|file| Some((number(&file)?, file.path()))).collect();
    found.sort_unstable();
    found
}

/// Log of one container run.
#[derive(Debug)]
pub(crate) struct ContainerLog {
    path: PathBuf,
    file: File,
    length: u64,
    clock: Clock,
}

impl ContainerLog {
    /// Starts the log of a new run: the existing log becomes the previous log, and older ones are deleted.
    ///
    /// # Errors
    ///
    /// Fails with the operating system's error.
    pub(crate) fn begin(path: &Path, clock: Clock) -> io::Result<Self> {
        if path.exists() {
            fs::rename(path, path.with_extension("previous.log"))?;
        }
        for (_, file) in set_aside(path) {
            fs::remove_file(file)?;
        }
        Ok(Self { path: path.to_owned(), file: File::create_new(path)?, length: 0, clock })
    }

    fn write(&mut self, entries: &[u8]) -> io::Result<()> {
        if self.length > MAX_BYTES {
            self.put_aside()?;
        }
        self.file.write_all(entries)?;
        self.length += entries.len() as u64;
        Ok(())
    }

    /// Rotates the log: starts a new file and deletes the oldest ones beyond the limit.
    fn put_aside(&mut self) -> io::Result<()> {
        let old = set_aside(&self.path);
        let number = old.last().map_or(1, |(number, _)| number + 1);
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        fs::rename(&self.path, name)?;
        (self.file, self.length) = (File::create_new(&self.path)?, 0);
        for (_, file) in old.iter().rev().skip(MAX_FILES - 2) {
            fs::remove_file(file)?;
        }
        Ok(())
    }
}

/// Recorder for the output of a process and its descendants.
#[derive(Debug)]
pub(crate) struct OutputRecorder {
    log: ContainerLog,
    stdout: OutputStream<ChildStdout>,
    stderr: OutputStream<ChildStderr>,
}

impl OutputRecorder {
    pub(crate) fn new(log: ContainerLog, stdout: Option<ChildStdout>, stderr: Option<ChildStderr>) -> Self {
        Self { log, stdout: OutputStream::new("stdout", stdout), stderr: OutputStream::new("stderr", stderr) }
    }

    /// Waits for output and records it; returns true if more may come. Safe to cancel.
    pub(crate) async fn step(&mut self) -> bool {
        let clock = self.log.clock;
        let entries = tokio::select! {
            entries = self.stdout.next(clock), if self.stdout.source.is_some() => entries,
            entries = self.stderr.next(clock), if self.stderr.source.is_some() => entries,
            else => return false,
        };
        self.write(&entries);
        true
    }

    /// Records the available output without waiting for more, because every process that could write has exited.
    pub(crate) fn finish(mut self) {
        let clock = self.log.clock;
        for entries in [self.stdout.rest(clock), self.stderr.rest(clock)] {
            self.write(&entries);
        }
    }

    /// Writes without an await so that nothing is lost when `step` is cancelled.
    fn write(&mut self, entries: &[u8]) {
        if let Err(error) = self.log.write(entries) {
            tracing::warn!(%error, log = %self.log.path.display(), "part of a log was lost");
        }
    }
}

/// Stdout or stderr of a container.
#[derive(Debug)]
struct OutputStream<T> {
    name: &'static str,
    /// `None` once the stream has been closed.
    source: Option<T>,
    /// Start of an unfinished line.
    line: Vec<u8>,
}

impl<T: AsyncRead + AsFd + Unpin> OutputStream<T> {
    fn new(name: &'static str, source: Option<T>) -> Self {
        Self { name, source, line: Vec::new() }
    }

    /// Waits for output and returns its entries.
    async fn next(&mut self, clock: Clock) -> Vec<u8> {
        let mut entries = Vec::new();
        let Some(source) = &mut self.source else { return entries };
        let mut chunk = [0; CHUNK_BYTES];
        match source.read(&mut chunk).await {
            Ok(read @ 1..) => self.take(&chunk[..read], clock, &mut entries),
            _ => {
                self.source = None;
                self.end(clock, &mut entries);
            }
        }
        entries
    }

    /// Returns the entries of the output that is already available.
    fn rest(&mut self, clock: Clock) -> Vec<u8> {
        let mut entries = Vec::new();
        if let Some(source) = self.source.take() {
            read_available(&source, |chunk| self.take(chunk, clock, &mut entries));
            self.end(clock, &mut entries);
        }
        entries
    }

    fn take(&mut self, chunk: &[u8], clock: Clock, entries: &mut Vec<u8>) {
        let time = time_of(clock);
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            self.line.extend_from_slice(text);
            while self.line.len() > MAX_TEXT_BYTES {
                let rest = self.line.split_off(MAX_TEXT_BYTES);
                self.entry(&time, "P", entries);
                self.line = rest;
            }
            if ends {
                self.entry(&time, "F", entries);
            }
        }
    }

    /// Ends the last line, which may lack a line ending.
    fn end(&mut self, clock: Clock, entries: &mut Vec<u8>) {
        if !self.line.is_empty() {
            self.entry(&time_of(clock), "F", entries);
        }
    }

    fn entry(&mut self, time: &str, tag: &str, entries: &mut Vec<u8>) {
        entries.extend_from_slice(format!("{time} {} {tag} ", self.name).as_bytes());
        entries.append(&mut self.line);
        entries.push(b'\n');
    }
}

/// Reads what is available in a pipe without waiting. The pipe belongs to the runtime, so reads never block.
pub(crate) fn read_available(source: &impl AsFd, mut take: impl FnMut(&[u8])) {
    let mut chunk = [0; CHUNK_BYTES];
    while let Ok(read @ 1..) = nix::unistd::read(source, &mut chunk) {
        take(&chunk[..read]);
    }
}

fn time_of(clock: Clock) -> String {
    let now = Timestamp::from_nanosecond(clock.now().unix_ns().into());
    now.map(|now| now.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries_of(path: &Path) -> Vec<String> {
        let bytes = fs::read(path).unwrap();
        let entries = bytes.split(|byte| *byte == b'\n').filter(|entry| !entry.is_empty());
        let shown = |entry| {
            let LogEntry { time, ends_line, text } = LogEntry::parse(entry).unwrap();
            time.parse::<Timestamp>().unwrap();
            format!("{}{}", String::from_utf8_lossy(text), if ends_line { "" } else { "…" })
        };
        entries.map(shown).collect()
    }

    fn stream() -> OutputStream<ChildStdout> {
        OutputStream::new("stdout", None)
    }

    #[test]
    fn log_entries_ignore_write_boundaries() {
        let dir = tempfile::tempdir().unwrap();
        let path = container_log(dir.path(), "app");
        let mut log = ContainerLog::begin(&path, Clock::start()).unwrap();
        let (mut stream, mut entries) = (stream(), Vec::new());
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        for chunk in ["one\ntw", "o\n\nthr", "ee ", &long, "\nlast"] {
            stream.take(chunk.as_bytes(), log.clock, &mut entries);
        }
        stream.end(log.clock, &mut entries);
        log.write(&entries).unwrap();
        let long = format!("three {long}");
        let (head, tail) = long.split_at(MAX_TEXT_BYTES);
        assert_eq!(entries_of(&path), ["one", "two", "", &format!("{head}…"), tail, "last"]);
    }

    #[test]
    fn log_rotation_loses_no_recent_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = container_log(dir.path(), "app");
        let mut log = ContainerLog::begin(&path, Clock::start()).unwrap();
        let text = "x".repeat(1024 * 1024);
        for number in 0_usize..70 {
            log.write(format!("2026-01-01T00:00:00Z stdout F {number} {text}\n").as_bytes()).unwrap();
        }
        let mut files: Vec<_> = set_aside(&path).into_iter().map(|(_, file)| file).collect();
        files.push(path.clone());
        assert_eq!(files.len(), MAX_FILES);
        let numbers = files
            .iter()
            .flat_map(|file| entries_of(file))
            .map(|entry| entry.split(' ').next().unwrap().parse::<usize>().unwrap());
        let numbers: Vec<_> = numbers.collect();
        assert!(numbers.len() > 40 && numbers.iter().copied().eq(70 - numbers.len()..70), "{numbers:?}");
        for pair in files.windows(2) {
            assert_eq!(next_log(&path, fs::metadata(&pair[0]).unwrap().ino()).as_ref(), Some(&pair[1]));
        }
        assert_eq!(next_log(&path, fs::metadata(&path).unwrap().ino()), None);
    }

    #[test]
    fn previous_run_keeps_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = container_log(dir.path(), "app");
        for run in ["one", "two", "three"] {
            let mut log = ContainerLog::begin(&path, Clock::start()).unwrap();
            log.write(run.as_bytes()).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read(previous_container_log(dir.path(), "app")).unwrap(), b"two");
    }
}
