//! Builds pod lives and joined requests from records, all on the coordinator's clock.
//!
//! Pure: data in, data out. It determines when events happened; the rest of [`crate`] determines why requests were
//! lost and draws conclusions.

mod actions;
mod attempts;
mod beat_bounds;
pub(crate) mod by_name;
pub mod clocks;
mod commands;
pub(crate) mod connections;
mod conntrack_evidence;
mod consumer_kind;
pub(crate) mod drop_policy;
pub mod endpoint_history;
pub mod integrity;
pub(crate) mod lanes;
mod load_events;
pub(crate) mod periods;
mod phases;
mod pod_addresses;
pub mod pod_lives;
mod pod_names;
pub mod requests;
pub mod restarts;
mod span;
mod stretch;
mod termination_cause;
mod watches;
mod workload_changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashSet};

pub use actions::{ActionCall, RefusedAction, Withdrawal};
pub(crate) use beat_bounds::BeatCollector;
pub use beat_bounds::{Beats, BeatsState};
use clocks::{API_SERVER, Clocks};
pub use commands::RunCommand;
pub use conntrack_evidence::ConntrackEvidence;
use endpoint_history::EndpointHistory;
pub use integrity::{Hole, Integrity};
use pod_addresses::PodAddresses;
pub use pod_lives::{EARLY_S, OwningWorkload, PodEnd, PodLife, SIGKILLED, Stages, T0, TerminationWatch};
use pod_names::PodNames;
use requests::Joins;
pub(crate) use requests::StreamRows;
pub use requests::{Agreement, Request, Requests};
pub use restarts::ContainerRestart;
pub use span::TimeSpan;
use watches::ENDPOINT_SLICES;
pub(crate) use watches::PODS;
pub use watches::UnwatchedPeriod;
pub use workload_changes::ChangeByOthers;

use crate::model::account::RecordContradiction;
use rolldrop_record::event::{AnswerHeaders, Change, MachineSample, NameAnswer, WorkloadEvent};
use rolldrop_record::parts::PartError;
use rolldrop_record::run_info::{Rows, Target};
use rolldrop_record::service_proxy::{ProxyEvidence, ServiceProxy};
use rolldrop_record::{
    ALPHA, Event, EventKind, Looks, Outcome, RequestRow, RowSource, RunInfo, RunLog, Stamp,
};

/// Completed hand-over of a proxy's rows.
#[derive(Clone, Debug)]
pub struct HandOver {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Source name of the proxy.
    pub source: String,
    /// Numbers of rows recorded and received.
    pub rows: Rows,
}

impl HandOver {
    /// Returns true if rows are missing that the proxy recorded or may have recorded.
    pub(crate) fn misses_rows(&self) -> bool {
        self.rows.recorded.is_none_or(|recorded| recorded > self.rows.received)
    }
}

/// One run on one clock, without its [`Requests`].
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Contents of run.json.
    pub info: RunInfo,
    /// Part of the run that the timeline covers.
    pub span: TimeSpan,
    /// Time at which the counted part of the load began.
    pub origin: Stamp,
    /// Load stages: start time, initial rate and final rate of each.
    pub stages: Vec<(Stamp, f64, f64)>,
    /// Time the load ended; if no event shows it, the end of the last request.
    pub load_ended: Stamp,
    /// Number of rows that the load sources reported.
    pub announced: Option<u64>,
    /// Counted requests by outcome, for load sources whose rows did not all arrive.
    pub tallies: BTreeMap<String, BTreeMap<Outcome, u64>>,
    /// All pods behind the targets, in order of creation.
    pub pods: Vec<PodLife>,
    /// Pods that were terminating under load in the span, ordered by t0.
    pub ends: Vec<PodEnd>,
    /// Each t0 under load, with the time the pod was gone; includes terminations outside the span.
    pub(crate) endings: Vec<(Stamp, Stamp)>,
    lives_by_name: HashMap<String, Vec<NamedLife>>,
    /// Programs that the run started, in order.
    pub commands: Vec<RunCommand>,
    /// The run's own API calls, in order.
    pub calls: Vec<ActionCall>,
    /// Workload changes under load that the run did not make.
    pub changes_by_others: Vec<ChangeByOthers>,
    /// Requested actions that were refused.
    pub refused: Vec<RefusedAction>,
    /// Containers that exited in pods that were not terminating.
    pub restarts: Vec<ContainerRestart>,
    /// Number of node agent restarts that the run requested.
    pub agent_restarts: usize,
    /// Pods that left their Services while they kept running.
    pub withdrawals: Vec<Withdrawal>,
    /// Endpoint history.
    pub endpoints: EndpointHistory,
    /// Beats, which date deletions made by others.
    pub beats: Beats,
    /// Gaps in the watches.
    pub gaps: Vec<UnwatchedPeriod>,
    /// Time the pod watch last started with a list.
    pub pods_listed: Option<Stamp>,
    /// The kernel's connection tracking for the load, if it was used.
    pub tracked: Option<ConntrackEvidence>,
    /// Facts that are passed on as they were recorded.
    pub notes: Notes,
    /// Parts of the record that could not be read.
    pub torn: Vec<String>,
    /// Parts of the record that could not be read, with no kill to explain why.
    pub corrupt: Vec<String>,
    /// Result of checking that the readable part of the record is complete and consistent.
    pub integrity: Integrity,
    /// Relevant clocks that were never compared with the coordinator's clock.
    pub unsampled_clocks: Vec<String>,
}

