//! Effects of terminations on real traffic, as shown by gateway access logs or the journals of our own sidecars.
//!
//! Each log line becomes one row for each attempt at a pod, as if the gateway were a load source and the kernel's
//! connection tracking named the pods. [`crate::termination`] explains these rows like the rows of a run, so a loss has
//! the same cause in both. Only the background is specific to real traffic, which also loses requests at healthy pods.

mod background;
mod kept_attempts;
mod known_services;
mod log_clock;
mod pod_journals;
mod served_requests;
mod service_times;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use crate::conclude::explained::Explained;
use crate::explain_span;
use crate::model::{Bounded, LogGap, TerminationTraffic, WatchedTermination};
use crate::timeline::{BeatCollector, PODS, TimeSpan, Unread};
use background::{HealthyLosses, background, is_no_connection};
use kept_attempts::{AttemptFate, ChosenAttempts, KeptAttempts, Upstream};
use known_services::{KnownServices, ServiceNumber};
use log_clock::LogClock;
use pod_journals::{PodJournal, PodJournals, limit_to_journals};
use rolldrop_record::event::{Change, PodEvent};
use rolldrop_record::parts::PartError;
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::{
    Balances, BalancesBecause, ClusterInfo, FORMAT_VERSION, LoadPlan, Role, Source, Target, Tool,
};
use rolldrop_record::{
    ClockOffset, Event, EventKind, Expect, LoggedRequest, Policy, RunId, RunInfo, RunLog, Stamp,
};

const SECOND_NS: i64 = 1_000_000_000;
/// Length of the period before t0 in which the attempts show how often gateways used the pod.
const BEFORE_NS: i64 = 60 * SECOND_NS;
/// Margin before t0 and after the pod was gone in which losses are explained. In recorded runs, a margin of 10 s gives
/// the same result for every termination as the whole run.
const MARGIN_NS: i64 = 10 * SECOND_NS;
/// Length of the period before a termination that is searched for losses at healthy pods.
const BACKGROUND_NS: i64 = 600 * SECOND_NS;
/// Time after which lost attempts, and pods that are gone, are forgotten.
const KEPT_NS: i64 = 720 * SECOND_NS;
/// Time after which other attempts are forgotten, unless a terminating pod may have received them. Also the time after
/// its grace period in which a pod must be gone: attempts are not kept any longer for one that does not end.
const RECENT_NS: i64 = 180 * SECOND_NS;
/// Maximum number of attempts, of 32 bytes each, to keep for pods that were deleted longer than [`RECENT_NS`] ago.
const MOST_HELD: usize = 8_000_000;
/// Number of events to keep for each pod. A pod that changes more often keeps changing in the same way.
const EVENTS_KEPT: usize = 24;
/// Number of samples of the API server's clock to keep.
const SAMPLES_KEPT: usize = 6;
/// Maximum time between two unreadable lines of a log that belong to the same gap.
const NEAR_NS: i64 = 10 * SECOND_NS;
/// Reasons for gaps.
const INTERRUPTED: &str = "log interrupted";
const UNREADABLE: &str = "unreadable line";
const UNKNOWN: &str = "earlier lines unknown";
/// Source of the watch events.
const COORDINATOR: &str = "coordinator";
/// Number of terminations whose upper bounds hold jointly: each termination is reported on its own.
const TOGETHER: usize = 1;

/// Maximum delay until a gateway writes the line for an attempt at a pod that is gone: nginx waits 60 s for a
/// connection by default, and Envoy writes its lines every 10 s.
pub const LINES_WITHIN_NS: i64 = 75 * SECOND_NS;

