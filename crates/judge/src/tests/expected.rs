//! Tests all checks of a gate: for each kind, a run that passes, one that fails, and one that is inconclusive.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::judgements::basis::{LossUnits, PodFact};
use crate::judgements::gate_check::{BaselineGrounds, CheckName};
use CheckVerdict::{Fail, Inconclusive, Pass};
use rolldrop_explain::model::{
    Aim, CheckVerdict, FindingKind, FindingText, Latencies, LossGroup, LostData, OutsideCounts, Percentiles,
    Start, StartStage, StreamResult, TerminationRequests, WatchGap,
};

/// Returns a run of 10,000 requests whose terminations lost these numbers of requests, and whose windows lasted between
/// 0.1 and 0.2 s.
pub(super) fn run(lost: &[u64]) -> RunResult {
    let mut result = analysed(three_pods()).result;
    let like = result.terminations[0].clone();
    let dropped = lost.iter().sum();
    result.terminations.clear();
    result.groups.clear();
    for (i, lost) in lost.iter().enumerate() {
        let mut t = like.clone();
        t.pod = format!("pod-{i}");
        t.t0_s = 10.0 * i as f64;
        t.t0_uncertainty_s = 0.0;
        t.pre_stop_seconds = Some(1);
        t.dead_seconds = Some(0.1);
        t.killed_at_grace_end = Some(false);
        (t.windows[0].lower_s, t.windows[0].upper_s) = (Some(0.1), Some(0.2));
        t.timeline.insert(Stage::PodDeleted, 2.0);
        t.requests = TerminationRequests { dropped: Bounded::exactly(*lost), ..Default::default() };
        result.terminations.push(t);
        if *lost > 0 {
            result.groups.push(LossGroup {
                terminations: vec![i],
                dropped: *lost,
                by_outcome: BTreeMap::from([(Outcome::ConnectRefused, *lost)]),
                by_cause: BTreeMap::from([(Cause::RoutedToDeadPod, *lost)]),
                windows: Vec::new(),
            });
        }
    }
    result.requests = RequestCounts {
        total: 10_000,
        ok: 10_000 - dropped,
        dropped,
        in_window: dropped,
        by_outcome: BTreeMap::from([(Outcome::Ok, 10_000 - dropped), (Outcome::ConnectRefused, dropped)]),
        by_cause: BTreeMap::from([(Cause::RoutedToDeadPod, dropped)]),
        outside_terminations: OutsideCounts { ok: 9000, ..OutsideCounts::default() },
        ..RequestCounts::default()
    };
    let steady =
        Percentiles { n: 9000, mean: 2.0, p50: 1.0, p90: 2.0, p95: 3.0, p99: 4.0, p99_9: 5.0, max: 9.0 };
    let disrupted = Percentiles { n: 900, p99: 8.0, ..steady };
    result.latency_ms = Latencies { response: steady, service: steady, steady, disrupted };
    result.longest_outage_s = 0.4;
    result.aim = Aim::Disrupt;
    (result.recommendation[0].terminations, result.recommendation[0].units) = (lost.len(), lost.len());
    result
}

fn checks(result: &RunResult, expect: Value) -> Vec<Check> {
    let expect: Expect = serde_json::from_value(expect).unwrap();
    assert_eq!(expect.check(), Ok(()));
    crate::check(result, &expect)
}

/// Returns the verdict of the only check.
fn verdict(result: &RunResult, expect: Value) -> CheckVerdict {
    only(result, expect).verdict
}

pub(super) fn only(result: &RunResult, expect: Value) -> Check {
    let mut checks = checks(result, expect);
    assert_eq!(checks.len(), 1, "{checks:?}");
    checks.remove(0)
}

/// Returns the verdict of the only check, and the basis of its figure.
fn basis(result: &RunResult, expect: Value) -> (CheckVerdict, Basis) {
    let check = only(result, expect);
    (check.verdict, measured(&check).basis.clone())
}

#[test]
fn gate_judges_counts_as_observed() {
    let result = run(&[2, 3, 0]);
    for (expect, wanted) in [
        (json!({"dropped": {"max": 5}}), Pass),
        (json!({"dropped": {"max": 4}}), Fail),
        (json!({"dropped": {"min": 6}}), Fail),
        (json!({"appErrors": {"max": 0}}), Pass),
        (json!({"appErrors": {"min": 1}}), Fail),
        (json!({"requests": {"notSent": {"max": 0}}}), Pass),
        (json!({"causes": {"routed_to_dead_pod": {"max": 4}}}), Fail),
        (json!({"causes": {"overload": {"max": 0}}}), Pass),
        (json!({"outcomes": {"connect_refused": {"max": 5}}}), Pass),
        (json!({"outcomes": {"connect_refused": {"max": 4}}}), Fail),
        (json!({"terminations": {"min": 3}}), Pass),
        (json!({"terminations": {"max": 2}}), Fail),
        (json!({"starts": {"dropped": {"max": 0}}}), Pass),
        (json!({"outage": {"max": "400ms"}}), Pass),
        (json!({"outage": {"max": "399ms"}}), Fail),
    ] {
        assert_eq!(verdict(&result, expect.clone()), wanted, "{expect}");
    }
}

