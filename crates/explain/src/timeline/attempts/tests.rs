//! Ids and times of unrelated requests, of a gateway's attempts, and of requests that clients gave up on.

use std::collections::BTreeMap;

use super::*;
use crate::timeline::Joins;
use crate::timeline::Request;
use crate::timeline::TimeSpan;
use crate::timeline::pod_names::PodNames;
use crate::timeline::requests::Requests;
use rolldrop_record::run_info::Rows;
use rolldrop_record::{Event, EventKind, Phase, Records, RequestId};
use rolldrop_simulation::{run, served_at};

const MS: i64 = 1_000_000;

fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * MS)
}

/// Returns a request sent 10 ms after `from` that ends 20 ms later.
fn row(seq: u64, from: i64, outcome: Outcome, status: Option<u16>) -> RequestRow {
    RequestRow {
        connect_start: Some(at(from)),
        sent: Some(at(from + 10)),
        outcome,
        final_outcome: outcome,
        status,
        ..RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at(from), at(from + 30))
    }
}

fn served(id: RequestId, pod: &str, head: i64, ended: ServedEnd, status: Option<u16>) -> ServedRow {
    let times = [at(head - 1), at(head), at(head + 5)];
    ServedRow { status, ..served_at(times, id, pod, ended) }
}

fn own(seq: u64) -> RequestId {
    RequestId::new(&run(), "load-0", seq)
}

/// Returns clocks known to ± 1 ms for the load and for pods a and b.
fn clocks(records: &Records) -> Clocks {
    let sample = |of: &str| {
        let of = of.to_owned();
        let kind = EventKind::ClockSample { of, offset_ns: 0, uncertainty_ns: MS };
        Event::new(at(0), "coordinator", kind)
    };
    Clocks::new(&records.info, &["load-0", "a", "b"].map(sample))
}

fn joined(requests: Vec<RequestRow>, served: Vec<ServedRow>) -> Requests {
    joined_among(&[], requests, served)
}

/// Joins requests and proxy rows; `pods` are the pods to be known by name, if any.
fn joined_among(pods: &[&str], requests: Vec<RequestRow>, served: Vec<ServedRow>) -> Requests {
    let info = serde_json::from_value(serde_json::json!({
        "format": 2, "tool": {"name": "rolldrop", "version": "0"}, "run": run(), "name": "x",
        "scenario": null, "cluster": {"version": "", "dataplane": "", "nodes": 1, "endpoints": 2,
        "namespace": ""}, "targets": [], "sources": [], "started": at(0), "complete": true,
        "interrupted": false, "load": {"pacing": "constant", "rate": 1.0, "duration_s": 1.0, "warmup_s": 0.0,
            "connections": "fresh", "connect_timeout_s": 1.0, "response_timeout_s": 1.0, "success": [[200, 299]]},
    }));
    let records = Records {
        info: info.unwrap(),
        events: Vec::new(),
        requests,
        streams: Vec::new(),
        gaps: Vec::new(),
        served,
        torn: Vec::new(),
        corrupt: Vec::new(),
        altered: Vec::new(),
    };
    let clocks = clocks(&records);
    let ended = |pod: &&str| {
        let (pod, of) = ((*pod).to_owned(), (*pod).to_owned());
        Event::new(
            at(0),
            "coordinator",
            EventKind::ProxyEnded { pod, uid: "u".into(), of, rows: Rows::default() },
        )
    };
    let joins = Joins {
        names: PodNames::of(&pods.iter().map(ended).collect::<Vec<_>>()),
        addresses: crate::timeline::pod_addresses::PodAddresses::of(&records.info, &[], &clocks),
        relays: foldhash::HashSet::default(),
        run: records.info.run.clone(),
        needs_proof: false,
    };
    Requests::open(Arc::new(records), (clocks, joins), TimeSpan::ALL, || (), |(), _| (), |(), ()| ())
        .unwrap()
        .0
}

/// Pod, pods of other attempts, and numbers of rows read too early and too late.
type Found = (Option<String>, Vec<String>, [u32; 2]);

fn found(requests: &Requests) -> BTreeMap<u64, Found> {
    let found = |request: Request| {
        let others = request.other_attempts.iter().map(|attempt| attempt.pod.to_string()).collect();
        let pod = request.proxy.as_ref().map(ToString::to_string);
        let Misfits { early, late } = request.misfits;
        (request.row.seq, (pod, others, [early, late]))
    };
    requests.in_memory().unwrap().into_iter().map(found).collect()
}

