//! The API calls that a run will make, in order: for `--dry-run`, for checking permissions, and for telling the user
//! in advance what the run will do. Planning only reads from the cluster. `disruptions` lists the disruptions' calls;
//! `target_checks` and `disruption_checks` check that the scenario's targets and disruptions are possible.

pub(crate) mod bystanders;
mod call;
pub(crate) mod claims;
mod conntrack_rights;
mod disruption_checks;
mod disruptions;
mod expected;
pub(crate) mod gitops;
mod holds;
pub(crate) mod live_changes;
mod network_policies;
pub(crate) mod node_limits;
pub(crate) mod outage_limits;
mod rivals;
mod routes;
mod source_ports;
mod target_checks;
mod versions;

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use kube::api::{ApiResource, PostParams};
use kube::core::TypeMeta;
use kube::discovery::Scope;
use kube::{Api, Resource};
use serde_json::Value;

use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::observe::{Need, proxy_detection, target_service};
use crate::undo::effect::has_pods;
pub use call::RunPlan;
use call::{About, LOST_ANSWER, Right};
pub(crate) use claims::{Claims, PodChoice};
use conntrack_rights::plan_evidence;
use disruption_checks::Checks;
pub(crate) use expected::Made;
pub use gitops::{GitOps, controller_of};
pub use holds::check_holds;
pub(crate) use live_changes::{Live, WantedChanges};
pub use live_changes::{
    LiveChanges, Sidecar, WorkloadSelection, kubernetes_version, node_labels, objects_behind,
};
use live_changes::{live_workloads, plan_live};
pub(crate) use node_limits::{COMPONENT, COMPONENT_LABEL, OS_LABEL, schedulable_nodes};
pub use outage_limits::{Rounding, number_of};
pub use rivals::find_rivals;
use rolldrop_record::Evidence;
use rolldrop_scenario::{Disruption, Place, Scenario};
use rolldrop_sidecar::inject::ADMIN_PORT_NAME;
pub use routes::{ingresses_to, services_behind_in};
pub(crate) use target_checks::expected_remotes;

/// Maximum number of concurrent permission checks.
const REVIEWS: usize = 8;
/// Placeholder for the name of the object that owns everything the run creates.
const OWNER: &str = "rolldrop-run-...";
/// Reason that the plan gives for creating the owner.
const OWNS_ALL: &str = "owns everything that the run creates";

/// Everything that a run will do.
pub struct Work<'a> {
    /// Scenario whose manifests are deployed, and whose targets are loaded and disrupted.
    pub scenario: &'a Scenario,
    /// Secrets that the run creates before the deployment, and removes after it.
    pub secrets: &'a [Value],
    /// Changes to existing workloads.
    pub live: Option<LiveChanges<'a>>,
    /// True if a command terminates pods, instead of the scenario's disruptions.
    pub has_command: bool,
    /// True if the run may repeat the disruptions in further rounds.
    pub has_rounds: bool,
    /// True if the run writes to its own ConfigMap while pods may be terminated.
    pub beats: bool,
    /// Number of pods that send the load; `None` if the load is not sent from the cluster.
    pub load_workers: Option<usize>,
    /// Name of the tuning that uses the workloads, if the run is part of one.
    pub holder: Option<&'a str>,
}

impl Work<'_> {
    /// Returns the length of the load, including the warm-up; `None` if it is not known in advance.
    fn length(&self) -> Option<Duration> {
        let load = &self.scenario.load;
        (!self.has_command && !self.has_rounds).then(|| load.duration() + load.settings.warmup)
    }
}

/// Returns true if a run's owner may own an object, because the object is in the run's namespace.
pub(crate) fn is_ownable(scope: &Scope, namespace: Option<&str>, of_run: &str) -> bool {
    *scope == Scope::Namespaced && namespace.is_none_or(|namespace| namespace == of_run)
}

