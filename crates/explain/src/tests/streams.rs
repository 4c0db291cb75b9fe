//! Streams that are open at a termination: their phases, causes and totals.

use std::collections::BTreeSet;

use super::*;
use rolldrop_record::GapRow;

#[test]
fn streams_cut_by_sigkill_count_as_drained_too_short() {
    let Analysis { result, account, .. } =
        analysed(streams(StreamPodEnd { grace_s: 1, exit_code: 137, cut: (Outcome::StreamCut, 1000) }));
    assert_eq!(result.requests.by_cause, BTreeMap::from([(Cause::DrainedTooShort, 17)]));
    let end = &result.terminations[0];
    assert_eq!((end.killed_at_grace_end, &end.failed_hooks), (Some(true), &Some(BTreeSet::new())));
    let all = result.streams.unwrap();
    assert_eq!((all.total, all.ok, all.cut, all.cancelled), (400, 383, 17, 0));
    let of = result.terminations[0].streams.as_ref().unwrap();
    assert_eq!((of.alive_at_t0, of.began_later, of.open_at_end), (34, 0, 0));
    let completed = StreamEnds { completed: 17, ..StreamEnds::default() };
    assert_eq!((of.before_sigterm, of.after_sigterm), (StreamEnds::default(), completed));
    assert_eq!(of.at_grace_end, StreamEnds { cut: 17, ..StreamEnds::default() });
    // The 17 streams of b that began after 4 s had delivered 19 to 10 events each.
    let events = (4040..=5000).step_by(60).map(|begun| (6000 - begun) / 100).sum::<u64>();
    assert_eq!((of.lost.events_lost, of.lost.bytes_lost, of.lost.tokens_lost), (events, 64 * events, None));
    assert_eq!(of.lost, all.lost);
    assert!((of.last_ended_s.unwrap() - 0.99).abs() < 1e-9, "{of:?}");
    let drain = ShortDrain { grace_s: 1, longest_s: Some(2.0), missing_notice: None };
    let finding = Finding::Lost { requests: 17, by: Loss::DrainedTooShort(drain) };
    assert!(account.findings.contains(&finding), "{:?}", account.findings);
}

#[test]
fn streams_cut_before_first_event_count_as_cut() {
    let mut records = streams(StreamPodEnd { grace_s: 1, exit_code: 137, cut: (Outcome::StreamCut, 1000) });
    let mut early = Vec::new();
    for row in records.requests.iter_mut().filter(|row| row.outcome == Outcome::StreamCut).take(7) {
        row.outcome =
            if row.seq.is_multiple_of(2) { Outcome::TruncatedBody } else { Outcome::ResetMidResponse };
        early.push(row.seq);
    }
    for row in records.streams.iter_mut().filter(|row| early.contains(&row.seq)) {
        (row.first_event, row.last_event, row.events) = (None, None, 0);
        (row.longest_gap, row.gap_start) = (None, None);
    }
    let result = analysed(records).result;
    assert_eq!(result.requests.by_cause, BTreeMap::from([(Cause::DrainedTooShort, 17)]));
    assert_eq!(result.streams.map(|all| (all.total, all.cut)), Some((400, 17)));
    let of = result.terminations[0].streams.as_ref().unwrap();
    assert_eq!(of.at_grace_end, StreamEnds { cut: 17, ..StreamEnds::default() });
}

#[test]
fn streams_on_kept_connections_outlast_any_grace_period() {
    let mut records = streams(StreamPodEnd { grace_s: 3, exit_code: 137, cut: (Outcome::StreamCut, 3000) });
    let is_kept = |row: &&mut RequestRow| row.scheduled > at(6500) && row.seq.is_multiple_of(3);
    for row in records.requests.iter_mut().filter(is_kept) {
        (row.pod, row.outcome, row.end) = (Some("b".into()), Outcome::StreamCut, at(8000));
        (row.conn_reused, row.connect_start, row.connected) = (true, None, None);
    }
    let Analysis { result, account, .. } = analysed(records);
    assert_eq!(result.requests.by_cause.keys().collect::<Vec<_>>(), [&Cause::DrainedTooShort]);
    let is_said = |finding: &Finding| {
        let Finding::Lost { by: Loss::DrainedTooShort(drain), .. } = finding else { return false };
        drain.missing_notice == Some(CloseNotice::Header)
    };
    assert!(account.findings.iter().any(is_said), "{:?}", account.findings);
}