#[test]
fn forwarding_pod_neither_serves_nor_loses_requests() {
    // A gateway with a proxy beside it: its name follows the answering pod's, or is the only one.
    let said = [(1, Outcome::Ok, "web, gate"), (2, Outcome::HttpError, "gate"), (3, Outcome::Ok, "web")];
    let rows = said.map(|(seq, outcome, pod)| RequestRow {
        pod: Some(pod.into()),
        ..row(seq, 0, outcome, Some(if outcome == Outcome::Ok { 200 } else { 502 }))
    });
    let served = vec![
        served(own(1), "gate", 14, ServedEnd::Complete, Some(200)),
        served(own(1), "web", 15, ServedEnd::Complete, Some(200)),
        served(own(2), "gate", 14, ServedEnd::Complete, Some(502)),
        served(own(2), "web", 15, ServedEnd::UpstreamRefused, None),
    ];
    let requests = joined_among(&["web", "gate"], rows.to_vec(), served);
    let web = |seq: u64| (seq, (Some("web".to_owned()), Vec::new(), [0, 0]));
    assert_eq!(found(&requests), [web(1), web(2), (3, (None, Vec::new(), [0, 0]))].into());
    let name = |request: Request| (request.row.seq, request.row.pod.map(|pod| pod.to_string()));
    let named: BTreeMap<u64, Option<String>> = requests.in_memory().unwrap().into_iter().map(name).collect();
    let web = Some("web".to_owned());
    assert_eq!(named, [(1, web.clone()), (2, None), (3, web)].into());
}

#[test]
fn foreign_ids_are_only_counted() {
    let ids = ["load-0-1", "0123456789ab-load-0-1", "k3v9x2abcdef-load-0-99", "k3v9x2abcdef-other-1"];
    let strange = |id: &&str| served(id.parse().unwrap(), "b", 15, ServedEnd::Complete, Some(200));
    let mut rows: Vec<ServedRow> = ids.iter().map(strange).collect();
    rows.push(served(own(1), "a", 15, ServedEnd::Complete, Some(200)));
    rows.extend(ids.iter().map(strange));
    for outcome in [Outcome::Ok, Outcome::ResetBeforeResponse] {
        let requests = joined(vec![row(1, 0, outcome, None)], rows.clone());
        assert_eq!(found(&requests)[&1], (Some("a".into()), vec![], [0, 0]), "{outcome}");
        assert_eq!(requests.strangers, Strangers { other_runs: 4, no_request: 4 });
    }
}

const FITS: [u32; 2] = [0, 0];
const EARLY: [u32; 2] = [1, 0];
const LATE: [u32; 2] = [0, 1];

#[test]
fn misfit_times_are_counted_separately() {
    // Sent at 10 ms, ended at 30 ms; both clocks are known to within 1 ms, plus a little for errors that samples hide.
    for (head, misfits) in [(-500, EARLY), (0, EARLY), (15, FITS), (29, FITS), (50, LATE), (9000, LATE)] {
        for (outcome, status) in [(Outcome::Ok, Some(200)), (Outcome::HttpError, Some(503))] {
            let forged = served(own(1), "b", head, ServedEnd::Complete, Some(200));
            let requests = joined(vec![row(1, 0, outcome, status)], vec![forged]);
            let expected = ((misfits == FITS).then(|| "b".into()), vec![], misfits);
            assert_eq!(found(&requests)[&1], expected, "{head} {outcome}");
        }
    }
    // Nothing was sent, so no pod can have read it.
    let refused = RequestRow { sent: None, ..row(1, 0, Outcome::ConnectRefused, None) };
    let forged = served(own(1), "b", 15, ServedEnd::Complete, Some(200));
    assert_eq!(found(&joined(vec![refused], vec![forged]))[&1], (None, vec![], EARLY));
}

