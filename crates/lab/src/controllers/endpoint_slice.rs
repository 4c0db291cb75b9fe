//! Maintains EndpointSlices (and legacy [Endpoints](super::legacy_endpoints)), which list the pods that back a Service.
//!
//! The controller sees pods through a delayed [`visible_pods`]. Once a change is visible there, every slice written
//! reflects it. Conditions follow staging/src/k8s.io/endpointslice/utils.go: a terminating pod remains in its slice, as
//! `terminating`, until the pod is terminal or gone. All endpoints with the same ports share one slice. Services
//! without a selector are ignored.

mod visible_pods;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde_json::{Value, json};

use super::client_rate::ClientRate;
use super::legacy_endpoints::{self, Group, labels};
use super::queue::WorkQueue;
use super::reconciler::{self, BackOff, ReconcileResult};
use crate::object_fields::{
    ObjectKey, controller_reference, is_being_deleted, is_controlled_by, is_ready, is_terminal, key,
};
use crate::registry::{EventType, ObjectPart, ObservedEvent, WatchEventType, follow};
use crate::resource::Resource;
use crate::selector::{LabelSelector, ObjectSelection};
use crate::shared::ClusterContext;
use crate::status::Status;
use crate::sync::lock;
use crate::value::list;
use crate::well_known::SERVICE_NAME;
use visible_pods::VisiblePods;

const COMPONENT: &str = "endpoint-slice-controller";
const MANAGED_BY: &str = "endpointslice-controller.k8s.io";

/// Back-off after a failed write: initial and maximum delay (`defaultSyncBackOff`, `maxSyncBackOff` in
/// pkg/controller/endpointslice).
const SYNC_BACK_OFF: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(1000) };

pub(super) async fn run(shared: ClusterContext) {
    let view = Arc::new(Mutex::new(VisiblePods::default()));
    let rate = ClientRate::of(&shared.config);
    let legacy_rate = ClientRate::of(&shared.config);
    let changes = changed_services(shared.clone(), Arc::clone(&view));
    let (shared, view, rate, legacy_rate) = (&shared, &view, &rate, &legacy_rate);
    let work = |service| async move { sync(shared, view, rate, legacy_rate, &service).await };
    reconciler::run(changes, SYNC_BACK_OFF, |services| services, work).await;
}

/// Returns a stream of the Services whose slices may have to change, as changes become visible.
fn changed_services(
    shared: ClusterContext,
    view: Arc<Mutex<VisiblePods>>,
) -> BoxStream<'static, Vec<ObjectKey>> {
    let events = follow(&shared.registry, &[Resource::Services, Resource::Pods]);
    let start = (shared, view, events, WorkQueue::new());
    stream::unfold(start, |(shared, view, mut events, mut queue)| async move {
        let services = tokio::select! {
            Some(event) = events.next() => observe(&shared, &view, event, &mut queue),
            pod = queue.next() => {
                let mut seen = lock(&view);
                let changed = seen.advance(&pod);
                if let Some(wait) = seen.next_due(&pod) {
                    queue.add(pod.clone(), wait);
                }
                selecting(&shared, &pod.0, &changed)
            }
        };
        Some((services, (shared, view, events, queue)))
    })
    .boxed()
}

/// Records an event, and returns the Services that it affects immediately.
fn observe(
    shared: &ClusterContext,
    view: &Mutex<VisiblePods>,
    (resource, event): ObservedEvent,
    queue: &mut WorkQueue<ObjectKey>,
) -> Vec<ObjectKey> {
    let object_key = key(&event.object);
    let removed = event.event_type == WatchEventType::Deleted;
    if resource == Resource::Pods {
        let state = (!removed).then_some(event.object);
        let wait = lock(view).observe(object_key.clone(), state, shared);
        queue.add(object_key, wait);
        return Vec::new();
    }
    if removed {
        legacy_endpoints::remove(shared, &event.object);
        return Vec::new();
    }
    vec![object_key]
}

/// Returns the Services in a namespace that select a pod in any of these states.
fn selecting(shared: &ClusterContext, namespace: &str, states: &[Arc<Value>]) -> Vec<ObjectKey> {
    let mut services = BTreeSet::new();
    for service in shared.registry.all(Resource::Services, Some(namespace)) {
        let Some(selector) = LabelSelector::from_map(&service["spec"]["selector"]) else { continue };
        if states.iter().any(|pod| selector.matches(&pod["metadata"]["labels"])) {
            services.insert(key(&service));
        }
    }
    services.into_iter().collect()
}

