//! `rolldrop cleanup`.

use std::collections::BTreeSet;
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

A run undoes its changes itself, even after a failure or Ctrl-C. Use cleanup after a run or tuning was killed. It deletes \
the objects that the run created and restores those that it changed, according to changes.jsonl in each run directory. \
It keeps and lists changes that others have made since. You can repeat it. Afterwards it waits until the run's pods are \
gone and rollouts have finished; Ctrl-C ends the wait.

Exit status: 0 nothing is left; 2 something could not be undone, was changed by others, or took longer than the wait.")]
pub(super) struct CleanupArgs {
    /// Directory of the run or tuning.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Kubeconfig of the run's cluster [default: as in the run].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: as in the run].
    #[arg(long, value_name = "CTX")]
    context: Option<String>,
}

impl CleanupArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let left = LeftOvers::in_dir(&self.dir)?;
        let Some(origin) = left.cluster().cloned() else {
            print("the run left nothing to clean up\n")?;
            return Ok(ExitCode::SUCCESS);
        };
        // A different kubeconfig may not contain the original context.
        let context = if self.kubeconfig.is_some() { self.context } else { self.context.or(origin.context) };
        let choice = ChosenCluster::Kubeconfig { path: self.kubeconfig.or(origin.kubeconfig), context };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let is_left = runtime.block_on(async {
            let cluster = Cluster::connect(choice).await.context("failed to find the run's cluster")?;
            if let Some(title) = cluster.title() {
                say(&format!("undoing the run's changes on {title}"));
            }
            let (limits, stop) = (TimeLimits::default(), CancellationToken::new());
            let (client, warnings) = (cluster.client(), cluster.warnings());
            let caller = Caller { client, warnings, namespace: String::new(), limits, stop };
            let all = left.undo(&caller, cluster.server()).await?;
            all.iter().try_for_each(|undone| print(&format!("{undone}\n")))?;
            let tell = |what: &str| {
                say(&format!("waiting for the cluster to return to its state before the run: {what}"))
            };
            let waited = await_effect(&caller, &all, &BTreeSet::new(), tell).await;
            if let Err(not_yet) = &waited {
                say(&format!("warning: {not_yet}"));
            }
            anyhow::Ok(waited.is_err() || all.iter().any(|undone| undone.is_left()))
        })?;
        Ok(if is_left { Exit::Error } else { Exit::Ok }.into())
    }
}
