//! Changes that killed runs left in a cluster: those of their journals that are not undone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Undone, all};
use crate::cluster::Origin;
use crate::coordinator::caller::Caller;
use crate::coordinator::edits;
use crate::coordinator::hold;
use crate::coordinator::journal::{Change, Journal, JournalError, Open};
use crate::coordinator::others::differences;
use rolldrop_record::Clock;

/// Changes that the run, or the runs of the tuning, in a directory left in a cluster.
#[derive(Debug)]
pub(crate) struct LeftOvers {
    /// The latest run first, and then the tuning itself.
    journals: Vec<Journal>,
    cluster: Option<Origin>,
}

/// State of a workload, compared with what a tuning found.
#[derive(Debug, PartialEq)]
pub(crate) enum Since {
    /// As the tuning found it.
    AsFound,
    /// As a run of the tuning set it: undoing that makes it as it was found.
    AsSet,
    /// Others have changed it.
    Changed {
        /// A field each, with its value then and now.
        what: Vec<String>,
    },
}

impl LeftOvers {
    /// Reads what the runs in a directory changed. While this exists, no other process undoes it.
    ///
    /// # Errors
    /// When it is no directory of a run or a tuning, or that has not ended.
    pub(crate) fn in_dir(dir: &Path) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io { path: dir.to_owned(), source };
        let mut runs: Vec<PathBuf> = match fs::read_dir(dir) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>().map_err(io)?,
            Err(_) => return Err(JournalError::NotARun(dir.to_owned())),
        };
        runs.retain(|run| Journal::is_in(run));
        runs.sort();
        runs.reverse();
        runs.extend(Journal::is_in(dir).then(|| dir.to_owned()));
        if runs.is_empty() && !holds_no_run(dir).map_err(io)? {
            return Err(JournalError::NotARun(dir.to_owned()));
        }
        let mut left = Self { journals: Vec::new(), cluster: None };
        for run in runs {
            let (journal, cluster) = Journal::resume(&run, Clock::start())?;
            // What is on a cluster that ended with its run ended as well.
            if cluster.is_some() {
                left.cluster = left.cluster.or(cluster);
                left.journals.push(journal);
            }
        }
        Ok(left)
    }

    /// The cluster on which something is left; `None` if nothing is.
    pub(crate) fn cluster(&self) -> Option<&Origin> {
        self.cluster.as_ref().filter(|_| self.open().next().is_some())
    }

    fn open(&self) -> impl Iterator<Item = Open> {
        self.journals.iter().flat_map(Journal::open_changes)
    }

    /// Compares a workload with what the tuning found. Nothing is changed.
    pub(crate) fn since(&self, found: &Value, now: &Value) -> Since {
        let text = |object: &Value, pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let is_it = |open: &Open| {
            open.object.kind == text(now, "/kind")
                && open.object.name == text(now, "/metadata/name")
                && open.object.uid.as_ref().is_none_or(|uid| *uid == text(now, "/metadata/uid"))
        };
        let (mut as_found, mut restored) = (now.clone(), 0);
        for open in self.open().filter(is_it) {
            if let Change::Edit { edits } = &open.change {
                let reverted = edits::revert(edits, &as_found);
                (as_found, restored) = (reverted.object, restored + reverted.restored);
            }
        }
        match (differences(found, &as_found), restored) {
            (what, _) if !what.is_empty() => Since::Changed { what },
            (_, 0) => Since::AsFound,
            (..) => Since::AsSet,
        }
    }

    /// Undoes it.
    ///
    /// # Errors
    /// When a journal cannot be written.
    pub(crate) async fn undo(self, caller: &Caller) -> Result<Vec<Undone>, JournalError> {
        for Open { object, change, .. } in self.open() {
            if let Change::Hold { run } = &change {
                hold::take_over(caller, &object, run).await;
            }
        }
        let mut undone = Vec::new();
        for mut journal in self.journals {
            undone.extend(all(caller, &mut journal).await?);
        }
        Ok(undone)
    }
}

/// The file that a tuning writes before its first run.
const STATE_OF_A_TUNING: &str = "state.json";

/// The logs of an embedded cluster, which starts before its run changes anything.
const LOGS: &str = "cluster";

/// Returns true if a directory has no file of a run, as that of a run or a tuning that was killed before it changed
/// anything: no more than the state of a tuning, part of it, or the logs of a cluster.
fn holds_no_run(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_known = if entry.file_type()?.is_dir() {
            entry.file_name() == LOGS || holds_no_run(&entry.path())?
        } else {
            entry.file_name().to_string_lossy().starts_with(STATE_OF_A_TUNING)
        };
        if !is_known {
            return Ok(false);
        }
    }
    Ok(true)
}
