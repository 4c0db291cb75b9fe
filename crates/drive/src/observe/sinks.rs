//! Processes the objects from the watches: pods and EndpointSlices for the view and the record; workloads, nodes and
//! Events to explain terminations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Event as ClusterEvent, Node, Pod, PodTemplateSpec, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Api, Client, Resource, ResourceExt};

use super::list_watch::{Following, Need, Sink, WatchListener, WatchState};
use super::namespace_view::{SeenPod, Views};
use crate::api::TimeLimits;
use crate::tasks::BackgroundTasks;
use rolldrop_kubernetes::Listed;
use rolldrop_kubernetes::pods::ListedPod;
use rolldrop_record::EventKind;
use rolldrop_record::event::{
    Change, EndpointSliceEvent, EndpointState, NodeEvent, PodEvent, Replacement, ServiceEvent, WorkloadEvent,
};
use rolldrop_sidecar::inject::ADMIN_PORT_NAME;
use rolldrop_sidecar::observed::{controller, pod_event, statuses};

/// Workload annotation whose value names all consumers of the workload's pods.
const CONSUMERS: &str = "rolldrop.dev/consumers";
/// Number of hexadecimal digits in a template's digest, enough to distinguish the templates in a run.
const DIGEST_DIGITS: usize = 16;

/// Part of a cluster to watch.
#[derive(Clone, Debug)]
pub enum WatchScope {
    /// One namespace.
    Namespace(String),
    /// All namespaces.
    Cluster,
}

impl WatchScope {
    pub(super) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match self {
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
            Self::Cluster => Api::all(client.clone()),
        }
    }
}

/// Starts watches.
pub(super) struct Watches<'a> {
    pub(super) client: &'a Client,
    pub(super) scope: &'a WatchScope,
    pub(super) limits: TimeLimits,
    pub(super) listener: Arc<dyn WatchListener>,
    pub(super) views: &'a Views,
    pub(super) tasks: &'a mut BackgroundTasks,
}

impl Watches<'_> {
    /// Starts all watches of a run.
    pub(super) fn follow_run(&mut self) {
        let (pods, slices) = (PodSink(self.views.clone()), SliceSink(self.views.clone()));
        self.follow(Need::Must, None, self.scope.api::<ListedPod>(self.client), pods);
        self.follow(Need::Must, None, self.scope.api::<EndpointSlice>(self.client), slices);
        self.follow_causes("involvedObject.kind=Pod");
    }

    /// Starts the watches that show pod terminations outside a run.
    pub(super) fn follow_terminations(&mut self) {
        self.follow(Need::Must, None, self.scope.api::<ListedPod>(self.client), BarePodSink);
        self.follow_causes("involvedObject.kind=Pod,reason=FailedPreStopHook");
    }

    /// Starts the watches that show which pods are behind the addresses of Services.
    pub(super) fn follow_services(&mut self) {
        let (scope, client) = (self.scope, self.client);
        self.follow(Need::Helps, None, scope.api(client), Changed::of(service));
        self.follow(Need::Helps, None, scope.api::<EndpointSlice>(client), BareSliceSink);
    }

    /// Starts the watches that help to explain pod terminations; `events` selects the Events.
    fn follow_causes(&mut self, events: &'static str) {
        let (scope, client) = (self.scope, self.client);
        self.follow(Need::Helps, Some(events), scope.api::<ClusterEvent>(client), ClusterEventSink);
        self.follow(Need::Helps, None, scope.api(client), Changed::of(deployment));
        self.follow(Need::Helps, None, scope.api(client), Changed::of(replica_set));
        self.follow(Need::Helps, None, scope.api(client), Changed::of(stateful_set));
        self.follow(Need::Helps, None, scope.api(client), Changed::of(daemon_set));
        self.follow(Need::Helps, None, Api::all(client.clone()), Changed::of(node));
    }

    fn follow<K>(
        &mut self,
        need: Need,
        fields: Option<&'static str>,
        api: Api<K>,
        sink: impl Sink<K> + 'static,
    ) where
        K: Resource<DynamicType = ()> + Listed,
        K: k8s_openapi::Resource + std::fmt::Debug + Send + Sync + 'static,
    {
        let resource = <K as k8s_openapi::Resource>::URL_PATH_SEGMENT;
        self.views.update(|view| _ = view.unlisted.insert(resource));
        let following = Following {
            resource,
            need,
            labels: None,
            fields: fields.map(str::to_owned),
            api,
            sink,
            limits: self.limits,
            listener: Arc::clone(&self.listener),
            views: self.views.clone(),
            state: WatchState::at(self.listener.clock().now()),
        };
        self.tasks.spawn_stoppable(|stop| following.until(stop));
    }
}

