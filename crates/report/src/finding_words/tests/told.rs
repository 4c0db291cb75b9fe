//! Tests that findings name what happened to pods, workloads and the load.

use std::collections::BTreeMap;

use super::remedies::{failed_hook, kept_on, replaced, with_a_hook};
use super::*;
use rolldrop_explain::model::NoBound;
use rolldrop_record::event::{Replacement, WorkloadEvent};
use rolldrop_record::run_info::{Balances, BalancesBecause};
use rolldrop_record::{RequestId, ServedEnd};

#[test]
fn finding_names_deleted_workload() {
    let mut records = replaced(Some(Replacement::RollingUpdate), 3, Some("25%"));
    let last = records.events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Workload(workload) => Some(workload.clone()),
        _ => None,
    });
    let deleted = |ms: i64| {
        let workload = WorkloadEvent { change: Change::Deleted, ..last.clone().unwrap() };
        Event::new(at(ms), "coordinator", EventKind::Workload(workload))
    };
    let said = "Deployment web was deleted 4.0 s into the load";
    assert!(saying(&told(records.clone()), "was deleted").is_empty());
    let mut after = records.clone();
    after.events.push(deleted(10_500));
    assert!(saying(&told(after), "was deleted").is_empty(), "the run's own end");
    records.events.push(deleted(4000));
    assert_eq!(saying(&told(records), said).len(), 1);
}

#[test]
fn foreign_workload_change_adds_finding() {
    let records = replaced(Some(Replacement::RollingUpdate), 3, Some("25%"));
    let (event, workload) = records
        .events
        .iter()
        .find_map(|event| match &event.kind {
            EventKind::Workload(workload) => Some((event.clone(), workload.clone())),
            _ => None,
        })
        .unwrap();
    let shown = |ms: i64, template: &str, replicas: i32| {
        let (template, replicas) = (template.to_owned(), Some(replicas));
        let workload = WorkloadEvent { change: Change::Applied, template, replicas, ..workload.clone() };
        Event { at: at(ms), kind: EventKind::Workload(workload), ..event.clone() }
    };
    let call = records.events.iter().find_map(|event| match &event.kind {
        EventKind::Action(action) => Some(action.clone()),
        _ => None,
    });
    let restart = |ms: i64, action: ActionName| {
        let action = Action { action, pod: None, uid: None, answered: at(ms + 5), ..call.clone().unwrap() };
        Event { at: at(ms), kind: EventKind::Action(action), ..event.clone() }
    };
    let said = |more: Vec<Event>| {
        let mut records = records.clone();
        records.events.extend(more);
        records.events.sort_by_key(|event| event.at);
        let found = told(records);
        saying(&found, "someone else changed").iter().map(|finding| finding.what.clone()).collect::<Vec<_>>()
    };
    let both = said(vec![shown(4000, "b", 5), shown(5000, "c", 5)]);
    let what = "someone else changed Deployment web 4.0 s into the load (a new pod template, 5 replicas instead of 3), \
                and 1 more time after that";
    assert_eq!(both, [what]);
    assert!(said(vec![shown(4000, "a", 3)]).is_empty(), "nothing has changed");
    assert!(said(vec![shown(10_500, "b", 5)]).is_empty(), "the run's own end");
    let own = vec![restart(3990, ActionName::RollingRestart), shown(4000, "b", 3)];
    assert!(said(own.clone()).is_empty());
    // The restart is one change, and this is a second one.
    assert_eq!(said([own, vec![shown(4500, "c", 3)]].concat()).len(), 1);
    let scaled = vec![restart(3990, ActionName::Scale), shown(4000, "b", 5)];
    assert!(said(scaled)[0].ends_with("(a new pod template)"));
    assert!(said(vec![restart(100, ActionName::Observe), shown(4000, "b", 5)]).is_empty());
}

