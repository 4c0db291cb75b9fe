//! Reads a row group's columns, row by row.
//!
//! The parquet crate decodes numeric columns as a whole. Strings repeat for thousands of rows, so each distinct string
//! is created once, and the rows that contain it are read as runs of its dictionary code, which is how
//! `column_buffers` writes them.

use std::collections::HashSet;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use parquet::column::page::Page;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::RowGroupReader;

use super::column_buffers::TextRun;

/// Maximum number of rows to reserve memory for up front.
const MOST_ROOM: usize = 1 << 16;

/// Values of a column, and each row's definition level, which is above 0 if the row has a value.
type Levelled<T> = (Vec<<T as DataType>::T>, Vec<i16>);

/// Interned strings. Each distinct string is stored once, across all files and columns.
#[derive(Debug, Default)]
pub(super) struct KnownTexts(HashSet<Arc<str>>);

impl KnownTexts {
    fn get(&mut self, bytes: &[u8]) -> Result<Arc<str>> {
        let text = std::str::from_utf8(bytes).map_err(|e| ParquetError::General(e.to_string()))?;
        if let Some(known) = self.0.get(text) {
            return Ok(Arc::clone(known));
        }
        let new: Arc<str> = text.into();
        self.0.insert(Arc::clone(&new));
        Ok(new)
    }
}

/// Reader of one row group's columns, by name.
pub struct GroupReader<'a> {
    group: &'a dyn RowGroupReader,
    known: &'a mut KnownTexts,
    /// Number of rows in the group.
    pub(super) rows: usize,
}

impl<'a> GroupReader<'a> {
    /// Creates a reader for the columns of a row group.
    pub(super) fn begin(group: &'a dyn RowGroupReader, known: &'a mut KnownTexts) -> Result<Self> {
        let rows = whole(group.metadata().num_rows())?;
        Ok(Self { group, known, rows })
    }

    /// Returns the index of a column.
    fn find(&self, name: &str) -> Result<usize> {
        let mut columns = self.group.metadata().columns().iter();
        let found = columns.position(|column| column.column_descr().name() == name);
        found.ok_or_else(|| ParquetError::General(format!("column {name} is missing")))
    }

    fn column<T: DataType>(&self, index: usize) -> Result<Levelled<T>> {
        let is_optional = self.group.metadata().column(index).column_descr().max_def_level() > 0;
        let mut reader = get_typed_column_reader::<T>(self.group.get_column_reader(index)?);
        // The row count in the file may be wrong.
        let room = self.rows.min(MOST_ROOM);
        let mut values = Vec::with_capacity(room);
        let mut levels = Vec::with_capacity(if is_optional { room } else { 0 });
        let mut read = 0;
        while read < self.rows {
            let levels = is_optional.then_some(&mut levels);
            let (records, _, _) = reader.read_records(self.rows - read, levels, None, &mut values)?;
            if records == 0 {
                return Err(ended());
            }
            read += records;
        }
        Ok((values, levels))
    }

    /// Reads a column with a number in every row, converting the numbers with `make`.
    pub(super) fn required<T: DataType, V>(
        &self,
        name: &str,
        make: impl Fn(T::T) -> Result<V>,
    ) -> Result<IntoIter<V>> {
        let (values, _) = self.column::<T>(self.find(name)?)?;
        made(values, make)
    }

    /// Reads a column with a number in some rows.
    pub(super) fn optional<T: DataType, V>(
        &self,
        name: &str,
        make: impl Fn(T::T) -> Result<V>,
    ) -> Result<OptionalColumn<V>> {
        let (values, levels) = self.column::<T>(self.find(name)?)?;
        let form = match values.len() {
            0 => Presence::None,
            n if n == self.rows => Presence::All,
            n if levels.iter().filter(|level| **level > 0).count() == n => Presence::Some(levels.into_iter()),
            _ => return Err(ended()),
        };
        Ok(OptionalColumn { form, values: made(values, make)? })
    }

