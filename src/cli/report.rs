//! `rolldrop report`: from run directories to report and charts.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::compare::{self, CompareArgs};
use super::exit::Exit;
use super::formats::ResultFormat;
use super::service_proxy::AssumeArgs;
use rolldrop_explain::{Analysed, Analysis, RunResult};
use rolldrop_judge::model::check::Check;
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{Expect, RunDir, RunLog, Tables, run_dir, shown};
use rolldrop_report::{self as report, TextOptions};

/// Arguments of `rolldrop report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop report rolldrop-runs/naive-exit-20260102T150405Z
  rolldrop report after --out /tmp/report
  rolldrop report after1 after2 --baseline before1 --baseline before2

With --baseline the runs together are compared with the baselines together: better, worse, the
same, or inconclusive. The comparison is written into the first run's directory.")]
pub(super) struct ReportArgs {
    /// Run directories; each report is made again.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Directory for the files of the report, instead of the run's own directory; nothing is written there. With several
    /// runs, each has a folder of its name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, value_enum, default_value_t = ResultFormat::Text)]
    format: ResultFormat,
    #[command(flatten)]
    assume: AssumeArgs,
    #[command(flatten)]
    compare: CompareArgs,
}

impl ReportArgs {
    /// Runs the command. Returns the exit status of the last run that did not end well.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if !self.compare.baseline.is_empty()
            && !matches!(self.format, ResultFormat::Text | ResultFormat::Json)
        {
            bail!(
                "a comparison is written as text or json; `rolldrop gate --baseline` has the other formats, for one run"
            );
        }
        self.check_names()?;
        let mut exit = Exit::Ok;
        let baseline = self.compare.earlier(None)?.runs;
        let mut samples = Vec::new();
        for path in &self.runs {
            let run_dir = RunDir::open(path)?;
            let given = Given { service_proxy: self.assume.service_proxy(), ..Given::default() };
            let judged = analyse(&run_dir, &given)?;
            if !baseline.is_empty() {
                samples.push(compare::sample(&run_dir, &judged)?);
            }
            let Analysed { analysis, requests, .. } = judged.analysed;
            // Frees memory for the files.
            drop(requests);
            let folder = self.folder(path);
            write(&folder, &analysis)?;
            if baseline.is_empty() {
                show(&folder, &analysis, self.format)?;
            }
            // The verdict shows an interruption of the run; this command was not interrupted.
            exit = match Exit::of(&analysis.result, false) {
                Exit::Ok => exit,
                other => other,
            };
        }
        if let (Some(first), false) = (self.runs.first(), baseline.is_empty()) {
            let comparison = self.compare.compare(&baseline, &samples)?;
            let folder = self.folder(first);
            let [before, now] = rolldrop_judge::compare::charts(&baseline, &samples);
            for file in report::comparison(&comparison, &before, &now)? {
                run_dir::write_file(&folder, &file.path, &file.bytes)
                    .context("failed to write the comparison")?;
            }
            print(&match self.format {
                ResultFormat::Json => String::from_utf8(report::comparison_json(&comparison))?,
                _ => report::comparison_text(&comparison, &text_options(Some(&folder))),
            })?;
        }
        Ok(exit.into())
    }

    /// Returns the directory for the files of a run's report.
    fn folder(&self, run: &Path) -> PathBuf {
        match (&self.out, run.file_name()) {
            (None, _) => run.to_owned(),
            (Some(out), Some(name)) if self.runs.len() > 1 => out.join(name),
            (Some(out), _) => out.clone(),
        }
    }

    /// Refuses runs whose reports would replace each other.
    fn check_names(&self) -> anyhow::Result<()> {
        let folders: BTreeSet<PathBuf> = self.runs.iter().map(|run| self.folder(run)).collect();
        if self.out.is_some() && folders.len() < self.runs.len() {
            bail!(
                "--out gives each run a folder of its name, and two of these have the same: report them one by one"
            );
        }
        Ok(())
    }
}

/// Additions of the user to a run's records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given<'a> {
    /// Replaces the expectations of the run.
    pub(super) expect: Option<&'a Expect>,
    /// Implementation of Services, as stated by the user.
    pub(super) service_proxy: Option<&'a ServiceProxy>,
}

/// An analysed run with its checks.
pub(super) struct Judged {
    pub(super) analysed: Analysed,
    /// The checks, which the result has in words.
    checks: Vec<Check>,
}

impl Judged {
    pub(super) fn new(mut analysed: Analysed, checks: Vec<Check>) -> Self {
        analysed.analysis.result.checks = report::written(&checks);
        Self { analysed, checks }
    }

    pub(super) fn checks(&self) -> &[Check] {
        &self.checks
    }
}

const FAILED: &str = "failed to read the run";

/// Reads a run, analyses and judges it.
pub(super) fn analyse(run_dir: &RunDir, given: &Given<'_>) -> anyhow::Result<Judged> {
    let (mut log, tables) = run_dir.recorded().context(FAILED)?;
    if let Some(stated) = given.service_proxy {
        log.info.cluster.assume(stated)?;
    }
    let expect = given.expect.unwrap_or(&log.info.expect).clone();
    analyse_recorded(log, tables, &expect)
}

/// Analyses and judges what was read of a run.
pub(super) fn analyse_recorded(log: RunLog, tables: Tables, expect: &Expect) -> anyhow::Result<Judged> {
    let analysed = Analysed::of(log, tables).context(FAILED)?;
    let checks = rolldrop_judge::check(&analysed.analysis.result, expect);
    Ok(Judged::new(analysed, checks))
}

/// Makes a run's report in its directory, and prints it.
pub(super) fn make(run_dir: &RunDir, format: ResultFormat) -> anyhow::Result<RunResult> {
    let Analysed { analysis, .. } = analyse(run_dir, &Given::default())?.analysed;
    write(run_dir.path(), &analysis)?;
    show(run_dir.path(), &analysis, format)?;
    Ok(analysis.result)
}

/// Makes a run's report in its directory.
pub(super) fn make_quietly(run_dir: &RunDir) -> anyhow::Result<Analysis> {
    let Analysed { analysis, .. } = analyse(run_dir, &Given::default())?.analysed;
    write(run_dir.path(), &analysis)?;
    Ok(analysis)
}

fn write(folder: &Path, analysis: &Analysis) -> anyhow::Result<()> {
    const FAILED: &str = "failed to write the report";
    for file in report::all(analysis)? {
        run_dir::write_file(folder, &file.path, &file.bytes).context(FAILED)?;
    }
    run_dir::write_file_with(folder, "lost.csv", |file| report::write_lost(analysis, file)).context(FAILED)
}

fn show(folder: &Path, analysis: &Analysis, format: ResultFormat) -> anyhow::Result<()> {
    format.show(analysis, || report::text(analysis, &text_options(Some(folder))))
}

fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Returns the text options that fit stdout.
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

/// Writes to stdout, with colours only if stdout shows them; a reader that is gone is not an error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let text = if is_coloured() { shown::coloured_lines(text) } else { shown::lines(text) };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("failed to write to stdout"),
    }
}
