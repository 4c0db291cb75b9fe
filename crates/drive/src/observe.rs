//! Watches the cluster, records what happens there, and waits for it.
//!
//! All observations go to one recorder thread, which owns the run directory's event log and the proxies'
//! tables. Only the beats write to the cluster.

mod beat_occasions;
pub(crate) mod beat_writer;
mod ending_pods;
mod event_recorder;
pub(crate) mod foreign_changes;
mod found_targets;
mod gateway_logs;
mod list_watch;
mod named_pods;
pub(crate) mod namespace_view;
pub(crate) mod proxy_detection;
pub(crate) mod ready;
pub(crate) mod rollout_wait;
mod served_table;
mod server_clock;
mod sinks;
mod standstill;
pub(crate) mod target_service;
mod termination_watches;
pub(crate) mod unready;
mod waiting;
pub(crate) mod ways;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::tasks::BackgroundTasks;
use crate::viewer::Viewer;
pub use beat_occasions::BeatObject;
pub(crate) use ending_pods::follow_ending_pods;
use event_recorder::EventRecorder;
pub(crate) use event_recorder::{RecorderHandle, SOURCE};
pub use foreign_changes::changed as changed_by_others;
pub(crate) use found_targets::{ReadyTargets, at_node};
pub use gateway_logs::{GatewayLogs, LogDelivery, LogDeliveryKind, LogPods, LogSource};
pub(crate) use list_watch::Need;
pub(crate) use namespace_view::{View, Views};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_load::machine;
use rolldrop_record::event::NameAnswer;
use rolldrop_record::run_info::EventsWritten;
use rolldrop_record::{Clock, EventKind, RunDir, Stamp};
pub(crate) use rollout_wait::Workloads;
pub use sinks::WatchScope;
pub use termination_watches::{TerminationWatchOptions, TerminationWatches, WatchedEvent};
pub(crate) use waiting::Waiting;
pub(crate) use ways::Way;

/// Shows and records what happens in a run's cluster.
pub(crate) struct Observer {
    recorder: EventRecorder,
    views: Views,
    viewer: Arc<dyn Viewer>,
    /// Longest known time for which the load caches a DNS answer.
    period: Mutex<Duration>,
}

impl Observer {
    /// Starts recording, without any watches.
    ///
    /// # Errors
    /// Fails if the run directory cannot be written.
    pub(crate) fn begin(run_dir: &RunDir, clock: Clock, viewer: Arc<dyn Viewer>) -> Result<Self> {
        let recorder = EventRecorder::start(run_dir, clock, Arc::clone(&viewer))?;
        Ok(Self { recorder, views: Views::default(), viewer, period: Mutex::default() })
    }

    /// Starts the watches, and the sampling of this machine and of the API server. Also watches an embedded cluster for
    /// standstills.
    pub(crate) fn watch(&self, caller: &Caller, is_embedded: bool, tasks: &mut BackgroundTasks) {
        let recorder = self.recorder();
        let listener = Arc::new(recorder.clone());
        let scope = WatchScope::Namespace(caller.namespace.clone());
        let (client, limits, views) = (&caller.client, caller.limits, &self.views);
        sinks::Watches { client, scope: &scope, limits, listener, views, tasks }.follow_run();
        let handle = recorder.clone();
        tasks.spawn(async move {
            let mut watch = machine::MachineSampler::begin(handle.clock());
            loop {
                let (at, sample) = watch.next().await;
                handle.event(at, EventKind::Machine(sample));
            }
        });
        let (asking, handle) = (client.clone(), recorder.clone());
        tasks.spawn(async move {
            let sample = server_clock::sample(&asking, handle.clock(), limits).await;
            handle.record(sample);
        });
        if is_embedded {
            tasks.spawn(standstill::watch(client.clone(), recorder.clone()));
        }
    }

    /// Returns the recorder of the run's events.
    pub(crate) fn recorder(&self) -> &RecorderHandle {
        self.recorder.handle()
    }

    /// Returns the namespace's current state.
    pub(crate) fn views(&self) -> &Views {
        &self.views
    }

    /// Returns the live view of the run.
    pub(crate) fn viewer(&self) -> &dyn Viewer {
        &*self.viewer
    }

    /// Records an event from another source, timestamped by that source's clock.
    pub(crate) fn record_of(&self, source: &str, at: Stamp, kind: EventKind) {
        if let EventKind::NameAnswer(NameAnswer { ttl_s: Some(ttl_s), .. }) = &kind {
            let ttl = Duration::try_from_secs_f64(*ttl_s).unwrap_or_default();
            let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
            *period = ttl.max(*period);
        }
        self.recorder().event_of(source, at, kind);
    }

