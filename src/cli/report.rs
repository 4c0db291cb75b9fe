//! `rolldrop report`: from run directories to report and charts.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::exit::Exit;
use crate::analysis::{self, Analysis, Policy, RunResult};
use crate::gate;
use crate::record::{Expect, RunDir};
use crate::report::{self, TextOptions};
use crate::timeline::Timeline;

/// What goes to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A summary for people.
    Text,
    /// result.json.
    Json,
}

/// Arguments of `rolldrop report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  rolldrop report rolldrop-runs/naive-exit-20260102T150405Z")]
pub(super) struct ReportArgs {
    /// Run directories, each of which gets its report anew.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// What goes to stdout.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl ReportArgs {
    /// Runs the command. The exit status is that of the last run that did not end well.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut exit = Exit::Ok;
        for path in &self.runs {
            let run_dir = RunDir::open(path)?;
            let result = make(&run_dir, self.format)?;
            // The run's own interruption is told by its verdict; this command was not interrupted.
            exit = match Exit::of(&result, false) {
                Exit::Ok => exit,
                other => other,
            };
        }
        Ok(exit.into())
    }
}

/// Reads a run and analyses it, with its own expectations or with `expect`.
pub(super) fn analyse(run_dir: &RunDir, expect: Option<&Expect>) -> anyhow::Result<Analysis> {
    let records = run_dir.read().context("failed to read the run")?;
    let expect = expect.cloned().unwrap_or_else(|| records.info.expect.clone());
    let timeline = Timeline::build(records);
    let mut analysis = analysis::analyse(&timeline, &Policy::default());
    analysis.result.checks = gate::check(&analysis.result, &expect);
    Ok(analysis)
}

/// Makes a run's report in its directory, and prints it.
pub(super) fn make(run_dir: &RunDir, format: Format) -> anyhow::Result<RunResult> {
    let analysis = analyse(run_dir, None)?;
    for file in report::all(&analysis)? {
        run_dir.write_file(&file.path, &file.bytes).context("failed to write the report")?;
    }
    let text = match format {
        Format::Text => report::text(&analysis, &text_options(Some(run_dir))),
        Format::Json => String::from_utf8(report::json(&analysis.result))?,
    };
    print(&text)?;
    Ok(analysis.result)
}

/// Text for where stdout goes.
pub(super) fn text_options(run_dir: Option<&RunDir>) -> TextOptions {
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    TextOptions {
        color,
        files: run_dir.map(|run| run.path().display().to_string()),
        ..TextOptions::default()
    }
}

/// Writes to stdout; a reader that has gone is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("failed to write to stdout"),
    }
}