impl Timeline {
    /// Returns the pods for which some proxy rows did not arrive.
    pub(crate) fn pods_without_all_rows(&self) -> BTreeSet<&str> {
        self.notes.hand_overs.iter().filter(|proxy| proxy.misses_rows()).map(|proxy| &*proxy.pod).collect()
    }

    /// Returns true if a proxy recorded this pod's requests, and all its rows have arrived.
    pub(crate) fn has_all_rows_of(&self, uid: &str) -> bool {
        let mut of_pod = self.notes.hand_overs.iter().filter(|proxy| proxy.uid == uid).peekable();
        of_pod.peek().is_some() && of_pod.all(|proxy| !proxy.misses_rows())
    }

    /// Returns the error probability of a statement about the run.
    pub(crate) fn alpha(&self) -> f64 {
        self.info.looks.as_ref().map_or(ALPHA, Looks::alpha)
    }

    /// Builds the timeline of a run.
    #[cfg(test)]
    pub(crate) fn build(log: RunLog, rows: impl RowSource + 'static) -> Result<(Self, Requests), PartError> {
        Unread::of(log, TimeSpan::ALL).build(Arc::new(rows))
    }

    /// Returns the index of a request's target.
    pub fn target_of(&self, row: &RequestRow) -> Option<usize> {
        self.info.targets.iter().position(|target| *target.name == *row.target)
    }

    /// Returns the second of the span's counted part that contains `at`. Earlier times map to the first second, and
    /// later ones to the last second that a load can have.
    pub fn second_of(&self, at: Stamp) -> usize {
        let begun = self.origin.max(self.span.from);
        let since = Duration::from_nanos(u64::try_from(at.ns_since(begun)).unwrap_or(0));
        usize::try_from(since.min(load_events::LONGEST).as_secs()).unwrap_or(0)
    }

    /// Returns true if, at some time in this period, a container had exited in a pod that was not terminating and had
    /// not restarted yet.
    pub fn is_restarting(&self, from: Stamp, to: Stamp) -> bool {
        let meets =
            |restart: &ContainerRestart| restart.from <= to && restart.to.is_none_or(|back| from <= back);
        self.restarts.iter().any(meets)
    }

    /// Returns the workloads deleted under load, with the deletion times.
    pub(crate) fn deleted_workloads(&self) -> impl Iterator<Item = &(Stamp, String)> {
        let all = self.notes.deleted_workloads.iter();
        all.filter(|(at, _)| (self.origin..=self.load_ended).contains(at))
    }

    /// Returns the time in seconds since the counted part of the load began.
    pub fn seconds(&self, at: Stamp) -> f64 {
        at.seconds_since(self.origin)
    }

    /// Returns the termination index of the pod that had this name at `at`, if it was terminated under load.
    pub fn end_of(&self, pod: &str, at: Stamp) -> Option<usize> {
        self.lives_of(pod).end_at(at)
    }

