//! `rolldrop cluster`.

use std::process::ExitCode;

/// Arguments of `rolldrop cluster`.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {}

impl ClusterArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("not built yet")
    }
}