#[test]
fn timed_out_request_allows_late_read() {
    let read_late =
        |outcome, ended| joined(vec![row(1, 0, outcome, None)], vec![served(own(1), "a", 2000, ended, None)]);
    for ended in [ServedEnd::ClientGone, ServedEnd::UpstreamRefused, ServedEnd::Complete] {
        let gave_up = read_late(Outcome::ResponseTimeout, ended);
        assert_eq!(found(&gave_up)[&1], (Some("a".into()), vec![], [0, 0]), "{ended}");
        let answered = read_late(Outcome::Ok, ended);
        assert_eq!(found(&answered)[&1], (None, vec![], [0, 1]), "{ended}");
    }
}

#[test]
fn closed_connection_allows_late_read() {
    // The client saw the close at 30 ms; the proxy passed it on, and read the request 20 ms later.
    let read_late =
        |outcome, ended| joined(vec![row(1, 0, outcome, None)], vec![served(own(1), "a", 50, ended, None)]);
    for outcome in [Outcome::EofBeforeResponse, Outcome::ResetBeforeResponse] {
        for ended in [ServedEnd::UpstreamEof, ServedEnd::UpstreamReset, ServedEnd::UpstreamRefused] {
            let closed = read_late(outcome, ended);
            assert_eq!(found(&closed)[&1], (Some("a".into()), vec![], FITS), "{outcome}, {ended}");
        }
        for ended in [ServedEnd::Complete, ServedEnd::ClientGone] {
            let other = read_late(outcome, ended);
            assert_eq!(found(&other)[&1], (None, vec![], LATE), "{outcome}, {ended}");
        }
    }
    let answered = read_late(Outcome::HttpError, ServedEnd::UpstreamEof);
    assert_eq!(found(&answered)[&1], (None, vec![], LATE));
}

#[test]
fn uncompared_proxy_clock_is_trusted() {
    let row = row(1, 0, Outcome::Ok, Some(200));
    let served = served(own(1), "c", -500, ServedEnd::Complete, Some(200));
    assert_eq!(found(&joined(vec![row], vec![served]))[&1], (Some("c".into()), vec![], [0, 0]));
}

#[test]
fn answering_pod_wins_among_attempts() {
    let eof = |pod, head| served(own(1), pod, head, ServedEnd::UpstreamEof, None);
    let answer = |pod, head, status| served(own(1), pod, head, ServedEnd::Complete, Some(status));
    let one = |outcome, status, rows: Vec<ServedRow>| {
        // The result is the same in any order of arrival.
        let backwards = rows.iter().rev().cloned().collect();
        let of = |rows| found(&joined(vec![row(1, 0, outcome, status)], rows)).remove(&1);
        let found = of(rows);
        assert_eq!(found, of(backwards));
        found.unwrap()
    };
    let both = |pod: &str, other: &str| (Some(pod.to_owned()), vec![other.to_owned()], [0, 0]);
    let ok = |rows| one(Outcome::Ok, Some(200), rows);
    assert_eq!(ok(vec![eof("a", 12), answer("b", 20, 200)]), both("b", "a"));
    assert_eq!(ok(vec![answer("a", 12, 503), answer("b", 20, 200)]), both("b", "a"));
    assert_eq!(ok(vec![answer("a", 12, 200), eof("b", 20)]), both("a", "b"), "mirrored");
    let lost = |status, rows| one(Outcome::HttpError, Some(status), rows);
    assert_eq!(lost(502, vec![eof("a", 12), eof("b", 20)]), both("b", "a"), "the last pod failed it");
    assert_eq!(lost(500, vec![answer("a", 12, 500), eof("b", 20)]), both("a", "b"), "the app's own answer");
}

#[test]
fn packed_row_fits_in_eight_bytes() {
    assert_eq!(size_of::<Option<PackedRow>>(), 8);
    for (&ended, status) in ServedEnd::ALL.iter().zip([None, Some(100), Some(200), Some(503), Some(599)]) {
        let row = served(own(1), "a", 1234, ended, status);
        let pod = u32::try_from(MAX_PODS).unwrap();
        let seen = PackedRow::new(pod, &row, at(-60_000)).unwrap();
        assert_eq!((seen.pod(), seen.ended(), seen.status()), (MAX_PODS - 1, ended, status));
        assert_eq!(seen.head(at(-60_000)), Some(at(1234)));
    }
    let far = served(own(1), "a", 100_000_000, ServedEnd::Complete, None);
    assert_eq!(PackedRow::new(1, &far, at(0)).unwrap().head(at(0)), None);
}
