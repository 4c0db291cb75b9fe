//! Changes to existing workloads, as far as they can be computed without making them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Resource};
use serde_json::Value;
use url::Url;

use super::bystanders::{Bystander, find_bystanders, refuse_shared};
use super::gitops::{GitOps, controller_of};
use super::routes::find_services_behind;
use crate::api::{Caller, why_no_rollout};
use crate::error::{CoordinatorError, Result};
use rolldrop_scenario::Workload;
use rolldrop_sidecar::inject::ending::{Ending, Sleepers, set_ending};
use rolldrop_sidecar::inject::{self, KubernetesVersion, SecretKey};

/// Changes to existing workloads.
#[derive(Clone, Debug)]
pub struct LiveChanges<'a> {
    /// Selection of the workloads.
    pub whose: WorkloadSelection<'a>,
    /// Sidecar to add to the workloads' pods.
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
pub struct WorkloadSelection<'a> {
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
    /// Secret and key of the token for the sidecar's admin port.
    pub admin_token: &'a SecretKey,
}

/// An object in the cluster that may have to be changed.
pub(crate) struct Live {
    pub(crate) api: Api<DynamicObject>,
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
    pub(crate) fn reference(&self) -> String {
        format!("{}/{}", self.resource.kind.to_lowercase(), self.name())
    }

