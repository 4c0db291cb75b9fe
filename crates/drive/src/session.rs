//! One run's access to one cluster, from the first list of objects to the last row.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::api::caller::{Caller, Limits};
use crate::cluster::Origin;
use crate::collect::{self, Collector};
use crate::error::{CoordinatorError, Result};
use crate::observe::event_recorder::{Recorder, SOURCE};
use crate::observe::namespace_view::Views;
use crate::observe::{list_watch as watch, server_clock, sinks, standstill};
use crate::plan::claims::Claims;
use crate::plan::gitops::GitOps;
use crate::undo::change_journal::Journal;
use crate::undo::{self, Undone};
use crate::viewer::Viewer;
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_load::machine;
use rolldrop_record::event::NameAnswer;
use rolldrop_record::run_info::{EventsWritten, Role, Source};
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, EventKind, RunDir, Stamp};
use rolldrop_sidecar::inject;

/// Everything that a session needs to start.
pub(crate) struct SessionStart<'a> {
    /// Client of the cluster, with its namespace and limits.
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

/// One run's access to one cluster.
pub(crate) struct Session {
    pub(crate) caller: Caller,
    pub(crate) clock: Clock,
    pub(crate) recorder: Recorder,
    pub(crate) views: Views,
    pub(crate) collector: Collector,
    pub(crate) tasks: JoinSet<()>,
    pub(crate) tasks_stop: CancellationToken,
    pub(crate) journal: Mutex<Journal>,
    /// Changes that were already undone before the end of the run.
    pub(crate) taken_back: Mutex<Vec<Undone>>,
    /// Owner of everything that the run creates; set when the run creates its first object.
    pub(crate) owner: OnceCell<OwnerReference>,
    /// Pods that actions have chosen. Locked while an action chooses; otherwise concurrent actions would choose the
    /// same pods.
    pub(crate) claims: tokio::sync::Mutex<Claims>,
    pub(crate) gitops: GitOps,
    pub(crate) viewer: Arc<dyn Viewer>,
    /// Longest known time for which the load caches a DNS answer.
    pub(crate) period: Mutex<Duration>,
}

/// Results of a finished session.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// All recorders of the run.
    pub sources: Vec<Source>,
    /// Changes that were undone, or could not be undone.
    pub undone: Vec<Undone>,
    /// Events written to the log; `None` if the log could not be closed.
    pub events: Option<EventsWritten>,
}

impl Session {
    /// Starts watching and recording.
    ///
    /// # Errors
    /// Fails if the API server does not respond, or if the run directory cannot be written.
    pub(crate) async fn begin(settings: SessionStart<'_>) -> Result<Self> {
        let SessionStart { caller, run, cluster, run_dir, clock, admin_token, gitops, viewer } = settings;
        let Caller { client, namespace, .. } = &caller;
        let is_embedded = cluster.is_none();
        let journal = Mutex::new(Journal::begin(run_dir.path(), clock, run, cluster)?);
        let recorder = Recorder::start(run_dir, clock, Arc::clone(&viewer))?;
        let views = Views::new();
        let tasks_stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let watches =
            sinks::Watches { caller: &caller, clock, recorder: &recorder, views: &views, stop: &tasks_stop };
        watches.spawn(&mut tasks);
        let (handle, stop) = (recorder.handle(), tasks_stop.clone());
        tasks.spawn(async move {
            let mut watch = machine::MachineSampler::begin(clock);
            while let Some((at, sample)) = stop.run_until_cancelled(watch.next()).await {
                handle.event(at, EventKind::Machine(sample));
            }
        });
        let sampling = server_clock::sample(client.clone(), clock, recorder.handle(), caller.limits);
        let stop = tasks_stop.clone();
        tasks.spawn(async move {
            stop.run_until_cancelled(sampling).await;
        });
        if is_embedded {
            let watching = standstill::watch(client.clone(), clock, recorder.handle());
            let stop = tasks_stop.clone();
            tasks.spawn(async move {
                stop.run_until_cancelled(watching).await;
            });
        }
        let collector = Collector::default();
        let context = collect::Context {
            client: client.clone(),
            namespace: namespace.clone(),
            clock,
            recorder: recorder.handle(),
            admin_token,
        };
        let stop = tasks_stop.clone();
        tasks.spawn(collect::run(collector.clone(), context, views.subscribe(), stop));
        let session = Self {
            caller,
            clock,
            recorder,
            views,
            collector,
            tasks,
            tasks_stop,
            journal,
            taken_back: Mutex::default(),
            gitops,
            viewer,
            owner: OnceCell::new(),
            claims: tokio::sync::Mutex::default(),
            period: Mutex::default(),
        };
        session.await_first_lists().await?;
        Ok(session)
    }

