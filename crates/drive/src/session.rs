//! One run's access to one cluster, from the first list of objects to the last row.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::act::load_job;
use crate::act::{Applier, Changer, Disruptor, LoadJob, LoadPods, Programs, UnderLoad, hold, live_rollout};
use crate::api::{Caller, TimeLimits};
use crate::cluster::Origin;
use crate::collect::Collector;
use crate::error::Result;
use crate::observe::{Observer, ReadyTargets, SOURCE, Workloads, beat_writer, ready, rollout_wait};
use crate::plan::{GitOps, LiveChanges, Made};
use crate::tasks::BackgroundTasks;
use crate::undo::{ChangeLedger, Journal, Undone};
use crate::viewer::Viewer;
use rolldrop_record::run_info::{EventsWritten, Role, Source};
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, EventKind, RunDir, Stamp};
use rolldrop_scenario::{Disruption, Scenario, Workload};

/// Everything that a session needs to start.
pub(crate) struct SessionStart<'a> {
    /// Client for the cluster, with its namespace and limits.
    pub caller: Caller,
    /// Value of the run's label on every object that the run creates; unique to this run.
    pub run: &'a str,
    /// Way to reach the cluster again after the run; `None` if the cluster ends with the run.
    pub cluster: Option<Origin>,
    /// Directory to record to.
    pub run_dir: &'a RunDir,
    /// Clock of this process, which is the reference for all others.
    pub clock: Clock,
    /// Token for the admin ports of the recording proxies.
    pub admin_token: Option<AdminToken>,
    /// Policy for objects that a GitOps controller manages.
    pub gitops: GitOps,
    /// Live view of the run.
    pub viewer: Arc<dyn Viewer>,
}

/// One run's access to one cluster: the services, and the order in which a run uses them.
pub(crate) struct Session {
    caller: Caller,
    observer: Observer,
    collector: Collector,
    ledger: ChangeLedger,
    applier: Applier,
    disruptor: Disruptor,
    tasks: BackgroundTasks,
}

/// Results of a finished session.
#[derive(Debug)]
pub(crate) struct Closed {
    /// All recorders of the run.
    pub sources: Vec<Source>,
    /// Changes that were undone, or could not be undone.
    pub undone: Vec<Undone>,
    /// UIDs of the pods that were already terminating when the run began.
    pub ending_before: BTreeSet<String>,
    /// Events written to the log, or the reason that the records could not be written.
    pub events: Result<EventsWritten>,
}

impl Session {
    /// Starts watching and recording.
    ///
    /// # Errors
    /// Fails if the API server does not respond, or if the run directory cannot be written.
    pub(crate) async fn begin(settings: SessionStart<'_>) -> Result<Self> {
        let SessionStart { caller, run, cluster, run_dir, clock, admin_token, gitops, viewer } = settings;
        let is_embedded = cluster.is_none();
        let ledger = ChangeLedger::of(Journal::begin(run_dir.path(), clock, run, cluster)?);
        let observer = Observer::begin(run_dir, clock, viewer)?;
        let mut tasks = BackgroundTasks::default();
        observer.watch(&caller, is_embedded, &mut tasks);
        let collector = Collector::begin(&caller, &observer, admin_token, &mut tasks);
        observer.await_first_lists(&caller).await?;
        let (applier, disruptor) = (Applier::default(), Disruptor::new(gitops));
        Ok(Self { caller, observer, collector, ledger, applier, disruptor, tasks })
    }

    /// Returns the client for the cluster.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Records an event that happened now.
    pub(crate) fn record(&self, kind: EventKind) {
        self.observer.recorder().record(kind);
    }

    /// Records an event from the coordinator's process, timestamped by that process's clock.
    pub(crate) fn record_at(&self, at: Stamp, kind: EventKind) {
        self.observer.recorder().event(at, kind);
    }

    /// Records an event from another source, timestamped by that source's clock.
    pub(crate) fn record_of(&self, source: &str, at: Stamp, kind: EventKind) {
        self.observer.record_of(source, at, kind);
    }

    /// Returns the number of terminations that the watch has seen.
    pub(crate) fn pods_ended(&self) -> usize {
        self.observer.pods_ended()
    }

    /// Returns true if the run still has to restore or remove something in the cluster.
    pub(crate) fn has_changes(&self) -> bool {
        !self.ledger.journal().open_changes().is_empty()
    }

    /// Marks workloads as in use until the end of the run; see [`hold::hold`].
    pub(crate) async fn hold(&mut self, workloads: &[Workload], run: &str) -> Result<()> {
        let changer = Changer { caller: &self.caller, ledger: &self.ledger };
        hold::hold(changer, self.observer.recorder(), &mut self.tasks, workloads, run).await
    }

    /// Creates the manifests' objects; see [`Applier::deploy`].
    pub(crate) async fn deploy(&self, manifests: &[Value]) -> Result<()> {
        self.applier.deploy(self.changer(), self.observer.recorder(), manifests).await
    }

    /// Changes existing workloads, and waits for the rollout; see [`live_rollout::change`].
    pub(crate) async fn change_workloads(&self, changes: &LiveChanges<'_>) -> Result<Vec<String>> {
        live_rollout::change(self.changer(), &self.observer, changes).await
    }