/// Attempts by gateways, and the pods that they may have reached.
#[derive(Debug)]
pub struct GatewayTraffic {
    /// Run id of the rows, as in a run.
    id: RunId,
    attempts: KeptAttempts,
    clocks: BTreeMap<Arc<str>, LogClock>,
    journals: PodJournals,
    /// Source of each log.
    sources: BTreeMap<Arc<str>, String>,
    pods: BTreeMap<String, PodHistory>,
    services: KnownServices,
    /// Addresses of pods that got their address while being watched, each with the time at which the pod became ready,
    /// or `None` if it has not become ready yet; only addresses that no other pod has had.
    started: HashMap<IpAddr, Option<Stamp>>,
    /// Samples of the API server's clock.
    samples: Vec<Event>,
    beats: BeatCollector,
    gaps: Vec<LogGap>,
    /// Logs that currently cannot be read, each with the time of the last line read.
    interrupted: BTreeMap<Arc<str>, Stamp>,
    /// Time from which the logs have been read, on their own clocks.
    known_from: Stamp,
    /// Time before which attempts have been forgotten, on the watch's clock.
    forgotten: Stamp,
}

/// A pod as the watch showed it.
#[derive(Debug, Default)]
struct PodHistory {
    address: Option<IpAddr>,
    /// Time at which the watch first showed the pod as ready.
    ready: Option<Stamp>,
    /// Time at which the watch first showed the pod as being deleted.
    deleting: Option<Stamp>,
    /// Time at which the longest grace period of its deletions is over.
    due: Option<Stamp>,
    gone: Option<Stamp>,
    /// True if the pod's termination has been explained.
    is_explained: bool,
    events: Vec<(Stamp, PodEvent)>,
}

impl PodHistory {
    fn observe(&mut self, at: Stamp, event: &PodEvent) {
        self.address = self.address.or_else(|| event.ip.as_deref()?.parse().ok());
        if event.ready {
            self.ready.get_or_insert(at);
        }
        if event.deletion_timestamp.is_some() || event.change == Change::Deleted {
            let deleting = *self.deleting.get_or_insert(at);
            let grace_ns = event.deletion_grace_s.unwrap_or(event.grace_s).saturating_mul(SECOND_NS);
            self.due = self.due.max(Some(deleting.shifted_ns(grace_ns)));
        }
        self.gone = (event.change == Change::Deleted).then_some(at);
        if self.events.len() >= EVENTS_KEPT {
            // Keep the first event, which shows how long the pod has existed.
            self.events.remove(1);
        }
        if self.events.is_empty() {
            // Most pods never change.
            self.events.reserve_exact(1);
        }
        self.events.push((at, event.clone()));
    }

    /// Returns the first event and the address of a pod that has an address.
    fn shown(&self) -> Option<(&PodEvent, IpAddr)> {
        let (_, first) = self.events.first()?;
        Some((first, self.address?))
    }

    /// Returns the time from which the pod was being deleted, or was no longer listed after a gap.
    fn left(&self) -> Option<Stamp> {
        self.deleting.or(self.gone)
    }

    /// Returns true if the pod may have been deleted before the watch began.
    fn may_precede_watch(&self) -> bool {
        self.events.first().is_none_or(|(_, first)| first.deletion_timestamp.is_some())
    }

    /// Returns the time from which the pod certainly sent no responses. After a forced deletion, the app may still be
    /// running.
    fn silent_from(&self) -> Option<Stamp> {
        let (_, last) = self.events.last()?;
        let has_ended = last.containers.iter().all(|of| of.state.as_deref() == Some("terminated"));
        self.gone.filter(|_| has_ended)
    }
}

impl GatewayTraffic {
    /// Creates an empty record of traffic. `id` is the run id of the rows; `begun` is the time from which logs are
    /// read.
    pub fn new(id: RunId, begun: Stamp) -> Self {
        Self {
            id,
            attempts: KeptAttempts::default(),
            clocks: BTreeMap::new(),
            journals: PodJournals::default(),
            sources: BTreeMap::new(),
            pods: BTreeMap::new(),
            services: KnownServices::default(),
            started: HashMap::new(),
            samples: Vec::new(),
            beats: BeatCollector::default(),
            gaps: Vec::new(),
            interrupted: BTreeMap::new(),
            known_from: begun,
            forgotten: Stamp::default(),
        }
    }

