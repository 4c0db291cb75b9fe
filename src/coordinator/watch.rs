//! Watches of Pods, EndpointSlices and Events, written down as they arrive.
//!
//! A watch that breaks begins anew with a list. What happened between its last
//! good line and that list is unknown: a gap is recorded, no transition invented.

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Event as ClusterEvent, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Recorder;
use super::recorder::RecorderHandle;
use super::view::{SeenPod, Views};
use crate::observed::{pod_event, statuses};
use crate::record::event::{Change, EndpointSliceEvent, EndpointState};
use crate::record::{Clock, EventKind, Stamp};

/// The name by which a proxy's container port is found.
const ADMIN_PORT_NAME: &str = "rolldrop-admin";

pub(super) fn spawn(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespace: &str,
    clock: Clock,
    recorder: &Recorder,
    views: &Views,
    stop: &CancellationToken,
) {
    let log = |resource| Log { resource, clock, recorder: recorder.handle(), last_good: None, listed: false };
    let config = watcher::Config::default();

    let pods = watcher::watcher(Api::<Pod>::namespaced(client.clone(), namespace), config.clone());
    tasks.spawn(follow(pods, log("pods"), PodSink(views.clone()), stop.clone()));

    let slices =
        watcher::watcher(Api::<EndpointSlice>::namespaced(client.clone(), namespace), config.clone());
    tasks.spawn(follow(slices, log("endpointslices"), SliceSink(views.clone()), stop.clone()));

    let config = config.fields("involvedObject.kind=Pod");
    let events = watcher::watcher(Api::<ClusterEvent>::namespaced(client.clone(), namespace), config);
    tasks.spawn(follow(events, log("events"), ClusterEventSink, stop.clone()));
}

/// Takes the objects of one watch into the view, and says what is to be recorded.
trait Sink<K> {
    fn take(&self, change: Change, object: K) -> Option<EventKind>;
    fn begin_list(&self) {}
    fn end_list(&self) {}
}

struct Log {
    resource: &'static str,
    clock: Clock,
    recorder: RecorderHandle,
    last_good: Option<Stamp>,
    listed: bool,
}

async fn follow<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    mut log: Log,
    sink: impl Sink<K>,
    stop: CancellationToken,
) {
    let mut stream = std::pin::pin!(stream.default_backoff());
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            () = stop.cancelled() => return,
        };
        let now = log.clock.now();
        let event = match item {
            None => return,
            Some(Err(error)) => {
                tracing::debug!(resource = log.resource, %error, "watch interrupted");
                continue;
            }
            Some(Ok(event)) => event,
        };
        let (change, object) = match event {
            Event::Apply(object) => (Change::Applied, object),
            Event::Delete(object) => (Change::Deleted, object),
            Event::InitApply(object) => (Change::Listed, object),
            Event::Init => {
                if log.listed {
                    let from = log.last_good.unwrap_or(now);
                    log.recorder.event(now, EventKind::WatchGap { resource: log.resource.into(), from });
                }
                sink.begin_list();
                continue;
            }
            Event::InitDone => {
                log.listed = true;
                log.last_good = Some(now);
                sink.end_list();
                continue;
            }
        };
        log.last_good = Some(now);
        if let Some(kind) = sink.take(change, object) {
            log.recorder.event(now, kind);
        }
    }
}

struct PodSink(Views);

impl Sink<Pod> for PodSink {
    fn take(&self, change: Change, pod: Pod) -> Option<EventKind> {
        let seen = SeenPod { admin_port: admin_port(&pod), event: pod_event(change, &pod) };
        let event = seen.event.clone();
        self.0.update(|view| view.see(change, seen));
        Some(EventKind::Pod(event))
    }

    fn begin_list(&self) {
        self.0.update(|view| {
            view.pods.clear();
            view.pods_listed = false;
        });
    }

    fn end_list(&self) {
        self.0.update(|view| view.pods_listed = true);
    }
}

struct SliceSink(Views);

impl Sink<EndpointSlice> for SliceSink {
    fn take(&self, change: Change, slice: EndpointSlice) -> Option<EventKind> {
        let event = slice_event(change, &slice);
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

    fn begin_list(&self) {
        self.0.update(|view| view.slices.clear());
    }

    fn end_list(&self) {
        self.0.update(|view| view.slices_listed = true);
    }
}

struct ClusterEventSink;

impl Sink<ClusterEvent> for ClusterEventSink {
    fn take(&self, change: Change, event: ClusterEvent) -> Option<EventKind> {
        // Listed ones happened before the run.
        (change == Change::Applied).then(|| EventKind::ClusterEvent {
            pod: event.involved_object.name.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        })
    }
}

/// The proxy's admin port, if its container runs.
fn admin_port(pod: &Pod) -> Option<u16> {
    let spec = pod.spec.as_ref()?;
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let (name, port) = containers.flat_map(|c| c.ports.iter().flatten().map(|p| (&c.name, p))).find_map(
        |(container, port)| {
            (port.name.as_deref() == Some(ADMIN_PORT_NAME)).then_some((container, port.container_port))
        },
    )?;
    let runs =
        statuses(pod).any(|s| s.name == *name && s.state.as_ref().is_some_and(|s| s.running.is_some()));
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
