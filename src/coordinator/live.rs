//! Changes workloads that are not the run's own, for the duration of the run: adds the recording proxy to their pods,
//! and sets how these end.
//!
//! The workloads behind the targets' Services are changed first and rolled out, and only then the Services with a
//! numeric target port, so that no request is routed to a missing sidecar. After a change of Services, the Service
//! proxies get time to follow. It is undone in the opposite order ([`super::undo`]).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Resource};
use serde_json::Value;
use tokio::time::sleep;
use url::Url;

use super::caller::Caller;
use super::error::CoordinatorError;
use super::gitops::{GitOps, controller_of};
use super::kinds::why_no_rollout;
use super::session::Session;
use super::undo::{self, ATTEMPTS, FOLLOW};
use super::view::View;
use crate::inject::ending::{Ending, Sleepers, set_ending};
use crate::inject::{self, KubernetesVersion, SecretKey};
use crate::scenario::Workload;

/// Which workloads are changed, and how.
#[derive(Clone, Debug)]
pub(crate) struct LiveChanges<'a> {
    /// Whose pods are meant.
    pub whose: Whose<'a>,
    /// The sidecar that their pods get.
    pub sidecar: Option<Sidecar<'a>>,
    /// How the pods of one of them are to end.
    pub ending: Option<(&'a Sleepers, Ending)>,
    /// What to do about objects that are managed.
    pub gitops: GitOps,
}

impl LiveChanges<'_> {
    /// What is done, up to the workload to which it is done.
    pub(super) fn in_words(&self) -> String {
        let ending = self.ending.map(|(_, Ending { sleep_s, grace_s, .. })| {
            format!("sets a preStop sleep of {sleep_s} s and a grace period of {grace_s} s in")
        });
        let sidecar = self.sidecar.map(|_| "adds the sidecar to".to_owned());
        sidecar.into_iter().chain(ending).collect::<Vec<_>>().join(", and ")
    }
}

/// Whose pods are meant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whose<'a> {
    /// The Services that route to the pods.
    pub services: Vec<&'a str>,
    /// The workloads of the pods, if they are named.
    pub workloads: Vec<&'a Workload>,
    /// If neither a Service nor a workload is named: URLs that route to one Service.
    pub urls: Vec<&'a Url>,
}

/// The sidecar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sidecar<'a> {
    /// Its image.
    pub image: &'a str,
    /// Where the token of its admin port is.
    pub admin_token: &'a SecretKey,
}

/// An object of the cluster that may have to be changed.
pub(super) struct Live {
    api: Api<DynamicObject>,
    resource: ApiResource,
    /// As it is.
    current: Value,
    /// As it should be.
    wanted: Value,
}

impl Live {
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.resource.kind, self.name())
    }

    /// As `kubectl` names it, such as `deployment/web`.
    fn reference(&self) -> String {
        format!("{}/{}", self.resource.kind.to_lowercase(), self.name())
    }

    pub(super) fn name(&self) -> &str {
        self.current["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Stores its current state.
    fn is_now(&mut self, object: DynamicObject) {
        self.current = serde_json::to_value(object).unwrap_or_default();
        // Items of a list do not say what they are.
        self.current["apiVersion"] = self.resource.api_version.as_str().into();
        self.current["kind"] = self.resource.kind.as_str().into();
        self.wanted = self.current.clone();
    }

    pub(super) fn resource(&self) -> &ApiResource {
        &self.resource
    }

    pub(super) fn is_service(&self) -> bool {
        self.resource.kind == "Service"
    }

    /// The labels of its pods.
    pub(super) fn pod_labels(&self) -> &Value {
        &self.current["spec"]["template"]["metadata"]["labels"]
    }

    /// The workload that it is; `None` for a Service.
    pub(super) fn workload(&self) -> Option<Workload> {
        self.reference().parse().ok()
    }

    pub(super) const fn current(&self) -> &Value {
        &self.current
    }

    pub(super) const fn wanted(&self) -> &Value {
        &self.wanted
    }

    /// Returns true if, as a Service, it selects the pods of a workload.
    pub(super) fn routes_to(&self, workload: &Self) -> bool {
        self.selects(workload.pod_labels())
    }

    /// Whether, as a Service, it selects pods with these labels.
    fn selects(&self, labels: &Value) -> bool {
        inject::selects(&self.current, labels)
    }
}

/// The objects that are changed, and what they should be.
pub(super) struct Wanted<'a> {
    changes: &'a LiveChanges<'a>,
    kubernetes: KubernetesVersion,
    /// The workloads, and the Services that route to them.
    live: Vec<Live>,
    /// A line each.
    notes: Vec<String>,
}

