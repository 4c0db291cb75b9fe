//! The table `served` of one proxy: rows of requests that have ended, in parts, and the rows of responses that are still
//! being passed on, in a file that replaces its predecessor.

use std::collections::HashMap;
use std::time::Instant;

use rolldrop_record::parts::{PART_AGE, PartError, PartWriter, replace_open};
use rolldrop_record::{Clock, RunDir, RunDirError, ServedEnd, ServedKey, ServedRow};

/// Maximum number of open responses kept for one proxy: as many as a proxy tracks by default.
const MOST_OPEN: usize = 65_536;

pub(super) struct ServedTable {
    run_dir: RunDir,
    source: String,
    ended: PartWriter<ServedRow>,
    /// The latest rows of responses that are not known to have ended.
    open: HashMap<ServedKey, ServedRow>,
    /// Time of the first change to `open` that the file lacks; `None` if it is up to date.
    outdated: Option<Instant>,
}

impl ServedTable {
    pub(super) fn create(run_dir: &RunDir, source: &str, clock: Clock) -> Result<Self, RunDirError> {
        let ended = run_dir.part_writer(source, clock)?;
        let (run_dir, source) = (run_dir.clone(), source.to_owned());
        Ok(Self { run_dir, source, ended, open: HashMap::new(), outdated: None })
    }

    /// Adds rows. The final row of a request replaces its open row.
    pub(super) fn extend(&mut self, rows: Vec<ServedRow>) -> Result<(), PartError> {
        let (open, ended): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.ended == ServedEnd::Open);
        let mut has_changed = !open.is_empty();
        for row in open {
            if self.open.len() < MOST_OPEN {
                self.open.insert(row.key(), row);
            }
        }
        if !self.open.is_empty() {
            for row in &ended {
                has_changed |= self.open.remove(&row.key()).is_some();
            }
        }
        if has_changed {
            self.outdated.get_or_insert_with(Instant::now);
        }
        self.ended.extend(&ended)
    }

    /// Closes an old part, and replaces an old file of open rows.
    pub(super) fn tick(&mut self) -> Result<(), PartError> {
        if self.outdated.is_some_and(|since| since.elapsed() >= PART_AGE) {
            self.write_open()?;
        }
        self.ended.tick()
    }

    /// Closes the last part. Rows of responses that never ended remain in their file.
    pub(super) fn finish(mut self) -> Result<(), PartError> {
        self.write_open()?;
        self.ended.finish().map(drop)
    }

    fn write_open(&mut self) -> Result<(), PartError> {
        let rows: Vec<ServedRow> = self.open.values().cloned().collect();
        replace_open(self.run_dir.path(), &self.source, &rows)?;
        self.outdated = None;
        Ok(())
    }
}