struct PodSink(Views);

impl Sink<ListedPod> for PodSink {
    type Seen = SeenPod;

    fn see(&self, change: Change, ListedPod(pod): ListedPod) -> SeenPod {
        seen_pod(change, &pod)
    }

    fn take(&mut self, change: Change, seen: SeenPod) -> Option<EventKind> {
        let event = seen.event.clone();
        self.0.update(|view| view.see(change, seen));
        Some(EventKind::Pod(event))
    }

    fn begin_list(&mut self) {
        self.0.update(|view| {
            view.pods.clear();
            view.pods_listed = false;
        });
    }

    fn end_list(&mut self) {
        self.0.update(|view| view.pods_listed = true);
    }
}

/// Shows pods without keeping them in the view.
struct BarePodSink;

impl Sink<ListedPod> for BarePodSink {
    type Seen = PodEvent;

    fn see(&self, change: Change, ListedPod(pod): ListedPod) -> PodEvent {
        pod_event(change, &pod)
    }

    fn take(&mut self, _: Change, seen: PodEvent) -> Option<EventKind> {
        Some(EventKind::Pod(seen))
    }
}

struct SliceSink(Views);

impl Sink<EndpointSlice> for SliceSink {
    type Seen = EndpointSliceEvent;

    fn see(&self, change: Change, slice: EndpointSlice) -> EndpointSliceEvent {
        slice_event(change, &slice)
    }

    fn take(&mut self, change: Change, event: EndpointSliceEvent) -> Option<EventKind> {
        self.0.update(|view| match change {
            Change::Deleted => {
                view.slices.remove(&event.name);
            }
            Change::Listed | Change::Applied => {
                view.slices.insert(event.name.clone(), event.clone());
            }
        });
        Some(EventKind::EndpointSlice(event))
    }

    fn begin_list(&mut self) {
        self.0.update(|view| view.slices.clear());
    }

    fn end_list(&mut self) {
        self.0.update(|view| view.slices_listed = true);
    }
}

/// Shows slices without keeping them in the view.
struct BareSliceSink;

impl Sink<EndpointSlice> for BareSliceSink {
    type Seen = EndpointSliceEvent;

    fn see(&self, change: Change, slice: EndpointSlice) -> EndpointSliceEvent {
        slice_event(change, &slice)
    }

    fn take(&mut self, _: Change, seen: EndpointSliceEvent) -> Option<EventKind> {
        Some(EventKind::EndpointSlice(seen))
    }
}

struct ClusterEventSink;

impl Sink<ClusterEvent> for ClusterEventSink {
    type Seen = Option<EventKind>;

    fn see(&self, change: Change, event: ClusterEvent) -> Option<EventKind> {
        // Events in the initial list happened before the run.
        (change == Change::Applied).then(|| EventKind::ClusterEvent {
            container: event.involved_object.field_path.as_deref().and_then(container),
            pod: event.involved_object.name.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        })
    }

    fn take(&mut self, _: Change, seen: Option<EventKind>) -> Option<EventKind> {
        seen
    }
}

/// Returns the container named in a field path, such as `spec.containers{app}`.
fn container(path: &str) -> Option<String> {
    let (_, name) = path.strip_suffix('}')?.split_once("ontainers{")?;
    Some(name.to_owned())
}

/// Records an event about an object only if it differs from the last event about that object.
struct Changed<K> {
    of: fn(&K) -> EventKind,
    /// Last event by the object's namespace and name.
    last: BTreeMap<(Option<String>, String), EventKind>,
}