    /// Returns the lives of all pods with this name.
    pub(crate) fn lives_of(&self, pod: &str) -> Lives<'_> {
        Lives(self.lives_by_name.get(pod).map_or(&[], Vec::as_slice))
    }

    /// Returns the longest observed time to live, in seconds, of a DNS response to clients of this target; clients
    /// cache the response for that long. Returns `None` if they use no DNS, or its responses never expire. A window for
    /// such a consumer is the remainder of the current period plus a delay.
    pub fn period_s(&self, target: &Target) -> Option<f64> {
        self.notes.ttls.get(target.host()?).copied()
    }

    /// Returns the first gap in the record that overlaps this period.
    pub fn hole_in(&self, from: Stamp, until: Stamp) -> Option<&Hole> {
        self.integrity.holes.iter().find(|hole| hole.from <= until && from <= hole.to)
    }

    /// Returns true if the pod watch began again with a list after this gap; the list shows which pods are gone.
    pub fn was_listed_after(&self, gap: &UnwatchedPeriod) -> bool {
        self.pods_listed.is_some_and(|at| at >= gap.to)
    }

    /// Returns the Events that report a failed hook for this termination.
    pub fn failed_hooks_of(&self, end: &PodEnd) -> impl Iterator<Item = &FailedHook> {
        // The next pod of a StatefulSet has the same name.
        let until = end.gone().map(|gone| gone.shifted_ns(HOOK_LATE_NS));
        let (pod, from) = (end.pod.clone(), end.t0.earliest);
        self.notes.failed_hooks.iter().filter(move |failed| {
            failed.pod == pod && failed.at >= from && until.is_none_or(|until| failed.at <= until)
        })
    }

    /// Returns true if an Event about a failed hook of this termination may have been missed.
    pub fn may_miss_hooks_of(&self, end: &PodEnd) -> bool {
        let until = end.gone().unwrap_or(self.load_ended).shifted_ns(HOOK_LATE_NS);
        let is_missed = |gap: &UnwatchedPeriod| {
            gap.is_lost && gap.resource == EVENTS && gap.from <= until && gap.to >= end.t0.earliest
        };
        self.notes.not_watched.contains_key(EVENTS) || self.gaps.iter().any(is_missed)
    }

    /// Returns the gaps in the pod and endpoint watches that overlap a pod's termination.
    pub fn gaps_of(&self, end: &PodEnd) -> impl Iterator<Item = &UnwatchedPeriod> {
        let (from, until) = (end.t0.earliest, end.gone().unwrap_or(self.load_ended));
        self.gaps.iter().filter(move |gap| gap.hides_ends() && gap.from <= until && gap.to >= from)
    }
}

/// Records of a run whose rows have not been read yet.
pub(crate) struct Unread {
    log: RunLog,
    span: TimeSpan,
    /// Beats that are not in the log.
    beats: Option<Beats>,
    clocks: Clocks,
    load: load_events::LoadCollector,
}

impl Unread {
    /// Takes the records; only those in one span will be explained.
    pub(crate) fn of(mut log: RunLog, span: TimeSpan) -> Self {
        let clocks = Clocks::new(&log.info, &log.events);
        let cluster = &mut log.info.cluster;
        if !cluster.dataplane.is_known()
            && let Some(mode) = conntrack_evidence::service_proxy(&log.events)
        {
            (cluster.dataplane, cluster.dataplane_from) = (mode, Some(ProxyEvidence::ProxyMode));
        }
        let mut load = load_events::LoadCollector::of(&log.info);
        log.events.iter().for_each(|event| load.observe(clocks.place(&event.source, event.at), &event.kind));
        Self { log, span, beats: None, clocks, load }
    }

    /// Uses these beats, which come from a longer record than the log.
    pub(crate) fn dated_by(self, beats: Beats) -> Self {
        Self { beats: Some(beats), ..self }
    }

    /// Returns the timeline without the facts that only rows show. Returns `None` if only rows show when the load began
    /// and ended.
    pub(crate) fn draft(&self) -> Option<Timeline> {
        let lasted = self.load.lasted(&self.log.info, (None, None));
        self.load.is_timed().then(|| self.timeline(lasted))
    }

