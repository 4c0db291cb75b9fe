//! Evidence that a workload's preStop sleep is longer than its consumers need.
//!
//! Only terminations in rollouts count, because windows are longest there, and only if the pod slept and its use by all
//! observed consumers has an upper bound. Lower bounds count in any mode but that of a node's shutdown, which no sleep
//! helps, and with any sleep.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::math::stats;
use crate::model::figure_text::len;
use crate::model::{TerminationTraffic, WatchedMode, WatchedTermination, Window, separate_ends};
use rolldrop_record::{Policy, Stamp};

/// A preStop sleep that is longer than needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongSleep {
    /// The pods' preStop sleep in seconds.
    pub pre_stop_sleep_s: u64,
    /// Shorter sleep that is enough, in seconds: the longest use, rounded up, plus the margin of recommendations.
    pub enough_s: u64,
    /// Longest possible use of a pod after its deletion, in seconds.
    pub longest_s: f64,
    /// Number of terminations, all in rollouts.
    pub terminations: u64,
    /// Number of these terminations whose pods were certainly last used at different times.
    pub separate_ends: u64,
    /// Share of future terminations in rollouts for which these terminations guarantee a use of at most `longest_s`.
    pub coverage: f64,
    /// Confidence of that share, and of all upper bounds together.
    pub confidence: f64,
    /// Sources of the logs that show the consumers.
    pub consumers: BTreeSet<String>,
    /// Sources that the workload declares to be all of its consumers; `None` if it declares none.
    pub declared: Option<BTreeSet<String>>,
    /// True if each of these terminations shows exactly the declared consumers.
    pub all_consumers_seen: bool,
}

/// Evidence from one workload's terminations about its latest preStop sleep.
#[derive(Debug, Default)]
pub(super) struct SleepEvidence {
    pre_stop_sleep_s: Option<i64>,
    /// True if pods lost requests despite this sleep, or may have.
    is_too_short: bool,
    /// Longest certain use of a pod after its deletion, in seconds, whatever its sleep.
    lasted_at_least_s: Option<f64>,
    declared: Option<BTreeSet<String>>,
    uses: Vec<BoundedUse>,
}

/// Use of a pod after its deletion by all observed consumers.
#[derive(Debug)]
struct BoundedUse {
    t0: (Stamp, Stamp),
    lower_s: f64,
    /// Upper bound in seconds, and rate of requests before t0, by window.
    windows: Vec<(f64, f64)>,
    consumers: Arc<BTreeSet<String>>,
}

impl BoundedUse {
    /// Returns the use of a pod if it has an upper bound, and if the uncertainty of times alone does not explain the
    /// use.
    fn of(end: &WatchedTermination, traffic: &TerminationTraffic) -> Option<Self> {
        let slept_s = end.pre_stop_sleep_s? as f64;
        let has_slept = end.grace_use.is_some_and(|used| used.most_s >= slept_s)
            && end.failed_hooks.as_ref().is_none_or(BTreeSet::is_empty);
        let has_gaps = !traffic.gaps.is_empty() || !traffic.consumers.with_gaps.is_empty();
        // Lines that name a Service do not show how long its pods were used.
        let is_shown = !traffic.consumers.seen.is_empty() && traffic.by_services.is_empty();
        if end.mode != WatchedMode::Rollout || !has_slept || has_gaps || !is_shown {
            return None;
        }
        let windows = || traffic.windows.iter().filter(|window| window.is_one());
        let bounds: Option<Vec<(f64, &Window)>> = windows().map(|of| Some((of.upper_s?, of))).collect();
        let (_, longest) = bounds.as_ref()?.iter().max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (!longest.is_unresolved()).then(|| Self {
            t0: (end.t0_earliest_ns, end.t0_latest_ns),
            lower_s: windows().filter_map(|window| window.lower_s).fold(0.0, f64::max),
            windows: bounds
                .iter()
                .flatten()
                .map(|(upper_s, window)| (*upper_s, window.rate_before))
                .collect(),
            consumers: Arc::new(traffic.consumers.seen.clone()),
        })
    }

    /// Returns the upper bound in seconds that holds jointly with those of other pods, for `together` pods in all.
    fn upper_s(&self, together: usize) -> f64 {
        // The silence that bounds a window is ln(1/α) divided by the rate, and the pods share α.
        let shared = |(upper_s, rate): &(f64, f64)| upper_s + (together as f64).ln() / rate;
        self.windows.iter().map(shared).fold(0.0, f64::max)
    }
}

