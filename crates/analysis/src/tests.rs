//! A made-up run with three pods, and what must hold for any run.

mod answers;
mod bounds;
mod clocks;
mod corners;
mod expected;
mod looks;
mod once;
mod pictures;
mod recorded;
mod remedies;
pub(crate) mod rollouts;
mod said;
mod sound;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::model::*;
use super::*;
use crate::judge::gate;
use rolldrop_record::event::{Action, ActionName, Change, ContainerState, PodEvent};
use rolldrop_record::expect::{Amount, DroppedLimits, Span, WindowLimits};
use rolldrop_record::run_info::{Balances, BalancesBecause, ClusterInfo, LoadPlan, Pacing, Target, Tool};
use rolldrop_record::{
    Bounds, Event, EventKind, Expect, Outcome, Phase, Protocol, Records, RequestId, RequestRow, RunId,
    RunInfo, ServedEnd, ServedRow, Stamp,
};

const MS: i64 = 1_000_000;

fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * MS)
}

/// Returns the part that all ids of a made-up run share.
pub(crate) fn run() -> RunId {
    "k3v9x2abcdef".parse().unwrap()
}

fn records() -> Records {
    let info = RunInfo {
        format: 2,
        tool: Tool { name: "rolldrop".into(), version: "0".into() },
        run: run(),
        name: "made-up".into(),
        scenario: serde_json::Value::Null,
        expect: Expect::default(),
        cluster: ClusterInfo::default(),
        targets: vec![Target {
            name: "web".into(),
            url: "http://web".into(),
            consumer: "service web".into(),
            balances: Balances::Connections,
            balances_because: BalancesBecause::Assumed,
            service: None,
            routing: None,
            node: None,
        }],
        load: LoadPlan {
            pacing: Pacing::Constant,
            rate: 300.0,
            duration_s: 10.0,
            warmup_s: 0.0,
            connect_timeout_s: 1.0,
            response_timeout_s: 5.0,
            success: vec![(200, 299)],
            ..LoadPlan::default()
        },
        sources: Vec::new(),
        started: at(0),
        ended: Some(at(10_000)),
        complete: true,
        interrupted: false,
        max_busy: None,
        aborted: None,
        looks: None,
        rounds: None,
        policy: rolldrop_record::Policy::default(),
        events: None,
    };
    let load = EventKind::LoadStarted { rate: 300.0, duration_s: 10.0, warmup_s: 0.0 };
    let mut events = vec![Event::new(at(0), "coordinator", load)];
    for pod in ["a", "b", "c"] {
        events.push(pod_event(-1000, pod, Change::Applied));
    }
    Records {
        info,
        events,
        requests: Vec::new(),
        served: Vec::new(),
        torn: Vec::new(),
        corrupt: Vec::new(),
        altered: Vec::new(),
    }
}

fn pod_event(ms: i64, pod: &str, change: Change) -> Event {
    let event = PodEvent {
        change,
        namespace: "default".into(),
        name: pod.into(),
        uid: format!("uid-{pod}"),
        resource_version: "1".into(),
        node: Some("n1".into()),
        ip: Some("10.0.0.1".into()),
        phase: "Running".into(),
        ready: true,
        deletion_timestamp: None,
        deletion_grace_s: None,
        grace_s: 30,
        disruption_target: None,
        disruption_message: None,
        reason: None,
        owner: None,
        containers: serde_json::from_value::<Vec<ContainerState>>(serde_json::json!([
            {"name": "app", "sidecar": false, "pre_stop_other": false, "state": "running", "restarts": 0}
        ]))
        .unwrap(),
    };
    Event::new(at(ms), "coordinator", EventKind::Pod(event))
}

/// Deletes `pod` at `ms`; answered 10 ms later, gone 800 ms later.
fn delete(records: &mut Records, ms: i64, pod: &str) {
    let action = Action {
        is_undone: false,
        disruption: 0,
        action: ActionName::DeletePod,
        mode: Some(Mode::Isolated),
        pod: Some(pod.into()),
        uid: Some(format!("uid-{pod}")),
        answered: at(ms + 10),
        status: Some(200),
        error: None,
    };
    records.events.push(Event::new(at(ms), "coordinator", EventKind::Action(action)));
    records.events.push(pod_event(ms + 800, pod, Change::Deleted));
}

