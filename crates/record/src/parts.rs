//! Rows on disk: Parquet parts that are closed and renamed into place while the run is in progress.
//!
//! A recorder owns one [`PartWriter`]. Rows are buffered in memory. A part is closed after [`PART_AGE`] or
//! [`PART_ROWS`], whichever comes first, and gets its final name only then, so readers of `*.parquet` see only complete
//! files. A kill loses the rows that were not yet in a closed part.

use std::fs::{self, File};
use std::io::{self, Write};
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::{Encoding, Type as PhysicalType};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, Type};

use super::{Clock, Stamp};
use checksum::Summed;
use column_buffers::GroupWriter;
use csv::CsvWriter;
use group_reader::GroupReader;

mod cells;
pub(crate) mod checksum;
mod column_buffers;
pub mod csv;
mod group_reader;
mod part_reading;
mod tables;

pub(crate) use part_reading::{ClosedPart, read_rows, read_side_by_side};
pub use part_reading::{Lane, Wanted, each, each_row_of, parts_of, read_table, rows_in};
pub use tables::{GapRow, RequestRow, ServedRow, StreamRow};

/// Age at which a part is closed.
pub const PART_AGE: Duration = Duration::from_secs(5);
/// Number of rows at which a part is closed.
pub const PART_ROWS: usize = 1_000_000;
/// Number of rows that are encoded and flushed as one group. Encoding a group takes a few milliseconds, which may delay
/// other work.
const GROUP_ROWS: usize = 16_384;

/// Failure to read or write a part.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the fields")]
pub enum PartError {
    /// The file could not be created, written, read or renamed.
    #[error("failed to access {path}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The file is not a Parquet file of this table.
    #[error("{path} is not a part of this table")]
    Parquet { path: PathBuf, source: ParquetError },
}

/// A row type that is stored in a table: a directory of parts with a common schema.
///
/// Sealed: the tables are [`RequestRow`], [`StreamRow`], [`GapRow`] and [`ServedRow`].
pub trait Row: Clone + Send + 'static + sealed::Columns {
    /// Name of the table's directory in the run directory.
    const TABLE: &'static str;
}

/// Returns a table's column names, in order.
pub fn column_names<R: Row>() -> Vec<&'static str> {
    R::names()
}

/// Writes a table's column names as a CSV line.
///
/// # Errors
/// Fails if the line cannot be written.
pub fn write_csv_header<R: Row>(out: &mut CsvWriter<impl Write>) -> io::Result<()> {
    column_names::<R>().into_iter().try_for_each(|name| out.text(name))?;
    out.end_line()
}

/// Writes a row as a CSV line with all columns of the table.
///
/// # Errors
/// Fails if the line cannot be written.
pub fn write_csv<R: Row>(row: &R, out: &mut CsvWriter<impl Write>) -> io::Result<()> {
    row.csv(out)
}

/// A writer of one source's rows, as a series of parts.
pub struct PartWriter<R: Row> {
    dir: PathBuf,
    source: String,
    clock: Clock,
    next_part: u32,
    opened: Option<Stamp>,
    part: Option<SerializedFileWriter<Summed>>,
    part_rows: usize,
    columns: R::Buffer,
    /// Number of rows in `columns`.
    gathered: usize,
    written: u64,
}

impl<R: Row> PartWriter<R> {
    /// Creates a writer for the rows of `source`, with parts in `run_dir/TABLE`.
    ///
    /// # Errors
    /// Fails if the table's directory cannot be created.
    pub fn create(run_dir: &Path, source: &str, clock: Clock) -> Result<Self, PartError> {
        let dir = run_dir.join(R::TABLE);
        fs::create_dir_all(&dir).map_err(|source| PartError::Io { path: dir.clone(), source })?;
        Ok(Self {
            dir,
            source: source.to_owned(),
            clock,
            next_part: 0,
            opened: None,
            part: None,
            part_rows: 0,
            columns: R::Buffer::default(),
            gathered: 0,
            written: 0,
        })
    }