impl SleepEvidence {
    pub(super) fn add(&mut self, end: &WatchedTermination, traffic: &TerminationTraffic) {
        if end.mode == WatchedMode::NodeShutdown {
            return;
        }
        if self.pre_stop_sleep_s != end.pre_stop_sleep_s {
            let lasted_at_least_s = self.lasted_at_least_s;
            *self = Self { pre_stop_sleep_s: end.pre_stop_sleep_s, lasted_at_least_s, ..Self::default() };
        }
        let lasted = traffic.windows.iter().filter_map(|window| window.lower_s);
        self.lasted_at_least_s = lasted.chain(self.lasted_at_least_s).reduce(f64::max);
        let mut causes = traffic.by_cause.iter();
        self.is_too_short |= causes.any(|(cause, lost)| cause.is_helped_by_sleep() && lost.at_most > 0);
        self.declared.clone_from(&traffic.consumers.declared);
        let Some(mut of) = BoundedUse::of(end, traffic) else { return };
        // A history has many terminations but few different sets of consumers.
        if let Some(last) = self.uses.last().filter(|last| last.consumers == of.consumers) {
            of.consumers = Arc::clone(&last.consumers);
        }
        self.uses.push(of);
    }

    /// Returns the sleep if it is longer than needed: by all consumers if enough terminations show all the declared
    /// ones, otherwise by those that were seen.
    pub(super) fn long_sleep(&self) -> Option<LongSleep> {
        if self.is_too_short {
            return None;
        }
        let declared = self.declared.as_ref();
        let by_all = declared.and_then(|declared| self.bounded(|of| *of.consumers == *declared));
        by_all.map(|all| LongSleep { all_consumers_seen: true, ..all }).or_else(|| self.bounded(|_| true))
    }