/// Adds a request on a fresh connection that begins at `ns` and ends 1 ms later.
fn request(records: &mut Records, ns: i64, outcome: Outcome, pod: Option<&str>) {
    let begun = at(0).shifted_ns(ns);
    let seq = records.requests.len() as u64;
    let end = begun.shifted_ns(MS);
    records.requests.push(RequestRow {
        connect_start: Some(begun),
        connected: Some(begun),
        sent: Some(begun),
        outcome,
        conn: Some(seq),
        pod: pod.map(Arc::from),
        final_outcome: outcome,
        ..RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, begun, end)
    });
}

/// Returns a request as the proxy of a pod recorded it.
fn served(row: &RequestRow, pod: &str, ended: ServedEnd) -> ServedRow {
    served_at(
        [row.scheduled, row.scheduled, row.end],
        RequestId::new(&run(), &row.source, row.seq),
        pod,
        ended,
    )
}

/// Returns a request as the proxy of a pod recorded it, with the times of its connection, its head and its end.
pub(crate) fn served_at(times: [Stamp; 3], id: RequestId, pod: &str, ended: ServedEnd) -> ServedRow {
    let [accepted, head, end] = times;
    ServedRow {
        source: pod.into(),
        request: Some(id),
        pod: pod.into(),
        peer_addr: "10.0.0.9:4000".into(),
        protocol: Protocol::Http1,
        accepted,
        head: Some(head),
        end,
        status: None,
        grpc_status: None,
        ended,
        detail: None,
        conn: 0,
        conn_first_request: true,
        stream: None,
        bytes_from_client: None,
        bytes_from_app: None,
    }
}

/// Returns 10 s at 300 requests/s over three pods in turn; `b` is deleted at 5 s, refuses from 30 ms on and is routed
/// to for 100 ms.
fn three_pods() -> Records {
    let mut records = records();
    delete(&mut records, 5000, "b");
    for i in 0..3000i64 {
        let ns = i * 10 * MS / 3;
        let pod = ["a", "b", "c"][usize::try_from(i % 3).unwrap()];
        match ns / MS - 5000 {
            late if pod != "b" || late < 30 => request(&mut records, ns, Outcome::Ok, Some(pod)),
            late if late < 100 => request(&mut records, ns, Outcome::ConnectRefused, None),
            _ => request(&mut records, ns, Outcome::Ok, Some("a")),
        }
    }
    records
}

/// Adds the end of the load, as a complete run has it.
fn ended(mut records: Records) -> Records {
    if let Some(end) = records.requests.iter().map(|row| row.end).max() {
        let ended = EventKind::LoadEnded { scheduled: records.requests.len() as u64 };
        records.events.push(Event::new(end, "coordinator", ended));
    }
    records
}

/// Analyses the run at once, and also step by step, to compare.
pub(crate) fn analysed(records: Records) -> Analysis {
    let records = ended(records);
    let (timeline, requests) = Timeline::build(records.log(), records.clone()).unwrap();
    let read_again = analyse(&timeline, &requests, None).unwrap();
    let analysis = Analysed::of(records.log(), records).unwrap().analysis;
    assert_eq!(format!("{analysis:?}"), format!("{read_again:?}"));
    analysis
}

#[test]
fn refused_connections_extend_pod_window() {
    let result = analysed(three_pods()).result;
    assert_eq!(result.verdict, Verdict::Valid);
    let r = &result.requests;
    assert_eq!((r.total, r.ok, r.dropped, r.in_window), (3000, 2993, 7, 7));
    assert_eq!(r.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, 7)]));
    let t = &result.terminations[0];
    assert_eq!((t.pod.as_str(), t.mode, t.requests.dropped), ("b", Mode::Isolated, Bounded::exactly(7)));
    assert_eq!(result.groups.len(), 1);
    assert_eq!((&result.groups[0].terminations[..], result.groups[0].dropped), (&[0][..], 7));
    let w = &t.windows[0];
    // The last of them begins at 93.3 ms; at 100/s, 3.0/λ = 30 ms of silence bound the end.
    assert!((w.lower_s.unwrap() - 0.083).abs() < 0.001, "{w:?}");
    assert_eq!((w.lower_basis, w.upper_basis), (Some(WindowBasis::Failures), Some(WindowBasis::Named)));
    assert!((w.upper_s.unwrap() - 0.123).abs() < 0.001, "{w:?}");
    assert!((t.dead_seconds.unwrap() - 0.07).abs() < 0.001, "{t:?}");
    let advice = &result.recommendation[0];
    assert_eq!((advice.pre_stop_seconds, advice.terminations_needed), (None, 28));
    assert_eq!(advice.covers_all_seen_seconds, Some(1));
    assert_eq!(result.findings[0].cause, Some(Cause::RoutedToDeadPod));
}

