//! Synthetic run with three pods, and properties that hold for any run.

mod alone;
mod answers;
mod bounds;
mod clocks;
mod corners;
mod once;
mod pictures;
mod recorded;
mod rollouts;
mod said;
mod sound;
mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::model::account::*;
use super::model::*;
use super::*;
use rolldrop_record::event::{Action, ActionName, Change};
use rolldrop_record::load::Pacing;
use rolldrop_record::run_info::{Balances, BalancesBecause, Target};
use rolldrop_record::{Event, EventKind, Outcome, Phase, Records, RequestRow, ServedEnd, ServedRow, Stamp};
use rolldrop_simulation::*;

/// Analyses the run both in one pass and step by step, and compares the results.
fn analysed(records: Records) -> Analysis {
    let records = ended(records);
    let (timeline, requests) = Timeline::build(records.log(), records.clone()).unwrap();
    let read_again = analyse(&timeline, &requests, None).unwrap();
    let analysis = Analysed::of(records.log(), records).unwrap().analysis;
    assert_eq!(format!("{analysis:?}"), format!("{read_again:?}"));
    analysis
}

#[test]
fn refused_connections_extend_pod_window() {
    let Analysis { result, account, .. } = analysed(three_pods());
    assert_eq!(result.verdict, Verdict::Valid);
    let r = &result.requests;
    assert_eq!((r.total, r.ok, r.dropped, r.in_window), (3000, 2993, 7, 7));
    assert_eq!(r.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, 7)]));
    let t = &result.terminations[0];
    assert_eq!((t.pod.as_str(), t.mode, t.requests.dropped), ("b", Mode::Isolated, Bounded::exactly(7)));
    assert_eq!(result.groups.len(), 1);
    assert_eq!((&result.groups[0].terminations[..], result.groups[0].dropped), (&[0][..], 7));
    let w = &t.windows[0];
    // The last failure begins at 93.3 ms; at 100/s, a silence of 3.0/λ = 30 ms bounds the end of the window.
    assert!((w.lower_s.unwrap() - 0.083).abs() < 0.001, "{w:?}");
    assert_eq!((w.lower_basis, w.upper_basis), (Some(WindowBasis::Failures), Some(WindowBasis::Named)));
    assert!((w.upper_s.unwrap() - 0.123).abs() < 0.001, "{w:?}");
    assert!((t.dead_seconds.unwrap() - 0.07).abs() < 0.001, "{t:?}");
    let advice = &result.recommendation[0];
    assert_eq!((advice.pre_stop_seconds, advice.terminations_needed), (None, 28));
    assert_eq!(advice.covers_all_seen_seconds, Some(1));
    assert_eq!(account.findings[0].cause(), Some(Cause::RoutedToDeadPod));
}

#[test]
fn in_flight_losses_count_towards_prior_rate() {
    let told = |records| {
        let window = analysed(records).result.terminations[0].windows[0].clone();
        (window.rate_before.round(), window.lower_s, window.upper_s, window.late_arrivals)
    };
    let unnamed = told(three_pods_killed_in_flight(None));
    assert_eq!(unnamed, told(three_pods_killed_in_flight(Some("b"))));
    assert!(unnamed.0 > 95.0, "{unnamed:?}");
    // The requests' pod is unknown here, so they are not evidence for either pod.
    let mut records = three_pods_killed_in_flight(None);
    delete(&mut records, 5000, "c");
    let either = told(records);
    assert!(either.0 < 70.0, "{either:?}");
}

#[test]
fn shared_losses_stay_exact_by_group() {
    let mut records = three_pods();
    delete(&mut records, 5000, "c");
    let alone = records.clone();
    // Nothing shows whether `c` still accepted connections.
    records.requests.iter_mut().filter(|row| row.scheduled >= at(5000)).for_each(|row| row.pod = None);
    let result = analysed(records).result;
    assert_eq!((result.requests.dropped, result.requests.ambiguous, result.requests.in_window), (7, 7, 7));
    assert_eq!(result.requests.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, 7)]));
    let either = Bounded { at_least: 0, at_most: 7, estimate: 3.5 };
    for t in &result.terminations {
        assert_eq!(t.requests.dropped, either, "{t:?}");
        assert_eq!(t.requests.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, either)]));
        assert!(t.dead_seconds.unwrap() > 0.0, "{t:?}");
    }
    let [group] = &result.groups[..] else { panic!("{:?}", result.groups) };
    assert_eq!((&group.terminations[..], group.dropped), (&[0, 1][..], 7));
    // One of the two windows lasted until the last refusal.
    assert!(group.windows[0].lower_s.unwrap() > 0.082, "{group:?}");
    // As `c` was still answering, it refused none.
    let terminations = analysed(alone).result.terminations;
    let dropped: Vec<Bounded> = terminations.iter().map(|t| t.requests.dropped).collect();
    assert_eq!(dropped, [Bounded::exactly(7), Bounded::exactly(0)]);
}

