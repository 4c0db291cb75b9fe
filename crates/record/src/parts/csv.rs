//! CSV as described in RFC 4180, except that lines end with a single line feed.

use std::fmt::{Display, Write as _};
use std::io::{self, Write};

use serde::Serialize;

/// A CSV writer that accepts one value after another. Every line must have as many values as the first.
#[derive(Debug)]
pub struct CsvWriter<W: Write> {
    lines: csv::Writer<W>,
    /// Text of the current value, kept to reuse the allocation.
    value: String,
}

impl<W: Write> CsvWriter<W> {
    /// Creates a buffered writer to `out`.
    pub fn new(out: W) -> Self {
        let lines = csv::WriterBuilder::new().terminator(csv::Terminator::Any(b'\n')).from_writer(out);
        Self { lines, value: String::new() }
    }

    /// Adds a value, or an empty one for `None`.
    ///
    /// # Errors
    /// Fails if the value cannot be written.
    pub fn shown(&mut self, value: Option<impl Display>) -> io::Result<()> {
        self.value.clear();
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(self.value, "{value}");
        }
        Ok(self.lines.write_field(&self.value)?)
    }

    /// Adds a string.
    ///
    /// # Errors
    /// Fails if the string cannot be written.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        Ok(self.lines.write_field(text)?)
    }

    /// Writes a line with these values.
    ///
    /// # Errors
    /// Fails if the line cannot be written.
    pub fn line(&mut self, values: impl Serialize) -> io::Result<()> {
        Ok(self.lines.serialize(values)?)
    }

    /// Ends the line.
    ///
    /// # Errors
    /// Fails if the line cannot be written.
    pub fn end_line(&mut self) -> io::Result<()> {
        Ok(self.lines.write_record(None::<&[u8]>)?)
    }

    /// Writes the contents of the buffer, and returns `out`.
    ///
    /// # Errors
    /// Fails if the buffer cannot be written.
    pub fn finish(self) -> io::Result<W> {
        self.lines.into_inner().map_err(csv::IntoInnerError::into_error)
    }
}
