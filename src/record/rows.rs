//! The rows of a run, to be gone through as often as it takes: there may be more than fit into memory.

use std::collections::HashSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::parts::{self, PartError};
use super::run_dir::LIVE_DIR;
use super::{Records, RequestRow, ServedRow};

/// Where the rows of a run are. They are the same each time.
pub trait RowSource {
    /// Why they could not be read.
    type Error;

    /// Goes through the rows of the load sources.
    ///
    /// # Errors
    /// When they cannot be read.
    fn requests(&self, each: &mut dyn FnMut(RequestRow)) -> Result<(), Self::Error>;

    /// Goes through the rows of the proxies.
    ///
    /// # Errors
    /// When they cannot be read.
    fn served(&self, each: &mut dyn FnMut(ServedRow)) -> Result<(), Self::Error>;
}

impl RowSource for Records {
    type Error = Infallible;

    fn requests(&self, each: &mut dyn FnMut(RequestRow)) -> Result<(), Infallible> {
        self.requests.iter().cloned().for_each(each);
        Ok(())
    }

    fn served(&self, each: &mut dyn FnMut(ServedRow)) -> Result<(), Infallible> {
        self.served.iter().cloned().for_each(each);
        Ok(())
    }
}

/// The tables of a run directory.
#[derive(Debug)]
pub struct Tables {
    run_dir: PathBuf,
    /// Rows that crossed while the load lasted, of sources whose others were not fetched.
    live: Vec<RequestRow>,
}

impl Tables {
    /// Those of a run directory. That rows are missing is told in `torn`.
    pub(super) fn open(run_dir: &Path, torn: &mut Vec<String>) -> Result<Self, PartError> {
        let mut live = parts::read_table::<RequestRow>(&run_dir.join(LIVE_DIR))?;
        if !live.is_empty() {
            let id = |row: &RequestRow| (Arc::clone(&row.source), row.seq);
            let mut missing: HashSet<(Arc<str>, u64)> = live.iter().map(id).collect();
            parts::each_row::<RequestRow>(run_dir, |row| {
                missing.remove(&id(&row));
            })?;
            live.retain(|row| missing.contains(&id(row)));
        }
        if !live.is_empty() {
            let sources: HashSet<&str> = live.iter().map(|row| &*row.source).collect();
            torn.push(format!(
                "{} requests of {} load sources were not ok, and the others of these were not fetched",
                live.len(),
                sources.len()
            ));
        }
        Ok(Self { run_dir: run_dir.to_owned(), live })
    }
}

impl RowSource for Tables {
    type Error = PartError;

    fn requests(&self, each: &mut dyn FnMut(RequestRow)) -> Result<(), PartError> {
        parts::each_row::<RequestRow>(&self.run_dir, &mut *each)?;
        self.live.iter().cloned().for_each(each);
        Ok(())
    }

    fn served(&self, each: &mut dyn FnMut(ServedRow)) -> Result<(), PartError> {
        parts::each_row::<ServedRow>(&self.run_dir, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::parts::PartWriter;
    use crate::record::{Clock, Phase, Stamp};

    #[test]
    fn rows_that_crossed_count_once_where_a_kill_left_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = Stamp::from_unix_ns(0);
        let rows = |seqs: std::ops::Range<u64>| -> Vec<_> {
            let row = |seq| RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at, at);
            seqs.map(row).collect()
        };
        let write = |dir: &Path, source: &str, rows: &[RequestRow]| {
            let mut writer = PartWriter::<RequestRow>::create(dir, source, Clock::start()).unwrap();
            writer.extend(rows).unwrap();
            writer.finish().unwrap();
        };
        write(dir.path(), "load-0", &rows(0..6));
        write(&dir.path().join(LIVE_DIR), "live", &rows(4..9));
        let (mut requests, mut torn) = (Vec::new(), Vec::new());
        let tables = Tables::open(dir.path(), &mut torn).unwrap();
        tables.requests(&mut |row| requests.push(row)).unwrap();
        assert_eq!(requests, rows(0..9));
        assert_eq!(
            torn,
            ["3 requests of 1 load sources were not ok, and the others of these were not fetched"]
        );
    }
}
