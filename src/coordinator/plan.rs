//! The API calls that a run will make, in order, before it makes them: for `--dry-run`, for checking rights, and for
//! telling the user what it will do. Making a plan only reads. What disruptions need is in [`disruptions`].

mod disruptions;
mod evidence;

use std::fmt;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{ApiResource, PostParams};
use kube::core::TypeMeta;
use kube::discovery::Scope;
use kube::{Api, Resource};
use serde_json::Value;

use super::apply::is_ownable;
use super::routes;
use super::sidecar::{Live, Sidecars};
use super::{Caller, CoordinatorError, preflight, service_proxy, versions};
use crate::scenario::{Disruption, Place, Scenario};
use rolldrop_record::Evidence;

/// Not a call, but a program that the run starts here.
const RUN: &str = "run";
/// How many rights are checked at once.
const REVIEWS: usize = 8;
/// Placeholder for the name of the owner of everything that a run creates.
const OWNER: &str = "rolldrop-run-...";
/// Why that is created.
const OWNS_ALL: &str = "owns everything that the run creates";
/// This in a manifest shows that it has a proxy, whose rows are collected.
const ADMIN_PORT: &str = "rolldrop-admin";

/// What a run will do.
pub(crate) struct Work<'a> {
    /// What is deployed, loaded and disrupted.
    pub scenario: &'a Scenario,
    /// What is created before the deployment, and removed after it.
    pub secrets: &'a [Value],
    /// Which existing pods get the sidecar.
    pub sidecars: Option<Sidecars<'a>>,
    /// Whether a command ends pods, instead of the scenario's disruptions.
    pub has_command: bool,
    /// Whether the run writes to its own object while pods may end.
    pub beats: bool,
    /// How many pods send the load; `None` if it does not come from the cluster.
    pub load_workers: Option<usize>,
}

/// The calls of a run, and their effects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// In order, each once, also if it is repeated.
    pub calls: Vec<Call>,
    /// What is created, changed and ended, as text: a line each. None if the run only watches.
    pub effects: Vec<String>,
    /// What the run creates for itself in the cluster, as text: a line each. It changes nothing else.
    pub own: Vec<String>,
    /// What to know before it starts, a line each.
    pub warnings: Vec<String>,
}

/// A call of the API server.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    verb: &'static str,
    pub(super) path: String,
    why: String,
    right: Option<Right>,
}

/// What a call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Right {
    verb: &'static str,
    group: String,
    resource: String,
    subresource: &'static str,
    namespace: Option<String>,
    name: Option<String>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, why, .. } = self;
        write!(f, "{:<6} {path}    # {why}", self.method())
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, resource, group, .. } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the cluster"),
        }
    }
}

impl Call {
    /// The HTTP method; `RUN` for a program that the run starts, whose own calls are not listed.
    pub(crate) fn method(&self) -> &'static str {
        match self.verb {
            "create" => "POST",
            RUN => "RUN",
            "patch" => "PATCH",
            "delete" => "DELETE",
            _ => "GET",
        }
    }
}

/// What a call is about.
#[derive(Clone, Debug)]
struct About {
    resource: ApiResource,
    subresource: &'static str,
    namespace: Option<String>,
    name: Option<Name>,
}

#[derive(Clone, Debug)]
enum Name {
    Known(String),
    /// A name that is known only later.
    Later(&'static str),
}

impl About {
    fn all(resource: ApiResource, namespace: Option<&str>) -> Self {
        Self { resource, subresource: "", namespace: namespace.map(str::to_owned), name: None }
    }

    fn named(self, name: &str) -> Self {
        Self { name: Some(Name::Known(name.to_owned())), ..self }
    }

    fn later(self, which: &'static str) -> Self {
        Self { name: Some(Name::Later(which)), ..self }
    }

    fn path(&self) -> String {
        let Self { resource, subresource, namespace, name } = self;
        let mut path = root(resource);
        path.extend(namespace.iter().map(|namespace| format!("/namespaces/{namespace}")));
        path.push_str(&format!("/{}", resource.plural));
        path.extend(name.iter().map(|name| match name {
            Name::Known(name) => format!("/{name}"),
            Name::Later(which) => format!("/{{{which}}}"),
        }));
        if !subresource.is_empty() {
            path.push_str(&format!("/{subresource}"));
        }
        path
    }
}

impl Plan {
    /// A call that the run needs.
    fn must(&mut self, verb: &'static str, about: &About, why: impl Into<String>) {
        let right = Right {
            verb,
            group: about.resource.group.clone(),
            resource: about.resource.plural.clone(),
            subresource: about.subresource,
            namespace: about.namespace.clone(),
            name: match &about.name {
                Some(Name::Known(name)) => Some(name.clone()),
                Some(Name::Later(_)) | None => None,
            },
        };
        self.helps(verb, about, why);
        if let Some(call) = self.calls.last_mut() {
            call.right = Some(right);
        }
    }

