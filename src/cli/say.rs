//! Standard error. Messages may repeat text of a cluster or an app, so control characters in them are made visible.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use rolldrop_record::shown;

/// Writes a message to standard error.
pub(super) fn say(text: &str) {
    eprintln!("rolldrop: {}", shown::message(text));
}

/// Writer of logs to standard error, without colours, because ours could not be told from others'.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log;

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An event comes in one piece.
        io::stderr().write_all(shown::message(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
