//! Checks of made-up runs.

mod expected;
mod looks;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::compare::episodes::episodes;
use crate::gate;
use crate::model::basis::{Basis, LongestWindow, Measured, Whose};
use crate::model::check::{Check, Evidence};
use rolldrop_explain::Analysed;
use rolldrop_explain::model::{self, *};
use rolldrop_record::event::{Action, ActionName, Change};
use rolldrop_record::expect::{Amount, DroppedLimits, Span, WindowLimits};
use rolldrop_record::{Bounds, Event, EventKind, Expect, Outcome, Records};
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
    let Evidence::Limit { measured, .. } = &check.evidence else { panic!("{check:?}") };
    measured
}

/// Returns the verdict of a gate.
fn verdict_of(checks: &[Check]) -> CheckVerdict {
    gate::verdict(checks.iter().map(|check| check.verdict))
}

/// Limits the longest window to this.
fn longest(ms: u64) -> WindowLimits {
    WindowLimits { max: Some(Span(Duration::from_millis(ms))), ..WindowLimits::default() }
}

#[test]
fn result_survives_json_and_gate() {
    let result = analysed(three_pods()).result;
    let json = serde_json::to_string(&result).unwrap();
    // Floats are compared in their printed form: reading may differ in the last digit.
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
fn container_kill_gets_own_explanation() {
    let mut records = records();
    let container = |ms: i64, state: &str, restarts: i32| {
        let mut event = pod_event(ms, "b", Change::Applied);
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.ready = state == "running";
            let app = &mut pod.containers[0];
            (app.state, app.restarts) = (Some(state.into()), restarts);
            app.exit_code = (state == "terminated").then_some(137);
        }
        event
    };
    let (ended, back) = (container(5010, "terminated", 0), container(5200, "running", 1));
    records.events.extend([container(4900, "running", 0), ended, back]);
    for i in 0..3000i64 {
        let ns = i * 10 * MS / 3;
        let pod = ["a", "b", "c"][usize::try_from(i % 3).unwrap()];
        match ns / MS {
            4990..5000 if pod == "b" => request(&mut records, ns, Outcome::EofBeforeResponse, None),
            5000..5200 if pod == "b" => request(&mut records, ns, Outcome::ConnectRefused, None),
            _ => request(&mut records, ns, Outcome::Ok, Some(pod)),
        }
    }
    let result = analysed(records).result;
    assert_eq!(result.terminations, []);
    let none = Expect { restarts: Some(Bounds { max: Some(0), ..Bounds::default() }), ..Expect::default() };
    let restarts = crate::check(&result, &none)
        .into_iter()
        .find(|check| check.name.to_string() == "restarts.max")
        .unwrap();
    assert_eq!(restarts.verdict, model::CheckVerdict::Fail);
    let Basis::Restarted(found) = &measured(&restarts).basis else { panic!("{restarts:?}") };
    assert!(found[0].what.starts_with("container app of pod b ended (exit code 137)"), "{restarts:?}");
    let causes = BTreeMap::from([(Cause::KilledInFlight, 1), (Cause::RoutedToDeadPod, 20)]);
    assert_eq!(result.requests.by_cause, causes);
    let told: Vec<&str> = result.findings.iter().map(|f| f.what.as_str()).collect();
    assert!(
        told.contains(&"routed_to_dead_pod: 20 requests, to a container that ended in a pod that stays"),
        "{told:?}"
    );
    assert!(
        told.iter().any(|what| what.starts_with("container app of pod b ended (exit code 137)")),
        "{told:?}"
    );
    for finding in &result.findings {
        // No setting of a termination would have saved them, and there is no need to measure one.
        for of_terminations in ["a preStop sleep", "SIGTERM", "GracePeriod", "add a disruption"] {
            let words = [&finding.why, &finding.remedy];
            assert!(words.iter().all(|text| !text.contains(of_terminations)), "{finding:?}");
        }
    }
}

#[test]
fn own_stale_flows_are_counted_apart() {
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
        let episodes = episodes(&timeline.ends, &analysis.result);
        episodes.iter().map(|e| (e.mode, e.terminations, e.dropped)).collect::<Vec<_>>()
    };
    assert_eq!(of(many(3)), [(Mode::Isolated, 1, 10); 3]);
    let mut together = three_pods();
    delete(&mut together, 5500, "c");
    assert_eq!(of(together), [(Mode::Other, 2, 7)]);
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
    assert_eq!(lasted, Some((0.7, Whose::OneOf(1))));
    assert_eq!(verdict(800).0, model::CheckVerdict::Inconclusive);
}

