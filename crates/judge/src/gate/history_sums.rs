//! Checks a `rolldrop watch` history, which shows real traffic around terminations, against expectations.
//!
//! A figure is a sum over the terminations in a period. Its lower bound counts what certainly happened. It has no upper
//! bound if anything may be missing: periods without a watch, pods that appear in no log, lines that were not read.
//! Only sums are kept, some of them by Service, so a history may be larger than memory.

use std::collections::BTreeMap;

use super::ending_checks::PodTally;
use super::request_checks::amount;
use crate::judgements::basis::{Basis, FigureDoubt, LongestWindow, Measured, WindowOwner};
use crate::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_explain::count::workload_ranking::WorkloadTraffic;
use rolldrop_explain::model::{Bounded, TerminationTraffic, Unit, WatchedTermination};
use rolldrop_record::expect::{Amount, Bounds, Expect, Limits};

/// Keys of the limits in `expect` that a history can be judged by.
pub const OF_HISTORIES: [&str; 8] =
    ["dropped", "causes", "streams.cut", "terminations", "exits", "killed", "failedHooks", "windows.max"];

/// Sums over the terminations in a history.
#[derive(Debug, Default)]
pub struct HistorySums {
    terminations: u64,
    killed: PodTally,
    failed_hooks: PodTally,
    /// Terminations by exit code of the main container.
    exits: BTreeMap<i32, u64>,
    unseen_exits: u64,
    /// Requests to the pods, as shown by gateway logs.
    traffic: WorkloadTraffic,
    windows: HistoryWindows,
}

/// The windows in a history.
#[derive(Debug, Default)]
struct HistoryWindows {
    number: u64,
    unbounded: u64,
    upper_s: Option<f64>,
    /// Longest lower bound, and its pod.
    lasted: Option<(f64, String)>,
}

impl HistorySums {
    /// Adds a termination.
    pub fn add(&mut self, end: &WatchedTermination) {
        self.terminations += 1;
        self.killed.add(end.killed_at_grace_end);
        self.failed_hooks.add(end.failed_hooks.as_ref().map(|failed| !failed.is_empty()));
        match exit_code(end) {
            Some(code) => *self.exits.entry(code).or_default() += 1,
            None => self.unseen_exits += 1,
        }
        self.traffic.add(end);
        if let Some(traffic) = &end.traffic {
            self.windows.add(&end.pod, traffic);
        }
    }

    /// Returns the number of terminations.
    pub const fn terminations(&self) -> u64 {
        self.terminations
    }

    /// Checks every expectation. `unwatched_s` is the time, in seconds, for which it is unknown which pods ended.
    /// Without limits, the default gate applies: no request lost, no pod killed, no hook failed.
    pub fn checks(&self, expect: &Expect, unwatched_s: f64) -> Vec<Check> {
        let unwatched = (unwatched_s > 0.0).then_some(FigureDoubt::NotWatched(unwatched_s));
        let is_default = expect.is_empty() || expect.limits == Some(Limits::Default);
        let none = is_default.then(|| Bounds { max: Some(0), ..Bounds::default() });
        let none_lost = is_default.then(|| Bounds { max: Some(Amount::Count(0)), ..Bounds::default() });
        let missing = self.find_doubts(unwatched.as_ref());
        let mut checks = Vec::new();
        if let Some(bounds) = expect.dropped.map(|limits| limits.total()).or(none_lost) {
            checks.extend(self.lost("dropped", self.traffic.lost, bounds, &missing));
        }
        for (cause, bounds) in &expect.causes {
            let lost = self.traffic.by_cause.get(cause).copied().unwrap_or_default();
            checks.extend(self.lost(&format!("causes.{cause}"), lost, *bounds, &missing));
        }
        if let Some(bounds) = expect.streams.and_then(|limits| limits.cut) {
            let unknown = Some(self.traffic.streams_cut_unknown).filter(|unknown| *unknown > 0);
            let unknown = unknown.map(FigureDoubt::StreamsCutUnknown);
            let missing: Vec<FigureDoubt> = missing.iter().cloned().chain(unknown).collect();
            checks.extend(self.lost("streams.cut", self.traffic.streams_cut, bounds, &missing));
        }
        if let Some(bounds) = expect.terminations {
            let n = PodTally { happened: self.terminations, unknown: 0 };
            let n = n.measured(FigureDoubt::ExitCodesUnseen, unwatched.clone());
            checks.extend(n.within("terminations", bounds.map(|n| n as f64)));
        }
        for (code, bounds) in &expect.exits {
            let happened = self.exits.get(&i32::from(*code)).copied().unwrap_or(0);
            let n = PodTally { happened, unknown: self.unseen_exits };
            let n = n.measured(FigureDoubt::ExitCodesUnseen, unwatched.clone());
            checks.extend(n.within(&format!("exits.{code}"), bounds.map(|n| n as f64)));
        }
        if let Some(bounds) = expect.killed.or(none) {
            let killed = self.killed.measured(FigureDoubt::KilledUnknown, unwatched.clone());
            checks.extend(killed.within("killed", bounds.map(|n| n as f64)));
        }
        if let Some(bounds) = expect.failed_hooks.or(none) {
            let failed = self.failed_hooks.measured(FigureDoubt::HooksUnknown, unwatched.clone());
            checks.extend(failed.within("failedHooks", bounds.map(|n| n as f64)));
        }
        if let Some(max) = expect.windows.and_then(|limits| limits.max) {
            let longest = self.windows.longest(missing);
            checks.push(longest.at_most("windows", max.seconds()));
        }
        checks.extend(self.nothing_ended(expect));
        checks
    }

