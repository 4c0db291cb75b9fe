//! Columns of a table, filled row by row in memory and written as Parquet column chunks. For reading, see `read`.
//!
//! This module does its own buffering because it is on the recorders' hot path. Rows are split into columns as they
//! arrive, while they are still in the CPU cache. The parquet crate delta-packs numbers. [`Texts`] repeat for thousands
//! of rows, so they are kept and written as runs; the parquet crate would look up every single value in its dictionary.

use std::collections::HashMap;
use std::mem::take;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::writer::{
    SerializedFileWriter, SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite,
};
use parquet::schema::types::ColumnDescPtr;

use super::checksum::Summed;

/// Writer of one row group's columns, in schema order.
pub struct GroupWriter<'a> {
    /// Columns that have not been written yet.
    columns: std::vec::IntoIter<ColumnDescPtr>,
    group: SerializedRowGroupWriter<'a, Summed>,
}

impl<'a> GroupWriter<'a> {
    /// Begins a row group in the file.
    pub(super) fn begin(file: &'a mut SerializedFileWriter<Summed>) -> Result<Self> {
        let columns = file.schema_descr().columns().to_vec().into_iter();
        Ok(Self { columns, group: file.next_row_group()? })
    }

    /// Ends the row group.
    pub(super) fn end(self) -> Result<()> {
        self.group.close()?;
        Ok(())
    }

    fn typed<T: DataType>(&mut self, values: &[T::T], levels: Option<&[i16]>) -> Result<()> {
        self.columns.next();
        let mut column = self.group.next_column()?.ok_or_else(too_many_columns)?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }

    /// Writes a string column: a dictionary page, and a data page with the runs.
    fn texts(&mut self, texts: &Texts) -> Result<()> {
        let descriptor = self.columns.next().ok_or_else(too_many_columns)?;
        let is_optional = descriptor.max_def_level() > 0;
        let mut sink = TrackedWrite::new(Vec::new());
        let mut pages = SerializedPageWriter::new(&mut sink);
        let mut sizes = 0;
        let mut write = |page: Page| {
            let size = page.buffer().len();
            let spec = pages.write_page(CompressedPage::new(page, size))?;
            sizes += spec.uncompressed_size;
            signed(spec.offset)
        };
        let mut dictionary_offset = None;
        if !texts.codes.is_empty() {
            dictionary_offset = Some(write(Page::DictionaryPage {
                buf: Bytes::copy_from_slice(&texts.dictionary),
                num_values: texts.different()?,
                encoding: Encoding::PLAIN,
                is_sorted: false,
            })?);
        }
        let encoding = if texts.codes.is_empty() { Encoding::PLAIN } else { Encoding::RLE_DICTIONARY };
        let data_offset = write(Page::DataPage {
            buf: texts.data_page(is_optional)?.into(),
            num_values: narrow(texts.rows)?,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        })?;
        let chunk = Bytes::from(sink.into_inner()?);
        let metadata = ColumnChunkMetaData::builder(descriptor)
            .set_compression(Compression::UNCOMPRESSED)
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE, encoding])
            .set_num_values(signed(texts.rows)?)
            .set_total_compressed_size(signed(chunk.len())?)
            .set_total_uncompressed_size(signed(sizes)?)
            .set_dictionary_page_offset(dictionary_offset)
            .set_data_page_offset(data_offset)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: chunk.len() as u64,
            rows_written: texts.rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        self.group.append_column(&chunk, close)
    }
}

fn too_many_columns() -> ParquetError {
    ParquetError::General("more columns than the schema has".into())
}

fn narrow(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|e| ParquetError::General(e.to_string()))
}

fn signed<N: TryInto<i64, Error: std::fmt::Display>>(n: N) -> Result<i64> {
    n.try_into().map_err(|e: N::Error| ParquetError::General(e.to_string()))
}

/// A column that has a number in every row.
pub(super) struct Numbers<T: DataType>(Vec<T::T>);

impl<T: DataType> Default for Numbers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: DataType> Numbers<T> {
    /// Adds the next row's value.
    pub(super) fn push(&mut self, value: T::T) {
        self.0.push(value);
    }

    /// Writes the rows as the next column, and empties the buffer.
    pub(super) fn write(&mut self, group: &mut GroupWriter<'_>) -> Result<()> {
        group.typed::<T>(&self.0, None)?;
        self.0.clear();
        Ok(())
    }
}