#[test]
fn app_aborted_streams_count_as_cut_at_sigterm() {
    let Analysis { result, account, .. } =
        analysed(streams(StreamPodEnd { grace_s: 30, exit_code: 0, cut: (Outcome::StreamAborted, 500) }));
    assert_eq!(result.requests.by_cause, BTreeMap::from([(Cause::CutAtSigterm, 25)]));
    let of = result.terminations[0].streams.as_ref().unwrap();
    assert_eq!(of.after_sigterm, StreamEnds { completed: 9, told: 25, cut: 0 });
    let cut = SigtermCut { after_s: Some((0.5, 0.5)), told: 25 };
    let finding = Finding::Lost { requests: 25, by: Loss::CutAtSigterm(cut) };
    assert!(account.findings.contains(&finding), "{:?}", account.findings);
}

#[test]
fn gateway_cuts_streams_of_serving_pod() {
    let mut records = streams(StreamPodEnd { grace_s: 30, exit_code: 0, cut: (Outcome::StreamCut, 500) });
    records.info.targets[0].balances = Balances::Requests;
    let pod = |row: &RequestRow| row.pod.clone().unwrap();
    let of_proxy = |row: &RequestRow| {
        let ended = if row.outcome == Outcome::Ok { ServedEnd::Complete } else { ServedEnd::ClientGone };
        served(row, &pod(row), ended)
    };
    records.served = records.requests.iter().map(of_proxy).collect();
    let by_cause = analysed(records.clone()).result.requests.by_cause;
    assert_eq!(by_cause, BTreeMap::from([(Cause::GatewayCut, 25)]));
    // The proxies' rows suffice, even if nothing else shows a gateway.
    let mut unknown = records.clone();
    unknown.info.targets[0].balances = Balances::Connections;
    let by_cause = analysed(unknown).result.requests.by_cause;
    assert_eq!(by_cause, BTreeMap::from([(Cause::GatewayCut, 25)]));
    // The app closed the connections itself.
    for row in records.served.iter_mut().filter(|row| row.ended == ServedEnd::ClientGone) {
        row.ended = ServedEnd::UpstreamEof;
    }
    let by_cause = analysed(records).result.requests.by_cause;
    assert_eq!(by_cause, BTreeMap::from([(Cause::CutAtSigterm, 25)]));
}

#[test]
fn streams_stay_uneven_after_pod_replacement() {
    let mut records = streams(StreamPodEnd { grace_s: 30, exit_code: 0, cut: (Outcome::StreamCut, 0) });
    let moved = |row: &RequestRow| row.scheduled > at(5000) && row.pod.as_deref() == Some("c");
    for row in records.requests.iter_mut().filter(|row| moved(row)) {
        row.pod = Some("a".into());
    }
    let last = records.requests.last().unwrap().scheduled;
    // The load ends while streams are open.
    records.requests.iter_mut().for_each(|row| row.end = row.end.min(last));
    let Analysis { result, account, charts, .. } = analysed(records);
    let uneven = result.streams.unwrap().uneven.unwrap();
    assert_eq!((uneven.pods, uneven.most.0.as_str(), uneven.fewest), (2, "a", ("c".to_owned(), 0)));
    assert!(
        account
            .findings
            .contains(&Finding::UnevenStreams(UnevenStreams { fewest: ("c".to_owned(), 0), ..uneven }))
    );
    assert!(charts.open_streams.iter().any(|at| at.ends.cut > 0));
}

#[test]
fn gaps_are_split_by_disruption() {
    let mut records = streams(StreamPodEnd { grace_s: 1, exit_code: 137, cut: (Outcome::StreamCut, 1000) });
    let row =
        |second_ms, gap_ns, gaps| GapRow { source: "load-0".into(), second: at(second_ms), gap_ns, gaps };
    // Pod b is deleted at 5 s.
    records.gaps = vec![row(1000, 20_000_000, 90), row(5000, 20_000_000, 5), row(5000, 900_000_000, 5)];
    let gap_ms = analysed(records.clone()).result.streams.unwrap().gap_ms.unwrap();
    assert_eq!((gap_ms.steady.n, gap_ms.disrupted.n), (90, 10));
    let about = |found: f64, ms: f64| (found / ms - 1.0).abs() < 0.002;
    assert!(about(gap_ms.steady.p99, 20.0) && about(gap_ms.disrupted.p99, 900.0), "{gap_ms:?}");
    // A gap of 9 s that ended long after the disruption still overlaps it.
    records.gaps = vec![row(12_000, 9_000_000_000, 1)];
    assert_eq!(analysed(records.clone()).result.streams.unwrap().gap_ms.unwrap().disrupted.n, 1);
    records.gaps.clear();
    assert_eq!(analysed(records).result.streams.unwrap().gap_ms, None);
}
