//! Tests that the words are consistent with the result and the current settings, and that a gate repeats the sentences.

use std::collections::BTreeMap;

use super::*;
use rolldrop_explain::model::{CheckVerdict, FindingKind, Recommendation};
use rolldrop_record::load::Http;
use rolldrop_record::{Bounds, Expect};

#[test]
fn advice_names_one_sufficient_sleep() {
    let sleeps = |set_s: Option<i64>, records: Records| {
        let mut records = records;
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.containers[0].pre_stop_sleep_s = set_s;
                pod.grace_s = 90;
            }
        }
        let result = told(records);
        let advised = Recommendation::longest(&result.recommendation, &result.terminations, &result.groups)
            .and_then(|r| r.advised_seconds());
        let finding = result.findings.iter().find(|f| f.cause == Some(Cause::RoutedToDeadPod));
        (advised, finding.map(|f| f.remedy.clone()), result)
    };
    let (advised, remedy, result) = sleeps(None, many(29));
    assert_eq!(advised, Some(2));
    assert!(remedy.unwrap().starts_with("a preStop sleep of 2 s for pods that end one at a time ("));
    assert_eq!(result.terminations[0].pre_stop_seconds, Some(0));
    assert_eq!(result.terminations[0].grace_period_seconds, 90);
    let grace = result.recommendation[0].termination_grace_period_seconds;
    assert!(grace.is_none_or(|grace| grace >= 90), "{grace:?}");

    // Requests that a sleep did not save are not an argument for the same sleep or a shorter one.
    let (advised, remedy, result) = sleeps(Some(40), many(3));
    assert_eq!(advised, None, "{:?}", result.recommendation);
    assert!(remedy.is_none_or(|remedy| remedy.contains("longer than 40.000 s")));
}

#[test]
fn unbounded_window_yields_only_minimum_sleep() {
    let mut records = three_pods();
    records.requests.retain(|r| r.scheduled < at(5110));
    let result = told(records);
    assert_eq!(Recommendation::longest(&result.recommendation, &result.terminations, &result.groups), None);
    let basis = &result.recommendation[0].basis;
    assert!(basis.starts_with("the length of the longest window is unknown"), "{basis}");
    let remedy = &result.findings[0].remedy;
    assert!(
        remedy.starts_with("a preStop sleep that outlasts the windows, longer than 0.084 s, "),
        "{remedy}"
    );
}

#[test]
fn connections_after_return_are_not_late() {
    let mut records = relabelled();
    for ms in (0..10_000).step_by(10) {
        let pod = if (5100..8020).contains(&ms) { "a" } else { "b" };
        request(&mut records, ms * MS, Outcome::Ok, Some(pod));
    }
    let findings = told(records).findings;
    let said = findings.iter().map(|found| found.what.as_str()).find(|what| what.contains("kept running"));
    assert_eq!(
        said,
        Some(
            "pod b left its Services and kept running: its endpoint was removed 0.09 s after the request, and its last \
             new connection arrived 0.08 s after the request"
        )
    );
}

/// Without a termination, nothing drains, so the server's own timeout must be the shorter one.
#[test]
fn idle_close_remedy_extends_keep_alive() {
    let mut records = records();
    request(&mut records, 1000 * MS, Outcome::ResetBeforeResponse, None);
    let row = records.requests.last_mut().unwrap();
    (row.conn_reused, row.connect_start, row.connected) = (true, None, None);
    let findings = told(records).findings;
    let remedy = findings.into_iter().find(|f| f.cause == Some(Cause::IdleCloseRace)).unwrap().remedy;
    assert!(remedy.starts_with("set the server's keep-alive timeout above"), "{remedy}");
}

#[test]
fn close_remedy_follows_http_version() {
    let remedy = |http: Option<Http>, url: &str| {
        let mut records = three_pods();
        request(&mut records, 5010 * MS, Outcome::ResetBeforeResponse, Some("b"));
        let row = records.requests.last_mut().unwrap();
        (row.conn_reused, row.connect_start, row.connected) = (true, None, None);
        row.end = row.end.shifted_ns(49 * MS);
        records.info.load.http = http;
        records.info.targets[0].url = url.to_owned();
        let findings = told(records).findings;
        findings.into_iter().find(|f| f.cause == Some(Cause::IdleCloseRace)).unwrap().remedy
    };
    for http in [None, Some(Http::Http1), Some(Http::Auto)] {
        assert!(remedy(http, "http://web").starts_with("answer with Connection: close while draining;"));
    }
    let both = remedy(Some(Http::Auto), "https://web");
    assert!(
        both.starts_with("answer with Connection: close (HTTP/2: send GOAWAY) while draining;"),
        "{both}"
    );
    let goaway = remedy(Some(Http::Http2), "https://web");
    assert!(goaway.starts_with("send GOAWAY one round trip before the connection is closed;"), "{goaway}");
    assert!(!goaway.contains("Connection:"), "{goaway}");
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
    let result = told(records);
    assert_eq!(result.terminations, []);
    let none = Expect { restarts: Some(Bounds { max: Some(0), ..Bounds::default() }), ..Expect::default() };
    let restarts = checks(&result, &none).into_iter().find(|check| check.name == "restarts.max").unwrap();
    assert_eq!(restarts.verdict, CheckVerdict::Fail);
    assert!(restarts.why.starts_with("container app of pod b exited (exit code 137)"), "{restarts:?}");
    let causes = BTreeMap::from([(Cause::KilledInFlight, 1), (Cause::RoutedToDeadPod, 20)]);
    assert_eq!(result.requests.by_cause, causes);
    let what: Vec<&str> = result.findings.iter().map(|f| f.what.as_str()).collect();
    assert!(
        what.contains(&"routed_to_dead_pod: 20 requests, lost when a container exited and its pod stayed"),
        "{what:?}"
    );
    assert!(
        what.iter().any(|what| what.starts_with("container app of pod b exited (exit code 137)")),
        "{what:?}"
    );
    for finding in &result.findings {
        // No termination setting would have saved the requests, so there is no need to measure one.
        for of_terminations in ["a preStop sleep", "SIGTERM", "GracePeriod", "add a disruption"] {
            let words = [&finding.why, &finding.remedy];
            assert!(words.iter().all(|text| !text.contains(of_terminations)), "{finding:?}");
        }
    }
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
    let result = told(records);
    let found: Vec<_> =
        result.findings.iter().filter(|found| found.kind == Some(FindingKind::NotDone)).collect();
    let [found] = found[..] else { panic!("{:?}", result.findings) };
    assert_eq!(found.what, "deletePod was not done");
    let failed = |min: Option<u64>| {
        let terminations = Some(Bounds { min, ..Bounds::default() });
        let checks = checks(&result, &Expect { terminations, ..Expect::default() });
        checks.iter().any(|c| c.name == "terminations.planned" && c.verdict == CheckVerdict::Fail)
    };
    assert!(failed(Some(1)), "although as many pods ended as the scenario expects");
    assert!(!failed(Some(0)), "terminations need not happen");
    assert!(checks(&result, &Expect::default()).is_empty(), "nothing is expected");
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
    let result = told(records);
    let planned = checks(&result, &Expect::default_gate())
        .into_iter()
        .find(|c| c.name == "terminations.planned")
        .unwrap();
    assert_eq!(planned.verdict, CheckVerdict::Fail);
    assert_eq!(
        planned.why,
        "the changes made by kubectl rollout restart deploy/web had not settled: Deployment web: 1 of 3 pods updated, \
         after 300s"
    );
}
