//! `rolldrop watch report`: ranks the workloads in a recorded history.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use crate::cli::days_or_duration;
use crate::cli::exit::Exit;
use crate::cli::say::print;
use rolldrop_record::Clock;
use rolldrop_record::termination_store::read_history;
use rolldrop_report::WatchHistory;

/// Format of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HistoryFormat {
    /// For a terminal.
    Text,
    /// All figures, for programs.
    Json,
    /// For a wiki or an issue.
    Markdown,
    /// A self-contained page.
    Html,
}

/// Arguments of `rolldrop watch report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop watch report history                                   all that is kept
  rolldrop watch report history --since 7d --format html > week.html
  rolldrop watch report history --since 7d --png week.png

It ranks the workloads like `rolldrop watch`, and states for what share of the time the history shows how pods \
ended.")]
pub(super) struct WatchReportArgs {
    /// Directory that `rolldrop watch --out` writes; the watch may still be running.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Period to report on, up to now, such as 12h or 7d [default: all that is kept].
    #[arg(long, value_name = "D", value_parser = days_or_duration)]
    since: Option<Duration>,
    /// Format of the report on stdout.
    #[arg(long, value_enum, default_value_t = HistoryFormat::Text)]
    format: HistoryFormat,
    /// File to write a chart to: the workloads that lose the most, and when that happened.
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
}

impl WatchReportArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let now = Clock::start().now();
        let mut history = WatchHistory::new(self.since.map(|since| now - since), now);
        let read = read_history(&self.dir, &mut |recorded, line| history.add(recorded, line));
        let skipped =
            read.with_context(|| format!("failed to read the history in {}", self.dir.display()))?;
        let report = history.report(skipped);
        if let Some(path) = &self.png {
            let failed = || format!("failed to write {}", path.display());
            std::fs::write(path, report.chart()?.png).with_context(failed)?;
        }
        print(&match self.format {
            HistoryFormat::Text => report.text(),
            HistoryFormat::Json => report.json(),
            HistoryFormat::Markdown => report.markdown(),
            HistoryFormat::Html => report.html(&report.chart()?),
        })?;
        Ok(Exit::Ok.into())
    }
}