    /// Reads a string column, converting each distinct string with `make`. Returns `None` if no row has a value.
    pub(super) fn texts<V>(
        &mut self,
        name: &str,
        make: impl Fn(&Arc<str>) -> Result<V>,
    ) -> Result<Option<TextColumn<V>>> {
        let index = self.find(name)?;
        let (texts, runs) = self.coded(index)?;
        let mut values = Vec::with_capacity(texts.len());
        for text in &texts {
            values.push(make(&self.known.get(text.data())?)?);
        }
        if runs.iter().any(|run| run.code.is_some_and(|code| code as usize >= values.len())) {
            return Err(ParquetError::General(format!("column {name} has a code without a string")));
        }
        if rows_of(&runs) != self.rows {
            return Err(ended());
        }
        if self.rows > 0 && runs.iter().all(|run| run.code.is_none()) {
            return Ok(None);
        }
        Ok(Some(TextColumn { values, runs: runs.into_iter(), code: None, left: 0 }))
    }

    /// Reads the dictionary and the runs of a column.
    fn coded(&self, index: usize) -> Result<Coded> {
        let is_optional = self.group.metadata().column(index).column_descr().max_def_level() > 0;
        let mut pages = self.group.get_column_page_reader(index)?;
        let (mut texts, mut runs) = (Vec::new(), Vec::new());
        while let Some(page) = pages.get_next_page()? {
            match page {
                Page::DictionaryPage { buf, num_values, .. } => texts = dictionary(&buf, num_values)?,
                Page::DataPage { buf, num_values, .. } => {
                    let rows = num_values as usize;
                    let (levels, codes) = split_levels(&buf, is_optional)?;
                    let levels = match levels {
                        Some(levels) => decode_runs(levels, 1, rows)?,
                        None => vec![(1, rows)],
                    };
                    let with_text =
                        levels.iter().filter(|(level, _)| *level == 1).map(|(_, rows)| rows).sum();
                    let codes = match codes.split_first() {
                        Some((bits, codes)) => decode_runs(codes, usize::from(bits.div_ceil(8)), with_text)?,
                        None => Vec::new(),
                    };
                    join(&levels, codes, &mut runs);
                }
                Page::DataPageV2 { .. } => return Err(ParquetError::General("a page of version 2".into())),
            }
        }
        Ok((texts, runs))
    }
}

/// Converts numbers to values, reusing the allocation.
fn made<N, V>(numbers: Vec<N>, make: impl Fn(N) -> Result<V>) -> Result<IntoIter<V>> {
    numbers.into_iter().map(make).collect::<Result<Vec<V>, _>>().map(Vec::into_iter)
}

/// A column with numbers in some rows.
pub(super) struct OptionalColumn<V> {
    form: Presence,
    values: IntoIter<V>,
}

/// Distribution of values over the rows.
enum Presence {
    None,
    All,
    /// The rows with a level of 1 have a value.
    Some(IntoIter<i16>),
}

impl<V> OptionalColumn<V> {
    /// Returns the next row's value.
    #[inline]
    pub(super) fn next(&mut self) -> Option<V> {
        let has_value = match &mut self.form {
            Presence::None => false,
            Presence::All => true,
            Presence::Some(levels) => levels.next().is_some_and(|level| level > 0),
        };
        if has_value { self.values.next() } else { None }
    }
}

/// Strings of a column by code, and the runs of its rows.
type Coded = (Vec<ByteArray>, Vec<TextRun>);

fn rows_of(runs: &[TextRun]) -> usize {
    runs.iter().map(|run| run.rows).sum()
}

/// A column of strings, or of values that the file stores as strings.
pub(super) struct TextColumn<V> {
    /// Values by code.
    values: Vec<V>,
    runs: IntoIter<TextRun>,
    /// Code of the current run.
    code: Option<u32>,
    /// Remaining rows of the current run.
    left: usize,
}

