//! Duration of each hop in terminations and creations, compared with the spread measured on a real v1.36.2 cluster.
//!
//! The cluster is otherwise idle: a Service with a client at a steady rate, one deletion after another, a few with
//! preStop hooks, rollouts, and creations. `scripts/proofs/hop-times` repeats each as often as it was measured.

mod spread;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use rolldrop_record::{Outcome, Phase, RequestRow, RunDir, Stamp};
use serde_json::{Value, json};

use super::case::{EXIT, SERVE_3, condition};
use super::golden::order;
use super::lab::{Held, Lab, Seen, now_ns};
use super::recording::Recording;
use super::services::{deploy, is_leaving, pods_now, ready_endpoints, record};
use super::{DATAPLANES, recordings};
use crate::lab::Setup;
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{json_lines, turn};
use spread::{Hop, Sample, Table};

/// Time after the last change until a Service proxy is certainly idle again.
const IDLE: Duration = Duration::from_millis(2200);

/// Allowed distance of a median from the measured range, in ms. It is large, because few hops are measured here, on a
/// machine busy with other tests.
const SLACK_MS: f64 = 2000.0;

/// Maximum time in ms by which a hop may exceed every measured value, whatever the machine does.
const ANOTHER_HOP_MS: f64 = 1000.0;

/// Time at which each stage was seen, in seconds since the initial request was sent.
type Stages = BTreeMap<&'static str, f64>;

/// Returns the stages seen in a termination, named as in the measurement.
fn stages(ours: &Recording, gone_ns: Option<i64>, rows: &[RequestRow], rules: &[Rule]) -> Stages {
    let mut stages = Stages::new();
    if let Some(answer) = ours.answers.first() {
        stages.insert("DELETE answered", ours.at(answer.answered_ns));
    }
    let leaving = ours.pods().find(|(_, seen)| is_leaving(&seen.object)).expect("a deletion");
    stages.insert("pod MODIFIED with deletionTimestamp seen", leaving.0);
    stages.insert("SIGTERM received", ours.first("app SIGTERM"));
    if let Some(ns) = gone_ns {
        stages.insert("process gone (pidfd)", ours.at(ns));
    }
    let order = order(ours);
    let mut at = |stage, text: &str| {
        if let Some((at, _)) = order.iter().find(|(_, t)| t.contains(text)) {
            stages.insert(stage, *at);
        }
    };
    at("slice terminating seen", "terminating=true");
    at("container terminated in pod status seen", "app=terminated");
    at("endpoint removed from slice seen", "no endpoint");
    at("pod DELETED seen", "Pod DELETED");
    let without = |rule: &&Rule| ours.at(rule.at_ns) > 0.0 && !rule.pods.contains(&ours.pod);
    if let Some(rule) = rules.iter().find(without) {
        stages.insert("nft rule without the pod", ours.at(rule.at_ns));
    }
    let last = begun(rows).map(|ns| ours.at(ns)).fold(f64::NAN, f64::max);
    if last.is_finite() {
        stages.insert("last new connection sent to the pod (conntrack)", last);
    }
    stages
}

/// Returns the start times of the requests' connections.
fn begun(rows: &[RequestRow]) -> impl Iterator<Item = i64> {
    rows.iter().filter_map(|row| row.connect_start).map(|at| at.unix_ns())
}

/// Endpoints of a Service, with the time from which they were in effect.
pub(crate) struct Rule {
    at_ns: i64,
    pub(crate) pods: Vec<String>,
}

/// Returns the rules for the Service from the Service proxy's own log, which gets a line once the kernel has applied
/// them.
pub(crate) fn rules(lab: &Lab, namespace: &str) -> Vec<Rule> {
    let service = format!("{namespace}/web");
    let lines = json_lines(&lab.dir().join("service-proxy.jsonl"));
    let rule = |line: &Value| {
        let pods = line["endpoints"].as_array()?.iter();
        let pods = pods.filter_map(|endpoint| Some(endpoint["pod"].as_str()?.to_owned())).collect();
        Some(Rule { at_ns: line["t_ns"].as_i64()?, pods })
    };
    lines.iter().filter(|line| line["service"] == service).filter_map(rule).collect()
}