    /// Reads all rows and [totals](Requests::open) the plainly successful ones.
    pub(crate) fn read<S: Send>(
        &self,
        rows: Arc<dyn RowSource>,
        begin: impl Fn() -> S,
        add: impl Fn(&mut S, &Request) + Sync,
        merge: impl FnMut(&mut S, S),
    ) -> Result<(Requests, S), PartError> {
        let RunLog { info, events, .. } = &self.log;
        let joins = Joins {
            names: PodNames::of(events),
            addresses: PodAddresses::of(info, events, &self.clocks),
            relays: HashSet::default(),
            run: info.run.clone(),
            needs_proof: info.cluster.dataplane == ServiceProxy::Ipvs,
        };
        Requests::open(rows, (self.clocks.clone(), joins), self.span, begin, add, merge)
    }

    /// Reads all rows, and builds the timeline.
    pub(crate) fn build(self, rows: Arc<dyn RowSource>) -> Result<(Timeline, Requests), PartError> {
        let (requests, ()) = self.read(rows, || (), |(), _| (), |(), ()| ())?;
        let timeline = self.finish(None, &requests)?;
        Ok((timeline, requests))
    }

    /// Completes the timeline with the facts that the rows showed, starting from its [draft](Self::draft) if there is
    /// one.
    pub(crate) fn finish(self, draft: Option<&Timeline>, requests: &Requests) -> Result<Timeline, PartError> {
        let lasted = self.load.lasted(&self.log.info, (requests.first_scheduled, requests.last_end));
        let mut timeline = match draft {
            Some(draft) => draft.clone(),
            None => self.timeline(lasted),
        };
        consumer_kind::settle(&mut timeline.info.targets, requests, &timeline.notes.answers);
        timeline.integrity = requests.integrity((&timeline.info, &self.log.events), lasted)?;
        let contradictions = &mut timeline.integrity.contradictions;
        contradictions.extend(self.log.altered.into_iter().map(RecordContradiction::Altered));
        contradictions.extend(self.load.impossible.into_iter().map(RecordContradiction::Untimely));
        if requests.last_end.is_some_and(|end| end > timeline.origin + load_events::LONGEST) {
            let days = load_events::LONGEST.as_secs() / (24 * 60 * 60);
            contradictions.push(RecordContradiction::TooLate { days });
        }
        if let Some(tracked) = &mut timeline.tracked {
            tracked.agreement = requests.agreement;
        }
        Ok(timeline)
    }

    /// Returns the timeline of a load between these two times, without the facts that only rows show.
    fn timeline(&self, (load_started, load_ended): (Stamp, Stamp)) -> Timeline {
        let Self { log, span, beats, clocks, load } = self;
        let mut seen =
            Collectors { endpoints: EndpointHistory::of(&log.info.targets), ..Collectors::default() };
        log.events.iter().for_each(|event| seen.observe(clocks, event));
        seen.endpoints.end();
        let Collectors { actions, watches, mut notes, endpoints, pods, .. } = seen;
        let beats = beats.clone().unwrap_or_else(|| seen.beats.judged());
        let commands = seen.commands.0;
        notes.hand_overs.retain(|proxy| !pods.was_ending_before(load_started, &proxy.uid));
        let others = pod_lives::Others {
            clocks,
            beats: &beats,
            endpoints: &endpoints,
            actions: &actions.0,
            commands: &commands,
            histories: &seen.histories,
            nodes: &seen.nodes,
            phases: &seen.phases,
            watches: &watches,
        };
        let (mut pods, mut ends) = pods.finish(&others, &(load_started..=load_ended));
        // Without the rows before the span, nothing else shows that these pods are serving.
        pods.iter_mut().for_each(|life| life.listed |= life.endpoint_ready.is_some_and(|at| at < span.from));
        let ending = |end: &PodEnd| (end.t0.earliest, end.gone().unwrap_or(load_ended).max(end.t0.latest));
        let endings = ends.iter().map(ending).collect();
        ends.retain(|end| {
            let (from, until) = ending(end);
            span.meets(from, until)
        });
        let mut unsampled_clocks: Vec<String> = clocks.unsampled().map(str::to_owned).collect();
        if ends.iter().any(|e| !e.own && e.stages.deletion_seen.is_some()) && !clocks.knows(API_SERVER) {
            unsampled_clocks.push(API_SERVER.to_owned());
        }
        let (calls, under_load) = (actions.calls(), (load.counted.unwrap_or(load_started), load_ended));
        let changes_by_others = match commands.is_empty() {
            true => workload_changes::by_others(&seen.histories, &calls, under_load),
            false => Vec::new(),
        };
        Timeline {
            info: log.info.clone(),
            span: *span,
            origin: load.counted.unwrap_or(load_started),
            stages: load.stages.clone(),
            load_ended,
            announced: load.announced,
            tallies: load.tallies.clone(),
            lives_by_name: lives_by_name(&pods, &ends),
            pods,
            ends,
            endings,
            commands,
            changes_by_others,
            calls,
            refused: actions.refused(),
            restarts: seen.restarts.behind(&endpoints),
            agent_restarts: actions.agent_restarts(),
            withdrawals: actions.withdrawals(&endpoints),
            endpoints,
            beats,
            gaps: watches.gaps,
            pods_listed: watches.pods_listed,
            tracked: seen.tracked.0,
            notes,
            torn: log.torn.clone(),
            corrupt: log.corrupt.clone(),
            integrity: Integrity::default(),
            unsampled_clocks,
        }
    }
}

