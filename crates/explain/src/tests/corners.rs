//! Unusual cases: deletions by others, forced deletions, gaps, stale flows, many terminations.

use super::*;
use rolldrop_record::run_info::{Role, Rows, Source};

fn deletion_seen(records: &mut Records, ms: i64, pod: &str, grace_s: i64) {
    let mut event = pod_event(ms, pod, Change::Applied);
    if let EventKind::Pod(seen) = &mut event.kind {
        seen.deletion_timestamp = Some(at(ms / 1000 * 1000 + grace_s * 1000));
        seen.deletion_grace_s = Some(grace_s);
    }
    records.events.push(event);
}

#[test]
fn foreign_deletion_t0_spans_timestamp_second() {
    let mut records = three_pods();
    records.events.retain(|e| !matches!(e.kind, EventKind::Action(_)));
    // Deleted within the second of the timestamp, seen at 5.4 s.
    deletion_seen(&mut records, 5400, "b", 30);
    let result = analysed(records).result;
    let t = &result.terminations[0];
    assert_eq!((t.mode, t.disruption), (Mode::Other, None));
    // From the start of the timestamp's second until the deletion was seen.
    assert!((t.t0_uncertainty_s - 0.4).abs() < 1e-6, "{t:?}");
    assert!((t.t0_s - 5.4).abs() < 1e-6, "{t:?}");
    // The last refusal was at 5.093 s, so nothing is certain after t0 latest, but there is an upper bound from t0
    // earliest.
    assert_eq!((t.windows[0].lower_s, t.windows[0].lower_basis), (None, None));
    assert!(t.windows[0].upper_s.unwrap() > 0.4, "{t:?}");
}

#[test]
fn forced_deletion_sets_t0() {
    let mut records = three_pods();
    records.events.retain(|e| !matches!(e.kind, EventKind::Action(_)));
    deletion_seen(&mut records, 5000, "b", 0);
    let t = &analysed(records).result.terminations[0];
    assert_eq!((t.pod.as_str(), t.mode), ("b", Mode::Other));
    assert!(t.t0_uncertainty_s <= 1.0 && (t.t0_s - 5.0).abs() < 1e-6, "{t:?}");
}

#[test]
fn termination_in_watch_gap_invalidates_run() {
    let mut records = three_pods();
    records.events.retain(|e| {
        !matches!(&e.kind, EventKind::Action(_))
            && !matches!(&e.kind, EventKind::Pod(p) if p.change == Change::Deleted)
    });
    let gap = EventKind::WatchGap { resource: "pods".into(), from: at(4900) };
    records.events.push(Event::new(at(5600), "coordinator", gap));
    for pod in ["a", "c"] {
        records.events.push(pod_event(5601, pod, Change::Listed));
    }
    let Analysis { result, account, .. } = analysed(records);
    let t = &result.terminations[0];
    assert_eq!(t.pod, "b");
    assert!((t.t0_uncertainty_s - 0.7).abs() < 1e-6, "{t:?}");
    assert!(matches!(result.verdict, Verdict::Invalid { .. }), "{:?}", result.verdict);
    let Invalid::WatchGap { resource, pod, length_s } = &account.invalid[0] else { panic!("{account:?}") };
    assert_eq!((resource.as_str(), pod.as_str()), ("pods", "b"));
    assert!((length_s - 0.7).abs() < 1e-6, "{length_s}");
    assert_eq!(account.grounds[0].refusals[0], NoRecommendation::NotValid);
    assert_eq!(result.recommendation[0].suggested_seconds, None);
}

#[test]
fn undeleted_pod_window_needs_no_sleep() {
    let mut records = three_pods();
    records.events.retain(|event| !matches!(event.kind, EventKind::Action(_)));
    deletion_seen(&mut records, 5100, "b", 30);
    // Pod c exits by itself, and requests are still routed to it.
    let mut ended = pod_event(8000, "c", Change::Applied);
    if let EventKind::Pod(pod) = &mut ended.kind {
        (pod.phase, pod.ready) = ("Failed".into(), false);
        (pod.containers[0].state, pod.containers[0].exit_code) = (Some("terminated".into()), Some(1));
    }
    records.events.push(ended);
    records.events.sort_by_key(|event| event.at);
    let result = analysed(records).result;
    let ends: Vec<_> =
        result.terminations.iter().map(|t| (t.pod.as_str(), t.mode, t.was_deleted())).collect();
    assert_eq!(ends, [("b", Mode::Other, true), ("c", Mode::Other, false)]);
    assert!(result.terminations[1].windows[0].lower_s > Some(1.9), "{:?}", result.terminations[1]);
    let rec = &result.recommendation[0];
    assert_eq!((rec.terminations, rec.covers_all_seen_seconds), (1, Some(1)), "{rec:?}");
    let covered: Vec<_> = result.what_if.iter().map(|w| (w.windows_covered, w.terminations)).collect();
    assert_eq!(covered[..2], [(0, 1), (1, 1)], "{:?}", result.what_if);
}