impl Wanted<'_> {
    pub(super) const fn changes(&self) -> &LiveChanges<'_> {
        self.changes
    }

    pub(super) const fn has_sidecar(&self) -> bool {
        self.changes.sidecar.is_some()
    }

    /// All that are meant.
    pub(super) fn all(&self) -> impl Iterator<Item = &Live> {
        self.live.iter()
    }

    /// Those that have to be changed.
    pub(super) fn changed(&self) -> impl Iterator<Item = &Live> {
        self.live.iter().filter(|object| object.current != object.wanted)
    }

    /// Computes what the objects should be.
    ///
    /// # Errors
    /// When it is not possible, or something forbids it.
    fn compute(&mut self) -> Result<(), CoordinatorError> {
        let LiveChanges { sidecar, ending, gitops, .. } = self.changes;
        let mut objects: Vec<Value> = self.live.iter().map(|object| object.current.clone()).collect();
        if let Some((sleepers, ending)) = ending {
            set_ending(&mut objects, sleepers, *ending)?;
        }
        if let Some(Sidecar { image, admin_token }) = *sidecar {
            let (image, kubernetes) = (image.to_owned(), self.kubernetes);
            let options = inject::Options::of_a_run(image, kubernetes, admin_token.clone());
            let injected = inject::inject_into(&mut objects, &options)
                .map_err(|error| CoordinatorError::Sidecar(error.to_string()))?;
            self.notes = injected.notes;
            self.notes.extend(injected.left);
        }
        for (object, wanted) in self.live.iter_mut().zip(objects) {
            object.wanted = wanted;
        }
        for object in self.changed() {
            if let Some(why) = why_no_rollout(&object.current) {
                return Err(CoordinatorError::NoRollout { workload: object.title(), why });
            }
            let refuses = *gitops == GitOps::Refuse;
            if let Some(controller) = controller_of(&object.current).filter(|_| refuses) {
                let object = object.title();
                return Err(CoordinatorError::Managed { object, controller: controller.to_owned() });
            }
        }
        Ok(())
    }
}

impl Session {
    /// Changes these workloads, and waits for the rollout. Returns what was done, a line each.
    ///
    /// # Errors
    /// When it is not possible. What was changed until then is undone in [`Session::finish`].
    pub(crate) async fn change_workloads(
        &self,
        changes: &LiveChanges<'_>,
    ) -> Result<Vec<String>, CoordinatorError> {
        let mut wanted = self.caller.plan_live(changes).await?;
        let before = self.workloads().await?;
        let mut is_changed = false;
        let (services, workloads): (Vec<usize>, Vec<usize>) =
            (0..wanted.live.len()).partition(|index| wanted.live[*index].is_service());
        for index in workloads {
            is_changed |= self.change_live(&mut wanted, index).await?;
        }
        if is_changed {
            tokio::select! {
                settled = self.until_settled(&before) => if let (_, Some(missing)) = settled? {
                    let limit = self.caller.limits.rollout;
                    return Err(CoordinatorError::Unsettled { missing, limit });
                },
                why = self.stuck_sidecar() => {
                    let why = format!("{why}; name an image that the cluster can pull with --image");
                    return Err(CoordinatorError::Sidecar(why));
                }
            }
        }
        let mut is_rerouted = false;
        for index in services {
            is_rerouted |= self.change_live(&mut wanted, index).await?;
        }
        if is_rerouted {
            // Otherwise the first requests of the load would bypass the sidecars.
            self.caller.stoppable(sleep(FOLLOW)).await?;
        }
        Ok(wanted.notes)
    }

