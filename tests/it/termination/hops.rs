//! How long each hop of a termination takes, against the measured spread of a real v1.36.2.
//!
//! On a cluster where nothing else happens: a Service with a client at a steady
//! rate, one deletion after the other, a few with a preStop sleep, and rollouts.
//! `scripts/proofs/hop-times` runs it with as many as were measured.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use rolldrop::record::{Outcome, RequestRow, RunDir};
use serde_json::{Value, json};

use super::case::{EXIT, SERVE_3};
use super::golden::order;
use super::lab::{Held, Lab, Seen, now_ns};
use super::recording::Recording;
use super::recordings;
use super::services::{deploy, is_leaving, pods_now, ready_endpoints, record};
use crate::runs::turn;

const HOPS: &str = include_str!("../golden/hops.txt");

/// How many isolated deletions; a third as many with a preStop sleep and rollouts.
fn deletions() -> usize {
    std::env::var("ROLLDROP_HOPS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// A median of ours may lie so far outside the measured range: few are measured here, on a busy machine.
const SLACK_S: (f64, f64) = (0.02, 0.4);

/// What was measured of a hop, in seconds.
struct Measured {
    group: &'static str,
    from: &'static str,
    to: &'static str,
    /// Minimum, median, 95th percentile, maximum.
    figures: [f64; 4],
}

fn measured() -> Vec<Measured> {
    let lines = HOPS.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &'static str| {
        let words: Vec<&str> = line.split("; ").collect();
        let figures = [4, 5, 6, 7].map(|n| words[n].parse().expect("seconds"));
        Measured { group: words[0], from: words[1], to: words[2], figures }
    };
    lines.map(parse).collect()
}

/// When each stage of one termination was seen, in seconds since DELETE was sent.
type Stages = BTreeMap<&'static str, f64>;

/// The stages in the words of the measurement.
fn stages(ours: &Recording, gone_ns: Option<i64>, rows: &[RequestRow]) -> Stages {
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
    let last = rows
        .iter()
        .filter_map(|row| row.connect_start)
        .map(|at| ours.at(at.unix_ns()))
        .fold(f64::NAN, f64::max);
    if last.is_finite() {
        stages.insert("last new connection sent to the pod (conntrack)", last);
    }
    stages
}

/// Deletes a pod of a Deployment and waits until it is replaced.
async fn delete_one(lab: &Lab, namespace: &str) -> (Recording, i64) {
    let pod = ready_endpoints(&lab.seen(namespace))[0].clone();
    let log = lab.dir().join(format!("{namespace}.{pod}.jsonl"));
    let process = Held::find(&log.display().to_string()).await;
    let ended = tokio::spawn(process.ended_ns());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let answer = lab.call("DELETE", &path, None).await;
    let replaced = |seen: &[Seen]| {
        let gone = !pods_now(seen).contains_key(&pod);
        (gone && ready_endpoints(seen).len() == 3).then_some(())
    };
    lab.until(namespace, "a replacement", replaced).await;
    // The Service proxy is idle again.
    tokio::time::sleep(Duration::from_millis(2200)).await;
    let mut recording = record(lab, namespace, &pod, answer.sent_ns);
    recording.answers.push(answer);
    (recording, ended.await.expect("its end"))
}

/// A pod that sends 300 requests a second on fresh connections for a while.
async fn start_client(lab: &Lab, namespace: &str, address: &str, seconds: usize) {
    let out = lab.dir().join(format!("{namespace}.run"));
    let client = json!({
        "metadata": {"name": "client"},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "load", "image": "rolldrop",
            "args": ["load", format!("http://{address}:8080/"), "-r", "300", "-d", format!("{seconds}s"),
                     "--out", out, "--quiet"],
        }]},
    });
    lab.create(&format!("/api/v1/namespaces/{namespace}/pods"), &client).await;
    lab.until(namespace, "a client", |seen| {
        phase_of_client(seen).filter(|phase| phase == "Running").map(drop)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
}

fn phase_of_client(seen: &[Seen]) -> Option<String> {
    pods_now(seen).get("client")?["status"]["phase"].as_str().map(str::to_owned)
}

/// The client's rows, once it has ended.
async fn rows_of_client(lab: &Lab, namespace: &str) -> Vec<RequestRow> {
    let ended = |seen: &[Seen]| phase_of_client(seen).filter(|phase| phase != "Running").map(drop);
    lab.until(namespace, "the client's end", ended).await;
    let out = lab.dir().join(format!("{namespace}.run"));
    RunDir::open(&out).and_then(|run| run.read()).expect("the client's records").requests
}

async fn isolated(lab: &Lab, n: usize) -> Vec<Stages> {
    let address = deploy(lab, "isolated", 3, EXIT, Value::Null).await;
    start_client(lab, "isolated", &address, 4 + n * 6).await;
    let mut deleted = Vec::new();
    for _ in 0..n {
        deleted.push(delete_one(lab, "isolated").await);
    }
    let rows = rows_of_client(lab, "isolated").await;
    let of = |(recording, gone_ns): &(Recording, i64)| {
        // What fails around the one deletion was sent to the one pod that is gone.
        let near = |row: &&RequestRow| {
            let at = recording.at(row.scheduled.unix_ns());
            let to_it = row.pod.as_deref() == Some(&recording.pod) || row.outcome != Outcome::Ok;
            (-0.5..3.0).contains(&at) && to_it
        };
        stages(recording, Some(*gone_ns), &rows.iter().filter(near).cloned().collect::<Vec<_>>())
    };
    deleted.iter().map(of).collect()
}

async fn pre_stop(lab: &Lab, n: usize) -> Vec<Stages> {
    deploy(lab, "pre-stop", 3, EXIT, json!({"sleep": {"seconds": 3}})).await;
    let mut of = Vec::new();
    for _ in 0..n {
        let (recording, gone_ns) = delete_one(lab, "pre-stop").await;
        of.push(stages(&recording, Some(gone_ns), &[]));
    }
    of
}

/// Rollouts of pods that serve on for 3 s, so that each new connection is answered by its pod.
async fn rollouts(lab: &Lab, n: usize) -> Vec<Stages> {
    let address = deploy(lab, "rollouts", 3, SERVE_3, Value::Null).await;
    start_client(lab, "rollouts", &address, 4 + n * 15).await;
    let mut terminated = Vec::new();
    for change in 0..n {
        let old = ready_endpoints(&lab.seen("rollouts"));
        let patch =
            json!({"spec": {"template": {"metadata": {"annotations": {"change": change.to_string()}}}}});
        let path = "/apis/apps/v1/namespaces/rollouts/deployments/web";
        assert_eq!(lab.call("PATCH", path, Some(&patch)).await.status, 200);
        let rolled_out = |seen: &[Seen]| {
            let gone = !pods_now(seen).keys().any(|pod| old.contains(pod));
            (gone && ready_endpoints(seen).len() == 3).then_some(())
        };
        lab.until("rollouts", "the rollout's end", rolled_out).await;
        terminated.extend(old);
    }
    let rows = rows_of_client(lab, "rollouts").await;
    let all = record(lab, "rollouts", "", now_ns());
    let of = |pod: &String| {
        let deletion =
            all.seen.iter().find(|seen| seen.name() == pod && is_leaving(&seen.object)).expect("it");
        let mut recording = record(lab, "rollouts", pod, deletion.at_ns);
        recording.seen.clone_from(&all.seen);
        let to_it = |row: &&RequestRow| row.pod.as_deref() == Some(pod);
        let mut stages = stages(&recording, None, &rows.iter().filter(to_it).cloned().collect::<Vec<_>>());
        // It ends of itself, 3 s after the signal.
        if let Some(exit) = recording.process.iter().find(|(_, what)| what == "app exiting") {
            stages.insert("process gone (pidfd)", exit.0);
        }
        stages
    };
    terminated.iter().map(of).collect()
}

/// Minimum, median, 95th percentile, maximum.
fn figures(mut values: Vec<f64>) -> [f64; 4] {
    values.sort_by(f64::total_cmp);
    let at = |n: usize| values[n.min(values.len() - 1)];
    [at(0), at(values.len() / 2), at(values.len() * 95 / 100), at(values.len())]
}

#[test]
fn hop_times_lie_within_the_measured_spread() {
    // One after the other, both with nothing beside them that measures.
    recordings("A");
    let _turn = turn();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let n = deletions();
    let ours = runtime.block_on(async {
        let lab = Arc::new(Lab::start("userspace", &json!({"dataplane": "userspace"})).await);
        let isolated = isolated(&lab, n).await;
        [
            ("isolated", isolated),
            ("preStop", pre_stop(&lab, n.div_ceil(3)).await),
            ("rollout", rollouts(&lab, n.div_ceil(3)).await),
        ]
    });
    let ours = BTreeMap::from(ours);

    let mut table = "| group | from | to | measured (ms) | n | here (ms) | median inside |\n|---|---|---|---|---|---|---|\n".to_owned();
    let mut outside = Vec::new();
    for Measured { group, from, to, figures: real } in measured() {
        // The rollouts' pods here end of themselves.
        if group == "rollout" && (to == "process gone (pidfd)" || from == "DELETE sent") {
            continue;
        }
        let hop = |stages: &Stages| {
            let begin = if from == "DELETE sent" { 0.0 } else { *stages.get(from)? };
            Some(stages.get(to)? - begin)
        };
        let values: Vec<f64> = ours[group].iter().filter_map(hop).collect();
        assert!(!values.is_empty(), "{group}: no {from} to {to}");
        let (count, here) = (values.len(), figures(values));
        let ms = |figures: [f64; 4]| figures.map(|s| format!("{:.0}", s * 1000.0)).join(" / ");
        let inside = (real[0]..=real[3]).contains(&here[1]);
        let _ = writeln!(
            table,
            "| {group} | {from} | {to} | {} | {count} | {} | {} |",
            ms(real),
            ms(here),
            if inside { "yes" } else { "no" }
        );
        if !(real[0] - SLACK_S.0..=real[3] + SLACK_S.1).contains(&here[1]) {
            outside.push(format!("{group}: {from} to {to}"));
        }
    }
    println!("{table}");
    assert!(outside.is_empty(), "{outside:#?}\n{table}");
}
