//! Checks, before anything is touched, whether the evidence that a run asks for is available.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::error::RunError;
use super::sending::load_workers;
use crate::Interrupts;
use crate::api::Caller;
use crate::cluster::Cluster;
use rolldrop_scenario::Scenario;

/// Returns the reason that a load from this machine cannot get the evidence that a scenario asks for; `None` if it can.
///
/// # Errors
/// Fails if that cannot be determined.
pub async fn why_no_evidence(
    scenario: &Scenario,
    cluster: &Cluster,
    caller: &Caller,
    interrupts: &Interrupts,
) -> Result<Option<String>, RunError> {
    if load_workers(scenario, cluster, caller).await?.is_some() {
        return Ok(Some("the load comes from pods, which would have to be privileged".to_owned()));
    }
    missing(scenario, cluster, interrupts).await
}

/// Asks a process that runs where the load will be sent from. Pods that send a load check this themselves before the
/// load begins, because no other process runs where they will run.
pub(super) async fn check(
    scenario: &Scenario,
    cluster: &Cluster,
    load_workers: Option<usize>,
    interrupts: &Interrupts,
) -> Result<(), RunError> {
    if load_workers.is_some() {
        return Ok(());
    }
    match missing(scenario, cluster, interrupts).await? {
        None => Ok(()),
        Some(why) => Err(RunError::Refused(why)),
    }
}

/// Returns a command that runs this program where the load is sent from.
pub(super) fn own_command(cluster: &Cluster) -> Result<Command, RunError> {
    let command = std::env::current_exe().and_then(|program| cluster.command(&program));
    command.map_err(RunError::failed("failed to find rolldrop's own program file"))
}

async fn missing(
    scenario: &Scenario,
    cluster: &Cluster,
    interrupts: &Interrupts,
) -> Result<Option<String>, RunError> {
    let Some(evidence) = scenario.load.settings.evidence else { return Ok(None) };
    let mut command = own_command(cluster)?;
    command.args(["load-worker", "--check-evidence", evidence.as_str()]);
    refusal(command, &[], interrupts).await
}

/// Runs a check in a process where the load will be sent from, and returns its objection; `None` if it has none.
pub(super) async fn refusal(
    mut command: Command,
    input: &[u8],
    interrupts: &Interrupts,
) -> Result<Option<String>, RunError> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let checking = async {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A process that has exited early reports the reason on stderr.
            let _ = stdin.write_all(input).await;
        }
        child.wait_with_output().await
    };
    let Some(output) = interrupts.stop.run_until_cancelled(checking).await else {
        return Err(RunError::Interrupted);
    };
    let output = output.map_err(RunError::failed("failed to run a check at the source of the load"))?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said
        .lines()
        .last()
        .unwrap_or("the check failed without a message")
        .trim_start_matches("rolldrop: ")
        .to_owned();
    Ok(Some(why))
}