    /// Processes a watch event.
    pub fn observe(&mut self, at: Stamp, kind: &EventKind) {
        self.beats.observe(at, kind);
        self.services.observe(at, kind);
        match kind {
            EventKind::Pod(pod) => self.observe_pod(at, pod),
            // A list follows, which lacks every pod that was deleted in the gap.
            EventKind::WatchGap { resource, .. } if resource == PODS => {
                self.pods.values_mut().for_each(|pod| _ = pod.gone.get_or_insert(at));
                self.started.clear();
            }
            EventKind::ClockSample { .. } => {
                if self.samples.len() >= SAMPLES_KEPT {
                    self.samples.remove(0);
                }
                self.samples.push(Event::new(at, COORDINATOR, kind.clone()));
            }
            _ => {}
        }
    }

    fn observe_pod(&mut self, at: Stamp, event: &PodEvent) {
        let had_address = |address| self.pods.values().any(|pod| pod.address == Some(address));
        let address = event.ip.as_deref().and_then(|ip| ip.parse().ok());
        let is_new = self.pods.get(&event.uid).is_none_or(|pod| pod.address.is_none());
        let is_alone = is_new && address.is_some_and(|address| !had_address(address));
        let pod = self.pods.entry(event.uid.clone()).or_default();
        let was_watched = !pod.events.is_empty();
        pod.observe(at, event);
        let Some(address) = address else { return };
        if is_new && is_alone && was_watched && pod.ready.is_none() {
            self.started.insert(address, None);
        } else if is_new && !is_alone {
            self.started.remove(&address);
        }
        if pod.gone.is_some() {
            self.started.remove(&address);
        } else if let Some(ready) = self.started.get_mut(&address) {
            *ready = pod.ready;
        }
    }

    /// Adds a log from this source, such as the log of one of a Deployment's pods.
    pub fn add_log(&mut self, log: Arc<str>, source: String) {
        self.sources.insert(log, source);
    }

    /// Adds a log line that was read at `arrived`.
    pub fn add(&mut self, source: &Arc<str>, arrived: Stamp, line: &LoggedRequest) {
        let clock = self.clocks.entry(Arc::clone(source)).or_default();
        clock.ended_before(line.earliest + line.took.unwrap_or_default(), arrived);
        // A pod's log is named NAMESPACE/POD/CONTAINER.
        let namespace = source.split_once('/').map(|(namespace, _)| namespace);
        let service_of = |upstream: &_| self.services.named(upstream, namespace);
        for (address, begun) in self.attempts.add(source, line, service_of) {
            // Some gateways use pods that are not ready, which says nothing about the clock.
            if let Some(Some(ready)) = self.started.get(&address) {
                clock.begun_after(begun, *ready, arrived);
            }
        }
    }

    /// Adds a period in which lines of a log may be missing.
    pub fn add_gap(&mut self, gap: LogGap) {
        self.gaps.push(gap);
    }

    /// Records that a log currently cannot be read. `from` is the time of the last line read.
    pub fn interrupt(&mut self, source: &Arc<str>, from: Stamp) {
        self.interrupted.insert(Arc::clone(source), from);
    }

    /// Records that a log is being read again, or has ended.
    pub fn resume(&mut self, source: &str) {
        self.interrupted.remove(source);
    }

    /// Returns the logs that currently cannot be read.
    pub fn interrupted(&self) -> impl Iterator<Item = &Arc<str>> {
        self.interrupted.keys()
    }