impl<K> Changed<K> {
    fn of(of: fn(&K) -> EventKind) -> Self {
        Self { of, last: BTreeMap::new() }
    }
}

impl<K: ResourceExt> Sink<K> for Changed<K> {
    /// Namespace and name of the object, and the event.
    type Seen = ((Option<String>, String), EventKind);

    fn see(&self, _: Change, object: K) -> Self::Seen {
        ((object.namespace(), object.name_any()), (self.of)(&object))
    }

    fn take(&mut self, change: Change, (object, mut kind): Self::Seen) -> Option<EventKind> {
        let before = match change {
            Change::Deleted => self.last.remove(&object),
            Change::Listed | Change::Applied => self.last.insert(object, kind.clone()),
        };
        let is_news = change == Change::Deleted || before.as_ref() != Some(&kind);
        if let EventKind::Workload(WorkloadEvent { change: said, .. })
        | EventKind::Node(NodeEvent { change: said, .. })
        | EventKind::Service(ServiceEvent { change: said, .. }) = &mut kind
        {
            *said = change;
        }
        is_news.then_some(kind)
    }
}

fn deployment(object: &Deployment) -> EventKind {
    let spec = object.spec.as_ref();
    let replicas = spec.map(|spec| spec.replicas.unwrap_or(1));
    let strategy = spec.and_then(|spec| spec.strategy.as_ref());
    let limit = strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.max_unavailable.as_ref());
    let replaced = (strategy.and_then(|strategy| strategy.type_.as_deref()), limit);
    workload("Deployment", object, replicas, spec.map(|spec| &spec.template), replaced)
}

fn replica_set(object: &ReplicaSet) -> EventKind {
    let spec = object.spec.as_ref();
    let replicas = spec.map(|spec| spec.replicas.unwrap_or(1));
    let template = spec.and_then(|spec| spec.template.as_ref());
    workload("ReplicaSet", object, replicas, template, (None, None))
}

fn stateful_set(object: &StatefulSet) -> EventKind {
    let spec = object.spec.as_ref();
    let replicas = spec.map(|spec| spec.replicas.unwrap_or(1));
    let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
    let limit = strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.max_unavailable.as_ref());
    let replaced = (strategy.and_then(|strategy| strategy.type_.as_deref()), limit);
    workload("StatefulSet", object, replicas, spec.map(|spec| &spec.template), replaced)
}

fn daemon_set(object: &DaemonSet) -> EventKind {
    let spec = object.spec.as_ref();
    let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
    let limit = strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.max_unavailable.as_ref());
    let replaced = (strategy.and_then(|strategy| strategy.type_.as_deref()), limit);
    workload("DaemonSet", object, None, spec.map(|spec| &spec.template), replaced)
}

/// Creates an event as if the workload had been applied; the sink fills in the real change later. The last argument is
/// the workload's strategy for replacing its pods, with the maximum number of unavailable pods.
fn workload(
    kind: &str,
    object: &impl ResourceExt,
    replicas: Option<i32>,
    template: Option<&PodTemplateSpec>,
    (strategy, max_unavailable): (Option<&str>, Option<&IntOrString>),
) -> EventKind {
    EventKind::Workload(WorkloadEvent {
        change: Change::Applied,
        workload: format!("{kind}/{}", object.name_any()),
        replicas,
        owner: controller(object),
        template: template_digest(template),
        strategy: strategy.map(|name| match name {
            "RollingUpdate" => Replacement::RollingUpdate,
            "Recreate" => Replacement::Recreate,
            "OnDelete" => Replacement::OnDelete,
            _ => Replacement::Other,
        }),
        max_unavailable: max_unavailable.map(|limit| match limit {
            IntOrString::Int(pods) => pods.to_string(),
            IntOrString::String(share) => share.clone(),
        }),
        // A Deployment's controller copies its annotations to its ReplicaSets.
        consumers: object.annotations().get(CONSUMERS).filter(|_| kind != "ReplicaSet").cloned(),
    })
}

/// Returns a digest that distinguishes a template from the others in a run.
pub(super) fn template_digest(template: Option<&PodTemplateSpec>) -> String {
    let template = serde_json::to_vec(&template).unwrap_or_default();
    let digest = ring::digest::digest(&ring::digest::SHA256, &template);
    let digest = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    digest.chars().take(DIGEST_DIGITS).collect()
}

