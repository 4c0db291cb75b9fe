//! Applies manifests, disrupts, watches, collects.
//!
//! A [`Session`] is one run's access to one cluster. It knows a `kube::Client` and not what kind of cluster is behind
//! it. Everything that it sees goes to one recorder thread, which owns the run directory's event log and the tables
//! of the proxies. It sends no load and judges nothing.

mod apply;
mod beats;
mod caller;
mod collect;
mod disrupt;
mod edits;
mod error;
mod journal;
mod limits;
mod lines;
mod load_job;
mod pages;
mod plan;
mod preflight;
mod recorder;
mod rollout;
mod routes;
mod server_clock;
mod service_proxy;
mod sidecar;
mod sinks;
mod targets;
mod undo;
mod versions;
mod view;
mod watch;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::cluster::Origin;
use crate::scenario::{Disruption, Place, Target};
use rolldrop_load::machine;
use rolldrop_proxy::observed::Candidate;
use rolldrop_record::event::NameAnswer;
use rolldrop_record::routing::ServiceRules;
use rolldrop_record::run_info::{ClusterInfo, Role, Source};
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, EventKind, RunDir, Stamp};

pub(crate) use caller::Caller;
pub(crate) use disrupt::{Disrupted, Losses, Programs, Settle, Silence, UnderLoad, codes, until_silent};
pub(crate) use error::CoordinatorError;
use journal::Journal;
pub(crate) use load_job::{LOAD_PORT, LoadJob, LoadPod, default_workers};
pub(crate) use pages::list_at_once;
pub(crate) use plan::{Plan, Work};
pub(crate) use recorder::Recorder;
pub(crate) use rollout::Workloads;
pub(crate) use routes::services_behind_in;
pub(crate) use sidecar::{GitOps, Sidecars};
use targets::{Consumer, Found};
pub(crate) use targets::{Ready, at_node};
pub(crate) use undo::{LeftOver, Undone};
use view::Views;
use ways::Way;

/// The coordinator's name as a source.
pub(crate) const SOURCE: &str = "coordinator";

/// Time limits; each has its name here and in the error that reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For one call of the API server.
    pub api_call: Duration,
    /// For an API server that is down, overloaded or faulty, from the first failure of a call.
    pub outage: Duration,
    /// For the target's pods to become ready.
    pub ready: Duration,
    /// For a pod that says why it cannot start, before the run gives up on it.
    pub stuck: Duration,
    /// For the disrupted pods and endpoints to be replaced, before the next disruption.
    pub recovery: Duration,
    /// For the ends of pods after the load, beyond their grace period.
    pub settle: Duration,
    /// For a command's changes to settle, once the command has ended.
    pub rollout: Duration,
    /// For a proxy's last rows.
    pub hand_over: Duration,
    /// For undoing all that was changed.
    pub undo: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            api_call: Duration::from_secs(30),
            outage: Duration::from_secs(30),
            ready: Duration::from_secs(60),
            stuck: Duration::from_secs(5),
            recovery: Duration::from_secs(300),
            settle: Duration::from_secs(10),
            rollout: Duration::from_secs(300),
            hand_over: Duration::from_secs(3),
            undo: Duration::from_secs(120),
        }
    }
}

/// What a session needs to start.
pub(crate) struct Settings<'a> {
    /// Who calls the cluster.
    pub caller: Caller,
    /// The label of the objects that the run creates; no other run has it.
    pub run: &'a str,
    /// How to reach the cluster again after the run; `None` if it ends with the run.
    pub cluster: Option<Origin>,
    /// Where to record.
    pub run_dir: &'a RunDir,
    /// The process's clock: the reference for all others.
    pub clock: Clock,
    /// The token of the proxies' admin ports.
    pub admin_token: Option<AdminToken>,
    /// What to do about objects that a GitOps controller keeps as they are.
    pub gitops: GitOps,
}

/// One run's access to one cluster.
pub(crate) struct Session {
    caller: Caller,
    clock: Clock,
    recorder: Recorder,
    views: Views,
    collector: collect::Collector,
    tasks: JoinSet<()>,
    tasks_stop: CancellationToken,
    journal: Mutex<Journal>,
    /// The owner of everything that the run creates, once it has created something.
    owner: OnceCell<OwnerReference>,
    /// The UIDs of pods that an action has chosen, until their end is known. Locked while another action chooses:
    /// otherwise several at once would take the same pods.
    taken: tokio::sync::Mutex<BTreeSet<String>>,
    gitops: GitOps,
    /// The longest time for which the load keeps a DNS answer, once it is known.
    period: Mutex<Duration>,
}

