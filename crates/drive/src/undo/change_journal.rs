//! Record of a run's changes in a cluster: the file `changes.jsonl`, written before each change.
//!
//! Each line is on disk before the API server is called. At its end, a run undoes every change in the journal that is
//! not undone yet; after a kill, `rolldrop cleanup` does so. [`crate::undo`] undoes the changes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::api::edits::Edit;
use crate::cluster::Origin;
use crate::error::JournalError;
use rolldrop_record::{Clock, Stamp};

/// Label with the run that created an object.
pub(crate) const RUN_LABEL: &str = "rolldrop.dev/run";
/// Name of the journal in the run directory.
const FILE: &str = "changes.jsonl";
/// Version of the journal's format.
const VERSION: u32 = 1;

type Result<T> = std::result::Result<T, JournalError>;

/// An object in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRef {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// UID; `None` until the object is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// Version of the object at the time of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resource_version: Option<String>,
}

impl ObjectRef {
    /// Creates a reference to an object whose UID is not known.
    pub(crate) fn new(api_version: &str, kind: &str, namespace: Option<String>, name: &str) -> Self {
        let (api_version, kind, name) = (api_version.to_owned(), kind.to_owned(), name.to_owned());
        Self { api_version, kind, namespace, name, uid: None, resource_version: None }
    }
}

/// Kind of change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub(crate) enum ClusterChange {
    /// The run creates the object.
    Create,
    /// Fields of the object are changed.
    Edit { edits: Vec<Edit> },
    /// The node is shut down.
    ShutDown,
    /// An annotation marks the object as in use by the run with this name.
    Hold { run: String },
}

/// A change that has not been undone yet.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) id: u32,
    pub(crate) object: ObjectRef,
    pub(crate) change: ClusterChange,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    t_ns: Stamp,
    #[serde(flatten)]
    entry: JournalEntry,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
enum JournalEntry {
    /// The first line, with the way to reach the cluster if the cluster outlives the run.
    Begun { v: u32, run: String, cluster: Option<Origin> },
    /// A change is about to be made.
    Change {
        id: u32,
        object: ObjectRef,
        #[serde(flatten)]
        change: ClusterChange,
    },
    /// An object was created.
    Created { id: u32, uid: String },
    /// A change has been undone, or nothing is left to undo.
    Undone { id: u32, how: String },
}

/// Journal of a run's changes. No other process has it open for writing.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    clock: Clock,
    run: String,
    open: Vec<Open>,
    next_id: u32,
}

impl Journal {
    /// Creates the journal of a run in its directory. `cluster` is `None` if the cluster ends with the run.
    pub(crate) fn begin(run_dir: &Path, clock: Clock, run: &str, cluster: Option<Origin>) -> Result<Self> {
        let path = run_dir.join(FILE);
        let io = |source| JournalError::Io { path: path.clone(), source };
        let file = OpenOptions::new().create_new(true).append(true).open(&path).map_err(io)?;
        file.lock().map_err(io)?;
        // Makes sure that the file's directory entry survives a system crash.
        File::open(run_dir).and_then(|dir| dir.sync_all()).map_err(io)?;
        let mut journal = Self { path, file, clock, run: String::new(), open: Vec::new(), next_id: 0 };
        journal.head(run, cluster)?;
        Ok(journal)
    }

    /// Opens the journal of a run that continues. Writes the first line if a kill has left the journal without it.
    pub(crate) fn go_on(run_dir: &Path, clock: Clock, run: &str, cluster: Option<Origin>) -> Result<Self> {
        let (mut journal, _) = Self::resume(run_dir, clock)?;
        if journal.run.is_empty() {
            journal.head(run, cluster)?;
        }
        Ok(journal)
    }

    fn head(&mut self, run: &str, cluster: Option<Origin>) -> Result<()> {
        run.clone_into(&mut self.run);
        self.append(JournalEntry::Begun { v: VERSION, run: run.to_owned(), cluster })
    }

    /// Returns true if a directory contains a journal.
    pub(crate) fn is_in(run_dir: &Path) -> bool {
        run_dir.join(FILE).exists()
    }

