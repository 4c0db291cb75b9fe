//! One container: started, probed, restarted, until it is told to stop.
//!
//! It does not end its process for the pod's termination ([`super::stop`] does, for all
//! containers of a pod together); it only stops restarting it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::action::{Action, ActionError, Target};
use super::grace::Grace;
use super::pod::PodContext;
use super::probe::{Finding, FirstProbe, ProbeKind, Prober};
use super::process::{Exit, Keeper, Process};
use super::stop::stop;

const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);
/// A container that ran this long starts its back-off anew.
const BACK_OFF_RESET: Duration = Duration::from_secs(600);

/// A container's place in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: runs as long as the pod.
    Sidecar,
    Main,
}

/// When a container that has ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Restart {
    /// What applies to a container of a pod with this `restartPolicy`.
    pub(super) fn of(pod_policy: Option<&str>, kind: Kind) -> Self {
        match (kind, pod_policy) {
            (Kind::Sidecar, _) => Self::Always,
            (_, Some("Never")) => Self::Never,
            (Kind::Init, _) | (_, Some("OnFailure")) => Self::OnFailure,
            (Kind::Main, _) => Self::Always,
        }
    }

    fn applies(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// What the pod tells its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Not yet.
    Hold,
    Run,
    /// Do not start anything any more.
    Stop,
}

/// What a container does, as its status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting { reason: String, message: String },
    Running { started_at: String },
    Terminated(Ended),
}

/// The end of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) started_at: String,
    pub(super) finished_at: String,
}

/// Everything that others need to know of a container.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) state: State,
    pub(super) last: Option<Ended>,
    pub(super) restarts: u32,
    pub(super) started: bool,
    pub(super) ready: bool,
    /// It has ended for good.
    pub(super) done: bool,
    /// The process and what is needed to stop it, while it runs.
    pub(super) running: Option<Running>,
    /// It will not start anything any more; `running` is final.
    pub(super) accepted_stop: bool,
}

/// A run of a container that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) process: Process,
    pub(super) target: Target,
    pub(super) started_at: String,
}

impl View {
    pub(super) fn new(reason: &str) -> Self {
        Self {
            state: State::Waiting { reason: reason.to_owned(), message: String::new() },
            last: None,
            restarts: 0,
            started: false,
            ready: false,
            done: false,
            running: None,
            accepted_stop: false,
        }
    }
}

/// The pod's end of a container.
pub(super) struct Handle {
    pub(super) spec: Arc<Container>,
    pub(super) kind: Kind,
    pub(super) order: watch::Sender<Order>,
    pub(super) view: watch::Receiver<View>,
}

/// Drives one container.
pub(super) struct Supervisor {
    context: Arc<PodContext>,
    spec: Arc<Container>,
    restart: Restart,
    order: watch::Receiver<Order>,
    view: watch::Sender<View>,
}

impl Supervisor {
    pub(super) fn new(context: Arc<PodContext>, spec: Container, kind: Kind) -> (Self, Handle) {
        let spec = Arc::new(spec);
        let (order_sender, order) = watch::channel(Order::Hold);
        let waiting_for = if context.has_init_containers() { "PodInitializing" } else { "ContainerCreating" };
        let (view, view_receiver) = watch::channel(View::new(waiting_for));
        let restart = Restart::of(context.restart_policy(), kind);
        let handle = Handle { spec: Arc::clone(&spec), kind, order: order_sender, view: view_receiver };
        (Self { context, spec, restart, order, view }, handle)
    }