fn node(object: &Node) -> EventKind {
    let conditions = object.status.iter().flat_map(|status| status.conditions.iter().flatten());
    EventKind::Node(NodeEvent {
        change: Change::Applied,
        node: object.name_any(),
        ready: conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True"),
        unschedulable: object.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
    })
}

fn service(object: &Service) -> EventKind {
    let spec = object.spec.as_ref();
    let first = spec.and_then(|spec| spec.cluster_ip.as_ref());
    let ips = spec.into_iter().flat_map(|spec| spec.cluster_ips.iter().flatten()).chain(first);
    let ports = spec.into_iter().flat_map(|spec| spec.ports.iter().flatten());
    EventKind::Service(ServiceEvent {
        change: Change::Applied,
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        // A headless Service has "None".
        cluster_ips: ips.filter_map(|ip| ip.parse().ok()).collect::<BTreeSet<_>>().into_iter().collect(),
        node_ports: ports.filter_map(|port| u16::try_from(port.node_port?).ok()).collect(),
    })
}

/// Returns the parts of a pod that the view keeps.
pub(super) fn seen_pod(change: Change, pod: &Pod) -> SeenPod {
    SeenPod { admin_port: admin_port(pod), event: pod_event(change, pod) }
}

/// Returns the container of the recording proxy, and its admin port.
pub(super) fn proxy_container(pod: &Pod) -> Option<(&str, i32)> {
    let spec = pod.spec.as_ref()?;
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut ports = containers.flat_map(|c| c.ports.iter().flatten().map(|p| (c.name.as_str(), p)));
    ports.find_map(|(container, port)| {
        (port.name.as_deref() == Some(ADMIN_PORT_NAME)).then_some((container, port.container_port))
    })
}

/// Returns the admin port of the recording proxy; `None` unless its container runs.
fn admin_port(pod: &Pod) -> Option<u16> {
    let (name, port) = proxy_container(pod)?;
    let runs = statuses(pod).any(|s| s.name == name && s.state.as_ref().is_some_and(|s| s.running.is_some()));
    runs.then(|| u16::try_from(port).ok()).flatten()
}

fn slice_event(change: Change, slice: &EndpointSlice) -> EndpointSliceEvent {
    let endpoints = slice.endpoints.iter().flatten().map(|endpoint| {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        EndpointState {
            pod: endpoint.target_ref.as_ref().and_then(|t| t.name.clone()),
            address: endpoint.addresses.first().cloned().unwrap_or_default(),
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.or(conditions.ready).unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
            node: endpoint.node_name.clone(),
        }
    });
    EndpointSliceEvent {
        change,
        namespace: slice.namespace().unwrap_or_default(),
        name: slice.name_any(),
        service: slice.labels().get("kubernetes.io/service-name").cloned(),
        endpoints: endpoints.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn services_are_shown_when_their_addresses_change() {
        let mut sink = Changed::of(service);
        let mut shown = |change: Change, spec: Value| {
            let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
            let seen = sink.see(change, serde_json::from_value::<Service>(object).unwrap());
            sink.take(change, seen).map(|kind| match kind {
                EventKind::Service(event) => {
                    let ips: Vec<String> = event.cluster_ips.iter().map(ToString::to_string).collect();
                    (event.change, ips.join(" "), event.node_ports)
                }
                other => panic!("{other:?}"),
            })
        };
        let both = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ports": [{"port": 80, "nodePort": 30_080}, {"port": 81}]});
        let expected = |change| Some((change, "10.96.0.1 fd00::1".to_owned(), vec![30_080]));
        assert_eq!(shown(Change::Listed, both.clone()), expected(Change::Listed));
        assert_eq!(shown(Change::Applied, both.clone()), None, "nothing has changed");
        let headless = json!({"clusterIP": "None", "clusterIPs": ["None"]});
        assert_eq!(shown(Change::Applied, headless), Some((Change::Applied, String::new(), Vec::new())));
        assert_eq!(shown(Change::Deleted, both), expected(Change::Deleted));
    }
}