#[test]
fn lossless_pass_states_detectable_rate() {
    let basis = |lost: &[u64], max: u64| {
        measured(&checks(&run(lost), json!({"dropped": {"max": max}}))[0]).basis.clone()
    };
    let Basis::Power { share, confidence, units } = basis(&[0; 29], 0) else { panic!("nothing was lost") };
    assert!((share - 0.098).abs() < 5e-4 && (confidence - 0.95).abs() < 1e-9, "{share} {confidence}");
    assert_eq!(units, LossUnits { number: 29, are_groups: false });
    assert_eq!(basis(&[1, 0, 0], 1), Basis::Observed, "something was lost");
    assert_eq!(basis(&[], 0), Basis::Observed, "no pod ended");
    // Thirty pods that left the rules in two steps are two units.
    let mut together = run(&[0; 30]);
    (together.recommendation[0].mode, together.recommendation[0].units) = (Mode::Rollout, 2);
    let check = only(&together, json!({"dropped": {"max": 0}}));
    let Basis::Power { share, units, .. } = measured(&check).basis else { panic!("{check:?}") };
    assert!((share - 0.776).abs() < 5e-4, "{share}");
    assert_eq!(units, LossUnits { number: 2, are_groups: true });
    let share = only(&together, json!({"dropped": {"max": "0.1%"}}));
    let Basis::Losses { units, .. } = measured(&share).basis else { panic!("{share:?}") };
    assert_eq!(units.number, 2);
}

#[test]
fn share_bounds_are_based_on_terminations() {
    let judged = |lost: &[u64], max: &str| verdict(&run(lost), json!({"dropped": {"max": max}}));
    // Three terminations without a loss: at 95 % confidence, fewer than 63.2 % of all terminations lose something.
    assert_eq!(judged(&[0, 0, 0], "0.1%"), Pass);
    assert_eq!(judged(&[0, 0, 0], "0.01%"), Inconclusive);
    assert_eq!(judged(&[20, 20, 20], "0.1%"), Fail);
    // The same number of requests, lost by one termination: the other two show that not all terminations lose that
    // many.
    assert_eq!(judged(&[60, 0, 0], "0.1%"), Inconclusive);
    let open = only(&run(&[60, 0, 0]), json!({"dropped": {"max": "0.1%"}}));
    let Figure { low, value, high, .. } = measured(&open).figure;
    let in_percent = |share: Option<f64>| share.map(|share| (share * 1e5).round() / 1e3);
    assert_eq!([low, value, high].map(in_percent), [Some(0.031), Some(0.6), Some(1.556)]);
    let Basis::Losses { confidence, units, losing, more } = measured(&open).basis else { panic!("{open:?}") };
    assert!((confidence - 0.95).abs() < 1e-9 && more.is_some(), "{open:?}");
    assert_eq!((units, losing), (LossUnits { number: 3, are_groups: false }, 1));
    let most = only(&run(&[9_000, 0, 0]), json!({"dropped": {"max": "99%"}}));
    assert_eq!(measured(&most).figure.high, Some(1.0), "a run cannot lose more than all requests");
    // With many terminations, Student's t applies.
    let many: Vec<u64> = (0..30).map(|i| i % 3).collect();
    assert_eq!(judged(&many, "0.5%"), Pass);
    assert_eq!(judged(&many, "0.2%"), Fail);
    assert_eq!(judged(&many, "0.3%"), Inconclusive);
    // Losses that are not attributed to any termination count as observed.
    let mut apart = run(&[]);
    apart.requests.app_errors = 100;
    apart.aim = Aim::Other;
    assert_eq!(verdict(&apart, json!({"appErrors": {"max": "1%"}})), Pass);
    assert_eq!(verdict(&apart, json!({"appErrors": {"max": "0.9%"}})), Fail);
}

