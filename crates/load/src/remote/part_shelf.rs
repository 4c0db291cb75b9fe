//! Closed parts of a load worker, as offered for fetching.
//!
//! `GET /parts` returns a [`Listing`]. `GET /parts/TABLE/NAME` returns the bytes of a part; with `Range: bytes=N-`,
//! only those from byte N on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use rolldrop_record::parts::{self, PartError, Row};
use rolldrop_record::{GapRow, RequestRow, StreamRow};

/// Path of the list of parts; each part is served below it.
pub const PARTS_PATH: &str = "/parts";
/// Tables that load workers write.
const FETCHED_TABLES: [&str; 3] = [RequestRow::TABLE, StreamRow::TABLE, GapRow::TABLE];
/// Suffix of part names.
pub const PART_SUFFIX: &str = ".parquet";

/// Response to [`PARTS_PATH`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// True if there will be no more parts.
    pub complete: bool,
    /// Closed parts, sorted by name.
    pub parts: Vec<ListedPart>,
}

/// A closed part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPart {
    /// Name of the table, a slash, and the file name: the source, a number, and [`PART_SUFFIX`].
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// SHA-256 of the part's bytes, in hexadecimal.
    pub sha256: String,
}

impl ListedPart {
    /// Returns the source whose rows the part contains; `None` if this is not the name of a part.
    pub fn source(&self) -> Option<&str> {
        let (table, file) = self.name.split_once('/')?;
        let (source, number) = file.strip_suffix(PART_SUFFIX)?.rsplit_once('-')?;
        if !FETCHED_TABLES.contains(&table) || source.contains('/') {
            return None;
        }
        number.bytes().all(|digit| digit.is_ascii_digit()).then_some(source)
    }

    /// Returns true if the part contains rows of requests.
    pub(super) fn has_requests(&self) -> bool {
        self.name.split_once('/').is_some_and(|(table, _)| table == RequestRow::TABLE)
    }
}

/// Reason why parts could not be listed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShelfError {
    #[error(transparent)]
    Part(#[from] PartError),
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
}

/// Closed parts in a worker's run directory.
#[derive(Debug)]
pub(super) struct Shelf {
    run_dir: PathBuf,
    /// Parts that have already been read, by name; they do not change.
    known: Mutex<BTreeMap<String, ListedPart>>,
}

impl Shelf {
    pub(super) fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned(), known: Mutex::default() }
    }

    /// Lists the parts. Reads new ones completely.
    pub(super) fn list(&self) -> Result<Vec<ListedPart>, ShelfError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = [
            parts::parts_of::<RequestRow>(&self.run_dir)?,
            parts::parts_of::<StreamRow>(&self.run_dir)?,
            parts::parts_of::<GapRow>(&self.run_dir)?,
        ];
        for path in paths.into_iter().flatten().filter(|path| !parts::is_open(path)) {
            let Some(name) = path.strip_prefix(&self.run_dir).ok().and_then(Path::to_str) else { continue };
            if !known.contains_key(name) {
                let (bytes, sha256) =
                    digest(&path).map_err(|source| ShelfError::Read { path: path.clone(), source })?;
                let part = ListedPart { name: name.to_owned(), bytes, rows: parts::rows_in(&path)?, sha256 };
                known.insert(name.to_owned(), part);
            }
        }
        Ok(known.values().cloned().collect())
    }

    /// Returns the path and size of the part with this name; `None` if it has never been listed.
    pub(super) fn find(&self, name: &str) -> Option<(PathBuf, u64)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).map(|part| (self.run_dir.join(name), part.bytes))
    }
}

/// Returns a file's size and digest.
fn digest(path: &Path) -> io::Result<(u64, String)> {
    let (mut file, mut context) = (File::open(path)?, Context::new(&SHA256));
    let (mut buffer, mut size) = (vec![0; 64 * 1024], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((size, hexadecimal(context))),
            read => {
                context.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// Formats a digest as in [`ListedPart::sha256`].
pub(super) fn hexadecimal(context: Context) -> String {
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_name_yields_source() {
        let source = |name: &str| {
            let part = ListedPart { name: name.into(), bytes: 0, rows: 0, sha256: String::new() };
            part.source().map(str::to_owned)
        };
        for table in FETCHED_TABLES {
            assert_eq!(source(&format!("{table}/load-17-00003.parquet")).as_deref(), Some("load-17"));
        }
        let no_files =
            ["load-17-00003.parquet.part", "load-x.parquet", "00003.parquet", "", "../load-17-00003.parquet"];
        let no_files = no_files.map(|file| format!("requests/{file}"));
        let no_tables = ["load-17-00003.parquet", "served/load-17-00003.parquet", "/load-17-00003.parquet"];
        for name in no_files.iter().map(String::as_str).chain(no_tables) {
            assert_eq!(source(name), None, "{name}");
        }
    }
}
