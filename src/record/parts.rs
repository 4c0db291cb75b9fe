//! Rows on disk: Parquet parts that are closed and renamed into place as the run goes.
//!
//! A recorder owns one [`PartWriter`]. Rows gather in memory, a part is closed
//! every [`PART_AGE`] or [`PART_ROWS`], whichever comes first, and takes its final
//! name only then: whoever reads `*.parquet` reads whole files. A kill costs what
//! was not yet in a closed part.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::Compression;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::{Clock, RequestId, RequestRow, ServedRow, Stamp};

/// A part is closed when it is this old.
pub const PART_AGE: Duration = Duration::from_secs(5);
/// A part is closed when it holds this many rows.
pub const PART_ROWS: usize = 1_000_000;
/// Rows are encoded and leave memory in groups of this many.
const GROUP_ROWS: usize = 65_536;

/// What went wrong with a part.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The file could not be created, written, read or renamed.
    #[error("failed to use {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no Parquet file of this table.
    #[error("{path} is no part of this table")]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParquetError,
    },
}

/// A row type with its table: a directory of parts and a schema.
///
/// Sealed: the tables are [`RequestRow`] and [`ServedRow`].
pub trait Row: Sized + Send + 'static + sealed::Columns {
    /// The table's directory in the run directory.
    const TABLE: &'static str;
}

impl Row for RequestRow {
    const TABLE: &'static str = "requests";
}

impl Row for ServedRow {
    const TABLE: &'static str = "served";
}

/// Writes the rows of one source as a series of parts.
#[derive(Debug)]
pub struct PartWriter<R: Row> {
    dir: PathBuf,
    source: String,
    clock: Clock,
    next_part: u32,
    opened: Option<Stamp>,
    part: Option<(PathBuf, SerializedFileWriter<File>)>,
    part_rows: usize,
    rows: Vec<R>,
    written: u64,
}

impl<R: Row> PartWriter<R> {
    /// A writer for the rows of `source`, with parts in `run_dir/TABLE`.
    ///
    /// # Errors
    /// When the table's directory cannot be made.
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
            rows: Vec::new(),
            written: 0,
        })
    }

    /// Adds rows, and closes the part if it is full or old.
    ///
    /// # Errors
    /// When the part cannot be written; the rows in it are lost.
    pub fn extend(&mut self, rows: impl IntoIterator<Item = R>) -> Result<(), PartError> {
        let before = self.rows.len();
        self.rows.extend(rows);
        self.written += (self.rows.len() - before) as u64;
        if self.opened.is_none() && !self.rows.is_empty() {
            self.opened = Some(self.clock.now());
        }
        while self.rows.len() >= GROUP_ROWS {
            self.write_group(GROUP_ROWS)?;
        }
        self.tick()
    }

    /// Closes the part if it is full or old. Call it now and then, also without new rows.
    ///
    /// # Errors
    /// When the part cannot be written.
    pub fn tick(&mut self) -> Result<(), PartError> {
        let Some(opened) = self.opened else { return Ok(()) };
        if self.part_rows >= PART_ROWS || self.clock.now() >= opened + PART_AGE {
            self.close_part()?;
        }
        Ok(())
    }

    /// Closes the last part and answers how many rows were written in all.
    ///
    /// # Errors
    /// When the part cannot be written.
    pub fn finish(mut self) -> Result<u64, PartError> {
        self.close_part()?;
        Ok(self.written)
    }

    fn write_group(&mut self, count: usize) -> Result<(), PartError> {
        let count = count.min(self.rows.len());
        if count == 0 {
            return Ok(());
        }
        if self.part.is_none() {
            let name = format!("{}-{:05}.parquet.part", self.source, self.next_part);
            let path = self.dir.join(name);
            let writer = open_part::<R>(&path)?;
            self.part = Some((path, writer));
        }
        let Some((path, writer)) = self.part.as_mut() else { return Ok(()) };
        let rows = self.rows.drain(..count).collect::<Vec<_>>();
        write_rows(writer, &rows).map_err(|source| PartError::Parquet { path: path.clone(), source })?;
        self.part_rows += count;
        Ok(())
    }

    fn close_part(&mut self) -> Result<(), PartError> {
        self.write_group(usize::MAX)?;
        self.opened = None;
        self.part_rows = 0;
        let Some((path, writer)) = self.part.take() else { return Ok(()) };
        writer.close().map_err(|source| PartError::Parquet { path: path.clone(), source })?;
        let closed = path.with_extension("");
        fs::rename(&path, &closed).map_err(|source| PartError::Io { path, source })?;
        self.next_part += 1;
        Ok(())
    }
}

