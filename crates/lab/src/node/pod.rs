//! The life of one pod on its node.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kubelet.go` (`SyncPod`, `SyncTerminatingPod`,
//! `SyncTerminatedPod`) and `pkg/kubelet/pod_workers.go`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::container_runner::Supervisor;
use super::container_termination::end_containers;
use super::container_view::{ContainerOrder, ContainerRole, Handle, RunState, TerminatedState};
use super::grace::Grace;
use super::pod_context::PodContext;
use super::pod_status::{ContainerSnapshot, KubeletTermination, RestartsOf, SandboxState, Snapshot};
use crate::registry::{DeleteOptions, ObjectPart};
use crate::resource::Resource;
use crate::status::note_failure;

/// First and longest pause after failing to create a volume; the pause doubles each time (`initialDurationBeforeRetry`,
/// `maxDurationBeforeRetry` in pkg/util/goroutinemap/exponentialbackoff).
const VOLUME_INITIAL_BACK_OFF: Duration = Duration::from_millis(500);
const VOLUME_MAX_BACK_OFF: Duration = Duration::from_secs(122);
/// Pause after failing to create a sandbox (`backOffOnTransientErrorPeriod` in pkg/kubelet).
const BACK_OFF_ON_TRANSIENT_ERROR: Duration = Duration::from_secs(1);
/// Interval at which a pod's status is rewritten if another client has changed it (`syncPeriod` in pkg/kubelet/status).
const STATUS_SYNC_PERIOD: Duration = Duration::from_secs(10);

/// Latest state of a pod at the API server.
#[derive(Clone, Debug)]
pub(super) struct PodSnapshot {
    pub(super) object: Arc<Value>,
    /// True if the object no longer exists.
    pub(super) gone: bool,
}

impl PodSnapshot {
    fn is_ending(&self) -> bool {
        self.gone || self.object["metadata"]["deletionTimestamp"].is_string()
    }

    fn generation(&self) -> i64 {
        self.object["metadata"]["generation"].as_i64().unwrap_or(1)
    }
}

/// Reason for terminating a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodTerminationReason {
    Deleted,
    /// All main containers have exited and none will run again.
    Completed,
    NodeShutdown(i64),
}

/// Worker that runs one pod.
pub(super) struct PodWorker {
    context: Arc<PodContext>,
    seen: watch::Receiver<PodSnapshot>,
    containers: Vec<Handle>,
    sandbox: SandboxState,
    restarts: RestartsOf,
    verdict: Option<KubeletTermination>,
    observed_generation: AtomicI64,
    started_at: String,
}

impl PodWorker {
    /// Runs the pod until it has terminated. If cancelled, kills every process in the pod.
    pub(super) async fn run(
        context: PodContext,
        seen: watch::Receiver<PodSnapshot>,
        stop: CancellationToken,
    ) {
        let context = Arc::new(context);
        let mut supervisors = JoinSet::new();
        let mut containers = Vec::new();
        for (spec, kind) in context.containers() {
            let (supervisor, handle) = Supervisor::new(Arc::clone(&context), spec, kind);
            supervisors.spawn(supervisor.run());
            containers.push(handle);
        }
        let observed_generation = AtomicI64::new(seen.borrow().generation());
        let started_at = context.shared.registry.now();
        let mut worker = Self {
            context,
            seen,
            containers,
            sandbox: SandboxState::Preparing,
            restarts: RestartsOf::Containers,
            verdict: None,
            observed_generation,
            started_at,
        };
        let context = Arc::clone(&worker.context);
        let mut seen = worker.seen.clone();
        // A token does not outlive its pod's object, although containers may.
        let disown = async {
            if seen.wait_for(|seen| seen.gone).await.is_ok() {
                context.revoke_token();
            }
            std::future::pending().await
        };
        tokio::select! {
            () = worker.live_and_end() => {}
            () = disown => {}
            () = stop.cancelled() => {}
        }
        supervisors.shutdown().await;
        context.clean_up().await;
    }

