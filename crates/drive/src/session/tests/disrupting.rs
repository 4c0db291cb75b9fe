//! Tests of the pods that disruptions choose, and of the times at which they terminate them.

use tokio::time::Instant;

use super::*;
use rolldrop_scenario::{Count, Disruption, DisruptionAction, Order, Pods, Repeat, Restore};

/// Deleted pods with the times of their deletion.
type Deletions = Arc<Mutex<Vec<(String, Instant)>>>;

/// A pod that was terminating before the run began, and does not end.
const STUCK: &str = "stuck";

/// State of a pod after its deletion.
#[derive(Clone, Copy)]
enum Deleted {
    /// The pod keeps terminating.
    Lingers,
    /// Another pod replaces it immediately.
    IsReplaced,
}

/// Creates an API server that has only these pods, all ready except [`STUCK`]. Returns a client for it.
fn shop(names: &'static [&str], deleted: Deleted) -> (Client, Deletions) {
    let deletions = Deletions::default();
    let seen = Arc::clone(&deletions);
    let (client, _) = api(move |method, path| {
        let mut gone = seen.lock().unwrap();
        if *method == Method::DELETE {
            gone.push((path.rsplit('/').next().unwrap().to_owned(), Instant::now()));
            return (200, json!({"metadata": {"name": "web"}}).to_string());
        }
        let pod = |name: &&str| {
            let is_gone = gone.iter().any(|(other, _)| other == name);
            let (name, created, deleted) = match deleted {
                _ if *name == STUCK => {
                    ((*name).to_owned(), "2026-01-01T00:00:00Z", Some("2026-01-01T00:00:01Z"))
                }
                Deleted::IsReplaced if is_gone => (format!("{name}-next"), "2026-01-01T00:00:09Z", None),
                Deleted::Lingers if is_gone => {
                    ((*name).to_owned(), "2026-01-01T00:00:00Z", Some("2026-01-01T00:00:09Z"))
                }
                _ => ((*name).to_owned(), "2026-01-01T00:00:00Z", None),
            };
            let metadata = json!({"name": name, "uid": name, "creationTimestamp": created, "deletionTimestamp": deleted});
            json!({"metadata": metadata,
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        };
        let items: Vec<Value> = match path.ends_with("/pods") {
            true => names.iter().map(pod).collect(),
            false => Vec::new(),
        };
        (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
    });
    (client, deletions)
}

/// Returns a disruption that deletes `count` pods at the same time, oldest first, as often as `repeat` specifies.
fn deletion(count: Count, repeat: Repeat) -> Disruption {
    Disruption {
        at: Duration::ZERO,
        every: Duration::from_millis(1),
        jitter: Duration::ZERO,
        seed: 0,
        repeat,
        allow_outage: false,
        action: DisruptionAction::DeletePod(Pods {
            selector: "app=web".into(),
            count,
            order: Order::Oldest,
            batch: None,
            spacing: Duration::ZERO,
            grace_seconds: None,
        }),
    }
}

#[tokio::test]
async fn refused_deletion_is_recorded_with_both_times() {
    let pod = json!({"metadata": {"name": "web-1", "uid": "u"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}).to_string();
    let (client, _) = api(move |method, _| match *method {
        Method::GET => (200, list.clone()),
        _ => status(403, "Forbidden", "pods \"web-1\" is forbidden"),
    });
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let disruption = Disruption { allow_outage: true, ..deletion(Count::Number(1), Repeat::Times(1)) };
    let zero = session.now();
    let disrupted = session.disrupt(&[disruption], beside(zero), &NoPrograms).await;
    assert_eq!(disrupted, 0);
    finish(session).await;
    let events = events_of(&run_dir);
    let action = events.iter().find_map(|e| match &e.kind {
        EventKind::Action(action) => Some((e.at, action)),
        _ => None,
    });
    let (sent, action) = action.unwrap();
    assert!(zero <= sent && sent <= action.answered);
    assert_eq!((action.pod.as_deref(), action.status), (Some("web-1"), Some(403)));
    assert_eq!(action.error.as_deref(), Some("pods \"web-1\" is forbidden"));
}

/// Budgets refuse an eviction for longer than an outage may last; a single fault after that is not an outage.
#[tokio::test(start_paused = true)]
async fn outage_limit_counts_from_first_fault() {
    let limits = TimeLimits { outage: Duration::from_secs(5), ..TimeLimits::default() };
    let tries = Arc::new(AtomicUsize::new(0));
    let pod = json!({"metadata": {"name": "web-1", "uid": "u"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}).to_string();
    let count = Arc::clone(&tries);
    let (client, _) = api(move |method, _| match *method {
        Method::GET => (200, list.clone()),
        _ => match count.fetch_add(1, Ordering::SeqCst) {
            0..3 => status(429, "TooManyRequests", "a budget would be violated"),
            3 => status(503, "ServiceUnavailable", "away"),
            _ => (201, json!({"kind": "Status", "status": "Success"}).to_string()),
        },
    });
    let (session, _run_dir, _dir) = session(client, limits);
    let mut eviction = deletion(Count::Number(1), Repeat::Times(1));
    eviction.allow_outage = true;
    let DisruptionAction::DeletePod(pods) = eviction.action else { unreachable!() };
    eviction.action = DisruptionAction::Evict(pods);
    let disrupted = session.disrupt(&[eviction], beside(session.now()), &NoPrograms).await;
    assert_eq!(disrupted, 1);
    assert_eq!(tries.load(Ordering::SeqCst), 5);
    finish(session).await;
}

#[tokio::test]
async fn second_action_takes_remaining_pods() {
    let both = [deletion(Count::Number(1), Repeat::Times(1)), deletion(Count::Number(1), Repeat::Times(1))];
    let cases: [(&'static [&str], usize); 2] = [(&["web-1", "web-2", "web-3"], 2), (&["web-1", "web-2"], 1)];
    for (pods, expected) in cases {
        let (client, deletions) = shop(pods, Deleted::Lingers);
        let (session, run_dir, _dir) = session(client, TimeLimits::default());
        let zero = session.now();
        assert_eq!(session.disrupt(&both, beside(zero), &NoPrograms).await, expected);
        finish(session).await;
        let deleted: Vec<_> = deletions.lock().unwrap().iter().map(|(pod, _)| pod.clone()).collect();
        assert_eq!(deleted, pods[..expected]);
        let refused = events_of(&run_dir).into_iter().find_map(|event| match event.kind {
            EventKind::Action(action) => action.error,
            _ => None,
        });
        let why = "it is the last ready pod, not counting pods that are already terminating";
        assert_eq!(refused.is_some_and(|said| said.contains(why)), expected == 1);
    }
}

/// Returns the seconds between consecutive deletions.
fn distances_s(deletions: &Deletions) -> Vec<f64> {
    let deletions = deletions.lock().unwrap();
    let pairs = deletions.iter().zip(&deletions[1..]);
    pairs.map(|((_, before), (_, after))| (*after - *before).as_secs_f64()).collect()
}

#[tokio::test(start_paused = true)]
async fn termination_spacing_equals_required_silence() {
    // The lag of a Service proxy, 1 s, and ln(n/α)/λ for two pods that share the rate.
    for (rate, expected_s) in [(20.0, 1.0 + (3.0_f64 / 0.05).ln() / 10.0), (0.1, 11.0)] {
        let (client, deletions) = shop(&["web-1", "web-2"], Deleted::IsReplaced);
        let (session, _, _dir) = session(client, TimeLimits::default());
        let load = UnderLoad { rate, ..beside(session.now()) };
        let thrice = [deletion(Count::Number(1), Repeat::Times(3))];
        let disrupted = session.disrupt(&thrice, load, &NoPrograms).await;
        assert_eq!(disrupted, 3);
        for distance_s in distances_s(&deletions) {
            assert!((distance_s - expected_s).abs() < 0.05, "{distance_s} s, {expected_s} s expected");
        }
        finish(session).await;
    }
}

#[tokio::test(start_paused = true)]
async fn next_batch_awaits_previous_recovery() {
    for (spacing_s, expected_s) in [(0, 1.0), (5, 5.0)] {
        let (client, deletions) = shop(&["web-1", "web-2", "web-3", "web-4", "web-5"], Deleted::IsReplaced);
        let (session, _, _dir) = session(client, TimeLimits::default());
        let mut all = deletion(Count::All, Repeat::Times(1));
        let DisruptionAction::DeletePod(pods) = &mut all.action else { unreachable!() };
        (pods.batch, pods.spacing) = (Some(2), Duration::from_secs(spacing_s));
        let disrupted = session.disrupt(&[all], beside(session.now()), &NoPrograms).await;
        assert_eq!(disrupted, 5);
        let deleted: Vec<_> = deletions.lock().unwrap().iter().map(|(pod, _)| pod.clone()).collect();
        assert_eq!(deleted, ["web-1", "web-2", "web-3", "web-4", "web-5"]);
        for (number, distance_s) in distances_s(&deletions).into_iter().enumerate() {
            let expected_s = if number % 2 == 0 { 0.0 } else { expected_s };
            assert!((distance_s - expected_s).abs() < 0.05, "{number}: {distance_s} s");
        }
        finish(session).await;
    }
}

/// Returns a disruption that deletes pods one by one.
fn one_by_one(count: Count) -> Disruption {
    let mut deletion = deletion(count, Repeat::Times(1));
    let DisruptionAction::DeletePod(pods) = &mut deletion.action else { unreachable!() };
    pods.batch = Some(1);
    deletion
}

fn errors_of(run_dir: &RunDir) -> Vec<String> {
    let events = events_of(run_dir).into_iter();
    let error = |event: rolldrop_record::Event| match event.kind {
        EventKind::Action(action) => action.error,
        _ => None,
    };
    events.filter_map(error).collect()
}

/// The second action begins while a pod of the first action is waiting for its turn.
#[tokio::test(start_paused = true)]
async fn overlapping_actions_take_distinct_pods() {
    let both = [one_by_one(Count::Number(2)), deletion(Count::Number(1), Repeat::Times(1))];
    let (client, deletions) = shop(&["web-1", "web-2", "web-3", "web-4"], Deleted::IsReplaced);
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let disrupted = session.disrupt(&both, beside(session.now()), &NoPrograms).await;
    assert_eq!(disrupted, 3);
    finish(session).await;
    let deleted: Vec<_> = deletions.lock().unwrap().iter().map(|(pod, _)| pod.clone()).collect();
    assert_eq!(deleted, ["web-1", "web-3", "web-2"]);
    assert_eq!(errors_of(&run_dir), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn each_missed_pod_is_recorded() {
    let mut all = one_by_one(Count::Number(2));
    all.allow_outage = true;
    let mut more = deletion(Count::Number(3), Repeat::Times(1));
    more.allow_outage = true;
    let (client, _) = shop(&["web-1", "web-2", "web-3"], Deleted::Lingers);
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let load = UnderLoad { end: session.now() + Duration::from_secs(5), ..beside(session.now()) };
    let disrupted = session.disrupt(&[all, more], load, &NoPrograms).await;
    assert_eq!(disrupted, 2);
    finish(session).await;
    let mut errors = errors_of(&run_dir);
    errors.sort();
    insta::assert_snapshot!(errors.join("\n"), @r"
    only 1 of 3 pods were ready and not already chosen by another action
    only 1 of 3 pods were ready and not already chosen by another action
    the previous pods had not recovered when the load ended
    ");
}

#[tokio::test(start_paused = true)]
async fn unreached_repetitions_share_one_record() {
    let (client, _) = shop(&["web-1", "web-2"], Deleted::Lingers);
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let load = UnderLoad { end: session.now() + Duration::from_secs(5), ..beside(session.now()) };
    let thrice = [deletion(Count::Number(1), Repeat::Times(3))];
    let disrupted = session.disrupt(&thrice, load, &NoPrograms).await;
    assert_eq!(disrupted, 1);
    finish(session).await;
    let errors = errors_of(&run_dir);
    assert!(errors.len() == 1 && errors[0].starts_with("repetitions 2 to 3 were skipped: "), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn next_action_ignores_earlier_terminations() {
    let (client, _) = shop(&[STUCK, "web-1", "web-2"], Deleted::IsReplaced);
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let mut stuck = pod(STUCK, container("running", "", ""));
    stuck.event.uid = STUCK.to_owned();
    stuck.event.deletion_timestamp = Some(session.now());
    session.observer.views().update(|view| {
        (view.pods_listed, view.slices_listed) = (true, true);
        view.pods.insert(STUCK.to_owned(), stuck);
    });
    session.observer.await_first_lists(&session.caller).await.unwrap();
    session.await_recovery(&Workloads::default()).await.unwrap();
    let twice = [deletion(Count::Number(1), Repeat::Times(2))];
    assert_eq!(session.disrupt(&twice, beside(session.now()), &NoPrograms).await, 2);
    session.await_ends().await;
    finish(session).await;
    assert_eq!(errors_of(&run_dir), Vec::<String>::new());
    let mut warnings = events_of(&run_dir);
    warnings.retain(|event| matches!(&event.kind, EventKind::Warning { message } if message.contains("terminating") || message.contains("not settled")));
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// Without a label that its StatefulSet selects by, the pod would be released, and its replacement's name taken.
#[tokio::test]
async fn relabel_keeps_pod_in_its_workload() {
    for kind in ["ReplicaSet", "StatefulSet", "DaemonSet"] {
        let of =
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "w", "controller": true}]);
        let labels = json!({"app": "web", "part": "shop", "tier": "front"});
        let metadata = json!({"name": "web-0", "uid": "p", "resourceVersion": "1", "labels": labels, "ownerReferences": of});
        let pod =
            json!({"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let terms = json!([{"key": "part", "operator": "Exists"}]);
        let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": terms});
        let workload = json!({"metadata": {"name": "web", "uid": "w"}, "spec": {"selector": selector}});
        let service = json!({"metadata": {"name": "web"}, "spec": {"selector": labels}});
        let (client, calls) = api(move |method, path| {
            let items = match path.rsplit('/').next() {
                _ if *method == Method::PATCH => return (200, pod.to_string()),
                Some("pods") => json!([pod]),
                Some("services") => json!([service]),
                Some(of) if of == format!("{}s", kind.to_lowercase()) => json!([workload]),
                _ => json!([]),
            };
            (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
        });
        let (session, _run_dir, _dir) = session(client, TimeLimits::default());
        let mut relabel = deletion(Count::Number(1), Repeat::Times(1));
        let DisruptionAction::DeletePod(pods) = relabel.action else { unreachable!() };
        relabel.action = DisruptionAction::Relabel { pods, label: None, restore: Restore::AtTheEnd };
        relabel.allow_outage = true;
        assert_eq!(session.disrupt(&[relabel], beside(session.now()), &NoPrograms).await, 1, "{kind}");
        let calls = calls.lock().unwrap();
        let patch = calls.iter().find(|(method, ..)| *method == Method::PATCH).map(|(.., body)| body);
        let labels = patch.unwrap()["metadata"]["labels"].clone();
        assert_eq!(labels, json!({"tier": "left-by-rolldrop"}), "{kind}");
    }
}
