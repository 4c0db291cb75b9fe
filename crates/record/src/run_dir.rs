//! The run directory: the durable record of one run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::event::{EVENT_VERSION, EventKind};
use super::parts::{self, Lane, PartError, PartWriter, Row};
use super::row_source::give;
use super::run_info::{EventsWritten, FORMAT_VERSION};
use super::{Clock, Event, GapRow, RequestRow, RowSource, RunInfo, ServedRow, StreamRow, Tables};

const INFO: &str = "run.json";
const EVENTS: &str = "events.jsonl";

/// The run directory of one run.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

/// Failure to write or read a run directory.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the fields")]
pub enum RunDirError {
    /// The directory exists and is not empty.
    #[error("{0} is not empty: choose a directory that does not exist yet")]
    NotEmpty(PathBuf),
    /// The directory does not contain a run.
    #[error(
        "{0} is not a run directory: it has no readable run.json. Choose a directory that `rolldrop run` created"
    )]
    NotARun(PathBuf),
    /// A file's contents are invalid.
    #[error("{path}:{line}: {why}: restore the file or measure again")]
    Malformed { path: PathBuf, line: usize, why: String },
    /// The run's format version is not supported.
    #[error(
        "{path} has format {found}, but this version reads format {FORMAT_VERSION}: use the version that wrote it"
    )]
    OtherFormat { path: PathBuf, found: u64 },
    /// A file could not be read or written.
    #[error("failed to access {path}")]
    Io { path: PathBuf, source: io::Error },
    /// A file of the run is not a regular file.
    #[error("{0} is not a regular file: restore the file or measure again")]
    NoFile(PathBuf),
    /// A part of a table could not be read or written.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// Contents of a run directory, without the rows.
#[derive(Clone, Debug)]
pub struct RunLog {
    /// Contents of run.json.
    pub info: RunInfo,
    /// Contents of events.jsonl, in the order written.
    pub events: Vec<Event>,
    /// Descriptions of incomplete data, which is not an error, because a killed run leaves a torn last line and parts
    /// that were never closed.
    pub torn: Vec<String>,
    /// Descriptions of data that could not be read for a reason other than a kill: it was modified after it was
    /// written, or has an unknown version.
    pub corrupt: Vec<String>,
    /// Files that were read despite having been modified after they were written. It is unknown which of their contents
    /// are original.
    pub altered: Vec<String>,
}

/// Full contents of a run directory, in memory.
#[derive(Clone, Debug)]
pub struct Records {
    /// Contents of run.json.
    pub info: RunInfo,
    /// Contents of events.jsonl, in the order written.
    pub events: Vec<Event>,
    /// Rows of requests/*.parquet.
    pub requests: Vec<RequestRow>,
    /// Rows of streams/*.parquet.
    pub streams: Vec<StreamRow>,
    /// Rows of gaps/*.parquet.
    pub gaps: Vec<GapRow>,
    /// Rows of served/*.parquet.
    pub served: Vec<ServedRow>,
    /// Same as in [`RunLog`].
    pub torn: Vec<String>,
    /// Same as in [`RunLog`].
    pub corrupt: Vec<String>,
    /// Same as in [`RunLog`].
    pub altered: Vec<String>,
}

impl RowSource for Records {
    /// Returns more than one so that tests with few rows also exercise the merging of lanes.
    fn lanes(&self) -> usize {
        3
    }

    fn requests(&self, lanes: &mut [&mut dyn Lane<RequestRow>]) -> Result<(), PartError> {
        give(&self.requests, lanes);
        Ok(())
    }

    fn streams(&self, lanes: &mut [&mut dyn Lane<StreamRow>]) -> Result<(), PartError> {
        give(&self.streams, lanes);
        Ok(())
    }

    fn gaps(&self, lanes: &mut [&mut dyn Lane<GapRow>]) -> Result<(), PartError> {
        give(&self.gaps, lanes);
        Ok(())
    }

    fn has_served(&self) -> bool {
        !self.served.is_empty()
    }

    fn served(&self, lanes: &mut [&mut dyn Lane<ServedRow>]) -> Result<(), PartError> {
        give(&self.served, lanes);
        Ok(())
    }
}