/// Makes the app of `c` stop at 0.5 s, after which its endpoint is not ready, deletes the pod at 4 s, and refuses one
/// connection per second from 6 s on, though no pod ends then.
fn down_pod(was_ready: bool) -> Records {
    let mut service = Service::new(if was_ready { &["a", "b", "c"] } else { &["a", "b"] });
    if was_ready {
        service.slice(500, &["a", "b"], &[]);
        service.rules(550, &["a", "b"]);
    }
    delete(&mut service.records, 4000, "c");
    service.load(100, Naming::Nothing, 1);
    let mut records = service.records;
    records.events.push(pod_event(if was_ready { 500 } else { 1000 }, "c", Change::Applied));
    records.events.sort_by_key(|event| event.at);
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.ready = pod.name != "c" || event.at < at(500);
        }
    }
    for row in records.requests.iter_mut().filter(|row| row.scheduled >= at(6000)).step_by(100) {
        row.outcome = Outcome::ConnectRefused;
        (row.connected, row.sent) = (None, None);
    }
    records
}

#[test]
fn down_pod_takes_no_blame_for_later_losses() {
    let dropped = |mut records: Records, balances: Balances| {
        records.info.targets[0].balances = balances;
        if balances == Balances::Requests {
            for row in records.requests.iter_mut().filter(|row| row.outcome != Outcome::Ok) {
                (row.outcome, row.status) = (Outcome::HttpError, Some(502));
                (row.connected, row.sent) = (row.connect_start, row.connect_start);
            }
        }
        let result = analysed(records).result;
        assert_eq!((result.terminations.len(), result.requests.dropped), (1, 4));
        result.terminations[0].requests.dropped.at_most
    };
    let unwatched = |mut records: Records| {
        records.events.retain(|event| !matches!(event.kind, EventKind::EndpointSlice(_)));
        records
    };
    for balances in [Balances::Connections, Balances::Requests] {
        for (what, records) in [
            ("not ready before", down_pod(true)),
            ("never ready", down_pod(false)),
            ("never ready, without slices", unwatched(down_pod(false))),
        ] {
            assert_eq!(dropped(records, balances), 0, "{what}, {balances:?}");
        }
    }
}

#[test]
fn lagging_load_generator_invalidates_run() {
    let mut records = three_pods();
    for row in records.requests.iter_mut().step_by(50) {
        row.connect_start = Some(row.scheduled.shifted_ns(150 * MS));
        (row.connected, row.sent) = (row.connect_start, row.connect_start);
        row.end = row.scheduled.shifted_ns(151 * MS);
    }
    for row in records.requests.iter_mut().skip(1).step_by(500) {
        row.outcome = Outcome::NotSent;
    }
    let invalid = analysed(records).account.invalid;
    let [Invalid::NotAllSent { not_sent: 6, scheduled: 3000, .. }, Invalid::FellBehind { lag_ms, .. }] =
        invalid[..]
    else {
        panic!("{invalid:?}")
    };
    assert!((lag_ms - 150.0).abs() < 0.5, "{lag_ms}");
}

#[test]
fn aborted_empty_run_reports_reason() {
    let mut records = three_pods();
    records.requests.clear();
    records.info.aborted = Some("others changed spec.replicas of Deployment web during the run".into());
    let aborted = records.info.aborted.clone().unwrap();
    let invalid = analysed(records).account.invalid;
    assert_eq!(invalid[..2], [Invalid::Aborted(aborted), Invalid::NothingRecorded]);
}

#[test]
fn enough_terminations_allow_recommendation() {
    let Analysis { result, account, .. } = analysed(many(29));
    let r = &result.recommendation[0];
    assert!(account.grounds[0].refusals.is_empty() && r.coverage >= 0.9, "{r:?}");
    // At most 0.095 + ln(29 / 0.05) / 100 s, which is rounded up to 1, with a margin of 1.
    assert_eq!((r.pre_stop_seconds, r.terminations_needed), (Some(2), 0));
    assert_eq!(result.requests.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, 290)]));
    let w = &result.what_if;
    assert_eq!(w.iter().map(|w| w.pre_stop_seconds).collect::<Vec<_>>(), [0, 1, 2, 5, 10]);
    assert_eq!((w[0].windows_covered, w[0].drops_avoided, w[0].drops_left), (0, 0, 290));
    assert_eq!((w[1].windows_covered, w[1].drops_avoided, w[1].drops_left), (29, 290, 0));
    assert_eq!(analysed(many(28)).result.recommendation[0].pre_stop_seconds, None);
}