    /// Records that a line could not be read. It may belong to any request so far.
    pub fn add_unreadable(&mut self, source: &str, arrived: Stamp) {
        let is_near = |gap: &&mut LogGap| {
            let is_same = gap.source == *source && gap.why.as_deref() == Some(UNREADABLE);
            is_same && gap.to_ns.is_some_and(|to| arrived.ns_since(to) <= NEAR_NS)
        };
        match self.gaps.iter_mut().rfind(is_near) {
            Some(gap) => gap.to_ns = gap.to_ns.max(Some(arrived)),
            None => self.gaps.push(LogGap {
                source: source.to_owned(),
                from_ns: arrived,
                to_ns: Some(arrived),
                why: Some(UNREADABLE.to_owned()),
            }),
        }
    }

    /// Forgets everything that no later termination needs.
    pub fn forget_before(&mut self, now: Stamp) {
        let needed = self.needed_from(now);
        let before = now.shifted_ns(-KEPT_NS).min(needed);
        // A line may have a wrong time, and its log's clock may have been set.
        let latest = now.shifted_ns(RECENT_NS);
        let journals = self.journals.all();
        let offset = |source: &Arc<str>| clock_in(&self.clocks, &journals, source);
        let unexplained = self.pods.values().filter(|pod| pod.deleting.is_some() && !pod.is_explained);
        let asked_for = unexplained.filter_map(|pod| pod.address).collect();
        self.attempts.forget_outside(needed..=latest, before, &asked_for, offset);
        self.forgotten = self.forgotten.max(needed);
        self.pods.retain(|_, pod| pod.gone.is_none_or(|gone| gone >= before));
        self.services.forget_before(before);
        self.journals.retain(|uid| self.pods.contains_key(uid));
        self.gaps.retain(|gap| gap.to_ns.is_none_or(|to| to >= before));
        self.started.retain(|_, ready| ready.is_none_or(|ready| ready >= before));
        let events = self.pods.values().flat_map(|pod| &pod.events);
        let deletions = events.filter(|(_, event)| event.deletion_timestamp.is_some());
        self.beats.forget_before(before, deletions.map(|(_, event)| event.resource_version.as_str()));
    }

    /// Returns the time from which all attempts are needed: some time before the first deletion that has not been
    /// explained yet.
    fn needed_from(&self, now: Stamp) -> Stamp {
        let may_be_unexplained = |pod: &&PodHistory| {
            !pod.is_explained && pod.gone.or(pod.due).is_none_or(|over| now.ns_since(over) <= RECENT_NS)
        };
        let unexplained = self.pods.values().filter(|_| self.attempts.len() <= MOST_HELD);
        let deleting = unexplained.filter(may_be_unexplained).filter_map(|pod| pod.deleting).min();
        deleting.map_or(now, |at| at.min(now)).shifted_ns(-RECENT_NS)
    }

    /// Explains the effect of a termination on requests. Returns `None` if no log names the address of the pod or of
    /// one of its Services. `until` is the time up to which the logs have been read.
    ///
    /// # Errors
    /// Never fails, because all attempts are in memory.
    pub fn explain(
        &mut self,
        end: &WatchedTermination,
        until: Stamp,
    ) -> Result<Option<TerminationTraffic>, PartError> {
        self.bound_clocks(until);
        let traffic = self.traffic_of(end, until);
        // The watch may not have shown the end of the pod.
        if let Some(pod) = self.pods.get_mut(&end.uid) {
            pod.gone.get_or_insert(until);
            pod.is_explained = true;
        }
        traffic
    }

    /// Bounds the clocks of logs that show a response from a pod that is now gone: the pod must have responded before
    /// that.
    fn bound_clocks(&mut self, now: Stamp) {
        let mut gone: HashMap<IpAddr, Option<Stamp>> = HashMap::new();
        for pod in self.pods.values() {
            let Some(address) = pod.address else { continue };
            // If several pods had the address, any of them may have responded.
            gone.entry(address).and_modify(|gone| *gone = None).or_insert(pod.silent_from());
        }
        for (source, address, begun) in self.attempts.responses() {
            if let (Some(clock), Some(Some(gone))) = (self.clocks.get_mut(source), gone.get(&address)) {
                clock.begun_before(begun, *gone, now);
            }
        }
    }

