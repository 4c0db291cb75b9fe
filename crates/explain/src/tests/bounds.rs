//! Reasons why a window has no upper bound, and why the bound for all windows together is larger than the bound for a
//! single one.

use super::*;
use crate::timeline::integrity::Hole;
use rolldrop_record::event::NameAnswer;
use rolldrop_record::service_proxy::{ProxyEvidence, ServiceProxy};

fn only_window(analysis: &Analysis) -> &Window {
    let [t] = &analysis.result.terminations[..] else { panic!("not one termination") };
    &t.windows[0]
}

#[test]
fn record_hole_removes_upper_bound() {
    // The upper bound of the window is 0.123 s after t0.
    for (from, to, is_bounded) in
        [(4000, 4900, true), (4900, 5001, false), (5100, 5110, false), (5200, 6000, true)]
    {
        let records = three_pods();
        let (mut timeline, requests) = Timeline::build(records.log(), records).unwrap();
        let hole = Hole { source: "load-0".into(), from: at(from), to: at(to), requests: 9 };
        timeline.integrity.holes.push(hole);
        let analysis = analyse(&timeline, &requests, None).unwrap();
        let window = only_window(&analysis);
        assert_eq!(window.upper_s.is_some(), is_bounded, "{from} to {to}: {window:?}");
        assert!(window.lower_s.is_some(), "a hole removes no evidence: {window:?}");
        let (from_s, to_s) = (from as f64 / 1e3, to as f64 / 1e3);
        let missing = Unbounded::RequestsMissing { from_s, to_s };
        assert_eq!(analysis.account.unbounded[0][0], (!is_bounded).then_some(missing));
    }
}

#[test]
fn consumers_share_bound_error_probability() {
    let upper_s = |consumers: usize| {
        let mut records = three_pods();
        let web = records.info.targets[0].clone();
        let more = (1..consumers).map(|n| Target { name: format!("web-{n}"), ..web.clone() });
        records.info.targets.extend(more);
        only_window(&analysed(records)).upper_s.unwrap()
    };
    // At 100 connections per second, each of four consumers gets a quarter of the 5 %.
    let longer_s = upper_s(4) - upper_s(1);
    assert!((longer_s - 4f64.ln() / 100.0).abs() < 1e-3, "{longer_s}");
}

#[test]
fn unsettled_wait_leaves_window_open() {
    for (over, is_bounded) in [(4500, true), (5090, false), (5500, true)] {
        let mut records = three_pods();
        let unsettled = EventKind::Unsettled { limit_s: 0.1 };
        records.events.push(Event::new(at(over), "coordinator", unsettled));
        let analysis = analysed(records);
        let window = only_window(&analysis);
        assert_eq!(window.upper_s.is_some(), is_bounded, "{over}: {window:?}");
        let found = &analysis.account.findings;
        assert!(found.contains(&Finding::Unsettled { waits: 1 }), "{over}: {found:?}");
    }
}

#[test]
fn unbounded_window_leaves_summary_open() {
    let mut terminations = analysed(many(4)).result.terminations;
    let window = &mut terminations[3].windows[0];
    (window.lower_s, window.upper_s, window.censored_reason) = (Some(3.2), None, Some(NoBound::Unsettled));
    let [summary] = &crate::conclude::recommend::summaries(&terminations)[..] else { panic!() };
    assert_eq!((summary.max, summary.p99, summary.p90), (None, None, None), "one window may be the longest");
    assert!(summary.p50.is_some() && summary.lower.unwrap().1 == 3.2, "{summary:?}");
}

/// Analyses 29 pods terminated 2 s apart, with a client that caches a DNS response for `period_s` seconds.
fn with_a_period(period_s: f64) -> (Recommendation, Grounds) {
    let mut records = many(29);
    let answer = NameAnswer { name: "web".into(), addresses: Vec::new(), ttl_s: Some(period_s), error: None };
    records.events.push(Event::new(at(0), "coordinator", EventKind::NameAnswer(answer)));
    let Analysis { mut result, mut account, .. } = analysed(records);
    (result.recommendation.remove(0), account.grounds.remove(0))
}