/// Deletes a pod of a Deployment, and waits until the pod's process exits.
async fn delete_one(lab: &Lab, namespace: &str) -> (Recording, i64) {
    let pod = ready_endpoints(&lab.seen(namespace))[0].clone();
    let log = lab.dir().join(format!("{namespace}.{pod}.jsonl"));
    let process = Held::find(&log.display().to_string()).await;
    let ended = tokio::spawn(process.ended_ns());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let answer = lab.call("DELETE", &path, None).await;
    let ended_ns = ended.await.expect("its exit status");
    let mut recording = record(lab, namespace, &pod, answer.sent_ns);
    recording.answers.push(answer);
    (recording, ended_ns)
}

/// Starts a pod that sends 300 requests a second on fresh connections until it is deleted.
async fn start_client(lab: &Lab, namespace: &str, address: &str) {
    let out = lab.dir().join(format!("{namespace}.run"));
    let client = json!({
        "metadata": {"name": "client"},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "load", "image": "rolldrop",
            "args": ["load", format!("http://{address}:8080/"), "-r", "300", "-d", "15m", "--out", out, "--quiet"],
        }]},
    });
    lab.create(&format!("/api/v1/namespaces/{namespace}/pods"), &client).await;
    let running = |seen: &[Seen]| {
        let pods = pods_now(seen);
        (pods.get("client")?["status"]["phase"] == "Running").then_some(())
    };
    lab.until(namespace, "a client", running).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// Stops the client; returns its rows.
async fn rows_of_client(lab: &Lab, namespace: &str) -> Vec<RequestRow> {
    delete_and_wait(lab, namespace, "client").await;
    let out = lab.dir().join(format!("{namespace}.run"));
    RunDir::open(&out).and_then(|run| run.read()).expect("the client's records").requests
}

async fn delete_and_wait(lab: &Lab, namespace: &str, pod: &str) {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    assert_eq!(lab.call("DELETE", &path, None).await.status, 200);
    let gone = |seen: &[Seen]| (!pods_now(seen).contains_key(pod)).then_some(());
    lab.until(namespace, "the pod to be gone", gone).await;
}

async fn isolated(lab: &Lab, n: usize) -> Vec<Stages> {
    let namespace = "isolated";
    let address = deploy(lab, namespace, 3, EXIT, Value::Null).await;
    start_client(lab, namespace, &address).await;
    let mut deleted = Vec::new();
    for _ in 0..n {
        let (of, gone_ns) = delete_one(lab, namespace).await;
        let replaced = |seen: &[Seen]| {
            let gone = !pods_now(seen).contains_key(&of.pod);
            (gone && ready_endpoints(seen).len() == 3).then_some(())
        };
        lab.until(namespace, "a replacement", replaced).await;
        tokio::time::sleep(IDLE).await;
        deleted.push((Recording { seen: lab.seen(namespace), ..of }, gone_ns));
    }
    let over_ns = now_ns();
    let (rows, rules) = (rows_of_client(lab, namespace).await, rules(lab, namespace));
    let of = |(n, (recording, gone_ns)): (usize, &(Recording, i64))| {
        let until = deleted.get(n + 1).map_or(over_ns, |(next, _)| next.zero_ns);
        let to_it = |row: &&RequestRow| was_sent_to(row, &recording.pod, recording.zero_ns..until);
        stages(recording, Some(*gone_ns), &rows.iter().filter(to_it).cloned().collect::<Vec<_>>(), &rules)
    };
    deleted.iter().enumerate().map(of).collect()
}

/// Returns true if a request was sent to the pod: either the pod responded, or the request failed while only that pod
/// was terminating, between its deletion and the next.
fn was_sent_to(row: &RequestRow, pod: &str, alone: Range<i64>) -> bool {
    let failed = !matches!(row.outcome, Outcome::Ok | Outcome::NotSent | Outcome::Cancelled);
    let within = alone.contains(&row.scheduled.unix_ns()) && alone.contains(&row.end.unix_ns());
    row.pod.as_deref() == Some(pod) || (failed && within)
}