    fn traffic_of(
        &self,
        end: &WatchedTermination,
        until: Stamp,
    ) -> Result<Option<TerminationTraffic>, PartError> {
        let Some((pod, address)) = self.pods.get(&end.uid).and_then(|pod| Some((pod, pod.address?))) else {
            return Ok(None);
        };
        let (consumers, journals) = self.witnesses(&end.uid, address, &self.services_of(pod));
        if consumers.is_empty() {
            return Ok(None);
        }
        let gone = pod.gone.or(end.ended_ns).unwrap_or(end.t0_latest_ns);
        let t0 = end.t0_earliest_ns;
        let span = TimeSpan { from: t0.shifted_ns(-MARGIN_NS), until: gone.shifted_ns(MARGIN_NS).min(until) };
        let period = TimeSpan { from: t0.shifted_ns(-BEFORE_NS), until: span.until };
        let clock = |source: &Arc<str>| clock_in(&self.clocks, &journals, source);
        let chosen = self.attempts.choose(&consumers, period, clock);
        let (log, rows) = (self.log(&end.uid, &chosen, period, journals.first().copied()), Arc::new(chosen));
        let fates = Arc::clone(&rows);
        let ending = TimeSpan { from: t0, until: gone };
        let uncertainty_ns = fates.logs().map(|(_, uncertainty_ns)| uncertainty_ns).max().unwrap_or(0);
        let at_service = |(service, requests)| {
            let spans = service_times::refused_by_terminating(self.pods_of(service), period);
            let only_ends = spans.into_iter().map(|span| span.widened(-uncertainty_ns)).collect();
            (service, AtService { requests, only_ends })
        };
        let mut services: BTreeMap<_, _> = fates.at_services(ending).into_iter().map(at_service).collect();
        let take = |explained: Explained<'_>| traffic(&end.uid, &explained, &fates, ending, &mut services);
        let unread = Unread::of(log, span).dated_by(self.beats.judged());
        let Some(mut traffic) = explain_span(unread, rows, TOGETHER, take)? else { return Ok(None) };
        traffic.clock_width_s = 2.0 * uncertainty_ns as f64 / SECOND_NS as f64;
        traffic.not_observable = fates.unobserved_at(address, ending);
        let may_hide_cuts = fates.may_hide_cuts_at(address, ending);
        traffic.streams_cut = traffic.streams_cut.and_then(|cut| cut.unless_hidden(may_hide_cuts));
        let may_hide_retries = self.attempts.may_hide_retries(&consumers);
        traffic.saved_by_retries =
            traffic.saved_by_retries.and_then(|saved| saved.unless_hidden(may_hide_retries));
        // Losses just before or after the termination also count as its losses if the clock's uncertainty allows that.
        let near = ending.widened(uncertainty_ns);
        let around = TimeSpan { from: near.from.shifted_ns(-BACKGROUND_NS), until: span.until };
        let lost = self.attempts.choose_lost(&consumers, around, clock);
        let losses = match journals.is_empty() {
            true => self.background_of(&lost, address, near, around, services.keys().copied()),
            false => background(&lost, near, &self.well_in_journals(address, &journals, around)),
        };
        traffic.background = losses.map(|losses| losses.limits);
        traffic.background_spread = losses.map(|losses| losses.spread);
        traffic.by_services =
            services.into_iter().map(|(service, at)| (self.services.name(service), at.requests)).collect();
        if !journals.is_empty() {
            limit_to_journals(&mut traffic, &journals, TimeSpan { from: t0, until: span.until });
            traffic.gaps.extend(self.unknown_before(&fates, t0, None));
            return Ok(Some(traffic));
        }
        let complete_at = gone.shifted_ns(LINES_WITHIN_NS);
        let needed = TimeSpan { from: span.from, until: complete_at };
        let interrupted = self.interrupted.iter().map(|(source, from)| LogGap {
            source: source.to_string(),
            from_ns: *from,
            to_ns: Some(until),
            why: Some(INTERRUPTED.to_owned()),
        });
        let gaps: Vec<LogGap> = self.gaps.iter().cloned().chain(interrupted).collect();
        traffic.consumers.seen = fates.logs().filter_map(|(log, _)| self.sources.get(log)).cloned().collect();
        let with_gaps =
            gaps.iter().filter(|gap| overlaps(gap, needed)).filter_map(|gap| self.sources.get(&*gap.source));
        let is_seen = |source: &&String| traffic.consumers.seen.contains(*source);
        traffic.consumers.with_gaps = with_gaps.filter(is_seen).cloned().collect();
        traffic.gaps = gaps.into_iter().filter(|gap| self.may_miss(gap, &fates, needed)).collect();
        let read_from = pod.may_precede_watch().then_some(self.known_from);
        traffic.gaps.extend(self.unknown_before(&fates, t0, read_from));
        if until < complete_at {
            let unread = |(source, _): (&Arc<str>, i64)| LogGap {
                source: source.to_string(),
                from_ns: until,
                to_ns: Some(complete_at),
                why: None,
            };
            traffic.gaps.extend(fates.logs().map(unread));
        }
        if !traffic.gaps.is_empty() {
            // An upper bound on a window needs every line up to that time.
            traffic.windows.iter_mut().for_each(|window| (window.upper_s, window.upper_basis) = (None, None));
        }
        Ok(Some(traffic))
    }

