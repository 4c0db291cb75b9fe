//! Totals over all requests.

mod apart;
mod by_time;
mod heat;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::attribute::judged::LoadEvidence;
use crate::count::reached::ReachedTotals;
use crate::math::add_counts;
use crate::math::values::{FewValues, ValueHistogram};
use crate::model::{LateArrival, Latencies, RequestCounts, RunSecond};
use crate::route::arrivals::has_met;
use crate::route::facts::Facts;
use crate::timeline::by_name::ValuesByName;
use crate::timeline::connections::lost_streams::StreamCarriers;
use crate::timeline::connections::port_reuse::Reuses;
use crate::timeline::drop_policy::OutcomeClass;
use crate::timeline::periods::Periods;
use crate::timeline::{Lives, PodEnd, Request, Requests, Timeline};
use apart::{DisruptionSplit, Later};
use by_time::Sum as _;
use heat::Heat;
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::{Outcome, Phase, ServedEnd, Stamp};
use traffic::{ByPod, UNKNOWN};

/// Totals over the requests in the counted part, unless stated otherwise.
#[derive(Debug, Default)]
pub(crate) struct Sums<'a> {
    pub all: RequestTotals<'a>,
    /// Totals by target; empty if there is only one.
    pub targets: Vec<RequestTotals<'a>>,
    /// Number of all recorded requests, including the warm-up.
    pub recorded: u64,
    /// Send lags.
    pub lag: ValueHistogram,
    /// Totals per second, by intended send time.
    pub seconds: Vec<OneSecond>,
    /// Latencies by time.
    pub heat: Heat,
    /// Answered requests by pod and time.
    pub traffic: ByPod<'a>,
    /// Last intended send time, in seconds since the counted part began.
    pub end_s: f64,
    /// Answered new connections to terminating pods.
    pub late_ok: Vec<LateArrival>,
    /// Number of requests that the pod answered from t0 on, by termination.
    pub seen: Vec<u64>,
    /// Requests, by termination, that the pod answered on kept connections long after it may have received SIGTERM.
    pub kept: Vec<KeptAnswers>,
    /// HTTP/2 connections that carried lost requests.
    pub streams: StreamCarriers,
    pub reached: ReachedTotals,
    /// Connect times of all established connections.
    pub connects: ValueHistogram,
    pub reuses: Reuses,
    /// Time of the last new connection to each pod that left its Services while still running.
    pub last_reached: Vec<Option<Stamp>>,
    /// Number of requests without a proxy row, for each pod whose proxy rows did not all arrive.
    pub unrecorded: BTreeMap<&'a str, u64>,
    /// Number of requests that were reset although the app's listener was gone.
    pub reset_for_refused: u64,
    incomplete: BTreeSet<&'a str>,
    met: ValuesByName<ReachedPod<'a>>,
    /// Rows from load sources that did not hand over all of their rows.
    of_tallied: BTreeMap<&'a str, BTreeMap<Outcome, u64>>,
}

/// Pod reached by requests.
#[derive(Clone, Copy, Debug)]
struct ReachedPod<'a> {
    /// Index of the pod's counts in [`ByPod`], or [`UNKNOWN`] if it has none.
    place: usize,
    lives: Lives<'a>,
}

/// Delay after a pod may have received SIGTERM beyond which a response on a kept connection cannot belong to a request
/// in flight at the signal.
const LONG_AFTER_NS: i64 = 1_000_000_000;

/// Returns true if a terminating pod got a request on a kept connection long after it may have received SIGTERM.
pub(crate) fn came_on_kept_connection(r: &Request, end: &PodEnd) -> bool {
    r.row.conn_reused && r.begun().ns_since(end.may_stop_from()) > LONG_AFTER_NS
}

/// Requests that a terminating pod answered on kept connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeptAnswers {
    pub n: u64,
    /// Time the last of these requests was answered.
    pub last: Option<Stamp>,
}

impl KeptAnswers {
    fn add(&mut self, other: Self) {
        self.n += other.n;
        self.last = self.last.max(other.last);
    }
}

/// Requests scheduled in one second.
#[derive(Debug)]
pub(crate) struct OneSecond {
    pub counts: RunSecond,
    /// Response times of the answered requests.
    pub times: FewValues,
}

