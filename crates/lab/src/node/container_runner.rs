//! Starts, probes and restarts one container until it is told to stop.
//!
//! When the pod is terminated, this module only stops restarting the container; [`super::stop`] terminates its process,
//! together with the pod's other containers.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kuberuntime/kuberuntime_manager.go` (`SyncPod`, `doBackOff`) and
//! `kuberuntime_container.go` (`startContainer`).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::container_action::{ActionTarget, ContainerAction};
use super::container_process::{ContainerProcess, Keeper, ProcessExit};
use super::container_view::{
    ContainerOrder, ContainerRole, ContainerRun, ContainerView, Handle, RestartPolicy, RunState,
    TerminatedState,
};
use super::grace::Grace;
use super::launch::LaunchError;
use super::pod_context::PodContext;
use super::probe::{FirstProbe, ProbeKind, ProbeResult, Prober};
use super::stop::stop;
use crate::registry::NOT_MODELLED;

/// First and longest pause before a container's second and later restarts; the pause doubles each time. The first
/// restart is immediate (`initialCrashLoopBackOff`, `MaxCrashLoopBackOff` in pkg/kubelet).
const INITIAL_CRASH_LOOP_BACK_OFF: Duration = Duration::from_secs(10);
const MAX_CRASH_LOOP_BACK_OFF: Duration = Duration::from_secs(300);
/// Minimum run time after which the next restart is immediate again (`HasExpiredFunc` of `crashLoopBackOff`).
const CRASH_LOOP_BACK_OFF_EXPIRY: Duration = Duration::from_secs(600);
/// Pause after failing to create a container's configuration (`backOffPeriod` in pkg/kubelet).
const BACK_OFF_PERIOD: Duration = Duration::from_secs(10);

/// Supervisor of one container.
pub(super) struct Supervisor {
    context: Arc<PodContext>,
    spec: Arc<Container>,
    restart: RestartPolicy,
    order: watch::Receiver<ContainerOrder>,
    view: watch::Sender<ContainerView>,
    /// `None` until the container has started once.
    restarts: Option<u32>,
    /// Exit of the previous run.
    previous: Option<TerminatedState>,
}

/// Reason to kill a container during a run.
struct KillReason {
    message: String,
    grace_seconds: i64,
}

/// Probes of one run.
struct Probes<'a> {
    supervisor: &'a Supervisor,
    target: &'a ActionTarget,
    process_started: Instant,
    findings: mpsc::UnboundedSender<(ProbeKind, ProbeResult)>,
    /// Probes that stop when the pod is terminated.
    health: JoinSet<()>,
    /// Readiness probe, which continues during the termination.
    readiness: JoinSet<()>,
}

impl Supervisor {
    pub(super) fn new(context: Arc<PodContext>, spec: Container, kind: ContainerRole) -> (Self, Handle) {
        let spec = Arc::new(spec);
        let (order_sender, order) = watch::channel(ContainerOrder::Hold);
        let waiting_for = if context.has_init_containers() { "PodInitializing" } else { "ContainerCreating" };
        let (view, view_receiver) = watch::channel(ContainerView::new(waiting_for));
        let restart = RestartPolicy::of(context.restart_policy(), kind);
        let handle = Handle { spec: Arc::clone(&spec), kind, order: order_sender, view: view_receiver };
        (Self { context, spec, restart, order, view, restarts: None, previous: None }, handle)
    }

