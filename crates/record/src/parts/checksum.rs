//! The checksum of a part, used to detect changes to its bytes on disk or in transit.
//!
//! The parquet crate verifies the checksums of pages, but writes none. Each part therefore has one checksum for all
//! of its pages, in the metadata at its end: the CRC-32 of all bytes before the metadata, and their number.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;

/// Key of the checksum in the metadata.
const KEY: &str = "rolldrop.crc32";

/// A file that computes a checksum of the bytes written to it.
pub(super) struct Summed {
    file: File,
    hasher: crc32fast::Hasher,
    bytes: u64,
}

impl Summed {
    pub(super) fn new(file: File) -> Self {
        Self { file, hasher: crc32fast::Hasher::new(), bytes: 0 }
    }
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Closes a part, storing the checksum of all preceding bytes in the metadata.
pub(super) fn close(mut part: SerializedFileWriter<Summed>) -> Result<()> {
    part.flush()?;
    let Summed { hasher, bytes, .. } = part.inner();
    let sum = format!("{:08x} {bytes}", hasher.clone().finalize());
    part.append_key_value_metadata(KeyValue::new(KEY.to_owned(), sum));
    part.close()?;
    Ok(())
}

/// Describes the damage to a part's bytes; returns `None` if they are intact.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn damage(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let reader = match SerializedFileReader::new(file.try_clone()?) {
        Ok(reader) => reader,
        Err(error) => return Ok(Some(format!("it is not a complete Parquet file ({error})"))),
    };
    let metadata = reader.metadata().file_metadata().key_value_metadata();
    let sum = metadata.into_iter().flatten().find(|entry| entry.key == KEY);
    let Some(sum) = sum.and_then(|entry| entry.value.as_deref()) else {
        return Ok(Some("it has no checksum".to_owned()));
    };
    let read = sum
        .split_once(' ')
        .and_then(|(crc, bytes)| Some((u32::from_str_radix(crc, 16).ok()?, bytes.parse::<u64>().ok()?)));
    let Some((expected, bytes)) = read else { return Ok(Some("its checksum cannot be read".to_owned())) };
    io::Seek::rewind(&mut file)?;
    let mut rest = file.take(bytes);
    let (mut hasher, mut buffer) = (crc32fast::Hasher::new(), vec![0; 1 << 16]);
    loop {
        match rest.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let is_whole = rest.limit() == 0 && hasher.finalize() == expected;
    Ok((!is_whole).then(|| "its bytes do not match its checksum".to_owned()))
}