    fn bounded(&self, is_meant: impl Fn(&BoundedUse) -> bool) -> Option<LongSleep> {
        let pre_stop_sleep_s = u64::try_from(self.pre_stop_sleep_s?).ok()?;
        let Policy { coverage, confidence, margin_s } = Policy::default();
        let uses: Vec<&BoundedUse> = self.uses.iter().filter(|of| is_meant(of)).collect();
        let longest_s = uses.iter().map(|of| of.upper_s(uses.len())).reduce(f64::max)?;
        let first = uses.iter().map(|of| of.t0.0).min()?;
        let ends = uses.iter().map(|of| {
            let [from_s, to_s] = [of.t0.1, of.t0.0].map(|t0| t0.seconds_since(first));
            (from_s + of.lower_s, to_s + of.upper_s(1), ())
        });
        let separate = separate_ends(ends).len();
        let enough_s = stats::covering_sleep(longest_s, self.lasted_at_least_s) + margin_s;
        let is_shown = separate >= stats::wilks_needed(coverage, confidence) && enough_s < pre_stop_sleep_s;
        is_shown.then(|| LongSleep {
            pre_stop_sleep_s,
            enough_s,
            longest_s,
            terminations: len(uses.len()),
            separate_ends: len(separate),
            coverage: stats::wilks_coverage(separate, confidence),
            confidence,
            consumers: uses.iter().flat_map(|of| of.consumers.iter().cloned()).collect(),
            declared: self.declared.clone(),
            all_consumers_seen: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bounded, Cause, GraceUse, LogGap, SeenConsumers, T0Basis};

    const ENVOY: &str = "edge/deployment/envoy";
    const TRAEFIK: &str = "edge/deployment/traefik";
    const SECOND_NS: i64 = 1_000_000_000;

    fn names(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    fn window(lower_s: Option<f64>, upper_s: Option<f64>) -> Window {
        Window {
            consumer: "gw".to_owned(),
            lower_s,
            upper_s,
            lower_basis: None,
            upper_basis: None,
            censored: None,
            censored_reason: None,
            rate_before: 100.0,
            late_arrivals: 0,
        }
    }

    /// Returns the termination with this number, in a rollout, of a pod that sleeps for 15 s. Envoy used it for 2 s.
    fn end(number: i64) -> (WatchedTermination, TerminationTraffic) {
        let t0 = Stamp::from_unix_ns(number * 60 * SECOND_NS);
        let end = WatchedTermination {
            namespace: "shop".to_owned(),
            workload: Some("Deployment web".to_owned()),
            pod: "web-1".to_owned(),
            uid: "u".to_owned(),
            node: None,
            mode: WatchedMode::Rollout,
            cause: None,
            t0_earliest_ns: t0,
            t0_latest_ns: t0,
            t0_basis: T0Basis::Timestamp,
            has_beats: false,
            grace_s: 30,
            pre_stop_sleep_s: Some(15),
            ended_ns: None,
            grace_use: Some(GraceUse { least_s: 15.1, likely_s: 15.2, most_s: 16.3 }),
            killed_at_grace_end: Some(false),
            containers: Vec::new(),
            restarts: 0,
            failed_hooks: None,
            ready_while_terminating_s: None,
            traffic: None,
        };
        let seen = SeenConsumers { seen: names(&[ENVOY]), ..SeenConsumers::default() };
        let windows = vec![window(Some(1.9), Some(2.0)), window(None, Some(0.3))];
        (end, TerminationTraffic { windows, consumers: seen, ..TerminationTraffic::default() })
    }

    type Change<'a> = &'a dyn Fn(i64, &mut WatchedTermination, &mut TerminationTraffic);

    /// Returns the sleep that this many terminations, each modified by `change`, show to be too long.
    fn shown(count: i64, change: Change<'_>) -> Option<LongSleep> {
        let mut evidence = SleepEvidence::default();
        for number in 0..count {
            let (mut end, mut traffic) = end(number);
            change(number, &mut end, &mut traffic);
            evidence.add(&end, &traffic);
        }
        evidence.long_sleep()
    }

    fn declare(traffic: &mut TerminationTraffic, all: &[&str]) {
        traffic.consumers.declared = Some(names(all));
    }

    #[test]
    fn long_sleep_needs_enough_separate_ends() {
        let found = shown(29, &|_, _, _| {}).expect("29 terminations cover 90 %");
        assert_eq!((found.pre_stop_sleep_s, found.enough_s), (15, 4), "2.03 s rounded up, and the margin");
        assert!((found.longest_s - (2.0 + 29_f64.ln() / 100.0)).abs() < 1e-9, "the bounds hold jointly");
        assert_eq!((found.terminations, found.separate_ends), (29, 29));
        assert!((0.90..0.91).contains(&found.coverage), "{found:?}");
        assert_eq!((found.consumers, found.declared), (names(&[ENVOY]), None));
        assert!(!found.all_consumers_seen, "nothing declares that these are all consumers");
        assert_eq!(shown(28, &|_, _, _| {}), None);
        let simultaneous: Change<'_> = &|number, end, _| {
            let t0 = Stamp::from_unix_ns(number / 2 * 60 * SECOND_NS);
            (end.t0_earliest_ns, end.t0_latest_ns) = (t0, t0);
        };
        assert_eq!(shown(56, simultaneous), None, "pods that left together count once");
        let found = shown(58, simultaneous).expect("29 separate ends");
        assert_eq!((found.terminations, found.separate_ends), (58, 29));
    }

    #[test]
    fn all_declared_consumers_must_be_seen() {
        let all = |seen: &'static [&'static str], declared: &'static [&'static str]| {
            shown(40, &move |_, _, traffic| {
                traffic.consumers.seen = names(seen);
                declare(traffic, declared);
            })
            .expect("the sleep is longer than the observed consumers need")
            .all_consumers_seen
        };
        assert!(all(&[ENVOY], &[ENVOY]));
        assert!(all(&[ENVOY, TRAEFIK], &[TRAEFIK, ENVOY]));
        assert!(!all(&[ENVOY], &[ENVOY, TRAEFIK]), "one is not followed");
        assert!(!all(&[ENVOY, TRAEFIK], &[ENVOY]), "the workload does not declare one of them");
        let rarely = |least: i64| {
            shown(60, &move |number, _, traffic| {
                declare(traffic, &[ENVOY, TRAEFIK]);
                if number >= least {
                    traffic.consumers.seen = names(&[ENVOY, TRAEFIK]);
                }
            })
            .expect("60 terminations")
        };
        assert!(!rarely(32).all_consumers_seen, "28 terminations show both");
        let found = rarely(31);
        assert!(found.all_consumers_seen);
        assert_eq!(found.terminations, 29, "only those that show both count");
        // The latest declaration also applies to earlier terminations.
        let late = shown(29, &|number, _, traffic| {
            if number == 28 {
                declare(traffic, &[ENVOY]);
            }
        });
        assert!(late.expect("29 terminations").all_consumers_seen);
    }

