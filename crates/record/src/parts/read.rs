//! Reading of a row group's columns, row by row.
//!
//! The parquet crate decodes numeric columns as a whole. Strings repeat for thousands of rows, so each distinct string
//! is created once, and the rows that contain it are read as runs of its dictionary code. A string column that another
//! program wrote without codes is read value by value.

use std::collections::HashSet;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::RowGroupReader;

use super::columns::TextRun;

/// Maximum number of rows to reserve memory for at once.
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
        let (texts, runs) = match self.coded(index)? {
            Some(coded) => coded,
            None => self.plain(index)?,
        };
        let mut values = Vec::with_capacity(texts.len());
        for text in &texts {
            values.push(make(&self.known.get(text.data())?)?);
        }
        if runs.iter().any(|run| run.code.is_some_and(|code| code as usize >= values.len())) {
            return Err(ParquetError::General(format!("column {name} has a code without a text")));
        }
        if rows_of(&runs) != self.rows {
            return Err(ended());
        }
        if self.rows > 0 && runs.iter().all(|run| run.code.is_none()) {
            return Ok(None);
        }
        Ok(Some(TextColumn { values, runs: runs.into_iter(), code: None, left: 0 }))
    }

    /// Reads the dictionary and runs of a column whose pages contain only codes; returns `None` for any other column.
    fn coded(&self, index: usize) -> Result<Option<Coded>> {
        let is_optional = self.group.metadata().column(index).column_descr().max_def_level() > 0;
        let mut pages = self.group.get_column_page_reader(index)?;
        let (mut texts, mut runs) = (Vec::new(), Vec::new());
        while let Some(page) = pages.get_next_page()? {
            match page {
                Page::DictionaryPage { buf, num_values, .. } => texts = dictionary(&buf, num_values)?,
                Page::DataPage { buf, num_values, encoding, def_level_encoding: Encoding::RLE, .. } => {
                    let rows = num_values as usize;
                    let (levels, codes) = split_levels(&buf, is_optional)?;
                    let levels = match levels {
                        Some(levels) => hybrid(levels, 1, rows)?,
                        None => vec![(1, rows)],
                    };
                    let with_text =
                        levels.iter().filter(|(level, _)| *level == 1).map(|(_, rows)| rows).sum();
                    let codes = match (encoding, codes.split_first()) {
                        _ if with_text == 0 => Vec::new(),
                        (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, Some((bits, codes))) => {
                            hybrid(codes, *bits, with_text)?
                        }
                        _ => return Ok(None),
                    };
                    join(&levels, codes, &mut runs);
                }
                _ => return Ok(None),
            }
        }
        Ok((rows_of(&runs) == self.rows).then_some((texts, runs)))
    }

    /// Reads a string column in any other encoding.
    fn plain(&self, index: usize) -> Result<Coded> {
        let (values, levels) = self.column::<ByteArrayType>(index)?;
        let count = u32::try_from(values.len()).map_err(|e| ParquetError::General(e.to_string()))?;
        let codes = (0..count).map(|code| (code, 1)).collect();
        let mut runs = Vec::new();
        match levels.is_empty() {
            true => join(&[(1, self.rows)], codes, &mut runs),
            false => {
                let levels: Vec<(u32, usize)> =
                    levels.iter().map(|level| (u32::from(*level > 0), 1)).collect();
                join(&levels, codes, &mut runs);
            }
        }
        Ok((values, runs))
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

/// Decodes `bits`-wide numbers from Parquet's hybrid of runs and bit-packed groups of eight. Returns runs that add up
/// to `wanted` numbers.
fn hybrid(mut bytes: &[u8], bits: u8, wanted: usize) -> Result<Vec<(u32, usize)>> {
    if bits > 32 {
        return Err(ParquetError::General(format!("numbers of {bits} bits")));
    }
    let width = usize::from(bits.div_ceil(8));
    let mut runs = Vec::new();
    let mut found = 0;
    while found < wanted {
        let header = varint(&mut bytes)?;
        if header & 1 == 0 {
            let (value, rest) = bytes.split_at_checked(width).ok_or_else(ended)?;
            let value = value.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
            let rows = (header >> 1).min(wanted - found);
            if rows == 0 {
                return Err(ParquetError::General("a run without rows".into()));
            }
            runs.push((value, rows));
            (found, bytes) = (found + rows, rest);
        } else {
            let groups = header >> 1;
            let packed = groups.saturating_mul(usize::from(bits)).min(bytes.len());
            let (packed, rest) = bytes.split_at(packed);
            let rows = groups.saturating_mul(8).min(wanted - found);
            if packed.len() * 8 < rows * usize::from(bits) || rows == 0 {
                return Err(ended());
            }
            runs.extend((0..rows).map(|row| (unpacked(packed, bits, row), 1)));
            (found, bytes) = (found + rows, rest);
        }
    }
    Ok(runs)
}

/// Returns the number at index `place` in a sequence of packed `bits`-wide numbers, lowest bits first. All of the
/// number's bytes must exist.
fn unpacked(packed: &[u8], bits: u8, place: usize) -> u32 {
    let first = place * usize::from(bits);
    let bit = |bit: usize| u32::from(packed[bit / 8] >> (bit % 8) & 1);
    (0..usize::from(bits)).fold(0, |number, n| number | bit(first + n) << n)
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
    Err(ParquetError::General("a length that is too long".into()))
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
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use proptest::prelude::*;

    use super::*;

    /// Returns a file with one column, as another program might write it.
    fn written(texts: &[Option<String>], properties: WriterProperties) -> Bytes {
        let schema = Arc::new(parse_message_type("message m { optional binary pod (STRING); }").unwrap());
        let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = texts.iter().flatten().map(|text| text.as_str().into()).collect();
        let levels: Vec<i16> = texts.iter().map(|text| text.is_some().into()).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        file.into_inner().unwrap().into()
    }

    fn read(file: Bytes) -> Vec<Option<String>> {
        let file = SerializedFileReader::new(file).unwrap();
        let group = file.get_row_group(0).unwrap();
        let mut known = KnownTexts::default();
        let mut group = GroupReader::begin(group.as_ref(), &mut known).unwrap();
        let mut column = group.texts("pod", |text| Ok(Arc::clone(text))).unwrap();
        (0..group.rows).map(|_| next_text(&mut column).map(|text| text.to_string())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn reader_decodes_all_parquet_text_encodings(
            runs in prop::collection::vec((prop::option::of(0..300_u32), 1..40_usize), 0..60),
            has_dictionary in any::<bool>(),
            is_second_version in any::<bool>(),
            page_rows in 1..500_usize,
            dictionary_bytes in 50..5000_usize,
        ) {
            let texts: Vec<Option<String>> = runs
                .iter()
                .flat_map(|(pod, rows)| std::iter::repeat_n(pod.map(|pod| format!("web-{pod}")), *rows))
                .collect();
            let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][usize::from(is_second_version)];
            // Once the dictionary is full, pages contain no more codes.
            let properties = WriterProperties::builder()
                .set_writer_version(version)
                .set_dictionary_enabled(has_dictionary)
                .set_dictionary_page_size_limit(dictionary_bytes)
                .set_write_batch_size(7)
                .set_data_page_row_count_limit(page_rows)
                .build();
            prop_assert_eq!(read(written(&texts, properties)), texts);
        }
    }

    #[test]
    fn decoder_rejects_malformed_column_bytes() {
        for (bytes, bits) in
            [(&[][..], 1), (&[0][..], 1), (&[2][..], 8), (&[3, 1][..], 8), (&[0x80; 9][..], 1)]
        {
            assert!(hybrid(bytes, bits, 8).is_err(), "{bytes:?}");
        }
        assert!(hybrid(&[2, 0], 33, 1).is_err());
        assert_eq!(hybrid(&[3, 0b1010_0101], 1, 3).unwrap(), [(1, 1), (0, 1), (1, 1)]);
        assert!(dictionary(&Bytes::from_static(&[9, 0, 0, 0, b'x']), 1).is_err());
    }
}