    /// Waits until the targets' pods are ready, and checks that the disruptions are possible.
    ///
    /// # Errors
    /// Fails if a pod cannot start (with the reason that it reports), if a limit passes, or if a target or a
    /// disruption is not possible.
    pub(crate) async fn await_ready(
        &self,
        scenario: &Scenario,
        disruptions: &[Disruption],
    ) -> Result<ReadyTargets> {
        let Self { caller, observer, .. } = self;
        let (targets, endpoints) = ready::await_targets(caller, observer, scenario).await?;
        ready::await_own_workloads(caller, observer, scenario, disruptions).await?;
        let made = Made::by(&scenario.manifests, &caller.namespace);
        for pods in disruptions.iter().filter_map(|disruption| disruption.action.pods()) {
            let made = made.selected(&pods.selector).len();
            ready::await_own_pods(caller, observer, &pods.selector, made).await?;
        }
        for (index, disruption) in disruptions.iter().enumerate() {
            let checked = self.disruptor.check(self.changer(), observer, disruption).await;
            checked.map_err(|error| error.at(scenario, &format!("spec.disruptions[{index}]")))?;
        }
        let cluster = ready::fingerprint(caller, endpoints).await?;
        Ok(ReadyTargets { targets, cluster })
    }

    /// Creates the load's Job; see [`load_job::make`].
    pub(crate) async fn make_load_job(&self, job: &LoadJob<'_>) -> Result<()> {
        load_job::make(self.changer(), &self.applier, job).await
    }

    /// Waits until the pods of all load workers are ready; see [`load_job::await_pods`].
    pub(crate) async fn await_load_pods(
        &self,
        workers: usize,
        limit: Duration,
        tell: impl Fn(&str),
    ) -> Result<LoadPods> {
        let run = self.ledger.run();
        load_job::await_pods(&self.caller, &self.observer, (run, workers), limit, tell).await
    }

    /// Waits until a load worker's pod has ended, and returns the reason.
    pub(crate) fn pod_ended(&self, uid: &str) -> impl Future<Output = String> + Send + use<> {
        load_job::pod_ended(self.observer.views(), uid)
    }

    /// Writes beats while the future is awaited; see [`beat_writer::beat`].
    pub(crate) async fn beat(&self) -> Infallible {
        let owner = self.applier.owner(self.changer());
        beat_writer::beat(&self.caller, self.observer.recorder(), owner).await
    }

    /// Carries out the disruptions during a load; see [`Disruptor::disrupt`].
    pub(crate) async fn disrupt(
        &self,
        disruptions: &[Disruption],
        load: UnderLoad<'_>,
        programs: &dyn Programs,
    ) -> usize {
        self.disruptor.disrupt(self.changer(), &self.observer, disruptions, load, programs).await
    }

    /// Waits until the workloads have settled; see [`rollout_wait::await_rollout`].
    pub(crate) async fn await_rollout(&self, before: &Workloads, disruption: Option<u32>) -> Result<()> {
        rollout_wait::await_rollout(&self.caller, &self.observer, before, disruption).await
    }

    /// Waits until the workloads are complete again after a round; see [`rollout_wait::await_recovery`].
    pub(crate) async fn await_recovery(&self, before: &Workloads) -> Result<()> {
        rollout_wait::await_recovery(&self.caller, &self.observer, before).await
    }

    /// Waits until terminating pods are gone and the watch has confirmed this.
    pub(crate) async fn await_ends(&self) {
        self.observer.await_ends(&self.caller).await;
    }

    /// Waits until terminating pods are gone and the proxies' last rows have arrived.
    pub(crate) async fn settle(&self) {
        self.await_ends().await;
        self.collector.catch_up(&self.caller.limits).await;
    }

    /// Collects the existing proxies' remaining rows and waits for nothing else, because an interrupted run has no time
    /// for more. This takes at most twice [`TimeLimits::hand_over`].
    pub(crate) async fn hand_over(&self) {
        let limits = TimeLimits { outage: self.caller.limits.hand_over, ..self.caller.limits };
        self.collector.catch_up(&limits).await;
    }

    /// Removes the objects that the session created, reverts its changes, stops its tasks, and closes the records.
    /// Cancelling `give_up` cuts the undo short.
    pub(crate) async fn finish(self, give_up: CancellationToken) -> Closed {
        let undone = self.ledger.undo(&Caller { stop: give_up, ..self.caller }).await;
        for undone in undone.iter().filter(|undone| undone.is_left()) {
            self.observer.recorder().warn(format!("undoing the changes: {undone}"));
        }
        self.tasks.stop().await;
        let mut sources = vec![Source {
            name: SOURCE.into(),
            role: Role::Coordinator,
            clock_offset_ns: 0,
            clock_uncertainty_ns: Some(0),
            rows: None,
        }];
        sources.extend(self.collector.sources());
        let ending_before = self.observer.views().read(|view| view.ending_before.clone());
        Closed { sources, undone, ending_before, events: self.observer.finish().await }
    }

    fn changer(&self) -> Changer<'_> {
        Changer { caller: &self.caller, ledger: &self.ledger }
    }
}

#[cfg(test)]
pub(crate) mod tests;
