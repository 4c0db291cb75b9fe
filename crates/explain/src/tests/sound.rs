//! Reasons why a run is invalid or partial, and the report of a run that measured nothing.

use super::*;
use crate::conclude::validity::SEND_LAG_FLOOR_MS;
use crate::model::{FindingKind, LoadResult, SendLag};
use crate::timeline::Integrity;
use rolldrop_record::event::MachineSample;
use rolldrop_record::load::Pacing;

#[test]
fn service_time_starts_at_actual_send() {
    let mut records = records();
    for i in 0..100 {
        request(&mut records, i * 10 * MS, Outcome::Ok, Some("a"));
        let row = records.requests.last_mut().unwrap();
        // The connect is 2 ms late, and writing the request takes another 80 ms, as with TLS.
        row.connect_start = Some(row.scheduled.shifted_ns(2 * MS));
        row.sent = Some(row.scheduled.shifted_ns(82 * MS));
        row.end = row.scheduled.shifted_ns(83 * MS);
    }
    let result = analysed(records).result;
    let about = |ms: f64, wanted: f64| (ms / wanted - 1.0).abs() < 2e-3;
    assert!(about(result.latency_ms.response.p50, 83.0), "{:?}", result.latency_ms);
    assert!(about(result.latency_ms.service.p50, 81.0), "{:?}", result.latency_ms);
    assert!(about(result.load.send_lag_us.p50, 2000.0), "{:?}", result.load);
}

#[test]
fn failing_target_is_reported_first() {
    let mut records = records();
    delete(&mut records, 5000, "b");
    for i in 0..3000 {
        request(&mut records, i * 10 * MS / 3, Outcome::HttpError, Some("a"));
        records.requests.last_mut().unwrap().status = Some(404);
    }
    let Analysis { result, account, .. } = analysed(records);
    assert_eq!((result.requests.dropped, result.requests.app_errors), (0, 3000));
    let first = &account.findings[0];
    assert_eq!((first.kind(), first.severity()), (Some(FindingKind::NotWorking), Severity::Error));
    let Finding::NotWorking { ok: 0, all: 2000..3000, most_frequent } = first else { panic!("{first:?}") };
    assert_eq!(*most_frequent, Some((Outcome::HttpError, 3000)));
}

#[test]
fn termination_losses_do_not_count_against_target() {
    // Fail all requests in the window and after it until the pod is gone, and some more.
    let mut records = three_pods();
    for row in records.requests.iter_mut().filter(|row| (at(5030)..at(5790)).contains(&row.scheduled)) {
        row.outcome = Outcome::ConnectRefused;
        row.pod = None;
    }
    let findings = analysed(records).account.findings;
    assert!(!findings.iter().any(|found| found.kind() == Some(FindingKind::NotWorking)), "{findings:?}");
}

fn busy(records: &mut Records, busy: f64) {
    for second in 1..=10 {
        let sample = MachineSample { interval_s: 1.0, steal: 0.0, busy, run_queue_delay: 0.1 };
        records.events.push(Event::new(at(second * 1000), "load-0", EventKind::Machine(sample)));
    }
}

fn invalid(records: Records) -> Vec<Invalid> {
    analysed(records).account.invalid
}

#[test]
fn saturated_machine_invalidates_run() {
    let of = |share: f64, change: fn(&mut Records)| {
        let mut records = three_pods();
        busy(&mut records, share);
        change(&mut records);
        invalid(records)
    };
    let [Invalid::Busy { share, .. }] = of(1.0, |_| {})[..] else { panic!("not one reason") };
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    assert!(of(0.9, |_| {}).is_empty());
    assert!(of(1.0, |records| records.info.max_busy = Some(1.0)).is_empty());
    assert!(of(1.0, |records| records.info.load.pacing = Pacing::ClosedLoop).is_empty());
    let from_pods = |records: &mut Records| {
        records.info.load.load_workers = Some(2);
    };
    assert!(of(1.0, from_pods).is_empty());
}

#[test]
fn stalled_process_invalidates_run() {
    let of = |interval_s: f64, run_queue_delay: f64| {
        let mut records = three_pods();
        let sample = MachineSample { interval_s, steal: 0.0, busy: 0.2, run_queue_delay };
        records.events.push(Event::new(at(7000), "coordinator", EventKind::Machine(sample)));
        analysed(records)
    };
    let stopped = of(4.0, 0.0);
    let stood_still = Invalid::StoodStill { source: Some("coordinator".into()), from_s: 3.0, to_s: 7.0 };
    assert!(stopped.account.findings.contains(&Finding::Invalid(stood_still.clone())));
    assert_eq!(stopped.account.invalid, [stood_still]);
    assert_eq!(of(1.4, 0.0).result.verdict, Verdict::Valid);
    assert_eq!(of(4.0, 0.9).result.verdict, Verdict::Valid, "it waited for a processor");
    let mut silent = three_pods();
    silent.events.push(Event::new(at(9000), "coordinator", EventKind::ApiSilence { from: at(3000) }));
    assert_eq!(invalid(silent), [Invalid::StoodStill { source: None, from_s: 3.0, to_s: 9.0 }]);
}

