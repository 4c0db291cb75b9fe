#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "reads a recorded run")]

use crate::model::Analysis;
use crate::model::account::Finding;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;

use super::*;
use rolldrop_record::parts::Wanted;
use rolldrop_record::run_info::{Balances, BalancesBecause};
use rolldrop_record::{Cause, RunDir};

const MS: i64 = 1_000_000;

fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns(ms * MS)
}

fn row(ms: i64, outcome: Outcome, status: Option<u16>, lasts_ms: i64) -> RequestRow {
    let (begun, end) = (at(ms), at(ms + lasts_ms));
    let row =
        RequestRow::not_sent("load-0".into(), 0, "gate".into(), rolldrop_record::Phase::Main, begun, end);
    RequestRow {
        outcome,
        status,
        connect_start: Some(begun),
        connected: Some(begun),
        sent: Some(begun),
        ..row
    }
}

/// Simulates a request every 10 ms to four pods in turn. One pod is dead from `dead` on and drops out of the rotation
/// at `leaves`. There is also one stray failure at each time in `strays`.
fn gateway(dead: i64, leaves: i64, strays: &[i64]) -> Gateway {
    let fails = |ms: &i64| (ms % 40 == 0 && (dead..leaves).contains(ms)) || strays.contains(ms);
    let failed: Vec<Stamp> = (0..60_000).step_by(10).filter(fails).map(at).collect();
    let deaths = vec![Death::between(at(dead - 50), at(dead + 5))];
    let mut watching = Watching::of(deaths, &failed, 4);
    for ms in (0..60_000).step_by(10).filter(|ms| !fails(ms)) {
        watching.answered(&row(ms, Outcome::Ok, Some(200), 1));
    }
    watching.done()
}

#[test]
fn undialled_pod_explains_no_failure() {
    let gateway = gateway(1000, 3000, &[20_000]);
    let explains = |row: RequestRow| !gateway.candidates(&row).is_empty();
    let bad_gateway = |ms| row(ms, Outcome::HttpError, Some(502), 1);
    assert!(!explains(bad_gateway(900)), "it was still serving");
    assert!(explains(bad_gateway(1000)) && explains(bad_gateway(2960)));
    assert!(!explains(bad_gateway(20_000)), "17 s of answers in between");
    // A live pod would have answered before it stopped.
    let timeout = |ms| row(ms, Outcome::ResponseTimeout, None, 5000);
    assert!(!explains(timeout(700)) && explains(timeout(900)) && explains(timeout(2000)));
    // A gateway may have waited for the pod before it gave up.
    assert!(explains(row(700, Outcome::HttpError, Some(502), 400)));
    assert!(!explains(row(700, Outcome::HttpError, Some(504), 400)));
}

#[test]
fn ongoing_failures_keep_pod_as_candidate() {
    // Every second request fails for 40 s, so no run of consecutive answers is long enough.
    let failed: Vec<Stamp> = (1000..41_000).step_by(20).map(at).collect();
    let mut watching = Watching::of(vec![Death::between(at(990), at(995))], &failed, 4);
    for ms in (1010..41_000).step_by(20) {
        watching.answered(&row(ms, Outcome::Ok, Some(200), 1));
    }
    let last = row(40_980, Outcome::HttpError, Some(502), 1);
    assert_eq!(watching.done().candidates(&last), [0]);
    // With hardly any requests, 40 s without a failure also rule out the pod.
    let sparse = Watching::of(vec![Death::between(at(990), at(995))], &[at(45_000)], 4);
    assert_eq!(sparse.done().candidates(&row(45_000, Outcome::HttpError, Some(502), 1)), [0usize; 0]);
}

/// Recorded rollouts of six pods behind Traefik.
#[test]
fn ingress_failures_have_few_candidates() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/runs/ingress");
    let (mut log, rows) = RunDir::open(&recorded.join("run")).unwrap().recorded().unwrap();
    // As set by `--target http://...` without `l7:`.
    let target = &mut log.info.targets[0];
    (target.balances, target.balances_because) = (Balances::Connections, BalancesBecause::Assumed);
    let (timeline, requests) = Timeline::build(log, rows).unwrap();
    let target = &timeline.info.targets[0];
    let because = BalancesBecause::GatewayStatus { status: 502, answers: 126 };
    assert_eq!((target.balances, &target.balances_because), (Balances::Requests, &because));

    let Analysis { result, account, .. } = crate::analyse(&timeline, &requests, None).unwrap();
    assert_eq!(result.requests.by_cause, BTreeMap::from([(Cause::GatewayToDeadPod, 340)]));
    let slept = result.what_if.iter().find(|what_if| what_if.pre_stop_seconds == 10).unwrap();
    assert_eq!((slept.drops_avoided, slept.drops_left), (340, 0), "a sleep also helps behind a gateway");
    let taken = |finding: &Finding| matches!(finding, Finding::TakenForGateway { .. });
    assert!(account.findings.iter().any(taken), "{:?}", account.findings);

    let deaths: Vec<Death> = timeline.ends.iter().map(|end| Death::of(&timeline, end)).collect();
    let begin = || Watching::new(&timeline, 0, &requests.others, &deaths);
    let add = |watching: &mut Watching, r: &Request| watching.answered(&r.row);
    let watching = requests.plain(Wanted::All, begin, add, |own, other| own.merge(&other)).unwrap();
    let gateway = watching.done();
    let pods = std::fs::read_to_string(recorded.join("pods.csv")).unwrap();
    let ends: HashMap<&str, usize> = pods
        .lines()
        .skip(1)
        .filter_map(|line| {
            let [ip, _, uid] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
            Some((ip, timeline.ends.iter().position(|end| end.uid == uid)?))
        })
        .collect();
    // Traefik's dials in the 4 ms after it was handed a request, if only one terminating pod is among them.
    let mut dials = String::new();
    GzDecoder::new(File::open(recorded.join("connections.csv.gz")).unwrap())
        .read_to_string(&mut dials)
        .unwrap();
    let dials: Vec<(Stamp, usize)> = dials
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            Some((Stamp::from_unix_ns(fields[0].parse().unwrap()), *ends.get(fields[5])?))
        })
        .collect();
    let dialled = |sent: Stamp| {
        let near = sent.shifted_ns(-MS)..sent.shifted_ns(4 * MS);
        let mut dialled =
            dials.iter().filter(|(at, e)| near.contains(at) && gateway.deaths[*e].answered_until <= sent);
        dialled.next().filter(|_| dialled.next().is_none()).map(|(_, e)| *e)
    };
    let candidates: Vec<Vec<usize>> = requests.others.iter().map(|r| gateway.candidates(&r.row)).collect();
    let mut sizes: Vec<usize> = candidates.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert!(sizes[0] > 0 && sizes[sizes.len() / 2] <= 5, "{sizes:?}");
    let pairs = requests.others.iter().zip(&candidates);
    let known: Vec<bool> = pairs.filter_map(|(r, of)| Some(of.contains(&dialled(r.row.sent?)?))).collect();
    assert!(known.len() >= 250 && known.iter().all(|is_among| *is_among), "{known:?}");
}