#[test]
fn sleep_covers_full_dns_period() {
    // Every window ends within 0.2 s, but only because of the phase; the endpoint removal took 0.8 s to be seen.
    let (at_all_phases, grounds) = with_a_period(5.0);
    assert_eq!(grounds.refusals, []);
    assert_eq!(at_all_phases.covers_all_seen_seconds, Some(6));
    assert_eq!(at_all_phases.pre_stop_seconds, Some(7));
    let [clock] = &grounds.basis.clocks[..] else { panic!("{grounds:?}") };
    assert_eq!((clock.consumer.as_str(), clock.period_s), ("service web", 5.0));

    let (at_one_phase, grounds) = with_a_period(2.0);
    assert_eq!(at_one_phase.pre_stop_seconds, None);
    assert!(
        matches!(&grounds.refusals[..], [NoRecommendation::InPhase(clock)] if clock.period_s == 2.0),
        "{grounds:?}"
    );
    // A DNS response that is never cached has no phase.
    assert_eq!(with_a_period(0.0).1.refusals, []);
}

/// Analyses a run with three pods. One is terminated, and its successor in the same set has this name; then another one
/// is terminated.
fn of_a_set(successor: &str) -> Analysis {
    let mut service = Service::new(&["a", "b", "c"]);
    service.delete(2000, "b");
    service.slice(2020, &["a", "c"], &["b"]);
    service.rules(2100, &["a", "c"]);
    service.slice(2260, &["a", "c"], &[]);
    let mut started = pod_event(3000, successor, Change::Applied);
    if let EventKind::Pod(event) = &mut started.kind {
        event.uid = "uid-successor".into();
    }
    service.records.events.push(started);
    // This test's load looks up dead pods by name.
    let deleted = service.deleted.remove("b");
    service.slice(3300, &["a", successor, "c"], &[]);
    service.rules(3350, &["a", successor, "c"]);
    service.delete(6000, "a");
    service.slice(6020, &[successor, "c"], &["a"]);
    service.rules(6400, &[successor, "c"]);
    service.slice(6260, &[successor, "c"], &[]);
    service.load(300, Naming::Nothing, 7);
    assert!(deleted.is_some());
    analysed(service.records)
}

#[test]
fn same_named_successor_counts_as_alive() {
    let windows = |analysis: Analysis| -> Vec<Option<f64>> {
        analysis.result.terminations.iter().map(|t| t.windows[0].upper_s).collect()
    };
    let (same, other) = (windows(of_a_set("b")), windows(of_a_set("d")));
    assert_eq!(same[1], other[1]);
    assert!(same[1].is_some_and(|upper_s| upper_s >= 0.4), "{same:?}");
}

/// Counts, among 200 seeded windows, those whose upper bound is more than half a second too early. One of two pods
/// stays in the rules for 5 s after its deletion: among 1,000 connections, some run of consecutive answers is long by
/// chance.
fn windows_ended_by_luck(naming: Naming) -> usize {
    let is_short = |seed: &u64| {
        let mut service = Service::new(&["a", "b"]);
        service.delete(4000, "b");
        service.slice(4020, &["a"], &["b"]);
        service.slice(4260, &["a"], &[]);
        service.rules(9000, &["a"]);
        service.load(200, naming, *seed);
        let upper_s = only_window(&analysed(service.records)).upper_s;
        upper_s.is_some_and(|upper_s| upper_s < 4.5)
    };
    (0..200).filter(is_short).count()
}

#[test]
fn lucky_answers_end_no_window() {
    for naming in [Naming::Header, Naming::Nothing] {
        assert_eq!(windows_ended_by_luck(naming), 0, "{naming:?}");
    }
}

/// Sends load to a Service. The kernel shows which pod each connection reached, except for those refused in the period
/// `unknown_ms`, for which it has no entry.
fn tracked(service: Service, pods: &[String], unknown_ms: std::ops::Range<i64>) -> Records {
    let mut records = service.records;
    let address = |pod: &str| format!("10.0.1.{}", pod.as_bytes()[0]);
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.ip = Some(address(&pod.name));
        }
    }
    let is_unknown = |row: &RequestRow| {
        row.outcome == Outcome::ConnectRefused
            && (at(unknown_ms.start)..at(unknown_ms.end)).contains(&row.scheduled)
    };
    for (row, pod) in records.requests.iter_mut().zip(pods) {
        let routed_to = format!("{}:8080", address(pod)).parse().unwrap();
        row.routed_to = (!is_unknown(row)).then_some(routed_to);
    }
    let routed = records.requests.iter().filter(|row| row.routed_to.is_some()).count();
    let ended = EventKind::ConntrackEnded {
        connections: records.requests.len() as u64,
        routed: routed as u64,
        service_proxy: Some(ServiceProxy::Nftables),
    };
    records.events.push(Event::new(at(10_000), "load-0", ended));
    // Nothing else shows the implementation of Services.
    records.info.cluster.dataplane = ServiceProxy::Unknown;
    records
}

