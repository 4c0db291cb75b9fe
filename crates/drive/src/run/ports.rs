//! Checks, before anything is touched, whether there are enough source ports for the load's rate and length.

use std::time::Duration;

use tokio::process::Command;

use super::error::RunError;
use super::evidence_check::{own_command, refusal};
use super::settings::{expected_targets, load_settings};
use crate::Interrupts;
use crate::api::Caller;
use crate::cluster::Cluster;
use crate::plan::expected_remotes;
use rolldrop_load::load_process::worker_protocol::Prepare;
use rolldrop_load::{Load, LoadError, Plan, PlanError, PortRange, Prepared, ThreadShare};
use rolldrop_record::RunId;
use rolldrop_record::run_info::Target;
use rolldrop_scenario::Scenario;

/// Asks a process that runs where the load will be sent from; for pods, which do not exist yet, assumes Linux's
/// defaults. `open_end` is the maximum length of a load without a fixed end.
///
/// # Errors
/// Fails if there are too few ports, or the check was interrupted.
pub(super) async fn check(
    scenario: &Scenario,
    cluster: &Cluster,
    caller: &Caller,
    load_workers: Option<usize>,
    open_end: Option<Duration>,
    interrupts: &Interrupts,
) -> Result<(), RunError> {
    // If a target has no address yet, the check is made when the load is prepared.
    let Some(remotes) = expected_remotes(caller, scenario).await? else {
        return Ok(());
    };
    let mut targets = expected_targets(scenario);
    for (target, remote) in targets.iter_mut().zip(&remotes) {
        if let Some(remote) = remote {
            *target = Target { url: format!("http://{remote}/"), ..target.clone() };
        }
    }
    let mut settings = load_settings(scenario, &targets)?;
    if let Some(end) = open_end {
        settings.pace = settings.pace.held_until(end);
    }
    let mut command = match load_workers {
        None => own_command(cluster)?,
        Some(_) => {
            let program = std::env::current_exe();
            Command::new(program.map_err(RunError::failed("failed to find rolldrop's own program file"))?)
        }
    };
    command.args(["load-worker", "--check-ports"]);
    let input = serde_json::to_vec(&order(settings, load_workers));
    let input = input.map_err(RunError::failed("failed to serialize the load"))?;
    let Some(mut why) = refusal(command, &input, interrupts).await? else { return Ok(()) };
    for (target, remote) in scenario.targets.iter().zip(&remotes) {
        // The address may be a stand-in, so the message names the target instead.
        if let Some(remote) = remote {
            why = why.replace(remote, &format!("target {}", target.name));
        }
    }
    Err(scenario.invalid("spec.load", why).into())
}

/// Returns the load, or each pod's share of the load.
fn order(mut settings: Load, load_workers: Option<usize>) -> Prepare {
    let share = load_workers.map(|pods| {
        settings.source_ports.get_or_insert(PortRange::OF_LINUX);
        ThreadShare { first: 0, of: settings.workers * pods }
    });
    Prepare { settings, run: RunId::random(), first_answer_limit: Duration::ZERO, share, before: None }
}

/// Checks that a process with this order would find enough source ports on this machine.
///
/// # Errors
/// Fails if there are too few ports, or the load cannot be carried out.
pub async fn check_here(order: Prepare) -> Result<(), PlanError> {
    let plan = Plan::new(order.settings)?;
    let plan = match order.share {
        Some(share) => plan.part(share)?,
        None => plan,
    };
    match Prepared::new(plan).await {
        Err(LoadError::Plan(why)) => Err(why),
        // A name that does not resolve yet may resolve once everything is deployed.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use rolldrop_scenario as scenario;

    /// Checks a scenario with this load.
    async fn checked(load: &str, load_workers: Option<usize>) -> Result<(), PlanError> {
        let set = [format!("load={{{load}}}"), "disruptions=[]".to_owned(), "expect={}".to_owned()];
        let scenario = scenario::load::<Value>(scenario::DEFAULT, &set).unwrap().scenario;
        let mut targets = expected_targets(&scenario);
        // A documentation address rather than loopback, where ports are released sooner.
        targets[0].url = "http://192.0.2.1/".to_owned();
        check_here(order(load_settings(&scenario, &targets).unwrap(), load_workers)).await
    }

    #[tokio::test]
    async fn fresh_connections_exhaust_source_ports() {
        let ports = "sourcePorts: 40000-40999";
        let few = |rate: u32, duration: &str, more: &str| {
            format!("rate: {rate}, duration: {duration}, {ports}{more}")
        };
        let error = checked(&few(200, "30s", ""), None).await.unwrap_err();
        assert!(matches!(error, PlanError::PortsRunOut { ports: 1000, .. }), "{error}");
        for enough in [few(30, "30s", ""), few(200, "4s", ""), few(200, "30s", ", reusePorts: true")] {
            assert_eq!(checked(&enough, None).await, Ok(()), "{enough}");
        }
        let kept = few(200, "30s", ", connections: {mode: keepalive}");
        assert_eq!(checked(&kept, None).await, Ok(()));
        // Each of the eight pods has its own ports.
        assert_eq!(checked(&few(200, "30s", ""), Some(8)).await, Ok(()));
        let all = checked("rate: 1000, duration: 60s", Some(1)).await.unwrap_err();
        assert!(all.to_string().contains("there are only 28232"), "{all}");
    }
}
