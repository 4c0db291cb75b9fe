//! `--dry-run`: what a run would ask of the API server.

use super::intent::Intent;
use super::{caller, connect, looks, ports, sending};
use crate::cli::progress::Progress;
use crate::cli::signals::Interrupts;
use crate::cluster::Choice;
use crate::coordinator::Plan;
use rolldrop_scenario::Scenario;

/// Plans the calls of a run. Prints the cluster and warnings.
pub(super) async fn plan(
    scenario: &Scenario,
    choice: Choice,
    namespace: Option<String>,
    intent: &Intent<'_>,
    (interrupts, progress): (&Interrupts, &Progress),
) -> anyhow::Result<Plan> {
    let cluster = connect(choice, interrupts, progress).await?;
    let caller = match caller(&cluster, namespace, interrupts) {
        Ok(caller) => caller.at_first_contact(),
        Err(error) => {
            cluster.shut_down().await;
            return Err(error);
        }
    };
    let plan = async {
        let load_workers = sending::load_workers(scenario, &cluster, &caller).await?;
        let plan = intent.plan(scenario, &caller, load_workers).await?;
        let open_end = intent.open_end(scenario);
        ports::check(scenario, &cluster, &caller, load_workers, open_end, interrupts).await?;
        Ok(plan)
    };
    let plan: anyhow::Result<Plan> = plan.await;
    if let Ok(plan) = &plan {
        plan.warnings.iter().chain(&plan.findings).for_each(|warning| progress.warn(warning));
        if let Some(looks) = &intent.extras.looks {
            progress.note(&format!("the run {}", looks::in_words(looks)));
        }
        if let Some(title) = cluster.title() {
            progress.note(&format!(
                "on {title}, in namespace {}, a run would make these calls:",
                caller.namespace
            ));
        }
    }
    drop(caller);
    cluster.shut_down().await;
    plan
}