    /// Adds rows, and closes the part if it is full or old enough.
    ///
    /// # Errors
    /// Fails if the part cannot be written; the rows in it are lost.
    pub fn extend<'a>(&mut self, rows: impl IntoIterator<Item = &'a R>) -> Result<(), PartError> {
        for row in rows {
            row.push(&mut self.columns).map_err(|e| self.parquet(e))?;
            self.gathered += 1;
            self.written += 1;
            if self.gathered == GROUP_ROWS {
                self.write_group()?;
            }
        }
        if self.opened.is_none() && self.gathered > 0 {
            self.opened = Some(self.clock.now());
        }
        self.tick()
    }

    /// Closes the part if it is full or old enough. Call this regularly, even without new rows.
    ///
    /// # Errors
    /// Fails if the part cannot be written.
    pub fn tick(&mut self) -> Result<(), PartError> {
        let Some(opened) = self.opened else { return Ok(()) };
        if self.part_rows >= PART_ROWS || self.clock.now() >= opened + PART_AGE {
            self.close_part()?;
        }
        Ok(())
    }

    /// Closes the last part and returns the total number of rows written.
    ///
    /// # Errors
    /// Fails if the part cannot be written.
    pub fn finish(mut self) -> Result<u64, PartError> {
        self.close_part()?;
        Ok(self.written)
    }

    /// Writes the buffered rows as a group, opening a part if none is open.
    fn write_group(&mut self) -> Result<(), PartError> {
        if self.gathered == 0 {
            return Ok(());
        }
        let mut part = match self.part.take() {
            Some(part) => part,
            None => open_part::<R>(&self.part_path())?,
        };
        write_columns::<R>(&mut part, &mut self.columns).map_err(|e| unwritten(self.part_path(), e))?;
        self.part = Some(part);
        self.part_rows += take(&mut self.gathered);
        Ok(())
    }

    /// Returns the path of the open part, or of the next one if none is open.
    fn part_path(&self) -> PathBuf {
        self.dir.join(format!("{}-{:05}.parquet.part", self.source, self.next_part))
    }

    fn parquet(&self, source: ParquetError) -> PartError {
        PartError::Parquet { path: self.part_path(), source }
    }

    fn close_part(&mut self) -> Result<(), PartError> {
        self.write_group()?;
        self.opened = None;
        self.part_rows = 0;
        let Some(part) = self.part.take() else { return Ok(()) };
        checksum::close(part).map_err(|e| unwritten(self.part_path(), e))?;
        let path = self.part_path();
        fs::rename(&path, path.with_extension("")).map_err(|source| PartError::Io { path, source })?;
        self.next_part += 1;
        Ok(())
    }
}

/// Prefix, before the source's name, of the file with a source's unfinished rows.
const OPEN_PREFIX: &str = "open-";

/// Replaces the file with the unfinished rows of `source` in `run_dir/TABLE`. Without rows, the file is removed.
///
/// The recorder may be killed before these rows are finished, so a reader uses such a row only if no part contains it.
///
/// # Errors
/// Fails if the file cannot be written or removed.
pub fn replace_open<R: Row>(run_dir: &Path, source: &str, rows: &[R]) -> Result<(), PartError> {
    let path = run_dir.join(R::TABLE).join(format!("{OPEN_PREFIX}{source}.parquet"));
    let io = |source| PartError::Io { path: path.clone(), source };
    if rows.is_empty() {
        return match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io(source)),
            _ => Ok(()),
        };
    }
    let unclosed = path.with_extension("parquet.part");
    let mut part = open_part::<R>(&unclosed)?;
    let parquet = |e| unwritten(unclosed.clone(), e);
    for rows in rows.chunks(GROUP_ROWS) {
        let mut columns = R::Buffer::default();
        rows.iter().try_for_each(|row| row.push(&mut columns)).map_err(parquet)?;
        write_columns::<R>(&mut part, &mut columns).map_err(parquet)?;
    }
    checksum::close(part).map_err(parquet)?;
    fs::rename(&unclosed, &path).map_err(io)
}

/// Returns true if the file contains the unfinished rows of a source.
pub fn is_open(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(OPEN_PREFIX))
}

/// Returns the error for a part that could not be written, which is usually an operating system error.
fn unwritten(path: PathBuf, source: ParquetError) -> PartError {
    match source {
        ParquetError::External(error) => match error.downcast() {
            Ok(source) => PartError::Io { path, source: *source },
            Err(error) => PartError::Parquet { path, source: ParquetError::External(error) },
        },
        source => PartError::Parquet { path, source },
    }
}

