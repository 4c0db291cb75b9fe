//! Shows in EndpointSlices (and in the legacy [Endpoints](super::endpoints)) which pods back a
//! Service.
//!
//! A change of a pod becomes visible to this controller only after the measured latency of its
//! kind; from then on every slice that is written shows it. So one pod's slow change does not
//! hold up another's, and changes of one pod keep their order.
//!
//! Conditions follow staging/src/k8s.io/endpointslice/utils.go: a terminating pod stays, as
//! `terminating`, until it is terminal or gone. Unlike Kubernetes, which starts a new slice
//! after 100 endpoints, one slice holds all endpoints that have the same ports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::queue::Queue;
use super::{
    Key, controller_reference, endpoints, follow, is_being_deleted, is_controlled_by, is_ready, is_terminal,
    key,
};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::latency::{Latencies, Latency};
use crate::cluster::embedded::registry::{DeleteOptions, Part, WatchEventType};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::{LabelSelector, Selection};

const MANAGED_BY: &str = "endpointslice-controller.k8s.io";

pub(super) async fn run(shared: Shared) {
    let mut events = follow(&shared.registry, &[Resource::Services, Resource::Pods]);
    let mut view = View::default();
    let mut queue = Queue::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => {
                let removed = event.event_type == WatchEventType::Deleted;
                if resource == Resource::Pods {
                    let state = (!removed).then_some(event.object.clone());
                    let wait = view.observe(key(&event.object), state, &shared);
                    queue.add(Work::Pod(key(&event.object)), wait);
                } else if removed {
                    endpoints::remove(&shared, &event.object);
                } else {
                    queue.add(Work::Service(key(&event.object)), Duration::ZERO);
                }
            }
            work = queue.next() => match work {
                Work::Service(service) => sync(&shared, &view, &service),
                Work::Pod(pod) => {
                    let changed = view.advance(&pod);
                    if let Some(wait) = view.next_due(&pod) {
                        queue.add(Work::Pod(pod.clone()), wait);
                    }
                    for service in selecting(&shared, &pod.0, &changed) {
                        sync(&shared, &view, &service);
                    }
                }
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Service(Key),
    /// The next change of this pod becomes visible.
    Pod(Key),
}

/// The pods as this controller sees them.
#[derive(Debug, Default)]
struct View {
    pods: BTreeMap<Key, Arc<Value>>,
    /// Changes that are not yet visible, in order, each with the time when it will be.
    coming: BTreeMap<Key, VecDeque<Coming>>,
}

/// When a pod's state becomes visible, and the state (`None`: gone).
type Coming = (Instant, Option<Arc<Value>>);

impl View {
    /// Takes note of a pod's new state (`None`: gone) and answers when its next change is visible.
    fn observe(&mut self, pod: Key, state: Option<Arc<Value>>, shared: &Shared) -> Duration {
        let seen = self.pods.get(&pod);
        let coming = self.coming.entry(pod).or_default();
        let before = coming.back().map_or(seen, |(_, state)| state.as_ref());
        let latency = hop(before.map(Arc::as_ref), state.as_deref(), &shared.config.latencies);
        let at = Instant::now() + shared.sampler.sample(&latency);
        // A change never overtakes an earlier one of the same pod.
        let at = coming.back().map_or(at, |(earlier, _)| at.max(*earlier));
        coming.push_back((at, state));
        coming.front().map_or(at, |(at, _)| *at).saturating_duration_since(Instant::now())
    }

    /// Makes all changes of a pod visible that are due, and answers the states that it went through.
    fn advance(&mut self, pod: &Key) -> Vec<Arc<Value>> {
        let mut states: Vec<_> = self.pods.get(pod).cloned().into_iter().collect();
        let now = Instant::now();
        let Some(coming) = self.coming.get_mut(pod) else { return states };
        while coming.front().is_some_and(|(at, _)| *at <= now) {
            match coming.pop_front().and_then(|(_, state)| state) {
                Some(state) => {
                    self.pods.insert(pod.clone(), Arc::clone(&state));
                    states.push(state);
                }
                None => {
                    self.pods.remove(pod);
                }
            }
        }
        if coming.is_empty() {
            self.coming.remove(pod);
        }
        states
    }

    fn next_due(&self, pod: &Key) -> Option<Duration> {
        let (at, _) = self.coming.get(pod)?.front()?;
        Some(at.saturating_duration_since(Instant::now()))
    }
}

/// The latency of the hop from a pod's change to the slice that shows it.
fn hop(before: Option<&Value>, after: Option<&Value>, latencies: &Latencies) -> Latency {
    let was = |fact: fn(&Value) -> bool| before.is_some_and(fact);
    let Some(after) = after else { return latencies.terminated_to_slice };
    if is_terminal(after) && !was(is_terminal) {
        latencies.terminated_to_slice
    } else if is_being_deleted(after) && !was(is_being_deleted) {
        latencies.deletion_to_slice
    } else if has_address(after) && !was(has_address) {
        latencies.running_to_endpoint
    } else if before.is_some_and(|before| before["metadata"]["labels"] != after["metadata"]["labels"]) {
        latencies.terminated_to_slice
    } else {
        latencies.ready_to_slice
    }
}

fn has_address(pod: &Value) -> bool {
    pod["status"]["podIP"].is_string()
}

/// The Services of a namespace that select a pod in any of these states.
fn selecting(shared: &Shared, namespace: &str, states: &[Arc<Value>]) -> BTreeSet<Key> {
    let mut services = BTreeSet::new();
    for service in shared.registry.list(Resource::Services, Some(namespace), &Selection::all()).items {
        let Some(selector) = LabelSelector::from_map(&service["spec"]["selector"]) else { continue };
        if states.iter().any(|pod| selector.matches(&pod["metadata"]["labels"])) {
            services.insert(key(&service));
        }
    }
    services
}

/// Writes the slices of one Service as far as they differ from what they should be.
fn sync(shared: &Shared, view: &View, (namespace, name): &Key) {
    let registry = &shared.registry;
    let Ok(service) = registry.get(Resource::Services, namespace, name) else { return };
    let Some(selector) = LabelSelector::from_map(&service["spec"]["selector"]) else { return };
    let in_namespace = view.pods.range((namespace.clone(), String::new())..);
    let pods = in_namespace.take_while(|((home, _), _)| home == namespace).map(|(_, pod)| pod.as_ref());
    let mut wanted =
        endpoints_by_ports(&service, pods.filter(|pod| selector.matches(&pod["metadata"]["labels"])));

    endpoints::write(shared, &service, wanted.values());

    let of_service = Selection::labels(LabelSelector::from_map(&labels(name)).unwrap_or_default());
    let mut slices = registry.list(Resource::EndpointSlices, Some(namespace), &of_service).items;
    slices.retain(|slice| is_controlled_by(slice, &service));
    // Slices with the right ports stay; others are put to new use before new ones are made.
    let (keeping, mut spare): (Vec<_>, Vec<_>) =
        slices.into_iter().partition(|slice| wanted.contains_key(&slice["ports"].to_string()));
    for slice in keeping {
        match wanted.remove(&slice["ports"].to_string()) {
            Some((ports, endpoints)) => write(shared, &slice, &ports, &endpoints),
            None => spare.push(slice),
        }
    }
    for (ports, endpoints) in wanted.into_values() {
        match spare.pop() {
            Some(slice) => write(shared, &slice, &ports, &endpoints),
            None => create(shared, &service, &ports, &endpoints),
        }
    }
    for slice in spare {
        let (namespace, name) = key(&slice);
        if let Err(status) =
            registry.delete(Resource::EndpointSlices, &namespace, &name, &DeleteOptions::default())
        {
            tracing::debug!(%status, "EndpointSlice not deleted");
        }
    }
}

fn labels(service: &str) -> Value {
    json!({"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": MANAGED_BY})
}

/// Endpoints grouped by the ports that the Service's target ports mean in their pods. There is
/// always one group, if only an empty one.
fn endpoints_by_ports<'a>(
    service: &Value,
    pods: impl Iterator<Item = &'a Value>,
) -> BTreeMap<String, (Value, Vec<Value>)> {
    let mut groups: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    let publish_not_ready = service["spec"]["publishNotReadyAddresses"] == true;
    for pod in pods {
        if let Some(endpoint) = endpoint(pod, publish_not_ready) {
            let ports = ports(service, pod);
            groups.entry(ports.to_string()).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
        }
    }
    if groups.is_empty() {
        groups.insert(json!([]).to_string(), (json!([]), Vec::new()));
    }
    groups
}