    /// Returns the longest known time for which the load caches a DNS answer, or zero if it caches none. A load that
    /// caches answers is a consumer with its own clock, and this time is the clock's period.
    pub(crate) fn period(&self) -> Duration {
        *self.period.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of terminations that the watch has seen.
    pub(crate) fn pods_ended(&self) -> usize {
        self.views.read(|view| view.ended.len())
    }

    /// Waits for the watches' initial lists so that no event of the run is missed. The run begins with them.
    pub(crate) async fn await_first_lists(&self, caller: &Caller) -> Result<()> {
        let what = "watch pods and endpointslices";
        let listed = self.views.wait_until(|view| view.listed() || !view.unbelieved.is_empty());
        let listed = caller.limited(what, listed).await;
        if let Some(why) = self.views.read(|view| view.unbelieved.values().next().cloned()) {
            return Err(CoordinatorError::refused(what, why));
        }
        match self.views.read(|view| view.trouble.values().next().cloned()) {
            Some(why) if matches!(listed, Err(CoordinatorError::Timeout { .. })) => {
                Err(CoordinatorError::refused(what, why))
            }
            _ => listed,
        }?;
        self.views.update(View::begin_run);
        Ok(())
    }

    /// Waits until terminating pods are gone and the watch has confirmed this.
    pub(crate) async fn await_ends(&self, caller: &Caller) {
        let deadline = Instant::now() + caller.limits.settle + self.longest_grace();
        let gone = self.views.wait_until(|view| view.pods_listed && view.terminating().next().is_none());
        if timeout_at(deadline, caller.stoppable(gone)).await.is_err() {
            let pods: Vec<_> = self.views.read(|v| v.terminating().map(|p| p.name.clone()).collect());
            let message = match pods.join(", ") {
                none if none.is_empty() => {
                    "failed to list the pods at the end of the wait for them to terminate".into()
                }
                pods => format!("still terminating when the wait ended: {pods}"),
            };
            self.recorder().warn(message);
        }
        // A stopped run skips this check.
        if let Ok(Err(error)) = caller.stoppable(self.await_watch(caller)).await
            && !caller.stop.is_cancelled()
        {
            // Events that the watch has not shown by now are missing from the record.
            let resource = String::from("pods");
            let from = self.recorder().clock().now() - list_watch::LONGEST_SILENCE;
            self.recorder().record(EventKind::WatchGap { resource, from });
            self.recorder().warn(format!("the last events of the run may be missing: {error}"));
        }
    }

    /// Waits until the watch has caught up with a fresh list. A watch may lag, or may have died silently.
    async fn await_watch(&self, caller: &Caller) -> Result<()> {
        let what = "list pods";
        let number = |version: &str| version.parse::<u64>().unwrap_or(0);
        let known = |pod: Candidate| {
            (pod.uid().unwrap_or_default(), number(&pod.resource_version().unwrap_or_default()))
        };
        let listed = caller.list_as(what, &caller.api(), &ListParams::default(), known).await?;
        let listed = listed.map_err(|e| CoordinatorError::api(what, &e))?;
        let there: BTreeMap<String, u64> = listed.into_iter().collect();
        let before: Vec<String> = self.views.read(|view| view.pods.keys().cloned().collect());
        let shown = self.views.wait_until(|view| {
            let is_gone = |uid: &String| there.contains_key(uid) || !view.pods.contains_key(uid);
            let has_shown = |(uid, version): (&String, &u64)| {
                // The watch has already shown the termination of a pod that is no longer in the view.
                view.pods.get(uid).is_none_or(|seen| number(&seen.event.resource_version) >= *version)
            };
            view.pods_listed && before.iter().all(is_gone) && there.iter().all(has_shown)
        });
        let limit = caller.limits.outage;
        let late = CoordinatorError::Timeout { what: "watch pods".to_owned(), limit };
        timeout(limit, shown).await.map_err(|_| late)
    }

    fn longest_grace(&self) -> Duration {
        let seconds = self.views.read(|view| {
            view.terminating().filter_map(|p| p.deletion_grace_s).max().unwrap_or(0).max(0).unsigned_abs()
        });
        Duration::from_secs(seconds)
    }

    /// Closes the record. Returns the counts of written events.
    ///
    /// # Errors
    /// Fails if the record could not be written.
    pub(crate) async fn finish(self) -> Result<EventsWritten> {
        self.recorder.finish().await
    }
}
