//! Ranks workloads by how their pods terminated, worst first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::pooled_background::PooledBackground;
use super::sleep_evidence::{LongSleep, SleepEvidence};
use crate::model::figure_text::len;
use crate::model::{Bounded, Cause, TerminationTraffic, WatchedMode, WatchedTermination};

/// Minimum share of the grace period that counts as nearly all of it.
pub const NEARLY_ALL: f64 = 0.9;
/// Time, in seconds, that the kubelet leaves an app whose preStop hook took the whole grace period
/// (`minimumGracePeriodInSeconds` in pkg/kubelet/kuberuntime).
const LEAST_GRACE_S: i64 = 2;

/// Terminations of one workload's pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankedWorkload {
    /// Namespace of the workload.
    pub namespace: String,
    /// Kind and name, such as `Deployment web`; `None` for pods without a controller.
    pub workload: Option<String>,
    /// Number of terminations.
    pub terminations: u64,
    /// Number of pods killed by SIGKILL when their grace period expired.
    pub killed_at_grace_end: u64,
    /// Number of other pods that used [`NEARLY_ALL`] of their grace period or more.
    pub nearly_killed: u64,
    /// Number of pods for which it is unknown whether they belong to either group.
    pub unknown: u64,
    /// Number of pods with a failed preStop hook, according to Events.
    pub failed_hooks: u64,
    /// Number of killed pods whose preStop sleep left the app hardly any of the grace period.
    pub killed_after_long_sleep: u64,
    /// Median share of the grace period that the pods used; `None` if no share is known.
    pub median_share_of_grace: Option<f64>,
    /// Largest share of the grace period that a pod used.
    pub max_share_of_grace: Option<f64>,
    /// Grace periods of the deletions, in seconds.
    pub grace_periods_s: BTreeSet<i64>,
    /// Requests to these pods, according to gateway logs; `None` if their addresses appear in no log.
    pub traffic: Option<WorkloadTraffic>,
    /// The preStop sleep, if it is longer than the observed consumers need.
    pub long_sleep: Option<LongSleep>,
}

/// Requests from gateways to the terminating pods of one or more workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadTraffic {
    /// Number of terminations whose pods appear in the logs.
    pub terminations: u64,
    /// Number of these terminations for which lines may be missing.
    pub with_gaps: u64,
    /// Requests from t0 on.
    pub requests: u64,
    /// Requests to the pods' Services while the pods terminated, if the lines name no pod; by the Service's namespace
    /// and name.
    #[serde(default)]
    pub by_services: BTreeMap<String, u64>,
    /// Lost requests.
    pub lost: Bounded,
    /// Streams that were cut, which are among the lost requests.
    pub streams_cut: Bounded,
    /// Number of these terminations for which the logs do not show which streams were cut.
    pub streams_cut_unknown: u64,
    /// Lost requests by cause.
    pub by_cause: BTreeMap<Cause, Bounded>,
    /// Requests lost at pods that their nodes' shutdowns ended without deleting them, by causes that a preStop sleep
    /// avoids in other terminations.
    #[serde(default)]
    pub lost_by_shutdowns: Bounded,
    /// Requests that a retry saved.
    pub saved_by_retries: Bounded,
    /// Number of these terminations for which the logs do not show which requests retries saved.
    pub saved_by_retries_unknown: u64,
    /// Number of lost requests to expect without terminations, in sum over the terminations that have this figure.
    pub background: PooledBackground,
    /// Number of terminations that do not have it.
    #[serde(default)]
    pub background_unknown: u64,
    /// Requests that were certainly lost at those terminations, so it is not known how many of them would have been lost
    /// without a termination.
    #[serde(default)]
    pub lost_without_background: u64,
    /// Requests whose outcome the logs do not show with certainty, or at all.
    pub not_observable: u64,
    /// Window with the longest lower bound, among terminations that lost requests, other than nodes' shutdowns.
    pub longest_window: Option<LongestWindow>,
    /// Latest window that the uncertainties of t0 and of the gateway's clock may explain, among the same terminations.
    pub unresolved_window: Option<UnresolvedWindow>,
}

/// A window that the uncertainties of t0 and of the gateway's clock may explain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnresolvedWindow {
    /// Width of the bounds on t0, in seconds.
    pub t0_width_s: f64,
    /// Width of the bounds on the gateway's clock, in seconds.
    pub clock_width_s: f64,
    /// True if the watch had written beats.
    pub has_beats: bool,
}