fn open_part<R: Row>(path: &Path) -> Result<SerializedFileWriter<Summed>, PartError> {
    let file = File::create(path).map_err(|source| PartError::Io { path: path.to_owned(), source })?;
    let parquet = |source| PartError::Parquet { path: path.to_owned(), source };
    let schema = Arc::new(parse_message_type(&R::schema()).map_err(parquet)?);
    let properties = properties(&schema);
    SerializedFileWriter::new(Summed::new(file), schema, properties)
        .map_err(|e| unwritten(path.to_owned(), e))
}

/// Returns the writer's settings. Numbers are delta-packed, which is fast and leaves nothing to compress in stamps.
fn properties(schema: &Type) -> WriterPropertiesPtr {
    let mut properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for column in schema.get_fields() {
        if matches!(column.get_physical_type(), PhysicalType::INT32 | PhysicalType::INT64) {
            let path = ColumnPath::from(column.name());
            properties = properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    Arc::new(properties.build())
}

fn write_columns<R: Row>(part: &mut SerializedFileWriter<Summed>, columns: &mut R::Buffer) -> Result<()> {
    let mut group = GroupWriter::begin(part)?;
    R::write(columns, &mut group)?;
    group.end()
}

mod sealed {
    use std::io::{self, Write};

    use super::{CsvWriter, GroupReader, GroupWriter, Result, Wanted};

    /// Columnar layout of a row type.
    pub trait Columns: Sized {
        /// Buffered rows, by column.
        type Buffer: Default + Send;
        /// Returns the table's Parquet schema.
        fn schema() -> String;
        /// Adds the row to the columns.
        fn push(&self, columns: &mut Self::Buffer) -> Result<()>;
        /// Writes the rows as one row group, and empties the columns.
        fn write(columns: &mut Self::Buffer, group: &mut GroupWriter<'_>) -> Result<()>;
        /// Columns of a row group that is being read.
        type Open;
        /// Opens the wanted columns of a row group.
        fn open(group: &mut GroupReader<'_>, wanted: Wanted) -> Result<Self::Open>;
        /// Returns a row to read into.
        fn blank() -> Self;
        /// Reads the values of the next row.
        fn read(&mut self, columns: &mut Self::Open) -> Result<()>;
        /// Copies the wanted values from a row in memory.
        fn take_from(&mut self, row: &Self, wanted: Wanted);
        /// Returns the column names.
        fn names() -> Vec<&'static str>;
        /// Writes the row's values as a CSV line.
        fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()>;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::{Outcome, Phase, Protocol, ServedEnd, TlsSession};

    fn request(seq: u64) -> RequestRow {
        let at = |ns: i64| Stamp::from_unix_ns(1_000 + ns);
        RequestRow {
            source: "load-0".into(),
            seq,
            target: "web".into(),
            phase: Phase::Main,
            scheduled: at(0),
            connect_start: Some(at(1)),
            connected: (seq.is_multiple_of(2)).then(|| at(2)),
            tls: None,
            tls_session: (seq.is_multiple_of(5)).then_some(TlsSession::Resumed13),
            sent: (seq.is_multiple_of(2)).then(|| at(3)),
            head: None,
            end: at(9),
            outcome: if seq.is_multiple_of(2) {
                Outcome::ResetBeforeResponse
            } else {
                Outcome::ConnectRefused
            },
            errno: Some(104),
            detail: (seq.is_multiple_of(7)).then(|| "alert unknown_ca (48)".into()),
            status: (seq.is_multiple_of(3)).then_some(503),
            grpc_status: None,
            not_sent_reason: None,
            conn: Some(seq),
            conn_reused: false,
            stream: (seq.is_multiple_of(2)).then_some(u32::MAX >> 1),
            local_port: Some(65_535),
            remote_addr: Some("127.0.0.1:80".into()),
            routed_to: (seq.is_multiple_of(3)).then(|| ([10, 244, 1, 2], 8080).into()),
            bytes_sent: 70,
            bytes_received: 0,
            pod: (seq.is_multiple_of(2)).then(|| "web-1".into()),
            headers: (seq.is_multiple_of(3)).then(|| r#"{"server":"envoy"}"#.into()),
            attempts: 1,
            final_outcome: Outcome::ConnectRefused,
        }
    }

    #[test]
    fn rows_round_trip_through_parts() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", clock).unwrap();
        let rows: Vec<_> = (0..70_000).map(request).collect();
        writer.extend(&rows).unwrap();
        assert_eq!(writer.finish().unwrap(), 70_000);
        assert_eq!(read_table::<RequestRow>(dir.path()).unwrap(), rows);

        let served: Vec<_> = (0..10)
            .map(|seq| ServedRow {
                source: "web-1".into(),
                request: (seq != 4).then(|| format!("k3v9x2ab-load-0-{seq}").parse().unwrap()),
                pod: "web-1".into(),
                peer_addr: "127.0.0.1:4000".into(),
                protocol: Protocol::Http1,
                accepted: clock.now(),
                head: None,
                end: clock.now(),
                status: Some(200),
                grpc_status: None,
                ended: ServedEnd::Complete,
                detail: None,
                conn: seq,
                conn_first_request: true,
                stream: None,
                bytes_from_client: None,
                bytes_from_app: None,
            })
            .collect();
        let mut writer = PartWriter::<ServedRow>::create(dir.path(), "web-1", clock).unwrap();
        writer.extend(&served).unwrap();
        writer.finish().unwrap();
        assert_eq!(read_table::<ServedRow>(dir.path()).unwrap(), served);
    }

    #[test]
    fn reader_rejects_part_with_foreign_columns() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", Clock::start()).unwrap();
        writer.extend(&[request(0)]).unwrap();
        writer.finish().unwrap();
        fs::rename(dir.path().join(RequestRow::TABLE), dir.path().join(ServedRow::TABLE)).unwrap();
        let Err(PartError::Parquet { source, .. }) = read_table::<ServedRow>(dir.path()) else {
            panic!("the part was read");
        };
        assert!(source.to_string().contains("its columns do not match this version"), "{source}");
    }

    /// Returns the column names from a table in docs/run-directory.md.
    fn documented(section: &str) -> BTreeSet<&'static str> {
        let docs = include_str!("../../../docs/run-directory.md");
        let (_, section) = docs.split_once(&format!("\n## {section}\n")).expect(section);
        let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
        let rows = rows.take_while(|line| line.starts_with('|'));
        rows.flat_map(|row| row.split('|').nth(1).expect(row).split(',')).map(str::trim).collect()
    }

    #[test]
    fn columns_match_docs_and_json_fields() {
        let columns = column_names::<RequestRow>();
        assert_eq!(documented("requests"), columns.iter().copied().collect());
        assert_eq!(documented("streams"), column_names::<StreamRow>().into_iter().collect());
        assert_eq!(documented("gaps"), column_names::<GapRow>().into_iter().collect());
        assert_eq!(documented("served"), column_names::<ServedRow>().into_iter().collect());
        let json = serde_json::to_string(&request(0)).unwrap();
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&json).unwrap();
        assert!(json.keys().all(|key| columns.contains(&key.as_str())), "{json:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10))]
        #[test]
        fn repeated_strings_round_trip_through_parts(runs in vec((option::of(0..400u32), 1..20usize), 1..600)) {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = PartWriter::create(dir.path(), "load-0", Clock::start()).unwrap();
            let rows: Vec<_> = runs
                .iter()
                .flat_map(|(pod, rows)| std::iter::repeat_n(pod, *rows))
                .zip(0..)
                .map(|(pod, seq)| RequestRow {
                    target: format!("web-{}", pod.unwrap_or(0) % 3).into(),
                    pod: pod.map(|pod| format!("web-{pod}").into()),
                    ..request(seq)
                })
                .collect();
            writer.extend(&rows).unwrap();
            writer.finish().unwrap();
            prop_assert_eq!(read_table::<RequestRow>(dir.path()).unwrap(), rows);
        }
    }

    #[test]
    fn reader_skips_unclosed_part() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", Clock::start()).unwrap();
        writer.extend(&(0..70_000).map(request).collect::<Vec<_>>()).unwrap();
        drop(writer);
        assert_eq!(read_table::<RequestRow>(dir.path()).unwrap(), []);
    }

    #[test]
    fn invalid_part_error_names_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("served")).unwrap();
        fs::write(dir.path().join("served/x.parquet"), "not parquet").unwrap();
        let error = read_table::<ServedRow>(dir.path()).unwrap_err().to_string();
        assert!(error.contains("x.parquet"), "{error}");
    }
}
