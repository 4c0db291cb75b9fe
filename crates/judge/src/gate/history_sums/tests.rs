use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use CheckVerdict::{Fail, Inconclusive, Pass};
use rolldrop_explain::model::{
    BackgroundSpread, CheckVerdict, ContainerEnd, LogGap, T0Basis, WatchedMode, Window,
};
use rolldrop_record::{Cause, Stamp};

const T0: Stamp = Stamp::from_unix_ns(0);

/// Returns a termination of a pod that lost this many of 100 requests.
fn end(lost: (u64, u64)) -> WatchedTermination {
    let lost = Bounded { at_least: lost.0, at_most: lost.1, estimate: 0.0 };
    WatchedTermination {
        namespace: "shop".to_owned(),
        workload: Some("Deployment web".to_owned()),
        pod: "web-x".to_owned(),
        uid: "u".to_owned(),
        node: None,
        mode: WatchedMode::Rollout,
        cause: None,
        t0_earliest_ns: T0,
        t0_latest_ns: T0,
        t0_basis: T0Basis::Timestamp,
        has_beats: false,
        grace_s: 30,
        pre_stop_sleep_s: None,
        ended_ns: Some(T0),
        grace_use: None,
        killed_at_grace_end: Some(false),
        containers: vec![container("app", 0)],
        restarts: 0,
        failed_hooks: Some(BTreeSet::new()),
        ready_while_terminating_s: None,
        traffic: Some(TerminationTraffic {
            requests: 100,
            lost,
            streams_cut: Some(Bounded::default()),
            by_cause: BTreeMap::from([(Cause::GatewayToDeadPod, lost)]),
            background: Some(Bounded::default()),
            windows: vec![window(Some(1.5))],
            ..TerminationTraffic::default()
        }),
    }
}

fn container(name: &str, code: i32) -> ContainerEnd {
    ContainerEnd { name: name.to_owned(), sidecar: false, exit_code: Some(code), reason: None }
}

fn window(upper_s: Option<f64>) -> Window {
    Window {
        consumer: "edge/envoy".to_owned(),
        lower_s: Some(1.0),
        upper_s,
        lower_basis: None,
        upper_basis: None,
        censored: None,
        censored_reason: None,
        rate_before: 1.0,
        late_arrivals: 0,
    }
}

fn with(change: impl FnOnce(&mut TerminationTraffic)) -> WatchedTermination {
    let mut end = end((0, 0));
    change(end.traffic.as_mut().unwrap());
    end
}

fn judged(ends: &[WatchedTermination], expect: Value, unwatched_s: f64) -> Vec<(String, CheckVerdict)> {
    let expect: Expect = serde_json::from_value(expect).unwrap();
    assert_eq!(needs_run(&expect), None);
    let mut sums = HistorySums::default();
    ends.iter().for_each(|end| sums.add(end));
    let checks = sums.checks(&expect, unwatched_s);
    checks.into_iter().map(|check| (check.name.to_string(), check.verdict)).collect()
}

/// Returns the verdict of the only check.
fn verdict(ends: &[WatchedTermination], expect: Value, unwatched_s: f64) -> CheckVerdict {
    let checks = judged(ends, expect, unwatched_s);
    assert_eq!(checks.len(), 1, "{checks:?}");
    checks[0].1
}

#[test]
fn losses_between_limits_are_inconclusive() {
    let none = || json!({"dropped": {"max": 0}});
    assert_eq!(verdict(&[end((0, 0)), end((0, 0))], none(), 0.0), Pass);
    assert_eq!(verdict(&[end((0, 0)), end((3, 3))], none(), 0.0), Fail);
    assert_eq!(verdict(&[end((0, 2))], none(), 0.0), Inconclusive);
    assert_eq!(verdict(&[end((0, 2))], json!({"dropped": {"max": 2}}), 0.0), Pass);
    let share = |percent: &str| json!({"dropped": {"max": percent}});
    assert_eq!(verdict(&[end((3, 3))], share("3%"), 0.0), Pass);
    assert_eq!(verdict(&[end((3, 3))], share("2%"), 0.0), Fail);
    assert_eq!(verdict(&[end((0, 0)), end((0, 3))], share("1%"), 0.0), Inconclusive);
    let cause = |max: u64| json!({"causes": {"gateway_to_dead_pod": {"max": max}}});
    assert_eq!(verdict(&[end((3, 3))], cause(2), 0.0), Fail);
    assert_eq!(verdict(&[end((3, 3))], json!({"causes": {"killed_in_flight": {"max": 0}}}), 0.0), Pass);
    assert_eq!(verdict(&[end((3, 3))], json!({"dropped": {"min": 4}}), 0.0), Fail);
}

