//! Earlier runs to compare a run with: a single run, a saved baseline, or the last runs in a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::analysis::{Given, JudgedRun, analyse};
use rolldrop_drive::run::RunError;
use rolldrop_explain::Analysed;
use rolldrop_explain::model::{CheckVerdict, Verdict};
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
                earlier.add(runs);
                earlier.unreadable += unreadable;
            } else {
                earlier.add(read(path)?);
            }
        }
        if before.is_none() && !paths.is_empty() && earlier.runs.is_empty() {
            return Err(RunError::Refused("the baseline contains no readable run".to_owned()));
        }
        Ok(earlier)
    }

    /// Adds runs; one that is already there counts once, with its latencies over time if they are known.
    fn add(&mut self, runs: Vec<Sample>) {
        for run in runs {
            match self.runs.iter_mut().find(|known| known.started == run.started) {
                Some(known) if known.blocks.is_empty() => *known = run,
                Some(_) => {}
                None => self.runs.push(run),
            }
        }
    }

    /// Returns the reason why a run must not be saved with these runs, if there is one: no later comparison would count
    /// it, or most of these runs would no longer count beside it. Without earlier runs, any valid run begins a baseline.
    pub fn why_unfit(&self, candidate: &Sample) -> Option<String> {
        if let Verdict::Invalid { why } = &candidate.verdict {
            return Some(format!("the run is invalid ({})", why.join("; ")));
        }
        let others = self.runs.iter().filter(|run| run.started != candidate.started);
        let differences: Vec<Vec<String>> = others.map(|run| compare::differing(run, candidate)).collect();
        let all = differences.len();
        let fit = differences.iter().filter(|names| names.is_empty()).count();
        match &candidate.verdict {
            _ if all == 0 => None,
            Verdict::Partial { why } => Some(format!("the run is partial ({})", why.join("; "))),
            _ if candidate.gate != CheckVerdict::Pass => {
                Some("the run did not pass its own limits".to_owned())
            }
            // A folder may hold runs of many kinds.
            _ if fit == 0 || !self.is_folder && 2 * fit < all => {
                let names: BTreeSet<String> = differences.into_iter().flatten().collect();
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                Some(format!("the run differs from the baseline ({names})"))
            }
            _ => None,
        }
    }

    /// Checks a run against limits derived from the spread of the earlier runs or, if there are too few of them,
    /// compares it with them directly. `tolerance` is set by the user; `last` is the number of runs considered. Returns
    /// the checks, and the runs that they are based on.
    ///
    /// # Errors
    /// Fails if the runs cannot be compared.
    pub fn judge(
        mut self,
        candidate: &Sample,
        options: &CompareOptions,
        tolerance: Option<f64>,
        last: usize,
    ) -> Result<(Vec<Check>, Vec<Sample>), RunError> {
        // Beside others, a run is no baseline for itself.
        if self.runs.iter().any(|run| run.started != candidate.started) {
            self.runs.retain(|run| run.started != candidate.started);
        }
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

/// Writes a baseline: the candidate, and the latest comparable runs that it was compared with.
///
/// # Errors
/// Fails if the baseline cannot be written.
pub fn save(path: &Path, mut runs: Vec<Sample>, candidate: Sample, last: usize) -> Result<(), RunError> {
    runs.retain(|run| run.started != candidate.started && compare::differing(run, &candidate).is_empty());
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

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/runs");

    /// Returns the sample of a recorded run that began at this time and passed.
    fn recorded(started: i64) -> Sample {
        let run = RunDir::open(Path::new(&format!("{REFERENCE}/plain-one/run"))).unwrap();
        let sample = sample(&run, &analyse(&run, &Given::default()).unwrap()).unwrap();
        Sample {
            started: Stamp::from_unix_ns(started),
            verdict: Verdict::Valid,
            gate: CheckVerdict::Pass,
            ..sample
        }
    }

    fn earlier(runs: &[Sample], is_folder: bool) -> Earlier {
        Earlier { runs: runs.to_vec(), is_folder, unreadable: 0 }
    }

    #[test]
    fn odd_run_is_kept_out_of_baseline() {
        let run = recorded(9);
        let other =
            Sample { fingerprint: [("rate".to_owned(), "1 requests/s".to_owned())].into(), ..run.clone() };
        let usual: Vec<Sample> =
            (0..6).map(|started| Sample { started: Stamp::from_unix_ns(started), ..run.clone() }).collect();
        let mixed: Vec<Sample> = usual.iter().take(2).cloned().chain([other.clone()]).collect();
        let why =
            |runs: &[Sample], is_folder, candidate: &Sample| earlier(runs, is_folder).why_unfit(candidate);
        let candidate = Sample { started: Stamp::from_unix_ns(20), ..run.clone() };
        let odd = Sample { started: Stamp::from_unix_ns(21), ..other };
        for runs in [&usual[..], &mixed, &[]] {
            assert_eq!(why(runs, false, &candidate), None, "{}", runs.len());
        }
        for (runs, is_folder) in [(&usual[..], false), (&usual, true), (&mixed, false)] {
            let why = why(runs, is_folder, &odd).unwrap();
            assert!(why.starts_with("the run differs from the baseline (") && why.contains("rate"), "{why}");
        }
        assert_eq!(why(&mixed, true, &odd), None, "a folder may hold runs of many kinds");
        assert_eq!(why(&[], false, &odd), None, "any run may begin a baseline");
        let reasons = || vec!["hole".to_owned()];
        let invalid = Sample { verdict: Verdict::Invalid { why: reasons() }, ..candidate.clone() };
        assert_eq!(why(&[], false, &invalid).unwrap(), "the run is invalid (hole)");
        let partial = Sample { verdict: Verdict::Partial { why: reasons() }, ..candidate.clone() };
        assert_eq!(why(&usual, false, &partial).unwrap(), "the run is partial (hole)");
        let open = Sample { gate: CheckVerdict::Inconclusive, ..candidate.clone() };
        assert_eq!(why(&usual, false, &open).unwrap(), "the run did not pass its own limits");

        let file = tempfile::NamedTempFile::new().unwrap();
        save(file.path(), mixed, candidate, 20).unwrap();
        let kept = read(file.path()).unwrap();
        assert_eq!(kept.iter().map(|run| run.started.unix_ns()).collect::<Vec<_>>(), [0, 1, 20]);
    }

    #[test]
    fn run_given_twice_counts_once() {
        let run = RunDir::open(Path::new(&format!("{REFERENCE}/plain-one/run"))).unwrap();
        let once = sample(&run, &analyse(&run, &Given::default()).unwrap()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        save(file.path(), Vec::new(), once, 20).unwrap();
        let folder = Path::new(REFERENCE).join("plain-one");
        for paths in [[file.path(), &folder], [run.path(), file.path()]] {
            let runs = Earlier::read(&paths.map(Path::to_owned), 20, None).unwrap().runs;
            assert!(runs.len() == 1 && !runs[0].blocks.is_empty(), "{}", runs.len());
        }
    }
}