/// The rows of one table, in the order of their files' names.
///
/// # Errors
/// When a file cannot be read, or is no part of this table.
pub fn read_table<R: Row>(run_dir: &Path) -> Result<Vec<R>, PartError> {
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
            paths.push(path);
        }
    }
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        let file = File::open(&path).map_err(|source| PartError::Io { path: path.clone(), source })?;
        read_file(file, &mut rows).map_err(|source| PartError::Parquet { path, source })?;
    }
    Ok(rows)
}

fn open_part<R: Row>(path: &Path) -> Result<SerializedFileWriter<File>, PartError> {
    let file = File::create(path).map_err(|source| PartError::Io { path: path.to_owned(), source })?;
    let parquet = |source| PartError::Parquet { path: path.to_owned(), source };
    let schema = parse_message_type(R::SCHEMA).map_err(parquet)?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).map_err(parquet)
}

fn write_rows<R: Row>(writer: &mut SerializedFileWriter<File>, rows: &[R]) -> Result<(), ParquetError> {
    let mut group = GroupWriter { group: writer.next_row_group()? };
    R::write(rows, &mut group)?;
    group.group.close()?;
    Ok(())
}

fn read_file<R: Row>(file: File, rows: &mut Vec<R>) -> Result<(), ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index)?;
        let count =
            usize::try_from(group.metadata().num_rows()).map_err(|e| ParquetError::General(e.to_string()))?;
        let mut columns = GroupReader { group: group.as_ref(), next: 0, rows: count };
        rows.extend(R::read(&mut columns)?);
    }
    Ok(())
}

/// Writes the columns of one row group, in the schema's order.
pub struct GroupWriter<'a> {
    group: SerializedRowGroupWriter<'a, File>,
}

impl GroupWriter<'_> {
    fn column<T: DataType>(&mut self, values: &[T::T], levels: Option<&[i16]>) -> Result<(), ParquetError> {
        let mut column = self
            .group
            .next_column()?
            .ok_or_else(|| ParquetError::General("more columns than the schema has".into()))?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }

    fn required<T: DataType>(&mut self, values: impl Iterator<Item = T::T>) -> Result<(), ParquetError> {
        self.column::<T>(&values.collect::<Vec<_>>(), None)
    }

    fn optional<T: DataType>(
        &mut self,
        values: impl Iterator<Item = Option<T::T>>,
    ) -> Result<(), ParquetError> {
        let mut present = Vec::new();
        let levels = values
            .map(|value| match value {
                Some(value) => {
                    present.push(value);
                    1
                }
                None => 0,
            })
            .collect::<Vec<i16>>();
        self.column::<T>(&present, Some(&levels))
    }
}

/// Reads the columns of one row group, in the schema's order.
pub struct GroupReader<'a> {
    group: &'a dyn RowGroupReader,
    next: usize,
    rows: usize,
}