#[test]
fn unseen_losses_pass_only_within_limit() {
    let gap = LogGap { source: "edge/envoy".to_owned(), from_ns: T0, to_ns: None, why: None };
    let unseen = [
        (vec![end((0, 0))], 0.5),
        (vec![end((0, 0)), WatchedTermination { traffic: None, ..end((0, 0)) }], 0.0),
        (vec![with(|traffic| traffic.gaps.push(gap.clone()))], 0.0),
        (vec![with(|traffic| traffic.not_observable = 1)], 0.0),
        (vec![], 1.0),
    ];
    for (ends, unwatched_s) in unseen {
        for limit in ["0", "10"] {
            let limit =
                json!({"dropped": {"max": limit.parse::<u64>().unwrap()}, "terminations": {"min": 0}});
            let checks = judged(&ends, limit, unwatched_s);
            let is_small = ends.iter().any(|end| end.traffic.as_ref().is_some_and(|t| t.not_observable > 0));
            let passes = is_small && checks[0].1 == Pass;
            assert!(passes || checks[0].1 == Inconclusive, "{checks:?} {ends:#?}");
        }
        let share =
            judged(&ends, json!({"dropped": {"max": "0.1%"}, "terminations": {"min": 0}}), unwatched_s);
        assert_eq!(share[0].1, Inconclusive, "{ends:#?}");
    }
    // Certain losses fail all the same.
    let lost = [end((3, 3)), WatchedTermination { traffic: None, ..end((0, 0)) }];
    assert_eq!(verdict(&lost, json!({"dropped": {"max": 2}}), 9.0), Fail);
}

#[test]
fn gate_judges_known_number_of_cut_streams() {
    let cut = |lost: (u64, u64), cut: Option<(u64, u64)>| {
        let mut end = end(lost);
        let bounded = |(at_least, at_most)| Bounded { at_least, at_most, estimate: 0.0 };
        end.traffic.as_mut().unwrap().streams_cut = cut.map(bounded);
        end
    };
    let none = || json!({"streams": {"cut": {"max": 0}}});
    assert_eq!(verdict(&[cut((3, 3), Some((0, 0)))], none(), 0.0), Pass, "others were lost");
    assert_eq!(verdict(&[cut((3, 3), Some((2, 2)))], none(), 0.0), Fail);
    assert_eq!(verdict(&[cut((3, 3), Some((0, 2)))], none(), 0.0), Inconclusive);
    assert_eq!(verdict(&[cut((3, 3), None)], json!({"streams": {"cut": {"max": 50}}}), 0.0), Inconclusive);
    assert_eq!(verdict(&[cut((3, 3), Some((2, 2))), cut((0, 0), None)], none(), 0.0), Fail);
    assert_eq!(verdict(&[cut((3, 3), Some((0, 0)))], none(), 1.0), Inconclusive);
    let share = |percent: &str| json!({"streams": {"cut": {"max": percent}}});
    assert_eq!(verdict(&[cut((3, 3), Some((2, 2)))], share("2%"), 0.0), Pass);
    assert_eq!(verdict(&[cut((3, 3), Some((2, 2)))], share("1%"), 0.0), Fail);
}

#[test]
fn background_losses_alone_do_not_fail_gate() {
    let mut one = end((3, 3));
    one.traffic.as_mut().unwrap().background = Some(Bounded { at_least: 0, at_most: 3, estimate: 1.0 });
    assert_eq!(verdict(std::slice::from_ref(&one), json!({"dropped": {"max": 0}}), 0.0), Inconclusive);
    assert_eq!(verdict(&[one.clone(), end((1, 1))], json!({"dropped": {"max": 0}}), 0.0), Fail);
    assert_eq!(verdict(&[one], json!({"causes": {"gateway_to_dead_pod": {"max": 0}}}), 0.0), Inconclusive);
}

#[test]
fn clean_terminations_do_not_excuse_losses() {
    let of = |lost| {
        let mut end = end((lost, lost));
        let traffic = end.traffic.as_mut().unwrap();
        traffic.background = Some(Bounded { at_least: 0, at_most: 2, estimate: 0.3 });
        traffic.background_spread = Some(BackgroundSpread { own: 0.3, shared: 0.001 });
        end
    };
    let with_loss = |clean: usize, lost| [vec![of(0); clean], vec![of(lost)]].concat();
    let none = || json!({"dropped": {"max": 0}});
    assert_eq!(verdict(&with_loss(0, 2), none(), 0.0), Inconclusive);
    assert_eq!(verdict(&with_loss(0, 3), none(), 0.0), Fail);
    // Of 15 losses to expect at 50 terminations, 24 or more are seen in less than 2.5 % of cases.
    assert_eq!(verdict(&with_loss(49, 23), none(), 0.0), Inconclusive);
    assert_eq!(verdict(&with_loss(49, 30), none(), 0.0), Fail);
    // Each of these may lose that many requests by chance, but not all of them.
    assert_eq!(verdict(&vec![of(1); 50], none(), 0.0), Fail);
}

