//! Rollouts behind a Service proxy that picks endpoints at random and lags, with results compared to the truth.

use std::collections::BTreeMap;

use super::*;
use rolldrop_record::event::ProxyPhase;
use rolldrop_record::service_proxy::ServiceProxy;

/// Asserts that all window bounds are correct, that each pod has an upper bound, and that the true number of losses is
/// within its interval.
#[track_caller]
fn agrees(service: &Service, analysis: &Analysis, pods: &[String]) {
    for t in &analysis.result.terminations {
        let (window, left_s) = (&t.windows[0], service.left_s(&t.pod));
        let upper_s = window.upper_s.unwrap_or_else(|| panic!("{window:?}"));
        assert!(upper_s >= left_s, "{}: {upper_s} s, left after {left_s} s", t.pod);
        // t0 is known to within 10 ms.
        assert!(window.lower_s.is_none_or(|lower_s| lower_s <= left_s), "{}: {window:?}, {left_s} s", t.pod);
        let rows = analysis_rows(service).zip(pods);
        let lost = rows.filter(|(row, pod)| row.outcome != Outcome::Ok && **pod == t.pod).count() as u64;
        let said = t.requests.dropped;
        assert!((said.at_least..=said.at_most).contains(&lost), "{}: {said:?}, lost {lost}", t.pod);
    }
}

fn analysis_rows(service: &Service) -> impl Iterator<Item = &RequestRow> {
    service.records.requests.iter()
}

#[test]
fn failures_during_rule_change_count_as_swap() {
    // A rule swap is possible even if the kind of proxy is unknown.
    for (outcome, dataplane) in [
        (Outcome::ConnectUnreachable, ServiceProxy::Nftables),
        (Outcome::ConnectRefused, ServiceProxy::Nftables),
        (Outcome::ConnectRefused, ServiceProxy::Unknown),
    ] {
        let causes = at_a_change_of_rules(outcome, dataplane.clone());
        assert_eq!(causes, BTreeMap::from([(Cause::RuleSwap, 1)]), "{outcome:?}, {dataplane:?}");
    }
}

#[test]
fn open_listener_refusal_is_rule_swap() {
    let swapped = BTreeMap::from([(Cause::RuleSwap, 1)]);
    assert_eq!(refused_before_close(None), swapped);
    assert_eq!(refused_before_close(Some(7990)), swapped);
    // The proxy looked late: the listener may have been closed since soon after the deletion.
    assert_eq!(refused_before_close(Some(5010)), BTreeMap::from([(Cause::Unattributed, 1)]));
}

/// Returns the causes for a request refused at 5.12 s. The proxy found the listener closed at 8 s, and last saw it open
/// at `open_ms`.
fn refused_before_close(open_ms: Option<i64>) -> BTreeMap<Cause, u64> {
    let mut service = Service::new(&["a", "b", "c"]);
    service.drains_ms = 3000;
    service.delete(5000, "a");
    service.slice(5050, &["b", "c"], &["a"]);
    service.rules(5120, &["b", "c"]);
    let open = open_ms.map(|ms| (ms, ProxyPhase::LastListening));
    for (ms, phase) in open.into_iter().chain([(8000, ProxyPhase::ListenerClosed)]) {
        let phase = EventKind::ProxyPhase { pod: "a".into(), phase };
        service.records.events.push(Event::new(at(ms), "a", phase));
    }
    service.load(300, Naming::Header, 1);
    let row = service.records.requests.iter_mut().find(|row| row.scheduled >= at(5120)).unwrap();
    (row.outcome, row.connected, row.sent, row.pod) = (Outcome::ConnectRefused, None, None, None);
    analysed(service.records).result.requests.by_cause
}

/// Returns the causes for one request that fails while the rules are adding a probed pod.
fn at_a_change_of_rules(outcome: Outcome, dataplane: ServiceProxy) -> BTreeMap<Cause, u64> {
    let mut service = Service::new(&["a", "b"]);
    service.start(5000, "c", 5000);
    for event in &mut service.records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.containers.iter_mut().for_each(|container| container.readiness_probe = Some(true));
        }
    }
    service.slice(5100, &["a", "b", "c"], &[]);
    service.rules(5130, &["a", "b", "c"]);
    service.load(300, Naming::Header, 1);
    let rows = &mut service.records.requests;
    let row = rows.iter_mut().find(|row| row.scheduled >= at(5130)).unwrap();
    (row.outcome, row.connected, row.sent, row.pod) = (outcome, None, None, None);
    service.records.info.cluster.dataplane = dataplane;
    analysed(service.records).result.requests.by_cause
}

