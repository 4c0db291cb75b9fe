//! A run's additions to its scenario, and the plan that results from them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::admin_secret::AdminSecret;
use super::consent::{self, Consent};
use super::error::RunError;
use super::{Extras, RunOptions};
use crate::api::Caller;
use crate::plan::{LiveChanges, RunPlan, Sidecar, Work, WorkloadSelection, plan_run};
use rolldrop_scenario::{Place, Scenario, Workload};

/// Settings that the command line adds to the scenario.
pub(super) struct Intent<'a> {
    pub(super) options: &'a RunOptions,
    /// Secret with the sidecars' token; present if the run adds sidecars.
    pub(super) admin_secret: Option<&'a AdminSecret>,
    pub(super) consent: Consent,
    /// Settings that only some commands add.
    pub(super) extras: &'a Extras<'a>,
}

/// Maximum time to plan, in addition to the planned rounds, for a load without a fixed end.
const OPEN_END: Duration = Duration::from_secs(24 * 3600);

impl Intent<'_> {
    /// Returns the image for sidecars in live pods, and for pods that send the load.
    pub(super) fn image(&self) -> &str {
        self.options.image.as_deref().unwrap_or("rolldrop")
    }

    /// Returns the maximum length of a load without a fixed end, such as one that ends with a command or once the gate
    /// is decided; `None` if the load has a fixed end.
    pub(super) fn open_end(&self, scenario: &Scenario) -> Option<Duration> {
        let most =
            self.extras.looks.as_ref().map(|looks| u32::try_from(looks.looks.most()).unwrap_or(u32::MAX));
        let rounds = most.map(|most| scenario.load.duration().saturating_mul(most).saturating_add(OPEN_END));
        let is_open = self.extras.command.is_some() || self.extras.covering.is_some();
        is_open.then_some(OPEN_END).or(rounds)
    }

    /// Plans the run's changes. Refuses system namespaces.
    pub(super) async fn plan(
        &self,
        scenario: &Scenario,
        caller: &Caller,
        load_workers: Option<usize>,
    ) -> Result<RunPlan, RunError> {
        consent::check_namespaces(&caller.namespace, scenario)?;
        let has_command = self.extras.command.is_some();
        let secrets = self.secrets(scenario, &caller.namespace);
        let live = self.live(scenario);
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
    pub(super) fn secrets(&self, scenario: &Scenario, namespace: &str) -> Vec<Value> {
        let has_live = self.live(scenario).is_some_and(|changes| changes.sidecar.is_some());
        let secrets = |secret: &AdminSecret| secret.manifests(namespace, &scenario.manifests, has_live);
        self.admin_secret.map(secrets).unwrap_or_default()
    }

    /// Returns the run's changes to workloads that the scenario does not create; `None` if there are none.
    pub(super) fn live<'s>(&'s self, scenario: &'s Scenario) -> Option<LiveChanges<'s>> {
        let is_own = |name: &str| {
            let named = |object: &Value| object["kind"] == "Service" && object["metadata"]["name"] == *name;
            scenario.manifests.iter().any(named)
        };
        let services = scenario.targets.iter().filter_map(|target| match &target.place {
            Place::Service { name, .. } if !is_own(name) => Some(name.as_str()),
            _ => None,
        });
        // Several targets may be the same Service.
        let services: Vec<&str> = services.collect::<BTreeSet<_>>().into_iter().collect();
        let has_own = scenario.manifests.iter().any(|object| !object["spec"]["template"].is_null());
        let is_live = |workload: &&Workload| !scenario.manifests.iter().any(|object| workload.is(object));
        let workloads: Vec<&Workload> = scenario.sidecar_workloads.iter().filter(is_live).collect();
        if services.is_empty() && workloads.is_empty() && has_own {
            return None;
        }
        let admin_token = self.admin_secret.map(|secret| &secret.key);
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
