//! Earlier runs to compare a run with: a single run, a saved baseline, or the last runs in a folder.

use std::path::{Path, PathBuf};

use crate::analysis::{Given, JudgedRun, analyse};
use rolldrop_drive::run::RunError;
use rolldrop_explain::Analysed;
use rolldrop_judge::compare::run_history::{RunHistory, TOLERANCE};
use rolldrop_judge::compare::sample::{Baseline, SAMPLE_FORMAT};
use rolldrop_judge::compare::{self, CompareOptions, Incomparable, Sample};
use rolldrop_judge::judgements::comparison::{Comparison, FEWEST_RUNS};
use rolldrop_judge::judgements::gate_check::{Check, UnfitRun};
use rolldrop_record::{RunDir, Stamp};

/// Earlier runs to compare a run with.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Samples of the earlier runs.
    pub runs: Vec<Sample>,
    /// True if a folder was given. In that case, too few runs for a history make the result inconclusive.
    is_folder: bool,
    /// Number of unreadable runs in the folders.
    unreadable: usize,
}

impl Earlier {
    /// Reads runs, baselines and, from folders, the last runs that began before the given time.
    ///
    /// # Errors
    /// Fails if one cannot be read, or if no time is given and none is found.
    pub fn read(paths: &[PathBuf], last: usize, before: Option<Stamp>) -> Result<Self, RunError> {
        let mut earlier = Self::default();
        for path in paths {
            if path.is_dir() && RunDir::open(path).is_err() {
                earlier.is_folder = true;
                let (runs, unreadable) = last_of(path, last, before)?;
                earlier.runs.extend(runs);
                earlier.unreadable += unreadable;
            } else {
                earlier.runs.extend(read(path)?);
            }
        }
        if before.is_none() && !paths.is_empty() && earlier.runs.is_empty() {
            return Err(RunError::Refused("the baseline contains no readable run".to_owned()));
        }
        Ok(earlier)
    }

    /// Checks a run against limits derived from the spread of the earlier runs or, if there are too few of them,
    /// compares it with them directly. `tolerance` is set by the user; `last` is the number of runs considered. Returns
    /// the checks, and the runs that they are based on.
    ///
    /// # Errors
    /// Fails if the runs cannot be compared.
    pub fn judge(
        self,
        candidate: &Sample,
        options: &CompareOptions,
        tolerance: Option<f64>,
        last: usize,
    ) -> Result<(Vec<Check>, Vec<Sample>), RunError> {
        if !self.is_folder && self.runs.len() < FEWEST_RUNS {
            let checks = compare::checks(&self.runs, candidate, options).map_err(refused)?;
            return Ok((checks, self.runs));
        }
        let options = CompareOptions { tolerance: tolerance.unwrap_or(TOLERANCE), ..options.clone() };
        let mut history = RunHistory::of(self.runs, candidate, last, &options);
        if self.unreadable > 0 {
            history.left_out.insert(UnfitRun::Unreadable, self.unreadable);
        }
        Ok((history.checks(candidate, &options), history.used))
    }
}

/// Writes a baseline: the latest runs that the candidate was compared with, and the candidate itself.
///
/// # Errors
/// Fails if the baseline cannot be written.
pub fn save(path: &Path, mut runs: Vec<Sample>, candidate: Sample, last: usize) -> Result<(), RunError> {
    runs.retain(|run| run.started != candidate.started);
    runs.push(candidate);
    runs.sort_by_key(|run| run.started);
    let first = runs.len().saturating_sub(last);
    let named = |run: &Sample| {
        let name = Path::new(&run.name).file_name().unwrap_or(run.name.as_ref());
        Sample { name: name.to_string_lossy().into_owned(), ..run.figures() }
    };
    let runs = runs[first..].iter().map(named).collect();
    let failed = || format!("failed to write the baseline {}", path.display());
    let mut json =
        serde_json::to_vec_pretty(&Baseline { format: SAMPLE_FORMAT, runs }).map_err(RunError::other)?;
    json.push(b'\n');
    std::fs::write(path, json).map_err(RunError::failed(failed()))
}

/// Compares candidate runs with baseline runs.
///
/// # Errors
/// Fails if the runs differ in more than their results.
pub fn comparable(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Result<Comparison, RunError> {
    compare::compare(baseline, candidate, options).map_err(refused)
}

fn refused(why: Incomparable) -> RunError {
    let error = rolldrop_report::incomparable(&why);
    RunError::Refused(match why {
        Incomparable::Differs(_) => format!("{error}; use --anyway to compare them regardless"),
        Incomparable::Nothing => error,
    })
}

/// Returns a run's contribution to a comparison.
///
/// # Errors
/// Fails if the run's rows cannot be read.
pub fn sample(run_dir: &RunDir, judged: &JudgedRun) -> Result<Sample, RunError> {
    let name = run_dir.path().display().to_string();
    let Analysed { timeline, requests, analysis } = &judged.analysed;
    Sample::of(name, timeline, requests, analysis, &judged.checks)
        .map_err(RunError::failed("failed to read the run"))
}

/// Returns the last runs in a folder, and the number of unreadable ones.
fn last_of(folder: &Path, last: usize, before: Option<Stamp>) -> Result<(Vec<Sample>, usize), RunError> {
    let failed = || format!("failed to read the folder {}", folder.display());
    let mut found: Vec<(Stamp, RunDir)> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(RunError::failed(failed()))? {
        let entry = entry.map_err(RunError::failed(failed()))?;
        let Ok(run_dir) = RunDir::open(&entry.path()) else { continue };
        // A directory without readable run information is not a run of this version.
        if let Ok(info) = run_dir.info() {
            found.push((info.started, run_dir));
        }
    }
    found.retain(|(started, _)| before.is_none_or(|before| *started < before));
    found.sort_by_key(|(started, _)| *started);
    let first = found.len().saturating_sub(last);
    let (mut runs, mut unreadable) = (Vec::new(), 0);
    for (_, run_dir) in &found[first..] {
        match analyse(run_dir, &Given::default()).and_then(|judged| sample(run_dir, &judged)) {
            Ok(run) => runs.push(run),
            Err(_) => unreadable += 1,
        }
    }
    Ok((runs, unreadable))
}

fn read(path: &Path) -> Result<Vec<Sample>, RunError> {
    if path.is_dir() {
        let run_dir = RunDir::open(path)?;
        return Ok(vec![sample(&run_dir, &analyse(&run_dir, &Given::default())?)?]);
    }
    let failed = || format!("failed to read the baseline {}", path.display());
    let text = std::fs::read_to_string(path).map_err(RunError::failed(failed()))?;
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let is_baseline = value.get("runs").is_some() || value.get("blocks").is_some();
    match value.get("format").and_then(serde_json::Value::as_u64).filter(|_| is_baseline) {
        Some(format) if format != u64::from(SAMPLE_FORMAT) => {
            let path = path.display();
            let why = format!("{path} is a baseline of format {format}, not {SAMPLE_FORMAT}: save it again");
            return Err(RunError::Refused(why));
        }
        _ => {}
    }
    let Ok(Baseline { runs, .. }) = serde_json::from_value(value) else {
        return Err(RunError::Refused(format!(
            "{} is not a baseline: give a run directory (from rolldrop run, or rolldrop load --out), a folder of \
             run directories, or a file from rolldrop gate --save-baseline",
            path.display()
        )));
    };
    Ok(runs)
}