    /// Changes one of the objects, if necessary; returns whether it has changed. If others have changed it in
    /// between, it is checked again, with everything that may forbid the change.
    async fn change_live(&self, wanted: &mut Wanted<'_>, index: usize) -> Result<bool, CoordinatorError> {
        for attempt in 1..ATTEMPTS {
            let object = &wanted.live[index];
            match self.change_as(wanted, object).await {
                Err(CoordinatorError::Conflict(_)) => {}
                // The change in between may have been this one, if its answer was lost.
                changed => return Ok(changed?.is_some() || attempt > 1),
            }
            let what = format!("read {}", object.title());
            let found = self.caller.read(&object.api, &what, object.name()).await?;
            wanted.live[index].is_now(found);
            wanted.compute()?;
        }
        self.change_as(wanted, &wanted.live[index]).await?;
        Ok(true)
    }

    async fn change_as(&self, wanted: &Wanted<'_>, object: &Live) -> Result<Option<u32>, CoordinatorError> {
        let Live { api, current, wanted: to, .. } = object;
        let is_restarted =
            wanted.changes.ending.is_some_and(|(whose, _)| whose.workload == object.reference());
        match is_restarted {
            true => self.change_and_restart(api, current, to).await,
            false => self.change(api, current, to).await,
        }
    }

    /// Waits until a pod with the sidecar says, for some time, that it cannot start.
    async fn stuck_sidecar(&self) -> String {
        let stuck = |view: &View| {
            view.stuck_container(|pod| pod.containers.iter().any(|c| c.name == inject::SIDECAR_NAME))
        };
        loop {
            self.views.wait_until(|view| stuck(view).is_some()).await;
            sleep(self.caller.limits.stuck).await;
            if let Some(why) = self.views.read(stuck) {
                return why.to_string();
            }
        }
    }
}