impl GroupReader<'_> {
    fn column<T: DataType>(&mut self, optional: bool) -> Result<(Vec<T::T>, Vec<i16>), ParquetError> {
        if self.next >= self.group.num_columns() {
            return Err(ParquetError::General("fewer columns than this version's schema".into()));
        }
        let column = self.group.get_column_reader(self.next)?;
        self.next += 1;
        let mut reader = get_typed_column_reader::<T>(column);
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let mut read = 0;
        while read < self.rows {
            let levels = optional.then_some(&mut levels);
            let (records, _, _) = reader.read_records(self.rows - read, levels, None, &mut values)?;
            if records == 0 {
                return Err(ParquetError::General("a column ends before its row group".into()));
            }
            read += records;
        }
        Ok((values, levels))
    }

    fn required<T: DataType>(&mut self) -> Result<std::vec::IntoIter<T::T>, ParquetError> {
        Ok(self.column::<T>(false)?.0.into_iter())
    }

    fn optional<T: DataType>(&mut self) -> Result<std::vec::IntoIter<Option<T::T>>, ParquetError> {
        let (values, levels) = self.column::<T>(true)?;
        let mut values = values.into_iter();
        let spread: Vec<_> =
            levels.into_iter().map(|level| if level == 1 { values.next() } else { None }).collect();
        Ok(spread.into_iter())
    }
}

mod sealed {
    use super::{GroupReader, GroupWriter, ParquetError};

    /// How a row type is laid out in columns.
    pub trait Columns: Sized {
        /// The table's Parquet schema.
        const SCHEMA: &'static str;
        /// Writes the rows as one row group.
        fn write(rows: &[Self], group: &mut GroupWriter<'_>) -> Result<(), ParquetError>;
        /// Reads the rows of one row group.
        fn read(group: &mut GroupReader<'_>) -> Result<Vec<Self>, ParquetError>;
    }
}

impl sealed::Columns for RequestRow {
    const SCHEMA: &'static str = "message requests {
        required binary source (STRING);
        required int64 seq;
        required binary target (STRING);
        required binary phase (STRING);
        required int64 scheduled_ns;
        optional int64 connect_start_ns;
        optional int64 connected_ns;
        optional int64 tls_ns;
        optional int64 sent_ns;
        optional int64 head_ns;
        required int64 end_ns;
        required binary outcome (STRING);
        optional int32 errno;
        optional int32 status;
        optional int32 grpc_status;
        optional binary not_sent_reason (STRING);
        optional int64 conn;
        required boolean conn_reused;
        optional int32 stream;
        optional int32 local_port;
        optional binary remote_addr (STRING);
        required int64 bytes_sent;
        required int64 bytes_received;
        optional binary pod (STRING);
        required int32 attempts;
        required binary final_outcome (STRING);
    }";