    pub(crate) fn name(&self) -> &str {
        self.current["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Sets both the current and the intended state to this object.
    pub(crate) fn is_now(&mut self, object: DynamicObject) {
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
pub(crate) struct WantedChanges<'a> {
    pub(crate) changes: &'a LiveChanges<'a>,
    kubernetes: KubernetesVersion,
    /// The selected workloads, and the Services that route to them.
    pub(crate) live: Vec<Live>,
    /// Pods and workloads of the namespace that get no sidecar.
    bystanders: Vec<Bystander>,
    /// Notes from the injection, one line each.
    pub(crate) notes: Vec<String>,
}

impl WantedChanges<'_> {
    /// Returns the objects that have to be changed.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Live> {
        self.live.iter().filter(|object| object.current != object.wanted)
    }

    /// Computes the intended states.
    ///
    /// # Errors
    /// Fails if the changes are not possible, or if something forbids one.
    pub(crate) fn compute(&mut self) -> Result<()> {
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
        let rerouted = self.changed().filter(|object| object.is_service()).map(|object| &object.current);
        refuse_shared(rerouted, &self.bystanders).map_err(CoordinatorError::Sidecar)?;
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

/// Computes the intended states of the objects, without changing anything.
pub(crate) async fn plan_live<'a>(
    caller: &Caller,
    changes: &'a LiveChanges<'a>,
) -> Result<WantedChanges<'a>> {
    let kubernetes = kubernetes_version(caller).await?;
    let (live, others) = live_of(caller, &changes.whose).await?;
    let bystanders = match changes.sidecar {
        Some(_) => find_bystanders(caller, &live, &others).await?,
        None => Vec::new(),
    };
    let mut wanted = WantedChanges { changes, kubernetes, live, bystanders, notes: Vec::new() };
    wanted.compute()?;
    Ok(wanted)
}

/// Returns the cluster's Kubernetes version.
///
/// # Errors
/// Fails if the API server does not respond, or if its response is not a version.
pub async fn kubernetes_version(caller: &Caller) -> Result<KubernetesVersion> {
    let version = caller.server_version().await?;
    version.parse().map_err(|error| CoordinatorError::Sidecar(format!("Kubernetes {version}: {error}")))
}

/// Returns the labels of all nodes; empty if the run may not list them.
///
/// # Errors
/// Fails if the API server does not respond.
pub async fn node_labels(caller: &Caller) -> Result<Vec<BTreeMap<String, String>>> {
    let nodes = Api::<Node>::all(caller.client.clone());
    let labels = |node: Node| node.metadata.labels.unwrap_or_default();
    let listed = caller.list_as("list nodes", &nodes, &ListParams::default(), labels).await?;
    Ok(listed.unwrap_or_default())
}

/// Returns the selected workloads and the Services that route to them, as they are now.
///
/// # Errors
/// Fails if there are none, or if the selection is ambiguous.
pub async fn objects_behind(caller: &Caller, whose: &WorkloadSelection<'_>) -> Result<Vec<Value>> {
    let (live, _) = live_of(caller, whose).await?;
    Ok(live.into_iter().map(|object| object.current).collect())
}

/// Finds the selected workloads and the Services that route to them, and returns the other workloads apart.
async fn live_of(caller: &Caller, whose: &WorkloadSelection<'_>) -> Result<(Vec<Live>, Vec<Live>)> {
    let services = services_of(caller, whose).await?;
    let all = live::<Service>(caller).await?;
    let mut named = Vec::new();
    for name in &services {
        let is_it = |service: &&Live| service.name() == name;
        let unknown = || CoordinatorError::Service {
            service: name.clone(),
            why: format!("does not exist in namespace {}", caller.namespace),
        };
        named.push(all.iter().find(is_it).ok_or_else(unknown)?);
    }
    let mut workloads = live::<Deployment>(caller).await?;
    workloads.extend(live::<StatefulSet>(caller).await?);
    workloads.extend(live::<DaemonSet>(caller).await?);
    for wanted in &whose.workloads {
        if !workloads.iter().any(|workload| workload.title() == wanted.to_string()) {
            let namespace = &caller.namespace;
            return Err(CoordinatorError::Behind(format!(
                "there is no {wanted} in namespace {namespace}: fix the name, or use another namespace (-n)"
            )));
        }
    }
    let (workloads, others): (Vec<Live>, Vec<Live>) = workloads.into_iter().partition(|workload| {
        named.iter().any(|service| service.routes_to(workload))
            || whose.workloads.iter().any(|wanted| workload.title() == wanted.to_string())
    });
    if workloads.is_empty() {
        return Err(CoordinatorError::Behind(format!(
            "no Deployment, StatefulSet or DaemonSet in namespace {} owns the pods of Service {} (if they have \
             another owner, add the sidecar to its manifest with rolldrop inject)",
            caller.namespace,
            services.join(", "),
        )));
    }
    let (mut live, mut routing) = (workloads, all);
    routing.retain(|service| live.iter().any(|workload| service.routes_to(workload)));
    live.append(&mut routing);
    Ok((live, others))
}

/// Returns the names of the Services that route to the pods; empty if only workloads are named.
async fn services_of(caller: &Caller, whose: &WorkloadSelection<'_>) -> Result<Vec<String>> {
    let services: Vec<String> = whose.services.iter().map(|name| (*name).to_owned()).collect();
    if !services.is_empty() || !whose.workloads.is_empty() {
        return Ok(services);
    }
    let behind = find_services_behind(caller, &whose.urls).await?;
    let why = match behind.len() {
        1 => return Ok(behind.into_iter().collect()),
        0 => "no Ingress or HTTPRoute leads from the URL to a Service".to_owned(),
        _ => format!(
            "the URL leads to more than one Service ({})",
            behind.into_iter().collect::<Vec<_>>().join(", ")
        ),
    };
    Err(CoordinatorError::Behind(format!(
        "{why} in namespace {}: name the workload (rolldrop tune --workload deployment/web; in a scenario, \
         sidecar: {{inject: true, workloads: [deployment/web]}})",
        caller.namespace
    )))
}

/// Returns all workloads in the namespace that the run may list.
pub(crate) async fn live_workloads(caller: &Caller) -> Vec<Live> {
    let mut workloads = live::<Deployment>(caller).await.unwrap_or_default();
    workloads.extend(live::<StatefulSet>(caller).await.unwrap_or_default());
    workloads.extend(live::<DaemonSet>(caller).await.unwrap_or_default());
    workloads
}

/// Returns all objects of a kind, with all their fields, including those unknown to this program.
pub(crate) async fn live<K: Resource<DynamicType = ()>>(caller: &Caller) -> Result<Vec<Live>> {
    let resource = ApiResource::erase::<K>(&());
    let api = caller.dynamic_api(&resource);
    let what = format!("list {}", resource.plural);
    let of = |object: DynamicObject| {
        let (current, wanted) = (Value::Null, Value::Null);
        let mut live = Live { api: api.clone(), resource: resource.clone(), current, wanted };
        live.is_now(object);
        live
    };
    match caller.list_as(&what, &api, &ListParams::default(), of).await? {
        // The cluster does not have the kind.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => listed.map_err(|error| CoordinatorError::api(&what, &error)),
    }
}
