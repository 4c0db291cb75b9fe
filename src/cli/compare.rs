//! A run against a baseline: the options that `rolldrop report` and `rolldrop gate` share.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};

use super::report::{Given, Judged, analyse};
use rolldrop_explain::Analysed;
use rolldrop_judge::compare::history::{self, History, LAST};
use rolldrop_judge::compare::sample::{Baseline, SAMPLE_FORMAT};
use rolldrop_judge::compare::{self, Incomparable, Options, Sample};
use rolldrop_judge::model::check::{Check, Unfit};
use rolldrop_judge::model::comparison::{Comparison, FEWEST_RUNS};
use rolldrop_record::expect::Worse;
use rolldrop_record::{RunDir, Stamp};
use rolldrop_report as report;

/// The baseline of a comparison, and how to compare.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Compare with this run, with a baseline that `rolldrop gate --save-baseline` wrote, or with the last runs of a
    /// folder; several together make one side
    #[arg(long, value_name = "RUN|FILE|FOLDER")]
    pub(super) baseline: Vec<PathBuf>,
    /// The number of a folder's runs that are looked at
    #[arg(long, default_value_t = LAST, value_name = "N", requires = "baseline")]
    last: usize,
    /// A latency, or the rate of a closed loop, counts as the same within this much of the baseline's [default: 5%; of
    /// limits from five runs or more 20%]
    #[arg(long, value_name = "PERCENT", requires = "baseline")]
    tolerance: Option<Percent>,
    /// Compare runs also if they differ in more than their results (rate, target, cluster), or are invalid
    #[arg(long, requires = "baseline")]
    anyway: bool,
}

/// The runs that a run is compared with.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    pub(super) runs: Vec<Sample>,
    /// True if a folder was named: fewer runs than a history needs are then inconclusive.
    is_folder: bool,
    /// Runs of a folder that could not be read.
    unreadable: usize,
}

/// The baseline's checks of a run, and the runs that they rest on.
#[derive(Debug)]
pub(super) struct Against {
    pub(super) checks: Vec<Check>,
    pub(super) runs: Vec<Sample>,
}

/// A share that is written in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percent(f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.trim().trim_end_matches('%').trim().parse::<f64>().ok();
        let percent = percent.filter(|percent| (0.0..=1000.0).contains(percent));
        percent.map(|percent| Self(percent / 100.0)).ok_or_else(|| "takes percent, such as 5%".to_owned())
    }
}

impl Percent {
    /// Returns it as a share: 1 for 100 %.
    pub(super) fn share(self) -> f64 {
        self.0
    }
}

impl CompareArgs {
    /// Reads the baseline's runs; of folders, the last ones that began before the given time. Empty without
    /// `--baseline`.
    pub(super) fn earlier(&self, before: Option<Stamp>) -> anyhow::Result<Earlier> {
        let mut earlier = Earlier::default();
        for path in &self.baseline {
            if path.is_dir() && RunDir::open(path).is_err() {
                earlier.is_folder = true;
                let (runs, unreadable) = last_of(path, self.last, before)?;
                earlier.runs.extend(runs);
                earlier.unreadable += unreadable;
            } else {
                earlier.runs.extend(read(path)?);
            }
        }
        if before.is_none() && !self.baseline.is_empty() && earlier.runs.is_empty() {
            bail!("the baseline has no run that can be read");
        }
        Ok(earlier)
    }

    /// Compares runs with the baseline.
    pub(super) fn compare(&self, baseline: &[Sample], candidate: &[Sample]) -> anyhow::Result<Comparison> {
        compare::compare(baseline, candidate, &self.options()).map_err(refused)
    }