impl Session {
    /// Begins to watch and to record.
    ///
    /// # Errors
    /// When the API server does not answer, or the run directory cannot be written.
    pub(crate) async fn begin(settings: Settings<'_>) -> Result<Self, CoordinatorError> {
        let Settings { caller, run, cluster, run_dir, clock, admin_token, gitops } = settings;
        let Caller { client, namespace, .. } = &caller;
        let journal = Mutex::new(Journal::begin(run_dir.path(), clock, run, cluster)?);
        let recorder = Recorder::start(run_dir, clock)?;
        let views = Views::new();
        let tasks_stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let watches =
            sinks::Watches { caller: &caller, clock, recorder: &recorder, views: &views, stop: &tasks_stop };
        watches.spawn(&mut tasks);
        {
            let (recorder, stop) = (recorder.handle(), tasks_stop.clone());
            tasks.spawn(async move {
                let mut watch = machine::Watch::begin(clock);
                while let Some((at, sample)) = stop.run_until_cancelled(watch.next()).await {
                    recorder.event(at, EventKind::Machine(sample));
                }
            });
        }
        {
            let sampling = server_clock::sample(client.clone(), clock, recorder.handle(), caller.limits);
            let stop = tasks_stop.clone();
            tasks.spawn(async move {
                stop.run_until_cancelled(sampling).await;
            });
        }
        let collector = collect::Collector::default();
        tasks.spawn(collect::run(
            collector.clone(),
            collect::Context {
                client: client.clone(),
                namespace: namespace.clone(),
                clock,
                recorder: recorder.handle(),
                admin_token,
            },
            views.subscribe(),
            tasks_stop.clone(),
        ));
        let (owner, taken) = (OnceCell::new(), tokio::sync::Mutex::default());
        let session = Self {
            caller,
            clock,
            recorder,
            views,
            collector,
            tasks,
            tasks_stop,
            journal,
            gitops,
            owner,
            taken,
            period: Mutex::default(),
        };
        session.await_first_lists().await?;
        Ok(session)
    }

    /// The namespace in which everything happens.
    pub(crate) fn namespace(&self) -> &str {
        &self.caller.namespace
    }

    /// A client of the cluster.
    pub(crate) fn client(&self) -> kube::Client {
        self.caller.client.clone()
    }

    /// Records an event that happened now.
    pub(crate) fn record(&self, kind: EventKind) {
        self.record_at(self.clock.now(), kind);
    }

    /// Records an event of the coordinator's process.
    pub(crate) fn record_at(&self, at: Stamp, kind: EventKind) {
        self.recorder.handle().event(at, kind);
    }

    /// Records an event of another source, stamped on that source's clock.
    pub(crate) fn record_of(&self, source: &str, at: Stamp, kind: EventKind) {
        if let EventKind::NameAnswer(NameAnswer { ttl_s: Some(ttl_s), .. }) = &kind {
            let ttl = Duration::try_from_secs_f64(*ttl_s).unwrap_or_default();
            let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
            *period = ttl.max(*period);
        }
        self.recorder.handle().event_of(source, at, kind);
    }