    /// A call that only adds knowledge.
    fn helps(&mut self, verb: &'static str, about: &About, why: impl Into<String>) {
        let mut path = about.path();
        if verb == "watch" {
            path.push_str("?watch=true");
        }
        self.calls.push(Call { verb, path, why: why.into(), right: None });
    }

    /// A program that is started here.
    fn runs(&mut self, words: &[String], why: impl Into<String>) {
        self.calls.push(Call { verb: RUN, path: words.join(" "), why: why.into(), right: None });
    }

    /// A call that any authenticated user may make.
    fn open_call(&mut self, path: impl Into<String>, why: &str) {
        self.calls.push(Call { verb: "get", path: path.into(), why: why.to_owned(), right: None });
    }

    fn rights(&self) -> Vec<Right> {
        let mut rights: Vec<Right> = Vec::new();
        for right in self.calls.iter().filter_map(|call| call.right.as_ref()) {
            if !rights.contains(right) {
                rights.push(right.clone());
            }
        }
        rights
    }
}

/// What is read to find out what implements Services, until one shows it.
fn plan_service_proxy(plan: &mut Plan) {
    fn of<K: Resource<DynamicType = ()>>() -> About {
        About::all(ApiResource::erase::<K>(&()), Some(service_proxy::NAMESPACE))
    }
    plan.helps("get", &of::<ConfigMap>().named(service_proxy::CILIUM), "whether Cilium implements Services");
    let set = of::<DaemonSet>().named(service_proxy::DAEMON_SET);
    plan.helps("get", &set, "whether kube-proxy implements Services");
    for name in service_proxy::KUBE_PROXY_MAPS {
        plan.helps("get", &of::<ConfigMap>().named(name), "kube-proxy's mode, how connections are balanced");
    }
    plan.helps("list", &of::<Pod>(), "kube-proxy's pods, for its mode, if it is not known by then");
}

/// How a change is undone, the last call first.
fn undo_change(about: &About, undo: &mut Plan) {
    undo.must("patch", about, "changed back, by a merge patch");
    undo.must("get", about, "as it is then");
    undo.open_call(root(&about.resource), "where the kind is");
}

/// Where a group's resources are.
fn root(resource: &ApiResource) -> String {
    let ApiResource { group, version, .. } = resource;
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

impl Caller {
    /// All of a kind, in the run's namespace.
    fn own<K: Resource<DynamicType = ()>>(&self) -> About {
        About::all(ApiResource::erase::<K>(&()), Some(&self.namespace))
    }

    /// The kinds that make pods.
    fn workload_kinds(&self) -> [About; 3] {
        [self.own::<Deployment>(), self.own::<StatefulSet>(), self.own::<DaemonSet>()]
    }

    /// Makes the plan of a run.
    ///
    /// # Errors
    /// When it cannot be done, or reading for it fails.
    pub(crate) async fn plan(&self, work: &Work<'_>) -> Result<Plan, CoordinatorError> {
        let Work { scenario, secrets, sidecars, has_command, beats, load_workers } = work;
        let mut plan = Plan::default();
        plan.open_call("/version", "whether it has what the scenario uses");
        let version = self.server_version().await?;
        plan.warnings.extend(versions::check(&scenario.manifests, &version)?);
        let disruptions = if *has_command { &[][..] } else { &scenario.disruptions };
        for disruption in disruptions {
            self.plan_means(disruption, &mut plan).await?;
        }
        for watched in [self.own::<Pod>(), self.own::<EndpointSlice>()] {
            plan.must("list", &watched, "what is there");
            plan.must("watch", &watched, "to the end of the run");
        }
        plan.helps("list", &self.own::<Event>(), "what is there");
        plan.helps("watch", &self.own::<Event>(), "to the end of the run");
        let nodes = About::all(ApiResource::erase::<Node>(&()), None);
        let replica_sets = self.own::<ReplicaSet>();
        for explains in self.workload_kinds().into_iter().chain([replica_sets, nodes]) {
            plan.helps("list", &explains, "what there is: who ends pods");
            plan.helps("watch", &explains, "to the end of the run");
        }
        plan.open_call("/version", "32 times: the API server's clock");

        let mut undo = Plan::default();
        for manifest in secrets.iter().chain(&scenario.manifests) {
            self.plan_manifest(manifest, &mut plan, &mut undo).await?;
        }
        if let Some(sidecars) = sidecars {
            self.plan_injection(sidecars, &mut plan, &mut undo).await?;
        }
        for target in &scenario.targets {
            if let Place::Service { name, node, .. } = &target.place {
                plan.must("get", &self.own::<Service>().named(name), "the target's address and ports");
                if let Some(node) = node {
                    plan.must("get", &disruptions::node_of(node), "the address of the target's node");
                }
            }
        }
        for disruption in disruptions {
            self.plan_check(disruption, "whether it is there", &mut plan).await?;
        }
        plan.open_call("/version", "for the report");
        plan.helps("list", &About::all(ApiResource::erase::<Node>(&()), None), "for the report: how many");
        plan_service_proxy(&mut plan);
        let proxies = About { subresource: "proxy", ..self.own::<Pod>().later("pod:port") };
        let why = "what the proxies recorded, of each pod that has one";
        if sidecars.is_some() || scenario.manifests.iter().any(|m| m.to_string().contains(ADMIN_PORT)) {
            plan.must("get", &proxies, why);
        } else {
            plan.helps("get", &proxies, why);
        }

        self.plan_evidence(work, &mut plan).await?;
        if let Some(workers) = load_workers {
            self.plan_load(*workers, scenario.load.settings.evidence, &mut plan, &mut undo);
        }
        if *beats {
            self.plan_beats(&mut plan, &mut undo);
        }
        if *has_command {
            for kind in self.workload_kinds() {
                let why = "before the command, and then every 250 ms until its changes have settled";
                plan.helps("list", &kind, why);
            }
        }
        self.plan_disruptions(disruptions, &mut plan, &mut undo).await?;
        plan.effects.extend(self.random_phases(scenario, disruptions).await?);
        undo.calls.reverse();
        plan.calls.append(&mut undo.calls);
        Ok(plan)
    }

    /// How all phases of consumers with their own clock are covered, as text.
    async fn random_phases(
        &self,
        scenario: &Scenario,
        disruptions: &[Disruption],
    ) -> Result<Option<String>, CoordinatorError> {
        let Some(first) = disruptions.first() else { return Ok(None) };
        for target in &scenario.targets {
            if let Place::Service { name, node: None, .. } = &target.place
                && preflight::is_headless(self, name, &scenario.manifests).await?
            {
                return Ok(Some(format!(
                    "clients of the headless Service {name} keep a DNS answer for its TTL: each disruption is \
                     delayed by a random part of that, or of its jitter if that is longer (seed {})",
                    first.seed
                )));
            }
        }
        Ok(None)
    }

    /// The Job whose pods send the load.
    fn plan_load(&self, workers: usize, evidence: Option<Evidence>, plan: &mut Plan, undo: &mut Plan) {
        self.plan_owner(plan, undo);
        let s = if workers == 1 { "" } else { "s" };
        let privileged = match evidence {
            None => "",
            Some(Evidence::Conntrack) => ", as root with NET_ADMIN in the network of their nodes",
        };
        let (secrets, jobs) = (self.own::<Secret>(), self.own::<Job>());
        for (about, why) in [
            (&secrets, "the token that the load workers check".to_owned()),
            (&jobs, format!("an Indexed Job of {workers} load worker{s}{privileged}")),
        ] {
            let group = root(&about.resource);
            plan.open_call(group.clone(), "where the kind is");
            plan.must("create", about, why);
            undo.must("delete", &about.clone().later("load"), "removed, with what it owns");
            undo.open_call(group, "where the kind is");
        }
        plan.must("patch", &secrets.later("load"), "owned by the Job");
        plan.must("list", &self.own::<Pod>(), "which load workers are not ready, if any after 10 s");
        plan.helps("list", &self.own::<Event>(), "why they are not");
        let proxies = About { subresource: "proxy", ..self.own::<Pod>().later("pod:port") };
        plan.must("get", &proxies, "reports, clock and rows of each load worker");
        plan.must("create", &proxies, "orders to each load worker");
        plan.own.push(format!("sends the load from a Job of {workers} worker{s}, and removes it at the end"));
    }

    /// The owner, created before anything that it owns, once.
    fn plan_owner(&self, plan: &mut Plan, undo: &mut Plan) {
        let config_maps = self.own::<ConfigMap>();
        if !plan.calls.iter().any(|call| call.why == OWNS_ALL) {
            plan.must("create", &config_maps, OWNS_ALL);
            undo.must("delete", &config_maps.later(OWNER), "owned everything that the run created");
            undo.open_call(root(&ApiResource::erase::<ConfigMap>(&())), "where the kind is");
        }
    }

    /// Beats, without which the deletions of others are known only to a second.
    fn plan_beats(&self, plan: &mut Plan, undo: &mut Plan) {
        let (config_maps, group) = (self.own::<ConfigMap>(), root(&ApiResource::erase::<ConfigMap>(&())));
        if !plan.calls.iter().any(|call| call.why == OWNS_ALL) {
            plan.helps("create", &config_maps, OWNS_ALL);
            undo.helps("delete", &config_maps.clone().later(OWNER), "owned everything that the run created");
            undo.open_call(group, "where the kind is");
        }
        let why = "ten times a second while pods may end: its versions date deletions by others";
        plan.helps("patch", &config_maps.later(OWNER), why);
        plan.helps("list", &self.own::<Pod>(), "one pod, once a second: the version of the pods' store");
        plan.own.push(
            "writes to its own ConfigMap ten times a second while pods may end, and removes it at the end (not \
             with --no-beats)"
                .to_owned(),
        );
    }

    async fn plan_manifest(
        &self,
        manifest: &Value,
        plan: &mut Plan,
        undo: &mut Plan,
    ) -> Result<(), CoordinatorError> {
        let types: TypeMeta = serde_json::from_value(manifest.clone()).unwrap_or_default();
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
        let (resource, scope) = self.kind_of(&types).await?;
        let group = root(&resource);
        if is_ownable(&scope, manifest["metadata"]["namespace"].as_str(), &self.namespace) {
            self.plan_owner(plan, undo);
        }
        let about = About::all(resource, (scope == Scope::Namespaced).then_some(namespace));
        plan.open_call(group.clone(), "where the kind is");
        plan.must("create", &about, format!("{} {name} of the run", types.kind));
        undo.must("delete", &about.named(name), "removed, with what it owns");
        undo.open_call(group, "where the kind is");
        plan.effects.push(format!("creates {} {name}, and removes it at the end", types.kind));
        Ok(())
    }

    async fn plan_injection(
        &self,
        sidecars: &Sidecars<'_>,
        plan: &mut Plan,
        undo: &mut Plan,
    ) -> Result<(), CoordinatorError> {
        plan.open_call("/version", "whether it has native sidecars");
        for kind in std::iter::once(self.own::<Service>()).chain(self.workload_kinds()) {
            plan.must("list", &kind, "whose pods are the target's");
        }
        if sidecars.services.is_empty() && sidecars.workloads.is_empty() {
            let routes = About::all(routes::http_route(), Some(&self.namespace));
            for kind in [self.own::<Ingress>(), routes] {
                plan.helps("list", &kind, "which Service the target's URL routes to");
            }
        }
        let injection = self.plan_sidecars(sidecars).await?;
        let (services, workloads): (Vec<_>, Vec<_>) =
            injection.changed().partition(|object| object.is_service());
        let mut change = |object: &Live, plan: &mut Plan| {
            let about = About::all(object.resource().clone(), Some(&self.namespace)).named(object.name());
            plan.must("patch", &about, "the sidecar: a merge patch of this resourceVersion");
            undo_change(&about, undo);
        };
        for object in workloads {
            change(object, plan);
            let title = object.title();
            let effect = "and removes it at the end: each is a rollout of its pods";
            plan.effects.push(format!("adds the sidecar to {title}, {effect}"));
        }
        for kind in self.workload_kinds() {
            plan.must("list", &kind, "every 250 ms, until the rollout has settled");
        }
        for object in services {
            change(object, plan);
            plan.effects.push(format!("points {} to the sidecar, and back at the end", object.title()));
        }
        Ok(())
    }

    /// Asks the API server whether the run has the rights for its calls.
    ///
    /// # Errors
    /// When it has not, with all missing rights.
    pub(crate) async fn check_rights(&self, plan: &Plan) -> Result<(), CoordinatorError> {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let ask = |right: Right| {
            let reviews = reviews.clone();
            async move {
                let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
                let attributes = ResourceAttributes {
                    verb: text(right.verb),
                    group: text(&right.group),
                    resource: text(&right.resource),
                    subresource: text(right.subresource),
                    namespace: right.namespace.clone(),
                    name: right.name.clone(),
                    ..ResourceAttributes::default()
                };
                let spec = SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                };
                let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
                let what = "ask for the rights (create selfsubjectaccessreviews.authorization.k8s.io)";
                let params = PostParams::default();
                let answer = self.ask(what, || reviews.create(&params, &review)).await?;
                let answer = answer.map_err(|e| CoordinatorError::api(what, &e))?;
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
        Err(CoordinatorError::MissingRights { rights: missing, namespace: self.namespace.clone() })
    }
}
