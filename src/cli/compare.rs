//! A run against a baseline: the options that `rolldrop report` and `rolldrop gate` share.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};

use super::report::{Analysed, Given, analyse};
use rolldrop_analysis::compare::model::Comparison;
use rolldrop_analysis::compare::sample::SAMPLE_FORMAT;
use rolldrop_analysis::compare::{self, Incomparable, Options, Sample};
use rolldrop_record::RunDir;

/// What to compare with, and how.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Compare with this run, or with a baseline that `rolldrop gate --save-baseline` wrote; several together make
    /// one side
    #[arg(long, value_name = "RUN|FILE")]
    pub(super) baseline: Vec<PathBuf>,
    /// A latency, or the rate of a closed loop, counts as the same within this much of the baseline's
    #[arg(long, default_value = "5%", value_name = "PERCENT", requires = "baseline")]
    tolerance: Percent,
    /// Compare runs also if they differ in more than their results (rate, target, cluster), or are invalid
    #[arg(long, requires = "baseline")]
    anyway: bool,
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
    /// As a share: 1 for 100 %.
    pub(super) fn share(self) -> f64 {
        self.0
    }
}

impl CompareArgs {
    /// The baseline's side; empty without `--baseline`.
    pub(super) fn samples(&self) -> anyhow::Result<Vec<Sample>> {
        self.baseline.iter().map(|path| read(path)).collect()
    }

    /// Compares runs with the baseline.
    pub(super) fn compare(&self, baseline: &[Sample], candidate: &[Sample]) -> anyhow::Result<Comparison> {
        let options = Options { tolerance: self.tolerance.0, anyway: self.anyway, ..Options::default() };
        compare::compare(baseline, candidate, &options).map_err(|error| match error {
            Incomparable::Differs(_) => {
                anyhow::anyhow!("{error}; --anyway compares them nevertheless, and says so")
            }
            Incomparable::Nothing => error.into(),
        })
    }
}

/// What a run contributes to a comparison.
pub(super) fn sample(run_dir: &RunDir, analysed: &Analysed) -> anyhow::Result<Sample> {
    let name = run_dir.path().display().to_string();
    let Analysed { timeline, requests, analysis } = analysed;
    Sample::of(name, timeline, requests, analysis).context("failed to read the run")
}

fn read(path: &Path) -> anyhow::Result<Sample> {
    if path.is_dir() {
        let run_dir = RunDir::open(path)?;
        return sample(&run_dir, &analyse(&run_dir, &Given::default())?);
    }
    let failed = || format!("failed to read the baseline {}", path.display());
    let text = std::fs::read_to_string(path).with_context(failed)?;
    let Ok(mut sample) = serde_json::from_str::<Sample>(&text) else {
        bail!(
            "{} is not a baseline: name a run directory (of rolldrop run, or of rolldrop load with --out), \
             or a file that rolldrop gate --save-baseline wrote",
            path.display()
        );
    };
    if sample.format != SAMPLE_FORMAT {
        bail!(
            "{} is a baseline of format {}, not {SAMPLE_FORMAT}: save it again",
            path.display(),
            sample.format
        );
    }
    sample.name = path.display().to_string();
    Ok(sample)
}
