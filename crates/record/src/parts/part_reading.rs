//! Reads the rows of closed parts, in sequence or in parallel.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;

use super::group_reader::{GroupReader, KnownTexts};
use super::{PartError, Row};

/// Reads the rows of one table, in file name order.
///
/// # Errors
/// Fails if a file cannot be read, or is not a part of this table.
pub fn read_table<R: Row>(run_dir: &Path) -> Result<Vec<R>, PartError> {
    read_rows(&parts_of::<R>(run_dir)?)
}

/// Reads the rows of these parts, in order.
///
/// # Errors
/// Fails if a file cannot be read, or is not a part of this table.
pub(crate) fn read_rows<R: Row>(paths: &[PathBuf]) -> Result<Vec<R>, PartError> {
    let mut expected = 0;
    for path in paths {
        expected += rows_in(path)?;
    }
    // Reserve all memory up front, because a growing vector briefly exists twice.
    let mut rows = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    each_row_of(paths, |row: &R| rows.push(row.clone()))?;
    Ok(rows)
}

/// Names of the columns to read. Row fields for other columns keep their values.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// All columns.
    All,
    /// Only these columns.
    Only(&'static [&'static str]),
}

impl Wanted {
    pub(super) fn has(self, column: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(columns) => columns.contains(&column),
        }
    }
}

/// A consumer of rows. For each row, the reader writes its values into [`Lane::row`], then calls [`Lane::take`].
pub trait Lane<R>: Send {
    /// Returns the columns needed by the lane.
    fn wanted(&self) -> Wanted {
        Wanted::All
    }
    /// Returns the buffer for the next row. Its current contents do not matter.
    fn row(&mut self) -> &mut R;
    /// Consumes the row in the buffer.
    fn take(&mut self);
}

/// Creates a lane that passes each row to a function.
pub fn each<R: Row>(each: impl FnMut(&R) + Send) -> impl Lane<R> {
    Each { row: R::blank(), each }
}

struct Each<R, F> {
    row: R,
    each: F,
}

impl<R: Send, F: FnMut(&R) + Send> Lane<R> for Each<R, F> {
    fn row(&mut self) -> &mut R {
        &mut self.row
    }

    fn take(&mut self) {
        (self.each)(&self.row);
    }
}

/// Passes the rows of these parts to `each`, in order.
///
/// # Errors
/// Fails if a file cannot be read, or is not a part of this table.
pub fn each_row_of<R: Row>(paths: &[PathBuf], each: impl FnMut(&R) + Send) -> Result<(), PartError> {
    let mut lane = self::each(each);
    let mut known = KnownTexts::default();
    paths.iter().try_for_each(|path| read_groups::<R>(path, 0..usize::MAX, &mut known, &mut lane))
}

/// A closed part, with the number of rows in each of its groups.
#[derive(Debug)]
pub(crate) struct ClosedPart {
    path: PathBuf,
    groups: Vec<u64>,
}

impl ClosedPart {
    /// Opens a part and counts the rows of its groups.
    pub(crate) fn open(path: PathBuf) -> Result<Self, PartError> {
        let reader = open_to_read(&path)?;
        let rows = reader.metadata().row_groups().iter().map(|group| group.num_rows());
        let groups = rows.map(|rows| u64::try_from(rows).unwrap_or(0)).collect();
        Ok(Self { path, groups })
    }
}

/// Reads the rows of these parts, using one thread per lane. Each lane gets about the same number of rows, and the
/// first lane gets the first rows.
pub(crate) fn read_side_by_side<R: Row>(
    parts: &[ClosedPart],
    lanes: &mut [&mut dyn Lane<R>],
) -> Result<(), PartError> {
    let shares = shares(parts, lanes.len());
    std::thread::scope(|scope| {
        let reading = shares.into_iter().zip(lanes).map(|(share, lane)| {
            scope.spawn(move || {
                let mut known = KnownTexts::default();
                let mut read = |(path, groups)| read_groups::<R>(path, groups, &mut known, *lane);
                share.into_iter().try_for_each(&mut read)
            })
        });
        let reading: Vec<_> = reading.collect();
        let join = |lane: ScopedJoinHandle<'_, _>| match lane.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        reading.into_iter().try_for_each(join)
    })
}

