//! `rolldrop proxy`.

use std::process::ExitCode;

/// Arguments of `rolldrop proxy`.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyArgs {}

impl ProxyArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("not built yet")
    }
}
