//! Comparison with a baseline: options that `rolldrop report` and `rolldrop gate` share.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use rolldrop_campaign::baseline::{self, Against, Earlier, comparable};
use rolldrop_judge::compare::run_history::LAST;
use rolldrop_judge::compare::{CompareOptions, Sample};
use rolldrop_judge::judgements::comparison::Comparison;
use rolldrop_record::Stamp;
use rolldrop_record::expect::Worse;

/// The baseline of a comparison, and how to compare.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Run to compare with, a file from `rolldrop gate --save-baseline`, or a folder with earlier runs; repeatable
    #[arg(long, value_name = "RUN|FILE|FOLDER")]
    pub(super) baseline: Vec<PathBuf>,
    /// Number of latest runs to use from a folder
    #[arg(long, default_value_t = LAST, value_name = "N", requires = "baseline")]
    last: usize,
    /// Difference in latency, or in a closed loop's rate, that still counts as the same [default: 5%; 20% if five or
    /// more runs set the limits]
    #[arg(long, value_name = "PERCENT", requires = "baseline")]
    tolerance: Option<Percent>,
    /// Compare runs even if they are invalid, or differ in rate, target or cluster
    #[arg(long, requires = "baseline")]
    anyway: bool,
}

/// A share, written as a percentage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percent(f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.trim().trim_end_matches('%').trim().parse::<f64>().ok();
        let percent = percent.filter(|percent| (0.0..=1000.0).contains(percent));
        percent
            .map(|percent| Self(percent / 100.0))
            .ok_or_else(|| "expected a percentage, such as 5%".to_owned())
    }
}

impl Percent {
    /// Returns the share as a fraction: 1 for 100 %.
    pub(super) fn share(self) -> f64 {
        self.0
    }
}

impl CompareArgs {
    /// Reads the baseline's runs; from a folder, the latest runs that began before the given time. Returns none without
    /// `--baseline`.
    pub(super) fn earlier(&self, before: Option<Stamp>) -> anyhow::Result<Earlier> {
        Ok(Earlier::read(&self.baseline, self.last, before)?)
    }

    /// Compares runs with the baseline.
    pub(super) fn compare(&self, baseline: &[Sample], candidate: &[Sample]) -> anyhow::Result<Comparison> {
        Ok(comparable(baseline, candidate, &self.options())?)
    }

    /// Returns the gate's checks that compare a run with the baseline.
    pub(super) fn judge(
        &self,
        earlier: Earlier,
        candidate: &Sample,
        worse: Vec<Worse>,
    ) -> anyhow::Result<Against> {
        let options = CompareOptions { worse, ..self.options() };
        Ok(earlier.judge(candidate, &options, self.tolerance.map(Percent::share), self.last)?)
    }

    /// Writes a baseline that contains the candidate and the runs that it was compared with.
    pub(super) fn save(&self, path: &Path, runs: Vec<Sample>, candidate: Sample) -> anyhow::Result<()> {
        Ok(baseline::save(path, runs, candidate, self.last)?)
    }

    fn options(&self) -> CompareOptions {
        let default = CompareOptions::default();
        let tolerance = self.tolerance.map_or(default.tolerance, |tolerance| tolerance.0);
        CompareOptions { tolerance, anyway: self.anyway, ..default }
    }
}
