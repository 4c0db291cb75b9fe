//! Test bench: a cluster's objects and some of its controllers, without processes. The test acts as the node agents.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ClusterConfig;
use crate::address_block::AddressBlock;
use crate::hop_latency::{HopLatencies, Sampler};
use crate::object_fields::{is_being_deleted, is_terminal, key};
use crate::registry::{DeleteOptions, ObjectPart, Registry};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use rolldrop_record::Clock;

/// Timeout that is long enough even on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

pub(in super::super) const NAMESPACE: &str = "default";

/// Controller to run.
pub(in super::super) type Controller = fn(ClusterContext) -> BoxFuture<'static, ()>;

/// A cluster's objects, with controllers that stop when the bench is dropped.
pub(in super::super) struct Bench {
    pub(in super::super) shared: ClusterContext,
    _controllers: JoinSet<()>,
}

impl Bench {
    /// Starts `controllers` without delays.
    pub(in super::super) fn start(controllers: &[Controller]) -> Self {
        Self::start_with(ClusterConfig::default(), controllers)
    }

    /// Starts `controllers` with a given configuration, but without delays.
    pub(in super::super) fn start_with(config: ClusterConfig, controllers: &[Controller]) -> Self {
        let config = ClusterConfig { latencies: HopLatencies::ZERO, ..config };
        let addresses = AddressBlock::claim(rand::random_range(0..128)).unwrap();
        let clock = Clock::start();
        let registry = Registry::new(clock, addresses, "".into());
        for name in [NAMESPACE, "kube-system"] {
            registry.create(Resource::Namespaces, "", json!({"metadata": {"name": name}})).unwrap();
        }
        let shared = ClusterContext {
            registry,
            config: Arc::new(config),
            sampler: Sampler::seeded(1),
            clock,
            network: crate::network::Network::Userspace,
            log_dir: Arc::new("/nonexistent".into()),
            stop: CancellationToken::new(),
        };
        let mut tasks = JoinSet::new();
        for controller in controllers {
            tasks.spawn(controller(shared.clone()));
        }
        Self { shared, _controllers: tasks }
    }

    pub(in super::super) fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    pub(in super::super) fn create(&self, resource: Resource, object: Value) -> Arc<Value> {
        let namespace = if resource.namespaced() { NAMESPACE } else { "" };
        self.registry().create(resource, namespace, object).unwrap()
    }

    pub(in super::super) fn get(&self, resource: Resource, name: &str) -> Arc<Value> {
        let namespace = if resource.namespaced() { NAMESPACE } else { "" };
        self.registry().get(resource, namespace, name).unwrap()
    }

    pub(in super::super) fn list(&self, resource: Resource) -> Vec<Arc<Value>> {
        self.registry().all(resource, None)
    }

    pub(in super::super) fn modify(
        &self,
        resource: Resource,
        name: &str,
        part: ObjectPart,
        change: impl FnOnce(&mut Value),
    ) {
        let namespace = if resource.namespaced() { NAMESPACE } else { "" };
        self.registry().modify(resource, namespace, name, part, change).unwrap();
    }

    /// Returns the pods that are neither being deleted nor terminal.
    pub(in super::super) fn live_pods(&self) -> Vec<Arc<Value>> {
        let mut pods = self.list(Resource::Pods);
        pods.retain(|pod| !is_being_deleted(pod) && !is_terminal(pod));
        pods
    }

    /// Waits until `found` returns a value, and returns that value.
    pub(in super::super) async fn until<T>(
        &self,
        what: &str,
        mut found: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        let search = async {
            loop {
                if let Some(value) = found(self) {
                    return value;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .unwrap_or_else(|_| panic!("timed out after {PATIENCE:?} waiting for: {what}"))
    }

    /// Waits until the condition `holds` is true.
    pub(in super::super) async fn holds(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        self.until(what, |bench| holds(bench).then_some(())).await;
    }

    /// Acts as scheduler and node agents: binds and starts pods, and removes those marked for deletion. Returns true if
    /// there was anything to do.
    pub(in super::super) fn run_nodes(&self) -> bool {
        let mut busy = false;
        for pod in self.list(Resource::Pods) {
            let (namespace, name) = key(&pod);
            if is_being_deleted(&pod) {
                self.end_pod(&name);
                busy = true;
            } else if pod["status"]["phase"] == "Pending" {
                self.registry().bind(&namespace, &name, "node-1").unwrap();
                self.set_ready(&name, true);
                busy = true;
            }
        }
        busy
    }

    /// Marks a pod as running, either ready or not.
    pub(in super::super) fn set_ready(&self, name: &str, ready: bool) {
        let now = self.registry().now();
        self.modify(Resource::Pods, name, ObjectPart::Status, |pod| {
            let status = if ready { "True" } else { "False" };
            pod["status"]["phase"] = json!("Running");
            if pod["status"]["podIP"].is_null() {
                pod["status"]["podIP"] = json!("127.0.0.9");
            }
            pod["status"]["conditions"] =
                json!([{"type": "Ready", "status": status, "lastTransitionTime": now}]);
        });
    }

    /// Moves a pod to a terminal phase.
    pub(in super::super) fn finish(&self, name: &str, phase: &str) {
        self.modify(Resource::Pods, name, ObjectPart::Status, |pod| {
            pod["status"]["phase"] = json!(phase);
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        });
    }

    /// Removes a pod, as a node agent does once the pod has terminated.
    pub(in super::super) fn end_pod(&self, name: &str) {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let ended = self.registry().delete(Resource::Pods, NAMESPACE, name, &options);
        assert!(ended.is_ok() || ended.is_err_and(|status| status.code() == 404));
    }

    /// Returns the messages of all events with this reason.
    pub(in super::super) fn events(&self, reason: &str) -> Vec<String> {
        let events = self.list(Resource::Events);
        let matching = events.iter().filter(|event| event["reason"] == reason);
        matching.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }
}