#[test]
fn stream_limits_apply_to_incomplete_streams() {
    let mut result = run(&[3, 0, 0]);
    for max in [json!(0), json!("50%")] {
        let without = basis(&result, json!({"streams": {"cut": {"max": max}}}));
        assert_eq!(without, (Inconclusive, Basis::NoStream));
    }
    assert_eq!(basis(&result, json!({"streams": {"eventsLost": {"max": 0}}})).0, Inconclusive);
    // The first termination cut three streams; the aborted one is not attributed to any termination.
    let lost = LostData { events_lost: 40, ..LostData::default() };
    result.streams = Some(StreamResult {
        total: 100,
        ok: 95,
        cut: 3,
        aborted: 1,
        cancelled: 1,
        lost,
        ..Default::default()
    });
    result.groups[0].by_outcome = BTreeMap::from([(Outcome::StreamCut, 3)]);
    for (limits, wanted) in [
        (json!({"cut": {"max": 3}}), Pass),
        (json!({"cut": {"max": 2}}), Fail),
        (json!({"cut": {"min": 4}}), Fail),
        (json!({"cut": {"max": "10%"}}), Pass),
        (json!({"cut": {"max": "1%"}}), Inconclusive),
        (json!({"unfinished": {"max": 0}}), Pass),
        (json!({"aborted": {"max": 0}}), Fail),
        (json!({"aborted": {"max": "0.9%"}}), Fail),
        (json!({"stalled": {"max": 0}}), Pass),
        (json!({"eventsLost": {"max": 40}}), Pass),
        (json!({"eventsLost": {"max": 39}}), Fail),
    ] {
        assert_eq!(verdict(&result, json!({"streams": limits.clone()})), wanted, "{limits}");
    }
}

#[test]
fn target_limit_applies_per_node() {
    let mut result = run(&[0, 0, 0]);
    let seen_from = |node: &str, dropped: u64| TargetResult {
        name: format!("web@{node}"),
        consumer: format!("Service web (Service proxy of node {node})"),
        requests: RequestCounts { dropped, ..result.requests.clone() },
        latency_ms: result.latency_ms.clone(),
        longest_outage_s: 0.0,
        is_failing_at_end: false,
        terminations: vec![TerminationRequests::default(); 3],
        groups: Vec::new(),
    };
    let targets = vec![seen_from("n1", 0), seen_from("n2", 2)];
    result.targets = targets;
    let judged = |result: &RunResult, name: &str| {
        let checks = checks(result, json!({"targets": {name: {"dropped": {"max": 1}}}}));
        checks.into_iter().map(|check| (check.name.to_string(), check.verdict)).collect::<Vec<_>>()
    };
    let named = |name: &str, verdict| (name.to_owned(), verdict);
    assert_eq!(
        judged(&result, "web"),
        [named("targets.web.web@n1.dropped.max", Pass), named("targets.web.web@n2.dropped.max", Fail)]
    );
    assert_eq!(judged(&result, "web@n1"), [named("targets.web@n1.dropped.max", Pass)]);
    assert_eq!(judged(&result, "we"), [named("targets.we", Inconclusive)]);
    result.targets.truncate(1);
    assert_eq!(judged(&result, "web"), [named("targets.web.dropped.max", Pass)]);
    // A target that got no request lost none, but nothing was measured there.
    result.targets[0].requests = RequestCounts::default();
    let unsent = named("targets.web.requests.sent.min", Inconclusive);
    assert_eq!(judged(&result, "web"), [named("targets.web.dropped.max", Pass), unsent]);
}

#[test]
fn drop_limits_apply_per_termination() {
    let mut result = run(&[2, 3, 0]);
    let per =
        |result: &RunResult, key: &str, max: u64| verdict(result, json!({"dropped": {key: {"max": max}}}));
    assert_eq!(per(&result, "perTermination", 3), Pass);
    assert_eq!(per(&result, "perTermination", 2), Fail);
    assert_eq!(per(&result, "perGroup", 3), Pass);
    assert_eq!(per(&result, "perGroup", 2), Fail);
    // Two pods share ten lost requests.
    let shared = Bounded { at_least: 0, at_most: 10, estimate: 5.0 };
    for t in &mut result.terminations[..2] {
        t.requests.dropped = shared;
    }
    result.groups.truncate(1);
    result.groups[0] = LossGroup { terminations: vec![0, 1], dropped: 10, ..result.groups[0].clone() };
    assert_eq!(per(&result, "perTermination", 10), Pass);
    assert_eq!(per(&result, "perTermination", 7), Inconclusive);
    assert_eq!(per(&result, "perTermination", 4), Fail, "one of the two lost five");
    let none = run(&[]);
    assert_eq!(checks(&none, json!({"dropped": {"perTermination": {"max": 0}}}))[0].verdict, Inconclusive);
}

#[test]
fn window_quantile_bounds_are_order_statistics() {
    let p90 = |result: &RunResult, max: &str| verdict(result, json!({"windows": {"p90": {"max": max}}}));
    assert_eq!(p90(&run(&[0; 29]), "200ms"), Pass);
    let few = run(&[0; 28]);
    assert_eq!(p90(&few, "200ms"), Inconclusive);
    let (_, open) = basis(&few, json!({"windows": {"p90": {"max": "200ms"}}}));
    assert!(matches!(open, Basis::Percentile { windows: 28, needed: Some(29), .. }), "{open:?}");
    assert_eq!(p90(&run(&[0; 29]), "99ms"), Fail);
    assert_eq!(p90(&run(&[0; 29]), "150ms"), Inconclusive);
    // The windows of pods that leave the rules together count as one.
    let mut together = run(&[0; 29]);
    together.terminations.iter_mut().for_each(|t| t.t0_s = 0.0);
    assert_eq!(p90(&together, "200ms"), Inconclusive);
    let windows = |max: &str| verdict(&few, json!({"windows": {"max": max}}));
    assert_eq!((windows("200ms"), windows("150ms"), windows("50ms")), (Pass, Inconclusive, Fail));
}