impl Records {
    /// Clones everything except the rows.
    pub fn log(&self) -> RunLog {
        RunLog {
            info: self.info.clone(),
            events: self.events.clone(),
            torn: self.torn.clone(),
            corrupt: self.corrupt.clone(),
            altered: self.altered.clone(),
        }
    }
}

/// Writes a file into a folder atomically, creating missing folders.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_file(folder: &Path, name: &str, contents: &[u8]) -> Result<(), RunDirError> {
    write_file_with(folder, name, |file| file.write_all(contents))
}

/// Like [`write_file`], but `write` produces the contents.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_file_with(
    folder: &Path,
    name: &str,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), RunDirError> {
    let path = folder.join(name);
    let io = |source| RunDirError::Io { path: path.clone(), source };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io)?;
    }
    let mut partial = path.clone().into_os_string();
    partial.push(".part");
    let mut file = BufWriter::new(File::create(&partial).map_err(io)?);
    write(&mut file).and_then(|()| file.flush()).map_err(io)?;
    fs::rename(&partial, &path).map_err(io)
}

impl RunDir {
    /// Creates a new run directory at `path`, including missing parents.
    ///
    /// # Errors
    /// Fails if the directory exists and is not empty, or cannot be created.
    pub fn create(path: &Path) -> Result<Self, RunDirError> {
        let io = |source| RunDirError::Io { path: path.to_owned(), source };
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(io)?;
        }
        match private_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
            // An existing directory keeps its permissions.
            Ok(()) | Err(_) => {}
        }
        if fs::read_dir(path).map_err(io)?.next().is_some() {
            return Err(RunDirError::NotEmpty(path.to_owned()));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Opens the run directory at `path`.
    ///
    /// # Errors
    /// Fails if the directory does not contain a run.json.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        if !path.join(INFO).is_file() {
            return Err(RunDirError::NotARun(path.to_owned()));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Removes the directory if nothing has been written to it, for example because the run never began.
    pub fn discard_if_empty(&self) {
        // This fails if the directory is not empty, as intended.
        let _ = fs::remove_dir(&self.path);
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes run.json, atomically replacing an earlier version.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_info(&self, info: &RunInfo) -> Result<(), RunDirError> {
        let json = serde_json::to_vec_pretty(info)
            .map_err(|e| RunDirError::Io { path: self.path.join(INFO), source: io::Error::other(e) })?;
        write_file(&self.path, INFO, &json)
    }

    /// Reads run.json.
    ///
    /// # Errors
    /// Fails if the file cannot be read or its format version is not supported.
    pub fn info(&self) -> Result<RunInfo, RunDirError> {
        let path = self.path.join(INFO);
        let text =
            fs::read_to_string(&path).map_err(|source| RunDirError::Io { path: path.clone(), source })?;
        let malformed = |e: serde_json::Error| RunDirError::Malformed {
            path: path.clone(),
            line: e.line(),
            why: e.to_string(),
        };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(malformed)?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        if let Some(found) = format.filter(|found| *found != u64::from(FORMAT_VERSION)) {
            return Err(RunDirError::OtherFormat { path, found });
        }
        serde_json::from_str(&text).map_err(malformed)
    }

    /// Opens the event log for appending. A run has a single log.
    ///
    /// # Errors
    /// Fails if the log cannot be opened.
    pub fn event_log(&self) -> Result<EventLog, RunDirError> {
        let path = self.path.join(EVENTS);
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|source| RunDirError::Io { path: path.clone(), source })?;
        Ok(EventLog { path, file, sum: EventsSum::default() })
    }

    /// Creates a writer for the rows of one source.
    ///
    /// # Errors
    /// Fails if the table's directory cannot be created.
    pub fn part_writer<R: Row>(&self, source: &str, clock: Clock) -> Result<PartWriter<R>, RunDirError> {
        Ok(PartWriter::create(&self.path, source, clock)?)
    }

    /// Reads everything except the rows, and locates the rows. Data left unfinished by a kill is ignored and listed in
    /// [`RunLog::torn`].
    ///
    /// # Errors
    /// Fails if a file that should be complete is not.
    pub fn recorded(&self) -> Result<(RunLog, Tables), RunDirError> {
        let info = self.info()?;
        let EventsRead { events, sum, mut torn, mut corrupt } = self.read_events()?;
        let mut altered = Vec::new();
        if let Some(written) = info.events
            && written != sum.written()
        {
            let there = sum.lines;
            match there < written.lines {
                true => corrupt.push(format!("{EVENTS} has {there} of {} lines", written.lines)),
                false => altered.push(format!("{EVENTS} does not match its checksum in {INFO}")),
            }
        }
        let tables = Tables::open(&self.path, &mut torn, &mut corrupt)?;
        for table in [RequestRow::TABLE, StreamRow::TABLE, GapRow::TABLE, ServedRow::TABLE] {
            let open = fs::read_dir(self.path.join(table)).into_iter().flatten().flatten();
            for entry in open.filter(|e| e.path().extension().is_some_and(|e| e == "part")) {
                torn.push(format!("{table}/{} was never closed", entry.file_name().to_string_lossy()));
            }
        }
        Ok((RunLog { info, events, torn, corrupt, altered }, tables))
    }

    /// Reads everything into memory, which needs 0.3 kB per row.
    ///
    /// # Errors
    /// Fails if a file that should be complete is not.
    pub fn read(&self) -> Result<Records, RunDirError> {
        let (RunLog { info, events, torn, corrupt, altered }, tables) = self.recorded()?;
        let (mut requests, mut streams) = (Vec::new(), Vec::new());
        let (mut gaps, mut served) = (Vec::new(), Vec::new());
        tables.requests(&mut [&mut parts::each(|row: &RequestRow| requests.push(row.clone()))])?;
        tables.streams(&mut [&mut parts::each(|row: &StreamRow| streams.push(row.clone()))])?;
        tables.gaps(&mut [&mut parts::each(|row: &GapRow| gaps.push(row.clone()))])?;
        tables.served(&mut [&mut parts::each(|row: &ServedRow| served.push(row.clone()))])?;
        Ok(Records { info, events, requests, streams, gaps, served, torn, corrupt, altered })
    }

    /// Reads the event log. Events of another version are ignored because their meaning is unknown; `corrupt` lists how
    /// many there were.
    fn read_events(&self) -> Result<EventsRead, RunDirError> {
        let path = self.path.join(EVENTS);
        let io = |source| RunDirError::Io { path: path.clone(), source };
        let mut read = EventsRead::default();
        let EventsRead { events, sum, torn, corrupt } = &mut read;
        let file = match open_file(&path) {
            Ok(file) => file,
            Err(RunDirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                torn.push(format!("{EVENTS} is missing"));
                return Ok(read);
            }
            Err(error) => return Err(error),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        let mut unknown: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(io)? == 0 {
                break;
            }
            if line.last() != Some(&b'\n') {
                torn.push(format!("{EVENTS} ends in the middle of line {number}"));
                break;
            }
            sum.add(&line);
            match parse_event(&line) {
                Ok(EventLine::Event(event)) => events.push(*event),
                Ok(EventLine::Kind) => {}
                Ok(EventLine::Version(v)) => unknown.entry(v).or_insert((0, number)).0 += 1,
                Err(e) => return Err(RunDirError::Malformed { path, line: number, why: e.to_string() }),
            }
        }
        corrupt.extend(unknown.into_iter().map(|(v, (events, first))| {
            format!(
                "{EVENTS} has {events} events of version {v} (the first in line {first}), which this version of rolldrop \
                 cannot read: they are left out"
            )
        }));
        Ok(read)
    }
}