    /// Returns the number of losses that would be expected without a termination, judging by the losses `around` it: at
    /// the pod in the period `ending`, if a log names its address, and at these Services in that period and later,
    /// because losses that are matched by time alone may come later.
    fn background_of(
        &self,
        lost: &ChosenAttempts,
        address: IpAddr,
        ending: TimeSpan,
        around: TimeSpan,
        services: impl Iterator<Item = ServiceNumber>,
    ) -> Option<HealthyLosses> {
        let at_services = services.map(|service| {
            let well = service_times::well(self.pods_of(service), around).into_iter();
            let well: Vec<_> = well.map(|span| (Upstream::Service(service), span)).collect();
            background(lost, TimeSpan { until: around.until.max(ending.until), ..ending }, &well)
        });
        let used = self.attempts.used_by(lost);
        let at_pod = used.contains(&address).then(|| {
            let mut well = self.well_pods(around);
            well.retain(|(of, _)| matches!(of, Upstream::Pod(address) if used.contains(address)));
            background(lost, ending, &well)
        });
        at_services.chain(at_pod).try_fold(HealthyLosses::default(), |sum, further| Some(sum.plus(&further?)))
    }

    /// Returns true if the gap may hide lines of these logs from this period.
    fn may_miss(&self, gap: &LogGap, chosen: &ChosenAttempts, span: TimeSpan) -> bool {
        let Some(clock) = self.clocks.get(&*gap.source).map(LogClock::offset) else {
            // If no line of the log was read, or the gateway's pods were not seen, the missing lines may be about any
            // request.
            return overlaps(gap, span);
        };
        // Some of a gap's times are on the log's clock.
        let span = span.widened(clock.offset_ns.saturating_abs().saturating_add(clock.uncertainty_ns));
        chosen.logs().any(|(source, _)| **source == *gap.source) && overlaps(gap, span)
    }

    /// Returns the periods after t0 for which the lines of these logs are unknown, because the lines were read only
    /// from `read_from` on, a time on the logs' clocks, or because the deletion was shown late and attempts had been
    /// forgotten by then.
    fn unknown_before(&self, chosen: &ChosenAttempts, t0: Stamp, read_from: Option<Stamp>) -> Vec<LogGap> {
        let unknown = |(source, _): (&Arc<str>, i64)| {
            let ClockOffset { offset_ns, uncertainty_ns } = clock_in(&self.clocks, &[], source);
            let read_from = read_from.map(|from| from.shifted_ns(-offset_ns)).unwrap_or_default();
            let until = read_from.max(self.forgotten).shifted_ns(uncertainty_ns);
            (t0 < until).then(|| LogGap {
                source: source.to_string(),
                from_ns: t0,
                to_ns: Some(until),
                why: Some(UNKNOWN.to_owned()),
            })
        };
        chosen.logs().filter_map(unknown).collect()
    }

