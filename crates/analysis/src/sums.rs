//! The sums over all requests, once it is known when the run was disrupted.

mod by_time;
mod heat;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};

use super::class::Class;
use super::evidence::{self, Evidence};
use super::flows::Reuses;
use super::latency::{FewValues, Values};
use super::model::{LateArrival, Latencies, RequestCounts, Second};
use super::outages::Outages;
use super::reached::Reached;
use super::streams::Streams;
use super::validity;
use crate::timeline::{Request, Requests, Timeline};
use heat::Heat;
use rolldrop_record::parts::PartError;
use rolldrop_record::{Outcome, Phase, ServedEnd, Stamp};
use traffic::ByPod;

/// The sums. They count requests of the counted part, unless stated otherwise.
#[derive(Debug, Default)]
pub(super) struct Sums<'a> {
    pub all: Part<'a>,
    /// By target; empty where there is only one.
    pub targets: Vec<Part<'a>>,
    /// All recorded requests, the warm-up's too.
    pub recorded: u64,
    /// Send lags.
    pub lag: Values,
    /// By second of the intended send time, and the times of the answered ones.
    pub seconds: Vec<(Second, FewValues)>,
    /// Latencies by time.
    pub heat: Heat,
    /// Who answered, by time.
    pub traffic: ByPod<'a>,
    /// The last intended send time, in seconds since the counted part began.
    pub end_s: f64,
    /// Answered new connections to pods that were ending.
    pub late_ok: Vec<LateArrival>,
    /// By termination, the requests that its pod answered since t0.
    pub seen: Vec<u64>,
    /// HTTP/2 connections of lost requests.
    pub streams: Streams,
    pub reached: Reached,
    /// How long connecting took, of all connections that were established.
    pub connects: Values,
    pub reuses: Reuses,
    /// For each pod that left its Services alive, its last new connection since then.
    pub last_reached: Vec<Option<Stamp>>,
    /// Requests of pods whose proxies' rows did not all arrive, without such a row.
    pub unrecorded: BTreeMap<&'a str, u64>,
    /// Requests that were reset although the app's listener was gone.
    pub reset_for_refused: u64,
    incomplete: BTreeSet<&'a str>,
}

/// Sums over the requests to all targets, or to one.
#[derive(Debug, Default)]
pub(super) struct Part<'a> {
    /// By outcome and class, and what is known only as counts; not by cause.
    pub counts: RequestCounts,
    /// Response times of answered requests.
    pub response: Values,
    /// Service times of the same.
    pub service: Values,
    /// The one that counts, away from any termination.
    pub steady: Values,
    /// The same near one.
    pub disrupted: Values,
    /// Requests that were answered with success away from any termination.
    pub outside_ok: u64,
    /// The same, with an app error.
    pub outside_app_errors: u64,
    pub outages: Outages<'a>,
}

impl<'a> Part<'a> {
    fn of(failed: impl Iterator<Item = &'a Request>) -> Self {
        Self { outages: Outages::of(failed), ..Self::default() }
    }

    /// Adds a request of the counted part, which was sent near a termination or not.
    fn add(&mut self, class: Class, r: &Request, is_near: bool, is_closed_loop: bool) {
        let counts = &mut self.counts;
        counts.total += 1;
        *counts.by_outcome.entry(r.row.outcome).or_default() += 1;
        *match class {
            Class::Ok => &mut counts.ok,
            Class::AppError => &mut counts.app_errors,
            Class::NotSent => &mut counts.not_sent,
            Class::Cancelled => &mut counts.cancelled,
            Class::Dropped => &mut counts.dropped,
        } += 1;
        if was_answered(r) {
            if let Some(ns) = r.row.service_ns() {
                self.service.add(ns);
            }
            if !is_closed_loop {
                self.response.add(r.row.response_ns());
            }
            self.outside_ok += u64::from(!is_near && class == Class::Ok);
            self.outside_app_errors += u64::from(!is_near && class == Class::AppError);
            let values = if is_near { &mut self.disrupted } else { &mut self.steady };
            values.add(latency_ns(r, is_closed_loop));
        }
        if class == Class::Ok {
            self.outages.answered(r);
        }
    }

    pub(super) fn latencies(&self) -> Latencies {
        Latencies {
            response: self.response.percentiles(),
            service: self.service.percentiles(),
            steady: self.steady.percentiles(),
            disrupted: self.disrupted.percentiles(),
        }
    }
}