impl Caller {
    /// What is to be changed. Nothing is changed yet.
    pub(super) async fn plan_live<'a>(
        &self,
        changes: &'a LiveChanges<'a>,
    ) -> Result<Wanted<'a>, CoordinatorError> {
        let kubernetes = self.kubernetes().await?;
        let live = self.live_of(&changes.whose).await?;
        let mut wanted = Wanted { changes, kubernetes, live, notes: Vec::new() };
        wanted.compute()?;
        Ok(wanted)
    }

    /// Makes these changes, outside of any run, and leaves them. Returns what has changed.
    ///
    /// # Errors
    /// When it is not possible, or something forbids it.
    pub(crate) async fn leave(&self, changes: &LiveChanges<'_>) -> Result<Vec<String>, CoordinatorError> {
        let (mut changed, mut attempts) = (Vec::new(), 0..ATTEMPTS);
        'anew: loop {
            let wanted = self.plan_live(changes).await?;
            for object in wanted.changed() {
                let what = format!("change {}", object.title());
                let patch = || undo::patch(&object.api, object.name(), &object.current, &object.wanted);
                match self.ask(&what, patch).await? {
                    Ok(_) => changed.push(object.title()),
                    // The last rollout may still change its status.
                    Err(kube::Error::Api(status)) if status.code == 409 && attempts.next().is_some() => {
                        continue 'anew;
                    }
                    Err(error) => return Err(CoordinatorError::api(&what, &error)),
                }
            }
            return Ok(changed);
        }
    }

    /// The version of the cluster.
    ///
    /// # Errors
    /// When the API server does not answer, or not with a version.
    pub(crate) async fn kubernetes(&self) -> Result<KubernetesVersion, CoordinatorError> {
        let version = self.server_version().await?;
        version.parse().map_err(|error| CoordinatorError::Sidecar(format!("Kubernetes {version}: {error}")))
    }

    /// The labels of the nodes, as far as rights allow to read them.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(crate) async fn node_labels(&self) -> Result<Vec<BTreeMap<String, String>>, CoordinatorError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let labels = |node: Node| node.metadata.labels.unwrap_or_default();
        let listed = self.list_as("list nodes", &nodes, &ListParams::default(), labels).await?;
        Ok(listed.unwrap_or_default())
    }

    /// The workloads of these pods, and the Services that route to them, as they are now.
    ///
    /// # Errors
    /// When there are none, or it is not clear which.
    pub(crate) async fn behind(&self, whose: &Whose<'_>) -> Result<Vec<Value>, CoordinatorError> {
        Ok(self.live_of(whose).await?.into_iter().map(|object| object.current).collect())
    }

    /// The workloads of these pods, and the Services that route to them.
    async fn live_of(&self, whose: &Whose<'_>) -> Result<Vec<Live>, CoordinatorError> {
        let services = self.services_of(whose).await?;
        let all = self.live::<Service>().await?;
        let mut named = Vec::new();
        for name in &services {
            let is_it = |service: &&Live| service.name() == name;
            let unknown = || CoordinatorError::Service {
                service: name.clone(),
                why: format!("does not exist in namespace {}", self.namespace),
            };
            named.push(all.iter().find(is_it).ok_or_else(unknown)?);
        }
        let mut workloads = self.live::<Deployment>().await?;
        workloads.extend(self.live::<StatefulSet>().await?);
        workloads.extend(self.live::<DaemonSet>().await?);
        for wanted in &whose.workloads {
            if !workloads.iter().any(|workload| workload.title() == wanted.to_string()) {
                let namespace = &self.namespace;
                return Err(CoordinatorError::Behind(format!(
                    "there is no {wanted} in namespace {namespace}: correct its name, or name the namespace with -n"
                )));
            }
        }
        workloads.retain(|workload| {
            named.iter().any(|service| service.routes_to(workload))
                || whose.workloads.iter().any(|wanted| workload.title() == wanted.to_string())
        });
        if workloads.is_empty() {
            return Err(CoordinatorError::Behind(format!(
                "no Deployment, StatefulSet or DaemonSet in namespace {} owns the pods of Service {} (rolldrop inject \
                 adds the sidecar to a manifest of another owner)",
                self.namespace,
                services.join(", "),
            )));
        }
        let (mut live, mut routing) = (workloads, all);
        routing.retain(|service| live.iter().any(|workload| service.routes_to(workload)));
        live.append(&mut routing);
        Ok(live)
    }

    /// The Services that route to the pods.
    async fn services_of(&self, whose: &Whose<'_>) -> Result<Vec<String>, CoordinatorError> {
        let services: Vec<String> = whose.services.iter().map(|name| (*name).to_owned()).collect();
        if !services.is_empty() || !whose.workloads.is_empty() {
            return Ok(services);
        }
        let behind = self.services_behind(&whose.urls).await?;
        let why = match behind.len() {
            1 => return Ok(behind.into_iter().collect()),
            0 => "no Ingress or HTTPRoute".to_owned(),
            _ => format!("more than one Service ({})", behind.into_iter().collect::<Vec<_>>().join(", ")),
        };
        Err(CoordinatorError::Behind(format!(
            "{why} of namespace {} is behind it: name the workload to which it leads (rolldrop tune --workload \
             deployment/web; for the sidecar of a scenario, sidecar: {{inject: true, workloads: [deployment/web]}})",
            self.namespace
        )))
    }

    /// All workloads of the namespace, as far as rights allow to see them.
    pub(super) async fn live_workloads(&self) -> Vec<Live> {
        let mut workloads = self.live::<Deployment>().await.unwrap_or_default();
        workloads.extend(self.live::<StatefulSet>().await.unwrap_or_default());
        workloads.extend(self.live::<DaemonSet>().await.unwrap_or_default());
        workloads
    }

    /// All objects of a kind, with every field that they have, also those that are not known here.
    pub(super) async fn live<K: Resource<DynamicType = ()>>(&self) -> Result<Vec<Live>, CoordinatorError> {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let what = format!("list {}", resource.plural);
        let of = |object: DynamicObject| {
            let (current, wanted) = (Value::Null, Value::Null);
            let mut live = Live { api: api.clone(), resource: resource.clone(), current, wanted };
            live.is_now(object);
            live
        };
        match self.list_as(&what, &api, &ListParams::default(), of).await? {
            // The cluster does not know the kind.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            listed => listed.map_err(|error| CoordinatorError::api(&what, &error)),
        }
    }
}
