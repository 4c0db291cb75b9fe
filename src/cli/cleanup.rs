//! `rolldrop cleanup`.

use std::path::{Path, PathBuf};
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
  rolldrop cleanup rolldrop-tune/web-20260102T150405Z

A run undoes its changes itself, also after a failure and after Ctrl-C. This is for a run that was
killed, or a tuning: it removes what was created and restores what was changed, as changes.jsonl in
each run directory says. What others have changed since stays, and is named. It can be repeated.

Exit status: 0 nothing is left; 2 something could not be undone, or was changed by others.")]
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
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut left_over = Vec::new();
        for run in runs_in(&self.dir)? {
            left_over.push(LeftOver::of(&run)?);
        }
        left_over.retain(|run| !run.is_empty());
        let Some(origin) = left_over.iter().find_map(|run| run.cluster().cloned()) else {
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
            let mut undone = Vec::new();
            for run in left_over {
                undone.extend(run.undo(&cluster.client()).await?);
            }
            anyhow::Ok(undone)
        })?;
        for undone in &undone {
            print(&format!("{undone}\n"))?;
        }
        let is_left = undone.iter().any(|undone| undone.is_left());
        Ok(if is_left { Exit::Error } else { Exit::Ok }.into())
    }
}

/// The directory itself, or the runs of a tuning that have changed something, the last first.
fn runs_in(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if LeftOver::is_in(dir) || !dir.is_dir() {
        return Ok(vec![dir.to_owned()]);
    }
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("failed to read {}", dir.display()))? {
        runs.push(entry?.path());
    }
    runs.retain(|run| LeftOver::is_in(run));
    runs.sort();
    runs.reverse();
    Ok(if runs.is_empty() { vec![dir.to_owned()] } else { runs })
}
