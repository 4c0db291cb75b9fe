//! `rolldrop workload`.

use std::process::ExitCode;

/// Arguments of `rolldrop workload`.
#[derive(Debug, clap::Args)]
pub(super) struct WorkloadArgs {}

impl WorkloadArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("not built yet")
    }
}