    /// Returns the reasons why losses may be missing.
    fn find_doubts(&self, unwatched: Option<&FigureDoubt>) -> Vec<FigureDoubt> {
        let some = |number: u64, doubt: fn(u64) -> FigureDoubt| (number > 0).then(|| doubt(number));
        let in_no_log = some(self.terminations - self.traffic.terminations, FigureDoubt::InNoLog);
        let with_gaps = some(self.traffic.with_gaps, FigureDoubt::LinesMissing);
        unwatched.cloned().into_iter().chain(in_no_log).chain(with_gaps).collect()
    }

    /// Returns an inconclusive check if no pod ended, unless the expectations allow that.
    fn nothing_ended(&self, expect: &Expect) -> Option<Check> {
        let is_allowed =
            expect.terminations.is_some_and(|bounds| bounds.min.is_some() || bounds.max == Some(0));
        if self.terminations > 0 || is_allowed {
            return None;
        }
        let mut check =
            Measured::unknown(Unit::Count, Basis::NoneEndedInHistory).at_least("terminations", 1.0);
        if let CheckEvidence::Limit { by_default, .. } = &mut check.evidence {
            *by_default = true;
        }
        Some(check)
    }

    /// Checks a number of lost requests, or their share of the requests to terminating pods. `missing` gives the
    /// reasons why there may be others.
    fn lost(&self, name: &str, lost: Bounded, bounds: Bounds<Amount>, missing: &[FigureDoubt]) -> Vec<Check> {
        let WorkloadTraffic { requests, not_observable, .. } = self.traffic;
        let background_at_most = self.traffic.background_at_most();
        let most = missing.is_empty().then_some((lost.at_most + not_observable) as f64);
        let shared = lost.at_most - lost.at_least;
        let further = [
            (not_observable, FigureDoubt::NotObservable as fn(u64) -> FigureDoubt),
            (background_at_most.min(lost.at_least), FigureDoubt::Background),
            (shared, FigureDoubt::MayBeOthers),
        ];
        let further = further.into_iter().filter(|(n, _)| *n > 0).map(|(n, doubt)| doubt(n));
        let doubts: Vec<FigureDoubt> = missing.iter().cloned().chain(further).collect();
        let basis = if doubts.is_empty() { Basis::Observed } else { Basis::Open(doubts) };
        let least = lost.at_least.saturating_sub(background_at_most) as f64;
        let number = Measured::between(Unit::Count, Some(least), None, most).because(basis.clone());
        amount(name, bounds, &number, |_| match requests + shared {
            0 => Measured::unknown(Unit::Share, Basis::Open(vec![FigureDoubt::NoRequests])),
            all => {
                // Requests whose outcome is unknown are among those that reached the pods.
                let most = number.figure.high.map(|most| most.min(all as f64));
                Measured::between(Unit::Count, Some(least), None, most)
                    .into_share_of(all as f64)
                    .because(basis.clone())
            }
        })
    }
}