    fn services_of(&self, pod: &PodHistory) -> Vec<ServiceNumber> {
        let found = pod.shown().map(|(of, address)| self.services.of_pod(&of.namespace, &of.name, address));
        found.unwrap_or_default()
    }

    /// Returns the pods that are or were behind a Service.
    fn pods_of(&self, service: ServiceNumber) -> impl Iterator<Item = &PodHistory> {
        let is_behind = move |pod: &&PodHistory| {
            pod.shown()
                .is_some_and(|(of, address)| self.services.has_pod(service, &of.namespace, &of.name, address))
        };
        self.pods.values().filter(is_behind)
    }

    /// Returns the periods in which pods were ready and not being deleted, by address.
    fn well_pods(&self, span: TimeSpan) -> Vec<(Upstream, TimeSpan)> {
        let well = |pod: &PodHistory| {
            let from = pod.ready?.max(span.from);
            let until = pod.left().map_or(span.until, |left| left.min(span.until));
            Some((Upstream::Pod(pod.address?), TimeSpan { from, until }))
        };
        self.pods.values().filter_map(well).collect()
    }

    /// Returns the record of a run in which the pod with UID `ending` ends. Its load sources are the gateways or, if only
    /// a sidecar shows the requests, its journal.
    fn log(
        &self,
        ending: &str,
        chosen: &ChosenAttempts,
        period: TimeSpan,
        journal: Option<&PodJournal>,
    ) -> RunLog {
        let sources = chosen.logs().map(|(name, uncertainty_ns)| Source {
            name: name.to_string(),
            role: Role::Load,
            clock_offset_ns: 0,
            clock_uncertainty_ns: Some(uncertainty_ns),
            rows: None,
        });
        let targets = chosen.targets().map(|target| Target {
            name: target.name.to_string(),
            url: String::new(),
            consumer: journal.map_or_else(|| target.name.to_string(), PodJournal::consumer),
            balances: Balances::Requests,
            balances_because: BalancesBecause::Stated,
            service: target.service.map(|service| self.services.name(service)),
            routing: Some(if journal.is_some() { Routing::SeenAtPod } else { Routing::LoggingGateway }),
            node: None,
        });
        let addresses = chosen.addresses();
        let services = chosen.at_services(period);
        let is_reached = |(uid, pod): &(&String, &PodHistory)| {
            pod.shown().is_some_and(|(of, address)| {
                let is_behind = |number| self.services.has_pod(number, &of.namespace, &of.name, address);
                *uid == ending || addresses.contains(&address) || services.keys().copied().any(is_behind)
            })
        };
        let pods = self.pods.iter().filter(is_reached).flat_map(|(_, pod)| &pod.events);
        // A run tells pods apart by their names. Here, pods of several namespaces may share one, and a StatefulSet gives
        // a pod's name to the next pod while gateways still use the last one.
        let named_by_uid = |pod: &PodEvent| PodEvent { name: pod.uid.clone(), ..pod.clone() };
        let mut events: Vec<Event> = pods
            .map(|(at, pod)| Event::new(*at, COORDINATOR, EventKind::Pod(named_by_uid(pod))))
            .chain(self.samples.iter().cloned())
            .collect();
        let load = EventKind::LoadStarted { rate: 0.0, duration_s: 0.0, warmup_s: 0.0 };
        events.push(Event::new(period.from, COORDINATOR, load));
        events.push(Event::new(period.until, COORDINATOR, EventKind::LoadEnded { scheduled: chosen.len() }));
        events.sort_by_key(|event| event.at);
        let info = RunInfo {
            format: FORMAT_VERSION,
            tool: Tool::this(),
            run: self.id.clone(),
            name: String::new(),
            scenario: Value::Null,
            expect: Expect::default(),
            cluster: ClusterInfo::default(),
            targets: targets.collect(),
            load: LoadPlan::default(),
            sources: sources.collect(),
            started: period.from,
            ended: Some(period.until),
            complete: true,
            interrupted: false,
            max_busy: None,
            aborted: None,
            looks: None,
            rounds: None,
            policy: Policy::default(),
            events: None,
        };
        RunLog { info, events, torn: Vec::new(), corrupt: Vec::new(), altered: Vec::new() }
    }
}