/// The result of reading an event log.
#[derive(Default)]
struct EventsRead {
    events: Vec<Event>,
    /// Number and checksum of the complete lines.
    sum: EventsSum,
    torn: Vec<String>,
    corrupt: Vec<String>,
}

/// Line count and checksum of an event log.
#[derive(Clone, Debug, Default)]
struct EventsSum {
    lines: u64,
    hasher: crc32fast::Hasher,
}

impl EventsSum {
    fn add(&mut self, line: &[u8]) {
        self.lines += 1;
        self.hasher.update(line);
    }

    fn written(&self) -> EventsWritten {
        EventsWritten { lines: self.lines, crc32: self.hasher.clone().finalize() }
    }
}

/// Opens a regular file. Reading anything else, such as a pipe, might never finish.
pub(super) fn open_file(path: &Path) -> Result<File, RunDirError> {
    let io = |source| RunDirError::Io { path: path.to_owned(), source };
    match fs::metadata(path).map_err(io)?.is_file() {
        true => File::open(path).map_err(io),
        false => Err(RunDirError::NoFile(path.to_owned())),
    }
}

/// A line of events.jsonl.
enum EventLine {
    Event(Box<Event>),
    /// An event of a kind added by a later version of rolldrop. Other events are not affected.
    Kind,
    /// An event in another format version.
    Version(u32),
}

