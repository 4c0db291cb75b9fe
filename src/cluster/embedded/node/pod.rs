//! The life of one pod on its node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::NodeInfo;
use super::action::Target;
use super::container::{Ended, Handle, Kind, Order, State, Supervisor};
use super::grace::Grace;
use super::launch::{self, KeySource, LaunchError, Surroundings};
use super::process::{Keeper, Process};
use super::status::{ContainerSnapshot, RestartsOf, Sandbox, Snapshot};
use super::stop::stop;
use crate::cluster::embedded::latency::{Latencies, Latency};
use crate::cluster::embedded::registry::{DeleteOptions, EventType, Part};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::{Shared, network};

/// The exit code of a container that never ran, or whose end nobody saw.
const UNKNOWN_EXIT_CODE: i32 = 137;
/// How long a kubelet waits before it tries again to make a sandbox.
const SANDBOX_RETRY: Duration = Duration::from_secs(1);

/// What the parts of a pod share.
pub(super) struct PodContext {
    pub(super) shared: Shared,
    pub(super) node: Arc<NodeInfo>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The pod as it was bound.
    pod: Pod,
    object: Arc<Value>,
    /// Where the pod lives.
    pub(super) sandbox: network::Sandbox,
    host_ip: String,
    log_dir: PathBuf,
    /// A container's view has changed.
    pub(super) changed: Notify,
}

impl PodContext {
    pub(super) fn new(shared: Shared, node: Arc<NodeInfo>, object: Arc<Value>, pod: Pod) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name, uid) =
            (text(&pod.metadata.namespace), text(&pod.metadata.name), text(&pod.metadata.uid));
        let log_dir = super::pod_log_dir(&shared.log_dir, &namespace, &name, &uid);
        let sandbox = network::Sandbox::new(
            shared.network.clone(),
            shared.registry.clone(),
            node.index,
            format!("{namespace}/{name}"),
        );
        let host_ip = node.address.to_string();
        let changed = Notify::new();
        Self { shared, node, namespace, name, uid, pod, object, sandbox, host_ip, log_dir, changed }
    }

    /// The pod's address; empty while it has none.
    pub(super) fn pod_ip(&self) -> String {
        self.sandbox.address().map(|address| address.to_string()).unwrap_or_default()
    }

    fn containers(&self) -> Vec<(Container, Kind)> {
        let Some(spec) = &self.pod.spec else { return Vec::new() };
        let init = spec.init_containers.iter().flatten().map(|container| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            (container.clone(), if sidecar { Kind::Sidecar } else { Kind::Init })
        });
        init.chain(spec.containers.iter().map(|container| (container.clone(), Kind::Main))).collect()
    }

    pub(super) fn has_init_containers(&self) -> bool {
        self.pod.spec.as_ref().is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some())
    }

    pub(super) fn restart_policy(&self) -> Option<&str> {
        self.pod.spec.as_ref()?.restart_policy.as_deref()
    }

    /// The grace period when no deletion says another.
    pub(super) fn grace_period_seconds(&self) -> i64 {
        self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30)
    }

    /// Records an ordinary event about the pod.
    pub(super) fn note(&self, reason: &str, message: &str) {
        self.shared.registry.record_event(&self.object, EventType::Normal, reason, message, "kubelet");
    }

    /// Records a warning about the pod.
    pub(super) fn warn(&self, reason: &str, message: &str) {
        self.shared.registry.record_event(&self.object, EventType::Warning, reason, message, "kubelet");
    }

    /// Records that a preStop hook failed.
    pub(super) fn warn_of_hook(&self, container: &str, why: &str) {
        self.warn("FailedPreStopHook", &format!("PreStopHook of container {container} failed: {why}"));
    }

    /// Starts a container's process.
    pub(super) fn launch(&self, container: &Container) -> Result<(Process, Keeper, Target), LaunchError> {
        let keys = |kind, name: &str, key: &str| self.key(kind, name, key);
        let pod_ip = self.pod_ip();
        let mut launch = launch::launch(
            container,
            &Surroundings {
                pod: &self.pod,
                pod_ip: &pod_ip,
                host_ip: &self.host_ip,
                own_binary: &self.node.own_binary,
                keys: &keys,
            },
        )?;
        launch.placement = self.sandbox.place(&[]).map_err(|error| LaunchError::Place(error.to_string()))?;
        let start = std::fs::create_dir_all(&self.log_dir)
            .and_then(|()| launch.start(&self.log_dir.join(format!("{}.log", container.name))));
        let (process, keeper) = start.map_err(|error| LaunchError::Start {
            program: launch.program.display().to_string(),
            why: error.to_string(),
        })?;
        let ports = container.ports.clone().unwrap_or_default();
        Ok((process, keeper, Target { pod_ip, ports, launch }))
    }

    fn key(&self, kind: KeySource, name: &str, key: &str) -> Option<String> {
        let resource = match kind {
            KeySource::ConfigMap => Resource::ConfigMaps,
            KeySource::Secret => Resource::Secrets,
        };
        let object = self.shared.registry.get(resource, &self.namespace, name).ok()?;
        let text = object["data"][key].as_str()?;
        match kind {
            KeySource::ConfigMap => Some(text.to_owned()),
            KeySource::Secret => {
                use base64::Engine;
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
                String::from_utf8(bytes).ok()
            }
        }
    }
}