#[test]
fn cleanup_adds_no_termination() {
    let mut records = three_pods();
    records.events.push(Event::new(at(10_100), "coordinator", EventKind::LoadEnded { scheduled: 3000 }));
    delete(&mut records, 11_000, "a");
    assert_eq!(analysed(records).result.terminations.len(), 1);
}

#[test]
fn early_load_end_leaves_window_open() {
    let mut records = three_pods();
    records.requests.retain(|r| r.scheduled < at(5110));
    let window = analysed(records).result.terminations[0].windows[0].clone();
    assert_eq!(window.upper_s, None);
    assert_eq!(window.censored_reason, Some(NoBound::LoadEnded));
}

#[test]
fn open_windows_share_one_finding() {
    let mut records = three_pods();
    delete(&mut records, 5000, "c");
    records.requests.retain(|r| r.scheduled < at(5110));
    let findings = analysed(records).account.findings;
    let pods = findings.iter().filter_map(|finding| match finding {
        Finding::Unbounded { consumer, pods, .. } => Some((consumer.as_str(), pods.len())),
        _ => None,
    });
    assert_eq!(pods.collect::<Vec<_>>(), [("service web", 2)], "{findings:?}");
}

#[test]
fn proxy_rows_distinguish_refusals_from_kills() {
    let mut records = three_pods();
    for (i, ended) in
        [ServedEnd::UpstreamRefused, ServedEnd::UpstreamEof, ServedEnd::UpstreamReset].into_iter().enumerate()
    {
        let row = records.requests.iter().filter(|r| r.outcome == Outcome::ConnectRefused).nth(i).unwrap();
        records.served.push(served(row, "b", ended));
    }
    for row in &mut records.requests {
        if row.outcome == Outcome::ConnectRefused {
            row.outcome = Outcome::ResetBeforeResponse;
        }
    }
    let Analysis { result, account, .. } = analysed(records);
    assert!(account.findings.contains(&Finding::Measurement(Measurement::ResetForRefused(1))));
    let by_cause = result.requests.by_cause;
    assert_eq!(by_cause[&Cause::KilledInFlight], 1);
    assert_eq!(by_cause[&Cause::AcceptQueueReset], 1);
    assert_eq!(by_cause[&Cause::RoutedToDeadPod], 5);
}

#[test]
fn open_row_shows_that_pod_was_serving() {
    let mut records = three_pods();
    let lost = records.requests.iter_mut().find(|row| row.outcome == Outcome::ConnectRefused).unwrap();
    lost.outcome = Outcome::StreamStalled;
    let open = ServedRow { status: Some(200), ..served(lost, "b", ServedEnd::Open) };
    records.served.push(open);
    let result = analysed(records).result;
    assert_eq!(result.requests.by_cause[&Cause::KilledInFlight], 1);
    assert_eq!(result.terminations[0].requests.by_cause[&Cause::KilledInFlight], Bounded::exactly(1));
}

/// Counts, among 400 seeded trials, those in which the upper bound was too small. This may happen with probability α =
/// 0.05, so the probability of more than 48 is below 10⁻⁶. Pod `b` gets one in `before(ms)` connections before its
/// deletion at 5 s, and one in `after` from then on.
fn bounds_missed(seed: u64, before: fn(i64) -> u32, after: u32) -> u32 {
    let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
    let mut missed = 0;
    for _ in 0..400 {
        let mut records = records();
        delete(&mut records, 5000, "b");
        for i in 0..1800i64 {
            let ns = i * 10 * MS / 3;
            let one_in = if ns < 5000 * MS { before(ns / MS) } else { after };
            let to_b = rng.random_range(0..one_in) == 0;
            let refused = ns >= 5010 * MS;
            match (to_b, ns < 5200 * MS) {
                (true, true) if refused => request(&mut records, ns, Outcome::ConnectRefused, None),
                (true, true) => request(&mut records, ns, Outcome::Ok, Some("b")),
                _ => request(&mut records, ns, Outcome::Ok, Some("a")),
            }
        }
        let window = analysed(records).result.terminations[0].windows[0].clone();
        assert!(window.lower_s.is_none_or(|lower_s| lower_s <= 0.200), "{window:?}");
        missed += u32::from(window.upper_s.unwrap() < 0.200);
    }
    missed
}