/// Returns the offset of a log's clock: the measured offset if the log is one of these journals, otherwise the estimate.
fn clock_in(
    clocks: &BTreeMap<Arc<str>, LogClock>,
    journals: &[&PodJournal],
    source: &Arc<str>,
) -> ClockOffset {
    let estimate = || clocks.get(source).map(LogClock::offset).unwrap_or_default();
    PodJournal::clock_among(journals, source).unwrap_or_else(estimate)
}

/// Returns true if a gap overlaps a period. A gap without an end is still open.
fn overlaps(gap: &LogGap, span: TimeSpan) -> bool {
    span.meets(gap.from_ns, gap.to_ns.unwrap_or(span.until))
}

/// Requests to a Service of a terminating pod.
#[derive(Debug)]
struct AtService {
    /// Number of requests that may have reached the pod.
    requests: u64,
    /// Periods in which only a pod's termination explains why the Service accepted no connection.
    only_ends: Vec<TimeSpan>,
}

/// Returns the traffic of one of the explained terminations, and adds to `services` the requests lost there after
/// `ending`.
fn traffic(
    uid: &str,
    explained: &Explained<'_>,
    fates: &ChosenAttempts,
    ending: TimeSpan,
    services: &mut BTreeMap<ServiceNumber, AtService>,
) -> Option<TerminationTraffic> {
    let number = explained.terminations.iter().position(|termination| termination.uid == uid)?;
    let termination = &explained.terminations[number];
    // Requests that are matched by time alone show no window.
    let windows = termination.windows.iter().zip(fates.targets());
    let of_pods = windows.filter(|(_, target)| target.service.is_none());
    let mut traffic = TerminationTraffic {
        requests: termination.requests.seen.unwrap_or(0),
        windows: of_pods.map(|(window, _)| window.clone()).collect(),
        ..TerminationTraffic::default()
    };
    let (mut streams_cut, mut saved) = (Bounded::default(), Bounded::default());
    for judged in &explained.judged {
        let candidate = judged.candidates.iter().find(|candidate| candidate.termination == number);
        let Some(share) = candidate.map(|candidate| candidate.share) else { continue };
        let row = &judged.request.row;
        let Some((fate, service)) = fates.fate(row) else { continue };
        // Other pods of a Service may fail at the same time, without any termination.
        let is_pods = service.and_then(|service| services.get_mut(&service)).is_none_or(|at| {
            at.requests += u64::from(!ending.meets(row.scheduled, row.end));
            let is_then = |span: &TimeSpan| span.from <= row.scheduled && row.end <= span.until;
            is_no_connection(row.outcome) && at.only_ends.iter().any(is_then)
        });
        let add = if is_pods { Bounded::add } else { Bounded::add_possible };
        match fate {
            AttemptFate::Last => {
                add(&mut traffic.lost, share);
                if row.outcome.is_incomplete() {
                    add(&mut streams_cut, share);
                }
                add(traffic.by_cause.entry(judged.cause).or_default(), share);
            }
            AttemptFate::Saved => add(&mut saved, share),
            AttemptFate::Repeated => {}
        }
    }
    (traffic.streams_cut, traffic.saved_by_retries) = (Some(streams_cut), Some(saved));
    Some(traffic)
}

#[cfg(test)]
mod tests;
