//! `rolldrop cleanup`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::say::{print, say};
use rolldrop_drive::api::{Caller, TimeLimits};
use rolldrop_drive::cluster::{ChosenCluster, Cluster};
use rolldrop_drive::undo::{LeftOvers, await_effect};

/// Arguments of `rolldrop cleanup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop cleanup rolldrop-runs/web-20260102T150405Z
  rolldrop cleanup rolldrop-tune/web-20260102T150405Z

A run undoes its changes itself, also after a failure and after Ctrl-C. This is for a run that was
killed, or a tuning: it removes what was created and restores what was changed, as changes.jsonl in
each run directory says. What others have changed since stays, and is named. It can be repeated.
Then it waits until the run's own pods are gone and rollouts back have finished. Ctrl-C ends the wait.

Exit status: 0 nothing is left; 2 something could not be undone, was changed by others, or takes
longer than the wait.")]
pub(super) struct CleanupArgs {
    /// The directory of the run, or of the tuning.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The kubeconfig of the run's cluster [default: as in the run].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in it [default: as in the run].
    #[arg(long, value_name = "CTX")]
    context: Option<String>,
}

impl CleanupArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let left = LeftOvers::in_dir(&self.dir)?;
        let Some(origin) = left.cluster().cloned() else {
            print("nothing is left of the run\n")?;
            return Ok(ExitCode::SUCCESS);
        };
        // A different kubeconfig may not contain the original context.
        let context = if self.kubeconfig.is_some() { self.context } else { self.context.or(origin.context) };
        let choice = ChosenCluster::Kubeconfig { path: self.kubeconfig.or(origin.kubeconfig), context };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let is_left = runtime.block_on(async {
            let cluster = Cluster::connect(choice).await.context("failed to find the run's cluster")?;
            if let Some(title) = cluster.title() {
                say(&format!("undoing what the run changed on {title}"));
            }
            let (limits, stop) = (TimeLimits::default(), CancellationToken::new());
            let (client, warnings) = (cluster.client(), cluster.warnings());
            let caller = Caller { client, warnings, namespace: String::new(), limits, stop };
            let all = left.undo(&caller).await?;
            all.iter().try_for_each(|undone| print(&format!("{undone}\n")))?;
            let tell = |what: &str| say(&format!("waiting until all is as before the run: {what}"));
            let waited = await_effect(&caller, &all, tell).await;
            if let Err(not_yet) = &waited {
                say(&format!("warning: {not_yet}"));
            }
            anyhow::Ok(waited.is_err() || all.iter().any(|undone| undone.is_left()))
        })?;
        Ok(if is_left { Exit::Error } else { Exit::Ok }.into())
    }
}
