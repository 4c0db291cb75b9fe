//! A simulated Service whose proxy picks endpoints at random and updates its rules late.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldrop_record::event::{Change, EndpointSliceEvent, EndpointState};
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{Event, EventKind, Outcome, Records};

use super::{MS, at, delete, pod_event, records, request};

/// Delays after the deletion call: until the listener is closed, until the address is gone, and until the watch shows
/// that the pod is gone.
const REFUSES_MS: i64 = 30;
const GONE_MS: i64 = 150;
const SHOWN_MS: i64 = 250;

/// Requests whose pod is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// All requests, including lost ones, as if the kernel and the sidecar had named their pods.
    All,
    /// Answered requests, from a response header.
    Header,
    /// No requests.
    Nothing,
}

/// A simulated Service, whose rules are the ground truth.
pub struct Service {
    /// Records of the run.
    pub records: Records,
    /// Sets of pods in the rules, each with the time in milliseconds from which it applies.
    rules: Vec<(i64, Vec<String>)>,
    /// Times at which pods were deleted, in milliseconds.
    pub deleted: HashMap<String, i64>,
    listens: HashMap<String, i64>,
    /// Time for which a pod continues to serve after its deletion.
    pub drains_ms: i64,
}

impl Service {
    /// Creates a Service with these pods ready, both in the slices and in the rules.
    pub fn new(pods: &[&str]) -> Self {
        let mut records = records();
        records.info.cluster.dataplane = ServiceProxy::Nftables;
        let target = &mut records.info.targets[0];
        (target.url, target.service) = ("http://10.96.0.1".into(), Some("web".into()));
        records.events.retain(|event| !matches!(event.kind, EventKind::Pod(_)));
        let (deleted, listens) = (HashMap::new(), HashMap::new());
        let mut service = Self { records, rules: Vec::new(), deleted, listens, drains_ms: 0 };
        for pod in pods {
            service.records.events.push(pod_event(-1000, pod, Change::Applied));
        }
        service.slice(-900, pods, &[]);
        service.rules(-800, pods);
        service
    }

    /// Sets the content of the slices as of `ms`.
    pub fn slice(&mut self, ms: i64, ready: &[&str], terminating: &[&str]) {
        let endpoint = |pod: &&str, terminating: bool| EndpointState {
            pod: Some((*pod).into()),
            address: "10.0.0.1".into(),
            ready: !terminating,
            serving: true,
            terminating,
            node: None,
        };
        let event = EndpointSliceEvent {
            change: Change::Applied,
            namespace: "default".into(),
            name: "web-x".into(),
            service: Some("web".into()),
            endpoints: ready
                .iter()
                .map(|pod| endpoint(pod, false))
                .chain(terminating.iter().map(|pod| endpoint(pod, true)))
                .collect(),
        };
        self.records.events.push(Event::new(at(ms), "coordinator", EventKind::EndpointSlice(event)));
    }

    /// Sets the pods in the rules as of `ms`.
    pub fn rules(&mut self, ms: i64, pods: &[&str]) {
        self.rules.push((ms, pods.iter().map(|pod| (*pod).to_owned()).collect()));
    }

    /// Deletes a pod at `ms`.
    pub fn delete(&mut self, ms: i64, pod: &str) {
        self.deleted.insert(pod.to_owned(), ms);
        delete(&mut self.records, ms, pod);
        self.records.events.last_mut().unwrap().at = at(ms + self.drains_ms + 800);
        let mut terminated = pod_event(ms + self.drains_ms + SHOWN_MS, pod, Change::Applied);
        if let EventKind::Pod(event) = &mut terminated.kind {
            event.ready = false;
            event.deletion_timestamp = Some(at(ms + 30_000));
            event.deletion_grace_s = Some(30);
            for container in &mut event.containers {
                (container.state, container.exit_code) = (Some("terminated".into()), Some(0));
            }
        }
        self.records.events.push(terminated);
    }

    /// Starts a pod without a readiness probe: the pod counts as ready immediately, but starts listening later.
    pub fn start(&mut self, ms: i64, pod: &str, listens_ms: i64) {
        self.listens.insert(pod.to_owned(), listens_ms);
        let mut started = pod_event(ms, pod, Change::Applied);
        if let EventKind::Pod(event) = &mut started.kind {
            for container in &mut event.containers {
                container.readiness_probe = Some(false);
            }
        }
        self.records.events.push(started);
    }

    /// Returns the outcome of a new connection to the pod.
    pub fn outcome(&self, pod: &str, ms: i64) -> Outcome {
        let since = self.deleted.get(pod).map_or(i64::MIN, |deleted| ms - deleted - self.drains_ms);
        let listens = self.listens.get(pod).is_none_or(|from| ms >= *from);
        match since {
            GONE_MS.. => Outcome::ConnectTimeout,
            REFUSES_MS.. => Outcome::ConnectRefused,
            _ if !listens => Outcome::ConnectRefused,
            _ => Outcome::Ok,
        }
    }

    /// Sends 10 s of load; returns the pod of each request.
    pub fn load(&mut self, rate: i64, naming: Naming, seed: u64) -> Vec<String> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut pods = Vec::new();
        for ns in (0..10 * rate).map(|i| i * 1000 * MS / rate) {
            let ms = ns / MS;
            let (_, routed) = self.rules.iter().rfind(|(from, _)| *from <= ms).unwrap();
            let pod = routed[random.random_range(0..routed.len())].clone();
            let outcome = self.outcome(&pod, ms);
            let is_named = naming == Naming::All || naming == Naming::Header && outcome == Outcome::Ok;
            let name = is_named.then_some(pod.as_str());
            request(&mut self.records, ns, outcome, name);
            let row = self.records.requests.last_mut().unwrap();
            if outcome != Outcome::Ok {
                (row.connected, row.sent) = (None, None);
            }
            if outcome == Outcome::ConnectTimeout {
                row.end = row.scheduled.shifted_ns(1000 * MS);
            }
            pods.push(pod);
        }
        self.records.events.sort_by_key(|event| event.at);
        pods
    }

    /// Returns the time at which the pod left the rules, in seconds since its deletion.
    pub fn left_s(&self, pod: &str) -> f64 {
        let deleted = self.deleted[pod];
        let left = self.rules.iter().find(|(at, pods)| *at >= deleted && !pods.iter().any(|p| p == pod));
        (left.unwrap().0 - deleted) as f64 / 1e3
    }
}

/// Simulates a rollout that deletes all three pods at the same time. The first leaves the rules immediately, the others
/// a second later, when their successors are ready.
pub fn all_at_once(naming: Naming, seed: u64) -> (Service, Vec<String>) {
    let mut service = Service::new(&["a", "b", "c"]);
    for pod in ["a", "b", "c"] {
        service.delete(5000, pod);
    }
    service.slice(5045, &["b", "c"], &["a"]);
    service.slice(5060, &[], &["a", "b", "c"]);
    service.rules(5085, &["b", "c"]);
    service.slice(5265, &[], &[]);
    for pod in ["d", "e", "f"] {
        service.start(5300, pod, 5400);
    }
    service.slice(6050, &["d", "e", "f"], &[]);
    service.rules(6130, &["d", "e", "f"]);
    let pods = service.load(400, naming, seed);
    (service, pods)
}
