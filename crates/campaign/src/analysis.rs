//! Turns a run directory into an analysis and the files of its report.

use std::path::Path;

use rolldrop_drive::run::RunError;
use rolldrop_explain::{Analysed, Analysis};
use rolldrop_judge::judgements::gate_check::Check;
use rolldrop_judge::prediction::further_cuts;
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{Expect, RunDir, RunLog, Tables, run_dir};
use rolldrop_report as report;

/// User-supplied additions to a run's records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// Replacement for the run's expectations.
    pub expect: Option<&'a Expect>,
    /// Service proxy stated by the user.
    pub service_proxy: Option<&'a ServiceProxy>,
}

/// Analysis of a run, with its checks.
#[derive(Debug)]
pub struct JudgedRun {
    /// The analysis, with its whole result in words.
    pub analysed: Analysed,
    /// Checks as data, not in words.
    pub checks: Vec<Check>,
}

impl JudgedRun {
    /// Combines an analysis and its checks, and puts the checks into words.
    pub fn new(mut analysed: Analysed, checks: Vec<Check>) -> Self {
        analysed.analysis.result.checks = report::written(&checks);
        Self { analysed, checks }
    }
}

const UNREAD: &str = "failed to read the run";

/// Reads, analyses and judges a run.
///
/// # Errors
/// Fails if the run cannot be read, or contradicts the user's statements.
pub fn analyse(run_dir: &RunDir, given: &Given<'_>) -> Result<JudgedRun, RunError> {
    let (mut log, tables) = run_dir.recorded().map_err(RunError::failed(UNREAD))?;
    if let Some(stated) = given.service_proxy {
        log.info.cluster.assume(stated)?;
    }
    let expect = given.expect.unwrap_or(&log.info.expect).clone();
    analyse_recorded(log, tables, &expect)
}

/// Analyses and judges a run from its records.
pub fn analyse_recorded(log: RunLog, tables: Tables, expect: &Expect) -> Result<JudgedRun, RunError> {
    let mut analysed = Analysed::of(log, tables).map_err(RunError::failed(UNREAD))?;
    report::tell(&mut analysed.analysis);
    let further = further_cuts(&analysed.analysis);
    if let Some(streams) = &mut analysed.analysis.result.streams {
        streams.predicted = report::predicted_cuts(&further);
    }
    let checks = rolldrop_judge::check(&analysed.analysis.result, expect);
    Ok(JudgedRun::new(analysed, checks))
}

/// Writes a run's report into its directory.
///
/// # Errors
/// Fails if the run cannot be read, or the report cannot be written.
pub fn report(run_dir: &RunDir) -> Result<Analysis, RunError> {
    let Analysed { analysis, .. } = analyse(run_dir, &Given::default())?.analysed;
    write(run_dir.path(), &analysis)?;
    Ok(analysis)
}

/// Writes the files of a run's report.
///
/// # Errors
/// Fails if a file cannot be created or written.
pub fn write(folder: &Path, analysis: &Analysis) -> Result<(), RunError> {
    const FAILED: &str = "failed to write the report";
    for file in report::all(analysis).map_err(RunError::other)? {
        run_dir::write_file(folder, &file.path, &file.bytes).map_err(RunError::failed(FAILED))?;
    }
    let lost = run_dir::write_file_with(folder, "lost.csv", |file| report::write_lost(analysis, file));
    lost.map_err(RunError::failed(FAILED))
}