impl OneSecond {
    fn merge(&mut self, other: Self) {
        self.counts.ok += other.counts.ok;
        add_counts(&mut self.counts.dropped, other.counts.dropped);
        self.counts.other += other.counts.other;
        self.times.merge(other.times);
    }
}

/// Totals over the requests to all targets, or to one.
#[derive(Debug, Default)]
pub(crate) struct RequestTotals<'a> {
    /// Counts by outcome and class, including requests known only as counts; counts by cause are not filled in.
    pub counts: RequestCounts,
    /// Service times of answered requests.
    pub service: ValueHistogram,
    /// Totals away from any termination and near one.
    pub apart: DisruptionSplit<'a>,
}

impl RequestTotals<'_> {
    /// Adds the totals over other requests.
    fn merge(&mut self, other: Self) {
        let (own, others) = (&mut self.counts, other.counts);
        own.warmup += others.warmup;
        own.total += others.total;
        own.ok += others.ok;
        own.dropped += others.dropped;
        own.app_errors += others.app_errors;
        own.not_sent += others.not_sent;
        add_counts(&mut own.not_sent_by_reason, others.not_sent_by_reason);
        own.cancelled += others.cancelled;
        add_counts(&mut own.by_outcome, others.by_outcome);
        self.service.merge(&other.service);
    }

    /// Adds a request from the counted part.
    fn add(&mut self, class: OutcomeClass, r: &Request) {
        let counts = &mut self.counts;
        counts.total += 1;
        *counts.by_outcome.entry(r.row.outcome).or_default() += 1;
        if let Some(reason) = &r.row.not_sent_reason {
            *counts.not_sent_by_reason.entry(reason.to_string()).or_default() += 1;
        }
        *match class {
            OutcomeClass::Ok => &mut counts.ok,
            OutcomeClass::AppError => &mut counts.app_errors,
            OutcomeClass::NotSent => &mut counts.not_sent,
            OutcomeClass::Cancelled => &mut counts.cancelled,
            OutcomeClass::Dropped => &mut counts.dropped,
        } += 1;
        if let Some(ns) = r.row.service_ns().filter(|_| r.was_answered()) {
            self.service.add(ns);
        }
    }

    pub(crate) fn latencies(&self, is_closed_loop: bool) -> Latencies {
        let mut response = ValueHistogram::default();
        if !is_closed_loop {
            response.merge(&self.apart.steady);
            response.merge(&self.apart.disrupted);
        }
        Latencies {
            response: response.percentiles(),
            service: self.service.percentiles(),
            steady: self.apart.steady.percentiles(),
            disrupted: self.apart.disrupted.percentiles(),
        }
    }
}