/// Plans the reads that find out what implements Services; the run stops at the first conclusive one.
fn plan_service_proxy(plan: &mut RunPlan) {
    fn of<K: Resource<DynamicType = ()>>() -> About {
        About::all(ApiResource::erase::<K>(&()), Some(proxy_detection::NAMESPACE))
    }
    plan.helps(
        "get",
        &of::<ConfigMap>().named(proxy_detection::CILIUM),
        "shows whether Cilium implements Services",
    );
    let set = of::<DaemonSet>().named(proxy_detection::DAEMON_SET);
    plan.helps("get", &set, "shows whether kube-proxy implements Services");
    for name in proxy_detection::KUBE_PROXY_MAPS {
        let why = "kube-proxy's mode, which decides how connections are balanced";
        plan.helps("get", &of::<ConfigMap>().named(name), why);
    }
    plan.helps("list", &of::<Pod>(), "kube-proxy's pods, if its mode is still unknown");
}

/// Returns the workloads with pods in the state that they will have when the load begins: those from the manifests,
/// those that the run changes, and other existing ones.
fn with_pods(scenario: &Scenario, changed: Option<&WantedChanges<'_>>, there: Vec<Live>) -> Vec<Value> {
    let has_template = |object: &&Value| !object["spec"]["template"].is_null();
    let mut workloads: Vec<Value> = scenario.manifests.iter().filter(has_template).cloned().collect();
    let changed: Vec<&Live> =
        changed.into_iter().flat_map(|wanted| &wanted.live).filter(|object| !object.is_service()).collect();
    let is_other = |object: &Live| changed.iter().all(|changed| changed.title() != object.title());
    workloads.extend(there.iter().filter(|object| is_other(object)).map(|object| object.current.clone()));
    workloads.extend(changed.iter().map(|object| object.wanted.clone()));
    workloads
}

/// Plans a run.
///
/// # Errors
/// Fails if the run is not possible as the scenario describes it, or if a read that the plan needs fails.
pub async fn plan_run(caller: &Caller, work: &Work<'_>) -> Result<RunPlan> {
    let (plan, undo) = (RunPlan::default(), RunPlan::default());
    Planner { caller, plan, undo }.plan_run(work).await
}

/// A plan in the making.
struct Planner<'a> {
    caller: &'a Caller,
    plan: RunPlan,
    /// Calls that will undo the run's changes, in the order of the changes.
    undo: RunPlan,
}