    async fn live_and_end(&mut self) {
        let why = {
            let (mut seen, mut mode) = (self.seen.clone(), self.context.mode.clone());
            // The agent holds the other ends while this is running.
            let deletion = async { drop(seen.wait_for(PodSnapshot::is_ending).await) };
            let shutdown = async {
                let mode = mode.wait_for(|mode| mode.shutdown_grace.is_some()).await;
                mode.ok().and_then(|mode| mode.shutdown_grace).unwrap_or(0)
            };
            tokio::select! {
                () = deletion => PodTerminationReason::Deleted,
                grace = shutdown => PodTerminationReason::NodeShutdown(grace),
                () = self.live() => PodTerminationReason::Completed,
            }
        };
        self.context.until_up().await;
        match why {
            PodTerminationReason::Deleted | PodTerminationReason::Completed => {}
            PodTerminationReason::NodeShutdown(_) => self.verdict = Some(KubeletTermination::NodeShutdown),
        }
        self.end(why).await;
        if why != PodTerminationReason::Deleted {
            let _ = self.seen.wait_for(PodSnapshot::is_ending).await;
        }
        self.context.shared.delay(|latencies| latencies.terminated_to_final_delete).await;
        self.context.until_up().await;
        let PodContext { shared, namespace, name, uid, .. } = &*self.context;
        // An object that is already gone was deleted by force.
        let deleted = shared.delete_pod(namespace, name, &DeleteOptions::new(0, uid)).await;
        note_failure(deleted, "failed to delete the pod");
    }

    /// Runs the pod from its binding until no main container will run again.
    async fn live(&mut self) {
        self.write_status();
        self.mount_volumes().await;
        self.prepare_sandbox().await;
        self.sandbox = SandboxState::Ready;
        self.write_status();

        let this = &*self;
        tokio::select! {
            () = run_in_order(&this.containers) => {}
            () = this.keep_status() => {}
        }
    }

    /// Creates the pod's volumes, retrying until that succeeds.
    async fn mount_volumes(&self) {
        let mut wait = VOLUME_INITIAL_BACK_OFF;
        while let Err(error) = self.context.make_volumes() {
            self.context.warn_pod("FailedMount", &error.to_string());
            sleep(wait).await;
            wait = wait.saturating_mul(2).min(VOLUME_MAX_BACK_OFF);
        }
    }

    /// Creates the pod's sandbox, retrying until that succeeds. The actual time taken counts towards the measured
    /// delay.
    async fn prepare_sandbox(&self) {
        let measured = self.context.shared.delay(|latencies| latencies.scheduled_to_sandbox);
        let prepared = async {
            while let Err(error) = self.context.sandbox.prepare().await {
                let message = format!("Failed to create pod sandbox: {error}");
                self.context.warn_pod("FailedCreatePodSandBox", &message);
                sleep(BACK_OFF_ON_TRANSIENT_ERROR).await;
            }
        };
        tokio::join!(measured, prepared);
    }

    /// Writes the status after every change, and at intervals in case another client has changed it. Never returns.
    async fn keep_status(&self) {
        let mut mode = self.context.mode.clone();
        loop {
            tokio::select! {
                () = self.context.changed.notified() => {}
                () = sleep(STATUS_SYNC_PERIOD) => {}
                // An agent writes the status as soon as it starts.
                _ = mode.changed() => {}
            }
            self.context.until_up().await;
            self.write_status();
        }
    }

    /// Terminates all containers and writes the terminal status. If the node agent restarts in the meantime, the
    /// termination starts over.
    async fn end(&mut self, why: PodTerminationReason) {
        let generation = self.seen.borrow().generation();
        for container in &self.containers {
            container.order.send_replace(ContainerOrder::Stop);
        }
        for container in &mut self.containers {
            // A supervisor ends only with this worker.
            let _ = container.view.wait_for(|view| view.accepted_stop).await;
        }
        let exits = loop {
            let mut mode = self.context.mode.clone();
            let restarts = mode.borrow_and_update().restarts;
            tokio::select! {
                exits = self.end_once(generation, self.grace(why)) => break exits,
                // The agent has forgotten what it was waiting for.
                _ = mode.wait_for(|mode| mode.restarts != restarts) => {}
            }
            self.context.until_up().await;
        };
        self.observed_generation.store(generation, Ordering::Relaxed);
        self.sandbox = SandboxState::Gone;
        self.restarts = RestartsOf::Nothing;
        self.write_status_with(&exits);
    }