/// The newest that the API server says of a pod.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) object: Arc<Value>,
    /// The object is gone.
    pub(super) gone: bool,
}

impl Seen {
    fn is_ending(&self) -> bool {
        self.gone || self.object["metadata"]["deletionTimestamp"].is_string()
    }

    fn generation(&self) -> i64 {
        self.object["metadata"]["generation"].as_i64().unwrap_or(1)
    }
}

/// Runs one pod.
pub(super) struct PodWorker {
    context: Arc<PodContext>,
    seen: watch::Receiver<Seen>,
    containers: Vec<Handle>,
    sandbox: Sandbox,
    restarts: RestartsOf,
    observed_generation: i64,
    started_at: String,
}

impl PodWorker {
    /// Runs the pod to its end. Cancelled, it kills every process of the pod.
    pub(super) async fn run(context: PodContext, seen: watch::Receiver<Seen>, stop: CancellationToken) {
        let context = Arc::new(context);
        let mut supervisors = JoinSet::new();
        let mut containers = Vec::new();
        for (spec, kind) in context.containers() {
            let (supervisor, handle) = Supervisor::new(Arc::clone(&context), spec, kind);
            supervisors.spawn(supervisor.run());
            containers.push(handle);
        }
        let observed_generation = seen.borrow().generation();
        let started_at = context.shared.registry.now();
        let mut worker = Self {
            context,
            seen,
            containers,
            sandbox: Sandbox::Preparing,
            restarts: RestartsOf::Containers,
            observed_generation,
            started_at,
        };
        tokio::select! {
            () = worker.live_and_end() => {}
            () = stop.cancelled() => {}
        }
        supervisors.shutdown().await;
    }

    async fn live_and_end(&mut self) {
        let mut seen = self.seen.clone();
        let deletion = async {
            // The agent holds the other end as long as this runs.
            let _ = seen.wait_for(Seen::is_ending).await;
        };
        let deleted = tokio::select! {
            () = deletion => true,
            () = self.live() => false,
        };
        if deleted {
            self.delay(|latencies| latencies.watch_to_kubelet).await;
            let grace = {
                let seen = self.seen.borrow();
                seen.object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)
            };
            self.end(Grace::new(grace)).await;
        } else {
            // All main containers have ended for good; sidecars may still run.
            self.end(Grace::new(self.context.grace_period_seconds())).await;
            let _ = self.seen.wait_for(Seen::is_ending).await;
        }
        self.delay(|latencies| latencies.terminated_to_final_delete).await;
        let PodContext { shared, namespace, name, uid, .. } = &*self.context;
        // An object that is gone already was deleted by force.
        if let Err(status) =
            shared.registry.delete(Resource::Pods, namespace, name, &DeleteOptions::new(0, uid))
        {
            tracing::debug!(%status, pod = %name, "final delete");
        }
    }

    async fn delay(&self, latency: impl Fn(&Latencies) -> Latency) {
        let Shared { sampler, config, .. } = &self.context.shared;
        sleep(sampler.sample(&latency(&config.latencies))).await;
    }

    /// From the binding until every main container has ended for good.
    async fn live(&mut self) {
        self.write_status();
        self.prepare_sandbox().await;
        self.sandbox = Sandbox::Ready;
        self.write_status();
        self.delay(|latencies| latencies.sandbox_to_process_start).await;

        let this = &*self;
        tokio::select! {
            () = run_in_order(&this.containers) => {}
            () = this.keep_status() => {}
        }
    }

    /// Makes the pod's sandbox, as often as it takes; what that really takes counts towards the
    /// measured time.
    async fn prepare_sandbox(&self) {
        let measured = self.delay(|latencies| latencies.scheduled_to_sandbox);
        let prepared = async {
            while let Err(error) = self.context.sandbox.prepare().await {
                self.context
                    .warn("FailedCreatePodSandBox", &format!("Failed to create pod sandbox: {error}"));
                sleep(SANDBOX_RETRY).await;
            }
        };
        tokio::join!(measured, prepared);
    }

    /// Writes the status after every change. Never returns.
    async fn keep_status(&self) {
        loop {
            self.context.changed.notified().await;
            self.write_status();
        }
    }

    /// Ends all containers, and writes the terminal status.
    async fn end(&mut self, grace: Grace) {
        let generation = self.seen.borrow().generation();
        for container in &self.containers {
            container.order.send_replace(Order::Stop);
        }
        for container in &mut self.containers {
            // A supervisor ends only with this worker.
            let _ = container.view.wait_for(|view| view.accepted_stop).await;
        }

        // What the status said of a container when its end began stays until all have ended
        // and the kubelet has looked, but for its readiness.
        let exits = {
            let this = &*self;
            let observed = this.delay(|latencies| latencies.deletion_to_observed_generation);
            let ending = async {
                let exits = end_containers(&this.context, &this.containers, grace).await;
                let status = this.delay(|latencies| latencies.process_gone_to_status);
                let network = async {
                    this.delay(|latencies| latencies.process_gone_to_address_gone).await;
                    this.context.sandbox.remove().await;
                };
                tokio::join!(status, network);
                exits
            };
            tokio::pin!(observed, ending);
            let mut shown_generation = this.observed_generation;
            loop {
                tokio::select! {
                    exits = &mut ending => break exits,
                    () = &mut observed, if shown_generation != generation => {
                        shown_generation = generation;
                        this.write_status_as(generation, &[]);
                    }
                    () = this.context.changed.notified() => this.write_status_as(shown_generation, &[]),
                }
            }
        };
        self.observed_generation = generation;
        self.sandbox = Sandbox::Gone;
        self.restarts = RestartsOf::Nothing;
        self.write_status_as(generation, &exits);
    }

    fn write_status(&self) {
        self.write_status_as(self.observed_generation, &[]);
    }

    /// Writes the status; `ends` says how the containers ended that the status does not yet
    /// show as ended, in their order.
    fn write_status_as(&self, observed_generation: i64, ends: &[Option<Ended>]) {
        let registry = &self.context.shared.registry;
        let now = registry.now();
        let pod_ip = self.context.pod_ip();
        let containers = self.containers.iter().enumerate().map(|(n, container)| {
            let mut view = container.view.borrow().clone();
            if let Some(Some(ended)) = ends.get(n) {
                view.state = State::Terminated(ended.clone());
            }
            ContainerSnapshot {
                name: &container.spec.name,
                image: container.spec.image.as_deref().unwrap_or_default(),
                kind: container.kind,
                view,
            }
        });
        let snapshot = Snapshot {
            containers: containers.collect(),
            sandbox: self.sandbox,
            pod_ip: &pod_ip,
            host_ip: &self.context.host_ip,
            started_at: &self.started_at,
            restarts: self.restarts,
            observed_generation,
            now: &now,
        };
        let PodContext { namespace, name, uid, .. } = &*self.context;
        let written = registry.modify(Resource::Pods, namespace, name, Part::Status, |pod| {
            // The name may belong to another pod by now.
            if pod["metadata"]["uid"] == **uid {
                snapshot.write_into(pod);
            }
        });
        if let Err(status) = written {
            tracing::debug!(%status, pod = %name, "pod status");
        }
    }
}

