//! Tests that no remedy is below a bound in the same report, and that each remedy follows from what is known about the
//! pods.

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "recorded runs are read")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::cause_words;
use super::*;
use rolldrop_explain::model::{NoBound, Recommendation, T0Basis};
use rolldrop_record::RunDir;
use rolldrop_record::event::{NameAnswer, PodEvent, Replacement, WorkloadEvent};
use rolldrop_record::routing::{Routing, ServiceRules, TrafficPolicy};

/// Returns the lengths, in seconds, of all preStop sleeps that the text recommends.
fn advised(text: &str) -> Vec<f64> {
    let after = |mark: &str| -> Vec<f64> {
        let rests = text.split(mark).skip(1);
        let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok();
        rests.filter_map(number).collect()
    };
    ["preStop sleep of ", "preStop sleep between ", "longer than ", "seconds: "].map(after).concat()
}

/// Asserts that the result recommends no number below a bound that it shows.
#[track_caller]
fn is_above_its_bounds(result: &RunResult) {
    let lower = |counts: &dyn Fn(&Termination) -> bool| {
        let of_pods = result.terminations.iter().filter(|t| counts(t));
        let of_pods = of_pods.flat_map(|t| &t.windows).filter_map(|w| w.lower_s);
        let of_groups = result.groups.iter();
        let of_groups =
            of_groups.filter(|group| group.terminations.iter().any(|e| counts(&result.terminations[*e])));
        let of_groups = of_groups.flat_map(|group| &group.windows).filter_map(|w| w.lower_s);
        of_pods.chain(of_groups).fold(0.0, f64::max)
    };
    let all = lower(&|_| true);
    for finding in &result.findings {
        for seconds in advised(&finding.remedy) {
            assert!(seconds >= all, "{seconds} s beside at least {all} s: {finding:?}");
        }
    }
    for rec in &result.recommendation {
        let own = lower(&|t| t.mode == rec.mode || t.mode == Mode::Rollout);
        let numbers = [rec.advised_seconds(), rec.suggested_from_seconds, rec.covers_all_seen_seconds];
        for seconds in numbers.into_iter().flatten() {
            assert!(seconds as f64 >= own, "{seconds} s beside at least {own} s: {rec:?}");
        }
        assert!(rec.suggested_from_seconds < rec.suggested_seconds || rec.suggested_from_seconds.is_none());
        assert!(rec.suggested_from_seconds.is_none_or(|from| from as f64 >= all), "{all} s: {rec:?}");
    }
    let longest = Recommendation::longest(&result.recommendation, &result.terminations, &result.groups);
    assert!(longest.and_then(Recommendation::advised_seconds).is_none_or(|s| s as f64 >= all));
}

fn runs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/runs")
}

fn recorded(name: &str) -> RunResult {
    let (log, tables) = RunDir::open(&runs().join(name).join("run")).unwrap().recorded().unwrap();
    let mut analysis = Analysed::of(log, tables).unwrap().analysis;
    tell(&mut analysis);
    analysis.result
}

#[test]
fn recorded_remedies_exceed_window_bounds() {
    let mut n = 0;
    for run in std::fs::read_dir(runs()).unwrap() {
        let name = run.unwrap().file_name().into_string().unwrap();
        is_above_its_bounds(&recorded(&name));
        n += 1;
    }
    assert!(n >= 9, "{n} recorded runs");
}

/// Parameters of a random run: the number of pods, the number of terminations, the times between them, how long the
/// rules list each pod, the rate, a rollout flag, and the seed.
type Drawn = (usize, usize, Vec<i64>, Vec<i64>, i64, bool, u64);