/// The longest window of a workload, judging by lower bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongestWindow {
    /// Minimum duration of the window in seconds.
    pub lower_s: f64,
    /// Maximum duration of that window, if it is known.
    pub upper_s: Option<f64>,
    /// The gateway's log, and the route.
    pub consumer: String,
    /// Mode of the termination.
    pub mode: WatchedMode,
    /// preStop sleep of the pod, in seconds.
    pub pre_stop_sleep_s: Option<i64>,
    /// Width of the bounds on t0, in seconds, which is part of the maximum duration.
    pub t0_width_s: f64,
    /// True if the watch had written beats.
    pub has_beats: bool,
}

impl UnresolvedWindow {
    /// Creates an unresolved window of this termination.
    pub fn of(end: &WatchedTermination, traffic: &TerminationTraffic) -> Self {
        Self { t0_width_s: end.t0_width_s(), clock_width_s: traffic.clock_width_s, has_beats: end.has_beats }
    }
}

impl WorkloadTraffic {
    /// Adds the requests to a pod.
    pub fn add(&mut self, end: &WatchedTermination) {
        let Some(traffic) = &end.traffic else { return };
        self.terminations += 1;
        self.with_gaps += u64::from(!traffic.gaps.is_empty());
        self.requests += traffic.requests;
        for (service, requests) in &traffic.by_services {
            *self.by_services.entry(service.clone()).or_default() += requests;
        }
        self.lost.merge(&traffic.lost);
        self.streams_cut.merge(&traffic.streams_cut.unwrap_or_default());
        self.streams_cut_unknown += u64::from(traffic.streams_cut.is_none());
        for (cause, lost) in &traffic.by_cause {
            self.by_cause.entry(*cause).or_default().merge(lost);
        }
        self.saved_by_retries.merge(&traffic.saved_by_retries.unwrap_or_default());
        self.saved_by_retries_unknown += u64::from(traffic.saved_by_retries.is_none());
        match &traffic.background {
            Some(losses) => self.background.add(end.t0_latest_ns, losses, traffic.background_spread),
            None => {
                self.background_unknown += 1;
                self.lost_without_background += traffic.lost.at_least;
            }
        }
        self.not_observable += traffic.not_observable;
        if end.mode == WatchedMode::NodeShutdown {
            // Gateways use such a pod until it has ended, so the window shows no length for a sleep.
            let lost = traffic.by_cause.iter().filter(|(cause, _)| cause.is_helped_by_sleep());
            lost.for_each(|(_, lost)| self.lost_by_shutdowns.merge(lost));
            return;
        }
        // A pod that lost nothing may have slept through its window.
        let windows = traffic.windows.iter().filter(|_| traffic.lost.at_most > 0);
        for window in windows {
            if window.is_unresolved() {
                self.unresolved_window = Some(UnresolvedWindow::of(end, traffic));
            }
            let Some(lower_s) = window.lower_s.filter(|lower_s| *lower_s > 0.0) else { continue };
            if self.longest_window.as_ref().is_none_or(|longest| longest.lower_s < lower_s) {
                self.longest_window = Some(LongestWindow {
                    lower_s,
                    upper_s: window.upper_s,
                    consumer: window.consumer.clone(),
                    mode: end.mode,
                    pre_stop_sleep_s: end.pre_stop_sleep_s,
                    t0_width_s: end.t0_width_s(),
                    has_beats: end.has_beats,
                });
            }
        }
    }

    /// Returns true if no requests are missing from these figures: of this many terminations, each one's pod appears in
    /// the logs, and no lines may be missing.
    pub fn is_whole(&self, terminations: u64) -> bool {
        self.with_gaps == 0 && self.terminations == terminations
    }

    /// Returns the maximum number of the certainly lost requests that may have been lost without the terminations.
    pub fn background_at_most(&self) -> u64 {
        self.background.limits().at_most + self.lost_without_background
    }

    /// Returns the number of requests that terminations certainly lost.
    pub fn surely_lost(&self) -> u64 {
        self.lost.at_least.saturating_sub(self.background_at_most())
    }
}

/// Terminations by workload.
#[derive(Debug, Default)]
pub struct WorkloadRanking(BTreeMap<(String, Option<String>), Counted>);

#[derive(Debug, Default)]
struct Counted {
    ranked: RankedWorkload,
    shares: Vec<f64>,
    sleep: SleepEvidence,
}

