//! Consistency of a result with itself and with the current settings.

use super::*;
use crate::model::Recommendation;

#[test]
fn recommendation_never_lowers_settings() {
    let mut records = many(29);
    for (number, row) in records.requests.iter_mut().enumerate() {
        if row.outcome == Outcome::ConnectRefused {
            (row.outcome, row.pod) = (Outcome::Ok, Some(format!("p{}", number / 210).into()));
        }
    }
    for e in 0..29 {
        let (name, ended_ms) = (format!("p{e}"), 2000 * (e + 1) + 700);
        records.events.push(pod_event(ended_ms, &name, Change::Applied));
        for event in records.events.iter_mut().filter(|event| event.at >= at(ended_ms)) {
            if let EventKind::Pod(pod) = &mut event.kind
                && pod.name == name
            {
                let app = &mut pod.containers[0];
                (app.state, app.exit_code) = (Some("terminated".into()), Some(0));
            }
        }
    }
    let recommended = |set_s: Option<i64>| {
        let mut records = records.clone();
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.containers[0].pre_stop_sleep_s = set_s;
            }
        }
        records.events.sort_by_key(|event| event.at);
        let recommendation = analysed(records).result.recommendation.remove(0);
        (recommendation.pre_stop_seconds, recommendation.termination_grace_period_seconds)
    };
    // A sleep of 2 s and a grace period of 4 s would be enough.
    assert_eq!(recommended(None), (Some(2), Some(30)));
    assert_eq!(recommended(Some(5)), (Some(5), Some(30)));
}

#[test]
fn advice_starts_from_sleep_of_losing_pods() {
    let mut records = many(2);
    // Pod p0 sleeps for 5 s and loses nothing; p1 has no sleep.
    for row in records.requests.iter_mut().filter(|row| row.scheduled < at(2200)) {
        (row.outcome, row.pod) = (Outcome::Ok, Some("p0".into()));
    }
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind
            && pod.name == "p0"
        {
            pod.containers[0].pre_stop_sleep_s = Some(5);
        }
    }
    let Analysis { result, account, charts, .. } = analysed(records.clone());
    let set: Vec<Option<u64>> = result.terminations.iter().map(|t| t.pre_stop_seconds).collect();
    assert_eq!(set, [Some(5), Some(0)]);
    assert_eq!(result.recommendation[0].suggested_seconds, Some(1), "{:?}", result.recommendation);
    let left: Vec<_> = result.what_if.iter().map(|w| (w.pre_stop_seconds, w.drops_left)).collect();
    assert_eq!(left[..2], [(0, 10), (1, 0)]);
    assert!(charts.sleeps.iter().flatten().all(|s| s.certain_s < 1.0), "{:?}", charts.sleeps);
    let advice = |account: &Account| {
        account.findings.iter().find_map(|finding| match finding {
            Finding::Lost { by: Loss::RoutedToDeadPod { sleep, .. }, .. } => Some(sleep.clone()),
            _ => None,
        })
    };
    let hook = HookRepair::Unneeded;
    assert_eq!(advice(&account), Some(SleepAdvice::Advised { hook, mode: Mode::Isolated }));
    // Without an upper bound, the sleep must exceed the lower one.
    records.requests.retain(|row| row.scheduled < at(4105));
    let Some(SleepAdvice::AtLeast { at_least_s: Some(s), .. }) = advice(&analysed(records).account) else {
        panic!("a sleep is advised")
    };
    assert!(s < 1.0, "{s}");
}

#[test]
fn advised_sleep_fits_into_grace_period() {
    let advised = |grace_s: i64, has_upper_bound: bool| {
        let mut records = three_pods();
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.grace_s = grace_s;
            }
        }
        if !has_upper_bound {
            records.requests.retain(|row| row.scheduled < at(5110));
        }
        let Analysis { result, account, .. } = analysed(records);
        let at_least = account.findings.iter().find_map(|finding| match finding {
            Finding::Lost {
                by: Loss::RoutedToDeadPod { sleep: SleepAdvice::AtLeast { grace_s, .. }, .. },
                ..
            } => Some(*grace_s),
            _ => None,
        });
        let rec = &result.recommendation[0];
        (rec.suggested_seconds, rec.termination_grace_period_seconds, at_least)
    };
    assert_eq!(advised(30, true), (Some(1), None, None), "the sleep fits");
    // It was not seen how long the pod takes to stop.
    assert_eq!(advised(2, true), (Some(1), Some(3), None));
    assert_eq!(advised(30, false), (None, None, Some(None)));
    assert_eq!(advised(3, false), (None, None, Some(Some(5))));
}

#[test]
fn advice_omits_outlasted_sleep() {
    let result = analysed(many(3)).result;
    let advised = |all: &[Recommendation], terminations: &[Termination]| {
        Recommendation::longest(all, terminations, &[]).and_then(Recommendation::advised_seconds)
    };
    assert_eq!(advised(&result.recommendation, &result.terminations), Some(1));
    // The window may be of another mode, for another consumer, or of a pod about which nothing else is known.
    let mut outlasted = result.terminations.clone();
    outlasted[1].windows[0].lower_s = Some(1.076);
    assert_eq!(advised(&result.recommendation, &outlasted), None);

    // Two windows are bounded; the duration of the third is unknown.
    let mut records = many(3);
    records.requests.retain(|r| r.scheduled < at(6105));
    let open = analysed(records).result;
    assert_eq!(open.windows_s[0].censored, 1, "{:?}", open.windows_s);
    let advice = &open.recommendation[0];
    assert_eq!((advice.covers_all_seen_seconds, advice.suggested_seconds), (None, None), "{advice:?}");
}

