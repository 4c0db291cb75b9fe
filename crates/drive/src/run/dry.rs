//! `--dry-run`: the calls that a run would make to the API server.

use std::path::Path;

use super::error::RunError;
use super::{Job, caller, connect, ports, sending};
use crate::api::Caller;
use crate::cluster::{ChosenCluster, Cluster};
use crate::plan::RunPlan;
use crate::{Operator, private_dir};

/// Plans a run's calls. Shows the cluster and warnings.
pub(super) async fn plan(
    job: &Job<'_>,
    choice: impl FnOnce(&Path) -> ChosenCluster,
    operator: &Operator,
) -> Result<RunPlan, RunError> {
    // Holds an embedded cluster's kubeconfig, and is removed after the dry run.
    let scratch = private_dir("rolldrop-dry-run-")
        .map_err(RunError::failed("failed to create a temporary directory"))?;
    let planned = plan_on(job, choice(scratch.path()), operator).await;
    scratch.close().map_err(RunError::failed("failed to remove the temporary directory"))?;
    planned
}

async fn plan_on(job: &Job<'_>, choice: ChosenCluster, operator: &Operator) -> Result<RunPlan, RunError> {
    let Operator { interrupts, viewer } = operator;
    let cluster = connect(choice, operator).await?;
    let caller = match caller(&cluster, job.options.namespace.as_deref(), interrupts) {
        Ok(caller) => caller.at_first_contact(),
        Err(error) => {
            cluster.shut_down().await;
            return Err(error);
        }
    };
    let plan = calls(job, &cluster, &caller, operator).await;
    if let Ok(plan) = &plan {
        plan.warnings.iter().chain(&plan.findings).for_each(|warning| viewer.warn(warning));
        if let Some(looks) = &job.extras.looks {
            viewer.note(&format!("the run {}", looks.in_words));
        }
        if let Some(title) = cluster.title() {
            viewer.note(&format!(
                "on {title}, in namespace {}, a run would make these calls:",
                caller.namespace
            ));
        }
    }
    drop(caller);
    cluster.shut_down().await;
    plan
}

async fn calls(
    job: &Job<'_>,
    cluster: &Cluster,
    caller: &Caller,
    operator: &Operator,
) -> Result<RunPlan, RunError> {
    let load_workers = sending::load_workers(&job.scenario, cluster, caller).await?;
    let plan = job.plan(caller, load_workers).await?;
    ports::check(&job.scenario, cluster, caller, load_workers, job.open_end(), &operator.interrupts).await?;
    Ok(plan)
}