impl<'a> Sums<'a> {
    /// Returns the totals that help to explain losses.
    pub(crate) fn load(&self) -> LoadEvidence<'_> {
        let median = |OneSecond { counts, times }: &OneSecond| {
            (counts.ok > 0).then(|| times.values().percentiles().p50)
        };
        let medians = self.seconds.iter().map(median).collect();
        LoadEvidence { medians, connects: &self.connects, streams: &self.streams }
    }

    /// Creates empty totals.
    pub(crate) fn new(timeline: &'a Timeline) -> Self {
        Self {
            targets: targets(timeline).map(|_| RequestTotals::default()).collect(),
            seen: vec![0; timeline.ends.len()],
            kept: vec![KeptAnswers::default(); timeline.ends.len()],
            traffic: ByPod::of(timeline),
            last_reached: vec![None; timeline.withdrawals.len()],
            incomplete: timeline.pods_without_all_rows(),
            ..Self::default()
        }
    }

    /// Computes the totals for a run that was disrupted in these periods. `plain` holds the totals over the plainly
    /// successful requests, computed from their own rows.
    pub(crate) fn of(
        facts: &Facts<'a>,
        requests: &'a Requests,
        disrupted: &Periods,
        plain: Self,
    ) -> Result<Self, PartError> {
        let (timeline, knows_more) = (facts.timeline, facts.know_more_than(requests));
        let begin = || (knows_more.then(|| Self::new(timeline)), Later::of(timeline, requests));
        let add = |(sums, later): &mut (Option<Self>, Later<'a>), r: &Request| {
            if let Some(sums) = sums.as_mut().filter(|_| timeline.span.has(&r.row)) {
                sums.add(timeline, facts.pod(r), r);
            }
            later.add(timeline, disrupted, r);
        };
        let merge = |(sums, later): &mut (Option<Self>, Later<'a>), other: (Option<Self>, Later<'a>)| {
            sums.iter_mut().zip(other.0).for_each(|(own, other)| own.merge(other));
            later.merge(other.1);
        };
        let wanted = if knows_more { Wanted::All } else { Wanted::Only(Later::COLUMNS) };
        let (sums, mut later) = requests.plain(wanted, begin, add, merge)?;
        let mut sums = sums.unwrap_or(plain);
        for r in &requests.others {
            sums.add(timeline, facts.pod(r), r);
            later.add(timeline, disrupted, r);
        }
        later.put_into(&mut sums);
        sums.recorded = requests.all;
        sums.reached.know(requests);
        sums.all.counts.without_rows = sums.without_rows(timeline);
        sums.late_ok.sort_by(|a, b| a.begun_s.total_cmp(&b.begun_s).then(a.termination.cmp(&b.termination)));
        Ok(sums)
    }

    /// Adds a request; `pod` is the pod that it reached, if known.
    pub(crate) fn add(&mut self, timeline: &'a Timeline, pod: Option<&Arc<str>>, r: &Request) {
        let class = OutcomeClass::of(&r.row);
        self.add_any(timeline, r);
        self.reached.add(r, class == OutcomeClass::Ok);
        if r.row.phase == Phase::Warmup {
            self.all.counts.warmup += 1;
            return;
        }
        self.count(timeline, class, r);
        self.time(timeline, class, r);
        let Self { met, traffic, .. } = self;
        let met =
            |pod| *met.get(pod, || ReachedPod { place: traffic.place(pod), lives: timeline.lives_of(pod) });
        let pod = pod.map(met);
        let ending = pod.and_then(|pod| pod.lives.end_at(r.begun()));
        if matches!(class, OutcomeClass::Ok | OutcomeClass::AppError)
            && let Some(e) = ending
            && has_met(timeline, e, r)
        {
            self.seen[e] += 1;
            if came_on_kept_connection(r, &timeline.ends[e]) {
                self.kept[e].add(KeptAnswers { n: 1, last: Some(r.row.end) });
            }
        }
        if class == OutcomeClass::Ok {
            let since_ns = r.row.scheduled.ns_since(timeline.origin);
            self.traffic.add(since_ns, pod.map_or(UNKNOWN, |pod| pod.place));
            self.late_ok.extend(ending.and_then(|e| late_arrival(timeline, e, r)));
        }
    }

    /// Adds the totals over other requests in the run.
    pub(crate) fn merge(&mut self, other: Self) {
        self.all.merge(other.all);
        for (own, other) in self.targets.iter_mut().zip(other.targets) {
            own.merge(other);
        }
        self.lag.merge(&other.lag);
        for (second, other) in other.seconds.into_iter().enumerate() {
            self.second(second).merge(other);
        }
        self.heat.merge(other.heat);
        self.traffic.merge(other.traffic);
        self.end_s = self.end_s.max(other.end_s);
        self.late_ok.extend(other.late_ok);
        self.seen.iter_mut().zip(other.seen).for_each(|(own, other)| *own += other);
        self.kept.iter_mut().zip(other.kept).for_each(|(own, other)| own.add(other));
        self.reached.merge(other.reached);
        self.connects.merge(&other.connects);
        self.reuses.merge(other.reuses);
        for (own, other) in self.last_reached.iter_mut().zip(other.last_reached) {
            *own = (*own).max(other);
        }
        add_counts(&mut self.unrecorded, other.unrecorded);
        self.reset_for_refused += other.reset_for_refused;
        for (source, counts) in other.of_tallied {
            add_counts(self.of_tallied.entry(source).or_default(), counts);
        }
    }

    /// Returns the load sources' own counts minus the requests that have rows.
    fn without_rows(&self, timeline: &Timeline) -> BTreeMap<String, BTreeMap<Outcome, u64>> {
        let mut all = timeline.tallies.clone();
        for (source, tally) in &mut all {
            for (outcome, count) in tally.iter_mut() {
                let rows = self.of_tallied.get(source.as_str()).and_then(|rows| rows.get(outcome));
                *count = count.saturating_sub(rows.copied().unwrap_or(0));
            }
            tally.retain(|_, count| *count > 0);
        }
        all.retain(|_, tally| !tally.is_empty());
        all
    }

    /// Adds a request from the warm-up or the counted part.
    fn add_any(&mut self, timeline: &Timeline, r: &Request) {
        if let (Some(start), Some(connected)) = (r.row.connect_start, r.row.connected) {
            self.connects.add(connected.ns_since(start));
        }
        self.reuses.add(r);
        for (last, withdrawal) in self.last_reached.iter_mut().zip(&timeline.withdrawals) {
            let is_its = r.pod().is_some_and(|pod| **pod == *withdrawal.pod);
            // Connections after the pod's return do not show how long the Service took to drop it.
            let is_then = r.begun() >= withdrawal.asked
                && withdrawal.returned.is_none_or(|returned| r.begun() < returned);
            if is_its && r.is_new_connection() && is_then {
                *last = (*last).max(Some(r.begun()));
            }
        }
        if r.proxy.is_none()
            && let Some(pod) = r.row.pod.as_deref().and_then(|pod| self.incomplete.get(pod).copied())
        {
            *self.unrecorded.entry(pod).or_default() += 1;
        }
        let was_refused = r.served.as_ref().is_some_and(|served| served.ended == ServedEnd::UpstreamRefused);
        self.reset_for_refused += u64::from(was_refused && r.row.outcome == Outcome::ResetBeforeResponse);
    }

    fn count(&mut self, timeline: &'a Timeline, class: OutcomeClass, r: &Request) {
        self.all.add(class, r);
        if let Some(part) = of_target(&mut self.targets, timeline, r) {
            part.add(class, r);
        }
        if r.was_answered() {
            self.heat.add(r.row.scheduled.ns_since(timeline.origin), latency_ns(timeline, r));
        }
        if let Some((source, _)) = timeline.tallies.get_key_value(&*r.row.source) {
            *self.of_tallied.entry(source).or_default().entry(r.row.outcome).or_default() += 1;
        }
        if let Some(ns) = r.row.send_lag_ns() {
            self.lag.add(ns);
        }
    }

    /// Adds a request to the totals for its second.
    fn time(&mut self, timeline: &Timeline, class: OutcomeClass, r: &Request) {
        let row = &r.row;
        self.end_s = self.end_s.max(timeline.seconds(row.scheduled));
        let OneSecond { counts, times } = self.second(timeline.second_of(row.scheduled));
        match class {
            OutcomeClass::Ok => {
                counts.ok += 1;
                times.add(row.response_ns());
            }
            OutcomeClass::Dropped => *counts.dropped.entry(row.outcome).or_default() += 1,
            _ => counts.other += 1,
        }
    }

    fn second(&mut self, number: usize) -> &mut OneSecond {
        while self.seconds.len() <= number {
            let at_s = self.seconds.len() as f64;
            let counts = RunSecond { at_s, ..RunSecond::default() };
            self.seconds.push(OneSecond { counts, times: FewValues::default() });
        }
        &mut self.seconds[number]
    }
}