#[test]
fn in_flight_losses_are_counted_separately() {
    for (named, by_time) in [(None, 10), (Some("b"), 0)] {
        let r = analysed(three_pods_killed_in_flight(named)).result.requests;
        assert_eq!((r.in_window, r.in_flight, r.by_time), (40, 30, by_time), "{r:?}");
    }
    let r = analysed(three_pods()).result.requests;
    assert_eq!((r.in_window, r.in_flight, r.by_time), (7, 0, 7), "nothing names their pod: {r:?}");
}

#[test]
fn steady_latency_excludes_terminations() {
    let records = three_pods_killed_in_flight(Some("b"));
    let overlaps = |r: &&RequestRow| r.scheduled <= at(5800) && r.end >= at(5000);
    let near = records.requests.iter().filter(|r| r.outcome == Outcome::Ok).filter(overlaps).count() as u64;
    let result = analysed(records).result;
    assert_eq!(result.latency_ms.disrupted.n, near);
    assert_eq!(result.latency_ms.steady.n, result.requests.ok - near);
}

#[test]
fn dead_time_uses_final_pod_share() {
    let mut records = records();
    delete(&mut records, 5000, "b");
    // One of its neighbours left a second earlier, so `b` gets half of all connections rather than a third.
    for i in 0..3000i64 {
        let ns = i * 10 * MS / 3;
        let is_its = if ns < 4000 * MS { i % 3 == 0 } else { i % 2 == 0 };
        match (ns / MS, is_its) {
            (..5000, true) => request(&mut records, ns, Outcome::Ok, Some("b")),
            (5000..5100, true) => request(&mut records, ns, Outcome::ConnectRefused, None),
            _ => request(&mut records, ns, Outcome::Ok, Some("a")),
        }
    }
    // On an existing connection, nothing new is routed to the pod.
    request(&mut records, 5020 * MS, Outcome::ResetBeforeResponse, Some("b"));
    records.requests.last_mut().unwrap().conn_reused = true;
    let t = &analysed(records).result.terminations[0];
    assert_eq!(t.requests.dropped, Bounded::exactly(16));
    assert!((t.dead_seconds.unwrap() - 0.1).abs() < 0.004, "{t:?}");
    let rate = t.windows[0].rate_before;
    assert!(rate < 120.0, "bounds use the smaller rate: {rate}");

    // Regardless of the number of simultaneous losses, the pod was not dead for longer than its window.
    let mut at_once = three_pods();
    (0..200).for_each(|i| request(&mut at_once, 5040 * MS + i * 1000, Outcome::ConnectRefused, None));
    let t = &analysed(at_once).result.terminations[0];
    assert_eq!(t.requests.dropped, Bounded::exactly(207));
    assert_eq!(t.dead_seconds, t.windows[0].upper_s);
}

#[test]
fn longer_sleep_saves_requests_killed_in_flight() {
    let what_if = |records| -> Vec<(u64, u64, u64)> {
        let rows = analysed(records).result.what_if;
        rows.iter().map(|w| (w.pre_stop_seconds, w.drops_avoided, w.drops_left)).collect()
    };
    let records = three_pods_killed_in_flight(Some("b"));
    let r = analysed(records.clone()).result.requests;
    assert_eq!(r.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, 10), (Cause::KilledInFlight, 30)]));
    assert_eq!(what_if(records.clone())[..2], [(0, 0, 40), (1, 40, 0)]);
    // Requests on a kept connection would have been cut off by the pod's exit anyway.
    let mut kept = records;
    kept.requests.iter_mut().filter(|r| r.outcome != Outcome::Ok).for_each(|r| r.conn_reused = true);
    assert_eq!(what_if(kept)[1], (1, 0, 40));
}

#[test]
fn connect_time_distinguishes_race_from_kill() {
    // Cut off without a response 50 ms after it was sent, as b exited.
    let cause = |connect_ms: i64, outcome: Outcome| {
        let mut records = three_pods();
        for row in records.requests.iter_mut().filter(|row| row.outcome == Outcome::Ok) {
            row.connect_start = row.connect_start.map(|at| at.shifted_ns(-connect_ms * MS));
        }
        request(&mut records, 5010 * MS, outcome, Some("b"));
        let row = records.requests.last_mut().unwrap();
        (row.conn_reused, row.connect_start, row.connected) = (true, None, None);
        row.end = row.end.shifted_ns(49 * MS);
        let before = analysed(three_pods()).result.requests.by_cause;
        let mut by_cause = analysed(records).result.requests.by_cause;
        for (cause, n) in before {
            *by_cause.get_mut(&cause).unwrap() -= n;
        }
        by_cause.into_iter().find(|(_, n)| *n > 0).unwrap().0
    };
    assert_eq!(cause(1, Outcome::EofBeforeResponse), Cause::KilledInFlight);
    assert_eq!(cause(1, Outcome::ResetBeforeResponse), Cause::IdleCloseRace);
    assert_eq!(cause(30, Outcome::EofBeforeResponse), Cause::IdleCloseRace);
    assert_eq!(cause(1, Outcome::H2Goaway), Cause::H2Unprocessed);
}
