//! What a run does in addition to its scenario, and what it needs for that.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;

use super::admin_secret::AdminSecret;
use super::command::UserCommand;
use super::consent::{self, Naming};
use super::sending::Collecting;
use super::{interruption, looks};
use crate::coordinator::{Caller, GitOps, Plan, Sidecars, Work};
use crate::scenario::{Place, Scenario, Workload};
use rolldrop_record::Looks;
use rolldrop_record::service_proxy::ServiceProxy;

/// What the command line adds to the scenario.
pub(super) struct Intent<'a> {
    /// Ends pods, in place of the scenario's disruptions.
    pub(super) command: Option<&'a UserCommand>,
    /// The image of a sidecar for live pods.
    pub(super) image: &'a str,
    pub(super) gitops: GitOps,
    /// The Secret with the token of the sidecars; present if any are added.
    pub(super) admin_secret: Option<AdminSecret>,
    pub(super) naming: Naming,
    /// `--yes`.
    pub(super) yes: bool,
    pub(super) collecting: &'a Collecting,
    /// The share of its processors' time that this machine may have in use, if not the stated limit.
    pub(super) max_busy: Option<f64>,
    /// What implements Services, as the user states it.
    pub(super) service_proxy: Option<&'a ServiceProxy>,
    /// Whether the run writes to an object of its own while pods may end.
    pub(super) beats: bool,
    /// The looks at its gate, if it goes on while that is inconclusive.
    pub(super) looks: Option<Looks>,
}

/// What a load that ends with something else is planned to last beyond that, at the most.
const OPEN_END: Duration = Duration::from_secs(24 * 3600);

impl Intent<'_> {
    /// How long a load without an end of its own may last: it ends with a command, or when the gate is decided.
    pub(super) fn open_end(&self, scenario: &Scenario) -> Option<Duration> {
        let most = self.looks.as_ref().map(|looks| u32::try_from(looks.most()).unwrap_or(u32::MAX));
        let rounds = most.map(|most| scenario.load.duration().saturating_mul(most).saturating_add(OPEN_END));
        self.command.map(|_| OPEN_END).or(rounds)
    }

    /// What the run will do. Namespaces of the system are refused.
    pub(super) async fn plan(
        &self,
        scenario: &Scenario,
        caller: &Caller,
        load_workers: Option<usize>,
    ) -> anyhow::Result<Plan> {
        consent::check_namespaces(&caller.namespace, scenario)?;
        if self.looks.is_some() && load_workers.is_some() {
            bail!(
                "--inconclusive extend looks at the record while the load goes on, and the rows of load workers in the \
                 cluster come when it has ended: use --load-from local, or fail or pass"
            );
        }
        let has_command = self.command.is_some();
        let secrets = self.secrets(scenario, &caller.namespace);
        let sidecars = self.sidecars(scenario);
        let work = Work {
            scenario,
            secrets: &secrets,
            sidecars,
            has_command,
            has_rounds: self.looks.is_some(),
            beats: self.beats,
            load_workers,
        };
        let mut plan = caller.plan(&work).await.map_err(interruption)?;
        plan.effects.extend(self.looks.as_ref().map(looks::in_words));
        Ok(plan)
    }

    /// The Secrets with the sidecars' token.
    pub(super) fn secrets(&self, scenario: &Scenario, namespace: &str) -> Vec<Value> {
        let has_live = self.sidecars(scenario).is_some();
        let secrets = |secret: &AdminSecret| secret.manifests(namespace, &scenario.manifests, has_live);
        self.admin_secret.as_ref().map(secrets).unwrap_or_default()
    }

    /// The live pods, not made by the scenario, that get the sidecar.
    pub(super) fn sidecars<'s>(&'s self, scenario: &'s Scenario) -> Option<Sidecars<'s>> {
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
        let secret = self.admin_secret.as_ref()?;
        let is_live = |workload: &&Workload| !scenario.manifests.iter().any(|object| workload.is(object));
        let workloads: Vec<&Workload> = scenario.sidecar_workloads.iter().filter(is_live).collect();
        if services.is_empty() && workloads.is_empty() && has_own {
            return None;
        }
        let urls = scenario.targets.iter().filter_map(|target| match &target.place {
            Place::Url(url) => Some(url),
            Place::Service { .. } => None,
        });
        let (image, admin_token, gitops) = (self.image, &secret.key, self.gitops);
        let urls = urls.collect();
        Some(Sidecars { services, workloads, urls, image, admin_token, gitops })
    }
}