/// A range of a part's row groups.
type Groups<'a> = (&'a Path, Range<usize>);

/// Divides the row groups of these parts into one share per lane, with about the same number of rows each.
fn shares(parts: &[ClosedPart], lanes: usize) -> Vec<Vec<Groups<'_>>> {
    let all: u64 = parts.iter().flat_map(|part| &part.groups).sum();
    let per_lane = all.div_ceil(lanes.max(1) as u64).max(1);
    let mut shares: Vec<Vec<Groups<'_>>> = vec![Vec::new(); lanes];
    let mut before = 0;
    for ClosedPart { path, groups } in parts {
        for (number, rows) in groups.iter().enumerate() {
            let lane = usize::try_from(before / per_lane).unwrap_or(usize::MAX).min(lanes.saturating_sub(1));
            before += rows;
            let Some(share) = shares.get_mut(lane) else { continue };
            match share.last_mut() {
                Some((last, groups)) if *last == path.as_path() => groups.end = number + 1,
                _ => share.push((path, number..number + 1)),
            }
        }
    }
    shares
}

/// Lists the closed parts of one table, in file name order.
///
/// # Errors
/// Fails if the table's directory cannot be read.
pub fn parts_of<R: Row>(run_dir: &Path) -> Result<Vec<PathBuf>, PartError> {
    let dir = run_dir.join(R::TABLE);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(PartError::Io { path: dir, source }),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| PartError::Io { path: dir.clone(), source })?.path();
        if path.extension().is_some_and(|e| e == "parquet") {
            let io = |source| PartError::Io { path: path.clone(), source };
            // Reading anything else, such as a pipe, might never finish.
            if !fs::metadata(&path).map_err(io)?.is_file() {
                return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
            }
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads the given groups, skipping those that the part does not have.
fn read_groups<R: Row>(
    path: &Path,
    groups: Range<usize>,
    known: &mut KnownTexts,
    lane: &mut dyn Lane<R>,
) -> Result<(), PartError> {
    let reader = open_to_read(path)?;
    let parquet = |source| PartError::Parquet { path: path.to_owned(), source };
    let expected = parse_message_type(&R::schema()).map_err(parquet)?;
    if !has_columns(reader.metadata().file_metadata().schema(), &expected) {
        let why = "its columns do not match this version of rolldrop: use the version that recorded it";
        return Err(parquet(ParquetError::General(why.into())));
    }
    let mut read = || {
        for index in groups.start..groups.end.min(reader.num_row_groups()) {
            let group = reader.get_row_group(index)?;
            let mut group = GroupReader::begin(group.as_ref(), known)?;
            let mut columns = R::open(&mut group, lane.wanted())?;
            for _ in 0..group.rows {
                lane.row().read(&mut columns)?;
                lane.take();
            }
        }
        Ok(())
    };
    read().map_err(parquet)
}

/// Returns true if a table has these columns, with the same names and types in the same order.
fn has_columns(table: &Type, expected: &Type) -> bool {
    let is_same = |(a, b): (&Arc<Type>, &Arc<Type>)| {
        a.is_primitive()
            && a.name() == b.name()
            && a.get_physical_type() == b.get_physical_type()
            && a.is_optional() == b.is_optional()
    };
    let (found, expected) = (table.get_fields(), expected.get_fields());
    found.len() == expected.len() && found.iter().zip(expected).all(is_same)
}

/// Returns the number of rows according to the part's metadata.
///
/// # Errors
/// Fails if the file cannot be read, or is not a part.
pub fn rows_in(path: &Path) -> Result<u64, PartError> {
    let rows = open_to_read(path)?.metadata().file_metadata().num_rows();
    Ok(u64::try_from(rows).unwrap_or(0))
}

fn open_to_read(path: &Path) -> Result<SerializedFileReader<File>, PartError> {
    let file = File::open(path).map_err(|source| PartError::Io { path: path.to_owned(), source })?;
    SerializedFileReader::new(file).map_err(|source| PartError::Parquet { path: path.to_owned(), source })
}
