//! Comparison with a baseline: options that `rolldrop report` and `rolldrop gate` share.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;

use rolldrop_campaign::baseline::Earlier;
use rolldrop_drive::run::RunError;
use rolldrop_judge::compare::CompareOptions;
use rolldrop_judge::compare::run_history::LAST;
use rolldrop_record::Stamp;

/// The baseline of a comparison, and how to compare.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Run to compare with, a file from `rolldrop gate --save-baseline`, or a folder with earlier runs; repeatable
    #[arg(long, value_name = "RUN|FILE|FOLDER")]
    pub(super) baseline: Vec<PathBuf>,
    /// Number of latest runs to use from a folder
    #[arg(long, default_value_t = LAST, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), requires = "baseline")]
    pub(super) last: usize,
    /// Difference in latency, or in a closed loop's rate, that still counts as the same [default: 5%; 20% if five or
    /// more runs set the limits]
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "baseline")]
    pub(super) tolerance: Option<f64>,
    /// Compare runs even if they are invalid, or differ in rate, target or cluster
    #[arg(long, requires = "baseline")]
    pub(super) anyway: bool,
}

/// Parses a percentage, as a fraction: 1 for 100 %.
pub(super) fn percent(text: &str) -> Result<f64, &'static str> {
    let percent = text.trim().trim_end_matches('%').trim().parse::<f64>().ok();
    let percent = percent.filter(|percent| (0.0..=1000.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or("expected a percentage, such as 5%")
}

impl CompareArgs {
    /// Reads the baseline's runs; from a folder, the latest runs that began before the given time. Returns none without
    /// `--baseline`.
    pub(super) fn earlier(&self, before: Option<Stamp>) -> Result<Earlier, RunError> {
        Earlier::read(&self.baseline, self.last, before)
    }

    /// Returns the options of a comparison.
    pub(super) fn options(&self) -> CompareOptions {
        let default = CompareOptions::default();
        let tolerance = self.tolerance.unwrap_or(default.tolerance);
        CompareOptions { tolerance, anyway: self.anyway, ..default }
    }
}