    /// Runs the container once the pod gives the order, and restarts it according to its restart policy. Drop this
    /// future to kill everything immediately.
    pub(super) async fn run(mut self) {
        // The pod holds the other end while this is running.
        let _ = self.order.wait_for(|order| *order != ContainerOrder::Hold).await;
        // The first restart is immediate.
        let mut back_off = Duration::ZERO;
        loop {
            let mut order = self.order.clone();
            tokio::select! {
                () = stopped(&mut order) => return self.stay_stopped().await,
                () = self.ready_to_start() => {}
            }
            let begin = Instant::now();
            let mut wait = back_off;
            match self.context.launch(&self.spec) {
                Err(error) => {
                    self.context.warn(&self.spec.name, "Failed", &format!("Error: {error}"));
                    let LaunchError { reason, message } = error;
                    if reason == LaunchError::CONFIGURATION {
                        wait = BACK_OFF_PERIOD;
                    }
                    self.publish(|view| {
                        view.settled = true;
                        view.state = RunState::Waiting { reason: reason.to_owned(), message };
                    });
                }
                Ok((process, keeper, target)) => {
                    self.restarts = Some(self.restarts.map_or(0, |restarts| restarts + 1));
                    let ended = self.attend(process, keeper, target).await;
                    if !self.restart.applies(ended.code) {
                        self.publish(|view| view.done = true);
                        return self.stay_stopped().await;
                    }
                    self.previous = Some(ended);
                    if begin.elapsed() >= CRASH_LOOP_BACK_OFF_EXPIRY {
                        back_off = Duration::ZERO;
                    }
                    wait = back_off;
                    self.show_back_off(back_off);
                }
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = stopped(&mut order) => {}
            }
            back_off = back_off.saturating_mul(2).clamp(INITIAL_CRASH_LOOP_BACK_OFF, MAX_CRASH_LOOP_BACK_OFF);
        }
    }

    async fn ready_to_start(&self) {
        self.context.shared.delay(|latencies| latencies.sandbox_to_process_start).await;
        self.context.until_up().await;
    }

    /// Waits until the agent notices that a process has exited: at `instant`, or later if the agent is down then.
    async fn noticed(&self, instant: Option<Instant>) {
        at(instant).await;
        self.context.until_up().await;
    }

    fn publish(&self, change: impl FnOnce(&mut ContainerView)) {
        self.view.send_modify(change);
        self.context.changed.notify_one();
    }

    /// Publishes a state of the current run.
    fn publish_state(&self, state: RunState, (started, ready): (bool, bool)) {
        self.publish(|view| {
            view.settled = true;
            view.state = state;
            view.last = self.previous.clone();
            view.restarts = self.restarts.unwrap_or(0);
            (view.started, view.ready) = (started, ready);
        });
    }

    /// Records that process 1 of a container could not have exited in this way.
    fn note_unlike_process_1(&self, target: &ActionTarget, exit: ProcessExit) {
        if let Some(signal) = exit.by_default_action()
            && target.launch.placement.stands_for_process_1()
        {
            let message = format!(
                "the default action of {signal} killed the first process, although the process handles {signal}. As \
                 process 1 of a real container, it would run until SIGKILL. Use the kernel dataplane, where it is \
                 process 1"
            );
            self.context.warn(&self.spec.name, NOT_MODELLED, &message);
        }
    }

    async fn stay_stopped(mut self) {
        stopped(&mut self.order).await;
        self.publish(|view| view.accepted_stop = true);
        std::future::pending().await
    }

    /// Shows in the container's status that the next start has to wait. If it does not have to wait, the status
    /// continues to show how the container exited.
    fn show_back_off(&self, back_off: Duration) {
        if back_off.is_zero() {
            return;
        }
        let (container, pod) = (&self.spec.name, self.context.full_name());
        let message = format!("Back-off restarting failed container {container} in pod {pod}");
        self.context.warn(container, "BackOff", &message);
        let message =
            format!("back-off {} restarting failed container={container} pod={pod}", in_go(back_off));
        let waiting = RunState::Waiting { reason: "CrashLoopBackOff".to_owned(), message };
        self.publish_state(waiting, (false, false));
    }