#[test]
fn sleep_suffices_only_if_longer_than_windows() {
    let suffices = |result: &RunResult| verdict(result, json!({"preStop": {"suffices": "90%"}}));
    assert_eq!(suffices(&run(&[0; 29])), Pass);
    assert_eq!(suffices(&run(&[0; 28])), Inconclusive);
    let mut short = run(&[0; 29]);
    short.terminations.iter_mut().for_each(|t| t.pre_stop_seconds = Some(0));
    assert_eq!(suffices(&short), Fail);
    let mut hidden = run(&[0; 29]);
    hidden.terminations.iter_mut().for_each(|t| t.pre_stop_seconds = None);
    assert_eq!(suffices(&hidden), Inconclusive);
}

#[test]
fn latency_limits_apply_to_run_and_its_parts() {
    let mut result = run(&[0]);
    let p = |result: &RunResult, expect: Value| verdict(result, json!({ "latency": expect }));
    assert_eq!(p(&result, json!({"p99": {"max": "4ms"}})), Pass);
    assert_eq!(p(&result, json!({"mean": {"max": "1ms"}})), Fail);
    assert_eq!(p(&result, json!({"steady": {"p95": {"max": "3ms"}}})), Pass);
    assert_eq!(p(&result, json!({"disrupted": {"p99": {"max": "2x"}}})), Pass);
    assert_eq!(p(&result, json!({"disrupted": {"p99": {"max": "1.5x"}}})), Fail);
    assert_eq!(
        p(&result, json!({"disrupted": {"p99.9": {"max": "1s"}}})),
        Inconclusive,
        "900 requests are too few"
    );
    result.latency_ms.disrupted = Percentiles::default();
    let unknown = only(&result, json!({"latency": {"disrupted": {"p50": {"max": "1s"}}}}));
    let Figure { low, high, .. } = measured(&unknown).figure;
    assert_eq!((unknown.verdict, low, high), (Inconclusive, None, None));
}

#[test]
fn unknown_figure_is_never_zero() {
    let mut result = run(&[0, 0]);
    let dead = |result: &RunResult| verdict(result, json!({"deadSeconds": {"max": "100ms"}}));
    assert_eq!(dead(&result), Pass);
    result.terminations[0].dead_seconds = Some(0.2);
    assert_eq!(dead(&result), Fail);
    (result.terminations[0].dead_seconds, result.terminations[1].dead_seconds) = (None, Some(0.1));
    assert_eq!(dead(&result), Inconclusive);

    let start = |first: Option<f64>| Start {
        pod: "new".into(),
        timeline: first.map(|s| (StartStage::FirstRequest, s)).into_iter().collect(),
        was_awaited: false,
        uid: "uid-new".into(),
    };
    let first = |result: &RunResult| verdict(result, json!({"starts": {"firstRequest": {"max": "2s"}}}));
    result.starts.clear();
    assert_eq!(first(&result), Inconclusive, "no pod started");
    result.starts = vec![start(Some(1.0)), start(Some(2.0))];
    assert_eq!(first(&result), Pass);
    result.starts.push(start(None));
    assert_eq!(first(&result), Inconclusive);
    result.starts.push(start(Some(2.1)));
    assert_eq!(first(&result), Fail);

    result.starts = vec![start(Some(1.0))];
    let length = |result: &RunResult| verdict(result, json!({"rollout": {"max": "12s"}}));
    assert_eq!(length(&result), Inconclusive, "the pods ended one by one");
    result.terminations.iter_mut().for_each(|t| t.mode = Mode::Rollout);
    assert_eq!(length(&result), Pass);
    result.starts.push(start(None));
    assert_eq!(length(&result), Inconclusive, "an old pod may have waited for the new one");
    result.starts.pop();
    result.terminations[0].timeline.remove(&Stage::PodDeleted);
    assert_eq!(length(&result), Inconclusive);
    result.terminations[1].timeline.insert(Stage::PodDeleted, 3.0);
    assert_eq!(length(&result), Fail);
}