#[test]
fn skipped_action_fails_gate() {
    let mut records = three_pods();
    let skipped = Action {
        is_undone: true,
        disruption: 1,
        action: ActionName::DeletePod,
        mode: Some(Mode::Other),
        pod: None,
        uid: None,
        answered: at(6000),
        status: None,
        error: Some("only 1 of 2 pods were ready and not chosen by another action".into()),
    };
    records.events.push(Event::new(at(6000), "coordinator", EventKind::Action(skipped)));
    records.events.sort_by_key(|event| event.at);
    let result = analysed(records).result;
    let found: Vec<_> =
        result.findings.iter().filter(|found| found.kind == Some(model::FindingKind::NotDone)).collect();
    let [found] = found[..] else { panic!("{:?}", result.findings) };
    assert_eq!(found.what, "deletePod was not done");
    let failed = |min: Option<u64>| {
        let terminations = Some(Bounds { min, ..Bounds::default() });
        let checks = crate::check(&result, &Expect { terminations, ..Expect::default() });
        checks
            .iter()
            .any(|c| c.name.to_string() == "terminations.planned" && c.verdict == model::CheckVerdict::Fail)
    };
    assert!(failed(Some(1)), "although as many pods ended as the scenario expects");
    assert!(!failed(Some(0)), "terminations need not happen");
    assert!(crate::check(&result, &Expect::default()).is_empty(), "nothing is expected");
}

#[test]
fn unsettled_rollout_fails_gate() {
    let mut records = three_pods();
    let words = ["kubectl", "rollout", "restart", "deploy/web"].map(str::to_owned).to_vec();
    let unsettled = Some("Deployment web: 1 of 3 pods updated, after 300s".to_owned());
    for (ms, kind) in [
        (3000, EventKind::CommandStarted { command: words, disruption: None }),
        (3100, EventKind::CommandEnded { code: Some(0), signal: None, disruption: None }),
        (9000, EventKind::CommandSettled { mode: Mode::Rollout, disruption: None, unsettled }),
    ] {
        records.events.push(Event::new(at(ms), "coordinator", kind));
    }
    records.events.sort_by_key(|event| event.at);
    let result = analysed(records).result;
    let planned = crate::check(&result, &Expect::default_gate())
        .into_iter()
        .find(|c| c.name.to_string() == "terminations.planned")
        .unwrap();
    assert_eq!(planned.verdict, model::CheckVerdict::Fail);
    let Evidence::NotDone(found) = planned.evidence else { panic!("{planned:?}") };
    assert_eq!(
        found[0].what,
        "the changes of kubectl rollout restart deploy/web had not settled: Deployment web: 1 of 3 pods updated, \
         after 300s"
    );
}

#[test]
fn simultaneous_ends_miss_short_limit() {
    for (naming, seed) in
        [(Naming::Header, 1), (Naming::Header, 2), (Naming::Nothing, 3), (Naming::Nothing, 4)]
    {
        let result = analysed(all_at_once(naming, seed).0.records).result;
        let expect = Expect { windows: Some(longest(600)), ..Expect::default() };
        let verdict = crate::check(&result, &expect)[0].verdict;
        assert_ne!(verdict, CheckVerdict::Pass, "two were routed to for 1.13 s");
    }
}

#[test]
fn ending_pod_500s_are_counted_apart() {
    let analysis = analysed(refusing(500, true));
    let result = &analysis.result;
    assert_eq!((result.requests.dropped, result.requests.app_errors_while_ending), (7, 60));
    assert_eq!(result.terminations[0].app_errors_after_t0, Some(60));
    let said = result.findings.iter().find(|f| f.what.contains("5xx")).unwrap();
    assert_eq!(said.severity, Severity::Error);
    assert_eq!(
        said.what,
        "60 of 3,060 requests were answered with 5xx by pods that were ending: the app closed what it needs before its \
         listener"
    );
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

    // Without names it is only known that a pod was ending.
    let unnamed = analysed(refusing(500, false)).result;
    assert_eq!(unnamed.requests.app_errors_while_ending, 60);

    // No more than the app answers in any case.
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
    let steady = analysed(records).result;
    assert_eq!(steady.requests.app_errors_while_ending, 5);
    assert!(steady.findings.iter().all(|f| !f.what.contains("5xx")), "{:?}", steady.findings);
    let limits = serde_json::json!({"appErrors": {"whileEnding": {"max": 0}}});
    assert_eq!(failed(limits, &steady), [""; 0]);
}
