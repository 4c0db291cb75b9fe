//! `rolldrop report`: makes reports and charts from run directories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::assume_service_proxy::AssumeArgs;
use super::compare_args::CompareArgs;
use super::exit::Exit;
use super::formats::ResultFormat;
use super::say::{print, text_options};
use rolldrop_campaign::analysis::{self, Given, analyse};
use rolldrop_campaign::baseline::{comparable, sample};
use rolldrop_explain::{Analysed, Analysis, RunResult};
use rolldrop_record::{RunDir, run_dir};
use rolldrop_report as report;

/// Arguments of `rolldrop report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop report rolldrop-runs/naive-exit-20260102T150405Z
  rolldrop report after --out /tmp/report
  rolldrop report after1 after2 --baseline before1 --baseline before2

With --baseline, all runs together are compared with all baselines together. The result is better, worse, the same or \
inconclusive, and is written into the first run's directory.")]
pub(super) struct ReportArgs {
    /// Run directories whose reports to recreate.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Directory for the report's files, instead of the run directory. Several runs get a folder each, by their names.
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
    /// Runs the command. Returns the exit status of the last run whose status is not 0.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if !self.compare.baseline.is_empty()
            && !matches!(self.format, ResultFormat::Text | ResultFormat::Json)
        {
            bail!(
                "a comparison has only --format text or json. For the other formats, use `rolldrop gate --baseline` on \
                 one run"
            );
        }
        self.check_names()?;
        let mut exit = Exit::Ok;
        let baseline = self.compare.earlier(None)?.runs;
        let mut samples = Vec::new();
        for path in &self.runs {
            let run_dir = RunDir::open(path)?;
            let given = Given { service_proxy: self.assume.service_proxy.as_ref(), ..Given::default() };
            let judged = analyse(&run_dir, &given)?;
            if !baseline.is_empty() {
                samples.push(sample(&run_dir, &judged)?);
            }
            let Analysed { analysis, requests, .. } = judged.analysed;
            // Frees memory before the files are written.
            drop(requests);
            let folder = self.folder(path);
            analysis::write(&folder, &analysis)?;
            if baseline.is_empty() {
                show(&folder, &analysis, self.format)?;
            }
            // The verdict reports an interruption of the run. This command itself was not interrupted.
            exit = match Exit::of(&analysis.result, false) {
                Exit::Ok => exit,
                other => other,
            };
        }
        if let (Some(first), false) = (self.runs.first(), baseline.is_empty()) {
            let comparison = comparable(&baseline, &samples, &self.compare.options())?;
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

    /// Returns the directory for a run's report files.
    fn folder(&self, run: &Path) -> PathBuf {
        match (&self.out, run.file_name()) {
            (None, _) => run.to_owned(),
            (Some(out), Some(name)) if self.runs.len() > 1 => out.join(name),
            (Some(out), _) => out.clone(),
        }
    }

    /// Refuses runs whose reports would overwrite each other.
    fn check_names(&self) -> anyhow::Result<()> {
        let folders: BTreeSet<PathBuf> = self.runs.iter().map(|run| self.folder(run)).collect();
        if self.out.is_some() && folders.len() < self.runs.len() {
            bail!(
                "two of these runs have the same name, so their reports would share a folder of --out: report them one \
                 by one"
            );
        }
        Ok(())
    }
}

/// Writes a run's report in its directory, and prints it.
pub(super) fn make(run_dir: &RunDir, format: ResultFormat) -> anyhow::Result<RunResult> {
    let analysis = analysis::report(run_dir)?;
    show(run_dir.path(), &analysis, format)?;
    Ok(analysis.result)
}

fn show(folder: &Path, analysis: &Analysis, format: ResultFormat) -> anyhow::Result<()> {
    format.show(analysis, || report::text(analysis, &text_options(Some(folder))))
}
