//! `rolldrop cleanup`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::exit::Exit;
use super::report::print;
use super::say::say;
use crate::cluster::{Choice, Cluster};
use crate::coordinator::LeftOver;

/// Arguments of `rolldrop cleanup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop cleanup rolldrop-runs/web-20260102T150405Z

A run undoes its changes itself, also after a failure and after Ctrl-C. This is for a run that was
killed: it removes what the run created and restores what it changed, as its changes.jsonl says.
What others have changed since stays, and is named. It can be repeated.

Exit status: 0 nothing is left; 2 something could not be undone, or was changed by others.")]
pub(super) struct CleanupArgs {
    /// The run directory.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The kubeconfig of the run's cluster [default: as in the run].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in it [default: as in the run].
    #[arg(long, value_name = "CTX")]
    context: Option<String>,
}

impl CleanupArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let left_over = LeftOver::of(&self.run)?;
        let Some(origin) = left_over.cluster().cloned().filter(|_| !left_over.is_empty()) else {
            print("nothing is left of the run\n")?;
            return Ok(ExitCode::SUCCESS);
        };
        // Another kubeconfig need not know the context of the first.
        let context = if self.kubeconfig.is_some() { self.context } else { self.context.or(origin.context) };
        let choice = Choice::Kubeconfig { path: self.kubeconfig.or(origin.kubeconfig), context };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let undone = runtime.block_on(async {
            let cluster = Cluster::connect(choice).await.context("failed to find the run's cluster")?;
            if let Some(title) = cluster.title() {
                say(&format!("undoing what the run changed on {title}"));
            }
            anyhow::Ok(left_over.undo(&cluster.client()).await?)
        })?;
        for undone in &undone {
            print(&format!("{undone}\n"))?;
        }
        let is_left = undone.iter().any(|undone| undone.is_left());
        Ok(if is_left { Exit::Error } else { Exit::Ok }.into())
    }
}