/// A pod's entry in a slice, if it is to have one.
fn endpoint(pod: &Value, publish_not_ready: bool) -> Option<Value> {
    let ip = pod["status"]["podIP"].as_str().filter(|_| !is_terminal(pod))?;
    let terminating = is_being_deleted(pod);
    let serving = publish_not_ready || is_ready(pod);
    let ready = publish_not_ready || (serving && !terminating);
    Some(json!({
        "addresses": [ip],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": pod["metadata"]["namespace"],
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        },
        "nodeName": pod["spec"]["nodeName"],
    }))
}

/// A Service's ports as they are in a pod; a named target port that the pod lacks is left out.
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
            ports.push(json!({"name": name, "protocol": port["protocol"], "port": number}));
        }
    }
    Value::Array(ports)
}

/// A named port of a pod's containers, native sidecars included.
fn container_port(pod: &Value, name: &str, protocol: &Value) -> Option<Value> {
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    let sidecars = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
    let mut ports = list("containers")
        .chain(sidecars)
        .flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let port = ports.find(|port| port["name"] == name && port["protocol"] == *protocol)?;
    Some(port["containerPort"].clone())
}

fn write(shared: &Shared, slice: &Value, ports: &Value, endpoints: &[Value]) {
    let (namespace, name) = key(slice);
    let written = shared.registry.modify(Resource::EndpointSlices, &namespace, &name, Part::Main, |slice| {
        slice["ports"] = ports.clone();
        slice["endpoints"] = json!(endpoints);
    });
    if let Err(status) = written {
        tracing::debug!(%status, "EndpointSlice not written");
    }
}

