//! Changes existing workloads for the duration of the run: adds the recording proxy to their pods, and sets the pods'
//! termination settings.
//!
//! The run first changes the workloads behind the targets' Services and waits for their rollout. Only then does it
//! change the Services with a numeric target port, so that no request is routed to a missing sidecar. After changing
//! Services, it gives the Service proxies time to follow. [`crate::undo`] undoes the changes in the opposite order.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Resource};
use serde_json::Value;
use tokio::time::sleep;
use url::Url;

use super::gitops::{GitOps, controller_of};
use crate::api::caller::Caller;
use crate::api::kinds::why_no_rollout;
use crate::error::{CoordinatorError, Result};
use crate::observe::namespace_view::View;
use crate::session::Session;
use crate::undo::{self, ATTEMPTS, FOLLOW};
use rolldrop_scenario::Workload;
use rolldrop_sidecar::inject::ending::{Ending, Sleepers, set_ending};
use rolldrop_sidecar::inject::{self, KubernetesVersion, SecretKey};

/// Changes to existing workloads.
#[derive(Clone, Debug)]
pub struct LiveChanges<'a> {
    /// Selection of the workloads.
    pub whose: Whose<'a>,
    /// Sidecar to add to their pods.
    pub sidecar: Option<Sidecar<'a>>,
    /// New termination settings for the pods of one workload.
    pub ending: Option<(&'a Sleepers, Ending)>,
    /// Policy for objects that a GitOps controller manages.
    pub gitops: GitOps,
}

impl LiveChanges<'_> {
    /// Describes the changes in words that a workload's name can follow.
    pub(crate) fn in_words(&self) -> String {
        let ending = self.ending.map(|(_, Ending { sleep_s, grace_s, .. })| {
            format!("sets a preStop sleep of {sleep_s} s and a grace period of {grace_s} s in")
        });
        let sidecar = self.sidecar.map(|_| "adds the sidecar to".to_owned());
        sidecar.into_iter().chain(ending).collect::<Vec<_>>().join(", and ")
    }
}

/// Selection of workloads by their Services, names or URLs.
#[derive(Clone, Debug, Default)]
pub struct Whose<'a> {
    /// Services that route to the pods.
    pub services: Vec<&'a str>,
    /// Workloads of the pods, if the user names them.
    pub workloads: Vec<&'a Workload>,
    /// URLs that route to one Service; used if neither a Service nor a workload is named.
    pub urls: Vec<&'a Url>,
}

/// Recording proxy to add as a sidecar.
#[derive(Clone, Copy, Debug)]
pub struct Sidecar<'a> {
    /// Image of the sidecar.
    pub image: &'a str,
    /// Secret and key of the token for its admin port.
    pub admin_token: &'a SecretKey,
}

/// An object in the cluster that may have to be changed.
pub(crate) struct Live {
    api: Api<DynamicObject>,
    pub(crate) resource: ApiResource,
    /// State in the cluster.
    pub(crate) current: Value,
    /// Intended state.
    pub(crate) wanted: Value,
}

impl Live {
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.resource.kind, self.name())
    }

    /// Returns the object's name in `kubectl` notation, such as `deployment/web`.
    fn reference(&self) -> String {
        format!("{}/{}", self.resource.kind.to_lowercase(), self.name())
    }

    pub(crate) fn name(&self) -> &str {
        self.current["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Sets both the current and the intended state to this object.
    fn is_now(&mut self, object: DynamicObject) {
        self.current = serde_json::to_value(object).unwrap_or_default();
        // Items of a list lack their own `apiVersion` and `kind`.
        self.current["apiVersion"] = self.resource.api_version.as_str().into();
        self.current["kind"] = self.resource.kind.as_str().into();
        self.wanted = self.current.clone();
    }

    pub(crate) fn is_service(&self) -> bool {
        self.resource.kind == "Service"
    }

    /// Returns the labels of the workload's pods.
    pub(crate) fn pod_labels(&self) -> &Value {
        &self.current["spec"]["template"]["metadata"]["labels"]
    }

    /// Returns the object as a workload; `None` for a Service.
    pub(crate) fn workload(&self) -> Option<Workload> {
        self.reference().parse().ok()
    }

    /// Returns true if this is a Service that selects a workload's pods.
    fn routes_to(&self, workload: &Self) -> bool {
        inject::selects(&self.current, workload.pod_labels())
    }
}

/// Objects to change, and their intended states.
pub(crate) struct Wanted<'a> {
    pub(crate) changes: &'a LiveChanges<'a>,
    kubernetes: KubernetesVersion,
    /// The selected workloads, and the Services that route to them.
    pub(crate) live: Vec<Live>,
    /// Notes from the injection, one line each.
    notes: Vec<String>,
}