    /// Runs the container when it is ordered to, again and again as its restart policy says.
    /// Drop it to end everything at once.
    pub(super) async fn run(mut self) {
        // The pod holds the other end as long as this runs.
        let _ = self.order.wait_for(|order| *order != Order::Hold).await;
        // The first restart comes at once.
        let mut back_off = Duration::ZERO;
        loop {
            if *self.order.borrow() == Order::Stop {
                return self.stay_stopped().await;
            }
            let begin = Instant::now();
            match self.context.launch(&self.spec) {
                Err(error) => {
                    self.context.warn("Failed", &format!("Error: {error}"));
                    self.publish(|view| {
                        view.state =
                            State::Waiting { reason: error.reason().to_owned(), message: error.to_string() };
                    });
                }
                Ok((process, keeper, target)) => {
                    let exit = self.attend(process, keeper, target).await;
                    if !self.restart.applies(exit.code) {
                        self.publish(|view| view.done = true);
                        return self.stay_stopped().await;
                    }
                    if begin.elapsed() >= BACK_OFF_RESET {
                        back_off = Duration::ZERO;
                    }
                    self.await_restart(back_off);
                }
            }
            tokio::select! {
                () = sleep(back_off) => {}
                () = stopped(&mut self.order) => {}
            }
            back_off = (back_off * 2).clamp(FIRST_BACK_OFF, LONGEST_BACK_OFF);
        }
    }

    fn publish(&self, change: impl FnOnce(&mut View)) {
        self.view.send_modify(change);
        self.context.changed.notify_one();
    }

    async fn stay_stopped(mut self) {
        stopped(&mut self.order).await;
        self.publish(|view| view.accepted_stop = true);
        std::future::pending().await
    }

    fn await_restart(&self, back_off: Duration) {
        let message = format!(
            "back-off {}s restarting failed container={} pod={}",
            back_off.as_secs(),
            self.spec.name,
            self.context.name
        );
        if !back_off.is_zero() {
            self.context.warn("BackOff", &message);
        }
        self.publish(|view| {
            let waiting = State::Waiting { reason: "CrashLoopBackOff".to_owned(), message };
            if let State::Terminated(ended) = std::mem::replace(&mut view.state, waiting) {
                view.last = Some(ended);
            }
            view.restarts += 1;
        });
    }