/// Returns a run whose pods end one after another; the rules keep listing each of them for some time.
fn simulated((pods, ends, gaps_ms, held_ms, rate, in_rollout, seed): Drawn) -> RunResult {
    let names: Vec<String> = (0..pods).map(|n| format!("p{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut service = Service::new(&names);
    let mut at_ms = 1500;
    let mut left = Vec::new();
    for (e, pod) in names.iter().take(ends.min(pods - 1)).enumerate() {
        at_ms += gaps_ms[e];
        service.delete(at_ms, pod);
        service.slice(at_ms + 40, &names[e + 1..], &[pod]);
        left.push((at_ms + held_ms[e], e + 1));
    }
    left.sort_unstable();
    let mut gone = 0;
    for (ms, first) in left {
        gone = first.max(gone);
        service.rules(ms, &names[gone..]);
    }
    service.load(rate, if seed % 2 == 0 { Naming::Header } else { Naming::Nothing }, seed);
    if in_rollout {
        for event in &mut service.records.events {
            if let EventKind::Action(action) = &mut event.kind {
                action.mode = Some(Mode::Rollout);
            }
        }
    }
    told(service.records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn simulated_remedies_exceed_window_bounds(
        pods in 2..6_usize,
        ends in 1..4_usize,
        gaps_ms in proptest::collection::vec(0..1500_i64, 4),
        held_ms in proptest::collection::vec(50..2500_i64, 4),
        rate in 20..60_i64,
        in_rollout in any::<bool>(),
        seed in any::<u64>(),
    ) {
        is_above_its_bounds(&simulated((pods, ends, gaps_ms, held_ms, rate, in_rollout, seed)));
    }
}

/// By themselves, the two pods that are deleted together would suggest 1 to 2 s, but the window of the third is known
/// to have lasted longer than 1 s.
#[test]
fn window_of_other_mode_closes_sleep_range() {
    let gaps_ms = vec![451, 752, 1469, 0];
    let result = simulated((4, 3, gaps_ms, vec![50, 155, 1029, 50], 35, false, 3_222_895_615_083_084_588));
    let lower_s = result.terminations[2].windows[0].lower_s;
    assert_eq!((result.terminations[2].mode, lower_s), (Mode::Isolated, Some(1.018)));
    let of_two = result.recommendation.iter().find(|rec| rec.mode == Mode::Other).unwrap();
    assert_eq!((of_two.suggested_from_seconds, of_two.suggested_seconds), (None, Some(2)));
    is_above_its_bounds(&result);
}

#[test]
fn group_window_raises_advised_sleep() {
    let result = recorded("gw-tr-1");
    let remedy = remedy(&result, Cause::GatewayToDeadPod);
    assert!(remedy.contains("longer than 2.121 s"), "{remedy}");
}

#[test]
fn loose_bounds_yield_sleep_range() {
    let result = recorded("plain-ipt6-1");
    let rec = &result.recommendation[0];
    assert_eq!((rec.suggested_from_seconds, rec.suggested_seconds), (Some(2), Some(4)), "{rec:?}");
    let remedy = remedy(&result, Cause::RoutedToDeadPod);
    assert!(
        remedy.starts_with(
            "a preStop sleep between 2 and 4 s for pods that end in a rollout (suggested by 6 terminations"
        ),
        "{remedy}"
    );
    assert!(remedy.contains("more rollout") || remedy.contains("more termination"), "{remedy}");
}

#[test]
fn never_routed_pod_does_not_block_advice() {
    let result = recorded("obs-1");
    let windows = result.terminations.iter().flat_map(|t| &t.windows);
    let open: Vec<_> = windows.filter_map(|w| w.censored_reason).collect();
    assert_eq!(open, [NoBound::NeverRouted]);
    let rec = &result.recommendation[0];
    assert_eq!((rec.terminations, rec.units, result.windows_s[0].n), (14, 14, 14), "{rec:?}");
    assert_eq!(rec.suggested_seconds, Some(3), "{rec:?}");
    assert!(remedy(&result, Cause::RoutedToDeadPod).starts_with("a preStop sleep of 3 s for pods that end"));
}

/// Terminates `b` in a rollout of Deployment web, which replaces its pods with this strategy.
pub(super) fn replaced(
    strategy: Option<Replacement>,
    replicas: i32,
    max_unavailable: Option<&str>,
) -> Records {
    let mut records = three_pods();
    for event in &mut records.events {
        match &mut event.kind {
            EventKind::Action(action) => action.mode = Some(Mode::Rollout),
            EventKind::Pod(pod) => pod.owner = Some("ReplicaSet/web-1".into()),
            _ => {}
        }
    }
    let workload = WorkloadEvent {
        change: Change::Listed,
        workload: "Deployment/web".into(),
        replicas: Some(replicas),
        template: "a".into(),
        owner: None,
        strategy,
        max_unavailable: max_unavailable.map(str::to_owned),
        consumers: None,
    };
    records.events.push(Event::new(at(-900), "coordinator", EventKind::Workload(workload)));
    records.events.sort_by_key(|event| event.at);
    records
}

#[test]
fn recreate_remedy_changes_strategy() {
    let result = told(replaced(Some(Replacement::Recreate), 3, None));
    let rec = &result.recommendation[0];
    assert_eq!((rec.suggested_seconds, rec.covers_all_seen_seconds), (None, None), "{rec:?}");
    assert!(rec.refused_because[0].starts_with("Deployment web has strategy Recreate"), "{rec:?}");
    let changed = remedy(&result, Cause::RoutedToDeadPod);
    assert!(changed.starts_with("use strategy RollingUpdate with maxSurge for Deployment web"), "{changed}");
    assert!(advised(changed).is_empty(), "{changed}");
    // The same pods with another strategy, and a record that does not contain the strategy.
    for strategy in [Some(Replacement::RollingUpdate), None] {
        let result = told(replaced(strategy, 3, None));
        assert_eq!(result.recommendation[0].suggested_seconds, Some(1));
    }
}

#[test]
fn remedy_includes_fitting_grace_period() {
    let of = |has_upper_bound: bool| {
        let mut records = three_pods();
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.grace_s = 2;
            }
        }
        records.requests.retain(|row| has_upper_bound || row.scheduled < at(5110));
        told(records)
    };
    let suggested = of(true);
    let with = "a preStop sleep of 1 s with terminationGracePeriodSeconds 3 for pods that end one at a time";
    assert!(remedy(&suggested, Cause::RoutedToDeadPod).starts_with(with), "{:?}", suggested.findings);
    assert_eq!(suggested.recommendation[0].termination_grace_period_seconds, Some(3));
    let at_least = of(false);
    let with = ", with terminationGracePeriodSeconds 4 or more, or an app";
    assert!(remedy(&at_least, Cause::RoutedToDeadPod).contains(with), "{:?}", at_least.findings);
}

/// Makes pod `b`, which sleeps for 3 s, end without being deleted, and sets when its grace period begins.
fn undeleted(began_ms: i64, change: impl Fn(&mut PodEvent)) -> Records {
    let mut records = three_pods();
    records.events.retain(|event| !matches!(event.kind, EventKind::Action(_)));
    let shutdown = Action {
        is_undone: false,
        disruption: 0,
        action: ActionName::NodeShutdown,
        mode: Some(Mode::NodeShutdown),
        pod: None,
        uid: None,
        answered: at(began_ms + 10),
        status: Some(200),
        error: None,
    };
    records.events.push(Event::new(at(began_ms), "coordinator", EventKind::Action(shutdown)));
    records.events.push(pod_event(5030, "b", Change::Applied));
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.containers[0].pre_stop_sleep_s = Some(3);
            if pod.name == "b" && event.at >= at(5030) {
                (pod.phase, pod.ready) = ("Failed".into(), false);
                pod.disruption_target = Some("TerminationByKubelet".into());
                (pod.containers[0].state, pod.containers[0].exit_code) = (Some("terminated".into()), Some(0));
                change(pod);
            }
        }
    }
    records.events.sort_by_key(|event| event.at);
    records
}