#[test]
fn what_if_counts_what_headline_counts() {
    let mut records = three_pods();
    timeout(&mut records, 5020, 40_001);
    timeout(&mut records, 60_000, 40_001);
    let result = analysed(records).result;
    assert!(result.requests.stale_flow_own > 0);
    for what_if in &result.what_if {
        assert_eq!(what_if.drops_avoided + what_if.drops_left, result.requests.lost(), "{what_if:?}");
    }
    // A pod to which nothing routed has no window to cover.
    let mut never_routed = result.terminations[0].clone();
    never_routed.windows[0].censored_reason = Some(NoBound::NeverRouted);
    assert_eq!((never_routed.is_covered_by(0), result.terminations[0].is_covered_by(0)), (None, Some(false)));
}

#[test]
fn reused_port_hits_stale_flow() {
    let mut records = three_pods();
    timeout(&mut records, 5040, 40_001);
    // The first connect times out at 6.04 s; 120 s later its entry is gone.
    timeout(&mut records, 60_000, 40_001);
    timeout(&mut records, 60_001, 40_002);
    timeout(&mut records, 190_000, 40_001);
    let by_cause = analysed(records).result.requests.by_cause;
    assert_eq!(by_cause[&Cause::StaleFlow], 1);
    assert_eq!(by_cause[&Cause::RoutedToDeadPod], 8);
    // There is no other sign of overload.
    assert_eq!(by_cause[&Cause::Unattributed], 2);

    let window = |records| analysed(records).result.terminations[0].windows[0].clone();
    let mut records = three_pods();
    timeout(&mut records, 100, 40_001);
    let before = window(records.clone());
    timeout(&mut records, 5110, 40_001);
    assert_eq!(window(records).lower_s, before.lower_s);
}

#[test]
fn failed_connect_leaves_stale_flow() {
    let stale_later = |ms: i64, first: Outcome, second: Outcome| {
        let mut records = three_pods();
        connect(&mut records, 60_000, 40_001, first);
        connect(&mut records, 60_000 + ms, 40_001, second);
        analysed(records).result.requests.by_cause.get(&Cause::StaleFlow).copied()
    };
    let stale_after = |first, second| stale_later(9_000, first, second);
    use Outcome::{ConnectRefused, ConnectTimeout, ConnectUnreachable, Ok, ResetBeforeResponse};
    for (first, second, expected) in [
        (ConnectTimeout, ConnectUnreachable, Some(1)),
        (ConnectUnreachable, ConnectTimeout, Some(1)),
        (ConnectTimeout, ConnectRefused, Some(1)),
        (ConnectRefused, ConnectTimeout, None),
        (Ok, ConnectTimeout, None),
        (ConnectTimeout, Ok, None),
        (ResetBeforeResponse, ConnectTimeout, Some(1)),
    ] {
        assert_eq!(stale_after(first, second), expected, "{first} {second}");
    }
    assert_eq!(stale_later(11_000, ResetBeforeResponse, ConnectTimeout), None, "that entry lasts 10 s");
    let mut records = three_pods();
    timeout(&mut records, 60_000, 40_001);
    connect(&mut records, 62_000, 40_001, Outcome::Ok);
    timeout(&mut records, 70_000, 40_001);
    let by_cause = analysed(records).result.requests.by_cause;
    assert_eq!(by_cause.get(&Cause::StaleFlow), None, "the answered connect ended the entry: {by_cause:?}");
}

#[test]
fn endpoint_of_other_service_counts_as_usable() {
    let lost = |pods_of_the_other: &[&str]| {
        let mut records = records();
        slice(&mut records, 0, "web", &["a"]);
        slice(&mut records, 0, "other", pods_of_the_other);
        slice(&mut records, 1000, "web", &[]);
        request(&mut records, 3000 * MS, Outcome::ConnectRefused, None);
        analysed(records).result.requests.by_cause
    };
    assert_eq!(lost(&[]), BTreeMap::from([(Cause::NoReadyEndpoint, 1)]));
    assert_eq!(lost(&["z"]), BTreeMap::from([(Cause::Unattributed, 1)]));
}