#[test]
fn gateway_reuse_counts_as_idle_race() {
    let of = |is_first: bool, ended| {
        let mut records = records();
        let target = &mut records.info.targets[0];
        (target.balances, target.balances_because) = (Balances::Requests, BalancesBecause::Stated);
        for i in 0..300 {
            request(&mut records, i * 33 * MS, Outcome::Ok, Some("a"));
        }
        let row = &mut records.requests[100];
        (row.outcome, row.status, row.pod) = (Outcome::HttpError, Some(502), None);
        let mut seen = served(row, "a", ended);
        (seen.conn_first_request, seen.request) =
            (is_first, Some(RequestId::new(&run(), &row.source, row.seq)));
        records.served.push(seen);
        let result = told(records);
        let [(cause, 1)] = result.requests.by_cause.iter().map(|(c, n)| (*c, *n)).collect::<Vec<_>>()[..]
        else {
            panic!("{:?}", result.requests.by_cause)
        };
        (cause, remedy(&result, cause).to_owned())
    };
    for ended in [ServedEnd::UpstreamReset, ServedEnd::UpstreamEof] {
        let (cause, remedy) = of(false, ended);
        assert_eq!(cause, Cause::IdleCloseRace);
        assert!(remedy.starts_with("set the server's keep-alive timeout above"), "{remedy}");
        assert_eq!(of(true, ended).0, Cause::GatewayError, "nothing was idle");
    }
    assert_eq!(of(false, ServedEnd::Complete).0, Cause::GatewayError);
}

#[test]
fn unmodelled_behaviour_is_reported_once() {
    let mut records = with_a_hook(None);
    for (pod, container) in [("a", Some("app")), ("b", Some("app")), ("b", None)] {
        let kind = EventKind::ClusterEvent {
            pod: pod.into(),
            reason: "NotModelled".into(),
            message: "its first process continues elsewhere".into(),
            container: container.map(str::to_owned),
        };
        records.events.push(Event::new(at(5040), "coordinator", kind));
    }
    records.events.sort_by_key(|event| event.at);
    let result = told(records);
    let said = saying(&result, "continues elsewhere");
    let what: Vec<_> = said.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(what, ["container app of 2 pods: its first process continues elsewhere"]);
}

#[test]
fn grace_period_cutoff_is_not_hook_failure() {
    let mut records = kept_on(2);
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.containers[0].pre_stop_other = true;
        }
    }
    records.events.push(failed_hook(35_000));
    records.events.sort_by_key(|event| event.at);
    let result = told(records);
    assert!(saying(&result, "FailedPreStopHook").is_empty());
    assert_eq!(saying(&result, "was still running when the grace period of 30 s expired").len(), 1);
}

#[test]
fn early_exit_reveals_failed_hook() {
    // The containers exited 0.8 s after t0.
    let with = |exec_sleep_s: Option<i64>| {
        let mut records = with_a_hook(exec_sleep_s);
        let mut ended = pod_event(5800, "b", Change::Applied);
        if let EventKind::Pod(pod) = &mut ended.kind {
            let app = &mut pod.containers[0];
            (app.state, app.exit_code) = (Some("terminated".into()), Some(0));
            (app.pre_stop_other, app.pre_stop_exec_sleep_s) = (true, exec_sleep_s);
        }
        records.events.push(ended);
        let denied = EventKind::NotWatched { resource: "events".into(), why: "no such permission".into() };
        records.events.push(Event::new(at(-800), "coordinator", denied));
        records.events.sort_by_key(|event| event.at);
        told(records)
    };
    let early = with(Some(5));
    assert_eq!(
        saying(&early, "1 of 1 pod exited before the preStop sleep of 5 s").len(),
        1,
        "{:?}",
        early.findings
    );
    let unknown = with(None);
    assert!(saying(&unknown, "could have finished").is_empty());
    for result in [early, unknown] {
        assert_eq!(saying(&result, "Events could not be watched").len(), 1);
        assert!(saying(&result, "nothing waits").is_empty());
    }
}

/// Makes SIGKILL end `b` after 30 s, while a readiness probe that would notice within `notices_s` seconds keeps
/// succeeding.
fn accepting(notices_s: u32) -> Records {
    let mut records = kept_on(30);
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.ready = true;
            pod.containers.iter_mut().for_each(|app| app.readiness_notices_s = Some(notices_s));
        }
    }
    records
}

#[test]
fn accepting_pod_reveals_missing_handler() {
    let result = told(accepting(4));
    assert_eq!(
        saying(&result, "1 pod kept accepting new connections until the grace period of 30 s").len(),
        1
    );
    for untrue in ["kept answering on open connections", "was killed by SIGKILL", "stops accepting"] {
        assert!(saying(&result, untrue).is_empty(), "{untrue}: {:?}", result.findings);
    }
    // The probe would have noticed too late, so only answered requests are evidence.
    let result = told(accepting(31));
    assert!(saying(&result, "kept accepting new connections").is_empty(), "{:?}", result.findings);
    assert_eq!(saying(&result, "kept answering on open connections").len(), 1);
    // The probe noticed.
    let mut records = accepting(4);
    let mut unready = pod_event(9_000, "b", Change::Applied);
    if let EventKind::Pod(pod) = &mut unready.kind {
        pod.ready = false;
        pod.containers[0].state = Some("running".into());
    }
    records.events.push(unready);
    records.events.sort_by_key(|event| event.at);
    let result = told(records);
    assert!(saying(&result, "kept accepting new connections").is_empty(), "{:?}", result.findings);
}