/// Measures only the signal, so it does not matter that the Service proxy and the status are still being updated.
async fn pre_stop(lab: &Lab, namespace: &str, hook: Value, n: usize) -> Vec<Stages> {
    deploy(lab, namespace, 3, EXIT, hook).await;
    let mut of = Vec::new();
    for _ in 0..n {
        let (recording, gone_ns) = delete_one(lab, namespace).await;
        of.push(stages(&recording, Some(gone_ns), &[], &[]));
    }
    of
}

/// Measures rollouts of pods that keep serving for 3 s so that every new connection gets a response.
async fn rollouts(lab: &Lab, namespace: &str, replicas: usize, n: usize) -> Vec<Stages> {
    if n == 0 {
        return Vec::new();
    }
    let address = deploy(lab, namespace, replicas, SERVE_3, Value::Null).await;
    start_client(lab, namespace, &address).await;
    let mut terminated = Vec::new();
    for change in 0..n {
        let old = ready_endpoints(&lab.seen(namespace));
        let patch =
            json!({"spec": {"template": {"metadata": {"annotations": {"change": change.to_string()}}}}});
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/web");
        assert_eq!(lab.call("PATCH", &path, Some(&patch)).await.status, 200);
        let rolled_out = |seen: &[Seen]| {
            let gone = !pods_now(seen).keys().any(|pod| old.contains(pod));
            (gone && ready_endpoints(seen).len() == replicas).then_some(())
        };
        lab.until(namespace, "the end of the rollout", rolled_out).await;
        terminated.extend(old);
    }
    let (rows, rules) = (rows_of_client(lab, namespace).await, rules(lab, namespace));
    let all = record(lab, namespace, "", now_ns());
    let of = |pod: &String| {
        let deletion =
            all.seen.iter().find(|seen| seen.name() == pod && is_leaving(&seen.object)).expect("a deletion");
        let mut recording = record(lab, namespace, pod, deletion.at_ns);
        recording.seen.clone_from(&all.seen);
        let to_it = |row: &&RequestRow| row.pod.as_deref() == Some(pod);
        let rows: Vec<_> = rows.iter().filter(to_it).cloned().collect();
        let mut stages = stages(&recording, None, &rows, &rules);
        // The app exits by itself, 3 s after the signal.
        if let Some(exit) = recording.process.iter().find(|(_, what)| what == "app exiting") {
            stages.insert("process gone (pidfd)", exit.0);
        }
        stages
    };
    terminated.iter().map(of).collect()
}

/// Measures the creation of single pods, beside a Deployment's pods.
async fn creations(lab: &Lab, n: usize) -> Vec<Stages> {
    let namespace = "creations";
    let address = deploy(lab, namespace, 3, EXIT, Value::Null).await;
    start_client(lab, namespace, &address).await;
    let mut template = pods_now(&lab.seen(namespace))
        .values()
        .find(|pod| pod["metadata"]["labels"]["app"] == "web")
        .map(|pod| pod["spec"]["containers"].clone())
        .expect("a pod of the Deployment");
    // Each pod gets its own token.
    template[0]["volumeMounts"] = Value::Null;
    let mut created = Vec::new();
    for number in 0..n {
        tokio::time::sleep(IDLE).await;
        let name = format!("more-{number}");
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": template},
        });
        let answer = lab.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await;
        let ready = |seen: &[Seen]| ready_endpoints(seen).contains(&name).then_some(());
        lab.until(namespace, "a ready endpoint", ready).await;
        tokio::time::sleep(IDLE).await;
        let mut recording = record(lab, namespace, &name, answer.sent_ns);
        recording.answers.push(answer);
        created.push(recording);
        delete_and_wait(lab, namespace, &name).await;
    }
    let (rows, rules) = (rows_of_client(lab, namespace).await, rules(lab, namespace));
    created.iter().map(|of| stages_of_creation(of, &rows, &rules)).collect()
}