/// Returns [`three_pods`], but requests take 500 ms, and `b` is killed at 5.2 s with the requests that it has; these
/// may be known to be its own.
fn three_pods_killed_in_flight(named: Option<&str>) -> Records {
    let mut records = records();
    delete(&mut records, 5000, "b");
    for i in 0..3000i64 {
        let ns = i * 10 * MS / 3;
        let pod = match (["a", "b", "c"][usize::try_from(i % 3).unwrap()], ns / MS) {
            ("b", 5100..) => "a",
            (pod, _) => pod,
        };
        let is_cut_off = pod == "b" && ns >= 4700 * MS;
        let (outcome, told) = match is_cut_off {
            true => (Outcome::EofBeforeResponse, named),
            false => (Outcome::Ok, Some(pod)),
        };
        request(&mut records, ns, outcome, told);
        records.requests.last_mut().unwrap().end = at(if is_cut_off { 5200 } else { ns / MS + 500 });
    }
    records
}

#[test]
fn killed_requests_count_in_prior_rate() {
    let told = |records| {
        let window = analysed(records).result.terminations[0].windows[0].clone();
        (window.rate_before.round(), window.lower_s, window.upper_s, window.late_arrivals)
    };
    let unnamed = told(three_pods_killed_in_flight(None));
    assert_eq!(unnamed, told(three_pods_killed_in_flight(Some("b"))));
    assert!(unnamed.0 > 95.0, "{unnamed:?}");
    // Their pod cannot be told here, so they are no evidence for either pod.
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
    // Nothing tells whether `c` still accepted any.
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
    // One of both windows lasted until the last refusal.
    assert!(group.windows[0].lower_s.unwrap() > 0.082, "{group:?}");
    // As `c` still answered, it refused none.
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
    assert!(window.censored.unwrap().starts_with("the load ended"));
}

#[test]
fn open_windows_share_one_finding() {
    let mut records = three_pods();
    records.requests.retain(|r| r.scheduled < at(5110));
    let one = analysed(records).result.terminations.remove(0);
    let other = Termination { pod: "c".into(), ..one.clone() };
    let records = three_pods();
    let (timeline, _) = Timeline::build(records.log(), records).unwrap();
    let both = [one, other];
    let told = findings::bounds::findings(&timeline, &both).map(|finding| finding.what);
    let told: Vec<String> = told.collect();
    assert_eq!(told, ["the windows of 2 pods towards service web have no upper bound"]);
}

#[test]
fn proxy_rows_separate_refused_from_killed() {
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
    let result = analysed(records).result;
    let told = result.findings.iter().map(|finding| finding.what.as_str());
    assert_eq!(told.filter(|what| *what == "1 request was reset that the app would have refused").count(), 1);
    let by_cause = result.requests.by_cause;
    assert_eq!(by_cause[&Cause::KilledInFlight], 1);
    assert_eq!(by_cause[&Cause::AcceptQueueReset], 1);
    assert_eq!(by_cause[&Cause::RoutedToDeadPod], 5);
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
        |r: &RunResult, e: &Expect| gate::check(r, e).iter().map(|c| c.verdict).collect::<Vec<_>>();
    use model::CheckVerdict::{Fail, Inconclusive, Pass};
    assert_eq!(verdicts(&result, &expect), [Pass, Fail, Pass]);
    assert_eq!(gate::verdict(&gate::check(&result, &expect)), Fail);
    expect.windows = Some(longest(100));
    assert_eq!(verdicts(&result, &expect)[2], Inconclusive);
    expect.windows = Some(longest(50));
    assert_eq!(verdicts(&result, &expect)[2], Fail);
    let invalid = RunResult { verdict: Verdict::Invalid { why: vec!["x".into()] }, ..result };
    assert_eq!(verdicts(&invalid, &expect), [Inconclusive; 3]);
}

/// Counts, in 400 seeded trials, those in which the upper bound was too small, which it may be with probability α =
/// 0.05: above 48 of them the chance is below 10⁻⁶. Pod `b` gets one connection in `before(ms)` before its deletion at
/// 5 s, one in `after` from then on.
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
fn upper_bound_keeps_confidence() {
    let missed = bounds_missed(7, |_| 3, 3);
    assert!(missed <= 48, "{missed} of 400");
}

/// While another pod is replaced, this one gets half of all connections instead of a quarter.
#[test]
fn upper_bound_survives_falling_share() {
    let missed = bounds_missed(8, |ms| if ms < 4000 { 2 } else { 4 }, 4);
    assert!(missed <= 48, "{missed} of 400");
}

proptest! {
    #[test]
    fn accounting_closes_for_any_rows(
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
