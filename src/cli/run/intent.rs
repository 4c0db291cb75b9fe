//! What a run is going to do beside what its scenario says, and what it needs for that.

use std::collections::BTreeSet;

use serde_json::Value;

use super::admin_secret::AdminSecret;
use super::command::UserCommand;
use super::consent::{self, Naming};
use super::interruption;
use super::sending::Collecting;
use crate::coordinator::{Caller, GitOps, Plan, Sidecars, Work};
use crate::record::service_proxy::ServiceProxy;
use crate::scenario::{Place, Scenario, ScenarioError};

/// What is to be done beside what the scenario says.
pub(super) struct Intent<'a> {
    /// What ends pods, in place of the scenario's disruptions.
    pub(super) command: Option<&'a UserCommand>,
    /// The image of a sidecar that goes beside live pods.
    pub(super) image: &'a str,
    pub(super) gitops: GitOps,
    /// Where the sidecars that are added have their token from; there is one if any are.
    pub(super) admin_secret: Option<AdminSecret>,
    pub(super) naming: Naming,
    /// Whether it is agreed to beforehand.
    pub(super) yes: bool,
    pub(super) collecting: &'a Collecting,
    /// What implements Services, as the user states it.
    pub(super) service_proxy: Option<&'a ServiceProxy>,
}

impl Intent<'_> {
    /// What the run is going to do, in a namespace that is not the system's.
    pub(super) async fn plan(
        &self,
        scenario: &Scenario,
        caller: &Caller,
        load_workers: Option<usize>,
    ) -> anyhow::Result<Plan> {
        consent::check_namespaces(&caller.namespace, scenario)?;
        let has_command = self.command.is_some();
        let secrets = self.secrets(scenario, &caller.namespace)?;
        let sidecars = self.sidecars(scenario)?;
        let work = Work { scenario, secrets: &secrets, sidecars, has_command, load_workers };
        caller.plan(&work).await.map_err(interruption)
    }

    /// The Secrets with the sidecars' token.
    pub(super) fn secrets(&self, scenario: &Scenario, namespace: &str) -> Result<Vec<Value>, ScenarioError> {
        let has_live = self.sidecars(scenario)?.is_some();
        let secrets = |secret: &AdminSecret| secret.manifests(namespace, &scenario.manifests, has_live);
        Ok(self.admin_secret.as_ref().map(secrets).unwrap_or_default())
    }

    /// Whose pods get the sidecar, of those that are not the scenario's.
    pub(super) fn sidecars<'s>(
        &'s self,
        scenario: &'s Scenario,
    ) -> Result<Option<Sidecars<'s>>, ScenarioError> {
        let is_own = |name: &str| {
            let named = |object: &Value| object["kind"] == "Service" && object["metadata"]["name"] == *name;
            scenario.manifests.iter().any(named)
        };
        let services = scenario.targets.iter().filter_map(|target| match &target.place {
            Place::Service { name, .. } if !is_own(name) => Some(name.as_str()),
            _ => None,
        });
        // Several ways may lead to one.
        let services: Vec<&str> = services.collect::<BTreeSet<_>>().into_iter().collect();
        let has_own = scenario.manifests.iter().any(|object| !object["spec"]["template"].is_null());
        let Some(secret) = &self.admin_secret else { return Ok(None) };
        if services.is_empty() && has_own {
            return Ok(None);
        }
        if services.is_empty() {
            let why =
                "there is no workload among the manifests, and no target is a Service: which pods are meant?";
            return Err(scenario.invalid("spec.sidecar.inject", why));
        }
        Ok(Some(Sidecars { services, image: self.image, admin_token: &secret.key, gitops: self.gitops }))
    }
}