/// Starts the containers in their order and waits until no main container will run any more.
async fn run_in_order(containers: &[Handle]) {
    for container in containers.iter().filter(|container| container.kind != Kind::Main) {
        container.order.send_replace(Order::Run);
        let mut view = container.view.clone();
        match container.kind {
            Kind::Sidecar => drop(view.wait_for(|view| view.started).await),
            Kind::Init | Kind::Main => {
                let failed = match view.wait_for(|view| view.done).await {
                    Ok(view) => !matches!(&view.state, State::Terminated(ended) if ended.code == 0),
                    Err(_) => true,
                };
                if failed {
                    return;
                }
            }
        }
    }
    let mains = || containers.iter().filter(|container| container.kind == Kind::Main);
    for container in mains() {
        container.order.send_replace(Order::Run);
    }
    for container in mains() {
        let _ = container.view.clone().wait_for(|view| view.done).await;
    }
}

/// Ends what runs: main containers all at once; each sidecar after all main containers and
/// the sidecars that were started after it. Answers how each container ended, in their
/// order; `None` for one that had ended before.
async fn end_containers(context: &PodContext, containers: &[Handle], grace: Grace) -> Vec<Option<Ended>> {
    let ended: Vec<_> = containers.iter().map(|_| CancellationToken::new()).collect();
    let endings = containers.iter().enumerate().map(|(n, container)| {
        let before_this: Vec<_> = containers
            .iter()
            .zip(&ended)
            .enumerate()
            .filter(|(other, (handle, _))| {
                container.kind == Kind::Sidecar
                    && (handle.kind == Kind::Main || (handle.kind == Kind::Sidecar && *other > n))
            })
            .map(|(_, (_, token))| token.clone())
            .collect();
        let own = &ended[n];
        async move {
            let _ended_when_dropped = own.clone().drop_guard();
            let view = container.view.borrow().clone();
            let Some(running) = view.running else {
                let waiting = matches!(view.state, State::Waiting { .. });
                return waiting.then(|| {
                    view.last.unwrap_or_else(|| {
                        let now = context.shared.registry.now();
                        Ended { code: UNKNOWN_EXIT_CODE, started_at: now.clone(), finished_at: now }
                    })
                });
            };
            let turn = async {
                for other in &before_this {
                    other.cancelled().await;
                }
                if !before_this.is_empty() {
                    let Shared { sampler, config, .. } = &context.shared;
                    sleep(sampler.sample(&config.latencies.container_gone_to_sidecar_stop_signal)).await;
                }
            };
            let exit = stop(context, &container.spec, &running.target, &running.process, grace, turn).await;
            let finished_at = context.shared.registry.now();
            Some(Ended { code: exit.code, started_at: running.started_at, finished_at })
        }
    });
    futures::future::join_all(endings).await
}