    /// Returns the namespace of the run.
    pub(crate) fn namespace(&self) -> &str {
        &self.caller.namespace
    }

    /// Returns a client for the cluster.
    pub(crate) fn client(&self) -> kube::Client {
        self.caller.client.clone()
    }

    /// Records an event that happened now.
    pub(crate) fn record(&self, kind: EventKind) {
        self.record_at(self.clock.now(), kind);
    }

    /// Records a warning.
    pub(crate) fn warn(&self, message: String) {
        self.record(EventKind::Warning { message });
    }

    /// Records an event in the coordinator's process.
    pub(crate) fn record_at(&self, at: Stamp, kind: EventKind) {
        self.recorder.handle().event(at, kind);
    }

    /// Records an event from another source, timestamped by that source's clock.
    pub(crate) fn record_of(&self, source: &str, at: Stamp, kind: EventKind) {
        if let EventKind::NameAnswer(NameAnswer { ttl_s: Some(ttl_s), .. }) = &kind {
            let ttl = Duration::try_from_secs_f64(*ttl_s).unwrap_or_default();
            let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
            *period = ttl.max(*period);
        }
        self.recorder.handle().event_of(source, at, kind);
    }

    /// Returns the longest known time for which the load caches a DNS answer, which is the period of that consumer's
    /// own clock; zero if there is no such consumer.
    pub(crate) fn period(&self) -> Duration {
        *self.period.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of pods whose end the watch has seen.
    pub(crate) fn pods_ended(&self) -> usize {
        self.views.read(|view| view.ended.len())
    }

    /// Returns true if the run still has to restore or remove something in the cluster.
    pub(crate) fn has_changes(&self) -> bool {
        !self.journal().open_changes().is_empty()
    }

    /// Creates the manifests' objects, labelled with the run's name.
    ///
    /// # Errors
    /// Fails if an object exists already, or if the API server refuses one. [`Session::finish`] removes the objects
    /// that were created before the failure.
    pub(crate) async fn deploy(&self, manifests: &[Value]) -> Result<()> {
        for manifest in manifests {
            // Discards warnings from earlier calls, which are not about this object.
            drop(self.caller.warnings.take());
            let object = self.create(manifest).await?;
            let kind = object.types.as_ref().map_or("object", |types| &types.kind);
            let own = sidecar_path(manifest);
            for warning in self.caller.warnings.take() {
                if own.as_ref().is_none_or(|path| !warning.starts_with(path)) {
                    self.warn(format!("{kind} {}: {warning}", object.name_any()));
                }
            }
        }
        Ok(())
    }

    /// Waits until terminating pods are gone and the proxies' last rows have arrived.
    pub(crate) async fn settle(&self) {
        self.await_ends().await;
        self.collector.catch_up(&self.caller.limits).await;
    }

    /// Waits until terminating pods are gone and the watch has shown it.
    pub(crate) async fn await_ends(&self) {
        let deadline = Instant::now() + self.caller.limits.settle + self.longest_grace();
        let gone = self.views.wait_until(|view| view.pods_listed && view.terminating().next().is_none());
        if timeout_at(deadline, self.caller.stoppable(gone)).await.is_err() {
            let pods: Vec<_> = self.views.read(|v| v.terminating().map(|p| p.name.clone()).collect());
            let message = match pods.join(", ") {
                none if none.is_empty() => {
                    "the pods could not be listed when the wait for their end was over".into()
                }
                pods => format!("still terminating when the wait ended: {pods}"),
            };
            self.warn(message);
        }
        // A stopped run skips this check, which costs it nothing.
        if let Ok(Err(error)) = self.caller.stoppable(self.await_watch()).await
            && !self.caller.stop.is_cancelled()
        {
            // Events that the watch has not shown by now are missing from the record.
            let resource = String::from("pods");
            self.record(EventKind::WatchGap { resource, from: self.clock.now() - watch::LONGEST_SILENCE });
            self.warn(format!("the last events are not known: {error}"));
        }
    }

    /// Collects the existing proxies' remaining rows and waits for nothing else, because an interrupted run has no time
    /// for more. This takes at most twice [`Limits::hand_over`].
    pub(crate) async fn hand_over(&self) {
        let limits = Limits { outage: self.caller.limits.hand_over, ..self.caller.limits };
        self.collector.catch_up(&limits).await;
    }

    /// Waits until the watch has caught up with a fresh list. A watch may lag, or may have died without any sign.
    async fn await_watch(&self) -> Result<()> {
        let what = "list pods";
        let number = |version: &str| version.parse::<u64>().unwrap_or(0);
        let known = |pod: Candidate| {
            (pod.uid().unwrap_or_default(), number(&pod.resource_version().unwrap_or_default()))
        };
        let listed = self.caller.list_as(what, &self.caller.api(), &ListParams::default(), known).await?;
        let listed = listed.map_err(|e| CoordinatorError::api(what, &e))?;
        let there: BTreeMap<String, u64> = listed.into_iter().collect();
        let before: Vec<String> = self.views.read(|view| view.pods.keys().cloned().collect());
        let shown = self.views.wait_until(|view| {
            let is_gone = |uid: &String| there.contains_key(uid) || !view.pods.contains_key(uid);
            let has_shown = |(uid, version): (&String, &u64)| {
                // The watch has already shown the end of a pod that is no longer in the view.
                view.pods.get(uid).is_none_or(|seen| number(&seen.event.resource_version) >= *version)
            };
            view.pods_listed && before.iter().all(is_gone) && there.iter().all(has_shown)
        });
        let limit = self.caller.limits.outage;
        let late = CoordinatorError::Timeout { what: "watch pods".to_owned(), limit };
        timeout(limit, shown).await.map_err(|_| late)
    }

    /// Removes the objects that the session created, reverts its changes, stops its tasks, and closes the records.
    /// Cancelling `give_up` cuts the undoing short.
    ///
    /// # Errors
    /// Fails if the records could not be written.
    pub(crate) async fn finish(mut self, give_up: CancellationToken) -> Result<Closed> {
        let mut journal = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let undone = undo::all(&Caller { stop: give_up, ..self.caller.clone() }, &mut journal).await;
        for undone in undone.iter().flatten().filter(|undone| undone.is_left()) {
            let message = format!("after the run: {undone}");
            self.recorder.handle().event(self.clock.now(), EventKind::Warning { message });
        }
        self.tasks_stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        let mut sources = vec![Source {
            name: SOURCE.into(),
            role: Role::Coordinator,
            clock_offset_ns: 0,
            clock_uncertainty_ns: Some(0),
            rows: None,
        }];
        sources.extend(self.collector.sources());
        let events = self.recorder.finish().await?;
        let mut undone = undone?;
        undone.extend(self.taken_back.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(Closed { sources, undone, events: Some(events) })
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the watches' initial lists, so that no event of the run is missed.
    async fn await_first_lists(&self) -> Result<()> {
        let what = "watch pods and endpointslices";
        let listed = self.views.wait_until(|view| view.listed() || !view.unbelieved.is_empty());
        let listed = self.caller.limited(what, listed).await;
        if let Some(why) = self.views.read(|view| view.unbelieved.values().next().cloned()) {
            return Err(CoordinatorError::Api { what: what.to_owned(), why });
        }
        match self.views.read(|view| view.trouble.values().next().cloned()) {
            Some(why) if matches!(listed, Err(CoordinatorError::Timeout { .. })) => {
                Err(CoordinatorError::Api { what: what.to_owned(), why })
            }
            _ => listed,
        }
    }

    fn longest_grace(&self) -> Duration {
        let seconds = self.views.read(|view| {
            view.terminating().filter_map(|p| p.deletion_grace_s).max().unwrap_or(0).max(0).unsigned_abs()
        });
        Duration::from_secs(seconds)
    }
}

/// Returns the path of the recording proxy's container in a manifest. The run added this container, not the user.
fn sidecar_path(manifest: &Value) -> Option<String> {
    ["spec.template.spec", "spec"].into_iter().find_map(|pod| {
        let list = manifest.pointer(&format!("/{}/initContainers", pod.replace('.', "/")))?.as_array()?;
        let place = list.iter().position(|container| container["name"] == inject::SIDECAR_NAME)?;
        Some(format!("{pod}.initContainers[{place}]."))
    })
}

#[cfg(test)]
pub(crate) mod tests;