/// A column that has a number in some rows.
pub(super) struct OptionalNumbers<T: DataType> {
    values: Vec<T::T>,
    /// 1 for a row with a number, 0 for one without.
    levels: Vec<i16>,
}

impl<T: DataType> Default for OptionalNumbers<T> {
    fn default() -> Self {
        Self { values: Vec::new(), levels: Vec::new() }
    }
}

impl<T: DataType> OptionalNumbers<T> {
    /// Adds the next row's value.
    pub(super) fn push(&mut self, value: Option<T::T>) {
        self.levels.push(value.is_some().into());
        self.values.extend(value);
    }

    /// Writes the rows as the next column, and empties the buffer.
    pub(super) fn write(&mut self, group: &mut GroupWriter<'_>) -> Result<()> {
        group.typed::<T>(&self.values, Some(&self.levels))?;
        self.values.clear();
        self.levels.clear();
        Ok(())
    }
}

/// A column of repeating strings: each distinct string once, and the runs of rows that contain it.
#[derive(Default)]
pub(super) struct Texts {
    /// Distinct strings in code order, in Parquet's plain encoding.
    dictionary: Vec<u8>,
    codes: HashMap<Box<str>, u32>,
    runs: Vec<TextRun>,
    /// String of the last run, if that run has one.
    last: String,
    rows: usize,
}

/// Consecutive rows with the same string, or without one.
pub(super) struct TextRun {
    pub(super) code: Option<u32>,
    pub(super) rows: usize,
}

impl Texts {
    /// Adds the next row's value.
    pub(super) fn push(&mut self, text: Option<&str>) -> Result<()> {
        self.rows += 1;
        if let Some(run) = self.runs.last_mut() {
            let is_same = match text {
                Some(text) => run.code.is_some() && text == self.last,
                None => run.code.is_none(),
            };
            if is_same {
                run.rows += 1;
                return Ok(());
            }
        }
        let code = text.map(|text| self.code(text)).transpose()?;
        self.runs.push(TextRun { code, rows: 1 });
        Ok(())
    }

    fn code(&mut self, text: &str) -> Result<u32> {
        self.last.clear();
        self.last.push_str(text);
        if let Some(code) = self.codes.get(text) {
            return Ok(*code);
        }
        let code = self.different()?;
        self.codes.insert(text.into(), code);
        self.dictionary.extend(narrow(text.len())?.to_le_bytes());
        self.dictionary.extend_from_slice(text.as_bytes());
        Ok(code)
    }

    fn different(&self) -> Result<u32> {
        narrow(self.codes.len())
    }

    /// Writes the rows as the next column, and empties the buffer.
    pub(super) fn write(&mut self, group: &mut GroupWriter<'_>) -> Result<()> {
        let texts = take(self);
        group.texts(&texts)
    }

    /// Builds the data page: definition levels (if the column is optional) and codes, both as runs in Parquet's RLE
    /// encoding.
    fn data_page(&self, is_optional: bool) -> Result<Vec<u8>> {
        let mut page = Vec::new();
        if is_optional {
            let mut levels = Vec::new();
            for same in self.runs.chunk_by(|a, b| a.code.is_some() == b.code.is_some()) {
                let level = same.first().is_some_and(|run| run.code.is_some());
                put_run(&mut levels, level.into(), 1, same.iter().map(|run| run.rows).sum());
            }
            page.extend(narrow(levels.len())?.to_le_bytes());
            page.extend(levels);
        }
        if !self.codes.is_empty() {
            let last = self.different()?.saturating_sub(1);
            let bits = (u32::BITS - last.leading_zeros()).max(1);
            page.push(u8::try_from(bits).unwrap_or(32));
            for run in &self.runs {
                if let Some(code) = run.code {
                    put_run(&mut page, code, bits.div_ceil(8) as usize, run.rows);
                }
            }
        }
        Ok(page)
    }
}

/// Writes one run in Parquet's RLE encoding: twice the run length as a varint, and the value in `width` bytes.
fn put_run(out: &mut Vec<u8>, value: u32, width: usize, rows: usize) {
    let mut header = rows << 1;
    while header >= 0x80 {
        out.push(header.to_le_bytes()[0] | 0x80);
        header >>= 7;
    }
    out.push(header.to_le_bytes()[0]);
    out.extend(value.to_le_bytes().iter().take(width));
}