#[test]
fn gate_checks_accounting_and_validity() {
    let mut result = run(&[0]);
    let both = json!({"accounting": "closes", "validity": "valid"});
    let verdicts = |result: &RunResult| {
        checks(result, both.clone()).iter().map(|check| check.verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&result), [Pass, Pass]);
    result.requests.without_rows = BTreeMap::from([("load-0".into(), BTreeMap::from([(Outcome::Ok, 1)]))]);
    result.verdict = Verdict::Partial { why: vec!["it was interrupted".into()] };
    assert_eq!(verdicts(&result), [Fail, Fail]);
    assert_eq!(verdict(&result, json!({"validity": "partial"})), Pass);
    result.verdict = Verdict::Invalid { why: vec!["the load fell behind".into()] };
    assert_eq!(verdicts(&result), [Inconclusive, Fail]);
}

#[test]
fn every_gate_requires_measurements() {
    let any = json!({"dropped": {"max": 0}});
    let of = |result: &RunResult, expect: &Value| {
        let checks = checks(result, expect.clone()).into_iter();
        checks.skip(1).map(|check| (check.name.to_string(), check.verdict)).collect::<Vec<_>>()
    };
    assert_eq!(of(&run(&[0]), &any), []);
    // Every response is a 404.
    let mut all_404 = run(&[0]);
    all_404.requests.outside_terminations =
        OutsideCounts { ok: 0, app_errors: 9000, ..OutsideCounts::default() };
    assert_eq!(of(&all_404, &any), [("requests.ok.min".to_owned(), Fail)]);
    all_404.requests.outside_terminations.ok = 81_000;
    assert_eq!(of(&all_404, &any), [], "nine in ten succeed");
    all_404.requests.outside_terminations.ok = 9000;
    let half = json!({"dropped": {"max": 0}, "requests": {"ok": {"min": "50%"}}});
    assert_eq!(of(&all_404, &half), [("requests.ok.min".to_owned(), Pass)]);
    let mut none = run(&[]);
    assert_eq!(of(&none, &any), [("terminations.min".to_owned(), Fail)]);
    let allowed = json!({"dropped": {"max": 0}, "terminations": {"min": 0}});
    assert_eq!(of(&none, &allowed), [("terminations.min".to_owned(), Pass)]);
    let forbidden = json!({"dropped": {"max": 0}, "terminations": {"max": 0}});
    assert_eq!(
        of(&none, &forbidden),
        [("terminations.max".to_owned(), Pass)],
        "the explicit check says so too"
    );
    none.aim = Aim::Observe;
    assert_eq!(of(&none, &any), [("terminations.min".to_owned(), Inconclusive)]);
    none.aim = Aim::Other;
    assert_eq!(of(&none, &any), []);
    none.requests = RequestCounts { total: 5, not_sent: 5, ..RequestCounts::default() };
    assert_eq!(of(&none, &any), [("requests.sent.min".to_owned(), Fail)]);
    assert_eq!(checks(&run(&[]), json!({})), [], "without expectations there is no gate");
}

/// Returns the checks that do not pass in a gate with the default limits and one expectation.
fn by_default(result: &RunResult, asked: Value) -> Vec<(String, CheckVerdict)> {
    let mut expect = json!({"limits": "default"});
    expect.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
    let checks = checks(result, expect).into_iter().filter(|check| check.verdict != Pass);
    checks.map(|check| (check.name.to_string(), check.verdict)).collect()
}

#[test]
fn explicit_keys_override_default_limits() {
    let failed = |name: &str| vec![(name.to_owned(), Fail)];
    assert_eq!(by_default(&run(&[0; 3]), json!({})), []);
    let lost = run(&[0, 1, 0]);
    assert_eq!(by_default(&lost, json!({})), failed("dropped.max"));
    assert_eq!(by_default(&lost, json!({"dropped": {"max": 1}})), []);
    assert_eq!(by_default(&lost, json!({"appErrors": {"max": 0}})), failed("dropped.max"));

    let mut left_out = run(&[0]);
    (left_out.requests.dropped, left_out.requests.by_outcome) = (2, BTreeMap::from([(Outcome::H2Goaway, 2)]));
    assert_eq!(by_default(&left_out, json!({})), [], "an HTTP/2 server that shuts down cleanly does that");
    assert_eq!(by_default(&left_out, json!({"dropped": {"max": 0}})), failed("dropped.max"));

    // Isolated errors are attributed to the app, however few terminations there are to compare with.
    let mut errors = run(&[0]);
    errors.requests.app_errors = 10;
    assert_eq!(by_default(&errors, json!({})), []);
    errors.requests.app_errors = 11;
    assert_eq!(by_default(&errors, json!({})), failed("appErrors.max"));
    assert_eq!(by_default(&errors, json!({"appErrors": {"max": "1%"}})), []);
    errors.requests = RequestCounts { total: 500, ok: 500, ..errors.requests };
    errors.requests.app_errors = 0;
    assert_eq!(by_default(&errors, json!({})), [], "a short run without errors is enough");

    let mut restarted = run(&[0]);
    restarted.findings.push(FindingText {
        severity: Severity::Warning,
        kind: Some(FindingKind::Restarted),
        cause: None,
        what: "container app of pod b ended".into(),
        why: String::new(),
        remedy: String::new(),
    });
    assert_eq!(by_default(&restarted, json!({})), failed("restarts.max"));
    assert_eq!(by_default(&restarted, json!({"restarts": {"max": 1}})), []);
    let (_, found) = basis(&restarted, json!({"restarts": {"max": 0}}));
    assert!(matches!(found, Basis::Restarted(found) if found[0].what == "container app of pod b ended"));
    assert_eq!(by_default(&run(&[]), json!({})), failed("terminations.min"), "every gate checks this");
}

