//! What a result says has to agree with itself and with what was set.

use super::*;
use crate::analysis::compare::episodes::episodes;
use crate::analysis::model::Recommendation;

#[test]
fn all_advice_names_one_sleep_and_none_below_what_is_set() {
    let sleeps = |set_s: Option<i64>, records: Records| {
        let mut records = records;
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.containers[0].pre_stop_sleep_s = set_s;
                pod.grace_s = 90;
            }
        }
        let result = analysed(records).result;
        let advised = Recommendation::longest(&result.recommendation, &result.terminations)
            .and_then(|r| r.advised_seconds());
        let finding = result.findings.iter().find(|f| f.cause == Some(Cause::RoutedToDeadPod));
        (advised, finding.map(|f| f.remedy.clone()), result)
    };
    let (advised, remedy, result) = sleeps(None, corners::many(29));
    assert_eq!(advised, Some(2));
    assert!(remedy.unwrap().starts_with("a preStop sleep of 2 s, "));
    assert_eq!(result.terminations[0].pre_stop_seconds, Some(0));
    assert_eq!(result.terminations[0].grace_period_seconds, 90);
    let grace = result.recommendation[0].termination_grace_period_seconds;
    assert!(grace.is_none_or(|grace| grace >= 90), "{grace:?}");

    // Requests that a sleep did not save make no case for the same or a shorter one.
    let (advised, remedy, result) = sleeps(Some(40), corners::many(3));
    assert_eq!(advised, None, "{:?}", result.recommendation);
    assert!(remedy.is_none_or(|remedy| remedy.contains("longer than 40.000 s")));
}

#[test]
fn an_open_window_makes_the_sleep_longer_than_what_was_seen() {
    let mut records = three_pods();
    records.requests.retain(|r| r.scheduled < at(5110));
    let result = analysed(records).result;
    assert_eq!(Recommendation::longest(&result.recommendation, &result.terminations), None);
    let remedy = &result.findings[0].remedy;
    assert!(
        remedy.starts_with("a preStop sleep that outlasts the windows, longer than 0.083 s, "),
        "{remedy}"
    );
}

#[test]
fn the_generators_own_stale_flows_are_counted_apart() {
    let mut records = three_pods();
    corners::timeout(&mut records, 5020, 40_001);
    corners::timeout(&mut records, 60_000, 40_001);
    let result = analysed(records).result;
    let r = &result.requests;
    assert!(closes(r), "{r:?}");
    assert_eq!((r.dropped, r.stale_flow_own, r.lost()), (9, 1, 8));
    assert_eq!(r.stale_flow_own_by_outcome, BTreeMap::from([(Outcome::ConnectTimeout, 1)]));
    let expect = Expect { dropped: Some(Bounds { min: None, max: Some(8) }), ..Expect::default() };
    let checks = gate::check(&result, &expect);
    assert_eq!((checks[0].verdict, checks[0].observed.as_str()), (model::CheckVerdict::Pass, "8"));
}

#[test]
fn what_was_under_way_at_the_deletion_is_told_from_what_came_after_it() {
    for (named, by_time) in [(None, 10), (Some("b"), 0)] {
        let r = analysed(three_pods_killed_in_flight(named)).result.requests;
        assert_eq!((r.in_window, r.in_flight, r.by_time), (40, 30, by_time), "{r:?}");
    }
    let r = analysed(three_pods()).result.requests;
    assert_eq!((r.in_window, r.in_flight, r.by_time), (7, 0, 7), "nothing names their pod: {r:?}");
}

#[test]
fn no_steady_request_overlaps_a_termination() {
    let records = three_pods_killed_in_flight(Some("b"));
    let overlaps = |r: &&RequestRow| r.scheduled <= at(5800) && r.end >= at(5000);
    let near = records.requests.iter().filter(|r| r.outcome == Outcome::Ok).filter(overlaps).count() as u64;
    let result = analysed(records).result;
    assert_eq!(result.latency_ms.disrupted.n, near);
    assert_eq!(result.latency_ms.steady.n, result.requests.ok - near);
}

#[test]
fn terminations_that_overlap_are_one_episode_whose_loss_is_exact() {
    let of = |records| {
        let episodes = episodes(&analysed(records));
        episodes.iter().map(|e| (e.mode, e.terminations, e.dropped)).collect::<Vec<_>>()
    };
    assert_eq!(of(corners::many(3)), [(Mode::Isolated, 1, 10); 3]);
    let mut together = three_pods();
    delete(&mut together, 5500, "c");
    assert_eq!(of(together), [(Mode::Other, 2, 7)]);
}

#[test]
fn a_window_that_only_a_group_shows_fails_its_limit() {
    let mut result = analysed(three_pods()).result;
    let window = &mut result.terminations[0].windows[0];
    (window.lower_s, window.upper_s) = (None, None);
    result.groups[0].windows[0].lower_s = Some(0.7);
    let verdict = |max_s| {
        let expect = Expect { windows: Some(WindowBounds { max_s }), ..Expect::default() };
        let checks = gate::check(&result, &expect);
        (checks[0].verdict, checks[0].why.clone())
    };
    let (judged, why) = verdict(0.6);
    assert_eq!(judged, model::CheckVerdict::Fail, "{why}");
    assert_eq!(why, "a pod still got new connections 0.700 s after its deletion");
    assert_eq!(verdict(0.8).0, model::CheckVerdict::Inconclusive);
}
