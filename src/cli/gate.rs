//! `rolldrop gate`: a run and its limits to an exit status.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::exit::Exit;
use super::report::{analyse, print};
use crate::analysis::model::CheckVerdict;
use crate::record::{Bounds, RunDir, WindowBounds};

/// Arguments of `rolldrop gate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  rolldrop gate rolldrop-runs/web-20260102T150405Z --max-dropped 0 --max-window 2s

Limits that are not given are those of the run's scenario.")]
pub(super) struct GateArgs {
    /// The run directory.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The most requests that may be dropped.
    #[arg(long, value_name = "N")]
    max_dropped: Option<u64>,
    /// The longest endpoint-propagation window, such as 2s.
    #[arg(long, value_name = "D", value_parser = super::parse_duration)]
    max_window: Option<Duration>,
}

impl GateArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let run_dir = RunDir::open(&self.run)?;
        let mut expect = run_dir.info()?.expect;
        if let Some(max) = self.max_dropped {
            let min = expect.dropped.and_then(|bounds| bounds.min);
            expect.dropped = Some(Bounds { min, max: Some(max) });
        }
        if let Some(max) = self.max_window {
            expect.windows = Some(WindowBounds { max_s: max.as_secs_f64() });
        }
        if expect.is_empty() {
            anyhow::bail!(
                "nothing to check: the run's scenario expects nothing; give --max-dropped or --max-window"
            );
        }
        let result = analyse(&run_dir, Some(&expect))?.result;
        for check in &result.checks {
            let verdict = match check.verdict {
                CheckVerdict::Pass => "pass",
                CheckVerdict::Fail => "FAIL",
                CheckVerdict::Inconclusive => "inconclusive",
            };
            print(&format!(
                "{verdict:<12} {}: {} (limit {}): {}\n",
                check.name, check.observed, check.limit, check.why
            ))?;
        }
        Ok(Exit::of(&result, false).into())
    }
}