#[test]
fn worse_limit_without_baseline_is_inconclusive() {
    let result = run(&[2, 3, 0]);
    let check = only(&result, json!({"dropped": {"worse": "10%"}}));
    assert_eq!(check.name, CheckName::Worse("dropped".to_owned()));
    let CheckEvidence::Worse(worsening) = &check.evidence else { panic!("{check:?}") };
    assert_eq!((worsening.now, &worsening.grounds), (Some(5.0), &BaselineGrounds::NoBaseline));
    // The run still counts as a baseline, unless another check did not pass.
    let alone = crate::compare::verdict_alone;
    let mut all = vec![check];
    assert_eq!((verdict_of(&all), alone(&all)), (Inconclusive, Pass));
    all.extend(checks(&result, json!({"dropped": {"max": 4}})));
    assert_eq!(alone(&all), Fail);
}

#[test]
fn unknown_endings_prevent_pass_but_not_failure() {
    let mut result = run(&[0, 0]);
    let limit = || json!({"killed": {"max": 0}, "failedHooks": {"max": 0}});
    let verdicts = |result: &RunResult| -> Vec<CheckVerdict> {
        let expect: Expect = serde_json::from_value(limit()).unwrap();
        let checks = gate::with_defaults(result, &expect);
        let of = |name: &str| checks.iter().find(|check| check.name.to_string() == name).unwrap().verdict;
        ["killed.max", "failedHooks.max"].map(of).to_vec()
    };
    for end in &mut result.terminations {
        (end.killed_at_grace_end, end.failed_hooks) = (Some(false), Some(BTreeSet::new()));
    }
    assert_eq!(verdicts(&result), [Pass, Pass]);
    (result.terminations[0].killed_at_grace_end, result.terminations[0].failed_hooks) = (None, None);
    assert_eq!(verdicts(&result), [Inconclusive, Inconclusive]);
    let end = &mut result.terminations[1];
    (end.killed_at_grace_end, end.failed_hooks) = (Some(true), Some(BTreeSet::from(["app".to_owned()])));
    assert_eq!(verdicts(&result), [Fail, Fail]);
}

#[test]
fn every_gate_key_has_comparable_figure() {
    let mut result = run(&[2, 3, 0]);
    let limit = json!({"worse": "10%"});
    let latencies: serde_json::Map<String, Value> = ["mean", "p50", "p90", "p95", "p99", "p99_9"]
        .map(|name| (name.to_owned(), limit.clone()))
        .into_iter()
        .collect();
    let mut latency = latencies.clone();
    latency.extend([("steady".to_owned(), json!(latencies)), ("disrupted".to_owned(), json!(latencies))]);
    let expect: Expect = serde_json::from_value(json!({
        "dropped": {"worse": 1, "perTermination": limit, "perGroup": limit},
        "appErrors": {"worse": 1, "whileEnding": limit},
        "requests": {"ok": limit, "notSent": limit}, "restarts": limit, "killed": limit, "failedHooks": limit, "causes": {"routed_to_dead_pod": limit, "overload": limit},
        "streams": {"cut": limit, "unfinished": limit, "aborted": limit, "stalled": limit, "eventsLost": limit},
        "outcomes": {"connect_refused": limit}, "deadSeconds": limit, "outage": limit, "rollout": limit,
        "windows": {"worse": "1s", "p50": limit, "p90": limit, "p95": limit, "p99": limit}, "latency": latency,
        "starts": {"firstRequest": limit, "dropped": limit},
    }))
    .unwrap();
    let of = |result: &RunResult, key: &str| gate::figures(result).get(None, key).unwrap();
    for worse in expect.worse() {
        of(&result, &worse.key);
    }
    let value = |result: &RunResult, key: &str| match of(result, key) {
        gate::KnownFigure::Value(value) => value,
        gate::KnownFigure::Unbounded(basis) => panic!("{key}: {basis:?}"),
    };
    let known = [
        ("dropped", 5.0),
        ("dropped.perTermination", 3.0),
        ("dropped.perGroup", 3.0),
        ("causes.routed_to_dead_pod", 5.0),
        ("causes.overload", 0.0),
        ("outcomes.connect_refused", 5.0),
        ("requests.ok", 1.0),
        ("windows", 0.2),
        ("outage", 0.4),
        ("restarts", 0.0),
        ("killed", 0.0),
        ("failedHooks", 0.0),
        ("deadSeconds", 0.1),
        ("latency.p99", 4.0),
        ("latency.disrupted.p99", 8.0),
        ("starts.dropped", 0.0),
    ];
    for (key, wanted) in known {
        assert_eq!(value(&result, key), wanted, "{key}");
    }
    // A run without streams has no figure to compare; other runs have exactly one.
    assert_eq!(of(&result, "streams.cut"), gate::KnownFigure::Unbounded(Basis::NoStream));
    result.streams = Some(StreamResult { total: 9, ok: 7, cut: 2, ..StreamResult::default() });
    assert_eq!(value(&result, "streams.cut"), 2.0);
    // An absolute limit judges the same figure as the comparison.
    assert_eq!(verdict(&result, json!({"windows": {"max": "200ms"}})), Pass);
    for termination in &mut result.terminations {
        termination.mode = Mode::Rollout;
    }
    assert_eq!(value(&result, "rollout"), 22.0);
    assert_eq!(verdict(&result, json!({"rollout": {"max": "22s"}})), Pass);
    // A window without an upper bound has no figure to compare.
    result.terminations[0].windows[0].upper_s = None;
    let open = of(&result, "windows");
    let gate::KnownFigure::Unbounded(Basis::LongestWindow(longest)) = open else { panic!("{open:?}") };
    assert_eq!((longest.unbounded, longest.windows), (1, 3));
}