    #[test]
    fn terminations_without_bound_do_not_count() {
        let gap =
            || LogGap { source: "edge/envoy".to_owned(), from_ns: Stamp::default(), to_ns: None, why: None };
        let changes: [(&str, Change<'_>); 12] = [
            ("a gap", &|_, _, traffic| traffic.gaps.push(gap())),
            ("a gap in the log of another gateway pod", &|_, _, traffic| {
                traffic.consumers.with_gaps = names(&[ENVOY]);
            }),
            ("no upper bound", &|_, _, traffic| traffic.windows[0].upper_s = None),
            ("no upper bound for one of two", &|_, _, traffic| traffic.windows[1].upper_s = None),
            ("not resolved", &|_, _, traffic| traffic.windows[0].lower_s = None),
            ("no window", &|_, _, traffic| traffic.windows.clear()),
            ("a log that names a Service", &|_, _, traffic| {
                traffic.by_services.insert("shop/web".to_owned(), 1);
            }),
            ("no source", &|_, _, traffic| traffic.consumers.seen.clear()),
            ("not in a rollout", &|_, end, _| end.mode = WatchedMode::Drain),
            ("a failed hook", &|_, end, _| end.failed_hooks = Some(names(&["app"]))),
            ("an end before the sleep was over", &|_, end, _| {
                end.grace_use = Some(GraceUse { least_s: 3.0, likely_s: 3.1, most_s: 4.0 });
            }),
            ("an unknown sleep", &|_, end, _| end.pre_stop_sleep_s = None),
        ];
        for (what, change) in changes {
            assert_eq!(shown(40, change), None, "{what}");
            // The 29 others are enough, but a different sleep restarts the count.
            let half = shown(58, &|number, end, traffic| {
                if number % 2 == 0 {
                    change(number, end, traffic);
                }
            });
            assert_eq!(half.map(|of| of.terminations), (what != "an unknown sleep").then_some(29), "{what}");
        }
    }

    #[test]
    fn node_shutdown_says_nothing_about_sleep() {
        let found = shown(30, &|number, end, traffic| {
            if number == 7 {
                end.mode = WatchedMode::NodeShutdown;
                traffic.by_cause.insert(Cause::GatewayToDeadPod, Bounded::exactly(9));
            }
        });
        assert_eq!(found.expect("29 rollouts").terminations, 29);
    }

    #[test]
    fn longer_windows_justify_sleep() {
        let one = |change: Change<'_>| {
            shown(40, &|number, end, traffic| {
                if number == 7 {
                    change(number, end, traffic);
                }
            })
        };
        let enough_s = |found: Option<LongSleep>| found.map(|of| of.enough_s);
        let unresolved = one(&|_, _, traffic| traffic.windows[1].upper_s = Some(12.5)).expect("39 others");
        assert_eq!(
            (unresolved.terminations, unresolved.enough_s),
            (39, 4),
            "the uncertainty of times may explain it"
        );
        let drained = one(&|_, end, traffic| {
            end.mode = WatchedMode::Drain;
            traffic.windows[0] = window(Some(8.2), None);
        });
        assert_eq!(enough_s(drained), Some(10), "a lower bound counts in any mode");
        assert_eq!(enough_s(one(&|_, _, traffic| traffic.windows[0] = window(Some(13.5), Some(13.6)))), None);
        let lost =
            |cause: Cause| one(&move |_, _, traffic| _ = traffic.by_cause.insert(cause, Bounded::exactly(1)));
        assert_eq!(enough_s(lost(Cause::GatewayToDeadPod)), None, "the sleep is too short");
        assert_eq!(enough_s(lost(Cause::KilledInFlight)), Some(4), "no sleep avoids this");
        let slow = shown(40, &|_, _, traffic| traffic.windows.iter_mut().for_each(|of| of.rate_before = 0.3));
        assert_eq!(slow, None, "with few requests, the joint bound on all pods is too loose");
    }

    #[test]
    fn changed_sleep_restarts_count() {
        let two = |first: i64, then: i64| {
            shown(first + then, &move |number, end, traffic| {
                if number < first {
                    end.pre_stop_sleep_s = Some(5);
                    traffic.windows[0] = window(Some(2.5), Some(2.6));
                }
            })
        };
        assert_eq!(two(30, 28), None, "the latest sleep has too few terminations");
        let found = two(30, 29).expect("29 terminations with the latest sleep");
        assert_eq!((found.pre_stop_sleep_s, found.terminations, found.enough_s), (15, 29, 4));
    }
}