    fn write(rows: &[Self], group: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
        let optional_ns =
            |stamp: fn(&Self) -> Option<Stamp>| rows.iter().map(move |r| stamp(r).map(Stamp::unix_ns));
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(&r.source)))?;
        group.required::<Int64Type>(rows.iter().map(|r| signed(r.seq)))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(&r.target)))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(r.phase.as_str())))?;
        group.required::<Int64Type>(rows.iter().map(|r| r.scheduled.unix_ns()))?;
        group.optional::<Int64Type>(optional_ns(|r| r.connect_start))?;
        group.optional::<Int64Type>(optional_ns(|r| r.connected))?;
        group.optional::<Int64Type>(optional_ns(|r| r.tls))?;
        group.optional::<Int64Type>(optional_ns(|r| r.sent))?;
        group.optional::<Int64Type>(optional_ns(|r| r.head))?;
        group.required::<Int64Type>(rows.iter().map(|r| r.end.unix_ns()))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(r.outcome.as_str())))?;
        group.optional::<Int32Type>(rows.iter().map(|r| r.errno))?;
        group.optional::<Int32Type>(rows.iter().map(|r| r.status.map(i32::from)))?;
        group.optional::<Int32Type>(rows.iter().map(|r| r.grpc_status))?;
        group.optional::<ByteArrayType>(rows.iter().map(|r| r.not_sent_reason.as_deref().map(bytes)))?;
        group.optional::<Int64Type>(rows.iter().map(|r| r.conn.map(signed)))?;
        group.required::<BoolType>(rows.iter().map(|r| r.conn_reused))?;
        group.optional::<Int32Type>(rows.iter().map(|r| r.stream.and_then(|id| i32::try_from(id).ok())))?;
        group.optional::<Int32Type>(rows.iter().map(|r| r.local_port.map(i32::from)))?;
        group.optional::<ByteArrayType>(rows.iter().map(|r| r.remote_addr.as_deref().map(bytes)))?;
        group.required::<Int64Type>(rows.iter().map(|r| signed(r.bytes_sent)))?;
        group.required::<Int64Type>(rows.iter().map(|r| signed(r.bytes_received)))?;
        group.optional::<ByteArrayType>(rows.iter().map(|r| r.pod.as_deref().map(bytes)))?;
        group.required::<Int32Type>(rows.iter().map(|r| i32::try_from(r.attempts).unwrap_or(i32::MAX)))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(r.final_outcome.as_str())))
    }

    fn read(group: &mut GroupReader<'_>) -> Result<Vec<Self>, ParquetError> {
        let mut names = Names::default();
        let rows = group.rows;
        let mut source = group.required::<ByteArrayType>()?;
        let mut seq = group.required::<Int64Type>()?;
        let mut target = group.required::<ByteArrayType>()?;
        let mut phase = group.required::<ByteArrayType>()?;
        let mut scheduled = group.required::<Int64Type>()?;
        let mut connect_start = group.optional::<Int64Type>()?;
        let mut connected = group.optional::<Int64Type>()?;
        let mut tls = group.optional::<Int64Type>()?;
        let mut sent = group.optional::<Int64Type>()?;
        let mut head = group.optional::<Int64Type>()?;
        let mut end = group.required::<Int64Type>()?;
        let mut outcome = group.required::<ByteArrayType>()?;
        let mut errno = group.optional::<Int32Type>()?;
        let mut status = group.optional::<Int32Type>()?;
        let mut grpc_status = group.optional::<Int32Type>()?;
        let mut not_sent_reason = group.optional::<ByteArrayType>()?;
        let mut conn = group.optional::<Int64Type>()?;
        let mut conn_reused = group.required::<BoolType>()?;
        let mut stream = group.optional::<Int32Type>()?;
        let mut local_port = group.optional::<Int32Type>()?;
        let mut remote_addr = group.optional::<ByteArrayType>()?;
        let mut bytes_sent = group.required::<Int64Type>()?;
        let mut bytes_received = group.required::<Int64Type>()?;
        let mut pod = group.optional::<ByteArrayType>()?;
        let mut attempts = group.required::<Int32Type>()?;
        let mut final_outcome = group.required::<ByteArrayType>()?;
        (0..rows)
            .map(|_| {
                Ok(RequestRow {
                    source: names.get(&value(source.next())?)?,
                    seq: unsigned(value(seq.next())?)?,
                    target: names.get(&value(target.next())?)?,
                    phase: parse(&value(phase.next())?)?,
                    scheduled: Stamp::from_unix_ns(value(scheduled.next())?),
                    connect_start: value(connect_start.next())?.map(Stamp::from_unix_ns),
                    connected: value(connected.next())?.map(Stamp::from_unix_ns),
                    tls: value(tls.next())?.map(Stamp::from_unix_ns),
                    sent: value(sent.next())?.map(Stamp::from_unix_ns),
                    head: value(head.next())?.map(Stamp::from_unix_ns),
                    end: Stamp::from_unix_ns(value(end.next())?),
                    outcome: parse(&value(outcome.next())?)?,
                    errno: value(errno.next())?,
                    status: value(status.next())?.map(narrow).transpose()?,
                    grpc_status: value(grpc_status.next())?,
                    not_sent_reason: names.get_optional(value(not_sent_reason.next())?)?,
                    conn: value(conn.next())?.map(unsigned).transpose()?,
                    conn_reused: value(conn_reused.next())?,
                    stream: value(stream.next())?.map(narrow).transpose()?,
                    local_port: value(local_port.next())?.map(narrow).transpose()?,
                    remote_addr: names.get_optional(value(remote_addr.next())?)?,
                    bytes_sent: unsigned(value(bytes_sent.next())?)?,
                    bytes_received: unsigned(value(bytes_received.next())?)?,
                    pod: names.get_optional(value(pod.next())?)?,
                    attempts: narrow(value(attempts.next())?)?,
                    final_outcome: parse(&value(final_outcome.next())?)?,
                })
            })
            .collect()
    }
}