/// Writes those slices of a Service that differ from the desired state.
async fn sync(
    shared: &ClusterContext,
    view: &Mutex<VisiblePods>,
    rate: &ClientRate,
    legacy_rate: &ClientRate,
    (namespace, name): &ObjectKey,
) -> ReconcileResult {
    let registry = &shared.registry;
    let Ok(service) = registry.get(Resource::Services, namespace, name) else { return Ok(None) };
    let Some(selector) = LabelSelector::from_map(&service["spec"]["selector"]) else { return Ok(None) };
    if service["spec"]["type"] == "ExternalName" || is_being_deleted(&service) {
        return Ok(None);
    }
    let mut pods = lock(view).pods_in(namespace);
    pods.retain(|pod| selector.matches(&pod["metadata"]["labels"]));
    let groups = endpoints_by_ports(&service, pods.iter().map(Arc::as_ref));
    // In Kubernetes, these are two controllers with separate clients.
    let (legacy, slices) = futures::join!(
        legacy_endpoints::write(shared, legacy_rate, &service, groups.values()),
        write_slices(shared, rate, &service, &groups),
    );
    let Err(why) = slices else { return legacy.map(|()| None) };
    let message = format!("Error updating Endpoint Slices for Service {namespace}/{name}: {why}");
    registry.record_event(&service, EventType::Warning, "FailedToUpdateEndpointSlices", &message, COMPONENT);
    Err(Status::internal(message))
}

/// Returns a function that prefixes an error with the action that failed.
fn failed(to: &str, service: &Value) -> impl Fn(Status) -> Status {
    let (namespace, name) = key(service);
    let what = format!("failed to {to} EndpointSlice for Service {namespace}/{name}");
    move |status| Status::internal(format!("{what}: {status}"))
}