#[test]
fn accepting_pod_is_not_dead() {
    let to_dead_pods = |records| told(records).requests.by_cause.get(&Cause::RoutedToDeadPod).copied();
    assert_eq!(to_dead_pods(kept_on(30)), Some(7));
    assert_eq!(to_dead_pods(accepting(4)), None);
}

#[test]
fn oom_killed_pod_is_not_slow() {
    let mut records = kept_on(2);
    for event in &mut records.events {
        match &mut event.kind {
            EventKind::Pod(pod) if pod.containers.iter().any(|app| app.exit_code == Some(137)) => {
                if pod.change == Change::Applied {
                    event.at = at(8_000);
                }
                pod.containers[0].reason = Some("OOMKilled".into());
            }
            _ => {}
        }
    }
    records.events.sort_by_key(|event| event.at);
    let result = told(records);
    assert_eq!(saying(&result, "more memory than its limit").len(), 1, "{:?}", result.findings);
    for untrue in
        ["does not exit on SIGTERM", "set terminationGracePeriodSeconds", "kept accepting new connections"]
    {
        assert!(saying(&result, untrue).is_empty(), "{untrue}: {:?}", result.findings);
    }
}

#[test]
fn finding_names_missing_proxy_permission() {
    let mut service = Service::new(&["a", "b", "c"]);
    service.delete(5000, "b");
    service.slice(5040, &["a", "c"], &["b"]);
    service.rules(5100, &["a", "c"]);
    service.load(300, Naming::Nothing, 1);
    let mut records = service.records;
    records.info.cluster.dataplane = rolldrop_record::service_proxy::ServiceProxy::Unknown;
    let right = "get configmaps/kube-proxy in kube-system";
    records.info.cluster.dataplane_denied = vec![right.into()];
    let result = told(records);
    let window = &result.terminations[0].windows[0];
    assert_eq!((window.upper_s, window.censored_reason), (None, Some(NoBound::ProxyUnknown)));
    let said = saying(&result, "the mode of kube-proxy could not be read");
    assert!(
        said[0].why.contains(right) && said[0].why.contains("1 of 1 window has no upper bound"),
        "{said:?}"
    );
    assert!(said[0].remedy.contains("--assume-service-proxy"), "{said:?}");
}

#[test]
fn unsent_requests_are_counted_by_reason() {
    let with = |n: usize| {
        let mut records = three_pods();
        for row in records.requests.iter_mut().take(n) {
            row.not_sent_reason = Some("max_connections".into());
            (row.outcome, row.final_outcome, row.pod) = (Outcome::NotSent, Outcome::NotSent, None);
            (row.connect_start, row.connected, row.sent) = (None, None, None);
        }
        told(records)
    };
    let few = with(2);
    assert_eq!(few.verdict, Verdict::Valid);
    assert_eq!(few.requests.not_sent_by_reason, BTreeMap::from([("max_connections".to_owned(), 2)]));
    assert!(saying(&few, "2 requests were not sent")[0].remedy.starts_with("raise load.connections.max"));
    let many = with(30);
    let Verdict::Invalid { why } = &many.verdict else { panic!("{:?}", many.verdict) };
    assert!(why[0].contains("30: all connections that load.connections.max allows were in use"), "{why:?}");
    let said = saying(&many, "30 of 3,000 requests were not sent");
    assert!(said[0].remedy.starts_with("raise load.connections.max"), "{said:?}");
    assert!(saying(&many, "less busy machine").is_empty());
}

#[test]
fn result_contains_reasons_in_words() {
    let mut records = three_pods();
    records.requests.retain(|r| r.scheduled < at(5110));
    records.torn.push("a part was never closed".into());
    let result = told(records);
    let why = result.terminations[0].windows[0].censored.as_deref().unwrap();
    assert!(why.starts_with("the load ended"), "{why}");
    let Verdict::Partial { why } = &result.verdict else { panic!("{:?}", result.verdict) };
    assert!(why.iter().any(|why| why == "a part was never closed"), "{why:?}");
}