    /// The period of a consumer's own clock, as far as it is known: how long the load keeps a DNS answer. Zero if
    /// there is none.
    pub(crate) fn period(&self) -> Duration {
        *self.period.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the manifests' objects, labelled with the run's name.
    ///
    /// # Errors
    /// When one exists already, or the API server refuses it. What was created until then is
    /// removed in [`Session::finish`].
    pub(crate) async fn deploy(&self, manifests: &[Value]) -> Result<(), CoordinatorError> {
        for manifest in manifests {
            self.create(manifest).await?;
        }
        Ok(())
    }

    /// Waits until the targets' pods are ready. Whether they answer is checked by the load, from where it is sent.
    ///
    /// # Errors
    /// When a pod cannot start (with the reason that it gives), when the limits
    /// pass, or when the Service cannot be used.
    pub(crate) async fn await_ready(
        &self,
        targets: &[Target],
        manifests: &[Value],
        disruptions: &[Disruption],
    ) -> Result<Ready, CoordinatorError> {
        let mut found = Vec::with_capacity(targets.len());
        let mut endpoints_of = BTreeMap::new();
        for Target { name, place, balances, balances_because, .. } in targets {
            let (url, consumer, service, rules) = match place {
                Place::Url(url) => {
                    let consumer = Consumer::Url(url.to_string());
                    (url.to_string(), consumer, None, ServiceRules::default())
                }
                Place::Service { name: service_name, port, path, node } => {
                    let service = preflight::service(&self.caller, service_name).await?;
                    let wanted = preflight::wanted_endpoints(&service, manifests);
                    let endpoints = self.await_endpoints(service_name, wanted).await?;
                    endpoints_of.insert(service_name, endpoints);
                    let way = Way { service: &service, name: service_name, port: port.as_deref(), path };
                    let (url, consumer) = way.find(&self.caller, node.as_deref()).await?;
                    (url, consumer, Some(service_name.clone()), service_proxy::rules(&service))
                }
            };
            let (balances, balances_because) = (*balances, balances_because.clone());
            let name = name.clone();
            found.push(Found { name, url, consumer, balances, balances_because, service, rules });
        }
        if targets.iter().any(|target| matches!(target.place, Place::Url(_))) {
            self.await_own_workloads(manifests).await?;
        }
        let endpoints = endpoints_of.into_values().sum();
        for disruption in disruptions {
            disrupt::check(self, disruption).await?;
        }
        let cluster = self.fingerprint(endpoints).await?;
        Ok(Ready { targets: found, cluster })
    }

    /// Runs the disruptions, during a load. A refused action is recorded and counted in the result.
    pub(crate) async fn disrupt(
        &self,
        disruptions: &[Disruption],
        load: UnderLoad<'_>,
        programs: &dyn Programs,
    ) -> Disrupted {
        disrupt::run(self, disruptions, load, programs).await
    }

    /// Waits for the ends of pods that are still ending, and for the proxies' last rows.
    pub(crate) async fn settle(&self) {
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
            self.record(EventKind::Warning { message });
        }
        // A run that is stopped does not ask, and has missed nothing by that.
        if let Ok(Err(error)) = self.caller.stoppable(self.await_watch()).await
            && !self.caller.stop.is_cancelled()
        {
            // What the watch has not shown by now it will not show.
            let resource = String::from("pods");
            self.record(EventKind::WatchGap { resource, from: self.clock.now() - watch::LONGEST_SILENCE });
            let message = format!("the last events are not known: {error}");
            self.record(EventKind::Warning { message });
        }
        self.collector.catch_up(&self.caller.limits).await;
    }

    /// Makes the existing proxies hand over their rows, and waits for nothing else: what an interrupted run has time
    /// for. It takes at most twice [`Limits::hand_over`].
    pub(crate) async fn hand_over(&self) {
        let limits = Limits { outage: self.caller.limits.hand_over, ..self.caller.limits };
        self.collector.catch_up(&limits).await;
    }

    /// Waits until the watch has caught up: a watch may be late, or dead without a sign.
    async fn await_watch(&self) -> Result<(), CoordinatorError> {
        let what = "list pods";
        let api = Api::<Candidate>::namespaced(self.caller.client.clone(), &self.caller.namespace);
        let params = ListParams::default();
        let number = |version: &str| version.parse::<u64>().unwrap_or(0);
        let known = |pod: Candidate| {
            (pod.uid().unwrap_or_default(), number(&pod.resource_version().unwrap_or_default()))
        };
        let listed = self.caller.list_as(what, &api, &params, known).await?;
        let listed = listed.map_err(|e| CoordinatorError::api(what, &e))?;
        let there: BTreeMap<String, u64> = listed.into_iter().collect();
        let before: Vec<String> = self.views.read(|view| view.pods.keys().cloned().collect());
        let shown = self.views.wait_until(|view| {
            let is_gone = |uid: &String| there.contains_key(uid) || !view.pods.contains_key(uid);
            let has_shown = |(uid, version): (&String, &u64)| {
                // A pod that is gone was shown when it ended.
                view.pods.get(uid).is_none_or(|seen| number(&seen.event.resource_version) >= *version)
            };
            view.pods_listed && before.iter().all(is_gone) && there.iter().all(has_shown)
        });
        let limit = self.caller.limits.outage;
        let late = CoordinatorError::Timeout { what: "watch pods".to_owned(), limit };
        timeout(limit, shown).await.map_err(|_| late)
    }

