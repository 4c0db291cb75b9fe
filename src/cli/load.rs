//! `rolldrop load`.

use std::process::ExitCode;

/// Arguments of `rolldrop load`.
#[derive(Debug, clap::Args)]
pub(super) struct LoadArgs {}

impl LoadArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("not built yet")
    }
}
