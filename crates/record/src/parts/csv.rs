//! CSV, as RFC 4180 describes it, but with lines that end with a line feed alone.

use std::fmt::{Display, Write as _};
use std::io::{self, Write};

/// Writes lines of CSV, value by value. Every line has as many values as the first.
#[derive(Debug)]
pub struct CsvWriter<W: Write> {
    lines: csv::Writer<W>,
    /// The value that is being written, kept for its allocation.
    value: String,
}

impl<W: Write> CsvWriter<W> {
    /// Lines that go to `out`, through a buffer.
    pub fn new(out: W) -> Self {
        let lines = csv::WriterBuilder::new().terminator(csv::Terminator::Any(b'\n')).from_writer(out);
        Self { lines, value: String::new() }
    }

    /// Adds a value; nothing for none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn shown(&mut self, value: Option<impl Display>) -> io::Result<()> {
        self.value.clear();
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(self.value, "{value}");
        }
        Ok(self.lines.write_field(&self.value)?)
    }

    /// Adds a text.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        Ok(self.lines.write_field(text)?)
    }

    /// Ends the line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end_line(&mut self) -> io::Result<()> {
        Ok(self.lines.write_record(None::<&[u8]>)?)
    }

    /// Writes what is in the buffer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.lines.flush()
    }

    /// Writes what is in the buffer, and returns the writer below.
    ///
    /// # Errors
    /// When the last ones cannot be written.
    pub fn finish(self) -> io::Result<W> {
        self.lines.into_inner().map_err(csv::IntoInnerError::into_error)
    }
}