#[test]
fn charts_include_every_row() {
    let analysis = analysed(three_pods());
    let (result, charts) = (&analysis.result, &analysis.charts);
    let total: u64 = charts.seconds.iter().map(|s| s.ok + s.other + s.dropped.values().sum::<u64>()).sum();
    assert_eq!((charts.seconds.len(), total), (10, result.requests.total));
    assert_eq!(analysis.lost.len() as u64, result.requests.dropped);
    assert!(analysis.lost.iter().all(|lost| lost.in_window && lost.only() == Some(0)));
    assert!(charts.late_ok.iter().all(|l| l.termination == 0 && l.begun_s > 5.01 && l.begun_s < 5.03));
    assert_eq!(
        charts.late_ok.len() as u64 + result.requests.dropped,
        result.terminations[0].windows[0].late_arrivals
    );
    let in_histograms: u64 =
        charts.latency.steady.iter().chain(&charts.latency.disrupted).map(|b| b.count).sum();
    assert_eq!(in_histograms, result.requests.ok);
}

#[test]
fn overlapping_deletions_are_not_isolated() {
    let modes = |second_ms| {
        let mut records = three_pods();
        delete(&mut records, second_ms, "c");
        let result = analysed(records).result;
        result.terminations.iter().map(|t| t.mode).collect::<Vec<_>>()
    };
    assert_eq!(modes(5400), [Mode::Other, Mode::Other]);
    assert_eq!(modes(7000), [Mode::Isolated, Mode::Isolated]);
}

#[test]
fn invalid_run_suggests_no_sleep() {
    let mut records = three_pods();
    for row in records.requests.iter_mut().skip(1).step_by(500) {
        row.outcome = Outcome::NotSent;
    }
    let recommendation = &analysed(records).result.recommendation[0];
    assert_eq!(
        (
            recommendation.covers_all_seen_seconds,
            recommendation.suggested_seconds,
            recommendation.pre_stop_seconds
        ),
        (None, None, None)
    );
}

#[test]
fn verdict_counts_missing_rows_by_source() {
    let mut records = records();
    for n in 0..300 {
        request(&mut records, n * 10 * MS, Outcome::Ok, Some("a"));
    }
    let rows = |recorded, known, in_flight, received| Rows { recorded, known, in_flight, received };
    let source = |name: &str, rows| Source {
        name: name.into(),
        role: Role::Load,
        clock_offset_ns: 0,
        clock_uncertainty_ns: Some(0),
        rows: Some(rows),
    };
    records.info.sources = vec![source("load-0", rows(Some(300), 300, 0, 300))];
    // The announced number covers all sources, and is not compared with sources that report their own.
    let announced = EventKind::LoadEnded { scheduled: 9_000 };
    records.events.push(Event::new(at(10_000), "load-0", announced));
    let scheduled = EventKind::LoadScheduled { of: "load-0".into(), warmup: 0, main: 300 };
    records.events.push(Event::new(at(10_000), "load-0", scheduled));
    let incomplete = |records: &Records| analysed(records.clone()).account.incomplete;
    assert_eq!(incomplete(&records), []);
    let lossy = [("load-1", rows(None, 25_000, 12, 203)), ("load-2", rows(Some(25_000), 25_000, 0, 250))];
    records.info.sources.extend(lossy.map(|(name, rows)| source(name, rows)));
    let expected = lossy.map(|(name, rows)| {
        Incomplete::Missing(Missing::HandedOver { source: name.into(), rows, by_count: None })
    });
    assert_eq!(incomplete(&records), expected);
}

#[test]
fn rowless_requests_enter_no_totals() {
    let mut records = records();
    for n in 0..300 {
        let outcome = if n % 10 == 0 { Outcome::ConnectRefused } else { Outcome::Ok };
        request(&mut records, n * 10 * MS, outcome, Some("a"));
    }
    let source = records.requests[0].source.to_string();
    let rows = Rows { recorded: None, known: 900, in_flight: 0, received: 300 };
    let (role, name) = (Role::Load, source.clone());
    records.info.sources =
        vec![Source { name, role, clock_offset_ns: 0, clock_uncertainty_ns: Some(0), rows: Some(rows) }];
    // All refused requests have a row.
    let outcomes = [(Outcome::Ok, 870), (Outcome::ConnectRefused, 30)].into();
    let counted = EventKind::LoadCounted { of: source.clone(), outcomes };
    records.events.push(Event::new(at(10_000), "coordinator", counted));
    let Analysis { result, account, .. } = analysed(records);
    assert_eq!((result.requests.total, result.requests.ok, result.requests.dropped), (300, 270, 30));
    let without = BTreeMap::from([(Outcome::Ok, 600)]);
    assert_eq!(result.requests.without_rows, [(source.clone(), without.clone())].into());
    let missing = Missing::HandedOver { source, rows, by_count: Some(without) };
    assert_eq!(account.incomplete, [Incomplete::Missing(missing)]);
}