#[test]
fn unknown_background_makes_losses_inconclusive() {
    let mut one = end((3, 3));
    one.traffic.as_mut().unwrap().background = None;
    assert_eq!(verdict(std::slice::from_ref(&one), json!({"dropped": {"max": 0}}), 0.0), Inconclusive);
    assert_eq!(verdict(&[one.clone(), end((1, 1))], json!({"dropped": {"max": 0}}), 0.0), Fail);
    one.traffic.as_mut().unwrap().lost = Bounded::default();
    assert_eq!(verdict(&[one], json!({"dropped": {"max": 0}}), 0.0), Pass);
}

#[test]
fn unknown_ends_do_not_count_as_clean() {
    let of = |killed, hooks: Option<&str>, code| WatchedTermination {
        killed_at_grace_end: killed,
        failed_hooks: hooks.map(|of| of.split_whitespace().map(str::to_owned).collect()),
        containers: vec![container("log", 0), ContainerEnd { exit_code: code, ..container("app", 0) }],
        ..end((0, 0))
    };
    let limits = || json!({"killed": {"max": 0}, "failedHooks": {"max": 0}, "exits": {"137": {"max": 0}}});
    let verdicts = |ends: &[WatchedTermination], unwatched_s| {
        judged(ends, limits(), unwatched_s).into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>()
    };
    let good = of(Some(false), Some(""), Some(0));
    assert_eq!(verdicts(std::slice::from_ref(&good), 0.0), [Pass; 3]);
    assert_eq!(verdicts(std::slice::from_ref(&good), 1.0), [Inconclusive; 3]);
    assert_eq!(verdicts(&[good.clone(), of(None, None, None)], 0.0), [Inconclusive; 3]);
    assert_eq!(verdicts(&[good, of(Some(true), Some("app"), Some(137))], 1.0), [Fail; 3]);
}

#[test]
fn longest_window_needs_all_upper_bounds() {
    let max = |max: &str| json!({"windows": {"max": max}});
    assert_eq!(verdict(&[end((0, 0))], max("2s"), 0.0), Pass);
    assert_eq!(verdict(&[end((0, 0))], max("500ms"), 0.0), Fail);
    let open = with(|traffic| traffic.windows.push(window(None)));
    let by_time = with(|traffic| traffic.by_services = BTreeMap::from([("shop/web".to_owned(), 1)]));
    assert_eq!(verdict(&[by_time], max("2s"), 0.0), Inconclusive, "a log names a Service, not the pod");
    assert_eq!(verdict(&[open], max("2s"), 0.0), Inconclusive);
    assert_eq!(verdict(&[end((0, 0))], max("2s"), 1.0), Inconclusive);
    assert_eq!(verdict(&[with(|traffic| traffic.windows.clear())], max("2s"), 0.0), Inconclusive);
}

#[test]
fn default_gate_judges_losses_and_ends() {
    let verdicts = |ends: &[WatchedTermination]| judged(ends, json!({}), 0.0);
    let all =
        |verdict| ["dropped.max", "killed.max", "failedHooks.max"].map(|name| (name.to_owned(), verdict));
    assert_eq!(verdicts(&[end((0, 0))]), all(Pass));
    let ended = verdicts(&[]);
    assert_eq!(ended.last(), Some(&("terminations.min".to_owned(), Inconclusive)));
    let looser = judged(&[end((3, 3))], json!({"limits": "default", "dropped": {"max": 5}}), 0.0);
    assert_eq!(looser, all(Pass));
    assert_eq!(
        judged(&[], json!({"terminations": {"max": 0}}), 0.0),
        [("terminations.max".to_owned(), Pass)]
    );
}

#[test]
fn limits_that_require_run_are_found() {
    for (limits, key) in [
        (json!({"latency": {"p99": {"max": "1s"}}}), "latency"),
        (json!({"dropped": {"perTermination": {"max": 0}}}), "dropped.perTermination"),
        (json!({"windows": {"max": "1s", "p90": {"max": "1s"}}}), "windows.p90"),
        (json!({"dropped": {"worse": "10%"}}), "dropped.worse"),
        (json!({"streams": {"cut": {"max": 0}, "stalled": {"max": 0}}}), "streams.stalled"),
        (json!({"streams": {"cut": {"worse": "10%"}}}), "streams.cut.worse"),
    ] {
        let expect: Expect = serde_json::from_value(limits).unwrap();
        assert_eq!(needs_run(&expect).as_deref(), Some(key));
    }
}