impl sealed::Columns for ServedRow {
    const SCHEMA: &'static str = "message served {
        required binary source (STRING);
        optional binary request_source (STRING);
        optional int64 request_seq;
        required binary pod (STRING);
        required binary peer_addr (STRING);
        required int64 accepted_ns;
        optional int64 head_ns;
        required int64 end_ns;
        optional int32 status;
        required binary end (STRING);
        required int64 conn;
        required boolean conn_first_request;
    }";

    fn write(rows: &[Self], group: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(&r.source)))?;
        group
            .optional::<ByteArrayType>(rows.iter().map(|r| r.request.as_ref().map(|id| bytes(&id.source))))?;
        group.optional::<Int64Type>(rows.iter().map(|r| r.request.as_ref().map(|id| signed(id.seq))))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(&r.pod)))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(&r.peer_addr)))?;
        group.required::<Int64Type>(rows.iter().map(|r| r.accepted.unix_ns()))?;
        group.optional::<Int64Type>(rows.iter().map(|r| r.head.map(Stamp::unix_ns)))?;
        group.required::<Int64Type>(rows.iter().map(|r| r.end.unix_ns()))?;
        group.optional::<Int32Type>(rows.iter().map(|r| r.status.map(i32::from)))?;
        group.required::<ByteArrayType>(rows.iter().map(|r| bytes(r.ended.as_str())))?;
        group.required::<Int64Type>(rows.iter().map(|r| signed(r.conn)))?;
        group.required::<BoolType>(rows.iter().map(|r| r.conn_first_request))
    }

    fn read(group: &mut GroupReader<'_>) -> Result<Vec<Self>, ParquetError> {
        let mut names = Names::default();
        let rows = group.rows;
        let mut source = group.required::<ByteArrayType>()?;
        let mut request_source = group.optional::<ByteArrayType>()?;
        let mut request_seq = group.optional::<Int64Type>()?;
        let mut pod = group.required::<ByteArrayType>()?;
        let mut peer_addr = group.required::<ByteArrayType>()?;
        let mut accepted = group.required::<Int64Type>()?;
        let mut head = group.optional::<Int64Type>()?;
        let mut end = group.required::<Int64Type>()?;
        let mut status = group.optional::<Int32Type>()?;
        let mut ended = group.required::<ByteArrayType>()?;
        let mut conn = group.required::<Int64Type>()?;
        let mut conn_first_request = group.required::<BoolType>()?;
        (0..rows)
            .map(|_| {
                let request = value(request_source.next())?.zip(value(request_seq.next())?);
                Ok(ServedRow {
                    source: names.get(&value(source.next())?)?,
                    request: match request {
                        Some((source, seq)) => {
                            Some(RequestId { source: text(&source)?.to_owned(), seq: unsigned(seq)? })
                        }
                        None => None,
                    },
                    pod: names.get(&value(pod.next())?)?,
                    peer_addr: text(&value(peer_addr.next())?)?.to_owned(),
                    accepted: Stamp::from_unix_ns(value(accepted.next())?),
                    head: value(head.next())?.map(Stamp::from_unix_ns),
                    end: Stamp::from_unix_ns(value(end.next())?),
                    status: value(status.next())?.map(narrow).transpose()?,
                    ended: parse(&value(ended.next())?)?,
                    conn: unsigned(value(conn.next())?)?,
                    conn_first_request: value(conn_first_request.next())?,
                })
            })
            .collect()
    }
}

/// Texts that repeat from row to row share one allocation.
#[derive(Default)]
struct Names(std::collections::HashSet<Arc<str>>);

