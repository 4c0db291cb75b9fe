//! Changes that killed runs left in a cluster: the entries in their journals that have not been undone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::change_journal::{ClusterChange, Journal, Open};
use super::{Undone, all, exists, holder};
use crate::api::{Caller, edits};
use crate::cluster::Origin;
use crate::error::{CoordinatorError, JournalError, Result};
use crate::observe::foreign_changes::differences;
use rolldrop_record::Clock;

/// Changes that one run, or the runs of one tuning, left in a cluster, as found in its directory.
#[derive(Debug)]
pub struct LeftOvers {
    /// Journals of the runs, latest first, and then the tuning's own.
    journals: Vec<Journal>,
    cluster: Option<Origin>,
}

/// State of a workload compared with its state before a tuning.
#[derive(Debug, PartialEq)]
pub enum Since {
    /// Same as before the tuning.
    AsFound,
    /// As a run of the tuning left it; undoing the run's changes restores the state before the tuning.
    AsSet,
    /// Others have changed the workload.
    Changed {
        /// Changed fields, each with its value then and now.
        what: Vec<String>,
    },
}

impl LeftOvers {
    /// Reads the changes of the runs in a directory. While this value exists, no other process can undo them.
    ///
    /// # Errors
    /// Fails if the directory does not belong to a run or a tuning, or if its run has not ended.
    pub fn in_dir(dir: &Path) -> Result<Self, JournalError> {
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
            // If the cluster ended with its run, so did the changes.
            if cluster.is_some() {
                left.cluster = left.cluster.or(cluster);
                left.journals.push(journal);
            }
        }
        Ok(left)
    }

    /// Returns the cluster with remaining changes; `None` if no changes are left.
    pub fn cluster(&self) -> Option<&Origin> {
        self.cluster.as_ref().filter(|_| self.open().next().is_some())
    }

    fn open(&self) -> impl Iterator<Item = Open> {
        self.journals.iter().flat_map(Journal::open_changes)
    }

    /// Compares a workload with its state before the tuning, without changing anything.
    pub fn since(&self, found: &Value, now: &Value) -> Since {
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
            if let ClusterChange::Edit { edits } = &open.change {
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

    /// Undoes the changes in the cluster whose API server has this URL.
    ///
    /// # Errors
    /// Fails, without changing anything, if this seems to be another cluster than the run's: there, all objects would
    /// seem to be gone, and nothing would be left to undo in the right one.
    pub async fn undo(mut self, caller: &Caller, server: &str) -> Result<Vec<Undone>> {
        let of_run = self.cluster.as_ref().and_then(|origin| origin.server.clone());
        // The same cluster may have several URLs, for example one for its pods.
        if of_run.as_deref() != Some(server) && !self.exist(caller).await? {
            return Err(CoordinatorError::OtherCluster { here: server.to_owned(), of_run });
        }
        for Open { object, change, .. } in self.open() {
            if let ClusterChange::Hold { run } = &change {
                holder::take_over(caller, &object, run).await;
            }
        }
        Ok(all(caller, &mut self.journals).await)
    }

    /// Returns true if one of the changed objects is in the cluster.
    async fn exist(&self, caller: &Caller) -> Result<bool> {
        let mut unknown = None;
        for journal in &self.journals {
            for open in journal.open_changes() {
                match exists(caller, journal.run(), &open.object).await {
                    Ok(true) => return Ok(true),
                    Ok(false) => {}
                    Err(error) => unknown = Some(error),
                }
            }
        }
        unknown.map_or(Ok(false), Err)
    }
}

/// The file that a tuning writes before its first run.
const STATE_OF_A_TUNING: &str = "state.json";

/// Directory with the logs of an embedded cluster. It exists before the run changes anything.
const LOGS: &str = "cluster";

/// Returns true if a directory contains no files of a run, because the run or tuning was killed before it changed
/// anything. The directory may contain the state of a tuning, a part of that state, or the logs of a cluster.
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