#[test]
fn send_lag_above_half_window_invalidates_run() {
    let load = |lag_ms: f64, pacing: Pacing| LoadResult {
        pacing,
        rate: 100.0,
        duration_s: 10.0,
        scheduled: 1000,
        not_sent: 0,
        send_lag_us: SendLag { p50: 0.0, p99: lag_ms * 1e3, max: lag_ms * 1e3 },
    };
    let is_drowned = |measured: MeasuredQuantity, lag_ms: f64| {
        measured.drowned_by(&load(lag_ms, Pacing::Constant)).is_some()
    };
    assert!(is_drowned(MeasuredQuantity::Windows(100.0), 51.0));
    assert!(!is_drowned(MeasuredQuantity::Windows(100.0), 49.0));
    assert!(!is_drowned(MeasuredQuantity::Windows(2.0), SEND_LAG_FLOOR_MS));
    assert!(is_drowned(MeasuredQuantity::Latency(90.0), 60.0));
    assert!(MeasuredQuantity::Latency(90.0).drowned_by(&load(60.0, Pacing::ClosedLoop)).is_none());
    let mut records = three_pods();
    // The window lasts about 0.1 s.
    for row in &mut records.requests {
        row.scheduled = row.scheduled.shifted_ns(-80 * MS);
    }
    let [Invalid::Drowned { measured: MeasuredQuantity::Windows(_), lag_ms, .. }] = invalid(records)[..]
    else {
        panic!("not one reason")
    };
    assert!((lag_ms - 80.0).abs() < 0.5, "{lag_ms}");
}

#[test]
fn incomplete_record_yields_no_recommendation() {
    let advice = |change: fn(&mut Records)| {
        let mut records = many(29);
        change(&mut records);
        let Analysis { mut result, mut account, .. } = analysed(records);
        (result.recommendation.remove(0), account.grounds.remove(0).refusals)
    };
    assert_eq!(advice(|_| {}).0.pre_stop_seconds, Some(2));
    let unfinished: fn(&mut Records) = |records| records.info.complete = false;
    let torn: fn(&mut Records) = |records| records.torn.push("a part was never closed".into());
    let damaged: fn(&mut Records) = |records| records.corrupt.push("a part is damaged".into());
    for change in [unfinished, torn, damaged] {
        let (advice, refusals) = advice(change);
        assert_eq!(refusals, [NoRecommendation::NotWhole]);
        assert_eq!((advice.pre_stop_seconds, advice.advised_seconds()), (None, None), "{advice:?}");
    }
}

#[test]
fn absurd_timestamps_do_not_lengthen_charts() {
    const FAR_NS: i64 = 1_000_000_000_000_000_000;
    let with = |change: fn(&mut Records)| {
        let mut records = three_pods();
        change(&mut records);
        analysed(records)
    };
    fn started(records: &mut Records) -> &mut Event {
        let is_of_load = |event: &&mut Event| matches!(event.kind, EventKind::LoadStarted { .. });
        records.events.iter_mut().find(is_of_load).unwrap()
    }
    let whole = with(|_| {});
    let earlier = with(|records| {
        let started = started(records);
        started.at = started.at.shifted_ns(-FAR_NS);
    });
    let contradicts =
        |analysis: &Analysis, found| analysis.account.invalid.contains(&Invalid::Contradiction(found));
    assert!(contradicts(&earlier, RecordContradiction::Untimely("load_started")));
    assert_eq!(earlier.charts.seconds.len(), whole.charts.seconds.len());
    let warm = with(|records| {
        started(records).kind = EventKind::LoadStarted { rate: 1.0, duration_s: 10.0, warmup_s: 1e300 };
    });
    assert!(warm.charts.seconds.len() <= whole.charts.seconds.len());
    let later = with(|records| {
        let row = records.requests.last_mut().unwrap();
        row.end = row.end.shifted_ns(FAR_NS);
    });
    assert!(contradicts(&later, RecordContradiction::TooLate { days: 12 }));
    let highest = with(|records| records.requests.last_mut().unwrap().seq = u64::MAX);
    assert_eq!(highest.result.requests.total, whole.result.requests.total);
}

#[test]
fn contradiction_invalidates_run_but_gap_does_not() {
    let checked = |change: fn(&mut Integrity, &mut Vec<String>)| {
        let mut records = three_pods();
        records.events.push(Event::new(at(10_000), "coordinator", EventKind::LoadEnded { scheduled: 3000 }));
        let (mut timeline, requests) = Timeline::build(records.log(), records).unwrap();
        assert_eq!((&timeline.integrity.missing, &timeline.integrity.contradictions), (&vec![], &vec![]));
        change(&mut timeline.integrity, &mut timeline.corrupt);
        analyse(&timeline, &requests, None).unwrap()
    };
    let kinds = |of: &Analysis| of.account.findings.iter().filter_map(Finding::kind).collect::<Vec<_>>();
    let whole = checked(|_, _| {});
    assert_eq!(whole.result.verdict, Verdict::Valid);
    let altered = RecordContradiction::Altered("altered".into());
    let twice = checked(|found, _| found.contradictions.push(RecordContradiction::Altered("altered".into())));
    assert_eq!(twice.account.invalid, [Invalid::Contradiction(altered)]);
    assert_eq!(kinds(&twice), [FindingKind::Corrupt]);
    let gap = checked(|found, _| found.missing.push(Missing::LoadEnded));
    assert_eq!(gap.account.incomplete, [Incomplete::Missing(Missing::LoadEnded)]);
    assert_eq!(kinds(&gap), [FindingKind::Missing]);
    let damaged = checked(|_, corrupt| corrupt.push("damaged".into()));
    assert_eq!(damaged.account.incomplete, [Incomplete::Corrupt("damaged".into())]);
    assert_eq!(kinds(&damaged), [FindingKind::Corrupt]);
    assert_eq!(damaged.account.findings[0].severity(), Severity::Error);
    assert!(matches!(twice.result.verdict, Verdict::Invalid { .. }), "{:?}", twice.result.verdict);
    for partial in [&gap, &damaged] {
        assert!(matches!(partial.result.verdict, Verdict::Partial { .. }), "{:?}", partial.result.verdict);
    }
    for unsound in [twice, gap, damaged] {
        let advice = &unsound.result.recommendation;
        assert!(advice.iter().all(|advice| advice.pre_stop_seconds.is_none()));
    }
}