impl<'a> Sums<'a> {
    /// Sums of a run that was disrupted in these periods.
    pub(super) fn of(
        timeline: &'a Timeline,
        requests: &'a Requests,
        evidence: &Evidence,
        disrupted: &[(Stamp, Stamp)],
    ) -> Result<Self, PartError> {
        let of_class = |classes: &'static [Class]| {
            let counted = requests.others.iter().filter(|r| r.row.phase == Phase::Main);
            counted.filter(move |r| classes.contains(&Class::of(&r.row)))
        };
        let failed = || of_class(&[Class::Dropped, Class::AppError]);
        let mut all = Part::of(failed());
        all.counts.without_rows = timeline.tallies.clone();
        let targets = match timeline.info.targets.len() {
            0 | 1 => 0..0,
            several => 0..several,
        };
        let part =
            |target: usize| Part::of(failed().filter(move |r| timeline.target_of(&r.row) == Some(target)));
        let mut sums = Self {
            all,
            targets: targets.map(part).collect(),
            recorded: requests.all,
            seen: vec![0; timeline.ends.len()],
            streams: Streams::of(of_class(&[Class::Dropped]).map(|r| &r.row)),
            reached: Reached::of(requests),
            traffic: ByPod::of(timeline),
            last_reached: vec![None; timeline.withdrawals.len()],
            incomplete: validity::incomplete(timeline),
            ..Self::default()
        };
        requests.each(|r| {
            sums.add_any(timeline, r);
            sums.reached.add(r, Class::of(&r.row) == Class::Ok);
            match r.row.phase {
                Phase::Warmup => sums.all.counts.warmup += 1,
                Phase::Main => {
                    let class = Class::of(&r.row);
                    sums.count(timeline, class, r, disrupted);
                    sums.time(timeline, class, r);
                    if r.row.outcome == Outcome::Ok
                        && let Some(pod) = evidence.pod(r)
                        && let Some(e) = evidence::ending(timeline, pod, r)
                    {
                        sums.seen[e] += 1;
                    }
                    if class == Class::Ok {
                        let since_ns = r.row.scheduled.ns_since(timeline.origin);
                        sums.traffic.add(since_ns, evidence.pod(r).map(|pod| &**pod));
                        sums.late_ok.extend(late_arrival(timeline, r));
                    }
                }
            }
        })?;
        let without_rows = &mut sums.all.counts.without_rows;
        without_rows.values_mut().for_each(|tally| tally.retain(|_, count| *count > 0));
        without_rows.retain(|_, tally| !tally.is_empty());
        sums.late_ok.sort_by(|a, b| a.begun_s.total_cmp(&b.begun_s).then(a.termination.cmp(&b.termination)));
        Ok(sums)
    }

    /// A request of the warm-up or of the counted part.
    fn add_any(&mut self, timeline: &Timeline, r: &Request) {
        self.streams.add(&r.row);
        if let (Some(start), Some(connected)) = (r.row.connect_start, r.row.connected) {
            self.connects.add(connected.ns_since(start));
        }
        self.reuses.add(r);
        for (last, withdrawal) in self.last_reached.iter_mut().zip(&timeline.withdrawals) {
            let is_its = r.pod().is_some_and(|pod| **pod == *withdrawal.pod);
            // What comes after its return does not show how long the Service took to drop it.
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

    fn count(&mut self, timeline: &Timeline, class: Class, r: &Request, disrupted: &[(Stamp, Stamp)]) {
        let is_closed_loop = timeline.info.load.is_closed_loop();
        let is_near = disrupted.iter().any(|(from, to)| r.row.scheduled <= *to && r.row.end >= *from);
        self.all.add(class, r, is_near, is_closed_loop);
        if !self.targets.is_empty()
            && let Some(target) = timeline.target_of(&r.row)
            && let Some(part) = self.targets.get_mut(target)
        {
            part.add(class, r, is_near, is_closed_loop);
        }
        if was_answered(r) {
            self.heat.add(r.row.scheduled.ns_since(timeline.origin), latency_ns(r, is_closed_loop));
        }
        // What load sources counted, without what their rows show.
        let tally = self.all.counts.without_rows.get_mut(&*r.row.source);
        if let Some(count) = tally.and_then(|tally| tally.get_mut(&r.row.outcome)) {
            *count = count.saturating_sub(1);
        }
        if let Some(ns) = r.row.send_lag_ns() {
            self.lag.add(ns);
        }
    }

    /// Adds to the seconds of the run.
    fn time(&mut self, timeline: &Timeline, class: Class, r: &Request) {
        let row = &r.row;
        self.end_s = self.end_s.max(timeline.seconds(row.scheduled));
        let second = timeline.second_of(row.scheduled);
        while self.seconds.len() <= second {
            let at_s = self.seconds.len() as f64;
            self.seconds.push((Second { at_s, ..Second::default() }, FewValues::default()));
        }
        let (entry, times) = &mut self.seconds[second];
        match class {
            Class::Ok => {
                entry.ok += 1;
                times.add(row.response_ns());
            }
            Class::Dropped => *entry.dropped.entry(row.outcome).or_default() += 1,
            _ => entry.other += 1,
        }
    }
}

/// Whether a request has a latency.
fn was_answered(r: &Request) -> bool {
    matches!(r.row.outcome, Outcome::Ok | Outcome::HttpError)
}

/// The latency that counts.
fn latency_ns(r: &Request, is_closed_loop: bool) -> i64 {
    let service_ns = r.row.service_ns().filter(|_| is_closed_loop);
    service_ns.unwrap_or_else(|| r.row.response_ns())
}

/// A new connection to a pod that was ending, if it is one.
fn late_arrival(timeline: &Timeline, r: &Request) -> Option<LateArrival> {
    if !r.is_new_connection() {
        return None;
    }
    let termination = timeline.end_of(r.pod()?, r.begun())?;
    let begun_s = timeline.seconds(r.begun());
    let t0_s = timeline.seconds(timeline.ends[termination].t0.latest);
    (begun_s > t0_s).then(|| LateArrival { termination, target: timeline.target_of(&r.row), begun_s })
}
