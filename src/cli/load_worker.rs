//! `rolldrop load-worker`: sends a load for another process, which speaks to it by standard
//! input and output (`load::process::protocol`). Not for people, so `--help` does not show it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::io::BufReader;

use crate::load::process::worker;

/// Arguments of `rolldrop load-worker`.
#[derive(Debug, clap::Args)]
pub(super) struct LoadWorkerArgs {
    /// The run directory that the rows go to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl LoadWorkerArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        // A session of its own: a Ctrl-C at the terminal is the business of whoever gives the
        // orders. A process that leads one already needs none.
        #[cfg(unix)]
        let _ = nix::unistd::setsid();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(worker::serve(&self.out, BufReader::new(tokio::io::stdin()), |report| {
            let mut stdout = io::stdout().lock();
            serde_json::to_writer(&mut stdout, report)?;
            writeln!(stdout)?;
            stdout.flush()
        }));
        // No further order is waited for.
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }
}