    fn grace(&self, why: PodTerminationReason) -> Grace {
        let own = self.context.grace_period_seconds();
        let seen = self.seen.borrow();
        Grace::new(match why {
            // The grace period that the object has now; after a restart, nothing else is known.
            PodTerminationReason::Deleted => {
                seen.object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)
            }
            PodTerminationReason::NodeShutdown(grace) => own.min(grace),
            PodTerminationReason::Completed => own,
        })
    }

    /// Terminates all containers once. The status keeps each container's last state, except readiness, until all of
    /// them have exited and the kubelet has noticed.
    async fn end_once(&self, generation: i64, grace: Grace) -> Vec<Option<TerminatedState>> {
        let observed = self.context.shared.delay(|latencies| latencies.deletion_to_observed_generation);
        let ending = async {
            let exits = end_containers(&self.context, &self.containers, grace).await;
            let status = self.context.shared.delay(|latencies| latencies.process_gone_to_status);
            let network = async {
                self.context.shared.delay(|latencies| latencies.process_gone_to_address_gone).await;
                self.context.sandbox.remove().await;
            };
            tokio::join!(status, network);
            exits
        };
        tokio::pin!(observed, ending);
        let shown = &self.observed_generation;
        loop {
            tokio::select! {
                exits = &mut ending => return exits,
                () = &mut observed, if shown.load(Ordering::Relaxed) != generation => {
                    shown.store(generation, Ordering::Relaxed);
                    self.write_status();
                }
                () = self.context.changed.notified() => self.write_status(),
            }
        }
    }

    fn write_status(&self) {
        self.write_status_with(&[]);
    }

    /// Writes the status; `ends` describes, in the containers' order, the exits that the status does not show yet.
    fn write_status_with(&self, ends: &[Option<TerminatedState>]) {
        let registry = &self.context.shared.registry;
        let now = registry.now();
        let pod_ip = self.context.pod_ip();
        let containers = self.containers.iter().enumerate().map(|(n, container)| {
            let mut view = container.view.borrow().clone();
            if let Some(Some(ended)) = ends.get(n) {
                view.state = RunState::Terminated(ended.clone());
            }
            ContainerSnapshot { spec: &container.spec, kind: container.kind, view }
        });
        let snapshot = Snapshot {
            containers: containers.collect(),
            sandbox: self.sandbox,
            pod_ip: &pod_ip,
            host_ip: &self.context.host_ip,
            started_at: &self.started_at,
            restarts: self.restarts,
            verdict: self.verdict.as_ref(),
            observed_generation: self.observed_generation.load(Ordering::Relaxed),
            now: &now,
        };
        let PodContext { namespace, name, uid, .. } = &*self.context;
        let written = registry.modify(Resource::Pods, namespace, name, ObjectPart::Status, |pod| {
            // Another pod may have this name by now.
            if pod["metadata"]["uid"] == **uid {
                snapshot.write_into(pod);
            }
        });
        note_failure(written, "failed to write the pod status");
    }
}

/// Starts the containers in order and waits until no main container will run again.
async fn run_in_order(containers: &[Handle]) {
    for container in containers.iter().filter(|container| container.kind != ContainerRole::Main) {
        container.order.send_replace(ContainerOrder::Run);
        let mut view = container.view.clone();
        match container.kind {
            ContainerRole::Sidecar => drop(view.wait_for(|view| view.started).await),
            ContainerRole::Init | ContainerRole::Main => {
                let failed = match view.wait_for(|view| view.done).await {
                    Ok(view) => !matches!(&view.state, RunState::Terminated(ended) if ended.code == 0),
                    Err(_) => true,
                };
                if failed {
                    return;
                }
            }
        }
    }
    let mains: Vec<_> = containers.iter().filter(|container| container.kind == ContainerRole::Main).collect();
    for container in &mains {
        container.order.send_replace(ContainerOrder::Run);
        // A kubelet starts one container after the other and waits for each postStart hook.
        let _ = container.view.clone().wait_for(|view| view.settled).await;
    }
    for container in mains {
        let _ = container.view.clone().wait_for(|view| view.done).await;
    }
}