impl WorkloadRanking {
    /// Adds a termination.
    pub fn add(&mut self, end: &WatchedTermination) {
        let Counted { ranked, shares, sleep } =
            self.0.entry((end.namespace.clone(), end.workload.clone())).or_default();
        let share = end.share_of_grace();
        ranked.terminations += 1;
        match (end.killed_at_grace_end, share) {
            (Some(true), _) => {
                ranked.killed_at_grace_end += 1;
                let is_long = |sleep_s: i64| sleep_s.saturating_add(LEAST_GRACE_S) >= end.grace_s;
                ranked.killed_after_long_sleep += u64::from(end.pre_stop_sleep_s.is_some_and(is_long));
            }
            (_, Some(share)) if share >= NEARLY_ALL => ranked.nearly_killed += 1,
            (Some(false), Some(_)) => {}
            (None, _) | (_, None) => ranked.unknown += 1,
        }
        ranked.failed_hooks += u64::from(end.failed_hooks.as_ref().is_some_and(|failed| !failed.is_empty()));
        ranked.grace_periods_s.insert(end.grace_s);
        if let Some(traffic) = &end.traffic {
            ranked.traffic.get_or_insert_default().add(end);
            sleep.add(end, traffic);
        }
        shares.extend(share);
    }

    /// Returns the workloads, worst first: by requests lost, by streams cut, by pods killed, by pods nearly killed, by
    /// failed hooks, and by the largest share of the grace period.
    pub fn ranked(&self) -> Vec<RankedWorkload> {
        let named = self.0.iter().map(|((namespace, workload), counted)| {
            let mut shares = counted.shares.clone();
            shares.sort_by(f64::total_cmp);
            RankedWorkload {
                namespace: namespace.clone(),
                workload: workload.clone(),
                // Takes the lower of the middle two so that the median is the share of an actual pod.
                median_share_of_grace: shares.get(shares.len().saturating_sub(1) / 2).copied(),
                max_share_of_grace: shares.last().copied(),
                long_sleep: counted.sleep.long_sleep(),
                ..counted.ranked.clone()
            }
        });
        let badness = |of: RankedWorkload| {
            let lost = of.traffic.as_ref().map_or(0, WorkloadTraffic::surely_lost);
            let cut = of.traffic.as_ref().map_or(0, |traffic| traffic.streams_cut.at_least.min(lost));
            (Reverse((lost, cut, of.killed_at_grace_end, of.nearly_killed, of.failed_hooks)), of)
        };
        let share = |of: &RankedWorkload| of.max_share_of_grace.unwrap_or(0.0);
        let mut ranked: Vec<_> = named.map(badness).collect();
        ranked.sort_by(|(a, of_a), (b, of_b)| a.cmp(b).then(share(of_b).total_cmp(&share(of_a))));
        ranked.into_iter().map(|(_, of)| of).collect()
    }

    /// Returns the number of terminations.
    pub fn terminations(&self) -> u64 {
        self.0.values().map(|counted| counted.ranked.terminations).sum()
    }