#[test]
fn outage_at_end_of_load_has_no_upper_bound() {
    let mut result = run(&[0]);
    (result.longest_outage_s, result.is_failing_at_end) = (2.0, true);
    let outage = |max: &str| json!({"outage": {"max": max}});
    assert_eq!(basis(&result, outage("3s")), (Inconclusive, Basis::StillFailing));
    assert_eq!(verdict(&result, outage("1900ms")), Fail);
    assert_eq!(verdict(&result, json!({"outage": {"min": "2s"}})), Pass);
    let figures = gate::figures(&result);
    assert_eq!(figures.get(None, "outage"), Some(gate::KnownFigure::Unbounded(Basis::StillFailing)));
}

#[test]
fn rollout_limit_respects_t0_uncertainty() {
    let mut result = run(&[0, 0]);
    for t in &mut result.terminations {
        (t.mode, t.t0_uncertainty_s) = (Mode::Rollout, 0.8);
    }
    // From the latest t0 of the first pod until the last was gone, 12 s later.
    let rollout = |max: &str| json!({"rollout": {"max": max}});
    assert_eq!(verdict(&result, rollout("11900ms")), Fail);
    assert_eq!(verdict(&result, rollout("12500ms")), Inconclusive);
    assert_eq!(verdict(&result, rollout("12800ms")), Pass);
    // A watch that reported the deletion after a gap leaves the end open by as much.
    let gap = WatchGap { resource: "pods".into(), from_s: 11.5, to_s: 12.0, lost: false };
    result.terminations[1].watch_gaps.push(gap);
    assert_eq!(verdict(&result, rollout("11900ms")), Inconclusive);
    assert_eq!(verdict(&result, rollout("11400ms")), Fail);
}

#[test]
fn stage_limits_respect_t0_uncertainty() {
    let mut result = run(&[0, 0]);
    for (t, at) in result.terminations.iter_mut().zip([4.1, 4.4]) {
        t.timeline.insert(Stage::ContainersTerminated, at);
        t.t0_uncertainty_s = 0.1;
    }
    let stage = |bounds: Value| json!({"stages": {"containers_terminated": bounds}});
    for (bounds, wanted) in [
        (json!({"min": "4s"}), Pass),
        (json!({"min": "4150ms"}), Inconclusive),
        (json!({"min": "4300ms"}), Fail),
        (json!({"max": "4500ms"}), Pass),
        (json!({"max": "4450ms"}), Inconclusive),
        (json!({"max": "4300ms"}), Fail),
    ] {
        assert_eq!(verdict(&result, stage(bounds.clone())), wanted, "{bounds}");
    }
    let Figure { low, high, .. } = measured(&only(&result, stage(json!({"max": "4s"})))).figure;
    assert_eq!((low, high), (Some(4.4), Some(4.5)));

    // A stage that a watch reported after a gap may have been reached earlier.
    let gap = WatchGap { resource: "pods".into(), from_s: 13.0, to_s: 14.3, lost: false };
    result.terminations[1].watch_gaps.push(gap);
    assert_eq!(verdict(&result, stage(json!({"min": "4s"}))), Inconclusive);
    assert_eq!(verdict(&result, stage(json!({"max": "4500ms"}))), Pass);

    // A termination that was not seen to reach the stage leaves both limits undecided.
    result.terminations[0].timeline.remove(&Stage::ContainersTerminated);
    let no_stage = |pod: &str, stage| (Inconclusive, Basis::Pod(pod.to_owned(), PodFact::NoStage(stage)));
    let open = basis(&result, stage(json!({"max": "10s"})));
    assert_eq!(open, no_stage("pod-0", Stage::ContainersTerminated));
    assert_eq!(verdict(&result, stage(json!({"max": "1s"}))), Fail);
    let sidecar = basis(&result, json!({"stages": {"listener_closed": {"min": "1s"}}}));
    assert_eq!(sidecar, no_stage("pod-0", Stage::ListenerClosed));
    let none =
        checks(&run(&[]), json!({"stages": {"pod_deleted": {"max": "1s"}}, "terminations": {"min": 0}}));
    let is_open = |check: &Check| (check.verdict, &measured(check).basis) == (Inconclusive, &Basis::NoEnd);
    assert!(none.iter().any(is_open), "{none:?}");
}

