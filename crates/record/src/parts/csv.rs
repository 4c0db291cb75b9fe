//! Lines of CSV, as RFC 4180 describes them, but ended by a line feed alone.

use std::fmt::{Display, Write};

/// A line of CSV that is being written.
#[derive(Debug)]
pub struct CsvLine<'a> {
    out: &'a mut String,
    is_first: bool,
}

impl<'a> CsvLine<'a> {
    /// A line that is appended to `out`.
    pub fn new(out: &'a mut String) -> Self {
        Self { out, is_first: true }
    }

    /// Adds a value whose text needs no quotes; nothing for none.
    pub fn shown(&mut self, value: Option<impl Display>) {
        self.begin();
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(self.out, "{value}");
        }
    }

    /// Adds a text, in quotes where it needs them.
    pub fn text(&mut self, text: &str) {
        self.begin();
        if text.contains([',', '"', '\n', '\r']) || text.starts_with(' ') {
            let _ = write!(self.out, "\"{}\"", text.replace('"', "\"\""));
        } else {
            self.out.push_str(text);
        }
    }

    fn begin(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(',');
        }
    }
}
