//! State file of a tuning (`state.json`), used by `--resume`; written and synced before and after each run.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::step_runner::StepPlan;
use crate::analysis;
use rolldrop_drive::run::RunError;
use rolldrop_explain::RunResult;
use rolldrop_judge::tuning::TuningStep;
use rolldrop_record::{RunDir, run_dir};

const FILE: &str = "state.json";
/// Format version of `state.json`.
const VERSION: u32 = 1;

/// Contents of `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TuningState {
    version: u32,
    /// Arguments after `rolldrop tune`.
    pub arguments: Vec<String>,
    /// Directory in which the tuning was started, to which relative paths in the arguments refer.
    pub directory: PathBuf,
    /// Cluster and namespace; `None` if each run creates its own cluster.
    pub(super) cluster: Option<String>,
    /// Workload object as the tuning found it.
    pub(super) object: Value,
    /// Runs, in order.
    pub(super) runs: Vec<TuningRun>,
}

/// Record of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TuningRun {
    /// Name of the run's directory inside the tuning's directory.
    pub(super) name: String,
    pub(super) plan: StepPlan,
    /// Figures of the run; `None` while it is in progress, or if it showed nothing.
    pub(super) step: Option<TuningStep>,
    /// True if the run completed.
    pub(super) is_whole: bool,
    pub(super) took: Duration,
    /// Reason why the run stopped before it had enough units.
    pub(super) gave_up: Option<String>,
}

impl TuningState {
    /// Creates the state of a new tuning.
    pub(super) fn begin(
        arguments: &[OsString],
        cluster: Option<String>,
        object: Value,
    ) -> Result<Self, RunError> {
        let arguments = arguments.iter().cloned().map(OsString::into_string).collect::<Result<_, _>>();
        let Ok(arguments) = arguments else {
            let why = "an argument is not UTF-8, so --resume could not reuse it";
            return Err(RunError::Refused(why.to_owned()));
        };
        let directory = std::env::current_dir();
        let directory = directory.map_err(RunError::failed("failed to find the current directory"))?;
        Ok(Self { version: VERSION, arguments, directory, cluster, object, runs: Vec::new() })
    }

    /// Reads a tuning's state.
    ///
    /// # Errors
    /// Fails if there is no state, or its version differs.
    pub fn read(tuning: &Path) -> Result<Self, RunError> {
        let path = tuning.join(FILE);
        let failed = |remedy: &str| format!("failed to read {}: {remedy}", path.display());
        let text = std::fs::read(&path);
        let text = text.map_err(RunError::failed(failed("give a directory that rolldrop tune created")))?;
        let state = serde_json::from_slice(&text);
        let state: Self = state.map_err(RunError::failed(failed("restore it, or start a new tuning")))?;
        if state.version != VERSION {
            let (path, version) = (path.display(), state.version);
            let why = format!("{path} has version {version}, but this program reads version {VERSION}");
            return Err(RunError::Refused(why));
        }
        Ok(state)
    }

    /// Writes the state to disk atomically.
    pub(super) fn write(&self, tuning: &Path) -> Result<(), RunError> {
        let text = serde_json::to_vec_pretty(self).map_err(RunError::failed("failed to write the state"))?;
        let sync = |file: &mut std::io::BufWriter<File>| {
            std::io::Write::write_all(file, &text)?;
            std::io::Write::flush(file)?;
            file.get_ref().sync_all()
        };
        run_dir::write_file_with(tuning, FILE, sync)?;
        // Sync the directory too, because it contains the new name.
        let synced = File::open(tuning).and_then(|dir| dir.sync_all());
        synced.map_err(RunError::failed("failed to sync the tuning's directory"))
    }
}

impl TuningRun {
    /// Creates the record of a new run.
    pub(super) fn begin(name: String, plan: StepPlan) -> Self {
        Self { name, plan, step: None, is_whole: false, took: Duration::ZERO, gave_up: None }
    }

    /// Returns the result and figures of a finished run; `None` if nothing was measured.
    ///
    /// # Errors
    /// Fails if the run completed but can no longer be read.
    pub(super) fn shown(&self, tuning: &Path) -> Result<Option<(RunResult, TuningStep)>, RunError> {
        let dir = tuning.join(&self.name);
        if let (Some(step), Ok(text)) = (&self.step, std::fs::read(dir.join("result.json"))) {
            let failed = || format!("failed to read the result in {}", dir.display());
            let result = serde_json::from_slice(&text).map_err(RunError::failed(failed()))?;
            return Ok(Some((result, step.clone())));
        }
        match RunDir::open(&dir).map_err(RunError::from).and_then(|dir| analysis::report(&dir)) {
            Ok(analysis) => {
                let step = TuningStep::of(
                    self.plan.purpose,
                    &self.name,
                    self.plan.settings,
                    (&analysis.result, &analysis.lost),
                );
                Ok(Some((analysis.result, step)))
            }
            Err(error) if self.is_whole => Err(error),
            // The run was killed before its load began.
            Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_survives_write_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let state =
            TuningState::begin(&["web".into()], Some("staging, namespace shop".into()), Value::Null).unwrap();
        state.write(dir.path()).unwrap();
        let read = TuningState::read(dir.path()).unwrap();
        assert_eq!((read.arguments, read.directory), (state.arguments.clone(), state.directory.clone()));
        let other = TuningState { version: 9, ..state };
        other.write(dir.path()).unwrap();
        assert!(TuningState::read(dir.path()).unwrap_err().to_string().contains("has version 9"));
        let none = TuningState::read(&dir.path().join("x")).unwrap_err().to_string();
        assert!(none.contains("give a directory that rolldrop tune created"), "{none}");
    }
}