impl Wanted<'_> {
    /// Returns the objects that have to be changed.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Live> {
        self.live.iter().filter(|object| object.current != object.wanted)
    }

    /// Computes the intended states.
    ///
    /// # Errors
    /// Fails if the changes are not possible, or if something forbids one.
    fn compute(&mut self) -> Result<()> {
        let LiveChanges { sidecar, ending, gitops, .. } = self.changes;
        let mut objects: Vec<Value> = self.live.iter().map(|object| object.current.clone()).collect();
        if let Some((sleepers, ending)) = ending {
            set_ending(&mut objects, sleepers, *ending)?;
        }
        if let Some(Sidecar { image, admin_token }) = *sidecar {
            let (image, kubernetes) = (image.to_owned(), self.kubernetes);
            let options = inject::InjectOptions::of_a_run(image, kubernetes, admin_token.clone());
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
    /// Changes these workloads, and waits for the rollout. Returns notes about the changes, one line each.
    ///
    /// # Errors
    /// Fails if the changes are not possible. [`Session::finish`] undoes those made before the failure.
    pub(crate) async fn change_workloads(&self, changes: &LiveChanges<'_>) -> Result<Vec<String>> {
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
            // Otherwise, the load's first requests would bypass the sidecars.
            self.caller.stoppable(sleep(FOLLOW)).await?;
        }
        Ok(wanted.notes)
    }

    /// Changes one of the objects if necessary, and returns true if it has changed. If others have changed the object
    /// in the meantime, checks again whether anything forbids the change.
    async fn change_live(&self, wanted: &mut Wanted<'_>, index: usize) -> Result<bool> {
        for attempt in 1..ATTEMPTS {
            let object = &wanted.live[index];
            match self.change_as(wanted, object).await {
                Err(CoordinatorError::Conflict(_)) => {}
                // The conflicting change may have been this one, if its response was lost.
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

    async fn change_as(&self, wanted: &Wanted<'_>, object: &Live) -> Result<Option<u32>> {
        let Live { api, current, wanted: to, .. } = object;
        let is_restarted =
            wanted.changes.ending.is_some_and(|(whose, _)| whose.workload == object.reference());
        match is_restarted {
            true => self.change_and_restart(api, current, to).await,
            false => self.change(api, current, to).await,
        }
    }

    /// Waits until a pod with the sidecar has reported for some time that it cannot start, and returns the reason.
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
    /// Computes the intended states of the objects, without changing anything.
    pub(crate) async fn plan_live<'a>(&self, changes: &'a LiveChanges<'a>) -> Result<Wanted<'a>> {
        let kubernetes = self.kubernetes().await?;
        let live = self.live_of(&changes.whose).await?;
        let mut wanted = Wanted { changes, kubernetes, live, notes: Vec::new() };
        wanted.compute()?;
        Ok(wanted)
    }

    /// Makes these changes outside of any run and without undoing them. Returns the names of the changed objects.
    ///
    /// # Errors
    /// Fails if a change is not possible, or if something forbids it.
    pub async fn leave(&self, changes: &LiveChanges<'_>) -> Result<Vec<String>> {
        let (mut changed, mut attempts) = (Vec::new(), 0..ATTEMPTS);
        'anew: loop {
            let wanted = self.plan_live(changes).await?;
            for object in wanted.changed() {
                let what = format!("change {}", object.title());
                let patch = || undo::patch(&object.api, object.name(), &object.current, &object.wanted);
                match self.ask(&what, patch).await? {
                    Ok(_) => changed.push(object.title()),
                    // A previous rollout may still be updating the object's status.
                    Err(kube::Error::Api(status)) if status.code == 409 && attempts.next().is_some() => {
                        continue 'anew;
                    }
                    Err(error) => return Err(CoordinatorError::api(&what, &error)),
                }
            }
            return Ok(changed);
        }
    }

    /// Returns the cluster's Kubernetes version.
    ///
    /// # Errors
    /// Fails if the API server does not respond, or if its response is not a version.
    pub async fn kubernetes(&self) -> Result<KubernetesVersion> {
        let version = self.server_version().await?;
        version.parse().map_err(|error| CoordinatorError::Sidecar(format!("Kubernetes {version}: {error}")))
    }

    /// Returns the labels of all nodes; empty if the run has no right to list them.
    ///
    /// # Errors
    /// Fails if the API server does not respond.
    pub async fn node_labels(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let nodes = Api::<Node>::all(self.client.clone());
        let labels = |node: Node| node.metadata.labels.unwrap_or_default();
        let listed = self.list_as("list nodes", &nodes, &ListParams::default(), labels).await?;
        Ok(listed.unwrap_or_default())
    }

    /// Returns the selected workloads and the Services that route to them, as they are now.
    ///
    /// # Errors
    /// Fails if there are none, or if the selection is ambiguous.
    pub async fn behind(&self, whose: &Whose<'_>) -> Result<Vec<Value>> {
        Ok(self.live_of(whose).await?.into_iter().map(|object| object.current).collect())
    }

    /// Finds the selected workloads, and the Services that route to them.
    async fn live_of(&self, whose: &Whose<'_>) -> Result<Vec<Live>> {
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

    /// Returns the names of the Services that route to the pods; empty if only workloads are named.
    async fn services_of(&self, whose: &Whose<'_>) -> Result<Vec<String>> {
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

    /// Returns all workloads in the namespace that the run has the right to list.
    pub(crate) async fn live_workloads(&self) -> Vec<Live> {
        let mut workloads = self.live::<Deployment>().await.unwrap_or_default();
        workloads.extend(self.live::<StatefulSet>().await.unwrap_or_default());
        workloads.extend(self.live::<DaemonSet>().await.unwrap_or_default());
        workloads
    }

    /// Returns all objects of a kind, with all their fields, including those unknown to this program.
    pub(crate) async fn live<K: Resource<DynamicType = ()>>(&self) -> Result<Vec<Live>> {
        let resource = ApiResource::erase::<K>(&());
        let api = self.dynamic_api(&resource);
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