/// Life of one of the pods that had a given name.
#[derive(Clone, Copy, Debug)]
struct NamedLife {
    created: Stamp,
    /// Index among the timeline's pods.
    number: usize,
    /// Index of the pod's termination, if it was terminated under load.
    end: Option<usize>,
}

/// Lives of the pods that had one name, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lives<'a>(&'a [NamedLife]);

impl<'a> Lives<'a> {
    /// Returns the pod that existed at `at`: the last one created by then, or else the first.
    fn at(self, at: Stamp) -> Option<&'a NamedLife> {
        let begun = self.0.partition_point(|life| life.created <= at);
        self.0.get(begun.saturating_sub(1))
    }

    /// Returns the termination index of the pod that existed at `at`, if it was terminated under load.
    pub(crate) fn end_at(self, at: Stamp) -> Option<usize> {
        self.at(at)?.end
    }

    /// Returns the index of the pod that existed at `at`.
    pub(crate) fn number_at(self, at: Stamp) -> Option<usize> {
        Some(self.at(at)?.number)
    }
}

/// Groups pod lives by name: StatefulSets reuse names.
fn lives_by_name(pods: &[PodLife], ends: &[PodEnd]) -> HashMap<String, Vec<NamedLife>> {
    let mut lives: HashMap<String, Vec<_>> = HashMap::default();
    for (number, life) in pods.iter().enumerate() {
        let end = ends.iter().position(|end| end.uid == life.uid);
        lives.entry(life.name.clone()).or_default().push(NamedLife { created: life.created, number, end });
    }
    lives
}

/// Collectors for a run's events; each kind of event goes to one or more of them.
#[derive(Default)]
struct Collectors<'a> {
    commands: commands::CommandCollector,
    actions: actions::ActionCollector<'a>,
    watches: watches::WatchCollector,
    pods: pod_lives::PodCollector,
    restarts: restarts::RestartCollector<'a>,
    endpoints: EndpointHistory,
    phases: phases::PhaseCollector<'a>,
    beats: beat_bounds::BeatCollector,
    histories: termination_cause::Histories,
    nodes: termination_cause::NodeHistories,
    tracked: conntrack_evidence::ConntrackCollector,
    notes: Notes,
}

impl<'a> Collectors<'a> {
    fn observe(&mut self, clocks: &Clocks, event: &'a Event) {
        let (at, kind) = (clocks.place(&event.source, event.at), &event.kind);
        self.commands.observe(at, kind);
        self.actions.observe(at, kind);
        self.watches.observe(at, kind);
        self.pods.observe(at, kind);
        self.restarts.observe(at, kind);
        self.phases.observe(at, &event.source, kind);
        self.beats.observe(at, kind);
        self.histories.observe(at, kind);
        self.nodes.observe(at, kind);
        self.tracked.observe(clocks, event);
        self.notes.observe(at, &event.source, kind);
        match kind {
            EventKind::EndpointSlice(slice) => self.endpoints.observe(at, slice),
            EventKind::WatchGap { resource, from } if resource == ENDPOINT_SLICES => {
                self.endpoints.was_blind(*from, at, true);
            }
            EventKind::WatchLate { resource, from } if resource == ENDPOINT_SLICES => {
                self.endpoints.was_blind(*from, at, false);
            }
            _ => {}
        }
    }
}