fn create(shared: &Shared, service: &Value, ports: &Value, endpoints: &[Value]) {
    let (namespace, name) = key(service);
    let slice = json!({
        "metadata": {
            "generateName": format!("{name}-"),
            "labels": labels(&name),
            "ownerReferences": [controller_reference(service)],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    });
    if let Err(status) = shared.registry.create(Resource::EndpointSlices, &namespace, slice) {
        tracing::debug!(%status, "EndpointSlice not created");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "web-1", "namespace": "default", "uid": "u", "labels": {"app": "web"}},
            "spec": {
                "nodeName": "node-1",
                "containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}],
                "initContainers": [{
                    "name": "side", "restartPolicy": "Always",
                    "ports": [{"name": "proxied", "containerPort": 9090, "protocol": "TCP"}],
                }],
            },
            "status": {"podIP": "127.64.1.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    fn conditions(change: impl FnOnce(&mut Value), publish_not_ready: bool) -> Option<(bool, bool, bool)> {
        let mut pod = pod();
        change(&mut pod);
        let endpoint = endpoint(&pod, publish_not_ready)?;
        let is = |name: &str| endpoint["conditions"][name] == true;
        Some((is("ready"), is("serving"), is("terminating")))
    }

    #[test]
    fn conditions_follow_the_pods_life() {
        let delete = |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(conditions(|_| {}, false), Some((true, true, false)));
        assert_eq!(conditions(unready, false), Some((false, false, false)));
        assert_eq!(conditions(delete, false), Some((false, true, true)));
        assert_eq!(
            conditions(
                |pod| {
                    delete(pod);
                    unready(pod);
                },
                false
            ),
            Some((false, false, true))
        );
        assert_eq!(conditions(delete, true), Some((true, true, true)));
        assert_eq!(conditions(|pod| pod["status"]["phase"] = json!("Failed"), false), None);
        assert_eq!(conditions(|pod| pod["status"]["podIP"] = Value::Null, false), None);
    }

    #[test]
    fn target_ports_resolve_by_number_and_by_name() {
        let service = |target: Value| json!({"spec": {"ports": [{"name": "p", "port": 80, "protocol": "TCP", "targetPort": target}]}});
        let resolved = |target: Value| ports(&service(target), &pod())[0]["port"].clone();
        assert_eq!(resolved(json!(1234)), 1234);
        assert_eq!(resolved(json!("http")), 8080);
        assert_eq!(resolved(json!("proxied")), 9090);
        assert_eq!(ports(&service(json!("nosuch")), &pod()), json!([]));
    }

    #[test]
    fn pods_that_name_another_port_get_another_slice() {
        let service =
            json!({"spec": {"ports": [{"name": "p", "port": 80, "protocol": "TCP", "targetPort": "http"}]}});
        let mut moved = pod();
        moved["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(8081);
        let (old, same) = (pod(), pod());
        let groups = endpoints_by_ports(&service, [&old, &moved, &same].into_iter());
        let sizes: Vec<_> =
            groups.values().map(|(ports, endpoints)| (ports[0]["port"].clone(), endpoints.len())).collect();
        assert_eq!(sizes, [(json!(8080), 2), (json!(8081), 1)]);
        assert_eq!(endpoints_by_ports(&service, std::iter::empty()).len(), 1);
    }

    #[test]
    fn each_kind_of_change_has_its_own_hop() {
        let latencies = Latencies::default();
        let hop_of = |before: Option<&Value>, after: Option<&Value>| hop(before, after, &latencies);
        let changed = |change: fn(&mut Value)| {
            let mut pod = pod();
            change(&mut pod);
            pod
        };
        let running = pod();
        let pending = changed(|pod| pod["status"]["podIP"] = Value::Null);
        let unready = changed(|pod| pod["status"]["conditions"][0]["status"] = json!("False"));
        let deleted = changed(|pod| pod["metadata"]["deletionTimestamp"] = json!("x"));
        let ended = changed(|pod| {
            pod["metadata"]["deletionTimestamp"] = json!("x");
            pod["status"]["phase"] = json!("Failed");
        });
        assert_eq!(hop_of(Some(&pending), Some(&running)), latencies.running_to_endpoint);
        assert_eq!(hop_of(Some(&unready), Some(&running)), latencies.ready_to_slice);
        assert_eq!(hop_of(Some(&running), Some(&deleted)), latencies.deletion_to_slice);
        assert_eq!(hop_of(Some(&deleted), Some(&ended)), latencies.terminated_to_slice);
        assert_eq!(hop_of(Some(&ended), None), latencies.terminated_to_slice);
    }
}