impl<V> TextColumn<V> {
    /// Returns the next row's value.
    #[inline]
    pub(super) fn next(&mut self) -> Option<&V> {
        while self.left == 0 {
            let TextRun { code, rows } = self.runs.next()?;
            (self.code, self.left) = (code, rows);
        }
        self.left -= 1;
        self.code.map(|code| &self.values[code as usize])
    }
}

/// Returns the next row's value of a column that may be missing from the file.
#[inline]
pub(super) fn next_text<V>(column: &mut Option<TextColumn<V>>) -> Option<&V> {
    match column {
        Some(column) => column.next(),
        None => None,
    }
}

/// Combines runs of levels with runs of codes; codes exist only for rows with a string.
fn join(levels: &[(u32, usize)], codes: Vec<(u32, usize)>, runs: &mut Vec<TextRun>) {
    let mut codes = codes.into_iter();
    let mut current = (0, 0);
    for (level, rows) in levels {
        let mut rows = *rows;
        if *level == 0 {
            runs.push(TextRun { code: None, rows });
            continue;
        }
        while rows > 0 {
            if current.1 == 0 {
                let Some(next) = codes.next() else { return };
                current = next;
            }
            let both = rows.min(current.1);
            runs.push(TextRun { code: Some(current.0), rows: both });
            rows -= both;
            current.1 -= both;
        }
    }
}

/// Splits a dictionary page into its strings, each stored as a length followed by bytes.
fn dictionary(page: &Bytes, texts: u32) -> Result<Vec<ByteArray>> {
    let mut at = 0;
    let mut take = |bytes: usize| {
        let end = at + bytes;
        let taken = (end <= page.len()).then(|| page.slice(at..end)).ok_or_else(ended);
        at = end;
        taken
    };
    let mut found = Vec::new();
    for _ in 0..texts {
        let length = take(4)?;
        let length = length.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
        found.push(take(length)?.into());
    }
    Ok(found)
}

/// Splits a data page into its definition levels, if the column is optional, and the rest.
fn split_levels(page: &[u8], is_optional: bool) -> Result<(Option<&[u8]>, &[u8])> {
    if !is_optional {
        return Ok((None, page));
    }
    let (length, rest) = page.split_first_chunk::<4>().ok_or_else(ended)?;
    let (levels, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(ended)?;
    Ok((Some(levels), rest))
}

/// Decodes numbers of `width` bytes from runs in Parquet's RLE encoding. Returns runs that add up to `wanted` numbers.
fn decode_runs(mut bytes: &[u8], width: usize, wanted: usize) -> Result<Vec<(u32, usize)>> {
    let mut runs = Vec::new();
    let mut found = 0;
    while found < wanted {
        let header = varint(&mut bytes)?;
        let (value, rest) = bytes.split_at_checked(width).ok_or_else(ended)?;
        let rows = (header >> 1).min(wanted - found);
        // An odd header announces single numbers.
        if header & 1 == 1 || rows == 0 {
            return Err(ParquetError::General("rows are not stored as runs".into()));
        }
        let value = value.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        runs.push((value, rows));
        (found, bytes) = (found + rows, rest);
    }
    Ok(runs)
}

fn varint(bytes: &mut &[u8]) -> Result<usize> {
    let mut number = 0_usize;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or_else(ended)?;
        *bytes = rest;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ParquetError::General("the length of a run is out of range".into()))
}

fn whole(number: i64) -> Result<usize> {
    usize::try_from(number).map_err(|e| ParquetError::General(e.to_string()))
}

/// Returns the error for a column that has fewer values than its row group has rows.
pub(super) fn ended() -> ParquetError {
    ParquetError::General("a column ends before its row group".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoder_rejects_malformed_column_bytes() {
        for bytes in [&[][..], &[0, 1], &[2], &[3, 1], &[0x80; 9]] {
            assert!(decode_runs(bytes, 1, 8).is_err(), "{bytes:?}");
        }
        assert_eq!(decode_runs(&[4, 7, 6, 9], 1, 4).unwrap(), [(7, 2), (9, 2)]);
        assert!(dictionary(&Bytes::from_static(&[9, 0, 0, 0, b'x']), 1).is_err());
    }
}