#[test]
fn node_shutdown_remedy_drains_first() {
    let result = told(undeleted(2000, |_| {}));
    let t = &result.terminations[0];
    assert_eq!(
        (t.mode, t.t0_basis, t.requests.dropped.at_least),
        (Mode::NodeShutdown, T0Basis::EndOfContainers, 7)
    );
    let rec = &result.recommendation[0];
    let advice = [rec.pre_stop_seconds, rec.suggested_seconds, rec.covers_all_seen_seconds];
    assert_eq!(
        (advice, &rec.refused_because[..]),
        ([None; 3], &[cause_words::NOT_DELETED_REMEDY.to_owned()][..])
    );
    assert!(
        result.what_if.iter().all(|w| w.drops_avoided == 0 && w.terminations == 0),
        "{:?}",
        result.what_if
    );
    let drain = remedy(&result, Cause::RoutedToDeadPod);
    assert!(drain.contains("drain a node before it shuts down") && advised(drain).is_empty(), "{drain}");
    assert_eq!(saying(&result, "the pods ended without being deleted").len(), 1, "{:?}", result.findings);
    for untrue in ["sleep of 3 s", "hook failed", "does not exit on SIGTERM"] {
        assert!(saying(&result, untrue).is_empty(), "{untrue}: {:?}", result.findings);
    }
}

#[test]
fn evicted_pod_did_not_use_up_grace() {
    let result = told(undeleted(-60_000, |pod| {
        (pod.reason, pod.grace_s) = (Some("Evicted".into()), 3);
        let app = &mut pod.containers[0];
        (app.pre_stop_sleep_s, app.exit_code, app.readiness_notices_s) = (None, Some(137), Some(1));
    }));
    assert_eq!(result.terminations[0].exit_code, Some(137));
    for untrue in
        ["grace period of 3 s", "grace period expired", "terminationGracePeriodSeconds", "SIGKILL ended"]
    {
        assert!(saying(&result, untrue).is_empty(), "{untrue}: {:?}", result.findings);
    }
}