    /// Removes what the session created, restores what it changed, ends its tasks, and closes the records. Returns
    /// the recorders, and what is left in the cluster for somebody to look after. `give_up` cuts the undoing short.
    ///
    /// # Errors
    /// When the records could not be written.
    pub(crate) async fn finish(
        mut self,
        give_up: CancellationToken,
    ) -> Result<(Vec<Source>, Vec<Undone>), CoordinatorError> {
        let mut journal = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let undone = undo::all(&Caller { stop: give_up, ..self.caller.clone() }, &mut journal).await;
        let left: Vec<_> = undone.iter().flatten().filter(|undone| undone.is_left()).cloned().collect();
        for undone in &left {
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
        self.recorder.finish().await?;
        undone?;
        Ok((sources, left))
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first lists of the watches, so that no event of the run is missed.
    async fn await_first_lists(&self) -> Result<(), CoordinatorError> {
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

    async fn await_endpoints(&self, service: &str, wanted: usize) -> Result<usize, CoordinatorError> {
        let deadline = Instant::now() + self.caller.limits.ready;
        let mut stuck_since: Option<Instant> = None;
        loop {
            let (ready, stuck) =
                self.views.read(|view| (view.ready_endpoints(service), view.stuck_container(|_| true)));
            if ready >= wanted {
                return Ok(ready);
            }
            let now = Instant::now();
            let since = stuck.as_ref().map(|_| *stuck_since.get_or_insert(now));
            match (stuck, since) {
                (Some(why), Some(since)) if now >= since + self.caller.limits.stuck || now >= deadline => {
                    return Err(CoordinatorError::PodNeverStarts(why.to_string()));
                }
                (None, _) => stuck_since = None,
                _ => {}
            }
            if now >= deadline {
                let limit = self.caller.limits.ready;
                let service = service.to_owned();
                return Err(CoordinatorError::NotReady { service, ready, wanted, limit });
            }
            let look_again = (now + Duration::from_millis(500)).min(deadline);
            let _ = self.caller.stoppable(timeout_at(look_again, self.views.changed())).await?;
        }
    }

    /// Waits until the workloads among the manifests have the pods that they ask for: the endpoints of a URL are not
    /// known.
    async fn await_own_workloads(&self, manifests: &[Value]) -> Result<(), CoordinatorError> {
        let name = |object: &Value| {
            let title = format!("{} {}", object["kind"].as_str()?, object["metadata"]["name"].as_str()?);
            (!object["spec"]["template"].is_null()).then_some(title)
        };
        let own: Vec<String> = manifests.iter().filter_map(name).collect();
        if own.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + self.caller.limits.ready;
        let mut stuck_since: Option<Instant> = None;
        while let Some(missing) = self.workloads().await?.missing_of(&own) {
            let now = Instant::now();
            match self.views.read(|view| view.stuck_container(|_| true)) {
                Some(why) if now >= *stuck_since.get_or_insert(now) + self.caller.limits.stuck => {
                    return Err(CoordinatorError::PodNeverStarts(why.to_string()));
                }
                Some(_) => {}
                None => stuck_since = None,
            }
            if now >= deadline {
                return Err(CoordinatorError::WorkloadNotReady { missing, limit: self.caller.limits.ready });
            }
            let look_again = (now + Duration::from_millis(500)).min(deadline);
            let _ = self.caller.stoppable(timeout_at(look_again, self.views.changed())).await?;
        }
        Ok(())
    }

    async fn fingerprint(&self, endpoints: usize) -> Result<ClusterInfo, CoordinatorError> {
        let version = self.caller.server_version().await?;
        // All of it is read where rights allow; without them the fingerprint says less.
        let nodes = Api::<Node>::all(self.caller.client.clone());
        let params = ListParams::default();
        let known = |node: Node| Node { spec: None, status: None, ..node };
        let nodes = self.caller.list_as("list nodes", &nodes, &params, known).await?.unwrap_or_default();
        let (dataplane, dataplane_from) = service_proxy::find(&self.caller, &nodes).await?;
        Ok(ClusterInfo {
            version,
            dataplane,
            dataplane_from,
            nodes: nodes.len(),
            endpoints,
            namespace: self.caller.namespace.clone(),
        })
    }

    fn longest_grace(&self) -> Duration {
        let seconds = self.views.read(|view| {
            view.terminating().filter_map(|p| p.deletion_grace_s).max().unwrap_or(0).max(0).unsigned_abs()
        });
        Duration::from_secs(seconds)
    }
}

#[cfg(test)]
mod tests;