    /// Accompanies one run of the container to its end; never returns once the pod is being
    /// stopped.
    async fn attend(&mut self, process: Process, keeper: Keeper, target: Target) -> Exit {
        let started_at = self.context.shared.registry.now();
        self.context.note("Started", &format!("Started container {}", self.spec.name));
        let running =
            Running { process: process.clone(), target: target.clone(), started_at: started_at.clone() };
        self.view.send_modify(|view| view.running = Some(running));

        let process_started = Instant::now();
        let (findings, mut found) = mpsc::unbounded_channel();
        let prober = |kind, probe: &Option<Probe>, first| {
            probe.clone().map(|probe| Prober {
                context: Arc::clone(&self.context),
                kind,
                action: Action::of_probe(&probe, &target),
                probe,
                process_started,
                first,
                findings: findings.clone(),
            })
        };
        let latencies = &self.context.shared.config.latencies;
        let sampler = &self.context.shared.sampler;
        let first_tick = || {
            let wait = sampler.sample(&latencies.process_start_to_first_probe);
            if sampler.happens(self.context.shared.config.first_probe_missed) {
                FirstProbe::Missed(wait)
            } else {
                FirstProbe::After(wait)
            }
        };
        // Those that stop with the pod's termination, and the one that goes on.
        let mut health_probes = JoinSet::new();
        let mut readiness_probe = JoinSet::new();
        let start_after_startup =
            |health: &mut JoinSet<()>, readiness: &mut JoinSet<()>, first: &dyn Fn() -> FirstProbe| {
                if let Some(prober) = prober(ProbeKind::Liveness, &self.spec.liveness_probe, first()) {
                    health.spawn(prober.run());
                }
                if let Some(prober) = prober(ProbeKind::Readiness, &self.spec.readiness_probe, first()) {
                    readiness.spawn(prober.run());
                }
            };
        let mut started = match prober(ProbeKind::Startup, &self.spec.startup_probe, first_tick()) {
            Some(prober) => {
                health_probes.spawn(prober.run());
                false
            }
            None => {
                start_after_startup(&mut health_probes, &mut readiness_probe, &first_tick);
                true
            }
        };
        let mut ready = self.spec.readiness_probe.is_none();
        let mut shown_as_running = false;

        let announce = self.post_start(&target, sampler.sample(&latencies.process_start_to_running));
        let exited = process.exited();
        let keeping = keeper.run();
        tokio::pin!(announce, exited, keeping);
        let mut order = self.order.clone();
        let (mut ended, mut kept, mut stopping) = (None, false, false);
        loop {
            tokio::select! {
                () = &mut keeping, if !kept => kept = true,
                exit = &mut exited, if ended.is_none() => {
                    ended = Some(exit);
                    if !stopping {
                        break;
                    }
                    // The readiness probe goes on until the pod's terminal status is written.
                }
                () = stopped(&mut order), if !stopping => {
                    stopping = true;
                    health_probes.abort_all();
                    self.publish(|view| view.accepted_stop = true);
                }
                result = &mut announce, if !shown_as_running => match result {
                    Ok(()) => {
                        shown_as_running = true;
                        self.publish(|view| {
                            view.state = State::Running { started_at: started_at.clone() };
                            (view.started, view.ready) = (started, started && ready);
                        });
                    }
                    Err(why) => {
                        self.context.warn("FailedPostStartHook", &why);
                        break;
                    }
                },
                Some((kind, finding)) = found.recv() => {
                    match (kind, finding) {
                        (ProbeKind::Readiness, finding) => ready = finding == Finding::Success,
                        (ProbeKind::Startup, Finding::Success) => {
                            started = true;
                            let at_once = || FirstProbe::After(Duration::ZERO);
                            start_after_startup(&mut health_probes, &mut readiness_probe, &at_once);
                        }
                        (ProbeKind::Liveness, Finding::Success) => {}
                        (ProbeKind::Startup | ProbeKind::Liveness, Finding::Failure) if !stopping => break,
                        (ProbeKind::Startup | ProbeKind::Liveness, Finding::Failure) => {}
                    }
                    if shown_as_running {
                        self.publish(|view| (view.started, view.ready) = (started, started && ready));
                    }
                }
            }
        }
        drop((health_probes, readiness_probe));

        let exit = match ended {
            Some(exit) => exit,
            // It has to be ended: its postStart hook or a probe failed.
            None => {
                let grace = Grace::new(self.context.grace_period_seconds());
                let ending = stop(&self.context, &self.spec, &target, &process, grace, async {});
                tokio::pin!(ending);
                loop {
                    tokio::select! {
                        exit = &mut ending => break exit,
                        () = &mut keeping, if !kept => kept = true,
                        () = stopped(&mut order) => break self.hand_over(&mut keeping, kept).await,
                    }
                }
            }
        };
        if !kept {
            keeping.await;
        }
        self.publish(|view| {
            let finished_at = self.context.shared.registry.now();
            view.state = State::Terminated(Ended { code: exit.code, started_at, finished_at });
            view.running = None;
            (view.started, view.ready) = (false, false);
        });
        exit
    }

    /// The pod's own termination takes over. Never returns.
    async fn hand_over(&self, keeping: impl Future<Output = ()>, kept: bool) -> Exit {
        self.publish(|view| view.accepted_stop = true);
        if !kept {
            keeping.await;
        }
        std::future::pending().await
    }

    /// Runs the postStart hook; the container shows as running when it has ended, and not
    /// sooner than the kubelet sees it.
    async fn post_start(&self, target: &Target, seen_after: Duration) -> Result<(), String> {
        let hook = self.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let hook = async {
            let Some(hook) = hook else { return Ok(()) };
            match Action::of_hook(hook, target)?.run().await {
                Ok(()) | Err(ActionError::Status(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        };
        tokio::join!(hook, sleep(seen_after)).0
    }
}

/// Waits for the order to stop.
async fn stopped(order: &mut watch::Receiver<Order>) {
    if order.wait_for(|order| *order == Order::Stop).await.is_err() {
        // The pod is gone, and this supervisor is about to be dropped.
        std::future::pending::<()>().await;
    }
}