/// Kubernetes Event in which a kubelet reports a failed preStop hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedHook {
    /// Time the Event was seen.
    pub at: Stamp,
    /// Name of the pod.
    pub pod: String,
    /// The container, if the Event names it.
    pub container: Option<String>,
    /// The Event's message.
    pub message: String,
}

/// Maximum time between a pod's disappearance and an Event about it.
const HOOK_LATE_NS: i64 = 5_000_000_000;
/// Name of the Events watch.
const EVENTS: &str = "events";
/// Reason of the kubelet's Event for a failed preStop hook.
const FAILED_HOOK: &str = "FailedPreStopHook";
/// Reason of the Events in which the embedded cluster reports how it differs from a real one.
const NOT_MODELLED: &str = "NotModelled";

/// Facts that are passed on as they were recorded.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// CPU figures for the measuring processes and their machines, by source.
    pub machine: BTreeMap<String, Vec<(Stamp, MachineSample)>>,
    /// Completed hand-overs of proxies.
    pub hand_overs: Vec<HandOver>,
    /// Periods in which the embedded cluster did not respond, with the start and the end of each.
    pub silences: Vec<(Stamp, Stamp)>,
    /// Times at which a wait after a termination reached its limit while requests were still being lost.
    pub unsettled: Vec<Stamp>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Failed preStop hooks, as reported by Events.
    pub failed_hooks: Vec<FailedHook>,
    /// Differences between the embedded cluster and a real one, by container and sentence, with the affected pods.
    pub not_modelled: BTreeMap<(String, String), BTreeSet<String>>,
    /// Deletion times of workloads that nothing else controls.
    deleted_workloads: Vec<(Stamp, String)>,
    /// Resources that the run was not permitted to watch, and the API server's reason.
    pub not_watched: BTreeMap<String, String>,
    /// Response headers by target name, over all load sources.
    answers: BTreeMap<String, AnswerHeaders>,
    /// Longest time to live of DNS responses, in seconds, by name.
    ttls: BTreeMap<String, f64>,
}

impl Notes {
    fn observe(&mut self, at: Stamp, source: &str, kind: &EventKind) {
        match kind {
            EventKind::Machine(sample) => {
                self.machine.entry(source.to_owned()).or_default().push((at, *sample));
            }
            EventKind::ProxyEnded { pod, uid, of, rows } => {
                let (pod, uid, source) = (pod.clone(), uid.clone(), of.clone());
                self.hand_overs.push(HandOver { pod, uid, source, rows: *rows });
            }
            EventKind::AnswerHeaders(of_source) => {
                let target = of_source.target.clone();
                let none = || AnswerHeaders { target: target.clone(), ..AnswerHeaders::default() };
                self.answers.entry(target.clone()).or_insert_with(none).merge(of_source);
            }
            EventKind::NameAnswer(NameAnswer { name, ttl_s: Some(ttl_s), .. }) => {
                let longest = self.ttls.entry(name.clone()).or_insert(*ttl_s);
                *longest = longest.max(*ttl_s);
            }
            EventKind::ClusterEvent { pod, reason, message, container } if reason == FAILED_HOOK => {
                let (pod, container, message) = (pod.clone(), container.clone(), message.clone());
                self.failed_hooks.push(FailedHook { at, pod, container, message });
            }
            // Events about whole objects also arrived as warnings in the API server's responses.
            EventKind::ClusterEvent { pod, reason, message, container: Some(container) }
                if reason == NOT_MODELLED =>
            {
                let said = (container.clone(), message.clone());
                self.not_modelled.entry(said).or_default().insert(pod.clone());
            }
            EventKind::Workload(WorkloadEvent { change: Change::Deleted, workload, owner: None, .. }) => {
                self.deleted_workloads.push((at, workload.replace('/', " ")));
            }
            EventKind::ApiSilence { from } => self.silences.push((*from, at)),
            EventKind::NotWatched { resource, why } => {
                self.not_watched.insert(resource.clone(), why.clone());
            }
            EventKind::Unsettled { .. } => self.unsettled.push(at),
            EventKind::Warning { message } => self.warnings.push(message.clone()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
