//! The parts that react to a termination: endpoints, ReplicaSets, rollouts, and the traffic of a client in a pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldrop_record::{Outcome, RequestRow, RunDir};
use serde_json::{Value, json};

use super::case::{Act, Case, EXIT, SERVE_3, condition};
use super::golden::{Golden, order, order_of};
use super::hops::rules;
use super::lab::{LIMIT, Lab, Seen, now_ns};
use super::recording::Recording;
use super::{DATAPLANES, recordings};
use crate::harness::wait_for;
use crate::pods::on_with;
use crate::runs::json_lines;

/// Returns the cases with a single pod.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<(&'static str, Case)> {
    let cases = [
        Case::new(lab, "publish-not-ready", SERVE_3)
            .service("publishNotReadyAddresses", json!(true))
            .act(0.0, Act::Delete(None)),
        Case::script(lab, "no-probe", "sleep 5; say listens; sleep 1000")
            .app(|app| app["readinessProbe"] = Value::Null),
    ];
    cases.into_iter().map(|case| (case.name(), case)).collect()
}

/// Returns the cases with several pods.
pub(crate) fn flows(lab: &Arc<Lab>) -> Vec<(&'static str, BoxFuture<'static, Recording>)> {
    vec![
        ("rollout", rollout(Arc::clone(lab), "rollout", EXIT).boxed()),
        ("slow-rollout", rollout(Arc::clone(lab), "slow-rollout", SERVE_3).boxed()),
        ("traffic", traffic(Arc::clone(lab), "traffic", 2).boxed()),
        ("last-endpoint", traffic(Arc::clone(lab), "last-endpoint", 1).boxed()),
    ]
}

/// Creates a Service and a Deployment of sample servers; returns the Service's address.
pub(crate) async fn deploy(
    lab: &Lab,
    namespace: &str,
    replicas: usize,
    habit: &[&str],
    grace: Value,
) -> String {
    lab.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
    let service = json!({
        "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]},
    });
    let service = lab.create(&format!("/api/v1/namespaces/{namespace}/services"), &service).await;
    let log = lab.dir().join(format!("{namespace}.$(POD_NAME).jsonl"));
    let mut args =
        vec![json!("workload"), json!("--listen"), json!("$(POD_IP):8080"), json!("--log"), json!(log)];
    args.extend(habit.iter().map(|arg| json!(arg)));
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 30, "containers": [{
                    "name": "app", "image": "rolldrop", "args": args, "lifecycle": {"preStop": grace},
                    "env": [field("POD_IP", "status.podIP"), field("POD_NAME", "metadata.name")],
                    "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                }]},
            },
        },
    });
    lab.create(&format!("/apis/apps/v1/namespaces/{namespace}/deployments"), &deployment).await;
    let ready = |seen: &[Seen]| (ready_endpoints(seen).len() == replicas).then_some(());
    lab.until(namespace, "ready endpoints", ready).await;
    service.body["spec"]["clusterIP"].as_str().expect("an address").to_owned()
}

/// Returns the pods behind ready endpoints in the newest slice.
pub(crate) fn ready_endpoints(seen: &[Seen]) -> Vec<String> {
    let slice = seen.iter().rfind(|seen| seen.kind() == "EndpointSlice");
    let endpoints = slice.and_then(|slice| slice.object["endpoints"].as_array()).cloned().unwrap_or_default();
    let ready = endpoints.into_iter().filter(|endpoint| endpoint["conditions"]["ready"] == true);
    ready.filter_map(|endpoint| endpoint["targetRef"]["name"].as_str().map(str::to_owned)).collect()
}

/// Returns the currently existing objects of a kind, by name.
fn now<'a>(kind: &str, seen: &'a [Seen]) -> BTreeMap<String, &'a Value> {
    let mut objects = BTreeMap::new();
    for seen in seen.iter().filter(|seen| seen.kind() == kind) {
        match seen.event {
            "DELETED" => drop(objects.remove(seen.name())),
            _ => drop(objects.insert(seen.name().to_owned(), &seen.object)),
        }
    }
    objects
}

pub(crate) fn pods_now(seen: &[Seen]) -> BTreeMap<String, &Value> {
    now("Pod", seen)
}