    /// Supervises one run of the container until it exits; never returns once the pod is being stopped.
    #[expect(
        clippy::too_many_lines,
        reason = "shows all events of a container, and how each affects the others, in one place"
    )]
    async fn attend(
        &self,
        process: ContainerProcess,
        keeper: Keeper,
        target: ActionTarget,
    ) -> TerminatedState {
        let started_at = self.context.shared.registry.now();
        let container_id = target.launch.container_id.clone();
        self.context.note(&self.spec.name, "Started", "Container started");
        let running = ContainerRun { process: process.clone(), target: target.clone() };
        let agents = &self.context.node.agents;
        let _can_be_killed = agents.runs(&self.context.uid, &self.spec.name, process.signals());
        self.view.send_modify(|view| (view.running, view.ended) = (Some(running), None));
        let end_of = |exit: ProcessExit| TerminatedState {
            code: exit.code,
            container_id: Some(container_id.clone()),
            started_at: started_at.clone(),
            finished_at: self.context.shared.registry.now(),
        };

        let (findings, mut found) = mpsc::unbounded_channel();
        let mut probes = Probes {
            supervisor: self,
            target: &target,
            process_started: Instant::now(),
            findings,
            health: JoinSet::new(),
            readiness: JoinSet::new(),
        };
        let mut started = probes.start();
        let mut ready = self.spec.readiness_probe.is_none();
        let mut shown_as_running = false;

        let announce = self.post_start(&target);
        let exited = process.exited();
        let keeping = keeper.run();
        tokio::pin!(announce, exited, keeping);
        let mut order = self.order.clone();
        let (mut ended, mut kept, mut stopping) = (None, false, false);
        let mut seen_at: Option<Instant> = None;
        let kill = loop {
            tokio::select! {
                () = &mut keeping, if !kept => kept = true,
                exit = &mut exited, if ended.is_none() => {
                    self.note_unlike_process_1(&target, exit);
                    let end = end_of(exit);
                    self.view.send_modify(|view| view.ended = Some(end.clone()));
                    ended = Some(end);
                    // The readiness probe continues until the exit has been noticed and, during a pod's termination,
                    // until the terminal status is written.
                    seen_at = Some(Instant::now() + self.context.shared.sample(|l| l.process_exit_to_seen));
                }
                () = self.noticed(seen_at), if !stopping => break None,
                () = stopped(&mut order), if !stopping => {
                    stopping = true;
                    probes.health.abort_all();
                    self.publish(|view| view.accepted_stop = true);
                }
                result = &mut announce, if !shown_as_running => {
                    shown_as_running = true;
                    match result {
                        Ok(()) => {
                            let state = RunState::Running {
                                started_at: started_at.clone(),
                                container_id: container_id.clone(),
                            };
                            self.publish_state(state, (started, started && ready));
                        }
                        Err(_) if stopping || ended.is_some() => {}
                        Err(message) => {
                            self.context.warn(&self.spec.name, "FailedPostStartHook", &message);
                            let grace_seconds = self.context.grace_period_seconds();
                            break Some(KillReason { message: "FailedPostStartHook".to_owned(), grace_seconds });
                        }
                    }
                }
                Some((kind, finding)) = found.recv() => {
                    match (kind, finding) {
                        (ProbeKind::Readiness, finding) => ready = finding == ProbeResult::Success,
                        (ProbeKind::Startup, ProbeResult::Success) => {
                            started = true;
                            probes.start_after_startup(|| FirstProbe::After(Duration::ZERO));
                        }
                        (ProbeKind::Startup | ProbeKind::Liveness, ProbeResult::Failure)
                            if !stopping && ended.is_none() => break Some(self.kill_for(kind)),
                        (ProbeKind::Startup | ProbeKind::Liveness, _) => {}
                    }
                    if shown_as_running {
                        self.publish(|view| (view.started, view.ready) = (started, started && ready));
                    }
                }
            }
        };
        drop(probes);

        if let Some(kill) = kill {
            let grace = Grace::new(kill.grace_seconds);
            let ending = stop(&self.context, &self.spec, &target, &process, grace, &kill.message, async {});
            tokio::pin!(ending);
            let exit = loop {
                tokio::select! {
                    exit = &mut ending => break exit,
                    () = &mut keeping, if !kept => kept = true,
                    () = stopped(&mut order) => {
                        // The pod's own termination takes over.
                        self.publish(|view| view.accepted_stop = true);
                        if !kept {
                            keeping.await;
                        }
                        let end = end_of(process.exited().await);
                        self.view.send_modify(|view| view.ended = Some(end));
                        return std::future::pending().await;
                    }
                }
            };
            ended = Some(end_of(exit));
        }
        if !kept {
            keeping.await;
        }
        let ended = ended.unwrap_or_else(|| end_of(ProcessExit::with(255)));
        self.view.send_modify(|view| view.running = None);
        self.publish_state(RunState::Terminated(ended.clone()), (false, false));
        ended
    }

    fn kill_for(&self, kind: ProbeKind) -> KillReason {
        let (probe, name) = match kind {
            ProbeKind::Startup => (&self.spec.startup_probe, "startup"),
            ProbeKind::Liveness | ProbeKind::Readiness => (&self.spec.liveness_probe, "liveness"),
        };
        let of_probe = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
        let container = &self.spec.name;
        KillReason {
            message: format!("Container {container} failed {name} probe, will be restarted"),
            grace_seconds: of_probe.unwrap_or_else(|| self.context.grace_period_seconds()),
        }
    }

    /// Runs the postStart hook. The container shows as running once the hook has completed and the kubelet has seen it.
    ///
    /// # Errors
    ///
    /// The message for the event.
    async fn post_start(&self, target: &ActionTarget) -> Result<(), String> {
        const FAILED: &str = "PostStartHook failed";
        let hook = self.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let hook = async {
            let Some(hook) = hook else { return Ok(()) };
            let action =
                ContainerAction::of_hook(hook, target).map_err(|error| error.hook_message(FAILED))?;
            action.run_hook().await.map_err(|why| {
                tracing::debug!(container = self.spec.name, why, "the postStart hook failed");
                FAILED.to_owned()
            })
        };
        tokio::join!(hook, self.context.shared.delay(|latencies| latencies.process_start_to_running)).0
    }
}

