//! Tests checks on synthetic runs.

mod expected;
mod looks;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::compare::episodes::episodes;
use crate::gate;
use crate::judgements::basis::{Basis, LongestWindow, Measured, WindowOwner};
use crate::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_explain::Analysed;
use rolldrop_explain::model::account::Finding;
use rolldrop_explain::model::{self, *};
use rolldrop_record::expect::{Amount, DroppedLimits, Span, WindowLimits};
use rolldrop_record::{Expect, Outcome, Records};
use rolldrop_simulation::*;

fn analysed_run(records: Records) -> Analysed {
    let records = ended(records);
    Analysed::of(records.log(), records).unwrap()
}

pub(crate) fn analysed(records: Records) -> Analysis {
    analysed_run(records).analysis
}

/// Returns the figure that a check judges.
fn measured(check: &Check) -> &Measured {
    let CheckEvidence::Limit { measured, .. } = &check.evidence else { panic!("{check:?}") };
    measured
}

/// Returns the verdict of a gate.
fn verdict_of(checks: &[Check]) -> CheckVerdict {
    gate::verdict(checks.iter().map(|check| check.verdict))
}

/// Returns a limit of `ms` milliseconds on the longest window.
fn longest(ms: u64) -> WindowLimits {
    WindowLimits { max: Some(Span(Duration::from_millis(ms))), ..WindowLimits::default() }
}

#[test]
fn result_round_trips_and_is_judged_by_gate() {
    let result = analysed(three_pods()).result;
    let json = serde_json::to_string(&result).unwrap();
    // Floats are compared in their printed form, because parsing may change the last digit.
    let again: RunResult = serde_json::from_str(&json).unwrap();
    assert_eq!(again.requests, result.requests);
    assert_eq!(again.terminations.len(), 1);
    let mut expect = Expect {
        dropped: Some(DroppedLimits {
            min: Some(Amount::Count(1)),
            max: Some(Amount::Count(3)),
            ..DroppedLimits::default()
        }),
        windows: Some(longest(200)),
        ..Expect::default()
    };
    let verdicts =
        |r: &RunResult, e: &Expect| crate::check(r, e).iter().map(|c| c.verdict).collect::<Vec<_>>();
    use model::CheckVerdict::{Fail, Inconclusive, Pass};
    assert_eq!(verdicts(&result, &expect), [Pass, Fail, Pass]);
    assert_eq!(verdict_of(&crate::check(&result, &expect)), Fail);
    expect.windows = Some(longest(100));
    assert_eq!(verdicts(&result, &expect)[2], Inconclusive);
    expect.windows = Some(longest(50));
    assert_eq!(verdicts(&result, &expect)[2], Fail);
    let invalid = RunResult { verdict: Verdict::Invalid { why: vec!["x".into()] }, ..result };
    assert_eq!(verdicts(&invalid, &expect), [Inconclusive; 3]);
}

#[test]
fn generators_stale_flows_are_counted_separately() {
    let mut records = three_pods();
    timeout(&mut records, 5020, 40_001);
    timeout(&mut records, 60_000, 40_001);
    let result = analysed(records).result;
    let r = &result.requests;
    assert!(r.closes(), "{r:?}");
    assert_eq!((r.dropped, r.stale_flow_own, r.lost()), (9, 1, 8));
    assert_eq!(r.stale_flow_own_by_outcome, BTreeMap::from([(Outcome::ConnectTimeout, 1)]));
    let eight = DroppedLimits { max: Some(Amount::Count(8)), ..DroppedLimits::default() };
    let expect = Expect { dropped: Some(eight), ..Expect::default() };
    let checks = crate::check(&result, &expect);
    assert_eq!(
        (checks[0].verdict, measured(&checks[0]).figure.value),
        (model::CheckVerdict::Pass, Some(8.0))
    );
}

#[test]
fn overlapping_terminations_form_one_episode() {
    let of = |records: Records| {
        let Analysed { timeline, analysis, .. } = analysed_run(records);
        let (episodes, _) = episodes(&timeline.ends, &analysis.result);
        episodes.iter().map(|e| (e.mode, e.terminations, e.dropped)).collect::<Vec<_>>()
    };
    assert_eq!(of(many(3)), [(Mode::Isolated, 1, 10); 3]);
    let mut together = three_pods();
    delete(&mut together, 5500, "c");
    assert_eq!(of(together), [(Mode::Other, 2, 7)]);
}