/// Simulates a rollout in two steps: at 5 s `d` and `e` begin to replace `a` and `b`, and at 5.4 s `f` begins to
/// replace `c`. The old pods serve for `drains_ms` after their deletion; the new ones listen 3 s after their start.
/// Returns the result, and the number of requests lost to dead pods.
fn without_a_probe(drains_ms: i64, seed: u64) -> (crate::model::RunResult, usize) {
    let mut service = Service::new(&["a", "b", "c"]);
    service.drains_ms = drains_ms;
    service.start(4900, "d", 7900);
    service.start(4900, "e", 7900);
    service.slice(4980, &["a", "b", "c", "d", "e"], &[]);
    for pod in ["a", "b"] {
        service.delete(5000, pod);
    }
    service.slice(5020, &["c", "d", "e"], &["a", "b"]);
    service.start(5300, "f", 8300);
    service.slice(5380, &["c", "d", "e", "f"], &["a", "b"]);
    service.delete(5400, "c");
    service.slice(5420, &["d", "e", "f"], &["a", "b", "c"]);
    service.rules(6000, &["d", "e", "f"]);
    let pods = service.load(300, Naming::Header, seed);
    let lost = service.records.requests.iter().zip(&pods).filter(|(row, _)| row.outcome != Outcome::Ok);
    let by_dead = lost.filter(|(_, pod)| service.deleted.contains_key(*pod)).count();
    (analysed(service.records).result, by_dead)
}

#[test]
fn draining_pods_are_not_blamed() {
    for seed in 1..4 {
        let (result, by_dead) = without_a_probe(3000, seed);
        assert_eq!(by_dead, 0);
        // Pods that existed from the beginning lost nothing.
        let awaited = result.starts.iter().filter(|start| start.was_awaited).map(|start| start.pod.as_str());
        assert_eq!(awaited.collect::<Vec<_>>(), ["d", "e", "f"]);
        let causes = result.requests.by_cause;
        let of = |cause| causes.get(&cause).copied().unwrap_or(0);
        assert_eq!(of(Cause::RoutedToDeadPod), 0, "{causes:?}");
        assert!(of(Cause::NotReadyYet) > 9 * of(Cause::Unattributed), "{causes:?}");
    }
}

#[test]
fn stopped_pods_are_blamed_despite_starting_pods() {
    for seed in 1..4 {
        let (result, by_dead) = without_a_probe(0, seed);
        let causes = result.requests.by_cause;
        let of = |cause| causes.get(&cause).copied().unwrap_or(0);
        let dead = of(Cause::RoutedToDeadPod);
        assert!(dead > 0 && dead <= by_dead as u64, "{causes:?}, {by_dead} by dead pods");
        assert!(of(Cause::NotReadyYet) > 0, "{causes:?}");
    }
}

#[test]
fn simultaneous_terminations_keep_bounds_correct() {
    for (naming, seed) in
        [(Naming::Header, 1), (Naming::Header, 2), (Naming::Nothing, 3), (Naming::Nothing, 4)]
    {
        let (service, pods) = all_at_once(naming, seed);
        let analysis = analysed(service.records.clone());
        agrees(&service, &analysis, &pods);
        let causes = &analysis.result.requests.by_cause;
        assert_eq!(causes.get(&Cause::Overload), None, "{naming:?}: {causes:?}");
        let [group] = &analysis.result.groups[..] else { panic!("{:?}", analysis.result.groups) };
        assert_eq!(group.dropped, analysis.result.requests.dropped, "one group contains all losses");
    }
}