impl Probes<'_> {
    /// Starts the first probes; returns true if the container counts as started.
    fn start(&mut self) -> bool {
        let context = Arc::clone(&self.supervisor.context);
        let first_tick = || {
            let wait = context.shared.sample(|latencies| latencies.process_start_to_first_probe);
            if context.shared.sampler.happens(context.shared.config.first_probe_missed) {
                FirstProbe::Missed(wait)
            } else {
                FirstProbe::After(wait)
            }
        };
        match self.prober(ProbeKind::Startup, &self.supervisor.spec.startup_probe, first_tick) {
            Some(prober) => {
                self.health.spawn(prober.run());
                false
            }
            None => {
                self.start_after_startup(first_tick);
                true
            }
        }
    }

    fn start_after_startup(&mut self, first: impl Fn() -> FirstProbe) {
        let spec = &self.supervisor.spec;
        if let Some(prober) = self.prober(ProbeKind::Liveness, &spec.liveness_probe, &first) {
            self.health.spawn(prober.run());
        }
        if let Some(prober) = self.prober(ProbeKind::Readiness, &spec.readiness_probe, &first) {
            self.readiness.spawn(prober.run());
        }
    }

    fn prober(
        &self,
        kind: ProbeKind,
        probe: &Option<Probe>,
        first: impl Fn() -> FirstProbe,
    ) -> Option<Prober> {
        let probe = probe.clone()?;
        Some(Prober {
            context: Arc::clone(&self.supervisor.context),
            container: self.supervisor.spec.name.clone(),
            kind,
            action: ContainerAction::of_probe(&probe, self.target),
            probe,
            process_started: self.process_started,
            first: first(),
            findings: self.findings.clone(),
        })
    }
}

/// Formats a back-off duration as Go does.
fn in_go(back_off: Duration) -> String {
    match (back_off.as_secs() / 60, back_off.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

/// Waits until an instant, or forever if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Waits for an order to stop.
async fn stopped(order: &mut watch::Receiver<ContainerOrder>) {
    if order.wait_for(|order| *order == ContainerOrder::Stop).await.is_err() {
        // The pod is gone, and this supervisor is about to be dropped.
        std::future::pending::<()>().await;
    }
}