fn stages_of_creation(ours: &Recording, rows: &[RequestRow], rules: &[Rule]) -> Stages {
    let is_true = |kind: &'static str| {
        move |pod: &Value| condition(pod, kind).is_some_and(|condition| condition["status"] == "True")
    };
    let pod = |what: &str, state: &dyn Fn(&Value) -> bool| ours.pod_seen(what, |s| state(&s.object)).0;
    let running = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
    let endpoint = |state: &dyn Fn(&Value) -> bool| {
        let ours_in = |seen: &&Seen| {
            let endpoints = seen.object["endpoints"].as_array().into_iter().flatten();
            let mut ours_of = endpoints.filter(|endpoint| endpoint["targetRef"]["name"] == *ours.pod);
            seen.kind() == "EndpointSlice" && ours_of.any(state)
        };
        ours.at(ours.seen.iter().find(ours_in).expect("an endpoint").at_ns)
    };
    let mut stages = Stages::from([
        ("POST answered", ours.at(ours.answers[0].answered_ns)),
        ("pod ADDED seen", pod("the pod", &|_| true)),
        ("scheduled (nodeName) seen", pod("a node", &|pod| pod["spec"]["nodeName"].is_string())),
        ("PodReadyToStartContainers seen", pod("a sandbox", &is_true("PodReadyToStartContainers"))),
        ("listener open", ours.first("app listening")),
        ("container Running seen", pod("a running container", &running)),
        ("Ready seen", pod("a ready pod", &is_true("Ready"))),
        ("endpoint first in slice seen", endpoint(&|_| true)),
        ("slice ready seen", endpoint(&|endpoint| endpoint["conditions"]["ready"] == true)),
    ]);
    if let Some(rule) = rules.iter().find(|rule| rule.pods.contains(&ours.pod)) {
        stages.insert("nft rule with the pod", ours.at(rule.at_ns));
    }
    let to_it = |row: &&RequestRow| row.pod.as_deref() == Some(&ours.pod);
    let to_it: Vec<_> = rows.iter().filter(to_it).cloned().collect();
    if let Some(first) = begun(&to_it).min() {
        stages.insert("first request", ours.at(first));
    }
    stages
}

/// Measures all groups on one dataplane: `n` isolated deletions and creations, and fewer for the other groups.
fn measure(dataplane: &'static str, n: usize) -> BTreeMap<&'static str, Vec<Stages>> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let lab = Setup::on(dataplane).watched().await;
        let sleep = json!({"sleep": {"seconds": 3}});
        let request = json!({"httpGet": {"path": "/slow?ms=3000", "port": 8080}});
        let some = n.div_ceil(3);
        BTreeMap::from([
            ("isolated", isolated(&lab, n).await),
            ("preStop sleep", pre_stop(&lab, "pre-stop-sleep", sleep, n).await),
            ("preStop request", pre_stop(&lab, "pre-stop-request", request, n).await),
            ("rollout of 3", rollouts(&lab, "rollouts-of-3", 3, some).await),
            // Left out of the short form, because these take the longest.
            ("rollout of 6", rollouts(&lab, "rollouts-of-6", 6, n / 3).await),
            ("creation", creations(&lab, n).await),
        ])
    })
}

/// Returns the table for one dataplane, and the hops that are further outside the measured range than allowed.
fn compare(ours: &BTreeMap<&str, Vec<Stages>>, slack_ms: f64) -> (Table, Vec<String>) {
    let (mut table, mut outside) = (Table::new(), Vec::new());
    for hop in Hop::all() {
        let Hop { group, from, to, .. } = &hop;
        let all = &ours[group];
        let ms = |stages: &Stages| {
            let begin = if from.ends_with(" sent") { 0.0 } else { *stages.get(from)? };
            Some((stages.get(to)? - begin) * 1000.0)
        };
        let ms: Vec<f64> = all.iter().filter_map(ms).collect();
        assert!(all.is_empty() || !ms.is_empty(), "{group}: no {from} to {to}");
        if ms.is_empty() {
            continue;
        }
        let ours = Sample::of(ms);
        let excess = ours.percentile(100) - hop.measured.percentile(100);
        if table.add(&hop, &ours) > slack_ms || excess > slack_ms.max(ANOTHER_HOP_MS) {
            outside.push(format!("{group}: {from} to {to}"));
        }
    }
    (table, outside)
}