#[test]
fn pods_removed_in_one_step_form_one_episode() {
    let Analysed { timeline, analysis, .. } = analysed_run(many(3));
    let of = |mode, upper_s| {
        let mut result = analysis.result.clone();
        for ended in &mut result.terminations {
            ended.mode = mode;
            ended.windows.iter_mut().for_each(|w| (w.lower_s, w.upper_s) = (None, upper_s));
        }
        episodes(&timeline.ends, &result).1
    };
    // The pods do not overlap, but one sync may end windows of 100 s.
    assert_eq!(of(Mode::Rollout, Some(100.0)), [0; 3]);
    assert_eq!(of(Mode::Rollout, Some(0.1)), [0, 1, 2]);
    assert_eq!(of(Mode::Isolated, Some(100.0)), [0, 1, 2], "the run awaits each step");
    assert_eq!(of(Mode::Rollout, None), [0, 1, 2], "unknown ends join nothing");
}

#[test]
fn group_window_fails_limit() {
    let mut result = analysed(three_pods()).result;
    let window = &mut result.terminations[0].windows[0];
    (window.lower_s, window.upper_s) = (None, None);
    result.groups[0].windows[0].lower_s = Some(0.7);
    let verdict = |ms| {
        let expect = Expect { windows: Some(longest(ms)), ..Expect::default() };
        let checks = crate::check(&result, &expect);
        (checks[0].verdict, measured(&checks[0]).basis.clone())
    };
    let (judged, basis) = verdict(600);
    assert_eq!(judged, model::CheckVerdict::Fail, "{basis:?}");
    let Basis::LongestWindow(LongestWindow { lasted, .. }) = basis else { panic!("{basis:?}") };
    assert_eq!(lasted, Some((0.7, WindowOwner::OneOf(1))));
    assert_eq!(verdict(800).0, model::CheckVerdict::Inconclusive);
}

#[test]
fn simultaneous_terminations_never_pass_short_limit() {
    for (naming, seed) in
        [(Naming::Header, 1), (Naming::Header, 2), (Naming::Nothing, 3), (Naming::Nothing, 4)]
    {
        let result = analysed(all_at_once(naming, seed).0.records).result;
        let expect = Expect { windows: Some(longest(600)), ..Expect::default() };
        let verdict = crate::check(&result, &expect)[0].verdict;
        assert_ne!(verdict, CheckVerdict::Pass, "the proxy routed to two pods for 1.13 s");
    }
}

#[test]
fn terminating_pod_500s_are_counted_separately() {
    let Analysis { result, account, .. } = &analysed(refusing(500, true));
    assert_eq!((result.requests.dropped, result.requests.app_errors_while_ending), (7, 60));
    assert_eq!(result.terminations[0].app_errors_after_t0, Some(60));
    let errors = Finding::EndingErrors { answers: 60, requests: 3060, are_all_named: true };
    assert!(account.findings.contains(&errors), "{:?}", account.findings);
    let failed = |expect: serde_json::Value, result: &RunResult| {
        let checks = crate::check(result, &serde_json::from_value(expect).unwrap());
        let failed = checks.iter().filter(|check| check.verdict == CheckVerdict::Fail);
        failed.map(|check| check.name.to_string()).collect::<Vec<_>>()
    };
    let by_default =
        serde_json::json!({"limits": "default", "dropped": {"max": 7}, "appErrors": {"max": "5%"}});
    assert_eq!(failed(by_default, result), ["appErrors.whileEnding.max"]);
    let allowed = serde_json::json!({"appErrors": {"whileEnding": {"max": 60}}});
    assert_eq!(failed(allowed, result), [""; 0]);

    // If pods are not known by name, it is known only that some pod was terminating.
    let unnamed = analysed(refusing(500, false)).result;
    assert_eq!(unnamed.requests.app_errors_while_ending, 60);

    // No more errors than the app returns anyway.
    let mut records = refusing(500, true);
    for i in 0..290i64 {
        request(
            &mut records,
            (1000 + 10 * i) * MS,
            Outcome::HttpError,
            Some(["a", "c"][usize::from(i % 2 == 0)]),
        );
        records.requests.last_mut().unwrap().status = Some(500);
    }
    records
        .requests
        .retain(|row| row.status != Some(500) || row.scheduled < at(5000) || row.scheduled > at(5560));
    let Analysis { result: steady, account, .. } = analysed(records);
    assert_eq!(steady.requests.app_errors_while_ending, 5);
    let is_told = |finding: &Finding| matches!(finding, Finding::EndingErrors { .. });
    assert!(!account.findings.iter().any(is_told), "{:?}", account.findings);
    let limits = serde_json::json!({"appErrors": {"whileEnding": {"max": 0}}});
    assert_eq!(failed(limits, &steady), [""; 0]);
}