/// Returns the relevant latency: the response time, or the service time in a closed loop, which has no response times.
fn latency_ns(timeline: &Timeline, r: &Request) -> i64 {
    let service_ns = r.row.service_ns().filter(|_| timeline.info.load.is_closed_loop());
    service_ns.unwrap_or_else(|| r.row.response_ns())
}

/// Returns the targets with separate totals: none if there is only one target.
fn targets(timeline: &Timeline) -> Range<usize> {
    match timeline.info.targets.len() {
        0 | 1 => 0..0,
        several => 0..several,
    }
}

/// Returns the totals for a request's target, if the target has separate ones.
fn of_target<'s, S>(targets: &'s mut [S], timeline: &Timeline, r: &Request) -> Option<&'s mut S> {
    if targets.is_empty() {
        return None;
    }
    targets.get_mut(timeline.target_of(&r.row)?)
}

/// Returns a request's new connection to the pod of this termination, if the pod was terminating.
fn late_arrival(timeline: &Timeline, termination: usize, r: &Request) -> Option<LateArrival> {
    if !r.is_new_connection() || r.begun() <= timeline.ends[termination].t0.latest {
        return None;
    }
    let begun_s = timeline.seconds(r.begun());
    Some(LateArrival { termination, target: timeline.target_of(&r.row), begun_s })
}
