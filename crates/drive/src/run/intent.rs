//! A run's additions to its scenario, and the plan that results from them.

use std::time::Duration;

use serde_json::Value;

use super::Job;
use super::admin_secret::AdminSecret;
use super::consent;
use super::error::RunError;
use crate::api::Caller;
use crate::plan::{LiveChanges, RunPlan, Sidecar, Work, WorkloadSelection, plan_run};
use rolldrop_scenario::{Place, Workload};

/// Maximum time to plan, in addition to the planned rounds, for a load without a fixed end.
const OPEN_END: Duration = Duration::from_secs(24 * 3600);

impl Job<'_> {
    /// Returns the image for sidecars in live pods, and for pods that send the load.
    pub(super) fn image(&self) -> &str {
        self.options.image.as_deref().unwrap_or("rolldrop")
    }

    /// Returns the maximum length of a load without a fixed end, such as one that ends with a command or once the gate
    /// is decided; `None` if the load has a fixed end.
    pub(super) fn open_end(&self) -> Option<Duration> {
        let most =
            self.extras.looks.as_ref().map(|looks| u32::try_from(looks.looks.most()).unwrap_or(u32::MAX));
        let rounds =
            most.map(|most| self.scenario.load.duration().saturating_mul(most).saturating_add(OPEN_END));
        let is_open = self.extras.command.is_some() || self.extras.covering.is_some();
        is_open.then_some(OPEN_END).or(rounds)
    }

    /// Plans the run's changes. Refuses system namespaces.
    pub(super) async fn plan(
        &self,
        caller: &Caller,
        load_workers: Option<usize>,
    ) -> Result<RunPlan, RunError> {
        let scenario = &self.scenario;
        consent::check_namespaces(&caller.namespace, scenario)?;
        let has_command = self.extras.command.is_some();
        let secrets = self.secrets(&caller.namespace);
        let live = self.live();
        let work = Work {
            scenario,
            secrets: &secrets,
            live,
            has_command,
            has_rounds: self.extras.looks.is_some() || self.extras.covering.is_some(),
            beats: self.options.beats,
            load_workers,
            holder: self.extras.holder,
        };
        let mut plan = plan_run(caller, &work).await?;
        plan.effects.extend(self.extras.looks.as_ref().map(|looks| looks.in_words.clone()));
        Ok(plan)
    }

    /// Returns the Secrets with the sidecars' token.
    pub(super) fn secrets(&self, namespace: &str) -> Vec<Value> {
        let has_live = self.live().is_some_and(|changes| changes.sidecar.is_some());
        let secrets = |secret: &AdminSecret| secret.manifests(namespace, &self.scenario.manifests, has_live);
        self.admin_secret.as_ref().map(secrets).unwrap_or_default()
    }

    /// Returns the run's changes to workloads that the scenario does not create; `None` if there are none.
    pub(super) fn live(&self) -> Option<LiveChanges<'_>> {
        let scenario = &self.scenario;
        let services: Vec<&str> = scenario.live_services().into_iter().collect();
        let has_own = scenario.manifests.iter().any(|object| !object["spec"]["template"].is_null());
        let is_live = |workload: &&Workload| !scenario.manifests.iter().any(|object| workload.is(object));
        let workloads: Vec<&Workload> = scenario.sidecar_workloads.iter().filter(is_live).collect();
        if services.is_empty() && workloads.is_empty() && has_own {
            return None;
        }
        let admin_token = self.admin_secret.as_ref().map(|secret| &secret.key);
        let sidecar = admin_token.map(|admin_token| Sidecar { image: self.image(), admin_token });
        if sidecar.is_none() && self.extras.ending.is_none() {
            return None;
        }
        let urls = scenario.targets.iter().filter_map(|target| match &target.place {
            Place::Url(url) => Some(url),
            Place::Service { .. } => None,
        });
        let whose = WorkloadSelection { services, workloads, urls: urls.collect() };
        Some(LiveChanges { whose, sidecar, ending: self.extras.ending, gitops: self.options.gitops })
    }
}