impl Names {
    fn get(&mut self, bytes: &ByteArray) -> Result<Arc<str>, ParquetError> {
        let name = text(bytes)?;
        if let Some(known) = self.0.get(name) {
            return Ok(Arc::clone(known));
        }
        let new: Arc<str> = name.into();
        self.0.insert(Arc::clone(&new));
        Ok(new)
    }

    fn get_optional(&mut self, bytes: Option<ByteArray>) -> Result<Option<Arc<str>>, ParquetError> {
        bytes.map(|bytes| self.get(&bytes)).transpose()
    }
}

fn bytes(s: &str) -> ByteArray {
    ByteArray::from(s)
}

fn text(bytes: &ByteArray) -> Result<&str, ParquetError> {
    std::str::from_utf8(bytes.data()).map_err(|e| ParquetError::General(e.to_string()))
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(bytes: &ByteArray) -> Result<T, ParquetError> {
    text(bytes)?.parse().map_err(|e: T::Err| ParquetError::General(e.to_string()))
}

fn value<T>(value: Option<T>) -> Result<T, ParquetError> {
    value.ok_or_else(|| ParquetError::General("a column ends before its row group".into()))
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn unsigned(n: i64) -> Result<u64, ParquetError> {
    u64::try_from(n).map_err(|e| ParquetError::General(e.to_string()))
}

fn narrow<T: TryFrom<i32, Error: std::fmt::Display>>(n: i32) -> Result<T, ParquetError> {
    T::try_from(n).map_err(|e| ParquetError::General(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Outcome, Phase, ServedEnd};

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
            sent: (seq.is_multiple_of(2)).then(|| at(3)),
            head: None,
            end: at(9),
            outcome: if seq.is_multiple_of(2) {
                Outcome::ResetBeforeResponse
            } else {
                Outcome::ConnectRefused
            },
            errno: Some(104),
            status: (seq.is_multiple_of(3)).then_some(503),
            grpc_status: None,
            not_sent_reason: None,
            conn: Some(seq),
            conn_reused: false,
            stream: (seq.is_multiple_of(2)).then_some(u32::MAX >> 1),
            local_port: Some(65_535),
            remote_addr: Some("127.0.0.1:80".into()),
            bytes_sent: 70,
            bytes_received: 0,
            pod: (seq.is_multiple_of(2)).then(|| "web-1".into()),
            attempts: 1,
            final_outcome: Outcome::ConnectRefused,
        }
    }

    #[test]
    fn rows_read_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", clock).unwrap();
        let rows: Vec<_> = (0..70_000).map(request).collect();
        writer.extend(rows.clone()).unwrap();
        assert_eq!(writer.finish().unwrap(), 70_000);
        assert_eq!(read_table::<RequestRow>(dir.path()).unwrap(), rows);

        let served: Vec<_> = (0..10)
            .map(|seq| ServedRow {
                source: "web-1".into(),
                request: (seq != 4).then(|| RequestId { source: "load-0".into(), seq }),
                pod: "web-1".into(),
                peer_addr: "127.0.0.1:4000".into(),
                accepted: clock.now(),
                head: None,
                end: clock.now(),
                status: Some(200),
                ended: ServedEnd::Complete,
                conn: seq,
                conn_first_request: true,
            })
            .collect();
        let mut writer = PartWriter::<ServedRow>::create(dir.path(), "web-1", clock).unwrap();
        writer.extend(served.clone()).unwrap();
        writer.finish().unwrap();
        assert_eq!(read_table::<ServedRow>(dir.path()).unwrap(), served);
    }

    #[test]
    fn a_part_that_was_not_closed_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", Clock::start()).unwrap();
        writer.extend((0..70_000).map(request)).unwrap();
        drop(writer);
        assert_eq!(read_table::<RequestRow>(dir.path()).unwrap(), []);
    }

    #[test]
    fn a_file_that_is_no_part_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("served")).unwrap();
        fs::write(dir.path().join("served/x.parquet"), "not parquet").unwrap();
        let error = read_table::<ServedRow>(dir.path()).unwrap_err().to_string();
        assert!(error.contains("x.parquet"), "{error}");
    }
}