/// Replaces a node's only pod in place, so connections to that node reach no pod until the next one is ready.
#[test]
fn podless_node_has_no_ready_endpoint() {
    let of = |policy| {
        let mut records = replaced(Some(Replacement::RollingUpdate), 3, Some("1"));
        for event in &mut records.events {
            if let EventKind::Workload(workload) = &mut event.kind {
                workload.workload = "DaemonSet/web".into();
            }
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.owner = Some("DaemonSet/web".into());
            }
        }
        for (ms, pods) in [(-900, &["a", "b", "c"][..]), (5300, &["a", "c"]), (7000, &["a", "c", "d"])] {
            slice(&mut records, ms, "web", pods);
            let Some(EventKind::EndpointSlice(slice)) =
                records.events.last_mut().map(|event| &mut event.kind)
            else {
                unreachable!()
            };
            for endpoint in &mut slice.endpoints {
                let is_there = matches!(endpoint.pod.as_deref(), Some("b" | "d"));
                endpoint.node = Some(if is_there { "node-1" } else { "node-2" }.into());
            }
        }
        let rules = ServiceRules { external_traffic: policy, ..ServiceRules::default() };
        let target = &mut records.info.targets[0];
        (target.service, target.node) = (Some("web".into()), Some("node-1".into()));
        target.routing = Some(Routing::NodePort(rules));
        records.events.sort_by_key(|event| event.at);
        // Requests from the pod's termination until the rules contain the next pod.
        let lost = |row: &&mut RequestRow| row.scheduled > at(5030) && row.scheduled < at(7500);
        for row in records.requests.iter_mut().filter(lost) {
            (row.outcome, row.pod) = (Outcome::ConnectTimeout, None);
            row.end = row.scheduled.shifted_ns(1000 * MS);
        }
        told(records)
    };
    let result = of(TrafficPolicy::Local);
    let causes: Vec<_> = result.requests.by_cause.keys().collect();
    assert_eq!(causes, [&Cause::NoReadyEndpoint], "{:?}", result.requests.by_cause);
    let finding = result.findings.iter().find(|f| f.cause == Some(Cause::NoReadyEndpoint)).unwrap();
    assert!(finding.why.starts_with("the node had no ready pod of its own"), "{finding:?}");
    assert!(
        finding
            .remedy
            .starts_with("set maxSurge: 1 and maxUnavailable: 0 in the updateStrategy of DaemonSet web"),
        "{finding:?}"
    );
    assert!(finding.remedy.contains("or set externalTrafficPolicy: Cluster"), "{finding:?}");
    // With pods on other nodes behind the Service, the cause is the pod that the rules still listed.
    let causes = of(TrafficPolicy::Cluster).requests.by_cause;
    assert!(!causes.contains_key(&Cause::NoReadyEndpoint), "{causes:?}");
}

#[test]
fn endpoint_remedy_follows_workload_settings() {
    let of = |replicas, max_unavailable| {
        let mut records = replaced(Some(Replacement::RollingUpdate), replicas, max_unavailable);
        slice(&mut records, -900, "web", &["a", "b", "c"]);
        slice(&mut records, 5040, "web", &["a", "c"]);
        slice(&mut records, 7000, "web", &[]);
        slice(&mut records, 9900, "web", &["a"]);
        records.info.targets[0].service = Some("web".into());
        records.events.sort_by_key(|event| event.at);
        let rows = records.requests.iter_mut().filter(|r| r.scheduled > at(8500) && r.scheduled < at(9500));
        rows.for_each(|row| (row.outcome, row.pod) = (Outcome::ConnectRefused, None));
        remedy(&told(records), Cause::NoReadyEndpoint).to_owned()
    };
    assert!(of(1, None).starts_with("run more than one replica of Deployment web, with maxUnavailable: 0"));
    let several = of(3, Some("25%"));
    assert!(several.starts_with("set maxUnavailable: 0 in its strategy (now 25%) for rollouts"), "{several}");
    assert!(several.contains("a PodDisruptionBudget limits evictions, not rollouts"), "{several}");
}