    /// Returns the number of workloads. All pods in a namespace that have no controller count as one workload.
    pub fn workloads(&self) -> u64 {
        len(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GraceUse, T0Basis, Window};
    use rolldrop_record::Stamp;

    fn end(workload: &str, likely_s: Option<f64>, killed: Option<bool>) -> WatchedTermination {
        WatchedTermination {
            namespace: "shop".to_owned(),
            workload: Some(workload.to_owned()),
            pod: "web-1".to_owned(),
            uid: "u".to_owned(),
            node: None,
            mode: WatchedMode::Rollout,
            cause: None,
            t0_earliest_ns: Stamp::from_unix_ns(0),
            t0_latest_ns: Stamp::from_unix_ns(0),
            t0_basis: T0Basis::Timestamp,
            has_beats: false,
            grace_s: 10,
            pre_stop_sleep_s: Some(8),
            ended_ns: None,
            grace_use: likely_s.map(|likely_s| GraceUse { least_s: 0.0, likely_s, most_s: likely_s }),
            killed_at_grace_end: killed,
            containers: Vec::new(),
            restarts: 0,
            failed_hooks: None,
            ready_while_terminating_s: None,
            traffic: None,
        }
    }

    #[test]
    fn worst_workload_ranks_first() {
        let mut ranking = WorkloadRanking::default();
        for termination in [
            end("Deployment fine", Some(9.5), Some(false)),
            end("Deployment slow", Some(9.6), Some(false)),
            end("Deployment slow", Some(9.7), Some(false)),
            end("Deployment killed", Some(10.5), Some(true)),
            end("Deployment killed", Some(1.0), Some(false)),
            end("Deployment killed", Some(3.0), Some(false)),
            end("Deployment unknown", None, Some(false)),
            end("Deployment unknown", None, None),
        ] {
            ranking.add(&termination);
        }
        let mut hooked = end("Deployment hooked", Some(1.0), Some(false));
        hooked.failed_hooks = Some(BTreeSet::from(["app".to_owned()]));
        ranking.add(&hooked);
        let ranked = ranking.ranked();
        let names: Vec<_> = ranked.iter().map(|of| of.workload.as_deref().unwrap_or_default()).collect();
        let expected = ["killed", "slow", "fine", "hooked", "unknown"];
        assert_eq!(names, expected.map(|name| format!("Deployment {name}")));
        let killed = &ranked[0];
        assert_eq!((killed.terminations, killed.killed_at_grace_end, killed.unknown), (3, 1, 0));
        assert_eq!(killed.killed_after_long_sleep, 1);
        assert_eq!((killed.median_share_of_grace, killed.max_share_of_grace), (Some(0.3), Some(1.05)));
        assert_eq!((ranked[1].nearly_killed, ranked[3].failed_hooks, ranked[4].unknown), (2, 1, 2));
        assert_eq!((ranked[4].median_share_of_grace, ranking.terminations()), (None, 9));
    }

    #[test]
    fn traffic_is_summed_over_terminations() {
        let window = |lower_s: f64| Window {
            consumer: "gw".to_owned(),
            lower_s: Some(lower_s).filter(|lower_s| *lower_s > 0.0),
            upper_s: None,
            lower_basis: None,
            upper_basis: None,
            censored: None,
            censored_reason: None,
            rate_before: 1.0,
            late_arrivals: 0,
        };
        let seen = |lost, background: Option<Bounded>, lower_s| WatchedTermination {
            t0_latest_ns: Stamp::from_unix_ns(500_000_000),
            traffic: Some(TerminationTraffic {
                requests: 50,
                lost: Bounded::exactly(lost),
                streams_cut: Some(Bounded::exactly(lost / 2)).filter(|_| background.is_none()),
                background,
                windows: vec![window(lower_s)],
                clock_width_s: 0.2,
                ..TerminationTraffic::default()
            }),
            ..end("Deployment web", Some(1.0), Some(false))
        };
        let mut ranking = WorkloadRanking::default();
        ranking.add(&end("Deployment killed", Some(10.5), Some(true)));
        ranking.add(&end("Deployment web", Some(1.0), Some(false)));
        ranking.add(&seen(3, Some(Bounded { at_least: 0, at_most: 2, estimate: 0.5 }), 0.4));
        ranking.add(&WatchedTermination { has_beats: true, ..seen(4, None, 1.4) });
        ranking.add(&seen(0, None, 2.4));
        ranking.add(&seen(1, None, 0.0));
        ranking.add(&seen(0, None, 0.0));
        let ranked = ranking.ranked();
        let traffic = ranked[0].traffic.as_ref().expect("lost requests rank before kills");
        assert_eq!((ranked[0].terminations, traffic.terminations, traffic.requests), (6, 5, 250));
        assert_eq!((traffic.lost, traffic.surely_lost()), (Bounded::exactly(8), 1));
        assert_eq!((traffic.background_unknown, traffic.lost_without_background), (4, 5));
        assert_eq!((traffic.streams_cut, traffic.streams_cut_unknown), (Bounded::exactly(2), 1));
        let longest = traffic.longest_window.as_ref().expect("a window");
        assert_eq!((longest.lower_s, longest.t0_width_s, longest.has_beats), (1.4, 0.5, true));
        let unresolved = UnresolvedWindow { t0_width_s: 0.5, clock_width_s: 0.2, has_beats: false };
        assert_eq!(traffic.unresolved_window, Some(unresolved), "a window without losses does not count");
        ranking.add(&WatchedTermination { mode: WatchedMode::NodeShutdown, ..seen(1, None, 9.0) });
        let longest = ranking.ranked()[0].traffic.as_ref().and_then(|traffic| traffic.longest_window.clone());
        assert_eq!(longest.map(|longest| longest.lower_s), Some(1.4), "no sleep shortens that of a shutdown");
        assert_eq!(ranked[1].traffic, None);
    }
}