impl Planner<'_> {
    /// Refers to all objects of a kind in the run's namespace.
    fn own<K: Resource<DynamicType = ()>>(&self) -> About {
        About::all(ApiResource::erase::<K>(&()), Some(&self.caller.namespace))
    }

    /// Refers to the kinds of workloads that have pods.
    fn workload_kinds(&self) -> [About; 3] {
        [self.own::<Deployment>(), self.own::<StatefulSet>(), self.own::<DaemonSet>()]
    }

    async fn plan_run(mut self, work: &Work<'_>) -> Result<RunPlan> {
        let Work { scenario, live, has_command, has_rounds, beats, load_workers, .. } = work;
        self.plan.open_call("/version", "checks that it has what the scenario uses");
        let version = self.caller.server_version().await?;
        self.plan.warnings.extend(versions::check(&scenario.manifests, &version)?);
        let disruptions = if *has_command { &[][..] } else { &scenario.disruptions };
        for disruption in disruptions {
            self.plan_means(disruption).await?;
        }
        self.plan_watches();
        self.plan.open_call("/version", "32 times, to compare clocks with the API server");

        let live = match live {
            Some(changes) => Some(plan_live(self.caller, changes).await?),
            None => None,
        };
        let there = self.workloads_there(scenario).await;
        self.plan_holds(work, live.as_ref(), &there).await?;
        self.plan_manifests(work).await?;
        if let Some(wanted) = &live {
            self.plan_changes(wanted);
        }
        let has_live_proxies = live.as_ref().is_some_and(|wanted| wanted.changes.sidecar.is_some());
        if has_live_proxies || scenario.inject_sidecar {
            let why = "finds policies that would keep clients out of the sidecars";
            self.plan.helps("list", &self.own::<NetworkPolicy>(), why);
            network_policies::refuse_shut_out(self.caller, scenario, live.as_ref()).await?;
        }
        self.plan_targets(scenario);
        for disruption in disruptions {
            self.plan_check(disruption, "checks that it exists").await?;
        }
        self.plan.open_call("/version", "for the report");
        self.plan.helps(
            "list",
            &About::all(ApiResource::erase::<Node>(&()), None),
            "for the report: number of nodes",
        );
        plan_service_proxy(&mut self.plan);
        self.plan_proxies(
            has_live_proxies || scenario.manifests.iter().any(|m| m.to_string().contains(ADMIN_PORT_NAME)),
        );
        plan_evidence(self.caller, scenario, *load_workers, &mut self.plan).await?;
        if let Some(workers) = load_workers {
            self.plan_load(*workers, scenario.load.settings.evidence);
        }
        if *beats {
            self.plan_beats();
        }
        for kind in self.workload_kinds() {
            if *has_command {
                let why = "before the command, and then every 250 ms until its changes have settled";
                self.plan.helps("list", &kind, why);
            }
            if *has_rounds {
                self.plan.helps(
                    "list",
                    &kind,
                    "before the first round, and after each round until its changes have settled",
                );
            }
        }
        self.plan_disruptions(disruptions).await?;
        let phases = self.random_phases(scenario, disruptions).await?;
        self.plan.effects.extend(phases);
        let made = Made::by(&scenario.manifests, &self.caller.namespace);
        let checks = Checks { caller: self.caller, scenario, made: &made };
        checks.targets(&mut self.plan).await?;
        let workloads = with_pods(scenario, live.as_ref(), there);
        checks.source_ports(&workloads, work.length(), &mut self.plan).await?;
        checks.disruptions(disruptions, &mut self.plan).await?;
        self.undo.calls.reverse();
        self.plan_effect();
        self.plan.calls.append(&mut self.undo.calls);
        Ok(self.plan)
    }

    /// Plans to read the Services that are targets, and the nodes through which they are reached.
    fn plan_targets(&mut self, scenario: &Scenario) {
        for target in &scenario.targets {
            if let Place::Service { name, node, .. } = &target.place {
                self.plan.must("get", &self.own::<Service>().named(name), "the target's address and ports");
                if let Some(node) = node {
                    self.plan.must("get", &disruptions::node_of(node), "the address of the target's node");
                }
            }
        }
    }

    /// Plans to read the proxies' rows, which is mandatory if the run adds proxies.
    fn plan_proxies(&mut self, are_added: bool) {
        let proxies = About { subresource: "proxy", ..self.own::<Pod>().later("pod:port") };
        let why = "rows from the proxy of each pod that has one";
        match are_added {
            true => self.plan.must("get", &proxies, why),
            false => self.plan.helps("get", &proxies, why),
        }
    }

    /// Returns the namespace's workloads if a target's Service may route to an existing one; otherwise none.
    async fn workloads_there(&self, scenario: &Scenario) -> Vec<Live> {
        match scenario.live_services().is_empty() {
            true => Vec::new(),
            false => live_workloads(self.caller).await,
        }
    }

    fn plan_watches(&mut self) {
        for watched in [self.own::<Pod>(), self.own::<EndpointSlice>()] {
            self.plan.must("list", &watched, "current state");
            self.plan.must("watch", &watched, "until the end of the run");
        }
        self.plan.helps("list", &self.own::<Event>(), "current state");
        self.plan.helps("watch", &self.own::<Event>(), "until the end of the run");
        let nodes = About::all(ApiResource::erase::<Node>(&()), None);
        let replica_sets = self.own::<ReplicaSet>();
        for explains in self.workload_kinds().into_iter().chain([replica_sets, nodes]) {
            self.plan.helps("list", &explains, "current state, to explain why pods terminate");
            self.plan.helps("watch", &explains, "until the end of the run");
        }
    }

    /// Describes how the run covers all phases of consumers that have their own clock; `None` if it does not need to.
    async fn random_phases(&self, scenario: &Scenario, disruptions: &[Disruption]) -> Result<Option<String>> {
        let Some(first) = disruptions.first() else { return Ok(None) };
        for target in &scenario.targets {
            if let Place::Service { name, node: None, .. } = &target.place
                && target_service::is_headless(self.caller, name, scenario).await?
            {
                return Ok(Some(format!(
                    "delays each disruption by a random part of the DNS TTL, or of its jitter if that is longer, \
                     because clients of the headless Service {name} cache DNS answers (seed {})",
                    first.seed
                )));
            }
        }
        Ok(None)
    }

    /// Plans the Job whose pods send the load.
    fn plan_load(&mut self, workers: usize, evidence: Option<Evidence>) {
        self.plan_owner(Need::Must);
        let s = if workers == 1 { "" } else { "s" };
        let privileged = match evidence {
            None => "",
            Some(Evidence::Conntrack) => ", as root with NET_ADMIN in their nodes' network",
        };
        let (secrets, jobs) = (self.own::<Secret>(), self.own::<Job>());
        for (about, why) in [
            (&secrets, "the token that the load workers check".to_owned()),
            (&jobs, format!("an Indexed Job of {workers} load worker{s}{privileged}")),
        ] {
            self.plan.creates(about, &about.clone().later("load"), why, &mut self.undo);
        }
        self.plan.must("patch", &secrets.later("load"), "makes the Job its owner");
        self.plan.must("list", &self.own::<Pod>(), "after 10 s: load workers that are not ready");
        self.plan.helps("list", &self.own::<Event>(), "reasons that they are not ready");
        let proxies = About { subresource: "proxy", ..self.own::<Pod>().later("pod:port") };
        self.plan.must("get", &proxies, "reports, clock and rows from each load worker");
        self.plan.must("create", &proxies, "orders to each load worker");
        self.plan
            .own
            .push(format!("sends the load from a Job of {workers} worker{s}, and removes it at the end"));
    }

    /// Plans the creation of the owner, once, before anything that it owns.
    fn plan_owner(&mut self, need: Need) {
        let config_maps = self.own::<ConfigMap>();
        if self.plan.calls.iter().any(|call| call.why == OWNS_ALL) {
            return;
        }
        let (owner, why) = (config_maps.clone().later(OWNER), "owned everything that the run created");
        if need == Need::Must {
            self.plan.must("create", &config_maps, OWNS_ALL);
            self.plan.must("get", &owner, LOST_ANSWER);
            self.undo.must("delete", &owner, why);
        } else {
            self.plan.helps("create", &config_maps, OWNS_ALL);
            self.plan.helps("get", &owner, LOST_ANSWER);
            self.undo.helps("delete", &owner, why);
        }
        self.undo.discovers(&config_maps);
    }

    /// Plans the beats, without which deletions by others can be dated only to the second.
    fn plan_beats(&mut self) {
        self.plan_owner(Need::Helps);
        let why = "ten times a second while pods may terminate, to date deletions by others";
        self.plan.helps("patch", &self.own::<ConfigMap>().later(OWNER), why);
        self.plan.helps("list", &self.own::<Pod>(), "one pod, once a second: the version of the pods' store");
        self.plan.own.push(
            "writes to its own ConfigMap ten times a second while pods may terminate, and removes it at the end \
             (disable with --no-beats)"
                .to_owned(),
        );
    }

    /// Plans the wait until the undo has taken effect.
    fn plan_effect(&mut self) {
        let with_pods = |verb| self.undo.calls.iter().any(|call| call.is_about(verb, has_pods));
        let (removes, restores) = (with_pods("delete"), with_pods("patch"));
        if removes || restores {
            let why = "until the run's own pods are gone (skipped if the cluster ends with the run)";
            self.undo.must("list", &self.own::<Pod>(), why);
        }
        for kind in self.workload_kinds().iter().filter(|_| restores) {
            let why = "until restored workloads have rolled out (skipped if the cluster ends with the run)";
            self.undo.helps("list", kind, why);
        }
    }

    async fn plan_manifests(&mut self, work: &Work<'_>) -> Result<()> {
        let Work { scenario, secrets, .. } = work;
        for secret in *secrets {
            self.plan_manifest(secret).await?;
        }
        for (manifest, key) in scenario.manifests.iter().zip(&scenario.manifest_keys) {
            let planned = self.plan_manifest(manifest).await;
            planned.map_err(|error| error.at(scenario, key))?;
        }
        Ok(())
    }

    async fn plan_manifest(&mut self, manifest: &Value) -> Result<()> {
        let types: TypeMeta = serde_json::from_value(manifest.clone()).unwrap_or_default();
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or(&self.caller.namespace);
        let (resource, scope) = self.caller.kind_of(&types.api_version, &types.kind).await?;
        if is_ownable(&scope, manifest["metadata"]["namespace"].as_str(), &self.caller.namespace) {
            self.plan_owner(Need::Must);
        }
        let about = About::all(resource, (scope == Scope::Namespaced).then_some(namespace));
        self.plan.creates(
            &about,
            &about.clone().named(name),
            format!("{} {name}, for the run", types.kind),
            &mut self.undo,
        );
        self.plan.effects.push(format!("creates {} {name}, and removes it at the end", types.kind));
        Ok(())
    }

    /// Plans the calls that mark the run's workloads as in use so that no other run uses them.
    async fn plan_holds(
        &mut self,
        work: &Work<'_>,
        live: Option<&WantedChanges<'_>>,
        there: &[Live],
    ) -> Result<()> {
        self.plan.holds = holds::needed(work, live.into_iter().flat_map(|wanted| &wanted.live));
        for workload in &self.plan.holds.clone() {
            let about = self.workload(workload);
            self.plan.must("get", &about, "checks that no other run uses it");
            self.plan.must("patch", &about, "marks it as in use by this run, now and every 3 min");
            self.undo.must("patch", &about, "releases it");
            self.undo.must("get", &about, "its state at that time");
        }
        let services = work.scenario.live_services();
        let services: Vec<About> = services.iter().map(|name| self.own::<Service>().named(name)).collect();
        let why = "checks that no other run changes the pods behind a target";
        services.iter().for_each(|service| self.plan.helps("get", service, why));
        if !services.is_empty() {
            self.workload_kinds().iter().for_each(|kind| self.plan.helps("list", kind, why));
        }
        let expired = holds::check_holds(self.caller, &self.plan.holds, work.holder).await?;
        let others = holds::held_by_others(self.caller, work, &self.plan.holds, there).await;
        self.plan.warnings.extend(expired.into_iter().chain(others));
        Ok(())
    }

    fn plan_changes(&mut self, wanted: &WantedChanges<'_>) {
        let changes = wanted.changes;
        self.plan.open_call("/version", "checks that it has native sidecars");
        for kind in std::iter::once(self.own::<Service>()).chain(self.workload_kinds()) {
            self.plan.must("list", &kind, "finds the workloads behind the target");
        }
        if changes.whose.services.is_empty() && changes.whose.workloads.is_empty() {
            let routes = About::all(routes::http_route(), Some(&self.caller.namespace));
            for kind in [self.own::<Ingress>(), routes] {
                self.plan.helps("list", &kind, "finds the Service behind the target's URL");
            }
        }
        let (services, workloads): (Vec<_>, Vec<_>) =
            wanted.changed().partition(|object| object.is_service());
        for object in workloads {
            self.plan_change(object);
            let title = object.title();
            let effect = "and undoes that at the end; each change triggers a rollout";
            self.plan.effects.push(format!("{} {title}, {effect}", changes.in_words()));
        }
        for kind in self.workload_kinds() {
            self.plan.must("list", &kind, "every 250 ms, until the rollout has settled");
        }
        for object in services {
            self.plan_change(object);
            self.plan.effects.push(format!("points {} at the sidecar, and back at the end", object.title()));
        }
    }

    fn plan_change(&mut self, object: &Live) {
        let about = About::all(object.resource.clone(), Some(&self.caller.namespace)).named(object.name());
        self.plan.must("patch", &about, "merge patch, only on the resourceVersion that was read");
        self.undo.restores(&about);
    }
}

/// Asks the API server whether the run has the permissions that its calls need.
///
/// # Errors
/// Fails if a permission is missing, with a list of all missing permissions.
pub async fn check_rights(caller: &Caller, plan: &RunPlan) -> Result<()> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(caller.client.clone());
    let ask = |right: Right| {
        let reviews = reviews.clone();
        async move {
            let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let About { resource, subresource, namespace, .. } = &right.about;
            let attributes = ResourceAttributes {
                verb: text(right.verb),
                group: text(&resource.group),
                resource: text(&resource.plural),
                subresource: text(subresource),
                namespace: namespace.clone(),
                name: right.about.known_name(),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            let what = "check permissions (create selfsubjectaccessreviews.authorization.k8s.io)";
            let params = PostParams::default();
            let answer = caller.must(what, || reviews.create(&params, &review)).await?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            Ok::<_, CoordinatorError>((!allowed).then(|| right.to_string()))
        }
    };
    let missing: Vec<Option<String>> =
        stream::iter(plan.rights()).map(ask).buffered(REVIEWS).try_collect().await?;
    let missing: Vec<String> = missing.into_iter().flatten().collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CoordinatorError::MissingRights { rights: missing, namespace: caller.namespace.clone() })
}