pub(crate) fn is_leaving(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn record(lab: &Lab, namespace: &str, pod: &str, zero_ns: i64) -> Recording {
    let mut recording = Recording {
        case: namespace.to_owned(),
        dataplane: lab.dataplane,
        pod: pod.to_owned(),
        zero_ns,
        seen: lab.seen(namespace),
        lag_s: lab.lag_s(zero_ns),
        process: Vec::new(),
        answers: Vec::new(),
        rows: Vec::new(),
    };
    recording.add_log("app", &lab.dir().join(format!("{namespace}.{pod}.jsonl")));
    recording
}

/// Records a change of template in a Deployment of three pods.
async fn rollout(lab: Arc<Lab>, namespace: &'static str, habit: &'static [&'static str]) -> Recording {
    deploy(&lab, namespace, 3, habit, Value::Null).await;
    let old = ready_endpoints(&lab.seen(namespace));
    let zero_ns = now_ns();
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {"change": "1"}}}}});
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/web");
    assert_eq!(lab.call("PATCH", &path, Some(&patch)).await.status, 200);
    let rolled_out = |seen: &[Seen]| {
        let gone = !pods_now(seen).keys().any(|pod| old.contains(pod));
        (gone && ready_endpoints(seen).len() == 3).then_some(())
    };
    lab.until(namespace, "the end of the rollout", rolled_out).await;
    record(&lab, namespace, &old[0], zero_ns)
}