impl HistoryWindows {
    fn add(&mut self, pod: &str, traffic: &TerminationTraffic) {
        // Lines that name a Service do not show how long the pod was used.
        let is_hidden = u64::from(!traffic.by_services.is_empty());
        self.number += is_hidden;
        self.unbounded += is_hidden;
        for window in traffic.windows.iter().filter(|window| window.is_one()) {
            self.number += 1;
            self.unbounded += u64::from(window.upper_s.is_none());
            self.upper_s = self.upper_s.into_iter().chain(window.upper_s).reduce(f64::max);
            let longest_s = self.lasted.as_ref().map(|(lower_s, _)| *lower_s);
            if let Some(lower_s) =
                window.lower_s.filter(|lower_s| longest_s.is_none_or(|longest| longest < *lower_s))
            {
                self.lasted = Some((lower_s, pod.to_owned()));
            }
        }
    }

    fn longest(&self, missing: Vec<FigureDoubt>) -> Measured {
        let low = self.lasted.as_ref().map(|(lower_s, _)| *lower_s);
        let high = self.upper_s.filter(|_| self.unbounded == 0 && missing.is_empty());
        let basis = match (self.number, missing.is_empty()) {
            (0, true) => Basis::NoWindow,
            (_, false) => Basis::Open(missing),
            (windows, true) => Basis::LongestWindow(LongestWindow {
                windows,
                unbounded: self.unbounded,
                lasted: self.lasted.clone().map(|(lower_s, pod)| (lower_s, WindowOwner::Pod(pod))),
            }),
        };
        Measured::between(Unit::Seconds, low, None, high).because(basis)
    }
}

/// Returns the exit code of the main container; with several containers, the first code that is not 0. `None` if not
/// all codes are known.
fn exit_code(end: &WatchedTermination) -> Option<i32> {
    let main = end.containers.iter().filter(|container| !container.sidecar);
    let codes: Option<Vec<i32>> = main.map(|container| container.exit_code).collect();
    let codes = codes?;
    codes.iter().find(|code| **code != 0).or(codes.first()).copied()
}

/// Returns the key of the first limit that is set but requires a run.
pub fn needs_run(expect: &Expect) -> Option<String> {
    let dropped = expect.dropped.unwrap_or_default();
    let windows = expect.windows.unwrap_or_default();
    let streams = expect.streams.unwrap_or_default();
    let of_runs = [
        ("dropped.perTermination", dropped.per_termination.is_some()),
        ("dropped.perGroup", dropped.per_group.is_some()),
        ("appErrors", expect.app_errors.is_some()),
        ("requests", expect.requests.is_some()),
        ("outcomes", !expect.outcomes.is_empty()),
        ("streams.unfinished", streams.unfinished.is_some()),
        ("streams.aborted", streams.aborted.is_some()),
        ("streams.stalled", streams.stalled.is_some()),
        ("streams.eventsLost", streams.events_lost.is_some()),
        ("restarts", expect.restarts.is_some()),
        ("stages", !expect.stages.is_empty()),
        ("outage", expect.outage.is_some()),
        ("deadSeconds", expect.dead_seconds.is_some()),
        ("latency", expect.latency.is_some()),
        ("starts", expect.starts.is_some()),
        ("rollout", expect.rollout.is_some()),
        ("preStop", expect.pre_stop.is_some()),
        ("accounting", expect.accounting.is_some()),
        ("validity", expect.validity.is_some()),
        ("consumers", !expect.consumers.is_empty()),
        ("targets", !expect.targets.is_empty()),
    ];
    let of_runs = of_runs.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key.to_owned());
    let quantiles = windows.quantiles().map(|(name, ..)| format!("windows.{name}"));
    let relative = expect.worse().into_iter().map(|worse| format!("{}.worse", worse.name()));
    of_runs.chain(quantiles).chain(relative).next()
}

#[cfg(test)]
mod tests;
