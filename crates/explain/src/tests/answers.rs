//! Responses from terminating apps, and lost requests without a cause.

use super::*;
use crate::model::{LostRequest, Unclear};

fn with_cause(analysis: &Analysis, cause: Cause) -> Vec<&LostRequest> {
    analysis.lost.iter().filter(|lost| lost.cause == cause).collect()
}

#[test]
fn terminating_pod_503_is_refusal() {
    for is_named in [true, false] {
        let analysis = analysed(refusing(503, is_named));
        let by_cause = &analysis.result.requests.by_cause;
        let expected = BTreeMap::from([(Cause::RoutedToDeadPod, 7), (Cause::RefusedWhileEnding, 60)]);
        assert_eq!(*by_cause, expected, "{is_named}");
        let refused = with_cause(&analysis, Cause::RefusedWhileEnding);
        assert!(refused.iter().all(|lost| lost.only() == Some(0)), "{refused:?}");
        assert_eq!(analysis.result.requests.app_errors_while_ending, 0);
        assert_eq!(analysis.result.requests.outside_terminations.dropped, 0);
    }
}

#[test]
fn healthy_pod_503_stays_unattributed() {
    let mut records = three_pods();
    request(&mut records, 1001 * MS, Outcome::HttpError, Some("a"));
    records.requests.last_mut().unwrap().status = Some(503);
    request(&mut records, 1002 * MS, Outcome::HttpError, None);
    records.requests.last_mut().unwrap().status = Some(503);
    records.info.targets[0].balances_because = BalancesBecause::Service;
    let analysis = analysed(records);
    let unclear: Vec<_> =
        with_cause(&analysis, Cause::Unattributed).iter().map(|lost| lost.unclear.clone()).collect();
    assert_eq!(unclear, [Some(Unclear::PodWasWell), Some(Unclear::NothingNear)]);
    let doubts = Loss::Unattributed(vec![(Doubt::PodWasWell, 1), (Doubt::NothingNear, 1)]);
    let finding = Finding::Lost { requests: 2, by: doubts };
    assert!(analysis.account.findings.contains(&finding), "{:?}", analysis.account.findings);
}

/// Returns [`three_pods`] without names. In addition, `b` cuts off requests on kept connections after working on them
/// for 300 ms, and a pod without a readiness probe has just started.
fn mixed() -> Records {
    let mut records = three_pods();
    records.requests.iter_mut().filter(|row| row.scheduled >= at(4000)).for_each(|row| row.pod = None);
    for i in 0..20i64 {
        request(&mut records, (4400 + i) * MS, Outcome::Ok, None);
        let row = records.requests.last_mut().unwrap();
        (row.conn, row.pod) = (Some(1_000_000 + u64::try_from(i).unwrap()), None);
        request(&mut records, (4730 + 10 * i) * MS, Outcome::EofBeforeResponse, None);
        let row = records.requests.last_mut().unwrap();
        (row.conn_reused, row.connect_start, row.connected) = (true, None, None);
        row.conn = Some(1_000_000 + u64::try_from(i).unwrap());
        row.end = at(5030);
    }
    slice(&mut records, -900, "web", &["a", "b", "c"]);
    let mut started = pod_event(3500, "d", Change::Applied);
    if let EventKind::Pod(pod) = &mut started.kind {
        pod.containers[0].readiness_probe = Some(false);
    }
    records.events.push(started);
    slice(&mut records, 3600, "web", &["a", "b", "c", "d"]);
    records
}

#[test]
fn starting_pod_loses_no_kept_connection() {
    let analysis = analysed(mixed());
    let kept = analysis.lost.iter().filter(|lost| lost.outcome == Outcome::EofBeforeResponse);
    let causes: Vec<_> = kept.map(|lost| (lost.cause, lost.only(), lost.unclear.clone())).collect();
    assert_eq!(causes, vec![(Cause::KilledInFlight, Some(0), None); 20]);
}

#[test]
fn probed_start_explains_no_timeout() {
    let lost = |is_probed: bool, outcome: Outcome, times: i64| {
        let mut records = records();
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.change = Change::Listed;
            }
        }
        for i in 0..3000i64 {
            request(&mut records, i * 10 * MS / 3, Outcome::Ok, None);
        }
        slice(&mut records, -900, "web", &["a", "b", "c"]);
        let mut started = pod_event(4000, "d", Change::Applied);
        if let EventKind::Pod(pod) = &mut started.kind {
            pod.containers = serde_json::from_value(serde_json::json!([{
                "name": "app", "sidecar": false, "pre_stop_other": false, "state": "running", "restarts": 0,
                "readiness_probe": is_probed
            }]))
            .unwrap();
        }
        records.events.push(started);
        slice(&mut records, 4900, "web", &["a", "b", "c", "d"]);
        (0..times).for_each(|i| request(&mut records, (5001 + 100 * i) * MS, outcome, None));
        let analysis = analysed(records);
        let lost = &analysis.lost[0];
        assert!(analysis.lost.iter().all(|other| other.cause == lost.cause));
        let probe = analysis.account.findings.iter().find_map(|finding| match finding {
            Finding::Lost { by: Loss::NotReadyYet(probe), .. } => Some(*probe),
            _ => None,
        });
        (lost.cause, lost.unclear.clone(), probe)
    };
    use Outcome::{ConnectRefused, ConnectTimeout};
    let silent = lost(true, ConnectTimeout, 1);
    assert_eq!(silent, (Cause::Unattributed, Some(Unclear::NothingNear), None));
    for times in [1, 4] {
        let too_early = (Cause::NotReadyYet, None, Some(Probe::TooEarly));
        assert_eq!(lost(true, ConnectRefused, times), too_early);
    }
    assert_eq!(lost(false, ConnectTimeout, 1), (Cause::NotReadyYet, None, Some(Probe::Missing)));
}