/// Returns [`three_pods`] with an app whose hook is not a sleep.
pub(super) fn with_a_hook(exec_sleep_s: Option<i64>) -> Records {
    let mut records = three_pods();
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            let app = &mut pod.containers[0];
            (app.pre_stop_other, app.pre_stop_exec_sleep_s) = (true, exec_sleep_s);
            app.pre_stop_program = Some("/bin/no-such-sleep".into());
        }
    }
    records
}

pub(super) fn failed_hook(ms: i64) -> Event {
    let kind = EventKind::ClusterEvent {
        pod: "b".into(),
        reason: "FailedPreStopHook".into(),
        message: "no such file".into(),
        container: Some("app".into()),
    };
    Event::new(at(ms), "coordinator", kind)
}

#[test]
fn failed_hook_remedy_suggests_sleep() {
    let mut records = with_a_hook(None);
    records.events.push(failed_hook(5040));
    records.events.sort_by_key(|event| event.at);
    let result = told(records);
    let said = saying(&result, "FailedPreStopHook");
    assert_eq!(
        said[0].what,
        "the preStop hook of container app failed (1 of 1 pod, event FailedPreStopHook: no such file; it runs \
         /bin/no-such-sleep)"
    );
    assert!(said[0].remedy.starts_with("use lifecycle.preStop.sleep, which needs no program"));
    let dead = result.findings.iter().find(|f| f.cause == Some(Cause::RoutedToDeadPod)).unwrap();
    assert!(dead.remedy.starts_with("replace the failed hook with lifecycle.preStop.sleep: "), "{dead:?}");
    assert!(dead.why.contains("the preStop hook that should have delayed this failed"), "{dead:?}");
    assert!(saying(&result, "nothing waits").is_empty());
}

#[test]
fn remedy_targets_lossy_workload() {
    let mut records = with_a_hook(None);
    records.events.push(failed_hook(5040));
    delete(&mut records, 8000, "c");
    for event in &mut records.events {
        let EventKind::Pod(pod) = &mut event.kind else { continue };
        let app = &mut pod.containers[0];
        pod.owner = Some("StatefulSet/web".into());
        if pod.name == "c" {
            pod.owner = Some("StatefulSet/other".into());
            (app.pre_stop_other, app.pre_stop_sleep_s, app.pre_stop_program) = (false, Some(20), None);
        }
    }
    for name in ["web", "other"] {
        let workload = WorkloadEvent {
            change: Change::Listed,
            workload: format!("StatefulSet/{name}"),
            replicas: Some(3),
            template: "a".into(),
            owner: None,
            strategy: Some(Replacement::RollingUpdate),
            max_unavailable: None,
            consumers: None,
        };
        records.events.push(Event::new(at(-900), "coordinator", EventKind::Workload(workload)));
    }
    records.events.sort_by_key(|event| event.at);
    // There is no bound, so the remedy states what a sleep has to exceed.
    records.requests.iter_mut().filter(|row| row.scheduled >= at(5000)).for_each(|row| row.pod = None);
    let result = told(records);
    let hooks = saying(&result, "FailedPreStopHook");
    let what = "the preStop hook of container app of StatefulSet web failed (1 of 1 pod, event";
    assert!(matches!(&hooks[..], [hook] if hook.what.starts_with(what)), "{hooks:?}");
    let told = remedy(&result, Cause::RoutedToDeadPod);
    assert!(told.starts_with("replace the failed hook with lifecycle.preStop.sleep: "), "{told}");
    assert!(advised(told).iter().all(|seconds| *seconds < 20.0) && !advised(told).is_empty(), "{told}");
}

#[test]
fn configured_sleep_silences_finding() {
    let mut records = three_pods();
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.containers[0].pre_stop_sleep_s = Some(5);
        }
    }
    let result = told(records);
    assert!(saying(&result, "nothing waits").is_empty(), "{:?}", result.findings);
}

/// Makes `b` close its listener on SIGTERM and answer on kept-alive connections for `serves_s`; SIGKILL ends it after
/// 30 s.
pub(super) fn kept_on(serves_s: i64) -> Records {
    let mut records = three_pods();
    records.info.load.duration_s = 60.0;
    let is_deletion =
        |event: &&mut Event| matches!(&event.kind, EventKind::Pod(pod) if pod.change == Change::Deleted);
    let ended = pod_event(35_200, "b", Change::Applied);
    records.events.iter_mut().filter(is_deletion).for_each(|event| event.at = at(36_000));
    records.events.push(ended);
    for event in records.events.iter_mut().filter(|event| event.at >= at(35_200)) {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.deletion_grace_s = Some(0);
            let app = &mut pod.containers[0];
            (app.state, app.exit_code) = (Some("terminated".into()), Some(137));
        }
    }
    records.events.sort_by_key(|event| event.at);
    for ms in (5_050..5_000 + serves_s * 1_000).step_by(50) {
        request(&mut records, ms * MS, Outcome::Ok, Some("b"));
        let row = records.requests.last_mut().unwrap();
        (row.conn, row.conn_reused, row.connect_start, row.connected) = (Some(1), true, None, None);
    }
    request(&mut records, 50_000 * MS, Outcome::Ok, Some("a"));
    records
}