fn parse_event(line: &[u8]) -> Result<EventLine, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Version {
        v: u32,
    }
    match serde_json::from_slice::<Event>(line) {
        Ok(event) if event.v != EVENT_VERSION => Ok(EventLine::Version(event.v)),
        Ok(Event { kind: EventKind::Other, .. }) => Ok(EventLine::Kind),
        Ok(event) => Ok(EventLine::Event(Box::new(event))),
        Err(e) => match serde_json::from_slice::<Version>(line) {
            Ok(Version { v }) if v != EVENT_VERSION => Ok(EventLine::Version(v)),
            _ => Err(e),
        },
    }
}

/// Event log writer. When [`EventLog::append`] returns, the event has been handed to the operating system.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
    sum: EventsSum,
}

impl EventLog {
    /// Appends one event as a line.
    ///
    /// # Errors
    /// Fails if the line cannot be written.
    pub fn append(&mut self, event: &Event) -> Result<(), RunDirError> {
        let io = |source| RunDirError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_vec(event).map_err(|e| io(io::Error::other(e)))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(io)?;
        self.sum.add(&line);
        Ok(())
    }

    /// Closes the log and returns its size and checksum.
    pub fn close(self) -> EventsWritten {
        self.sum.written()
    }
}

/// Creates a directory that only its owner can access, because a run contains client addresses.
pub(super) fn private_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn new_run_directory_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = dir.path().join("runs/one");
        RunDir::create(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o750)).unwrap();
        RunDir::create(&shared).unwrap();
        assert_eq!(mode(&shared), 0o750);
    }
    use crate::{EventKind, Stamp};

    fn warning(n: i64) -> Event {
        Event::new(Stamp::from_unix_ns(n), "coordinator", EventKind::Warning { message: format!("w{n}") })
    }

    /// Creates a run with a closed log, and returns it with its run.json and log lines.
    fn closed(dir: &Path) -> (RunDir, RunInfo, Vec<String>) {
        let run = RunDir::create(dir).unwrap();
        let mut log = run.event_log().unwrap();
        (1..=4).for_each(|n| log.append(&warning(n)).unwrap());
        let text = r#"{
            "format": 2, "tool": {"name": "rolldrop", "version": "0"}, "run": "r", "name": "x", "scenario": null,
            "cluster": {"version": "", "dataplane": "unknown", "nodes": 0, "endpoints": 0, "namespace": ""},
            "targets": [], "sources": [], "started": 0, "ended": 9, "complete": true, "interrupted": false,
            "load": {"pacing": "constant", "rate": 1, "duration_s": 1, "warmup_s": 0, "connections": "fresh",
                     "connect_timeout_s": 1, "response_timeout_s": 1, "success": []}
        }"#;
        let info = RunInfo { events: Some(log.close()), ..serde_json::from_str(text).unwrap() };
        run.write_info(&info).unwrap();
        let lines = fs::read_to_string(run.path().join(EVENTS)).unwrap();
        (run, info, lines.lines().map(|line| format!("{line}\n")).collect())
    }

    #[test]
    fn log_distinguishes_altered_from_missing_events() {
        let dir = tempfile::tempdir().unwrap();
        let (run, info, lines) = closed(&dir.path().join("run"));
        let read = |lines: &[String]| {
            fs::write(run.path().join(EVENTS), lines.concat()).unwrap();
            let (log, _) = run.recorded().unwrap();
            (log.corrupt, log.altered)
        };
        let nothing = (vec![], vec![]);
        assert_eq!(read(&lines), nothing);
        assert_eq!(read(&lines[..2]), (vec!["events.jsonl has 2 of 4 lines".to_owned()], vec![]));
        assert_eq!(read(&[]).0, ["events.jsonl has 0 of 4 lines"]);
        let is_altered = |lines: &[String]| {
            let (corrupt, altered) = read(lines);
            corrupt.is_empty() && altered == ["events.jsonl does not match its checksum in run.json"]
        };
        let [a, b, c, d] = [0, 1, 2, 3].map(|n: usize| lines[n].clone());
        assert!(is_altered(&[b.clone(), a.clone(), c.clone(), d.clone()]), "shuffled");
        let later = a.replace("\"t_ns\":1,", "\"t_ns\":2,");
        assert!(a != later && is_altered(&[later, b.clone(), c.clone(), d.clone()]), "moved in time");
        assert!(is_altered(&[a.clone(), a, b, c, d]), "repeated");
        // A killed run has no checksum.
        run.write_info(&RunInfo { events: None, ..info }).unwrap();
        assert_eq!(read(&lines[..2]), nothing);
    }

    #[cfg(unix)]
    #[test]
    fn event_log_rejects_device_file() {
        let dir = tempfile::tempdir().unwrap();
        let (run, _, _) = closed(&dir.path().join("run"));
        let path = run.path().join(EVENTS);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(matches!(run.recorded(), Err(RunDirError::NoFile(of)) if of == path));
    }

    #[test]
    fn event_log_reports_torn_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(&dir.path().join("run")).unwrap();
        let mut log = run.event_log().unwrap();
        log.append(&warning(1)).unwrap();
        log.append(&warning(2)).unwrap();
        let path = run.path().join(EVENTS);
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 5);
        fs::write(&path, bytes).unwrap();
        let read = run.read_events().unwrap();
        assert_eq!(read.events, [warning(1)]);
        assert_eq!(read.torn, ["events.jsonl ends in the middle of line 2"]);
    }

    #[test]
    fn event_log_skips_only_unknown_kinds() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        let path = run.path().join(EVENTS);
        fs::write(&path, "{\"v\":1,\"t_ns\":1,\"source\":\"x\",\"kind\":\"of_tomorrow\"}\n").unwrap();
        let read = || run.read_events().map(|read| read.events);
        assert_eq!(read().unwrap(), []);
        let unknown_mode = r#"{"v":1,"t_ns":1,"source":"x","kind":"command_settled","mode":"of_tomorrow"}"#;
        fs::write(&path, format!("{unknown_mode}\n")).unwrap();
        assert!(read().is_err(), "an unknown value is an error");
        fs::write(&path, unknown_mode.replace("of_tomorrow", "command_settled") + "\n").unwrap();
        assert!(read().is_err(), "even if it is named like the kind");
        fs::write(&path, "nonsense\n").unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains("events.jsonl:1: "), "{error}");
    }

    #[test]
    fn event_log_counts_foreign_version_events() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        let known = serde_json::to_string(&warning(1)).unwrap();
        let other = known.replace("\"v\":1", "\"v\":2");
        let strange = "{\"v\":2,\"what\":[]}";
        fs::write(run.path().join(EVENTS), format!("{known}\n{other}\n{strange}\n")).unwrap();
        let EventsRead { events, corrupt, .. } = run.read_events().unwrap();
        assert_eq!(events, [warning(1)]);
        assert_eq!(corrupt.len(), 1);
        assert!(corrupt[0].contains("has 2 events of version 2"), "{corrupt:?}");
        assert!(corrupt[0].contains("the first in line 2"), "{corrupt:?}");
    }

    #[test]
    fn run_directory_requires_empty_folder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(RunDir::open(dir.path()), Err(RunDirError::NotARun(_))));
        fs::write(dir.path().join("x"), "").unwrap();
        assert!(matches!(RunDir::create(dir.path()), Err(RunDirError::NotEmpty(_))));
    }
}
