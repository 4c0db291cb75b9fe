//! Row fields as table columns: numbers, strings, enum names, request ids.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::vec::IntoIter;

use parquet::data_type::{BoolType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};

use super::column_buffers::{GroupWriter, Numbers, OptionalNumbers, Texts};
use super::csv::CsvWriter;
use super::group_reader::{GroupReader, OptionalColumn, TextColumn, ended, next_text};
use crate::{Outcome, Phase, Protocol, RequestId, ServedEnd, Stamp, StreamEnd, TlsSession};

/// A row field. Most fields are stored in one column, a request id in three.
pub(super) trait Cell: Sized {
    /// Buffer for the field's columns.
    type Buffer: Default + Send;
    /// Columns of this field in a row group that is being read.
    type Column;

    /// Appends the field's columns to a schema.
    fn declare(name: &str, schema: &mut String);
    /// Adds the next row's value.
    fn push(&self, buffer: &mut Self::Buffer) -> Result<()>;
    /// Writes the rows as the next columns, and empties the buffer.
    fn write(buffer: &mut Self::Buffer, group: &mut GroupWriter<'_>) -> Result<()>;
    /// Opens the field's columns in a row group.
    fn open(name: &str, group: &mut GroupReader<'_>) -> Result<Self::Column>;
    /// Returns the field's value before the first row has been read.
    fn blank() -> Self;
    /// Reads the next row's value.
    fn read(&mut self, column: &mut Self::Column) -> Result<()>;
    /// Returns true if the JSON form of a row omits this value.
    fn is_absent(&self) -> bool {
        false
    }
    /// Adds the value to a CSV line.
    fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()>;
    /// Returns the names of the field's columns.
    fn names(name: &'static str) -> impl Iterator<Item = &'static str> {
        std::iter::once(name)
    }
}

/// A type that is stored as a number in the file.
pub(super) trait Number: Sized {
    type Physical: DataType;
    const TYPE: &'static str;

    fn to_file(&self) -> <Self::Physical as DataType>::T;
    fn of_file(number: <Self::Physical as DataType>::T) -> Result<Self>;
}

macro_rules! number {
    ($($type:ty as $physical:ty, $name:literal: $own:ident => $to:expr, $number:ident => $of:expr;)*) => {$(
        impl Number for $type {
            type Physical = $physical;
            const TYPE: &'static str = $name;

            fn to_file(&self) -> <$physical as DataType>::T {
                let $own = *self;
                $to
            }

            fn of_file($number: <$physical as DataType>::T) -> Result<Self> {
                $of
            }
        }

        impl Cell for $type {
            type Buffer = Numbers<$physical>;
            type Column = IntoIter<Self>;

            fn declare(name: &str, schema: &mut String) {
                schema.push_str(&format!("required {} {name};", $name));
            }

            fn push(&self, buffer: &mut Self::Buffer) -> Result<()> {
                buffer.push(self.to_file());
                Ok(())
            }

            fn write(buffer: &mut Self::Buffer, group: &mut GroupWriter<'_>) -> Result<()> {
                buffer.write(group)
            }

            fn open(name: &str, group: &mut GroupReader<'_>) -> Result<Self::Column> {
                group.required::<$physical, _>(name, Self::of_file)
            }

            fn blank() -> Self {
                Self::default()
            }

            #[inline]
            fn read(&mut self, column: &mut Self::Column) -> Result<()> {
                *self = column.next().ok_or_else(ended)?;
                Ok(())
            }

            fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()> {
                line.shown(Some(self.to_file()))
            }
        }
    )*};
}

number! {
    Stamp as Int64Type, "int64": at => at.unix_ns(), ns => Ok(Stamp::from_unix_ns(ns));
    u64 as Int64Type, "int64": n => i64::try_from(n).unwrap_or(i64::MAX), n => narrow(n);
    u32 as Int32Type, "int32": n => i32::try_from(n).unwrap_or(i32::MAX), n => narrow(n);
    u16 as Int32Type, "int32": n => i32::from(n), n => narrow(n);
    i32 as Int32Type, "int32": n => n, n => Ok(n);
    bool as BoolType, "boolean": is => is, is => Ok(is);
}

/// A number that is missing in some rows.
impl<N: Number> Cell for Option<N>
where
    <N::Physical as DataType>::T: Send + Display,
{
    type Buffer = OptionalNumbers<N::Physical>;
    type Column = OptionalColumn<N>;

    fn declare(name: &str, schema: &mut String) {
        schema.push_str(&format!("optional {} {name};", N::TYPE));
    }

    fn push(&self, buffer: &mut Self::Buffer) -> Result<()> {
        buffer.push(self.as_ref().map(N::to_file));
        Ok(())
    }

    fn write(buffer: &mut Self::Buffer, group: &mut GroupWriter<'_>) -> Result<()> {
        buffer.write(group)
    }

    fn open(name: &str, group: &mut GroupReader<'_>) -> Result<Self::Column> {
        group.optional::<N::Physical, _>(name, N::of_file)
    }

    fn blank() -> Self {
        None
    }

    #[inline]
    fn read(&mut self, column: &mut Self::Column) -> Result<()> {
        *self = column.next();
        Ok(())
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()> {
        line.shown(self.as_ref().map(N::to_file))
    }
}

macro_rules! text {
    ($($type:ty: $value:ident => $to:expr, $of:path, $blank:expr, $same:expr;)*) => {$(
        impl Cell for $type {
            type Buffer = Texts;
            type Column = TextColumn<$type>;

            fn declare(name: &str, schema: &mut String) {
                schema.push_str(&format!("required binary {name} (STRING);"));
            }

            fn push(&self, buffer: &mut Self::Buffer) -> Result<()> {
                let $value = self;
                buffer.push(Some($to.as_ref()))
            }

            fn write(buffer: &mut Self::Buffer, group: &mut GroupWriter<'_>) -> Result<()> {
                buffer.write(group)
            }

            fn open(name: &str, group: &mut GroupReader<'_>) -> Result<Self::Column> {
                group.texts(name, $of)?.ok_or_else(|| ParquetError::General(format!("column {name} is missing")))
            }

            fn blank() -> Self {
                $blank
            }

            #[inline]
            fn read(&mut self, column: &mut Self::Column) -> Result<()> {
                let value = column.next().ok_or_else(ended)?;
                if !$same(value, self) {
                    self.clone_from(value);
                }
                Ok(())
            }

            fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()> {
                let $value = self;
                line.text($to.as_ref())
            }
        }

        impl Cell for Option<$type> {
            type Buffer = Texts;
            type Column = Option<TextColumn<$type>>;

            fn declare(name: &str, schema: &mut String) {
                schema.push_str(&format!("optional binary {name} (STRING);"));
            }

            fn push(&self, buffer: &mut Self::Buffer) -> Result<()> {
                buffer.push(self.as_ref().map(|$value| $to).as_ref().map(AsRef::as_ref))
            }

            fn write(buffer: &mut Self::Buffer, group: &mut GroupWriter<'_>) -> Result<()> {
                buffer.write(group)
            }

            fn open(name: &str, group: &mut GroupReader<'_>) -> Result<Self::Column> {
                group.texts(name, $of)
            }

            fn blank() -> Self {
                None
            }

            #[inline]
            fn read(&mut self, column: &mut Self::Column) -> Result<()> {
                let value = next_text(column);
                match (self.as_ref(), value) {
                    (Some(before), Some(value)) if $same(value, before) => {}
                    (None, None) => {}
                    _ => *self = value.cloned(),
                }
                Ok(())
            }

            fn is_absent(&self) -> bool {
                self.is_none()
            }

            fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()> {
                line.text(self.as_ref().map(|$value| $to).as_ref().map_or("", AsRef::as_ref))
            }
        }
    )*};
}

text! {
    Arc<str>: text => text, kept, "".into(), Arc::ptr_eq;
    Outcome: outcome => outcome.as_str(), parse, Self::ALL[0], PartialEq::eq;
    Phase: phase => phase.as_str(), parse, Self::ALL[0], PartialEq::eq;
    Protocol: protocol => protocol.as_str(), parse, Self::ALL[0], PartialEq::eq;
    ServedEnd: end => end.as_str(), parse, Self::ALL[0], PartialEq::eq;
    StreamEnd: end => end.as_str(), parse, Self::ALL[0], PartialEq::eq;
    TlsSession: session => session.as_str(), parse, Self::ALL[0], PartialEq::eq;
    SocketAddr: address => address.to_string(), parse, (Ipv4Addr::UNSPECIFIED, 0).into(), PartialEq::eq;
}

/// Column names of the three parts of a request id.
const ID_COLUMNS: [&str; 3] = ["request_run", "request_source", "request_seq"];

/// Buffer for the columns of a request id.
#[derive(Default)]
pub(super) struct IdBuffer {
    run: Texts,
    source: Texts,
    seq: OptionalNumbers<Int64Type>,
}

/// Columns of a request id in a row group that is being read.
pub(super) struct IdColumns {
    run: Option<TextColumn<Arc<str>>>,
    source: Option<TextColumn<Arc<str>>>,
    seq: OptionalColumn<u64>,
}

impl Cell for Option<RequestId> {
    type Buffer = IdBuffer;
    type Column = IdColumns;

    fn declare(_: &str, schema: &mut String) {
        let [run, source, seq] = ID_COLUMNS;
        <Option<Arc<str>>>::declare(run, schema);
        <Option<Arc<str>>>::declare(source, schema);
        <Option<u64>>::declare(seq, schema);
    }

    fn push(&self, buffer: &mut IdBuffer) -> Result<()> {
        buffer.run.push(self.as_ref().map(RequestId::run))?;
        buffer.source.push(self.as_ref().map(RequestId::source))?;
        Cell::push(&self.as_ref().map(|id| id.seq), &mut buffer.seq)
    }

    fn write(buffer: &mut IdBuffer, group: &mut GroupWriter<'_>) -> Result<()> {
        buffer.run.write(group)?;
        buffer.source.write(group)?;
        buffer.seq.write(group)
    }

    fn open(_: &str, group: &mut GroupReader<'_>) -> Result<IdColumns> {
        let [run, source, seq] = ID_COLUMNS;
        Ok(IdColumns {
            run: group.texts(run, kept)?,
            source: group.texts(source, kept)?,
            seq: group.optional::<Int64Type, _>(seq, narrow)?,
        })
    }

    fn blank() -> Self {
        None
    }

    fn read(&mut self, IdColumns { run, source, seq }: &mut IdColumns) -> Result<()> {
        let (run, source, seq) = (next_text(run), next_text(source), seq.next());
        *self = None;
        if let (Some(run), Some(source), Some(seq)) = (run, source, seq) {
            let id = RequestId::of_parts(run, source, seq);
            *self = Some(id.map_err(|e| ParquetError::General(e.to_string()))?);
        }
        Ok(())
    }

    fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()> {
        line.text(self.as_ref().map(RequestId::run).unwrap_or_default())?;
        line.text(self.as_ref().map(RequestId::source).unwrap_or_default())?;
        line.shown(self.as_ref().map(|id| id.seq))
    }

    fn names(_: &'static str) -> impl Iterator<Item = &'static str> {
        ID_COLUMNS.into_iter()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the other functions of its kind may fail")]
fn kept(text: &Arc<str>) -> Result<Arc<str>> {
    Ok(Arc::clone(text))
}

fn parse<T: std::str::FromStr<Err: Display>>(text: &Arc<str>) -> Result<T> {
    text.parse().map_err(|e: T::Err| ParquetError::General(e.to_string()))
}

fn narrow<N, T: TryFrom<N, Error: Display>>(n: N) -> Result<T> {
    T::try_from(n).map_err(|e| ParquetError::General(e.to_string()))
}