#[test]
fn long_kept_connections_need_closing() {
    let result = told(kept_on(30));
    let said = saying(&result, "kept answering on open connections until the grace period of 30 s expired");
    assert_eq!(said.len(), 1, "{:?}", result.findings);
    assert!(
        said[0].remedy.starts_with("answer with Connection: close while draining after SIGTERM"),
        "{:?}",
        said[0]
    );
    assert!(said[0].why.contains("1 x 30 s = 0.5 min"), "{:?}", said[0]);
    for untrue in
        ["stops as soon as", "set terminationGracePeriodSeconds", "stops accepting connections on SIGTERM"]
    {
        assert!(saying(&result, untrue).is_empty(), "{untrue}: {:?}", result.findings);
    }
    assert!(
        saying(&result, "closes its listener on SIGTERM, but still answers on kept connections").len() == 1
    );
}

#[test]
fn remedy_raises_only_exceeded_grace_period() {
    // Responses are quick and the grace period is 30 s, so the app does not exit by itself.
    let result = told(kept_on(2));
    assert_eq!(saying(&result, "it does not exit on SIGTERM").len(), 1, "{:?}", result.findings);
    assert!(saying(&result, "set terminationGracePeriodSeconds").is_empty());
    let mut records = kept_on(2);
    records.requests[0].end = records.requests[0].end.shifted_ns(40_000 * MS);
    let result = told(records);
    assert_eq!(saying(&result, "set terminationGracePeriodSeconds above preStop (0 s)").len(), 1);
}

#[test]
fn headless_remedy_includes_dns_ttl() {
    let of = |ttl_s: Option<f64>| {
        let mut records = three_pods();
        records.requests.retain(|r| r.scheduled < at(5110));
        records.info.targets[0].routing = Some(Routing::Dns);
        let answer = NameAnswer { name: "web".into(), addresses: Vec::new(), ttl_s, error: None };
        records.events.push(Event::new(at(0), "coordinator", EventKind::NameAnswer(answer)));
        remedy(&told(records), Cause::RoutedToDeadPod).to_owned()
    };
    let known = of(Some(30.0));
    assert!(
        known.contains("longer than 30.000 s (clients cache DNS answers for their TTL of 30 s)"),
        "{known}"
    );
    let unknown = of(None);
    assert!(unknown.contains("and the TTL for which clients cache DNS answers"), "{unknown}");
}

#[test]
fn missing_bound_remedy_follows_reason() {
    let of = |change: &dyn Fn(&mut Records)| {
        let mut records = three_pods();
        change(&mut records);
        let result = told(records);
        let window = result.terminations[0].windows[0].clone();
        let said = saying(&result, "has no upper bound");
        (window.censored_reason.unwrap(), said[0].why.clone(), said[0].remedy.clone())
    };
    let (reason, _, told) = of(&|records| records.requests.retain(|r| r.scheduled < at(5110)));
    assert_eq!(reason, NoBound::LoadEnded);
    assert!(told.starts_with("keep the load running longer"), "{told}");
    // All connections were opened before t0, and the load continued.
    let (reason, why, told) = of(&|records| {
        records.requests.retain(|r| r.scheduled < at(3500));
        for row in &mut records.requests.clone() {
            let mut row = row.clone();
            row.seq += 100_000;
            (row.scheduled, row.sent) = (row.scheduled.shifted_ns(6_000 * MS), Some(row.scheduled));
            (row.end, row.conn_reused) = (row.end.shifted_ns(6_000 * MS), true);
            (row.connect_start, row.connected, row.sent) = (None, None, Some(row.scheduled));
            records.requests.push(row);
        }
    });
    assert_eq!(reason, NoBound::NoNewConnections);
    assert!(why.starts_with("the client opened its last new connection 1.5"), "{why}");
    assert!(!why.contains("-"), "{why}");
    assert!(told.contains("connections.mode: fresh or mixed"), "{told}");
}