#[test]
fn upper_bound_reaches_stated_confidence() {
    let missed = bounds_missed(7, |_| 3, 3);
    assert!(missed <= 48, "{missed} of 400");
}

/// While another pod is being replaced, this pod gets half of all connections instead of a quarter.
#[test]
fn upper_bound_survives_falling_share() {
    let missed = bounds_missed(8, |ms| if ms < 4000 { 2 } else { 4 }, 4);
    assert!(missed <= 48, "{missed} of 400");
}

proptest! {
    #[test]
    fn accounting_balances_for_any_rows(
        rows in proptest::collection::vec((0i64..10_000, 0..Outcome::ALL.len(), 0..4usize, any::<bool>()), 0..200),
    ) {
        let mut records = records();
        delete(&mut records, 3000, "a");
        delete(&mut records, 3100, "b");
        for (ms, outcome, pod, warmup) in rows {
            let pod = ["a", "b", "c"].get(pod).copied();
            request(&mut records, ms * MS, Outcome::ALL[outcome], pod);
            let row = records.requests.last_mut().unwrap();
            row.conn_reused = ms % 3 == 0;
            row.phase = if warmup { Phase::Warmup } else { Phase::Main };
        }
        let rows = records.requests.len() as u64;
        let result = analysed(records).result;
        prop_assert!(result.requests.closes());
        prop_assert_eq!(result.requests.total + result.requests.warmup, rows);
        let explained: u64 = result.groups.iter().map(|group| group.dropped).sum();
        prop_assert!(explained <= result.requests.dropped);
        for group in &result.groups {
            let of = || group.terminations.iter().map(|&e| &result.terminations[e].requests.dropped);
            prop_assert!(of().map(|n| n.at_least).sum::<u64>() <= group.dropped);
            prop_assert!((of().map(|n| n.estimate).sum::<f64>() - group.dropped as f64).abs() < 1e-6);
            prop_assert!(of().all(|n| n.at_least as f64 <= n.estimate && n.estimate <= n.at_most as f64 + 1e-9));
        }
        for t in &result.terminations {
            let upper_s = t.windows[0].upper_s.unwrap_or(f64::INFINITY);
            prop_assert!(t.dead_seconds.is_none_or(|dead_s| dead_s <= upper_s));
        }
    }

    #[test]
    fn row_order_leaves_result_unchanged(
        rows in proptest::collection::vec(
            (0i64..10_000, 0..4 * Outcome::ALL.len(), 0..4usize, 0..5u64, 1..3000i64),
            0..60,
        ),
        seed in any::<u64>(),
    ) {
        let mut records = records();
        delete(&mut records, 3000, "a");
        delete(&mut records, 3100, "b");
        for (ms, outcome, pod, conn, took_ms) in rows {
            let outcome = Outcome::ALL.get(outcome).copied().unwrap_or(Outcome::Ok);
            request(&mut records, ms * MS, outcome, ["a", "b", "c"].get(pod).copied());
            let row = records.requests.last_mut().unwrap();
            row.conn = Some(conn);
            row.conn_reused = ms % 3 > 0;
            row.stream = (conn > 2).then_some(1);
            row.bytes_received = conn % 2;
            (row.local_port, row.remote_addr) = (Some(40_001), Some("10.0.0.9:80".into()));
            row.end = row.scheduled.shifted_ns(took_ms * MS);
            row.phase = if ms < 500 { Phase::Warmup } else { Phase::Main };
        }
        let mut shuffled = records.clone();
        shuffled.requests.shuffle(&mut rand::rngs::SmallRng::seed_from_u64(seed));
        let [one, other] = [records, shuffled].map(analysed);
        prop_assert_eq!(one.result, other.result);
        prop_assert_eq!(one.charts, other.charts);
    }
}
