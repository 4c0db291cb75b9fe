//! Checks that the series drawn in the charts agree with the figures.

use super::*;
use crate::model::{ClusterAction, Deed};

#[test]
fn needed_sleeps_match_what_if_table() {
    let analysis = analysed(three_pods_killed_in_flight(Some("b")));
    let sleeps = &analysis.charts.sleeps;
    assert_eq!(sleeps.len(), analysis.lost.len());
    for what_if in &analysis.result.what_if {
        let sleep_s = what_if.pre_stop_seconds as f64;
        let is_saved = |s: &&model::SleepNeeded| s.certain_s < sleep_s;
        let saved = if sleep_s > 0.0 { sleeps.iter().flatten().filter(is_saved).count() } else { 0 };
        assert_eq!(saved as u64, what_if.drops_avoided, "{what_if:?}");
    }
    assert!(sleeps.iter().flatten().all(|s| s.possible_s <= s.certain_s));
}

#[test]
fn charts_show_times_of_pods_and_actions() {
    let mut records = three_pods();
    let refused = Action {
        is_undone: false,
        disruption: 1,
        action: ActionName::Evict,
        mode: Some(Mode::Isolated),
        pod: Some("c".into()),
        uid: Some("uid-c".into()),
        answered: at(7010),
        status: Some(429),
        error: Some("a budget allows none".into()),
    };
    records.events.push(Event::new(at(7000), "coordinator", EventKind::Action(refused)));
    records.events.push(pod_event(6000, "d", Change::Applied));
    records.events.sort_by_key(|event| event.at);
    let charts = analysed(records).charts;
    assert_eq!(
        charts.actions,
        [
            ClusterAction { at_s: 5.0, what: Deed::Action(ActionName::DeletePod, Some("b".into())) },
            ClusterAction { at_s: 7.0, what: Deed::Refused(ActionName::Evict, Some("c".into())) },
        ]
    );
    let pods: Vec<(&str, Option<f64>, Option<usize>)> =
        charts.pods.iter().map(|pod| (pod.name.as_str(), pod.created_s, pod.termination)).collect();
    let before = Some(-1.0);
    assert_eq!(
        pods,
        [("a", before, None), ("b", before, Some(0)), ("c", before, None), ("d", Some(6.0), None)]
    );
    assert_eq!(charts.origin, at(0));
}

#[test]
fn relabelled_pod_is_out_until_it_returns() {
    let mut records = relabelled();
    (0..1000).for_each(|i| request(&mut records, i * 10 * MS, Outcome::Ok, Some("a")));
    let charts = analysed(records).charts;
    let out: BTreeMap<&str, _> = charts.pods.iter().map(|pod| (pod.name.as_str(), &pod.out_s)).collect();
    assert_eq!((out["b"], out["a"]), (&vec![(5.1, Some(8.0))], &Vec::new()));
}

#[test]
fn heat_map_includes_every_answer() {
    let mut records = three_pods();
    request(&mut records, 9_990 * MS, Outcome::Ok, None);
    request(&mut records, 9_991 * MS, Outcome::HttpError, Some("a"));
    let named = records.requests.iter().filter(|r| r.outcome == Outcome::Ok && r.pod.as_deref() == Some("a"));
    let of_a = named.count() as u64;
    let analysis = analysed(records);
    let (result, charts) = (&analysis.result, &analysis.charts);
    let cells: u64 = charts.heat.columns.iter().flatten().map(|cell| cell.count).sum();
    assert_eq!(cells, result.latency_ms.steady.n + result.latency_ms.disrupted.n);
    let of_pod = |name: &str| {
        let pod = charts.traffic.pods.iter().find(|pod| pod.name == name).unwrap();
        pod.answered.iter().sum::<u64>()
    };
    let unknown: u64 = charts.traffic.unknown.iter().sum();
    assert_eq!((of_pod("a"), unknown), (of_a, 1));
    assert_eq!(of_pod("a") + of_pod("b") + of_pod("c") + unknown, result.requests.ok);
    assert_eq!((charts.heat.step_s, charts.heat.columns.len()), (0.125, 80));
    assert_eq!(charts.traffic.unknown.iter().position(|n| *n > 0), Some(79));
}
