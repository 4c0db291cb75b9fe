//! Checks, before anything is touched, whether the evidence that a run asks for is available.

use std::process::Stdio;

use anyhow::{Context, bail};

use super::Interrupted;
use crate::cli::signals::Interrupts;
use crate::cluster::Cluster;
use crate::scenario::Scenario;

/// Asks a process that runs where the load will come from. Pods that send a load check by themselves before it begins,
/// because nothing else runs where they will be.
pub(super) async fn check(
    scenario: &Scenario,
    cluster: &Cluster,
    load_workers: Option<usize>,
    interrupts: &Interrupts,
) -> anyhow::Result<()> {
    let Some(evidence) = scenario.load.settings.evidence.filter(|_| load_workers.is_none()) else {
        return Ok(());
    };
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut command = cluster.command(&program).context("failed to find this program")?;
    command.args(["load-worker", "--check-evidence", evidence.as_str()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let Some(output) = interrupts.stop.run_until_cancelled(command.output()).await else {
        bail!(Interrupted)
    };
    let output = output.context("failed to ask for evidence where the load comes from")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said
        .lines()
        .last()
        .unwrap_or("it ended without a message")
        .trim_start_matches("rolldrop: ")
        .to_owned();
    bail!(why)
}