/// A measurement larger than in the tests, requested by `scripts/proofs/hop-times`.
struct Proof {
    n: usize,
    dataplanes: String,
    /// The file for the tables.
    tables: String,
}

impl Proof {
    fn asked_for() -> Option<Self> {
        let asked = |name| std::env::var(name).ok();
        let n = asked("ROLLDROP_HOPS")?.parse().expect("a number");
        let dataplanes = asked("ROLLDROP_HOPS_DATAPLANES").expect("names of dataplanes");
        Some(Self { n, dataplanes, tables: asked("ROLLDROP_HOPS_TABLES").expect("a file") })
    }

    /// Measures one dataplane after the other. Returns the hops outside the measured range.
    fn run(&self) -> Vec<String> {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        let cores = std::thread::available_parallelism().expect("processors");
        let (mut text, mut outside) = (String::new(), Vec::new());
        for dataplane in DATAPLANES.into_iter().filter(|dataplane| self.dataplanes.contains(dataplane)) {
            let (before, idle_before) = processor_ticks();
            let ours = measure(dataplane, self.n);
            let (after, idle_after) = processor_ticks();
            let busy = 100.0 - 100.0 * (idle_after - idle_before) / (after - before);
            let (table, not_inside) = compare(&ours, 0.0);
            let _ = writeln!(
                text,
                "On the {dataplane} dataplane, a {build} build, {cores} processors that were {busy:.0} % busy:\n\n{table}"
            );
            outside.extend(not_inside.into_iter().map(|hop| format!("{dataplane}: {hop}")));
        }
        std::fs::write(&self.tables, &text).expect("a file");
        outside
    }
}

/// Returns the ticks of all CPUs since boot, and how many of them were idle.
fn processor_ticks() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks = stat.lines().next().expect("a line").split_whitespace().skip(1).take(8);
    let ticks: Vec<f64> = ticks.map(|n| n.parse().expect("ticks")).collect();
    // user, nice, system, idle, waiting for a disk, …
    (ticks.iter().sum(), ticks[3] + ticks[4])
}

#[test]
fn hop_rows_exclude_next_deletion() {
    let row = |at_s: i64, took_ms: i64, outcome, pod: Option<&str>| {
        let scheduled = Stamp::from_unix_ns(at_s * 1_000_000_000);
        let end = scheduled.shifted_ns(took_ms * 1_000_000);
        let row = RequestRow::not_sent("load".into(), 0, "web".into(), Phase::Main, scheduled, end);
        RequestRow { outcome, pod: pod.map(Into::into), ..row }
    };
    let to_a = |row: RequestRow| was_sent_to(&row, "a", 10_000_000_000..13_000_000_000);
    assert!(to_a(row(9, 1, Outcome::Ok, Some("a"))));
    assert!(to_a(row(11, 1000, Outcome::ConnectTimeout, None)));
    // The replacement was quick, so the next deletion came less than 3 s later.
    assert!(!to_a(row(13, 1, Outcome::ConnectRefused, None)));
    assert!(!to_a(row(12, 1001, Outcome::ConnectTimeout, None)));
    assert!(!to_a(row(11, 1, Outcome::Ok, Some("b"))));
}

#[test]
fn hop_times_lie_within_measured_spread() {
    measured(|| {
        if let Some(proof) = Proof::asked_for() {
            let outside = proof.run();
            assert!(outside.is_empty(), "{outside:#?}");
            return;
        }
        // Runs a few of each on both dataplanes at the same time, after the recorded cases.
        recordings("A");
        let _turn = turn();
        let meanwhile = Meanwhile::begins();
        let both = DATAPLANES.map(|dataplane| std::thread::spawn(move || measure(dataplane, 2)));
        let both = both.map(|ours| ours.join().expect("a measured cluster"));
        let taken = meanwhile.taken();
        for (dataplane, ours) in DATAPLANES.iter().zip(both) {
            let (table, outside) = compare(&ours, SLACK_MS);
            figure(taken, outside.is_empty(), || format!("{dataplane}: {outside:#?}\n{table}"));
        }
    });
}
