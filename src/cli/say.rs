//! Output to stdout and stderr. Messages may repeat text from a cluster or an app, so control characters are made
//! visible.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use tracing_subscriber::fmt::MakeWriter;

use rolldrop_record::shown;
use rolldrop_report::TextOptions;

/// Prefix of each of our lines on standard error.
pub(super) const PREFIX: &str = "rolldrop: ";

/// Writes a message to standard error.
pub(super) fn say(text: &str) {
    say_line(&shown::message(text));
}

/// Writes a line to standard error as it is. If nobody reads it any more, as after Ctrl-C in a pipe or a lost terminal,
/// it is dropped: `eprintln!` would panic, and end a run before it has undone its changes.
pub(super) fn say_line(line: &str) {
    let _ = writeln!(io::stderr(), "{PREFIX}{line}");
}

/// Writer of logs to standard error, without colours: our escape sequences could not be told apart from injected ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct StderrLog;

impl<'a> MakeWriter<'a> for StderrLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl Write for StderrLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Each event arrives in a single write. An error would be reported with `eprintln!`.
        let _ = io::stderr().write_all(shown::message(&String::from_utf8_lossy(bytes)).as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn is_coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Returns text options that suit stdout.
pub(super) fn text_options(folder: Option<&Path>) -> TextOptions {
    let most = TextOptions::default().width;
    // `None` if stdout is not a terminal.
    let columns = console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    TextOptions {
        color: is_coloured(),
        width: columns.map_or(most, |columns| columns.min(most)),
        files: folder.map(|folder| folder.display().to_string()),
    }
}

/// Prints to stdout.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    write_out(text).context("failed to write to stdout")
}

/// Writes to stdout, with colours only if stdout shows them. A closed reader is not an error.
pub(super) fn write_out(text: &str) -> io::Result<()> {
    let text = if is_coloured() { shown::coloured_lines(text) } else { shown::lines(text) };
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