/// Analyses a rollout in which the kernel has no entry for the first refused connection; with a gap, the kernel may
/// have reported more at that time than could be read.
fn with_one_unknown(has_gap: bool) -> Analysis {
    let mut service = Service::new(&["a", "b", "c"]);
    service.delete(5000, "b");
    service.slice(5020, &["a", "c"], &["b"]);
    service.rules(5120, &["a", "c"]);
    service.slice(5260, &["a", "c"], &[]);
    let pods = service.load(300, Naming::Nothing, 1);
    let refused = |row: &&RequestRow| row.outcome == Outcome::ConnectRefused;
    let first = service.records.requests.iter().find(refused).unwrap().scheduled;
    let first_ms = (first.ns_since(at(0))) / MS;
    let mut records = tracked(service, &pods, first_ms..first_ms + 1);
    if has_gap {
        let from = first.shifted_ns(-50 * MS);
        let gap = EventKind::ConntrackGap { from };
        records.events.push(Event::new(from.shifted_ns(100 * MS), "load-0", gap));
    }
    analysed(records)
}

#[test]
fn missing_endpoint_outranks_rule_swap() {
    // The rules add the new pods 80 ms after the slices do.
    let (mut service, pods) = all_at_once(Naming::Nothing, 1);
    let since = at(6060)..at(6130);
    for row in service.records.requests.iter_mut().filter(|row| since.contains(&row.scheduled)) {
        (row.outcome, row.connected, row.sent) = (Outcome::ConnectRefused, None, None);
        row.end = row.scheduled.shifted_ns(MS);
    }
    let result = analysed(tracked(service, &pods, 6060..6130)).result;
    assert_eq!(result.requests.by_cause.get(&Cause::RuleSwap), None, "{:?}", result.requests.by_cause);
    assert!(result.requests.by_cause[&Cause::NoReadyEndpoint] >= 20, "{:?}", result.requests.by_cause);
}

#[test]
fn untracked_refusal_is_rule_swap() {
    let of = |analysis: &Analysis| {
        let dropped = &analysis.result.terminations[0].requests.dropped;
        (analysis.result.requests.by_cause.get(&Cause::RuleSwap).copied(), *dropped)
    };
    let analysis = with_one_unknown(false);
    let cluster = &analysis.result.cluster;
    assert_eq!(cluster.dataplane, ServiceProxy::Nftables);
    assert_eq!(cluster.dataplane_from, Some(ProxyEvidence::ProxyMode));
    let (swapped, dropped) = of(&analysis);
    assert_eq!((swapped, dropped.at_least), (Some(1), dropped.at_most));
    // If the entry may have been missed, the pod that had just died is the better explanation.
    let (swapped, with_gap) = of(&with_one_unknown(true));
    assert_eq!((swapped, with_gap.at_most), (None, dropped.at_most + 1));
}

#[test]
fn pod_dropped_while_alive_is_not_blamed_later() {
    // Behind a gateway, `b` gets requests for half a second after its deletion, and exits 3 s later.
    let with_502_at = |ms: i64| {
        let mut records = records();
        records.info.targets[0].balances = Balances::Requests;
        delete(&mut records, 2000, "b");
        records.events.last_mut().unwrap().at = at(5500);
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.containers[0].pre_stop_sleep_s = Some(3);
            }
        }
        for i in 0..3000i64 {
            let ns = i * 10 * MS / 3;
            let pod = match ["a", "b", "c"][usize::try_from(i % 3).unwrap()] {
                "b" if ns >= 2500 * MS => "a",
                pod => pod,
            };
            request(&mut records, ns, Outcome::Ok, Some(pod));
        }
        request(&mut records, ms * MS, Outcome::HttpError, None);
        records.requests.last_mut().unwrap().status = Some(502);
        let result = analysed(records).result;
        let lower_s = result.terminations[0].windows[0].lower_s.unwrap();
        (lower_s, result.requests.by_cause.into_keys().collect::<Vec<_>>())
    };
    let (lower_s, causes) = with_502_at(6000);
    assert!(lower_s < 0.5, "{lower_s}");
    assert_eq!(causes, [Cause::GatewayError]);
}