    /// Returns the gate's checks of a run against the baseline: limits from the spread of enough runs, else a
    /// comparison.
    pub(super) fn judge(
        &self,
        earlier: Earlier,
        candidate: &Sample,
        worse: Vec<Worse>,
    ) -> anyhow::Result<Against> {
        let options = Options { worse, ..self.options() };
        if !earlier.is_folder && earlier.runs.len() < FEWEST_RUNS {
            let checks = compare::checks(&earlier.runs, candidate, &options).map_err(refused)?;
            return Ok(Against { checks, runs: earlier.runs });
        }
        let tolerance = self.tolerance.map_or(history::TOLERANCE, |tolerance| tolerance.0);
        let options = Options { tolerance, ..options };
        let mut history = History::of(earlier.runs, candidate, self.last, &options);
        if earlier.unreadable > 0 {
            history.left_out.insert(Unfit::Unreadable, earlier.unreadable);
        }
        Ok(Against { checks: history.checks(candidate, &options), runs: history.used })
    }

    /// Writes a baseline: the runs that the candidate was compared with, and the candidate.
    pub(super) fn save(&self, path: &Path, mut runs: Vec<Sample>, candidate: Sample) -> anyhow::Result<()> {
        runs.retain(|run| run.started != candidate.started);
        runs.push(candidate);
        runs.sort_by_key(|run| run.started);
        let first = runs.len().saturating_sub(self.last);
        let named = |run: &Sample| {
            let name = Path::new(&run.name).file_name().unwrap_or(run.name.as_ref());
            Sample { name: name.to_string_lossy().into_owned(), ..run.figures() }
        };
        let runs = runs[first..].iter().map(named).collect();
        let failed = || format!("failed to write the baseline {}", path.display());
        let mut json = serde_json::to_vec_pretty(&Baseline { format: SAMPLE_FORMAT, runs })?;
        json.push(b'\n');
        std::fs::write(path, json).with_context(failed)
    }

    fn options(&self) -> Options {
        let default = Options::default();
        let tolerance = self.tolerance.map_or(default.tolerance, |tolerance| tolerance.0);
        Options { tolerance, anyway: self.anyway, ..default }
    }
}

fn refused(why: Incomparable) -> anyhow::Error {
    let error = report::incomparable(&why);
    match why {
        Incomparable::Differs(_) => anyhow!("{error}; --anyway compares them nevertheless, and says so"),
        Incomparable::Nothing => anyhow!(error),
    }
}

/// Returns a run's contribution to a comparison.
pub(super) fn sample(run_dir: &RunDir, judged: &Judged) -> anyhow::Result<Sample> {
    let name = run_dir.path().display().to_string();
    let Analysed { timeline, requests, analysis } = &judged.analysed;
    Sample::of(name, timeline, requests, analysis, judged.checks()).context("failed to read the run")
}

/// Returns the last runs of a folder, and the number of those that could not be read.
fn last_of(folder: &Path, last: usize, before: Option<Stamp>) -> anyhow::Result<(Vec<Sample>, usize)> {
    let failed = || format!("failed to read the folder {}", folder.display());
    let mut found: Vec<(Stamp, RunDir)> = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        let Ok(run_dir) = RunDir::open(&entry.with_context(failed)?.path()) else { continue };
        // A directory without a readable beginning is not a run of this version.
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

fn read(path: &Path) -> anyhow::Result<Vec<Sample>> {
    if path.is_dir() {
        let run_dir = RunDir::open(path)?;
        return Ok(vec![sample(&run_dir, &analyse(&run_dir, &Given::default())?)?]);
    }
    let failed = || format!("failed to read the baseline {}", path.display());
    let text = std::fs::read_to_string(path).with_context(failed)?;
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let is_baseline = value.get("runs").is_some() || value.get("blocks").is_some();
    match value.get("format").and_then(serde_json::Value::as_u64).filter(|_| is_baseline) {
        Some(format) if format != u64::from(SAMPLE_FORMAT) => {
            bail!("{} is a baseline of format {format}, not {SAMPLE_FORMAT}: save it again", path.display());
        }
        _ => {}
    }
    let Ok(Baseline { runs, .. }) = serde_json::from_value(value) else {
        bail!(
            "{} is not a baseline: name a run directory (of rolldrop run, or of rolldrop load with --out), \
             a folder of them, or a file that rolldrop gate --save-baseline wrote",
            path.display()
        );
    };
    Ok(runs)
}