/// Simulates a Service with twelve pods; three are terminated at the same time and leave the rules in one change 0.9 s
/// later.
fn three_of_twelve(naming: Naming, seed: u64) -> (Service, Vec<String>) {
    let names: Vec<String> = (0..12).map(|n| format!("p{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (gone, left) = names.split_at(3);
    let mut service = Service::new(&names);
    for pod in gone {
        service.delete(5000, pod);
    }
    service.slice(5050, left, gone);
    service.slice(5265, left, &[]);
    service.rules(5900, left);
    let pods = service.load(600, naming, seed);
    (service, pods)
}

#[test]
fn loss_to_one_pod_extends_sibling_bounds() {
    for naming in [Naming::All, Naming::Header, Naming::Nothing] {
        let mut too_small = 0;
        for seed in 0..20 {
            let (service, _) = three_of_twelve(naming, seed);
            let analysis = analysed(service.records.clone());
            let of_pods = analysis.result.terminations.iter();
            let is_false =
                |t: &&Termination| t.windows[0].upper_s.expect("an upper bound") < service.left_s(&t.pod);
            too_small += of_pods.filter(is_false).count();
        }
        assert!(too_small <= 1, "{naming:?}: {too_small} of 60 at 95 % over three pods");
    }
}

#[test]
fn refusals_by_starting_pod_set_no_lower_bound() {
    for seed in 1..=4 {
        let mut service = Service::new(&["a", "b", "c"]);
        service.delete(3000, "b");
        service.slice(3030, &["a", "c"], &["b"]);
        service.rules(3050, &["a", "c"]);
        service.slice(3265, &["a", "c"], &[]);
        // The pod is ready as soon as its container runs, but does not listen for another 1.5 s.
        service.start(3060, "d", 4900);
        service.slice(3400, &["a", "c", "d"], &[]);
        service.rules(3450, &["a", "c", "d"]);
        let pods = service.load(30, Naming::Nothing, seed);
        let analysis = analysed(service.records.clone());
        let t = &analysis.result.terminations[0];
        let lower_s = t.windows[0].lower_s;
        assert!(lower_s.is_none_or(|lower_s| lower_s <= service.left_s("b")), "{:?}", t.windows);
        let refused = service.records.requests.iter().zip(&pods);
        let refused = refused.filter(|(row, pod)| row.outcome != Outcome::Ok && *pod == "d").count() as u64;
        assert!(refused > 5, "{refused}");
        assert!(
            t.requests.dropped.at_least <= analysis.result.requests.dropped - refused,
            "{:?}",
            t.requests
        );
        let of_d: Vec<_> = analysis.lost.iter().filter(|lost| lost.begun >= at(3450)).collect();
        assert!(of_d.iter().all(|lost| lost.cause != Cause::RoutedToDeadPod), "{of_d:#?}");
        let suggested = analysis.result.recommendation.iter().filter_map(|r| r.suggested_seconds).max();
        assert!(suggested.is_none_or(|seconds| seconds <= 1), "{suggested:?}");
    }
}

#[test]
fn one_rule_change_counts_as_one_unit() {
    let names: Vec<String> = (0..60).map(|n| format!("p{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (old, new) = names.split_at(30);
    let mut service = Service::new(old);
    for (step, begin) in [(0, 2000), (1, 5000)] {
        let (ending, successors) = (&old[15 * step..15 * (step + 1)], &new[15 * step..15 * (step + 1)]);
        for pod in ending {
            service.delete(begin, pod);
        }
        let stay = [&old[15 * (step + 1)..], &new[..15 * step]].concat();
        service.slice(begin + 60, &stay, ending);
        service.rules(begin + 100, &stay);
        service.slice(begin + 265, &stay, &[]);
        for pod in successors {
            service.start(begin + 100, pod, begin + 200);
        }
        let all = [&stay[..], successors].concat();
        service.slice(begin + 1000, &all, &[]);
        service.rules(begin + 1100, &all);
    }
    let pods = service.load(900, Naming::Header, 7);
    let analysis = analysed(service.records.clone());
    agrees(&service, &analysis, &pods);
    let [recommendation] = &analysis.result.recommendation[..] else {
        panic!("{:?}", analysis.result.recommendation)
    };
    assert_eq!((recommendation.terminations, recommendation.units), (30, 2));
    assert_eq!(recommendation.pre_stop_seconds, None, "30 pods, but only two rule changes");
    assert!(recommendation.terminations_needed >= 20, "{recommendation:?}");
    // The same pods without a loss are still only two independent observations.
    for (row, pod) in service.records.requests.iter_mut().zip(&pods) {
        (row.outcome, row.pod) = (Outcome::Ok, Some(pod.as_str().into()));
    }
    let findings = analysed(service.records).account.findings;
    let bounds = findings.iter().find_map(|finding| match finding {
        Finding::NothingLost { terminations, independent, at_most, .. } => {
            Some((*terminations, *independent, (at_most * 1e3).round()))
        }
        _ => None,
    });
    assert_eq!(bounds, Some((30, 2, 776.0)), "{findings:?}");
}

#[test]
fn undisturbed_service_leaves_units_unchanged() {
    let recommendation = |is_beside: bool| {
        let mut records = many(3);
        slice(&mut records, -900, "web", &["p0", "p1", "p2"]);
        if is_beside {
            let api =
                |web: &Target| Target { name: "api".into(), service: Some("api".into()), ..web.clone() };
            let target = api(&records.info.targets[0]);
            records.info.targets.push(target);
            slice(&mut records, -900, "api", &["a"]);
        }
        let Analysis { mut result, account, .. } = analysed(records);
        let never_routed = account.unbounded.iter().flatten().flatten().all(|w| *w == Unbounded::NeverRouted);
        assert!(never_routed, "{:?}", account.unbounded);
        result.recommendation.remove(0)
    };
    let [alone, beside] = [false, true].map(recommendation);
    assert_eq!((alone.terminations, alone.units, beside.units), (3, 3, 3), "{beside:?}");
    assert_eq!(beside.coverage, alone.coverage);
}

#[test]
fn early_connect_is_not_blamed_on_later_pod() {
    // The first pod is silent before the second is deleted, and its clients wait for a second.
    let mut service = Service::new(&["a", "b", "c", "d"]);
    service.delete(4000, "a");
    service.slice(4040, &["b", "c", "d"], &["a"]);
    service.delete(4600, "b");
    service.slice(4640, &["c", "d"], &["a", "b"]);
    service.rules(5000, &["c", "d"]);
    let pods = service.load(400, Naming::Nothing, 1);
    let analysis = analysed(service.records.clone());
    agrees(&service, &analysis, &pods);
    let early: Vec<_> = analysis.lost.iter().filter(|lost| lost.begun < at(4590)).collect();
    assert!(early.len() > 20, "{}", early.len());
    assert!(early.iter().all(|lost| lost.candidates.iter().all(|c| c.termination == 0)), "{early:#?}");
}

/// Simulates the reuse of a name, as in a StatefulSet: pod `a` is deleted at 3 s, and another pod with its name is
/// created at 4 s and listens at 5 s, after the rules list it. Returns the true pods, in which the second is called
/// `a~2`.
fn a_name_comes_back(naming: Naming, seed: u64) -> (Service, Vec<String>) {
    let mut service = Service::new(&["a", "b", "c"]);
    service.delete(3000, "a");
    service.slice(3045, &["b", "c"], &["a"]);
    service.rules(3100, &["b", "c"]);
    service.slice(3270, &["b", "c"], &[]);
    service.start(4000, "a~2", 5000);
    service.slice(4300, &["a~2", "b", "c"], &[]);
    service.rules(4350, &["a~2", "b", "c"]);
    let pods = service.load(300, naming, seed);
    let rename = |name: &mut String| *name = name.trim_end_matches("~2").to_owned();
    for event in &mut service.records.events {
        match &mut event.kind {
            EventKind::Pod(pod) => rename(&mut pod.name),
            EventKind::EndpointSlice(slice) => {
                slice.endpoints.iter_mut().flat_map(|endpoint| &mut endpoint.pod).for_each(rename);
            }
            _ => {}
        }
    }
    for row in &mut service.records.requests {
        row.pod = row.pod.take().map(|pod| pod.trim_end_matches("~2").into());
    }
    (service, pods)
}

#[test]
fn pod_differs_from_same_named_successor() {
    for (naming, seed) in [(Naming::All, 1), (Naming::Header, 2), (Naming::Header, 3)] {
        let (service, pods) = a_name_comes_back(naming, seed);
        let lost = |by: &str| {
            let rows = analysis_rows(&service).zip(&pods);
            rows.filter(|(row, pod)| row.outcome != Outcome::Ok && *pod == by).count() as u64
        };
        let analysis = analysed(service.records.clone());
        let result = &analysis.result;
        assert_eq!(result.terminations.iter().map(|t| t.uid.as_str()).collect::<Vec<_>>(), ["uid-a"]);
        agrees(&service, &analysis, &pods);
        let of = |cause| result.requests.by_cause.get(&cause).copied().unwrap_or(0);
        let (by_old, by_new) = (lost("a"), lost("a~2"));
        assert!(by_old > 0 && by_new > 0);
        let causes = &result.requests.by_cause;
        match naming {
            Naming::All => assert_eq!(
                (of(Cause::RoutedToDeadPod), of(Cause::NotReadyYet)),
                (by_old, by_new),
                "{causes:?}"
            ),
            _ => assert!(of(Cause::NotReadyYet) * 10 > by_new * 9, "{causes:?}, {by_new} refused"),
        }
        let starts: Vec<_> =
            result.starts.iter().filter(|start| start.pod == "a" && start.uid != "uid-a").collect();
        let [start] = starts[..] else { panic!("{starts:?}") };
        assert_eq!(start.uid, "uid-a~2");
        let first = start.timeline[&StartStage::FirstRequest];
        assert!((1.0..1.1).contains(&first), "{start:?}");
    }
}