/// Records the traffic of a client pod to a Service, half on fresh and half on kept-alive connections. After 3 s, one
/// of the Service's pods is deleted, whose hook sleeps for 3 s.
async fn traffic(lab: Arc<Lab>, namespace: &'static str, replicas: usize) -> Recording {
    // Responses are so slow that many connections are kept alive, some of them to each pod.
    let habit = ["--on-sigterm", "exit", "--response-time", "300ms"];
    let address = deploy(&lab, namespace, replicas, &habit, json!({"sleep": {"seconds": 3}})).await;
    let out = lab.dir().join(format!("{namespace}.run"));
    let client = json!({
        "metadata": {"name": "client"},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "load", "image": "rolldrop",
            "args": ["load", format!("http://{address}:8080/"), "-r", "100", "-d", "10s", "--connections", "mixed:0.5",
                     "--out", out, "--quiet"],
        }]},
    });
    // The rules change a second or more after the slice.
    let (log, deadline) = (lab.dir().join("service-proxy.jsonl"), Instant::now() + LIMIT);
    let has_rules = || rules(&lab, namespace).last().is_some_and(|rule| rule.pods.len() == replicas);
    // All cases write to that log, so it is read only now and then.
    while !(log.exists() && has_rules()) {
        assert!(Instant::now() < deadline, "no rules for {namespace}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    lab.create(&format!("/api/v1/namespaces/{namespace}/pods"), &client).await;
    let running = |seen: &[Seen]| {
        let phase = |pod: &&Value| pod["status"]["phase"] == "Running";
        pods_now(seen).get("client").filter(|pod| phase(pod)).map(drop)
    };
    lab.until(namespace, "a running client", running).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let pod = ready_endpoints(&lab.seen(namespace))[0].clone();
    // Scaling down creates no replacement, which would take over the traffic.
    let scale = format!("/apis/apps/v1/namespaces/{namespace}/deployments/web");
    let zero_ns = now_ns();
    if replicas == 1 {
        assert_eq!(lab.call("PATCH", &scale, Some(&json!({"spec": {"replicas": 0}}))).await.status, 200);
    } else {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
        assert_eq!(lab.call("DELETE", &path, None).await.status, 200);
    }
    let over = |seen: &[Seen]| {
        let pods = pods_now(seen);
        let phase = pods.get("client").map(|pod| pod["status"]["phase"].clone());
        assert_ne!(phase, Some(json!("Failed")), "the client failed");
        (phase == Some(json!("Succeeded")) && !pods.contains_key(&pod)).then_some(())
    };
    lab.until(namespace, "the client to exit", over).await;
    let mut recording = record(&lab, namespace, &pod, zero_ns);
    recording.rows = RunDir::open(&out).and_then(|run| run.read()).expect("the client's records").requests;
    recording
}

#[test]
fn publish_not_ready_keeps_endpoint_ready() {
    for ours in recordings("publish-not-ready") {
        let terminating = "EndpointSlice endpoint ready=true serving=true terminating=true";
        assert_eq!(order_of("EndpointSlice", ours), [terminating, "EndpointSlice no endpoint"], "{ours}");
    }
}

#[test]
fn pod_without_probe_is_ready_before_it_listens() {
    for ours in recordings("no-probe") {
        let is_ready = |seen: &Seen| condition(&seen.object, "Ready").is_some_and(|c| c["status"] == "True");
        let (ready, _) = ours.pod_seen("a ready pod", is_ready);
        assert!(!ours.process.iter().any(|(at, what)| what == "app listens" && *at < ready), "{ours}");
    }
}

#[test]
fn rollout_pods_terminate_in_recorded_order() {
    for (case, recorded) in [("rollout", "C"), ("slow-rollout", "Bserve")] {
        for ours in recordings(case) {
            let leaving = ours.seen.iter().filter(|seen| seen.kind() == "Pod" && is_leaving(&seen.object));
            let mut first: BTreeMap<&str, i64> = BTreeMap::new();
            for seen in leaving {
                first.entry(seen.name()).or_insert(seen.at_ns);
            }
            assert_eq!(first.len(), 3, "{ours}");
            for (pod, zero_ns) in first {
                Golden::of(recorded).check_order(&ours.about(pod, zero_ns));
            }
        }
    }
}

#[test]
fn rollout_surges_and_keeps_replicas_available() {
    for case in ["rollout", "slow-rollout"] {
        for ours in recordings(case) {
            let begin = ours.seen.iter().position(|seen| ours.at(seen.at_ns) >= 0.0).expect("a rollout");
            let mut most_pods = 0;
            for n in begin..ours.seen.len() {
                let pods = pods_now(&ours.seen[..=n]);
                let staying: Vec<_> = pods.values().filter(|pod| !is_leaving(pod)).collect();
                let ready = |pod: &&&&Value| condition(pod, "Ready").is_some_and(|c| c["status"] == "True");
                // The Deployment counts the replicas that it has asked its ReplicaSets for.
                let sets = now("ReplicaSet", &ours.seen[..=n]);
                let asked: i64 = sets.values().filter_map(|set| set["spec"]["replicas"].as_i64()).sum();
                assert!(asked <= 4, "25 % of 3, rounded up, more: {ours}");
                assert!(staying.iter().filter(ready).count() >= 3, "25 % of 3, rounded down, fewer: {ours}");
                most_pods = most_pods.max(pods.len());
            }
            // Pods that are slow to terminate are not counted.
            assert!(case == "rollout" || most_pods > 4, "{most_pods} pods at most: {ours}");
        }
    }
}

#[test]
fn c12_replica_set_ignores_terminating_pod() {
    for ours in recordings("traffic") {
        let newer = ours
            .seen
            .iter()
            .find(|seen| seen.kind() == "Pod" && seen.event == "ADDED" && ours.at(seen.at_ns) > 0.0);
        let replaced = ours.at(newer.unwrap_or_else(|| panic!("no replacement: {ours}")).at_ns);
        assert!(ours.fits(replaced, 0.0..1.5) && ours.deleted() > 3.0, "replaced at {replaced}: {ours}");
    }
}

/// Returns the time at which a request was sent, in seconds since the deletion.
fn sent(ours: &Recording, row: &RequestRow) -> f64 {
    ours.at(row.sent.or(row.connect_start).unwrap_or(row.scheduled).unix_ns())
}

#[test]
fn terminating_pod_keeps_only_old_connections() {
    for ours in recordings("traffic") {
        let to_it = |reused: bool| -> Vec<f64> {
            let rows = ours.rows.iter().filter(|row| row.conn_reused == reused && row.outcome == Outcome::Ok);
            rows.filter(|row| row.pod.as_deref() == Some(&ours.pod)).map(|row| sent(ours, row)).collect()
        };
        // New connections stop within the Service proxy's throttle; kept ones are used while the pod lives.
        let (new, kept) = (to_it(false), to_it(true));
        let last = |times: &[f64]| times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!(ours.fits(last(&new), 0.0..2.2), "a new connection after {:.3} s\n{ours}", last(&new));
        assert!(last(&kept) > 2.2 - ours.lag_s, "no kept connection after {:.3} s\n{ours}", last(&kept));
    }
}

#[test]
fn service_falls_back_to_terminating_endpoints() {
    for ours in recordings("last-endpoint") {
        let terminating = |text: &str| text.contains("ready=false serving=true terminating=true");
        let (from, _) = order(ours).into_iter().find(|(_, text)| terminating(text)).expect("it was seen");
        // By the last of the pod's 3 s, all earlier rules have been replaced.
        let late = |row: &&RequestRow| (2.0..2.6).contains(&sent(ours, row)) && !row.conn_reused;
        let rows: Vec<_> = ours.rows.iter().filter(late).collect();
        assert!(ours.fits(from, 0.0..2.0) && !rows.is_empty(), "{ours}");
        assert!(rows.iter().all(|row| row.outcome == Outcome::Ok), "{rows:?}\n{ours}");
        // Once this pod is gone as well, nothing responds.
        let after = |row: &&RequestRow| sent(ours, row) > ours.deleted() + 2.0 && !row.conn_reused;
        assert!(ours.rows.iter().filter(after).all(|row| row.outcome != Outcome::Ok), "{ours}");
    }
}

#[test]
fn pod_is_available_before_service_proxies_sync() {
    for dataplane in DATAPLANES {
        // The delays are so long that clock differences cannot change the order.
        let slow = json!({"nodes": 2, "latencies": {"sliceToRule": "5s", "throttledSync": "5s"}});
        on_with(dataplane, slow, async |lab| {
            deploy(&lab, "shop", 1, EXIT, Value::Null).await;
            let old = ready_endpoints(&lab.seen("shop"))[0].clone();
            let path = "/apis/apps/v1/namespaces/shop/deployments/web";
            let change = json!({"spec": {"template": {"metadata": {"annotations": {"change": "1"}}}}});
            assert_eq!(lab.call("PATCH", path, Some(&change)).await.status, 200);
            // The new pod exists beside the old one, which is deleted as soon as both are counted.
            let counted = |seen: &[Seen]| {
                let both = |seen: &&Seen| seen.object["status"]["availableReplicas"] == 2;
                seen.iter().filter(|seen| seen.kind() == "Deployment").find(both).map(|seen| seen.at_ns)
            };
            let counted_ns = lab.until("shop", "two available pods", counted).await;
            let leaving = |seen: &[Seen]| {
                let old = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == old);
                old.filter(|seen| is_leaving(&seen.object)).map(|seen| seen.at_ns).next()
            };
            let leaving_ns = lab.until("shop", "the old pod's deletion", leaving).await;

            let log = lab.dir().join("service-proxy.jsonl");
            for node in ["node-1", "node-2"] {
                let table = |line: &Value| -> Vec<String> {
                    let endpoints = line["endpoints"].as_array().into_iter().flatten();
                    endpoints.filter_map(|to| to["pod"].as_str().map(str::to_owned)).collect()
                };
                let known = wait_for("the new pod in the table", LIMIT, || {
                    let lines = json_lines(&log).into_iter();
                    let own = lines.filter(|line| line["node"] == node && line["service"] == "shop/web");
                    let tables: Vec<_> = own.map(|line| (line["t_ns"].as_i64(), table(&line))).collect();
                    let first = tables.iter().position(|(_, pods)| pods.iter().any(|pod| *pod != old))?;
                    Some((tables[first].0, tables[..first].to_vec()))
                });
                let (known_ns, before) = known;
                assert!(Some(counted_ns.max(leaving_ns)) < known_ns, "{dataplane}, {node}");
                // Until then, connections could go only to the old pod.
                let only_old = |pods: &[String]| pods.iter().all(|pod| *pod == old);
                assert!(before.iter().all(|(_, pods)| only_old(pods)), "{dataplane}, {node}: {before:?}");
            }
        });
    }
}