#[test]
fn missing_last_connection_is_bounded_by_windows() {
    let mut result = run(&[0, 0]);
    result.terminations[0].timeline.insert(Stage::LastConnection, 0.2);
    result.terminations[1].timeline.remove(&Stage::LastConnection);
    let max = || json!({"stages": {"last_connection": {"max": "400ms"}}});
    let mut upper_s = |upper_s: [Option<f64>; 2]| {
        let window = result.terminations[1].windows[0].clone();
        let of = |upper_s| Window { upper_s, ..window.clone() };
        result.terminations[1].windows = upper_s.map(of).to_vec();
        result.clone()
    };
    assert_eq!(verdict(&upper_s([Some(0.3), Some(0.1)]), max()), Pass);
    assert_eq!(verdict(&upper_s([Some(0.3), Some(0.5)]), max()), Inconclusive);
    let open = basis(&upper_s([Some(0.3), None]), max());
    let fact = PodFact::NoStage(Stage::LastConnection);
    assert_eq!(open, (Inconclusive, Basis::Pod("pod-1".to_owned(), fact)));
    let min = json!({"stages": {"last_connection": {"min": "400ms"}}});
    assert_eq!(verdict(&upper_s([Some(0.3), Some(0.1)]), min), Fail);
}

#[test]
fn start_limits_apply_per_stage() {
    let mut result = run(&[0]);
    let start = |ready: Option<f64>| Start {
        pod: "new".into(),
        timeline: ready.map(|at| (StartStage::Ready, at)).into_iter().collect(),
        was_awaited: false,
        uid: "uid-new".into(),
    };
    let ready = |bounds: Value| json!({"starts": {"stages": {"ready": bounds}}});
    result.starts = vec![start(Some(3.1)), start(Some(3.4))];
    assert_eq!(verdict(&result, ready(json!({"min": "3s"}))), Pass);
    assert_eq!(verdict(&result, ready(json!({"max": "3300ms"}))), Fail);
    result.starts.push(start(None));
    let open = |result: &RunResult| basis(result, ready(json!({"max": "4s"}))).1;
    let fact = PodFact::NoStartStage(StartStage::Ready);
    assert_eq!(open(&result), Basis::Pod("new".to_owned(), fact));
    result.starts.clear();
    assert_eq!(open(&result), Basis::NoStart);
}

#[test]
fn unseen_exit_code_leaves_count_undecided() {
    let mut result = run(&[0, 0, 0]);
    let mut set = |codes: [Option<i32>; 3]| {
        result.terminations.iter_mut().zip(codes).for_each(|(t, code)| t.exit_code = code);
        result.clone()
    };
    let seen = set([Some(137), Some(137), Some(0)]);
    for (exits, wanted) in [
        (json!({"137": {"min": 2, "max": 2}}), [Pass, Pass].as_slice()),
        (json!({"137": {"min": 3}}), &[Fail]),
        (json!({"0": {"max": 0}}), &[Fail]),
        (json!({"1": {"max": 0}}), &[Pass]),
    ] {
        let judged = checks(&seen, json!({ "exits": exits }));
        assert_eq!(judged.iter().map(|check| check.verdict).collect::<Vec<_>>(), wanted, "{judged:?}");
    }
    let unseen = set([Some(137), None, Some(0)]);
    assert_eq!(verdict(&unseen, json!({"exits": {"137": {"min": 1}}})), Pass);
    let open = basis(&unseen, json!({"exits": {"137": {"min": 2}}}));
    assert_eq!(open, (Inconclusive, Basis::UnseenExitCodes(vec!["pod-1".to_owned()])));
    assert_eq!(verdict(&unseen, json!({"exits": {"0": {"max": 1}}})), Inconclusive);
}
