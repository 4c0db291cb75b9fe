//! From a run directory to an analysis, and to the files of its report.

use std::path::Path;

use rolldrop_drive::run::RunError;
use rolldrop_explain::{Analysed, Analysis};
use rolldrop_judge::model::check::Check;
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{Expect, RunDir, RunLog, Tables, run_dir};
use rolldrop_report as report;

/// Additions of the user to a run's records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// Replaces the expectations of the run.
    pub expect: Option<&'a Expect>,
    /// Implementation of Services, as stated by the user.
    pub service_proxy: Option<&'a ServiceProxy>,
}

/// An analysed run with its checks.
#[derive(Debug)]
pub struct Judged {
    /// The run, with all of its result in words.
    pub analysed: Analysed,
    checks: Vec<Check>,
}

impl Judged {
    /// Puts the checks of a run into words, too.
    pub fn new(mut analysed: Analysed, checks: Vec<Check>) -> Self {
        analysed.analysis.result.checks = report::written(&checks);
        Self { analysed, checks }
    }

    /// Returns the checks, as facts.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }
}

const UNREAD: &str = "failed to read the run";

/// Reads a run, analyses and judges it.
///
/// # Errors
/// Fails if it cannot be read, or contradicts the user.
pub fn analyse(run_dir: &RunDir, given: &Given<'_>) -> Result<Judged, RunError> {
    let (mut log, tables) = run_dir.recorded().map_err(RunError::failed(UNREAD))?;
    if let Some(stated) = given.service_proxy {
        log.info.cluster.assume(stated)?;
    }
    let expect = given.expect.unwrap_or(&log.info.expect).clone();
    analyse_recorded(log, tables, &expect)
}

/// Analyses and judges what was read of a run.
pub fn analyse_recorded(log: RunLog, tables: Tables, expect: &Expect) -> Result<Judged, RunError> {
    let mut analysed = Analysed::of(log, tables).map_err(RunError::failed(UNREAD))?;
    report::tell(&mut analysed.analysis);
    let checks = rolldrop_judge::check(&analysed.analysis.result, expect);
    Ok(Judged::new(analysed, checks))
}

/// Makes a run's report in its directory.
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
/// Fails if one cannot be made or written.
pub fn write(folder: &Path, analysis: &Analysis) -> Result<(), RunError> {
    const FAILED: &str = "failed to write the report";
    for file in report::all(analysis).map_err(RunError::other)? {
        run_dir::write_file(folder, &file.path, &file.bytes).map_err(RunError::failed(FAILED))?;
    }
    let lost = run_dir::write_file_with(folder, "lost.csv", |file| report::write_lost(analysis, file));
    lost.map_err(RunError::failed(FAILED))
}