    /// Opens the journal of a run that has ended. Also returns the way to reach its cluster.
    pub(crate) fn resume(run_dir: &Path, clock: Clock) -> Result<(Self, Option<Origin>)> {
        let path = run_dir.join(FILE);
        let io = |source| JournalError::Io { path: path.clone(), source };
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            // Reading anything else, such as a pipe, might never finish.
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
        }
        let file = match OpenOptions::new().read(true).append(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(JournalError::NotARun(run_dir.to_owned()));
            }
            file => file.map_err(io)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(run_dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let mut text = Vec::new();
        (&file).read_to_end(&mut text).map_err(io)?;
        // A kill cut the last line short, so the change that it would have announced was not made. The next line
        // replaces it.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(io)?;
        }
        let mut journal =
            Self { path: path.clone(), file, clock, run: String::new(), open: Vec::new(), next_id: 0 };
        let mut cluster = None;
        for (number, line) in (1..).zip(text[..whole].split_inclusive(|byte| *byte == b'\n')) {
            let line: Line = serde_json::from_slice(line).map_err(|e| JournalError::Malformed {
                path: path.clone(),
                line: number,
                why: e.to_string(),
            })?;
            match line.entry {
                JournalEntry::Begun { run, cluster: of_run, .. } => (journal.run, cluster) = (run, of_run),
                JournalEntry::Change { id, object, change } => {
                    journal.open.push(Open { id, object, change });
                    journal.next_id = id + 1;
                }
                JournalEntry::Created { id, uid } => journal.set_uid(id, &uid),
                JournalEntry::Undone { id, .. } => journal.open.retain(|open| open.id != id),
            }
        }
        if journal.run.is_empty() && whole > 0 {
            return Err(JournalError::NotARun(run_dir.to_owned()));
        }
        Ok((journal, cluster))
    }

    /// Returns the name that labels the run's objects.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Records a change before it is made.
    pub(crate) fn announce(&mut self, object: ObjectRef, change: ClusterChange) -> Result<u32> {
        let id = self.next_id;
        self.append(JournalEntry::Change { id, object: object.clone(), change: change.clone() })?;
        self.next_id += 1;
        self.open.push(Open { id, object, change });
        Ok(id)
    }

    /// Records the UID of an object that was created.
    pub(crate) fn created(&mut self, id: u32, uid: String) -> Result<()> {
        self.set_uid(id, &uid);
        self.append(JournalEntry::Created { id, uid })
    }

    /// Records that a change has been undone, or that nothing is left to undo.
    pub(crate) fn undone(&mut self, id: u32, how: impl Into<String>) -> Result<()> {
        self.open.retain(|open| open.id != id);
        self.append(JournalEntry::Undone { id, how: how.into() })
    }

    /// Returns the changes that have not been undone, latest first.
    pub(crate) fn open_changes(&self) -> Vec<Open> {
        self.open.iter().rev().cloned().collect()
    }

    /// Returns the ID of the latest change to an object, among the changes that have not been undone.
    pub(crate) fn last_of(&self, object: &ObjectRef) -> Option<u32> {
        let is_it = |open: &&Open| open.object.uid == object.uid && open.object.name == object.name;
        self.open.iter().rev().find(is_it).map(|open| open.id)
    }

    fn set_uid(&mut self, id: u32, uid: &str) {
        for open in self.open.iter_mut().filter(|open| open.id == id) {
            open.object.uid = Some(uid.to_owned());
        }
    }

    /// Makes all further writes fail.
    #[cfg(test)]
    pub(crate) fn fill_disk(&mut self) {
        self.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    }

    fn append(&mut self, entry: JournalEntry) -> Result<()> {
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        let line = Line { t_ns: self.clock.now(), entry };
        let mut line = serde_json::to_vec(&line).map_err(|e| io(e.into()))?;
        line.push(b'\n');
        let before = self.file.metadata().map_err(io)?.len();
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(|error| {
            // If the disk is full, removes the partial line so that the next one starts cleanly.
            let _ = self.file.set_len(before);
            io(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> ObjectRef {
        ObjectRef::new("v1", "Service", Some("shop".into()), "web")
    }

    #[test]
    fn resumed_journal_lists_open_changes() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let cluster = Some(Origin { context: Some("staging".into()), ..Origin::default() });
        let mut journal = Journal::begin(dir.path(), clock, "run-1", cluster.clone()).unwrap();
        assert!(matches!(Journal::resume(dir.path(), clock), Err(JournalError::InUse(_))));
        let first = journal.announce(web(), ClusterChange::Create).unwrap();
        journal.created(first, "u1".into()).unwrap();
        let second = journal.announce(web(), ClusterChange::Edit { edits: Vec::new() }).unwrap();
        let third = journal.announce(web(), ClusterChange::Create).unwrap();
        journal.undone(second, "restored").unwrap();
        journal.file.write_all(b"{\"t_ns\":1,\"en").unwrap();
        drop(journal);

        let (journal, origin) = Journal::resume(dir.path(), clock).unwrap();
        assert_eq!((journal.run(), origin), ("run-1", cluster));
        let open: Vec<_> = journal.open_changes().into_iter().map(|o| (o.id, o.object.uid)).collect();
        assert_eq!(open, [(third, None), (first, Some("u1".into()))]);
        assert!(matches!(Journal::resume(&dir.path().join("x"), clock), Err(JournalError::NotARun(_))));
    }

    #[test]
    fn journal_survives_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let mut journal = Journal::begin(dir.path(), clock, "run-1", None).unwrap();
        let first = journal.announce(web(), ClusterChange::Create).unwrap();
        journal.file.write_all(b"{\"t_ns\":1,\"en").unwrap();
        drop(journal);
        // Does the same as running `rolldrop cleanup` twice.
        let (mut journal, _) = Journal::resume(dir.path(), clock).unwrap();
        journal.undone(first, "removed").unwrap();
        drop(journal);
        let (journal, _) = Journal::resume(dir.path(), clock).unwrap();
        assert!(journal.open_changes().is_empty());
        drop(journal);
        // If the kill cut off the first line, nothing was changed.
        std::fs::write(dir.path().join(FILE), b"{\"t_ns\":1,").unwrap();
        let journal = Journal::go_on(dir.path(), clock, "run-2", None).unwrap();
        assert_eq!((journal.run(), journal.open_changes().len()), ("run-2", 0));
    }
}