async fn write_slices(
    shared: &ClusterContext,
    rate: &ClientRate,
    service: &Value,
    groups: &BTreeMap<String, Group>,
) -> Result<(), Status> {
    let (namespace, name) = key(service);
    let own = json!({SERVICE_NAME: name, "endpointslice.kubernetes.io/managed-by": MANAGED_BY});
    let of_service = ObjectSelection::labels(LabelSelector::from_map(&own).unwrap_or_default());
    let mut slices = shared.registry.list(Resource::EndpointSlices, Some(&namespace), &of_service).items;
    slices.retain(|slice| is_controlled_by(slice, service) && !is_being_deleted(slice));
    let labels = labels(service, own);

    let (mut spare, mut fresh, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for slice in &slices {
        if !groups.contains_key(&slice["ports"].to_string()) {
            spare.push(slice);
        }
    }
    for (ports, endpoints) in groups.values() {
        let mut of_group = slices.iter().filter(|slice| slice["ports"] == *ports);
        let Some(slice) = of_group.next() else {
            fresh.push((ports, endpoints.clone()));
            continue;
        };
        spare.extend(of_group);
        let before = slice["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        let endpoints = in_the_order_of(before, endpoints);
        if *before != endpoints[..] || slice["metadata"]["labels"] != labels {
            writes.push((slice, ports, endpoints));
        }
    }
    for (ports, endpoints) in fresh {
        match spare.pop() {
            Some(slice) => writes.push((slice, ports, endpoints)),
            None => {
                rate.permit().await;
                let slice = new_slice(service, &labels, ports, endpoints);
                match shared.registry.create(Resource::EndpointSlices, &namespace, slice) {
                    // The namespace is being deleted, so there is nothing left to do.
                    Err(status) if status.is_about_a_terminating_namespace() => return Ok(()),
                    created => created.map_err(failed("create", service))?,
                };
            }
        }
    }
    for (slice, ports, endpoints) in writes {
        rate.permit().await;
        let change = |slice: &mut Value| {
            slice["metadata"]["labels"] = labels.clone();
            slice["ports"] = ports.clone();
            slice["endpoints"] = json!(endpoints);
        };
        let written = shared.registry.change(Resource::EndpointSlices, slice, ObjectPart::Main, change);
        written.map_err(failed(&format!("update {}", key(slice).1), service))?;
    }
    for slice in spare {
        rate.permit().await;
        let removed = shared.registry.remove(Resource::EndpointSlices, slice);
        removed.map_err(failed(&format!("delete {}", key(slice).1), service))?;
    }
    Ok(())
}

/// Sorts the desired endpoints: those that were already in the slice keep their order, and new ones follow.
fn in_the_order_of(before: &[Value], wanted: &[Value]) -> Vec<Value> {
    let is_same = |a: &Value, b: &Value| {
        a["targetRef"]["uid"] == b["targetRef"]["uid"] && a["addresses"] == b["addresses"]
    };
    let stay = before.iter().filter_map(|old| wanted.iter().find(|new| is_same(new, old)));
    let come = wanted.iter().filter(|new| !before.iter().any(|old| is_same(new, old)));
    stay.chain(come).cloned().collect()
}

fn new_slice(service: &Value, labels: &Value, ports: &Value, endpoints: Vec<Value>) -> Value {
    json!({
        "metadata": {
            "generateName": format!("{}-", key(service).1),
            "labels": labels,
            "ownerReferences": [controller_reference(service)],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    })
}

/// Groups endpoints by the port numbers to which the Service's target ports resolve in their pods. Returns at least
/// one group, which may be empty.
fn endpoints_by_ports<'a>(service: &Value, pods: impl Iterator<Item = &'a Value>) -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for pod in pods {
        if let Some(endpoint) = endpoint(pod, service) {
            let ports = ports(service, pod);
            groups.entry(ports.to_string()).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
        }
    }
    if groups.is_empty() {
        groups.insert(json!([]).to_string(), (json!([]), Vec::new()));
    }
    groups
}

/// Returns a pod's endpoint for a slice, if the pod should have one.
fn endpoint(pod: &Value, service: &Value) -> Option<Value> {
    let ip = pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty() && !is_terminal(pod))?;
    let publish_not_ready = service["spec"]["publishNotReadyAddresses"] == true;
    let terminating = is_being_deleted(pod);
    let serving = publish_not_ready || is_ready(pod);
    let ready = publish_not_ready || (serving && !terminating);
    let mut endpoint = json!({
        "addresses": [ip],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": pod["metadata"]["namespace"],
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        },
    });
    if pod["spec"]["nodeName"].is_string() {
        endpoint["nodeName"] = pod["spec"]["nodeName"].clone();
    }
    // DNS resolves HOSTNAME.SERVICE to the pod.
    let has_name = pod["spec"]["hostname"].as_str().is_some_and(|name| !name.is_empty());
    if has_name && pod["spec"]["subdomain"] == service["metadata"]["name"] {
        endpoint["hostname"] = pod["spec"]["hostname"].clone();
    }
    Some(endpoint)
}

/// Resolves a Service's ports for a pod, omitting named target ports that the pod does not declare.
fn ports(service: &Value, pod: &Value) -> Value {
    let mut ports = Vec::new();
    for port in service["spec"]["ports"].as_array().into_iter().flatten() {
        let number = match &port["targetPort"] {
            Value::String(name) => container_port(pod, name, &port["protocol"]),
            Value::Number(number) => Some(json!(number)),
            _ => Some(port["port"].clone()),
        };
        if let Some(number) = number {
            let name = port["name"].as_str().unwrap_or_default();
            let mut shown = json!({"name": name, "protocol": port["protocol"], "port": number});
            if port["appProtocol"].is_string() {
                shown["appProtocol"] = port["appProtocol"].clone();
            }
            ports.push(shown);
        }
    }
    Value::Array(ports)
}

/// Finds a named port in a pod's containers, including native sidecars.
fn container_port(pod: &Value, name: &str, protocol: &Value) -> Option<Value> {
    let inits = list(&pod["spec"]["initContainers"]).iter();
    let sidecars = inits.filter(|container| container["restartPolicy"] == "Always");
    let mains = list(&pod["spec"]["containers"]).iter();
    let mut ports = mains.chain(sidecars).flat_map(|container| list(&container["ports"]));
    let port = ports.find(|port| port["name"] == name && port["protocol"] == *protocol)?;
    Some(port["containerPort"].clone())
}

#[cfg(test)]
mod tests;
